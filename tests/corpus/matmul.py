"""Matrices: products of all kinds, transposes."""

import labkit  # isort: skip  # noqa: F401  # before numba

import numpy as np
from numba import cuda, float32
from numba.types import float16

from .entry import Entry, f64, normal, poison, uniform, whole

TILE = 8
PADDED = (TILE, TILE + 1)
PER_THREAD = 4
TALL = (TILE * PER_THREAD, TILE)  # numba takes no product as a shape


@cuda.jit
def transpose_naive(a, out):
    x, y = cuda.grid(2)
    if y < a.shape[0] and x < a.shape[1]:
        out[x, y] = a[y, x]


@cuda.jit
def transpose_tiled(a, out):
    s = cuda.shared.array((TILE, TILE), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    x, y = cuda.grid(2)
    if y < a.shape[0] and x < a.shape[1]:
        s[ty, tx] = a[y, x]
    cuda.syncthreads()
    # the block's place is transposed, its threads stay in order
    x = cuda.blockIdx.y * TILE + tx
    y = cuda.blockIdx.x * TILE + ty
    if y < out.shape[0] and x < out.shape[1]:
        out[y, x] = s[tx, ty]


@cuda.jit
def transpose_padded(a, out):
    # each thread moves several rows
    s = cuda.shared.array(PADDED, float32)
    tx = cuda.threadIdx.x
    x = cuda.blockIdx.x * TILE + tx
    for k in range(cuda.threadIdx.y, TILE, cuda.blockDim.y):
        y = cuda.blockIdx.y * TILE + k
        if y < a.shape[0] and x < a.shape[1]:
            s[k, tx] = a[y, x]
    cuda.syncthreads()
    x = cuda.blockIdx.y * TILE + tx
    for k in range(cuda.threadIdx.y, TILE, cuda.blockDim.y):
        y = cuda.blockIdx.x * TILE + k
        if y < out.shape[0] and x < out.shape[1]:
            out[y, x] = s[tx, k]


@cuda.jit
def matmul_naive(a, b, c):
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


@cuda.jit
def matmul_coalesced(a, b, c):
    j, i = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


@cuda.jit
def matmul_tiled(a, b, c):
    # no side is a multiple of the tile
    sa = cuda.shared.array((TILE, TILE), float32)
    sb = cuda.shared.array((TILE, TILE), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    j, i = cuda.grid(2)
    inner = a.shape[1]
    total = float32(0)
    for first in range(0, inner, TILE):
        sa[ty, tx] = a[i, first + tx] if i < a.shape[0] and first + tx < inner else float32(0)
        sb[ty, tx] = b[first + ty, j] if first + ty < inner and j < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            total += sa[ty, k] * sb[k, tx]
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total


@cuda.jit
def matmul_register_tiled(a, b, c):
    # each thread keeps a column of PER_THREAD sums
    sa = cuda.shared.array(TALL, float32)
    sb = cuda.shared.array((TILE, TILE), float32)
    sums = cuda.local.array(PER_THREAD, float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    j = cuda.blockIdx.x * TILE + tx
    top = cuda.blockIdx.y * TILE * PER_THREAD
    for r in range(PER_THREAD):
        sums[r] = 0
    for first in range(0, a.shape[1], TILE):
        for r in range(PER_THREAD):
            row = r * TILE + ty
            inside = top + row < a.shape[0] and first + tx < a.shape[1]
            sa[row, tx] = a[top + row, first + tx] if inside else float32(0)
        sb[ty, tx] = b[first + ty, j] if first + ty < a.shape[1] and j < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            right = sb[k, tx]
            for r in range(PER_THREAD):
                sums[r] += sa[r * TILE + ty, k] * right
        cuda.syncthreads()
    for r in range(PER_THREAD):
        i = top + r * TILE + ty
        if i < c.shape[0] and j < c.shape[1]:
            c[i, j] = sums[r]


@cuda.jit
def matmul_2x2(a, b, c):
    # four sums in plain names
    j, i = cuda.grid(2)
    i *= 2
    j *= 2
    if i + 1 < c.shape[0] and j + 1 < c.shape[1]:
        c00 = c01 = c10 = c11 = float32(0)
        for k in range(a.shape[1]):
            a0, a1 = a[i, k], a[i + 1, k]
            b0, b1 = b[k, j], b[k, j + 1]
            c00 += a0 * b0
            c01 += a0 * b1
            c10 += a1 * b0
            c11 += a1 * b1
        c[i, j], c[i, j + 1] = c00, c01
        c[i + 1, j], c[i + 1, j + 1] = c10, c11


@cuda.jit
def matmul_transposed_b(a, bt, bias, c):
    # a linear layer: rows by rows, bias and ReLU in the same pass
    j, i = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = bias[j]
        row = a[i]
        column = bt[j]
        for k in range(row.size):
            total += row[k] * column[k]
        c[i, j] = max(total, float32(0))


@cuda.jit
def matmul_halves(a, b, c):
    # float16 in shared memory, sums in float32
    sa = cuda.shared.array((TILE, TILE), float16)
    sb = cuda.shared.array((TILE, TILE), float16)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    j, i = cuda.grid(2)
    inner = a.shape[1]
    total = float32(0)
    for first in range(0, inner, TILE):
        if i < a.shape[0] and first + tx < inner:
            sa[ty, tx] = a[i, first + tx]
        else:
            sa[ty, tx] = float16(0)
        if first + ty < inner and j < b.shape[1]:
            sb[ty, tx] = b[first + ty, j]
        else:
            sb[ty, tx] = float16(0)
        cuda.syncthreads()
        for k in range(TILE):
            total += float32(sa[ty, k]) * float32(sb[k, tx])
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total


@cuda.jit
def outer_product(a, b, out):
    # the inner side is 1
    j, i = cuda.grid(2)
    if i < a.size and j < b.size:
        out[i, j] = a[i] * b[j]


@cuda.jit
def gemv_row_a_thread(a, x, y):
    i = cuda.grid(1)
    if i < a.shape[0]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * x[k]
        y[i] = total


@cuda.jit
def gemv_row_a_block(a, x, y):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x
    total = float32(0)
    for k in range(t, a.shape[1], 32):
        total += a[i, k] * x[k]
    s[t] = total
    cuda.syncthreads()
    for step in range(5):
        half = 16 >> step
        if t < half:
            s[t] += s[t + half]
        cuda.syncthreads()
    if t == 0:
        y[i] = s[0]


@cuda.jit
def gemv_row_a_warp(a, x, y, alpha, beta):
    row = cuda.grid(1) // 32
    lane = cuda.threadIdx.x % 32
    if row < a.shape[0]:
        total = float32(0)
        for k in range(lane, a.shape[1], 32):
            total += a[row, k] * x[k]
        for step in range(5):
            total += cuda.shfl_down_sync(0xFFFFFFFF, total, 16 >> step)
        if lane == 0:
            y[row] = alpha * total + beta * y[row]


@cuda.jit
def gemv_shared_x(a, x, y):
    # x comes into shared memory part by part; all load, though some have no row
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    total = float32(0)
    for first in range(0, x.size, 32):
        if first + t < x.size:
            s[t] = x[first + t]
        cuda.syncthreads()
        if i < a.shape[0]:
            for k in range(min(32, x.size - first)):
                total += a[i, first + k] * s[k]
        cuda.syncthreads()
    if i < a.shape[0]:
        y[i] = total


@cuda.jit
def batched_matmul(a, b, c):
    # a block a matrix
    sa = cuda.shared.array((4, 5), float32)
    sb = cuda.shared.array((5, 3), float32)
    n = cuda.blockIdx.x
    i = cuda.threadIdx.y
    j = cuda.threadIdx.x
    for k in range(j, 5, 3):
        sa[i, k] = a[n, i, k]
    for k in range(i, 5, 4):
        sb[k, j] = b[n, k, j]
    cuda.syncthreads()
    total = float32(0)
    for k in range(5):
        total += sa[i, k] * sb[k, j]
    c[n, i, j] = total


@cuda.jit
def split_inner_side(a, b, c):
    # blocks share the inner side and meet in atomics
    i = cuda.threadIdx.y
    j = cuda.threadIdx.x
    total = float32(0)
    for k in range(cuda.blockIdx.x, a.shape[1], cuda.gridDim.x):
        total += a[i, k] * b[k, j]
    cuda.atomic.add(c, (i, j), total)


def _product(a, b, c):
    return {2: f64(a) @ f64(b)}


def _sizes(rows, inner, columns, dtype=np.float32):
    def make(rng):
        return uniform(rng, (rows, inner), dtype), uniform(rng, (inner, columns), dtype), poison((rows, columns))

    return make


def _layer(a, bt, bias, c):
    return {3: np.maximum(f64(a) @ f64(bt).T + f64(bias), 0)}


def _gemv_warp(a, x, y, alpha, beta):
    return {2: alpha * (f64(a) @ f64(x)) + beta * f64(y)}


ENTRIES = [
    Entry(
        transpose_naive,
        (4, 2),
        (8, 8),
        lambda r: (normal(r, (11, 29)), poison((29, 11))),
        lambda a, out: {1: a.T},
        ulp=0,
    ),
    Entry(
        transpose_tiled,
        (4, 2),
        (TILE, TILE),
        lambda r: (normal(r, (11, 29)), poison((29, 11))),
        lambda a, out: {1: a.T},
        ulp=0,
    ),
    Entry(
        transpose_padded,
        (4, 3),
        (TILE, 3),
        lambda r: (normal(r, (19, 29)), poison((29, 19))),
        lambda a, out: {1: a.T},
        ulp=0,
    ),
    Entry(matmul_naive, (2, 3), (8, 8), _sizes(13, 7, 19), _product, tolerance=1e-6),
    Entry(matmul_coalesced, (3, 2), (8, 8), _sizes(13, 7, 19), _product, tolerance=1e-6, ulp=8),
    Entry(matmul_tiled, (2, 2), (TILE, TILE), _sizes(13, 19, 11), _product, tolerance=1e-6, ulp=8),
    Entry(matmul_register_tiled, (2, 2), (TILE, TILE), _sizes(37, 18, 11), _product, tolerance=1e-6, ulp=8),
    Entry(matmul_2x2, (2, 1), (4, 4), _sizes(6, 13, 12), _product, tolerance=1e-6, ulp=8),
    Entry(
        matmul_transposed_b,
        (3, 2),
        (8, 8),
        lambda r: (normal(r, (13, 21)), normal(r, (18, 21)), normal(r, 18), poison((13, 18))),
        _layer,
        tolerance=2e-6,
        ulp=16,
        cancels=True,
    ),
    Entry(matmul_halves, (2, 2), (TILE, TILE), _sizes(13, 19, 11, np.float16), _product, tolerance=1e-6, ulp=8),
    Entry(
        outer_product,
        (3, 2),
        (8, 8),
        lambda r: (normal(r, 13), normal(r, 21), poison((13, 21))),
        lambda a, b, out: {2: np.multiply.outer(a, b)},
        ulp=0,
    ),
    Entry(
        gemv_row_a_thread,
        2,
        32,
        lambda r: (uniform(r, (45, 17)), uniform(r, 17), poison(45)),
        _product,
        tolerance=1e-6,
        ulp=8,
    ),
    Entry(
        gemv_row_a_block,
        4,
        32,
        lambda r: (uniform(r, (4, 77)), uniform(r, 77), poison(4)),
        _product,
        tolerance=1e-6,
        ulp=8,
    ),
    Entry(
        gemv_row_a_warp,
        3,
        64,
        lambda r: (uniform(r, (5, 77)), uniform(r, 77), uniform(r, 5), np.float32(0.5), np.float32(2)),
        _gemv_warp,
        tolerance=1e-6,
        ulp=8,
        simulator=False,  # it has no shuffles
    ),
    Entry(
        gemv_shared_x,
        2,
        32,
        lambda r: (uniform(r, (45, 77)), uniform(r, 77), poison(45)),
        _product,
        tolerance=1e-6,
        ulp=16,
    ),
    Entry(
        batched_matmul,
        6,
        (3, 4),
        lambda r: (uniform(r, (6, 4, 5)), uniform(r, (6, 5, 3)), poison((6, 4, 3))),
        _product,
        tolerance=1e-6,
        ulp=8,
    ),
    Entry(
        split_inner_side,
        3,
        (7, 5),
        lambda r: (whole(r, (5, 40), np.float32), whole(r, (40, 7), np.float32), np.zeros((5, 7), np.float32)),
        lambda a, b, c: {2: a @ b},
        ulp=0,
    ),
]
