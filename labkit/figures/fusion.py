"""Chapter 02's figures."""

from __future__ import annotations

import pandas as pd

from labkit import plots
from labkit.figures.registry import figure
from labkit.findings import fusion as findings
from labkit.findings.fusion import speedups
from labkit.plots import CourseFigure
from labkit.tables import largest, peaks, power, value

__all__ = [
    "bandwidth",
    "chain",
    "fusion_roofline",
    "fusion_speedup",
    "timing_trap",
    "where_fusion_pays",
]


@figure("02-bandwidth", "fused_vs_unfused")
def bandwidth(rows: pd.DataFrame) -> CourseFigure:
    """GB/s against n: one element a thread against four, and the copy as the yardstick."""
    last = largest(rows)
    one, four = value(last, "gbps", variant="fused"), value(last, "gbps", variant="fused-4")
    copy = value(last, "gbps", variant="copy")
    fig, ax = plots.new(
        f"Four elements a thread: {one / 1e3:.1f} → {four / 1e3:.1f} TB/s, {four / copy:.0%} of a copy", rows
    )
    plots.sweep(
        ax,
        rows.assign(tbps=rows["gbps"] / 1e3),
        "n",
        "tbps",
        ["fused", "unfused", "fused-4", "copy", "unfused-4"],
    )
    ax.set_xlabel("n (float32 elements)")
    ax.set_ylabel("TB/s (bytes of the cost model)")
    ax.set_ylim(bottom=0)
    return fig


@figure("02-speedup", "fused_vs_unfused")
def fusion_speedup(rows: pd.DataFrame) -> CourseFigure:
    """Each fused variant's gain at the largest n, beside what the bytes predict."""
    last = speedups(largest(rows)).set_index("variant")
    shown = [v for v in ("fused-4", "fused", "torch-compile", "triton", "torch-eager") if v in last.index]
    gains, told = last.loc[shown, "speedup"], last.loc[shown, "predicted"]
    fig, ax = plots.new(
        f"Half the bytes, half the time: {gains['fused-4']:.2f}× (predicted {told['fused-4']:.2f}×)",
        rows,
    )
    plots.speedup(ax, dict(gains), dict(told))
    ax.set_xlabel(f"speedup over two kernels at n = {power(rows['n'].max())}; line: predicted from bytes")
    return fig


@figure("02-where-fusion-pays", "fused_vs_unfused")
def where_fusion_pays(rows: pd.DataFrame) -> CourseFigure:
    """The time that fusing saves against n, and how much of it the saved bytes explain."""
    times = findings.saved(rows)
    lines = times.melt(ignore_index=False, var_name="variant", value_name="us").reset_index()
    share = times["from bytes"] / times["measured"]
    low, high = share.index.min(), share.index.max()
    fig, ax = plots.new(
        f"Bytes explain {share[low]:.0%} of the gain at {power(low)} elements, {share[high]:.0%} at {power(high)}", rows
    )
    plots.log10_axis(ax.yaxis)
    plots.sweep(ax, lines, "n", "us", ["from bytes", "measured"])
    ax.set_xlabel("n (float32 elements)")
    ax.set_ylabel("µs saved, unfused-4 minus fused-4")
    return fig


@figure("02-timing-trap", "timing_trap")
def timing_trap(rows: pd.DataFrame) -> CourseFigure:
    """The fused kernel timed in several ways: what each makes of it, against n."""
    fused = rows[rows["variant"] == "fused-4"].assign(us=lambda t: t["median_ms"] * 1e3)
    n = fused["n"].min()
    said, true = (value(fused, "us", n=n, way=way) for way in ("event-pair", "queued-hot"))
    told = fused.drop(columns="variant").rename(columns={"way": "variant"})
    fig, ax = plots.new(f"A kernel of {true:.1f} µs, as a plain event pair sees it: {said:.0f} µs", told)
    plots.log10_axis(ax.yaxis)
    plots.sweep(ax, told, "n", "us", ["event-pair", "batch", "do_bench", "queued", "queued-hot"], names_at="start")
    ax.set_xlabel("n (float32 elements)")
    ax.set_ylabel("µs, the fused kernel (fused-4)")
    return fig


@figure("02-roofline", "fused_vs_unfused")
def fusion_roofline(rows: pd.DataFrame) -> CourseFigure:
    """Both kernels under the roof: far to the left of the ridge, where bytes alone decide."""
    last = largest(rows)
    last = last[last["variant"].isin(["unfused-4", "fused-4"])]
    useful = last.assign(flops=last["n"], tflops=last["n"] / last["median_ms"] / 1e9)  # ×6 is one FLOP, however done
    gpu = peaks(rows)
    busy = value(useful, "tflops", variant="fused-4")
    share = f"{busy / gpu.tflops['fp32']:.1%} of the GPU's arithmetic" if gpu else f"{busy:.2f} TFLOP/s"
    fig, ax = plots.new(f"Fusing climbs the slope, at {share}", useful)
    plots.roofline(ax, useful, gpu)
    ax.set_xlabel("useful FLOPs per byte (one multiplication an element)")
    return fig


@figure("02-chain", "fused_chain")
def chain(rows: pd.DataFrame) -> CourseFigure:
    """A chain of a transformer fused: what the bytes promise and what was met, at the largest n."""
    last = largest(rows, "tokens").set_index("variant")
    base = last.loc["separate"]
    fused = last.drop(index="separate")
    gains, told = base["median_ms"] / fused["median_ms"], base["bytes"] / fused["bytes"]
    fig, ax = plots.new(f"Four steps in one kernel: {gains['fused']:.2f}× (predicted {told['fused']:.2f}×)", rows)
    plots.speedup(ax, dict(gains), dict(told))
    ax.set_xlabel("speedup over four separate kernels; line: predicted from bytes")
    return fig
