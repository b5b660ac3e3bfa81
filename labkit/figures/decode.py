"""Chapter 08's figures: the waterfall of the three moves, every way to take a step, and where each wins."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from labkit import plots
from labkit.figures.registry import figure
from labkit.figures.selection import winner_map
from labkit.findings import decode as findings
from labkit.findings.decode_least import LAYERS, tokens_per_s
from labkit.findings.decode_places import LEVEL, decode_score, decode_where
from labkit.plots import CourseFigure

__all__ = ["decode_batch_context", "decode_variants", "decode_waterfall"]


@figure("08-waterfall", "decode_stages")
def decode_waterfall(rows: pd.DataFrame) -> CourseFigure:
    """µs a layer: what each move took away (pale), what is left (full; ◆: of that the GPU's own), and the floor."""
    found, captured = findings.decode_stage(rows), findings.in_graphs(rows)
    stages = found[found["variant"] != "floor"].set_index("variant")
    us, floor = stages["us"], found["floor"].iloc[0]
    fig, ax = plots.new(
        f"Select, fuse, launch: {us['separate']:.0f} → {us['launch']:.0f} µs a layer, "
        f"{floor / us['launch']:.0%} of the floor",
        rows,
    )
    for y, (stage, row) in enumerate(stages.iterrows()):
        tone = plots.colour("numba-graph" if stage == "launch" else stage)
        ax.barh(y, row["us"], color=tone, height=0.62)
        end = row["us"]
        if row["saved"] > 0:
            ax.barh(y, row["saved"], left=row["us"], color=tone, alpha=0.3, height=0.62)
            end += row["saved"]
        if stage != "launch" and stage in captured:
            ax.plot(captured[stage], y, "D", color=mpl.rcParams["text.color"], markeredgecolor=tone, markersize=14)
        change = "" if pd.isna(row["saved"]) else f" ({-row['saved']:+.0f})".replace("-", "−")
        kernels = f"{row['launches']:.0f} kernels" if stage != "launch" else "one graph"
        ax.text(end, y, f"  {row['us']:.0f} µs{change} · {kernels}", va="center", fontweight="bold")
    _floor(ax, floor, len(stages), f"floor: {floor:.0f} µs")
    ax.set_yticks(range(len(stages)), stages.index)
    ax.set_xlim(0, 1.6 * us.max())
    ax.grid(axis="y", visible=False)
    diamonds = "; ◆: in a graph" if captured else ""
    ax.set_xlabel(f"µs a layer (pale: what the move saved{diamonds}); batch 1, context 4,096, float16")
    return fig


@figure("08-variants", "decode_step")
def decode_variants(rows: pd.DataFrame) -> CourseFigure:
    """ms a token of 32 layers, every way to take the step, and the floor."""
    here = findings.decode_at(rows)
    shown = here[here["variant"] != "floor"].sort_values("ms", ascending=False).set_index("variant")
    ours, theirs = (findings.best_of(here, names) for names in (findings.OURS, findings.TORCH))
    floor = here["floor"].iloc[0] * LAYERS / 1e3
    gain = theirs["us"] / ours["us"]
    fig, ax = plots.new(
        f"{ours['variant']}: {ours['ms']:.2f} ms a token, "
        + (f"{gain:.2f}× as fast as" if gain >= 1 else f"{1 / gain:.2f}× as long as")
        + f" the best of PyTorch's; {ours['floor'] / ours['us']:.0%} of the floor",
        rows,
    )
    for y, (variant, row) in enumerate(shown.iterrows()):
        ax.barh(y, row["ms"], color=plots.colour(variant), height=0.66)
        ax.text(max(row["ms"], floor), y, f"  {row['ms']:.3g} ms · {tokens_per_s(row['us']):.0f} tokens/s · "
                f"{row['token_launches']:.0f} kernels", va="center", fontweight="bold")  # fmt: skip
    _floor(ax, floor, len(shown), f"floor: {floor:.2f} ms")
    ax.set_yticks(range(len(shown)), shown.index)
    ax.set_xlim(0, 2.1 * shown["ms"].max())
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(f"ms a token, {LAYERS} layers; batch 1, context 4,096, float16")
    return fig


@figure("08-batch-context", "decode_step")
def decode_batch_context(rows: pd.DataFrame) -> CourseFigure:
    """By batch and context: the faster of the two sides' best, and its margin over the other's."""
    found = decode_where(rows)
    won, level, lost = decode_score(found)
    behind = f", behind in {lost}" if lost else ""
    fig, ax = plots.new(
        f"Ours is ahead in {won} of {len(found)} places, level in {level}{behind}: {found['gain'].min():.2f}× to "
        f"{found['gain'].max():.2f}× the speed of PyTorch's best",
        rows,
    )
    batches, contexts = sorted(found["batch"].unique()), sorted(found["context"].unique())
    winners = {(r.batch, r.context): (r.winner, max(r.gain, 1 / r.gain)) for r in found.itertuples()}
    winner_map(ax, winners, batches, contexts)
    ax.set_xticks(range(len(contexts)), [_size(c) for c in contexts])
    ax.set_xlabel(
        f"context; in a cell: the winner, and how many times as long the other takes (level: within {LEVEL:.0%})"
    )
    ax.set_ylabel("batch")
    return fig


def _size(context: int) -> str:
    return f"{context // 1024}k" if context % 1024 == 0 else f"{context}"


def _floor(ax: Axes, floor: float, bars: int, text: str) -> None:
    """The floor as a line through all bars, named below them."""
    ax.axvline(floor, color=mpl.rcParams["text.color"], linewidth=3)
    ax.text(floor, bars - 0.2, f"  {text}", va="center", fontweight="bold")
    ax.set_ylim(bars + 0.1, -0.5)
