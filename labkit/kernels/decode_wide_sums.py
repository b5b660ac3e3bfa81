"""What becomes of the sums of a block of decode_wide: parts of K put together, the residual, the hook `after`.

A thread holds accumulators where wgmma leaves them, and stores its share of the sums, 32 neighbours a warp.
"""

from __future__ import annotations

from numba import cuda, float32, int32, int64, uint32
from numba.types import float16

from labkit import ptx

__all__ = ["CONSUMERS", "PAIRS", "PITCH", "held", "lay_down", "make_finish", "make_parts", "place"]

CONSUMERS = 256  # threads of two warpgroups
PAIRS = 64  # of rows of w, a block
PITCH = 2 * PAIRS + 4  # of sums, [row of x][row of w]: a fragment's lanes store to 32 different banks


@cuda.jit(device=True, forceinline=True)
def place(t):
    """Of this thread's first accumulator in sums[PITCH · b + row]: rows 0 … 63 are `pair`, then `second`."""
    lane, warp, group = t & uint32(31), (t >> uint32(5)) & uint32(3), t >> uint32(7)
    row = uint32(uint32(PAIRS) * group + uint32(16) * warp + (lane >> uint32(2)))
    return uint32(uint32(2 * PITCH) * (lane & uint32(3)) + row)


@cuda.jit(device=True, forceinline=True)
def lay_down(sums, at, e, f, g, h):
    """Four accumulators: rows r and r + 8 of w, two neighbouring rows of x."""
    sums[at], sums[uint32(at + uint32(PITCH))] = e, f
    sums[uint32(at + uint32(8))], sums[uint32(at + uint32(PITCH + 8))] = g, h


def make_parts(N, SPLIT, HELD):
    """put: a block's sums to the workspace; add: all parts of a tile. A thread has the same places in both."""
    QUADS, SIZE = N // 8, 2 * PAIRS * N
    TOGETHER = HELD // (4 * SPLIT)

    @cuda.jit(device=True, forceinline=True)
    def put(workspace, part, c, t):
        """This thread's accumulators."""
        at = int64(SIZE) * int64(part) + int64(uint32(4) * t)
        for j in range(QUADS):
            ptx.store4(workspace, at + int64(4 * CONSUMERS * j), c[4 * j], c[4 * j + 1], c[4 * j + 2], c[4 * j + 3])

    @cuda.jit(device=True, forceinline=True)
    def add(workspace, tile, sums, t, v):
        """All parts of a tile, in their order, to sums; loads of TOGETHER quads are under way at once."""
        at = int64(SIZE * SPLIT) * int64(tile) + int64(uint32(4) * t)
        to = place(t)
        q = int32(0)
        while q < QUADS:
            for i in range(TOGETHER):
                k = at + int64(4 * CONSUMERS) * int64(q + i)
                for p in range(SPLIT):
                    o = 4 * (SPLIT * i + p)
                    v[o], v[o + 1], v[o + 2], v[o + 3] = ptx.load4(workspace, k + int64(SIZE * p))
            for i in range(TOGETHER):
                e = f = g = h = float32(0)
                for p in range(SPLIT):
                    o = 4 * (SPLIT * i + p)
                    e += v[o]
                    f += v[o + 1]
                    g += v[o + 2]
                    h += v[o + 3]
                lay_down(sums, uint32(to + uint32(8 * PITCH) * uint32(q + i)), e, f, g, h)
            q = ptx.same(int32(q + TOGETHER))  # not unrolled: more under way would not fit the registers

    return put, add


def make_finish(N, after, adds):
    """fetch: the residual's numbers of a thread's pairs; finish: the hook `after`, for each of them."""
    EACH = N * PAIRS // CONSUMERS

    @cuda.jit(device=True, forceinline=True)
    def fetch(residual, t, pair0, b0, m, half, batch, old, older):
        """The residual's numbers of this thread's pairs."""
        for i in range(EACH):
            e = uint32(t + uint32(CONSUMERS * i))
            pair, b = uint32(pair0 + e % uint32(PAIRS)), uint32(b0 + e // uint32(PAIRS))
            second = uint32(pair + half)
            old[i] = older[i] = float16(0)
            if pair < half and b < batch:
                old[i], older[i] = residual[b, pair], residual[b, second if second < m else pair]

    @cuda.jit(device=True, forceinline=True)
    def finish(sums, t, pair0, b0, m, half, batch, old, older, out):
        """What becomes of this thread's pairs; a warp has 32 neighbours of a row of x."""
        for i in range(EACH):
            e = uint32(t + uint32(CONSUMERS * i))
            one, column = e % uint32(PAIRS), e // uint32(PAIRS)
            pair, b = uint32(pair0 + one), uint32(b0 + column)
            if pair < half and b < batch:
                at = uint32(uint32(PITCH) * column + one)
                there = uint32(pair + half) < m
                second = uint32(pair + half) if there else pair
                x, y = (float32(old[i]), float32(older[i])) if adds else (float32(0), float32(0))
                after(sums[at], sums[uint32(at + uint32(PAIRS))], pair, second, there, x, y, b, out)

    return fetch, finish


def held(N, split, two):
    """Float32 of a thread while it adds parts: as many quads of all parts as its registers have room for, or one."""
    most = 16 if N == 8 else 8 + (8 if two else 16)
    return 4 * split * max(i for i in (1, 2, 4, 8) if i == 1 or (i * split <= most and i <= N // 8))
