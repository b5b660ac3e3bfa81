"""Chapter 07's figures: the portable kernel beside the native one, and the price of each fallback."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labkit import colours, plots
from labkit.figures.registry import figure
from labkit.findings import fallbacks as of_fallbacks
from labkit.findings import lock as findings
from labkit.plots import CourseFigure

__all__ = ["fallbacks", "native"]

SHOWN = ("mma", "wgmma", "torch-fa2", "torch-cudnn", "cublas")


@figure("07-native", "hardware_lock")
def native(rows: pd.DataFrame) -> CourseFigure:
    """TFLOP/s of the portable kernel, the native one and the libraries, for each problem."""
    parts = (findings.portable_part(rows, kernel) for kernel in ("matmul", "attention"))
    fig, ax = plots.new("Portable keeps {:.0%} of native (product), {:.0%} (attention)".format(*parts), rows)
    places, y = {}, 0.0
    for name, at in findings.cases(rows):
        ax.annotate(name, (0.005, y), xycoords=("axes fraction", "data"), va="center", alpha=0.7)
        for variant in (v for v in SHOWN if v in at.index):
            y -= 1
            places[y] = variant
            speed = at.loc[variant, "tflops"]
            share = f" · {speed / at.loc['wgmma', 'tflops']:.0%}" if variant != "wgmma" else ""
            ax.barh(y, speed, color=plots.colour(variant), height=0.76)
            ax.text(speed, y, f"  {speed:.0f}{share}", va="center", fontweight="bold", fontsize=16)
        y -= 1.05
    ax.set_yticks(list(places), list(places.values()), fontsize=16)
    ax.set(xlim=(0, 1.2 * rows["tflops"].max()), ylim=(y + 0.5, 0.5))
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("TFLOP/s, float16; per cent: of wgmma")
    return fig


@figure("07-fallbacks", "fallbacks")
def fallbacks(lab: pd.DataFrame) -> CourseFigure:
    """How many times as long each fallback takes; and whether it said anything."""
    names = of_fallbacks.names(lab)
    ratios = pd.Series({n: of_fallbacks.slowdown(lab, n) for n in names}).sort_values()
    silent = len(names) - of_fallbacks.loud(lab)
    title = f"{len(names)} fallbacks, {ratios.min():.1f}× to {ratios.max():.0f}× as slow; {silent} say nothing"
    fig, ax = plots.new(title, lab)
    for y, (name, ratio) in enumerate(ratios.items()):
        said = of_fallbacks.pair(lab, name)[1]["logged"]
        ax.barh(y, ratio - 1, left=1, color=colours.BLUE if said else colours.VERMILLION, height=0.7)
        word = "a warning" if said else "silent"
        ax.text(max(ratio, 1), y, f"  {ratio:.1f}× · {word}", va="center", fontweight="bold")
    ax.set_yticks(np.arange(len(ratios)), ratios.index)
    plots.log10_axis(ax.xaxis)
    ax.set(xlim=(0.8 * min(1, ratios.min()), 9 * ratios.max()), ylim=(-0.6, len(ratios) - 0.4))
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("times as long as the path that was asked for (log axis)")
    return fig
