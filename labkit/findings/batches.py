"""Chapter 03: one matrix and ever larger batches, polynomials of ever higher degree, and what it all came to."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labkit import device, records
from labkit.errors import LabError
from labkit.findings.roofline import Roofs, last_on_slope, points, roofs, sheet
from labkit.tables import numbered, of_one_source, peaks, text

__all__ = [
    "takeaways_03",
    "turning_batch",
    "turning_degree",
    "turning_degrees",
    "walk",
    "walk_table",
    "with_products",
]


# decode: one matrix, more and more rows


def with_products(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, if they have cuBLAS's products among them; else (no PyTorch here) the recorded ones, and says so."""
    if not walk(rows).empty:
        return rows
    stand_ins = records.read("roofline")
    if walk(stand_ins).empty:
        raise LabError("the record has no products: they need PyTorch (pip install -e '.[baselines]')")
    print(f"no products without PyTorch; shown instead: {stand_ins['source'].iloc[0]}")
    return stand_ins


def walk(rows: pd.DataFrame) -> pd.DataFrame:
    """The products of one fp16 weight matrix with batches of vectors, from the smallest batch on."""
    found = points(rows)
    return found[(found["variant"] == "cublas") & (found["dtype"] == "float16")].sort_values("batch")


def turning_batch(rows: pd.DataFrame, of: Roofs | None = None) -> float:
    """The batch at which the product turns from memory-bound to compute-bound.

    Measured (without `of`): where the flat line through the smallest batch's time meets the straight line from zero
    through the largest batch's. Predicted, from roofs: where the intensity n·b / (n + 2b) equals the ridge.
    """
    steps = walk(rows)
    if of is None:
        first, last = steps.iloc[0], steps.iloc[-1]
        return float(first["median_ms"] / last["median_ms"] * last["batch"])
    n, ridge = float(steps["n"].iloc[0]), of.ridge("fp16")
    return n * ridge / (n - 2 * ridge)


def walk_table(rows: pd.DataFrame) -> str:
    """Batch by batch: the intensity, the time, vectors a second beside batch 1's, and the share of the roof."""
    steps = walk(rows)
    first = steps.iloc[0]
    table = pd.DataFrame(
        {
            "batch": steps["batch"],
            "FLOPs a byte": steps["intensity"],
            "limit": steps["limit"],
            "ms": steps["median_ms"],
            "time": steps["median_ms"] / first["median_ms"],
            "vectors a second": steps["batch"] * first["median_ms"] / steps["median_ms"] / first["batch"],
            "of the roof": steps["share"],
        }
    )
    how = {"FLOPs a byte": "{:.0f}", "ms": "{:.3f}", "time": "{:.2f}×", "vectors a second": "{:.1f}×"}
    return text(table, **how, **{"of the roof": "{:.0%}"})


# polynomials: the exercise


def turning_degree(of: Roofs, precision: str = "fp32") -> int:
    """The first degree at which a polynomial, 2 FLOPs a degree for 8 bytes, is compute-bound."""
    return int(np.ceil(of.ridge(precision) * 8 / 2))


def turning_degrees() -> str:
    """That degree for every GPU of data/gpus.csv, by its data sheet."""
    known = device.gpus().values()
    table = pd.DataFrame(
        [(g.gpu, g.bandwidth_gbps, g.tflops["fp32"], turning_degree(sheet(g))) for g in known],
        columns=["gpu", "GB/s", "fp32 TFLOP/s", "from degree"],
    )
    return text(table, **{"GB/s": "{:g}"})


def takeaways_03(rows: pd.DataFrame) -> str:
    """The chapter in five sentences, each with its number."""
    rows = of_one_source(rows)
    measured, gpu, placed = roofs(rows), peaks(rows), points(rows)
    share = f", {measured.gbps / gpu.bandwidth_gbps:.0%} of the data sheet" if gpu else ""
    streams = placed[placed["variant"].isin(["separate", "fused", "softmax", "layer-norm", "gemv"])]
    poor = placed.loc[placed["share"].idxmin()]
    ridges = " and ".join(f"{measured.ridge(p):.0f} in {p}" for p in measured.tflops)
    return numbered(
        f"The memory gives {measured.gbps / 1e3:.2f} TB/s{share}; the ridge stands at {ridges} (FLOPs a byte).",
        f"Softmax, layer norm, GEMV and elementwise chains lie far left of it, "
        f"at {streams['share'].min():.0%} to {streams['share'].max():.0%} of the memory's roof.",
        *_walked(rows, measured),
        f"A map shows what is possible, not what is done: {poor['name']} reaches {poor['share']:.1%} of its roof.",
    )


def _walked(rows: pd.DataFrame, measured: Roofs) -> list[str]:
    """What the walk taught, if the rows have one."""
    steps = walk(rows)
    if steps.empty:
        return []
    first, last = steps.iloc[0], last_on_slope(steps)
    return [
        f"One weight matrix, batch {first['batch']} to {last['batch']}: {last['median_ms'] / first['median_ms']:.2f}× "
        f"the time for {last['batch'] / first['batch']:.0f}× the vectors.",
        f"It turned at a batch of {turning_batch(rows):.0f}; the roofs had said {turning_batch(rows, measured):.0f}.",
    ]
