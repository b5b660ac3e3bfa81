"""Finding, running and laying out chapters."""

import json

import nbformat
import pytest

from conftest import ROOT
from labkit import LabError, notebooks


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of two small chapters."""
    folder = tmp_path / "notebooks"
    for name in ("01_one", "02_two"):
        book = nbformat.v4.new_notebook()
        book.cells = [nbformat.v4.new_code_cell(f"print('{name}')"), nbformat.v4.new_code_cell("1 + 1")]
        book.cells[0].id, book.cells[1].id = "say", "sum"
        book.cells[0].metadata["tags"] = ["answer"]
        book.cells[1].metadata["exercise"] = [f"{name[:2]}.sum"]
        notebooks.write(book, folder / f"{name}.ipynb")
    monkeypatch.setattr(notebooks, "CHAPTERS", folder)
    return folder


def test_chapters_are_found_by_number_name_or_file(course):
    assert [p.stem for p in notebooks.chapters()] == ["01_one", "02_two"]
    for name in ("02", "02_two", "02_two.ipynb", "notebooks/02_two.ipynb"):
        assert [p.stem for p in notebooks.chapters([name])] == ["02_two"]


def test_a_draft_is_found_by_name_and_is_not_among_the_chapters(course):
    notebooks.write(nbformat.v4.new_notebook(), course / "drafts" / "03_three.ipynb")
    assert [p.stem for p in notebooks.chapters()] == ["01_one", "02_two"]
    assert [p.stem for p in notebooks.chapters(["03"])] == ["03_three"]


def test_an_unknown_chapter_lists_the_known_ones(course):
    with pytest.raises(LabError, match="no chapter '9'; there are: 01_one, 02_two"):
        notebooks.chapters(["9"])


def test_no_chapters_at_all(monkeypatch, tmp_path):
    monkeypatch.setattr(notebooks, "CHAPTERS", tmp_path)
    with pytest.raises(LabError, match="from a clone of the course"):
        notebooks.chapters()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"cells": 3}', "\x00"])
def test_a_broken_notebook_is_one_clear_line(course, damage):
    path = course / "01_one.ipynb"
    path.write_text(damage)
    with pytest.raises(LabError, match=r"01_one\.ipynb: not a notebook") as e:
        notebooks.read(path)
    assert "\n" not in str(e.value)
    assert path.read_text() == damage


def test_a_run_stores_outputs_and_leaves_no_other_trace(course):
    path = course / "01_one.ipynb"
    done = notebooks.execute(path)
    assert notebooks.answer(done) == "01_one"
    notebooks.write(done, path)
    first = path.read_bytes()
    notebooks.write(notebooks.execute(path), path)
    assert path.read_bytes() == first
    assert json.loads(first)["metadata"]["language_info"] == {"name": "python"}


def test_a_failing_cell_is_named(course):
    path = course / "01_one.ipynb"
    book = notebooks.read(path)
    book.cells[1].source = "x = 3\n1 / 0"
    notebooks.write(book, path)
    with pytest.raises(LabError, match=r"ZeroDivisionError: division by zero \(in the cell `sum`: x = 3\)"):
        notebooks.execute(path)


def test_a_cell_that_never_ends_is_stopped(course):
    path = course / "01_one.ipynb"
    book = notebooks.read(path)
    book.cells[1].source = "while True: pass"
    notebooks.write(book, path)
    with pytest.raises(LabError, match="CellTimeoutError"):
        notebooks.execute(path, timeout_s=3)


def test_a_notebook_that_cannot_be_run_is_one_line(course):
    path = course / "01_one.ipynb"
    book = notebooks.read(path)
    book.cells[0].metadata["tags"] = 5
    path.write_text(json.dumps(book))
    with pytest.raises(LabError, match=r"01_one\.ipynb: "):
        notebooks.execute(path)


def test_a_learner_gets_no_outputs(course):
    book = notebooks.without_outputs(notebooks.execute(course / "01_one.ipynb"))
    assert all(c.outputs == [] and c.execution_count is None for c in book.cells)


def test_a_desk_is_laid_once_and_never_overwritten(course, tmp_path):
    desk = tmp_path / "work"
    assert notebooks.lay_desk(desk) == ["01_one.ipynb: laid", "02_two.ipynb: laid"]
    assert notebooks.lay_desk(desk) == []
    mine = desk / "01_one.ipynb"
    book = notebooks.read(mine)
    book.cells[1].source = "2 + 2"
    notebooks.write(book, mine)
    before = mine.read_text()
    assert notebooks.lay_desk(desk) == ["01_one.ipynb: yours, kept"]
    assert mine.read_text() == before


def test_opening_a_chapter_does_not_make_it_the_learners_own(course, tmp_path):
    desk = tmp_path / "work"
    notebooks.lay_desk(desk)
    opened = notebooks.read(desk / "01_one.ipynb")
    opened.metadata["language_info"] = {"name": "python", "version": "3.12"}  # as JupyterLab does at once
    notebooks.write(opened, desk / "01_one.ipynb")
    newer = notebooks.read(course / "01_one.ipynb")
    newer.cells[0].source = "print('newer')"
    notebooks.write(newer, course / "01_one.ipynb")
    assert notebooks.lay_desk(desk) == ["01_one.ipynb: laid"]
    assert "newer" in (desk / "01_one.ipynb").read_text()


def test_a_newer_chapter_is_laid_beside_the_learners_own(course, tmp_path):
    desk = tmp_path / "work"
    notebooks.lay_desk(desk)
    for name in ("01_one", "02_two"):
        book = notebooks.read(course / f"{name}.ipynb")
        book.cells[0].source = "print('newer')"
        notebooks.write(book, course / f"{name}.ipynb")
    (desk / "01_one.ipynb").write_text("mine")
    assert notebooks.lay_desk(desk) == [
        "01_one.ipynb: yours, kept; the course's newer one is 01_one.new.ipynb",
        "02_two.ipynb: laid",
    ]
    assert (desk / "01_one.ipynb").read_text() == "mine"
    assert "newer" in (desk / "01_one.new.ipynb").read_text()
    assert "newer" in (desk / "02_two.ipynb").read_text()
    assert notebooks.lay_desk(desk) == ["01_one.ipynb: yours, kept"]


def test_what_the_learner_wrote_in_the_newer_one_is_kept_too(course, tmp_path):
    desk = tmp_path / "work"
    notebooks.lay_desk(desk)
    (desk / "01_one.ipynb").write_text("mine")
    for word in ("newer", "newest"):
        book = notebooks.read(course / "01_one.ipynb")
        book.cells[0].source = f"print('{word}')"
        notebooks.write(book, course / "01_one.ipynb")
        notebooks.lay_desk(desk)
        if word == "newer":
            (desk / "01_one.new.ipynb").write_text("mine, too")
    assert (desk / "01_one.ipynb").read_text() == "mine"
    assert (desk / "01_one.new.ipynb").read_text() == "mine, too"
    assert "newest" in (desk / "01_one.new2.ipynb").read_text()


def test_without_its_list_every_file_on_a_desk_counts_as_the_learners(course, tmp_path):
    desk = tmp_path / "work"
    notebooks.lay_desk(desk)
    (desk / notebooks.LAID).write_text("{")
    (desk / "01_one.ipynb").write_text("mine")
    notebooks.lay_desk(desk)
    assert (desk / "01_one.ipynb").read_text() == "mine"


def test_a_desk_that_cannot_be_made(course, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="choose another folder with --desk"):
        notebooks.lay_desk(tmp_path / "file")


def test_figures_are_saved_under_their_cells_names(tmp_path):
    book = nbformat.v4.new_notebook()
    png = nbformat.v4.new_output("display_data", {"image/png": "iVBORw0KGgo="})
    book.cells = [nbformat.v4.new_code_cell("", outputs=[png, png], id="speed")]
    assert [p.name for p in notebooks.save_figures(book, tmp_path)] == ["speed.png", "speed-2.png"]


def test_cells_can_be_run_for_what_they_define():
    path = ROOT / "notebooks" / "02_fused_vs_unfused.ipynb"
    assert notebooks.namespace(path, ["mode", "kernel"])["scale"]
    with pytest.raises(LabError, match=r"no code cell nothing; there are: mode, "):
        notebooks.namespace(path, ["nothing"])


def test_exercises_are_those_in_the_metadata(course):
    assert notebooks.exercises(course / "01_one.ipynb") == ["01.sum"]
