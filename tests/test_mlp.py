"""Chapter 05: what its tables and figures say of times made up, its fragments, its epilogues; what its record shows."""

import numpy as np
import pandas as pd
import pytest

import labkit  # isort: skip
from labkit import LabError, WrongAnswer, figures, findings, notebooks, ptx, records

CHAPTER = notebooks.chapters(["05"])[0]
SOURCE = "recorded: NVIDIA H200, driver 1, 2020-01-02"
compiles = pytest.mark.skipif(bool(ptx.compiler_trouble()), reason=ptx.compiler_trouble() or "it is here")
recorded = pytest.mark.skipif("nvidia-h200" not in records.devices("fused_mlp"), reason="not recorded yet")
TIMES = {  # by width and layers, in ms: a fused kernel that wins up to 128
    "unfused": {(16, 4): 0.2, (64, 4): 0.7, (128, 4): 1.5, (256, 4): 3.0, (512, 2): 6.0},
    "epilogue": {(16, 4): 0.1, (64, 4): 0.3, (128, 4): 0.6, (256, 4): 1.6, (512, 2): 5.0},
    "fused": {(16, 4): 0.025, (64, 4): 0.1, (128, 4): 0.3, (256, 4): 2.0, (512, 2): 4.0},
    "cublas": {(16, 4): 0.2, (64, 4): 0.5, (128, 4): 1.0, (256, 4): 2.0, (512, 2): 2.4},
    "cublas-lt": {(16, 4): 0.15, (64, 4): 0.35, (128, 4): 0.6, (256, 4): 1.5, (512, 2): 2.0},
    "torch-compile": {(64, 4): 0.3, (256, 4): 1.2, (512, 2): 1.6},
}


@pytest.fixture(scope="module")
def costs():
    return notebooks.namespace(CHAPTER, ["mode", "product-cost", "costs"])["costs"]


@pytest.fixture(scope="module")
def rows(costs) -> pd.DataFrame:
    """Times made up for all that the chapter measures."""

    def row(variant, ms, batch, width, layers, dtype="float16"):
        timed = labkit.Timing(np.array([ms, ms]), np.zeros(2, bool), "events", "cold")
        cost = costs(batch, width, layers, dtype)[variant]
        return labkit.row(variant, timed, cost, 1e-4, batch=batch, width=width, layers=layers, dtype=dtype)

    found = [row(v, ms, 1 << 20, *at) for v, times in TIMES.items() for at, ms in times.items()]
    found += [row(v, times[64, 4] * 4 + 0.01, 1 << 22, 64, 4) for v, times in TIMES.items()]
    found += [row(v, ms, 1 << 20, 16, 4, "float32") for v, ms in (("unfused", 1.0), ("fused", 0.5), ("cublas", 0.4))]
    return pd.DataFrame(found).assign(source=SOURCE)


def without(rows, *variants, **where):
    gone = rows["variant"].isin(variants)
    for key, value in where.items():
        gone &= rows[key] == value
    return rows[~gone]


# --- the budget


def test_bytes_are_counted_a_kernel_at_a_time(costs):
    of = costs(1 << 20, 64, 4)
    weights = 4 * 2 * 64 * 64
    assert of["fused"].bytes == 2 * 2 * 64 * (1 << 20) + weights
    assert of["unfused"].launches == 10
    assert of["unfused"].bytes - weights == findings.mlp_ratio(4) * (of["fused"].bytes - weights)
    assert of["fused"].flops == of["epilogue"].flops == 4 * 2 * 64 * 64 * (1 << 20)


def test_the_budget_names_the_roof(costs):
    lines = findings.mlp_budget({w: costs(1 << 20, w, 4) for w in (64, 128)}).splitlines()
    assert " memory " in lines[1]
    assert "tensor cores" in lines[2]
    assert "206 FLOPs a byte" in lines[3]


def test_what_fits_is_told_to_the_step():
    widest = findings.widest(4)
    assert 4 * widest * (2 * widest + 16) <= 227 * 1024 < 4 * (widest + 16) * (2 * widest + 48)
    assert findings.widest(2) > widest
    for wrong in (128, 144, 176, 170.3, 227):
        with pytest.raises(WrongAnswer):
            labkit.check_value("", wrong, widest, within=0)
    for wrong in (1, 4, 7, 0.1, 20):
        with pytest.raises(WrongAnswer):
            labkit.check_value("", wrong, findings.mlp_ratio(4), within=0.01)


def test_an_epilogues_bytes_apart_and_in_one():
    text = findings.epilogue_table({"a": labkit.Cost(3000, 1000) + labkit.Cost(0, 0)}, {"a": labkit.Cost(1000, 1000)})
    assert text.splitlines()[1].split() == ["a", "2", "4.0", "2.0", "2.00×"]


# --- findings


def test_gains_are_over_the_fused_kernel_at_the_same_sizes(rows):
    assert findings.mlp_gain(rows, "cublas") == pytest.approx(5)
    assert findings.mlp_gain(rows, "cublas", width=256) == pytest.approx(1)
    found = findings.mlp_gains(rows, width=64, layers=4).set_index("variant")
    assert found.loc["epilogue", "factor"] == pytest.approx(3)
    assert found.loc["unfused", "promised"] == pytest.approx(10, rel=1e-3)


def test_the_answer_counts_kernels(rows):
    text = findings.mlp_answer(rows)
    lines = {line.split()[0]: line.split() for line in text.splitlines()[2:8]}
    assert {v: line[1] for v, line in lines.items()} == {
        "unfused": "10", "epilogue": "4", "fused": "1", "cublas": "7", "cublas-lt": "4", "torch-compile": "-",
    }  # fmt: skip
    assert lines["cublas"][-2:] == ["5.00×", "7.00×"]
    assert SOURCE in text
    assert "Mode:" in text


def test_the_table_by_width_ends_with_the_fastest(rows):
    lines = findings.mlp_widths(rows).splitlines()
    assert lines[1].split()[-2:] == ["torch-compile", "fastest"]
    by = {tuple(line.split()[:2]): line.split() for line in lines[2:-1]}
    assert by["4", "64"][-2:] == ["3.00×", "fused"]
    assert by["4", "128"][-2:] == ["-", "fused"]
    assert by["4", "256"][-1] == "torch-compile"


def test_the_crossover_is_the_librarys_best(rows):
    assert findings.crossover(rows) == 256
    assert findings.crossover(rows, layers=2) == 512
    assert findings.library_best(rows)[64] == pytest.approx(3)
    assert np.isnan(findings.crossover(without(rows, "cublas-lt", "torch-compile")))  # a tie is no loss


def test_at_512_there_is_nothing_to_win(rows):
    lines = [line.split() for line in findings.mlp_most(rows).splitlines()[1:-1]]
    could = {(int(line[0]), int(line[1])): line[-2] for line in lines}
    assert could[2, 512] == "1.00×"
    assert could[4, 64] == "4.00×"
    assert could[4, 256] == "1.61×"


def test_rates_batches_and_the_plain_kernels(rows):
    assert findings.mlp_rates(rows).splitlines()[1].split()[1] == "32"
    assert [line.split()[0] for line in findings.mlp_batches(rows).splitlines()[1:]] == ["2²⁰", "2²²"]
    assert "2.00× (bytes promised" in findings.tensor_cores_or_not(rows)


def test_the_takeaways_take_their_numbers_from_the_rows(rows):
    told = findings.takeaways_05(rows).splitlines()
    assert len(told) == 5
    assert "5.00× as fast as PyTorch's calls" in told[0]
    assert "torch-compile), still takes 3.00×" in told[2]
    assert told[4].endswith("2.00× to 6.00× as long; beyond, 0.60× at 256, 0.40× at 512 (two layers).")


def test_a_quick_live_run_has_no_two_layers(rows):
    quick = rows[rows["layers"] == 4]
    for told in (findings.takeaways_05, findings.mlp_widths, findings.mlp_most):
        assert "512" not in told(quick)


def test_a_live_run_without_the_library_or_tensor_cores_shows_the_record(rows, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    provenance = {"device": "NVIDIA H200", "driver": "7", "utc": "2020-01-02T03:04:05+00:00"}
    records.write(rows.drop(columns="source"), "fused_mlp", provenance, tmp_path)
    live = rows.assign(source="measured here: Voodoo 2, driver 1, 1998-02-01")
    assert findings.mlp_rows(live) is live
    assert capsys.readouterr().out == ""
    for missing in ("cublas", "cublas-lt", "fused"):
        stand_ins = rows[rows["variant"] == missing]
        shown = findings.mlp_rows(pd.concat([without(live, missing, dtype="float16"), stand_ins]))
        assert set(shown["source"]) == {"recorded: NVIDIA H200, driver 7, 2020-01-02"}
        assert "not both measured" in capsys.readouterr().out


# --- figures


def test_titles_say_what_was_found(rows):
    assert "5.0× as fast as PyTorch's calls, 3.0× as the library's best" in repr(figures.mlp_gains(rows))
    assert "2.0× to 6.0× the library's speed while the weights fit; 0.60× at 256" in repr(figures.mlp_widths(rows))
    assert "2.7 TB/s at width 16, 458 TFLOP/s at 128" in repr(figures.mlp_roofline(rows))


def test_figures_of_an_unknown_gpu_and_of_few_widths(rows):
    few = rows[rows["width"] <= 128].assign(source="measured here: Voodoo 2, driver 1, 1998-02-01")
    assert repr(figures.mlp_widths(few)).endswith("while the weights fit>")
    texts = [t.get_text() for t in figures.mlp_roofline(few).axes[0].texts]
    assert any("best measured" in t for t in texts)
    assert "H200" in findings.mlp_most(few)


# --- fragments: rows that pass from product to product as the chapter says


def of_fragment(values: np.ndarray, operand: str) -> dict:
    threads, places = ptx.fragment("mma_m16n8k16", operand)
    return {(t, p): v for t, p, v in zip(threads.flat, places.flat, values.flat, strict=True)}


def test_two_results_are_the_next_left_factor():
    """As `layer` packs them: y[2·(i % 2)] holds a lane's first pair of result i, y[2·(i % 2) + 1] its second."""
    values = np.arange(256).reshape(16, 16)
    left, right = (of_fragment(values[:, columns], "c") for columns in (slice(8), slice(8, 16)))
    wanted = of_fragment(values, "a")
    for lane in range(32):
        held = [left[lane, p] for p in range(4)] + [right[lane, p] for p in range(4)]
        assert held == [wanted[lane, p] for p in range(8)]


@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_the_last_weights_stand_so_that_a_lanes_columns_are_neighbours(width):
    """Row i of the weights stands at place(i): column place(i) of the results, which `store_rows` stores as i."""
    place = notebooks.namespace(CHAPTER, ["mode", "place"])["make_place"](width).py_func
    at = {i: int(place(np.uint32(i))) for i in range(width)}
    assert sorted(at.values()) == list(range(width))
    tiles = min(width, 32) // 8  # results of 8 columns that one store takes from
    for i, column in at.items():
        tile, lane, half = column // 8, column % 8 // 2, column % 2
        group, nth = tile // tiles, tile % tiles
        assert i == 8 * tiles * group + 2 * tiles * lane + 2 * nth + half


# --- what the kernels become


@pytest.fixture(scope="module")
def compiled():
    """The kernels of the chapter, without its cells that run, check or count."""
    ids = [c.id for c in notebooks.read(CHAPTER).cells if c.cell_type == "code"]
    kernels = ids[ids.index("pitch") : ids.index("settings") + 1]
    return notebooks.namespace(CHAPTER, ["mode", *kernels])


@compiles
@pytest.mark.parametrize(("width", "cc"), [(64, (8, 0)), (16, (9, 0)), (32, (9, 0))])
def test_rows_stay_in_registers(compiled, width, cc):
    x, w, b = (np.empty(shape, np.float16) for shape in ((8, 8), (2, 8, 8), (2, 8)))
    sizes = np.uint32(8), np.int32(2), np.int32(1)
    made = ptx.compile_for(compiled["make_mlp"](width, *compiled["SETTINGS"][width]), (x, w, b, *sizes, x), cc)
    assert made.local_bytes == made.spilled_bytes == made.float64 == 0
    assert made.count("mma.sync") == 2 * 2 * compiled["SETTINGS"][width][0] * (width // 16) ** 2


def test_an_epilogue_that_there_is_not():
    check = notebooks.namespace(CHAPTER, ["mode", "epilogue-answers", "epilogue-check"])["check_epilogue"]
    with pytest.raises(LabError, match="no epilogue 'gelu'; choose one of residual, swiglu, int8"):
        check("gelu", None)


# --- what the record must show (the figures)


@pytest.fixture(scope="module")
def on_h200():
    return records.read("fused_mlp", "nvidia-h200")


@recorded
def test_one_kernel_is_four_times_the_library_and_twice_the_compiler(on_h200):
    found = findings.mlp_gains(on_h200, layers=4)
    narrow = found[found["width"] <= 128].set_index(["variant", "width"])["factor"]
    both = (narrow["cublas"] >= 4) & (narrow["torch-compile"] >= 2).reindex(narrow["cublas"].index, fill_value=False)
    assert both.any()


@recorded
def test_the_crossover_is_in_the_table(on_h200):
    assert findings.crossover(on_h200) <= 512
    assert findings.library_best(on_h200)[64] > 1


@recorded
def test_every_variant_is_right(on_h200):
    half, single = (on_h200[on_h200["dtype"] == dtype] for dtype in ("float16", "float32"))
    assert half["error"].max() < 2e-3
    assert single["error"].max() < 1e-5
    assert set(half["variant"]) == {"unfused", "epilogue", "fused", "cublas", "cublas-lt", "torch-compile"}
