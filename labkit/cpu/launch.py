"""Launching a kernel on the CPU: arguments, limits, blocks, and what went wrong."""

from __future__ import annotations

import contextlib
import contextvars
from dataclasses import dataclass

import numpy as np

from labkit import cpu
from labkit.cpu import faults, private, report
from labkit.cpu.program import WORKERS, Program, program, run_blocks
from labkit.cpu.runtime import Stop
from labkit.cpu.source import BadKernel


@dataclass(frozen=True)
class Settings:
    """How kernels run from here on."""

    checks: bool = False
    simulator: bool = False
    shared_limit: int = faults.SHARED_LIMIT


USUAL = Settings()
settings: contextvars.ContextVar[Settings] = contextvars.ContextVar("labkit.cpu", default=USUAL)


@contextlib.contextmanager
def using(**changes):
    """Settings for the launches inside a `with`."""
    token = settings.set(Settings(**(vars(settings.get()) | changes)))
    try:
        yield
    finally:
        settings.reset(token)


@dataclass(frozen=True)
class Launch:
    """What to launch, and how it was declared."""

    function: object
    grid: object
    block: object
    shared: int = 0
    fastmath: bool = False
    signature: object = None

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "kernel")


def prepare(launch: Launch, arguments: tuple, mode: str) -> tuple[Program, tuple, tuple, tuple]:
    """(program, grid, block, arguments) for a launch, everything checked that can be checked before it runs."""
    now = settings.get()
    grid = faults.three(launch.grid, "grid", launch.name)
    block = faults.three(launch.block, "block", launch.name)
    faults.check_launch(launch.name, grid, block)
    arguments = as_declared(launch, tuple(map(host, arguments)))
    built = program(launch.function, arguments, launch.fastmath, mode)
    faults.check_shared(launch.name, built.shared_bytes, launch.shared, now.shared_limit)
    if mode == "checked":
        faults.check_dimensions(launch.name, built.lowered.indices, launch.grid, launch.block)
    return built, grid, block, arguments


def execute(launch: Launch, arguments: tuple) -> None:
    """Run a kernel on NumPy arrays (or the simulator's), in place."""
    for names in cpu._watchers:
        names.append(launch.name)
    checked = settings.get().checks
    built, grid, block, arguments = prepare(launch, arguments, "checked" if checked else "")
    blocks = int(np.prod(grid))
    parts = 1 if built.serial else min(blocks, WORKERS if checked else 4 * WORKERS)
    records = [np.zeros(16, np.int64) for _ in range(parts)]
    extra = [(record,) for record in records]
    if checked:
        watch = built.instrument
        states = [watch.state(arguments, blocks, launch.shared, record) for record in records]
        extra = [(record, state.address) for record, state in zip(records, states, strict=True)]
    table = states[0].table if checked else None
    try:
        run_blocks(built, grid, block, launch.shared, arguments, extra)
    except Stop:
        raise report.fault(built, next(r for r in records if r[0]), grid, block, table, arguments) from None
    except IndexError:
        raise find_bad_index(launch, arguments) from None
    if checked and watch.conflict(states, records[0]):
        raise report.fault(built, records[0], grid, block, table, arguments)


def find_bad_index(launch: Launch, arguments: tuple) -> Exception:
    """Run once more, on copies and with checks, to say which index was out of range."""
    copies = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in arguments)
    try:
        with using(checks=True):
            execute(launch, copies)
    except faults.KernelFault as found:
        return found
    return faults.KernelFault(faults.OUT_OF_RANGE, f"{launch.name}: an index is out of range")


def host(argument):
    """The NumPy array under the simulator's arrays and argument hints; anything else as it is."""
    for inner in ("_ary", "value"):
        found = getattr(argument, inner, None)
        if isinstance(found, np.ndarray):
            return found
        if found is not None and inner == "value" and hasattr(found, "_ary"):
            return found._ary
    return argument


def as_declared(launch: Launch, arguments: tuple) -> tuple:
    """Scalars cast to an explicit signature's types, as a compiled kernel does; arrays must match it."""
    declared = private.signature_types(launch.signature)
    if declared is None:
        return arguments
    if len(declared) != len(arguments):
        raise BadKernel(f"{launch.name} is declared with {len(declared)} arguments, found {len(arguments)}")
    return tuple(
        private.cast(a, t, f"{launch.name}: argument {i}")
        for i, (a, t) in enumerate(zip(arguments, declared, strict=True))
    )
