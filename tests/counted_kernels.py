"""Kernels whose memory requests are counted twice: by labkit without a GPU, and by ncu on one.

`COUNTED` lists them with deterministic arguments; `tools/record_counts.py` records ncu's counts. `counted(n, side)`
makes the same kernels with other sizes, for numba's simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkit import checks  # isort: skip  # before numba
from numba import cuda, float32

POINT = np.dtype([("x", np.float32), ("y", np.float32), ("z", np.float32)], align=True)
BINS = 64


@dataclass(frozen=True)
class Counted:
    """One launch of a kernel.

    arguments  NumPy arrays and scalars; the arrays are copied to the device, so that each starts on a 256-byte boundary
    expected   expected(*arguments) -> {position: what that argument must hold afterwards}
    shared     bytes of dynamic shared memory
    terms      how many terms an output sums, for the tolerance
    merges     where the compiled kernel makes other requests than the source says: which, and why
    """

    name: str
    kernel: Callable
    grid: int | tuple[int, int]
    block: int | tuple[int, int]
    arguments: tuple
    expected: Callable[..., dict[int, np.ndarray]]
    shared: int = 0
    terms: int = 1
    merges: str = ""

    def on_device(self) -> tuple:
        """The arguments in device memory, fresh."""
        return tuple(cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in self.arguments)

    def launch(self, arguments: tuple) -> None:
        """Run the kernel once on arguments from `on_device`."""
        self.kernel[self.grid, self.block, 0, self.shared](*arguments)

    def check(self) -> float:
        """Run the kernel and compare all that it must write with NumPy; returns the largest relative error."""
        arguments = self.on_device()
        self.launch(arguments)
        cuda.synchronize()
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in self.arguments]
        return max(
            checks.assert_close(arguments[i].copy_to_host(), right, reduction=self.terms, where=self.name)
            for i, right in self.expected(*copies).items()
        )


@cuda.jit
def copy(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i]


@cuda.jit
def copy_grid_stride(x, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = x[i]


@cuda.jit
def copy_2d(x, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = x[row, col]


@cuda.jit
def copy_even_lanes(x, out):
    i = cuda.grid(1)
    if i < out.size and i % 2 == 0:
        out[i] = x[i]


@cuda.jit
def strided_read(x, out, stride):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i * stride]


@cuda.jit
def strided_write(x, out, stride):
    i = cuda.grid(1)
    if i < x.size:
        out[i * stride] = x[i]


@cuda.jit
def shifted_read(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i + 1]


@cuda.jit
def three_points(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + x[i + 1] + x[i + 2]


@cuda.jit
def four_block_strided(x, out):
    first = 4 * cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    for j in range(4):
        i = first + j * cuda.blockDim.x
        if i < out.size:
            out[i] = x[i]


@cuda.jit
def four_contiguous(x, out):
    first = 4 * cuda.grid(1)
    for j in range(4):
        i = first + j
        if i < out.size:
            out[i] = x[i]


@cuda.jit
def gather(x, index, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[index[i]]


@cuda.jit
def scatter(x, index, out):
    i = cuda.grid(1)
    if i < out.size:
        out[index[i]] = x[i]


@cuda.jit
def broadcast(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[cuda.blockIdx.x]


@cuda.jit
def axpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@cuda.jit
def points_aos(points, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = points[i]["x"] * points[i]["y"] * points[i]["z"]


@cuda.jit
def points_soa(x, y, z, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * y[i] * z[i]


@cuda.jit
def column(a, out, which):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i, which]


@cuda.jit
def column_sums(a, out):
    col = cuda.grid(1)
    if col < a.shape[1]:
        total = np.float32(0)
        for row in range(a.shape[0]):
            total += a[row, col]
        out[col] = total


@cuda.jit
def row_sums(a, out):
    row = cuda.grid(1)
    if row < a.shape[0]:
        total = np.float32(0)
        for col in range(a.shape[1]):
            total += a[row, col]
        out[row] = total


@cuda.jit
def transpose_naive(a, out):
    col, row = cuda.grid(2)
    if row < a.shape[0] and col < a.shape[1]:
        out[col, row] = a[row, col]


@cuda.jit
def transpose_tiled(a, out):
    tile = cuda.shared.array((32, 32), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    left, top = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    if top + ty < a.shape[0] and left + tx < a.shape[1]:
        tile[ty, tx] = a[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < a.shape[1] and top + tx < a.shape[0]:
        out[left + ty, top + tx] = tile[tx, ty]


@cuda.jit
def transpose_padded(a, out):
    tile = cuda.shared.array((32, 33), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    left, top = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    if top + ty < a.shape[0] and left + tx < a.shape[1]:
        tile[ty, tx] = a[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < a.shape[1] and top + tx < a.shape[0]:
        out[left + ty, top + tx] = tile[tx, ty]


@cuda.jit
def transpose_column_write(a, out):
    tile = cuda.shared.array((32, 32), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    tile[tx, ty] = a[row, col]
    cuda.syncthreads()
    out[cuda.blockIdx.x * 32 + ty, cuda.blockIdx.y * 32 + tx] = tile[ty, tx]


@cuda.jit
def matmul_by_rows(a, b, out):
    row, col = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = np.float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total


@cuda.jit
def matmul_by_columns(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = np.float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total


@cuda.jit
def matmul_tiled_16(a, b, out):
    tile_a = cuda.shared.array((16, 16), np.float32)
    tile_b = cuda.shared.array((16, 16), np.float32)
    col, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = np.float32(0)
    for start in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[row, start + tx]
        tile_b[ty, tx] = b[start + ty, col]
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    out[row, col] = total


@cuda.jit
def matmul_tiled_32(a, b, out):
    tile_a = cuda.shared.array((32, 32), np.float32)
    tile_b = cuda.shared.array((32, 32), np.float32)
    col, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    inside = row < out.shape[0] and col < out.shape[1]
    total = np.float32(0)
    for start in range(0, a.shape[1], 32):
        if row < out.shape[0] and start + tx < a.shape[1]:
            tile_a[ty, tx] = a[row, start + tx]
        if start + ty < a.shape[1] and col < out.shape[1]:
            tile_b[ty, tx] = b[start + ty, col]
        cuda.syncthreads()
        if inside:
            for k in range(min(32, a.shape[1] - start)):
                total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    if inside:
        out[row, col] = total


@cuda.jit
def matmul_dynamic(a, b, out, width):
    tiles = cuda.shared.array(0, float32)
    col, row = cuda.grid(2)
    tx, ty, side = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockDim.x
    second = side * width
    total = np.float32(0)
    for start in range(0, a.shape[1], side):
        tiles[ty * width + tx] = a[row, start + tx]
        tiles[second + ty * width + tx] = b[start + ty, col]
        cuda.syncthreads()
        for k in range(side):
            total += tiles[ty * width + k] * tiles[second + k * width + tx]
        cuda.syncthreads()
    out[row, col] = total


@cuda.jit
def reduce_interleaved(x, out):
    cache = cuda.shared.array(256, np.float32)
    tid = cuda.threadIdx.x
    cache[tid] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = 1
    while step < cuda.blockDim.x:
        i = 2 * step * tid
        if i < cuda.blockDim.x:
            cache[i] += cache[i + step]
        cuda.syncthreads()
        step *= 2
    if tid == 0:
        out[cuda.blockIdx.x] = cache[0]


@cuda.jit
def reduce_sequential(x, out):
    cache = cuda.shared.array(0, float32)
    tid = cuda.threadIdx.x
    cache[tid] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if tid < step:
            cache[tid] += cache[tid + step]
        cuda.syncthreads()
        step //= 2
    if tid == 0:
        out[cuda.blockIdx.x] = cache[0]


@cuda.jit
def shared_strided(x, out, stride):
    cache = cuda.shared.array(1024, np.float32)
    tid = cuda.threadIdx.x
    cache[tid] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = cache[tid * stride % 1024]


@cuda.jit
def shared_float64(x, out, stride):
    cache = cuda.shared.array(1024, np.float64)
    tid = cuda.threadIdx.x
    cache[tid] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = cache[tid * stride % 1024]


@cuda.jit
def histogram(x, out):
    bins = cuda.shared.array(BINS, np.int32)
    tid = cuda.threadIdx.x
    if tid < BINS:
        bins[tid] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(bins, x[i], 1)
    cuda.syncthreads()
    if tid < BINS:
        cuda.atomic.add(out, tid, bins[tid])


@cuda.jit
def square(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * x[i]


@cuda.jit
def invariant_load(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        total = np.float32(0)
        for j in range(y.shape[0]):
            total += x[i] * y[j, i]
        out[i] = total


def blocks(n: int, block: int = 256) -> int:
    """How many blocks cover n."""
    return -(-n // block)


def blocks_2d(shape: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    """The grid that covers an array of this shape, columns along x."""
    return blocks(shape[1], block[0]), blocks(shape[0], block[1])


def counted(n: int = 1 << 16, side: int = 256) -> list[Counted]:
    """The kernels on vectors of about n (copy: 16 n) and on matrices of about side × side.

    n is a multiple of 1024, side of 32.
    """
    rng = np.random.default_rng(0)
    odd, tall, wide = n - 93, side + 1, side - 2  # no multiples of anything

    def floats(*shape, dtype=np.float32):
        return rng.standard_normal(shape).astype(dtype)

    def empty(*shape, dtype=np.float32):
        return checks.poisoned(shape, dtype)

    def second(x, out, *_):
        return {1: x}

    def product(a, b, out, *_):
        return {2: a.astype(np.float64) @ b}

    def transposed(a, out):
        return {1: a.T}

    def block_sums(x, out):
        return {1: x.reshape(out.size, -1).sum(axis=1, dtype=np.float64)}

    def shared_read(x, out, stride):
        return {1: x.reshape(-1, 1024)[:, np.arange(1024) * stride % 1024].reshape(-1)}

    permutation = rng.permutation(n).astype(np.int32)
    points = np.zeros(odd, POINT)
    for field in POINT.names:
        points[field] = floats(odd)
    inner = max(16, side // 4)
    a, b = floats(side, inner), floats(inner, side)
    odd_a, odd_b = floats(tall, inner + 6), floats(inner + 6, wide)
    sixteen, thirty_two = (16, 16), (32, 32)

    return [
        # one element a thread
        Counted("copy", copy, blocks(16 * n), 256, (floats(16 * n), empty(16 * n)), second),
        Counted("copy-odd", copy, blocks(odd), 256, (floats(odd), empty(odd)), second),
        Counted("copy-block-100", copy, blocks(n, 100), 100, (floats(n), empty(n)), second),
        Counted("copy-float64", copy, blocks(odd), 256, (floats(odd, dtype="f8"), empty(odd, dtype="f8")), second),
        Counted("copy-float16", copy, blocks(odd), 256, (floats(odd, dtype="f2"), empty(odd, dtype="f2")), second),
        Counted(
            "copy-uint8", copy, blocks(odd), 256,
            (rng.integers(1, 256, odd, np.uint8), empty(odd, dtype=np.uint8)), second,
        ),
        Counted(
            "copy-grid-stride", copy_grid_stride, blocks(n // 8), 256, (floats(odd), empty(odd)), second,
            merges="the loop is unrolled by 4 with a remainder: where lanes of one warp take 7 and 8 turns, they part",
        ),
        Counted(
            "copy-2d", copy_2d, blocks_2d((tall, wide), (8, 8)), (8, 8), (floats(tall, wide), empty(tall, wide)), second
        ),
        Counted(
            "copy-fortran", copy_2d, blocks_2d((tall, wide), (32, 8)), (32, 8),
            (np.asfortranarray(floats(tall, wide)), empty(tall, wide)), second,
        ),
        Counted(
            "copy-even-lanes", copy_even_lanes, blocks(n), 256, (floats(n), np.zeros(n, np.float32)),
            lambda x, out: {1: np.where(np.arange(x.size) % 2 == 0, x, 0)},
        ),
        Counted(
            "axpy", axpy, blocks(odd), 256, (np.float32(3), floats(odd), floats(odd), empty(odd)),
            lambda a, x, y, out: {3: np.float64(a) * x + y},
        ),
        # which elements
        *(
            Counted(
                f"strided-read-{stride}", strided_read, blocks(n), 256, (floats(n * stride), empty(n), stride),
                lambda x, out, stride: {1: x[::stride]},
            )
            for stride in (2, 8, 32)
        ),
        Counted(
            "strided-write-2", strided_write, blocks(n), 256, (floats(n), np.zeros(2 * n, np.float32), 2),
            lambda x, out, stride: {1: np.where(np.arange(out.size) % 2 == 0, np.repeat(x, 2), 0)},
        ),
        Counted("shifted-read", shifted_read, blocks(n), 256, (floats(n + 1), empty(n)), lambda x, out: {1: x[1:]}),
        Counted(
            "three-points", three_points, blocks(odd), 256, (floats(odd + 2), empty(odd)),
            lambda x, out: {1: x[:-2].astype(np.float64) + x[1:-1] + x[2:]}, terms=3,
        ),
        Counted("four-block-strided", four_block_strided, blocks(n, 1024), 256, (floats(odd), empty(odd)), second),
        Counted("four-contiguous", four_contiguous, blocks(n, 1024), 256, (floats(odd), empty(odd)), second),
        Counted(
            "gather", gather, blocks(n), 256, (floats(n), permutation, empty(n)), lambda x, index, out: {2: x[index]}
        ),
        Counted(
            "scatter", scatter, blocks(n), 256, (floats(n), permutation, empty(n)),
            lambda x, index, out: {2: x[np.argsort(index)]},
        ),
        Counted(
            "broadcast", broadcast, blocks(n), 256, (floats(blocks(n)), empty(n)), lambda x, out: {1: np.repeat(x, 256)}
        ),
        Counted(
            "points-aos", points_aos, blocks(odd), 256, (points, empty(odd)),
            lambda p, out: {1: p["x"].astype(np.float64) * p["y"] * p["z"]}, terms=3,
        ),
        Counted(
            "points-soa", points_soa, blocks(odd), 256, (floats(odd), floats(odd), floats(odd), empty(odd)),
            lambda x, y, z, out: {3: x.astype(np.float64) * y * z}, terms=3,
        ),
        Counted("column", column, blocks(n), 256, (floats(n, 9), empty(n), 4), lambda a, out, which: {1: a[:, which]}),
        Counted(
            "column-sums", column_sums, blocks(wide, 64), 64, (floats(tall, wide), empty(wide)),
            lambda a, out: {1: a.sum(axis=0, dtype=np.float64)}, terms=tall,
        ),
        Counted(
            "row-sums", row_sums, blocks(tall, 64), 64, (floats(tall, wide), empty(tall)),
            lambda a, out: {1: a.sum(axis=1, dtype=np.float64)}, terms=wide,
        ),
        # transposes and products
        Counted(
            "transpose-naive", transpose_naive, blocks_2d((tall, wide), (32, 8)), (32, 8),
            (floats(tall, wide), empty(wide, tall)), transposed,
        ),
        Counted(
            "transpose-tiled", transpose_tiled, blocks_2d((tall, wide), thirty_two), thirty_two,
            (floats(tall, wide), empty(wide, tall)), transposed,
        ),
        Counted(
            "transpose-padded", transpose_padded, blocks_2d((tall, wide), thirty_two), thirty_two,
            (floats(tall, wide), empty(wide, tall)), transposed,
        ),
        Counted(
            "transpose-column-write", transpose_column_write, blocks_2d((side, 2 * side), thirty_two), thirty_two,
            (floats(side, 2 * side), empty(2 * side, side)), transposed,
        ),
        Counted(
            "matmul-by-rows", matmul_by_rows, (blocks(tall, 32), blocks(wide, 8)), (32, 8),
            (odd_a, odd_b, empty(tall, wide)), product, terms=inner + 6,
        ),
        Counted(
            "matmul-by-columns", matmul_by_columns, blocks_2d((tall, wide), (32, 8)), (32, 8),
            (odd_a, odd_b, empty(tall, wide)), product, terms=inner + 6,
        ),
        Counted(
            "matmul-tiled-16", matmul_tiled_16, blocks_2d((side, side), sixteen), sixteen,
            (a, b, empty(side, side)), product, terms=inner,
            merges="the unrolled loop reads a row of tile_a four elements at a time",
        ),
        Counted(
            "matmul-tiled-32", matmul_tiled_32, blocks_2d((tall, wide), thirty_two), thirty_two,
            (odd_a, odd_b, empty(tall, wide)), product, terms=inner + 6,
        ),
        *(
            Counted(
                f"matmul-dynamic-{width}", matmul_dynamic, blocks_2d((side, side), sixteen), sixteen,
                (a, b, empty(side, side), width), product, shared=2 * 16 * width * 4, terms=inner,
            )
            for width in (16, 17)
        ),
        # shared memory
        Counted("reduce-interleaved", reduce_interleaved, n // 256, 256, (floats(n), empty(n // 256)), block_sums,
                terms=256),
        Counted("reduce-sequential", reduce_sequential, n // 256, 256, (floats(n), empty(n // 256)), block_sums,
                shared=256 * 4, terms=256),
        *(
            Counted(f"shared-strided-{stride}", shared_strided, n // 1024, 1024, (floats(n), empty(n), stride),
                    shared_read)
            for stride in (1, 2, 3, 32)
        ),
        *(
            Counted(
                f"shared-float64-{stride}", shared_float64, n // 1024, 1024,
                (floats(n, dtype="f8"), empty(n, dtype="f8"), stride), shared_read,
            )
            for stride in (1, 2, 16)
        ),
        Counted(
            "histogram", histogram, blocks(odd), 256,
            (rng.integers(0, BINS, odd, np.int32), np.zeros(BINS, np.int32)),
            lambda x, out: {1: np.bincount(x, minlength=BINS)},
            merges="atomics are no loads or stores for ncu, and lanes that add 1 to the same bin share one addition",
        ),
        # what the compiler changes
        Counted(
            "square", square, blocks(n), 256, (floats(n), empty(n)), lambda x, out: {1: x.astype(np.float64) ** 2},
            merges="both reads of x[i] are one load",
        ),
        Counted(
            "invariant-load", invariant_load, blocks(odd), 256, (floats(odd), floats(3, odd), empty(odd)),
            lambda x, y, out: {2: (x.astype(np.float64) * y).sum(axis=0)}, terms=3,
            merges="x[i] is loaded once, before the loop",
        ),
    ]  # fmt: skip


COUNTED = counted()
