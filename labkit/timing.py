"""measure(): samples that can be trusted, on a GPU and on a CPU; never of a simulated kernel."""

from __future__ import annotations

import gc
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from labkit import device
from labkit.errors import LabError

METHODS = ("events", "graph", "wall")
MIN_SAMPLES, MAX_SAMPLES = 10, 1000
SAME = 0.01  # two medians closer than this are the same for a reader


@dataclass(frozen=True)
class Timing:
    """All samples of one function, in ms a call.

    `dry` marks the samples during which the GPU may have waited for Python: they are kept, and left out of
    the statistics as long as others remain. `flags` says in words what a reader should doubt.
    """

    samples_ms: np.ndarray
    dry: np.ndarray
    method: str
    cache: str
    flags: tuple[str, ...] = ()
    trusted_ms: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        good = self.samples_ms[~self.dry]
        object.__setattr__(self, "trusted_ms", good if good.size else self.samples_ms)

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
    return measure_all({"fn": fn}, **options)["fn"]


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
    timer = {"events": _Events, "graph": _Graph, "wall": _Wall}[method](cache, batch, queue_ahead)
    with _one_at_a_time():
        before = device.gpu_state() if device.MACHINE.has_gpu else {}
        for name, fn in fns.items():
            _first_call(name, fn, method)
        calls = {name: timer.prepare(fn) for name, fn in fns.items()}
        samples = _interleave(timer, calls, warmup, rep)
        flags = _flags(before)
    return {name: _timing(rows, method, cache, flags) for name, rows in samples.items()}


def _interleave(timer, calls: dict[str, Callable], warmup: float, rep: float) -> dict[str, list]:
    """Warm up, decide on the number of samples from what a call takes, and take them in turn."""
    counts = {}
    for name, call in calls.items():
        for _ in range(3):  # the first samples find cold code and cold clocks
            estimate, _ = timer.sample(call)
        estimate = max(estimate, 1e-4) * timer.batch
        for _ in range(min(int(warmup / estimate), MAX_SAMPLES)):
            timer.run(call)
        counts[name] = min(max(int(rep / estimate), MIN_SAMPLES), MAX_SAMPLES)
    samples = {name: [] for name in calls}
    gc_was_on = gc.isenabled()
    gc.disable()  # a collection in the middle of a sample is not the kernel's time
    try:
        for i in range(max(counts.values())):
            for name, call in calls.items():
                if i < counts[name]:
                    samples[name].append(timer.sample(call))
    finally:
        if gc_was_on:
            gc.enable()
    return samples


def _timing(rows: list[tuple[float, bool]], method: str, cache: str, flags: list[str]) -> Timing:
    ms, dry = map(np.array, zip(*rows, strict=True))
    if dry.any():
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
    with warnings.catch_warnings(record=True) as caught, _simulated_launches() as simulated:
        warnings.simplefilter("always")
        fn(0) if method == "graph" else fn()
    if simulated:
        raise LabError(
            f"{name} launches a kernel in numba's simulator: its time says nothing about any GPU. "
            "Check it there, and read recorded times with labkit.read(experiment)"
        )
    if method != "wall" and any("Host array used" in str(w.message) for w in caught):
        raise LabError(
            f"{name} passes a NumPy array to a kernel: it is copied to the GPU and back at every call. "
            "Copy it once with cuda.to_device(array), or ask for method='wall' to time the copies too"
        )


@contextmanager
def _simulated_launches():
    """Collects a mark for every kernel that numba's simulator launches meanwhile."""
    launches = []
    simulator = sys.modules.get("numba.cuda.simulator.kernel")
    if simulator is None:
        yield launches
        return
    original = simulator.FakeCUDAModule
    simulator.FakeCUDAModule = lambda *args: launches.append(1) or original(*args)
    try:
        yield launches
    finally:
        simulator.FakeCUDAModule = original


@contextmanager
def _one_at_a_time(patience_s: float = 600):
    """One measurement at a time per GPU (and one on the CPU), between all processes of this machine."""
    path = Path(tempfile.gettempdir()) / f"labkit-{device.MACHINE.uuid or 'cpu'}.lock"
    lock = FileLock(path, mode=0o666)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print("labkit: another measurement is running on this device; waiting for it", file=sys.stderr)
        try:
            lock.acquire(timeout=patience_s)
        except Timeout:
            raise LabError(
                f"another process has been measuring for {patience_s:.0f} s; end it, or delete {path} if none is left"
            ) from None
    try:
        yield
    finally:
        lock.release()


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


class _Wall:
    """The host's clock around `batch` calls and, on a GPU, the synchronisation after them."""

    def __init__(self, cache: str, batch: int, queue_ahead: bool):
        self.batch = batch
        self.scratch = np.zeros(2 * device.last_cache_bytes(), np.uint8) if cache == "cold" else None
        self.synchronize = _cuda().synchronize if device.MACHINE.has_gpu else lambda: None
        self.flush = _Flush() if cache == "cold" and device.MACHINE.has_gpu else None

    def prepare(self, fn: Callable) -> Callable:
        return fn

    def run(self, call: Callable) -> None:
        for _ in range(self.batch):
            call()

    def sample(self, call: Callable) -> tuple[float, bool]:
        if self.scratch is not None:
            self.scratch += 1
        if self.flush:
            self.flush()
        self.synchronize()
        start = time.perf_counter()
        self.run(call)
        self.synchronize()
        return (time.perf_counter() - start) * 1e3 / self.batch, False


class _Events:
    """CUDA events around `batch` calls on the default stream."""

    def __init__(self, cache: str, batch: int, queue_ahead: bool):
        self.batch = batch
        self.cuda = _cuda()
        self.flush = _Flush() if cache == "cold" else lambda: None
        self.queue_ahead = queue_ahead
        self.host_ms: dict[int, float] = {}
        self.start, self.stop = self.cuda.event(), self.cuda.event()

    def prepare(self, fn: Callable) -> Callable:
        return fn

    def run(self, call: Callable) -> None:
        for _ in range(self.batch):
            call()

    def sample(self, call: Callable) -> tuple[float, bool]:
        """ms a call, and whether the GPU got to the start before Python had queued the whole sample."""
        if self.queue_ahead:
            _sleep_on_gpu(1.5 * self.host_ms.get(id(call), 1.0) + 0.02)
        begin = time.perf_counter()
        self.flush()
        self.start.record()
        self.run(call)
        self.stop.record()
        dry = self.start.query()
        self.host_ms[id(call)] = (time.perf_counter() - begin) * 1e3
        self.stop.synchronize()
        return self.cuda.event_elapsed_time(self.start, self.stop) / self.batch, dry


class _Graph(_Events):
    """Events around the replay of a graph that holds `batch` calls of fn(stream)."""

    def prepare(self, fn: Callable) -> Callable:
        graph, stream = capture(fn, self.batch)
        return lambda: graph.launch(stream)

    def run(self, call: Callable) -> None:
        call()


def capture(fn: Callable, batch: int = 1):
    """Record `batch` calls of fn(stream) in a CUDA graph. Returns the graph and the stream to launch it on.

    Nothing runs while it is recorded. fn must put all its work on the stream it is given, and must have run
    once before (a compilation cannot be recorded). Source: cuda.core's graph builder.
    """
    if not device.MACHINE.has_gpu:
        raise LabError(f"a CUDA graph needs a GPU ({device.MACHINE.reason})")
    from cuda.core import LEGACY_DEFAULT_STREAM, Device

    gpu = Device()
    gpu.set_current()
    builder = gpu.create_stream().create_graph_builder()
    builder.begin_building()
    for _ in range(batch):
        fn(builder.stream)
    graph = builder.end_building().complete()
    graph.upload(LEGACY_DEFAULT_STREAM)
    return graph, LEGACY_DEFAULT_STREAM


def _cuda():
    from numba import cuda

    return cuda


class _Flush:
    """Overwrites twice the L2, so that nothing of the last sample is left in it."""

    def __init__(self):
        from cuda.bindings import driver

        self.nbytes = 2 * device.MACHINE.l2_bytes
        self.buffer = _cuda().device_array(self.nbytes, np.uint8)
        self.pointer = int(self.buffer.__cuda_array_interface__["data"][0])
        self.memset = driver.cuMemsetD8Async

    def __call__(self) -> None:
        self.memset(self.pointer, 0, self.nbytes, 0)


def _sleep_on_gpu(ms: float) -> None:
    kernel, rounds_per_ms = _sleeper()
    kernel(int(min(ms, 20) * rounds_per_ms) + 1)


@cache
def _sleeper():
    """A one-thread kernel that naps, and how many naps take a ms on this GPU."""
    cuda = _cuda()

    @cuda.jit
    def nap(rounds):
        for _ in range(rounds):
            cuda.nanosleep(1000)

    kernel, rounds = nap[1, 1], 2000
    kernel(rounds)
    start, stop = cuda.event(), cuda.event()
    start.record()
    kernel(rounds)
    stop.record()
    stop.synchronize()
    return kernel, rounds / cuda.event_elapsed_time(start, stop)
