"""Device functions that kernels of other modules call, by attribute and by name."""

import labkit  # isort: skip  # noqa: F401  # before numba

from numba import cuda, float32

FULL = 0xFFFFFFFF


def jit_with(**options):
    """cuda.jit with options that the simulator's does not know."""
    try:
        return cuda.jit(**options)
    except TypeError:
        return cuda.jit


@cuda.jit(device=True)
def square(x):
    return x * x


@cuda.jit(device=True)
def clamp(x, low, high):
    if x < low:
        return low
    if x > high:
        return high
    return x


@cuda.jit(device=True)
def quotient_and_rest(a, b):
    return a // b, a % b


@cuda.jit(device=True)
def norm2(x, y):
    # calls another device function
    return square(x) + square(y)


@cuda.jit(device=True)
def row_dot(a, b):
    total = float32(0)
    for k in range(a.shape[0]):
        total += a[k] * b[k]
    return total


@cuda.jit(device=True)
def thread_number():
    return cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)


@cuda.jit(device=True)
def swap_if_greater(a, i, j):
    if a[i] > a[j]:
        a[i], a[j] = a[j], a[i]


@cuda.jit(device=True)
def block_sum(value, scratch):
    # barriers inside a device function
    t = cuda.threadIdx.x
    scratch[t] = value
    cuda.syncthreads()
    width = cuda.blockDim.x // 2
    while width > 0:
        if t < width:
            scratch[t] += scratch[t + width]
        cuda.syncthreads()
        width //= 2
    total = scratch[0]
    cuda.syncthreads()
    return total


@cuda.jit(device=True)
def warp_sum(value):
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(FULL, value, offset)
        offset //= 2
    return value


@cuda.jit(device=True)
def block_warp_sum(value, scratch):
    # shuffles and barriers; the first thread gets the sum
    warp = cuda.threadIdx.x // 32
    lane = cuda.threadIdx.x % 32
    value = warp_sum(value)
    if lane == 0:
        scratch[warp] = value
    cuda.syncthreads()
    if warp == 0:
        value = scratch[lane] if lane < cuda.blockDim.x // 32 else float32(0)
        value = warp_sum(value)
    cuda.syncthreads()
    return value
