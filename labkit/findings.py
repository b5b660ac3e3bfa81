"""What the records say, as tables and sentences: no number about speed is typed into a chapter's prose."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from labkit import device
from labkit.tables import largest, numbered, of_one_source, peaks, power, text, value
from labkit.traffic import Cost, elementwise, predict_ms

# --- 01 launch overhead ---------------------------------------------------------------------------------------


def one_array(launches: pd.DataFrame) -> pd.DataFrame:
    """The ways to launch a kernel with one array, from the dearest to the cheapest, in µs."""
    one = launches[(launches["args"] == 1) & (launches["kind"] == "array")]
    return one.assign(us=one["median_ms"] * 1e3).sort_values("us", ascending=False)


def launch_ways(launches: pd.DataFrame) -> str:
    """A table of the ways to launch from Python: a NumPy argument, configured anew, configured once."""
    numpy = launches[(launches["args"] == 1) & (launches["kind"] == "numpy")]
    shown = pd.concat([numpy.assign(us=numpy["median_ms"] * 1e3, variant="numba, a NumPy array"), one_array(launches)])
    shown = shown[~shown["variant"].str.contains("graph")].sort_values("us", ascending=False)
    columns = {"median": shown["us"], "p25": shown["p25_ms"] * 1e3, "p75": shown["p75_ms"] * 1e3}
    table = pd.DataFrame({"µs a launch": shown["variant"], **columns})
    return text(table, median="{:.1f}", p25="{:.1f}", p75="{:.1f}")


def graph_gain(launches: pd.DataFrame) -> float:
    """How many times less a launch costs when it is replayed."""
    us = one_array(launches).set_index("variant")["us"]
    return us["numba"] / us["numba-graph"]


def launch_budget_ms(launches: pd.DataFrame, kernels: int) -> float:
    """What Python needs to launch so many kernels of four arrays, in ms."""
    return kernels * value(launches, "median_ms", variant="numba", kind="array", args=4)


def crossover_log2(sizes: pd.DataFrame) -> float:
    """log2 of the smallest size measured at which a launch costs at most 10 % more than the kernel itself."""
    wide = sizes.pivot_table(index="n", columns="variant", values="median_ms")
    hidden = wide.index[wide["launch"] <= 1.1 * wide["kernel"]]
    return float(np.log2(hidden.min()))


def decode_floor_ms(rows: pd.DataFrame, parameters: float = 8e9, bytes_each: int = 2) -> float | None:
    """The least time of one token on the rows' GPU: every weight read once at the data sheet's bandwidth."""
    gpu = peaks(rows)
    return predict_ms(Cost(read=int(parameters * bytes_each), written=0), gpu) if gpu else None


def sizes_table(sizes: pd.DataFrame) -> str:
    """What each stopwatch shows at each size, in µs."""
    us = of_one_source(sizes).assign(us=lambda t: t["median_ms"] * 1e3)
    shown = us.pivot_table(index="n", columns="variant", values="us")[["returns", "launch", "kernel"]].reset_index()
    shown["n"] = [power(n) for n in shown["n"]]
    return "µs\n" + text(shown, returns="{:.1f}", launch="{:.1f}", kernel="{:.1f}")


def budget_model(launches: pd.DataFrame, budget: pd.DataFrame) -> str:
    """The multiplied budget beside the measured one, with the spread of the measurement."""
    row = budget[budget["variant"] == "numba"].iloc[0]
    multiplied = launch_budget_ms(launches, row["kernels"])
    return (
        f"multiplied: {multiplied:.1f} ms; measured: {row['median_ms']:.1f} ms "
        f"(half of the samples between {row['p25_ms']:.1f} and {row['p75_ms']:.1f})"
    )


def takeaways_01(launches: pd.DataFrame, budget: pd.DataFrame, sizes: pd.DataFrame) -> str:
    """The chapter in five sentences, each with its number."""
    launches, budget, sizes = map(of_one_source, (launches, budget, sizes))
    us = one_array(launches).set_index("variant")["us"]
    n = sizes["n"].max()
    back, kernel = (1e3 * value(sizes, "median_ms", variant=v, n=n) for v in ("returns", "kernel"))
    ms = budget.set_index("variant")["median_ms"]
    floor = decode_floor_ms(budget)
    reading = f"; 8 billion 16-bit weights: {floor:.1f} ms" if floor else ""
    numpy = 1e3 * value(launches, "median_ms", variant="numba", kind="numpy", args=1)
    return numbered(
        f"A launch comes back after {back:.0f} µs; the kernel it asked for runs {kernel:.0f} µs.",
        f"One launch with one array costs {us['numba']:.0f} µs of Python; with a NumPy array {numpy:.0f} µs.",
        f"Replayed from a graph it costs {us['numba-graph']:.2f} µs: {graph_gain(launches):.0f}× less.",
        f"{budget['kernels'].iloc[0]} empty launches: {ms['numba']:.1f} ms from Python, "
        f"{ms['numba-graph']:.2f} ms from a graph{reading}.",
        f"From n = {power(2 ** crossover_log2(sizes))} on, the kernel before hides a launch.",
    )


# --- 02 fused vs unfused --------------------------------------------------------------------------------------


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
