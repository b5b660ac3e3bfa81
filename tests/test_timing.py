"""Samples that can be trusted. What needs a GPU is in test_gpu.py."""

import os
import subprocess
import sys
import threading
import time
from itertools import pairwise

import numpy as np
import pytest

import labkit  # isort: skip
from conftest import ROOT
from labkit import LabError, Timing, clocks, compare, device, measure, measure_all, timing

NO_GPU = pytest.mark.skipif(device.MACHINE.has_gpu, reason="there is a GPU")


def made(ms, dry=0):
    ms = np.asarray(ms, float)
    return Timing(ms, np.arange(ms.size) < dry, "wall", "hot")


def test_statistics_are_those_of_the_samples():
    t = made([4, 1, 2, 3, 5])
    assert (t.median_ms, t.min_ms, t.p25_ms, t.p75_ms) == (3, 1, 2, 4)
    assert t.row()["samples"] == 5


def test_dry_samples_are_kept_and_left_out_of_the_statistics():
    t = made([100, 1, 1, 1], dry=1)
    assert t.samples_ms.size == 4
    assert t.median_ms == t.p75_ms == 1


def test_where_most_samples_are_dry_all_count():
    assert made([100, 100, 1], dry=2).median_ms == 100


def test_per_divides_every_sample():
    assert made([200, 400]).per(200).samples_ms.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        (np.linspace(1.0, 1.02, 50), np.linspace(2.0, 2.02, 50), "faster"),
        (np.linspace(2.0, 2.02, 50), np.linspace(1.0, 1.02, 50), "slower"),
        (np.linspace(1.0, 1.002, 50), np.linspace(1.0, 1.002, 50), "the same"),
        (np.linspace(1.0, 2.0, 12), np.linspace(1.05, 2.0, 12), "can't tell"),
    ],
)
def test_verdicts(a, b, word):
    verdict = compare(made(a), made(b))
    assert verdict.word == word
    assert verdict.low <= verdict.speedup <= verdict.high


def test_a_cpu_function_is_timed_by_the_wall_clock():
    t = measure(lambda: time.sleep(0.004), method="wall", cache="hot", rep=60, warmup=5)
    assert 4 <= t.median_ms < 8
    assert t.samples_ms.size >= timing.MIN_SAMPLES


def test_a_batch_is_divided():
    calls = []
    t = measure(lambda: calls.append(time.sleep(0.001)), method="wall", cache="hot", batch=5, rep=50, warmup=5)
    assert 1 <= t.median_ms < 3
    assert len(calls) % 5 == 1  # the first call, then whole batches


def test_variants_are_interleaved():
    order = []
    fns = {name: lambda name=name: (order.append(name), time.sleep(0.002)) for name in "AB"}
    measure_all(fns, method="wall", cache="hot", rep=20, warmup=2)
    assert "".join(order[-20:]) == "AB" * 10


def test_a_slow_variant_is_sampled_over_the_whole_time():
    order = []
    fns = {name: lambda name=name, s=s: (order.append(name), time.sleep(s)) for name, s in (("A", 0.001), ("B", 0.01))}
    found = measure_all(fns, method="wall", cache="hot", rep=100, warmup=1)
    assert found["A"].samples_ms.size > 3 * found["B"].samples_ms.size
    places = [i / len(order) for i, name in enumerate(order) if name == "B"]
    assert max(places) > 0.9
    gaps = [b - a for a, b in pairwise(places[4:])]  # after the first call and the estimates
    assert max(gaps) < 0.25


def test_a_cold_sample_finds_other_data_in_the_cache(monkeypatch):
    monkeypatch.setattr(device, "last_cache_bytes", lambda: 1000)
    clock = clocks.Wall("cold", 1, True)
    assert clock.scratch.nbytes == 2000
    clock.sample(lambda: None)
    assert (clock.scratch == 1).all()


@pytest.mark.parametrize("bad", [{"method": "guess"}, {"cache": "warm"}, {"batch": 0}])
def test_unknown_options_are_named(bad):
    with pytest.raises(LabError, match="method is one of events, graph, wall"):
        measure(lambda: None, **bad)


@NO_GPU
@pytest.mark.parametrize("method", ["events", "graph"])
def test_without_a_gpu_only_the_wall_clock_goes(method):
    with pytest.raises(LabError, match="there is no GPU to time on"):
        measure(lambda: None, method=method)


@NO_GPU
def test_a_simulated_kernel_is_never_timed():
    from numba import cuda

    @cuda.jit
    def kernel(x):
        x[0] = 1

    x = cuda.to_device(np.zeros(1))
    with pytest.raises(LabError, match="on the CPU: its time says nothing"):
        measure(lambda: kernel[1, 1](x), method="wall")


@NO_GPU
def test_a_graph_needs_a_gpu():
    with pytest.raises(LabError, match="needs a GPU"):
        labkit.capture(lambda stream: None)


def test_warnings_of_the_first_call_reach_the_user():
    import warnings

    with pytest.warns(UserWarning, match="mine"):
        measure(lambda: warnings.warn("mine", stacklevel=1), method="wall", cache="hot", rep=1, warmup=1)


def test_an_error_in_the_function_is_the_users_to_see():
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0, method="wall")
    measure(lambda: None, method="wall", cache="hot", rep=1, warmup=0)  # and the lock is free again


def test_one_measurement_at_a_time(capfd):
    inside, together = threading.Semaphore(1), []

    def alone():
        together.append(inside.acquire(blocking=False))
        time.sleep(0.001)
        inside.release()

    threads = [threading.Thread(target=measure, args=(alone,), kwargs={"method": "wall", "rep": 30}) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(together)


HOLD = """
import os, sys
if sys.argv[1:]: os.setuid(int(sys.argv[1]))
from labkit import clocks
with clocks.one_at_a_time():
    print("mine", flush=True); sys.stdin.read()
"""


def holder(*argv: str) -> subprocess.Popen:
    """Another process that holds the lock until its input ends."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, *argv]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=device.ENVIRONMENT)


def test_two_processes_exclude_each_other(monkeypatch, capfd):
    with holder() as other:
        assert other.stdout.readline() == "mine\n"
        with pytest.raises(LabError, match="another process has been measuring"), clocks.one_at_a_time(0.2):
            pass
        other.stdin.close()
    with clocks.one_at_a_time(5):
        assert "waiting for it" in capfd.readouterr().err


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="takes root, to act as two users")
def test_two_users_exclude_each_other(monkeypatch, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    path = shared / f"labkit-{device.MACHINE.uuid or 'cpu'}.lock"
    path.touch(mode=0o666)
    os.chown(path, 65534, 65534)  # another user's file, in a folder like /tmp
    monkeypatch.setattr(clocks.tempfile, "gettempdir", lambda: str(shared))
    with clocks.one_at_a_time(0.2):
        others = clocks._OthersLock(path)
        with pytest.raises(clocks.Timeout):
            others.acquire(timeout=0.1)
        others.release()
    others = clocks._OthersLock(path)
    others.acquire(timeout=0)
    with pytest.raises(LabError, match="another process"), clocks.one_at_a_time(0.2):
        pass
    others.release()


def test_a_measurement_that_never_ends_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(clocks.tempfile, "gettempdir", lambda: str(tmp_path))
    other = clocks.FileLock(tmp_path / f"labkit-{device.MACHINE.uuid or 'cpu'}.lock")
    with other, pytest.raises(LabError, match="another process has been measuring"), clocks.one_at_a_time(0.1):
        pass
