"""Chapter 08's product for a batch on Hopper, and on Hopper only: w streams through shared memory, wgmma does the rest.

out[b, i] = after(sum over k of w[i, k] · x[b, k]): w float16[rows, K], x float16[batch, K], K a multiple of 8.

A block has 64 pairs of rows of w (`pair` and `pair + half`, as the chapter's other products), `tiles_n` rows of x, and
one of `split` parts of K. One thread only starts tensor copies; two warpgroups multiply, 0 the rows `pair`, 1 the rows
`pair + half`. Between them stand `stages` slices of 64 columns, each with two barriers: `full` (what was requested of
w and of x has arrived) and `empty` (both warpgroups are done with it). What lies outside w or x arrives as zeros.

The kernel starts early: its first slices of w are on their way before the kernel ahead has ended. With split > 1 the
parts of a tile meet in global memory; the last block adds them, always in the same order.
"""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, int32, int64, uint32, uint64
from numba.types import float16

from labkit import ptx
from labkit.errors import LabError
from labkit.kernels.decode_wide_sums import CONSUMERS, PAIRS, PITCH, held, lay_down, make_finish, make_parts, place

__all__ = ["make_wide", "most_room", "wide_grid", "wide_launch", "wide_plan", "wide_room"]

THREADS = CONSUMERS + 32  # and the producer's warp
BK = 64  # columns of a slice: one swizzled row of 128 bytes
W_HALF = 2 * PAIRS * BK  # bytes of a slice of one warpgroup's rows
LAYOUT = (1 << 62) | (64 << 32) | (1 << 16)  # k contiguous, 128-byte swizzle, 1,024 bytes from 8 rows to the next 8
STEP16 = 32 >> 4  # from 16 columns to the next 16, in units of 16 bytes
TWO_AN_SM = 113 << 10  # bytes of shared memory of a block, so that two fit an SM
MOST = 226 << 10  # what one may have

MULTIPLY = {8: ptx.wgmma_m64n8k16, 16: ptx.wgmma_m64n16k16, 32: ptx.wgmma_m64n32k16, 64: ptx.wgmma_m64n64k16}
ZEROS = {8: ptx.zeros_4, 16: ptx.zeros_8, 32: ptx.zeros_16, 64: ptx.zeros_32}


def wide_plan(rows: int, K: int, batch: int, sms: int) -> dict:
    """tiles_n, split and ring of make_wide for w[rows, K] and x[batch, K] on a GPU with `sms` SMs.

    As many parts as still give one block an SM at most (8 at most, at least four slices each). With no more tiles than
    SMs a block has an SM's shared memory for itself; with more, two share it (up to 64 rows all blocks of chapter 08's
    largest matrix then run at once on 132 SMs).
    """
    n = next(n for n in MULTIPLY if n >= min(batch, 64))
    tiles = -(-((rows + 1) // 2) // PAIRS) * -(-batch // n)
    split = max(1, min(8, sms // tiles, -(-K // BK) // 4))
    return {"tiles_n": n, "split": split, "ring": MOST if tiles <= sms else TWO_AN_SM}


def wide_grid(kernel, rows: int, batch: int) -> tuple[int, int, int]:
    """The grid of a kernel of make_wide for w[rows, K] and x[batch, K]: tiles of rows, parts of K, tiles of x."""
    return -(-((rows + 1) // 2) // PAIRS), kernel.split, -(-batch // kernel.tiles_n)


def wide_room(kernel, rows: int, batch: int) -> tuple[int, int]:
    """Float32 of the workspace and int32 of the counter (zeros) that a launch needs."""
    tiles, split, columns = wide_grid(kernel, rows, batch)
    if split == 1:
        return 4, 1
    return tiles * columns * split * 2 * PAIRS * kernel.tiles_n, tiles * columns


def most_room(sms: int) -> tuple[int, int]:
    """What wide_room asks for at most, for plans of wide_plan: with parts a GPU has one block an SM at most."""
    return sms * 2 * PAIRS * max(MULTIPLY), sms


def wide_launch(start, kernel, w, x, residual, out, workspace, counter):
    """The launch of a kernel of make_wide; `start` is ptx.prepare, or takes the same arguments.

    w, x                float16[rows, K], [batch, K]
    residual, out       float16[batch, …]; residual: None where `after` adds nothing
    workspace, counter  float32 of any values, int32 zeros (left as zeros); flat, as long as wide_room says at least
    """
    need = wide_room(kernel, w.shape[0], x.shape[0])
    if workspace.size < need[0] or counter.size < need[1]:
        found = f"{workspace.size} sums and {counter.size} counts"
        raise LabError(f"found room for {found}, expected {need[0]} and {need[1]}: wide_room")
    maps = ptx.tensor_map(w, (PAIRS, BK)), ptx.tensor_map(x, (kernel.tiles_n, BK))  # they keep w and x alive
    grid, more = wide_grid(kernel, w.shape[0], x.shape[0]), residual if residual is not None else out
    return start(kernel, grid, THREADS, *maps, w, x, more, workspace, counter, out, shared=kernel.shared)


def _make_produce(STAGES, STAGE, X_BYTES, BARRIERS):
    @cuda.jit(device=True, forceinline=True)
    def request_w(map_w, target, barrier, step, row, second):
        """A slice of the rows row … row + 63 and second … second + 63."""
        ptx.mbarrier_expect(barrier, uint32(2 * W_HALF))
        ptx.tma_load_2d(target, map_w, int32(step * BK), row, barrier)
        ptx.tma_load_2d(target + uint32(W_HALF), map_w, int32(step * BK), second, barrier)

    @cuda.jit(device=True, forceinline=True)
    def request_x(map_x, target, barrier, step, b0):
        """The same slice of the rows b0 … of x."""
        ptx.mbarrier_expect(barrier, uint32(X_BYTES))
        ptx.tma_load_2d(target + uint32(2 * W_HALF), map_x, int32(step * BK), b0, barrier)

    @cuda.jit(device=True, forceinline=True)
    def produce(map_w, map_x, tiles, row, second, b0, first, steps):
        """One thread: the slices first … first + steps - 1, each as soon as its stage is empty."""
        full, empty = tiles + uint32(BARRIERS), tiles + uint32(BARRIERS + 8 * STAGES)
        ahead = int32(min(steps, int32(STAGES)))
        ptx.prefetch_map(map_x)  # it comes from memory, most likely: weights have passed through the L2 since
        for s in range(ahead):
            request_w(map_w, tiles + uint32(s) * uint32(STAGE), full + uint32(8 * s), first + s, row, second)
        ptx.wait_for_previous()  # without it: x is not there yet
        for s in range(ahead):
            request_x(map_x, tiles + uint32(s) * uint32(STAGE), full + uint32(8 * s), first + s, b0)
        stage, phase, step = int32(0), uint32(0), ahead
        while step < steps:
            barrier, target = full + uint32(8 * stage), tiles + uint32(stage) * uint32(STAGE)
            ptx.mbarrier_wait(empty + uint32(8 * stage), phase)
            request_w(map_w, target, barrier, first + step, row, second)
            request_x(map_x, target, barrier, first + step, b0)
            stage = int32(stage + 1)
            if stage == STAGES:
                stage, phase = int32(0), phase ^ uint32(1)
            step = int32(step + 1)

    return produce


def _make_consume(N, STAGES, STAGE, BARRIERS):
    wgmma, zeros = MULTIPLY[N], ZEROS[N]

    @cuda.jit(device=True, forceinline=True)
    def multiply(acc, at, group):
        """acc += this warpgroup's 64 rows of w · all rows of x, of the slice at a shared address."""
        a = uint64(LAYOUT) | uint64(((at + uint32(group * W_HALF)) & uint32(0x3FFFF)) >> uint32(4))
        b = uint64(LAYOUT) | uint64(((at + uint32(2 * W_HALF)) & uint32(0x3FFFF)) >> uint32(4))
        ptx.wgmma_fence()
        acc = wgmma(acc, a, b)
        acc = wgmma(acc, a + uint64(STEP16), b + uint64(STEP16))
        acc = wgmma(acc, a + uint64(2 * STEP16), b + uint64(2 * STEP16))
        acc = wgmma(acc, a + uint64(3 * STEP16), b + uint64(3 * STEP16))
        ptx.wgmma_commit()
        return acc

    @cuda.jit(device=True, forceinline=True)
    def consume(tiles, t, steps, c):
        """A warpgroup: c ← the sums of `steps` slices; a group of wgmma stays under way while the next is awaited."""
        full, empty = tiles + uint32(BARRIERS), tiles + uint32(BARRIERS + 8 * STAGES)
        group, first = t >> uint32(7), (t & uint32(127)) == uint32(0)
        stage, phase, before, step = int32(0), uint32(0), int32(0), int32(0)
        acc = zeros()
        while step < steps:
            ptx.mbarrier_wait(full + uint32(8 * stage), phase)
            acc = multiply(acc, tiles + uint32(stage) * uint32(STAGE), group)
            ptx.wgmma_wait_1()
            if step > 0 and first:
                ptx.mbarrier_arrive(empty + uint32(8 * before))  # the slice before has been read
            before = stage
            stage = int32(stage + 1)
            if stage == STAGES:
                stage, phase = int32(0), phase ^ uint32(1)
            step = ptx.same(int32(step + 1))  # unrolled, accumulators would move between registers, and wgmma wait
        acc = ptx.wgmma_wait(acc)
        ptx.spread(acc, c)

    return consume


def _plan(K, tiles_n, split, stages, ring):
    """Parts, slices under way, bytes of a slice, where the barriers stand. Raises LabError for what can't be built."""
    if K < 8 or K % 8:
        raise LabError(f"found rows of {K} numbers, expected a multiple of 8: rows are a multiple of 16 bytes apart")
    if tiles_n not in MULTIPLY or not 1 <= split <= 8:
        raise LabError(f"found tiles_n={tiles_n}, split={split}; expected 8, 16, 32 or 64, and 1 to 8")
    stage = 2 * W_HALF + 2 * BK * tiles_n
    stages = stages or max(2, min(24, (ring - 2048) // stage))
    barriers = max(stages * stage, -(-4 * PITCH * tiles_n // 1024) * 1024)  # sums lie where slices were
    if not 2 <= stages <= 32 or barriers + 2048 > MOST:
        raise LabError(
            f"found {stages} slices under way, {barriers >> 10} KiB of shared memory; expected 2 to 32 (one is given "
            f"back when the next is multiplied), and {(MOST >> 10) - 2} KiB at most"
        )
    return min(split, -(-K // BK)), stages, stage, barriers


@cache
def make_wide(K, after, adds=False, tiles_n=64, split=1, stages=None, ring=TWO_AN_SM):
    """The kernel for rows of K numbers, K a multiple of 8.

    after    what becomes of the sums of the rows `pair` and `pair + half` of w, as in make_few
    adds     the residual's two numbers are fetched for `after`
    tiles_n  rows of x of a block: 8, 16, 32 or 64; those that do not exist are zeros
    split    parts of K, 1 … 8, no more than slices
    stages   slices under way, 2 at least; left out: what `ring` bytes of shared memory hold

    Launch: wide_launch. Compute capability 9.0 only.
    """
    SPLIT, STAGES, STAGE, BARRIERS = _plan(K, tiles_n, split, stages, ring)
    N, STEPS, shared = tiles_n, -(-K // BK), BARRIERS + 2048  # room for the barriers, and to align the start
    two = shared <= TWO_AN_SM
    HELD, SUMS = held(N, SPLIT, two), N // 2
    OLD = N * PAIRS // CONSUMERS if adds else 1
    EARLY, LATE, PARTED = adds and SPLIT == 1, adds and SPLIT > 1, SPLIT > 1
    produce = _make_produce(STAGES, STAGE, 2 * BK * N, BARRIERS)
    consume = _make_consume(N, STAGES, STAGE, BARRIERS)
    put, add = make_parts(N, SPLIT, HELD)
    fetch, finish = make_finish(N, after, adds)

    @cuda.jit(device=True, forceinline=True)
    def is_last(counter, at, t, last):
        """Whether all other parts of this tile have been stored; asked by both warpgroups."""
        ptx.bar_sync_256(uint32(1))  # without it: the block says it has stored what some threads have not
        if t == uint32(0):
            came = ptx.add_in_order(ptx.address(counter) + int64(4) * int64(at), int32(1))
            last[0] = int32(1) if came == int32(SPLIT - 1) else int32(0)
            if came == int32(SPLIT - 1):
                counter[at] = 0
        ptx.bar_sync_256(uint32(1))  # without it: a thread does not know yet whether its block is the last
        return last[0] == int32(1)

    @cuda.jit(fastmath=True, shared_memory_carveout=100, launch_bounds=(THREADS, 2 if two else 1))
    def wide(map_w, map_x, w, x, residual, workspace, counter, out):
        """map_w, map_x: tensor maps of w[rows, K], x[batch, K]; residual, out: float16[batch, …]; workspace: float32,
        counter: int32 zeros, left as zeros.

        Reads 2 · rows · K bytes of w once for tiles_n rows of x; 128 rows of w share what is read of x, from the L2.
        """
        ring = cuda.shared.array(0, uint32)
        sums = cuda.shared.array(0, float32)
        last = cuda.shared.array(1, int32)
        c = cuda.local.array(SUMS, float32)
        old = cuda.local.array(OLD, float16)
        older = cuda.local.array(OLD, float16)
        v = cuda.local.array(HELD, float32)
        ptx.start_next()
        t = uint32(cuda.threadIdx.x)
        tiles = uint32(ptx.shared_address(ring) + uint32(1023)) & uint32(0xFFFFFC00)
        if t == uint32(0):
            for s in range(STAGES):
                ptx.mbarrier_init(tiles + uint32(BARRIERS + 8 * s), uint32(2))  # requests of w and of x
                ptx.mbarrier_init(tiles + uint32(BARRIERS + 8 * (STAGES + s)), uint32(2))  # both warpgroups
            ptx.fence_mbarrier_init()
        cuda.syncthreads()  # without it: a thread waits at a barrier that is not there yet
        m, batch = uint32(w.shape[0]), uint32(x.shape[0])
        half = uint32(uint32(m + uint32(1)) >> uint32(1))
        tile, part = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.y)
        pair0, b0 = uint32(uint32(PAIRS) * tile), uint32(uint32(N) * uint32(cuda.blockIdx.z))
        first = uint32(uint32(uint32(STEPS) * part) // uint32(SPLIT))
        steps = int32(uint32(uint32(uint32(STEPS) * uint32(part + uint32(1))) // uint32(SPLIT)) - first)
        at = uint32(uint32(cuda.blockIdx.z) * uint32(cuda.gridDim.x) + tile)
        if t == uint32(CONSUMERS):
            row, second = int32(pair0), int32(pair0 + half)
            produce(ptx.address(map_w), ptx.address(map_x), tiles, row, second, int32(b0), int32(first), steps)
        if t >= uint32(CONSUMERS):
            return
        ptx.wait_for_previous()  # without it: the residual is not there yet, `out` or workspace may still be read
        if EARLY:
            fetch(residual, t, pair0, b0, m, half, batch, old, older)
        consume(tiles, t, steps, c)
        if PARTED:
            put(workspace, uint32(at * uint32(SPLIT) + part), c, t)
            if not is_last(counter, at, t, last):
                return
            add(workspace, at, sums, t, v)
            if LATE:
                fetch(residual, t, pair0, b0, m, half, batch, old, older)
        else:
            ptx.bar_sync_256(uint32(1))  # without it: sums overwrite a slice that the other warpgroup still reads
            for j in range(N // 8):
                to = uint32(place(t) + uint32(8 * PITCH * j))
                lay_down(sums, to, c[4 * j], c[4 * j + 1], c[4 * j + 2], c[4 * j + 3])
        ptx.bar_sync_256(uint32(1))  # without it: sums of other threads are missing
        finish(sums, t, pair0, b0, m, half, batch, old, older, out)

    wide.shared, wide.tiles_n, wide.split, wide.stages = shared, N, SPLIT, STAGES
    return wide
