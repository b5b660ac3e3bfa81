"""Loops, branches and assignments: what Python allows between two barriers."""

import labkit  # isort: skip  # noqa: F401  # before numba

import numpy as np
from numba import cuda, float32, int32

from .entry import Entry, normal, poison, whole

NOTHING = -1


@cuda.jit
def while_break_continue(a, out):
    i = cuda.grid(1)
    if i < a.size:
        n = a[i]
        odd = 0
        rounds = 0
        while True:
            rounds += 1
            if n <= 1 or rounds > 50:
                break
            if n % 2 == 0:
                n //= 2
                continue
            odd += 1
            n = 3 * n + 1
        out[i] = 100 * rounds + odd


@cuda.jit
def for_else(a, out):
    # the else belongs to the loop: no divisor was found
    i = cuda.grid(1)
    if i < a.size:
        for d in range(2, 12):
            if d * d > a[i]:
                continue
            if a[i] % d == 0:
                out[i] = d
                break
        else:
            out[i] = NOTHING


@cuda.jit
def while_else(a, out):
    i = cuda.grid(1)
    if i < a.size:
        k = 0
        while k < 6:
            if a[i] >> k & 1:
                out[i] = k
                break
            k += 1
        else:
            out[i] = 99


@cuda.jit
def return_from_nested_loops(a, wanted, out):
    i = cuda.grid(1)
    if i >= a.shape[0]:
        return
    for y in range(a.shape[1]):
        for x in range(a.shape[2]):
            if a[i, y, x] == wanted:
                out[i] = 10 * y + x
                return
    out[i] = -1


@cuda.jit
def short_circuits(a, limit, out):
    # the second half must not be looked at where the first decides
    i = cuda.grid(1)
    n = a.size
    if i < n and a[i] > limit:
        out[i] = 2
    elif i < n:
        out[i] = 0
    if (i + 1 < n and a[i + 1] > a[i]) or i == 0:
        out[i] += 10
    if not (i >= n or (i > 0 and a[i - 1] > 0)):
        out[i] += 100


@cuda.jit
def chained_comparisons(a, low, high, out):
    i = cuda.grid(1)
    if 0 < i + 1 <= a.size:
        if low <= a[i] < high:
            out[i] = 1
        elif low - 5 < a[i] < low != a[i]:
            out[i] = 2
        else:
            out[i] = 3


@cuda.jit
def ladder(a, out):
    i = cuda.grid(1)
    if i < a.size:
        v = a[i]
        if v < -20:
            if v % 2:
                out[i] = 1
            else:
                out[i] = 2
        elif v == 0:
            pass
        elif v < 20:
            out[i] = 3 if v > 5 else 4 if v > -5 else 5
        else:
            out[i] = 6
        if v == 0:
            out[i] = 7


@cuda.jit
def augmented_assignments(a, out):
    i = cuda.grid(1)
    if i < a.size:
        v = a[i]
        out[i, 0] += v
        out[i, 1] -= v
        out[i, 2] *= v
        out[i, 3] //= 3
        out[i, 4] %= 7
        out[i, 5] <<= 2
        out[i, 6] >>= 1
        out[i, 7] |= v
        out[i, 8] &= v
        out[i, 9] ^= v
        out[i, i % 10] += i


@cuda.jit
def ranges(n, out):
    i = cuda.grid(1)
    if i < n.size:
        stop = n[i]
        a = 0
        for k in range(stop):
            a += k
        b = 0
        for k in range(3, stop):
            b = 2 * b + k
        c = 0
        for k in range(stop, -3, -4):
            c = 3 * c - k
        d = 0
        for k in range(1, stop, 5):
            d += k * k
        last = -7
        for last in range(stop):  # noqa: B007
            pass
        out[i, 0] = a
        out[i, 1] = b % 10007
        out[i, 2] = c % 10007
        out[i, 3] = d
        out[i, 4] = last


@cuda.jit
def loop_counter_changed_inside(out):
    # assigning to the counter does not change the loop
    i = cuda.grid(1)
    total = 0
    for k in range(6):
        total += k
        k += 10
        total += k
    out[i] = total + i


@cuda.jit
def tuples(a, scales, out):
    # a tuple as argument, made, indexed, counted, unpacked, nested
    i = cuda.grid(1)
    if i < a.size:
        first, second, third = scales
        pair = (a[i] * first, a[i] - second)
        low, high = pair if pair[0] < pair[1] else (pair[1], pair[0])
        total = 0.0
        for s in scales:
            total += s
        x, (y, z) = low, (high, third)
        out[i, 0] = x
        out[i, 1] = y
        out[i, 2] = z * len(scales)
        out[i, 3] = total + scales[2]


@cuda.jit
def swaps(a, b, out):
    # Euclid; three at once; two names for one number
    i = cuda.grid(1)
    if i < a.size:
        x, y = a[i], b[i]
        while y:
            x, y = y, x % y
        p, q, r = 1, 2, x
        p, q, r = r, p, q
        s = t = p + 1
        s += 1
        out[i, 0] = x
        out[i, 1] = 100 * p + 10 * q + r
        out[i, 2] = s - t


@cuda.jit
def swap_elements(a):
    # in place
    i = cuda.grid(1)
    n = a.shape[0]
    if i < n // 2:
        a[i, 0], a[n - 1 - i, 0] = a[n - 1 - i, 0], a[i, 0]
        a[i, 1], a[i, 2] = a[i, 2] + 1, a[i, 1] - 1


@cuda.jit
def iterate_arrays(a, b, out):
    i = cuda.grid(1)
    if i < a.shape[0]:
        total = 0
        for k, v in enumerate(a[i]):
            total += k * v
        for v, w in zip(a[i], b):  # noqa: B905
            total += v * w
        out[i] = total


@cuda.jit
def binary_search(table, wanted, out):
    i = cuda.grid(1)
    if i < wanted.size:
        low = 0
        high = table.size
        while low < high:
            middle = (low + high) // 2
            if table[middle] < wanted[i]:
                low = middle + 1
            else:
                high = middle
        out[i] = low


@cuda.jit
def insertion_sort(a):
    # a thread a row, in an array of its own
    mine = cuda.local.array(9, float32)
    i = cuda.grid(1)
    if i < a.shape[0]:
        for j in range(9):
            value = a[i, j]
            k = j
            while k > 0 and mine[k - 1] > value:
                mine[k] = mine[k - 1]
                k -= 1
            mine[k] = value
        for j in range(9):
            a[i, j] = mine[j]


@cuda.jit
def unequal_loops_between_barriers(a, out):
    # each thread makes as many rounds as it needs; then all meet
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    steps = 0
    n = a[i]
    while n > 0:
        if n % 5 == 3:
            n -= 3
            continue
        n //= 2
        steps += 1
        if steps > 4:
            break
    s[t] = steps
    cuda.syncthreads()
    total = 0
    for k in range(t + 1):
        if s[k] == 2:
            continue
        total += s[k]
    cuda.syncthreads()
    s[31 - t] = total
    cuda.syncthreads()
    out[i] = s[t] if s[t] % 2 == 0 else -s[t]


@cuda.jit
def returns_after_barriers(a, out):
    # some leave after the first barrier, some after the second
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    cuda.syncthreads()
    if t % 4 == 3:
        out[i] = s[31 - t]
        return
    value = s[t + 1]
    cuda.syncthreads()
    for k in range(3):
        if t % 4 == k:
            s[t] = value + k
            if k == 1:
                out[i] = -1
                return
    cuda.syncthreads()
    out[i] = s[t]


@cuda.jit
def uniform_return(a, out):
    # whole blocks leave between two barriers
    s = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    cuda.syncthreads()
    if s[0] < 0:
        out[i] = 0
        return
    for step in range(1, 4):
        value = s[(t + step) % 16]
        cuda.syncthreads()
        s[t] = value - step
        cuda.syncthreads()
        if s[3] % 2 == 0:
            out[i] = s[15 - t] + step
            return
    out[i] = s[t]


@cuda.jit
def for_else_with_barriers(a, out):
    s = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    cuda.syncthreads()
    for step in range(4):
        value = s[t ^ (1 << step)]
        cuda.syncthreads()
        s[t] = max(s[t], value)
        cuda.syncthreads()
        if s[0] > 40:
            result = 1000 + step
            break
    else:
        cuda.syncthreads()
        result = s[15 - t]
    out[i] = result


@cuda.jit
def state_machine(text, out):
    # counts words; a flag lives across rounds
    row = cuda.grid(1)
    if row < text.shape[0]:
        inside = False
        words = 0
        for j in range(text.shape[1]):
            letter = text[row, j] != 32
            if letter and not inside:
                words += 1
            inside = letter
        out[row] = words


@cuda.jit
def names_bound_in_branches(a, mode, out):
    # the same name holds an integer here and a float there
    i = cuda.grid(1)
    if i < a.size:
        if mode == 0:
            scale = 2
        elif mode == 1:
            scale = 0.5
        else:
            scale = a[i]
        value = a[i]
        if value > 0:
            value = value * scale
        out[i] = value


def _while(a, out):
    for i, n in enumerate(a.tolist()):
        odd = rounds = 0
        while True:
            rounds += 1
            if n <= 1 or rounds > 50:
                break
            odd, n = (odd, n // 2) if n % 2 == 0 else (odd + 1, 3 * n + 1)
        out[i] = 100 * rounds + odd
    return {1: out}


def _for_else(a, out):
    out[:] = [next((d for d in range(2, 12) if d * d <= v and v % d == 0), -1) for v in a.tolist()]
    return {1: out}


def _while_else(a, out):
    out[:] = [next((k for k in range(6) if v >> k & 1), 99) for v in a.tolist()]
    return {1: out}


def _nested_return(a, wanted, out):
    for i, plane in enumerate(a):
        hits = np.argwhere(plane == wanted)
        out[i] = 10 * hits[0, 0] + hits[0, 1] if len(hits) else -1
    return {2: out}


def _short_circuits(a, limit, out):
    value = np.where(a > limit, 2, 0)
    value[:-1] += 10 * (a[1:] > a[:-1])
    value[0] += 10 * (a[1] <= a[0])
    value[1:] += 100 * (a[:-1] <= 0)
    value[0] += 100
    return {2: value.astype(np.int32)}


def _chained(a, low, high, out):
    return {3: np.select([(a >= low) & (a < high), (a > low - 5) & (a < low)], [1, 2], 3).astype(np.int32)}


def _ladder(a, out):
    conditions = [(a < -20) & (a % 2 == 1), a < -20, a == 0, (a < 20) & (a > 5), (a < 20) & (a > -5), a < 20]
    return {1: np.select(conditions, [1, 2, 7, 3, 4, 5], 6).astype(np.int32)}


def _augmented(a, out):
    before = out.T
    rows = [before[0] + a, before[1] - a, before[2] * a, before[3] // 3, before[4] % 7, before[5] << 2, before[6] >> 1]
    after = np.stack([*rows, before[7] | a, before[8] & a, before[9] ^ a], 1)
    i = np.arange(len(a))
    after[i, i % 10] += i
    return {1: after}


def _ranges(n, out):
    for i, stop in enumerate(n.tolist()):
        b = c = 0
        for k in range(3, stop):
            b = 2 * b + k
        for k in range(stop, -3, -4):
            c = 3 * c - k
        out[i] = sum(range(stop)), b % 10007, c % 10007, sum(k * k for k in range(1, stop, 5)), max(stop - 1, -7)
        out[i, 4] = stop - 1 if stop > 0 else -7
    return {1: out}


def _tuples(a, scales, out):
    one, two = a * scales[0], a - scales[1]
    rest = np.full_like(a, 3 * scales[2]), np.full_like(a, sum(scales) + scales[2])
    return {2: np.stack([np.minimum(one, two), np.maximum(one, two), *rest], 1)}


def _swaps(a, b, out):
    g = np.gcd(a, b)
    return {2: np.stack([g, 100 * g + 12, 0 * g + 1], 1).astype(np.int32)}


def _swap_elements(a):
    after = a.copy()
    after[:, 0] = after[::-1, 0].copy()
    half = len(a) // 2
    after[:half, 1], after[:half, 2] = a[:half, 2] + 1, a[:half, 1] - 1
    return {0: after}


def _unequal(a, out):
    for b, block in enumerate(a.reshape(-1, 32).tolist()):
        steps = []
        for n in block:
            k = 0
            while n > 0:
                if n % 5 == 3:
                    n -= 3
                    continue
                n, k = n // 2, k + 1
                if k > 4:
                    break
            steps.append(k)
        totals = np.cumsum([0 if k == 2 else k for k in steps])[::-1]
        out[32 * b : 32 * b + 32] = np.where(totals % 2 == 0, totals, -totals)
    return {1: out}


def _returns(a, out):
    b = a.reshape(-1, 32)
    t = np.arange(32)
    k = t % 4
    return {1: np.select([k == 3, k == 1], [b[:, 31 - t], -1], b[:, (t + 1) % 32] + k).astype(np.int32).ravel()}


def _uniform_return(a, out):
    for b, s in enumerate(a.reshape(-1, 16)):
        result = 0 * s
        if s[0] >= 0:
            for step in range(1, 4):
                s = np.roll(s, -step) - step
                result = s
                if s[3] % 2 == 0:
                    result = s[::-1] + step
                    break
        out[16 * b : 16 * b + 16] = result
    return {1: out}


def _for_else_barriers(a, out):
    for b, s in enumerate(a.reshape(-1, 16)):
        for step in range(4):
            s = np.maximum(s, s[np.arange(16) ^ (1 << step)])
            if s[0] > 40:
                out[16 * b : 16 * b + 16] = 1000 + step
                break
        else:
            out[16 * b : 16 * b + 16] = s[::-1]
    return {1: out}


def _words(text, out):
    letters = text != 32
    starts = letters.copy()
    starts[:, 1:] &= ~letters[:, :-1]
    return {1: starts.sum(1).astype(np.int32)}


def _texts(rng):
    return np.where(rng.random((70, 23)) < 0.4, 32, 97).astype(np.uint8), poison(70, np.int32)


ENTRIES = [
    Entry(while_break_continue, 2, 64, lambda r: (whole(r, 99, low=-2, high=99), poison(99, np.int32)), _while),
    Entry(for_else, 2, 64, lambda r: (whole(r, 99, low=2, high=140), poison(99, np.int32)), _for_else),
    Entry(while_else, 2, 64, lambda r: (whole(r, 99, low=0, high=4) << 4, poison(99, np.int32)), _while_else),
    Entry(
        return_from_nested_loops,
        2,
        32,
        lambda r: (whole(r, (50, 4, 5), low=0, high=15), 3, poison(50, np.int32)),
        _nested_return,
    ),
    Entry(short_circuits, 3, 64, lambda r: (whole(r, 128), 10, poison(128, np.int32)), _short_circuits),
    Entry(chained_comparisons, 2, 64, lambda r: (whole(r, 99), -10, 20, poison(99, np.int32)), _chained),
    Entry(ladder, 2, 64, lambda r: (whole(r, 99), poison(99, np.int32)), _ladder),
    Entry(
        augmented_assignments,
        2,
        64,
        lambda r: (whole(r, 99, low=1), whole(r, (99, 10), low=-500, high=500)),
        _augmented,
    ),
    Entry(ranges, 2, 32, lambda r: (whole(r, 50, np.int64, -4, 22), poison((50, 5), np.int64)), _ranges),
    Entry(
        loop_counter_changed_inside,
        2,
        16,
        lambda r: (poison(32, np.int32),),
        lambda out: {0: (90 + np.arange(32)).astype(np.int32)},
    ),
    Entry(
        tuples,
        2,
        64,
        lambda r: (whole(r, 99, np.float64), (2.5, -1.0, 0.25), poison((99, 4), np.float64)),
        _tuples,
        ulp=0,
    ),
    Entry(
        swaps,
        2,
        64,
        lambda r: (whole(r, 99, low=1, high=200), whole(r, 99, low=1, high=200), poison((99, 3), np.int32)),
        _swaps,
    ),
    Entry(swap_elements, 2, 32, lambda r: (whole(r, (81, 3)),), _swap_elements),
    Entry(
        iterate_arrays,
        2,
        32,
        lambda r: (whole(r, (41, 7)), whole(r, 7), poison(41, np.int32)),
        lambda a, b, out: {2: (a @ (b + np.arange(7))).astype(np.int32)},
    ),
    Entry(
        binary_search,
        2,
        64,
        lambda r: (np.sort(whole(r, 60)), whole(r, 99), poison(99, np.int32)),
        lambda table, wanted, out: {2: np.searchsorted(table, wanted).astype(np.int32)},
    ),
    Entry(insertion_sort, 2, 16, lambda r: (normal(r, (27, 9)),), lambda a: {0: np.sort(a, 1)}, ulp=0),
    Entry(
        unequal_loops_between_barriers,
        2,
        32,
        lambda r: (whole(r, 64, low=0, high=99), poison(64, np.int32)),
        _unequal,
    ),
    Entry(returns_after_barriers, 2, 32, lambda r: (whole(r, 64), poison(64, np.int32)), _returns),
    Entry(uniform_return, 4, 16, lambda r: (whole(r, 64), poison(64, np.int32)), _uniform_return),
    Entry(
        for_else_with_barriers,
        3,
        16,
        lambda r: (np.concatenate([whole(r, 32, high=49), whole(r, 16, high=30)]), poison(48, np.int32)),
        _for_else_barriers,
    ),
    Entry(state_machine, 2, 64, _texts, _words),
    Entry(
        names_bound_in_branches,
        2,
        64,
        lambda r: (whole(r, 99), 1, poison(99, np.float64)),
        lambda a, mode, out: {2: np.where(a > 0, a * 0.5, a)},
        ulp=0,
    ),
]
