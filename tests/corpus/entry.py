"""What an entry of the corpus is: a kernel, its launch, and what NumPy says it must leave behind."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Entry:
    """One kernel with one launch.

    `arguments` makes fresh arrays and scalars, the outputs poisoned. `expected` takes copies of them and says which
    argument holds what after the launch; those it leaves out must be as before. `tolerance` is relative to the
    largest |expected|; 0 asks for equality. `ulp` is how many units in the last place CPU and GPU may differ, element
    by element; where small elements are differences of large ones (`cancels`), units of the array's largest value
    count. `shared` is dynamic shared memory in bytes. `views` maps an argument to the index that is applied to its
    device array before the launch, for arrays that are contiguous in no order. `simulator` says whether numba's
    simulator runs the kernel right.
    """

    kernel: object
    grid: int | tuple
    block: int | tuple
    arguments: Callable[[np.random.Generator], tuple]
    expected: Callable[..., dict[int, np.ndarray]]
    tolerance: float = 0.0
    ulp: int = 4
    shared: int = 0
    simulator: bool = True
    cancels: bool = False
    views: dict[int, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.kernel.py_func.__name__

    def viewed(self, arguments) -> list:
        """The arguments as the kernel gets them; works on NumPy's arrays and on the device's."""
        return [a[self.views[k]] if k in self.views else a for k, a in enumerate(arguments)]


def poison(shape, dtype=np.float32) -> np.ndarray:
    """An array of what no kernel writes: NaN, the least integer (of unsigned ones the largest), or True."""
    dtype = np.dtype(dtype)
    if dtype.kind in "fc":
        value = np.nan
    elif dtype.kind == "b":
        value = True
    else:
        value = np.iinfo(dtype).min or np.iinfo(dtype).max
    return np.full(shape, value, dtype)


def normal(rng, shape, dtype=np.float32) -> np.ndarray:
    """Standard normal numbers."""
    return rng.standard_normal(shape).astype(dtype)


def uniform(rng, shape, dtype=np.float32, low=0.5, high=1.5) -> np.ndarray:
    """Numbers of one sign: their sums lose nothing to cancellation."""
    return rng.uniform(low, high, shape).astype(dtype)


def whole(rng, shape, dtype=np.int32, low=-50, high=50) -> np.ndarray:
    """Small whole numbers, whose sums are exact in every type and order."""
    return rng.integers(low, high, shape).astype(dtype)


def f64(*arrays):
    """Arrays as float64, in which the references compute."""
    out = tuple(np.asarray(a, np.float64) for a in arrays)
    return out[0] if len(out) == 1 else out
