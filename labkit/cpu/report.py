"""From a fault record that compiled code left to a KernelFault that says where, who and what to do."""

from __future__ import annotations

import ast

import numpy as np

from labkit.cpu import access, faults, private, runtime, shadow
from labkit.cpu.faults import KernelFault, Place, unravel
from labkit.cpu.tree import Together

ADVICE = {
    faults.OUT_OF_RANGE: "guard it with an `if` on the array's shape, or launch fewer threads",
    faults.NEGATIVE: "on a GPU it silently reaches another element; guard it",
    faults.SHARED_RACE: "put cuda.syncthreads() between the two",
    faults.GLOBAL_RACE: "give each block its own elements, use cuda.atomic, or split the kernel",
    faults.DIVERGENT: "move the barrier out of the branch, so that all threads of the block reach it",
    faults.UNINITIALISED: "write it, then cuda.syncthreads(), before it is read",
    faults.LANES: "name in the mask exactly the lanes that get here, or move it out of the branch",
}
HAZARD = {
    shadow.READ_WRITE: "reads what {} writes",
    shadow.WRITE_READ: "writes what {} reads",
    shadow.WRITE_WRITE: "writes what {} writes too",
}


def fault(program, record: np.ndarray, grid: tuple, block: tuple, table=None, arguments: tuple = ()) -> KernelFault:
    """The fault that a record describes; `table` tells which array a shadow belongs to."""
    return _Report(program, [int(x) for x in record], grid, block, table, arguments).build()


class _Report:
    def __init__(self, program, record: list[int], grid: tuple, block: tuple, table, arguments: tuple):
        self.program, self.record, self.grid, self.sizes = program, record, grid, block
        self.table, self.arguments = table, arguments
        self.block, self.thread = unravel(record[4], grid), unravel(record[2], block)

    def build(self) -> KernelFault:
        kind = self.record[0]
        if kind in (runtime.DIVERGED, runtime.LANES, runtime.LANE_ABSENT):
            return self.meeting(kind)
        if kind == access.INDEX:
            return self.index()
        if kind == shadow.UNINITIALISED:
            return self.uninitialised()
        if kind == shadow.RACE:
            return self.race()
        return KernelFault("too long", f"{self.program.name}: more than 65,535 barriers in a block; check it smaller")

    @property
    def who(self) -> str:
        return f"block {self.block}, thread {self.thread}"

    def site(self, number: int):
        return self.program.instrument.sites[number]

    def make(self, kind: str, place: Place, said: str, **details) -> KernelFault:
        return KernelFault(
            kind,
            f"{place}: {kind}: {said}; {ADVICE[kind]}",
            line=place.line,
            block=self.block,
            thread=self.thread,
            **details,
        )

    def meeting(self, kind: int) -> KernelFault:
        at = self.together(self.record[1])
        place = Place(at.origin.name, at.lineno, at.origin.line(at.lineno))
        other = unravel(self.record[3], self.sizes)
        if kind == runtime.DIVERGED:
            said = f"{self.who} reaches cuda.{at.name}(), thread {other} of the block does not"
            return self.make(faults.DIVERGENT, place, said, other_thread=other)
        if kind == runtime.LANES:
            said = f"{self.who}: the mask of cuda.{at.name} and the lanes that get there differ (thread {other})"
        else:
            said = f"{self.who} takes the value of thread {other}, which does not take part"
        return self.make(faults.LANES, place, said, other_thread=other)

    def together(self, line: int) -> Together:
        found = [n for s in self.program.lowered.body for n in ast.walk(s) if isinstance(n, Together)]
        return next(n for n in found if n.lineno == line)

    def place(self, site) -> Place:
        return Place(site.function, site.line, site.text)

    def index(self) -> KernelFault:
        site = self.site(self.record[1])
        axis, index, extent = self.record[5:8]
        kind = faults.NEGATIVE if index < 0 else faults.OUT_OF_RANGE
        along = f" along axis {axis}" if axis else ""
        said = f"{site.array}[{index}]{along}, where {site.array} has {extent} ({self.who})"
        return self.make(kind, self.place(site), said, array=site.array, index=index)

    def element(self) -> tuple[str, int | tuple]:
        """The array and the index of the element whose shadow the record names."""
        e = self.record[8]
        rows = [k for k, row in enumerate(self.table) if row[5] and row[3] <= e]
        k = max(rows, key=lambda k: self.table[k][3])
        offset = (e - int(self.table[k][3])) << int(self.table[k][2])
        if k < len(self.arguments):
            name, array = self.program.lowered.parameters[k], self.arguments[k]
            shape, itemsize = (array.shape if array.flags.c_contiguous else (array.size,)), array.itemsize
        else:
            declared = self.program.instrument.shared[k - len(self.arguments)]
            name, shape, itemsize = declared.name, declared.shape, private.dtype_of(declared.dtype).itemsize
        index = offset // itemsize
        if len(shape) > 1 and index < np.prod(shape):
            index = tuple(int(i) for i in np.unravel_index(index, shape))
        return name, index

    def uninitialised(self) -> KernelFault:
        site = self.site(self.record[1])
        array, index = self.element()
        said = f"{_subscript(array, index)}, which no thread of the block has written ({self.who})"
        return self.make(faults.UNINITIALISED, self.place(site), said, array=array, index=index)

    def race(self) -> KernelFault:
        site, other = self.site(self.record[1]), self.site(self.record[7])
        is_shared = self.record[9] == 1
        other_block, other_thread = unravel(self.record[5], self.grid), unravel(self.record[3], self.sizes)
        them = f"thread {other_thread}"
        if (other_block, other_thread) == (self.block, self.thread):  # among several readers
            them, other_thread = "another thread", None
        elif not is_shared:
            them = f"block {other_block}, {them}"
        hazard = HAZARD[self.record[6]].format(f"{them} in line {other.line}")
        nothing = (
            "with no barrier between them" if is_shared or other_block == self.block else "and blocks have no order"
        )
        array, index = self.element()
        said = f"{self.who} {hazard}: {_subscript(array, index)}, {nothing}"
        kind = faults.SHARED_RACE if is_shared else faults.GLOBAL_RACE
        return self.make(
            kind,
            self.place(site),
            said,
            array=array,
            index=index,
            other_line=other.line,
            other_block=other_block,
            other_thread=other_thread,
        )


def _subscript(array: str, index: int | tuple) -> str:
    return f"{array}[{', '.join(map(str, index)) if isinstance(index, tuple) else index}]"
