"""Run chapter 06's kernels once, at odd sizes, for compute-sanitizer:

compute-sanitizer --tool memcheck python tools/sanitize_attention.py
compute-sanitizer --tool racecheck python tools/sanitize_attention.py
"""

import labkit  # isort: skip

import numpy as np
from numba import cuda

from labkit import checks, notebooks

SHAPES = [(1, 1, 1), (2, 7, 7), (1, 100, 37), (1, 37, 100), (3, 129, 200)]  # planes, queries, keys
OURS = {"naive": "float32", "tiled": "float32", "mma": "float16", "wgmma": "float16"}
IDLE = ("-check", "-count", "predict", "exercise", "library", "triton", "compile", "-table", "picture", "paper")


def contestants() -> dict:
    """What chapter 06 defines up to its builder for Hopper; cells that check, count, compile or show are left out."""
    (chapter,) = notebooks.chapters(["06"])
    ids = [cell.id for cell in notebooks.read(chapter).cells if cell.cell_type == "code"]
    needed = ids[: ids.index("wgmma-build") + 1]
    return notebooks.namespace(chapter, [i for i in needed if not any(word in i for word in IDLE)])


def numbers(planes: int, n_q: int, n_k: int, head_dim: int, dtype: str) -> list[np.ndarray]:
    """Random normal q, k and v."""
    rng = np.random.default_rng(0)
    shapes = [(1, planes, n, head_dim) for n in (n_q, n_k, n_k)]
    return [rng.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes]


def main() -> None:
    """Run and check each of our variants at each shape; a wrong one raises."""
    if not labkit.MACHINE.has_gpu:
        raise SystemExit(f"compute-sanitizer watches a real GPU; there is none ({labkit.MACHINE.reason})")
    names = contestants()
    for variant, dtype in OURS.items():
        for head_dim in (64, 128):
            for causal in (False, True):
                for shape in SHAPES:
                    _run(names, variant, dtype, head_dim, causal, shape)


def _run(names: dict, variant: str, dtype: str, head_dim: int, causal: bool, shape: tuple) -> None:
    q, k, v = numbers(*shape, head_dim, dtype)
    exact = names["reference"](q, k, v, names["reach_of"](q, k, causal))
    out = cuda.to_device(checks.poisoned(q.shape, dtype))
    names[variant](*map(cuda.to_device, (q, k, v)), out, causal)()
    cuda.synchronize()
    where = f"{variant}, head_dim {head_dim}{', causal' * causal}, planes, queries, keys {shape}"
    error = checks.assert_close(out.copy_to_host(), exact, reduction=shape[2], where=where)
    print(f"{where}: error {error:.1e}", flush=True)


if __name__ == "__main__":
    main()
