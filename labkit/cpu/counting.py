"""Runs a kernel with the counting instrument and gathers what it counted."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd

from labkit.cpu import _launch, report
from labkit.cpu.arrays import SPACES
from labkit.cpu.counts import State
from labkit.cpu.launch import Launch, host, prepare
from labkit.cpu.private import dtype_of
from labkit.cpu.program import WORKERS, Program, run_parts
from labkit.cpu.requests import CAPACITY, COLUMNS, KINDS, LOGGED, TOO_MANY
from labkit.cpu.runtime import Stop
from labkit.errors import LabError

MAX_LOGGED = 1 << 20
BOUNDARY = 256  # bytes: where device allocations begin


def count_blocks(kernel, grid, block, arguments: tuple, shared: int, blocks: int | None) -> dict:
    """The fields of labkit.traffic.Counted."""
    launch = _launch(kernel, grid, block, shared)
    built, grid, block, arguments = prepare(launch, _copies(arguments), "counted")
    all_blocks = int(np.prod(grid))
    chosen = all_blocks if blocks is None else max(1, min(blocks, all_blocks))
    parts = _parts(all_blocks, chosen, 1 if built.serial else WORKERS)
    states = _run(built, launch, grid, block, arguments, parts)
    return {
        "name": built.name,
        "source": built.lowered.source.text.rstrip(),
        "first_line": built.function.__code__.co_firstlineno,
        "lines": _lines(built, states, arguments),
        "unique": _unique(states, arguments),
        "flops": dict(zip(KINDS, (int(n) for n in sum(s.flops for s in states)), strict=True)),
        "barriers": _barriers(built, states),
        "blocks": chosen,
        "of_blocks": all_blocks,
    }


def _copies(arguments: tuple) -> tuple:
    """Copies of the arrays as they would lie on a device: each allocation on a boundary, views at their place in it.

    Arguments that share memory share it in the copies too.
    """
    owners: dict[int, np.ndarray] = {}
    return tuple(_copy(a, owners) if isinstance(a, np.ndarray) else a for a in map(host, arguments))


def _copy(array: np.ndarray, owners: dict[int, np.ndarray]) -> np.ndarray:
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not (owner.flags.c_contiguous or owner.flags.f_contiguous) or owner.dtype.hasobject:
        return array.copy(order="K")
    begin, end = np.lib.array_utils.byte_bounds(owner)
    if begin not in owners:
        room = np.empty(end - begin + BOUNDARY, np.uint8)
        first = -room.ctypes.data % BOUNDARY
        owners[begin] = room[first : first + end - begin]
        owners[begin][:] = owner.ravel(order="K").view(np.uint8)
    offset = array.__array_interface__["data"][0] - begin
    return np.ndarray(array.shape, array.dtype, owners[begin], offset, array.strides)


def _parts(all_blocks: int, chosen: int, workers: int) -> list[list[tuple[int, int]]]:
    """Ranges of blocks for each worker: all of them, or single blocks spread evenly over the grid."""
    if chosen == all_blocks:
        bounds = [all_blocks * i // workers for i in range(workers + 1)]
        return [[(a, b)] for a, b in pairwise(bounds) if b > a]
    picked = [(i * all_blocks // chosen, i * all_blocks // chosen + 1) for i in range(chosen)]
    return [part for part in (picked[i::workers] for i in range(workers)) if part]


def _run(built: Program, launch: Launch, grid, block, arguments: tuple, parts, log: int = 0) -> list[State]:
    records = [np.zeros(16, np.int64) for _ in parts]
    states = [built.instrument.state(arguments, 0, launch.shared, r, log) for r in records]
    extra = [(r, s.address) for r, s in zip(records, states, strict=True)]
    try:
        run_parts(built, grid, block, launch.shared, arguments, parts, extra)
    except Stop:
        record = next(r for r in records if r[0])
        if record[0] == TOO_MANY:
            raise LabError(
                f"{built.name}: a warp makes more than {CAPACITY:,} requests between two barriers; "
                "count a smaller problem"
            ) from None
        raise report.fault(built, record, grid, block, states[0].table, arguments) from None
    return states


def _lines(built: Program, states: list[State], arguments: tuple) -> pd.DataFrame:
    totals = sum(s.counts for s in states)
    names = [*built.lowered.parameters, *(d.name for d in built.instrument.shared)]
    rows = []
    for number, site in enumerate(built.instrument.sites):
        for root, name in enumerate(names):
            if totals[number, root, 2]:
                space = SPACES[int(states[0].table[root, 4])]
                known = {"line": site.line, "text": site.text, "function": site.function}
                known |= {"array": name, "space": space, "does": site.does}
                rows.append(known | dict(zip(COLUMNS, (int(n) for n in totals[number, root]), strict=True)))
    columns = ["line", "text", "function", "array", "space", "does", *COLUMNS]
    return pd.DataFrame(rows, columns=columns).sort_values("line", kind="stable", ignore_index=True)


def _barriers(built: Program, states: list[State]) -> int:
    totals = sum(s.counts for s in states)
    sites = [i for i, s in enumerate(built.instrument.sites) if s.does.startswith("syncthreads")]
    return int(totals[sites, -1, 0].sum())


def _unique(states: list[State], arguments: tuple) -> tuple[int, int]:
    """Bytes of the arguments that were read, and written, at least once."""
    touched = np.bitwise_or.reduce([s.touched for s in states])
    read = written = 0
    rows = [(row, a) for row, a in zip(states[0].table, arguments, strict=False) if isinstance(a, np.ndarray)]
    for row, a in {int(row[3]): (row, a) for row, a in rows}.values():  # arguments that overlap once
        base, end, unit, first = (int(n) for n in row[:4])
        mine = touched[first : first + ((end - base) >> unit) + 1]
        size = a.itemsize if a.dtype.fields is None else max(1 << unit, 4)
        read += int(np.count_nonzero(mine & 1)) * size
        written += int(np.count_nonzero(mine & 2)) * size
    return read, written


def touched_by(kernel, grid, block, arguments: tuple, array: str, line: int | None, which: int, shared: int):
    """See labkit.traffic.touches."""
    launch = _launch(kernel, grid, block, shared)
    built, grid, block, arguments = prepare(launch, _copies(arguments), "counted")
    names = [*built.lowered.parameters, *(d.name for d in built.instrument.shared)]
    if array not in names:
        raise LabError(f"{built.name} has no array {array!r}; it has {', '.join(names)}")
    root = names.index(array)
    (state,) = _run(built, launch, grid, block, arguments, [[(which, which + 1)]], log=MAX_LOGGED)
    if state.slots[LOGGED] == MAX_LOGGED:
        raise LabError(f"{built.name}: a block makes more than {MAX_LOGGED:,} accesses; show a smaller problem")
    shape, itemsize = _shape(built, arguments, root)
    found = np.full(int(np.prod(shape)), -1, np.int64)
    first = built.function.__code__.co_firstlineno
    for site, thread, k, offset, _ in state.logged[::-1]:  # backwards, so that the first access stays
        if k == root and (line is None or built.instrument.sites[site].line == first + line - 1):
            found[offset // itemsize] = thread
    return found.reshape(shape)


def _shape(built: Program, arguments: tuple, root: int) -> tuple[tuple[int, ...], int]:
    if root < len(arguments):
        return arguments[root].shape, arguments[root].itemsize
    declared = built.instrument.shared[root - len(arguments)]
    return declared.shape, dtype_of(declared.dtype).itemsize
