"""Small pictures of how threads touch memory, from kernels run on the CPU: for the chapters' diagrams."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labkit import plots, ptx, traffic
from labkit.errors import LabError

LARGEST = 32  # elements along a side that can still be read


def who_touches(
    kernel, grid, block, *arguments, array: str, line: int | None = None, which: int = 0, shared: int = 0
) -> plots.CourseFigure:
    """Which thread of one block touches which element of `array`, and what that costs a warp.

    line   only this line of the kernel's source (1 is its first)
    which  the block, counted along x, then y, then z

    Elements that the block leaves alone stay empty. A one-dimensional array is shown in rows of 32.
    """
    found = traffic.touches(kernel, grid, block, *arguments, array=array, line=line, which=which, shared=shared)
    cells = _rows(found)
    counted = traffic.count(kernel, grid, block, *arguments, shared=shared)
    rows = counted.lines[counted.lines["array"] == array]
    if line is not None:
        rows = rows[rows["line"] == counted.first_line + line - 1]
    at = f"line {line}" if line is not None else counted.name
    source = f"counted on the CPU: {counted.name}[{grid}, {block}], block {which}"
    with plots.style():
        fig, ax = plots.new(f"{array} in {at}: {_cost(rows)}", pd.DataFrame({"source": [source]}))
        _draw(ax, cells)
    return fig


def who_holds(instruction: str, operand: str) -> plots.CourseFigure:
    """Which thread holds which element of a tensor-core instruction's operand (`labkit.ptx.fragment`).

    The first 32 rows and columns. Raises LabError for what has no layout there.
    """
    threads, places = ptx.fragment(instruction, operand)
    rows, columns = threads.shape
    source = "the PTX manual's fragment layout"
    each = places.max() + 1
    with plots.style():
        title = f"{operand} of {instruction}, {rows}×{columns}: {each} elements a thread"
        fig, ax = plots.new(title, pd.DataFrame({"source": [source]}))
        _draw(ax, threads[:LARGEST, :LARGEST])
    return fig


def _rows(found: np.ndarray) -> np.ndarray:
    if found.ndim == 1:
        padded = np.full(-(-found.size // LARGEST) * LARGEST, -1)
        padded[: found.size] = found
        found = padded.reshape(-1, LARGEST)
    if found.ndim != 2 or max(found.shape) > LARGEST:
        raise LabError(
            f"an array of shape {found.shape} is too large for a picture; show {LARGEST} × {LARGEST} at most"
        )
    return found


def _cost(rows: pd.DataFrame) -> str:
    """What a warp pays for a request, in words."""
    if rows.empty:
        return "no thread touches it"
    requests = rows["requests"].sum()
    if (rows["space"] == "global").all():
        return f"{traffic.sectors(rows['sectors'].sum() / requests)} a request"
    return f"{(rows['passes'] - rows['ideal']).sum() / requests:.3g} bank conflicts a request"


def _draw(ax, cells: np.ndarray) -> None:
    """A box an element, coloured by the thread whose number stands in it."""
    rows, columns = cells.shape
    ax.imshow(np.ma.masked_less(cells, 0), cmap="cividis", aspect="auto", vmin=0, vmax=max(1, cells.max()))
    ax.set_xlabel("column of the element; the number in a box is the thread")
    ax.set_ylabel("row")
    ax.set_yticks(np.arange(0, rows, max(1, rows // 8)))
    ax.grid(visible=False)
    for edge in np.arange(0.5, columns - 1):
        ax.axvline(edge, color="white", linewidth=1)
    for edge in np.arange(0.5, rows - 1):
        ax.axhline(edge, color="white", linewidth=1)
    size = min(20, 480 / columns, 360 / rows)
    for (i, j), thread in np.ndenumerate(cells):
        if thread >= 0:
            dark = thread < 0.55 * max(1, cells.max())
            ax.text(j, i, str(thread), ha="center", va="center", fontsize=size, color="white" if dark else "black")
