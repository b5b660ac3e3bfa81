"""Records: written whole, read only if whole; damaged input is one clear line and loses nothing."""

import json
import os

import numpy as np
import pandas as pd
import pytest

from conftest import PROVENANCE, made_up
from labkit import LabError, device, records


def read(path):
    return records.read(path.stem, path.parent.name, path.parent.parent)


def test_a_record_comes_back_with_its_source(record):
    table = read(record)
    assert table["source"].unique().tolist() == ["recorded: Test GPU 9000, driver 1.2.3, 2020-01-02"]
    pd.testing.assert_frame_equal(table.drop(columns="source"), made_up(), check_dtype=False, rtol=1e-5)
    assert record.parent.name == "test-gpu-9000"


def test_every_committed_record_is_whole():
    found = list(device.data_dir().glob("*/*.csv"))
    assert {p.stem for p in found} >= {"launch_overhead", "fused_vs_unfused", "timing_trap", "traffic_ncu"}
    for path in found:
        table = read(path)
        source = records.read_provenance(path.stem, path.parent.name, path.parent.parent)
        assert len(source["commit"]) == 40
        assert source["packages"]["numba-cuda"]
        assert not table["flags"].str.contains("above the peak").any(), path


def test_a_kernel_that_was_checked_has_its_error_recorded():
    for name in ("fused_vs_unfused", "fused_chain", "launch_crossover", "timing_trap"):
        errors = records.read(name)["error"]
        assert errors.notna().all(), name
        assert (errors < 1e-6).all(), name


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "cut short or edited|not a CSV|expected a number|is missing"),
        (lambda text: "\n".join(text.split("\n")[:-2]) + "\n", r"cut short or edited: 3 rows found, 4 recorded"),
        (lambda text: text.replace(",", ";").replace(".", ","), "separated by semicolons"),
        (lambda text: text.replace("median_ms", "median"), "column median_ms missing"),
        (lambda text: text.replace("2.05", "fast", 1), "column p25_ms holds 'fast'"),
        (lambda text: text.replace("2.05", "2.06", 1), "cut short or edited"),
        (lambda text: text.replace("2.05", "-1", 1), "not above 0 ms"),
        (lambda text: text.split("\n")[0] + "\n", "no rows"),
        (lambda text: "", "not a CSV table"),
        (lambda text: text.replace("unfused", "fused"), "two rows for variant=fused, n=16"),
    ],
)
def test_a_damaged_table_is_refused_and_kept(record, damage, says):
    damaged = damage(record.read_text())
    record.write_text(damaged)
    with pytest.raises(LabError, match=says) as e:
        read(record)
    assert str(record) in str(e.value)
    assert "\n" not in str(e.value)
    assert record.read_text() == damaged


def test_windows_line_ends_are_no_damage(record):
    record.write_bytes(record.read_bytes().replace(b"\n", b"\r\n"))
    assert len(read(record)) == 4


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not JSON"),
        ("{}", "no device, driver"),
        ("null", "no device, driver"),
        ("5", "no device, driver"),
        (json.dumps({**PROVENANCE, "utc": 5, "rows": 4, "csv_sha256": ""}), "no utc in it"),
        (None, "no record"),
    ],
)
def test_damaged_provenance_is_refused(record, content, says):
    path = record.with_suffix(".json")
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(LabError, match=says):
        read(record)


def test_a_missing_record_lists_those_that_exist(record):
    with pytest.raises(LabError, match="test-gpu-9000/made_up"):
        records.read("nothing", "test-gpu-9000", record.parent.parent)


def test_bytes_that_are_no_text(record):
    record.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LabError, match="cannot be read"):
        read(record)


def test_an_older_record_survives_a_table_that_is_refused(record):
    before = record.read_bytes()
    with pytest.raises(LabError, match="out of order"):
        records.write(made_up().assign(min_ms=99.0), "made_up", PROVENANCE, record.parent.parent)
    assert record.read_bytes() == before


def test_an_unwritable_folder_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(LabError, match="set LABKIT_DATA to a folder you own"):
        records.write(made_up(), "made_up", PROVENANCE, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_the_source_column_is_not_stored(record):
    table = read(record)
    path = records.write(table, "again", PROVENANCE, record.parent.parent)
    assert "source" not in path.read_text().split("\n")[0]


def test_parameters_are_the_experiments_own_columns():
    assert records.parameters(made_up().assign(source="x")) == ["n"]


def test_values_survive_to_six_digits(record):
    assert json.loads(record.with_suffix(".json").read_text())["rows"] == 4
    assert np.allclose(read(record)["gbps"], made_up()["gbps"], rtol=1e-5)


@pytest.mark.skipif(device.MACHINE.has_gpu, reason="there is a GPU")
def test_provenance_takes_a_real_gpu():
    with pytest.raises(LabError, match="Records come from a real GPU alone"):
        records.provenance()


def test_devices_lists_where_an_experiment_was_recorded(record):
    assert records.devices("made_up", record.parent.parent) == ["test-gpu-9000"]


def test_the_device_can_be_chosen(record, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA", str(record.parent.parent))
    monkeypatch.setenv("LABKIT_DEVICE", "test-gpu-9000")
    assert len(records.read("made_up")) == 4
    assert os.environ["LABKIT_DEVICE"]


def test_a_command_tells_no_folder_of_the_machine():
    assert records.without_folders("labkit run --record 04 --out /home/me/figs") == "labkit run --record 04 --out figs"
    assert records.without_folders("/opt/tools/record.py data/x") == "record.py data/x"
