"""Chapter 06: what an attention takes in memory beside q, k and v, by length."""

from __future__ import annotations

import pandas as pd

from labkit import device, records
from labkit.tables import of_one_source, peaks, text

__all__ = ["longest", "memory_growth", "memory_rows", "memory_table"]

NEEDED = {"naive", "tiled", "mma", "wgmma", "torch-math", "torch-fa2"}


def memory_rows(memory: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The memory's rows, if they come from where the others do; else the recorded ones."""
    same = len(memory) and memory["source"].iloc[0] == rows["source"].iloc[0] and set(memory["variant"]) >= NEEDED
    return memory if same else records.read("attention_memory")


def memory_table(memory: pd.DataFrame) -> str:
    """By length: MB that each version takes beside q, k and v, its result included; `-`: not run."""
    memory = of_one_source(memory)
    wide = memory.pivot_table(index="seqlen", columns="variant", values="extra_bytes", sort=False).sort_index()
    table = (wide[list(dict.fromkeys(memory["variant"]))] / 1e6).reset_index(names="N")
    shown = text(table, N="{:.0f}", **dict.fromkeys(table.columns[1:], "{:,.1f}"))
    return f"MB beside q, k, v; 4 planes, head_dim 64; fp32: naive, tiled\n{shown}\n{memory['source'].iloc[0]}"


def memory_growth(memory: pd.DataFrame) -> dict[str, float]:
    """By variant: how many times as much memory twice the length takes, at its two largest lengths."""
    by = of_one_source(memory).sort_values("seqlen").groupby("variant", sort=False)["extra_bytes"]
    return {v: float(b.iloc[-1] / b.iloc[-2]) for v, b in by if len(b) > 1}


def longest(memory: pd.DataFrame) -> str:
    """The longest length measured: what the tiled versions took there, and what the matrix would."""
    memory = of_one_source(memory)
    n, gpu = int(memory["seqlen"].max()), peaks(memory) or device.find_gpu(records.DEFAULT_DEVICE)
    last = memory[memory["seqlen"] == n].set_index("variant")
    planes = int((last["batch"] * last["heads"]).iloc[0])
    took = ", ".join(
        f"{v} {last.loc[v, 'extra_bytes'] / 1e6:.0f} MB" for v in ("tiled", "mma", "wgmma") if v in last.index
    )
    matrix = 4 * planes * n**2 / 1e9
    fits = "more than" if matrix > gpu.memory_gb else "of"
    return f"N = {n:,}: {took}; naive's matrix: {matrix:,.0f} GB, {fits} the {gpu.name}'s {gpu.memory_gb:g} GB"
