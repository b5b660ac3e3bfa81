"""Run every rung of chapter 04's ladder once, at an odd shape, for compute-sanitizer:

compute-sanitizer --tool memcheck python tools/sanitize.py
compute-sanitizer --tool racecheck python tools/sanitize.py
"""

import labkit  # isort: skip

import numpy as np
from numba import cuda

from labkit import checks, notebooks

SHAPE = 129, 257, 65  # one past a tile of each rung in m and n, one past a slice in k
RUNGS = "FP32", "FP16"  # the chapter's dictionaries of builders


def rungs() -> dict:
    """The builders of chapter 04, by name, from its cells up to the ladder's; cells that check or show are left out."""
    (chapter,) = notebooks.chapters(["04"])
    cells = [cell for cell in notebooks.read(chapter).cells if cell.cell_type == "code"]
    ids = [cell.id for cell in cells]
    needed = ids[: ids.index("ladder-rungs") + 1]
    idle = ("check-", "predict", "exercise", "sectors", "-loads", "compile", "limits")
    names = notebooks.namespace(chapter, [i for i in needed if not any(word in i for word in idle)])
    return {name: (build, group) for group in RUNGS for name, build in names[group].items()}


def main() -> None:
    """Run and check each rung; a wrong one raises."""
    if not labkit.MACHINE.has_gpu:
        raise SystemExit(f"compute-sanitizer watches a real GPU; there is none ({labkit.MACHINE.reason})")
    m, n, k = SHAPE
    rng = np.random.default_rng(0)
    for name, (build, group) in rungs().items():
        dtype = {"FP32": "float32", "FP16": "float16"}[group]
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
        out = cuda.to_device(checks.poisoned((m, n), dtype))
        build(cuda.to_device(a), cuda.to_device(b), out)()
        cuda.synchronize()
        exact = a.astype(np.float64) @ b.astype(np.float64)
        error = checks.assert_close(out.copy_to_host(), exact, reduction=k if dtype == "float32" else 1, where=name)
        print(f"{name}: error {error:.1e}", flush=True)


if __name__ == "__main__":
    main()
