"""Run chapter 05's kernels once, at odd numbers of rows, for compute-sanitizer:

compute-sanitizer --tool memcheck python tools/sanitize_mlp.py
compute-sanitizer --tool racecheck python tools/sanitize_mlp.py
"""

import labkit  # isort: skip

import numpy as np
from numba import cuda

from labkit import checks, notebooks

SHAPES = [(16, 2, 1), (16, 4, 257), (32, 3, 100), (64, 4, 1001), (128, 2, 67), (256, 2, 129), (512, 2, 65)]
OURS = "unfused", "epilogue", "fused"


def contestants() -> dict:
    """What chapter 05 defines up to its contestants; cells that check, count, compile or show are left out."""
    (chapter,) = notebooks.chapters(["05"])
    ids = [cell.id for cell in notebooks.read(chapter).cells if cell.cell_type == "code"]
    needed = ids[: ids.index("build-unfused") + 1]
    idle = ("-check", "predict", "exercise", "-count", "compile", "budget", "fragment", "-table")
    return notebooks.namespace(chapter, [i for i in needed if not any(word in i for word in idle)])


def main() -> None:
    """Run and check each of our variants at each shape; a wrong one raises."""
    if not labkit.MACHINE.has_gpu:
        raise SystemExit(f"compute-sanitizer watches a real GPU; there is none ({labkit.MACHINE.reason})")
    names = contestants()
    for width, layers, rows in SHAPES:
        x, w, b = names["numbers"](np.random.default_rng(0), rows, width, layers, np.float16)
        exact = names["reference"](x, w, b)
        for variant in OURS:
            out = cuda.to_device(checks.poisoned(x.shape, "float16"))
            names[variant](*map(cuda.to_device, (x, w, b)), out)()
            cuda.synchronize()
            where = f"{variant}, width {width}, {layers} layers, {rows} rows"
            error = checks.assert_close(out.copy_to_host(), exact, where=where)
            print(f"{where}: error {error:.1e}", flush=True)


if __name__ == "__main__":
    main()
