"""Check, then measure, or show what was recorded."""

import numpy as np
import pandas as pd
import pytest

import labkit  # isort: skip
from numba import cuda

from conftest import PROVENANCE, made_up
from labkit import Case, Experiment, LabError, Unavailable, WrongAnswer, device, experiment, records

NO_GPU = pytest.mark.skipif(device.MACHINE.has_gpu, reason="there is a GPU")


@cuda.jit
def double(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * np.float32(2)


@cuda.jit
def nothing(x, out):
    pass


def case(n):
    x = np.random.default_rng(n).standard_normal(n, dtype=np.float32)
    return Case((x,), x.astype(np.float64) * 2, dict.fromkeys(("right", "wrong", "absent"), labkit.elementwise(n)))


def absent(x, out):
    raise Unavailable("needs something else")


RIGHT = {"right": lambda x, out: lambda: double[-(-x.size // 32), 32](x, out)}
WRONG = {"wrong": lambda x, out: lambda: nothing[1, 32](x, out)}


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    monkeypatch.setenv("LABKIT_DEVICE", "test-gpu-9000")
    records.write(made_up(("right", "absent")), "made_up", PROVENANCE, tmp_path)


@NO_GPU
def test_without_a_gpu_variants_are_checked_and_the_record_is_shown(recorded, capsys):
    rows = Experiment("made_up", case, RIGHT | {"absent": absent}, grid=[{"n": 8}], small=[{"n": 33}]).run()
    assert set(rows["source"]) == {"recorded: Test GPU 9000, driver 1.2.3, 2020-01-02"}
    assert "on odd sizes: right\n" in capsys.readouterr().out


def test_a_wrong_variant_is_never_timed(recorded):
    with pytest.raises(WrongAnswer, match=r"made_up, wrong, n=33: .*never written"):
        Experiment("made_up", case, WRONG, grid=[{"n": 33}], small=[{"n": 33}]).run()


@NO_GPU
def test_recording_takes_a_real_gpu(recorded, monkeypatch):
    monkeypatch.setenv("LABKIT_RECORD", "1")
    with pytest.raises(LabError, match="It takes a real GPU"):
        Experiment("made_up", case, RIGHT, grid=[], small=[]).run()


def test_only_what_is_named_is_renewed(recorded, monkeypatch):
    monkeypatch.setattr(device, "MACHINE", device.Machine("gpu", "", "Test GPU 9000"))
    monkeypatch.setenv("LABKIT_RECORD", "1")
    monkeypatch.setenv("LABKIT_ONLY", "another,one_more")
    table = labkit.live_or_recorded("made_up", lambda: pytest.fail("it was measured"))
    assert set(table["source"]) == {"recorded: Test GPU 9000, driver 1.2.3, 2020-01-02"}
    monkeypatch.setenv("LABKIT_ONLY", "another,made_up")
    monkeypatch.setattr(records, "clocks", lambda state: {})
    with pytest.raises(ZeroDivisionError):
        labkit.live_or_recorded("made_up", lambda: 1 / 0)


@NO_GPU
def test_no_record_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    with pytest.raises(LabError, match="no record"):
        labkit.live_or_recorded("unheard_of", lambda: [])


def test_recorded_rows_stand_in_for_what_is_missing(recorded, capsys):
    live = made_up(("right",)).assign(source="measured here: X, driver 1, today")
    table = Experiment("made_up", case, {}, grid=[])._with_recorded(live, {"absent": "not installed"})
    assert table.groupby("variant")["source"].first().to_dict() == {
        "right": "measured here: X, driver 1, today",
        "absent": "recorded: Test GPU 9000, driver 1.2.3, 2020-01-02",
    }
    assert "absent: not installed" in capsys.readouterr().out


def test_a_variant_that_computes_something_else_has_its_own_answer():
    x = np.ones(5, np.float32)
    mixed = Case((x,), x * 3.0, {}, answers={"right": x * 2.0})
    launches, errors, _ = Experiment("e", lambda: mixed, RIGHT, grid=[])._checked({}, {})
    assert errors == {"right": 0.0}
    assert set(launches) == {"right"}


def test_a_variant_runs_only_where_it_is_meant_to():
    meant = Experiment("e", case, RIGHT | WRONG, grid=[], applies=lambda variant, n: variant == "right" or n > 99)
    assert set(meant._checked({"n": 33}, {})[0]) == {"right"}
    with pytest.raises(WrongAnswer, match="e, wrong, n=100"):
        meant._checked({"n": 100}, {})


@pytest.mark.parametrize(("recording", "sizes"), [("1", [8, 9]), ("0", [8])])
def test_a_run_that_records_nothing_is_quick(monkeypatch, recording, sizes):
    monkeypatch.setenv("LABKIT_RECORD", recording)
    experiment_ = Experiment("e", case, RIGHT, grid=[{"n": 8}, {"n": 9}], quick=[{"n": 8}])
    monkeypatch.setattr(experiment_, "_one_case", lambda parameters, absent: [parameters["n"]])
    assert experiment_._measure({}) == sizes


def test_somebody_elses_error_says_of_which_variant(monkeypatch):
    def refuses(x, out):
        raise RuntimeError("invalid argument")

    with pytest.raises(LabError, match="e, refuses, n=8: RuntimeError: invalid argument"):
        Experiment("e", case, {"refuses": refuses}, grid=[])._checked({"n": 8}, {})


def test_rows_measured_before_a_failure_are_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_RECORD", "1")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    monkeypatch.setattr(records, "provenance", lambda before: PROVENANCE)
    measured = made_up(("right",)).drop(columns="source", errors="ignore")
    fails = Experiment("made_up", case, {}, grid=[{"n": 8}, {"n": 9}])

    def one_case(parameters, absent):
        if parameters["n"] == 9:
            raise LabError("the GPU is gone")
        return measured.to_dict("records")

    monkeypatch.setattr(fails, "_one_case", one_case)
    with pytest.raises(LabError, match="the GPU is gone"):
        fails._measure({})
    assert "made_up_unfinished.csv" in capsys.readouterr().err
    kept = next(tmp_path.glob("*/made_up_unfinished.csv"))
    assert len(pd.read_csv(kept)) == len(measured)
    assert not list(tmp_path.glob("*/made_up.csv"))


def test_bandwidth_above_the_peak_is_flagged(monkeypatch):
    monkeypatch.setattr(experiment, "_peak_gbps", lambda: 100.0)
    timed = labkit.Timing(np.array([1e-6]), np.zeros(1, bool), "events", "cold")
    assert labkit.row("v", timed, labkit.elementwise(1000))["flags"] == "above the peak of 100 GB/s"
    hot = labkit.Timing(np.array([1e-6]), np.zeros(1, bool), "events", "hot")
    assert labkit.row("v", hot, labkit.elementwise(1000))["flags"] == ""  # a cache may well be faster


def test_a_row_has_the_columns_of_a_record():
    timed = labkit.Timing(np.array([2.0]), np.zeros(1, bool), "events", "cold")
    row = labkit.row("v", timed, labkit.Cost(4_000_000, 4_000_000, 2_000_000), 1e-8, n=5)
    records.validate(pd.DataFrame([row]), "here")
    assert (row["gbps"], row["tflops"]) == (pytest.approx(4), pytest.approx(0.001))


@NO_GPU
def test_need_says_what_is_missing():
    with pytest.raises(Unavailable, match="needs a GPU"):
        labkit.need("torch")
