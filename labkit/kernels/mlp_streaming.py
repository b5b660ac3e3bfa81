"""A whole MLP in one kernel for widths whose weights do not fit on chip: they stream by, again for every tile of rows.

Chapter 05 measures where that stops to pay. Ampere and newer: mma.sync, ldmatrix, cp.async, as in chapter 04.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from labkit import device, ptx
from labkit.experiment import Unavailable

THREADS = 256
TUNED = {128: (64, 3), 256: (64, 3), 512: (64, 2)}  # width -> columns of a slice of weights, slices in shared memory


@cache
def make_streaming(W: int, LAYERS: int, EPILOGUES: int, BK: int, STAGES: int):
    """The kernel for LAYERS weights of W × W (64 … 512), the bytes of shared memory and the rows of a block.

    After the first EPILOGUES layers bias and ReLU. A block keeps its rows in shared memory for all layers; slices of
    BK columns of the weights come round in a ring of STAGES.
    """
    ACROSS = W // 64  # 8 warps stand so many across, each 64 rows × 64 columns
    ROWS = 64 * (8 // ACROSS)
    PITCH, SLICE_PITCH = 2 * W + 16, 2 * BK + 16
    HELD, STAGE = ROWS * PITCH, W * SLICE_PITCH
    RING = STAGE * STAGES
    SLICES = W // BK
    TOTAL, STEPS = SLICES * LAYERS, BK // 16
    wait = ptx.cp_async_wait(STAGES - 2)
    copy_slice, copy_rows, store_rows = _copies(W, BK, ROWS)
    hidden, bare = _write(W, True), _write(W, False)

    @cuda.jit(launch_bounds=(THREADS, 1))
    def streaming(x, w, b, rows, out):
        """x, out: float16[rows, W]; w: float16[LAYERS, W, W]; b: float16[EPILOGUES, W]."""
        biases = cuda.shared.array(W, float32)
        base = ptx.shared_address(cuda.shared.array(0, uint32, alignment=16))
        acc = cuda.local.array(128, float32)
        a = cuda.local.array(16, uint32)
        c = cuda.local.array(16, uint32)
        t = int32(cuda.threadIdx.x)
        lane, warp = t & 31, t >> 5
        ring = base + uint32(HELD)
        down, across, j, q = 64 * (warp // ACROSS), 64 * (warp % ACROSS), lane & 7, lane >> 3
        a_at = base + uint32((down + 8 * (q & 1) + j) * PITCH + 16 * (q >> 1))
        b_at = ring + uint32((across + 8 * (q >> 1) + j) * SLICE_PITCH + 16 * (q & 1))
        first = int32(cuda.blockIdx.x) * ROWS
        copy_rows(x, t, first, rows, base)
        for s in range(STAGES - 1):
            copy_slice(w, t, int32(s % TOTAL), ring + uint32(STAGE * s))
        coming, here, there = int32((STAGES - 1) % TOTAL), uint32(0), uint32(RING - STAGE)
        while first < rows:
            for layer in range(LAYERS):
                for i in range(128):
                    acc[i] = float32(0)
                for k in range(SLICES):
                    if layer == 0 and k == 0:
                        ptx.cp_async_wait_0()  # the rows came last
                    else:
                        wait()
                    cuda.syncthreads()  # without it: others' copies may be missing, or a stage be read that is refilled
                    copy_slice(w, t, coming, ring + there)
                    coming = int32(0) if coming == TOTAL - 1 else int32(coming + 1)
                    for kk in range(STEPS):
                        _load_fragments(a_at + uint32(k * 2 * BK + 32 * kk), b_at + here + uint32(32 * kk), a, c, PITCH,
                                        SLICE_PITCH)  # fmt: skip
                        _multiply(acc, a, c)
                    there, here = here, (uint32(0) if here == uint32(RING - STAGE) else uint32(here + uint32(STAGE)))
                if layer < EPILOGUES:
                    for e in range(t, W, THREADS):
                        biases[e] = float32(b[layer, e])
                cuda.syncthreads()  # without it: results overwrite rows that others still multiply
                if layer < EPILOGUES:
                    hidden(acc, biases, down, across, lane, base)
                else:
                    bare(acc, biases, down, across, lane, base)
            cuda.syncthreads()  # without it: rows are stored that others have not written yet
            store_rows(out, t, first, rows, base)
            cuda.syncthreads()  # without it: the next rows overwrite what is being stored
            first = int32(first + ROWS * int32(cuda.gridDim.x))
            copy_rows(x, t, first, rows, base)
        ptx.cp_async_wait_0()  # a kernel may not end with copies under way

    return streaming, HELD + RING, ROWS


def _copies(W: int, BK: int, ROWS: int):
    """Device functions that move 16 bytes a thread and turn: a slice of weights in, rows in, rows out."""
    PITCH, SLICE_PITCH, SLICES = 2 * W + 16, 2 * BK + 16, W // BK
    SLICE_CHUNKS, CHUNKS = BK // 8, W // 8  # of 16 bytes, in a row
    APART, ROWS_APART = THREADS // SLICE_CHUNKS, THREADS // CHUNKS

    @cuda.jit(device=True, forceinline=True)
    def copy_slice(w, t, number, to):
        """Start the copy of slice `number` of LAYERS · W / BK."""
        layer, k, r, c = number // SLICES, number % SLICES, t // SLICE_CHUNKS, t % SLICE_CHUNKS
        source = ptx.address(w) + int64(layer * (2 * W * W) + k * (2 * BK) + r * (2 * W) + 16 * c)
        target = to + uint32(r * SLICE_PITCH + 16 * c)
        for p in range(W // APART):
            ptx.cp_async_16(target + uint32(APART * SLICE_PITCH * p), source + int64(APART * 2 * W * p), int32(16))
        ptx.cp_async_commit()

    @cuda.jit(device=True, forceinline=True)
    def copy_rows(x, t, first, rows, base):
        """Start the copy of a tile of rows; zeros past the last."""
        r, c = t // CHUNKS, t % CHUNKS
        for p in range(ROWS // ROWS_APART):
            row = first + r + ROWS_APART * p
            have = int32(16) if row < rows else int32(0)
            source = ptx.address(x) + int64(min(row, rows - 1)) * int64(2 * W) + int64(16 * c)
            ptx.cp_async_16(base + uint32((r + ROWS_APART * p) * PITCH + 16 * c), source, have)
        ptx.cp_async_commit()

    @cuda.jit(device=True, forceinline=True)
    def store_rows(out, t, first, rows, base):
        r, c = t // CHUNKS, t % CHUNKS
        for p in range(ROWS // ROWS_APART):
            row = first + r + ROWS_APART * p
            if row < rows:
                v0, v1, v2, v3 = ptx.ld_shared_v4_b32(base + uint32((r + ROWS_APART * p) * PITCH + 16 * c))
                ptx.st_global_v4_b32(ptx.address(out) + int64(row) * int64(2 * W) + int64(16 * c), v0, v1, v2, v3)

    return copy_slice, copy_rows, store_rows


@cuda.jit(device=True, forceinline=True)
def _load_fragments(a_at, b_at, a, b, PITCH, SLICE_PITCH):
    """A warp's 64 × 16 of the rows, and 16 × 64 of the weights."""
    for i in range(4):
        a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3] = ptx.ldmatrix_x4(a_at + uint32(16 * PITCH * i))
        b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3] = ptx.ldmatrix_x4(b_at + uint32(16 * SLICE_PITCH * i))


@cuda.jit(device=True, forceinline=True)
def _multiply(acc, a, b):
    """acc[64, 64] += a[64, 16] · b[16, 64], by one warp."""
    for i in range(4):
        for step in range(8):
            j = step if i % 2 == 0 else 7 - step  # there and back: the last b is used again
            d, e = 4 * (8 * i + j), 4 * i
            acc[d], acc[d + 1], acc[d + 2], acc[d + 3] = ptx.mma_m16n8k16(
                a[e], a[e + 1], a[e + 2], a[e + 3], b[2 * j], b[2 * j + 1], acc[d], acc[d + 1], acc[d + 2], acc[d + 3]
            )


def _write(W: int, EPILOGUE: bool):
    """A device function: a warp's results, rounded, into the rows in shared memory; with bias and ReLU or without."""
    PITCH = 2 * W + 16

    @cuda.jit(device=True, forceinline=True)
    def finish(v, bias):
        return ptx.max_nan_f32(v + bias, float32(0)) if EPILOGUE else v

    @cuda.jit(device=True, forceinline=True)
    def write(acc, biases, down, across, lane, base):
        row, col = down + (lane >> 2), across + 2 * (lane & 3)
        at = base + uint32(row * PITCH + 2 * col)
        for j in range(8):
            b0, b1 = biases[col + 8 * j], biases[col + 8 * j + 1]
            for i in range(4):
                d, to = 4 * (8 * i + j), at + uint32(16 * i * PITCH + 16 * j)
                ptx.st_shared_b32(to, ptx.pack_half2(finish(acc[d], b0), finish(acc[d + 1], b1)))
                ptx.st_shared_b32(
                    to + uint32(8 * PITCH), ptx.pack_half2(finish(acc[d + 2], b0), finish(acc[d + 3], b1))
                )

    return write


def mlp_streaming(x, w, b, out, epilogues: int):
    """A builder: launch() computes out = x through all of w; bias and ReLU after the first `epilogues` layers."""
    if not device.MACHINE.has_gpu or device.MACHINE.compute_capability < (8, 0):
        raise Unavailable("tensor cores and cp.async need a GPU of compute capability 8.0")
    (rows, width), layers = x.shape, w.shape[0]
    if width not in TUNED:
        raise Unavailable(f"no kernel for a width of {width}; there are {', '.join(map(str, TUNED))}")
    kernel, shared, tile = make_streaming(width, layers, epilogues, *TUNED[width])
    grid = min(-(-rows // tile), device.MACHINE.sms)
    return ptx.prepare(kernel, grid, THREADS, x, w, b, np.int32(rows), out, shared=shared)
