"""What every chapter holds to; that it runs and says what it said is nbval's part (pytest collects notebooks/)."""

import ast
import re

import pytest

from labkit import checks, device, notebooks, records

CHAPTERS = notebooks.chapters()
chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)


def cells(path, kind):
    return [c for c in notebooks.read(path).cells if c.cell_type == kind]


def tagged(path, tag):
    return [c for c in cells(path, "code") if tag in c.metadata.get("tags", [])]


@chapter
def test_every_compared_cell_was_run(path):
    """nbval does not compare a cell without an execution count."""
    counts = [c.execution_count for c in cells(path, "code")]
    assert counts == list(range(1, len(counts) + 1))


@chapter
def test_few_outputs_are_not_compared(path):
    assert len(tagged(path, "nbval-ignore-output")) <= 0.1 * len(cells(path, "code"))
    assert not tagged(path, "nbval-skip")


@chapter
def test_no_stored_error_and_no_stderr(path):
    for cell in cells(path, "code"):
        for out in cell.outputs:
            assert out.output_type != "error", cell.id
            assert out.get("name") != "stderr", cell.id


@chapter
def test_outputs_name_no_path_and_no_address(path):
    for cell in cells(path, "code"):
        text = "".join(
            str(out.get("text", "")) + str(out.get("data", {}).get("text/plain", "")) for out in cell.outputs
        )
        assert not re.search(r"0x[0-9a-f]{6,}|/home/|/root/|/work/|/tmp/|np\.float", text), cell.id


@chapter
def test_labkit_comes_before_numba(path):
    first = cells(path, "code")[0].source
    assert first.index("import labkit") < first.index("numba import")
    assert "labkit.mode()" in first


@chapter
def test_cells_are_small(path):
    code = sorted(len(c.source.splitlines()) for c in cells(path, "code"))
    assert code[-1] <= 30
    assert code[len(code) // 2] <= 7
    for cell in cells(path, "markdown"):
        prose = re.sub(r"(?ms)^\|.*?$|<details>.*</details>", "", cell.source)
        assert len(prose.split()) <= 110, cell.id


@chapter
def test_ids_are_words_and_unique(path):
    ids = [c.id for c in notebooks.read(path).cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z0-9-]+", i) for i in ids)


@chapter
def test_no_speed_is_typed_into_prose(path):
    number = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)?\s?(?:×|GB/s|TB/s|TFLOP/s|GFLOP/s|µs|ms)(?!\w)")
    for cell in cells(path, "markdown"):
        assert not number.findall(cell.source), f"{cell.id}: {number.findall(cell.source)}; print it from the records"


@chapter
def test_every_exercise_has_a_hint_and_a_hidden_solution(path):
    exercises, solutions = tagged(path, "exercise"), tagged(path, "solution")
    assert len(exercises) == len(solutions) >= 2
    assert all(c.metadata["jupyter"]["source_hidden"] for c in solutions)
    hints = [c for c in cells(path, "markdown") if "<summary>Hint</summary>" in c.source]
    assert len(hints) == len(exercises)
    assert len(notebooks.exercises(path)) == len(exercises)


@chapter
def test_an_untouched_exercise_is_said_to_be_one(path):
    text = "".join(out.get("text", "") for c in cells(path, "code") for out in c.outputs)
    for name in notebooks.exercises(path):
        assert name.startswith(path.stem[:2] + ".")
        assert f"{name}: not attempted" in text


@chapter
def test_exercise_names_are_those_of_the_checks(path):
    used = re.findall(r'(?:exercise=|check_value\(\s*)"([^"]+)"', "\n".join(c.source for c in cells(path, "code")))
    assert sorted(set(used)) == sorted(notebooks.exercises(path))


@chapter
def test_kernels_give_shapes(path):
    for cell in cells(path, "code"):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "cuda.jit" for d in node.decorator_list):
                doc = ast.get_docstring(node)
                empty = all(isinstance(s, ast.Pass) for s in node.body)
                assert doc or empty, f"{cell.id}: {node.name} has no docstring"


@chapter
def test_only_labkit_knows_the_records(path):
    """A chapter reads records through labkit, and all that it reads exist."""
    source = "\n".join(c.source for c in cells(path, "code"))
    assert "read_csv" not in source
    for name in re.findall(r'(?:live_or_recorded|Experiment|labkit\.read)\(\s*"(\w+)"', source):
        assert records.devices(name), name


def test_the_answer_is_in_chapter_02():
    text = notebooks.answer(notebooks.read(notebooks.chapters(["02"])[0]))
    for word in ("variant", "n", "ms", "GB/s", "speedup", "predicted", "source", "fused-4", "Mode:"):
        assert word in text


@pytest.mark.skipif(device.MACHINE.has_gpu, reason="the simulator's part")
def test_chapter_02s_kernels_are_those_that_tools_use(chapter02):
    assert checks._function(chapter02["scale4"]).__name__ == "scale4"
    assert chapter02["blocks"](10, 4) == 3


# --- what the records must show (the figures) ----------------------------------------------------------


def ms(rows, **where):
    from labkit.findings import value

    return value(rows, "median_ms", **where)


def test_fused_is_twice_as_fast_and_as_fast_as_anything():
    rows = records.read("fused_vs_unfused")
    rows = rows[rows["n"] == 1 << 28]
    fused = ms(rows, variant="fused-4")
    assert 1.95 <= ms(rows, variant="unfused-4") / fused <= 2.05
    assert ms(rows, variant="copy") / fused >= 0.97
    assert fused <= 1.02 * ms(rows, variant="torch-compile")
    assert fused <= 1.02 * ms(rows, variant="triton")


def test_a_replayed_launch_costs_at_most_600_ns():
    assert ms(records.read("launch_overhead"), variant="numba-graph") <= 0.6e-3


def test_measure_and_do_bench_agree_where_the_gpu_is_full():
    trap = records.read("timing_trap")
    for n in (1 << 26, 1 << 28):
        for variant in ("fused-4", "unfused-4"):
            ours, theirs = (ms(trap, n=n, variant=variant, way=way) for way in ("queued", "do_bench"))
            assert ours == pytest.approx(theirs, rel=0.03)


def test_the_event_pair_is_flagged_where_it_is_wrong():
    trap = records.read("timing_trap")
    small = trap[(trap["n"] == 1 << 18) & (trap["variant"] == "fused-4")]
    assert ms(small, way="event-pair") > 2 * ms(small, way="queued")
    assert "queue ran dry" in small[small["way"] == "event-pair"]["flags"].iloc[0]
    assert small[small["way"] == "queued"]["flags"].iloc[0] == ""


def test_the_cost_model_moves_the_bytes_that_ncu_sees():
    rows = records.read("traffic_ncu").set_index("variant")
    for variant in ("unfused", "fused", "unfused-4", "fused-4"):
        row = rows.loc[variant]
        assert row["n"] == 1 << 28
        assert row["read_ncu"] == pytest.approx(row["read_model"], rel=0.01)
        assert row["written_ncu"] == pytest.approx(row["written_model"], rel=0.03)
        assert row["bytes"] == row["read_model"] + row["written_model"]


def test_the_chain_meets_its_prediction():
    from labkit.findings import chain_met

    assert chain_met(records.read("fused_chain")).endswith("met within 10 %")
