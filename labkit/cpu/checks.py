"""The instrument that finds faults as Oclgrind and compute-sanitizer do: indices, races, memory nobody wrote."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.cpu import private, shadow
from labkit.cpu.access import FAULT, ROWS, TABLE, access_functions, place, pointer
from labkit.cpu.arrays import place_arguments, unit_of
from labkit.cpu.instrument import Instrument
from labkit.cpu.shadow import BLOCK, RACE, READ_WRITE, RELEASED, SHADOWS, STATE, WRITE_READ, WRITE_WRITE

NAMES = access_functions(shadow.on_read, shadow.on_write, shadow.on_atomic) | {
    "_pointer": pointer,
    "_place": place,
    "_begin_block": shadow.begin_block,
    "_end_block": shadow.end_block,
    "_begin_thread": shadow.begin_thread,
    "_barrier": shadow.barrier,
    "_warp": shadow.warp,
    "_fence": shadow.fence,
}  # made once: numba compiles each for the array types that it meets


class Checks(Instrument):
    """The instrument of checked launches."""

    mode = "checked"

    def __init__(self):
        super().__init__()
        self.names = dict(NAMES)

    def state(self, arguments: tuple, blocks: int, dynamic: int, fault: np.ndarray) -> State:
        """The state that the blocks of one part begin with."""
        table, used = place_arguments(arguments, self.written)
        rows, total = self.shared_rows(used, dynamic)
        table = np.concatenate([table, rows])
        shadows, sites = np.zeros((total, 2), np.int64), np.zeros((total, 2), np.int64)
        chunks = np.zeros((total >> shadow.CHUNK) + 1, np.int64)
        released, slots = np.zeros(blocks, np.int64), np.zeros(STATE, np.int64)
        slots[ROWS] = len(table)
        places = {TABLE: table, SHADOWS: shadows, RELEASED: released, FAULT: fault}
        places |= {shadow.CHUNKS: chunks, shadow.SITES: sites}
        for slot, array in places.items():
            slots[slot] = array.ctypes.data
        return State(slots, table, shadows, sites, used, chunks, (released, fault))

    def shared_rows(self, used: int, dynamic: int) -> tuple[np.ndarray, int]:
        """The table's rows of the shared arrays; all views of dynamic shared memory share their shadows."""
        rows = np.zeros((len(self.shared), 6), np.int64)
        unit = self.dynamic_unit
        first_dynamic = used
        used += dynamic // unit + 1
        for row, d in zip(rows, self.shared, strict=True):
            if d.shape == (0,):
                row[:] = 0, 0, unit.bit_length() - 1, first_dynamic, 1, 1
            else:
                nbytes = int(np.prod(d.shape)) * private.dtype_of(d.dtype).itemsize
                shift = unit_of(private.dtype_of(d.dtype))
                row[:] = 0, 0, shift, used, 1, 1
                used += nbytes >> shift
        return rows, used

    def conflict(self, states: list[State], fault: np.ndarray) -> bool:
        """Whether groups of blocks that ran side by side, each with shadows of its own, got in each other's way."""
        for i, theirs in enumerate(states):
            for mine in states[i + 1 :]:
                e = shadow.first_conflict(mine.of_arguments, theirs.of_arguments, mine.chunks, theirs.chunks)
                if e >= 0:
                    fault[:10] = _race_between(mine, theirs, e)
                    return True
        return False


@dataclass(frozen=True)
class State:
    """What a part of the blocks keeps: the slots that generated code knows by their address, and what they point to."""

    slots: np.ndarray
    table: np.ndarray
    shadows: np.ndarray
    sites: np.ndarray
    used: int
    chunks: np.ndarray
    kept: tuple

    @property
    def address(self) -> int:
        return self.slots.ctypes.data

    @property
    def of_arguments(self) -> np.ndarray:
        """The shadows of global memory."""
        return self.shadows[: self.used]


def _race_between(mine: State, theirs: State, e: int) -> tuple:
    """The fault record of two blocks' accesses."""
    i_wrote, they_wrote = mine.shadows[e, 0], theirs.shadows[e, 0]
    kind = WRITE_WRITE if i_wrote and they_wrote else WRITE_READ if i_wrote else READ_WRITE
    my, their = int(not i_wrote), int(kind == WRITE_READ)  # 0: the write, 1: the read
    now, then = mine.shadows[e, my], theirs.shadows[e, their]
    threads, blocks = (shadow.thread_of(now), shadow.thread_of(then)), ((now >> BLOCK) - 1, (then >> BLOCK) - 1)
    return RACE, mine.sites[e, my], *threads, *blocks, kind, theirs.sites[e, their], e, 0
