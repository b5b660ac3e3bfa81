"""Chapter 04: a ladder of matrix products, which kernel wins for which shape, and how well a rule chooses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from labkit import autotune, checks, device, progress
from labkit.checks import WrongAnswer
from labkit.findings.ladder import LIBRARY, largest_square, share, shares
from labkit.tables import numbered, of_one_source, peaks, text, value

__all__ = [
    "check_rule",
    "choice_table",
    "contest",
    "gains",
    "selectors_table",
    "shape_table",
    "takeaways_04",
    "tuned_table",
]

SHAPE = ["m", "n", "k", "batch"]


# which kernel for which shape


def contest(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a shape: the winner, its time, the second and the margin over it; in the order of the rows."""
    found = []
    for shape, group in of_one_source(rows).groupby(SHAPE, sort=False):
        ms = group.set_index("variant")["median_ms"].sort_values(kind="stable")
        second = ms.index[1] if len(ms) > 1 else ""
        margin = ms.iloc[1] / ms.iloc[0] if len(ms) > 1 else np.nan
        line = dict(zip(SHAPE, map(int, shape), strict=True))
        found.append({**line, "winner": ms.index[0], "ms": ms.iloc[0], "second": second, "margin": margin})
    return pd.DataFrame(found)


def gains(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a shape: the best kernel of ours, its time and the library's, and the speedup over the library."""
    rows = of_one_source(rows)
    found = []
    for shape, group in rows.groupby(SHAPE, sort=False):
        ms = group.set_index("variant")["median_ms"]
        ours = ms.drop(index=LIBRARY)
        if ours.empty:
            continue
        line = dict(zip(SHAPE, map(int, shape), strict=True))
        best, library = ours.idxmin(), ms[LIBRARY]
        use = {"use": group["use"].iloc[0]} if "use" in group else {}
        speedup = library / ours.min()
        found.append({**use, **line, "ours": best, "ms": ours.min(), "cublas_ms": library, "speedup": speedup})
    return pd.DataFrame(found)


def named(m: int, n: int, k: int, batch: int = 1) -> str:
    """A product's shape in short: 262144 × [8×8 · 8×8]."""
    product = f"[{m}×{k} · {k}×{n}]"
    return f"{batch} × {product}" if batch > 1 else product


def shape_table(rows: pd.DataFrame) -> str:
    """For each shape the best kernel of ours beside the library, and where the numbers come from."""
    found = gains(rows)
    shown = pd.DataFrame(
        {
            "use": found["use"],
            "product": [named(*shape) for shape in found[SHAPE].itertuples(index=False)],
            "our best": found["ours"],
            "µs": found["ms"] * 1e3,
            "cuBLAS µs": found["cublas_ms"] * 1e3,
            "speedup": found["speedup"],
        }
    )
    table = text(shown, speedup="{:.2f}×", **{"µs": "{:.1f}", "cuBLAS µs": "{:.1f}"})
    return f"{table}\n{rows['source'].iloc[0]}\n{device.mode()}"


# rules


def check_rule(rule: Callable[..., str], rows: pd.DataFrame, exercise: str = "", at_most: float = 0.10) -> None:
    """Judge a rule on the shapes of `rows`: at most so much regret on average.

    Raises WrongAnswer for one that regrets more, or names a kernel that there is not, or that does not apply.
    """
    name = exercise or rule.__name__
    if checks.is_skeleton(rule):
        print(f"{name}: not attempted (replace the `...` in {rule.__name__})")
        return
    found = autotune.score(rule, of_one_source(rows))
    if found.mean > at_most:
        worst = found.table.loc[found.table["regret"].idxmax()]
        raise WrongAnswer(
            f"{name}: {found}; at most {at_most:.0%} on average is asked for. Worst: {worst['choice']} for "
            f"{named(*worst[SHAPE])} takes {1 + worst['regret']:.1f} times as long as the best kernel"
        )
    progress.solved(exercise)
    print(f"{name}: right; {found}")


def choice_table(found: autotune.Regret) -> str:
    """A rule's choice for each shape, beside the best."""
    t = found.table
    shown = pd.DataFrame(
        {
            "product": [named(*shape) for shape in t[SHAPE].itertuples(index=False)],
            "choice": t["choice"],
            "best": t["best"],
            "regret": t["regret"],
        }
    )
    return f"{text(shown, regret='{:.0%}')}\n{found}"


def _tuned_rule(tuned: pd.DataFrame) -> Callable[..., str]:
    choices = {tuple(row[:-1]): row[-1] for row in tuned[[*SHAPE, "choice"]].itertuples(index=False)}
    return lambda *shape: choices[shape]


def _tuned_score(tuned: pd.DataFrame, rows: pd.DataFrame) -> autotune.Regret:
    """The tuner's choices on the shapes of `rows`, judged by the experiment's own times."""
    return autotune.score(_tuned_rule(of_one_source(tuned)), of_one_source(rows))


def tuned_table(tuned: pd.DataFrame, rows: pd.DataFrame) -> str:
    """The tuner's choices, what each cost, and after how many calls it is earned back against the library."""
    prices = of_one_source(tuned).set_index(SHAPE)["median_ms"]
    rows = of_one_source(rows)
    library = rows[rows["variant"] == LIBRARY].set_index(SHAPE)["median_ms"]
    lines = []
    for row in _tuned_score(tuned, rows).table.itertuples():
        shape = row.m, row.n, row.k, row.batch
        saved = library[shape] - row.choice_ms
        calls = f"{prices[shape] / saved:,.0f} calls" if saved > 0 else "never"
        lines.append((named(*shape), row.choice, row.best, row.regret, prices[shape], saved * 1e3, calls))
    columns = ["product", "choice", "best", "regret", "cost ms", "saves µs", "paid off after"]
    how = {"regret": "{:.1%}", "cost ms": "{:.0f}", "saves µs": "{:.1f}"}
    return f"{text(pd.DataFrame(lines, columns=columns), **how)}\n{tuned['source'].iloc[0]}"


def selectors_table(rows: pd.DataFrame, tuned: pd.DataFrame, rules: dict[str, Callable]) -> str:
    """Ways to choose a kernel, by their regret on the same shapes, and what choosing costs."""
    rows = of_one_source(rows)
    cost = of_one_source(tuned)["median_ms"].sum() / 1e3
    ways = {"always the library": autotune.score(lambda *_: LIBRARY, rows)}
    ways |= {name: autotune.score(rule, rows) for name, rule in rules.items()}
    ways["the autotuner"] = _tuned_score(tuned, rows)
    lines = [
        (way, f"{s.mean:.1%}", f"{s.worst:.1%}", f"{cost:.1f} s" if way == "the autotuner" else "nothing")
        for way, s in ways.items()
    ]
    return text(pd.DataFrame(lines, columns=["choosing by", "regret on average", "at worst", "cost"]))


def takeaways_04(ladder: pd.DataFrame, rows: pd.DataFrame, tuned: pd.DataFrame, rule: Callable[..., str]) -> str:
    """The chapter in five sentences, each with its number."""
    ladder, rows = of_one_source(ladder), of_one_source(rows)
    n = largest_square(ladder)
    at = ladder[(ladder["m"] == n) & (ladder["n"] == n)]
    slow, fast = (value(at, "tflops", variant=v) for v in ("naive", "vectorised"))
    found, held_out = gains(rows[rows["group"] == "seen"]), rows[rows["group"] == "held-out"]
    best, worst = (found.loc[pick] for pick in (found["speedup"].idxmax(), found["speedup"].idxmin()))
    wins = found[found["speedup"] >= 1.5]["use"].nunique()
    gpu = peaks(ladder)
    peak = f", {fast / gpu.tflops['fp32']:.0%} of the GPU's peak" if gpu else ""
    chosen, tuner = autotune.score(rule, held_out), _tuned_score(tuned, held_out)
    library = autotune.score(lambda *_: LIBRARY, held_out)
    climbed = f"{slow:.1f} → {fast:.1f} TFLOP/s, {share(ladder, 'vectorised'):.0%} of cuBLAS{peak}"
    return numbered(
        f"Five rungs in float32, {n}³: {climbed}.",
        *_tensor_sentence(ladder, n),
        f"A kernel made for the shape beats cuBLAS {best['speedup']:.0f}-fold for {named(*best[SHAPE])}, and by half "
        f"or more in {wins} of {found['use'].nunique()} kinds of shapes; for {named(*worst[SHAPE])} our best takes "
        f"{1 / worst['speedup']:.1f} times cuBLAS's time.",
        f"On shapes never seen, the library alone regrets {library.mean:.0%}, "
        f"a rule of a dozen lines {chosen.mean:.1%}.",
        f"An autotuner regrets {tuner.mean:.1%} there, for {tuned['median_ms'].median():.0f} ms a shape.",
    )


def _tensor_sentence(ladder: pd.DataFrame, n: int) -> list[str]:
    found = shares(ladder)
    found = found[(found["m"] == n) & (found["n"] == n) & (found["dtype"] == "float16")].set_index("variant")
    told = [
        f"`{v}` {found.loc[v, 'tflops']:.0f} ({found.loc[v, 'share']:.0%} of cuBLAS)"
        for v in ("mma", "wgmma")
        if v in found.index
    ]
    return [f"Tensor cores, float16 in: {', '.join(told)} TFLOP/s."] if told else []
