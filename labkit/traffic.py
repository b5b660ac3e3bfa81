"""Bytes and FLOPs: what a kernel must move and do (the cost model), and what its source really does (counted).

counted = labkit.count(kernel, grid, block, x, out)     # no GPU needed
print(counted.listing())                                # the source, with sectors and bank conflicts by line
counted.predict_ms("nvidia-h200")
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import pandas as pd

from labkit.device import Gpu, find_gpu
from labkit.errors import LabError


@dataclass(frozen=True)
class Cost:
    """Global-memory bytes read and written, and FLOPs, of one or more kernel launches.

    Costs add up: `double + triple` is what two kernels cost one after the other.
    """

    read: int
    written: int
    flops: int = 0
    launches: int = 1

    @property
    def bytes(self) -> int:
        """All bytes that cross the memory bus."""
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.read + other.read,
            self.written + other.written,
            self.flops + other.flops,
            self.launches + other.launches,
        )

    def __radd__(self, other: int) -> Cost:  # so that sum(costs) works
        return self if other == 0 else NotImplemented


def nbytes(shape: int | tuple[int, ...], dtype: str | np.dtype) -> int:
    """Bytes of an array of this shape and dtype."""
    sizes = (shape,) if isinstance(shape, int) else shape
    return prod(sizes) * np.dtype(dtype).itemsize


def elementwise(n: int, dtype="float32", *, reads: int = 1, writes: int = 1, flops: int = 1) -> Cost:
    """The cost of a kernel that reads `reads` arrays of n elements, writes `writes` and does `flops` an element."""
    return Cost(reads * nbytes(n, dtype), writes * nbytes(n, dtype), flops * n)


def predict_ms(cost: Cost, gpu: str | Gpu, dtype: str = "fp32", *, launch_us: float = 0.0) -> float:
    """The least time in ms that `gpu` needs for `cost`: the slower of memory and arithmetic, at data-sheet peaks.

    `gpu` is a slug of data/gpus.csv (or a device's name), `dtype` one of fp32, fp16, bf16, fp8. `launch_us` is
    added for each launch. This is the roofline's floor: nothing runs faster, most things run slower.
    """
    gpu = find_gpu(gpu) if isinstance(gpu, str) else gpu
    peak = gpu.tflops.get(dtype)
    if cost.flops and not peak:
        known = ", ".join(k for k, v in gpu.tflops.items() if v)
        raise LabError(f"{gpu.name} has no peak for {dtype!r} in data/gpus.csv; it has {known}")
    memory_ms = cost.bytes / gpu.bandwidth_gbps / 1e6
    arithmetic_ms = cost.flops / peak / 1e9 if cost.flops else 0.0
    return max(memory_ms, arithmetic_ms) + cost.launches * launch_us / 1e3


# counted


@dataclass(frozen=True)
class Counted:
    """What the threads of a kernel loaded, stored and computed, counted by running it on the CPU.

    lines     one row a line of source and array: `line`, `text`, `function`, `array`, `space` (global, shared), `does`
              (load, store, atomic), and sums over the counted blocks: `accesses`, `bytes`, `requests` (an instruction
              of a warp), `sectors` (32 bytes of global memory), `passes` over shared memory and `ideal` ones (without
              bank conflicts)
    unique    bytes of the arguments that were read and written at all, each counted once
    flops     additions, multiplications, divisions by type; integer ones under "int"
    barriers  how often a block passed one
    blocks, of_blocks  how many blocks were counted, and how many the grid has
    """

    name: str
    source: str
    first_line: int
    lines: pd.DataFrame
    unique: tuple[int, int]
    flops: dict[str, int]
    barriers: int
    blocks: int
    of_blocks: int

    @property
    def sampled(self) -> bool:
        """Whether only some blocks were counted."""
        return self.blocks < self.of_blocks

    @property
    def cost(self) -> Cost:
        """The least that the launch moves and does: every byte once, FLOPs; scaled up if blocks were sampled."""
        scale = self.of_blocks / self.blocks
        read, written = (round(n * scale) for n in self.unique)
        return Cost(read, written, round(scale * sum(n for kind, n in self.flops.items() if kind != "int")))

    @property
    def sector_cost(self) -> Cost:
        """The most that it can move: every sector of every request, as if there were no cache."""
        of = self.lines[self.lines["space"] == "global"].groupby("does")["sectors"].sum() * 32
        scale = self.of_blocks / self.blocks
        read, written = (round(scale * int(of.get(does, 0))) for does in ("load", "store"))
        return Cost(read, written, self.cost.flops)

    def predict_ms(self, gpu: str | Gpu, dtype: str = "fp32") -> float:
        """The roofline's floor for this launch on `gpu`, in ms."""
        return predict_ms(self.cost, gpu, dtype)

    def arrays(self) -> pd.DataFrame:
        """Totals by array: accesses, bytes, requests, sectors a request, conflicts a request."""
        sums = self.lines.groupby(["array", "space", "does"], sort=False)[list(SUMS)].sum().reset_index()
        return _rates(sums)

    def total(self, column: str, does: str, space: str = "global") -> int:
        """A sum over lines, such as total("sectors", "load")."""
        rows = self.lines[(self.lines["does"] == does) & (self.lines["space"] == space)]
        return int(rows[column].sum())

    def listing(self) -> str:
        """The kernel's source; beside each line what a warp does there: loads, stores, sectors, conflicts a request."""
        said = {n - self.first_line: _line_note(rows) for n, rows in self.lines.groupby("line")}
        text = self.source.splitlines()
        width = max((len(t) for i, t in enumerate(text) if i in said), default=0) + 2
        head = f"{self.name}: {self.blocks:,} of {self.of_blocks:,} blocks counted"
        body = [f"{t:{width}}{said.get(i, '')}".rstrip() for i, t in enumerate(text)]
        return "\n".join([head, *body])


SUMS = ("accesses", "bytes", "requests", "sectors", "passes", "ideal")


def _rates(rows: pd.DataFrame) -> pd.DataFrame:
    """With sectors and bank conflicts a request."""
    requests = rows["requests"].clip(lower=1)
    return rows.assign(
        sectors_per_request=rows["sectors"] / requests,
        conflicts_per_request=(rows["passes"] - rows["ideal"]) / requests,
    )


def _line_note(rows: pd.DataFrame) -> str:
    """`x: load, 4 sectors; s: store, 31 conflicts` for one line of source."""
    notes: dict[str, list[str]] = {}
    for r in _rates(rows.groupby(["array", "space", "does"], sort=False)[list(SUMS)].sum().reset_index()).itertuples():
        rate = sectors(r.sectors_per_request) if r.space == "global" else _conflicts(r.conflicts_per_request)
        notes.setdefault(f"{r.does}, {rate}", []).append(r.array)
    return "# " + "; ".join(f"{', '.join(arrays)}: {what}" for what, arrays in notes.items())


def sectors(n: float) -> str:
    """A number of sectors, in words."""
    return f"{n:.3g} sector{'' if n == 1 else 's'}"


def _conflicts(n: float) -> str:
    return f"{n:.3g} conflicts" if n else "no conflict"


def count(kernel, grid, block, *arguments, shared: int = 0, blocks: int | None = None) -> Counted:
    """Run a kernel on the CPU, on copies of its NumPy arguments, and count what its threads move and compute.

    grid, block  as in kernel[grid, block]
    shared       bytes of dynamic shared memory
    blocks       count so many blocks, spread over the grid (default: all)

    An array is taken to begin where a device allocation would, on a boundary of 256 bytes; a view (`a[1:]`) where it
    lies in its array.

    A fault that makes counting meaningless (an index out of range, a divergent barrier) raises KernelFault.
    """
    from labkit.cpu.counting import count_blocks

    return Counted(**count_blocks(kernel, grid, block, arguments, shared, blocks))


def touches(kernel, grid, block, *arguments, array: str, line: int | None = None, which: int = 0, shared: int = 0):
    """Which thread of block number `which` touches which element of `array` first: integers in its shape, −1 for none.

    line  only what this line of the source does (1 is the kernel's first line, its decorator)
    """
    from labkit.cpu.counting import touched_by

    return touched_by(kernel, grid, block, arguments, array, line, which, shared)
