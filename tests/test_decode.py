"""Chapter 08: what its tables and figures say of times made up; the least that a layer moves; what its records show."""

import gc
import math
import types
import weakref

import numpy as np
import pandas as pd
import pytest

import labkit  # isort: skip
from numba import cuda, float32
from numba.types import float16

from labkit import LabError, WrongAnswer, decoder, figures, findings, notebooks, ptx, records
from labkit.kernels import decode_attention

SOURCE = "recorded: NVIDIA H200, driver 1, 2020-01-02"
UNKNOWN = "measured here: Voodoo 2, driver 1, 1998-02-01"
recorded = pytest.mark.skipif("nvidia-h200" not in records.devices("decode_step"), reason="not recorded yet")
TIMES = {  # µs a layer at batch 1
    "numba-separate": 500.0, "numba-fused": 250.0, "numba-graph": 120.0, "torch-eager": 900.0, "torch-compile": 750.0,
    "torch-compile-autotune": 300.0, "torch-graph": 150.0, "floor": 100.0,
}  # fmt: skip
LAUNCHES = {"numba-separate": 17, "numba-fused": 8, "numba-graph": 8, "torch-eager": 60, "floor": 0}
STAGES = {"separate": (800.0, 17), "select": (500.0, 17), "fuse": (250.0, 8), "launch": (120.0, 8), "floor": (100.0, 0)}
KERNELS = {"qkv": 0.93, "out": 0.91, "gate-up": 0.97, "down": 0.95, "attention": 0.88}


def made_up(variant, us, launches=0, batch=1, context=4096, layers=32, flags=""):
    ms = us * layers / 1e3
    timed = labkit.Timing(np.array([ms, ms]), np.zeros(2, bool), "graph", "cold", (flags,) if flags else ())
    least = findings.LLAMA_8B.least(batch, context)
    cost = labkit.Cost(least.read * layers, least.written * layers, least.flops * layers)
    sizes = {"batch": batch, "context": context, "layers": layers, "launches": launches * layers}
    return labkit.row(variant, timed, cost, 4e-4, **sizes)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Times made up: ours wins at batch 1, PyTorch's best at batch 64, whatever the context."""
    found = []
    for batch, layers, context in ((1, 32, 4096), (1, 4, 512), (64, 4, 512), (64, 4, 4096)):
        for v, us in TIMES.items():
            slower = 1 + batch / 64 * (2 if v.startswith("numba") else 1) if batch > 1 else 1
            found.append(made_up(v, us * slower, LAUNCHES.get(v, 40), batch, context, layers, "how" * ("c" in v)))
    return pd.DataFrame(found).assign(source=SOURCE)


@pytest.fixture(scope="module")
def stages() -> pd.DataFrame:
    return pd.DataFrame([made_up(v, us, n) for v, (us, n) in STAGES.items()]).assign(source=SOURCE)


@pytest.fixture(scope="module")
def kernels() -> pd.DataFrame:
    gbps = findings.memory_roof()[0]
    found = [{**made_up(v, 10.0, layers=1), "gbps": share * gbps} for v, share in KERNELS.items()]
    found += [{**row, "variant": f"read-{row['variant']}", "gbps": 0.99 * gbps} for row in found]
    found += [{**made_up("attention", 30.0, context=32768, layers=1), "gbps": 0.92 * gbps}]
    return pd.DataFrame(found).assign(source=SOURCE)


# --- before anything is measured


def test_what_a_layer_must_move():
    of = findings.LLAMA_8B
    assert of.weights["qkv"] == 2 * 6144 * 4096
    assert of.weights["gate-up"] == 2 * of.weights["down"] == 2 * 2 * 14336 * 4096
    assert of.cache(1, 4096) == 16 << 20
    assert of.cache(64, 512) == 8 * of.cache(1, 4096)
    least = of.least(1, 4096)
    assert 32 * least.bytes == pytest.approx(14.5e9, rel=0.001)
    assert least.read == sum(of.weights.values()) + of.cache(1, 4096) + 2 * 4096
    assert least.written == 2 * 4096 + 2 * 2 * 8 * 128
    assert of.least(64, 4096).intensity > 10 * least.intensity


def test_the_exercises_answer_is_no_neighbours():
    right = findings.LLAMA_8B.least().bytes / 1e6
    labkit.check_value("", 453, right, within=0.02)
    for wrong in (436, 419, 227, 14500, 503, 470):  # no cache; no key or value; one byte each; all layers; no GQA
        with pytest.raises(WrongAnswer):
            labkit.check_value("", wrong, right, within=0.02)


def test_the_floor_is_of_chapter_03s_bandwidth():
    gbps, who = findings.memory_roof()
    assert "chapter 03" in who
    lines = findings.decode_floors(batches=(1,), contexts=(4096,)).splitlines()
    assert lines[2].split()[:4] == ["1", "4096", "436", "16.8"]
    assert f"{gbps / 1e3:.2f} TB/s" in lines[3]
    assert findings.tokens_per_s(100, batch=2, layers=10) == pytest.approx(2000)


def test_another_gpu_has_its_data_sheet_or_its_best_row(rows, tmp_path, monkeypatch):
    other = rows.assign(source="measured here: NVIDIA L4, driver 1, 2020-01-02")
    assert findings.memory_roof(other) == (300, "data sheet")
    unknown = rows.assign(source=UNKNOWN)
    assert findings.memory_roof(unknown) == (rows["gbps"].max(), "best measured")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    (tmp_path / "gpus.csv").write_bytes((labkit.device.ROOT / "data" / "gpus.csv").read_bytes())
    assert findings.memory_roof()[1] == "data sheet"


def test_the_budget_adds_up():
    costs = {"a": labkit.Cost(3_000_000, 0), "b": labkit.Cost(1_000_000, 500_000)}
    lines = [line.split() for line in findings.decode_budget(costs).splitlines()]
    assert lines[4][-4:-1] == ["2", "4.000", "0.500"]
    assert lines[5][-4:-2] == ["0", "453.009"]


def test_a_pairs_gain_counts_launches_and_bytes():
    apart, one = labkit.Cost(3000, 1000) + labkit.Cost(1000, 1000), labkit.Cost(2000, 2000)
    told = findings.pair_gain(apart, one, records.read("launch_overhead"))
    assert "2 launches → 1, 6,000 bytes → 4,000" in told
    assert "64 launches less, 33 µs in a graph; 0.13 MB less" in told


def test_a_pairs_measured_gain():
    rows = [made_up(way, us, layers=1) for way, us in (("apart", 300), ("one", 200), ("add", 90))]
    rows = pd.DataFrame(rows).assign(pairs=64, source=SOURCE)
    assert findings.pair_saved_us(rows) == pytest.approx(100)
    assert "64 pairs in a graph: two kernels each 300 µs, one each 200 µs: 100 µs saved" in findings.pair_measured(rows)
    assert "the additions alone: 90 µs" in findings.pair_measured(rows)


# --- the exercise: wrong answers


@pytest.fixture(scope="module")
def check_pair():
    """The chapter's check of the fused pair."""
    try:
        chapter = notebooks.chapters(["08"])[0]
    except LabError:
        pytest.skip("the chapter is not written yet")
    return notebooks.namespace(chapter, ["mode", "pair-right", "pair-both", "pair-check"])["check_pair"]


def make_pair(adds=True, weighs=True, guarded=True, keeps=True, length=None, own=False):
    """The sum and its norm in one kernel: right, or with one of the mistakes."""

    @cuda.jit
    def pair(x, y, weight, out):
        parts = cuda.shared.array(128, float32)
        row, d, t = cuda.blockIdx.x, x.shape[1], cuda.threadIdx.x
        total = float32(0)
        for c in range(t, d, cuda.blockDim.x):
            v = x[row, c] + y[row, c]
            out[0, row, c] = v if keeps else x[row, c]
            total += v * v if adds else x[row, c] * x[row, c]
        parts[t] = total
        if guarded:
            cuda.syncthreads()
        if not own:
            total = float32(0)
            for i in range(cuda.blockDim.x):
                total += parts[i]
        scale = float32(1) / math.sqrt(total / float32(length or d) + float32(1e-5))
        for c in range(t, d, cuda.blockDim.x):
            v = (x[row, c] + y[row, c]) * scale
            out[1, row, c] = v * weight[c] if weighs else v

    return pair


WRONG = {
    "the norm of x alone": {"adds": False},
    "no weight": {"weighs": False},
    "a barrier left out": {"guarded": False},
    "the first result without y": {"keeps": False},
    "the threads counted instead of the width": {"length": 128},
    "each thread's own sum": {"own": True},
}


def test_the_exercises_check_takes_a_right_kernel(check_pair, capsys):
    check_pair(make_pair())
    assert "right" in capsys.readouterr().out


@pytest.mark.parametrize("mistake", WRONG)
def test_the_exercises_check_rejects_a_wrong_kernel(check_pair, mistake):
    with pytest.raises(WrongAnswer) as caught:
        check_pair(make_pair(**WRONG[mistake]))
    assert ("race" in str(caught.value)) == (mistake == "a barrier left out")


# --- the layer's kernels, three steps at a toy size


LAYER = (
    "mode", "sums", "sums-largest", "norm", "project", "rotate", "append", "attend-score", "attend-plain",
    "elementwise", "silu-times", "separate-start", "blocks", "separate", "toy", "toy-check",
)  # fmt: skip
BETTER = (
    "gemv-sum", "gemv-warp-sum", "gemv-copying", "gemv-put", "gemv-as-it-is", "gemv-keep", "gemv-request",
    "gemv-multiply", "gemv-walk-names", "gemv-walk", "gemv-rows", "gemv-fill", "gemv-residual", "gemv-no-residual",
    "gemv", "scores-four", "scores", "scores-share", "queries", "attend-fetch", "score-keys", "weigh", "attend-mix",
    "attend-mix-warp", "attend-mix-keys", "attend-part", "attend-weigh", "attend-add", "attend", "combine",
    "select-made", "select-gemv-of", "select-attend-of", "select-launches", "select-attention", "select",
    "fused-norm-sum", "fused-norm", "fused-after", "fused-added", "fused-queries-turn", "fused-queries",
    "ring-attention", "fused",
)  # fmt: skip


@pytest.fixture(scope="module")
def layer() -> dict:
    """What the chapter defines of its layer, without a run."""
    return notebooks.namespace(notebooks.chapters(["08"])[0], [*LAYER, *BETTER])


def rejected(layer, monkeypatch, error=WrongAnswer, build="separate", **wrong):
    for name, kernel in wrong.items():
        monkeypatch.setitem(layer, name, kernel)
    with pytest.raises(error):
        layer["check_steps"](layer[build], steps=2)


def test_separate_kernels_are_right_over_steps_with_a_growing_cache(layer):
    of = findings.Decoder(d=40, heads=8, kv_heads=2, head_dim=128, ffn=24)
    assert layer["check_steps"](layer["separate"], of, batch=2, context=7, first=0, steps=4) < 1e-3


@pytest.mark.parametrize("build", ["select", "fused"])
def test_selected_and_fused_kernels_are_right_too(layer, build):
    """In their readable form; tensor cores, and copies that run ahead, take a GPU (tools/sanitize_decode.py)."""

    def small(*arguments):
        return layer[build](*arguments, tuning=layer["SMALL"])

    of = findings.Decoder(d=512, heads=4, kv_heads=1, head_dim=128, ffn=512)  # few different kernels to compile
    assert layer["check_steps"](small, of, steps=3) < 1e-3


@cuda.jit
def rotate_nothing(x, table, position):
    pass


@cuda.jit
def append_one_too_late(x, context, position, cache):
    h, b, i = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    cache[(b * cuda.gridDim.x + h) * context + position[0] + 1, i] = x[b, 128 * h + i]


@cuda.jit
def append_always_the_first(x, context, position, cache):
    h, b, i = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    cache[(b * cuda.gridDim.x + h) * context + 14, i] = x[b, 128 * h + i]


@cuda.jit
def norm_without_weight(x, weight, out):
    b, d = cuda.blockIdx.x, x.shape[1]
    total = float32(0)
    for c in range(d):
        total += float32(x[b, c]) * float32(x[b, c])
    scale = float32(1) / math.sqrt(total / float32(d) + float32(1e-5))
    for c in range(cuda.threadIdx.x, d, cuda.blockDim.x):
        out[b, c] = float16(float32(x[b, c]) * scale)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("rotate", rotate_nothing),
        ("append", append_one_too_late),
        ("append", append_always_the_first),
        ("rms_norm", norm_without_weight),
    ],
)
def test_a_wrong_kernel_in_the_chain_is_rejected(layer, monkeypatch, name, kernel):
    rejected(layer, monkeypatch, **{name: kernel})


@cuda.jit(device=True)
def dot(q, b, at, k_cache, row):
    total = float32(0)
    for i in range(128):
        total += float32(q[b, at + i]) * float32(k_cache[row, i])
    return total


def make_attend(root):
    factor = np.float32(root)

    @cuda.jit
    def attend(q, group, context, position, k_cache, v_cache, scores, out):
        h, b, t = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
        first = (b * (cuda.gridDim.x // group) + h // group) * context
        total, value = float32(0), float32(0)
        for j in range(position[0] + 1):
            p = math.exp(factor * dot(q, b, 128 * h, k_cache, first + j))
            total += p
            value += p * float32(v_cache[first + j, t])
        out[b, 128 * h + t] = float16(value / total)

    return attend


def test_scores_without_their_root_are_rejected(layer, monkeypatch):
    rejected(layer, monkeypatch, attend_plain=make_attend(1.0))
    monkeypatch.setitem(layer, "attend_plain", make_attend(128**-0.5))
    assert layer["check_steps"](layer["separate"], steps=1) < 1e-3


@cuda.jit
def combine_without_rescaling(partial, stats, out):
    h, b, i = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    row = b * cuda.gridDim.x + h
    total, value = float32(0), float32(0)
    for p in range(stats.shape[1] // 2):
        total += stats[row, 2 * p + 1]
        value += partial[row, 128 * p + i]
    out[b, 128 * h + i] = float16(value / total)


def test_parts_that_are_not_rescaled_are_rejected():
    cells = {c.id: c.source for c in notebooks.read(notebooks.chapters(["08"])[0]).cells}
    names = {"np": np, "HD": 128, "labkit": labkit, "combine": combine_without_rescaling}
    for name in ("combine-inputs", "combine-right"):
        exec(cells[name], names)
    with pytest.raises(WrongAnswer):
        exec(cells["combine-check"], names)


@pytest.mark.parametrize("kib", [99, 163, 227])  # of compute capability 8.6 and 8.9, 8.0, 9.0
@pytest.mark.parametrize(("batch", "context"), [(1, 4096), (1, 32768), (2, 512), (64, 512)])
def test_no_block_wants_more_shared_memory_than_the_gpu_has(kib, batch, context):
    ids = [*LAYER, *BETTER, "batch", "batch-wide", "products-lock", "products", "batched"]
    names = notebooks.namespace(notebooks.chapters(["08"])[0], ids)
    names |= {"SHARED": kib << 10, "TUNED": names["Tuning"](2, kib << 9, 512, 4, 512)}
    of, wanted = findings.LLAMA_8B, []
    arrays = [np.zeros(shape, np.float16) for shape in decoder.layer.layer_shapes(of, batch, context)]
    room = decoder.Room(of, batch, context, np.asarray)

    def start(kernel, grid, block, *arguments, shared=0):
        wanted.append(shared)

    if batch == 1:
        names["fused"](decoder.Layer(*arrays), room.h, room, start, names["TUNED"])
    else:
        names["batched"](decoder.Layer(*arrays), room.h, room, start, names["few_rows"])
    static = 5 << 10  # attention's, the largest
    assert 32 << 10 < max(wanted) <= (kib << 10) - static * (batch == 1)


def test_a_graph_keeps_what_its_kernels_read(monkeypatch):
    class Argument:
        """Stands for an array that only a launch holds, such as a tensor map."""

    def launch(stream=None, _alive=Argument()):  # noqa: B008
        pass

    graph = types.SimpleNamespace(launch=lambda stream: None)
    argument = weakref.ref(launch.__defaults__[1])
    names = notebooks.namespace(notebooks.chapters(["08"])[0], ["mode", "graph"])
    monkeypatch.setattr(names["clocks"], "capture", lambda fn: (graph, None))
    run = names["captured"]([launch])
    del launch
    gc.collect()
    assert argument() is not None
    run()


# --- what becomes of the fused kernels elsewhere


compiles = pytest.mark.skipif(bool(ptx.compiler_trouble()), reason=ptx.compiler_trouble() or "it is here")
GPUS = [(8, 0), (9, 0, "a")]
MADE = {
    "qkv": (4096, "with_norm", "keep", False), "out": (4096, "as_it_is", "added", True),
    "gate-up": (4096, "with_norm", "gated", False), "down": (14336, "as_it_is", "added", True),
}  # fmt: skip


def halves(*shape):
    return np.zeros(shape, np.float16)


def stays_in_registers(kernel, arguments, cc):
    made = ptx.compile_for(kernel, arguments, cc)
    assert (made.local_bytes, made.spilled_bytes) == (0, 0)
    assert not made.float64
    return made


@compiles
@pytest.mark.parametrize("cc", GPUS)
@pytest.mark.parametrize("name", MADE)
def test_products_stay_in_registers_and_copy_ahead(layer, name, cc):
    K, before, after, adds = MADE[name]
    kernel = layer["gemv_of"](K, layer["TUNED"], layer[before], layer[after], adds)
    row = halves(1, K)
    made = stays_in_registers(kernel, (halves(2, K), row, row, halves(1, 8), halves(1, 8)), cc)
    assert made.count("cp.async.cg") > 0
    assert made.registers <= 128  # two blocks of 256 threads an SM
    assert (made.count("griddepcontrol") > 0) == (cc >= (9, 0))


@compiles
@pytest.mark.parametrize("cc", GPUS)
def test_attention_stays_in_registers(cc):
    cache, q = halves(512, 128), halves(1, 48 * 128)
    table, partial = np.zeros((64, 128), np.float32), np.zeros((32, 16 * 128), np.float32)
    one, stats = np.zeros(8, np.int32), np.zeros((32, 32), np.float32)
    arguments = q, table, one, cache, cache, partial, stats, one, halves(1, 4096)
    made = stays_in_registers(decode_attention.make_attend(), arguments, cc)
    assert made.count("mma.sync") > 0


# --- findings


def test_times_are_of_a_token_of_32_layers(rows):
    few = rows[rows["layers"] == 4]
    here = findings.decode_at(few, context=512).set_index("variant")
    assert here.loc["numba-graph", "us"] == pytest.approx(120)
    assert here.loc["numba-graph", "ms"] == pytest.approx(3.84)
    assert here.loc["torch-eager", "token_launches"] == 60 * 32
    assert "(measured with 4)" in findings.decode_answer(few, context=512)


def test_where_two_numbers_of_layers_were_measured_the_larger_counts(rows):
    few = pd.DataFrame([made_up("numba-graph", 60.0, 8, layers=4)]).assign(source=SOURCE)
    here = findings.decode_at(pd.concat([rows, few]))
    assert set(here["layers"]) == {32}


def test_without_a_floors_row_it_is_bytes_over_bandwidth(rows):
    gbps = findings.memory_roof()[0]
    here = findings.decode_at(rows[rows["variant"] != "floor"])
    assert here["floor"].iloc[0] == pytest.approx(findings.LLAMA_8B.least().bytes / gbps / 1e3)
    assert findings.floor_share(rows) == pytest.approx(100 / 120)


def test_the_answer_ends_with_the_floor(rows):
    lines = findings.decode_answer(rows).splitlines()
    table = [line.split() for line in lines[2:10]]
    assert [line[0] for line in table][:2] == ["torch-eager", "torch-compile"]
    assert [line[0] for line in table][-2:] == ["numba-graph", "floor"]
    assert table[-2][1:5] == ["256", "3.84", "260", "83%"]
    assert SOURCE in lines
    assert "Mode:" in lines[-2]


def test_flags_are_shown(rows):
    told = findings.decode_flags(rows)
    assert "torch-compile: how" in told
    assert "numba-graph" not in told
    assert findings.decode_flags(rows.assign(flags="")) == "no flags"


def test_gains_and_verdicts(rows):
    assert findings.decode_gain(rows) == pytest.approx(150 / 120)
    assert findings.decode_gain(rows, "torch-eager") == pytest.approx(900 / 120)
    told = findings.decode_verdict(rows)
    assert "numba-graph wins: 1.25× as fast as torch-graph" in told
    assert "(asked: 1.1×, met)" in told
    assert "83% of the floor (asked: 85%, missed), torch-graph 67%" in told


def test_a_loss_is_called_one(rows):
    told = findings.decode_verdict(rows, batch=64)
    assert told.startswith("torch-graph wins: numba-graph, the best of ours, takes 1.20× as long")
    assert "missed" in told


def test_kernels_a_layer(rows):
    told = findings.decode_launches(rows)
    assert "torch-eager 60" in told
    assert "numba-graph 8" in told
    assert "torch.compile fused 60 into 40: 33% of them are gone" in told


NAMES = {
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_gemm_64x64>(cutlass::Params)": "product, a library's",
    "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT": "product, a library's",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0": "fused light work",
    "triton_poi_fused__scaled_dot_product_cudnn_attention_add_cat_3": "fused light work",
    "triton_red_fused__fused_rms_norm_add_mm_select_10": "fused light work",
    "triton_red_fused__fused_rms_norm_mm_permute_select_1": "product, the compiler's own",
    "triton_tem_fused_mm_t_2": "product, a template",
    "void pytorch_flash::flash_fwd_splitkv_kernel<Traits<128>, false>(Params)": "attention",
    "void cudnn::fusion::lean_reduction_kernel<false>(void*)": "attention",
    "void at::native::index_elementwise_kernel<128, 4>(long)": "one operation",
}


def test_a_compilers_kernels_by_kind():
    rows = [{**made_up("torch-compile", 10.0, layers=1), "kernel": n, "times": 2.0, "us": 3.0} for n in NAMES]
    rows.append({**rows[-1], "variant": "torch-eager", "times": 30.0})
    told = findings.compiled_kernels(pd.DataFrame(rows).assign(source=SOURCE))
    for name, kind in NAMES.items():
        assert findings.kind_of(name) == kind
    lines = told.splitlines()
    assert next(line.split()[-2:] for line in lines if line.strip().startswith("one operation")) == ["2", "30"]
    assert any(line.split()[-3:] == ["2", "20.0", "flash_fwd_splitkv_kernel"] for line in lines)
    assert "cutlass_80_wmma_tensorop_f16_gemm_64x64" in told


def test_the_waterfall_adds_up(stages):
    found = findings.decode_stage(stages.iloc[::-1]).set_index("variant")  # whatever the rows' order
    assert list(found.index) == list(STAGES)
    assert found["saved"].loc[["select", "fuse", "launch"]].sum() == pytest.approx(800 - 120)
    assert sum(findings.move_share(stages, m) for m in ("select", "fuse", "launch")) == pytest.approx(100)
    lines = [line.split() for line in findings.decode_waterfall(stages).splitlines()]
    assert lines[5] == ["launch", "8", "120.0", "130.0", "260", "83%"]
    assert lines[6] == ["floor", "-", "100.0", "-", "312", "100%"]


ARGUMENTS = {"separate": [4] * 17, "select": [4] * 18, "fuse": [4] * 8, "launch": [4] * 8}


def test_a_stage_is_predicted_from_bytes_and_launches(stages):
    launches = records.read("launch_overhead")
    told = findings.decode_predicted(stages, launches, ARGUMENTS)
    lines = {line.split()[0]: line.split() for line in told.splitlines()[2:6]}
    by_python = findings.python_us(launches, ARGUMENTS["separate"])
    assert float(lines["separate"][3]) == pytest.approx(by_python, abs=0.1)  # Python is the longer
    by_bytes = findings.LLAMA_8B.least().bytes / findings.memory_roof()[0] / 1e3
    assert float(lines["launch"][3]) == pytest.approx(by_bytes + 8 * findings.graph_us(launches), abs=0.1)


def test_what_was_captured_too_is_shown_beside(stages):
    launches = records.read("launch_overhead")
    captured = [made_up(f"{v}-graph", us, 17) for v, us in (("separate", 700.0), ("select", 130.0), ("fuse", 125.0))]
    told = findings.decode_predicted(
        pd.concat([stages, pd.DataFrame(captured)]).assign(source=SOURCE), launches, ARGUMENTS
    )
    assert [line.split()[-1] for line in told.splitlines()[2:6]] == ["700.0", "130.0", "125.0", "120.0"]
    assert "in a graph µs" not in findings.decode_predicted(stages, launches, ARGUMENTS)


def test_each_argument_of_a_launch_costs():
    launches = records.read("launch_overhead")
    one = {n: findings.python_us(launches, [n]) for n in (0, 3, 4, 8, 9)}
    recorded = launches[(launches["variant"] == "numba") & (launches["kind"] == "array")].set_index("args")["median_ms"]
    assert one[4] == pytest.approx(1e3 * recorded[4])
    assert one[0] < one[3] < one[4] < one[8] < one[9] < 1.2 * one[8]
    assert findings.python_us(launches, [0, 4, 9]) == pytest.approx(one[0] + one[4] + one[9])


def test_the_kernels_share_of_the_bandwidth(kernels):
    assert findings.kernel_shares(kernels)["gate-up"] == pytest.approx(0.97)
    assert findings.kernel_shares(kernels, context=32768).to_dict() == {"attention": pytest.approx(0.92)}
    lines = [line.split() for line in findings.decode_kernels_table(kernels).splitlines()]
    assert [line[6] for line in lines[1:7]] == ["met"] * 4 + ["missed", "met"]
    assert lines[1][5:8] == ["93.0%", "met", "99.0%"]
    assert lines[6][7] == "-"  # nobody has read it


def test_four_products_together_are_their_bytes_over_their_time(kernels):
    gbps = findings.memory_roof()[0]
    nbytes = findings.LLAMA_8B.weights | {"read-qkv": 0, "attention": 0}
    found = kernels.assign(bytes=kernels["variant"].map(nbytes), median_ms=0.03)
    right = sum(findings.LLAMA_8B.weights[n] for n in ("qkv", "out", "gate-up", "down")) / 0.12e-3 / 1e9
    assert findings.products_share(found) == pytest.approx(right / gbps)


def test_where_each_wins(rows):
    found = findings.decode_where(rows).set_index(["batch", "context"])
    assert found.loc[(1, 512), "winner"] == "numba-graph"
    assert found.loc[(64, 4096), "winner"] == "torch-graph"
    assert found.loc[(64, 512), "gain"] == pytest.approx(300 / 360)
    told = findings.decode_map(rows).splitlines()
    assert told[2].split() == ["1", "1.25×", "83%", "1.25×", "83%"]
    assert "torch-graph in 4" in told[4]
    assert "slowed" not in findings.decode_map(rows)
    slow = rows.assign(flags=rows["flags"].where(rows["batch"] == 1, "clocks slowed by sw_power_cap"))
    assert "the GPU slowed its clocks (power): 64 × 512, 64 × 4,096" in findings.decode_map(slow)
    only_ours = rows[rows["variant"].str.startswith("numba") | (rows["batch"] == 1)]
    assert len(findings.decode_where(only_ours)) == 2


@pytest.mark.parametrize(("theirs", "winner"), [(1.04, "ours"), (1.02, "level"), (0.98, "level"), (0.96, "theirs")])
def test_what_is_near_is_level(rows, theirs, winner):
    ours = rows["variant"].str.startswith("numba")
    found = findings.decode_where(rows.assign(median_ms=np.where(ours, 1.0, theirs)))
    assert findings.decode_score(found) == tuple(len(found) * (winner == who) for who in ("ours", "level", "theirs"))


def test_the_takeaways_take_their_numbers_from_the_rows(rows, stages, kernels):
    told = findings.takeaways_08(rows, stages, kernels).splitlines()
    assert len(told) == 5
    assert "436 MB of weights and 16.8 MB of cache a layer: 100 µs" in told[0]
    assert (
        "selecting saved 300, fusing 17 kernels into 8 250, a graph with early launches 130; 120 are left, 83%"
        in told[1]
    )
    assert "91% to 97%" in told[2]
    assert f"together {findings.products_share(kernels):.0%}" in told[2]
    assert "attention 88%" in told[2]
    assert "a win, 1.25×" in told[3]
    assert "ahead in 2 of 4 places, level (within 3%) with PyTorch in 0, behind in 2; the smallest" in told[4]
    assert told[4].endswith("where it is behind: 64.")
    lost = rows.assign(median_ms=rows["median_ms"].where(rows["variant"] != "torch-graph", 1.0))
    assert "a loss" in findings.takeaways_08(lost, stages, kernels)


def test_a_live_run_without_pytorch_shows_the_record(rows, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    provenance = {"device": "NVIDIA H200", "driver": "7", "utc": "2020-01-02T03:04:05+00:00"}
    records.write(rows.drop(columns="source"), "decode_step", provenance, tmp_path)
    live = rows.assign(source=UNKNOWN)
    assert findings.decode_rows(live) is live
    shown = findings.decode_rows(live[~live["variant"].str.startswith("torch")])
    assert set(shown["source"]) == {"recorded: NVIDIA H200, driver 7, 2020-01-02"}
    assert "not both measured" in capsys.readouterr().out
    with pytest.raises(LabError, match="none of torch-eager"):
        findings.decode_gain(live[~live["variant"].str.startswith("torch")])


# --- figures


def test_titles_say_what_was_found(rows, stages):
    assert "800 → 120 µs a layer, 83% of the floor" in repr(figures.decode_waterfall(stages))
    title = repr(figures.decode_variants(rows))
    assert "3.84 ms a token, 1.25× as fast as the best of PyTorch's; 83% of the floor" in title
    assert "ahead in 2 of 4 places, level in 0, behind in 2: 0.83× to 1.25×" in repr(figures.decode_batch_context(rows))


def test_a_loss_and_a_move_that_cost_time_are_drawn(rows, stages):
    lost = rows[(rows["batch"] == 64) & (rows["context"] == 4096)].assign(batch=1)
    assert "1.20× as long as the best" in repr(figures.decode_variants(lost))
    worse = stages.assign(median_ms=stages["median_ms"].where(stages["variant"] != "select", 30.0))
    texts = [t.get_text() for t in figures.decode_waterfall(worse).axes[0].texts]
    assert any("(+138)" in t for t in texts)


# --- what the records must show (the figures)


@pytest.fixture(scope="module")
def on_h200():
    return {name: records.read(name, "nvidia-h200") for name in ("decode_step", "decode_stages", "decode_kernels")}


@recorded
def test_the_graph_is_near_the_floor_and_ahead_of_pytorch(on_h200):
    assert findings.floor_share(on_h200["decode_step"]) >= 0.85
    assert findings.decode_gain(on_h200["decode_step"]) >= 1.1
    assert findings.decode_at(on_h200["decode_step"])["layers"].iloc[0] == 32


@recorded
def test_large_products_and_large_caches_reach_nine_tenths_of_the_bandwidth(on_h200):
    """The issue's 0.90 for each kernel; of what is small even a mere read misses it, and we come near to that read."""
    kernels = on_h200["decode_kernels"]
    shares = findings.kernel_shares(kernels)
    assert shares[["gate-up", "down"]].min() >= 0.9
    assert findings.products_share(kernels) >= 0.9
    for batch in (16, 64):
        assert findings.kernel_shares(kernels, batch)["attention"] >= 0.9
    assert (shares[["qkv", "out"]] >= 0.9 * shares[["read-qkv", "read-out"]].to_numpy()).all()
    assert shares["read-attention"] < 0.9
    assert findings.kernel_shares(kernels, 1, 32768)["attention"] >= 0.85
    assert kernels[~kernels["variant"].str.startswith("read-")]["error"].max() < 1e-3


@recorded
def test_the_floor_is_weights_and_cache_over_the_measured_bandwidth(on_h200):
    here = findings.decode_at(on_h200["decode_step"])
    least = 1e-3 * findings.LLAMA_8B.least().bytes / findings.memory_roof(here)[0]
    assert here["floor"].iloc[0] == pytest.approx(least, rel=0.02)


@recorded
def test_every_variant_is_there_counted_right_and_says_how(on_h200):
    rows = on_h200["decode_step"]
    here = findings.decode_at(rows)
    assert set(here["variant"]) >= set(TIMES)
    steps = here[here["variant"] != "floor"].set_index("variant")
    assert (steps["token_launches"] > 0).all()
    assert (steps["error"] < 1e-2).all()
    assert steps.loc[[v for v in steps.index if v.startswith("torch")], "flags"].str.len().min() > 0
    places = findings.decode_where(rows)
    assert {places["batch"].min(), places["batch"].max()} == {1, 64}
    assert {places["context"].min(), places["context"].max()} == {512, 32768}


@recorded
def test_the_product_for_hopper_wins_where_the_other_fetches_too_much():
    us = findings.products_us(records.read("decode_products", "nvidia-h200"))
    assert (us["wide"] < us["few"]).all()
    assert us.loc[8, "few"] < 1.03 * us.loc[2, "few"]  # hardly more
    assert us.loc[32, "wide"] < 1.1 * us.loc[2, "wide"]  # nearly flat
    assert us.loc[64, "wide"] < 0.8 * us.loc[64, "few"]
    assert us.loc[64, "wide"] == pytest.approx(us.loc[64, "cublas"], rel=findings.LEVEL)


@recorded
def test_ours_is_behind_nowhere_and_level_where_the_readme_says(on_h200):
    places = findings.decode_where(on_h200["decode_step"])
    assert len(places) == 12
    assert findings.decode_score(places)[2] == 0
    level = places[places["winner"] == "level"]
    assert set(zip(level["batch"], level["context"], strict=True)) == {
        (16, 32768),
        *((64, c) for c in (512, 4096, 32768)),
    }


@recorded
def test_a_pair_saves_more_than_its_launch_and_less_than_the_kernel_that_is_gone():
    pairs, launches = records.read("decode_pair", "nvidia-h200"), records.read("launch_overhead", "nvidia-h200")
    alone = 1e3 * findings.value(pairs, "median_ms", variant="add")
    assert 64 * findings.graph_us(launches) < findings.pair_saved_us(pairs) < alone


@recorded
def test_python_is_the_limit_between_the_first_and_the_last_stage(on_h200):
    us = findings.decode_at(on_h200["decode_stages"]).set_index("variant")["us"]
    assert us["separate-graph"] > 0.9 * us["separate"]
    assert us["select-graph"] < 0.5 * us["select"]
    assert us["launch"] < us["fuse-graph"] < us["fuse"]


@recorded
def test_each_move_saves_time(on_h200):
    found = findings.decode_stage(on_h200["decode_stages"]).set_index("variant")
    assert (found.loc[["select", "fuse", "launch"], "saved"] > 0).all()
    assert found.loc["fuse", "launches"] < found.loc["separate", "launches"]
