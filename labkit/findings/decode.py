"""Chapter 08: one token, from separate kernels to a graph of fused ones, beside PyTorch and the memory's floor."""

from __future__ import annotations

import pandas as pd

from labkit import device
from labkit.errors import LabError
from labkit.findings.decode_least import LAYERS, LLAMA_8B, graph_us, memory_roof, python_us, tokens_per_s
from labkit.tables import of_one_source, or_recorded, text

__all__ = [
    "best_of",
    "decode_answer",
    "decode_at",
    "decode_flags",
    "decode_gain",
    "decode_kernels_table",
    "decode_launches",
    "decode_predicted",
    "decode_rows",
    "decode_stage",
    "decode_verdict",
    "decode_waterfall",
    "floor_share",
    "in_graphs",
    "kernel_shares",
    "move_share",
    "products_share",
]

OURS = ("numba-separate", "numba-fused", "numba-graph")
TORCH = ("torch-eager", "torch-compile", "torch-compile-autotune", "torch-compile-graph", "torch-graph")
STAGES = ("separate", "select", "fuse", "launch")
PRODUCTS = ("qkv", "out", "gate-up", "down")
NEEDED = {"numba-graph", "torch-eager", "torch-compile", "torch-graph"}
WANTED = {"floor": 0.85, "torch": 1.1, "kernel": 0.9}  # what the chapter set out to reach


def decode_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, if the first source has ours beside PyTorch's; else the recorded ones, and says so."""
    whole = set(decode_at(rows)["variant"]) >= NEEDED
    return or_recorded(rows, whole, "decode_step", "ours and PyTorch's were not both measured")


def decode_at(rows: pd.DataFrame, batch: int = 1, context: int = 4096) -> pd.DataFrame:
    """The rows of the first source at one batch and context, those of the most layers.

    With `us`, the µs of a layer; `ms` and `token_launches`, of a token of 32 layers; `floor`, the least `us`.
    """
    found = of_one_source(rows)
    found = found[(found["batch"] == batch) & (found["context"] == context)]
    if found.empty:
        return found
    found = found[found["layers"] == found["layers"].max()]
    us = 1e3 * found["median_ms"] / found["layers"]
    scale = LAYERS / found["layers"]
    launches = found["launches"] * scale if "launches" in found else float("nan")
    return found.assign(us=us, ms=us * LAYERS / 1e3, token_launches=launches, floor=_floor_us(found, batch, context))


def _floor_us(here: pd.DataFrame, batch: int, context: int) -> float:
    """The floor of a layer: the row's, or (without one) what a layer must move over the memory's bandwidth."""
    row = here[here["variant"] == "floor"]
    if len(row):
        return float(1e3 * row["median_ms"].iloc[0] / row["layers"].iloc[0])
    return 1e-3 * LLAMA_8B.least(batch, context).bytes / memory_roof(here)[0]


def best_of(here: pd.DataFrame, variants: tuple[str, ...]) -> pd.Series:
    """The fastest of these variants among rows of one batch and context."""
    found = here[here["variant"].isin(variants)]
    if found.empty:
        raise LabError(f"none of {', '.join(variants)} among the rows")
    return found.loc[found["median_ms"].idxmin()]


def decode_gain(rows: pd.DataFrame, over: str | None = None, variant: str = "numba-graph", **where) -> float:
    """How many times `variant`'s time another takes (default: the best of PyTorch's)."""
    here = decode_at(rows, **where)
    other = best_of(here, (over,) if over else TORCH)
    return float(other["us"] / best_of(here, (variant,))["us"])


def floor_share(rows: pd.DataFrame, variant: str = "numba-graph", **where) -> float:
    """The floor as a part of a variant's time."""
    row = best_of(decode_at(rows, **where), (variant,))
    return float(row["floor"] / row["us"])


def decode_answer(rows: pd.DataFrame, **where) -> str:
    """The table for someone in a hurry: every way to take one step, the slowest first, and the floor."""
    here = decode_at(rows, **where).sort_values("us", ascending=False)
    here = pd.concat([here[here["variant"] != "floor"], here[here["variant"] == "floor"]])
    first = here.iloc[0]
    table = pd.DataFrame(
        {
            "variant": here["variant"],
            "launches": here["token_launches"].where(here["variant"] != "floor"),
            "ms a token": here["ms"],
            "tokens/s": tokens_per_s(here["us"], first["batch"]),
            "of the floor": here["floor"] / here["us"],
            "error": here["error"],
        }
    )
    how = {"launches": "{:.0f}", "ms a token": "{:.2f}", "tokens/s": "{:.0f}", "of the floor": "{:.0%}"}
    head = f"batch {first['batch']}, context {first['context']:,}, {LAYERS} layers, float16"
    if first["layers"] != LAYERS:
        head += f" (measured with {first['layers']})"
    return f"{head}\n{text(table, **how, error='{:.1e}')}\n{first['source']}\n{device.mode()}"


def decode_flags(rows: pd.DataFrame, **where) -> str:
    """What the record says of each variant: how it was compiled and captured, and what to doubt."""
    here = decode_at(rows, **where)
    told = [f"{v}: {flags}" for v, flags in zip(here["variant"], here["flags"], strict=True) if isinstance(flags, str)]
    return "\n".join(line for line in told if not line.endswith(": ")) or "no flags"


def decode_verdict(rows: pd.DataFrame, **where) -> str:
    """Who wins, by how much, and how far that is from the floor."""
    here = decode_at(rows, **where)
    ours, theirs = best_of(here, OURS), best_of(here, TORCH)
    gain, share = theirs["us"] / ours["us"], ours["floor"] / ours["us"]
    if gain >= 1:
        won = f"{ours['variant']} wins: {gain:.2f}× as fast as {theirs['variant']}, the best of PyTorch's"
    else:
        won = f"{theirs['variant']} wins: {ours['variant']}, the best of ours, takes {1 / gain:.2f}× as long"
    return (
        f"{won} (asked: {WANTED['torch']:g}×, {_met(gain, WANTED['torch'])}).\n"
        f"{ours['variant']} reaches {share:.0%} of the floor (asked: {WANTED['floor']:.0%}, "
        f"{_met(share, WANTED['floor'])}), {theirs['variant']} {theirs['floor'] / theirs['us']:.0%}."
    )


def _met(found: float, wanted: float) -> str:
    return "met" if found >= wanted else "missed"


def decode_launches(rows: pd.DataFrame, **where) -> str:
    """Kernels a layer, by variant: what each way of fusing left over; and what a compiler fused of eager's."""
    here = decode_at(rows, **where).set_index("variant")
    a_layer = here["token_launches"].drop("floor", errors="ignore").sort_values(ascending=False) / LAYERS
    told = "kernels a layer: " + ", ".join(f"{v} {n:.1f}".replace(".0", "") for v, n in a_layer.items())
    if {"torch-eager", "torch-compile"} <= set(a_layer.index):
        eager, compiled = a_layer["torch-eager"], a_layer["torch-compile"]
        told += f"\ntorch.compile fused {eager:.0f} into {compiled:.0f}: {1 - compiled / eager:.0%} of them are gone"
    return told


# the three moves


def decode_stage(stages: pd.DataFrame) -> pd.DataFrame:
    """A row a stage in their order: `us` a layer, `saved` by this move, `launches` a layer, `times` the floor."""
    here = decode_at(stages).set_index("variant")
    found = here.reindex([s for s in (*STAGES, "floor") if s in here.index])
    launches = found["token_launches"] / LAYERS
    floor = found["floor"].iloc[0]
    saved = found["us"].shift() - found["us"]
    return found.assign(saved=saved, launches=launches, times=found["us"] / floor).reset_index()


def decode_waterfall(stages: pd.DataFrame) -> str:
    """By stage: kernels and µs a layer, what the move saved, tokens a second of 32 layers, times the floor."""
    found = decode_stage(stages)
    table = pd.DataFrame(
        {
            "stage": found["variant"],
            "kernels": found["launches"].where(found["variant"] != "floor"),
            "µs a layer": found["us"],
            "saved": found["saved"].where(found["variant"] != "floor"),
            "tokens/s": tokens_per_s(found["us"]),
            "of the floor": 1 / found["times"],
        }
    )
    how = {"kernels": "{:.0f}", "µs a layer": "{:.1f}", "saved": "{:.1f}", "tokens/s": "{:.0f}"}
    shown = text(table, **how, **{"of the floor": "{:.0%}"})
    return f"batch 1, context 4,096\n{shown}\n{found['source'].iloc[0]}"


def move_share(stages: pd.DataFrame, move: str) -> float:
    """The part of all µs saved, in percent, that one of the moves saved."""
    found = decode_stage(stages).set_index("variant")
    return float(100 * found.loc[move, "saved"] / (found.loc["separate", "us"] - found.loc["launch", "us"]))


def decode_predicted(stages: pd.DataFrame, launches: pd.DataFrame, arguments: dict[str, list[int]]) -> str:
    """By stage: what its bytes take at the measured bandwidth, what its launches take, and what was measured.

    arguments  stage -> the number of arguments of each launch of a layer: from Python each one costs (chapter 01)
    """
    found, (gbps, who) = decode_stage(stages), memory_roof(stages)
    found = found[found["variant"] != "floor"]
    graph, us_in_graph = found["variant"] == "launch", graph_us(launches)
    by_bytes = 1e-3 * found["bytes"] / found["layers"] / gbps
    python = found["variant"].map({name: python_us(launches, each) for name, each in arguments.items()})
    by_launches = python.where(~graph, found["launches"] * us_in_graph)
    # Python launches while the GPU works, so that the longer of the two shows; a graph's gaps come on top
    predicted = (by_bytes + by_launches).where(graph, pd.concat([by_bytes, by_launches], axis=1).max(axis=1))
    table = pd.DataFrame(
        {
            "stage": found["variant"],
            "bytes µs": by_bytes,
            "launches µs": by_launches,
            "predicted µs": predicted,
            "measured µs": found["us"],
            "times": found["us"] / predicted,
            "in a graph µs": found["variant"].map(in_graphs(stages)),
        }
    ).dropna(axis=1, how="all")
    shown = text(table, **dict.fromkeys(table.columns[1:], "{:.1f}") | {"times": "{:.2f}×"})
    least, most = python_us(launches, [0]), python_us(launches, [8])
    return (
        f"a layer\n{shown}\nbytes over {gbps / 1e3:.2f} TB/s ({who}); a launch (chapter 01): from Python "
        f"{least:.0f} µs without arguments to {most:.0f} µs with eight, in a graph {us_in_graph:.2f} µs"
    )


def in_graphs(stages: pd.DataFrame) -> dict[str, float]:
    """µs a layer by stage, of what was captured as well: the GPU's time, without Python's."""
    us = decode_at(stages).set_index("variant")["us"]
    found = {stage: us[f"{stage}-graph"] for stage in STAGES if f"{stage}-graph" in us}
    return found | {"launch": us["launch"]} if found else {}


def kernel_shares(kernels: pd.DataFrame, batch: int = 1, context: int = 4096) -> pd.Series:
    """By kernel: its GB/s as a part of the memory's measured bandwidth; `read-…`: of a kernel that only reads."""
    found = of_one_source(kernels)
    found = found[(found["batch"] == batch) & (found["context"] == context)]
    return found.set_index("variant")["gbps"] / memory_roof(found)[0]


def products_share(kernels: pd.DataFrame) -> float:
    """The four products of a layer, one after the other: their bytes over their time, as a part of the bandwidth."""
    found = of_one_source(kernels).set_index("variant").loc[list(PRODUCTS)]
    return float(1e-6 * found["bytes"].sum() / found["median_ms"].sum() / memory_roof(kernels)[0])


def decode_kernels_table(kernels: pd.DataFrame) -> str:
    """Each big kernel of a layer: MB, µs, GB/s, its share of the measured bandwidth; and a mere read's share."""
    found, (gbps, who) = of_one_source(kernels), memory_roof(kernels)
    where = ["variant", "batch", "context"]
    read = found.assign(variant=found["variant"].str.removeprefix("read-"))[found["variant"].str.startswith("read-")]
    ours = found[~found["variant"].str.startswith("read-")].merge(read, "left", where, suffixes=("", "_read"))
    shares = ours["gbps"] / gbps
    table = pd.DataFrame(
        {
            "kernel": ours["variant"],
            "batch": ours["batch"],
            "context": ours["context"],
            "MB": ours["bytes"] / 1e6,
            "µs": 1e3 * ours["median_ms"],
            "of the bandwidth": shares,
            f"{WANTED['kernel']:.0%}": [_met(share, WANTED["kernel"]) for share in shares],
            "only read": ours["gbps_read"] / gbps,
            "error": ours["error"],
        }
    )
    percent = dict.fromkeys(("of the bandwidth", "only read"), "{:.1%}")
    shown = text(table, MB="{:.1f}", **{"µs": "{:.1f}", "error": "{:.1e}"}, **percent)
    return (
        f"{shown}\nthe four products together: {products_share(kernels):.1%}\n"
        f"bandwidth: {gbps / 1e3:.2f} TB/s ({who})\n{found['source'].iloc[0]}"
    )
