"""Ways of taking one step: each is checked against float64, all are timed by one timer, the floor beside them."""

from __future__ import annotations

import functools
from collections import namedtuple

import numpy as np
from numba import cuda

from labkit import checks, experiment, timing
from labkit.decoder.data import forget
from labkit.decoder.exact import exact_token
from labkit.decoder.layer import Room
from labkit.findings.decode_least import memory_roof
from labkit.traffic import Cost

# run: takes one step; kernels: how many that launches; from_python: they are launched while the clock runs; note: flags
Way = namedtuple("Way", "run kernels from_python note", defaults=("",))


def run_chain(chain, stream=None) -> None:
    """Launch one after the other."""
    for launch in chain:
        launch(stream)


def available(makers, check) -> dict:
    """Name -> check(name, make); a maker that raises Unavailable is named and left out."""
    found = {}
    for name, make in makers.items():
        try:
            found[name] = check(name, make)
        except experiment.Unavailable as missing:
            print(f"{name}: {missing}")
    return found


def checked(name: str, make, layers, x, room: Room, right) -> tuple[Way, float]:
    """A way, run once on a poisoned result and without what is appended, and its error."""
    way = make(layers, x, room)
    forget(layers, room)
    room.out.copy_to_device(checks.poisoned(right.shape, np.float16))
    way.run()
    cuda.synchronize()
    return way, checks.assert_close(room.out.copy_to_host(), right, reduction=32, where=name)


def measured(ways, **options) -> dict:
    """Timings by name: those that wait for Python without a head start, those that do not, queued ahead."""
    timed = {}
    for waits in (True, False):
        fns = {name: way.run for name, way in ways.items() if way.from_python == waits}
        if fns:
            timed |= timing.measure_all(fns, queue_ahead=not waits, **options)
    return timed


def floor_row(cost: Cost, **sizes) -> dict:
    """What these bytes take at the bandwidth that chapter 03 measured."""
    ms = cost.bytes / memory_roof()[0] / 1e6
    least = timing.Timing(np.array([ms]), np.zeros(1, bool), "events", "cold")
    return experiment.row("floor", least, cost, launches=0, **sizes)


def timed_rows(found, cost: Cost, **sizes) -> list[dict]:
    """A row for each way, and the floor's; found: name -> way and error."""
    rows = []
    for name, timed in measured({name: way for name, (way, _) in found.items()}, warmup=10, rep=60).items():
        way, error = found[name]
        row = experiment.row(name, timed, cost, error, launches=way.kernels, **sizes)
        row["flags"] = "; ".join(filter(None, [way.note, row["flags"]]))
        rows.append(row)
    return [*rows, floor_row(cost, **sizes)]


def step_rows(makers, layers, x, room: Room) -> list[dict]:
    """A row for each way of taking one step with these layers, and the floor's.

    makers  name -> function of (layers, x, room) that returns a Way; one that raises Unavailable is named and left out
    """
    n, right = len(layers), exact_token(layers, x, room)
    found = available(makers, functools.partial(checked, layers=layers, x=x, room=room, right=right))
    cost = sum([room.of.least(room.batch, room.context)] * n)
    return timed_rows(found, cost, batch=room.batch, context=room.context, layers=n)
