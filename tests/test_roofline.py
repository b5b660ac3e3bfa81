"""Chapter 03: roofs, points and their chart; what its kernels are compiled to; what its record must show."""

import numpy as np
import pandas as pd
import pytest

import labkit  # isort: skip
from matplotlib.text import Text

from labkit import Cost, LabError, WrongAnswer, device, figures, findings, notebooks, plots, ptx, records, rooflines
from labkit import roofs as runs
from labkit.findings import Roofs
from labkit.roofs import setup, tensor

compiles = pytest.mark.skipif(bool(ptx.compiler_trouble()), reason=ptx.compiler_trouble() or "it is here")
PAPER = Roofs(4000, {"fp32": 60, "fp16": 800}, "data sheet")
BATCHES = (1, 32, 1024, 4096)


def row(variant, kind, cost, ms, dtype="float32", **given):
    timed = labkit.Timing(np.array([ms, ms]), np.zeros(2, bool), "events", "cold")
    return labkit.row(variant, timed, cost, 1e-7, kind=kind, dtype=dtype, **setup.PARAMETERS | given)


def made_up(products=True) -> pd.DataFrame:
    """A record of a machine with 4 TB/s, 60 and 800 TFLOP/s, measured by nobody."""
    n = 1 << 26
    rows = [
        row("copy", "roof", labkit.elementwise(n, flops=0), 8 * n / 3.9e9, n=n, each=1, block=128),
        row("copy", "roof", labkit.elementwise(n, flops=0), 8 * n / 4e9, n=n, each=4, block=128),
        row("read", "roof", Cost(4 * n, 0, n), 4 * n / 3.8e9, n=n, each=4, block=128),
        row("l2", "roof", Cost(10**9, 0, 1), 1 / 6, n=1 << 21, each=8, block=1024),
        row("fma", "roof", Cost(1, 1, 6 * 10**10), 1.0, each=8, block=256),
        row("mma", "roof", Cost(1, 1, 6 * 10**11), 1.0, "float16", each=8, block=128),
        row("wgmma", "roof", Cost(1, 1, 8 * 10**11), 1.0, "float16", each=1, block=256),
        row("softmax", "point", labkit.elementwise(n, flops=5), 8 * n / 3.6e9, n=1024, batch=n >> 10),
        row("naive", "point", runs.gemm_cost(2048, 2048, 2048, 4), 10.0, n=2048, batch=2048),
    ]
    for turns in (1, 2, 4):
        cost = labkit.elementwise(n, flops=32 * turns)
        rows.append(row("polynomial", "point", cost, PAPER.predict_ms(cost), n=n, degree=16 * turns))
    for b in BATCHES if products else ():
        cost = runs.gemm_cost(b, 16384, 16384, 2)
        rows.append(row("cublas", "point", cost, PAPER.predict_ms(cost, "fp16"), "float16", n=16384, batch=b))
    return pd.DataFrame(rows).assign(source="recorded: NVIDIA H200, driver 1, 2020-01-02")


# --- roofs and points


def test_the_lower_roof_decides():
    assert PAPER.ridge("fp32") == 15
    assert PAPER.reachable(1) == 4
    assert PAPER.reachable(1000) == 60
    assert PAPER.reachable(100, "fp16") == 400
    assert PAPER.predict_ms(Cost(4 * 10**9, 0, 1)) == pytest.approx(1)
    assert PAPER.predict_ms(Cost(1, 0, 60 * 10**9)) == pytest.approx(1)


def test_the_best_kernel_is_the_roof():
    found = findings.roofs(made_up())
    assert (found.gbps, found.l2_gbps) == (pytest.approx(4000), pytest.approx(6000))
    assert found.tflops == {"fp32": pytest.approx(60), "fp16": pytest.approx(800)}
    table = findings.roof_table(made_up())
    assert "a copy, 4 elements a thread" in table
    assert "83%" in table  # of the data sheet's 4.8 TB/s


def test_a_roof_that_was_not_measured_is_the_data_sheets():
    rows = made_up()
    assert findings.roofs(rows[rows["dtype"] == "float32"]).tflops["fp16"] == 989
    stranger = rows.assign(source="recorded: Voodoo 2, driver 1, 1998-02-01")
    assert findings.roofs(stranger[stranger["dtype"] == "float32"]).tflops == {"fp32": pytest.approx(60)}
    assert "data sheet" in findings.roof_table(stranger)


def test_points_know_their_limit_and_their_share():
    found = findings.points(made_up()).set_index("name")
    assert found.loc["softmax", "share"] == pytest.approx(0.9)
    assert found.loc["softmax", "limit"] == "memory"
    assert found.loc["polynomial 16", "limit"] == "memory"
    assert found.loc["polynomial 64", "limit"] == "arithmetic"
    assert found.loc["GEMM fp32, naive", "share"] < 0.05
    assert found.loc["GEMM, batch 4096", "limit"] == "arithmetic"


def test_where_the_walk_turns():
    rows = made_up()
    told = findings.turning_batch(rows, PAPER)
    assert runs.gemm_cost(round(told), 16384, 16384, 2).intensity == pytest.approx(PAPER.ridge("fp16"), rel=0.01)
    assert findings.turning_batch(rows) == pytest.approx(told, rel=0.1)


def test_without_products_the_recorded_ones_stand_in(capsys):
    rows = made_up()
    assert findings.with_products(rows) is rows
    assert "cublas" in set(findings.with_products(made_up(products=False))["variant"])
    assert "shown instead: recorded" in capsys.readouterr().out
    assert findings.takeaways_03(made_up(products=False)).count("\n") == 2


def test_degrees_by_data_sheet():
    assert findings.turning_degree(findings.sheet("nvidia-h200")) == 56
    for gpu in device.gpus():
        assert f"{gpu} " in findings.turning_degrees()
    with pytest.raises(LabError, match="no data-sheet row"):
        findings.sheet("voodoo-2")


# --- the chart


def names(ax) -> list[Text]:
    return [t for t in ax.texts if t.get_text()]


@pytest.mark.parametrize("draw", [figures.roofline_map, figures.batch_walk, figures.polynomials])
def test_names_lie_beside_each_other(draw):
    fig = draw(made_up())
    fig.draw_without_rendering()
    boxes = [Text.get_window_extent(t) for t in names(fig.axes[0])]
    assert len(boxes) > 4
    for i, box in enumerate(boxes):
        assert not box.count_overlaps(boxes[:i]), names(fig.axes[0])[i].get_text()


def test_another_gpus_roofs_are_dotted_and_named():
    fig = figures.roofline_map_beside(made_up(), "nvidia-l4")
    assert [line.get_linestyle() for line in fig.axes[0].lines].count(":") == 3
    assert any("121 TFLOP/s" in t.get_text() for t in names(fig.axes[0]))
    assert "NVIDIA L4" in repr(fig)


def test_every_point_is_hollow_and_filled():
    with plots.style():
        _, ax = plots.new("1", made_up())
        found = findings.points(made_up())
        rooflines.chart(ax, PAPER, found.assign(text=""))
    points = [line for line in ax.lines if line.get_marker() not in ("None", None, "")]
    assert len(points) == 2 * len(found)
    assert sum(line.get_markerfacecolor() == "none" for line in points) == len(found)


def test_a_cpus_roofs_are_in_its_own_units():
    fig = figures.cpu_roofline(Roofs(16, {"fp32": 0.1}, "measured"), {"axpy": (Cost(8, 4, 2), 1e-6)})
    assert fig.axes[0].get_ylabel() == "GFLOP/s"
    assert {"16 GB/s", "100 GFLOP/s"} <= {t.get_text().rpartition(") ")[2] for t in names(fig.axes[0])}


# --- the chapter's kernels and exercises


@pytest.fixture(scope="module")
def chapter() -> dict:
    ids = ("copy", "copy-check", "read", "fma", "tensor", "l2", "elementwise", "steps", "softmax", "norm", "gemv")
    return notebooks.namespace(notebooks.chapters(["03"])[0], ["mode", *ids, "product", "knob"])


def test_a_wrong_kernel_fails_the_chapters_check(chapter):
    with pytest.raises(WrongAnswer):
        chapter["check"](chapter["copier"](4), lambda x: 2 * x, lambda n: (chapter["blocks"](n, 512), 128), (5,))
    with pytest.raises(WrongAnswer, match="never written"):
        chapter["check"](chapter["copier"](4), lambda x: x, lambda n: (1, 32), (1000,))


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [("03.intensity", 1 / 6, (2, 1 / 4, 6, 2 / 8)), ("03.degree", 56, (14, 28, 112, 206))],
)
def test_wrong_numbers(name, right, wrong):
    labkit.check_value("", right, right, within=0.02)
    for number in wrong:
        with pytest.raises(WrongAnswer):
            labkit.check_value("", number, right, within=0.05)


ONE, TWO = np.zeros(4, np.float32), np.zeros((2, 2), np.float32)
WORDS, TILES, TURNS = np.zeros((2, 2), np.uint32), np.zeros((2, 2, 2), np.float32), np.int32(1)
COMPILED = {
    "copy": (lambda c: c["copier"](8), (ONE, ONE)),
    "read": (lambda c: c["reader"](16), (ONE, ONE)),
    "l2": (lambda c: c["rereader"](8), (ONE, TWO)),
    "fma": (lambda c: c["fma"], (ONE, np.float32(1), np.float32(1), TURNS, ONE)),
    "mma": (lambda c: c["tensor_loop"](4, 4), (WORDS, WORDS, TURNS, TILES)),
    "fused": (lambda c: c["four_a_thread"](c["gelu_and_halve"]), (ONE, ONE)),
    "softmax": (lambda c: c["softmax_rows"](32), (TWO, TWO)),
    "layer norm": (lambda c: c["norm_rows"](32), (TWO, ONE, ONE, TWO)),
    "gemv": (lambda c: c["gemv_rows"](16), (TWO, ONE, ONE)),
    "product": (lambda c: c["product"], (TWO, TWO, TWO)),
    "polynomial": (lambda c: c["polynomial"], (ONE, np.float32(1), TURNS, ONE)),
}


@compiles
@pytest.mark.parametrize("name", COMPILED)
def test_kernels_stay_in_registers_and_in_fp32(chapter, name):
    build, arguments = COMPILED[name]
    found = ptx.compile_for(build(chapter), arguments, (9, 0))
    assert (found.float64, found.local_bytes) == (0, 0)
    assert (found.count("mma.sync") >= 16) == (name == "mma")


@compiles
def test_the_wgmma_roof_is_wgmma_and_not_serialised():
    found = ptx.compile_for(tensor.kernel(), (WORDS, WORDS, TURNS, TWO), (9, 0, "a"))
    assert found.count("wgmma.mma_async") >= 8
    assert (found.local_bytes, found.float64, found.notes) == (0, 0, ())


# --- what the record must show (the figures)


@pytest.fixture(scope="module")
def recorded() -> pd.DataFrame:
    return records.read("roofline")


def test_the_memorys_roof_reaches_its_share_of_the_data_sheet(recorded):
    assert findings.roofs(recorded).gbps >= 0.87 * findings.sheet("nvidia-h200").gbps


def test_every_roof_comes_from_our_own_kernels(recorded):
    found = recorded[recorded["kind"] == "roof"]
    assert set(found["variant"]) == {"copy", "read", "fma", "mma", "wgmma", "l2"}
    assert found["error"].max() < 1e-4
    best = findings.roofs(recorded)
    assert best.l2_gbps > best.gbps
    assert best.tflops["fp16"] > 0.8 * 989


def test_nothing_is_above_its_roof(recorded):
    assert findings.points(recorded)["share"].max() <= 1.02


def test_the_walk_turns_where_the_roofs_say(recorded):
    told = findings.turning_batch(recorded, findings.roofs(recorded))
    assert findings.turning_batch(recorded) == pytest.approx(told, rel=0.3)
