"""Chapter 08: a layer's products for more than one row, by kernel."""

from __future__ import annotations

import pandas as pd

from labkit.findings.decode_least import memory_roof
from labkit.tables import of_one_source, text

__all__ = ["decode_products_table", "products_us"]


def products_us(rows: pd.DataFrame) -> pd.DataFrame:
    """µs of a layer's four products: a row a batch, a column a way; the floor last."""
    found = of_one_source(rows)
    us = 1e3 * found["median_ms"] / found["layers"]
    table = found.assign(us=us).pivot(index="batch", columns="variant", values="us")
    return table[[*(v for v in found["variant"].drop_duplicates() if v != "floor"), "floor"]]


def decode_products_table(rows: pd.DataFrame) -> str:
    """By batch: µs a layer of each way, the fastest, and the floor's part in its time."""
    us = products_us(rows)
    ways = us.drop(columns="floor")
    table = us.assign(fastest=ways.idxmin(axis=1), share=us["floor"] / ways.min(axis=1)).reset_index()
    table = table.rename(columns={"share": "of the floor"})
    found, (gbps, who) = of_one_source(rows), memory_roof(rows)
    told = [
        f"{v}: {flags}" for v, flags in found[["variant", "flags"]].drop_duplicates().values if isinstance(flags, str)
    ]
    notes = "\n".join(line for line in told if not line.endswith(": "))
    shown = text(table, **dict.fromkeys(us.columns, "{:.1f}"), **{"of the floor": "{:.0%}"})
    return (
        f"µs for the four products of a layer\n{shown}\n"
        + (f"{notes}\n" if notes else "")
        + f"floor: the weights over {gbps / 1e3:.2f} TB/s ({who})\n{found['source'].iloc[0]}"
    )
