"""What only a real GPU can show. Skipped without one."""

import numpy as np
import pytest

import labkit  # isort: skip
from numba import cuda

from labkit import LabError, checks, device, doctor, kernels, measure, measure_all

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not device.MACHINE.has_gpu, reason="no GPU here"),
]


@pytest.fixture(scope="module")
def launches(chapter02):
    """fused-4 and unfused-4 at n, by n."""
    biggest = cuda.to_device(np.random.default_rng(0).standard_normal(1 << 28, dtype=np.float32))
    out = cuda.device_array_like(biggest)
    return lambda n: {v: chapter02[v](biggest[:n], out[:n]) for v in ("fused4", "unfused4")}


@pytest.mark.parametrize("log2_n", [26, 27, 28])
def test_measure_agrees_with_do_bench(launches, log2_n):
    testing = pytest.importorskip("triton.testing")
    for name, launch in launches(1 << log2_n).items():
        ours, theirs = measure(launch).median_ms, testing.do_bench(launch, return_mode="median")
        print(f"2^{log2_n} {name}: measure {ours:.4f} ms, do_bench {theirs:.4f} ms, {ours / theirs - 1:+.2%}")
        assert ours == pytest.approx(theirs, rel=0.03)


def test_a_plain_event_pair_is_flagged_where_it_is_wrong(launches):
    launch = launches(1 << 18)["fused4"]
    plain = measure(launch, cache="hot", queue_ahead=False)
    queued = measure(launch, cache="hot")
    print(f"plain {plain.median_ms * 1e3:.1f} µs ({plain.dry.mean():.0%} dry), queued {queued.median_ms * 1e3:.1f} µs")
    assert plain.median_ms > 1.5 * queued.median_ms
    assert plain.dry.mean() > 0.9
    assert "queue ran dry" in "; ".join(plain.flags)
    assert queued.dry.mean() < 0.05
    assert not queued.flags


def test_the_same_kernel_twice_is_the_same(launches):
    launch = launches(1 << 27)["fused4"]
    found = measure_all({"a": launch, "b": launch})
    print(labkit.compare(found["a"], found["b"]))
    assert labkit.compare(found["a"], found["b"]).word == "the same"


def test_fused_is_faster_says_the_verdict(launches):
    found = measure_all(launches(1 << 27))
    assert labkit.compare(found["fused4"], found["unfused4"]).word == "faster"
    assert labkit.compare(found["unfused4"], found["fused4"]).word == "slower"


def test_hot_and_cold_differ_where_the_data_fits_the_l2(launches):
    launch = launches(1 << 20)["fused4"]
    assert measure(launch, cache="hot").median_ms < 0.9 * measure(launch, cache="cold").median_ms


@cuda.jit
def add_one(x):
    x[0] += np.float32(1)


def test_numpy_arguments_are_refused_unless_the_wall_clock_is_asked():
    host = np.zeros(1, np.float32)
    with pytest.raises(LabError, match="passes a NumPy array to a kernel"):
        measure(lambda: add_one[1, 1](host))
    assert measure(lambda: add_one[1, 1](host), method="wall", rep=5).median_ms > 0


def test_a_graph_runs_what_was_recorded():
    counter = cuda.to_device(np.zeros(1, np.float32))
    add_one[1, 1](counter)
    graph, stream = labkit.capture(lambda stream: add_one[1, 1, stream](counter), batch=100)
    assert counter.copy_to_host()[0] == 1
    graph.launch(stream)
    cuda.synchronize()
    assert counter.copy_to_host()[0] == 101


def test_a_replayed_launch_is_cheaper_than_one_from_python():
    counter = cuda.to_device(np.zeros(1, np.float32))
    kernel = add_one[1, 1]
    python = measure(lambda: kernel(counter), method="wall", cache="hot", batch=100)
    replay = measure(lambda s: add_one[1, 1, s](counter), method="graph", cache="hot", batch=100)
    assert replay.median_ms < python.median_ms / 5


def test_the_machine_and_the_doctor_know_the_gpu():
    machine = device.MACHINE
    assert machine.sms > 0
    assert machine.l2_bytes > 0
    assert machine.name in doctor.report(doctor.examine())
    assert labkit.mode().startswith("Mode: live")


@pytest.mark.skipif(device.MACHINE.compute_capability != (9, 0), reason="Hopper's own")
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 3), (129, 257, 65), (513, 511, 77), (1000, 777, 1234)])
def test_hoppers_product_is_right_on_odd_shapes(shape):
    m, n, k = shape
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal(size).astype(np.float16) for size in ((m, k), (k, n)))
    out = cuda.to_device(checks.poisoned((m, n), "float16"))
    kernels.matmul_wgmma(cuda.to_device(a), cuda.to_device(b), out)()
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert checks.assert_close(out.copy_to_host(), exact, reduction=k) < 1e-3
