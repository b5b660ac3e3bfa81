"""Chapter 02: what fusing gains, and how one fools oneself about it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from labkit import device
from labkit.tables import largest, numbered, of_one_source, power, text, value
from labkit.traffic import Cost, elementwise

__all__ = [
    "answer",
    "chain_met",
    "chain_ratio",
    "chain_table",
    "counted_table",
    "idle_threads",
    "overstated",
    "regimes",
    "saved",
    "speedups",
    "takeaways_02",
    "told_speedup",
    "traffic_table",
    "trap_table",
]


def speedups(rows: pd.DataFrame) -> pd.DataFrame:
    """The table of the main question: rows with `speedup` over the unfused kernels, measured and predicted.

    `fused` is compared with `unfused` (one element a thread both), all others with the better `unfused-4`.
    The prediction is the ratio of the bytes moved.
    """
    rows = rows.copy()
    by = rows.set_index(["source", "n", "variant"])
    base = [
        (source, n, "unfused" if v in ("unfused", "fused") else "unfused-4")
        for source, n, v in zip(rows["source"], rows["n"], rows["variant"], strict=True)
    ]
    rows["speedup"] = by["median_ms"].reindex(base).to_numpy() / rows["median_ms"].to_numpy()
    rows["predicted"] = by["bytes"].reindex(base).to_numpy() / rows["bytes"].to_numpy()
    return rows


def answer(rows: pd.DataFrame) -> str:
    """The table for someone in a hurry: every variant at the largest size, and where the numbers come from."""
    last = speedups(largest(rows))
    shown = pd.DataFrame(
        {
            "variant": last["variant"],
            "n": [power(n) for n in last["n"]],
            "ms": last["median_ms"],
            "GB/s": last["gbps"],
            "speedup": last["speedup"],
            "predicted": last["predicted"],
            "source": [source.partition(":")[0] for source in last["source"]],
        }
    )
    table = text(shown, ms="{:.3f}", speedup="{:.2f}×", predicted="{:.2f}×", **{"GB/s": "{:.0f}"})
    return "\n".join([table, *sorted(last["source"].unique()), device.mode()])


def traffic_table(rows: pd.DataFrame) -> str:
    """The cost model's bytes beside those that ncu counted on the memory bus, in GB."""
    names = {"variant": rows["variant"], "n": [power(n) for n in rows["n"]]}
    model, found = ({w: rows[f"{w}_{who}"] for w in ("read", "written")} for who in ("model", "ncu"))
    return f"{_beside(names, model, found, 'ncu', 1e9)}\n{rows['source'].iloc[0]}"


def counted_table(model: dict[str, Cost], counted: dict[str, Cost]) -> str:
    """The cost model's bytes beside those of `labkit.count`, in MB, by variant; and how well they agree."""
    claims, counts = (_read_and_written(costs[v] for v in counted) for costs in (model, counted))
    off = max(abs(c.bytes / model[v].bytes - 1) for v, c in counted.items())
    verdict = f"off by {off:.2%} at most" if off else "right to the byte"
    table = _beside({"variant": list(counted)}, claims, counts, "counted", 1e6)
    return f"{table}\nin MB; the model is {verdict}; source: counted on the CPU"


def _read_and_written(costs: Iterable[Cost]) -> dict:
    read, written = zip(*((c.read, c.written) for c in costs), strict=True)
    return {"read": np.array(read), "written": np.array(written)}


def _beside(names: dict, model: dict, found: dict, how: str, unit: float) -> str:
    """A table of bytes read and written: what the model says, what was found, and how far that is off."""
    shown = pd.DataFrame(names)
    for what in ("read", "written"):
        shown[f"{what}, model"] = model[what] / unit
        shown[f"{what}, {how}"] = found[what] / unit
        shown[f"{what}, off by"] = found[what] / model[what] - 1
    sizes = {c: "{:.3f}" for c in shown if c.endswith(("model", how))}
    return text(shown, **sizes, **{c: "{:+.2%}" for c in shown if c.endswith("by")})


def told_speedup(trap: pd.DataFrame, n: int, way: str) -> float:
    """The speedup of fusing that one way of timing tells."""
    times = [value(trap, "median_ms", n=n, way=way, variant=v) for v in ("unfused-4", "fused-4")]
    return times[0] / times[1]


def overstated(trap: pd.DataFrame, n: int, way: str) -> float:
    """How many times too long one way of timing makes the fused kernel look (data left in the cache by both)."""
    told, true = (value(trap, "median_ms", n=n, way=w, variant="fused-4") for w in (way, "queued-hot"))
    return told / true


def trap_table(trap: pd.DataFrame, n: int) -> str:
    """What each way of timing says about the two versions at one size, and what it flags."""
    here = trap[trap["n"] == n].assign(us=lambda t: t["median_ms"] * 1e3)
    shown = here.pivot_table(index="way", columns="variant", values="us", sort=False).reset_index()
    shown["speedup"] = [told_speedup(trap, n, way) for way in shown["way"]]
    shown["flags (fused-4)"] = [
        here[(here["way"] == way) & (here["variant"] == "fused-4")]["flags"].iloc[0] or "none" for way in shown["way"]
    ]
    return f"n = {power(n)}, times in µs\n" + text(
        shown, **{"unfused-4": "{:.1f}", "fused-4": "{:.1f}", "speedup": "{:.2f}×"}
    )


def saved(rows: pd.DataFrame) -> pd.DataFrame:
    """By n: the µs that fusing saves (unfused-4 minus fused-4), and what the saved bytes explain of them.

    The bytes are charged at the best bandwidth measured, that of fused-4 at its fastest.
    """
    rows = of_one_source(rows)
    wide = rows.pivot_table(index="n", columns="variant", values=["median_ms", "bytes"])
    ms, moved = wide["median_ms"], wide["bytes"]
    best_gbps = rows[rows["variant"] == "fused-4"]["gbps"].max()
    return pd.DataFrame(
        {
            "measured": (ms["unfused-4"] - ms["fused-4"]) * 1e3,
            "from bytes": (moved["unfused-4"] - moved["fused-4"]) / best_gbps / 1e3,
        }
    )


def regimes(rows: pd.DataFrame, trap: pd.DataFrame) -> str:
    """What fusing saves by size: measured, from bytes, and the speedup with cold and with hot caches."""
    times = saved(rows)
    gains = speedups(rows[rows["variant"].isin(["unfused-4", "fused-4"])])
    cold = gains[gains["variant"] == "fused-4"].set_index("n")["speedup"]
    shown = [n for n in times.index if n in set(trap["n"])]
    table = pd.DataFrame(
        {
            "n": [power(n) for n in shown],
            "one array": [f"{4 * n / 2**20:g} MiB" for n in shown],
            "saved µs": [f"{times['measured'][n]:.1f}" for n in shown],
            "of it bytes": [f"{times['from bytes'][n] / times['measured'][n]:.0%}" for n in shown],
            "speedup, cold": [f"{cold[n]:.2f}×" for n in shown],
            "speedup, hot": [f"{told_speedup(trap, n, 'queued-hot'):.2f}×" for n in shown],
        }
    )
    return text(table)


def chain_ratio() -> float:
    """The bytes of bias, GELU, residual and scale as four kernels, over those of one: the exercise's answer."""
    separate = elementwise(1) + elementwise(1) + elementwise(1, reads=2) + elementwise(1)
    return separate.bytes / elementwise(1, reads=2).bytes


def chain_table(rows: pd.DataFrame) -> str:
    """The speedups over four kernels at every size, and what the bytes predict."""
    rows = of_one_source(rows)
    ms = rows.pivot_table(index="variant", columns="tokens", values="median_ms", sort=False)
    moved = rows.pivot_table(index="variant", columns="tokens", values="bytes", sort=False)
    shown = (ms.loc["separate"] / ms).drop(index="separate").map("{:.2f}×".format)
    shown.columns = [f"{tokens} tokens" for tokens in shown.columns]
    shown["predicted"] = (moved.loc["separate"] / moved).iloc[:, -1].drop(index="separate").map("{:.2f}×".format)
    return text(shown.reset_index())


def chain_met(rows: pd.DataFrame) -> str:
    """Whether the fused chain meets its prediction at the largest size."""
    last = largest(of_one_source(rows), "tokens")
    met = value(last, "median_ms", variant="separate") / value(last, "median_ms", variant="fused")
    off = met / chain_ratio() - 1
    word = "met" if abs(off) <= 0.1 else "missed"
    return f"predicted {chain_ratio():.2f}×, measured {met:.2f}× ({off:+.1%}): {word} within 10 %"


def idle_threads(n: int, per_block: int) -> int:
    """How many threads of the last block have no element."""
    return -n % per_block


def takeaways_02(rows: pd.DataFrame, trap: pd.DataFrame, chain: pd.DataFrame) -> str:
    """The chapter in five sentences, each with its number."""
    rows, trap, chain = map(of_one_source, (rows, trap, chain))
    last, gains = largest(rows), speedups(largest(rows))
    four = value(last, "gbps", variant="fused-4")
    one = value(last, "gbps", variant="fused")
    small, times = rows["n"].min(), saved(rows)
    at_small = value(speedups(rows[rows["n"] == small]), "speedup", variant="fused-4")
    n = trap[trap["way"] == "event-pair"]["n"].min()
    return numbered(
        f"Half the bytes, {value(gains, 'speedup', variant='fused-4'):.2f}× the speed at n = {power(rows['n'].max())}.",
        f"Four elements a thread lift the same kernel from {one / 1e3:.2f} to {four / 1e3:.2f} TB/s, "
        f"{four / value(last, 'gbps', variant='copy'):.0%} of the driver's copy.",
        f"At n = {power(small)} fusing gains {at_small:.2f}×; bytes explain "
        f"{times['from bytes'][small] / times['measured'][small]:.0%} of it, a kernel's floor the rest.",
        f"At n = {power(n)} an event pair overstates the fused kernel {overstated(trap, n, 'event-pair'):.1f}-fold.",
        f"A real chain of four steps: {chain_met(chain)}.",
    )
