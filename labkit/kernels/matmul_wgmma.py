"""A float16 matrix product for Hopper, and for Hopper only: tensor copies, wgmma, one block an SM.

c[m, n] = a[m, k] · b[k, n], all row-major. A block of three warpgroups computes one tile of 128 × 256 after another:
warpgroup 0 only starts copies (the producer), 1 and 2 multiply 64 rows each (the consumers). Between them stand STAGES
slices of k in shared memory, each with two barriers: `full` (its bytes have arrived) and `empty` (both consumers are
done with it). The results leave through shared memory as well, while the next tile's copies are already under way.

What lies outside a matrix arrives as zeros and is never written: every shape is right. Rows must be a multiple of 16
bytes apart (`ptx.aligned_rows`). Chapter 07 takes this kernel apart.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from labkit import device, ptx
from labkit.experiment import Unavailable, need

BM, BN, BK = 128, 256, 64  # a block's tile of c, and a slice of k: 64 float16 are one swizzled row of 128 bytes
STAGES = 4
BAND = 8  # tiles are taken in bands of 8 rows of tiles, so that what runs side by side shares its inputs in the L2
THREADS = 3 * 128
ACCUMULATORS = 128  # of a consumer's thread: 64 × 256 over 128 threads

A_BYTES, B_BYTES = 2 * BM * BK, 2 * BK * BN
STAGE = A_BYTES + B_BYTES
PANEL = 2 * 64 * 64  # the copy engine brings b and takes c in panels of 64 columns
PANELS = BN // 64
BARRIERS = STAGES * STAGE  # where they lie, from the start of the tiles
BUFFERS = BARRIERS + 1024  # two panels for each consumer, on their way out
SHARED = BUFFERS + 2 * 2 * PANEL + 1024  # and room to align the start to 1,024 bytes

# descriptors of shared memory, in units of 16 bytes: 128-byte swizzle, 1,024 bytes from 8 rows to the next 8;
# for b (n contiguous) 8,192 bytes from one panel to the next
A_LAYOUT = (1 << 62) | (64 << 32) | (1 << 16)
B_LAYOUT = (1 << 62) | (64 << 32) | ((PANEL >> 4) << 16)
A_STEP, B_STEP = 32 >> 4, 2048 >> 4  # from 16 of k to the next 16


@cuda.jit(device=True, forceinline=True)
def place(tile, tiles_m, tiles_n):
    """Row and column of a tile. Unsigned, 32 bits: a 64-bit division is a call, and a call serialises all wgmma."""
    band_tiles = uint32(BAND * tiles_n)
    band = uint32(tile) // band_tiles
    first = uint32(BAND * band)
    rows = uint32(min(uint32(BAND), uint32(tiles_m) - first))  # the last band may be lower
    inside = uint32(uint32(tile) - band * band_tiles)
    column = uint32(inside // rows)
    return int32(first + inside - column * rows), int32(column)


@cuda.jit(device=True, forceinline=True)
def produce(map_a, map_b, tiles, tiles_m, tiles_n, steps):
    """One thread: fill each stage as soon as both consumers have emptied it."""
    full, empty = tiles + uint32(BARRIERS), tiles + uint32(BARRIERS + 8 * STAGES)
    stage, phase = int32(0), uint32(1)  # of parity 1: the first round finds every stage empty
    tile = int32(cuda.blockIdx.x)
    while tile < int32(tiles_m * tiles_n):
        row, column = place(tile, tiles_m, tiles_n)
        for step in range(steps):
            ptx.mbarrier_wait(empty + uint32(8 * stage), phase)
            barrier, target = full + uint32(8 * stage), tiles + uint32(stage) * uint32(STAGE)
            ptx.mbarrier_expect(barrier, uint32(STAGE))
            ptx.tma_load_2d(target, map_a, step * BK, row * BM, barrier)
            for p in range(PANELS):
                panel = target + uint32(A_BYTES + p * PANEL)
                ptx.tma_load_2d(panel, map_b, column * BN + 64 * p, step * BK, barrier)
            stage += 1
            if stage == STAGES:
                stage, phase = int32(0), phase ^ uint32(1)
        tile += int32(cuda.gridDim.x)


@cuda.jit(device=True, forceinline=True)
def multiply(acc, stage_at, group):
    """acc += this consumer's 64 rows of a · all of b, for one slice: four wgmma of 16 of k each."""
    a_at, b_at = stage_at + uint32(group * (A_BYTES // 2)), stage_at + uint32(A_BYTES)
    a = uint64(A_LAYOUT) | uint64((a_at & uint32(0x3FFFF)) >> uint32(4))
    b = uint64(B_LAYOUT) | uint64((b_at & uint32(0x3FFFF)) >> uint32(4))
    ptx.wgmma_fence()
    acc = ptx.wgmma_m64n256k16_bn(acc, a, b)
    acc = ptx.wgmma_m64n256k16_bn(acc, a + uint64(A_STEP), b + uint64(B_STEP))
    acc = ptx.wgmma_m64n256k16_bn(acc, a + uint64(2 * A_STEP), b + uint64(2 * B_STEP))
    acc = ptx.wgmma_m64n256k16_bn(acc, a + uint64(3 * A_STEP), b + uint64(3 * B_STEP))
    ptx.wgmma_commit()
    return acc


@cuda.jit(device=True, forceinline=True)
def drain(acc, map_c, buffers, group, row, column):
    """Accumulators as float16 to shared memory, a panel of 64 columns at a time, and by tensor copies to c."""
    thread = int32(cuda.threadIdx.x) & 127
    c = cuda.local.array(ACCUMULATORS, float32)
    ptx.spread(acc, c)
    r = (thread >> 5) * 16 + (thread & 15)  # the row that this lane addresses for stmatrix
    for p in range(PANELS):
        if thread == 0:
            ptx.tma_store_wait_1()  # without it: the panel before last, still being read, is overwritten
        ptx.bar_sync_128(uint32(1 + group))
        panel = buffers + uint32(group * 2 * PANEL + (p & 1) * PANEL)
        for q in range(4):
            j = 4 * (8 * p + 2 * q)
            at = panel + uint32(r * 128 + (((2 * q + ((thread & 31) >> 4)) ^ (r & 7)) * 16))
            low, high = ptx.pack_half2(c[j], c[j + 1]), ptx.pack_half2(c[j + 2], c[j + 3])
            ptx.stmatrix_x4(at, low, high, ptx.pack_half2(c[j + 4], c[j + 5]), ptx.pack_half2(c[j + 6], c[j + 7]))
        ptx.fence_proxy_async()  # without it: the copy engine may not see what was just stored
        ptx.bar_sync_128(uint32(1 + group))
        if thread == 0:
            ptx.tma_store_2d(map_c, column + 64 * p, row, panel)
            ptx.tma_store_commit()


@cuda.jit(device=True, forceinline=True)
def consume(map_c, tiles, tiles_m, tiles_n, steps):
    """A warpgroup: multiply what has arrived; one wgmma group stays under way while the next stage is awaited."""
    full, empty = tiles + uint32(BARRIERS), tiles + uint32(BARRIERS + 8 * STAGES)
    thread = int32(cuda.threadIdx.x)
    group = (thread >> 7) - 1  # 0 or 1
    first = (thread & 127) == 0
    stage, phase, before = int32(0), uint32(0), int32(0)
    tile = int32(cuda.blockIdx.x)
    while tile < int32(tiles_m * tiles_n):
        row, column = place(tile, tiles_m, tiles_n)
        acc = ptx.zeros_128()
        for step in range(steps):
            ptx.mbarrier_wait(full + uint32(8 * stage), phase)
            acc = multiply(acc, tiles + uint32(stage) * uint32(STAGE), group)
            ptx.wgmma_wait_1()
            if step > 0 and first:
                ptx.mbarrier_arrive(empty + uint32(8 * before))  # the slice before has been read
            before = stage
            stage += 1
            if stage == STAGES:
                stage, phase = int32(0), phase ^ uint32(1)
        acc = ptx.wgmma_wait(acc)
        if first:
            ptx.mbarrier_arrive(empty + uint32(8 * before))
        drain(acc, map_c, tiles + uint32(BUFFERS), group, int32(row * BM + group * 64), int32(column * BN))
        tile += int32(cuda.gridDim.x)
    if first:
        ptx.tma_store_wait_0()  # without it: the block's shared memory may be gone while the last panels are read


@cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
def matmul_tiles(map_a, map_b, map_c, m, n, k):
    """map_a, map_b, map_c: tensor maps of float16[m, k], [k, n], [m, n]; blocks of 384 threads, any number of them."""
    shared = cuda.shared.array(0, uint32)
    tiles = (ptx.shared_address(shared) + uint32(1023)) & uint32(0xFFFFFC00)
    tiles_m, tiles_n, steps = int32((m + BM - 1) >> 7), int32((n + BN - 1) >> 8), int32((k + BK - 1) >> 6)
    thread = int32(cuda.threadIdx.x)
    if thread == 0:
        for s in range(STAGES):
            ptx.mbarrier_init(tiles + uint32(BARRIERS + 8 * s), uint32(1))
            ptx.mbarrier_init(tiles + uint32(BARRIERS + 8 * (STAGES + s)), uint32(2))
        ptx.fence_mbarrier_init()
    cuda.syncthreads()  # without it: a consumer waits at a barrier that is not there yet
    if thread >= 128:
        consume(ptx.address(map_c), tiles, tiles_m, tiles_n, steps)
    elif thread == 0:
        produce(ptx.address(map_a), ptx.address(map_b), tiles, tiles_m, tiles_n, steps)


@ptx.aligned_rows
def matmul_wgmma(a, b, out):
    """Build out = a · b on Hopper's tensor cores: launch(stream=None). Raises Unavailable on any other machine.

    a, b, out  float16[m, k], float16[k, n], float16[m, n] on the device, m, n, k ≥ 1
    """
    need("cuda.bindings.driver")
    if device.MACHINE.compute_capability != (9, 0):
        raise Unavailable("wgmma needs a GPU of compute capability 9.0 (Hopper)")
    (m, k), n = a.shape, b.shape[1]
    maps = ptx.tensor_map(a, (BM, BK)), ptx.tensor_map(b, (BK, 64)), ptx.tensor_map(out, (64, 64))
    blocks = min(device.MACHINE.sms, -(-m // BM) * -(-n // BN))
    return ptx.prepare(matmul_tiles, blocks, THREADS, *maps, np.int32(m), np.int32(n), np.int32(k), shared=SHARED)
