"""Chapter 08: a layer's products for more than one row, by kernel."""

from __future__ import annotations

import pandas as pd

from labkit.findings.decode_least import memory_roof
from labkit.findings.decode_places import LEVEL
from labkit.tables import of_one_source, text

__all__ = ["decode_products_table", "products_us"]


def products_us(rows: pd.DataFrame) -> pd.DataFrame:
    """µs of a layer's four products: a row a batch, a column a way; the floor last."""
    found = of_one_source(rows)
    us = 1e3 * found["median_ms"] / found["layers"]
    table = found.assign(us=us).pivot(index="batch", columns="variant", values="us")
    return table[[*(v for v in found["variant"].drop_duplicates() if v != "floor"), "floor"]]


def decode_products_table(rows: pd.DataFrame) -> str:
    """By batch: µs a layer of each way, the fastest (several where they are level), the floor's part in its time."""
    us, found, (gbps, who) = products_us(rows), of_one_source(rows), memory_roof(rows)
    ways = us.drop(columns="floor")
    table = us.assign(fastest=ways.apply(_fastest, axis=1), share=us["floor"] / ways.min(axis=1)).reset_index()
    table = table.rename(columns={"share": "of the floor"})
    shown = text(table, **dict.fromkeys(us.columns, "{:.1f}"), **{"of the floor": "{:.0%}"})
    notes = found[found["variant"] != "floor"].groupby("variant", sort=False)["flags"].agg(_in_common)
    told = "\n".join(f"{variant}: {note}" for variant, note in notes.items() if note)
    return (
        f"µs for the four products of a layer\n{shown}\n{told}\n"
        f"floor: the weights over {gbps / 1e3:.2f} TB/s ({who})\n{found['source'].iloc[0]}"
    )


def _in_common(flags: pd.Series) -> str:
    """The flags that all rows have, and whether the clocks were slowed in some."""
    each = [str(f).split("; ") for f in flags]
    common = [f for f in each[0] if all(f in others for others in each)]
    slow = any("clocks slowed" in f for f in flags.map(str)) and "clocks slowed" not in str(common)
    return "; ".join(common + ["clocks slowed in some"] * slow)


def _fastest(us: pd.Series) -> str:
    """The fastest way, and those that are level with it."""
    return ", ".join(us[us <= (1 + LEVEL) * us.min()].sort_values().index)
