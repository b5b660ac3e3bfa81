"""The learner's progress is kept, and never lost."""

import json
import threading

import numpy as np
import pytest

from labkit import LabError, progress


def test_nothing_at_first(progress_file):
    assert progress.load() == {"solved": {}, "predicted": {}}


def test_solved_is_remembered_once(progress_file):
    progress.solved("x.y")
    first = progress.load()["solved"]["x.y"]
    progress_file.write_text(progress_file.read_text().replace(first, "2001-01-01T00:00:00+00:00"))
    progress.solved("x.y")
    assert progress.load()["solved"]["x.y"].startswith("2001")


def test_a_solution_without_a_name_is_no_progress(progress_file):
    progress.solved("")
    assert not progress_file.exists()


def test_predictions_are_remembered_and_confronted(progress_file, capsys):
    assert progress.predict("q", 3) == 3.0
    assert progress.load()["predicted"] == {"q": 3.0}
    progress.confront("q", 3.0, 2.0, "×")
    assert capsys.readouterr().out == "q: you said 3×, it is 2× (+50%)\n"


def test_numpy_numbers_are_numbers(progress_file):
    assert progress.predict("q", np.int64(3)) == 3.0


def test_no_prediction_lets_the_chapter_run_on(progress_file, capsys):
    assert progress.predict("q", ...) is None
    progress.confront("q", None, 2.0)
    assert "no prediction" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["2", True, None, [2], float("nan"), float("inf")])
def test_a_prediction_is_a_number(progress_file, value):
    with pytest.raises(LabError, match="expected a number"):
        progress.predict("q", value)


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"solved": 3}',
        '{"solved": {}, "predicted": null}',
        '{"solved": {"x": 5}, "predicted": {}}',
        "null",
    ],
)
def test_a_damaged_file_is_put_aside(progress_file, capsys, damage):
    progress_file.parent.mkdir()
    progress_file.write_text(damage)
    progress.solved("x")
    assert list(progress.load()["solved"]) == ["x"]
    aside = [p for p in progress_file.parent.iterdir() if "damaged" in p.name]
    assert [p.read_text() for p in aside] == [damage]
    assert str(aside[0]) in capsys.readouterr().err


def test_an_unwritable_place_costs_no_answer(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "file" / "progress.json"))
    progress.solved("x")
    assert "progress is not saved" in capsys.readouterr().err


def test_two_kernels_at_once_lose_nothing(progress_file):
    threads = [threading.Thread(target=progress.solved, args=(f"x{i}",)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(json.loads(progress_file.read_text())["solved"]) == 8
