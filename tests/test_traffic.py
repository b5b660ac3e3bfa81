"""The cost model."""

import pytest

from labkit import Cost, LabError, elementwise, predict_ms
from labkit.traffic import nbytes


def test_elementwise_counts_bytes_and_flops():
    cost = elementwise(1000, "float16", reads=2, writes=1, flops=3)
    assert (cost.read, cost.written, cost.flops, cost.launches) == (4000, 2000, 3000, 1)
    assert cost.bytes == 6000
    assert cost.intensity == 0.5


def test_costs_add_up_like_kernels():
    one = elementwise(10)
    assert sum([one, one, one]) == one + one + one == Cost(120, 120, 30, 3)


def test_nbytes_of_shapes():
    assert nbytes((3, 5), "float64") == 120
    assert nbytes(7, "int8") == 7


def test_a_memory_bound_kernel_is_predicted_from_bandwidth():
    assert predict_ms(Cost(4_800_000_000, 0), "nvidia-h200") == pytest.approx(1)


def test_an_arithmetic_bound_kernel_is_predicted_from_flops():
    assert predict_ms(Cost(4, 4, flops=66_900_000_000_000), "nvidia-h200") == pytest.approx(1000)


def test_launches_are_added_on_request():
    assert predict_ms(Cost(0, 0, launches=100), "nvidia-h200", launch_us=10) == pytest.approx(1)


def test_a_format_that_the_gpu_lacks_is_refused():
    with pytest.raises(LabError, match=r"Tesla T4 has no peak for 'fp8'.*fp32, fp16"):
        predict_ms(Cost(4, 4, flops=1), "nvidia-t4", "fp8")
