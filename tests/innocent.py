"""Right kernels that come close to the faults of `faults.py`: `labkit.cpu` must say nothing about them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import labkit  # noqa: F401  # isort: skip  # before numba

import numpy as np
from faults import labels, normal, zeros
from numba import cuda, float32, int8, int32

BLOCK = 64
DOUBLE = 2 * BLOCK
HALO = BLOCK + 2
TILE = 16
PADDED = TILE + 1
BINS = 8
FULL = 0xFFFFFFFF


@dataclass(frozen=True)
class Innocent:
    """A kernel and a launch, both right."""

    kernel: object
    grid: int | tuple
    block: int | tuple
    arguments: Callable[[np.random.Generator], tuple]  # fresh arrays and scalars
    shared: int = 0  # dynamic shared memory in bytes

    @property
    def name(self) -> str:
        return self.kernel.py_func.__name__


INNOCENT: list[Innocent] = []


def seed(kernel, grid, block, arguments, **options):
    INNOCENT.append(Innocent(kernel, grid, block, arguments, **options))


# --- barriers -------------------------------------------------------------------------------------------------


# threads that returned are not missed at a barrier
@cuda.jit
def pairs_after_return(x, out):
    tile = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if i >= x.size:
        return
    tile[t] = x[i]
    cuda.syncthreads()
    out[i] = tile[t ^ 1]


seed(pairs_after_return, 2, BLOCK, lambda rng: (normal(rng, 100), zeros(100)))


# a barrier in a branch that a block takes as a whole
@cuda.jit
def reverse_in_even_blocks(x, out):
    tile = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if cuda.blockIdx.x % 2 == 0:
        tile[t] = x[i]
        cuda.syncthreads()
        out[i] = tile[BLOCK - 1 - t]
    else:
        out[i] = x[i]


seed(reverse_in_even_blocks, 3, BLOCK, lambda rng: (normal(rng, 192), zeros(192)))


# every block has as many barriers as its number says
@cuda.jit
def rotate_by_block_number(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    for _ in range(cuda.blockIdx.x):
        cuda.syncthreads()
        value = s[(t + 1) % BLOCK]
        cuda.syncthreads()
        s[t] = value
    out[i] = s[t]


seed(rotate_by_block_number, 3, BLOCK, lambda rng: (normal(rng, 192), zeros(192)))


# the loop ends for all threads at once, because what they compare is shared and protected by a barrier on each side
@cuda.jit
def halve_until_small(x, limit, out):
    s = cuda.shared.array(BLOCK, float32)
    top = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    while True:
        cuda.syncthreads()
        if t == 0:
            top[0] = float32(0)
            for k in range(BLOCK):
                top[0] = max(top[0], abs(s[k]))
        cuda.syncthreads()
        if top[0] < limit:
            break
        s[t] *= float32(0.5)
    out[i] = s[t]


seed(halve_until_small, 2, BLOCK, lambda rng: (normal(rng, 128), np.float32(0.25), zeros(128)))


# a barrier that counts, where all threads come to it
@cuda.jit
def count_positive(x, out):
    i = cuda.grid(1)
    positive = 0
    if i < x.size and x[i] > 0:
        positive = 1
    kept = cuda.syncthreads_count(positive)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = kept


seed(count_positive, 2, BLOCK, lambda rng: (normal(rng, 100), zeros(2, dtype=np.int32)))


# one warp works between two barriers, and the other one waits
@cuda.jit
def first_warp_adds_up(x, out):
    s = cuda.shared.array(BLOCK, float32)
    total = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    if t < 32:
        s[t] += s[t + 32]
        cuda.syncwarp()
        if t == 0:
            total[0] = float32(0)
            for k in range(32):
                total[0] += s[k]
    cuda.syncthreads()
    out[i] = x[i] / total[0]


seed(first_warp_adds_up, 2, BLOCK, lambda rng: (normal(rng, 128) + np.float32(9), zeros(128)))


# --- shared memory --------------------------------------------------------------------------------------------


# two buffers, one barrier per step in the right place
@cuda.jit
def pair_products_double_buffer(x, out):
    tiles = cuda.shared.array((2, BLOCK), float32)
    t = cuda.threadIdx.x
    total = float32(0)
    tiles[0, t] = x[t]
    steps = x.size // BLOCK
    for k in range(steps):
        cuda.syncthreads()
        now = k % 2
        if k + 1 < steps:
            tiles[1 - now, t] = x[(k + 1) * BLOCK + t]
        total += tiles[now, t] * tiles[now, (t + 1) % BLOCK]
    out[t] = total


seed(pair_products_double_buffer, 1, BLOCK, lambda rng: (normal(rng, 320), zeros(BLOCK)))


# Hillis-Steele scan between two halves of one array
@cuda.jit
def scan_double_buffer(x, out):
    s = cuda.shared.array(DOUBLE, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    old = 0
    new = BLOCK
    s[t] = x[i]
    cuda.syncthreads()
    d = 1
    while d < BLOCK:
        s[new + t] = s[old + t]
        if t >= d:
            s[new + t] += s[old + t - d]
        cuda.syncthreads()
        old, new = new, old
        d *= 2
    out[i] = s[old + t]


seed(scan_double_buffer, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# the last steps of a reduction stay within one warp, which syncwarp orders
@cuda.jit
def block_sum_warp_tail(x, out):
    s = cuda.shared.array(DOUBLE, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t < 64:
        s[t] += s[t + 64]
    cuda.syncthreads()
    if t < 32:
        o = 32
        while o > 0:
            if t < o:
                s[t] += s[t + o]
            cuda.syncwarp()
            o //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


seed(block_sum_warp_tail, 2, 128, lambda rng: (normal(rng, 256), zeros(2)))


# the same with all lanes adding: what a lane reads is in a register before any lane writes
@cuda.jit
def block_sum_warp_tail_all_lanes(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t < 32:
        o = 32
        while o > 0:
            value = s[t] + s[t + o]
            cuda.syncwarp()
            s[t] = value
            cuda.syncwarp()
            o //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


seed(block_sum_warp_tail_all_lanes, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(2)))


# each warp reverses its own part of the tile: no other warp takes part, so syncwarp is enough
@cuda.jit
def reverse_within_warps(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    cuda.syncwarp()
    out[i] = s[t ^ 31]


seed(reverse_within_warps, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# a thread reads only what it has written itself: no barrier is needed
@cuda.jit
def own_elements_only(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    s[t] *= s[t]
    out[i] = s[t]
    out[i] += float32(1)


seed(own_elements_only, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# all threads read the same element
@cuda.jit
def subtract_first(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    out[i] = s[t] - s[0] + x[0]


seed(subtract_first, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# four threads write to the four bytes of one word
@cuda.jit
def signs_as_bytes(x, out):
    sign = cuda.shared.array(BLOCK, int8)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    sign[t] = 0
    if x[i] > 0:
        sign[t] = 1
    elif x[i] < 0:
        sign[t] = -1
    out[i] = sign[t]


seed(signs_as_bytes, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128, dtype=np.int8)))


# bins set to zero, barrier, atomic additions, barrier, plain reads
@cuda.jit
def histogram_shared(label, counts):
    bins = cuda.shared.array(BINS, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if t < BINS:
        bins[t] = 0
    cuda.syncthreads()
    if i < label.size:
        cuda.atomic.add(bins, label[i], 1)
    cuda.syncthreads()
    if t < BINS:
        cuda.atomic.add(counts, t, bins[t])


seed(histogram_shared, 2, BLOCK, lambda rng: (labels(rng, 100, BINS), zeros(BINS, dtype=np.int32)))


@cuda.jit(device=True)
def block_sum(value, s):
    t = cuda.threadIdx.x
    cuda.syncthreads()
    s[t] = value
    cuda.syncthreads()
    o = BLOCK // 2
    while o > 0:
        if t < o:
            s[t] += s[t + o]
        cuda.syncthreads()
        o //= 2
    return s[0]


# a block sum in a device function, called twice, with a barrier before the memory is used again
@cuda.jit
def layer_norm(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    row = cuda.blockIdx.x
    mean = block_sum(x[row, t], s) / float32(BLOCK)
    centred = x[row, t] - mean
    variance = block_sum(centred * centred, s) / float32(BLOCK)
    out[row, t] = centred / math.sqrt(variance + float32(1e-5))


seed(layer_norm, 3, BLOCK, lambda rng: (normal(rng, 3, BLOCK), zeros(3, BLOCK)))


# two halves of the dynamic memory
@cuda.jit
def dot_two_views(x, y, out):
    memory = cuda.shared.array(0, float32)
    n = cuda.blockDim.x
    a = memory[:n]
    b = memory[n : 2 * n]
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    a[t] = x[i]
    b[n - 1 - t] = y[i]
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for k in range(n):
            total += a[k] * b[n - 1 - k]
        out[cuda.blockIdx.x] = total


seed(
    dot_two_views,
    2,
    BLOCK,
    lambda rng: (normal(rng, 128), normal(rng, 128), zeros(2)),
    shared=2 * BLOCK * 4,
)


# a tile with a padding column, filled in part at the matrix's edge, and read only where it is filled
@cuda.jit
def transpose_with_edge(a, out):
    tile = cuda.shared.array((TILE, PADDED), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    col = cuda.blockIdx.x * TILE
    row = cuda.blockIdx.y * TILE
    if row + ty < a.shape[0] and col + tx < a.shape[1]:
        tile[ty, tx] = a[row + ty, col + tx]
    cuda.syncthreads()
    if col + ty < out.shape[0] and row + tx < out.shape[1]:
        out[col + ty, row + tx] = tile[tx, ty]


seed(transpose_with_edge, (2, 2), (TILE, TILE), lambda rng: (normal(rng, 20, 30), zeros(30, 20)))


# matrix product of which no size is a multiple of the tile: zeros fill the tiles up
@cuda.jit
def matmul_with_edge(a, b, c):
    ta = cuda.shared.array((TILE, TILE), float32)
    tb = cuda.shared.array((TILE, TILE), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = float32(0)
    for k in range(0, a.shape[1], TILE):
        ta[ty, tx] = a[row, k + tx] if row < a.shape[0] and k + tx < a.shape[1] else float32(0)
        tb[ty, tx] = b[k + ty, col] if k + ty < b.shape[0] and col < b.shape[1] else float32(0)
        cuda.syncthreads()
        for m in range(TILE):
            total += ta[ty, m] * tb[m, tx]
        cuda.syncthreads()
    if row < c.shape[0] and col < c.shape[1]:
        c[row, col] = total


seed(
    matmul_with_edge,
    (2, 2),
    (TILE, TILE),
    lambda rng: (normal(rng, 30, 20), normal(rng, 20, 28), zeros(30, 28)),
)


# halo elements on both sides, with zeros beyond the array's ends
@cuda.jit
def smooth_with_halo(x, out):
    tile = cuda.shared.array(HALO, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t + 1] = x[i] if i < x.size else float32(0)
    if t == 0:
        tile[0] = x[i - 1] if i > 0 else float32(0)
    if t == BLOCK - 1:
        tile[BLOCK + 1] = x[i + 1] if i + 1 < x.size else float32(0)
    cuda.syncthreads()
    if i < x.size:
        out[i] = (tile[t] + tile[t + 1] + tile[t + 2]) / float32(3)


seed(smooth_with_halo, 2, BLOCK, lambda rng: (normal(rng, 100), zeros(100)))


# --- global memory --------------------------------------------------------------------------------------------


# in place, each thread on its own element
@cuda.jit
def scale_in_place(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * float32(2)
        x[i] += float32(1)


seed(scale_in_place, 2, BLOCK, lambda rng: (normal(rng, 100),))


def one_array_twice(rng):
    x = normal(rng, 100)
    return x, x


# the same array as input and output, element by element
@cuda.jit
def scale_two_arguments(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * float32(2)


seed(scale_two_arguments, 2, BLOCK, one_array_twice)


def two_halves(rng):
    x = normal(rng, 200)
    return x[:100], x[100:]


# two views of one array that have no element in common
@cuda.jit
def reverse_into_other_half(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[x.size - 1 - i] = x[i]


seed(reverse_into_other_half, 2, BLOCK, two_halves)


def even_and_odd(rng):
    x = normal(rng, 200)
    return x[::2], x[1::2]


# two views of one array whose elements alternate
@cuda.jit
def difference_of_neighbours(x, out):
    i = cuda.grid(1)
    if 0 < i < x.size:
        out[i] = x[i] - x[i - 1]


seed(difference_of_neighbours, 2, BLOCK, even_and_odd)


# all blocks count with atomic additions and nothing else
@cuda.jit
def count_with_atomics(x, count, top):
    i = cuda.grid(1)
    if i < x.size:
        if x[i] > 0:
            cuda.atomic.add(count, 0, 1)
        cuda.atomic.max(top, 0, x[i])


seed(
    count_with_atomics,
    2,
    BLOCK,
    lambda rng: (normal(rng, 100), zeros(1, dtype=np.int32), np.full(1, -np.inf, np.float32)),
)


# each thread writes where an atomic addition sends it: no place is given twice
@cuda.jit
def compact(x, out, count):
    i = cuda.grid(1)
    if i < x.size and x[i] > 0:
        out[cuda.atomic.add(count, 0, 1)] = x[i]


seed(compact, 2, BLOCK, lambda rng: (normal(rng, 100), zeros(100), zeros(1, dtype=np.int32)))


# a grid-stride loop, with less threads than elements
@cuda.jit
def scale_grid_stride(x, out):
    for k in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[k] = x[k] * float32(2)


seed(scale_grid_stride, 2, BLOCK, lambda rng: (normal(rng, 300), zeros(300)))


# a loop that counts down to zero
@cuda.jit
def suffix_sums(a, out):
    i = cuda.grid(1)
    if i < a.shape[0]:
        row = a[i]
        total = float32(0)
        for j in range(a.shape[1] - 1, -1, -1):
            total += row[j]
            out[i, j] = total


seed(suffix_sums, 1, 32, lambda rng: (normal(rng, 20, 9), zeros(20, 9)))


# a block's threads exchange values through global memory, with a barrier between
@cuda.jit
def reverse_through_global_memory(x, scratch, out):
    t = cuda.threadIdx.x
    start = cuda.blockIdx.x * BLOCK
    scratch[start + t] = x[start + t]
    cuda.syncthreads()
    out[start + t] = scratch[start + BLOCK - 1 - t]


seed(reverse_through_global_memory, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128), zeros(128)))


# the block that is done last adds up what all blocks have left: write, fence, atomic ticket
@cuda.jit
def sum_last_block_done(x, partial, ticket, out):
    s = cuda.shared.array(BLOCK, float32)
    last = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for k in range(BLOCK):
            total += s[k]
        partial[cuda.blockIdx.x] = total
        cuda.threadfence()
        last[0] = cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        cuda.threadfence()
        if t == 0:
            total = float32(0)
            for b in range(cuda.gridDim.x):
                total += partial[b]
            out[0] = total


seed(
    sum_last_block_done,
    4,
    BLOCK,
    lambda rng: (normal(rng, 256), zeros(4), zeros(1, dtype=np.int32), zeros(1)),
)


# --- lanes ----------------------------------------------------------------------------------------------------


# the first warp shuffles as a whole, the second one does not
@cuda.jit
def sum_of_first_warp(x, out):
    t = cuda.threadIdx.x
    value = x[cuda.grid(1)]
    if t < 32:
        o = 16
        while o > 0:
            value += cuda.shfl_down_sync(FULL, value, o)
            o //= 2
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = value


seed(sum_of_first_warp, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(2)))


# half of the warp shuffles, and the mask names this half
@cuda.jit
def sum_of_half_warp(x, out):
    t = cuda.threadIdx.x
    value = x[cuda.grid(1)]
    if t < 16:
        o = 8
        while o > 0:
            value += cuda.shfl_xor_sync(0xFFFF, value, o)
            o //= 2
    cuda.syncthreads()
    out[cuda.grid(1)] = value


seed(sum_of_half_warp, 2, 32, lambda rng: (normal(rng, 64), zeros(64)))


# two warps' sums by shuffles, then their sum: lanes without a warp's sum contribute zero
@cuda.jit
def block_sum_of_warp_sums(x, out):
    sums = cuda.shared.array(2, float32)
    t = cuda.threadIdx.x
    lane = t % 32
    i = cuda.grid(1)
    value = x[i] if i < x.size else float32(0)
    o = 16
    while o > 0:
        value += cuda.shfl_down_sync(FULL, value, o)
        o //= 2
    if lane == 0:
        sums[t // 32] = value
    cuda.syncthreads()
    if t < 32:
        value = sums[lane] if lane < 2 else float32(0)
        o = 16
        while o > 0:
            value += cuda.shfl_down_sync(FULL, value, o)
            o //= 2
        if lane == 0:
            out[cuda.blockIdx.x] = value


seed(block_sum_of_warp_sums, 2, BLOCK, lambda rng: (normal(rng, 100), zeros(2)))


# all lanes vote, and each one counts the votes below its own
@cuda.jit
def compact_within_warps(x, out, count):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    positive = i < x.size and x[i] > 0
    votes = cuda.ballot_sync(FULL, positive)
    first = 0
    if lane == 0:
        first = cuda.atomic.add(count, 0, cuda.popc(votes))
    first = cuda.shfl_sync(FULL, first, 0)
    if positive:
        out[first + cuda.popc(votes & ((1 << lane) - 1))] = x[i]


seed(compact_within_warps, 2, BLOCK, lambda rng: (normal(rng, 100), zeros(100), zeros(1, dtype=np.int32)))


# the two halves of a warp each wait for themselves
@cuda.jit
def half_warps_apart(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    if t < 16:
        cuda.syncwarp(0xFFFF)
        out[i] = s[15 - t]
    else:
        cuda.syncwarp(0xFFFF0000)
        out[i] = s[47 - t]


seed(half_warps_apart, 2, 32, lambda rng: (normal(rng, 64), zeros(64)))


# --- launches at their limits ---------------------------------------------------------------------------------


# 1024 threads and 48 KiB of shared memory are allowed
@cuda.jit
def reverse_with_all_there_is(x, out):
    tile = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    out[t] = tile[1023 - t]


seed(reverse_with_all_there_is, 1, 1024, lambda rng: (normal(rng, 1024), zeros(1024)), shared=48 * 1024)


# a kernel for one axis, launched with three
@cuda.jit
def scale_one_axis(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * float32(2)


seed(scale_one_axis, (2, 1, 1), (BLOCK, 1, 1), lambda rng: (normal(rng, 100), zeros(100)))
