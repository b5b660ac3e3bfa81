"""Wrong kernels, each with one seeded fault, for the tests of `labkit.cpu`: it must find all of them.

The faulty line carries a comment that says so. A race needs two accesses, so there more lines may carry it.
Launch faults have no such line: there the kernel is right and its launch is wrong.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import labkit  # noqa: F401  # isort: skip  # before numba

import numpy as np
from numba import cuda, float32, float64, int32

MARK = "# FAULT"
BLOCK = 64
HALF = BLOCK // 2
HALO = BLOCK + 1
TILE = 16
PADDED = TILE + 1
BINS = 8
FULL = 0xFFFFFFFF


@dataclass(frozen=True)
class Fault:
    """A kernel, its launch, and the kind of fault that this launch has."""

    kernel: object
    grid: int | tuple
    block: int | tuple
    arguments: Callable[[np.random.Generator], tuple]  # fresh arrays and scalars
    kind: str
    shared: int = 0  # dynamic shared memory in bytes
    also: tuple = ()  # device functions that carry the mark

    @property
    def name(self) -> str:
        return self.kernel.py_func.__name__

    @property
    def lines(self) -> set[int]:
        """The numbers of the marked lines in this file."""
        found = set()
        for function in (self.kernel, *self.also):
            source, first = inspect.getsourcelines(function.py_func)
            found |= {first + k for k, line in enumerate(source) if line.rstrip().endswith(MARK)}
        return found


FAULTS: list[Fault] = []


def seed(kind, kernel, grid, block, arguments, **options):
    FAULTS.append(Fault(kernel, grid, block, arguments, kind, **options))


def normal(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def labels(rng, n, classes):
    return rng.integers(0, classes, n).astype(np.int32)


# --- out-of-range index ---------------------------------------------------------------------------------------


# no guard, and the grid has more threads than the array has elements
@cuda.jit
def scale_without_guard(x, out):
    i = cuda.grid(1)
    out[i] = x[i] * float32(2)  # FAULT


seed("out-of-range index", scale_without_guard, 4, 32, lambda rng: (normal(rng, 100), zeros(100)))


# <= where < is meant
@cuda.jit
def copy_guard_off_by_one(x, out):
    i = cuda.grid(1)
    if i <= x.size:
        out[i] = x[i]  # FAULT


seed("out-of-range index", copy_guard_off_by_one, 4, 32, lambda rng: (normal(rng, 100), zeros(100)))


# the left neighbour is clamped, the right one is not
@cuda.jit
def smooth_without_right_bound(x, out):
    i = cuda.grid(1)
    if i < x.size:
        left = x[max(i - 1, 0)]
        right = x[i + 1]  # FAULT
        out[i] = (left + x[i] + right) / float32(3)


seed("out-of-range index", smooth_without_right_bound, 4, 32, lambda rng: (normal(rng, 128), zeros(128)))


# the guard compares rows with the number of columns and columns with the number of rows
@cuda.jit
def double_wrong_axis(a, out):
    col, row = cuda.grid(2)
    if row < a.shape[1] and col < a.shape[0]:
        out[row, col] = a[row, col] * float32(2)  # FAULT


seed("out-of-range index", double_wrong_axis, (2, 2), (16, 16), lambda rng: (normal(rng, 20, 30), zeros(20, 30)))


# row and column swapped where a matrix that is not square is read
@cuda.jit
def transpose_swapped_indices(a, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        value = a[row, col]  # FAULT
        out[row, col] = value


seed(
    "out-of-range index",
    transpose_swapped_indices,
    (2, 2),
    (16, 16),
    lambda rng: (normal(rng, 20, 30), zeros(30, 20)),
)


# the last column has no right neighbour: the read gets the next row's first element and stays inside the buffer
@cuda.jit
def gradient_across_row_ends(a, dx, dy):
    col, row = cuda.grid(2)
    if row + 1 < a.shape[0] and col < a.shape[1]:
        here = a[row, col]
        dx[row, col] = a[row, col + 1] - here  # FAULT
        dy[row, col] = a[row + 1, col] - here


seed(
    "out-of-range index",
    gradient_across_row_ends,
    (2, 3),
    (16, 8),
    lambda rng: (normal(rng, 20, 30), zeros(20, 30), zeros(20, 30)),
)


# the tile has no room for the halo element on its left
@cuda.jit
def difference_tile_too_small(x, out):
    tile = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if t == 0:
        tile[0] = x[max(i - 1, 0)]
    tile[t + 1] = x[i]  # FAULT
    cuda.syncthreads()
    out[i] = x[i] - tile[t]


seed("out-of-range index", difference_tile_too_small, 3, BLOCK, lambda rng: (normal(rng, 192), zeros(192)))


# five values are collected in a local array of four
@cuda.jit
def median_local_array_too_small(x, out):
    i = cuda.grid(1)
    window = cuda.local.array(4, float32)
    if i + 5 <= x.size:
        for k in range(5):
            j = k
            while j > 0 and window[j - 1] > x[i + k]:
                window[j] = window[j - 1]  # FAULT
                j -= 1
            window[j] = x[i + k]
        out[i] = window[2]


seed(
    "out-of-range index",
    median_local_array_too_small,
    2,
    32,
    lambda rng: (np.arange(64, 0, -1, dtype=np.float32), zeros(60)),
)


@cuda.jit(device=True)
def between(a, i):
    return (a[i] + a[i + 1]) * float32(0.5)  # FAULT


# a device function reads one element further than its caller's guard allows
@cuda.jit
def midpoints_in_device_function(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = between(x, i)


seed(
    "out-of-range index",
    midpoints_in_device_function,
    2,
    64,
    lambda rng: (normal(rng, 100), zeros(100)),
    also=(between,),
)


def with_one(rng):
    x = rng.random(200, dtype=np.float32) * np.float32(0.9)
    x[117] = 1
    return x, zeros(BINS, dtype=np.int32)


# the value 1.0 belongs into the last bin and gets the one after it
@cuda.jit
def histogram_upper_edge(x, counts):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(counts, int(x[i] * float32(BINS)), 1)  # FAULT


seed("out-of-range index", histogram_upper_edge, 4, BLOCK, with_one)


# the two indices of an atomic addition are swapped
@cuda.jit
def confusion_matrix_swapped(group, label, counts):
    i = cuda.grid(1)
    if i < group.size:
        cuda.atomic.add(counts, (label[i], group[i]), 1)  # FAULT


seed(
    "out-of-range index",
    confusion_matrix_swapped,
    2,
    64,
    lambda rng: (labels(rng, 100, 3), (np.arange(100) % 8).astype(np.int32), zeros(3, 8, dtype=np.int32)),
)


# the loop over a row's elements uses the number of rows
@cuda.jit
def row_sums_wrong_length(a, out):
    i = cuda.grid(1)
    if i < a.shape[0]:
        row = a[i]
        total = float32(0)
        for j in range(a.shape[0]):
            total += row[j]  # FAULT
        out[i] = total


seed("out-of-range index", row_sums_wrong_length, 2, 32, lambda rng: (normal(rng, 40, 24), zeros(40)))


# every block works on a whole chunk, though the last chunk is shorter
@cuda.jit
def scale_chunks(x, out):
    start = cuda.blockIdx.x * 256
    for k in range(cuda.threadIdx.x, 256, cuda.blockDim.x):
        out[start + k] = x[start + k] * float32(2)  # FAULT


seed("out-of-range index", scale_chunks, 4, BLOCK, lambda rng: (normal(rng, 1000), zeros(1000)))


# n counts need n + 1 offsets: only the last thread leaves the array
@cuda.jit
def offsets_one_short(counts, offsets):
    i = cuda.grid(1)
    if i < counts.size:
        offsets[i + 1] = counts[i]  # FAULT


seed(
    "out-of-range index",
    offsets_one_short,
    2,
    BLOCK,
    lambda rng: (labels(rng, 128, 9), zeros(128, dtype=np.int32)),
)


# tiles of a are loaded without a guard on the inner dimension, which is no multiple of the tile
@cuda.jit
def matmul_inner_dimension_unguarded(a, b, c):
    ta = cuda.shared.array((TILE, TILE), float32)
    tb = cuda.shared.array((TILE, TILE), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = float32(0)
    for k in range(0, a.shape[1], TILE):
        ta[ty, tx] = float32(0)
        tb[ty, tx] = float32(0)
        if row < a.shape[0]:
            ta[ty, tx] = a[row, k + tx]  # FAULT
        if k + ty < b.shape[0] and col < b.shape[1]:
            tb[ty, tx] = b[k + ty, col]
        cuda.syncthreads()
        for m in range(TILE):
            total += ta[ty, m] * tb[m, tx]
        cuda.syncthreads()
    if row < c.shape[0] and col < c.shape[1]:
        c[row, col] = total


seed(
    "out-of-range index",
    matmul_inner_dimension_unguarded,
    (2, 2),
    (TILE, TILE),
    lambda rng: (normal(rng, 30, 20), normal(rng, 20, 28), zeros(30, 28)),
)


def tokens(rng):
    index = labels(rng, 60, 50)
    index[41] = 50
    return normal(rng, 50, 16), index, zeros(60, 16)


# one token's number equals the number of rows in the table
@cuda.jit
def embedding_unknown_token(table, token, out):
    k = cuda.threadIdx.x
    i = cuda.blockIdx.x
    out[i, k] = table[token[i], k]  # FAULT


seed("out-of-range index", embedding_unknown_token, 60, 16, tokens)


# --- negative index -------------------------------------------------------------------------------------------


# the first element has no predecessor: x[-1] is the last one
@cuda.jit
def difference_first_element(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] - x[i - 1]  # FAULT


seed("negative index", difference_first_element, 2, BLOCK, lambda rng: (normal(rng, 100), zeros(100)))


# each block's first thread reads the tile's element -1
@cuda.jit
def difference_tile_without_halo(x, out):
    tile = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i]
    cuda.syncthreads()
    out[i] = tile[t] - tile[t - 1]  # FAULT


seed("negative index", difference_tile_without_halo, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# a rotation that corrects the index at the wrong end
@cuda.jit
def rotate_wrong_wrap(x, shift, out):
    i = cuda.grid(1)
    if i < x.size:
        j = i - shift
        if j >= x.size:
            j -= x.size
        out[i] = x[j]  # FAULT


seed("negative index", rotate_wrong_wrap, 2, BLOCK, lambda rng: (normal(rng, 100), 7, zeros(100)))


# the guard leaves out the last row and column, but not the first row
@cuda.jit
def laplace_first_row(a, out):
    col, row = cuda.grid(2)
    if row < a.shape[0] - 1 and 0 < col < a.shape[1] - 1:
        across = a[row, col - 1] + a[row, col + 1]
        down = a[row - 1, col] + a[row + 1, col]  # FAULT
        out[row, col] = across + down - float32(4) * a[row, col]


seed("negative index", laplace_first_row, (2, 2), (16, 16), lambda rng: (normal(rng, 20, 30), zeros(20, 30)))


# each thread adds to its left neighbour's element; the first thread has none
@cuda.jit
def add_to_left_neighbour(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i - 1] += x[i]  # FAULT


seed("negative index", add_to_left_neighbour, 2, BLOCK, lambda rng: (normal(rng, 100), normal(rng, 100)))


def with_low(rng):
    x = rng.random(200, dtype=np.float32) * np.float32(BINS)
    x[63] = -1.5
    return x, zeros(BINS, dtype=np.int32)


# values below the histogram's range
@cuda.jit
def histogram_below_range(x, counts):
    i = cuda.grid(1)
    if i < x.size:
        b = int(math.floor(x[i]))  # noqa: RUF046 (a float on a GPU)
        if b < counts.size:
            cuda.atomic.add(counts, b, 1)  # FAULT


seed("negative index", histogram_below_range, 4, BLOCK, with_low)


@cuda.jit(device=True)
def slope(a, i):
    return (a[i + 1] - a[i - 1]) * float32(0.5)  # FAULT


# the caller leaves out the last element, but not the first
@cuda.jit
def slopes_in_device_function(x, out):
    i = cuda.grid(1)
    if i < x.size - 1:
        out[i] = slope(x, i)


seed(
    "negative index",
    slopes_in_device_function,
    2,
    BLOCK,
    lambda rng: (normal(rng, 100), zeros(100)),
    also=(slope,),
)


# counts down from one too little
@cuda.jit
def reverse_off_by_one(x, out):
    tile = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    start = cuda.blockIdx.x * BLOCK
    tile[t] = x[start + t]
    cuda.syncthreads()
    out[start + t] = tile[BLOCK - 2 - t]  # FAULT


seed("negative index", reverse_off_by_one, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# differences along each row start one element too early
@cuda.jit
def differences_in_row_view(a, out):
    i = cuda.grid(1)
    if i < a.shape[0]:
        row = a[i]
        for j in range(a.shape[1]):
            out[i, j] = row[j] - row[j - 1]  # FAULT


seed("negative index", differences_in_row_view, 2, 32, lambda rng: (normal(rng, 40, 9), zeros(40, 9)))


def with_ignored(rng):
    label = labels(rng, 50, 10)
    label[[20, 33]] = -1
    return normal(rng, 50, 10), label, zeros(50)


# -1 marks samples to be left out, and the kernel does not leave them out
@cuda.jit
def cross_entropy_ignored_label(logits, label, loss):
    i = cuda.grid(1)
    if i < label.size:
        total = float32(0)
        for k in range(logits.shape[1]):
            total += math.exp(logits[i, k])
        loss[i] = math.log(total) - logits[i, label[i]]  # FAULT


seed("negative index", cross_entropy_ignored_label, 1, BLOCK, with_ignored)


# --- race in shared memory ------------------------------------------------------------------------------------


# no barrier before the tile is read: the element may not be written yet
@cuda.jit
def reverse_without_barrier(x, out):
    tile = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    start = cuda.blockIdx.x * BLOCK
    tile[t] = x[start + t]  # FAULT
    out[start + t] = tile[BLOCK - 1 - t]  # FAULT


seed("race in shared memory", reverse_without_barrier, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# the same with the left neighbour, which threads in ascending order would find written
@cuda.jit
def difference_without_barrier(x, out):
    tile = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i]  # FAULT
    if t > 0:
        out[i] = x[i] - tile[t - 1]  # FAULT


seed("race in shared memory", difference_without_barrier, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# no barrier between the tile's loading and its transposed reading
@cuda.jit
def transpose_without_barrier(a, out):
    tile = cuda.shared.array((TILE, PADDED), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    col = cuda.blockIdx.x * TILE
    row = cuda.blockIdx.y * TILE
    tile[ty, tx] = a[row + ty, col + tx]  # FAULT
    out[col + ty, row + tx] = tile[tx, ty]  # FAULT


seed(
    "race in shared memory",
    transpose_without_barrier,
    (2, 1),
    (TILE, TILE),
    lambda rng: (normal(rng, 16, 32), zeros(32, 16)),
)


# no barrier at the loop's end: the next chunk overwrites what a slower thread still reads
@cuda.jit
def pair_sums_no_barrier_at_loop_end(x, out):
    tile = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for start in range(0, x.size, BLOCK):
        tile[t] = x[start + t]  # FAULT
        cuda.syncthreads()
        total += tile[t] * tile[(t + 1) % BLOCK]  # FAULT
    out[t] = total


seed("race in shared memory", pair_sums_no_barrier_at_loop_end, 1, BLOCK, lambda rng: (normal(rng, 256), zeros(BLOCK)))


# tiled matrix product without the barrier at the loop's end
@cuda.jit
def matmul_no_barrier_at_loop_end(a, b, c):
    ta = cuda.shared.array((TILE, TILE), float32)
    tb = cuda.shared.array((TILE, TILE), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = float32(0)
    for k in range(0, a.shape[1], TILE):
        ta[ty, tx] = a[row, k + tx]  # FAULT
        tb[ty, tx] = b[k + ty, col]  # FAULT
        cuda.syncthreads()
        for m in range(TILE):
            total += ta[ty, m] * tb[m, tx]  # FAULT
    c[row, col] = total


seed(
    "race in shared memory",
    matmul_no_barrier_at_loop_end,
    (2, 1),
    (TILE, TILE),
    lambda rng: (normal(rng, 16, 32), normal(rng, 32, 32), zeros(16, 32)),
)


# each warp's first lane stores the warp's sum, but all of them at the same place
@cuda.jit
def warp_sums_same_slot(x, out):
    tile = cuda.shared.array(BLOCK, float32)
    sums = cuda.shared.array(2, float32)
    t = cuda.threadIdx.x
    lane = t % 32
    tile[t] = x[cuda.grid(1)]
    if t < 2:
        sums[t] = float32(0)
    cuda.syncthreads()
    if lane == 0:
        total = float32(0)
        for k in range(32):
            total += tile[t + k]
        sums[lane] = total  # FAULT
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = sums[0] + sums[1]


seed("race in shared memory", warp_sums_same_slot, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(2)))


# several threads raise the same flag, with the same value
@cuda.jit
def any_above_plain_flag(x, limit, out):
    found = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        found[0] = 0
    cuda.syncthreads()
    if x[cuda.grid(1)] > limit:
        found[0] = 1  # FAULT
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = found[0]


seed(
    "race in shared memory",
    any_above_plain_flag,
    2,
    BLOCK,
    lambda rng: (normal(rng, 128), np.float32(0), zeros(2, dtype=np.int32)),
)


# tree reduction without a barrier between its steps
@cuda.jit
def block_sum_no_barrier_between_steps(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    o = BLOCK // 2
    while o > 0:
        if t < o:
            s[t] += s[t + o]  # FAULT
        o //= 2
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


seed(
    "race in shared memory",
    block_sum_no_barrier_between_steps,
    2,
    BLOCK,
    lambda rng: (normal(rng, 128), zeros(2)),
)


# the last steps rely on a warp's lanes running in lockstep: no syncwarp
@cuda.jit
def block_sum_warp_synchronous(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t < 32:
        o = 32
        while o > 0:
            if t < o:
                s[t] += s[t + o]  # FAULT
            o //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


seed("race in shared memory", block_sum_warp_synchronous, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(2)))


# a syncwarp after every step, but in a step all 32 lanes add: lane 16 writes what lane 0 reads
@cuda.jit
def block_sum_all_lanes_add(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t < 32:
        o = 32
        while o > 0:
            s[t] += s[t + o]  # FAULT
            cuda.syncwarp()
            o //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


seed("race in shared memory", block_sum_all_lanes_add, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(2)))


# syncwarp where four warps exchange data: it orders only the lanes of one warp
@cuda.jit
def block_sum_syncwarp_for_syncthreads(x, out):
    s = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    o = 64
    while o > 0:
        if t < o:
            s[t] += s[t + o]  # FAULT
        cuda.syncwarp()
        o //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


seed(
    "race in shared memory",
    block_sum_syncwarp_for_syncthreads,
    2,
    128,
    lambda rng: (normal(rng, 256), zeros(2)),
)


# Hillis-Steele scan in place: an element is overwritten while another thread adds it
@cuda.jit
def scan_in_place(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    d = 1
    while d < BLOCK:
        if t >= d:
            s[t] += s[t - d]  # FAULT
        cuda.syncthreads()
        d *= 2
    out[i] = s[t]


seed("race in shared memory", scan_in_place, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# scan with the neighbour's value in a register, but no barrier between reading and writing
@cuda.jit
def scan_one_barrier_too_few(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    d = 1
    while d < BLOCK:
        value = float32(0)
        if t >= d:
            value = s[t - d]  # FAULT
        s[t] += value  # FAULT
        cuda.syncthreads()
        d *= 2
    out[i] = s[t]


seed("race in shared memory", scan_one_barrier_too_few, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# the block's own histogram is counted without atomic additions
@cuda.jit
def histogram_plain_increment(label, counts):
    bins = cuda.shared.array(BINS, int32)
    t = cuda.threadIdx.x
    if t < BINS:
        bins[t] = 0
    cuda.syncthreads()
    bins[label[cuda.grid(1)]] += 1  # FAULT
    cuda.syncthreads()
    if t < BINS:
        cuda.atomic.add(counts, t, bins[t])


seed(
    "race in shared memory",
    histogram_plain_increment,
    2,
    BLOCK,
    lambda rng: (labels(rng, 128, BINS), zeros(BINS, dtype=np.int32)),
)


# no barrier between zeroing the bins and adding to them
@cuda.jit
def histogram_no_barrier_after_zeroing(label, counts):
    bins = cuda.shared.array(BINS, int32)
    t = cuda.threadIdx.x
    if t == 0:
        for b in range(BINS):
            bins[b] = 0  # FAULT
    cuda.atomic.add(bins, label[cuda.grid(1)], 1)  # FAULT
    cuda.syncthreads()
    if t < BINS:
        cuda.atomic.add(counts, t, bins[t])


seed(
    "race in shared memory",
    histogram_no_barrier_after_zeroing,
    2,
    BLOCK,
    lambda rng: (labels(rng, 128, BINS), zeros(BINS, dtype=np.int32)),
)


# no barrier between the atomic additions and the plain read of their result
@cuda.jit
def count_no_barrier_before_reading(x, out):
    count = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        count[0] = 0
    cuda.syncthreads()
    if x[cuda.grid(1)] > 0:
        cuda.atomic.add(count, 0, 1)  # FAULT
    if t == 0:
        out[cuda.blockIdx.x] = count[0]  # FAULT


seed(
    "race in shared memory",
    count_no_barrier_before_reading,
    2,
    BLOCK,
    lambda rng: (normal(rng, 128), zeros(2, dtype=np.int32)),
)


# two buffers, but the barrier stands between loading and using, so nothing protects the buffer used before
@cuda.jit
def pair_sums_double_buffer(x, out):
    tiles = cuda.shared.array((2, BLOCK), float32)
    t = cuda.threadIdx.x
    total = float32(0)
    tiles[0, t] = x[t]
    steps = x.size // BLOCK
    for k in range(steps):
        now = k % 2
        if k + 1 < steps:
            tiles[1 - now, t] = x[(k + 1) * BLOCK + t]  # FAULT
        cuda.syncthreads()
        total += tiles[now, t] * tiles[now, (t + 1) % BLOCK]  # FAULT
    out[t] = total


seed("race in shared memory", pair_sums_double_buffer, 1, BLOCK, lambda rng: (normal(rng, 320), zeros(BLOCK)))


@cuda.jit(device=True)
def block_sum(value, s):
    t = cuda.threadIdx.x
    s[t] = value  # FAULT
    cuda.syncthreads()
    o = BLOCK // 2
    while o > 0:
        if t < o:
            s[t] += s[t + o]
        cuda.syncthreads()
        o //= 2
    return s[0]  # FAULT


# layer norm calls a block sum twice: the second call writes while the first one's result is still being read
@cuda.jit
def layer_norm_block_sum_twice(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    row = cuda.blockIdx.x
    mean = block_sum(x[row, t], s) / float32(BLOCK)
    centred = x[row, t] - mean
    variance = block_sum(centred * centred, s) / float32(BLOCK)
    out[row, t] = centred / math.sqrt(variance + float32(1e-5))


seed(
    "race in shared memory",
    layer_norm_block_sum_twice,
    3,
    BLOCK,
    lambda rng: (normal(rng, 3, BLOCK), zeros(3, BLOCK)),
    also=(block_sum,),
)


# softmax with one slot for the maximum and then for the sum, and no barrier between the two uses
@cuda.jit
def softmax_slot_reused(x, out):
    s = cuda.shared.array(BLOCK, float32)
    slot = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    row = cuda.blockIdx.x
    s[t] = x[row, t]
    cuda.syncthreads()
    if t == 0:
        top = s[0]
        for k in range(1, BLOCK):
            top = max(top, s[k])
        slot[0] = top
    cuda.syncthreads()
    value = math.exp(x[row, t] - slot[0])  # FAULT
    if t == 0:
        total = float32(0)
        for k in range(BLOCK):
            total += math.exp(s[k] - slot[0])
        slot[0] = total  # FAULT
    cuda.syncthreads()
    out[row, t] = value / slot[0]


seed("race in shared memory", softmax_slot_reused, 3, BLOCK, lambda rng: (normal(rng, 3, BLOCK), zeros(3, BLOCK)))


# attention: one thread finds the largest score, and no barrier makes the others wait for it
@cuda.jit
def attention_no_barrier_after_maximum(q, k, v, out):
    scores = cuda.shared.array(32, float32)
    top = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    row = cuda.blockIdx.x
    score = float32(0)
    for d in range(q.shape[1]):
        score += q[row, d] * k[t, d]
    scores[t] = score
    cuda.syncthreads()
    if t == 0:
        best = scores[0]
        for j in range(1, 32):
            best = max(best, scores[j])
        top[0] = best  # FAULT
    weight = math.exp(score - top[0])  # FAULT
    cuda.syncthreads()
    scores[t] = weight
    cuda.syncthreads()
    if t < v.shape[1]:
        total = float32(0)
        value = float32(0)
        for j in range(32):
            total += scores[j]
            value += scores[j] * v[j, t]
        out[row, t] = value / total


seed(
    "race in shared memory",
    attention_no_barrier_after_maximum,
    3,
    32,
    lambda rng: (normal(rng, 3, 8), normal(rng, 32, 8), normal(rng, 32, 8), zeros(3, 8)),
)


# two arrays share the dynamic memory, and the second one starts one element too early
@cuda.jit
def dot_overlapping_views(x, y, out):
    memory = cuda.shared.array(0, float32)
    n = cuda.blockDim.x
    a = memory[:n]
    b = memory[n - 1 : 2 * n - 1]
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    a[t] = x[i]  # FAULT
    b[t] = y[i]  # FAULT
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for k in range(n):
            total += a[k] * b[k]
        out[cuda.blockIdx.x] = total


seed(
    "race in shared memory",
    dot_overlapping_views,
    2,
    BLOCK,
    lambda rng: (normal(rng, 128), normal(rng, 128), zeros(2)),
    shared=2 * BLOCK * 4,
)


# two dynamic shared arrays, as if each had memory of its own: both start at the same address
@cuda.jit
def reverse_pairs_same_dynamic_memory(key, value, out_key, out_value):
    keys = cuda.shared.array(0, int32)
    values = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    last = cuda.blockDim.x - 1
    i = cuda.grid(1)
    keys[t] = key[i]  # FAULT
    values[last - t] = value[i]  # FAULT
    cuda.syncthreads()
    out_key[i] = keys[last - t]
    out_value[i] = values[t]


seed(
    "race in shared memory",
    reverse_pairs_same_dynamic_memory,
    2,
    BLOCK,
    lambda rng: (labels(rng, 128, 99), normal(rng, 128), zeros(128, dtype=np.int32), zeros(128)),
    shared=2 * BLOCK * 4,
)


# only one pair of threads: the first warp's last lane leaves a value for the second warp's first lane
@cuda.jit
def carry_between_two_threads(x, out):
    carry = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    value = x[i]
    if t == 31:
        carry[0] = value  # FAULT
    if t == 32:
        value += carry[0]  # FAULT
    out[i] = value


seed("race in shared memory", carry_between_two_threads, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# odd-even sort without a barrier between its phases
@cuda.jit
def sort_no_barrier_between_phases(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    s[t + HALF] = x[t + HALF]
    cuda.syncthreads()
    for phase in range(BLOCK):
        j = 2 * t + phase % 2
        if j + 1 < BLOCK:
            low = min(s[j], s[j + 1])  # FAULT
            high = max(s[j], s[j + 1])  # FAULT
            s[j] = low  # FAULT
            s[j + 1] = high  # FAULT
    cuda.syncthreads()
    out[t] = s[t]
    out[t + HALF] = s[t + HALF]


seed("race in shared memory", sort_no_barrier_between_phases, 1, HALF, lambda rng: (normal(rng, 64), zeros(64)))


# compaction: one thread reserves the block's places in the output, and the others do not wait for it
@cuda.jit
def compact_no_barrier_after_reserving(x, out, total):
    count = cuda.shared.array(1, int32)
    first = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    value = x[cuda.grid(1)]
    if t == 0:
        count[0] = 0
        first[0] = 0
    cuda.syncthreads()
    place = 0
    if value > 0:
        place = cuda.atomic.add(count, 0, 1)
    cuda.syncthreads()
    if t == 0:
        first[0] = cuda.atomic.add(total, 0, count[0])  # FAULT
    if value > 0:
        out[first[0] + place] = value  # FAULT


seed(
    "race in shared memory",
    compact_no_barrier_after_reserving,
    1,
    BLOCK,
    lambda rng: (normal(rng, 64), zeros(64), zeros(1, dtype=np.int32)),
)


# --- race in global memory ------------------------------------------------------------------------------------


# smoothing in place: the barrier orders the threads of a block, but not the blocks on either side of a border
@cuda.jit
def smooth_in_place(x):
    i = cuda.grid(1)
    value = x[i]
    if 0 < i < x.size - 1:
        value = (x[i - 1] + value + x[i + 1]) / float32(3)  # FAULT
    cuda.syncthreads()
    x[i] = value  # FAULT


seed("race in global memory", smooth_in_place, 4, BLOCK, lambda rng: (normal(rng, 256),))


# histogram without atomic additions
@cuda.jit
def global_histogram_plain_increment(label, counts):
    i = cuda.grid(1)
    if i < label.size:
        counts[label[i]] += 1  # FAULT


seed(
    "race in global memory",
    global_histogram_plain_increment,
    2,
    BLOCK,
    lambda rng: (labels(rng, 100, BINS), zeros(BINS, dtype=np.int32)),
)


# the loop's stride is a block, not the grid: later blocks do again what earlier ones do
@cuda.jit
def scale_block_stride(x, out):
    for k in range(cuda.grid(1), x.size, cuda.blockDim.x):
        out[k] = x[k] * float32(2)  # FAULT


seed("race in global memory", scale_block_stride, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# every block adds its sum to the same element, without an atomic addition
@cuda.jit
def sum_plain_accumulation(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    o = BLOCK // 2
    while o > 0:
        if t < o:
            s[t] += s[t + o]
        cuda.syncthreads()
        o //= 2
    if t == 0:
        out[0] += s[0]  # FAULT


seed("race in global memory", sum_plain_accumulation, 4, BLOCK, lambda rng: (normal(rng, 256), zeros(1)))


# the last block adds up the other blocks' sums in the same launch, without knowing that they are there
@cuda.jit
def sum_last_block_does_not_wait(x, partial, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for k in range(BLOCK):
            total += s[k]
        partial[cuda.blockIdx.x] = total  # FAULT
        if cuda.blockIdx.x == cuda.gridDim.x - 1:
            total = float32(0)
            for b in range(cuda.gridDim.x):
                total += partial[b]  # FAULT
            out[0] = total


seed(
    "race in global memory",
    sum_last_block_does_not_wait,
    4,
    BLOCK,
    lambda rng: (normal(rng, 256), zeros(4), zeros(1)),
)


# within one block: no barrier between writing to global memory and reading what another thread wrote
@cuda.jit
def squares_no_barrier(x, scratch, out):
    t = cuda.threadIdx.x
    scratch[t] = x[t] * x[t]  # FAULT
    if t > 0:
        out[t] = scratch[t] - scratch[t - 1]  # FAULT


seed("race in global memory", squares_no_barrier, 1, BLOCK, lambda rng: (normal(rng, 64), zeros(64), zeros(64)))


def same_array(rng):
    x = normal(rng, 100)
    return x, x


# right for two arrays, launched with one array as input and output
@cuda.jit
def difference_onto_itself(x, out):
    i = cuda.grid(1)
    if i + 1 < x.size:
        out[i] = x[i + 1] - x[i]  # FAULT


seed("race in global memory", difference_onto_itself, 2, BLOCK, same_array)


def overlapping_views(rng):
    x = normal(rng, 100)
    return x[:-1], x[1:]


# right for two arrays, launched with two views of one array, shifted by one element
@cuda.jit
def copy_onto_shifted_view(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i]  # FAULT


seed("race in global memory", copy_onto_shifted_view, 2, BLOCK, overlapping_views)


def same_square(rng):
    a = normal(rng, 24, 24)
    return a, a


# transpose with the same matrix as input and output
@cuda.jit
def transpose_onto_itself(a, out):
    col, row = cuda.grid(2)
    if row < a.shape[0] and col < a.shape[1]:
        out[col, row] = a[row, col]  # FAULT


seed("race in global memory", transpose_onto_itself, (3, 3), (8, 8), same_square)


# gradient of an embedding: a token that occurs twice gets two additions, neither of them atomic
@cuda.jit
def embedding_gradient_plain_addition(token, gradient, table):
    i = cuda.blockIdx.x
    k = cuda.threadIdx.x
    table[token[i], k] += gradient[i, k]  # FAULT


seed(
    "race in global memory",
    embedding_gradient_plain_addition,
    6,
    16,
    lambda rng: (np.array([3, 1, 4, 1, 5, 9], np.int32), normal(rng, 6, 16), zeros(10, 16)),
)


# the largest value by comparison and plain write
@cuda.jit
def maximum_plain_compare(x, top):
    i = cuda.grid(1)
    if i < x.size and x[i] > top[0]:  # FAULT
        top[0] = x[i]  # FAULT


seed(
    "race in global memory",
    maximum_plain_compare,
    2,
    BLOCK,
    lambda rng: (normal(rng, 100), np.full(1, -np.inf, np.float32)),
)


# the kernel sets its own counter to zero: other blocks may have counted before
@cuda.jit
def count_zeroed_by_first_block(x, count):
    i = cuda.grid(1)
    if i == 0:
        count[0] = 0  # FAULT
    cuda.syncthreads()
    if x[i] > 0:
        cuda.atomic.add(count, 0, 1)  # FAULT


seed(
    "race in global memory",
    count_zeroed_by_first_block,
    2,
    BLOCK,
    lambda rng: (normal(rng, 128), zeros(1, dtype=np.int32)),
)


# matrix product with the inner dimension split over blocks, whose partial results are added without atomics
@cuda.jit
def matmul_split_inner_dimension(a, b, c):
    row = cuda.blockIdx.x
    col = cuda.threadIdx.x
    share = a.shape[1] // cuda.gridDim.y
    total = float32(0)
    for k in range(cuda.blockIdx.y * share, (cuda.blockIdx.y + 1) * share):
        total += a[row, k] * b[k, col]
    c[row, col] += total  # FAULT


seed(
    "race in global memory",
    matmul_split_inner_dimension,
    (4, 2),
    16,
    lambda rng: (normal(rng, 4, 10), normal(rng, 10, 16), zeros(4, 16)),
)


# --- divergent barrier ----------------------------------------------------------------------------------------
# Threads that returned are not missed at a barrier. So in each of these kernels the threads that skip the marked
# barrier come to another one.


# the barrier of a tree reduction is inside the branch
@cuda.jit
def normalise_barrier_in_branch(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    o = BLOCK // 2
    while o > 0:
        if t < o:
            s[t] += s[t + o]
            cuda.syncthreads()  # FAULT
        o //= 2
    cuda.syncthreads()
    out[i] = x[i] / s[0]


seed("divergent barrier", normalise_barrier_in_branch, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# the bounds guard encloses the barrier: in the last block some threads do not come to it
@cuda.jit
def reverse_barrier_in_guard(x, out, count):
    tile = cuda.shared.array(BLOCK, float32)
    kept = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if t == 0:
        kept[0] = 0
    if i < x.size:
        tile[t] = x[i]
        cuda.syncthreads()  # FAULT
        last = min(BLOCK, x.size - (i - t)) - 1
        out[i] = tile[last - t]
        if x[i] > 0:
            cuda.atomic.add(kept, 0, 1)
    cuda.syncthreads()
    if t == 0:
        count[cuda.blockIdx.x] = kept[0]


seed(
    "divergent barrier",
    reverse_barrier_in_guard,
    2,
    BLOCK,
    lambda rng: (normal(rng, 100), zeros(100), zeros(2, dtype=np.int32)),
)


# a loop over a row's elements, with a barrier in it: in the last round some threads have no element
@cuda.jit
def exchange_in_uneven_loop(x, out):
    tile = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for k in range(t, x.size, BLOCK):
        tile[t] = x[k]
        cuda.syncthreads()  # FAULT
        total += tile[t ^ 1]
        cuda.syncthreads()
    tile[t] = total
    cuda.syncthreads()
    out[t] = tile[BLOCK - 1 - t]


seed("divergent barrier", exchange_in_uneven_loop, 1, BLOCK, lambda rng: (normal(rng, 100), zeros(BLOCK)))


# only threads with a positive value come to the barrier
@cuda.jit
def positive_count_barrier_on_data(x, out):
    flags = cuda.shared.array(BLOCK, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    flags[t] = 0
    if x[i] > 0:
        flags[t] = 1
        cuda.syncthreads()  # FAULT
    cuda.syncthreads()
    if t == 0:
        total = 0
        for k in range(BLOCK):
            total += flags[k]
        out[cuda.blockIdx.x] = total


seed(
    "divergent barrier",
    positive_count_barrier_on_data,
    2,
    BLOCK,
    lambda rng: (normal(rng, 128), zeros(2, dtype=np.int32)),
)


# threads whose value has converged leave the loop, and the others wait for them at its barrier
@cuda.jit
def relax_break_before_barrier(x, limit, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    value = x[t]
    s[t] = value
    for _ in range(20):
        if abs(value) < limit:
            break
        cuda.syncthreads()  # FAULT
        value = (value + s[t ^ 1]) * float32(0.25)
        cuda.syncthreads()
        s[t] = value
    cuda.syncthreads()
    out[t] = s[BLOCK - 1 - t]


seed(
    "divergent barrier",
    relax_break_before_barrier,
    1,
    BLOCK,
    lambda rng: (np.linspace(0, 2, BLOCK, dtype=np.float32), np.float32(0.5), zeros(BLOCK)),
)


@cuda.jit(device=True)
def half_block_sum(s, t):
    o = BLOCK // 4
    while o > 0:
        if t < o:
            s[t] += s[t + o]
        cuda.syncthreads()  # FAULT
        o //= 2
    return s[0]


# half of the threads call a device function that has a barrier
@cuda.jit
def sum_first_half_in_device_function(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    total = float32(0)
    if t < BLOCK // 2:
        total = half_block_sum(s, t)
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = total


seed(
    "divergent barrier",
    sum_first_half_in_device_function,
    2,
    BLOCK,
    lambda rng: (normal(rng, 128), zeros(2)),
    also=(half_block_sum,),
)


# syncthreads_count is a barrier, too, and the guard keeps some threads away from it
@cuda.jit
def count_positive_in_guard(x, out):
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    kept = 0
    if i < x.size:
        kept = cuda.syncthreads_count(int(x[i] > 0))  # FAULT
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = kept


seed(
    "divergent barrier",
    count_positive_in_guard,
    2,
    BLOCK,
    lambda rng: (normal(rng, 100), zeros(2, dtype=np.int32)),
)


# the thread that loads the halo has a barrier of its own
@cuda.jit
def difference_barrier_in_halo_branch(x, out):
    tile = cuda.shared.array(HALO, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t + 1] = x[i]
    if t == 0:
        tile[0] = x[max(i - 1, 0)]
        cuda.syncthreads()  # FAULT
    cuda.syncthreads()
    out[i] = tile[t + 1] - tile[t]


seed("divergent barrier", difference_barrier_in_halo_branch, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# every thread steps until its own offset reaches the block's end: different numbers of barriers
@cuda.jit
def scan_thread_dependent_loop(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    d = 1
    while d <= t:
        value = s[t - d]
        cuda.syncthreads()  # FAULT
        s[t] += value
        cuda.syncthreads()
        d *= 2
    cuda.syncthreads()
    out[i] = s[t]


seed("divergent barrier", scan_thread_dependent_loop, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(128)))


# a warp with nothing to do skips the tile's barrier and goes on to the next one
@cuda.jit
def histogram_warp_skips_barrier(label, counts):
    bins = cuda.shared.array(BINS, int32)
    t = cuda.threadIdx.x
    if t < BINS:
        bins[t] = 0
    i = cuda.grid(1)
    if i - t % 32 < label.size:
        cuda.syncthreads()  # FAULT
        if i < label.size:
            cuda.atomic.add(bins, label[i], 1)
    cuda.syncthreads()
    if t < BINS:
        cuda.atomic.add(counts, t, bins[t])


seed(
    "divergent barrier",
    histogram_warp_skips_barrier,
    2,
    BLOCK,
    lambda rng: (labels(rng, 90, BINS), zeros(BINS, dtype=np.int32)),
)


# --- uninitialised shared memory ------------------------------------------------------------------------------


# the last block's tile is filled in part, and the reduction reads all of it
@cuda.jit
def block_sum_partial_tile(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if i < x.size:
        s[t] = x[i]
    cuda.syncthreads()
    o = BLOCK // 2
    while o > 0:
        if t < o:
            s[t] += s[t + o]  # FAULT
        cuda.syncthreads()
        o //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


seed("uninitialised shared memory", block_sum_partial_tile, 2, BLOCK, lambda rng: (normal(rng, 100), zeros(2)))


# each thread's sum in shared memory starts from what happens to be there
@cuda.jit
def column_sums_not_zeroed(a, out):
    sums = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    for row in range(a.shape[0]):
        sums[t] += a[row, t]  # FAULT
    out[t] = sums[t]


seed(
    "uninitialised shared memory",
    column_sums_not_zeroed,
    1,
    BLOCK,
    lambda rng: (normal(rng, 5, BLOCK), zeros(BLOCK)),
)


# the column that only avoids bank conflicts is added up with the others
@cuda.jit
def row_sums_with_padding(a, out):
    tile = cuda.shared.array((TILE, PADDED), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    tile[ty, tx] = a[ty, tx]
    cuda.syncthreads()
    if ty == 0:
        total = float32(0)
        for k in range(PADDED):
            total += tile[tx, k]  # FAULT
        out[tx] = total


seed(
    "uninitialised shared memory",
    row_sums_with_padding,
    1,
    (TILE, TILE),
    lambda rng: (normal(rng, TILE, TILE), zeros(TILE)),
)


# every thread loads one weight into the dynamic memory, but there are more weights than threads
@cuda.jit
def weighted_sums_half_loaded(weight, x, out):
    weights = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    if t < weight.size:
        weights[t] = weight[t]
    cuda.syncthreads()
    total = float32(0)
    for k in range(weight.size):
        total += weights[k] * x[k, t]  # FAULT
    out[t] = total


seed(
    "uninitialised shared memory",
    weighted_sums_half_loaded,
    1,
    BLOCK,
    lambda rng: (normal(rng, 100), normal(rng, 100, BLOCK), zeros(BLOCK)),
    shared=100 * 4,
)


# the block's bins are not set to zero before the first atomic addition
@cuda.jit
def histogram_bins_not_zeroed(label, counts):
    bins = cuda.shared.array(BINS, int32)
    t = cuda.threadIdx.x
    cuda.atomic.add(bins, label[cuda.grid(1)], 1)  # FAULT
    cuda.syncthreads()
    if t == 0:
        cuda.atomic.add(counts, label[0], bins[label[0]])


seed(
    "uninitialised shared memory",
    histogram_bins_not_zeroed,
    1,
    BLOCK,
    lambda rng: (labels(rng, BLOCK, BINS), zeros(BINS, dtype=np.int32)),
)


# in the first block nobody writes the halo element, and its first thread reads it all the same
@cuda.jit
def difference_halo_not_written(x, out):
    tile = cuda.shared.array(HALO, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t + 1] = x[i]
    if t == 0 and i > 0:
        tile[0] = x[i - 1]
    cuda.syncthreads()
    out[i] = tile[t + 1] - tile[t]  # FAULT


seed(
    "uninitialised shared memory",
    difference_halo_not_written,
    2,
    BLOCK,
    lambda rng: (normal(rng, 128), zeros(128)),
)


# room for 32 warps' sums, two of them written, all of them added
@cuda.jit
def block_sum_all_warp_slots(x, out):
    tile = cuda.shared.array(BLOCK, float32)
    sums = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t % 32 == 0:
        total = float32(0)
        for k in range(32):
            total += tile[t + k]
        sums[t // 32] = total
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for w in range(32):
            total += sums[w]  # FAULT
        out[cuda.blockIdx.x] = total


seed("uninitialised shared memory", block_sum_all_warp_slots, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(2)))


# the guard on the inner dimension leaves a part of the tiles unwritten, where zeros belong
@cuda.jit
def matmul_tile_not_filled_up(a, b, c):
    ta = cuda.shared.array((TILE, TILE), float32)
    tb = cuda.shared.array((TILE, TILE), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    if tx < a.shape[1]:
        ta[ty, tx] = a[ty, tx]
    if ty < b.shape[0]:
        tb[ty, tx] = b[ty, tx]
    cuda.syncthreads()
    total = float32(0)
    for k in range(TILE):
        total += ta[ty, k] * tb[k, tx]  # FAULT
    c[ty, tx] = total


seed(
    "uninitialised shared memory",
    matmul_tile_not_filled_up,
    1,
    (TILE, TILE),
    lambda rng: (normal(rng, TILE, 12), normal(rng, 12, TILE), zeros(TILE, TILE)),
)


# the block's maximum is sought from a value that nobody set
@cuda.jit
def block_maximum_not_set(x, out):
    top = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    cuda.atomic.max(top, 0, x[cuda.grid(1)])  # FAULT
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = top[0]


seed("uninitialised shared memory", block_maximum_not_set, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(2)))


# --- lanes ----------------------------------------------------------------------------------------------------


# half of the warp adds up, with a mask that names the whole warp
@cuda.jit
def half_warp_sum_full_mask(x, out):
    t = cuda.threadIdx.x
    value = x[cuda.grid(1)]
    if t < 16:
        value += cuda.shfl_down_sync(FULL, value, 8)  # FAULT
    cuda.syncthreads()
    out[cuda.grid(1)] = value


seed("lanes", half_warp_sum_full_mask, 2, 32, lambda rng: (normal(rng, 64), zeros(64)))


# in the last warp the lanes beyond the array have returned, and the others read from them
@cuda.jit
def warp_sum_after_return(x, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    value = x[i]
    o = 16
    while o > 0:
        value += cuda.shfl_down_sync(FULL, value, o)  # FAULT
        o //= 2
    if i % 32 == 0:
        cuda.atomic.add(out, 0, value)


seed("lanes", warp_sum_after_return, 2, 32, lambda rng: (normal(rng, 40), zeros(1)))


# only lanes with a positive value come to the shuffle, whose mask names all
@cuda.jit
def broadcast_in_branch_on_data(x, out):
    i = cuda.grid(1)
    value = x[i]
    if value > 0:
        value = cuda.shfl_sync(FULL, value, 0)  # FAULT
    cuda.syncthreads()
    out[i] = value


def first_positive(rng):
    x = normal(rng, 64)
    x[[0, 32]] = 1
    x[[7, 39]] = -1
    return x, zeros(64)


seed("lanes", broadcast_in_branch_on_data, 2, 32, first_positive)


# even lanes vote, with a mask that names the odd ones, too
@cuda.jit
def ballot_of_even_lanes(x, out):
    t = cuda.threadIdx.x
    votes = 0
    if t % 2 == 0:
        votes = cuda.ballot_sync(FULL, x[cuda.grid(1)] > 0)  # FAULT
    cuda.syncthreads()
    out[cuda.grid(1)] = votes


seed("lanes", ballot_of_even_lanes, 1, 32, lambda rng: (normal(rng, 32), zeros(32, dtype=np.int64)))


# in the last warp the guard keeps some lanes from the vote
@cuda.jit
def any_positive_in_guard(x, out):
    i = cuda.grid(1)
    found = False
    if i < x.size:
        found = cuda.any_sync(FULL, x[i] > 0)  # FAULT
    cuda.syncthreads()
    if i < x.size:
        out[i] = found


seed("lanes", any_positive_in_guard, 2, 32, lambda rng: (normal(rng, 50), zeros(50, dtype=np.bool_)))


# syncwarp in a branch that half of the warp takes
@cuda.jit
def half_warp_sum_syncwarp_in_branch(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t < 16:
        s[t] += s[t + 16]
        cuda.syncwarp()  # FAULT
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for k in range(16):
            total += s[k]
        out[cuda.blockIdx.x] = total


seed("lanes", half_warp_sum_syncwarp_in_branch, 2, 32, lambda rng: (normal(rng, 64), zeros(2)))


# syncwarp in a loop that the upper lanes leave early
@cuda.jit
def warp_sum_syncwarp_in_uneven_loop(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    o = 16
    while t < o:
        s[t] += s[t + o]
        cuda.syncwarp()  # FAULT
        o //= 2
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


seed("lanes", warp_sum_syncwarp_in_uneven_loop, 2, 32, lambda rng: (normal(rng, 64), zeros(2)))


# 16 lanes execute the shuffle and its mask names eight of them
@cuda.jit
def half_warp_sum_mask_too_small(x, out):
    t = cuda.threadIdx.x
    value = x[cuda.grid(1)]
    if t < 16:
        value += cuda.shfl_xor_sync(0xFF, value, 4)  # FAULT
    cuda.syncthreads()
    out[cuda.grid(1)] = value


seed("lanes", half_warp_sum_mask_too_small, 2, 32, lambda rng: (normal(rng, 64), zeros(64)))


# the mask names the lower half, but the first step reads from the upper half
@cuda.jit
def half_warp_sum_step_too_large(x, out):
    t = cuda.threadIdx.x
    value = x[cuda.grid(1)]
    if t < 16:
        o = 16
        while o > 0:
            value += cuda.shfl_down_sync(0xFFFF, value, o)  # FAULT
            o //= 2
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = value


seed("lanes", half_warp_sum_step_too_large, 2, 32, lambda rng: (normal(rng, 64), zeros(2)))


# a block of 48 threads: its second warp has 16 lanes, and they read from the 16 that do not exist
@cuda.jit
def warp_sums_of_short_block(x, out):
    t = cuda.threadIdx.x
    value = x[cuda.grid(1)]
    o = 16
    while o > 0:
        value += cuda.shfl_down_sync(FULL, value, o)  # FAULT
        o //= 2
    if t % 32 == 0:
        cuda.atomic.add(out, 0, value)


seed("lanes", warp_sums_of_short_block, 2, 48, lambda rng: (normal(rng, 96), zeros(1)))


@cuda.jit(device=True)
def warp_sum(value):
    o = 16
    while o > 0:
        value += cuda.shfl_down_sync(FULL, value, o)  # FAULT
        o //= 2
    return value


# eight threads call a device function that needs a whole warp
@cuda.jit
def block_sum_of_eight_parts(x, out):
    s = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    total = float32(0)
    if t < 8:
        for k in range(t, BLOCK, 8):
            total += s[k]
        total = warp_sum(total)
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = total


seed("lanes", block_sum_of_eight_parts, 2, BLOCK, lambda rng: (normal(rng, 128), zeros(2)), also=(warp_sum,))


# lanes leave the loop when they are done, and the others still ask all of them
@cuda.jit
def steps_until_all_done(steps, out):
    t = cuda.threadIdx.x
    done = 0
    for k in range(8):
        if k == steps[t]:
            break
        if cuda.all_sync(FULL, k >= 6):  # FAULT
            break
        done += 1
    cuda.syncthreads()
    out[t] = done


seed(
    "lanes",
    steps_until_all_done,
    1,
    32,
    lambda rng: ((np.arange(32) % 5 + 1).astype(np.int32), zeros(32, dtype=np.int32)),
)


# --- launch faults: these kernels are right, and their launches are not ---------------------------------------


@cuda.jit
def scale(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * float32(2)


@cuda.jit
def scale_2d(a, out):
    col, row = cuda.grid(2)
    if row < a.shape[0] and col < a.shape[1]:
        out[row, col] = a[row, col] * float32(2)


@cuda.jit
def scale_3d(a, out):
    k, j, i = cuda.grid(3)
    if i < a.shape[0] and j < a.shape[1] and k < a.shape[2]:
        out[i, j, k] = a[i, j, k] * float32(2)


def vectors(rng):
    return normal(rng, 2000), zeros(2000)


def matrices(rng):
    return normal(rng, 30, 40), zeros(30, 40)


def volumes(rng):
    return normal(rng, 17, 8, 8), zeros(17, 8, 8)


seed("too many threads", scale, 2, 1025, vectors)
seed("too many threads", scale_2d, (2, 1), (32, 33), matrices)
seed("too many threads", scale_3d, (1, 1, 1), (8, 8, 17), volumes)


@cuda.jit
def reverse_dynamic(x, out):
    tile = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    start = cuda.blockIdx.x * cuda.blockDim.x
    tile[t] = x[start + t]
    cuda.syncthreads()
    out[start + t] = tile[cuda.blockDim.x - 1 - t]


@cuda.jit
def reverse_large_tile(x, out):
    tile = cuda.shared.array((80, 80), float64)
    t = cuda.threadIdx.x
    start = cuda.blockIdx.x * cuda.blockDim.x
    tile[0, t] = x[start + t]
    cuda.syncthreads()
    out[start + t] = tile[0, cuda.blockDim.x - 1 - t]


@cuda.jit
def product_two_tiles(a, b, c):
    ta = cuda.shared.array((64, 64), float64)
    tb = cuda.shared.array((64, 64), float64)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    ta[ty, tx] = a[ty, tx]
    tb[ty, tx] = b[ty, tx]
    cuda.syncthreads()
    total = float64(0)
    for k in range(TILE):
        total += ta[ty, k] * tb[k, tx]
    c[ty, tx] = total


@cuda.jit
def reverse_static_and_dynamic(x, out):
    table = cuda.shared.array(8192, float32)
    tile = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    start = cuda.blockIdx.x * cuda.blockDim.x
    table[t] = x[start + t]
    tile[t] = x[start + t]
    cuda.syncthreads()
    out[start + t] = tile[cuda.blockDim.x - 1 - t] + table[t]


def two_blocks(rng):
    return normal(rng, 2 * BLOCK), zeros(2 * BLOCK)


seed("too much shared memory", reverse_large_tile, 2, BLOCK, two_blocks)
seed(
    "too much shared memory",
    product_two_tiles,
    1,
    (TILE, TILE),
    lambda rng: (rng.random((TILE, TILE)), rng.random((TILE, TILE)), zeros(TILE, TILE, dtype=np.float64)),
)
seed("too much shared memory", reverse_dynamic, 2, BLOCK, two_blocks, shared=48 * 1024 + 4)
seed("too much shared memory", reverse_static_and_dynamic, 2, BLOCK, two_blocks, shared=20 * 1024)

seed("empty grid", scale, 0, BLOCK, vectors)
seed("empty grid", scale, 2, 0, vectors)
seed("empty grid", scale_2d, (3, 30 // 32), (16, 32), matrices)
seed("empty grid", scale_2d, (3, 2), (16, 0), matrices)


@cuda.jit
def add_row_vector(a, vector, out):
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if row < a.shape[0]:
        for col in range(cuda.threadIdx.x, a.shape[1], cuda.blockDim.x):
            out[row, col] = a[row, col] + vector[col]


@cuda.jit
def double_row_per_block(a, out):
    row = cuda.blockIdx.y
    for col in range(cuda.grid(1), a.shape[1], cuda.gridDim.x * cuda.blockDim.x):
        out[row, col] = a[row, col] * float32(2)


# one number for the grid and one for the block, where the problem has two or three axes
seed("dimensions", scale_2d, 3, BLOCK, matrices)
seed("dimensions", scale_3d, 17, BLOCK, volumes)
seed(
    "dimensions",
    add_row_vector,
    4,
    BLOCK,
    lambda rng: (normal(rng, 30, 40), normal(rng, 40), zeros(30, 40)),
)
seed("dimensions", double_row_per_block, 30, BLOCK, matrices)
