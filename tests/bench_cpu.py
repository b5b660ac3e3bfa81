"""How fast kernels run without a GPU: `python tests/bench_cpu.py` prints a table.

plain      after compilation, best of several launches
checked    with every access checked, and how much slower that is
simulator  numba's own, at the largest size that it does in a minute (--quick: in a few seconds), and how much faster
           labkit.cpu runs that size
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import labkit  # noqa: F401  # isort: skip  # before numba

import numpy as np
from numba import cuda, float32, int32

from labkit import cpu

TILE = 16
HEAD = 64  # head_dim
ROWS = 64  # queries a block, one a thread
KEYS = 32  # keys in shared memory at a time
BINS = 256
FULL = 0xFFFFFFFF


@cuda.jit
def scale(x, factor, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * factor


@cuda.jit
def scale_four(x, factor, out):
    """Four elements a thread, a block's threads side by side."""
    first = cuda.blockIdx.x * cuda.blockDim.x * 4 + cuda.threadIdx.x
    for k in range(4):
        i = first + k * cuda.blockDim.x
        if i < x.size:
            out[i] = x[i] * factor


@cuda.jit
def matmul_tiled(a, b, c):
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    col, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    acc = float32(0)
    for first in range(0, a.shape[1], TILE):
        tile_a[ty, tx] = a[row, first + tx]
        tile_b[ty, tx] = b[first + ty, col]
        cuda.syncthreads()
        for k in range(TILE):
            acc += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    c[row, col] = acc


@cuda.jit
def attention(q, k, v, scaling, out):
    """softmax(q kᵀ · scaling) v, a query a thread, the keys in tiles, the softmax online."""
    keys = cuda.shared.array((HEAD, KEYS), float32)  # transposed
    values = cuda.shared.array((KEYS, HEAD), float32)
    query = cuda.local.array(HEAD, float32)
    acc = cuda.local.array(HEAD, float32)
    scores = cuda.local.array(KEYS, float32)
    t = cuda.threadIdx.x
    row = cuda.grid(1)
    for d in range(HEAD):
        query[d] = q[row, d] * scaling
        acc[d] = float32(0)
    highest, total = float32(-math.inf), float32(0)
    for first in range(0, k.shape[0], KEYS):
        for j in range(KEYS):
            keys[t, j] = k[first + j, t]
            values[j, t] = v[first + j, t]
            scores[j] = float32(0)
        cuda.syncthreads()
        for d in range(HEAD):
            for j in range(KEYS):
                scores[j] += query[d] * keys[d, j]
        above = highest
        for j in range(KEYS):
            above = max(above, scores[j])
        shrink = math.exp(highest - above)
        highest = above
        total *= shrink
        for d in range(HEAD):
            acc[d] *= shrink
        for j in range(KEYS):
            weight = math.exp(scores[j] - above)
            total += weight
            for d in range(HEAD):
                acc[d] += weight * values[j, d]
        cuda.syncthreads()
    for d in range(HEAD):
        out[row, d] = acc[d] / total


@cuda.jit
def warp_sums(x, out):
    """The sum of each warp's elements, by shuffles."""
    i = cuda.grid(1)
    value = x[i]
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(FULL, value, offset)
        offset //= 2
    if cuda.laneid == 0:
        out[i // 32] = value


@cuda.jit
def histogram(x, counts):
    """Counts in shared memory, then added to the grid's."""
    own = cuda.shared.array(BINS, int32)
    t = cuda.threadIdx.x
    own[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(own, x[i], 1)
    cuda.syncthreads()
    cuda.atomic.add(counts, t, own[t])


@dataclass(frozen=True)
class Case:
    """A kernel at any size: `make(size)` gives grid, block, arguments, the output's position and its right values."""

    kernel: object
    size: int
    small: int  # that the simulator does within a second or two; 0 if it can't run the kernel
    power: int  # threads and their work together grow with size to this power
    make: Callable[[int], tuple]
    threads: Callable[[int], int]
    bound: str  # of the plain time, as the issue states it

    @property
    def name(self) -> str:
        return self.kernel.py_func.__name__


def normal(*shape) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def for_scale(n: int) -> tuple:
    x = normal(n)
    return -(-n // 256), 256, (x, np.float32(2), np.zeros(n, np.float32)), 2, x * 2


def for_scale_four(n: int) -> tuple:
    _, block, arguments, position, right = for_scale(n)
    return -(-n // 1024), block, arguments, position, right


def for_matmul(n: int) -> tuple:
    a, b = normal(n, n), normal(n, n)
    return (n // TILE, n // TILE), (TILE, TILE), (a, b, np.zeros((n, n), np.float32)), 2, a @ b


def for_attention(n: int) -> tuple:
    q, k, v = normal(3, n, HEAD)
    scores = (q / 8) @ k.T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    right = weights @ v / weights.sum(axis=1, keepdims=True)
    return n // ROWS, ROWS, (q, k, v, np.float32(1 / 8), np.zeros((n, HEAD), np.float32)), 4, right


def for_warp_sums(n: int) -> tuple:
    x = normal(n)
    return n // 256, 256, (x, np.zeros(n // 32, np.float32)), 1, x.reshape(-1, 32).sum(axis=1)


def for_histogram(n: int) -> tuple:
    x = np.random.default_rng(0).integers(0, BINS, n).astype(np.int32)
    return n // 4096, BINS, (x, np.zeros(BINS, np.int32)), 1, np.bincount(x, minlength=BINS)


CASES = [
    Case(scale, 2**24, 4096, 1, for_scale, lambda n: n, "≥ 50 M threads/s"),
    Case(scale_four, 2**24, 8192, 1, for_scale_four, lambda n: n // 4, "≥ 50 M threads/s"),
    Case(matmul_tiled, 512, 32, 3, for_matmul, lambda n: n * n, "≤ 0.5 s"),
    Case(attention, 1024, 64, 2, for_attention, lambda n: n, "≤ 2 s"),
    Case(warp_sums, 2**22, 0, 1, for_warp_sums, lambda n: n, ""),
    Case(histogram, 2**22, 8192, 1, for_histogram, lambda n: n // 16, ""),
]
STEP = {scale: 256, scale_four: 1024, matmul_tiled: TILE, attention: ROWS, warp_sums: 256, histogram: 4096}


def seconds(case: Case, size: int, repeats: int = 1) -> float:
    """The best time of some launches at a size, after one that is not timed and whose result is checked."""
    grid, block, arguments, position, right = case.make(size)
    best = math.inf
    for repeat in range(repeats + (repeats > 1)):
        arguments[position].fill(0)
        start = time.perf_counter()
        case.kernel[grid, block](*arguments)
        if repeat or repeats == 1:
            best = min(best, time.perf_counter() - start)
    found = arguments[position]
    np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-3 * np.abs(right).max(), err_msg=case.name)
    return best


def simulated(case: Case, budget: float) -> tuple[int, float, float]:
    """(the largest size that numba's simulator does in the budget, its time there, ours there)."""
    with cpu.simulated():
        first = seconds(case, case.small)
        wanted = case.small * (budget / first) ** (1 / case.power)
        step = STEP[case.kernel]
        size = min(case.size, max(case.small, int(wanted) // step * step))
        theirs = seconds(case, size)
    return size, theirs, seconds(case, size, repeats=5)


def checked(case: Case, repeats: int) -> float:
    with cpu.checked():
        return seconds(case, case.size, repeats)


def show(case: Case, budget: float) -> str:
    """A row of the table."""
    plain = seconds(case, case.size, repeats=5)
    slow = checked(case, repeats=2)
    rate = case.threads(case.size) / plain / 1e6
    told = (
        f"{case.name:<14}{case.size:>10,}{plain * 1e3:>10.1f}{rate:>11.1f}  {case.bound:<18}{slow * 1e3:>10.1f}"
        f"{slow / plain:>8.1f}"
    )
    if not case.small:
        return told + "  numba's simulator has no shuffles"
    size, theirs, ours = simulated(case, budget)
    return told + f"{size:>11,}{theirs:>10.1f}{ours * 1e3:>10.2f}{theirs / ours:>11,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few seconds of the simulator for each kernel")
    parser.add_argument("--only", help="one kernel, by name")
    options = parser.parse_args()
    print(
        f"{'kernel':<14}{'size':>10}{'plain ms':>10}{'M thr/s':>11}  {'asked':<18}{'checked ms':>10}"
        f"{'slower':>8}{'sim. size':>11}{'sim. s':>10}{'ours ms':>10}{'faster':>11}"
    )
    for case in CASES:
        if options.only in (None, case.name):
            print(show(case, 4 if options.quick else 60), flush=True)


if __name__ == "__main__":
    main()
