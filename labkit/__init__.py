"""labkit: time, record, check and plot CUDA kernels written in Python. Import it before numba."""

from labkit.device import MACHINE, fits, mode  # first: it decides between GPU and simulator before numba is imported

from labkit import cpu  # isort: skip
from labkit.checks import WrongAnswer, check_kernel, check_value  # isort: skip
from labkit.clocks import capture, one_at_a_time
from labkit.errors import LabError
from labkit.experiment import Case, Experiment, Unavailable, live_or_recorded, need, recording, row
from labkit.progress import confront, predict
from labkit.records import read
from labkit.timing import Timing, compare, measure, measure_all
from labkit.traffic import Cost, Counted, count, elementwise, predict_ms, touches

if MACHINE.mode == "simulator":
    cpu.install()

__all__ = [
    "MACHINE",
    "Case",
    "Cost",
    "Counted",
    "Experiment",
    "LabError",
    "Timing",
    "Unavailable",
    "WrongAnswer",
    "capture",
    "check_kernel",
    "check_value",
    "compare",
    "confront",
    "count",
    "cpu",
    "elementwise",
    "fits",
    "live_or_recorded",
    "measure",
    "measure_all",
    "mode",
    "need",
    "one_at_a_time",
    "predict",
    "predict_ms",
    "read",
    "recording",
    "row",
    "touches",
]
