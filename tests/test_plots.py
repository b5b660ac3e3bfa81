"""Figures: from records alone, the same bytes twice, in one style, each under what it found."""

import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from matplotlib.testing.compare import compare_images
from PIL import Image

from conftest import ROOT, made_up
from labkit import Cost, LabError, cli, colours, device, figures, findings, plots, records
from labkit.figures import registry


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """All figures in all formats, and the processor's seconds that they took."""
    folder = tmp_path_factory.mktemp("figures")
    start = time.process_time()
    figures.draw_all(folder, ["png", "svg", "pdf"])
    return folder, time.process_time() - start


@pytest.fixture(scope="module")
def by_command(tmp_path_factory):
    """The same from a process of its own; the time is None where it can't be told."""
    folder, start = tmp_path_factory.mktemp("command"), _of_children()
    command = [sys.executable, "-m", "labkit.cli", "plots", "--out", str(folder), "--format", "svg,png,pdf"]
    done = subprocess.run(command, env=device.ENVIRONMENT, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return folder, None if start is None else _of_children() - start


def _of_children() -> float | None:
    """The seconds of the processor (other tests run beside this one) that child processes took."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def test_every_figure_is_drawn_in_every_format(drawn):
    names = {p.name for p in drawn[0].iterdir()}
    assert names == {f"{figure}.{kind}" for figure in figures.recorded() for kind in ("png", "svg", "pdf")}


def test_the_same_data_gives_the_same_bytes_in_another_process(drawn, by_command):
    assert len(list(by_command[0].iterdir())) == len(list(drawn[0].iterdir()))
    for path in drawn[0].iterdir():
        assert path.read_bytes() == (by_command[0] / path.name).read_bytes(), path.name


def test_the_same_data_gives_the_same_bytes_in_this_process(drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "FIGURES", dict(list(figures.FIGURES.items())[::6]))
    for path in figures.draw_all(tmp_path, ["png", "svg", "pdf"]):
        assert path.read_bytes() == (drawn[0] / path.name).read_bytes(), path.name


def test_a_figure_takes_a_second_in_all_formats(drawn):
    assert drawn[1] < len(figures.FIGURES)


def test_plots_as_a_command_take_a_second_a_figure(by_command):
    if by_command[1] is None:
        pytest.skip("the time of child processes can't be told here")
    assert by_command[1] < 2 + len(figures.FIGURES)


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "docs").glob("*.png"))])
def test_the_readmes_figures_are_current(drawn, name):
    """Compared as pictures: another matplotlib may place a pixel elsewhere, another number moves many."""
    assert f"docs/{name}.png" in (ROOT / "README.md").read_text(encoding="utf-8")
    committed, drawn_now = ROOT / "docs" / f"{name}.png", drawn[0] / f"{name}.png"
    assert Image.open(committed).text["Title"] == Image.open(drawn_now).text["Title"]  # the finding, to the digit
    different = compare_images(str(committed), str(drawn_now), tol=8)
    assert different is None, f"{different}; redraw: labkit plots --out docs, and keep those that the README shows"


def test_the_dark_theme_is_dark(drawn, tmp_path):
    figures.draw_all(tmp_path, ["svg"], theme="dark")
    for name in figures.recorded():
        dark, light = ((folder / f"{name}.svg").read_text() for folder in (tmp_path, drawn[0]))
        assert "#121212" in dark
        assert "#121212" not in light


@pytest.mark.parametrize("name", figures.recorded())
def test_a_figure_says_what_it_found_and_where_from(name):
    experiment, draw = figures.FIGURES[name]
    fig = draw(records.read(experiment))
    assert any(c.isdigit() for c in fig.axes[0].get_title(loc="left")), "the finding has a number in it"
    assert "recorded: NVIDIA H200" in fig.get_supxlabel()
    assert repr(fig).startswith("<Figure: ")
    assert fig._repr_png_()[0].startswith(b"\x89PNG")
    assert fig.get_size_inches() == pytest.approx([13.333, 7.5])


@pytest.mark.parametrize("name", figures.recorded())
def test_nothing_is_smaller_than_the_back_row_can_read(name):
    import matplotlib.text

    experiment, draw = figures.FIGURES[name]
    fig = draw(records.read(experiment))
    fig.draw_without_rendering()
    sizes = [t.get_fontsize() for t in fig.findobj(matplotlib.text.Text) if t.get_text().strip()]
    assert min(sizes) >= 16


@pytest.mark.parametrize("name", figures.recorded())
def test_nothing_leaves_the_figure(name):
    experiment, draw = figures.FIGURES[name]
    fig = draw(records.read(experiment))
    fig.draw_without_rendering()
    box = fig.get_tightbbox()  # in inches
    assert min(box.x0, box.y0) >= -0.01
    assert box.x1 <= 13.34
    assert box.y1 <= 7.51


def test_every_recorded_variant_has_its_own_colour_and_marker():
    for experiment in {figures.FIGURES[name][0] for name in figures.recorded()}:
        for variant in records.read(experiment)["variant"].unique():
            assert variant in colours.VARIANTS, f"{experiment}: {variant}"


def test_the_user_s_own_matplotlib_settings_change_nothing():
    import matplotlib as mpl

    rows = records.read("fused_vs_unfused")
    plain = figures.bandwidth(rows)._repr_png_()
    with mpl.rc_context({"font.size": 40, "axes.facecolor": "red", "lines.linewidth": 30}):
        assert figures.bandwidth(rows)._repr_png_() == plain
        assert mpl.rcParams["font.size"] == 40


def test_names_at_line_ends_are_moved_apart_in_order():
    placed = plots.spread({"a": 10, "b": 11, "c": 300}, 20)
    assert placed["b"] - placed["a"] >= 19.9
    assert placed["c"] == 300
    assert list(placed) == ["a", "b", "c"]


def test_points_without_a_place_on_a_log_axis_are_not_made():
    with pytest.raises(LabError, match="not above 0 ms"):
        records.validate(made_up().assign(min_ms=0.0), "here")


@pytest.mark.parametrize(
    ("options", "says"), [({"formats": ["gif"]}, "'gif' is not known"), ({"theme": "pink"}, "light or dark")]
)
def test_unknown_options(tmp_path, options, says):
    with pytest.raises(LabError, match=says):
        figures.draw_all(tmp_path, options.get("formats", ["png"]), options.get("theme", "light"))


def test_an_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="choose another folder with --out"):
        figures.draw_all(tmp_path / "file", ["png"])


# --- findings: tables and sentences ---------------------------------------------------------------------------


def test_value_wants_exactly_one_row():
    rows = made_up()
    assert findings.value(rows, "median_ms", variant="fused", n=16) == pytest.approx(2.1)
    with pytest.raises(LabError, match="2 rows with"):
        findings.value(rows, "median_ms", variant="fused")


def test_like_is_compared_with_like():
    rows = pd.concat([made_up(("unfused", "unfused-4"), (16,), 4.0), made_up(("fused",), (16,), 2.0)])
    rows = pd.concat([rows, made_up(("fused-4",), (16,), 1.0)], ignore_index=True)
    rows = rows.assign(bytes=[400, 400, 200, 200], source="here")
    found = findings.speedups(rows).set_index("variant")
    assert found.loc["fused", ["speedup", "predicted"]].tolist() == [2.0, 2.0]
    assert found.loc["fused-4", ["speedup", "predicted"]].tolist() == [4.0, 2.0]


def test_counted_bytes_beside_the_models():
    model = {"one": Cost(4_000_000, 4_000_000), "two": Cost(8_000_000, 8_000_000)}
    assert "the model is right to the byte" in findings.counted_table(model, model)
    counted = {"two": Cost(8_000_000, 8_400_000)}  # 2.5 % more in all
    _, row, verdict = findings.counted_table(model, counted).splitlines()
    assert row.split() == ["two", "8.000", "8.000", "+0.00%", "8.000", "8.400", "+5.00%"]
    assert "off by 2.50% at most" in verdict


def mixed() -> pd.DataFrame:
    """Live rows of a slower GPU without PyTorch, and recorded ones that stand in."""
    recorded = records.read("fused_vs_unfused")
    live = recorded[~recorded["variant"].str.startswith(("torch", "triton"))].copy()
    live[["min_ms", "p25_ms", "median_ms", "p75_ms"]] *= 15
    live["gbps"] /= 15
    live["source"] = "measured here: Voodoo 2, driver 1, 1998-02-01"
    return pd.concat([live, recorded[recorded["variant"].str.startswith(("torch", "triton"))]], ignore_index=True)


def test_a_live_time_is_never_divided_by_a_recorded_one():
    found = findings.speedups(findings.largest(mixed()))
    live = found["source"].str.startswith("measured")
    assert found[live]["speedup"].between(0.9, 2.1).all()
    assert found[~live]["speedup"].isna().all()
    assert "29." not in findings.answer(mixed())
    assert findings.saved(mixed()).notna().all(axis=None)


@pytest.mark.parametrize(
    "name", [n for n, (experiment, _) in figures.FIGURES.items() if experiment == "fused_vs_unfused"]
)
def test_figures_show_one_source_and_need_no_data_sheet(name):
    fig = figures.FIGURES[name][1](mixed())
    assert fig.get_supxlabel() == "measured here: Voodoo 2, driver 1, 1998-02-01"


def test_chapter_01s_findings_need_no_data_sheet():
    tables = [
        records.read(e).assign(source="measured here: Voodoo 2, driver 1, 1998-02-01")
        for e in ("launch_overhead", "launch_budget", "launch_crossover")
    ]
    assert "weights" not in findings.takeaways_01(*tables)
    assert "weights" not in repr(figures.launch_budget(tables[1]))


def test_power_reads_as_one():
    assert findings.power(2**28) == "2²⁸"


def test_the_chain_moves_three_times_the_bytes():
    assert findings.chain_ratio() == 3.0


def test_a_missed_prediction_is_called_missed():
    rows = pd.DataFrame({"variant": ["separate", "fused"], "tokens": [8, 8], "median_ms": [2.0, 1.0], "source": "x"})
    assert findings.chain_met(rows).endswith("missed within 10 %")
    rows["median_ms"] = [3.1, 1.0]
    assert findings.chain_met(rows).endswith("met within 10 %")


def test_the_crossover_is_where_the_launch_is_hidden():
    sizes = pd.DataFrame({"n": [4, 4, 8, 8], "variant": ["launch", "kernel"] * 2, "median_ms": [9, 1, 9.5, 9]})
    assert findings.crossover_log2(sizes) == 3


def test_tables_are_the_same_bytes_everywhere():
    table = pd.DataFrame({"a": [1.0, np.nan], "b": ["x", "y"]})
    assert findings.text(table, a="{:.2f}") == "   a  b\n1.00  x\n   -  y"


def test_the_largest_size_is_the_live_rows_own():
    reaching_further = mixed()
    live = reaching_further["source"].str.startswith("measured")
    short = reaching_further[~live | (reaching_further["n"] <= 1 << 20)]  # a small GPU: the large sizes did not fit
    assert set(findings.largest(short)["n"]) == {1 << 20}
    assert "fused-4" in findings.answer(short)


def test_what_was_not_recorded_is_left_out_and_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(registry.FIGURES, "99-nothing", ("never_recorded", None))
    few = [*figures.recorded()[:1], "99-nothing"]
    monkeypatch.setattr(registry, "FIGURES", {name: figures.FIGURES[name] for name in few})
    monkeypatch.setattr(figures, "FIGURES", registry.FIGURES)
    assert cli.main(["plots", "--out", str(tmp_path)]) == 0
    assert [p.stem for p in tmp_path.iterdir()] == few[:1]
    assert "left out: 99-nothing" in capsys.readouterr().out
