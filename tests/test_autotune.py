"""The autotuner measures once, remembers, and trusts no file; regret is counted right."""

import json
import os
import threading
import time
from functools import cache, partial

import numpy as np
import pandas as pd
import pytest

import labkit  # isort: skip
from numba import cuda

from labkit import LabError, Unavailable, WrongAnswer, autotune, device, fingerprint, timing
from labkit.autotune import Autotuner, regret, score

NO_GPU = pytest.mark.skipif(device.MACHINE.has_gpu, reason="there is a GPU")
TIMES = {"slow": 3.0, "fast": 1.0, "picky": 0.5}


def slow(n):
    return lambda: n


def fast(n):
    return lambda: n + 1


def picky(n):
    if n % 4:
        raise Unavailable("n is no multiple of four")
    return lambda: n + 2


class Stopwatch:
    """A `measure` that reads times from a table and counts how often it is asked."""

    def __init__(self, times=TIMES):
        self.times, self.asked = times, []

    def __call__(self, launches):
        self.asked.append(list(launches))
        return {name: self.times[name] for name in launches}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(autotune, "_warned", set())
    return tmp_path / "cache"


def tuner(stopwatch=None, candidates=None, **options):
    candidates = candidates or {"slow": slow, "fast": fast, "picky": picky}
    return Autotuner("product", candidates, measure=stopwatch or Stopwatch(), **options)


def test_the_fastest_that_applies_wins():
    watch = Stopwatch()
    t = tuner(watch)
    assert t.choose(8) == "picky"
    assert t.choose(9) == "fast"
    assert watch.asked == [["slow", "fast", "picky"], ["slow", "fast"]]
    assert t.launch(9)() == 10
    assert t.times(9) == {"slow": 3.0, "fast": 1.0}


def test_a_known_shape_is_not_measured_again_nor_in_the_next_process():
    watch = Stopwatch()
    first, second = tuner(watch), tuner(watch)
    assert [first.choose(8), first.choose(8), second.choose(8)] == ["picky"] * 3
    assert len(watch.asked) == 1
    assert (first.measured, second.measured) == (1, 0)


def test_the_cost_is_reported():
    def measure(launches):
        time.sleep(0.05)
        return Stopwatch()(launches)

    t = tuner(measure)
    t.choose(8)
    t.choose(8)
    assert 0.05 <= t.cost_s < 1  # a loaded machine is slow
    assert json.loads(t.path.read_text())["choices"]["8"]["cost_s"] == t.cost_s
    again = tuner(measure)
    again.choose(8)
    assert again.cost_s == 0


def test_a_tie_goes_to_the_first_in_the_list():
    times = {"slow": 1.0, "fast": 1.0, "picky": 1.0}
    assert tuner(Stopwatch(times)).choose(8) == "slow"
    assert tuner(Stopwatch(times), {"fast": fast, "slow": slow}).choose(8) == "fast"


def test_the_key_says_what_the_choice_depends_on():
    watch = Stopwatch()
    t = tuner(watch, key=lambda n: n % 4 == 0)
    assert [t.choose(n) for n in (4, 8, 12, 5, 7)] == ["picky"] * 3 + ["fast"] * 2
    assert len(watch.asked) == 2


def test_arrays_are_told_by_dtype_and_shape():
    a, b = np.zeros((2, 3), np.float32), cuda.to_device(np.zeros(3, np.float16))
    assert autotune.arrays_key(a, b, 7) == "float32[2, 3] · float16[3] · 7"


def test_none_that_applies_is_an_error():
    with pytest.raises(LabError, match="none of picky applies to 5"):
        tuner(candidates={"picky": picky}).choose(5)


@pytest.mark.parametrize("times", [None, {}, {"slow": 1.0}, {"slow": 1.0, "fast": 0.0}, {"slow": 1.0, "fast": "2"}])
def test_times_that_no_clock_yields_are_refused(times):
    t = tuner(lambda launches: times, {"slow": slow, "fast": fast})
    with pytest.raises(LabError, match="expected ms above 0 for slow, fast"):
        t.choose(8)
    assert not t.path.exists()


@pytest.mark.parametrize(("name", "candidates"), [("x", {}), ("/", {"a": slow}), ("", {"a": slow})])
def test_a_tuner_needs_a_name_and_candidates(name, candidates):
    with pytest.raises(LabError, match=r"no candidates|no name"):
        Autotuner(name, candidates)


def test_a_winner_that_is_gone_is_replaced(monkeypatch):
    watch, there = Stopwatch(), [True]

    def fleeting(n):
        if not there[0]:
            raise Unavailable("gone")
        return lambda: "here"

    watch.times = {**TIMES, "fleeting": 0.1}
    t = tuner(watch, {"slow": slow, "fleeting": fleeting})
    assert t.launch(8)() == "here"
    there[0] = False
    assert t.launch(8)() == 8
    assert t.choose(8) == "slow"


@NO_GPU
def test_without_a_gpu_it_says_what_to_do():
    with pytest.raises(LabError, match=r"no GPU to measure on .*measure="):
        Autotuner("product", {"slow": slow}).choose(8)


def test_on_a_gpu_measure_all_is_asked(monkeypatch):
    def measure_all(launches, **options):
        return {
            n: labkit.Timing(np.array([TIMES[n], 9.0, TIMES[n]]), np.zeros(3, bool), "events", "cold") for n in launches
        }

    monkeypatch.setattr(device, "MACHINE", device.Machine("gpu", "", "Test GPU 9000"))
    monkeypatch.setattr(device, "gpu_state", lambda: {"driver": "1.2"})
    monkeypatch.setattr(device, "toolkit_version", lambda: (13, 0))
    monkeypatch.setattr(timing, "measure_all", measure_all)
    t = Autotuner("product", {"slow": slow, "fast": fast})
    assert t.choose(8) == "fast"
    assert t.path.parent.name == "test-gpu-9000"
    assert json.loads(t.path.read_text())["machine"]["driver"] == "1.2"


# the cache file


def good(**changes):
    """The content of a right cache file for n = 8, with changes."""
    t = tuner()
    choice = {"winner": "picky", "ms": dict(TIMES), "cost_s": 0.1}
    content = {"format": 1, "tuner": "product", "machine": t.machine, "source": t.source, "choices": {"8": choice}}
    for path, value in changes.items():
        *parents, last = path.split("__")
        inner = content
        for part in parents:
            inner = inner["choices"]["8"] if part == "choice" else inner[part]
        inner[last] = value
    return json.dumps(content)


def asked_with(text, capsys=None):
    """Whether a tuner measures although this text is in its cache; afterwards the file must be whole."""
    watch = Stopwatch()
    t = tuner(watch)
    t.path.parent.mkdir(parents=True, exist_ok=True)
    t.path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert t.choose(8) == "picky"
    if watch.asked:
        assert tuner(Stopwatch({})).choose(8) == "picky"  # measured anew, and replaced
    return bool(watch.asked)


def test_a_right_file_is_trusted(capsys):
    assert not asked_with(good())
    assert capsys.readouterr().err == ""


DAMAGED = {
    "empty": "",
    "truncated": '{"format": 1, "choices": {"8": {"winner": "slow", "ms"',
    "not JSON": "winner: slow",
    "not text": b"\xff\xfe\x00{",
    "null": "null",
    "a list": "[]",
    "a number": "7",
    "no choices": '{"format": 1}',
    "nested too deep": "[" * 100_000,
}
WRONG = {
    "choices a list": {"choices": []},
    "a choice a string": {"choices": {"8": "slow"}},
    "a choice a list": {"choices": {"8": ["slow"]}},
    "no winner": {"choices": {"8": {"ms": {"slow": 1.0}, "cost_s": 0.1}}},
    "something more in it": {"choice__best": "slow"},
    "no times": {"choice__ms": {}},
    "times a list": {"choice__ms": [3.0, 1.0]},
    "times null": {"choice__ms": None},
    "an unknown winner": {"choice__winner": "evil"},
    "a winner of a wrong type": {"choice__winner": ["picky"]},
    "a winner that is a dict": {"choice__winner": {}},
    "a winner without a time": {"choice__ms": {"slow": 3.0, "fast": 1.0}},
    "a winner that did not win": {"choice__winner": "slow"},
    "an unknown candidate among the times": {"choice__ms": {**TIMES, "evil": 9.0}},
    "a time of 0": {"choice__ms": {**TIMES, "picky": 0}},
    "a negative time": {"choice__ms": {**TIMES, "picky": -1.0}},
    "a time that is NaN": {"choice__ms": {**TIMES, "picky": float("nan")}},
    "another time that is NaN": {"choice__ms": {**TIMES, "slow": float("nan")}},
    "an infinite time": {"choice__ms": {**TIMES, "slow": float("inf")}},
    "a time as text": {"choice__ms": {**TIMES, "picky": "0.5"}},
    "a time that is true": {"choice__ms": {**TIMES, "slow": True, "picky": 0.5}},
    "a time of months": {"choice__ms": {**TIMES, "slow": 10**400}},
    "a cost that is text": {"choice__cost_s": "much"},
    "a negative cost": {"choice__cost_s": -1},
    "one bad choice beside a good one": {"choices__9": {"winner": "slow", "ms": {"slow": -3.0}, "cost_s": 1.0}},
}
FOREIGN = {
    "another format": {"format": 2},
    "no format": {"format": None},
    "another tuner": {"tuner": "attention"},
    "another source": {"source": "0" * 64},
    "a source of a wrong type": {"source": 5},
    "no machine": {"machine": None},
    "another device": {"machine__device": "NVIDIA Other"},
    "another driver": {"machine__driver": "999.99"},
    "another toolkit": {"machine__toolkit": "99.9"},
    "another numba-cuda": {"machine__packages": {"numba-cuda": "99"}},
    "times of another kind": {"machine__times": "measured"},
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_measured_anew_and_replaced(text, capsys):
    assert asked_with(text)
    err = capsys.readouterr().err
    assert err.count("is damaged") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_a_file_that_cannot_be_right_is_measured_anew_and_replaced(changes, capsys):
    assert asked_with(good(**changes))
    assert capsys.readouterr().err.count("is damaged") == 1


@pytest.mark.parametrize("changes", FOREIGN.values(), ids=FOREIGN)
def test_a_file_for_something_else_is_measured_anew_in_silence(changes, capsys):
    assert asked_with(good(**changes))
    assert capsys.readouterr().err == ""


def test_every_truncation_is_survived():
    text = good()
    t = tuner()
    t.path.parent.mkdir(parents=True)
    for end in range(0, len(text), 7):
        t.path.write_text(text[:end])
        watch = Stopwatch()
        assert tuner(watch).choose(8) == "picky"
        assert watch.asked


def test_supplied_times_are_never_taken_for_measured_ones(monkeypatch):
    t = tuner()
    t.choose(8)
    monkeypatch.setattr(autotune, "_measured", Stopwatch())
    monkeypatch.setattr(device, "MACHINE", device.Machine("gpu", "", device.MACHINE.name))
    monkeypatch.setattr(device, "gpu_state", lambda: {"driver": "unknown"})
    monkeypatch.setattr(device, "toolkit_version", lambda: (13, 0))
    own = Autotuner("product", t.candidates, cache=t.path)
    own.choose(8)
    assert own.measured == 1


def test_a_folder_in_the_files_place_costs_the_cache_alone(capsys):
    t = tuner()
    t.path.mkdir(parents=True)
    assert [t.choose(8), t.choose(9), t.choose(8)] == ["picky", "fast", "picky"]
    assert t.measured == 2
    assert capsys.readouterr().err.count("labkit:") == 1


def test_a_place_that_cannot_be_written_is_told_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "file" / "cache"))
    first, second = tuner(), tuner()
    assert [first.choose(8), first.choose(9), second.choose(8)] == ["picky", "fast", "picky"]
    err = capsys.readouterr().err
    assert err.count("labkit:") == 1
    assert "LABKIT_CACHE" in err


@pytest.mark.skipif(os.name == "nt" or getattr(os, "geteuid", lambda: 0)() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_told_once(cache_folder, capsys):
    cache_folder.mkdir()
    cache_folder.chmod(0o500)
    assert tuner().choose(8) == "picky"
    assert capsys.readouterr().err.count("labkit:") == 1


def test_writers_at_once_lose_nothing():
    def work(i):
        t = tuner()
        for n in range(i, 24, 3):  # each shape by one of them
            t.choose(n)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    path = tuner().path
    assert sorted(map(int, json.loads(path.read_text())["choices"])) == list(range(24))
    assert not path.with_suffix(".new").exists()


def test_writers_in_other_processes_lose_nothing(python, cache_folder):
    code = """
import sys; sys.path.insert(0, "tests")
import labkit, test_autotune as t
for n in range({0}, 12, 3): t.tuner().choose(n)
"""
    done = []
    threads = [
        threading.Thread(target=lambda i=i: done.append(python(code.format(i), LABKIT_CACHE=str(cache_folder))))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [p.stderr for p in done if p.returncode] == []
    assert len(json.loads(tuner().path.read_text())["choices"]) == 12


# what the candidates are made of


def scaled(factor):
    @cuda.jit
    def kernel(x):
        x[0] *= factor

    return lambda n: lambda: kernel[1, 1](np.ones(1, np.float32))


@cuda.jit(device=True)
def helper(x):
    return x + 1


@cache
def make(width, inner):
    @cuda.jit
    def kernel(x):
        x[0] = inner(x[0]) * width

    return kernel


def test_another_factor_is_another_kernel_and_measured_anew():
    watch = Stopwatch({"a": 1.0})
    for factor in (2, 3, 2):
        tuner(watch, {"a": scaled(factor)}).choose(8)
    assert len(watch.asked) == 3  # the file holds one source: the last


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (scaled(2), scaled(3)),
        (scaled(2), scaled(2.0)),
        (lambda n: n + 1, lambda n: n + 2),
        (lambda n, w=1: n, lambda n, w=2: n),
        (partial(slow, 1), partial(slow, 2)),
        (partial(slow, 1), partial(fast, 1)),
        (make(2, helper), make(3, helper)),
        ({"a": slow, "b": fast}, {"b": fast, "a": slow}),
        ([slow], [slow, slow]),
        (slow, fast),
        (lambda: np.float32(1), lambda: np.float64(1)),
    ],
)
def test_fingerprints_differ(one, other):
    assert fingerprint.fingerprint(one) != fingerprint.fingerprint(other)


def test_a_device_function_and_a_global_are_part_of_a_kernel(monkeypatch):
    source = "from numba import cuda\nimport numpy as np\n@cuda.jit(device=True)\ndef inner(x):\n    return x * {0}\n"
    source += (
        "W = {1}\n@cuda.jit\ndef kernel(x):  # {2}\n    x[0] = inner(x[0]) * W\ndef build(n):\n    return kernel\n"
    )

    def made(*values):
        space = {"__name__": "made"}
        exec(source.format(*values), space)
        return fingerprint.fingerprint(space["build"])

    assert made(2, 3, "a comment") == made(2, 3, "another")
    assert made(2, 3, "") != made(4, 3, "")
    assert made(2, 3, "") != made(2, 4, "")
    assert made(2, "np.ones(3)", "") != made(2, "np.zeros(3)", "")
    assert made(2, "(1, (2, 3))", "") != made(2, "(1, (2, 4))", "")


def test_a_fingerprint_is_the_same_in_every_process(python):
    code = """
import sys; sys.path.insert(0, "tests")
import labkit, test_autotune as t
one_of = lambda x: x in {"p", "q", "r"}
print(t.fingerprint.fingerprint({"a": t.scaled(2), "b": t.make(4, t.helper), "c": t.picky, "d": one_of}))
"""
    found = [python(code, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    assert found[0].stdout == found[1].stdout, found[0].stderr
    assert len(found[0].stdout.strip()) == 64


def test_what_holds_itself_has_an_end():
    ring = {}
    ring["ring"] = ring
    assert fingerprint.fingerprint(ring) == fingerprint.fingerprint(ring)
    assert fingerprint.fingerprint(test_what_holds_itself_has_an_end)


# regret


@pytest.mark.parametrize(("choice", "best", "expected"), [(1.0, 1.0, 0.0), (3.0, 2.0, 0.5), (np.float32(2), 1, 1.0)])
def test_regret(choice, best, expected):
    assert regret(choice, best) == expected


@pytest.mark.parametrize(("choice", "best"), [(0, 1), (1, 0), (float("nan"), 1), (1, None), ("1", 1), (-1, -1)])
def test_regret_needs_times(choice, best):
    with pytest.raises(LabError, match="expected times above 0"):
        regret(choice, best)


def rows(**changes):
    table = pd.DataFrame(
        [
            ("cublas", 1, 64, 64, 1, 2.0),
            ("gemv", 1, 64, 64, 1, 1.0),
            ("cublas", 64, 64, 64, 1, 4.0),
            ("naive", 64, 64, 64, 1, 5.0),
        ],
        columns=["variant", "m", "n", "k", "batch", "median_ms"],
    )
    return table.assign(**changes)


def test_a_rule_is_scored():
    best = score(lambda m, n, k, batch: "gemv" if m == 1 else "cublas", rows())
    assert (best.mean, best.worst) == (0, 0)
    lazy = score(lambda m, n, k, batch: "cublas", rows())
    assert (lazy.mean, lazy.worst) == (0.5, 1.0)
    assert lazy.table["best"].tolist() == ["gemv", "cublas"]
    assert str(lazy) == "best for 1 of 2 shapes; regret 50.0% on average, 100.0% at worst"


def test_a_rule_gets_plain_numbers_whatever_its_arguments_are_called():
    def rule(rows, columns, inner, count):
        assert type(rows) is type(count) is int
        return "cublas"

    assert len(score(rule, rows()).table) == 2


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            lambda m, n, k, batch: "cutlass",
            r"m=1, n=64, k=64, batch=1, answered 'cutlass'; there are: cublas, gemv, naive",
        ),
        (lambda m, n, k, batch: "gemv", r"m=64, .*'gemv', which does not apply there; these do: cublas, naive"),
        (lambda m, n, k, batch: None, "answered None"),
        (lambda m, n, k, batch: ["cublas"], r"answered \['cublas'\]"),
        (lambda m, n, k, batch: ..., "answered Ellipsis"),
        (lambda m, n, k, batch: m // 0, "raised ZeroDivisionError"),
        (lambda m, n: "cublas", "raised TypeError"),
    ],
)
def test_a_rule_that_names_nothing_usable_is_a_wrong_answer(rule, message):
    with pytest.raises(WrongAnswer, match=message):
        score(rule, rows())


@pytest.mark.parametrize(
    "table",
    [
        rows().iloc[:0],
        rows().drop(columns="batch"),
        rows(median_ms=[1.0, np.nan, 1.0, 1.0]),
        rows(median_ms=0.0),
        rows(variant="cublas"),
        rows(m=[1, np.nan, 64, 64]),
    ],
)
def test_rows_that_are_no_record_are_refused(table):
    with pytest.raises(LabError, match="score"):
        score(lambda m, n, k, batch: "cublas", table)


def test_a_tuner_can_be_driven_by_recorded_rows(tmp_path):
    table = rows().set_index(["m", "n", "k", "batch", "variant"])["median_ms"]

    def recorded(variant):
        def build(*shape):
            if (*shape, variant) not in table:
                raise Unavailable("not recorded")
            return (*shape, variant)

        return build

    t = Autotuner(
        "recorded",
        {v: recorded(v) for v in ("cublas", "gemv", "naive")},
        cache=tmp_path / "choices.json",
        measure=lambda launches: {v: table[row] for v, row in launches.items()},
    )
    found = score(t.choose, rows())
    assert (found.mean, t.measured) == (0, 2)
