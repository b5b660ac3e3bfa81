"""Shared, local and constant memory, and what barriers order."""

import labkit  # isort: skip  # noqa: F401  # before numba

import numpy as np
from numba import cuda, float32, float64, int16, int32, uint8

from .entry import Entry, normal, poison, whole

BLOCK = 64
TILE = (6, 10)
HALO = 2
SPAN = BLOCK + 2 * HALO  # numba takes no sum as a shape
WEIGHTS = np.array([1, 4, 6, 4, 1], np.float32)
TABLE = np.arange(12, dtype=np.int32).reshape(3, 4) ** 2


@cuda.jit
def reverse_blocks(a, out):
    # the shape is a module global
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i] if i < a.size else float32(0)
    cuda.syncthreads()
    if i < out.size:
        out[i] = s[BLOCK - 1 - t]


def make_rotate(size, dtype):
    @cuda.jit
    def rotate_closure(a, out, by):
        # shape and dtype are closure variables
        s = cuda.shared.array(size, dtype)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        s[t] = a[i]
        cuda.syncthreads()
        out[i] = s[(t + by) % size]

    return rotate_closure


rotate_closure = make_rotate(48, int16)


@cuda.jit
def flip_tiles(a, out):
    # a 2-D shape; the tile is turned by 180 degrees
    s = cuda.shared.array(TILE, int32)
    x, y = cuda.grid(2)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    inside = y < a.shape[0] and x < a.shape[1]
    s[ty, tx] = a[y, x] if inside else 0
    cuda.syncthreads()
    if inside:
        out[y, x] = s[TILE[0] - 1 - ty, TILE[1] - 1 - tx]


@cuda.jit
def two_shared_arrays(values, keys, out):
    # two dtypes and a literal shape
    v = cuda.shared.array(32, float64)
    k = cuda.shared.array(shape=(32,), dtype=uint8)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    v[t] = values[i]
    k[t] = keys[i]
    cuda.syncthreads()
    out[i] = v[k[t]] + k[31 - t]


@cuda.jit
def stencil_shared(a, out):
    # the block's elements and HALO more on each side
    s = cuda.shared.array(SPAN, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    n = a.size
    s[t + HALO] = a[i] if i < n else float32(0)
    if t < HALO:
        s[t] = a[i - HALO] if i >= HALO else float32(0)
        s[t + HALO + BLOCK] = a[i + BLOCK] if i + BLOCK < n else float32(0)
    cuda.syncthreads()
    if i < n:
        total = float32(0)
        for k in range(-HALO, HALO + 1):
            total += s[t + HALO + k]
        out[i] = total


@cuda.jit
def relax(a, out, steps):
    # two barriers in each round of a for loop
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    n = cuda.blockDim.x
    s[t] = a[cuda.grid(1)]
    for _ in range(steps):
        cuda.syncthreads()
        neighbours = s[(t + 1) % n] + s[(t + n - 1) % n]
        cuda.syncthreads()
        s[t] = (s[t] + neighbours) % 1000
    out[cuda.grid(1)] = s[t]


@cuda.jit
def branch_on_block(a, out):
    # blocks part ways; each way has its barrier
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    if cuda.blockIdx.x % 2 == 0:
        cuda.syncthreads()
        out[i] = s[31 - t]
    else:
        s[t] += 1
        cuda.syncthreads()
        out[i] = s[t ^ 1]


@cuda.jit
def branch_on_argument(a, out, mode):
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    value = a[i]
    if mode == 2:
        s[t] = value
        cuda.syncthreads()
        value = s[(t + 7) % 32]
        cuda.syncthreads()
    if mode > 5:
        s[t] = 0
        cuda.syncthreads()
        value = s[31 - t]
    out[i] = value


@cuda.jit
def early_return(a, out):
    # the threads beyond the end leave before the barriers
    s = cuda.shared.array(BLOCK, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if i >= a.size:
        return
    s[t] = a[i]
    cuda.syncthreads()
    alive = min(BLOCK, a.size - cuda.blockIdx.x * BLOCK)
    partner = s[alive - 1 - t]
    cuda.syncthreads()
    s[t] = partner + 1
    cuda.syncthreads()
    out[i] = s[alive - 1 - t]


@cuda.jit
def break_between_barriers(limits, out):
    # all threads see the same number and leave together
    s = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        s[0] = 1
    rounds = 0
    while True:
        cuda.syncthreads()
        seen = s[0]
        cuda.syncthreads()
        if seen > limits[cuda.blockIdx.x]:
            break
        if t == 0:
            s[0] = 3 * seen
        rounds += 1
    out[cuda.grid(1)] = 100 * seen + rounds


@cuda.jit
def continue_between_barriers(a, out):
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    cuda.syncthreads()
    for k in range(1, 8):
        if k % 3 == 1:
            continue
        value = s[(t + k) % 32]
        cuda.syncthreads()
        if value < 0:
            s[t] = -value
        if k == 6:
            break
        cuda.syncthreads()
    out[i] = s[t]


@cuda.jit
def nested_barriers(a, out, rounds):
    s = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    cuda.syncthreads()
    for r in range(rounds):
        distance = 1
        while distance < 8:
            other = s[(t + distance) % 16]
            cuda.syncthreads()
            s[t] = (s[t] * 3 + other) % 997
            cuda.syncthreads()
            distance *= 4
        if t == r:
            s[t] = r
        cuda.syncthreads()
    out[i] = s[t]


@cuda.jit
def votes_of_the_block(a, limit, out):
    i = cuda.grid(1)
    positive = 1 if a[i] > 0 else 0
    small = 1 if a[i] < limit else 0
    count = cuda.syncthreads_count(positive)
    every = cuda.syncthreads_and(small)
    some = cuda.syncthreads_or(1 - small)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x, 0] = count
        out[cuda.blockIdx.x, 1] = 1 if every else 0
        out[cuda.blockIdx.x, 2] = 1 if some else 0


@cuda.jit
def until_nothing_changes(a, out, rounds):
    # a vote decides for all whether there is another round
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    n = 0
    changed = 1
    while changed:
        cuda.syncthreads()
        left = s[t - 1] if t > 0 else s[t]
        cuda.syncthreads()
        mine = 0
        if left > s[t]:
            s[t] = left
            mine = 1
        changed = cuda.syncthreads_or(mine)
        n += 1
    out[i] = s[t]
    if t == 0:
        rounds[cuda.blockIdx.x] = n


@cuda.jit
def local_across_barriers(a, out):
    # each thread keeps an array of its own over the barriers
    mine = cuda.local.array(4, int32)
    s = cuda.shared.array((4, 32), int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    for k in range(4):
        mine[k] = a[i] * (k + 1)
    for k in range(4):
        s[k, t] = mine[k]
        cuda.syncthreads()
        mine[k] += s[k, 31 - t]
    cuda.syncthreads()
    total = 0
    for k in range(4):
        total += mine[k] * (k + 1)
    out[i] = total


@cuda.jit
def local_2d(a, out):
    m = cuda.local.array((2, 3), float32)
    i = cuda.grid(1)
    if i < a.shape[0]:
        for y in range(2):
            for x in range(3):
                m[y, x] = a[i, 3 * y + x]
        for x in range(3):
            out[i, x] = m[0, x] * m[1, (x + 1) % 3]


@cuda.jit
def constant_weights(a, out):
    weights = cuda.const.array_like(WEIGHTS)
    i = cuda.grid(1)
    if i < out.size:
        total = float32(0)
        for k in range(weights.size):
            total += weights[k] * a[i + k]
        out[i] = total


@cuda.jit
def constant_table(rows, columns, out):
    table = cuda.const.array_like(TABLE)
    i = cuda.grid(1)
    if i < out.size:
        out[i] = table[rows[i], columns[i]] + table.shape[1]


@cuda.jit
def dynamic_reverse(a, out):
    # the launch decides the size
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    n = cuda.blockDim.x
    i = cuda.grid(1)
    s[t] = a[i]
    cuda.syncthreads()
    out[i] = s[n - 1 - t]


@cuda.jit
def dynamic_two_views(values, keys, out):
    # two arrays of two dtypes in one piece of dynamic shared memory
    n = cuda.blockDim.x
    wide = cuda.shared.array(0, float64)
    narrow = cuda.shared.array(0, int32)
    v = wide[:n]
    k = narrow[2 * n : 3 * n]
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    v[t] = values[i]
    k[t] = keys[i]
    cuda.syncthreads()
    out[i] = v[k[t]] * k[n - 1 - t]


@cuda.jit
def dynamic_beside_static(a, out):
    fixed = cuda.shared.array(16, int32)
    free = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    fixed[t] = a[i]
    free[t] = -a[i]
    cuda.syncthreads()
    out[i] = 10 * fixed[15 - t] + free[t ^ 3]


def _blocks(a, size):
    padded = np.zeros(-(-a.size // size) * size, a.dtype)
    padded[: a.size] = a
    return padded.reshape(-1, size)


def _flip_tiles(a, out):
    height, width = TILE
    padded = np.zeros((-(-a.shape[0] // height) * height, -(-a.shape[1] // width) * width), a.dtype)
    padded[: a.shape[0], : a.shape[1]] = a
    for y in range(0, padded.shape[0], height):
        for x in range(0, padded.shape[1], width):
            padded[y : y + height, x : x + width] = padded[y : y + height, x : x + width][::-1, ::-1].copy()
    return {1: padded[: a.shape[0], : a.shape[1]]}


def _two_arrays(values, keys, out):
    v, k = values.reshape(-1, 32), keys.reshape(-1, 32)
    return {2: (np.take_along_axis(v, k.astype(np.int64), 1) + k[:, ::-1]).ravel()}


def _stencil(a, out):
    return {1: np.convolve(a, np.ones(2 * HALO + 1), "same").astype(np.float32)}


def _relax(a, out, steps):
    b = a.reshape(-1, 32)
    for _ in range(steps):
        b = (b + np.roll(b, -1, 1) + np.roll(b, 1, 1)) % 1000
    return {1: b.ravel()}


def _branch_on_block(a, out):
    b = a.reshape(-1, 32).copy()
    b[::2] = b[::2, ::-1].copy()
    b[1::2] = b[1::2, np.arange(32) ^ 1] + 1
    return {1: b.ravel()}


def _early_return(a, out):
    return {1: a + 1}


def _break_between(limits, out):
    n = out.size // limits.size
    for b, limit in enumerate(limits):
        seen, rounds = 1, 0
        while seen <= limit:
            seen, rounds = 3 * seen, rounds + 1
        out[b * n : (b + 1) * n] = 100 * seen + rounds
    return {1: out}


def _continue_between(a, out):
    b = a.reshape(-1, 32).copy()
    for k in (2, 3, 5, 6):
        value = np.roll(b, -k, 1)
        b = np.where(value < 0, -value, b)
    return {1: b.ravel()}


def _nested(a, out, rounds):
    b = a.reshape(-1, 16).copy()
    for r in range(rounds):
        for distance in (1, 4):
            b = (b * 3 + np.roll(b, -distance, 1)) % 997
        b[:, r] = r
    return {1: b.ravel()}


def _votes(a, limit, out):
    b = a.reshape(out.shape[0], -1)
    return {2: np.stack([(b > 0).sum(1), (b < limit).all(1), (b >= limit).any(1)], 1).astype(np.int32)}


def _until_nothing(a, out, rounds):
    b = a.reshape(-1, 32).copy()
    for k, row in enumerate(b):
        rounds[k] = 1
        while (row != np.maximum(row, np.concatenate([row[:1], row[:-1]]))).any():
            row[1:] = np.maximum(row[1:], row[:-1])
            rounds[k] += 1
    return {1: b.ravel(), 2: rounds}


def _local_across(a, out):
    b = a.reshape(-1, 32)
    factor = sum((k + 1) ** 2 for k in range(4))
    return {1: (factor * (b + b[:, ::-1])).astype(np.int32).ravel()}


def _local_2d(a, out):
    return {1: a[:, :3] * a[:, [4, 5, 3]]}


def _dynamic_two(values, keys, out):
    v, k = values.reshape(-1, 24), keys.reshape(-1, 24)
    return {2: (np.take_along_axis(v, k.astype(np.int64), 1) * k[:, ::-1]).ravel()}


def _beside(a, out):
    b = a.reshape(-1, 16)
    return {1: (10 * b[:, ::-1] - b[:, np.arange(16) ^ 3]).ravel()}


ENTRIES = [
    Entry(
        reverse_blocks,
        3,
        BLOCK,
        lambda r: (normal(r, 150), poison(150)),
        lambda a, out: {1: _blocks(a, BLOCK)[:, ::-1].ravel()[: a.size]},
        ulp=0,
    ),
    Entry(
        rotate_closure,
        3,
        48,
        lambda r: (whole(r, 144, np.int16), poison(144, np.int16), 5),
        lambda a, out, by: {1: np.roll(a.reshape(-1, 48), -by, 1).ravel()},
    ),
    Entry(
        flip_tiles,
        (3, 2),
        TILE[::-1],
        lambda r: (whole(r, (11, 27)), poison((11, 27), np.int32)),
        _flip_tiles,
    ),
    Entry(
        two_shared_arrays,
        3,
        32,
        lambda r: (normal(r, 96, np.float64), whole(r, 96, np.uint8, 0, 32), poison(96, np.float64)),
        _two_arrays,
        ulp=0,
    ),
    Entry(stencil_shared, 3, BLOCK, lambda r: (whole(r, 170, np.float32), poison(170)), _stencil, ulp=0),
    Entry(relax, 2, 32, lambda r: (whole(r, 64, low=0), poison(64, np.int32), 4), _relax),
    Entry(branch_on_block, 4, 32, lambda r: (whole(r, 128), poison(128, np.int32)), _branch_on_block),
    Entry(
        branch_on_argument,
        2,
        32,
        lambda r: (whole(r, 64), poison(64, np.int32), 2),
        lambda a, out, mode: {1: np.roll(a.reshape(-1, 32), -7, 1).ravel()},
    ),
    Entry(early_return, 2, BLOCK, lambda r: (whole(r, 101), poison(101, np.int32)), _early_return),
    Entry(
        break_between_barriers,
        3,
        32,
        lambda r: (np.array([0, 30, 5], np.int32), poison(96, np.int32)),
        _break_between,
    ),
    Entry(
        continue_between_barriers,
        2,
        32,
        lambda r: (whole(r, 64), poison(64, np.int32)),
        _continue_between,
    ),
    Entry(nested_barriers, 2, 16, lambda r: (whole(r, 32, low=0), poison(32, np.int32), 3), _nested),
    Entry(
        votes_of_the_block,
        3,
        50,
        lambda r: (np.concatenate([whole(r, 100), whole(r, 50, high=20)]), 40, poison((3, 3), np.int32)),
        _votes,
    ),
    Entry(
        until_nothing_changes,
        2,
        32,
        lambda r: (
            np.concatenate([np.arange(32), [5, 9, 4, 3], np.arange(28) + 2]).astype(np.int32),
            poison(64, np.int32),
            poison(2, np.int32),
        ),
        _until_nothing,
    ),
    Entry(local_across_barriers, 2, 32, lambda r: (whole(r, 64), poison(64, np.int32)), _local_across),
    Entry(local_2d, 2, 32, lambda r: (normal(r, (41, 6)), poison((41, 3))), _local_2d, ulp=0),
    Entry(
        constant_weights,
        2,
        64,
        lambda r: (whole(r, 104, np.float32), poison(100)),
        lambda a, out: {1: np.convolve(a, WEIGHTS, "valid").astype(np.float32)},
        ulp=0,
    ),
    Entry(
        constant_table,
        2,
        32,
        lambda r: (whole(r, 50, low=0, high=3), whole(r, 50, low=0, high=4), poison(50, np.int32)),
        lambda rows, columns, out: {2: TABLE[rows, columns] + np.int32(4)},
    ),
    Entry(
        dynamic_reverse,
        3,
        40,
        lambda r: (normal(r, 120), poison(120)),
        lambda a, out: {1: a.reshape(3, 40)[:, ::-1].ravel()},
        ulp=0,
        shared=160,
    ),
    Entry(
        dynamic_two_views,
        2,
        24,
        lambda r: (whole(r, 48, np.float64), whole(r, 48, low=0, high=24), poison(48, np.float64)),
        _dynamic_two,
        ulp=0,
        shared=24 * 12,
    ),
    Entry(
        dynamic_beside_static,
        2,
        16,
        lambda r: (whole(r, 32), poison(32, np.int32)),
        _beside,
        shared=64,
    ),
]
