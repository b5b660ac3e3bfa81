"""What tutorials and numba's documentation show, in own words."""

import labkit  # isort: skip  # noqa: F401  # before numba

import math

import numpy as np
from numba import cuda, float32, int32

from .entry import Entry, f64, normal, poison, uniform, whole

BLUR = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]], np.float32) / 16
SIDE = 8
SIDE_AND_HALO = (SIDE + 2, SIDE + 2)
POINTS = 16
LENGTH = 20
DIAGONALS = (3, LENGTH + 1)


@cuda.jit
def add_one(a):
    # the first kernel of every course
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if i < a.size:
        a[i] += 1


@cuda.jit
def add_one_2d(a):
    x, y = cuda.grid(2)
    if x < a.shape[0] and y < a.shape[1]:
        a[x, y] += 1


@cuda.jit
def heat_step(u, out, k):
    # a step of the 1-D heat equation; the ends stay
    i = cuda.grid(1)
    if i == 0 or i == u.size - 1:
        out[i] = u[i]
    elif i < u.size:
        out[i] = u[i] + k * (u[i - 1] - 2 * u[i] + u[i + 1])


@cuda.jit
def heat_steps_shared(u, steps):
    # many steps by one block, two rows in turn
    s = cuda.shared.array((2, 50), float32)
    i = cuda.threadIdx.x
    n = u.size
    s[0, i] = u[i]
    for step in range(steps):
        cuda.syncthreads()
        now = step % 2
        if 0 < i < n - 1:
            s[1 - now, i] = float32(0.25) * s[now, i - 1] + float32(0.5) * s[now, i] + float32(0.25) * s[now, i + 1]
        else:
            s[1 - now, i] = s[now, i]
    u[i] = s[steps % 2, i]


@cuda.jit
def laplace_step(a, out, worst):
    # a Jacobi step over a tile with a rim, and the block's largest change
    s = cuda.shared.array(SIDE_AND_HALO, float32)
    changes = cuda.shared.array((SIDE, SIDE), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    x, y = cuda.grid(2)
    rows, columns = a.shape
    for j in range(ty, SIDE + 2, SIDE):
        for i in range(tx, SIDE + 2, SIDE):
            gy = cuda.blockIdx.y * SIDE + j - 1
            gx = cuda.blockIdx.x * SIDE + i - 1
            s[j, i] = a[gy, gx] if 0 <= gy < rows and 0 <= gx < columns else 0.0
    cuda.syncthreads()
    change = float32(0)
    if y < rows and x < columns:
        old = s[ty + 1, tx + 1]
        if 0 < y < rows - 1 and 0 < x < columns - 1:
            new = float32(0.25) * (s[ty, tx + 1] + s[ty + 2, tx + 1] + s[ty + 1, tx] + s[ty + 1, tx + 2])
        else:
            new = old
        out[y, x] = new
        change = abs(new - old)
    changes[ty, tx] = change
    cuda.syncthreads()
    if ty == 0:
        for j in range(1, SIDE):
            changes[0, tx] = max(changes[0, tx], changes[j, tx])
    cuda.syncthreads()
    if ty == 0 and tx == 0:
        top = changes[0, 0]
        for i in range(1, SIDE):
            top = max(top, changes[0, i])
        cuda.atomic.max(worst, 0, top)


@cuda.jit
def game_of_life(board, out):
    # the board is a torus
    x, y = cuda.grid(2)
    rows, columns = board.shape
    if y < rows and x < columns:
        neighbours = 0
        for dy in range(-1, 2):
            for dx in range(-1, 2):
                if dy != 0 or dx != 0:
                    neighbours += board[(y + dy + rows) % rows, (x + dx + columns) % columns]
        alive = board[y, x] == 1
        out[y, x] = 1 if neighbours == 3 or (alive and neighbours == 2) else 0


@cuda.jit(device=True)
def escape_time(cx, cy, most):
    x = y = 0.0
    for n in range(most):
        x, y = x * x - y * y + cx, 2.0 * x * y + cy
        if x * x + y * y >= 4.0:
            return n
    return most


@cuda.jit
def mandelbrot(left, top, step, out, most):
    startx, starty = cuda.grid(2)
    stepx, stepy = cuda.gridsize(2)
    for i in range(starty, out.shape[0], stepy):
        for j in range(startx, out.shape[1], stepx):
            out[i, j] = escape_time(left + j * step, top + i * step, most)


@cuda.jit
def mandelbrot_complex(re, im, out, most):
    i = cuda.grid(1)
    if i < out.size:
        c = complex(re[i], im[i])
        z = 0j
        n = 0
        while n < most and z.real * z.real + z.imag * z.imag < 4:
            z = z * z + c
            n += 1
        out[i] = n


@cuda.jit(device=True)
def normal_cdf(d):
    # Abramowitz and Stegun's polynomial
    k = 1.0 / (1.0 + 0.2316419 * math.fabs(d))
    poly = k * (0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))))
    tail = math.exp(-0.5 * d * d) / math.sqrt(2 * math.pi) * poly
    return 1.0 - tail if d > 0 else tail


@cuda.jit
def black_scholes(price, strike, years, rate, volatility, call, put):
    i = cuda.grid(1)
    if i >= price.size:
        return
    root = math.sqrt(years[i])
    d1 = (math.log(price[i] / strike[i]) + (rate + 0.5 * volatility**2) * years[i]) / (volatility * root)
    d2 = d1 - volatility * root
    discounted = strike[i] * math.exp(-rate * years[i])
    call[i] = price[i] * normal_cdf(d1) - discounted * normal_cdf(d2)
    put[i] = discounted * (1.0 - normal_cdf(d2)) - price[i] * (1.0 - normal_cdf(d1))


@cuda.jit
def n_body(positions, masses, soft, forces):
    # tiles of bodies pass through shared memory
    s = cuda.shared.array((POINTS, 4), float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    n = masses.size
    x = y = z = float32(0)
    if i < n:
        x, y, z = positions[i, 0], positions[i, 1], positions[i, 2]
    fx = fy = fz = float32(0)
    for first in range(0, n, POINTS):
        if first + t < n:
            for c in range(3):
                s[t, c] = positions[first + t, c]
            s[t, 3] = masses[first + t]
        cuda.syncthreads()
        for k in range(min(POINTS, n - first)):
            dx, dy, dz = s[k, 0] - x, s[k, 1] - y, s[k, 2] - z
            square = dx * dx + dy * dy + dz * dz + soft
            pull = s[k, 3] / (square * math.sqrt(square))
            fx += dx * pull
            fy += dy * pull
            fz += dz * pull
        cuda.syncthreads()
    if i < n:
        forces[i, 0], forces[i, 1], forces[i, 2] = fx, fy, fz


@cuda.jit
def sessions(users, times, gap, starts, counts):
    # a click long after the last one, or of another user, begins a session
    i = cuda.grid(1)
    if i < users.size:
        new = i == 0 or users[i] != users[i - 1] or times[i] - times[i - 1] > gap
        if new:
            cuda.atomic.add(counts, users[i], 1)
        # walk back to where the session began
        j = i
        while j > 0 and users[j] == users[j - 1] and times[j] - times[j - 1] <= gap:
            j -= 1
        starts[i] = j


@cuda.jit
def convolve_1d(a, kernel, out):
    i = cuda.grid(1)
    half = kernel.size // 2
    if i < a.size:
        total = 0.0
        for k in range(kernel.size):
            j = i + k - half
            if j < 0 or j >= a.size:
                continue
            total += a[j] * kernel[k]
        out[i] = total


@cuda.jit
def blur_constant(a, out):
    # weights in constant memory, edges repeated
    w = cuda.const.array_like(BLUR)
    x, y = cuda.grid(2)
    rows, columns = a.shape
    if y < rows and x < columns:
        total = float32(0)
        for dy in range(-1, 2):
            for dx in range(-1, 2):
                yy = min(max(y + dy, 0), rows - 1)
                xx = min(max(x + dx, 0), columns - 1)
                total += w[dy + 1, dx + 1] * a[yy, xx]
        out[y, x] = total


@cuda.jit
def stencil_2d_shared(a, out):
    # a tile and its rim
    s = cuda.shared.array(SIDE_AND_HALO, int32)
    tx = cuda.threadIdx.x + 1
    ty = cuda.threadIdx.y + 1
    x, y = cuda.grid(2)
    rows, columns = a.shape
    inside = y < rows and x < columns
    s[ty, tx] = a[y, x] if inside else 0
    if tx == 1:
        s[ty, 0] = a[y, x - 1] if x > 0 and y < rows else 0
        s[ty, SIDE + 1] = a[y, x + SIDE] if x + SIDE < columns and y < rows else 0
    if ty == 1:
        s[0, tx] = a[y - 1, x] if y > 0 and x < columns else 0
        s[SIDE + 1, tx] = a[y + SIDE, x] if y + SIDE < rows and x < columns else 0
    cuda.syncthreads()
    if inside:
        out[y, x] = 4 * s[ty, tx] - s[ty - 1, tx] - s[ty + 1, tx] - s[ty, tx - 1] - s[ty, tx + 1]


@cuda.jit
def grey_from_colours(picture, out):
    # uint8 in, uint8 out
    x, y = cuda.grid(2)
    if y < picture.shape[0] and x < picture.shape[1]:
        r, g, b = picture[y, x, 0], picture[y, x, 1], picture[y, x, 2]
        out[y, x] = (299 * r + 587 * g + 114 * b + 500) // 1000


@cuda.jit
def halve_picture(picture, out):
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        total = 0
        for dy in range(2):
            for dx in range(2):
                total += picture[2 * y + dy, 2 * x + dx]
        out[y, x] = total >> 2


@cuda.jit
def distances(a, b, out):
    # all pairs
    i, j = cuda.grid(2)
    if i < a.shape[0] and j < b.shape[0]:
        total = float32(0)
        for d in range(a.shape[1]):
            difference = a[i, d] - b[j, d]
            total += difference * difference
        out[i, j] = math.sqrt(total)


@cuda.jit
def nearest_centre(points, centres, labels, sums, counts):
    # a step of k-means
    i = cuda.grid(1)
    if i < points.shape[0]:
        best, label = math.inf, 0
        for c in range(centres.shape[0]):
            d = (points[i, 0] - centres[c, 0]) ** 2 + (points[i, 1] - centres[c, 1]) ** 2
            if d < best:
                best, label = d, c
        labels[i] = label
        cuda.atomic.add(counts, label, 1)
        for d in range(2):
            cuda.atomic.add(sums, (label, d), points[i, d])


@cuda.jit
def common_subsequence(a, b, out):
    # diagonals of the table, one after the other; three of them are kept
    s = cuda.shared.array(DIAGONALS, int32)
    t = cuda.threadIdx.x
    first = a[cuda.blockIdx.x]
    second = b[cuda.blockIdx.x]
    for k in range(3):
        s[k, t + 1] = 0
        if t == 0:
            s[k, 0] = 0
    cuda.syncthreads()
    # thread t makes row t + 1 of the table; on diagonal d its column is d - t
    for d in range(2 * LENGTH - 1):
        now, one, two = d % 3, (d + 2) % 3, (d + 1) % 3
        j = d - t
        if 0 <= j < LENGTH:
            if first[t] == second[j]:
                s[now, t + 1] = (s[two, t] if j > 0 else 0) + 1
            else:
                s[now, t + 1] = max(s[one, t], s[one, t + 1] if j > 0 else 0)
        cuda.syncthreads()
    if t == LENGTH - 1:
        out[cuda.blockIdx.x] = s[(2 * LENGTH - 2) % 3, LENGTH]


@cuda.jit
def pagerank_step(starts, targets, ranks, degrees, out):
    # rows of a sparse matrix
    i = cuda.grid(1)
    if i < out.size:
        total = 0.0
        for e in range(starts[i], starts[i + 1]):
            j = targets[e]
            total += ranks[j] / degrees[j]
        out[i] = 0.15 / out.size + 0.85 * total


@cuda.jit
def breadth_first_step(starts, targets, frontier, depth, level, changed):
    # of all threads that find a node one counts it
    i = cuda.grid(1)
    if i < frontier.size and frontier[i]:
        for e in range(starts[i], starts[i + 1]):
            if cuda.atomic.cas(depth, targets[e], -1, level) == -1:
                cuda.atomic.add(changed, 0, 1)


@cuda.jit
def primes(out):
    i = cuda.grid(1)
    if i < out.size:
        n = i + 2
        prime = True
        d = 2
        while d * d <= n:
            if n % d == 0:
                prime = False
                break
            d += 1
        out[i] = prime


@cuda.jit
def julia_rows(out, cr, ci, most):
    # a block a row, float32 throughout
    y = cuda.blockIdx.x
    for x in range(cuda.threadIdx.x, out.shape[1], cuda.blockDim.x):
        zr = float32(x) / float32(8) - float32(1)
        zi = float32(y) / float32(4) - float32(1)
        n = 0
        for _ in range(most):
            if zr * zr + zi * zi > float32(4):
                break
            zr, zi = zr * zr - zi * zi + cr, float32(2) * zr * zi + ci
            n += 1
        out[y, x] = n


def _heat(u, out, k):
    u = f64(u)
    after = u.copy()
    after[1:-1] += float(k) * (u[:-2] - 2 * u[1:-1] + u[2:])
    return {1: after}


def _heat_steps(u, steps):
    u = f64(u)
    for _ in range(steps):
        u[1:-1] = 0.25 * u[:-2] + 0.5 * u[1:-1] + 0.25 * u[2:]
    return {0: u}


def _laplace(a, out, worst):
    new = f64(a).copy()
    new[1:-1, 1:-1] = 0.25 * (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])
    return {1: new, 2: np.abs(new - a).max(keepdims=True)[0]}


def _life(board, out):
    turns = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0)]
    n = sum(np.roll(board, turn, (0, 1)).astype(int) for turn in turns)
    return {1: ((n == 3) | ((board == 1) & (n == 2))).astype(np.uint8)}


def _mandelbrot(left, top, step, out, most):
    for i, j in np.ndindex(out.shape):
        cx, cy = left + j * step, top + i * step
        x = y = 0.0
        out[i, j] = most
        for n in range(most):
            x, y = x * x - y * y + cx, 2.0 * x * y + cy
            if x * x + y * y >= 4.0:
                out[i, j] = n
                break
    return {3: out}


def _mandelbrot_complex(re, im, out, most):
    for i in range(out.size):
        z, c, n = 0j, complex(re[i], im[i]), 0
        while n < most and z.real * z.real + z.imag * z.imag < 4:
            z, n = z * z + c, n + 1
        out[i] = n
    return {2: out}


def _cdf(d):
    return np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))(d)


def _black_scholes(price, strike, years, rate, volatility, call, put):
    root = np.sqrt(years)
    d1 = (np.log(price / strike) + (rate + 0.5 * volatility**2) * years) / (volatility * root)
    d2 = d1 - volatility * root
    discounted = strike * np.exp(-rate * years)
    return {
        5: price * _cdf(d1) - discounted * _cdf(d2),
        6: discounted * _cdf(-d2) - price * _cdf(-d1),
    }


def _n_body(positions, masses, soft, forces):
    p = f64(positions)
    d = p[None, :, :] - p[:, None, :]
    square = (d * d).sum(2) + float(soft)
    return {3: (d * (f64(masses) / square**1.5)[:, :, None]).sum(1)}


def _clicks(rng):
    users = np.sort(whole(rng, 150, low=0, high=9))
    times = np.sort(rng.integers(0, 4000, 150))
    # times rise within a user's clicks
    return users, times, 60, poison(150, np.int32), np.zeros(9, np.int32)


def _sessions(users, times, gap, starts, counts):
    new = np.r_[True, (users[1:] != users[:-1]) | (times[1:] - times[:-1] > gap)]
    first = np.maximum.accumulate(np.where(new, np.arange(users.size), 0))
    return {3: first.astype(np.int32), 4: np.bincount(users[new], minlength=9).astype(np.int32)}


def _blur(a, out):
    p = np.pad(a, 1, "edge").astype(np.float64)
    rows, columns = a.shape
    parts = (BLUR[y, x] * p[y : y + rows, x : x + columns] for y in range(3) for x in range(3))
    return {1: sum(parts)}


def _stencil_2d(a, out):
    p = np.pad(a, 1)
    return {1: 4 * a - p[:-2, 1:-1] - p[2:, 1:-1] - p[1:-1, :-2] - p[1:-1, 2:]}


def _grey(picture, out):
    weighted = picture.astype(np.int64) @ np.array([299, 587, 114])
    return {1: ((weighted + 500) // 1000).astype(np.uint8)}


def _halved(picture, out):
    p = picture.astype(np.int64)
    rows, columns = 2 * out.shape[0], 2 * out.shape[1]
    p = p[:rows, :columns]
    return {1: ((p[::2, ::2] + p[1::2, ::2] + p[::2, 1::2] + p[1::2, 1::2]) >> 2).astype(np.uint8)}


def _distances(a, b, out):
    return {2: np.sqrt(((f64(a)[:, None] - f64(b)[None]) ** 2).sum(2))}


def _nearest(points, centres, labels, sums, counts):
    d = ((points[:, None] - centres[None]) ** 2).sum(2)
    nearest = d.argmin(1).astype(np.int32)
    np.add.at(sums, nearest, points)
    return {2: nearest, 3: sums, 4: np.bincount(nearest, minlength=len(centres)).astype(np.int32)}


def _common(a, b, out):
    for n, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        row = [0] * (LENGTH + 1)
        for p in x:
            before = row
            row = [0] * (LENGTH + 1)
            for j, q in enumerate(y):
                row[j + 1] = before[j] + 1 if p == q else max(before[j + 1], row[j])
        out[n] = row[-1]
    return {2: out}


def _graph(rng, n):
    """A random graph: each node's first edge, and the edges' targets."""
    edges = rng.random((n, n)) < 0.06
    np.fill_diagonal(edges, True)
    starts = np.r_[0, edges.sum(1).cumsum()].astype(np.int32)
    return starts, np.nonzero(edges)[1].astype(np.int32)


def _ranks(rng):
    starts, targets = _graph(rng, 90)
    degrees = np.bincount(targets, minlength=90).astype(np.int32)
    return starts, targets, uniform(rng, 90, np.float64), degrees, poison(90, np.float64)


def _pagerank(starts, targets, ranks, degrees, out):
    shares = ranks[targets] / degrees[targets]
    return {4: 0.15 / out.size + 0.85 * np.add.reduceat(shares, starts[:-1])}


def _depths(rng):
    starts, targets = _graph(rng, 90)
    depth = np.full(90, -1, np.int32)
    depth[:3] = 4
    return starts, targets, depth == 4, depth, np.int32(5), np.zeros(1, np.int32)


def _breadth_first(starts, targets, frontier, depth, level, changed):
    found = {int(j) for i in np.flatnonzero(frontier) for j in targets[starts[i] : starts[i + 1]] if depth[j] == -1}
    depth[sorted(found)] = level
    return {3: depth, 5: np.array([len(found)], np.int32)}


def _primes(out):
    return {0: np.array([all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(2, out.size + 2)])}


def _julia(out, cr, ci, most):
    f = np.float32
    for y, x in np.ndindex(out.shape):
        zr, zi, n = f(x) / f(8) - f(1), f(y) / f(4) - f(1), 0
        for _ in range(most):
            if zr * zr + zi * zi > f(4):
                break
            zr, zi, n = zr * zr - zi * zi + cr, f(2) * zr * zi + ci, n + 1
        out[y, x] = n
    return {0: out}


ENTRIES = [
    Entry(add_one, 2, 64, lambda r: (whole(r, 99),), lambda a: {0: a + 1}),
    Entry(add_one_2d, (2, 3), (8, 8), lambda r: (normal(r, (13, 21)),), lambda a: {0: a + np.float32(1)}, ulp=0),
    Entry(
        heat_step,
        3,
        64,
        lambda r: (uniform(r, 151), poison(151), np.float32(0.2)),
        _heat,
        tolerance=1e-6,
        cancels=True,
    ),
    Entry(heat_steps_shared, 1, 50, lambda r: (uniform(r, 50), 7), _heat_steps, tolerance=1e-6, ulp=16),
    Entry(
        laplace_step,
        (2, 2),
        (SIDE, SIDE),
        lambda r: (uniform(r, (13, 11)), poison((13, 11)), np.zeros(1, np.float32)),
        _laplace,
        tolerance=1e-6,
        cancels=True,
    ),
    Entry(
        game_of_life,
        (3, 2),
        (8, 8),
        lambda r: ((r.random((15, 21)) < 0.4).astype(np.uint8), poison((15, 21), np.uint8)),
        _life,
    ),
    Entry(
        mandelbrot,
        (2, 2),
        (8, 8),
        lambda r: (-2.0, -1.25, 0.125, poison((21, 25), np.int32), 30),
        _mandelbrot,
    ),
    Entry(
        mandelbrot_complex,
        2,
        64,
        lambda r: (r.uniform(-2, 1, 99), r.uniform(-1, 1, 99), poison(99, np.int32), 25),
        _mandelbrot_complex,
    ),
    Entry(
        black_scholes,
        2,
        64,
        lambda r: (
            r.uniform(20, 30, 99),
            r.uniform(20, 30, 99),
            r.uniform(0.5, 5, 99),
            0.02,
            0.3,
            poison(99, np.float64),
            poison(99, np.float64),
        ),
        _black_scholes,
        tolerance=1e-6,
        ulp=64,
        cancels=True,
    ),
    Entry(
        n_body,
        3,
        POINTS,
        lambda r: (normal(r, (41, 3)), uniform(r, 41), np.float32(0.1), poison((41, 3))),
        _n_body,
        tolerance=5e-6,
        ulp=64,
        cancels=True,
    ),
    Entry(sessions, 3, 64, _clicks, _sessions),
    Entry(
        convolve_1d,
        2,
        64,
        lambda r: (uniform(r, 99), uniform(r, 5), poison(99)),
        lambda a, kernel, out: {2: np.convolve(f64(a), f64(kernel)[::-1], "same")},
        tolerance=1e-6,
    ),
    Entry(
        blur_constant,
        (3, 2),
        (8, 8),
        lambda r: (uniform(r, (11, 19)), poison((11, 19))),
        _blur,
        tolerance=1e-6,
        ulp=8,
    ),
    Entry(
        stencil_2d_shared,
        (3, 2),
        (SIDE, SIDE),
        lambda r: (whole(r, (11, 19)), poison((11, 19), np.int32)),
        _stencil_2d,
    ),
    Entry(
        grey_from_colours,
        (3, 2),
        (8, 8),
        lambda r: (whole(r, (11, 19, 3), np.uint8, 0, 256), poison((11, 19), np.uint8)),
        _grey,
        simulator=False,  # NumPy's uint8 overflows at once
    ),
    Entry(
        halve_picture,
        (2, 1),
        (8, 8),
        lambda r: (whole(r, (11, 25), np.uint8, 0, 256), poison((5, 12), np.uint8)),
        _halved,
        simulator=False,  # NumPy's uint8 overflows at once
    ),
    Entry(
        distances,
        (2, 3),
        (8, 8),
        lambda r: (normal(r, (13, 3)), normal(r, (21, 3)), poison((13, 21))),
        _distances,
        tolerance=1e-6,
        ulp=16,
    ),
    Entry(
        nearest_centre,
        2,
        64,
        lambda r: (
            whole(r, (99, 2), np.float32),
            whole(r, (4, 2), np.float32),
            poison(99, np.int32),
            np.zeros((4, 2), np.float32),
            np.zeros(4, np.int32),
        ),
        _nearest,
        ulp=0,
    ),
    Entry(
        common_subsequence,
        2,
        LENGTH,
        lambda r: (
            whole(r, (2, LENGTH), np.int8, 0, 4),
            whole(r, (2, LENGTH), np.int8, 0, 4),
            poison(2, np.int32),
        ),
        _common,
    ),
    Entry(pagerank_step, 2, 64, _ranks, _pagerank, tolerance=1e-14, ulp=8),
    Entry(breadth_first_step, 2, 64, _depths, _breadth_first),
    Entry(primes, 3, 64, lambda r: (~np.arange(150).astype(np.bool_),), _primes),
    Entry(
        julia_rows,
        7,
        16,
        lambda r: (poison((7, 21), np.int32), np.float32(-0.5), np.float32(0.25), 6),
        _julia,
    ),
]
