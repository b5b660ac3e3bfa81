"""Chapter 08, before anything is measured: what one layer must move for a token, and the floor that follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkit import device, records
from labkit.errors import LabError
from labkit.findings.launch import one_array
from labkit.findings.roofline import roofs
from labkit.tables import device_name, of_one_source, peaks, text, value
from labkit.traffic import Cost

__all__ = [
    "LLAMA_8B",
    "Decoder",
    "decode_budget",
    "decode_floors",
    "graph_us",
    "memory_roof",
    "pair_gain",
    "pair_measured",
    "pair_saved_us",
    "python_us",
    "tokens_per_s",
]

LAYERS = 32


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder layer, and the least that it moves for one new token of each sequence."""

    d: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    itemsize: int = 2

    @property
    def weights(self) -> dict[str, int]:
        """Bytes of each matrix, and of the two norms."""
        qkv, d = (self.heads + 2 * self.kv_heads) * self.head_dim, self.d
        shapes = {"qkv": qkv * d, "out": d * self.heads * self.head_dim, "gate-up": 2 * self.ffn * d}
        shapes |= {"down": d * self.ffn, "norms": 2 * d}
        return {name: self.itemsize * numbers for name, numbers in shapes.items()}

    def cache(self, batch: int, context: int) -> int:
        """Bytes of the keys and values of `batch` sequences of `context` tokens."""
        return self.itemsize * 2 * batch * context * self.kv_heads * self.head_dim

    def least(self, batch: int = 1, context: int = 4096) -> Cost:
        """All weights and the cache read once, the token's vector in and out, its key and value stored."""
        vector, weights = self.itemsize * batch * self.d, sum(self.weights.values())
        products = 2 * batch * weights // self.itemsize + 4 * batch * context * self.heads * self.head_dim
        return Cost(weights + self.cache(batch, context) + vector, vector + self.cache(batch, 1), products)


LLAMA_8B = Decoder(d=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336)


def memory_roof(rows: pd.DataFrame | None = None) -> tuple[float, str]:
    """GB/s of the memory of the rows' GPU (default: of the recorded one), and who says so.

    Chapter 03's record where it is of the same GPU, else the data sheet, else the best of the rows.
    """
    try:
        recorded = records.read("roofline")
    except LabError:
        recorded = None
    if recorded is not None and (rows is None or device_name(rows) == device_name(recorded)):
        return roofs(recorded).gbps, "measured in chapter 03"
    if rows is None:
        return device.find_gpu(records.DEFAULT_DEVICE).bandwidth_gbps, "data sheet"
    gpu = peaks(rows)
    return (gpu.bandwidth_gbps, "data sheet") if gpu else (float(rows["gbps"].max()), "best measured")


def graph_us(launches: pd.DataFrame) -> float:
    """µs of one launch in a graph (chapter 01)."""
    return float(one_array(of_one_source(launches)).set_index("variant")["us"]["numba-graph"])


def python_us(launches: pd.DataFrame, arguments: list[int]) -> float:
    """µs of launches from Python, one after the other, by their numbers of arguments, taken as arrays (chapter 01)."""
    found = of_one_source(launches)
    found = found[(found["variant"] == "numba") & found["kind"].isin(["none", "array"])].sort_values("args")
    slope = found["median_ms"].diff().iloc[-1] / found["args"].diff().iloc[-1]  # beyond the most that was measured
    beyond = slope * np.maximum(np.array(arguments) - found["args"].max(), 0)
    return float(1e3 * (np.interp(arguments, found["args"], found["median_ms"]) + beyond).sum())


def tokens_per_s(us_a_layer: float, batch: int = 1, layers: int = LAYERS) -> float:
    """Tokens a second of `batch` sequences, if a layer takes so many µs."""
    return 1e6 * batch / (layers * us_a_layer)


def decode_budget(costs: dict[str, Cost], batch: int = 1, context: int = 4096) -> str:
    """Each kernel's launches, bytes and least µs at the measured bandwidth; their sum; and what a layer must move."""
    gbps, who = memory_roof()
    whole = sum(costs.values())
    least = LLAMA_8B.least(batch, context)
    lines = {**costs, "all of them": whole, "one layer, at least": Cost(least.read, least.written, least.flops, 0)}
    table = pd.DataFrame(
        [(name, c.launches, c.read / 1e6, c.written / 1e6, 1e-3 * c.bytes / gbps) for name, c in lines.items()],
        columns=["kernel", "launches", "MB read", "MB written", "least µs"],
    )
    shown = text(table, **dict.fromkeys(("MB read", "MB written"), "{:.3f}"), **{"least µs": "{:.2f}"})
    return f"batch {batch}, context {context:,}, float16\n{shown}\nbytes over {gbps / 1e3:.2f} TB/s ({who})"


def decode_floors(batches=(1, 8, 64), contexts=(512, 4096, 32768), of: Decoder = LLAMA_8B) -> str:
    """By batch and context: MB of weights and of cache a layer, FLOPs a byte, the floor, and tokens a second."""
    gbps, who = memory_roof()
    lines = []
    for batch in batches:
        for context in contexts:
            least, weights = of.least(batch, context), sum(of.weights.values())
            us = 1e-3 * least.bytes / gbps
            cache = of.cache(batch, context) / 1e6
            lines.append((batch, context, weights / 1e6, cache, least.intensity, us, tokens_per_s(us, batch)))
    columns = ["batch", "context", "weights MB", "cache MB", "FLOPs a byte", "floor µs", "tokens/s"]
    how = {"weights MB": "{:.0f}", "cache MB": "{:.1f}", "FLOPs a byte": "{:.3g}", "floor µs": "{:.0f}"}
    shown = text(pd.DataFrame(lines, columns=columns), **how, **{"tokens/s": "{:,.0f}"})
    return f"a layer; tokens/s of {LAYERS} of them\n{shown}\nbytes over {gbps / 1e3:.2f} TB/s ({who})"


def pair_gain(apart: Cost, one: Cost, launches: pd.DataFrame, pairs: int = 2 * LAYERS) -> str:
    """What a token with so many pairs of kernels saves in a graph by launches and by bytes, if each becomes one."""
    fewer, saved = pairs * (apart.launches - one.launches), pairs * (apart.bytes - one.bytes)
    return (
        f"a pair: {apart.launches} launches → {one.launches}, {apart.bytes:,} bytes → {one.bytes:,}\n"
        f"{pairs} pairs a token: {fewer} launches less, {fewer * graph_us(launches):.0f} µs in a graph; "
        f"{saved / 1e6:.2f} MB less, {1e-3 * saved / memory_roof()[0]:.2f} µs"
    )


def pair_saved_us(rows: pd.DataFrame) -> float:
    """The µs that all pairs together were measured to save as one kernel each."""
    found = of_one_source(rows)
    return 1e3 * (value(found, "median_ms", variant="apart") - value(found, "median_ms", variant="one"))


def pair_measured(rows: pd.DataFrame) -> str:
    """What so many pairs took in a graph, both ways; and the additions alone: about the most that can go."""
    found = of_one_source(rows)
    us = {row.variant: 1e3 * row.median_ms for row in found.itertuples()}
    return (
        f"{found['pairs'].iloc[0]} pairs in a graph: "
        f"two kernels each {us['apart']:.0f} µs, one each {us['one']:.0f} µs: "
        f"{pair_saved_us(rows):.0f} µs saved\n"
        f"the additions alone: {us['add']:.0f} µs (about the most, while the norm costs what it did)\n"
        f"{found['source'].iloc[0]}"
    )
