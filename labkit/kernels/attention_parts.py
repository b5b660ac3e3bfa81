"""What a warpgroup does for Hopper's attention: products started on wgmma, and the softmax of a tile in registers.

Four lanes hold a row of S, a lane two rows, 8 apart: S[4n], S[4n + 1] are of its first, S[4n + 2], S[4n + 3] of its
second.
Symbols as in the FlashAttention papers. Sizes are constants of the device functions made here, for head_dim 64 or 128.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from labkit import ptx

CORE = 1 << 62 | 64 << 32  # a descriptor: 128-byte swizzle, 1,024 bytes from 8 rows to the next 8
inline = cuda.jit(device=True, forceinline=True)


@inline
def descriptor(layout, at):
    """Of what lies at a shared address, for wgmma."""
    return uint64(layout) | uint64((at & uint32(0x3FFFF)) >> uint32(4))


@inline
def mask(S, row, first, seqlen, reach):
    """S ← −∞ where key > row + reach or key ≥ seqlen. S begins at this lane's first row and at key `first`."""
    key = int32(first + 2 * (int32(cuda.threadIdx.x) & 3))
    left, seen = int32(seqlen - key), int32(row + reach + 1 - key)
    for n in range(S.size // 4):
        for x in range(2):
            if int32(8 * n + x) >= left or int32(8 * n + x) >= seen:
                S[4 * n + x] = float32(-np.inf)
            if int32(8 * n + x) >= left or int32(8 * (n - 1) + x) >= seen:
                S[4 * n + 2 + x] = float32(-np.inf)


@inline
def over_row(x):
    """The maximum over the four lanes that share a row."""
    x = ptx.max_f32(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, 1))
    return ptx.max_f32(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, 2))


@inline
def online_softmax(S, m, l, alpha, scale):
    """S becomes P; m and l follow; alpha is what O has to be multiplied by. Both rows at once: neither waits."""
    top, shift = cuda.local.array(2, float32), cuda.local.array(2, float32)
    top[0], top[1] = m[0], m[1]
    for n in range(S.size // 4):
        for i in range(2):
            top[i] = ptx.max_f32(top[i], ptx.max_f32(S[4 * n + 2 * i], S[4 * n + 2 * i + 1]))
    for i in range(2):
        top[i] = over_row(top[i])
        new = float32(0) if top[i] == float32(-np.inf) else top[i]  # no key seen yet: no NaN
        alpha[i] = ptx.exp2((m[i] - new) * scale)
        m[i], shift[i] = top[i], new * scale
        l[i] *= alpha[i]
    for n in range(S.size // 4):
        for i in range(2):
            x = 4 * n + 2 * i
            S[x], S[x + 1] = ptx.exp2(S[x] * scale - shift[i]), ptx.exp2(S[x + 1] * scale - shift[i])
            l[i] += S[x] + S[x + 1]


@inline
def pack(S, P):
    """P: S in float16, two a register. As wgmma left it in S, so it takes it as A."""
    for i in range(P.size):
        P[i] = ptx.pack_half2(S[2 * i], S[2 * i + 1])


@inline
def rescale(x, factors):
    """A lane's two rows of x, each by its factor."""
    for n in range(x.size // 4):
        for i in range(4):
            x[4 * n + i] *= factors[i >> 1]


def sizes(D: int) -> SimpleNamespace:
    """What one head_dim asks for: tiles, bytes, and where things lie in shared memory."""
    groups, bc = {64: (3, 128), 128: (2, 176)}[D]  # B_c: as many keys as the registers have room for
    br, panels = 64 * groups, D // 64  # the copy engine brings panels of 64 columns
    q_bytes, tile = 2 * br * D, 2 * bc * D
    barriers = q_bytes + 4 * tile
    return SimpleNamespace(
        D=D, groups=groups, br=br, bc=bc, panels=panels, q_bytes=q_bytes, tile=tile, q_panel=128 * br, panel=128 * bc,
        k_at=q_bytes, v_at=q_bytes + 2 * tile, full_q=barriers, full_k=barriers + 8, full_v=barriers + 40,
        threads=128 * groups, shared=barriers + 128 + 1024, turns=groups == 2,
    )  # fmt: skip


def in_turn(make, first: int, count: int):
    """A device function that does make(first), make(first + 1), … in turn: a loop may not hold a wgmma."""
    if count == 1:
        return make(first)
    left, right = in_turn(make, first, count // 2), in_turn(make, first + count // 2, count - count // 2)

    @inline
    def both(acc, a, b):
        return right(left(acc, a, b), a, b)

    return both


def scores(z):
    """A device function: S of 64 rows, from the descriptors of Q and of a tile of K; started, not awaited."""
    start = getattr(ptx, f"wgmma_m64n{z.bc}k16_first")
    multiply = getattr(ptx, f"wgmma_m64n{z.bc}k16")

    def columns(i):  # 16 of head_dim: 32 bytes in a row of a panel
        q_step, k_step = (i // 4 * (panel >> 4) + i % 4 * 2 for panel in (z.q_panel, z.panel))

        @inline
        def add(S, q, k):
            return multiply(S, q + uint64(q_step), k + uint64(k_step))

        return add

    others = in_turn(columns, 1, z.D // 16 - 1)

    @inline
    def started(q, k):
        ptx.wgmma_fence()
        S = others(start(q, k), q, k)
        ptx.wgmma_commit()
        return S

    return started


def weighted(z):
    """A device function: O += P · V of a tile; started, not awaited."""
    multiply = getattr(ptx, f"wgmma_m64n{z.D}k16_ra_bn")

    def keys(i):  # 16 keys: four registers of P, 16 rows of V
        at, step = 4 * i, 128 * i

        @inline
        def add(O, P, v):
            return multiply(O, P[at], P[at + 1], P[at + 2], P[at + 3], v + uint64(step))

        return add

    all_keys = in_turn(keys, 0, z.bc // 16)

    @inline
    def started(O, P, v):
        ptx.wgmma_fence()
        O = all_keys(O, P, v)
        ptx.wgmma_commit()
        return O

    return started
