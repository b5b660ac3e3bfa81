"""Read, change and write in one: on global and shared memory, with and without the old value."""

import labkit  # isort: skip  # noqa: F401  # before numba

import numpy as np
from numba import cuda, float32, int32, uint32

from .entry import Entry, normal, poison, whole

BINS = 16


@cuda.jit
def add_all_types(i32, u32, i64, u64, f32, f64, out_i32, out_u32, out_i64, out_u64, out_f32, out_f64):
    i = cuda.grid(1)
    if i < i32.size:
        cuda.atomic.add(out_i32, 0, i32[i])
        cuda.atomic.add(out_u32, 0, u32[i])
        cuda.atomic.add(out_i64, 0, i64[i])
        cuda.atomic.add(out_u64, 0, u64[i])
        cuda.atomic.add(out_f32, 0, f32[i])
        cuda.atomic.add(out_f64, 0, f64[i])


@cuda.jit
def subtract(a, out):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.sub(out, i % out.size, a[i])


@cuda.jit
def extremes(a, least, greatest):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.min(least, i % 3, a[i])
        cuda.atomic.max(greatest, i % 3, a[i])


@cuda.jit
def extremes_of_floats(a, least, greatest):
    i = cuda.grid(1)
    if i < a.shape[0]:
        for j in range(a.shape[1]):
            cuda.atomic.min(least, j, a[i, j])
            cuda.atomic.max(greatest, j, a[i, j])


@cuda.jit
def extremes_past_nan(a, least, greatest):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.nanmin(least, 0, a[i])
        cuda.atomic.nanmax(greatest, 0, a[i])
        # nothing but NaN is there at first
        cuda.atomic.nanmin(least, 1, i)
        cuda.atomic.nanmax(greatest, 1, i)


@cuda.jit
def bits(a, ands, ors, xors):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.and_(ands, i % 2, a[i])
        cuda.atomic.or_(ors, i % 2, a[i])
        cuda.atomic.xor(xors, i % 2, a[i])


@cuda.jit
def wrapping_counters(up, down, limit):
    # up: 0, 1, ... limit, 0, ...; down: the other way round
    i = cuda.grid(1)
    if i < 100:
        cuda.atomic.inc(up, 0, limit)
        cuda.atomic.dec(down, 0, limit)


@cuda.jit
def everyone_gets_a_ticket(counter, seen):
    # the old values are all different, in whatever order
    i = cuda.grid(1)
    if i < seen.size:
        ticket = cuda.atomic.add(counter, 0, 1)
        cuda.atomic.add(seen, ticket, 1)


@cuda.jit
def exchange(slots, out):
    # each thread has a slot of its own
    i = cuda.grid(1)
    if i < slots.size:
        out[i] = cuda.atomic.exch(slots, i, 3 * i)


@cuda.jit
def exchange_chain(slot, sums):
    # one thread gets what was there, the others what one of them left
    i = cuda.grid(1)
    if i < 70:
        old = cuda.atomic.exch(slot, 0, 5)
        cuda.atomic.add(sums, 0, old)


@cuda.jit
def claim(owners, keys, wins):
    # one of those who want a key gets it
    i = cuda.grid(1)
    if i < keys.size and cuda.atomic.cas(owners, keys[i], -1, 7) == -1:
        cuda.atomic.add(wins, 0, 1)


@cuda.jit
def claim_first_element(lock, winners):
    i = cuda.grid(1)
    if cuda.atomic.compare_and_swap(lock, 0, 5) == 0:
        cuda.atomic.add(winners, 0, 1)
    elif i >= 0:
        cuda.atomic.add(winners, 1, 1)


@cuda.jit
def claim_own_row(table, out):
    i = cuda.grid(1)
    if i < table.shape[0]:
        out[i] = cuda.atomic.cas(table, (i, 1), 2, 100 + i)


@cuda.jit
def add_in_2d(rows, columns, out):
    i = cuda.grid(1)
    if i < rows.size:
        cuda.atomic.add(out, (rows[i], columns[i]), 1)
        cuda.atomic.max(out, (out.shape[0] - 1, columns[i]), i)


@cuda.jit
def add_in_3d(a, out):
    x, y = cuda.grid(2)
    if y < a.shape[0] and x < a.shape[1]:
        cuda.atomic.add(out, (y % 2, x % 3, (x + y) % 2), a[y, x])


@cuda.jit
def histogram_global(a, counts):
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        cuda.atomic.add(counts, a[i], 1)


@cuda.jit
def histogram_shared(a, counts):
    # the block counts for itself first
    mine = cuda.shared.array(BINS, int32)
    t = cuda.threadIdx.x
    for b in range(t, BINS, cuda.blockDim.x):
        mine[b] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(mine, a[i] % BINS, 1)
    cuda.syncthreads()
    for b in range(t, BINS, cuda.blockDim.x):
        if mine[b] > 0:
            cuda.atomic.add(counts, b, mine[b])


@cuda.jit
def histogram_of_floats(a, low, width, counts):
    i = cuda.grid(1)
    if i < a.size:
        b = int((a[i] - low) / width)
        if 0 <= b < counts.size:
            cuda.atomic.add(counts, b, 1)


@cuda.jit
def histogram_of_bits(a, counts):
    # how many numbers have how many bits
    mine = cuda.shared.array(33, uint32)
    t = cuda.threadIdx.x
    if t < 33:
        mine[t] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(mine, cuda.popc(a[i]), 1)
    cuda.syncthreads()
    if t < 33:
        cuda.atomic.add(counts, t, mine[t])


@cuda.jit
def shared_extremes(a, out):
    s = cuda.shared.array(4, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if t == 0:
        s[0] = a[i]
        s[1] = a[i]
        s[2] = 0
        s[3] = -1
    cuda.syncthreads()
    cuda.atomic.min(s, 0, a[i])
    cuda.atomic.max(s, 1, a[i])
    cuda.atomic.or_(s, 2, 1 << (a[i] & 7))
    cuda.atomic.and_(s, 3, a[i] | 1)
    cuda.syncthreads()
    if t < 4:
        out[cuda.blockIdx.x, t] = s[t]


@cuda.jit
def shared_sum_of_floats_2d(a, out):
    s = cuda.shared.array((2, 3), float32)
    t = cuda.threadIdx.x
    if t < 6:
        s[t // 3, t % 3] = 0
    cuda.syncthreads()
    cuda.atomic.add(s, (t % 2, t % 3), a[cuda.grid(1)])
    cuda.syncthreads()
    if t < 6:
        out[cuda.blockIdx.x, t] = s[t // 3, t % 3]


@cuda.jit
def compact_unordered(a, counter, out):
    # the order is not known: all finds are alike
    i = cuda.grid(1)
    if i < a.size and a[i] > 0:
        out[cuda.atomic.add(counter, 0, 1)] = a[i]


@cuda.jit
def segment_sums(a, segments, sums):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(sums, segments[i], a[i])


@cuda.jit
def scatter_last_wins_by_max(keys, out):
    # the greatest index that wants a slot gets it, in every order
    i = cuda.grid(1)
    if i < keys.size:
        cuda.atomic.max(out, keys[i], i)


@cuda.jit
def fences(a, out):
    # fences order writes; the barrier does the waiting
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    cuda.threadfence_block()
    cuda.syncthreads()
    out[i] = s[31 - t]
    cuda.threadfence()
    cuda.threadfence_system()
    cuda.atomic.add(out, i, 1)


def _numbers(rng):
    dtypes = np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64
    return *(whole(rng, 150, d, 0, 100) for d in dtypes), *(np.ones(1, d) for d in dtypes)


def _add_all(*arguments):
    return {6 + k: 1 + arguments[k].sum(keepdims=True, dtype=arguments[k].dtype) for k in range(6)}


def _subtract(a, out):
    np.subtract.at(out, np.arange(a.size) % out.size, a)
    return {1: out}


def _extremes(a, least, greatest):
    np.minimum.at(least, np.arange(a.size) % 3, a)
    np.maximum.at(greatest, np.arange(a.size) % 3, a)
    return {1: least, 2: greatest}


def _with_nans(rng):
    a = normal(rng, 150, np.float64)
    a[::4] = np.nan
    return a, np.array([0, np.nan]), np.array([0, np.nan])


def _bits(a, ands, ors, xors):
    for k in range(2):
        ands[k] &= np.bitwise_and.reduce(a[k::2])
        ors[k] |= np.bitwise_or.reduce(a[k::2])
        xors[k] ^= np.bitwise_xor.reduce(a[k::2])
    return {1: ands, 2: ors, 3: xors}


def _own_row(table, out):
    after = table.copy()
    hit = table[:, 1] == 2
    after[hit, 1] = 100 + np.flatnonzero(hit)
    return {0: after, 1: table[:, 1]}


def _claim(owners, keys, wins):
    owners[np.unique(keys)] = 7
    return {0: owners, 2: np.array([np.unique(keys).size], np.int32)}


def _in_2d(rows, columns, out):
    np.add.at(out, (rows, columns), 1)
    np.maximum.at(out[-1], columns, np.arange(rows.size))
    return {2: out}


def _in_3d(a, out):
    y, x = np.indices(a.shape)
    np.add.at(out, (y % 2, x % 3, (x + y) % 2), a)
    return {1: out}


def _counts(a, counts):
    return {1: np.bincount(a % counts.size, minlength=counts.size).astype(counts.dtype)}


def _float_counts(a, low, width, counts):
    places = ((a - low) / width).astype(np.int64)
    inside = places[(places >= 0) & (places < counts.size)]
    return {3: np.bincount(inside, minlength=counts.size).astype(np.int32)}


def _bit_counts(a, counts):
    n = [bin(v).count("1") for v in a.tolist()]
    return {1: np.bincount(n, minlength=33).astype(np.uint32)}


def _shared_extremes(a, out):
    b = a.reshape(out.shape[0], -1)
    ors, ands = np.bitwise_or.reduce(1 << (b & 7), axis=1), np.bitwise_and.reduce(b | 1, axis=1)
    return {1: np.stack([b.min(1), b.max(1), ors, ands], 1).astype(np.int32)}


def _shared_floats(a, out):
    t = np.arange(40)
    for b, row in enumerate(a.reshape(-1, 40)):
        out[b] = np.bincount(t % 2 * 3 + t % 3, weights=row, minlength=6)
    return {1: out}


def _compact(a, counter, out):
    n = (a > 0).sum()
    out[:n] = 9
    return {1: np.array([n], np.int32), 2: out}


def _segments(a, segments, sums):
    np.add.at(sums, segments, a)
    return {2: sums}


def _last_wins(keys, out):
    np.maximum.at(out, keys, np.arange(keys.size))
    return {1: out}


ENTRIES = [
    Entry(add_all_types, 3, 64, _numbers, _add_all, ulp=0),
    Entry(subtract, 3, 64, lambda r: (whole(r, 170), np.full(5, 1000, np.int32)), _subtract),
    Entry(
        extremes,
        3,
        64,
        lambda r: (whole(r, 170, low=-999, high=999), np.zeros(3, np.int32), np.zeros(3, np.int32)),
        _extremes,
    ),
    Entry(
        extremes_of_floats,
        2,
        32,
        lambda r: (normal(r, (50, 3)), np.full(3, np.inf, np.float32), np.full(3, -np.inf, np.float32)),
        lambda a, least, greatest: {1: a.min(0), 2: a.max(0)},
        ulp=0,
    ),
    Entry(
        extremes_past_nan,
        3,
        64,
        _with_nans,
        lambda a, least, greatest: {1: np.array([np.nanmin(a), 0]), 2: np.array([np.nanmax(a), a.size - 1])},
        ulp=0,
    ),
    Entry(
        bits,
        3,
        64,
        lambda r: (
            whole(r, 151, np.uint32, 1 << 20, 1 << 31) | np.uint32(0x1001),
            np.full(2, 0xFFFFFFFF, np.uint32),
            np.zeros(2, np.uint32),
            np.ones(2, np.uint32),
        ),
        _bits,
    ),
    Entry(
        wrapping_counters,
        2,
        64,
        lambda r: (np.zeros(1, np.uint32), np.zeros(1, np.uint32), np.uint32(6)),
        lambda up, down, limit: {0: np.array([100 % 7], np.uint32), 1: np.array([-100 % 7], np.uint32)},
    ),
    Entry(
        everyone_gets_a_ticket,
        3,
        64,
        lambda r: (np.zeros(1, np.int32), np.zeros(150, np.int32)),
        lambda counter, seen: {0: np.array([150], np.int32), 1: np.ones(150, np.int32)},
    ),
    Entry(
        exchange,
        2,
        64,
        lambda r: (whole(r, 99), poison(99, np.int32)),
        lambda slots, out: {0: 3 * np.arange(99, dtype=np.int32), 1: slots},
    ),
    Entry(
        exchange_chain,
        2,
        64,
        lambda r: (np.array([2], np.int64), np.zeros(1, np.int64)),
        lambda slot, sums: {0: np.array([5]), 1: np.array([2 + 69 * 5])},
    ),
    Entry(
        claim,
        3,
        64,
        lambda r: (np.full(40, -1, np.int32), whole(r, 150, low=0, high=40), np.zeros(1, np.int32)),
        _claim,
    ),
    Entry(
        claim_first_element,
        2,
        64,
        lambda r: (np.zeros(3, np.int64), np.zeros(2, np.int32)),
        lambda lock, winners: {0: np.array([5, 0, 0]), 1: np.array([1, 127], np.int32)},
    ),
    Entry(
        claim_own_row,
        2,
        32,
        lambda r: (whole(r, (45, 2), low=0, high=4), poison(45, np.int32)),
        _own_row,
    ),
    Entry(
        add_in_2d,
        3,
        64,
        lambda r: (whole(r, 150, low=0, high=4), whole(r, 150, low=0, high=7), np.zeros((5, 7), np.int32)),
        _in_2d,
    ),
    Entry(
        add_in_3d,
        (2, 2),
        (8, 8),
        lambda r: (whole(r, (13, 11), np.float32), np.zeros((2, 3, 2), np.float32)),
        _in_3d,
        ulp=0,
    ),
    Entry(
        histogram_global,
        2,
        64,
        lambda r: (whole(r, 501, np.uint8, 0, BINS), np.zeros(BINS, np.int32)),
        _counts,
    ),
    Entry(
        histogram_shared,
        3,
        64,
        lambda r: (whole(r, 170, low=0, high=999), np.zeros(BINS, np.int32)),
        _counts,
    ),
    Entry(
        histogram_of_floats,
        3,
        64,
        lambda r: (normal(r, 170), np.float32(-2), np.float32(0.5), np.zeros(8, np.int32)),
        _float_counts,
    ),
    Entry(
        histogram_of_bits,
        3,
        64,
        lambda r: (whole(r, 170, np.uint32, 0, 1 << 32), np.zeros(33, np.uint32)),
        _bit_counts,
    ),
    Entry(
        shared_extremes, 3, 40, lambda r: (whole(r, 120, low=16, high=99), poison((3, 4), np.int32)), _shared_extremes
    ),
    Entry(
        shared_sum_of_floats_2d,
        3,
        40,
        lambda r: (whole(r, 120, np.float32), poison((3, 6))),
        _shared_floats,
        ulp=0,
    ),
    Entry(
        compact_unordered,
        3,
        64,
        lambda r: (np.where(r.random(170) < 0.4, 9, -1).astype(np.int32), np.zeros(1, np.int32), poison(170, np.int32)),
        _compact,
    ),
    Entry(
        segment_sums,
        3,
        64,
        lambda r: (whole(r, 170, np.float32), np.sort(whole(r, 170, low=0, high=9)), np.zeros(9, np.float32)),
        _segments,
        ulp=0,
    ),
    Entry(
        fences,
        2,
        32,
        lambda r: (whole(r, 64), poison(64, np.int32)),
        lambda a, out: {1: a.reshape(2, 32)[:, ::-1].ravel() + np.int32(1)},
    ),
    Entry(
        scatter_last_wins_by_max,
        3,
        64,
        lambda r: (whole(r, 170, low=0, high=30), np.full(30, -1, np.int32)),
        _last_wins,
    ),
]
