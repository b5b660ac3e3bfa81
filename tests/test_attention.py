"""Chapter 06: what its tables and figures say of times made up; wrong kernels; edge cases on a GPU; its record."""

import importlib.util
import math

import numpy as np
import pandas as pd
import pytest

import labkit  # isort: skip
from numba import cuda, float32

from labkit import WrongAnswer, device, figures, findings, notebooks, ptx, records

CHAPTER = notebooks.chapters(["06"])[0]
SOURCE = "recorded: NVIDIA H200, driver 1, 2020-01-02"
compiles = pytest.mark.skipif(bool(ptx.compiler_trouble()), reason=ptx.compiler_trouble() or "it is here")
recorded = pytest.mark.skipif("nvidia-h200" not in records.devices("attention"), reason="not recorded yet")
TFLOPS = {  # head_dim 64, no mask; half as many with one, where nothing else is said
    "naive": 6.0, "tiled": 30.0, "tiled-every": 15.0, "tiled-in-order": 20.0, "mma": 330.0, "wgmma": 500.0,
    "torch-math": 15.0, "torch-fa2": 300.0, "torch-cudnn": 480.0, "torch-compile": 470.0, "triton": 400.0,
}  # fmt: skip
CAUSAL = {"tiled-every": 15.0, "tiled-in-order": 20.0, "tiled": 27.0, "wgmma": 450.0, "torch-compile": 30.0}
FP32 = ("naive", "tiled", "tiled-every", "tiled-in-order")


def cost(variant, planes, seqlen, head_dim, causal):
    each, matrix = 4 * planes * seqlen * head_dim, 4 * planes * seqlen**2
    flops = 4 * planes * seqlen**2 * head_dim // (1 + causal)
    return labkit.Cost(3 * each + 4 * matrix, each + 3 * matrix, flops) if variant in ("naive", "torch-math") else (
        labkit.Cost(3 * each, each, flops)
    )  # fmt: skip


def made_up(variant, seqlen, head_dim, causal, planes=32, factor=1.0, **more):
    of = cost(variant, planes, seqlen, head_dim, causal)
    speed = factor * (CAUSAL.get(variant, TFLOPS[variant] / 2) if causal else TFLOPS[variant])
    ms = of.flops / speed / 1e9
    timed = labkit.Timing(np.array([ms, ms]), np.zeros(2, bool), "events", "cold")
    sizes = {"batch": planes // 4, "heads": 4, "seqlen": seqlen, "head_dim": head_dim, "causal": causal}
    dtype = "float32" if variant in FP32 else "float16"
    return labkit.row(variant, timed, of, 3e-4, **sizes, dtype=dtype, **more)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Times made up for all that the chapter measures."""
    found = []
    for n in (2048, 8192, 16384):
        for d, causal in ((64, False), (64, True), (128, False), (128, True)):
            for v in TFLOPS:
                slow = n > 8192 and (v in FP32 or v in ("torch-math", "torch-compile"))
                if not slow and not (v.startswith("tiled-") and (n != 8192 or not causal)):
                    found.append(made_up(v, n, d, causal))
    found += [made_up(v, 8192, 128, True, planes=4, factor=0.5 if v == "tiled" else 1) for v in FP32]
    return pd.DataFrame(found).assign(source=SOURCE)


@pytest.fixture(scope="module")
def memory() -> pd.DataFrame:
    found = []
    for v in findings.attention.NEEDED:
        for n in (1 << 15, 1 << 16, 1 << 17):
            with_matrix = v in ("naive", "torch-math")
            if not (with_matrix and n > 1 << 16):
                took = 4 * n * 64 * 4 + (16 * n**2 if with_matrix else 0)
                found.append(made_up(v, n, 64, False, planes=4, extra_bytes=took))
    return pd.DataFrame(found).assign(source=SOURCE)


@pytest.fixture(scope="module")
def compiled() -> pd.DataFrame:
    calls = {False: "torch.ops.aten._scaled_dot_product_cudnn_attention.default", True: "extern_kernels.bmm + triton_x"}
    found = [made_up("torch-compile", 2048, 64, c, calls=text) for c, text in calls.items()]
    return pd.DataFrame(found).assign(source=SOURCE)


@pytest.fixture(scope="module")
def chapter() -> dict:
    """All that the chapter defines up to its costs, without the cells that run, check, count or show."""
    ids = [c.id for c in notebooks.read(CHAPTER).cells if c.cell_type == "code"]
    idle = ("-check", "-count", "predict", "exercise", "-table", "paper")
    needed = [i for i in ids[: ids.index("measure-grid") + 1] if not any(word in i for word in idle)]
    return notebooks.namespace(CHAPTER, ["tiled-check", *(i for i in needed if i != "compile")])


# --- before anything is measured


def test_the_matrix_fills_the_memory_at_this_length():
    n = findings.fills_up(32)
    assert 4 * 32 * n**2 <= 141e9 < 4 * 32 * (n + 1) ** 2
    assert "97.5%" in findings.matrix_table(32, [1 << 15])


def test_the_three_kernels_move_what_the_experiment_says(chapter):
    apart = sum(chapter["kernel_costs"](32, 2048, 64).values())
    whole = chapter["costs"](2, 16, 2048, 64, False, "float32")
    assert (apart.read, apart.written) == (whole["naive"].read, whole["naive"].written)
    assert whole["tiled"].bytes == 4 * 4 * 32 * 2048 * 64
    assert chapter["costs"](2, 16, 2048, 64, True, "float32")["tiled"].flops == whole["tiled"].flops // 2
    assert "memory" in findings.three_kernels(chapter["kernel_costs"](32, 8192, 64)).splitlines()[2]


def test_all_tiles_over_those_that_are_visited(chapter):
    assert findings.tile_gain(chapter["every_tile"], 8192, 64, 32) == 1
    assert findings.tile_gain(chapter["seen_tiles"], 8192, 64, 32) == pytest.approx(2, rel=0.02)
    assert findings.tile_gain(chapter["seen_tiles"], 64, 64, 64) == 1


def test_who_measures_what(chapter):
    applies, one = chapter["applies"], chapter["one"]
    assert applies("naive", **one(8192, 64, False, "float32"))
    assert not applies("naive", **one(16384, 64, False, "float32"))
    assert not applies("mma", **one(8192, 64, False, "float32"))
    assert not applies("tiled-every", **one(8192, 64, False, "float32"))
    assert one(1 << 17, 64, True, "float16")["heads"] == 4


@pytest.mark.parametrize(("n_q", "n_k", "reach"), [(7, 7, 0), (5, 9, 4), (9, 5, -4), (1, 1, 0)])
def test_the_reference_sees_what_the_mask_lets_through(chapter, n_q, n_k, reach):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 3)) for n in (n_q, n_k, n_k))
    found = chapter["reference"](q, k, v, reach)
    for i in range(n_q):
        seen = max(0, min(n_k, i + reach + 1))
        p = np.exp(q[i] @ k[:seen].T / math.sqrt(3))
        np.testing.assert_allclose(found[i], p @ v[:seen] / p.sum() if seen else 0, rtol=1e-12)


@compiles
def test_exponentials_stand_between_the_waits(chapter):
    names = {"HGMMA": "product", "WARPGROUP.DEPBAR": "wait", "MUFU.EX2": "exp"}
    told = findings.machine_order(chapter["hopper"][64], names)
    order = [line.split()[-1] for line in told.splitlines()]
    assert order == ["product", "wait", "exp", "product", "wait", "exp", "wait", "product", "wait"]


def test_without_a_compiler_the_order_is_not_known(monkeypatch):
    monkeypatch.setattr(ptx.compiled, "compiler_trouble", lambda: "no compiler")
    told = findings.machine_order(findings.compiling(None, (), (8, 0)), {})
    assert told.startswith("not compiled here: no compiler")


@compiles
@pytest.mark.parametrize(("head_dim", "cc"), [(64, (8, 0)), (128, (9, 0, "a"))])
def test_s_and_o_stay_in_registers(chapter, head_dim, cc):
    f16 = np.empty((1, 8, head_dim), np.float16)
    made = ptx.compile_for(chapter["make_mma"](head_dim), [f16] * 4 + [np.int32(8), np.float32(1)], cc)
    assert made.local_bytes == made.spilled_bytes == made.float64 == 0
    assert made.count("mma.sync") == 2 * 2 * chapter["MMA_BC"][head_dim] * head_dim // 8 // 16


@compiles
def test_tiled_stays_in_registers(chapter):
    f32 = np.empty((8, 128), np.float32)
    arguments = [f32] * 3 + [8, 8, 8, np.float32(1), f32]
    made = ptx.compile_for(chapter["make_tiled"](128, *chapter["TUNED"][128]), arguments, (8, 0))
    assert made.local_bytes == made.spilled_bytes == made.float64 == 0


# --- wrong kernels: the chapter's check of `tiled`, with small kernels in its place


def make_small(rescales=True, scales=True, off=0, divides=True, guarded=True, whole=False):
    """A block of 16 rows, a thread a row, tiles of 8 keys: right, or with one of the mistakes."""

    @cuda.jit
    def small(q, k, v, n_q, n_k, reach, scale, out):
        K = cuda.shared.array((8, 64), float32)
        V = cuda.shared.array((8, 64), float32)
        acc = cuda.local.array(64, float32)
        t = cuda.threadIdx.x
        i = 16 * cuda.blockIdx.x + t
        m, total = float32(-np.inf), float32(0)
        for c in range(64):
            acc[c] = float32(0)
        for j in range(0, n_k // 8 * 8 if whole else n_k, 8):
            for e in range(t, 512, cuda.blockDim.x):
                r, c = e // 64, e % 64
                K[r, c] = k[j + r, c] if j + r < n_k else float32(0)
                V[r, c] = v[j + r, c] if j + r < n_k else float32(0)
            cuda.syncthreads()
            if t < 16 and i < n_q:
                for r in range(min(8, n_k - j)):
                    if j + r <= i + reach + off:
                        s = float32(0)
                        for c in range(64):
                            s += q[i, c] * K[r, c]
                        s = s * scale if scales else s
                        new = max(m, s)
                        alpha = math.exp(m - new) if rescales else float32(1)
                        p = math.exp(s - new)
                        m = new
                        total = total * alpha + p
                        for c in range(64):
                            acc[c] = acc[c] * alpha + p * V[r, c]
            if guarded:
                cuda.syncthreads()
        if t < 16 and i < n_q:
            by = float32(1) / total if divides and total > float32(0) else float32(1)
            for c in range(64):
                out[i, c] = acc[c] * by

    return small


WRONG = {
    "no rescaling": {"rescales": False},
    "no 1/√d": {"scales": False},
    "a mask that lets one key too many through": {"off": 1},
    "a mask that hides one key too many": {"off": -1},
    "no final division": {"divides": False},
    "a barrier left out": {"guarded": False},
    "the last tile dropped": {"whole": True},
}
CASES = [(7, 7, 7), (33, 21, -5), (20, 20, 0)]


@pytest.fixture
def check_small(chapter, monkeypatch):
    def check(**mistake):
        monkeypatch.setitem(chapter, "make_tiled", lambda D, *shape: make_small(**mistake))
        chapter["check_tiled"](64, (16, 8, 2), CASES)

    return check


def test_the_check_takes_a_right_kernel(check_small):
    check_small()


@pytest.mark.parametrize("mistake", WRONG)
def test_the_check_rejects_a_wrong_kernel(check_small, mistake):
    with pytest.raises(WrongAnswer) as caught:
        check_small(**WRONG[mistake])
    assert ("race" in str(caught.value)) == (mistake == "a barrier left out")


# --- findings


def test_gains_are_of_the_same_sizes(rows):
    assert findings.attention_gain(rows, "tiled", "naive", dtype="float32") == pytest.approx(5)
    assert findings.attention_gain(rows, "wgmma", "torch-fa2", seqlen=16384) == pytest.approx(5 / 3)
    assert findings.causal_gain(rows) == pytest.approx(27 / 15)
    assert findings.causal_gain(rows, head_dim=128, few=True) == pytest.approx(13.5 / 15)


def test_the_answer_has_a_column_for_each_mask(rows):
    text = findings.attention_answer(rows)
    lines = {line.split()[1]: line.split() for line in text.splitlines()[2:11]}
    assert lines["wgmma"] == ["float16", "wgmma", "500", "450", "500", "450"]
    assert not [v for v in lines if v.startswith("tiled-")]
    assert SOURCE in text
    assert "Mode:" in text


def test_lengths_and_ratios(rows):
    lines = {line.split()[0]: line.split() for line in findings.attention_lengths(rows).splitlines()[2:-1]}
    assert lines["torch-math"] == ["torch-math", "15", "15", "-"]
    ratios = findings.library_ratios(rows).splitlines()
    assert len(ratios) == 9
    assert ratios[1].split()[:3] == ["64", "False", "8192"]
    assert ratios[1].split()[-2:] == ["1.67×", "1.04×"]


def test_errors_are_beside_flash_attentions(rows):
    assert "1.00× FlashAttention-2's (at most 2×: met)" in findings.attention_errors(rows)
    worse = rows.assign(error=rows["error"].where(rows["variant"] != "mma", 9e-4))
    told = findings.attention_errors(worse).splitlines()
    assert "3.00× FlashAttention-2's (at most 2×: missed)" in told[0]
    assert "met" in told[1]


def test_the_masks_table_has_a_line_for_few_planes(rows):
    lines = [line.split() for line in findings.causal_table(rows, {64: 1.98, 128: 1.97}).splitlines()[2:]]
    assert [line[1] for line in lines] == ["32", "32", "4"]
    assert lines[0][-3:] == ["1.33×", "1.80×", "1.98×"]
    assert findings.causal_kept(rows)["wgmma"] == pytest.approx(0.9)


def test_what_the_compiler_found_is_read_from_its_calls(rows, compiled):
    told = findings.textbook_compiled(compiled, rows).splitlines()
    assert "found a fused attention; 470 TFLOP/s" in told[1]
    assert "did not find attention" in told[3]
    other = compiled.assign(calls=compiled["calls"].iloc[::-1].to_numpy())
    assert "did not find" in findings.textbook_compiled(other, rows).splitlines()[1]
    assert "compiled textbook" not in findings.not_moving_data(rows, other)


def test_the_claim_is_held_against_the_rows(rows, compiled):
    told = findings.not_moving_data(rows, compiled).splitlines()
    assert "tiled over naive 5.0×, more than 3." in told[0]
    assert "20.0×, more than 3" in told[2]
    assert told[3].endswith("5.0×; that leaves out half of the tiles, so for not moving data 2.5×, less than 3.")


def test_lines_of_code_are_counted(rows, chapter):
    ways = {"naive": ([chapter["scores"]], "float32", "any GPU"), "wgmma": ([findings.attention], "float16", "9.0")}
    lines = findings.attention_rungs(ways, rows).splitlines()
    assert lines[2].split()[:2] == ["naive", str(findings.code_lines(chapter["scores"]))]
    assert int(lines[3].split()[1]) > 100
    assert lines[3].endswith("500 (167%)")


def test_memory_grows_by(memory):
    growth = findings.memory_growth(memory)
    assert growth["naive"] == pytest.approx(4, rel=1e-3)
    assert growth["wgmma"] == 2
    assert findings.memory_table(memory).splitlines()[-2].split()[0] == "131072"
    assert "naive's matrix: 275 GB, more than the NVIDIA H200's 141 GB" in findings.longest(memory)


def test_the_takeaways_take_their_numbers_from_the_rows(rows, memory, compiled):
    told = findings.takeaways_06(rows, memory, compiled).splitlines()
    assert len(told) == 5
    assert "5.0× (head_dim 64) and 5.0× (head_dim 128)" in told[0]
    assert "4.0× the memory as three kernels, 2.0× in one" in told[1]
    assert "wgmma 500, 1.67× that and 1.04× cuDNN" in told[2]
    assert "1.80× in `tiled`; wgmma keeps 90%" in told[3]
    assert "finds fused attention without a mask, does not with a causal one: it keeps 6% of its speed" in told[4]


def test_a_quick_live_run_has_one_head_dim(rows, memory, compiled):
    quick = rows[(rows["head_dim"] == 64) & (rows["seqlen"] <= 8192)]
    assert "128" not in findings.takeaways_06(quick, memory, compiled)
    for told in (findings.attention_answer, findings.library_ratios, findings.attention_errors):
        assert told(quick)


def test_a_live_run_that_lacks_a_rung_shows_the_record(rows, memory, tmp_path, monkeypatch, capsys):
    provenance = {"device": "NVIDIA H200", "driver": "7", "utc": "2020-01-02T03:04:05+00:00"}
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    records.write(rows.drop(columns="source"), "attention", provenance, tmp_path)
    records.write(memory.drop(columns="source"), "attention_memory", provenance, tmp_path)
    live = rows.assign(source="measured here: Voodoo 2, driver 1, 1998-02-01")
    assert findings.attention_rows(live) is live
    for missing in ("wgmma", "torch-fa2"):
        shown = findings.attention_rows(live[live["variant"] != missing])
        assert set(shown["source"]) == {"recorded: NVIDIA H200, driver 7, 2020-01-02"}
        assert "not every version was measured" in capsys.readouterr().out
    assert findings.memory_rows(memory, rows) is memory
    assert set(findings.memory_rows(memory, live)["source"]) == {"recorded: NVIDIA H200, driver 7, 2020-01-02"}


# --- figures


def test_titles_say_what_was_found(rows, memory):
    assert "6 → 30 TFLOP/s by tiling, 330 by mma, 500 by wgmma" in repr(figures.attention_climb(rows))
    assert "wgmma is 1.67× FlashAttention-2, 1.04× cuDNN" in repr(figures.attention_lengths(rows))
    assert "wgmma keeps 90% of its TFLOP/s, torch-compile 6%" in repr(figures.attention_mask(rows))
    assert "4.0× the memory with the matrix, 2.0× without it" in repr(figures.attention_memory(memory))


def test_figures_of_an_unknown_gpu_know_no_memory(memory):
    unknown = memory.assign(source="measured here: Voodoo 2, driver 1, 1998-02-01")
    texts = [t.get_text() for t in figures.attention_memory(unknown).axes[0].texts]
    assert not any("data sheet" in t for t in texts)


# --- edge cases, on a GPU


@pytest.fixture(scope="module")
def contestants() -> dict:
    path = device.ROOT / "tools" / "sanitize_attention.py"
    spec = importlib.util.spec_from_file_location("sanitize_attention", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool.contestants()


def test_the_sanitizers_tool_finds_all_four(contestants):
    assert {"naive", "tiled", "mma", "wgmma", "reference", "reach_of"} <= set(contestants)


@pytest.mark.gpu
@pytest.mark.skipif(not device.MACHINE.has_gpu, reason="no GPU here")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("variant", ["naive", "tiled", "mma", "wgmma"])
@pytest.mark.parametrize(
    ("planes", "n_q", "n_k", "largest"),
    [
        (1, 1, 1, 4),
        (2, 7, 7, 4),
        (1, 100, 100, 4),
        (1, 1000, 1000, 4),
        (200, 100, 37, 4),  # the first rows see no key under a causal mask
        (3, 37, 1000, 4),
        (2, 50, 1, 4),
        (1, 1000, 1000, 1e4),
    ],
)
def test_edge_cases(contestants, variant, head_dim, causal, planes, n_q, n_k, largest):
    dtype = np.float32 if variant in FP32 else np.float16
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, planes, n, head_dim)) for n in (n_q, n_k, n_k))
    q, k, v = (x.astype(dtype) for x in (q * largest / 4, k, v))
    right = contestants["reference"](q, k, v, contestants["reach_of"](q, k, causal))
    out = cuda.to_device(labkit.checks.poisoned(q.shape, dtype))
    try:
        launch = contestants[variant](*map(cuda.to_device, (q, k, v)), out, causal)
    except labkit.Unavailable as e:
        pytest.skip(str(e))
    launch()
    found = out.copy_to_host().astype(np.float64)
    near = 2e-3 if dtype == np.float16 or largest > 4 else 1e-5
    assert np.linalg.norm(found - right) <= near * np.linalg.norm(right)


# --- what the record must show (the figures)


@pytest.fixture(scope="module")
def on_h200():
    return records.read("attention", "nvidia-h200")


@recorded
@pytest.mark.parametrize("seqlen", [8192, 16384])
@pytest.mark.parametrize(("head_dim", "of_cudnn"), [(64, 0.98), (128, 0.85)])
@pytest.mark.parametrize(("causal", "part"), [(False, 1), (True, 0.8)])
def test_the_rungs_stand_beside_the_library(on_h200, seqlen, head_dim, of_cudnn, causal, part):
    where = {"seqlen": seqlen, "head_dim": head_dim, "causal": causal}
    assert findings.attention_gain(on_h200, "mma", "torch-fa2", **where) >= part * 0.95
    assert findings.attention_gain(on_h200, "wgmma", "torch-fa2", **where) >= part * 1.5
    assert findings.attention_gain(on_h200, "wgmma", "torch-cudnn", **where) >= part * of_cudnn


@recorded
def test_tiled_is_three_times_naive(on_h200):
    for head_dim in (64, 128):
        assert findings.attention_gain(on_h200, "tiled", "naive", head_dim=head_dim, dtype="float32") >= 3


@recorded
def test_every_version_is_right(on_h200):
    half, single = (on_h200[on_h200["dtype"] == dtype] for dtype in ("float16", "float32"))
    assert half["error"].max() < 2e-3
    assert single["error"].max() < 1e-5
    assert "missed" not in findings.attention_errors(on_h200)
    assert set(half["variant"]) | set(single["variant"]) >= set(TFLOPS) - {"triton"}


@recorded
def test_memory_grows_linearly_up_to_131072():
    found = records.read("attention_memory", "nvidia-h200")
    growth = findings.memory_growth(found)
    for variant in ("tiled", "mma", "wgmma"):
        assert growth[variant] == pytest.approx(2, rel=0.1)
        assert found[found["variant"] == variant]["seqlen"].max() == 1 << 17
    assert growth["naive"] == pytest.approx(4, rel=0.1)
    assert found[found["variant"] == "naive"]["seqlen"].max() < 1 << 17
