"""Device functions: one's own and another module's, with several returns, tuples, arrays, barriers, shuffles."""

import labkit  # isort: skip  # noqa: F401  # before numba

import numpy as np
from numba import cuda, float32, int32

from . import helpers
from .entry import Entry, normal, poison, uniform, whole
from .helpers import block_sum, clamp, norm2, quotient_and_rest


@cuda.jit(device=True)
def collatz_steps(n, most):
    # returns from within a loop
    for k in range(most):
        if n == 1:
            return k
        n = n // 2 if n % 2 == 0 else 3 * n + 1
    return -1


@cuda.jit(device=True)
def my_element(a):
    # indices inside a device function
    return a[cuda.grid(1)]


@cuda.jit(device=True, inline="always")
def lerp(a, b, t):
    return a + (b - a) * t


@cuda.jit("int32(int32, int32)", device=True)
def typed_add(a, b):
    return a + b


@cuda.jit(device=True)
def corners(a, i):
    return a[i, 0], a[i, a.shape[1] - 1], float(a[i, 1])


@cuda.jit
def functions_by_attribute(a, out):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = helpers.square(a[i]) + helpers.clamp(a[i], -10, 10)


@cuda.jit
def functions_by_name(a, out):
    i = cuda.grid(1)
    if i < a.size:
        q, r = quotient_and_rest(a[i], 7)
        out[i, 0] = q
        out[i, 1] = r
        out[i, 2] = clamp(norm2(q, r), 5, 100)


@cuda.jit
def functions_of_arrays(a, b, out):
    i = cuda.grid(1)
    if i < a.shape[0]:
        out[i] = helpers.row_dot(a[i], b)


@cuda.jit
def functions_with_indices(a, out):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = my_element(a) + helpers.thread_number()


@cuda.jit
def functions_with_loops(n, out):
    i = cuda.grid(1)
    if i < n.size:
        out[i] = typed_add(collatz_steps(n[i], 60), int32(1000))


@cuda.jit
def functions_with_tuples(a, out):
    i = cuda.grid(1)
    if i < a.shape[0]:
        first, last, second = corners(a, i)
        out[i] = lerp(first, last, float32(0.25)) + second


@cuda.jit
def functions_that_swap(a):
    # a device function writes to shared memory
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    s[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    if t % 2 == 0:
        helpers.swap_if_greater(s, t, t + 1)
    cuda.syncthreads()
    a[cuda.grid(1)] = s[t]


@cuda.jit
def functions_with_barriers(a, out):
    # called twice: the second call must not meet the first one's scratch
    scratch = cuda.shared.array(32, int32)
    i = cuda.grid(1)
    total = block_sum(a[i], scratch)
    squares = block_sum(a[i] * a[i], scratch)
    out[i] = squares - total


@cuda.jit
def functions_with_barriers_in_a_loop(a, out):
    scratch = cuda.shared.array(16, float32)
    t = cuda.threadIdx.x
    for row in range(cuda.blockIdx.x, a.shape[0], cuda.gridDim.x):
        value = a[row, t] if t < a.shape[1] else float32(0)
        total = helpers.block_sum(value, scratch)
        if t < a.shape[1]:
            out[row, t] = value - total


@cuda.jit
def functions_with_shuffles(a, out):
    i = cuda.grid(1)
    total = helpers.warp_sum(a[i])
    if cuda.laneid == 0:
        out[i // 32] = total


@cuda.jit
def functions_with_both(a, out):
    partial = cuda.shared.array(32, float32)
    total = helpers.block_warp_sum(a[cuda.grid(1)], partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total


@cuda.jit
def functions_in_3d_blocks(a, out):
    # the block's threads in one row, whatever its shape
    s = cuda.shared.array(24, int32)
    t = helpers.thread_number()
    n = cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z
    s[t] = a[cuda.blockIdx.x, cuda.threadIdx.z, cuda.threadIdx.y, cuda.threadIdx.x]
    cuda.syncthreads()
    out[cuda.blockIdx.x, t] = s[n - 1 - t]


@helpers.jit_with(max_registers=40, launch_bounds=128, lineinfo=True)
def jit_options(a, out):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = helpers.square(a[i]) - 1


def _by_name(a, out):
    q, r = a // 7, a % 7
    return {1: np.stack([q, r, np.clip(q * q + r * r, 5, 100)], 1).astype(np.int32)}


def _collatz(n, out):
    for i, k in enumerate(n.tolist()):
        steps = 0
        while k != 1 and steps < 60:
            k, steps = (k // 2 if k % 2 == 0 else 3 * k + 1), steps + 1
        out[i] = 1000 + (steps if steps < 60 else -1)
    return {1: out}


def _barriers(a, out):
    b = a.reshape(-1, 32)
    return {1: np.repeat((b * b).sum(1) - b.sum(1), 32).astype(np.int32)}


ENTRIES = [
    Entry(
        functions_by_attribute,
        2,
        64,
        lambda r: (whole(r, 99), poison(99, np.int32)),
        lambda a, out: {1: a * a + np.clip(a, -10, 10)},
    ),
    Entry(functions_by_name, 2, 64, lambda r: (whole(r, 99), poison((99, 3), np.int32)), _by_name),
    Entry(
        functions_of_arrays,
        2,
        32,
        lambda r: (whole(r, (43, 5), np.float32), whole(r, 5, np.float32), poison(43)),
        lambda a, b, out: {2: a @ b},
        ulp=0,
    ),
    Entry(
        functions_with_indices,
        3,
        40,
        lambda r: (whole(r, 101), poison(101, np.int32)),
        lambda a, out: {1: a + (np.arange(101) % 40).astype(np.int32)},
    ),
    Entry(functions_with_loops, 2, 64, lambda r: (whole(r, 99, low=1, high=99), poison(99, np.int32)), _collatz),
    Entry(
        functions_with_tuples,
        2,
        64,
        lambda r: (uniform(r, (99, 4)), poison(99)),
        lambda a, out: {1: (0.75 * a[:, 0] + 0.25 * a[:, 3] + a[:, 1]).astype(np.float64)},
        tolerance=1e-6,
    ),
    Entry(
        functions_that_swap,
        2,
        32,
        lambda r: (whole(r, 64),),
        lambda a: {0: np.sort(a.reshape(-1, 2), 1).ravel()},
    ),
    Entry(functions_with_barriers, 2, 32, lambda r: (whole(r, 64), poison(64, np.int32)), _barriers),
    Entry(
        functions_with_barriers_in_a_loop,
        2,
        16,
        lambda r: (whole(r, (5, 13), np.float32), poison((5, 13))),
        lambda a, out: {1: a - a.sum(1, keepdims=True)},
        ulp=0,
    ),
    Entry(
        functions_in_3d_blocks,
        2,
        (4, 3, 2),
        lambda r: (whole(r, (2, 2, 3, 4)), poison((2, 24), np.int32)),
        lambda a, out: {1: a.reshape(2, 24)[:, ::-1]},
    ),
    Entry(
        jit_options,
        2,
        64,
        lambda r: (whole(r, 99), poison(99, np.int32)),
        lambda a, out: {1: a * a - 1},
    ),
    Entry(
        functions_with_shuffles,
        3,
        64,
        lambda r: (normal(r, 192, np.float64), poison(6, np.float64)),
        lambda a, out: {1: a.reshape(-1, 32).sum(1)},
        tolerance=1e-14,
        ulp=0,
        simulator=False,  # it has no shuffles
    ),
    Entry(
        functions_with_both,
        3,
        96,
        lambda r: (uniform(r, 288), poison(3)),
        lambda a, out: {1: a.reshape(3, 96).sum(1, dtype=np.float64)},
        tolerance=1e-6,
        ulp=0,
        simulator=False,  # it has no shuffles
    ),
]
