"""The command line: what it does, and that bad input is one line and exit code 2."""

import json

import nbformat
import pytest

from conftest import PROVENANCE, made_up
from labkit import LabError, cli, device, figures, notebooks, progress, records

NO_GPU = pytest.mark.skipif(device.MACHINE.has_gpu, reason="there is a GPU")


@pytest.fixture
def course(tmp_path, monkeypatch):
    """One small chapter with an answer, a figure and an exercise."""
    book = nbformat.v4.new_notebook()
    code = [
        "print('the answer is 6')",
        "import labkit; from labkit import plots\n"
        "rows = labkit.records.made_up if 0 else __import__('pandas').DataFrame({'source': ['nowhere']})\n"
        "with plots.style():\n    fig, ax = plots.new('found 1', rows)\nfig",
        "labkit.check_value('01.six', ..., 6)",
    ]
    book.cells = [nbformat.v4.new_code_cell(c, id=i) for c, i in zip(code, ("say", "draw", "ask"), strict=True)]
    book.cells[0].metadata["tags"] = ["answer"]
    book.cells[2].metadata["exercise"] = ["01.six"]
    notebooks.write(book, tmp_path / "notebooks" / "01_one.ipynb")
    monkeypatch.setattr(notebooks, "CHAPTERS", tmp_path / "notebooks")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bad(capsys, *argv) -> str:
    """Runs a command that must fail with one line and code 2; returns the line."""
    assert cli.main(list(argv)) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("labkit: ")]
    assert len(lines) == 1
    return lines[0]


def test_run_prints_the_answer_and_writes_the_figures(course, capsys):
    assert cli.main(["run", "01", "--out", "results"]) == 0
    out = capsys.readouterr().out
    assert "the answer is 6" in out
    assert "1 figures and the executed chapter are in results/01_one/" in out
    assert (course / "results/01_one/draw.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((course / "results/01_one/01_one.ipynb").read_text())["cells"][0]["outputs"]


@NO_GPU
def test_run_inplace_stores_the_outputs(course, capsys):
    assert cli.main(["run", "--inplace"]) == 0
    assert "outputs stored" in capsys.readouterr().out
    assert notebooks.read(course / "notebooks/01_one.ipynb").cells[0].outputs


def test_run_of_an_unknown_chapter(course, capsys):
    assert "no chapter '07'; there are: 01_one" in bad(capsys, "run", "07")


def test_run_of_no_chapter_by_a_slip(course, capsys):
    assert "no chapter ''" in bad(capsys, "run", "")


def test_run_of_a_broken_notebook(course, capsys):
    (course / "notebooks/01_one.ipynb").write_text("{")
    assert "not a notebook" in bad(capsys, "run", "01")
    assert (course / "notebooks/01_one.ipynb").read_text() == "{"


def test_run_into_an_unwritable_folder(course, capsys):
    (course / "file").write_text("mine")
    assert "choose another folder with --out" in bad(capsys, "run", "01", "--out", "file")
    assert (course / "file").read_text() == "mine"


@NO_GPU
def test_recording_needs_a_gpu(course, capsys):
    assert "--record needs a GPU" in bad(capsys, "run", "--record")


def test_only_is_for_records_of_this_gpu(course, capsys, monkeypatch):
    monkeypatch.setattr(device, "MACHINE", device.Machine("gpu", "", "X"))
    assert "add --record" in bad(capsys, "run", "--only", "gemm")
    assert "--only gemm: X has no such record" in bad(capsys, "run", "--record", "--only", "gemm")


def test_what_was_named_and_not_renewed_is_said(data, monkeypatch):
    monkeypatch.setattr(device, "MACHINE", device.Machine("gpu", "", "Test GPU 9000"))
    before = cli._recorded_at([data.stem])
    with pytest.raises(LabError, match=f"not renewed: {data.stem}"):
        cli._check_renewed(before)
    cli._check_renewed({data.stem: "some time before"})


def test_inplace_is_for_machines_without_a_gpu(course, capsys, monkeypatch):
    monkeypatch.setattr(device, "MACHINE", device.Machine("gpu", "", "X"))
    assert "NUMBA_ENABLE_CUDASIM=1" in bad(capsys, "run", "--inplace")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder of the test's own with one record, the one that the first figure reads."""
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "data"))
    experiment, _ = min(figures.FIGURES.items())[1]
    return records.write(made_up(), experiment, PROVENANCE, tmp_path / "data")


def test_plots_of_a_damaged_record(data, capsys, tmp_path):
    data.write_text(data.read_text()[:-30])
    line = bad(capsys, "plots", "--device", "test-gpu-9000", "--out", str(tmp_path / "slides"))
    assert str(data) in line


def test_plots_of_a_record_saved_by_a_spreadsheet(data, capsys, tmp_path):
    data.write_text(data.read_text().replace(",", ";"))
    assert "separated by semicolons" in bad(capsys, "plots", "--device", "test-gpu-9000", "--out", str(tmp_path))


def test_plots_of_an_unknown_device(capsys, tmp_path):
    assert "nvidia-h200/fused_vs_unfused" in bad(capsys, "plots", "--device", "voodoo-2", "--out", str(tmp_path))


def test_plots_of_a_missing_data_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "nowhere"))
    assert "there are: none" in bad(capsys, "plots", "--out", str(tmp_path))


def test_plots_in_an_unknown_format_or_theme(capsys, tmp_path):
    assert "'gif' is not known" in bad(capsys, "plots", "--format", "gif", "--out", str(tmp_path))
    assert "light or dark" in bad(capsys, "plots", "--theme", "pink", "--out", str(tmp_path))
    assert "no format is named" in bad(capsys, "plots", "--format", ",", "--out", str(tmp_path))


def test_plots_of_no_device_by_a_slip(capsys, tmp_path):
    assert "no record" in bad(capsys, "plots", "--device", "", "--out", str(tmp_path))


def test_plots_draws_every_figure(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # as inside a notebook
    assert cli.main(["plots", "--out", str(tmp_path / "slides"), "--format", "svg, png", "--theme", "dark"]) == 0
    assert len(list((tmp_path / "slides").glob("*.svg"))) == len(list((tmp_path / "slides").glob("*.png"))) >= 8


def test_progress_lists_solved_and_open(course, progress_file, capsys):
    cli.main(["progress"])
    assert capsys.readouterr().out.endswith("0 of 1 solved\n")
    progress.solved("01.six")
    cli.main(["progress"])
    out = capsys.readouterr().out
    assert "✓ 01_one" in out
    assert out.endswith("1 of 1 solved\n")


def test_progress_with_a_damaged_file_says_so(course, progress_file, capsys):
    progress_file.parent.mkdir()
    progress_file.write_text("{")
    assert cli.main(["progress"]) == 0
    assert "was damaged" in capsys.readouterr().err


def test_doctor_reports(capsys):
    assert cli.main(["doctor"]) in (0, 1)
    assert "mode" in capsys.readouterr().out


def test_lab_lays_the_desk_and_starts_jupyterlab(course, capsys, monkeypatch):
    started = []

    def execve(path, argv, env):
        started.extend((argv, env))
        raise KeyboardInterrupt  # it never returns

    monkeypatch.setattr(cli.os, "execve", execve)
    monkeypatch.delitem(device.ENVIRONMENT, device.SIMULATOR_VARIABLE, raising=False)
    cli.main(["lab", "--desk", "desk", "--", "--no-browser"])
    assert device.SIMULATOR_VARIABLE not in started[1], "a chapter finds out itself whether there is a GPU"
    assert (course / "desk/01_one.ipynb").exists()
    assert started[0][1:4] == ["-m", "jupyter", "lab"]
    assert f"--ServerApp.root_dir={course / 'desk'}" in started[0]
    assert "--no-browser" in started[0]


def test_the_command_is_installed_and_helps(python):
    done = python("import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-m', 'labkit.cli', '--help']))")
    assert done.returncode == 0
    for command in ("doctor", "lab", "run", "plots", "progress"):
        assert command in done.stdout
