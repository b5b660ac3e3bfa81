"""Chapter 07: its listings are what is compiled here, its findings and figures of times made up, its guards."""

import importlib.util
import json

import numpy as np
import pandas as pd
import pytest

import labkit  # isort: skip
from labkit import LabError, WrongAnswer, device, figures, findings, notebooks, ptx, records
from labkit.findings import fallbacks, listings

CHAPTER = notebooks.chapters(["07"])[0]
SOURCE = "recorded: NVIDIA H200, driver 1, 2020-01-02"
needs_compiler = pytest.mark.skipif(bool(listings.needed()), reason=listings.needed() or "it is here")
recorded = pytest.mark.skipif("nvidia-h200" not in records.devices("hardware_lock"), reason="not recorded yet")
PAIRS = {  # ms of both paths, lines said, guard
    "head-dim-65": (0.5, 10.0, 0, "rejects: No available kernel."),
    "tf32-off": (0.3, 2.4, 0, "rejects: no tf32: sm80"),
    "ninth-size": (0.1, 0.5, 2, "rejects: no triton"),
    "no-graphs": (0.2, 0.8, 1, "passes"),
    "odd-sums": (0.2, 0.8, 0, "rejects: no nvjet"),
    "float64": (0.1, 0.15, 0, "rejects: gelu_as_written: 78 instructions in float64"),
    "hidden": (0.8, 2.4, 0, "rejects: decay: 168 instructions in float64"),
}


def cells(*ids) -> dict:
    return notebooks.namespace(CHAPTER, ["mode", *ids])


def timed(ms):
    return labkit.Timing(np.array([ms, ms]), np.zeros(2, bool), "events", "cold")


@pytest.fixture(scope="module")
def chapter():
    names = ["scale", "targets", "program", "instructions-mma", "instructions", "room", "lock-effort", "lock-grid"]
    names = ["lock-cells", "lock-older", *names, "day-zero", "fall-said", "fall-gelu", "fall-gelu-64", "gelu-right"]
    return cells(*names, "fall-float64", "guard-float64", "lab-off", "lab-verdict", "fall-pair", "hidden")


@pytest.fixture(scope="module")
def rows(chapter) -> pd.DataFrame:
    speeds = {
        "matmul": {"mma": 500, "wgmma": 750, "cublas": 760},
        "attention": {"mma": 300, "wgmma": 600, "torch-fa2": 330, "torch-cudnn": 660},
    }
    found = []
    for of in (chapter["square"](4096), chapter["square"](8192), chapter["heads"](8192), chapter["heads"](16384)):
        cost = chapter["effort"](**of)
        for variant, tflops in speeds[of["kernel"]].items():
            found.append(labkit.row(variant, timed(cost.flops / tflops / 1e9), cost, 2e-4, **of))
    return pd.DataFrame(found).assign(source=SOURCE)


@pytest.fixture(scope="module")
def lab() -> pd.DataFrame:
    found = []
    for name, (asked, fell, logged, guard) in PAIRS.items():
        for path, ms, said, verdict in (("asked", asked, 0, "passes"), ("fell", fell, logged, guard)):
            told = {"fallback": name, "path": path, "kernels": path, "ran": 1, "launches": 1}
            told |= {"logged": said, "said": "hit the limit" if said else "", "guard": verdict}
            found.append(labkit.row(path, timed(ms), labkit.elementwise(1 << 20), 1e-4, **told))
    return pd.DataFrame(found).assign(source=SOURCE)


@pytest.fixture(scope="module")
def loads(chapter) -> pd.DataFrame:
    found = []
    for target, cc in chapter["TARGETS"].items():
        for kind, ms, takes in (("ptx", 14.0, cc <= (9, 0, "a")), ("sass", 0.1, cc[:2] == (9, 0))):
            once, none = timed(ms), labkit.Cost(0, 0, 0)
            found.append(labkit.row(kind, once, none, target=target, objection="" if takes else "CUDA_ERROR_NO"))
    return pd.DataFrame(found).assign(source=SOURCE)


# --- compiled


@needs_compiler
def test_the_listings_are_what_is_compiled_here():
    """Of the same compiler all of it; of another one, what each target takes."""
    spec = importlib.util.spec_from_file_location("record_listings", device.ROOT / "tools" / "record_listings.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    found = json.loads(json.dumps(tool.collect()))
    kept = dict(listings.read())
    made, compiler = kept.pop("made"), found.pop("compiler")
    assert {k: kept[k] for k in ("taken", "forward")} == {k: found[k] for k in ("taken", "forward")}
    if not made.endswith(compiler):
        pytest.skip(f"listed {made}, compiled by {compiler}: python tools/record_listings.py")
    assert kept == found, "python tools/record_listings.py"


@needs_compiler
def test_without_the_compiler_the_listings_say_the_same(chapter, monkeypatch):
    few = [np.ones(4, np.float32)] * 2
    takes = chapter["program"], chapter["INSTRUCTIONS"], chapter["TARGETS"]

    def told():
        made = {name: findings.made(chapter["scale"], few, cc) for name, cc in chapter["TARGETS"].items()}
        yield findings.ptx_body(made["sm_80"])
        yield findings.side_by_side(made["sm_80"], made["sm_120"])
        yield findings.targets_table(made)
        yield findings.instruction_table(*takes)
        yield findings.forward_table(made, chapter["TARGETS"])
        yield findings.made(chapter["gelu_as_written"], few, (9, 0)).float64
        yield findings.arithmetic(findings.made(chapter["decay"], [few[0], np.int32(3), few[1]], (9, 0)))

    if not listings.read()["made"].endswith(listings.compiler()):
        pytest.skip("the listings are another compiler's")
    here = list(told())
    for module, name in ((listings, "needed"), (ptx, "compiler_trouble")):
        monkeypatch.setattr(module, name, lambda: "the compiler is not here")
    assert list(told()) == here
    assert "the compiler is not here; shown: listings of 20" in findings.compiled_by()
    with pytest.raises(LabError, match="no listing of gelu for sm_80"):
        findings.made(chapter["gelu"], few, (8, 0))
    assert "LabError: matmul_tiles does not compile" in findings.refusal(findings_kernel(), [], (9, 0))


def findings_kernel():
    from labkit.kernels.matmul_wgmma import matmul_tiles

    return matmul_tiles


def test_what_exists_where():
    """Facts that the chapter's prose rests on, from the listings."""
    taken, native = listings.read()["taken"], listings.read()["native"]
    assert taken["wgmma"] == ["sm_90a"]
    assert taken["tcgen05"] == ["sm_100a"]
    assert taken["mma fp8"] == ["sm_89", "sm_90", "sm_90a", "sm_100", "sm_120", "sm_100a"]
    assert "sm_75" not in taken["cp.async"]
    assert native["mma fp8"]["sm_89"]["QMMA"] == native["mma fp8"]["sm_120"]["QMMA"] == 1
    for target in ("sm_90a", "sm_100"):
        assert native["mma fp8"][target]["HMMA"] == 2
        assert "QMMA" not in native["mma fp8"][target]
        assert native["mma int4"][target]["CALL"] == 1
    forward = listings.read()["forward"]
    assert forward["sm_90a"] == ["sm_90a"]
    assert forward["sm_80"] == [t for t in forward if t != "sm_75"]


def test_gpus_that_run_machine_code(chapter):
    targets = chapter["TARGETS"]
    right = findings.gpus_that_run(targets, "sm_80", "sm_90")
    assert right == 4
    assert findings.gpus_that_run(targets, "sm_86") == 2
    for wrong in (2, 3, 5, 6, 7):
        with pytest.raises(WrongAnswer):
            labkit.check_value("", wrong, right, within=0)


@needs_compiler
def test_day_zero_objects_to_what_is_missing(chapter):
    day_zero, few = chapter["day_zero"], [np.ones(4, np.float32)] * 2
    assert day_zero(chapter["scale"], few, (9, 0), "FADD") == []
    assert day_zero(chapter["scale"], few, (9, 0), "HGMMA") == ["no HGMMA in the machine code"]
    assert "instructions in float64" in day_zero(chapter["gelu_as_written"], few, (9, 0), "DFMA")[0]
    (room,) = day_zero(chapter["scale"], few, (8, 9), "FADD", shared=100 * 1024)
    assert room == "102,400 bytes of shared memory wanted, 101,376 there"
    (refused,) = day_zero(findings_kernel(), [np.empty(16, np.uint64)] * 3 + [np.int32(8)] * 3, (8, 0), "HGMMA")
    assert "9.0 only" in refused


def test_chapter_04s_mma_fits_where_the_chapter_says(chapter):
    wants = (chapter["product"]["RING"] + 128) / 1024
    assert [t for t, kib in chapter["ROOM"].items() if kib >= wants] == ["sm_90", "sm_90a", "sm_100"]


# --- the lab's tools


def test_said_hears_warnings_and_logs(chapter, capsys):
    import logging
    import warnings

    def loud():
        warnings.warn("copied", stacklevel=1)
        logging.getLogger("of.somebody").warning("took %s", "the slow path")
        logging.getLogger("of.somebody").info("not worth a line")

    assert chapter["said"](loud) == ["took the slow path", "copied"]
    assert chapter["said"](lambda: None) == []


def test_guards_of_the_compiled_code(chapter):
    few = [np.ones(4, np.float32), np.empty(4, np.float32)]
    launches = {name: chapter["elementwise"](chapter[name], *few) for name in ("gelu", "gelu_as_written")}
    assert chapter["verdict"](chapter["stays_float32"], launches["gelu"]) == "passes"
    rejected = chapter["verdict"](chapter["stays_float32"], launches["gelu_as_written"])
    assert rejected.startswith("rejects: gelu_as_written: ")
    assert rejected.endswith("instructions in float64")


def test_off_refuses_another_computation(chapter):
    right = np.random.default_rng(0).standard_normal(100)
    assert chapter["off"](right.astype(np.float32), right) < 1e-6
    for wrong in (np.zeros(100), np.full(100, np.nan), 2 * right):
        with pytest.raises(AssertionError, match="not the same computation"):
            chapter["off"](wrong, right)


def test_kernels_are_named_plainly():
    names = [
        "void at::native::elementwise_kernel<128, 2, at::native::Functor<float>>(int, float)",
        "void at::native::elementwise_kernel<128, 4, at::native::Other>(int)",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>(cutlass::Params)",
        "_07_hardware_lock::gelu[abi:v2][abi:cw51](Array<float>)",
        "Memcpy HtoD (Pageable -> Device)",
    ]
    told = findings.named_kernels(names, most=4)
    assert told == "2 × elementwise_kernel; cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4; gelu; Memcpy HtoD"
    assert findings.named_kernels(names, most=1) == "2 × elementwise_kernel; 3 more"


# --- findings and figures


def test_the_lock_is_told(rows):
    assert findings.portable_part(rows, "matmul") == pytest.approx(500 / 750)
    assert findings.portable_part(rows, "attention") == pytest.approx(0.5)
    answer = findings.lock_answer(rows)
    assert answer.splitlines()[3].split()[-1] == "67%"
    assert "torch-cudnn" in answer
    assert SOURCE in answer
    assert "FlashAttention-2 330 TFLOP/s, cuDNN 660; the older keeps 50%" in findings.lock_library(rows)
    assert "Portable keeps 67% of native (product), 50% (attention)" in repr(figures.native(rows))
    assert findings.lock_rows(rows) is rows


def test_fallbacks_are_told(lab):
    assert findings.slowdown(lab, "head-dim-65") == pytest.approx(20)
    assert findings.loud(lab) == 2
    assert findings.guards_hold(lab) == 5  # no-graphs' passes both paths
    table = findings.fallback_table(lab)
    assert "hidden" not in table
    assert "2 lines" in table
    assert "nothing: head-dim-65, tf32-off, odd-sums, float64" in findings.fallbacks_said(lab)
    assert "NO" in findings.guards_table(lab).splitlines()[4]
    assert "3.0× as fast; its bytes alone take" in findings.hidden_time(lab)
    assert "6 fallbacks, 1.5× to 20× as slow; 4 say nothing" in repr(figures.fallbacks(lab))


def test_too_few_fallbacks_give_way_to_the_record(lab, monkeypatch):
    monkeypatch.setattr(records, "read", lambda name: lab)
    few = lab[lab["fallback"].isin(["float64", "hidden"])].assign(source="measured here: NVIDIA H200, driver 2, 2021")
    assert findings.fallback_rows(few) is lab
    assert findings.fallback_rows(lab) is lab


def test_takeaways_are_computed(rows, loads, lab):
    told = findings.takeaways_07(rows, loads, lab)
    assert "keeps 67% of the native one's speed in a product, 50% in attention" in told
    assert "Of 8 targets the driver loads PTX for 6 and machine code for 2" in told
    assert "6 fallbacks cost 1.5× to 20× (head-dim-65)." in told
    assert "2 of them said anything; 4 were silent." in told


def test_loads_are_told(loads):
    table = findings.loads_table(loads)
    assert "loads in 14.00 ms" in table
    assert "CUDA_ERROR_NO" in table


# --- what the exercises' checks refuse


@pytest.mark.parametrize("fault", fallbacks.FAULTS)
def test_a_guard_must_see_every_fault(fault):
    """Each guard that overlooks one fault is refused, and told which."""

    def blind(made, instruction):
        seen = {
            "without HGMMA (an HMMA is there)": not made.instructions[instruction],
            "that computes in float64": made.float64,
            "with 64 bytes of local memory": made.local_bytes,
            "that the assembler had to serialise": made.notes,
        }
        assert not any(holds for name, holds in seen.items() if name != fault)

    with pytest.raises(WrongAnswer, match=r"lets a kernel pass " + fault.split("(")[0].strip()):
        findings.check_guard(blind)


# --- the record


@recorded
def test_the_record_shows_what_the_issue_asks():
    rows, lab = records.read("hardware_lock"), records.read("fallbacks")
    assert {"mma", "wgmma"} <= set(rows["variant"])
    assert rows.groupby("kernel")["flops"].nunique().min() >= 2
    assert rows["error"].max() < 1e-3
    assert len(fallbacks.names(lab)) >= 5
    assert findings.guards_hold(lab) == len(fallbacks.names(lab))
    assert all(findings.slowdown(lab, name) > 1.05 for name in fallbacks.names(lab))


def test_the_compiler_is_named_or_its_absence():
    told = findings.compiled_by()
    assert told.startswith("compiled here, by CUDA") or "listings of" in told
    assert bool(ptx.compiler_trouble()) <= ("listings of" in told)
