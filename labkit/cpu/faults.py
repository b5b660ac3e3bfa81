"""What can be wrong with a launch or a thread, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.errors import LabError

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
SHARED_LIMIT = 48 * 1024  # bytes a block gets on every GPU without asking for more


@dataclass(frozen=True)
class Place:
    """Where in the source something happened."""

    function: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.function}, line {self.line} (`{self.text}`)"


class KernelFault(LabError):
    """A kernel did what no GPU defines: a bad index, a race, a barrier that not all reach, a launch out of bounds.

    kind         one of the kinds below, as text
    line, other_line  of the access at fault, and of the earlier one that it races with (0: none)
    array, index the array's name in the kernel, and where in it
    block, thread, other_block, other_thread  3-tuples
    """

    def __init__(self, kind: str, message: str, **details):
        super().__init__(message)
        self.kind = kind
        self.line = self.other_line = 0
        self.array = self.index = self.block = self.thread = self.other_block = self.other_thread = None
        vars(self).update(details)


OUT_OF_RANGE = "out-of-range index"
NEGATIVE = "negative index"
SHARED_RACE = "race in shared memory"
GLOBAL_RACE = "race in global memory"
DIVERGENT = "divergent barrier"
UNINITIALISED = "uninitialised shared memory"
LANES = "lanes"
TOO_MANY_THREADS = "too many threads"
TOO_MUCH_SHARED = "too much shared memory"
EMPTY_GRID = "empty grid"
DIMENSIONS = "dimensions"

SMALLER = {
    "grid": "let each thread see to several elements",
    "block": "take smaller blocks and more of them",
}


def three(size, what: str, kernel: str) -> tuple[int, int, int]:
    """A grid or block as three integers."""
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    if not 1 <= len(sizes) <= 3 or not all(hasattr(n, "__index__") for n in sizes):
        raise KernelFault(DIMENSIONS, f"{kernel}: the {what} is {size!r}; expected 1 to 3 integers")
    return tuple(int(n) for n in sizes) + (1,) * (3 - len(sizes))


def check_launch(kernel: str, grid: tuple, block: tuple) -> None:
    """Refuse what a driver refuses."""
    for what, sizes, limits in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        if min(sizes) < 1:
            raise KernelFault(
                EMPTY_GRID,
                f"{kernel}: the {what} is {sizes}; each of its sides must be at least 1 "
                "(blocks for n threads, rounded up: (n + threads - 1) // threads)",
            )
        if any(n > limit for n, limit in zip(sizes, limits, strict=True)):
            raise KernelFault(
                TOO_MANY_THREADS,
                f"{kernel}: the {what} is {sizes}; its limits are {limits}; {SMALLER[what]}",
            )
    threads = int(np.prod(block))
    if threads > MAX_THREADS:
        raise KernelFault(
            TOO_MANY_THREADS,
            f"{kernel}: a block of {block} has {threads} threads; a GPU takes {MAX_THREADS} at most; "
            f"{SMALLER['block']}",
        )


def check_shared(kernel: str, static: int, dynamic: int, limit: int) -> None:
    """Refuse more shared memory than a block may have."""
    if static > SHARED_LIMIT:
        raise KernelFault(
            TOO_MUCH_SHARED,
            f"{kernel}: {static:,} bytes of static shared memory; a block gets {SHARED_LIMIT:,} at most "
            "(more only as dynamic shared memory); take smaller tiles",
        )
    if static + dynamic > limit:
        raise KernelFault(
            TOO_MUCH_SHARED,
            f"{kernel}: {static + dynamic:,} bytes of shared memory ({dynamic:,} of them dynamic); "
            f"the limit is {limit:,}; take smaller tiles (or shared_limit=, if the GPU in mind has more)",
        )


def check_dimensions(kernel: str, used: set[str], grid, block) -> None:
    """Refuse a kernel with y or z indices that is launched with plain numbers."""
    plain = not any(isinstance(size, (tuple, list)) and len(size) > 1 for size in (grid, block))
    if plain and used & {"y", "z"}:
        axis = max(used & {"y", "z"})
        raise KernelFault(
            DIMENSIONS,
            f"{kernel}: it reads its place along {axis}, but was launched with grid {grid} and block {block}; "
            f"give tuples with {'yz'.index(axis) + 2} sizes",
        )


def unravel(linear: int, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """The x, y, z of a thread in its block, or of a block in its grid."""
    return linear % sizes[0], linear // sizes[0] % sizes[1], linear // sizes[0] // sizes[1]
