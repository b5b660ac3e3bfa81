"""Small questions to a table of measurements: one value, the largest size, one source; and tables as plain text."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labkit import device, records
from labkit.errors import LabError


def largest(rows: pd.DataFrame, column: str = "n") -> pd.DataFrame:
    """The rows at the largest size of the first source (rows that stand in may reach further)."""
    return rows[rows[column] == of_one_source(rows)[column].max()]


def value(rows: pd.DataFrame, column: str, **where) -> float:
    """The one number at these parameters. Raises LabError where there is none, or more than one."""
    found = rows
    for key, wanted in where.items():
        found = found[found[key] == wanted]
    if len(found) != 1:
        raise LabError(f"{len(found)} rows with {where}, expected one")
    return float(found[column].iloc[0])


def of_one_source(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first source alone: a live time is never divided by another GPU's recorded one."""
    return rows[rows["source"] == rows["source"].iloc[0]]


def or_recorded(rows: pd.DataFrame, whole: bool, experiment: str, why: str = "not every version was measured"):
    """The rows, if they are `whole`; else the recorded ones of the experiment, and says why."""
    if whole:
        return rows
    recorded = records.read(experiment)
    print(f"{why}; shown: {recorded['source'].iloc[0]}")
    return recorded


def peaks(rows: pd.DataFrame) -> device.Gpu | None:
    """The data-sheet row of the GPU that the rows come from; None where data/gpus.csv has none."""
    try:
        return device.find_gpu(device_name(rows))
    except LabError:
        return None


def power(n: float) -> str:
    """A size as the power of two that it is: 2²⁸."""
    return "2" + f"{np.log2(n):.0f}".translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def text(table: pd.DataFrame, **formats: str) -> str:
    """A table as plain text, two spaces between columns, with a format for each of the named columns."""
    columns = []
    for name in table.columns:
        how = formats.get(name, "{}")
        cells = [name, *("-" if pd.isna(v) else how.format(v) for v in table[name])]
        width = max(map(len, cells))
        columns.append([c.rjust(width) for c in cells])
    return "\n".join("  ".join(row) for row in zip(*columns, strict=True))


def numbered(*sentences: str) -> str:
    """Sentences as a numbered list."""
    return "\n".join(f"{i}. {s}" for i, s in enumerate(sentences, 1))


def device_name(rows: pd.DataFrame) -> str:
    """The GPU in a `source` text: between the colon and the first comma."""
    found = rows["source"].iloc[0].partition(": ")[2].partition(",")[0]
    if not found:
        raise LabError(f"source {rows['source'].iloc[0]!r} names no device")
    return found
