"""The course's figures: each a function from records to a figure whose title is what it found."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path

import pandas as pd

from labkit import findings, plots, records
from labkit.errors import LabError
from labkit.findings import speedups
from labkit.plots import CourseFigure
from labkit.tables import largest, of_one_source, peaks, power, value

FIGURES: dict[str, tuple[str, Callable]] = {}  # the figure's name -> the experiment it shows, the function


def figure(name: str, experiment: str):
    """Register a figure of the course and draw it in the course's style, from the rows of one source."""

    def register(draw: Callable[[pd.DataFrame], CourseFigure]):
        @wraps(draw)
        def styled(rows: pd.DataFrame, theme: str = "light") -> CourseFigure:
            with plots.style(theme):
                return draw(of_one_source(rows))

        FIGURES[name] = (experiment, styled)
        return styled

    return register


def draw_all(out: Path, formats: list[str], theme: str = "light", gpu: str | None = None) -> list[Path]:
    """Draw every figure of the course from data/ into `out`; returns the files. Raises LabError on damaged records."""
    if not formats:
        raise LabError("no format is named; it is png, svg, pdf, or several of them")
    written = []
    for name, (experiment, draw) in FIGURES.items():
        fig = draw(records.read(experiment, gpu), theme)
        with plots.style(theme):
            fig.draw_without_rendering()
            fig.set_layout_engine("none")  # laid out once, for all formats
            for kind in formats:
                plots.save(fig, out / f"{name}.{kind}")
                written.append(out / f"{name}.{kind}")
    return written


# --- 01 launch overhead ---------------------------------------------------------------------------------------


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


# --- 02 fused vs unfused --------------------------------------------------------------------------------------


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
