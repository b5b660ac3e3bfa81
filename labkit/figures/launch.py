"""Chapter 01's figures."""

from __future__ import annotations

import pandas as pd

from labkit import plots
from labkit.figures.registry import figure
from labkit.findings import launch as findings
from labkit.plots import CourseFigure
from labkit.tables import power, value

__all__ = [
    "crossover",
    "launch_budget",
    "launch_cost",
    "ways_to_launch",
]


@figure("01-launch-cost", "launch_overhead")
def launch_cost(rows: pd.DataFrame) -> CourseFigure:
    """What one launch costs, by the number and the kind of its arguments."""
    numba = rows[rows["variant"] == "numba"].assign(us=lambda t: t["median_ms"] * 1e3)
    table = numba[numba["args"] > 0].pivot_table(index="kind", columns="args", values="us", sort=False)
    empty = value(numba, "us", args=0)
    most = numba.loc[numba[numba["kind"] != "numpy"]["us"].idxmax()]
    fig, ax = plots.new(
        f"A launch costs {empty:.0f} µs without arguments, {most['us']:.0f} µs with {most['args']} {most['kind']}s",
        numba,
    )
    plots.heatmap(ax, table, "µs")
    ax.set_xlabel("arguments of the kernel")
    ax.set_ylabel("kind of the arguments")
    return fig


@figure("01-ways-to-launch", "launch_overhead")
def ways_to_launch(rows: pd.DataFrame) -> CourseFigure:
    """Time a kernel, from the dearest way of launching it to the cheapest."""
    one = findings.one_array(rows)
    us = dict(zip(one["variant"], one["us"], strict=True))
    fig, ax = plots.new(f"Replayed from a graph, a launch costs {findings.graph_gain(rows):.0f}× less", one)
    plots.speedup(ax, us, {}, "{:.3g} µs")
    ax.set_xlabel("µs a kernel with one array (launches: wall clock; graphs: GPU time)")
    return fig


@figure("01-budget", "launch_budget")
def launch_budget(rows: pd.DataFrame) -> CourseFigure:
    """A forward pass of empty kernels, beside the time that reading the weights takes."""
    ms = rows.sort_values("median_ms", ascending=False).set_index("variant")["median_ms"]
    floor = findings.decode_floor_ms(rows)
    count = rows["kernels"].iloc[0]
    weights = f"; all weights: {floor:.1f} ms" if floor else ""
    fig, ax = plots.new(f"{count} launches: {ms['numba']:.1f} ms from Python{weights}", rows)
    plots.speedup(ax, dict(ms), dict.fromkeys(ms.index, floor) if floor else {}, "{:.3g} ms")
    ax.set_xlabel("ms a forward pass of empty kernels; line: reading 16 GB of weights (data sheet)")
    return fig


@figure("01-crossover", "launch_crossover")
def crossover(rows: pd.DataFrame) -> CourseFigure:
    """Launches from Python against the kernel's own time: where the launch stops to matter."""
    gpu_from = 2 ** findings.crossover_log2(rows)
    smaller = rows[rows["n"] < gpu_from]["n"]
    python = f"Up to n = {power(smaller.max())} you wait for Python, from" if len(smaller) else "From n ="
    fig, ax = plots.new(f"{python} {power(gpu_from)} on for the GPU", rows)
    rows = rows.assign(us=rows["median_ms"] * 1e3)
    plots.log10_axis(ax.yaxis)
    plots.sweep(ax, rows, "n", "us", ["launch", "kernel"])
    ax.set_xlabel("n (float32 elements)")
    ax.set_ylabel("µs a launch")
    return fig
