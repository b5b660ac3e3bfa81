"""Chapter 03: the roofs of a machine as measured, and where kernels stand under them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkit import device
from labkit.tables import of_one_source, peaks, text
from labkit.traffic import Cost

__all__ = [
    "Roofs",
    "bandwidth_share",
    "counted_points",
    "cpu_table",
    "in_flight",
    "intensities",
    "last_on_slope",
    "overlay_table",
    "points",
    "points_table",
    "roof_table",
    "roofs",
    "sheet",
]

PRECISION = {"float32": "fp32", "float16": "fp16"}
NAMES = {
    "gemv": "GEMV",
    "naive": "GEMM fp32, naive",
    "layer-norm": "layer norm",
    "attention-decode": "attention, decode",
}


@dataclass(frozen=True)
class Roofs:
    """What a machine can do at most: GB/s of its memory and its L2, TFLOP/s by precision; and who says so."""

    gbps: float
    tflops: dict[str, float]
    origin: str
    l2_gbps: float | None = None

    def ridge(self, precision: str = "fp32") -> float:
        """FLOPs a byte from which on arithmetic is the limit."""
        return self.tflops[precision] * 1e3 / self.gbps

    def reachable(self, intensity, precision: str = "fp32"):
        """TFLOP/s that a kernel of this intensity can reach: the lower of the two roofs."""
        return np.minimum(intensity * self.gbps / 1e3, self.tflops[precision])

    def predict_ms(self, cost: Cost, precision: str = "fp32") -> float:
        """The least time for `cost` under these roofs."""
        return max(cost.bytes / self.gbps / 1e6, cost.flops / self.tflops[precision] / 1e9)


# the roofs


def _best(rows: pd.DataFrame, variants: list[str], column: str) -> pd.Series | None:
    """The fastest row of a roof's kernels."""
    found = rows[(rows["kind"] == "roof") & rows["variant"].isin(variants)]
    return found.loc[found[column].idxmax()] if len(found) else None


def _best_rows(rows: pd.DataFrame) -> dict[str, tuple[pd.Series | None, str]]:
    rows = of_one_source(rows)
    return {
        "DRAM": (_best(rows, ["copy", "read"], "gbps"), "gbps"),
        "L2": (_best(rows, ["l2"], "gbps"), "gbps"),
        "fp32": (_best(rows, ["fma"], "tflops"), "tflops"),
        "fp16": (_best(rows, ["mma", "wgmma"], "tflops"), "tflops"),
    }


def roofs(rows: pd.DataFrame) -> Roofs:
    """The roofs that the rows' GPU reached; a roof without a measurement is taken from the data sheet."""
    best = {name: None if row is None else float(row[column]) for name, (row, column) in _best_rows(rows).items()}
    gpu = peaks(rows)
    found = {p: best[p] or (gpu and gpu.tflops[p]) for p in ("fp32", "fp16")}
    return Roofs(best["DRAM"], {p: v for p, v in found.items() if v}, "measured", best["L2"])


def sheet(gpu: str | device.Gpu) -> Roofs:
    """The roofs of a GPU's data sheet; `gpu` is a slug of data/gpus.csv or a row of it."""
    gpu = device.find_gpu(gpu) if isinstance(gpu, str) else gpu
    return Roofs(gpu.bandwidth_gbps, {p: gpu.tflops[p] for p in ("fp32", "fp16") if gpu.tflops[p]}, "data sheet")


def bandwidth_share(rows: pd.DataFrame) -> float:
    """The memory's roof in percent of the data sheet (NaN for a GPU without one)."""
    gpu = peaks(rows)
    return 100 * roofs(rows).gbps / gpu.bandwidth_gbps if gpu else float("nan")


def _how(row: pd.Series) -> str:
    """The configuration of a roof's best row, in words."""
    each, block = row["each"], row["block"]
    return {
        "copy": f"a copy, {each} elements a thread, blocks of {block}",
        "read": f"reading, {each} loads at once, blocks of {block}",
        "fma": f"8 chains of FMAs, blocks of {block}",
        "mma": f"mma.sync, {each} tiles a warp",
        "wgmma": "wgmma from shared memory",
        "l2": f"{4 * row['n'] >> 20} MiB read again and again",
    }[row["variant"]]


def roof_table(rows: pd.DataFrame) -> str:
    """Each roof measured, the data sheet's value, the share reached, and by which kernel."""
    gpu = peaks(rows)
    told = {"DRAM": gpu and gpu.bandwidth_gbps / 1e3} | {p: gpu and gpu.tflops[p] for p in ("fp32", "fp16")}
    lines = []
    for name, (row, column) in _best_rows(rows).items():
        if row is not None:
            found = row[column] / (1e3 if column == "gbps" else 1)
            share = f"{found / told[name]:.0%}" if told.get(name) else "-"
            unit = "TB/s" if column == "gbps" else "TFLOP/s"
            lines.append((name, f"{found:.3g} {unit}", told.get(name), share, _how(row)))
    table = pd.DataFrame(lines, columns=["roof", "measured", "data sheet", "reached", "with"])
    return text(table, **{"data sheet": "{:g}"}) + f"\n{rows['source'].iloc[0]}"


def in_flight(rows: pd.DataFrame) -> pd.DataFrame:
    """The bandwidth roof's kernels at their largest n: the best block for each number of loads at once."""
    rows = of_one_source(rows)
    rows = rows[(rows["kind"] == "roof") & rows["variant"].isin(["copy", "read"])]
    rows = rows[rows["n"] == rows.groupby("variant")["n"].transform("max")]
    best = rows.loc[rows.groupby(["variant", "each"])["gbps"].idxmax()]
    return best.assign(tbps=best["gbps"] / 1e3)


# the points


def intensities(costs: dict[str, Cost]) -> str:
    """What each kernel moves and does, and how many FLOPs that is a byte."""
    table = pd.DataFrame(
        [(name, c.bytes / 1e9, c.flops / 1e9, c.intensity) for name, c in costs.items()],
        columns=["kernel", "GB", "GFLOP", "FLOPs a byte"],
    )
    return text(table, GB="{:.3g}", GFLOP="{:.3g}", **{"FLOPs a byte": "{:.3g}"})


def counted_points(model: dict[str, Cost], counted: dict[str, Cost]) -> str:
    """The cost model beside what the kernels' source really moves and computes, at a small size."""
    lines = [
        (name, f"{model[name].bytes:,}", f"{c.bytes:,}", f"{c.bytes / model[name].bytes - 1:+.1%}",
         model[name].intensity, c.intensity)
        for name, c in counted.items()
    ]  # fmt: skip
    columns = ["kernel", "bytes, model", "counted", "off by", "FLOPs a byte, model", "FLOPs a byte, counted"]
    return text(pd.DataFrame(lines, columns=columns), **dict.fromkeys(columns[4:], "{:.3g}"))


def points(rows: pd.DataFrame) -> pd.DataFrame:
    """The kernels to place, each with its name, intensity, what it can reach, and the share of that it reached."""
    found = of_one_source(rows)
    measured = roofs(found)
    found = found[(found["kind"] == "point") & (found["flops"] > 0)].copy()
    found["name"] = [_name(row) for _, row in found.iterrows()]
    found["precision"] = found["dtype"].map(PRECISION)
    found["intensity"] = found["flops"] / found["bytes"]
    found = found[found["precision"].isin(measured.tflops)]
    pairs = zip(found["intensity"], found["precision"], strict=True)
    found["reachable"] = [measured.reachable(i, p) for i, p in pairs]
    found["share"] = found["tflops"] / found["reachable"]
    ridges = found["precision"].map(measured.ridge)
    found["limit"] = np.where(found["intensity"] < ridges, "memory", "arithmetic")
    return found.sort_values("intensity", kind="stable")


def last_on_slope(found: pd.DataFrame) -> pd.Series:
    """Of ordered points the last one that memory limits (the first of all, if it limits none)."""
    slope = found[found["limit"] == "memory"]
    return slope.iloc[-1] if len(slope) else found.iloc[0]


def _name(row: pd.Series) -> str:
    if row["variant"] == "cublas":
        return f"GEMM, batch {row['batch']}" if row["dtype"] == "float16" else "GEMM fp32, cuBLAS"
    if row["variant"] == "polynomial":
        return f"polynomial {row['degree']}"
    return NAMES.get(row["variant"], row["variant"])


def points_table(rows: pd.DataFrame) -> str:
    """Every point: intensity, limit, predicted and measured time, and the share of the roof that it reached."""
    found = points(rows)
    table = pd.DataFrame(
        {
            "kernel": found["name"],
            "dtype": found["dtype"],
            "FLOPs a byte": found["intensity"],
            "limit": found["limit"],
            "predicted ms": found["median_ms"] * found["share"],
            "measured ms": found["median_ms"],
            "of the roof": found["share"],
        }
    )
    how = {"FLOPs a byte": "{:.3g}", "predicted ms": "{:.3f}", "measured ms": "{:.3f}", "of the roof": "{:.0%}"}
    return text(table, **how)


def overlay_table(rows: pd.DataFrame, gpu: str) -> str:
    """Where the points would stand under another GPU's data sheet: limit and least time, here and there."""
    here, there = roofs(rows), sheet(gpu)
    found = points(rows)
    found = found[found["precision"].isin(there.tflops)]
    costs = [Cost(int(b), 0, int(f)) for b, f in zip(found["bytes"], found["flops"], strict=True)]
    pairs = list(zip(costs, found["precision"], strict=True))
    table = pd.DataFrame(
        {
            "kernel": found["name"],
            "limit here": found["limit"],
            "limit there": ["memory" if c.intensity < there.ridge(p) else "arithmetic" for c, p in pairs],
            "least ms here": [here.predict_ms(c, p) for c, p in pairs],
            "least ms there": [there.predict_ms(c, p) for c, p in pairs],
        }
    )
    return text(table, **{f"least ms {w}": "{:.3f}" for w in ("here", "there")})


def cpu_table(of: Roofs, found: dict[str, tuple[Cost, float]]) -> str:
    """A CPU's kernels under its own roofs; each is (cost, ms)."""
    lines = [
        (name, cost.intensity, of.predict_ms(cost), ms, of.predict_ms(cost) / ms) for name, (cost, ms) in found.items()
    ]
    columns = ["kernel", "FLOPs a byte", "predicted ms", "measured ms", "of the roof"]
    how = ["{}", "{:.3g}", "{:.2f}", "{:.2f}", "{:.0%}"]
    return text(pd.DataFrame(lines, columns=columns), **dict(zip(columns, how, strict=True)))
