"""Chapter 01: what a launch costs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labkit.tables import numbered, of_one_source, peaks, power, text, value
from labkit.traffic import Cost, predict_ms

__all__ = [
    "budget_model",
    "crossover_log2",
    "decode_floor_ms",
    "graph_gain",
    "launch_budget_ms",
    "launch_ways",
    "one_array",
    "sizes_table",
    "takeaways_01",
]


def one_array(launches: pd.DataFrame) -> pd.DataFrame:
    """The ways to launch a kernel with one array, from the dearest to the cheapest, in µs."""
    one = launches[(launches["args"] == 1) & (launches["kind"] == "array")]
    return one.assign(us=one["median_ms"] * 1e3).sort_values("us", ascending=False)


def launch_ways(launches: pd.DataFrame) -> str:
    """A table of the ways to launch from Python: a NumPy argument, configured anew, configured once."""
    numpy = launches[(launches["args"] == 1) & (launches["kind"] == "numpy")]
    shown = pd.concat([numpy.assign(us=numpy["median_ms"] * 1e3, variant="numba, a NumPy array"), one_array(launches)])
    shown = shown[~shown["variant"].str.contains("graph")].sort_values("us", ascending=False)
    columns = {"median": shown["us"], "p25": shown["p25_ms"] * 1e3, "p75": shown["p75_ms"] * 1e3}
    table = pd.DataFrame({"µs a launch": shown["variant"], **columns})
    return text(table, median="{:.1f}", p25="{:.1f}", p75="{:.1f}")


def graph_gain(launches: pd.DataFrame) -> float:
    """How many times less a launch costs when it is replayed."""
    us = one_array(launches).set_index("variant")["us"]
    return us["numba"] / us["numba-graph"]


def launch_budget_ms(launches: pd.DataFrame, kernels: int) -> float:
    """What Python needs to launch so many kernels of four arrays, in ms."""
    return kernels * value(launches, "median_ms", variant="numba", kind="array", args=4)


def crossover_log2(sizes: pd.DataFrame) -> float:
    """log2 of the smallest size measured at which a launch costs at most 10 % more than the kernel itself."""
    wide = sizes.pivot_table(index="n", columns="variant", values="median_ms")
    hidden = wide.index[wide["launch"] <= 1.1 * wide["kernel"]]
    return float(np.log2(hidden.min()))


def decode_floor_ms(rows: pd.DataFrame, parameters: float = 8e9, bytes_each: int = 2) -> float | None:
    """The least time of one token on the rows' GPU: every weight read once at the data sheet's bandwidth."""
    gpu = peaks(rows)
    return predict_ms(Cost(read=int(parameters * bytes_each), written=0), gpu) if gpu else None


def sizes_table(sizes: pd.DataFrame) -> str:
    """What each stopwatch shows at each size, in µs."""
    us = of_one_source(sizes).assign(us=lambda t: t["median_ms"] * 1e3)
    shown = us.pivot_table(index="n", columns="variant", values="us")[["returns", "launch", "kernel"]].reset_index()
    shown["n"] = [power(n) for n in shown["n"]]
    return "µs\n" + text(shown, returns="{:.1f}", launch="{:.1f}", kernel="{:.1f}")


def budget_model(launches: pd.DataFrame, budget: pd.DataFrame) -> str:
    """The multiplied budget beside the measured one, with the spread of the measurement."""
    row = budget[budget["variant"] == "numba"].iloc[0]
    multiplied = launch_budget_ms(launches, row["kernels"])
    return (
        f"multiplied: {multiplied:.1f} ms; measured: {row['median_ms']:.1f} ms "
        f"(half of the samples between {row['p25_ms']:.1f} and {row['p75_ms']:.1f})"
    )


def takeaways_01(launches: pd.DataFrame, budget: pd.DataFrame, sizes: pd.DataFrame) -> str:
    """The chapter in five sentences, each with its number."""
    launches, budget, sizes = map(of_one_source, (launches, budget, sizes))
    us = one_array(launches).set_index("variant")["us"]
    n = sizes["n"].max()
    back, kernel = (1e3 * value(sizes, "median_ms", variant=v, n=n) for v in ("returns", "kernel"))
    ms = budget.set_index("variant")["median_ms"]
    floor = decode_floor_ms(budget)
    reading = f"; 8 billion 16-bit weights: {floor:.1f} ms" if floor else ""
    numpy = 1e3 * value(launches, "median_ms", variant="numba", kind="numpy", args=1)
    return numbered(
        f"A launch comes back after {back:.0f} µs; the kernel it asked for runs {kernel:.0f} µs.",
        f"One launch with one array costs {us['numba']:.0f} µs of Python; with a NumPy array {numpy:.0f} µs.",
        f"Replayed from a graph it costs {us['numba-graph']:.2f} µs: {graph_gain(launches):.0f}× less.",
        f"{budget['kernels'].iloc[0]} empty launches: {ms['numba']:.1f} ms from Python, "
        f"{ms['numba-graph']:.2f} ms from a graph{reading}.",
        f"From n = {power(2 ** crossover_log2(sizes))} on, the kernel before hides a launch.",
    )
