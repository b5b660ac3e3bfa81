"""Runs numba.cuda kernels without a GPU: their own source, compiled; on request checked, access by access.

    with labkit.cpu.checked():
        kernel[grid, block](x, out)      # raises KernelFault at the first race, bad index or divergent barrier

Nothing here imports numba before it is needed.
"""

from __future__ import annotations

import contextlib
import os

from labkit.cpu.faults import SHARED_LIMIT, KernelFault
from labkit.cpu.source import BadKernel, Unsupported  # now: imported later, the module would replace `source` below

VARIABLE = "LABKIT_CPU"  # 0: leave kernels to numba's simulator

__all__ = ["BadKernel", "KernelFault", "Unsupported", "checked", "install", "launches", "run", "simulated", "source"]

_watchers: list[list[str]] = []


def install() -> None:
    """Run the kernels of numba's simulator compiled (done by `import labkit` unless LABKIT_CPU=0)."""
    from labkit.cpu import hook

    if os.environ.get(VARIABLE, "1") != "0":
        hook.install()


def checked(on: bool = True, shared_limit: int = SHARED_LIMIT):
    """A context in which every launch is checked; `shared_limit` in bytes a block, if the GPU in mind has more."""
    from labkit.cpu.launch import using

    return using(checks=on, shared_limit=shared_limit)


def simulated(on: bool = True):
    """A context in which launches go to numba's simulator instead, for comparing."""
    from labkit.cpu.launch import using

    return using(simulator=on)


@contextlib.contextmanager
def launches():
    """Collects the names of the kernels that run on the CPU meanwhile."""
    names: list[str] = []
    _watchers.append(names)
    try:
        yield names
    finally:
        _watchers.remove(names)


def run(kernel, grid, block, *arguments, shared: int = 0, checks: bool = False) -> None:
    """Run a kernel on the CPU, on NumPy arrays in place, even where there is a GPU.

    kernel  of @cuda.jit, or the Python function
    shared  bytes of dynamic shared memory
    checks  raise KernelFault at the first fault (slower, one thread)
    """
    from labkit.cpu.launch import execute, using

    with using(checks=checks, simulator=False):
        execute(_launch(kernel, grid, block, shared), arguments)


def source(kernel, *arguments) -> str:
    """The Python that a kernel becomes for these arguments before numba compiles it."""
    from labkit.cpu.launch import host
    from labkit.cpu.program import program

    return program(_launch(kernel, 1, 1, 0).function, tuple(map(host, arguments))).source


def _launch(kernel, grid, block, shared: int):
    from labkit.cpu.launch import Launch

    function = getattr(kernel, "py_func", None) or getattr(kernel, "fn", kernel)
    options = getattr(kernel, "options", None) or getattr(kernel, "targetoptions", {})
    return Launch(function, grid, block, shared, bool(options.get("fastmath")), getattr(kernel, "signature", None))
