"""How one sample is taken: CUDA events, graph replay or the host's clock; flushing, and one measurement at a time."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from labkit import cpu, device
from labkit.errors import LabError


class _Clock:
    """What every way of timing shares: a sample is `batch` calls, divided by their number."""

    def __init__(self, batch: int):
        self.batch = batch

    def prepare(self, fn: Callable) -> Callable:
        return fn

    def run(self, call: Callable) -> None:
        for _ in range(self.batch):
            call()


class Wall(_Clock):
    """The host's clock around the calls and, on a GPU, the synchronisation after them."""

    def __init__(self, cache: str, batch: int, queue_ahead: bool):
        super().__init__(batch)
        self.scratch = np.zeros(2 * device.last_cache_bytes(), np.uint8) if cache == "cold" else None
        self.synchronize = _cuda().synchronize if device.MACHINE.has_gpu else lambda: None
        self.flush = Flush() if cache == "cold" and device.MACHINE.has_gpu else None

    def sample(self, call: Callable) -> tuple[float, bool]:
        """ms a call; never dry, for waiting is what this clock measures."""
        if self.scratch is not None:
            self.scratch += 1
        if self.flush:
            self.flush()
        self.synchronize()
        start = time.perf_counter()
        self.run(call)
        self.synchronize()
        return (time.perf_counter() - start) * 1e3 / self.batch, False


class Events(_Clock):
    """CUDA events around the calls, on the default stream."""

    def __init__(self, cache: str, batch: int, queue_ahead: bool):
        super().__init__(batch)
        self.cuda = _cuda()
        self.flush = Flush() if cache == "cold" else lambda: None
        self.queue_ahead = queue_ahead
        self.host_ms: dict[int, float] = {}
        self.start, self.stop = self.cuda.event(), self.cuda.event()

    def sample(self, call: Callable) -> tuple[float, bool]:
        """ms a call, and whether the GPU got to the start before Python had queued the whole sample."""
        if self.queue_ahead:
            _sleep_on_gpu(2 * self.host_ms.get(id(call), 1.0) + 0.05)
        begin = time.perf_counter()
        self.flush()
        self.start.record()
        self.run(call)
        self.stop.record()
        dry = self.start.query()
        self.host_ms[id(call)] = (time.perf_counter() - begin) * 1e3
        self.stop.synchronize()
        return self.cuda.event_elapsed_time(self.start, self.stop) / self.batch, dry


class Graph(Events):
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


class Flush:
    """Overwrites twice the L2, so that nothing of the last sample is left in it.

    The lines that it leaves are dirty: the sample pays for writing them back, as in a stream of kernels each
    pays for the one before. triton's do_bench flushes in the same way.
    """

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


@contextmanager
def one_at_a_time(patience_s: float = 600):
    """One measurement at a time per GPU (and one on the CPU), between all processes of this machine."""
    path = Path(tempfile.gettempdir()) / f"labkit-{device.MACHINE.uuid or 'cpu'}.lock"
    lock = FileLock(path, mode=0o666)
    try:
        try:
            lock.acquire(timeout=0)
        except PermissionError:  # another user made the file
            lock = _OthersLock(path)
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


class _OthersLock:
    """The lock on a file that belongs to another user: filelock wants to write to it, flock need not."""

    def __init__(self, path: Path):
        self.file = path.open("rb")

    def acquire(self, timeout: float) -> None:
        import fcntl

        end = time.monotonic() + timeout
        while True:
            try:
                return fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise Timeout(self.file.name) from None
                time.sleep(0.05)

    def release(self) -> None:
        self.file.close()


@contextmanager
def simulated_launches():
    """Collects the names of kernels that run without a GPU meanwhile, compiled or in numba's simulator."""
    with cpu.launches() as names:
        simulator = sys.modules.get("numba.cuda.simulator.kernel")
        if simulator is None:
            yield names
            return
        original = simulator.FakeCUDAModule
        simulator.FakeCUDAModule = lambda *args: names.append("in the simulator") or original(*args)
        try:
            yield names
        finally:
            simulator.FakeCUDAModule = original
