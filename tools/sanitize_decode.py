"""Run chapter 08's kernels at toy sizes that are no multiple of anything, for compute-sanitizer:

compute-sanitizer --tool memcheck python tools/sanitize_decode.py
compute-sanitizer --tool racecheck python tools/sanitize_decode.py batched

After it: versions, if not all.
"""

import functools
import sys

import labkit  # isort: skip

from labkit import findings, notebooks

IDLE = ("-check", "predict", "exercise", "-count", "-table", "-run", "costs", "floors", "sizes", "reference")
NEEDED = ("toy-check",)  # it defines the check itself
BATCHED = ["batch", "batch-wide", "products-lock", "products", "batched"]
# context and step: the first key; a tile's last and the next one's first; the cache's last; attention's deep ring
CASES = (100, 0), (100, 14), (100, 37), (100, 97), (3100, 3070)


def chapter() -> dict:
    """What chapter 08 defines of its layers; cells that check, count, compile or show are left out."""
    (path,) = notebooks.chapters(["08"])
    ids = [cell.id for cell in notebooks.read(path).cells if cell.cell_type == "code"]
    wanted = [i for i in ids[: ids.index("fused") + 1] if i != "layer"] + BATCHED
    return notebooks.namespace(path, [i for i in wanted if i in NEEDED or not any(word in i for word in IDLE)])


def versions(names: dict) -> dict:
    """Version -> its layer's build, and batches."""
    builds = {version: (names[version], (1, 2)) for version in ("separate", "select", "fused")}
    for name, multiply in names["PRODUCTS"].items():
        build = functools.partial(names["batched"], multiply=multiply)
        builds[f"batched {name}"] = functools.update_wrapper(build, names["batched"]), (2, 9)
    return builds


def main(wanted: list[str]) -> None:
    """Three steps of a layer with a growing cache, for each version, size, batch and place; a wrong one raises."""
    if not labkit.MACHINE.has_gpu:
        raise SystemExit(f"compute-sanitizer watches a real GPU; there is none ({labkit.MACHINE.reason})")
    names = chapter()
    sizes = names["TOY"], findings.Decoder(d=104, heads=8, kv_heads=2, head_dim=128, ffn=72)
    for version, (build, batches) in versions(names).items():
        if wanted and not any(version.startswith(w) for w in wanted):
            continue
        for of in sizes:
            for batch in batches:
                for context, first in CASES:
                    error = names["check_steps"](build, of, batch, context, first)
                    print(f"{version}, d {of.d}, batch {batch}, from {first}: error {error:.1e}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
