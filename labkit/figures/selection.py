"""Chapter 04's figures: the ladder, what a selected kernel gains, and the map of winners."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from labkit import plots
from labkit.figures.registry import figure
from labkit.findings import ladder as rungs
from labkit.findings import selection as findings
from labkit.plots import CourseFigure

__all__ = ["ladder", "selection_gains", "selection_map"]

PRECISIONS = {"float32": "fp32", "float16": "fp16 in, fp32 sums"}


@figure("04-ladder", "gemm")
def ladder(rows: pd.DataFrame) -> CourseFigure:
    """TFLOP/s of every rung at the largest square for all of them, and its share of the library, by dtype."""
    n, found = rungs.largest_square(rows), rungs.shares(rows)
    found = found[(found["m"] == n) & (found["n"] == n) & (found["k"] == n)]
    fp32, tensor = (found[found["dtype"] == dtype].set_index("variant") for dtype in PRECISIONS)
    slow, fast = fp32["tflops"].iloc[0], fp32.drop(index="cublas", errors="ignore")["tflops"].max()
    then = f", and {tensor.drop(index='cublas', errors='ignore')['tflops'].max():.0f} on tensor cores"
    fig, ax = plots.new(f"{n}³: {slow:.1f} → {fast:.0f} TFLOP/s by tiling{then if len(tensor) > 1 else ''}", rows)
    places, y = {}, 0.0
    for (dtype, name), part in zip(PRECISIONS.items(), (fp32, tensor), strict=True):
        if len(part):
            ax.annotate(name, (0.01, y), xycoords=("axes fraction", "data"), va="center", alpha=0.7)
        for row in part.itertuples():
            y -= 1
            places[dtype, row.Index] = y
            ax.barh(y, row.tflops, color=plots.colour(row.Index), height=0.72)
            of_library = "" if row.Index == "cublas" else f" · {row.share:.0%} of cuBLAS"
            ax.text(row.tflops, y, f"  {row.tflops:.3g}{of_library}", va="center", fontweight="bold")
        y -= 1.2
    ax.set_yticks(list(places.values()), [variant for _, variant in places])
    plots.log10_axis(ax.xaxis)
    ax.set(xlim=(0.5 * found["tflops"].min(), 30 * found["tflops"].max()), ylim=(y + 0.5, 0.5))
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("TFLOP/s (log axis)")
    return fig


@figure("04-selection-gains", "kernel_selection")
def selection_gains(rows: pd.DataFrame) -> CourseFigure:
    """For the shapes that the reader sees, by use: the best kernel of ours over the library, coloured by kernel."""
    found = findings.gains(rows[rows["group"] == "seen"])
    lost = int((found["speedup"] < 1).sum())
    fig, ax = plots.new(
        f"The right kernel: up to {found['speedup'].max():.0f}× cuBLAS; {lost} of {len(found)} shapes are lost", rows
    )
    uses = list(dict.fromkeys(found["use"]))[::-1]
    ax.axvline(1, color=mpl.rcParams["text.color"], linewidth=2)
    for use, group in found.groupby("use", sort=False):
        y = uses.index(use)
        for row in group.itertuples():
            ax.plot(row.speedup, y, plots.marker(row.ours), color=plots.colour(row.ours), markersize=15)
        last = group.loc[group["speedup"].idxmax()]
        names = list(dict.fromkeys(group.sort_values("speedup", ascending=False)["ours"]))
        ax.annotate(
            ", ".join(names), (max(last["speedup"], 1), y), (18, 0), textcoords="offset points", va="center",
            color=plots.colour(names[0]), fontweight="bold",
        )  # fmt: skip
    plots.log10_axis(ax.xaxis)
    ax.set_yticks(range(len(uses)), uses)
    ax.set_xlim(0.8 * min(found["speedup"].min(), 0.5), 5 * max(found["speedup"].max(), 2))
    ax.set_ylim(-0.6, len(uses) - 0.4)
    ax.set_xlabel("speedup over cuBLAS (log axis); a dot is a shape, its colour the best of our kernels")
    return fig


@figure("04-selection-map", "kernel_selection")
def selection_map(rows: pd.DataFrame) -> CourseFigure:
    """Square outputs: for each side and length of the sum the winner, and its margin over the second best."""
    squares = rows[(rows["m"] == rows["n"]) & (rows["batch"] == 1)]
    of_the_grid = squares[squares["group"] == "map"]
    squares = squares[squares["m"].isin(of_the_grid["m"]) & squares["k"].isin(of_the_grid["k"])]
    found = findings.contest(squares)
    ours, kinds = int((findings.gains(squares)["speedup"] >= 1.05).sum()), found["winner"].nunique()
    fig, ax = plots.new(f"{kinds} kernels share the map; {ours} of {len(found)} shapes beat cuBLAS by 5% or more", rows)
    sides, depths = sorted(found["m"].unique()), sorted(found["k"].unique())
    winners = {(row.m, row.k): (row.winner, row.margin) for row in found.itertuples()}
    winner_map(ax, winners, sides, depths)
    ax.set_xlabel("k, the length of the sum; in a cell: the winner, and its margin over the second best")
    ax.set_ylabel("m = n, the side of c")
    return fig


def winner_map(ax: Axes, winners: dict[tuple, tuple[str, float]], down: list, across: list) -> None:
    """A grid of cells, each in its winner's colour with the winner's name and margin; cells without one stay empty."""
    ax.set(xlim=(-0.5, len(across) - 0.5), ylim=(-0.5, len(down) - 0.5))
    for (y, x), (name, margin) in winners.items():
        i, j, fill = down.index(y), across.index(x), plots.colour(name)
        ax.add_patch(mpl.patches.Rectangle((j - 0.48, i - 0.47), 0.96, 0.94, color=fill, linewidth=0))
        red, green, blue = to_rgb(fill)
        tone = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.45 else "white"
        ratio = f"\n{margin:.2f}×" if np.isfinite(margin) else ""
        ax.text(j, i, name + ratio, ha="center", va="center", color=tone, fontsize=16, fontweight="bold")
    ax.set_xticks(range(len(across)), across)
    ax.set_yticks(range(len(down)), down)
    ax.grid(visible=False)
