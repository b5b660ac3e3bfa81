"""Chapter 08: where each side wins over batch and context, and what it all came to."""

from __future__ import annotations

import pandas as pd

from labkit.findings.decode import (
    OURS,
    PRODUCTS,
    TORCH,
    best_of,
    decode_at,
    decode_stage,
    kernel_shares,
    products_share,
)
from labkit.findings.decode_least import LLAMA_8B, tokens_per_s
from labkit.tables import numbered, of_one_source, text

__all__ = ["LEVEL", "decode_map", "decode_score", "decode_where", "takeaways_08"]

LEVEL = 0.03  # PyTorch's best took up to 2.6 % more in one record (5401c05) than in another (8d7b524) of the same day


def decode_where(rows: pd.DataFrame) -> pd.DataFrame:
    """By batch and context: the best of ours and of PyTorch's, how many times ours theirs takes, the floor's share.

    `winner` is a variant, or "level" where the two are within LEVEL of each other.
    """
    lines = []
    pairs = of_one_source(rows)[["batch", "context"]].drop_duplicates().sort_values(["batch", "context"])
    for batch, context in pairs.itertuples(index=False):
        here = decode_at(rows, batch, context)
        if not (set(here["variant"]) & set(OURS) and set(here["variant"]) & set(TORCH)):
            continue
        ours, theirs = best_of(here, OURS), best_of(here, TORCH)
        fast, slow = sorted((ours, theirs), key=lambda row: row["us"])
        lines.append(
            {
                "batch": batch, "context": context, "ours": ours["variant"], "ours us": ours["us"],
                "torch": theirs["variant"], "torch us": theirs["us"], "gain": theirs["us"] / ours["us"],
                "winner": fast["variant"] if slow["us"] > (1 + LEVEL) * fast["us"] else "level",
                "share": fast["floor"] / fast["us"],
            }
        )  # fmt: skip
    return pd.DataFrame(lines)


def decode_score(places: pd.DataFrame) -> tuple[int, int, int]:
    """In how many rows of decode_where ours is ahead, both are level, PyTorch is ahead."""
    ours, theirs = (int(places["winner"].isin(variants).sum()) for variants in (OURS, TORCH))
    return ours, len(places) - ours - theirs, theirs


def decode_map(rows: pd.DataFrame) -> str:
    """By batch and context: how many times as long PyTorch's best takes as ours; the faster's share of the floor."""
    found = decode_where(rows)
    cells = found["gain"].map("{:.2f}×".format) + found["share"].map(" {:.0%}".format)
    table = found.assign(cell=cells).pivot(index="batch", columns="context", values="cell").reset_index()
    table.columns = ["batch", *(f"{c:,}" for c in table.columns[1:])]
    best = ", ".join(f"{v} in {n}" for v, n in found["torch"].value_counts().items())
    rows = of_one_source(rows)
    slow = rows[rows["flags"].astype(str).str.contains("clocks slowed")][["batch", "context"]].drop_duplicates()
    slowed = ", ".join(f"{batch} × {context:,}" for batch, context in slow.itertuples(index=False))
    return (
        f"ours is so many times as fast; the faster one's part of the floor; by context\n{text(table)}\n"
        f"the best of PyTorch's: {best}\n"
        + (f"the GPU slowed its clocks (power): {slowed}\n" if slowed else "")
        + rows["source"].iloc[0]
    )


# the chapter in short


def takeaways_08(rows: pd.DataFrame, stages: pd.DataFrame, kernels: pd.DataFrame) -> str:
    """The chapter in five sentences, each with its number."""
    here, found, shares = decode_at(rows), decode_stage(stages).set_index("variant"), kernel_shares(kernels)
    us, saved, n = found["us"], found["saved"], found["launches"]
    floor, ours, theirs = here["floor"].iloc[0], best_of(here, OURS), best_of(here, TORCH)
    weights, cache = sum(LLAMA_8B.weights.values()) / 1e6, LLAMA_8B.cache(1, 4096) / 1e6
    gemv, gain = shares[list(PRODUCTS)], theirs["us"] / ours["us"]
    places = decode_where(rows)
    won, level, lost = decode_score(places)
    least = places[places["winner"].isin(TORCH)]["batch"].min()
    return numbered(
        f"One token reads {weights:.0f} MB of weights and {cache:.1f} MB of cache a layer: {floor:.0f} µs at the "
        f"least, {tokens_per_s(floor):.0f} tokens/s.",
        f"Of {us['separate']:.0f} µs, selecting saved {saved['select']:.0f}, fusing {n['select']:.0f} kernels into "
        f"{n['fuse']:.0f} {saved['fuse']:.0f}, a graph with early launches {saved['launch']:.0f}; "
        f"{us['launch']:.0f} are left, {floor / us['launch']:.0%} of the floor.",
        f"The products reach {gemv.min():.0%} to {gemv.max():.0%} of the memory's bandwidth, together "
        f"{products_share(kernels):.0%}, attention {shares['attention']:.0%}: the less there is to read, the less.",
        f"{ours['variant']}: {ours['ms']:.2f} ms a token; {theirs['variant']}, the best of PyTorch's, "
        f"{theirs['ms']:.2f}: {'a win' if gain >= 1 else 'a loss'}, {gain:.2f}×.",
        f"Over batch and context, ours is ahead in {won} of {len(places)} places, level (within {LEVEL:.0%}) with "
        f"PyTorch in {level}, behind in {lost}"
        + (f"; the smallest batch where it is behind: {least}." if lost else "."),
    )
