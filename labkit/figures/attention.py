"""Chapter 06's figures: the climb, speed by length, what a mask costs, and memory by length."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from labkit import colours, plots
from labkit.figures.registry import figure
from labkit.findings import attention as findings
from labkit.findings.attention_memory import memory_growth
from labkit.plots import CourseFigure
from labkit.tables import peaks

__all__ = ["attention_climb", "attention_lengths", "attention_mask", "attention_memory"]

FP32 = ("naive", "tiled")
FP16 = ("torch-math", "torch-fa2", "mma", "triton", "torch-compile", "torch-cudnn", "wgmma")


@figure("06-climb", "attention")
def attention_climb(rows: pd.DataFrame) -> CourseFigure:
    """TFLOP/s of every version at 8,192, head_dim 64, no mask, and as a part of FlashAttention-2's."""
    single, half = (
        findings.attention_at(rows, dtype=dtype).set_index("variant")["tflops"] for dtype in ("float32", "float16")
    )
    fig, ax = plots.new(
        f"{single['naive']:.0f} → {single['tiled']:.0f} TFLOP/s by tiling, {half['mma']:.0f} by mma, "
        f"{half['wgmma']:.0f} by wgmma",
        rows,
    )
    places, y = {}, 0.0
    for name, speeds, versions in (("fp32", single, FP32), ("fp16 in, fp32 sums", half, FP16)):
        ax.annotate(name, (0.01, y), xycoords=("axes fraction", "data"), va="center", alpha=0.7)
        for variant in (v for v in versions if v in speeds):
            y -= 1
            places[variant] = y
            ax.barh(y, speeds[variant], color=plots.colour(variant), height=0.72)
            share = "" if variant == "torch-fa2" else f" · {speeds[variant] / half['torch-fa2']:.2g}× torch-fa2"
            ax.text(speeds[variant], y, f"  {speeds[variant]:.3g}{share}", va="center", fontweight="bold")
        y -= 1.1
    ax.set_yticks(list(places.values()), list(places))
    plots.log10_axis(ax.xaxis)
    ax.set(xlim=(0.5 * single.min(), 12 * half.max()), ylim=(y + 0.4, 0.5))
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(f"TFLOP/s (log axis); N = {findings.MAIN:,}, head_dim 64, no mask")
    return fig


@figure("06-lengths", "attention")
def attention_lengths(rows: pd.DataFrame) -> CourseFigure:
    """TFLOP/s against the length, float16, head_dim 64, no mask."""
    shown = ["wgmma", "torch-cudnn", "mma", "torch-fa2", "torch-math"]
    found = rows[(rows["dtype"] == "float16") & (rows["head_dim"] == 64) & ~rows["causal"]]
    found = found[found["variant"].isin(shown)].sort_values("seqlen")
    over = {lib: findings.attention_gain(rows, "wgmma", f"torch-{lib}") for lib in ("fa2", "cudnn")}
    fig, ax = plots.new(
        f"N = {findings.MAIN:,}: wgmma is {over['fa2']:.2f}× FlashAttention-2, {over['cudnn']:.2f}× cuDNN",
        rows,
    )
    plots.sweep(ax, found, "seqlen", "tflops", shown)
    _lengths(ax, found)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("TFLOP/s")
    ax.set_xlabel("N, queries and keys (head_dim 64, float16, no mask)")
    return fig


@figure("06-mask", "attention")
def attention_mask(rows: pd.DataFrame) -> CourseFigure:
    """float16, head_dim 64, 8,192: TFLOP/s without a mask (hollow) and with a causal one (full), half the FLOPs."""
    kept = findings.causal_kept(rows)
    at = [findings.attention_at(rows, causal=causal).set_index("variant")["tflops"] for causal in (False, True)]
    shown = [v for v in FP16 if v in kept.index]
    slow = kept[[v for v in shown if v != "torch-math"]].idxmin()
    fig, ax = plots.new(f"A causal mask: wgmma keeps {kept['wgmma']:.0%} of its TFLOP/s, {slow} {kept[slow]:.0%}", rows)
    for y, variant in enumerate(shown):
        tone, mark = plots.colour(variant), plots.marker(variant)
        ax.plot([at[0][variant], at[1][variant]], [y, y], color=tone, linewidth=4, alpha=0.5)
        ax.plot(at[0][variant], y, mark, color=tone, markersize=15, fillstyle="none", markeredgewidth=3)
        ax.plot(at[1][variant], y, mark, color=tone, markersize=15)
        most = max(at[0][variant], at[1][variant])
        ax.annotate(f"{kept[variant]:.0%}", (most, y), (18, 0), textcoords="offset points", va="center",
                    fontweight="bold")  # fmt: skip
    ax.set_yticks(range(len(shown)), shown)
    plots.log10_axis(ax.xaxis)
    ax.set(xlim=(0.6 * at[1][shown].min(), 3 * at[0][shown].max()), ylim=(-0.6, len(shown) - 0.4))
    ax.set_xlabel(f"TFLOP/s (log axis); hollow: no mask, full: causal; N = {findings.MAIN:,}, head_dim 64")
    return fig


@figure("06-memory", "attention_memory")
def attention_memory(memory: pd.DataFrame) -> CourseFigure:
    """What an attention takes beside q, k and v, against the length; and the GPU's memory."""
    shown = ["naive", "torch-math", "torch-fa2", "tiled", "wgmma"]
    found = memory[memory["variant"].isin(shown)].assign(mb=lambda t: t["extra_bytes"] / 1e6)
    growth, gpu = memory_growth(memory), peaks(memory)
    fig, ax = plots.new(
        f"Twice the length: {growth['naive']:.1f}× the memory with the matrix, {growth['tiled']:.1f}× without it",
        memory,
    )
    plots.log10_axis(ax.yaxis)
    if gpu:
        ax.axhline(1e3 * gpu.memory_gb, color=colours.GREY, linestyle=":")
        ax.annotate(f"{gpu.memory_gb:g} GB: all of the GPU's memory (data sheet)", (0.01, 1e3 * gpu.memory_gb), (0, 8),
                    xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
        ax.set_ylim(0.5 * found["mb"].min(), 6e3 * gpu.memory_gb)
    plots.sweep(ax, found, "seqlen", "mb", [v for v in shown if v in set(found["variant"])])
    _lengths(ax, found)
    ax.set_yticks([t for t in 10.0 ** np.arange(0, 7) if 0.5 * found["mb"].min() <= t <= ax.get_ylim()[1]])
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v / 1e3:g} GB" if v >= 1e3 else f"{v:g} MB"))
    ax.set_ylabel("beside q, k and v")
    ax.set_xlabel("N, queries and keys (4 planes, head_dim 64)")
    return fig


def _lengths(ax, rows: pd.DataFrame) -> None:
    """Lengths as plain numbers, which a reader knows better than powers."""
    ax.set_xticks(sorted(rows["seqlen"].unique()))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n / 1024:g}k" if n >= 1024 else f"{n:g}"))
