"""Chapter 04: the ladder, who wins where, and rules that are judged; what its kernels become; what its records show."""

from concurrent.futures import Future

import numpy as np
import pandas as pd
import pytest

import labkit  # isort: skip
from numba import cuda, float32

from labkit import Cost, LabError, WrongAnswer, autotune, checks, cpu, figures, findings, notebooks, ptx, records

SOURCE = "recorded: NVIDIA H200, driver 1, 2020-01-02"
CHAPTER = notebooks.chapters(["04"])[0]
compiles = pytest.mark.skipif(bool(ptx.compiler_trouble()), reason=ptx.compiler_trouble() or "it is here")
recorded = pytest.mark.skipif(not records.devices("autotune"), reason="not recorded yet")


def row(variant, ms, m, n, k, batch=1, **given):
    timed = labkit.Timing(np.array([ms, ms]), np.zeros(2, bool), "events", "cold")
    cost = Cost(4 * batch * (m * k + k * n), 4 * batch * m * n, 2 * batch * m * n * k)
    return {**labkit.row(variant, timed, cost, 1e-7, m=m, n=n, k=k, batch=batch), **given}


def table(rows, source=SOURCE) -> pd.DataFrame:
    return pd.DataFrame(rows).assign(source=source)


def climbed() -> pd.DataFrame:
    """A ladder measured by nobody: in float32 4, 2 and 1 ms, in float16 0.2 and 0.1."""
    fp32 = [("naive", 4.0), ("vectorised", 2.0), ("cublas", 1.0)]
    rows = [row(v, ms, 64, 64, 64, dtype="float32") for v, ms in fp32]
    rows += [row(v, ms, 64, 64, 64, dtype="float16") for v, ms in (("mma", 0.2), ("cublas", 0.1))]
    rows += [row(v, ms / 8, 32, 32, 32, dtype="float32") for v, ms in fp32]
    rows += [row("vectorised", 6.0, 65, 63, 61, dtype="float32"), row("cublas", 3.0, 65, 63, 61, dtype="float32")]
    return table(rows).drop(columns="batch")


def contested() -> pd.DataFrame:
    """Times made up for two uses, two held-out shapes and a map of two."""
    seen, held = {"group": "seen"}, {"group": "held-out"}
    rows = [
        row("batched", 1.0, 4, 4, 4, 1000, use="rotations", **seen),
        row("cublas", 30.0, 4, 4, 4, 1000, use="rotations", **seen),
        row("tiled", 9.0, 512, 512, 512, use="square", **seen),
        row("vectorised", 4.0, 512, 512, 512, use="square", **seen),
        row("cublas", 2.0, 512, 512, 512, use="square", **seen),
        row("batched", 1.0, 5, 5, 5, 1000, use="rotations", **held),
        row("cublas", 3.0, 5, 5, 5, 1000, use="rotations", **held),
        row("vectorised", 2.2, 700, 700, 700, use="square", **held),
        row("cublas", 2.0, 700, 700, 700, use="square", **held),
        row("tiled", 1.0, 16, 16, 4, group="map", use="map"),
        row("cublas", 1.5, 16, 16, 4, group="map", use="map"),
        row("tiled", 8.0, 512, 512, 16, group="map", use="map"),
        row("cublas", 4.0, 512, 512, 16, group="map", use="map"),
    ]
    return table(rows)


def held_out() -> pd.DataFrame:
    rows = contested()
    return rows[rows["group"] == "held-out"]


# --- the ladder


def test_shares_compare_like_with_like():
    found = findings.shares(climbed()).set_index(["dtype", "m", "variant"])["share"]
    assert found["float32", 64, "vectorised"] == pytest.approx(0.5)
    assert found["float16", 64, "mma"] == pytest.approx(0.5)
    assert found["float32", 65, "vectorised"] == pytest.approx(0.5)
    assert findings.share(climbed(), "naive") == pytest.approx(0.25)


def test_the_ladders_table_has_every_size():
    text = findings.ladder_table(climbed())
    for part in ("32³", "64³", "65×63×61", "(25%)", "float16", SOURCE):
        assert part in text
    rungs = [line.split()[:2] for line in text.splitlines()[2:-1]]
    assert rungs.index(["float32", "cublas"]) < rungs.index(["float16", "mma"])


def test_lines_are_those_of_code():
    def four(x):
        """Not

        these."""
        # nor this
        y = (
            x
        )  # fmt: skip

        return y

    assert findings.code_lines(four) == 5
    assert findings.code_lines(cuda.jit(device=True)(four)) == 5


def test_a_rungs_bytes_are_its_tiles():
    text = findings.rung_table({"naive": ([row], (1, 1), 4, "any"), "cublas": None}, climbed())
    naive, library = text.splitlines()[1:]
    assert naive.split()[2] == "8"
    assert naive.endswith("25%")
    assert "100% and 100%" in library


def test_loads_of_a_register_tile():
    assert findings.loads_a_product(1, 1) == 2
    assert findings.loads_a_product(8, 8) == 0.25
    for wrong in (2, 4, 0.125, 16):
        with pytest.raises(WrongAnswer):
            labkit.check_value("", wrong, findings.loads_a_product(8, 8), within=0.01)


def test_the_limit_is_the_lower_roof():
    text = findings.limits({"much": Cost(1, 0, 10**12), "little": Cost(10**12, 0, 1)})
    assert text.splitlines()[1].split()[2] == "arithmetic"
    assert text.splitlines()[2].split()[2] == "memory"


def test_without_a_compiler_one_line_says_so():
    compiling = Future()
    compiling.set_exception(LabError("no compiler. Install it"))
    assert findings.compiled_table(compiling) == "not compiled here: no compiler. Install it"


def test_a_live_run_without_the_library_shows_the_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    provenance = {"device": "NVIDIA H200", "driver": "7", "utc": "2020-01-02T03:04:05+00:00"}
    records.write(climbed().drop(columns="source"), "gemm", provenance, tmp_path)
    live = climbed().assign(source="measured here: Voodoo 2, driver 1, 1998-02-01")
    without = pd.concat([live[live["variant"] != "cublas"], climbed()[climbed()["variant"] == "cublas"]])
    shown = findings.with_library(without, "gemm")
    assert set(shown["source"]) == {"recorded: NVIDIA H200, driver 7, 2020-01-02"}
    assert "no cuBLAS without PyTorch" in capsys.readouterr().out
    assert findings.with_library(live, "gemm") is live
    assert findings.like(live, live, "gemm") is live
    assert findings.like(shown, live, "gemm")["source"].iloc[0] == shown["source"].iloc[0]


# --- who wins


def test_the_winner_and_its_margin():
    found = findings.contest(contested()).set_index(["m", "k"])
    assert found.loc[(512, 512), "winner"] == "cublas"
    assert found.loc[(512, 512), "second"] == "vectorised"
    assert found.loc[(512, 512), "margin"] == pytest.approx(2)
    assert found.loc[(16, 4), "winner"] == "tiled"


def test_gains_are_over_the_library():
    found = findings.gains(contested()[contested()["group"] == "seen"]).set_index("use")
    assert found.loc["rotations", "speedup"] == pytest.approx(30)
    assert found.loc["square", "speedup"] == pytest.approx(0.5)
    assert found.loc["square", "ours"] == "vectorised"
    text = findings.shape_table(contested()[contested()["group"] == "seen"])
    assert "1000 × [4×4 · 4×4]" in text
    assert "0.50×" in text


def test_a_live_time_is_never_compared_with_a_recorded_one():
    live = contested()[contested()["variant"] != "cublas"].assign(source="measured here: Voodoo 2, driver 1, x")
    live["median_ms"] *= 1000
    mixed = pd.concat([contested(), live])
    assert findings.contest(mixed).equals(findings.contest(contested()))


# --- rules


def best(m, n, k, batch):
    return "batched" if batch > 1 else "cublas"


def a_little_wrong(m, n, k, batch):
    return "batched" if batch > 1 else "vectorised"


def the_library(m, n, k, batch):
    return "cublas"


def unknown(m, n, k, batch):
    return "cutlass"


def inapplicable(m, n, k, batch):
    return "batched"


def nothing(m, n, k, batch):
    pass


def broken(m, n, k, batch):
    return ["cublas"][m]


def untouched(m, n, k, batch):
    """Not written yet."""
    ...


def test_a_right_rule_is_remembered(progress_file, capsys):
    findings.check_rule(best, held_out(), exercise="04.rule")
    assert "04.rule: right; best for 2 of 2 shapes; regret 0.0%" in capsys.readouterr().out
    assert "04.rule" in progress_file.read_text()


def test_a_rule_need_not_be_perfect(capsys):
    findings.check_rule(a_little_wrong, held_out())
    assert "a_little_wrong: right; best for 1 of 2 shapes; regret 5.0%" in capsys.readouterr().out


def test_an_untouched_rule(progress_file, capsys):
    findings.check_rule(untouched, held_out(), exercise="04.rule")
    assert capsys.readouterr().out == "04.rule: not attempted (replace the `...` in untouched)\n"
    assert not progress_file.exists()


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (the_library, r"100.0% on average.*cublas for 1000 × \[5×5 · 5×5\] takes 3.0 times as long"),
        (unknown, "answered 'cutlass'; there are: batched, cublas, vectorised"),
        (inapplicable, "'batched', which does not apply there; these do: vectorised, cublas"),
        (nothing, "answered None"),
        (broken, "raised IndexError"),
    ],
)
def test_wrong_rules(rule, says, progress_file):
    with pytest.raises(WrongAnswer, match=says):
        findings.check_rule(rule, held_out(), exercise="04.rule")
    assert not progress_file.exists()


def test_choices_and_what_they_cost():
    chosen = [("batched", 5, 1000, 400.0), ("vectorised", 700, 1, 100.0)]
    tuned = table([row("autotune", ms, s, s, s, b, choice=c) for c, s, b, ms in chosen])
    text = findings.tuned_table(tuned, held_out())
    assert "200 calls" in text  # 400 ms, 2 ms saved each
    assert "never" in text  # slower than the library
    assert "10.0%" in text
    table_of_ways = findings.selectors_table(held_out(), tuned, {"mine": best})
    by_way = {line[:24].strip(): line for line in table_of_ways.splitlines()}
    assert "100.0%" in next(v for k, v in by_way.items() if "library" in k)
    assert "0.5 s" in table_of_ways
    assert "batched" in findings.choice_table(autotune.score(best, held_out()))
    takeaways = findings.takeaways_04(climbed(), contested(), tuned, best)
    assert "30-fold for 1000 × [4×4 · 4×4]" in takeaways
    assert "the library alone regrets 100%, a rule of a dozen lines 0.0%" in takeaways
    assert "An autotuner regrets 5.0% there, for 250 ms a shape" in takeaways


# --- figures


def titled(fig) -> str:
    return fig.axes[0].get_title(loc="left")


def test_the_ladders_figure():
    fig = figures.ladder(climbed())
    assert "64³" in titled(fig)
    texts = " ".join(t.get_text() for t in fig.axes[0].texts)
    for part in ("25% of cuBLAS", "fp32", "fp16 in, fp32 sums"):
        assert part in texts


def test_the_ladders_figure_without_tensor_cores():
    fig = figures.ladder(climbed()[climbed()["dtype"] == "float32"])
    assert "tensor" not in titled(fig)


def test_the_figure_of_gains():
    fig = figures.selection_gains(contested())
    assert titled(fig) == "The right kernel: up to 30× cuBLAS; 1 of 2 shapes are lost"
    assert [t.get_text() for t in fig.axes[0].get_yticklabels()] == ["square", "rotations"]


def test_the_map_counts_winners():
    fig = figures.selection_map(contested())
    assert titled(fig) == "2 kernels share the map; 1 of 2 shapes beat cuBLAS by 5% or more"
    assert {t.get_text() for t in fig.axes[0].texts} == {"tiled\n1.50×", "cublas\n2.00×"}


# --- the chapter's kernels


@pytest.fixture(scope="module")
def chapter() -> dict:
    """What the chapter defines before it runs anything large."""
    code = [c.id for c in notebooks.read(CHAPTER).cells if c.cell_type == "code"]
    runs = ("check-", "sectors", "tiled-loads", "vectorised-check", "exercise-dots-solution", "exercise-dots-checked")
    defines = code[: code.index("compile")]
    wanted = ("powers", "fits", "exercise-dots", "special", "skinny", "split", "outer", "batched", "tall", "dots")
    chosen = [c for c in code if c in defines or c.startswith((*wanted, "ladder-tiles", "ladder-cublas"))]
    chosen = [c for c in chosen if not c.startswith(runs) and c not in ("fits", "fits-shapes", "fits-mine")]
    return notebooks.namespace(CHAPTER, chosen)


SHAPES = {
    "skinny": [(2, 516, 132, 1), (5, 37, 131, 1)],
    "split_k": [(1, 1, 1, 1), (64, 64, 404, 1)],
    "outer": [(100, 132, 16, 1), (35, 131, 8, 1)],
    "tall": [(515, 32, 32, 1), (333, 5, 7, 1)],
    "batched": [(1, 1, 1, 2), (32, 32, 32, 11)],
    "dots": [(1, 1, 1, 3), (1, 1, 64, 130)],
}


@pytest.mark.parametrize("name", SHAPES)
def test_special_kernels_on_shapes_that_fit_badly(chapter, name):
    for shape in SHAPES[name]:
        m, n, k, batch = shape
        rng, stack = np.random.default_rng(sum(shape)), (batch,) if batch > 1 else ()
        a, b = (rng.standard_normal((*stack, *s), dtype=np.float32) for s in ((m, k), (k, n)))
        exact = a.astype(np.float64) @ b.astype(np.float64)
        fence, out = checks.guarded(exact.shape, "float32")
        on_device = [cuda.to_device(x) for x in (a, b)]
        with cpu.checked(not labkit.MACHINE.has_gpu):
            chapter[f"build_{name}"](*on_device, out)()
        checks.assert_close(out.copy_to_host(), exact, reduction=k, where=f"{name} {shape}")
        checks.assert_fence(fence, exact.size, name)
        checks.assert_unchanged(on_device, [a, b], name)


@cuda.jit
def dots_without_guard(a, b, out):
    i = cuda.grid(1)
    total = float32(0)
    for p in range(a.shape[1]):
        total += a[i, p] * b[i, p]
    out[i] = total


@cuda.jit
def dots_without_the_last(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        total = float32(0)
        for p in range(a.shape[1] - 1):
            total += a[i, p] * b[i, p]
        out[i] = total


@cuda.jit
def dots_with_itself(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        total = float32(0)
        for p in range(a.shape[1]):
            total += a[i, p] * a[i, p]
        out[i] = total


@cuda.jit
def dots_added_to_out(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        for p in range(a.shape[1]):
            out[i] += a[i, p] * b[i, p]


@pytest.mark.parametrize("wrong", [dots_without_guard, dots_without_the_last, dots_with_itself, dots_added_to_out])
def test_wrong_dots(chapter, wrong):
    with pytest.raises(WrongAnswer):
        chapter["check_dots"](wrong)


F32, F16 = np.empty((8, 8), np.float32), np.empty((8, 8), np.float16)


@compiles
@pytest.mark.parametrize(
    ("rung", "instruction"),
    [("naive", "ld.global"), ("coalesced", "ld.global"), ("tiled", "ld.shared"), ("register_tiled", "ld.shared")],
)
def test_what_the_rungs_become(chapter, rung, instruction):
    made = ptx.compile_for(chapter[rung], [F32] * 3, (8, 0))
    assert (made.local_bytes, made.float64) == (0, 0)
    assert made.count(instruction)


@compiles
def test_what_the_best_float32_rung_becomes(chapter):
    kernel = chapter["vectorised"](128, 128, 16, 8, 16, True, launch_bounds=(128, 2))
    made = ptx.compile_for(kernel, [F32] * 3, (8, 0))
    assert (made.local_bytes, made.float64) == (0, 0)
    assert made.registers <= 255
    for instruction in ("ld.global.v4", "st.shared.v4", "ld.shared.v4", "st.global.v4"):
        assert made.count(instruction), instruction


@compiles
@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
def test_what_the_tensor_rung_becomes(chapter, cc):
    made = ptx.compile_for(chapter["mma"], [F16] * 3 + [np.int32(8)] * 3, cc)
    assert (made.local_bytes, made.spilled_bytes, made.float64) == (0, 0, 0)
    assert made.count("mma.sync") == 4 * 8 * 4  # 4 × 8 fragments, 4 steps a slice
    assert made.count("cp.async.cg")
    assert made.count("ldmatrix")


@compiles
@pytest.mark.parametrize("aligned", [True, False])
def test_what_the_special_kernels_become(chapter, aligned):
    how = "aligned" if aligned else "guarded"
    read, write = chapter[f"read_{how}"], chapter[f"write_{how}"]
    vector, n = np.empty(8, np.float32), np.int64(8)
    kernels = {
        "skinny": (chapter["make_skinny"](16, read), [F32, F32, n, F32]),
        "split_k": (chapter["make_split_k"](8, 8, 4, read), [F32] * 3),
        "outer": (chapter["make_outer"](8, read, write), [F32, F32, n, F32]),
        "batched": (chapter["make_batched"](32, 32, 32, 8, 32, read, write), [F32] * 3),
        "dots": (chapter["make_dots"](32, read), [F32, F32, vector]),
    }
    for name, (kernel, arguments) in kernels.items():
        made = ptx.compile_for(kernel, arguments, (8, 0))
        assert (made.local_bytes, made.float64) == (0, 0), name
        assert bool(made.count("ld.global.v4")) == aligned, name


# --- what the records must show (the figures)


@recorded
def test_the_ladder_reaches_the_library():
    rows = records.read("gemm")
    assert findings.share(rows, "vectorised", 4096) >= 0.85
    found = findings.shares(rows).set_index(["variant", "m"])["share"]
    assert found["mma", 8192] >= 0.6
    assert found["wgmma", 8192] >= 0.92
    assert found["wgmma", 4096] >= 0.9


@recorded
def test_a_selected_kernel_wins_where_it_should_and_loses_where_it_does():
    found = findings.gains(records.read("kernel_selection"))
    wins = found[found["speedup"] >= 1.5]["use"].nunique()
    assert wins >= 3
    assert found["speedup"].max() >= 5
    assert found[found["speedup"] < 1]["use"].nunique() >= 2


@recorded
def test_the_solutions_rule_and_the_tuner_choose_well():
    rows = records.read("kernel_selection")
    judged = rows[rows["group"] == "held-out"]
    names = notebooks.namespace(CHAPTER, ["mode"])
    cell = next(c for c in notebooks.read(CHAPTER).cells if c.id == "exercise-rule-solution")
    exec(cell.source.split("\n\n\n")[0], names)
    assert autotune.score(names["a_rule"], judged).mean <= 0.10
    tuned = records.read("autotune")
    choices = {tuple(r[:-1]): r[-1] for r in tuned[["m", "n", "k", "batch", "choice"]].itertuples(index=False)}
    assert autotune.score(lambda *shape: choices[shape], judged).mean <= 0.02


def test_labkit_says_what_a_record_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    with pytest.raises(LabError, match="no record"):
        findings.with_library(climbed()[climbed()["variant"] != "cublas"], "gemm")
