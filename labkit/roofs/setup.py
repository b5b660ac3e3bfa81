"""What chapter 03's kernels are launched with and checked against: sizes, candidates, costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from labkit import checks, device, timing
from labkit.experiment import recording, row
from labkit.traffic import Cost, elementwise

PARAMETERS = {"n": 0, "batch": 0, "degree": 0, "each": 0, "block": 0}  # 0: does not apply


@dataclass(frozen=True)
class Sizes:
    """How large everything is; powers of two where it says log2. The defaults are for a GPU."""

    copy_log2: tuple[int, ...] = (26, 28)  # floats copied
    read_log2: int = 30  # floats read: 4 GiB
    loads: tuple[int, ...] = (1, 2, 4, 8, 16)  # under way, a thread
    widths: tuple[int, ...] = (128, 256, 512)  # threads a block
    sms: int = 0  # 0: this machine's
    threads: int = 2048  # that an SM holds
    rounds: int = 1024  # of 16 FMAs a chain
    tensor_flops: float = 5e11
    l2_mib: tuple[float, ...] = (2, 8, 16, 24, 32, 48)
    elements_log2: int = 27  # of the kernels that read and write an array
    row: int = 1024  # floats a row of softmax and layer norm
    turns: tuple[int, ...] = (1, 2, 4, 8, 16)  # of 16 degrees
    gemv_log2: int = 14
    square: int = 2048
    weights: int = 16384
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 1024, 2048)


@dataclass(frozen=True)
class Kernels:
    """The chapter's kernels, and the float64 references of those that compute something.

    copy, read, reread       made for a number of loads under way: copy(4) is a kernel
    fma, polynomial, naive   kernels
    mma                      made for rows × columns of tiles a warp
    separate, fused          elementwise kernels: the first two do what the third does
    softmax, layer_norm      made for a number of elements a lane: softmax(32) takes rows of up to 1024
    gemv                     made for a number of weights under way a lane
    """

    copy: Callable
    read: Callable
    reread: Callable
    fma: Callable
    mma: Callable
    separate: tuple
    fused: Callable
    softmax: Callable
    layer_norm: Callable
    gemv: Callable
    naive: Callable
    polynomial: Callable
    references: dict[str, Callable]


@dataclass(frozen=True)
class Candidate:
    """Something to be timed, already checked."""

    variant: str
    launch: Callable
    cost: Cost
    error: float
    given: dict


def blocks(n: int, each: int) -> int:
    """How many blocks of `each` elements cover n."""
    return -(-n // each)


def gemm_cost(m: int, n: int, k: int, size: int) -> Cost:
    """C[m, n] = A[m, k] · B[k, n], `size` bytes a number, every matrix touched once."""
    return Cost(size * (m * k + k * n), size * m * n, 2 * m * n * k)


def row_costs(n: int) -> dict[str, Cost]:
    """Of the kernels that read and write n floats."""
    return {
        "separate": elementwise(n, flops=9) + elementwise(n, flops=1),
        "fused": elementwise(n, flops=10),
        "softmax": elementwise(n, flops=5),
        "layer-norm": elementwise(n, flops=8),
    }


def checked(launch: Callable, out, expected: np.ndarray, **how) -> float:
    """Poison the last rows of `out`, run, compare them with `expected`; returns the relative error."""
    last = out[out.shape[0] - expected.shape[0] :]
    last.copy_to_device(checks.poisoned(expected.shape, out.dtype))
    launch()
    return checks.assert_close(last.copy_to_host(), expected, **how)


def timed(candidates: Iterable[Candidate], kind: str, dtype: str = "float32", **options) -> list[dict]:
    """The candidates' rows, timed in turn."""
    candidates = list(candidates)
    options = {"warmup": 10, "rep": 60 if recording() else 15} | options
    times = timing.measure_all({i: c.launch for i, c in enumerate(candidates)}, **options)
    return [
        row(c.variant, times[i], c.cost, c.error, kind=kind, dtype=dtype, **PARAMETERS | c.given)
        for i, c in enumerate(candidates)
    ]


def fitting(log2: int, nbytes: int) -> int:
    """2^log2, or the largest smaller power of two of `nbytes` an element that fits in the GPU's memory."""
    while not device.fits(nbytes << log2):
        log2 -= 1
    return 1 << log2


def cuda():
    """numba.cuda, imported when it is first wanted."""
    from numba import cuda

    return cuda


def normal(*shape: int) -> np.ndarray:
    """Random float32, the same for the same shape."""
    return np.random.default_rng(shape).standard_normal(shape, dtype=np.float32)


def empty(*shape: int, dtype=np.float32):
    """An array on the device."""
    return cuda().device_array(shape, dtype)


def sms(sizes: Sizes) -> int:
    """The SMs to fill."""
    return sizes.sms or device.MACHINE.sms
