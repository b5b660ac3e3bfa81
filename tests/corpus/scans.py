"""Prefix sums, compaction, sorting: each place depends on all before it."""

import labkit  # isort: skip  # noqa: F401  # before numba

import numpy as np
from numba import cuda, float32, int32

from .entry import Entry, normal, poison, whole

BLOCK = 32
WIDE = 2 * BLOCK


@cuda.jit
def hillis_steele(a, out):
    # reads, a barrier, writes, a barrier
    s = cuda.shared.array(BLOCK, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i] if i < a.size else 0
    cuda.syncthreads()
    distance = 1
    while distance < BLOCK:
        below = s[t - distance] if t >= distance else 0
        cuda.syncthreads()
        s[t] += below
        cuda.syncthreads()
        distance *= 2
    if i < out.size:
        out[i] = s[t]


@cuda.jit
def hillis_steele_two_rows(a, out):
    # one barrier a step: one row is read, the other written
    s = cuda.shared.array((2, BLOCK), float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    now = 0
    s[now, t] = a[i]
    for k in range(5):
        cuda.syncthreads()
        distance = 1 << k
        following = 1 - now
        if t >= distance:
            s[following, t] = s[now, t] + s[now, t - distance]
        else:
            s[following, t] = s[now, t]
        now = following
    out[i] = s[now, t]


@cuda.jit
def blelloch(a, out):
    # up the tree and down again; each thread has two elements
    s = cuda.shared.array(WIDE, int32)
    t = cuda.threadIdx.x
    first = cuda.blockIdx.x * WIDE
    s[2 * t] = a[first + 2 * t]
    s[2 * t + 1] = a[first + 2 * t + 1]
    offset = 1
    d = BLOCK
    while d > 0:
        cuda.syncthreads()
        if t < d:
            left = offset * (2 * t + 1) - 1
            right = offset * (2 * t + 2) - 1
            s[right] += s[left]
        offset *= 2
        d //= 2
    cuda.syncthreads()
    if t == 0:
        s[WIDE - 1] = 0
    d = 1
    while d < WIDE:
        offset //= 2
        cuda.syncthreads()
        if t < d:
            left = offset * (2 * t + 1) - 1
            right = offset * (2 * t + 2) - 1
            s[left], s[right] = s[right], s[left] + s[right]
        d *= 2
    cuda.syncthreads()
    out[first + 2 * t] = s[2 * t]
    out[first + 2 * t + 1] = s[2 * t + 1]


@cuda.jit
def block_scan_by_warps(a, out):
    # scans of warps, a scan of their sums, and both added
    sums = cuda.shared.array(BLOCK, int32)
    t = cuda.threadIdx.x
    lane = t % 32
    warp = t // 32
    i = cuda.grid(1)
    value = a[i]
    for k in range(5):
        below = cuda.shfl_up_sync(0xFFFFFFFF, value, 1 << k)
        if lane >= 1 << k:
            value += below
    if lane == 31:
        sums[warp] = value
    cuda.syncthreads()
    if warp == 0:
        total = sums[lane] if lane < cuda.blockDim.x // 32 else int32(0)
        for k in range(5):
            below = cuda.shfl_up_sync(0xFFFFFFFF, total, 1 << k)
            if lane >= 1 << k:
                total += below
        sums[lane] = total
    cuda.syncthreads()
    if warp > 0:
        value += sums[warp - 1]
    out[i] = value


@cuda.jit
def add_offsets(partial, offsets, out):
    # the third step of a scan over several blocks
    i = cuda.grid(1)
    if i < out.size:
        out[i] = partial[i] + (offsets[cuda.blockIdx.x - 1] if cuda.blockIdx.x > 0 else 0)


@cuda.jit
def segmented_scan(a, flags, out):
    # sums begin anew at each flag
    s = cuda.shared.array(BLOCK, int32)
    f = cuda.shared.array(BLOCK, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    f[t] = flags[i]
    cuda.syncthreads()
    for k in range(5):
        distance = 1 << k
        value, flag = s[t], f[t]
        if t >= distance and flag == 0:
            value += s[t - distance]
            flag = f[t - distance]
        cuda.syncthreads()
        s[t], f[t] = value, flag
        cuda.syncthreads()
    out[i] = s[t]


@cuda.jit
def compact(a, out, counts):
    # what is positive moves to the front of its block
    s = cuda.shared.array(BLOCK, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    keep = 1 if a[i] > 0 else 0
    s[t] = keep
    distance = 1
    while distance < BLOCK:
        cuda.syncthreads()
        below = s[t - distance] if t >= distance else 0
        cuda.syncthreads()
        s[t] += below
        distance <<= 1
    cuda.syncthreads()
    if keep:
        out[cuda.blockIdx.x * BLOCK + s[t] - 1] = a[i]
    if t == BLOCK - 1:
        counts[cuda.blockIdx.x] = s[t]


@cuda.jit
def compact_by_ballot(a, out, counts):
    # a warp a block: a bit's rank is its place
    i = cuda.grid(1)
    keep = a[i] > float32(0)
    bits = cuda.ballot_sync(0xFFFFFFFF, keep)
    if keep:
        out[cuda.blockIdx.x * 32 + cuda.popc(bits & cuda.lanemask_lt())] = a[i]
    if cuda.laneid == 0:
        counts[cuda.blockIdx.x] = cuda.popc(bits)


@cuda.jit
def run_flags(a, starts, ends):
    # where a run of equal numbers begins and ends
    i = cuda.grid(1)
    n = a.size
    if i < n:
        starts[i] = i == 0 or a[i] != a[i - 1]
        ends[i] = i == n - 1 or a[i] != a[i + 1]


@cuda.jit
def bitonic_step(a, j, k):
    # one step over global memory; the lower thread of a pair does the work
    i = cuda.grid(1)
    partner = i ^ j
    if i < partner < a.size:
        x, y = a[i], a[partner]
        if (x > y) == ((i & k) == 0):
            a[i], a[partner] = y, x


@cuda.jit
def bitonic_sort(a):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    cuda.syncthreads()
    k = 2
    while k <= BLOCK:
        j = k // 2
        while j > 0:
            partner = t ^ j
            if partner > t:
                up = t & k == 0
                if (up and s[t] > s[partner]) or (not up and s[t] < s[partner]):
                    s[t], s[partner] = s[partner], s[t]
            cuda.syncthreads()
            j //= 2
        k *= 2
    a[i] = s[t]


@cuda.jit
def odd_even_sort(a):
    s = cuda.shared.array(24, int32)
    t = cuda.threadIdx.x
    n = cuda.blockDim.x
    s[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    for phase in range(n):
        if t % 2 == phase % 2 and t + 1 < n and s[t] > s[t + 1]:
            s[t], s[t + 1] = s[t + 1], s[t]
        cuda.syncthreads()
    a[cuda.grid(1)] = s[t]


@cuda.jit
def rank_sort(a, out):
    # a number's place is how many are smaller; of equals the first comes first
    s = cuda.shared.array(BLOCK, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    value = a[i]
    s[t] = value
    cuda.syncthreads()
    rank = 0
    for k in range(BLOCK):
        rank += s[k] < value or (s[k] == value and k < t)
    out[cuda.blockIdx.x * BLOCK + rank] = value


@cuda.jit
def merge_paths(a, b, out):
    # each number looks up its place in the other list
    i = cuda.grid(1)
    n = a.size
    if i < n + b.size:
        mine = a[i] if i < n else b[i - n]
        low = 0
        high = b.size if i < n else n
        while low < high:
            middle = (low + high) >> 1
            other = b[middle] if i < n else a[middle]
            if other < mine or (i >= n and other == mine):
                low = middle + 1
            else:
                high = middle
        out[(i if i < n else i - n) + low] = mine


def _scan(a, size):
    padded = np.zeros(-(-a.size // size) * size, a.dtype)
    padded[: a.size] = a
    return np.cumsum(padded.reshape(-1, size), 1, dtype=a.dtype).ravel()[: a.size]


def _blelloch(a, out):
    return {1: _scan(a, WIDE) - a}


def _segmented(a, flags, out):
    for b in range(0, a.size, BLOCK):
        total = 0
        for i in range(b, b + BLOCK):
            total = a[i] if flags[i] else total + a[i]
            out[i] = total
    return {2: out}


def _compact(a, out, counts):
    for b in range(counts.size):
        kept = a[b * BLOCK : (b + 1) * BLOCK]
        kept = kept[kept > 0]
        out[b * BLOCK : b * BLOCK + kept.size] = kept
        counts[b] = kept.size
    return {1: out, 2: counts}


def _run_flags(a, starts, ends):
    change = a[1:] != a[:-1]
    return {1: np.r_[True, change], 2: np.r_[change, True].astype(np.int8)}


def _bitonic_step(a, j, k):
    for i in range(a.size):
        p = i ^ j
        if i < p < a.size and (a[i] > a[p]) == (i & k == 0):
            a[i], a[p] = a[p], a[i]
    return {0: a}


ENTRIES = [
    Entry(
        hillis_steele,
        2,
        BLOCK,
        lambda r: (whole(r, 59), poison(59, np.int32)),
        lambda a, out: {1: _scan(a, BLOCK)},
    ),
    Entry(
        hillis_steele_two_rows,
        2,
        BLOCK,
        lambda r: (whole(r, 64, np.float32), poison(64)),
        lambda a, out: {1: _scan(a, BLOCK)},
        ulp=0,
    ),
    Entry(blelloch, 2, BLOCK, lambda r: (whole(r, 128), poison(128, np.int32)), _blelloch),
    Entry(
        block_scan_by_warps,
        2,
        160,
        lambda r: (whole(r, 320), poison(320, np.int32)),
        lambda a, out: {1: _scan(a, 160)},
        simulator=False,  # it has no shuffles
    ),
    Entry(
        add_offsets,
        3,
        BLOCK,
        lambda r: (whole(r, 75), whole(r, 3), poison(75, np.int32)),
        lambda partial, offsets, out: {2: partial + np.repeat(np.r_[0, offsets[:2]], BLOCK)[:75].astype(np.int32)},
    ),
    Entry(
        segmented_scan,
        2,
        BLOCK,
        lambda r: (whole(r, 64), (r.random(64) < 0.2).astype(np.int32), poison(64, np.int32)),
        _segmented,
    ),
    Entry(
        compact,
        2,
        BLOCK,
        lambda r: (whole(r, 64), poison(64, np.int32), poison(2, np.int32)),
        _compact,
    ),
    Entry(
        compact_by_ballot,
        3,
        BLOCK,
        lambda r: (normal(r, 96), poison(96), poison(3, np.int32)),
        _compact,
        ulp=0,
        simulator=False,  # it has no votes
    ),
    Entry(
        run_flags,
        2,
        64,
        lambda r: (np.sort(whole(r, 99, np.int8, 0, 20)), ~poison(99, np.bool_), poison(99, np.int8)),
        _run_flags,
    ),
    Entry(bitonic_step, 2, 64, lambda r: (normal(r, 128), 4, 16), _bitonic_step, ulp=0),
    Entry(
        bitonic_sort,
        2,
        BLOCK,
        lambda r: (normal(r, 64),),
        lambda a: {0: np.sort(a.reshape(-1, BLOCK), 1).ravel()},
        ulp=0,
    ),
    Entry(
        odd_even_sort,
        1,
        24,
        lambda r: (whole(r, 24),),
        lambda a: {0: np.sort(a)},
    ),
    Entry(
        rank_sort,
        2,
        BLOCK,
        lambda r: (whole(r, 64, low=0, high=20), poison(64, np.int32)),
        lambda a, out: {1: np.sort(a.reshape(-1, BLOCK), 1).ravel()},
    ),
    Entry(
        merge_paths,
        2,
        64,
        lambda r: (np.sort(whole(r, 55)), np.sort(whole(r, 60)), poison(115, np.int32)),
        lambda a, b, out: {2: np.sort(np.r_[a, b])},
    ),
]
