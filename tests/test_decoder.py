"""labkit.decoder: chapter 08's bench. Its arrays, its reference against plain loops, and how ways are checked."""

import contextlib
import gc
import math
import sys
import types
import weakref

import numpy as np
import pandas as pd
import pytest

import labkit  # noqa: F401  # isort: skip
from numba import cuda

from labkit import WrongAnswer, decoder, device, experiment, findings, timing
from labkit.decoder import alone, data, exact, layer, products, torch_ways, ways
from labkit.findings.decode import TORCH

OF = findings.Decoder(d=24, heads=4, kv_heads=2, head_dim=128, ffn=16)
RNG = np.random.default_rng(3)
SOURCE = "measured here: NVIDIA H200, driver 1, 2026-01-01"


def test_a_rooms_arrays_wait_for_their_kernels():
    room = decoder.Room(OF, batch=3, context=10, array=np.asarray, parts=5)
    assert room.qkv.shape == (3, (4 + 2 * 2) * 128)
    assert room.act.shape == (3, 16)
    assert room.partial.shape == (12, 5 * 128)
    assert room.stats.shape == (12, 10)
    assert room.position.tolist() == [9]
    assert np.isnan(room.out).all()
    assert np.isnan(room.scores).all()
    assert not room.counter.any()
    assert room.counter.shape == (6,)


def test_parts_are_a_block_for_each_sm_and_no_crumbs(monkeypatch):
    monkeypatch.setattr(device, "MACHINE", types.SimpleNamespace(sms=132))
    of = findings.LLAMA_8B
    found = {place: layer.parts_for(of, *place) for place in ((1, 4096), (4, 4096), (64, 4096), (1, 512), (1, 63))}
    assert found == {(1, 4096): 16, (4, 4096): 4, (64, 4096): 1, (1, 512): 8, (1, 63): 1}


def test_the_table_turns_by_position_over_a_power():
    table = decoder.rope_table(7)
    assert table.shape == (7, 128)
    assert table.dtype == np.float32
    assert table[5, 3] == pytest.approx(math.cos(5 * 500000 ** (-3 / 64)), rel=1e-6)
    assert table[5, 64 + 3] == pytest.approx(math.sin(5 * 500000 ** (-3 / 64)), rel=1e-6)


def by_loops(w, x, of, pos, table):
    """The same layer, number by number."""

    def norm(row, weight):
        return row * weight[0] / math.sqrt(sum(v * v for v in row) / len(row) + 1e-5)

    def turn(v):
        c, s = table[pos, :64].astype(float), table[pos, 64:].astype(float)
        return np.concatenate([v[:64] * c - v[64:] * s, v[:64] * s + v[64:] * c])

    out = np.empty_like(x)
    for b, row in enumerate(x):
        qkv = w.qkv @ norm(row, w.norm1)
        heads = qkv.reshape(-1, 128)
        for kv in range(of.kv_heads):
            w.keys[b, kv, pos] = turn(heads[of.heads + kv])
            w.values[b, kv, pos] = heads[of.heads + of.kv_heads + kv]
        attended = []
        for h in range(of.heads):
            kv = h // (of.heads // of.kv_heads)
            s = np.array([turn(heads[h]) @ w.keys[b, kv, j] / math.sqrt(128) for j in range(pos + 1)])
            p = np.exp(s) / np.exp(s).sum()
            attended.append(sum(p[j] * w.values[b, kv, j] for j in range(pos + 1)))
        row = row + w.out @ np.concatenate(attended)
        gate, up = np.split(w.gate_up @ norm(row, w.norm2), 2)
        out[b] = row + w.down @ (gate / (1 + np.exp(-gate)) * up)
    return out


def test_the_reference_is_the_layer_as_loops():
    made = decoder.toy_layer(RNG, OF, batch=2, context=6)
    one, two = (decoder.in_float64(made, OF, 2) for _ in range(2))
    x, table = RNG.standard_normal((2, OF.d)), decoder.rope_table(6)
    for pos in (2, 3):
        right = by_loops(one, x, OF, pos, table)
        assert decoder.reference(two, x, OF, pos, table) == pytest.approx(right, rel=1e-12)
    assert two.keys == pytest.approx(one.keys)  # appended alike
    assert exact.normed(x, np.ones((1, OF.d))).std() == pytest.approx(1, rel=0.1)


def test_the_separate_kernels_move_hardly_more_than_they_must():
    costs = decoder.separate_costs(findings.LLAMA_8B, 1, 4096)
    whole = sum(costs.values())
    assert whole.launches == 17
    assert 1 <= whole.bytes / findings.LLAMA_8B.least(1, 4096).bytes < 1.001


@pytest.mark.skipif(device.MACHINE.has_gpu, reason="on the CPU")
def test_what_a_step_appends_is_forgotten_and_nothing_else():
    room = decoder.Room(OF, 2, 5, cuda.to_device, parts=1)
    made = decoder.toy_layer(RNG, OF, 2, 5)
    there = decoder.Layer(*map(cuda.to_device, made))
    data.forget([there], room)
    for cache, before in ((there.keys, made.keys), (there.values, made.values)):
        found = cache.copy_to_host().reshape(-1, 5, 128)
        assert np.isnan(found[:, 4]).all()
        assert (found[:, :4] == before.reshape(-1, 5, 128)[:, :4]).all()


def way_of(found, room, kernels=3):
    return ways.Way(lambda: room.out.copy_to_device(found), kernels, False, "a note")


@pytest.fixture
def step(monkeypatch):
    """A room, what is right, and a timer that takes no time."""
    room = decoder.Room(OF, 1, 4, cuda.to_device, parts=1)
    right = RNG.standard_normal((1, OF.d))
    monkeypatch.setattr(ways, "exact_token", lambda layers, x, room: right)
    monkeypatch.setattr(ways, "forget", lambda layers, room: None)
    one = timing.Timing(np.array([1.0, 2.0, 3.0]), np.zeros(3, bool), "events", "cold")
    monkeypatch.setattr(timing, "measure_all", lambda fns, **options: dict.fromkeys(fns, one))
    return room, right


def absent(layers, x, room):
    raise experiment.Unavailable("torch is not installed")


def test_ways_are_checked_then_timed_and_the_floor_is_beside_them(step, capsys):
    room, right = step
    makers = {"ours": lambda layers, x, room: way_of(right.astype(np.float16), room), "theirs": absent}
    rows = {row["variant"]: row for row in decoder.step_rows(makers, [None] * 4, None, room)}
    assert list(rows) == ["ours", "floor"]
    assert rows["ours"]["launches"] == 3
    assert rows["ours"]["flags"] == "a note"
    assert rows["ours"]["bytes"] == 4 * OF.least(1, 4).bytes
    assert rows["ours"]["error"] < 1e-3
    ms = 4 * OF.least(1, 4).bytes / findings.memory_roof()[0] / 1e6
    assert rows["floor"]["median_ms"] == pytest.approx(ms)
    assert "theirs: torch is not installed" in capsys.readouterr().out


@pytest.mark.parametrize("mistake", ["nothing", "wrong"])
def test_a_way_that_is_wrong_is_not_timed(step, mistake):
    room, right = step
    wrong = {"nothing": np.full(right.shape, np.nan), "wrong": right * 1.1}[mistake].astype(np.float16)
    with pytest.raises(WrongAnswer, match="ours"):
        decoder.step_rows({"ours": lambda layers, x, room: way_of(wrong, room)}, [None], None, room)


def by_numpy(wrong=""):
    """A way of product_rows that computes with NumPy; `wrong` names a product that it gets wrong."""

    def make(layers, x, room):
        def run():
            for w in layers:
                w = {name: getattr(w, name).copy_to_host().astype(np.float64) for name in products.MATRICES}
                for name in products.MATRICES:  # each needs what the one before it left
                    right = products.exact_products(w, x, room)[name] * (1.1 if name == wrong else 1)
                    products.left_in(room)[name].copy_to_device(right.astype(np.float16))

        return ways.Way(run, 4 * len(layers), False, "by NumPy")

    return make


@pytest.fixture
def few_layers():
    return [decoder.Layer(*map(cuda.to_device, decoder.toy_layer(RNG, OF, 1, 1))) for _ in range(2)]


def test_products_are_checked_timed_and_beside_the_weights_floor(step, few_layers, capsys):
    rows = decoder.product_rows({"ours": by_numpy()}, OF, few_layers, (1, 3))
    assert [(row["variant"], row["batch"]) for row in rows] == [("ours", 1), ("floor", 1), ("ours", 3), ("floor", 3)]
    weights = sum(OF.weights.values()) - OF.weights["norms"]
    assert {row["bytes"] for row in rows} == {2 * weights}
    assert rows[2]["flops"] == 2 * 2 * 3 * weights // 2
    assert rows[0]["launches"] == 8
    assert rows[0]["error"] < 1e-3
    assert "cublas: " in capsys.readouterr().out
    table = findings.decode_products_table(pd.DataFrame(rows).assign(source=SOURCE))
    assert [line.split()[0] for line in table.splitlines()[1:4]] == ["batch", "1", "3"]
    assert "ours: by NumPy\n" in table
    slow = rows[2] | {"flags": "by NumPy; clocks slowed by sw_power_cap"}
    table = findings.decode_products_table(pd.DataFrame([*rows[:2], slow, rows[3]]).assign(source=SOURCE))
    assert "ours: by NumPy; clocks slowed in some\n" in table


def test_bare_products_are_the_sums_alone(few_layers):
    x, room = products.prepared(OF, 2)
    w = {name: data.on_host(getattr(few_layers[0], name)) for name in products.MATRICES}
    room.x1.copy_to_device(np.ones((2, OF.d), np.float16))
    whole, bare = (products.exact_products(w, x, room, bare) for bare in (False, True))
    assert whole["qkv"] == pytest.approx(bare["qkv"])
    assert whole["out"] - bare["out"] == pytest.approx(data.on_host(x))
    assert whole["down"] - bare["down"] == pytest.approx(1)
    gate, up = np.split(bare["gate_up"], 2, 1)
    assert whole["gate_up"] == pytest.approx(gate / (1 + np.exp(-gate)) * up)


def test_a_graph_of_pytorchs_keeps_what_its_call_reads():
    class Tensor:
        """What only the call holds."""

    def call(tensor=Tensor()):  # noqa: B008
        calls.append(tensor)

    calls, nothing, replayed = [], contextlib.nullcontext, []
    graph = types.SimpleNamespace(replay=lambda: replayed.append(1))
    gpu = types.SimpleNamespace(
        synchronize=nothing, Stream=nothing, stream=nothing, graph=nothing, CUDAGraph=lambda: graph
    )
    run = torch_ways.captured(types.SimpleNamespace(cuda=gpu, no_grad=nothing), call)
    assert len(calls) == 3  # the third is captured
    tensor = weakref.ref(calls[0])
    calls.clear()
    del call
    gc.collect()
    assert tensor() is not None
    run()
    assert replayed == [1]


@pytest.mark.parametrize("name", products.MATRICES)
def test_a_wrong_product_is_not_timed(step, few_layers, name):
    with pytest.raises(WrongAnswer, match=name):
        decoder.product_rows({"ours": by_numpy(wrong=name)}, OF, few_layers, (2,))


def test_halves_and_reads_cover_an_array(monkeypatch):
    upper, lower = alone.halves(np.arange(12).reshape(6, 2))
    assert upper.shape == lower.shape == (3, 2)
    monkeypatch.setattr(device, "MACHINE", types.SimpleNamespace(sms=132))
    kernel, grid, _, x, y, _ = alone.reads(lambda *launch: launch, (upper, lower), None)
    assert (kernel, grid) == (alone.only_read, 8 * 132)
    assert x.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert y.tolist() == [[6, 7, 8, 9, 10, 11]]


def test_kernels_are_counted_in_their_order_without_copies(monkeypatch):
    def event(name, start, us, kind="DeviceType.CUDA"):
        span = types.SimpleNamespace(start=start, elapsed_us=lambda: us)
        return types.SimpleNamespace(name=name, device_type=kind, time_range=span)

    events = [
        event("b", 5, 2.0),
        event("Memcpy DtoD", 1, 1.0),
        event("a", 2, 4.0),
        event("cpu", 0, 9, "DeviceType.CPU"),
    ]

    class Seen:
        def __init__(self, **options):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

        def events(self):
            return events

    made = types.ModuleType("torch.profiler")
    made.profile, made.ProfilerActivity = Seen, types.SimpleNamespace(CUDA="cuda")
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setitem(sys.modules, "torch.profiler", made)
    calls = []
    torch = types.SimpleNamespace(no_grad=lambda: Seen(), cuda=types.SimpleNamespace(synchronize=lambda: None))
    assert torch_ways.profiled(torch, lambda: calls.append(1)) == [("a", 4e-3), ("b", 2e-3)]
    assert len(calls) == 2  # once before, so that nothing is compiled while it counts


def test_a_place_chooses_and_compiles_once():
    found, made = torch_ways.TorchWays(), []
    for _ in range(2):
        assert found.once("attention", lambda: made.append(1) or "gqa") == "gqa"
    assert made == [1]
    assert set(found.makers(False)) == {"torch-graph", "torch-compile-graph", "torch-compile-autotune"}
    assert set(found.makers(True)) == set(TORCH)
