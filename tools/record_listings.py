"""Write data/listings.json: what NVIDIA's compiler makes of chapter 07's kernels, for machines without it.

Needs no GPU, but the extra cu13. Run it after a change of those cells, or for a new compiler.
"""

import json
from datetime import date

import numpy as np

import labkit  # before numba
from labkit import device, notebooks
from labkit.errors import LabError
from labkit.findings import listings
from labkit.kernels.matmul_wgmma import matmul_tiles
from labkit.ptx import compile_for
from labkit.ptx.compiled import function_of, target

CELLS = ["mode", "scale", "targets", "program", "instructions-mma", "instructions"]
CELLS += ["fall-gelu", "fall-gelu-64", "hidden"]
EXTENDED = {"sm_100a": (10, 0, "a")}
SOME = ("sm_80", "sm_89", "sm_90a", "sm_100", "sm_120")  # as the chapter's table of machine instructions has them


def kernels(chapter: dict) -> list[tuple]:
    """Chapter 07's kernels, with what they take and for which targets."""
    few, number = [np.ones(4, np.float32)] * 2, np.int32(32)
    of_wgmma = [np.empty(16, np.uint64)] * 3 + [np.int32(8)] * 3
    found = [(chapter["scale"], few, cc) for cc in chapter["TARGETS"].values()]
    found += [(chapter[name], few, (9, 0)) for name in ("gelu", "gelu_as_written")]
    found += [(chapter["decay"], [few[0], number, few[1]], (9, 0))]
    return found + [(matmul_tiles, of_wgmma, cc) for cc in ((8, 0), (9, 0), (10, 0))]


def entry(kernel, arguments, cc) -> dict:
    """A kernel's listing, or what the compiler said when it refused."""
    try:
        return listings.listed(compile_for(kernel, arguments, cc))
    except LabError as refused:
        return {"refused": str(refused)}


def collect() -> dict:
    """All that the listings hold, compiled here and now."""
    chapter = notebooks.namespace(notebooks.chapters(["07"])[0], CELLS)
    targets, program = chapter["TARGETS"], chapter["program"]
    found: dict = {"compiler": listings.compiler(), "kernels": {}}
    for kernel, arguments, cc in kernels(chapter):
        named = found["kernels"].setdefault(function_of(kernel).__name__, {})
        named[target(cc)] = entry(kernel, arguments, cc)
    scaled = {name: compile_for(chapter["scale"], [np.ones(4, np.float32)] * 2, cc) for name, cc in targets.items()}
    found["forward"] = listings.forward(scaled, targets)
    found["taken"] = listings.taken(program, chapter["INSTRUCTIONS"], targets | EXTENDED)
    found["native"] = listings.native(program, chapter["MMA"], {t: targets[t] for t in SOME})
    return found


if __name__ == "__main__":
    found = collect()
    found = {"made": f"{date.today()}, {found.pop('compiler')}", **found}
    path = device.ROOT / "data" / listings.FILE
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=False) + "\n", encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB, {found['made']}; {labkit.mode().splitlines()[0]}")
