"""Fragments: which thread holds which element of a matrix, and in which of its registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from labkit.errors import LabError

# operand -> shape, registers a thread, elements a register, and the element (row, column) that
# element h of register r of a thread is, with g = lane // 4, t = lane % 4, w = warp
_C16x8 = ((16, 8), 4, 1, lambda w, g, t, r, h: (g + 8 * (r // 2), 2 * t + r % 2))
LAYOUTS: dict[str, dict[str, tuple[tuple[int, int], int, int, Callable]]] = {
    "mma_m16n8k16": {
        "a": ((16, 16), 4, 2, lambda w, g, t, r, h: (g + 8 * (r % 2), 2 * t + h + 8 * (r // 2))),
        "b": ((16, 8), 2, 2, lambda w, g, t, r, h: (2 * t + h + 8 * r, g)),
        "c": _C16x8,
        "d": _C16x8,
    },
    "ldmatrix_x4": {"r": ((32, 8), 4, 2, lambda w, g, t, r, h: (8 * r + g, 2 * t + h))},
    "ldmatrix_x4_trans": {"r": ((32, 8), 4, 2, lambda w, g, t, r, h: (8 * r + 2 * t + h, g))},
    "wgmma_m64n256k16": {
        "acc": ((64, 256), 128, 1, lambda w, g, t, r, h: (16 * w + g + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * t + r % 2)),
    },
    "wgmma_m64n128k16": {
        "acc": ((64, 128), 64, 1, lambda w, g, t, r, h: (16 * w + g + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * t + r % 2)),
    },
}


def fragment(instruction: str, operand: str) -> tuple[np.ndarray, np.ndarray]:
    """Of every element of an operand: the thread that holds it, and its place in that thread's registers.

    Two integer arrays of the operand's shape. A place is register × elements a register + element: float16 come two a
    register, the low half first. ldmatrix's four 8×8 matrices are shown one below the other, as rows in shared memory.
    Raises LabError for an unknown instruction or operand. Source: PTX manual, the sections on matrix fragments.
    """
    known = LAYOUTS.get(instruction, {})
    if operand not in known:
        there = "; ".join(f"{name}: {', '.join(operands)}" for name, operands in LAYOUTS.items())
        raise LabError(f"no layout of {operand!r} of {instruction!r}; there are {there}")
    shape, registers, halves, element = known[operand]
    threads, places = (np.full(shape, -1) for _ in range(2))
    for thread in range(shape[0] * shape[1] // (registers * halves)):
        warp, lane = divmod(thread, 32)
        for r in range(registers):
            for h in range(halves):
                at = element(warp, lane // 4, lane % 4, r, h)
                threads[at], places[at] = thread, halves * r + h
    return threads, places


def layout(instruction: str, operand: str) -> str:
    """The fragment as a text table: `lane:place` for each element, its first 16 rows and columns at most."""
    threads, places = fragment(instruction, operand)
    cells = [[f"{threads[i, j]}:{places[i, j]}" for j in range(min(16, threads.shape[1]))] for i in range(16)]
    width = max(len(c) for row in cells for c in row)
    body = "\n".join(" ".join(c.rjust(width) for c in row) for row in cells)
    return f"{instruction}, {operand} {threads.shape[0]}×{threads.shape[1]}, thread:place\n{body}"
