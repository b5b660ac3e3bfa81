"""Chapter 05's figures: what one kernel gains, up to which width, and where it stands under the roofs."""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import FuncFormatter

from labkit import colours, plots, rooflines
from labkit.figures.registry import figure
from labkit.findings import mlp as findings
from labkit.findings.roofline import Roofs, sheet
from labkit.plots import CourseFigure
from labkit.tables import peaks, power

__all__ = ["mlp_gains", "mlp_roofline", "mlp_widths"]


@figure("05-gains", "fused_mlp")
def mlp_gains(rows: pd.DataFrame) -> CourseFigure:
    """Width 64, four layers: every variant's time over the fused kernel's, beside what the bytes promised."""
    found = findings.mlp_gains(rows, width=64, layers=4).set_index("variant")
    shown = [v for v in findings.OTHERS if v in found.index]
    factors, promised = found.loc[shown, "factor"], found.loc[shown, "promised"]
    fig, ax = plots.new(
        f"One kernel: {factors['cublas']:.1f}× as fast as PyTorch's calls, "
        f"{findings.library_best(rows)[64]:.1f}× as the library's best",
        rows,
    )
    plots.speedup(ax, dict(factors), dict(promised))
    ax.set_xlabel(f"times as long as fused (width 64, 4 layers, {power(1 << 20)} rows); line: promised by the bytes")
    return fig


@figure("05-widths", "fused_mlp")
def mlp_widths(rows: pd.DataFrame) -> CourseFigure:
    """Four layers: every variant's time over the fused kernel's, by width; and up to where all weights fit."""
    found, most, best = findings.mlp_gains(rows, layers=4), findings.widest(4), findings.library_best(rows)
    fits, beyond = best[best.index <= most], best[best.index > most]
    then = f"; {beyond.iloc[0]:.2f}× at {beyond.index[0]}" if len(beyond) else ""
    fig, ax = plots.new(
        f"Fused: {fits.min():.1f}× to {fits.max():.1f}× the library's speed while the weights fit{then}", rows
    )
    plots.log10_axis(ax.yaxis)
    ax.axhline(1, color=plots.colour("fused"), linewidth=3)
    ax.axvline(most, color=colours.GREY, linestyle=":")
    plots.sweep(ax, found, "width", "factor", list(findings.OTHERS))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda v, _: ""))
    ax.set_yticks([t for t in (0.5, 1, 2, 5, 10, 20) if 0.8 * found["factor"].min() <= t <= found["factor"].max()])
    ax.annotate("fused", (found["width"].min(), 1), (0, 8), textcoords="offset points",
                color=plots.colour("fused"), fontweight="bold")  # fmt: skip
    ax.annotate(f"wider than {most} the weights\nno longer fit on the chip", (most, 1), (-10, 0.04),
                xycoords=("data", "axes fraction"), textcoords=("offset points", "axes fraction"),
                ha="right", va="bottom")  # fmt: skip
    ax.set_xlabel(f"width (4 layers, {power(1 << 20)} rows)")
    ax.set_ylabel("times as long as fused")
    return fig


@figure("05-roofline", "fused_mlp")
def mlp_roofline(rows: pd.DataFrame) -> CourseFigure:
    """Four layers: the fused kernel and the library's fused epilogue under the data sheet's roofs, by width."""
    found = findings.mlp_gains(rows, layers=4)
    found = found[found["variant"].isin(["fused", "cublas-lt"])]
    found = found.assign(intensity=found["flops"] / found["bytes"], precision="fp16", text=found["width"].astype(str))
    fused = found[found["variant"] == "fused"].set_index("width")
    narrow, fast = fused.index.min(), fused["tflops"].idxmax()
    fig, ax = plots.new(
        f"From roof to roof: {fused.loc[narrow, 'gbps'] / 1e3:.1f} TB/s at width {narrow}, "
        f"{fused.loc[fast, 'tflops']:.0f} TFLOP/s at {fast}",
        rows,
    )
    gpu = peaks(rows)
    all_of = sheet(gpu) if gpu else Roofs(found["gbps"].max(), {"fp16": found["tflops"].max()}, "best measured")
    rooflines.chart(ax, Roofs(all_of.gbps, {"fp16": all_of.tflops["fp16"]}, all_of.origin), found)
    ax.set_xlabel("FLOPs per byte; beside each point its width; blue: fused, purple: cublas-lt")
    return fig
