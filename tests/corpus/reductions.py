"""Many numbers become one: trees, atomics, several levels."""

import labkit  # isort: skip  # noqa: F401  # before numba

import math

import numpy as np
from numba import cuda, float32, int32, uint32

from .entry import Entry, f64, normal, poison, uniform, whole

BLOCK = 64


@cuda.jit
def sum_interleaved(a, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i] if i < a.size else 0.0
    cuda.syncthreads()
    step = 1
    while step < BLOCK:
        if t % (2 * step) == 0:
            s[t] += s[t + step]
        cuda.syncthreads()
        step *= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@cuda.jit
def sum_sequential(a, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = 0
    if i < a.size:
        s[t] = a[i]
    cuda.syncthreads()
    half = BLOCK >> 1
    while half:
        if t < half:
            s[t] += s[t + half]
        cuda.syncthreads()
        half >>= 1
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@cuda.jit
def sum_odd_block(a, out):
    # the block is no power of two
    s = cuda.shared.array(50, float32)
    t = cuda.threadIdx.x
    s[t] = a[cuda.grid(1)]
    n = cuda.blockDim.x
    while n > 1:
        cuda.syncthreads()
        half = (n + 1) // 2
        if t + half < n:
            s[t] += s[t + half]
        n = half
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@cuda.jit
def sum_grid_stride(a, out):
    # each thread adds up its own, then the block, then an atomic
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    mine = float32(0)
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        mine += a[i]
    s[t] = mine
    cuda.syncthreads()
    for k in range(5):
        half = 16 >> k
        if t < half:
            s[t] += s[t + half]
        cuda.syncthreads()
    if t == 0:
        cuda.atomic.add(out, 0, s[0])


@cuda.jit
def sum_by_shuffles(a, out):
    i = cuda.grid(1)
    value = a[i] if i < a.size else float32(0)
    for k in range(5):
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 1 << k)
    if cuda.threadIdx.x % 32 == 0:
        cuda.atomic.add(out, 0, value)


@cuda.jit
def sum_two_levels(a, out):
    # warps first, then the first warp over the warps' sums
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    warp = t >> 5
    lane = t & 31
    value = a[cuda.grid(1)]
    for k in range(4, -1, -1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, 1 << k)
    if lane == 0:
        s[warp] = value
    cuda.syncthreads()
    if warp == 0:
        value = s[lane] if lane < cuda.blockDim.x >> 5 else float32(0)
        offset = 16
        while offset >= 1:
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
            offset >>= 1
        if lane == 0:
            out[cuda.blockIdx.x] = value


@cuda.jit
def maximum_of_rows(a, out):
    # a block a row
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    row = a[cuda.blockIdx.x]
    best = -math.inf
    for j in range(t, row.size, cuda.blockDim.x):
        best = max(best, row[j])
    s[t] = best
    cuda.syncthreads()
    for k in range(5):
        half = 16 >> k
        if t < half:
            s[t] = max(s[t], s[t + half])
        cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@cuda.jit
def argmax(a, values, places):
    # of equals the first
    v = cuda.shared.array(BLOCK, float32)
    p = cuda.shared.array(BLOCK, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    v[t] = a[i] if i < a.size else float32(-1e30)
    p[t] = i
    cuda.syncthreads()
    half = BLOCK // 2
    while half > 0:
        if t < half and (v[t + half] > v[t] or (v[t + half] == v[t] and p[t + half] < p[t])):
            v[t] = v[t + half]
            p[t] = p[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        values[cuda.blockIdx.x] = v[0]
        places[cuda.blockIdx.x] = p[0]


@cuda.jit
def dot_product(a, b, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i] * b[i] if i < a.size else float32(0)
    half = BLOCK // 2
    while half > 0:
        cuda.syncthreads()
        if t < half:
            s[t] += s[t + half]
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@cuda.jit
def sum_last_block(a, partial, done, out):
    # the block that finishes last adds up what the others left
    s = cuda.shared.array(32, float32)
    last = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i] if i < a.size else float32(0)
    cuda.syncthreads()
    for k in range(5):
        half = 16 >> k
        if t < half:
            s[t] += s[t + half]
        cuda.syncthreads()
    if t == 0:
        partial[cuda.blockIdx.x] = s[0]
        cuda.threadfence()
        last[0] = 1 if cuda.atomic.add(done, 0, 1) == cuda.gridDim.x - 1 else 0
    cuda.syncthreads()
    if last[0] == 1 and t == 0:
        cuda.threadfence()
        total = float32(0)
        for b in range(cuda.gridDim.x):
            total += partial[b]
        out[0] = total


@cuda.jit
def ticket_by_inc(a, done, out):
    # atomic.inc wraps to 0 by itself: the counter is ready for the next launch
    s = cuda.shared.array(1, uint32)
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(out, 1, a[i])
    cuda.threadfence()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        s[0] = cuda.atomic.inc(done, 0, cuda.gridDim.x - 1)
    cuda.syncthreads()
    if s[0] == cuda.gridDim.x - 1 and cuda.threadIdx.x == 0:
        out[0] = cuda.atomic.add(out, 1, 0) + 1


@cuda.jit
def mean_and_variance(a, out):
    # two sums in one tree
    s = cuda.shared.array((2, 32), float32)
    t = cuda.threadIdx.x
    n = a.shape[1]
    x = float32(0)
    xx = float32(0)
    for j in range(t, n, 32):
        v = a[cuda.blockIdx.x, j]
        x += v
        xx += v * v
    s[0, t] = x
    s[1, t] = xx
    cuda.syncthreads()
    half = 16
    while half > 0:
        if t < half:
            for k in range(2):
                s[k, t] += s[k, t + half]
        cuda.syncthreads()
        half >>= 1
    if t == 0:
        mean = s[0, 0] / n
        out[cuda.blockIdx.x, 0] = mean
        out[cuda.blockIdx.x, 1] = s[1, 0] / n - mean * mean


@cuda.jit
def column_sums(a, out):
    # a thread a column: no cooperation
    j = cuda.grid(1)
    if j < a.shape[1]:
        total = 0.0
        for i in range(a.shape[0]):
            total += a[i, j]
        out[j] = total


@cuda.jit
def count_above(a, limit, out):
    i = cuda.grid(1)
    above = 0
    if i < a.size and a[i] > limit:
        above = 1
    n = cuda.syncthreads_count(above)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, n)


@cuda.jit
def product_mod(a, out):
    # associative, not addition; int64
    s = cuda.shared.array(32, np.int64)
    t = cuda.threadIdx.x
    s[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    half = 16
    while half > 0:
        if t < half:
            s[t] = s[t] * s[t + half] % 1000003
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


def _sums(a, size):
    padded = np.zeros(-(-a.size // size) * size)
    padded[: a.size] = a
    return padded.reshape(-1, size).sum(1)


def _argmax(a, values, places):
    for b in range(values.size):
        part = a[b * BLOCK : (b + 1) * BLOCK]
        places[b] = b * BLOCK + part.argmax()
        values[b] = part.max()
    return {1: values, 2: places}


def _last_block(a, partial, done, out):
    sums = _sums(a, 32)
    return {1: sums, 2: np.array([sums.size], np.int32), 3: sums.sum(keepdims=True)}


def _mean_and_variance(a, out):
    return {1: np.stack([f64(a).mean(1), f64(a).var(1)], 1)}


def _product(a, out):
    for b, row in enumerate(a.reshape(-1, 32)):
        value = 1
        for x in row.tolist():
            value = value * x % 1000003
        out[b] = value
    return {1: out}


ENTRIES = [
    Entry(
        sum_interleaved,
        3,
        BLOCK,
        lambda r: (uniform(r, 150), poison(3)),
        lambda a, out: {1: _sums(a, BLOCK)},
        tolerance=1e-6,
        ulp=0,
    ),
    Entry(
        sum_sequential,
        3,
        BLOCK,
        lambda r: (uniform(r, 150), poison(3)),
        lambda a, out: {1: _sums(a, BLOCK)},
        tolerance=1e-6,
        ulp=0,
    ),
    Entry(
        sum_odd_block,
        2,
        50,
        lambda r: (uniform(r, 100), poison(2)),
        lambda a, out: {1: _sums(a, 50)},
        tolerance=1e-6,
        ulp=0,
    ),
    Entry(
        sum_grid_stride,
        2,
        32,
        lambda r: (whole(r, 501, np.float32), np.zeros(1, np.float32)),
        lambda a, out: {1: a.sum(keepdims=True)},
        ulp=0,
    ),
    Entry(
        sum_by_shuffles,
        3,
        64,
        lambda r: (whole(r, 171, np.float32), np.zeros(1, np.float32)),
        lambda a, out: {1: a.sum(keepdims=True)},
        ulp=0,
        simulator=False,  # it has no shuffles
    ),
    Entry(
        sum_two_levels,
        2,
        192,
        lambda r: (uniform(r, 384), poison(2)),
        lambda a, out: {1: _sums(a, 192)},
        tolerance=1e-6,
        ulp=0,
        simulator=False,  # it has no shuffles
    ),
    Entry(
        maximum_of_rows,
        3,
        32,
        lambda r: (normal(r, (3, 101)), poison(3)),
        lambda a, out: {1: a.max(1)},
        ulp=0,
    ),
    Entry(
        argmax,
        2,
        BLOCK,
        lambda r: (whole(r, 115, np.float32, 0, 9), poison(2), poison(2, np.int32)),
        _argmax,
        ulp=0,
    ),
    Entry(
        dot_product,
        2,
        BLOCK,
        lambda r: (uniform(r, 120), uniform(r, 120), poison(2)),
        lambda a, b, out: {2: _sums(f64(a) * f64(b), BLOCK)},
        tolerance=1e-6,
    ),
    Entry(
        sum_last_block,
        3,
        32,
        lambda r: (uniform(r, 90), poison(3), np.zeros(1, np.int32), poison(1)),
        _last_block,
        tolerance=1e-6,
        ulp=0,
    ),
    Entry(
        ticket_by_inc,
        3,
        32,
        lambda r: (whole(r, 90), np.zeros(1, np.uint32), np.array([np.iinfo(np.int32).min, 0], np.int32)),
        lambda a, done, out: {2: np.array([a.sum() + 1, a.sum()], np.int32)},
    ),
    Entry(
        mean_and_variance,
        3,
        32,
        lambda r: (uniform(r, (3, 77)), poison((3, 2))),
        _mean_and_variance,
        tolerance=1e-6,
        ulp=16,
        cancels=True,
    ),
    Entry(
        column_sums,
        2,
        32,
        lambda r: (uniform(r, (19, 45)), poison(45)),
        lambda a, out: {1: f64(a).sum(0)},
        tolerance=1e-6,
        ulp=0,
    ),
    Entry(
        count_above,
        2,
        96,
        lambda r: (normal(r, 170), np.float32(0.25), np.zeros(1, np.int32)),
        lambda a, limit, out: {2: np.array([(a > limit).sum()], np.int32)},
    ),
    Entry(
        product_mod,
        2,
        32,
        lambda r: (whole(r, 64, np.int64, 1, 1000), poison(2, np.int64)),
        _product,
    ),
]
