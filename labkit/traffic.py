"""The cost model: the bytes and FLOPs that a kernel must move and do, and the time that a GPU needs for them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from labkit.device import Gpu, find_gpu
from labkit.errors import LabError


@dataclass(frozen=True)
class Cost:
    """Global-memory bytes read and written, and FLOPs, of one or more kernel launches.

    Costs add up: `double + triple` is what two kernels cost one after the other.
    """

    read: int
    written: int
    flops: int = 0
    launches: int = 1

    @property
    def bytes(self) -> int:
        """All bytes that cross the memory bus."""
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.read + other.read,
            self.written + other.written,
            self.flops + other.flops,
            self.launches + other.launches,
        )

    def __radd__(self, other: int) -> Cost:  # so that sum(costs) works
        return self if other == 0 else NotImplemented


def nbytes(shape: int | tuple[int, ...], dtype: str | np.dtype) -> int:
    """Bytes of an array of this shape and dtype."""
    sizes = (shape,) if isinstance(shape, int) else shape
    return prod(sizes) * np.dtype(dtype).itemsize


def elementwise(n: int, dtype="float32", *, reads: int = 1, writes: int = 1, flops: int = 1) -> Cost:
    """The cost of a kernel that reads `reads` arrays of n elements, writes `writes` and does `flops` an element."""
    return Cost(reads * nbytes(n, dtype), writes * nbytes(n, dtype), flops * n)


def predict_ms(cost: Cost, gpu: str | Gpu, dtype: str = "fp32", *, launch_us: float = 0.0) -> float:
    """The least time in ms that `gpu` needs for `cost`: the slower of memory and arithmetic, at data-sheet peaks.

    `gpu` is a slug of data/gpus.csv (or a device's name), `dtype` one of fp32, fp16, bf16, fp8. `launch_us` is
    added for each launch. This is the roofline's floor: nothing runs faster, most things run slower.
    """
    gpu = find_gpu(gpu) if isinstance(gpu, str) else gpu
    peak = gpu.tflops.get(dtype)
    if cost.flops and not peak:
        known = ", ".join(k for k, v in gpu.tflops.items() if v)
        raise LabError(f"{gpu.name} has no peak for {dtype!r} in data/gpus.csv; it has {known}")
    memory_ms = cost.bytes / gpu.bandwidth_gbps / 1e6
    arithmetic_ms = cost.flops / peak / 1e9 if cost.flops else 0.0
    return max(memory_ms, arithmetic_ms) + cost.launches * launch_us / 1e3
