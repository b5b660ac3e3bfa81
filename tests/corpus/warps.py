"""What the 32 threads of a warp do together. The simulator has none of it."""

import labkit  # isort: skip  # noqa: F401  # before numba

import numpy as np
from numba import cuda, float32, int32

from .entry import Entry, normal, poison, whole

FULL = 0xFFFFFFFF


@cuda.jit
def broadcast_i32(a, out, lane):
    i = cuda.grid(1)
    out[i] = cuda.shfl_sync(FULL, a[i], lane)


@cuda.jit
def each_from_another_f32(a, sources, out):
    # the mask as -1
    i = cuda.grid(1)
    out[i] = cuda.shfl_sync(-1, a[i], sources[i])


@cuda.jit
def up_f32(a, out):
    # lanes below the distance keep their own
    i = cuda.grid(1)
    out[i] = cuda.shfl_up_sync(FULL, a[i], 3)


@cuda.jit
def down_i64(a, out, by):
    # lanes near the end keep their own
    i = cuda.grid(1)
    out[i] = cuda.shfl_down_sync(FULL, a[i], by)


@cuda.jit
def xor_f64(a, out):
    i = cuda.grid(1)
    out[i] = cuda.shfl_xor_sync(FULL, a[i], 5) - a[i]


@cuda.jit
def all_shuffles_all_types(i32, i64, f32, f64, out):
    i = cuda.grid(1)
    a = cuda.shfl_up_sync(FULL, i32[i], 1)
    b = cuda.shfl_down_sync(FULL, i64[i], 2)
    c = cuda.shfl_xor_sync(FULL, f32[i], 16)
    d = cuda.shfl_sync(FULL, f64[i], (i + 9) % 32)
    out[i] = a + b + c + d


@cuda.jit
def shuffle_in_2d(a, out):
    # warps run along x, then y
    x, y = cuda.grid(2)
    out[y, x] = cuda.shfl_xor_sync(FULL, a[y, x], 8)


@cuda.jit
def warp_sum_everywhere(a, out):
    i = cuda.grid(1)
    value = a[i]
    mask = 16
    while mask > 0:
        value += cuda.shfl_xor_sync(FULL, value, mask)
        mask >>= 1
    out[i] = value


@cuda.jit
def warp_maximum_and_lane(a, out, lanes):
    # two shuffles a step; of equals the lowest lane
    i = cuda.grid(1)
    best = a[i]
    where = int32(cuda.laneid)
    for k in range(5):
        other = cuda.shfl_xor_sync(FULL, best, 1 << k)
        place = cuda.shfl_xor_sync(FULL, where, 1 << k)
        if other > best or (other == best and place < where):
            best = other
            where = place
    out[i] = best
    lanes[i] = where


@cuda.jit
def warp_scan(a, out):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    value = a[i]
    distance = 1
    while distance < 32:
        below = cuda.shfl_up_sync(FULL, value, distance)
        if lane >= distance:
            value += below
        distance *= 2
    out[i] = value


@cuda.jit
def warp_scan_exclusive_f32(a, out):
    i = cuda.grid(1)
    lane = cuda.laneid
    value = a[i]
    for k in range(5):
        below = cuda.shfl_up_sync(FULL, value, 1 << k)
        value += below if lane >= 1 << k else float32(0)
    value = cuda.shfl_up_sync(FULL, value, 1)
    out[i] = value if lane > 0 else float32(0)


@cuda.jit
def only_the_first_warp(a, out):
    # a branch that whole warps take
    warp = cuda.threadIdx.x // 32
    i = cuda.grid(1)
    value = a[i]
    if warp == 0:
        value = cuda.shfl_down_sync(FULL, value, 1)
        value += cuda.shfl_xor_sync(FULL, value, 2)
    elif warp == 2:
        value = -cuda.shfl_sync(FULL, value, 31)
    out[i] = value


@cuda.jit
def warps_loop_unequally(a, out):
    # each warp makes as many rounds as its number
    i = cuda.grid(1)
    value = a[i]
    for k in range(cuda.threadIdx.x // 32):
        value += cuda.shfl_xor_sync(FULL, value, k + 1)
    out[i] = value


@cuda.jit
def warps_past_the_end_leave(a, out):
    i = cuda.grid(1)
    if i >= a.size:
        return
    out[i] = cuda.shfl_xor_sync(FULL, a[i], 31)


@cuda.jit
def half_a_warp(a, out):
    # only the lanes of the mask take part
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    value = a[i]
    if lane < 16:
        value += cuda.shfl_xor_sync(0xFFFF, value, 8)
        value += cuda.shfl_xor_sync(0xFFFF, value, 4)
    cuda.syncwarp()
    out[i] = value


@cuda.jit
def quads(a, out):
    # four lanes are one group
    i = cuda.grid(1)
    value = a[i]
    value = max(value, cuda.shfl_xor_sync(FULL, value, 1))
    value = max(value, cuda.shfl_xor_sync(FULL, value, 2))
    out[i] = cuda.shfl_sync(FULL, value, cuda.laneid & ~3) - a[i]


@cuda.jit
def votes(a, limit, out):
    i = cuda.grid(1)
    small = a[i] < limit
    out[i, 0] = cuda.any_sync(FULL, small)
    out[i, 1] = cuda.all_sync(FULL, small)
    out[i, 2] = cuda.eq_sync(FULL, small)


@cuda.jit
def ballots(a, limit, out):
    # the result is signed: lane 31's bit makes it negative
    i = cuda.grid(1)
    out[i] = cuda.ballot_sync(FULL, a[i] < limit)


@cuda.jit
def votes_of_numbers(a, out):
    # every number but 0 is true
    i = cuda.grid(1)
    out[i, 0] = cuda.ballot_sync(FULL, a[i])
    out[i, 1] = 1 if cuda.all_sync(FULL, a[i]) else 0


@cuda.jit
def count_by_ballot(a, limit, out):
    i = cuda.grid(1)
    bits = cuda.ballot_sync(FULL, i < a.size and a[i] > limit)
    if cuda.laneid == 0:
        cuda.atomic.add(out, 0, cuda.popc(bits))


@cuda.jit
def matches_i32(a, out, counts):
    i = cuda.grid(1)
    peers = cuda.match_any_sync(FULL, a[i])
    out[i] = peers
    counts[i] = cuda.popc(peers)


@cuda.jit
def matches_f32_f64_i64(f32, f64, i64, out):
    i = cuda.grid(1)
    out[i, 0] = cuda.match_any_sync(FULL, f32[i])
    out[i, 1] = cuda.match_any_sync(FULL, f64[i])
    out[i, 2] = cuda.match_any_sync(FULL, i64[i])


@cuda.jit
def all_match(a, out, same):
    i = cuda.grid(1)
    mask, yes = cuda.match_all_sync(FULL, a[i])
    out[i] = mask
    same[i] = yes


@cuda.jit
def masks(out):
    i = cuda.grid(1)
    active = cuda.activemask()
    out[i, 0] = active
    out[i, 1] = cuda.lanemask_lt()
    out[i, 2] = cuda.popc(cuda.lanemask_lt())


@cuda.jit
def rank_among_the_chosen(a, limit, out):
    i = cuda.grid(1)
    chosen = a[i] > limit
    bits = cuda.ballot_sync(FULL, chosen)
    out[i] = cuda.popc(bits & cuda.lanemask_lt()) if chosen else -1


@cuda.jit
def exchange_after_syncwarp(a, out):
    # a warp's own part of shared memory needs no barrier of the block
    s = cuda.shared.array(96, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    cuda.syncwarp()
    value = s[t ^ 1]
    cuda.syncwarp(FULL)
    s[t] = value * 2
    cuda.syncwarp()
    out[i] = s[t ^ 2]


@cuda.jit
def one_atomic_a_warp(a, limit, counter, out):
    # room for all of a warp's finds is taken at once; the order of warps is not known, so only sums are kept
    i = cuda.grid(1)
    chosen = i < a.size and a[i] > limit
    bits = cuda.ballot_sync(FULL, chosen)
    lane = cuda.laneid
    first = int32(0)
    if lane == 0 and bits != 0:
        first = cuda.atomic.add(counter, 0, cuda.popc(bits))
    first = cuda.shfl_sync(FULL, first, 0)
    if chosen:
        place = first + cuda.popc(bits & cuda.lanemask_lt())
        cuda.atomic.add(out, place % 2, a[i])
        cuda.atomic.max(out, 2, place)


@cuda.jit
def shuffles_between_barriers(a, out):
    s = cuda.shared.array(4, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    value = a[i]
    for r in range(3):
        last = cuda.shfl_sync(FULL, value, 31 - r)
        if t % 32 == 0:
            s[t // 32] = last
        cuda.syncthreads()
        value = (value + s[(t // 32 + 1) % 4]) % 1009
        cuda.syncthreads()
    out[i] = value


def _lanes(a):
    return a.reshape(-1, 32)


def _signed(bits):
    """Rows of 32 truths as a signed 32-bit number."""
    return (bits.astype(np.uint32) << np.arange(32, dtype=np.uint32)).sum(1, dtype=np.uint32).view(np.int32)


def _each(numbers):
    return np.repeat(numbers, 32)


def _up(a, out):
    b = _lanes(a).copy()
    b[:, 3:] = b[:, :-3].copy()
    return {1: b.ravel()}


def _down(a, out, by):
    b = _lanes(a).copy()
    b[:, :-by] = b[:, by:].copy()
    return {1: b.ravel()}


def _sources(a, sources, out):
    return {2: np.take_along_axis(_lanes(a), _lanes(sources).astype(np.int64), 1).ravel()}


def _all_shuffles(i32, i64, f32, f64, out):
    a, b = _lanes(i32).copy(), _lanes(i64).copy()
    a[:, 1:] = a[:, :-1].copy()
    b[:, :-2] = b[:, 2:].copy()
    return {4: (a + b + _lanes(f32)[:, np.arange(32) ^ 16] + np.roll(_lanes(f64), -9, 1)).ravel()}


def _in_2d(a, out):
    # blocks of 16 by 4: a warp is two rows, and lane ^ 8 stays in its row
    return {1: a[:, np.arange(a.shape[1]) ^ 8]}


def _maximum_and_lane(a, out, lanes):
    return {1: _each(_lanes(a).max(1)), 2: _each(_lanes(a).argmax(1)).astype(np.int32)}


def _exclusive(a, out):
    b = np.cumsum(_lanes(a), 1)
    return {1: np.concatenate([0 * b[:, :1], b[:, :-1]], 1).ravel()}


def _first_warp(a, out):
    b = a.reshape(-1, 3, 32).copy()
    first = b[:, 0].copy()
    first[:, :-1] = b[:, 0, 1:]
    b[:, 0] = first + first[:, np.arange(32) ^ 2]
    b[:, 2] = -b[:, 2, 31:]
    return {1: b.ravel()}


def _unequally(a, out):
    b = a.reshape(-1, 4, 32).copy()
    for warp in range(4):
        for k in range(warp):
            b[:, warp] += b[:, warp, np.arange(32) ^ (k + 1)]
    return {1: b.ravel()}


def _half(a, out):
    b = _lanes(a).copy()
    for mask in (8, 4):
        b[:, :16] += b[:, np.arange(16) ^ mask]
    return {1: b.ravel()}


def _quads(a, out):
    b = a.reshape(-1, 4)
    return {1: (b.max(1, keepdims=True) - b).ravel()}


def _votes(a, limit, out):
    b = _lanes(a) < limit
    rows = np.stack([b.any(1), b.all(1), b.all(1) | ~b.any(1)], 1)
    return {2: np.repeat(rows, 32, axis=0).astype(np.int32)}


def _votes_of_numbers(a, out):
    b = _lanes(a) != 0
    return {1: np.repeat(np.stack([_signed(b), b.all(1)], 1).astype(np.int64), 32, axis=0)}


def _peers(a):
    b = _lanes(a)
    return np.concatenate([_signed(row[:, None] == row[None, :]) for row in b])


def _popcount(numbers):
    return np.array([bin(n).count("1") for n in numbers.view(np.uint32).tolist()], np.int32)


def _all_match(a, out, same):
    yes = (_lanes(a) == _lanes(a)[:, :1]).all(1)
    return {1: _each(np.where(yes, -1, 0)).astype(np.int64), 2: _each(yes)}


def _masks(out):
    lane = np.arange(out.shape[0]) % 32
    return {0: np.stack([0 * lane + 0xFFFFFFFF, (1 << lane) - 1, lane], 1)}


def _rank(a, limit, out):
    b = _lanes(a) > limit
    return {2: np.where(b, np.cumsum(b, 1) - 1, -1).ravel().astype(np.int32)}


def _one_atomic(a, limit, counter, out):
    chosen = a[a > limit]
    # the values' places depend on the order of warps: all are the same number
    out[0] = chosen[0] * -(-chosen.size // 2)
    out[1] = chosen[0] * (chosen.size // 2)
    out[2] = chosen.size - 1
    return {2: np.array([chosen.size], np.int32), 3: out}


def _between_barriers(a, out):
    b = a.reshape(-1, 4, 32)
    for r in range(3):
        b = (b + np.roll(b[:, :, 31 - r], -1, 1)[:, :, None]) % 1009
    return {1: b.ravel()}


def _entry(kernel, grid, block, arguments, expected, **more):
    return Entry(kernel, grid, block, arguments, expected, simulator=False, **more)


ENTRIES = [
    _entry(
        broadcast_i32,
        2,
        64,
        lambda r: (whole(r, 128), poison(128, np.int32), 13),
        lambda a, out, lane: {1: _each(_lanes(a)[:, lane])},
    ),
    _entry(
        each_from_another_f32,
        2,
        64,
        lambda r: (normal(r, 128), whole(r, 128, low=0, high=32), poison(128)),
        _sources,
        ulp=0,
    ),
    _entry(up_f32, 2, 64, lambda r: (normal(r, 128), poison(128)), _up, ulp=0),
    _entry(
        down_i64,
        2,
        64,
        lambda r: (r.integers(-(1 << 62), 1 << 62, 128), poison(128, np.int64), np.int32(5)),
        _down,
    ),
    _entry(
        xor_f64,
        2,
        64,
        lambda r: (normal(r, 128, np.float64), poison(128, np.float64)),
        lambda a, out: {1: (_lanes(a)[:, np.arange(32) ^ 5] - _lanes(a)).ravel()},
        ulp=0,
    ),
    _entry(
        all_shuffles_all_types,
        2,
        64,
        lambda r: (
            whole(r, 128),
            whole(r, 128, np.int64),
            whole(r, 128, np.float32),
            whole(r, 128, np.float64),
            poison(128, np.float64),
        ),
        _all_shuffles,
        ulp=0,
    ),
    _entry(shuffle_in_2d, (2, 2), (16, 4), lambda r: (normal(r, (8, 32)), poison((8, 32))), _in_2d, ulp=0),
    _entry(
        warp_sum_everywhere,
        2,
        96,
        lambda r: (whole(r, 192, np.float32), poison(192)),
        lambda a, out: {1: _each(_lanes(a).sum(1))},
        ulp=0,
    ),
    _entry(
        warp_maximum_and_lane,
        2,
        64,
        lambda r: (whole(r, 128, np.float32, 0, 12), poison(128), poison(128, np.int32)),
        _maximum_and_lane,
        ulp=0,
    ),
    _entry(
        warp_scan,
        2,
        64,
        lambda r: (whole(r, 128), poison(128, np.int32)),
        lambda a, out: {1: np.cumsum(_lanes(a), 1, dtype=np.int32).ravel()},
    ),
    _entry(
        warp_scan_exclusive_f32,
        2,
        64,
        lambda r: (whole(r, 128, np.float32), poison(128)),
        _exclusive,
        ulp=0,
    ),
    _entry(only_the_first_warp, 2, 96, lambda r: (whole(r, 192), poison(192, np.int32)), _first_warp),
    _entry(warps_loop_unequally, 2, 128, lambda r: (whole(r, 256), poison(256, np.int32)), _unequally),
    _entry(
        warps_past_the_end_leave,
        2,
        128,
        lambda r: (normal(r, 160), poison(160)),
        lambda a, out: {1: _lanes(a)[:, ::-1].ravel()},
        ulp=0,
    ),
    _entry(half_a_warp, 2, 64, lambda r: (whole(r, 128), poison(128, np.int32)), _half),
    _entry(quads, 2, 64, lambda r: (whole(r, 128), poison(128, np.int32)), _quads),
    _entry(
        votes,
        3,
        64,
        lambda r: (
            np.concatenate([whole(r, 64), whole(r, 64, high=0), whole(r, 64, low=2)]),
            2,
            poison((192, 3), np.int32),
        ),
        _votes,
    ),
    _entry(
        ballots,
        2,
        64,
        lambda r: (whole(r, 128), 3, poison(128, np.int64)),
        lambda a, limit, out: {2: _each(_signed(_lanes(a) < limit)).astype(np.int64)},
    ),
    _entry(
        votes_of_numbers,
        2,
        64,
        lambda r: (np.concatenate([whole(r, 64, low=-2, high=2), whole(r, 64, low=1)]), poison((128, 2), np.int64)),
        _votes_of_numbers,
    ),
    _entry(
        count_by_ballot,
        3,
        64,
        lambda r: (normal(r, 150), np.float32(0.5), np.zeros(1, np.int32)),
        lambda a, limit, out: {2: np.array([(a > limit).sum()], np.int32)},
    ),
    _entry(
        matches_i32,
        2,
        64,
        lambda r: (whole(r, 128, low=0, high=6), poison(128, np.int32), poison(128, np.int32)),
        lambda a, out, counts: {1: _peers(a), 2: _popcount(_peers(a))},
    ),
    _entry(
        matches_f32_f64_i64,
        2,
        64,
        lambda r: (
            whole(r, 128, np.float32, 0, 3) / np.float32(4),
            whole(r, 128, np.float64, 0, 5) / 8,
            whole(r, 128, np.int64, 0, 4) << 33,
            poison((128, 3), np.int32),
        ),
        lambda f, d, k, out: {3: np.stack([_peers(f), _peers(d), _peers(k)], 1)},
    ),
    _entry(
        all_match,
        2,
        64,
        lambda r: (
            np.repeat(np.array([4, 7, -2, 9], np.int32), [32, 31, 33, 32]),
            poison(128, np.int64),
            ~np.repeat([True, False, False, True], 32),
        ),
        _all_match,
    ),
    _entry(masks, 2, 64, lambda r: (poison((128, 3), np.int64),), _masks),
    _entry(
        rank_among_the_chosen,
        2,
        64,
        lambda r: (normal(r, 128), np.float32(0), poison(128, np.int32)),
        _rank,
    ),
    _entry(
        exchange_after_syncwarp,
        2,
        96,
        lambda r: (normal(r, 192), poison(192)),
        lambda a, out: {1: 2 * a[np.arange(192) ^ 3]},
        ulp=0,
    ),
    _entry(
        one_atomic_a_warp,
        3,
        64,
        lambda r: (
            np.where(r.random(170) < 0.4, 5, 0).astype(np.int32),
            np.int32(1),
            np.zeros(1, np.int32),
            np.zeros(3, np.int32),
        ),
        _one_atomic,
    ),
    _entry(
        shuffles_between_barriers,
        2,
        128,
        lambda r: (whole(r, 256, low=0), poison(256, np.int32)),
        _between_barriers,
    ),
]
