"""A spread of a long list of tests, since each compiles a kernel of its own; all of them where LABKIT_ALL=1."""

import os

ALL = os.environ.get("LABKIT_ALL", "0") == "1"


def sampled(items, every: int, group=lambda item: "", least: int = 1, everything: bool = ALL) -> list:
    """Every `every`-th item of each group, in order, but no fewer than `least` of a group (or all it has)."""
    items = list(items)
    if everything:
        return items
    groups: dict[object, list[int]] = {}
    for i, item in enumerate(items):
        groups.setdefault(group(item), []).append(i)
    chosen = set()
    for members in groups.values():
        count = min(len(members), max(least, -(-len(members) // every)))
        chosen |= {members[k * len(members) // count] for k in range(count)}
    return [items[i] for i in sorted(chosen)]
