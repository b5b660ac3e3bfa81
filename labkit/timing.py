"""measure(): samples that can be trusted, on a GPU and on a CPU; never of a simulated kernel."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from labkit import clocks, device
from labkit.errors import LabError

METHODS = ("events", "graph", "wall")
MIN_SAMPLES, MAX_SAMPLES = 10, 1000
SAME = 0.01  # two medians closer than this are the same for a reader


@dataclass(frozen=True)
class Timing:
    """All samples of one function, in ms a call.

    `dry` marks the samples during which the GPU may have waited for Python: they are kept, and left out of
    the statistics as long as they are fewer than half. `flags` says in words what a reader should doubt.
    """

    samples_ms: np.ndarray
    dry: np.ndarray
    method: str
    cache: str
    flags: tuple[str, ...] = ()
    trusted_ms: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        good = self.samples_ms[~self.dry]
        object.__setattr__(self, "trusted_ms", good if 2 * good.size > self.dry.size else self.samples_ms)

    @property
    def median_ms(self) -> float:
        """The median of the trusted samples."""
        return float(np.median(self.trusted_ms))

    @property
    def min_ms(self) -> float:
        """The fastest trusted sample."""
        return float(self.trusted_ms.min())

    @property
    def p25_ms(self) -> float:
        """The lower quartile."""
        return float(np.percentile(self.trusted_ms, 25))

    @property
    def p75_ms(self) -> float:
        """The upper quartile."""
        return float(np.percentile(self.trusted_ms, 75))

    def per(self, count: int) -> Timing:
        """The same timing for one of `count` equal parts of the call."""
        return replace(self, samples_ms=self.samples_ms / count)

    def row(self) -> dict[str, object]:
        """The columns of a record that this timing fills."""
        return {
            "median_ms": self.median_ms,
            "min_ms": self.min_ms,
            "p25_ms": self.p25_ms,
            "p75_ms": self.p75_ms,
            "samples": int(self.trusted_ms.size),
            "method": self.method,
            "cache": self.cache,
            "flags": "; ".join(self.flags),
        }


@dataclass(frozen=True)
class Verdict:
    """How a compares with b: `speedup` is b's median over a's, `low` and `high` its 95 % interval."""

    speedup: float
    low: float
    high: float
    word: str

    def __str__(self):
        return f"{self.word}: {self.speedup:.2f}× (95 % interval {self.low:.2f}–{self.high:.2f})"


def compare(a: Timing, b: Timing) -> Verdict:
    """Is a faster than b, slower, the same (within 1 %), or can't the samples tell?"""
    rng = np.random.default_rng(0)

    def medians(t: Timing) -> np.ndarray:
        picks = rng.integers(t.trusted_ms.size, size=(1000, t.trusted_ms.size))
        return np.median(t.trusted_ms[picks], axis=1)

    low, high = np.percentile(medians(b) / medians(a), [2.5, 97.5])
    if low >= 1 - SAME and high <= 1 + SAME:
        word = "the same"
    elif low > 1:
        word = "faster"
    elif high < 1:
        word = "slower"
    else:
        word = "can't tell"
    return Verdict(b.median_ms / a.median_ms, float(low), float(high), word)


def measure(fn: Callable, **options) -> Timing:
    """Time one function; the options are those of `measure_all`, the defaults those of triton's do_bench."""
    return measure_all({"the function": fn}, **options)["the function"]


def measure_all(
    fns: dict[str, Callable],
    *,
    warmup: float = 25,
    rep: float = 100,
    method: str = "events",
    cache: str = "cold",
    batch: int = 1,
    queue_ahead: bool = True,
) -> dict[str, Timing]:
    """Time several functions side by side: their samples are interleaved (A B A B), so drift hits all alike.

    warmup, rep  ms of calls before and of samples for each function
    method       "events": CUDA events around the call, on the default stream;
                 "graph": `batch` calls of fn(stream) captured once, events around each replay;
                 "wall": the host's clock, until the work is done (the only way to time a CPU function)
    cache        "cold": twice the last cache is overwritten before each sample; "hot": it is left alone
    batch        calls per sample; a sample is the time of one of them
    queue_ahead  keep the GPU busy until the whole sample is queued, so that Python's launch time stays out.
                 False is the plain event pair that chapter 02 warns of

    A sample in which the GPU may still have waited for Python is flagged (`Timing.dry`). Raises LabError
    without a GPU (except "wall"), for a simulated kernel, and for NumPy arguments (except "wall").
    """
    _refuse(method, cache, batch)
    clock = {"events": clocks.Events, "graph": clocks.Graph, "wall": clocks.Wall}[method](cache, batch, queue_ahead)
    with clocks.one_at_a_time():
        before = device.gpu_state() if device.MACHINE.has_gpu else {}
        for name, fn in fns.items():
            _first_call(name, fn, method)
        calls = {name: clock.prepare(fn) for name, fn in fns.items()}
        with warnings.catch_warnings(action="ignore"):  # they were given at the first call
            samples = _interleave(clock, calls, warmup, rep)
        flags = _flags(before)
    return {name: _timing(rows, method, cache, flags) for name, rows in samples.items()}


def _interleave(clock, calls: dict[str, Callable], warmup: float, rep: float) -> dict[str, list]:
    """Warm up, decide on the number of samples from what a call takes, and take them in turn."""
    counts = {}
    for name, call in calls.items():
        for _ in range(3):  # the first samples find cold code and cold clocks
            estimate, _ = clock.sample(call)
        estimate = max(estimate, 1e-4) * clock.batch
        for _ in range(min(int(warmup / estimate), MAX_SAMPLES)):
            clock.run(call)
        counts[name] = min(max(int(rep / estimate), MIN_SAMPLES), MAX_SAMPLES)
    samples = {name: [] for name in calls}
    gc_was_on = gc.isenabled()
    gc.disable()  # a collection in the middle of a sample is not the kernel's time
    try:
        rounds = max(counts.values())
        for i in range(rounds):
            for name, call in calls.items():
                # a variant with fewer samples takes them over the whole time: drift hits all alike
                if (i + 1) * counts[name] // rounds > i * counts[name] // rounds:
                    samples[name].append(clock.sample(call))
    finally:
        if gc_was_on:
            gc.enable()
    return samples


def _timing(rows: list[tuple[float, bool]], method: str, cache: str, flags: list[str]) -> Timing:
    ms, dry = map(np.array, zip(*rows, strict=True))
    if dry.mean() > 0.01:  # a stray one is left out and not worth a reader's doubt
        flags = [*flags, f"queue ran dry in {dry.sum()} of {dry.size} samples"]
    return Timing(ms, dry, method, cache, tuple(flags))


def _refuse(method: str, cache: str, batch: int) -> None:
    if method not in METHODS or cache not in ("cold", "hot") or batch < 1:
        raise LabError(
            f"measure(method={method!r}, cache={cache!r}, batch={batch}): "
            f"method is one of {', '.join(METHODS)}, cache is cold or hot, batch is 1 or more"
        )
    if method != "wall" and not device.MACHINE.has_gpu:
        raise LabError(
            f"there is no GPU to time on ({device.MACHINE.reason}). CPU functions: measure(..., method='wall'); "
            "GPU times: labkit.read(experiment) has recorded ones"
        )


def _first_call(name: str, fn: Callable, method: str) -> None:
    """Compile, and refuse what must not be timed: simulated kernels, and kernels that copy NumPy arrays."""
    with warnings.catch_warnings(record=True) as caught, clocks.simulated_launches() as simulated:
        warnings.simplefilter("always")
        fn(0) if method == "graph" else fn()
    copies = [w for w in caught if "Host array used" in str(w.message)]
    for w in caught:
        if w not in copies:
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    if simulated:
        raise LabError(
            f"{name} launches a kernel on the CPU: its time says nothing about any GPU. "
            "Check it there, and read recorded times with labkit.read(experiment)"
        )
    if method != "wall" and copies:
        raise LabError(
            f"{name} passes a NumPy array to a kernel: it is copied to the GPU and back at every call. "
            "Copy it once with cuda.to_device(array), or ask for method='wall' to time the copies too"
        )


def _flags(before: dict[str, object]) -> list[str]:
    """What the GPU's state before and after the samples makes one doubt."""
    if not device.MACHINE.has_gpu:
        return []
    after = device.gpu_state()
    slowed = sorted({*(before["slowed_by"] or ()), *(after["slowed_by"] or ())})
    others = sorted({*(before["other_pids"] or ()), *(after["other_pids"] or ())})
    return [f"clocks slowed by {reason}" for reason in slowed] + (
        [f"{len(others)} other process{'es' * (len(others) > 1)} on the GPU"] if others else []
    )
