"""Where the arrays of a launch lie, as a table that compiled code reads."""

from __future__ import annotations

import numpy as np

LOCAL, UNKNOWN = -2, -1  # roots: an array of one thread; an array whose origin only its address tells
SPACES = ("global", "shared")


def extents(arguments: tuple) -> list[tuple[int, int]]:
    """(first byte, byte past the last) of each argument that is an array; (0, 0) for others."""
    bounds = np.lib.array_utils.byte_bounds
    return [bounds(a) if isinstance(a, np.ndarray) and a.size else (0, 0) for a in arguments]


def place_arguments(arguments: tuple, written: set[int]) -> tuple[np.ndarray, int]:
    """The table of arrays (base, end, log2 of the unit, first shadow, space, watched) and how many shadows they take.

    Arguments that overlap in memory share their shadows, so that an array passed twice is one array. What the kernel
    never writes needs none.
    """
    table = np.zeros((len(arguments), 6), np.int64)
    groups: list[list[int]] = []
    spans = extents(arguments)
    for i in sorted((i for i, (a, b) in enumerate(spans) if b > a), key=lambda i: spans[i]):
        if groups and spans[i][0] < max(spans[j][1] for j in groups[-1]):
            groups[-1].append(i)
        else:
            groups.append([i])
    used = 0
    for group in groups:
        base, end = min(spans[i][0] for i in group), max(spans[i][1] for i in group)
        unit = min(unit_of(arguments[i].dtype) for i in group)
        watched = bool(written & set(group)) or UNKNOWN in written
        for i in group:
            table[i] = base, end, unit, used, 0, watched
        used += (((end - base) >> unit) + 1) * watched
    return table, used


def unit_of(dtype: np.dtype) -> int:
    """log2 of the bytes that a shadow stands for: the largest power of two that divides an element (or its fields)."""
    sizes = [dtype.itemsize, *(n for d, offset in (dtype.fields or {}).values() for n in (d.itemsize, offset) if n)]
    return min((n & -n).bit_length() - 1 for n in sizes)
