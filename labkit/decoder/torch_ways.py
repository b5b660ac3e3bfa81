"""PyTorch's ways of taking the step, each at its best: fastest attention, static caches, compiled ahead, captured."""

from __future__ import annotations

import functools
import time

import numpy as np

from labkit import experiment, timing
from labkit.decoder.exact import on_torch
from labkit.decoder.layer import Room
from labkit.decoder.torch_layer import ATTENTION, torch_inputs, torch_step
from labkit.decoder.ways import Way
from labkit.traffic import Cost

CHUNK = 8  # layers that are compiled at once: all 32 take long


def captured(torch, call):
    """A function that replays call(), captured after two calls on a stream of its own."""
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.no_grad():
        with torch.cuda.stream(side):
            call(), call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()

    def replay(holds=call):  # a graph knows addresses alone: what call() reads and writes must live
        graph.replay()

    return replay


def way_of(torch, call, room: Room, kernels: int, note: str, graph: bool = False) -> Way:
    """A way of PyTorch's; each run copies its result, 8 KB a row, to where all leave it."""
    target = on_torch(torch, room.out)

    def with_copy():
        with torch.no_grad():
            target.copy_(call())

    if graph:
        return Way(captured(torch, with_copy), kernels, False, note)
    return Way(with_copy, kernels, True, note)


def profiled(torch, call) -> list[tuple[str, float]]:
    """The kernels that one call runs on the GPU, in their order: names and ms. Copies and memsets are left out."""
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad():
        call()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
            call()
            torch.cuda.synchronize()
    found = [e for e in seen.events() if str(e.device_type).endswith("CUDA")]
    found.sort(key=lambda e: e.time_range.start)
    kernels = [e for e in found if not e.name.lower().startswith(("memcpy", "memset"))]
    return [(e.name, 1e-3 * e.time_range.elapsed_us()) for e in kernels]


def fastest_attention(layers, x, room: Room) -> str:
    """The fastest way to ask for attention: a few layers of eager in a graph."""
    torch = experiment.need("torch")
    inputs, graphs = torch_inputs(layers[:4], x, room), {}
    for name, attend in ATTENTION.items():
        step = torch_step(room.of, room.batch, attend)
        try:
            graphs[name] = captured(torch, functools.partial(step, *inputs))
        except RuntimeError as e:  # not for these shapes, or not in this memory
            print(f"PyTorch's attention, {name}: {str(e).splitlines()[0]}")
    timed = timing.measure_all(graphs, warmup=2, rep=10)
    return min(timed, key=lambda name: timed[name].median_ms)


def compiled_step(torch, step, mode, inputs):
    """call() of the compiled step over all layers, some at a time; and seconds it took."""
    part = torch.compile(step, mode=mode, dynamic=False)
    x, weights, *rest = inputs
    chunk = min(CHUNK, (len(weights) + 1) // 2)

    def call():
        y = x
        for i in range(0, len(weights), chunk):
            y = part(y, weights[i : i + chunk], *rest)
        return y

    begin = time.perf_counter()
    with torch.no_grad():
        call(), call()
    torch.cuda.synchronize()
    return call, time.perf_counter() - begin


class TorchWays:
    """The makers of PyTorch's ways for one place; attention is chosen, and a step compiled, once for all of them."""

    def __init__(self):
        self.found = {}

    def once(self, name, make):
        """make(), at the first call with this name; its result at all others."""
        if name not in self.found:
            self.found[name] = make()
        return self.found[name]

    def parts(self, layers, x, room):
        """torch, its inputs, the step, and what attention was chosen."""
        torch = experiment.need("torch")
        self.once("reset", torch.compiler.reset)  # or the ninth size would run uncompiled
        best = self.once("attention", lambda: fastest_attention(layers, x, room))
        step = torch_step(room.of, room.batch, ATTENTION[best])
        return torch, torch_inputs(layers, x, room), step, f"attention: {best}; static cache, no mask"

    def plain(self, layers, x, room):
        """call() of eager, its kernels, a note."""
        torch, inputs, step, note = self.parts(layers, x, room)
        call = functools.partial(step, *inputs)
        return call, self.once("eager", lambda: len(profiled(torch, call))), note

    def compiled(self, mode, layers, x, room):
        """call() of the compiled step, its kernels, a note."""
        torch, inputs, step, note = self.parts(layers, x, room)

        def make():
            call, seconds = compiled_step(torch, step, mode, inputs)
            told = f"torch.compile, mode {mode or 'default'}, {seconds:.0f} s; {note}"
            return call, len(profiled(torch, call)), told

        return self.once(("compiled", mode), make)

    def eager(self, layers, x, room):
        """torch-eager."""
        call, kernels, note = self.plain(layers, x, room)
        return way_of(experiment.need("torch"), call, room, kernels, f"eager; {note}")

    def compile(self, layers, x, room):
        """torch-compile: the default mode, launched from Python."""
        call, kernels, note = self.compiled(None, layers, x, room)
        return way_of(experiment.need("torch"), call, room, kernels, f"{note}; its graphs: not asked for")

    def autotune(self, layers, x, room):
        """torch-compile-autotune: without its own graphs (it would give them up), captured by hand."""
        call, kernels, note = self.compiled("max-autotune-no-cudagraphs", layers, x, room)
        return way_of(experiment.need("torch"), call, room, kernels, f"{note}; captured by hand", graph=True)

    def graph(self, layers, x, room):
        """torch-graph: eager, captured."""
        call, kernels, note = self.plain(layers, x, room)
        return way_of(experiment.need("torch"), call, room, kernels, f"graph of eager; {note}", graph=True)

    def compiled_graph(self, layers, x, room):
        """torch-compile-graph: the default mode, captured."""
        call, kernels, note = self.compiled(None, layers, x, room)
        return way_of(experiment.need("torch"), call, room, kernels, f"graph of compiled; {note}", graph=True)

    def makers(self, everything: bool) -> dict:
        """Name -> how to build it; all of them, or the captured ones, which matter over batch and context."""
        found = {"torch-graph": self.graph, "torch-compile-graph": self.compiled_graph}
        found |= {"torch-compile-autotune": self.autotune}
        if everything:
            found |= {"torch-eager": self.eager, "torch-compile": self.compile}
        return found


def compiled_rows(layers, x, room: Room) -> list[dict]:
    """A row a kernel of PyTorch's step: how often a layer launches it, and the profiler's times."""
    ways = TorchWays()
    torch = experiment.need("torch")
    calls = {"torch-eager": ways.plain(layers, x, room)[0]}
    for name, mode in (("", None), ("-autotune", "max-autotune-no-cudagraphs")):
        calls[f"torch-compile{name}"] = ways.compiled(mode, layers, x, room)[0]
    rows = []
    for variant, call in calls.items():
        times: dict[str, list[float]] = {}
        for name, ms in profiled(torch, call):
            times.setdefault(name, []).append(ms)
        for name, ms in times.items():
            timed = timing.Timing(np.array(ms), np.zeros(len(ms), bool), "profiler", "cold")
            sizes = {"kernel": name, "times": len(ms) / len(layers)}
            rows.append(experiment.row(variant, timed, Cost(0, 0, 0), **sizes))
    return rows
