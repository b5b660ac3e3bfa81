"""Who am I and which element is mine: grids, blocks, strides, views."""

import labkit  # isort: skip  # noqa: F401  # before numba

import numpy as np
from numba import cuda

from .entry import Entry, normal, poison, whole

POINT = np.dtype([("x", np.float32), ("y", np.float32), ("hits", np.int32), ("kind", np.int8)], align=True)


@cuda.jit
def copy_1d(a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i]


@cuda.jit
def indices_1d(out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.shape[0]:
        out[i, 0] = cuda.threadIdx.x
        out[i, 1] = cuda.blockIdx.x
        out[i, 2] = cuda.blockDim.x
        out[i, 3] = cuda.gridDim.x


@cuda.jit
def indices_2d(out):
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        out[y, x] = 1000 * (cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x) + (
            cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        )


@cuda.jit
def indices_3d(out):
    x, y, z = cuda.grid(3)
    if x < out.shape[2] and y < out.shape[1] and z < out.shape[0]:
        block = (cuda.blockIdx.z * cuda.gridDim.y + cuda.blockIdx.y) * cuda.gridDim.x + cuda.blockIdx.x
        thread = (cuda.threadIdx.z * cuda.blockDim.y + cuda.threadIdx.y) * cuda.blockDim.x + cuda.threadIdx.x
        out[z, y, x] = 1000 * block + thread


@cuda.jit
def gridsizes_1d(out):
    if cuda.grid(1) == 0:
        out[0] = cuda.gridsize(1)
        out[1] = cuda.gridDim.x * cuda.blockDim.x
        out[2] = cuda.gridDim.y + cuda.blockDim.z


@cuda.jit
def gridsizes_2d(out):
    x, y = cuda.grid(2)
    if x == 0 and y == 0:
        nx, ny = cuda.gridsize(2)
        out[0] = nx
        out[1] = ny


@cuda.jit
def gridsizes_3d(out):
    x, y, z = cuda.grid(3)
    if x == 1 and y == 0 and z == 1:
        nx, ny, nz = cuda.gridsize(3)
        out[0] = nx
        out[1] = ny
        out[2] = nz
        out[3] = cuda.gridDim.z * cuda.blockDim.z


@cuda.jit
def lanes(out):
    # lanes count through x, then y, then z
    t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    out[cuda.blockIdx.x, t, 0] = cuda.laneid
    out[cuda.blockIdx.x, t, 1] = t // cuda.warpsize


@cuda.jit
def grid_stride(a, out):
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        out[i] = 2 * a[i] + 1


@cuda.jit
def grid_stride_2d(a, out):
    x, y = cuda.grid(2)
    nx, ny = cuda.gridsize(2)
    for i in range(y, a.shape[0], ny):
        for j in range(x, a.shape[1], nx):
            out[i, j] = a[i, j] - i * j


@cuda.jit
def grid_stride_while(a, out, n):
    i = cuda.grid(1)
    while i < n:
        out[i] = a[n - 1 - i]
        i += cuda.gridsize(1)


@cuda.jit
def four_in_a_row(a, out):
    first = 4 * cuda.grid(1)
    for i in range(first, min(first + 4, a.size)):
        out[i] = -a[i]


@cuda.jit
def four_a_block_apart(a, out):
    i = 4 * cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    for _ in range(4):
        if i < a.size:
            out[i] = a[i] + 1
        i += cuda.blockDim.x


@cuda.jit
def strided_copy(a, out, stride):
    i = cuda.grid(1)
    if i * stride < a.size:
        out[i] = a[i * stride]


@cuda.jit
def offset_copy(a, out, offset):
    i = cuda.grid(1) + offset
    if i < a.size:
        out[i] = a[i]


@cuda.jit
def scatter(a, places, out):
    i = cuda.grid(1)
    if i < a.size:
        out[places[i]] = a[i]


@cuda.jit
def shapes(a, b, out):
    if cuda.grid(1) == 0:
        rows, columns = a.shape
        out[0] = rows
        out[1] = columns
        out[2] = a.ndim
        out[3] = a.size
        out[4] = len(a)
        out[5] = a.strides[0]
        out[6] = a.strides[1]
        out[7] = b.ndim
        out[8] = b.shape[2]
        out[9] = a.itemsize


@cuda.jit
def rows_as_views(a, out):
    # partial indexing, a column, a slice of a slice
    i = cuda.grid(1)
    if i < a.shape[0]:
        row = a[i]
        whole_row = a[i, :]
        inner = row[2:]
        column = a[:, 1]
        total = 0
        for j in range(len(row)):
            total += row[j] * whole_row[j]
        out[i, 0] = total
        out[i, 1] = inner[0] - inner[len(inner) - 1]
        out[i, 2] = column[i] + column[0]
        out[i, 3] = inner.shape[0]


@cuda.jit
def write_through_views(out):
    # every second element, a block of a plane
    i = cuda.grid(1)
    if i < out.shape[0]:
        plane = out[i]
        even = plane[0, ::2]
        odd = plane[0][1::2]
        for j in range(even.size):
            even[j] = 10 * i + j
        for j in range(odd.size):
            odd[j] = -j
        corner = plane[1:, 2:5]
        for y in range(corner.shape[0]):
            for x in range(corner.shape[1]):
                corner[y, x] = 100 + 3 * y + x


@cuda.jit
def planes(a, out):
    z, y, x = cuda.grid(3)
    if z < a.shape[0] and y < a.shape[1] and x < a.shape[2]:
        out[x, z, y] = a[z, y, x]


@cuda.jit
def fortran_rows(a, out):
    # column-major in and out
    i, j = cuda.grid(2)
    if i < a.shape[0] and j < a.shape[1]:
        out[i, j] = a[i, j] + 100 * i


@cuda.jit
def strided_arguments(a, b, out):
    # each argument is a view with gaps
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * b[i, 0] + b[i, b.shape[1] - 1]


@cuda.jit
def records(points, out):
    i = cuda.grid(1)
    if i < points.size:
        p = points[i]
        out[i] = p.x * p.y + p.kind
        points[i].hits += 2
        points[i]["kind"] = 7 - p["kind"]
        points["x"][i] = p.y


def _indices_2d(grid, block, shape):
    y, x = np.indices(shape)
    block_number = y // block[1] * grid[0] + x // block[0]
    return (1000 * block_number + y % block[1] * block[0] + x % block[0]).astype(np.int32)


def _indices_3d(grid, block, shape):
    z, y, x = np.indices(shape)
    block_number = (z // block[2] * grid[1] + y // block[1]) * grid[0] + x // block[0]
    thread = (z % block[2] * block[1] + y % block[1]) * block[0] + x % block[0]
    return (1000 * block_number + thread).astype(np.int32)


def _lanes(out):
    t = np.arange(out.shape[1])
    return {0: np.broadcast_to(np.stack([t % 32, t // 32], 1), out.shape).astype(np.int32)}


def _indices_1d(out):
    i = np.arange(out.shape[0])
    return {0: np.stack([i % 48, i // 48, 0 * i + 48, 0 * i + 3], 1).astype(np.int32)}


def _offset_copy(a, out, offset):
    out[offset:] = a[offset:]
    return {1: out}


def _scatter(a, places, out):
    out[places] = a
    return {2: out}


def _rows_as_views(a, out):
    columns = [(a * a).sum(1), a[:, 2] - a[:, -1], a[:, 1] + a[0, 1], np.full(len(a), a.shape[1] - 2)]
    return {1: np.stack(columns, 1).astype(np.int32)}


def _write_through_views(out):
    for i in range(len(out)):
        n = out[i, 0, ::2].size
        out[i, 0, ::2] = 10 * i + np.arange(n)
        out[i, 0, 1::2] = -np.arange(out.shape[2] - n)
        out[i, 1:, 2:5] = 100 + np.arange(3 * (out.shape[1] - 1)).reshape(-1, 3)
    return {0: out}


def _points(rng):
    points = np.zeros(77, POINT)
    points["x"] = whole(rng, 77)
    points["y"] = whole(rng, 77)
    points["hits"] = np.arange(77)
    points["kind"] = whole(rng, 77, low=-9, high=9)
    return points, poison(77)


def _records(points, out):
    after = points.copy()
    after["hits"] += 2
    after["kind"] = 7 - points["kind"]
    after["x"] = points["y"]
    return {0: after, 1: points["x"] * points["y"] + points["kind"]}


def _strided_arguments(a, b, out):
    out[1::2] = a[::3] * b[:, 1] + b[:, 4]
    return {2: out}


ENTRIES = [
    Entry(copy_1d, 5, 64, lambda r: (normal(r, 301), poison(301)), lambda a, out: {1: a}),
    Entry(indices_1d, 3, 48, lambda r: (poison((131, 4), np.int32),), _indices_1d),
    Entry(
        indices_2d,
        (3, 2),
        (8, 6),
        lambda r: (poison((11, 21), np.int32),),
        lambda out: {0: _indices_2d((3, 2), (8, 6), out.shape)},
    ),
    Entry(
        indices_3d,
        (2, 3, 2),
        (4, 3, 2),
        lambda r: (poison((3, 8, 7), np.int32),),
        lambda out: {0: _indices_3d((2, 3, 2), (4, 3, 2), out.shape)},
    ),
    Entry(
        gridsizes_1d,
        (7,),
        (33,),
        lambda r: (poison(3, np.int64),),
        lambda out: {0: np.array([231, 231, 2])},
    ),
    Entry(gridsizes_2d, (3, 5), (4, 7), lambda r: (poison(2, np.int64),), lambda out: {0: np.array([12, 35])}),
    Entry(
        gridsizes_3d,
        (2, 1, 3),
        (3, 5, 2),
        lambda r: (poison(4, np.int32),),
        lambda out: {0: np.array([6, 5, 6, 6], np.int32)},
    ),
    Entry(lanes, 2, (6, 5, 3), lambda r: (poison((2, 90, 2), np.int32),), _lanes),
    Entry(
        grid_stride,
        3,
        32,
        lambda r: (whole(r, 1001), poison(1001, np.int32)),
        lambda a, out: {1: 2 * a + 1},
    ),
    Entry(
        grid_stride_2d,
        (2, 2),
        (8, 4),
        lambda r: (whole(r, (19, 37)), poison((19, 37), np.int32)),
        lambda a, out: {1: (a - np.multiply.outer(np.arange(19), np.arange(37))).astype(np.int32)},
    ),
    Entry(
        grid_stride_while,
        2,
        64,
        lambda r: (normal(r, 501, np.float64), poison(501, np.float64), 501),
        lambda a, out, n: {1: a[::-1]},
    ),
    Entry(four_in_a_row, 3, 32, lambda r: (normal(r, 379), poison(379)), lambda a, out: {1: -a}),
    Entry(
        four_a_block_apart,
        3,
        32,
        lambda r: (whole(r, 379), poison(379, np.int32)),
        lambda a, out: {1: a + 1},
    ),
    Entry(
        strided_copy,
        2,
        64,
        lambda r: (normal(r, 301), poison(101), np.int32(3)),
        lambda a, out, stride: {1: a[::3]},
    ),
    Entry(offset_copy, 3, 64, lambda r: (normal(r, 170), poison(170), 5), _offset_copy),
    Entry(
        scatter,
        3,
        64,
        lambda r: (normal(r, 150), r.permutation(150).astype(np.int64), poison(150)),
        _scatter,
    ),
    Entry(
        shapes,
        2,
        32,
        lambda r: (normal(r, (5, 7)), normal(r, (2, 3, 4)), poison(10, np.int64)),
        lambda a, b, out: {2: np.array([5, 7, 2, 35, 5, 28, 4, 3, 4, 4])},
    ),
    Entry(rows_as_views, 2, 16, lambda r: (whole(r, (27, 9)), poison((27, 4), np.int32)), _rows_as_views),
    Entry(write_through_views, 1, 8, lambda r: (poison((5, 3, 7), np.int32),), _write_through_views),
    Entry(
        planes,
        (2, 2, 3),
        (2, 3, 4),
        lambda r: (normal(r, (3, 5, 11)), poison((11, 3, 5))),
        lambda a, out: {1: a.transpose(2, 0, 1)},
    ),
    Entry(
        fortran_rows,
        (2, 3),
        (8, 8),
        lambda r: (np.asfortranarray(whole(r, (13, 17))), np.asfortranarray(poison((13, 17), np.int32))),
        lambda a, out: {1: a + 100 * np.arange(13, dtype=np.int32)[:, None]},
    ),
    Entry(
        strided_arguments,
        2,
        32,
        lambda r: (whole(r, 121, np.float32), whole(r, (41, 6), np.float32), poison(82)),
        _strided_arguments,
        views={0: np.s_[::3], 1: np.s_[:, 1:5], 2: np.s_[1::2]},
    ),
    Entry(records, 2, 64, _points, _records),
]
