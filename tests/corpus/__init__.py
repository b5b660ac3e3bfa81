"""Kernels with which other ways of running numba.cuda code are compared: all that the course uses, and more."""

from . import (
    atomics,
    attention,
    control_flow,
    documentation,
    elementwise,
    functions,
    indexing,
    matmul,
    reductions,
    scans,
    shared,
    types,
    warps,
)
from .entry import Entry

__all__ = ["ENTRIES", "Entry"]

MODULES = (
    indexing,
    elementwise,
    types,
    control_flow,
    functions,
    shared,
    reductions,
    scans,
    matmul,
    atomics,
    warps,
    attention,
    documentation,
)
ENTRIES: list[Entry] = [entry for module in MODULES for entry in module.ENTRIES]
