"""Chapter 06: what doing without the N×N matrix is worth, in time and in memory, beside the libraries' kernels."""

from __future__ import annotations

import inspect

import pandas as pd

from labkit import device, records
from labkit.findings.attention_memory import memory_growth
from labkit.findings.ladder import code_lines
from labkit.tables import numbered, of_one_source, or_recorded, peaks, text, value

__all__ = [
    "attention_answer",
    "attention_at",
    "attention_errors",
    "attention_gain",
    "attention_lengths",
    "attention_rows",
    "attention_rungs",
    "causal_gain",
    "causal_kept",
    "causal_table",
    "library_ratios",
    "not_moving_data",
    "takeaways_06",
    "textbook_compiled",
]

MAIN = 8192  # the length of the tables
NEEDED = {"naive", "tiled", "mma", "wgmma", "torch-math", "torch-fa2", "torch-cudnn"}


def attention_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, if the first source has every rung beside the library; else the recorded ones, and says so."""
    return or_recorded(rows, set(of_one_source(rows)["variant"]) >= NEEDED, "attention")


def attention_at(rows: pd.DataFrame, few: bool = False, **where) -> pd.DataFrame:
    """The rows of the first source at these parameters; where two numbers of planes were measured, the larger.

    Defaults: 8,192 queries and keys, head_dim 64, no mask, float16.
    """
    found = of_one_source(rows)
    for key, wanted in ({"seqlen": MAIN, "head_dim": 64, "causal": False, "dtype": "float16"} | where).items():
        found = found[found[key] == wanted]
    planes = found["batch"] * found["heads"]
    return found[planes == (planes.min() if few else planes.max())]


def attention_gain(rows: pd.DataFrame, variant: str, over: str, **where) -> float:
    """How many times as long `over` takes as `variant`."""
    here = attention_at(rows, **where)
    return value(here, "median_ms", variant=over) / value(here, "median_ms", variant=variant)


def attention_answer(rows: pd.DataFrame) -> str:
    """The table for someone in a hurry: TFLOP/s of every version at 8,192, by head_dim, without a mask and with it."""
    rows = of_one_source(rows)
    here = rows[rows["seqlen"] == MAIN]
    lines = []
    for dtype in ("float32", "float16"):
        for variant in [v for v in dict.fromkeys(here["variant"]) if not v.startswith("tiled-")]:
            line = {"dtype": dtype, "variant": variant}
            for head_dim in sorted(here["head_dim"].unique()):
                for causal in (False, True):
                    at = attention_at(rows, head_dim=head_dim, causal=causal, dtype=dtype)
                    found = at[at["variant"] == variant]["tflops"]
                    line[f"d {head_dim}{', causal' * causal}"] = found.iloc[0] if len(found) else None
            if any(pd.notna(v) for v in list(line.values())[2:]):
                lines.append(line)
    table = pd.DataFrame(lines)
    shown = text(table, **dict.fromkeys(table.columns[2:], "{:.3g}"))
    return f"TFLOP/s, {MAIN} queries and keys\n{shown}\n{rows['source'].iloc[0]}\n{device.mode()}"


def attention_lengths(rows: pd.DataFrame, causal: bool = False, head_dim: int = 64) -> str:
    """TFLOP/s in float16 by length."""
    rows = of_one_source(rows)
    lengths = sorted(rows[(rows["dtype"] == "float16") & (rows["head_dim"] == head_dim)]["seqlen"].unique())
    columns = {
        f"{n:,}": attention_at(rows, seqlen=n, head_dim=head_dim, causal=causal).set_index("variant")["tflops"]
        for n in lengths
    }
    table = pd.DataFrame(columns).reset_index(names="variant")
    mask = "causal" if causal else "no mask"
    shown = text(table, **dict.fromkeys(table.columns[1:], "{:.0f}"))
    return f"TFLOP/s by length, float16, head_dim {head_dim}, {mask}\n{shown}\n{rows['source'].iloc[0]}"


def attention_rungs(rungs: dict[str, tuple], rows: pd.DataFrame) -> str:
    """Each rung's lines of code, where it runs, its speed, and that as a part of FlashAttention-2's, by head_dim.

    rungs  name -> (its functions, or modules of them; its dtype; where it runs)
    """
    dims = sorted(of_one_source(rows)["head_dim"].unique())
    lines = []
    for name, (functions, dtype, runs_on) in rungs.items():
        line = {"rung": name, "lines": sum(map(_lines, functions)), "dtype": dtype, "runs on": runs_on}
        for d in dims:
            speed = value(attention_at(rows, head_dim=d, dtype=dtype), "tflops", variant=name)
            line[f"d {d}"] = f"{speed:.3g} ({speed / _fa2(rows, d):.0%})"
        lines.append(line)
    return f"TFLOP/s at {MAIN}, and as a part of FlashAttention-2's in float16\n{text(pd.DataFrame(lines))}"


def _lines(code) -> int:
    """Lines of code of a function, or of all functions of a module."""
    if not inspect.ismodule(code):
        return code_lines(code)
    mine = [f for f in vars(code).values() if callable(f) and getattr(f, "__module__", "") == code.__name__]
    return sum(map(code_lines, mine))


def _fa2(rows: pd.DataFrame, head_dim: int) -> float:
    return value(attention_at(rows, head_dim=head_dim), "tflops", variant="torch-fa2")


def library_ratios(rows: pd.DataFrame) -> str:
    """The tensor-core rungs' speed over that of PyTorch's FlashAttention-2 and cuDNN, where the GPU is busy."""
    rows, lines = of_one_source(rows), []
    half = rows[(rows["dtype"] == "float16") & rows["seqlen"].isin([MAIN, 2 * MAIN])]
    for (d, causal, n), _ in half.groupby(["head_dim", "causal", "seqlen"]):
        line = {"head_dim": d, "causal": causal, "N": n}
        for ours in ("mma", "wgmma"):
            for library in ("torch-fa2", "torch-cudnn"):
                ratio = attention_gain(rows, ours, library, head_dim=d, causal=causal, seqlen=n)
                line[f"{ours} / {library.removeprefix('torch-')}"] = ratio
        lines.append(line)
    table = pd.DataFrame(lines)
    return text(table, **dict.fromkeys(table.columns[3:], "{:.2f}×"))


def attention_errors(rows: pd.DataFrame) -> str:
    """The errors of the tensor-core rungs against float64, beside FlashAttention-2's on the same numbers."""
    half = of_one_source(rows)
    half = half[half["dtype"] == "float16"]
    keys = ["batch", "heads", "seqlen", "head_dim", "causal"]
    errors = half.pivot_table(index=keys, columns="variant", values="error")
    lines = []
    for ours in ("mma", "wgmma"):
        worst = (errors[ours] / errors["torch-fa2"]).max()
        word = "met" if worst <= 2 else "missed"
        lines.append(
            f"{ours}: error {errors[ours].max():.1e} at worst, {worst:.2f}× FlashAttention-2's (at most 2×: {word})"
        )
    return "\n".join(lines)


# the mask


def causal_gain(rows: pd.DataFrame, head_dim: int = 64, few: bool = False) -> float:
    """float32, causal: what `tiled` gains by leaving out the tiles that no query sees."""
    return attention_gain(rows, "tiled", "tiled-every", head_dim=head_dim, causal=True, dtype="float32", few=few)


def causal_table(rows: pd.DataFrame, promised: dict[int, float]) -> str:
    """By head_dim and number of planes: what leaving out tiles gains, in either order; and the tiles' promise."""
    lines = []
    for d in promised:
        for few in (False, True):
            here = attention_at(rows, few=few, head_dim=d, causal=True, dtype="float32")
            ms = here.set_index("variant")["median_ms"]
            planes = int((here["batch"] * here["heads"]).iloc[0])
            line = {
                "head_dim": d, "planes": planes, "every tile ms": ms["tiled-every"],
                "first rows first": ms["tiled-every"] / ms["tiled-in-order"],
                "last rows first": ms["tiled-every"] / ms["tiled"], "tiles": promised[d],
            }  # fmt: skip
            if line not in lines:
                lines.append(line)
    factors = dict.fromkeys(("first rows first", "last rows first", "tiles"), "{:.2f}×")
    return f"causal, float32, {MAIN}: gain\n{text(pd.DataFrame(lines), **{'every tile ms': '{:.1f}'}, **factors)}"


def causal_kept(rows: pd.DataFrame, head_dim: int = 64) -> pd.Series:
    """By variant: the TFLOP/s under a causal mask, half the FLOPs counted, over those without one."""
    speeds = [
        attention_at(rows, head_dim=head_dim, causal=causal).set_index("variant")["tflops"] for causal in (True, False)
    ]
    return (speeds[0] / speeds[1]).dropna()


# torch.compile, and the claim


def textbook_compiled(compiled: pd.DataFrame, rows: pd.DataFrame) -> str:
    """What torch.compile made of the textbook's three lines, without a mask and with it, and how fast that is."""
    told = []
    for row in of_one_source(compiled).itertuples():
        name = "causal" if row.causal else "no mask"
        found = _found(compiled)[bool(row.causal)]
        verdict = "it found a fused attention" if found else "it did not find attention: the N×N matrix is written"
        here = attention_at(rows, causal=row.causal).set_index("variant")["tflops"]
        speed = f"{here['torch-compile']:.0f} TFLOP/s at {MAIN}, " if "torch-compile" in here else ""
        told.append(
            f"{name}: {row.calls or 'nothing'}\n  {verdict}; {speed}cuDNN called by name {here['torch-cudnn']:.0f}"
        )
    return "\n".join(told)


def not_moving_data(rows: pd.DataFrame, compiled: pd.DataFrame, claim: float = 3.0) -> str:
    """The claim, a speedup of 3 `not from better math, but from not moving data`, beside what was measured."""
    gpu, told = peaks(rows) or device.find_gpu(records.DEFAULT_DEVICE), []
    for d in sorted(of_one_source(rows)["head_dim"].unique()):
        here = attention_at(rows, head_dim=d, dtype="float32").set_index("variant")
        ms, moved = here["median_ms"], here["bytes"]
        matrix = (moved["naive"] - moved["tiled"]) / gpu.bandwidth_gbps / 1e6
        told.append(
            f"float32, head_dim {d}: tiled over naive {_beside(ms['naive'] / ms['tiled'], claim)}. Moving the matrix "
            f"takes {matrix:.0f} ms at the least, of {ms['naive']:.0f}: without it alone "
            f"{ms['naive'] / (ms['naive'] - matrix):.1f}×."
        )
    math = attention_gain(rows, "torch-fa2", "torch-math")
    told.append(f"float16, head_dim 64: FlashAttention-2 over PyTorch's `math` {_beside(math, claim)}.")
    here = attention_at(rows, causal=True).set_index("variant")["median_ms"]
    if not _found(compiled)[True] and "torch-compile" in here:
        gain = here["torch-compile"] / here["torch-fa2"]
        told.append(
            f"float16, causal: FlashAttention-2 over a compiled textbook (the library's products, one softmax kernel) "
            f"{gain:.1f}×; that leaves out half of the tiles, so for not moving data {_beside(gain / 2, claim)}."
        )
    return "\n".join(told)


def _beside(gain: float, claim: float) -> str:
    word = "about" if abs(gain / claim - 1) < 0.1 else "more than" if gain > claim else "less than"
    return f"{gain:.1f}×, {word} {claim:g}"


def _found(compiled: pd.DataFrame) -> dict[bool, bool]:
    """By mask (causal or none): whether the generated code calls a fused attention."""
    calls = of_one_source(compiled).groupby("causal")["calls"].first()
    return {bool(c): any(word in code for word in ("scaled_dot_product", "flash")) for c, code in calls.items()}


# the chapter in short


def takeaways_06(rows: pd.DataFrame, memory: pd.DataFrame, compiled: pd.DataFrame) -> str:
    """The chapter in five sentences, each with its number."""
    speed = {v: value(attention_at(rows), "tflops", variant=v) for v in ("mma", "wgmma", "torch-fa2", "torch-cudnn")}
    growth, kept = memory_growth(memory), causal_kept(rows)
    dims = sorted(of_one_source(rows)["head_dim"].unique())
    tiled = " and ".join(
        f"{attention_gain(rows, 'tiled', 'naive', head_dim=d, dtype='float32'):.1f}× (head_dim {d})" for d in dims
    )
    found = _found(compiled)
    words = {True: "finds fused attention", False: "does not"}
    compiles = f"`torch.compile` {words[found[False]]} without a mask"
    if "torch-compile" in kept:
        compiles += f", {words[found[True]]} with a causal one: it keeps {kept['torch-compile']:.0%} of its speed"
    return numbered(
        f"The same float32 arithmetic without the matrix in memory, at {MAIN}: {tiled}.",
        f"Twice the length takes {growth['naive']:.1f}× the memory as three kernels, {growth['tiled']:.1f}× in one.",
        f"On tensor cores: mma {speed['mma']:.0f} TFLOP/s, {speed['mma'] / speed['torch-fa2']:.2f}× FlashAttention-2; "
        f"wgmma {speed['wgmma']:.0f}, {speed['wgmma'] / speed['torch-fa2']:.2f}× that and "
        f"{speed['wgmma'] / speed['torch-cudnn']:.2f}× cuDNN.",
        f"Leaving out tiles that a causal mask hides: {causal_gain(rows):.2f}× in `tiled`; wgmma keeps "
        f"{kept['wgmma']:.0%} of its TFLOP/s.",
        f"{compiles}.",
    )
