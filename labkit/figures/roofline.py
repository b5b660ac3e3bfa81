"""Chapter 03's figures."""

from __future__ import annotations

import pandas as pd

from labkit import colours, device, plots, rooflines
from labkit.figures.registry import figure
from labkit.findings import batches
from labkit.findings import roofline as findings
from labkit.findings.roofline import Roofs
from labkit.plots import CourseFigure
from labkit.tables import of_one_source, peaks
from labkit.traffic import Cost

__all__ = ["batch_walk", "cpu_roofline", "loads_in_flight", "polynomials", "roofline_map", "roofline_map_beside"]

SHOWN = {1, 16, 256, 2048}  # batches that get a name on the map


@figure("03-loads-in-flight", "roofline")
def loads_in_flight(rows: pd.DataFrame) -> CourseFigure:
    """TB/s of a copy and of a read against the loads that each thread has under way."""
    best, gpu = findings.in_flight(rows), peaks(rows)
    copy = best[best["variant"] == "copy"].set_index("each")["tbps"]
    share = f", {best['tbps'].max() * 1e3 / gpu.bandwidth_gbps:.0%} of the data sheet" if gpu else ""
    fig, ax = plots.new(f"More loads at once: {copy.iloc[0]:.1f} → {best['tbps'].max():.2f} TB/s{share}", rows)
    plots.sweep(ax, best, "each", "tbps", ["copy", "read"])
    ax.xaxis.set_major_formatter(lambda loads, _: f"{loads:g}")
    if gpu:
        ax.axhline(gpu.bandwidth_gbps / 1e3, color=colours.GREY, linestyle=":")
        ax.annotate(
            f"{gpu.bandwidth_gbps / 1e3:g} TB/s (data sheet)", (best["each"].min(), gpu.bandwidth_gbps / 1e3), (0, 6),
            textcoords="offset points",
        )  # fmt: skip
    ax.set_xlabel("loads under way, a thread")
    ax.set_ylabel("TB/s, best block size")
    ax.set_ylim(0, 1.15 * (gpu.bandwidth_gbps / 1e3 if gpu else best["tbps"].max()))
    return fig


def _map(rows: pd.DataFrame, title: str, other: Roofs | None = None) -> CourseFigure:
    found = findings.points(rows)
    steps = (found["variant"] == "cublas") & (found["dtype"] == "float16") & ~found["batch"].isin(SHOWN)
    degrees = (found["variant"] == "polynomial") & (found["degree"] != found["degree"].max())
    found = found[~steps & ~degrees]
    names = found["name"].str.replace("GEMM, ", "") + found["share"].map(" {:.0%}".format)
    if other:
        names = names.where(found["limit"] == "memory", "")  # room for the other machine's values
    fig, ax = plots.new(title, rows)
    rooflines.chart(ax, findings.roofs(rows), found.assign(text=names), other=other)
    ax.set_xlabel("FLOPs per byte (hollow: what the roofs allow; filled: measured, with its share)")
    return fig


@figure("03-roofline", "roofline")
def roofline_map(rows: pd.DataFrame) -> CourseFigure:
    """Every kernel under the measured roofs."""
    found, ridge = findings.points(rows), findings.roofs(rows).ridge("fp32")
    streams = found[found["variant"].isin(["separate", "fused", "softmax", "layer-norm", "gemv", "attention-decode"])]
    return _map(
        rows,
        f"Left of the ridge at {ridge:.0f} FLOPs a byte only bytes count: "
        f"{streams['share'].min():.0%} to {streams['share'].max():.0%} of the memory's roof",
    )


def roofline_map_beside(rows: pd.DataFrame, gpu: str, theme: str = "light") -> CourseFigure:
    """The same map with another GPU's data sheet over it, dotted; `gpu` is a slug of data/gpus.csv."""
    rows, there = of_one_source(rows), device.find_gpu(gpu)
    here, other = findings.roofs(rows), findings.sheet(there)
    with plots.style(theme):
        title = (
            f"{there.name}: its fp32 ridge at {other.ridge('fp32'):.0f} FLOPs a byte, ours at {here.ridge('fp32'):.0f}"
        )
        return _map(rows, title, other)


@figure("03-batch-walk", "roofline")
def batch_walk(rows: pd.DataFrame) -> CourseFigure:
    """One fp16 weight matrix times ever more vectors: from the slope to the ridge."""
    steps, measured = batches.walk(rows), findings.roofs(rows)
    fig, ax = plots.new(
        f"Decode walks up the slope: it turns at a batch of {batches.turning_batch(rows):.0f} "
        f"(the roofs say {batches.turning_batch(rows, measured):.0f})",
        rows,
    )
    fp16 = Roofs(measured.gbps, {"fp16": measured.tflops["fp16"]}, measured.origin, measured.l2_gbps)
    rooflines.chart(
        ax, fp16, steps.assign(text=steps["batch"].where(steps["batch"].map(int.bit_count) == 1, "").astype(str))
    )
    ax.set_xlabel("FLOPs per byte of one weight matrix times a batch (the number beside each point)")
    return fig


@figure("03-polynomials", "roofline")
def polynomials(rows: pd.DataFrame) -> CourseFigure:
    """One kernel, more and more FLOPs for the same bytes: along both roofs."""
    found, measured = findings.points(rows), findings.roofs(rows)
    found = found[found["variant"] == "polynomial"].sort_values("degree")
    first, last = found.iloc[0], findings.last_on_slope(found)
    fig, ax = plots.new(
        f"On the slope, from degree {first['degree']} to {last['degree']}: "
        f"{last['flops'] / first['flops']:.0f}× the FLOPs in {last['median_ms'] / first['median_ms']:.2f}× the time",
        rows,
    )
    fp32 = Roofs(measured.gbps, {"fp32": measured.tflops["fp32"]}, measured.origin)
    rooflines.chart(ax, fp32, found.assign(text=found["degree"].astype(str)))
    ax.set_xlabel("FLOPs per byte of a polynomial (beside each point: its degree)")
    return fig


def cpu_roofline(of: Roofs, found: dict[str, tuple[Cost, float]], theme: str = "light") -> CourseFigure:
    """A CPU's kernels, each (cost, ms), under its own roofs."""
    points = pd.DataFrame(
        [(name, "fp32", c.intensity, c.flops / ms / 1e9) for name, (c, ms) in found.items()],
        columns=["variant", "precision", "intensity", "tflops"],
    )
    share = points["tflops"] / of.reachable(points["intensity"])
    points = points.assign(text=points["variant"] + share.map(" {:.0%}".format), source="measured here, on the CPU")
    with plots.style(theme):
        fig, ax = plots.new(f"This CPU: {of.gbps:.0f} GB/s, ridge at {of.ridge():.0f} FLOPs a byte", points)
        rooflines.chart(ax, of, points, unit="GFLOP/s")
    return fig
