"""A chapter's experiment in one call: check every variant, then measure it, or show what was recorded."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date

import numpy as np
import pandas as pd

from labkit import checks, cpu, device, records, timing
from labkit.errors import LabError
from labkit.traffic import Cost


class Unavailable(Exception):
    """Raised by a variant's builder where what it needs (PyTorch, a GPU, a precision) is not there."""


def need(module: str):
    """A module that a variant needs (torch, triton, cuda.bindings.driver). Raises Unavailable without it or a GPU."""
    if not device.MACHINE.has_gpu:
        raise Unavailable("needs a GPU")
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise Unavailable(f"{module} is not installed (pip install -e '.[baselines]')") from e


@dataclass
class Case:
    """One set of parameters of an experiment: the data, the right answer and what each variant costs.

    inputs     NumPy arrays; every variant gets them on the device and must leave them as they are
    reference  float64, what the output must be; its shape is the output's
    costs      the bytes and FLOPs of each variant
    answers    float64, for variants that compute something else on purpose, such as a plain copy
    """

    inputs: tuple[np.ndarray, ...]
    reference: np.ndarray
    costs: dict[str, Cost]
    dtype: str = "float32"
    reduction: int = 1
    answers: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Experiment:
    """Variants of one computation over a grid of parameters; `run()` is all that a chapter calls.

    name      the record's name in data/<device>/
    case      case(**parameters) -> Case
    variants  name -> build(*inputs, out) -> launch(); build raises Unavailable where it cannot run
    grid      the parameters to measure, a list of dicts
    quick     fewer of them, for a live run that records nothing (default: all)
    small     awkward and real sizes to check on the CPU where there is no GPU, every access watched
    applies   applies(variant, **parameters): whether a variant is meant for these parameters (default: all are)
    """

    name: str
    case: Callable[..., Case]
    variants: dict[str, Callable]
    grid: Sequence[dict]
    quick: Sequence[dict] = ()
    small: Sequence[dict] = ()
    options: dict = field(default_factory=dict)
    applies: Callable[..., bool] = lambda variant, **parameters: True

    def run(self) -> pd.DataFrame:
        """With a GPU: check each variant, then measure them together. Without: check small, show the recorded rows.

        Returns the record's columns and `source`; see `live_or_recorded`.
        """
        absent: dict[str, str] = {}
        if not device.MACHINE.has_gpu and self.small:
            checked = {name for parameters in self.small for name in self._checked(parameters, absent)[0]}
            print(f"checked without a GPU, on odd sizes: {', '.join(v for v in self.variants if v in checked)}")
        table = live_or_recorded(self.name, lambda: self._measure(absent))
        return self._with_recorded(table, absent) if device.MACHINE.has_gpu else table

    def _measure(self, absent: dict[str, str]) -> list[dict]:
        rows: list[dict] = []
        for parameters in self.grid if recording() else self.quick or self.grid:
            try:
                rows += self._one_case(parameters, absent)
            except Exception as e:
                if not _out_of_memory(e):
                    self._keep(rows)
                    raise
                print(f"{self.name}: {_named(parameters)} does not fit in this GPU's memory and is left out")
        return rows

    def _keep(self, rows: list[dict]) -> None:
        """What was measured before a failure is not lost: it is stored beside the record, which stays as it was."""
        if recording() and rows:
            name = f"{self.name}_unfinished"
            records.write(pd.DataFrame(rows), name, records.provenance(records.clocks(device.gpu_state())))
            print(f"{len(rows)} rows that were measured before the failure are in {name}.csv", file=sys.stderr)

    def _one_case(self, parameters: dict, absent: dict[str, str]) -> list[dict]:
        launches, errors, costs = self._checked(parameters, absent)
        timings = timing.measure_all(launches, **self.options)
        return [row(v, t, costs[v], errors[v], **parameters) for v, t in timings.items()]

    def _checked(self, parameters: dict, absent: dict[str, str]) -> tuple[dict, dict, dict]:
        """Build each variant, run it once on a poisoned output and compare: a wrong kernel is never timed.

        Returns launches, errors and costs by variant; the unavailable ones are added to `absent`.
        """
        from numba import cuda

        case = self.case(**parameters)
        inputs = [cuda.to_device(a) for a in case.inputs]
        poison = checks.poisoned(case.reference.shape, case.dtype)
        launches, errors = {}, {}
        for name, build in self.variants.items():
            if not self.applies(name, **parameters):
                continue
            out = cuda.to_device(poison)
            where = f"{self.name}, {name}, {_named(parameters)}"
            try:
                launch = build(*inputs, out)
                with cpu.checked(not device.MACHINE.has_gpu):
                    launch()
                cuda.synchronize()
            except Unavailable as e:
                absent[name] = str(e)
                continue
            except LabError:
                raise
            except Exception as e:  # somebody else's, who does not know of which variant it speaks
                raise LabError(f"{where}: {type(e).__name__}: {e}") from e
            answer = case.answers.get(name, case.reference)
            errors[name] = checks.assert_close(out.copy_to_host(), answer, reduction=case.reduction, where=where)
            checks.assert_unchanged(inputs, case.inputs, where)
            launches[name] = launch
        return launches, errors, case.costs

    def _with_recorded(self, table: pd.DataFrame, absent: dict[str, str]) -> pd.DataFrame:
        """Below the live rows, recorded ones of the baselines that are missing here, under their own source.

        They are for a reader's eyes: findings and figures take the rows of one source only, the first.
        """
        if not absent:
            return table
        for name, why in absent.items():
            print(f"{name}: {why}; recorded rows stand in where there are any")
        try:
            stand_ins = records.read(self.name)
        except LabError:
            return table
        return pd.concat([table, stand_ins[stand_ins["variant"].isin(absent)]], ignore_index=True)


def recording() -> bool:
    """Whether this run stores what it measures in data/ (`labkit run --record`, by $LABKIT_RECORD)."""
    return os.environ.get("LABKIT_RECORD") == "1"


def _left_as_it_is(name: str) -> bool:
    """Whether `labkit run --record --only ...` renews other records than this one ($LABKIT_ONLY)."""
    only = os.environ.get("LABKIT_ONLY", "")
    return recording() and bool(only) and name not in only.split(",")


def _recorded(name: str, gpu: str | None = None) -> pd.DataFrame:
    table = records.read(name, gpu)
    print(table["source"].iloc[0])
    return table


def live_or_recorded(name: str, measure: Callable[[], list[dict]]) -> pd.DataFrame:
    """The rows that measure() takes on this machine's GPU, or without one the recorded rows of `name`.

    While `recording()`, live rows are stored in data/ too; where `--only` names others, the recorded rows are taken.
    The `source` column says which of the two a row is.
    """
    if not device.MACHINE.has_gpu:
        if recording():
            raise LabError(f"nothing to record for {name}: {device.MACHINE.reason}. It takes a real GPU")
        return _recorded(name)
    if _left_as_it_is(name):
        return _recorded(name, device.MACHINE.slug)
    before = records.clocks(device.gpu_state())
    table = pd.DataFrame(measure())
    if recording():
        print(f"recorded in {records.write(table, name, records.provenance(before))}")
    driver = device.gpu_state()["driver"] or "unknown"
    return table.assign(source=f"measured here: {device.MACHINE.name}, driver {driver}, {date.today()}")


def row(variant: str, timed: timing.Timing, cost: Cost, error: float = np.nan, **parameters) -> dict:
    """One row of a record. `error` is ‖out − ref‖/‖ref‖, left out only for a kernel that computes nothing."""
    seconds = timed.median_ms / 1e3
    rates = {"gbps": cost.bytes / seconds / 1e9, "tflops": cost.flops / seconds / 1e12}
    found = {
        "variant": variant,
        **parameters,
        **timed.row(),
        "bytes": cost.bytes,
        "flops": cost.flops,
        **rates,
    }
    peak = _peak_gbps()
    if timed.cache == "cold" and peak and rates["gbps"] > peak:
        found["flags"] = "; ".join(filter(None, [found["flags"], f"above the peak of {peak:g} GB/s"]))
    return {**found, "error": error}


def _peak_gbps() -> float | None:
    try:
        return device.find_gpu(device.MACHINE.name).bandwidth_gbps
    except LabError:
        return None


def _named(parameters: dict) -> str:
    return ", ".join(f"{k}={v}" for k, v in parameters.items())


def _out_of_memory(error: Exception) -> bool:
    return "OUT_OF_MEMORY" in str(error) or "out of memory" in str(error)
