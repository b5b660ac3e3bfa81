"""Chapter 06, before anything is measured: what the matrix takes, the exercises' checks, what was compiled."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future
from itertools import groupby

import numpy as np
import pandas as pd

from labkit import checks, device, progress, records
from labkit.checks import WrongAnswer
from labkit.errors import LabError
from labkit.tables import text
from labkit.traffic import Cost, predict_ms

__all__ = [
    "check_step",
    "check_visits",
    "check_window",
    "fills_up",
    "machine_order",
    "matrix_table",
    "three_kernels",
    "tile_gain",
]


def fills_up(planes: int, itemsize: int = 4, gpu: str | None = None) -> int:
    """The length at which the N × N matrices of so many planes alone fill the GPU's memory."""
    memory = device.find_gpu(gpu or records.DEFAULT_DEVICE).memory_gb * 1e9
    return int(np.sqrt(memory / (itemsize * planes)))


def matrix_table(planes: int, lengths: list[int], head_dim: int = 64, gpu: str | None = None) -> str:
    """By length, in float32: the GB of q, k, v and the result, those of the matrix, and its part of the memory."""
    there = device.find_gpu(gpu or records.DEFAULT_DEVICE)
    table = pd.DataFrame({"N": lengths})
    table["q, k, v, out GB"] = [4 * 4 * planes * n * head_dim / 1e9 for n in lengths]
    table["matrix GB"] = [4 * planes * n**2 / 1e9 for n in lengths]
    table["of the memory"] = table["matrix GB"] / there.memory_gb
    shown = text(table, **{"q, k, v, out GB": "{:.2f}", "matrix GB": "{:.1f}", "of the memory": "{:.1%}"})
    return f"{planes} planes, head_dim {head_dim}, float32; {there.name}, {there.memory_gb:g} GB\n{shown}"


def three_kernels(costs: dict[str, Cost], gpu: str | None = None) -> str:
    """What each kernel moves and does, and its least time by the data sheet in float32."""
    there = device.find_gpu(gpu or records.DEFAULT_DEVICE)
    ridge = there.tflops["fp32"] * 1e3 / there.bandwidth_gbps
    table = pd.DataFrame(
        [
            (name, c.read / 1e9, c.written / 1e9, c.flops / 1e9, c.intensity,
             "arithmetic" if c.intensity > ridge else "memory", predict_ms(c, there))
            for name, c in costs.items()
        ],
        columns=["kernel", "GB read", "GB written", "GFLOP", "FLOPs a byte", "limit", "least ms"],
    )  # fmt: skip
    sizes = {"GB read": "{:.2f}", "GB written": "{:.2f}", "GFLOP": "{:.0f}", "FLOPs a byte": "{:.3g}"}
    return f"{text(table, **sizes, **{'least ms': '{:.2f}'})}\nfloat32, {there.name}, data sheet"


# exercises


def check_step(step: Callable, exercise: str = "") -> None:
    """Check a step of the online softmax, step(m, l, O, s, V) -> (m, l, O), over tiles of four keys.

    Raises WrongAnswer for one that is wrong for any kind of scores: rising, huge, −∞, none but −∞, a single key.
    """
    if _untouched(exercise, step):
        return
    rng = np.random.default_rng(6)
    s, none = 3 * rng.standard_normal(11), -np.inf
    kinds = {
        "random scores": s,
        "rising scores": np.sort(s),
        "falling scores": np.sort(s)[::-1],
        "scores of ±10,000": 1e4 * np.sign(s) + s,
        "a first tile of −∞": np.r_[[none] * 4, s],
        "a tile of −∞ in the middle": np.r_[s[:4], [none] * 4, s[4:]],
        "−∞ alone": np.full(9, none),
        "one key": s[:1],
        "equal scores": np.full(10, 2.0),
    }
    for kind, scores in kinds.items():
        _check_steps(step, scores, rng.standard_normal((len(scores), 3)), f"{exercise or step.__name__}, {kind}")
    progress.solved(exercise)
    print(f"{exercise or step.__name__}: right, for {', '.join(kinds)}")


def _check_steps(step: Callable, s: np.ndarray, V: np.ndarray, where: str) -> None:
    top, total, out = -np.inf, 0.0, np.zeros(V.shape[1])  # m, l, O
    with np.errstate(all="ignore"):
        for j in range(0, len(s), 4):
            try:
                top, total, out = step(top, total, out, s[j : j + 4], V[j : j + 4])
            except (TypeError, ValueError) as e:
                raise WrongAnswer(f"{where}: expected three results m, l, O ({e})") from e
        found = np.asarray(out / total if total != 0 else out, dtype=np.float64)
        top = s.max()
        p = np.exp(s - top) if top > -np.inf else np.zeros(len(s))
    checks.assert_close(found, p @ V / (p.sum() or 1), reduction=len(s), where=where)


def check_visits(sees: Callable, tiles: Callable, wanted: Callable, exercise: str = "") -> None:
    """Check that each query meets the keys that it sees, by the mask and the tiles visited, and few tiles for nothing.

    sees(i, j, reach)                the mask under test
    tiles(first, last, n_k, reach)   from, to: the keys that queries first … last visit, a tile after another
    wanted(i, j, reach)              the right mask
    """
    sees, tiles, wanted = map(_python, (sees, tiles, wanted))
    if _untouched(exercise, sees, tiles):
        return
    shapes = [(64, 64, 16, 16), (50, 33, 16, 8), (33, 50, 16, 8), (1, 100, 16, 16), (100, 1, 8, 8), (7, 7, 16, 8)]
    for n_q, n_k, B_r, B_c in shapes:
        for reach in sorted({n_k - n_q, 0, -17, n_k}):
            for first in range(0, n_q, B_r):
                last = min(first + B_r, n_q) - 1
                where = f"{exercise or tiles.__name__}: queries {first} … {last} of {n_q}, {n_k} keys, reach {reach}"
                _check_block(sees, tiles, wanted, range(first, last + 1), n_k, reach, B_c, where)
    progress.solved(exercise)
    print(f"{exercise or tiles.__name__}: right, no key is missed and no tile visited for nothing")


def check_window(sees: Callable, tiles: Callable, window: int, exercise: str = "") -> None:
    """As check_visits, for queries that see the last `window` keys up to their own place."""
    check_visits(sees, tiles, lambda i, j, reach: i + reach - window < j <= i + reach, exercise)


def _check_block(sees, tiles, wanted, queries: range, n_k: int, reach: int, B_c: int, where: str) -> None:
    start, end = tiles(queries[0], queries[-1], n_k, reach)
    if start < 0:
        raise WrongAnswer(f"{where}: the first tile begins at key {start}, which is before the first")
    visited = {j for tile in range(start, end, B_c) for j in range(tile, min(tile + B_c, n_k))}
    needed = [j for j in range(n_k) if any(wanted(i, j, reach) for i in queries)]
    for i in queries:
        for j in range(n_k):
            met, right = j in visited and bool(sees(i, j, reach)), bool(wanted(i, j, reach))
            if met and not right:
                raise WrongAnswer(f"{where}: query {i} meets key {j}, which it may not see")
            if right and not met:
                why = "the mask hides it" if j in visited else "its tile is not visited"
                raise WrongAnswer(f"{where}: query {i} should meet key {j}, but {why}")
    at_most = -(-len(needed) // B_c) + (1 if needed and needed[0] > 0 else 0)  # a tile may begin before its first key
    if len(range(start, end, B_c)) > at_most:
        raise WrongAnswer(f"{where}: {len(range(start, end, B_c))} tiles of {B_c} keys are visited, {at_most} would do")


def _untouched(exercise: str, *functions: Callable) -> bool:
    for f in functions:
        if checks.is_skeleton(f):
            print(f"{exercise or f.__name__}: not attempted (replace the `...` in {f.__name__})")
            return True
    return False


def _python(function: Callable) -> Callable:
    return getattr(function, "py_func", None) or getattr(function, "fn", function)


def tile_gain(tiles: Callable, n: int, B_r: int, B_c: int) -> float:
    """All tiles of n queries and n keys, over those that `tiles` visits under a causal mask."""
    visit = _python(tiles)
    rows = [(first, min(first + B_r, n) - 1) for first in range(0, n, B_r)]
    visited = sum(len(range(*visit(*row, n, 0), B_c)) for row in rows)
    return len(rows) * len(range(0, n, B_c)) / visited


# what was compiled


def machine_order(compiling: Future, names: dict[str, str]) -> str:
    """In which order instructions stand in the machine code, as the assembler left them; or why it is not known here.

    compiling  what `findings.compiling` returned
    names      the start of a machine instruction's name -> what to call it; runs of the same one are counted
    """
    try:
        code = compiling.result().sass
    except LabError as e:
        return f"not compiled here: {e}"
    known = "|".join(map(re.escape, names))
    found = re.findall(rf"(?m)/\*[0-9a-f]{{4,}}\*/\s+(?:@!?U?P\w+\s+)?({known})", code)
    runs = [(name, len(list(run))) for name, run in groupby(found)]
    return "\n".join(f"{count:3} × {names[name]}" for name, count in runs)
