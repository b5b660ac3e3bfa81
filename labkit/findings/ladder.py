"""Chapter 04: a ladder of matrix products, from the plainest kernel to tensor cores, beside the library."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from concurrent.futures import Future, ThreadPoolExecutor

import pandas as pd

from labkit import device, ptx, records
from labkit.errors import LabError
from labkit.tables import of_one_source, text, value
from labkit.traffic import Cost, predict_ms

__all__ = [
    "all_of",
    "code_lines",
    "compile_rungs",
    "compiled_table",
    "compiling",
    "ladder_table",
    "largest_square",
    "like",
    "limits",
    "loads_a_product",
    "rung_table",
    "share",
    "shares",
    "small_and_awkward",
    "with_library",
]

LIBRARY = "cublas"


def limits(costs: dict[str, Cost], gpu: str | None = None) -> str:
    """FLOPs a byte, what limits a product on a GPU's data sheet, and the least time there."""
    sheet = device.find_gpu(gpu or records.DEFAULT_DEVICE)
    ridge = sheet.tflops["fp32"] * 1e3 / sheet.bandwidth_gbps
    table = pd.DataFrame(
        [
            (name, c.intensity, "arithmetic" if c.intensity > ridge else "memory", 1e3 * predict_ms(c, sheet))
            for name, c in costs.items()
        ],
        columns=["product", "FLOPs a byte", "limit", "least µs"],
    )
    return text(table, **{"FLOPs a byte": "{:.3g}", "least µs": "{:.0f}"}) + f"\nfloat32, {sheet.name}, data sheet"


def with_library(rows: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """The rows, if the library is among the first source's; else (no PyTorch here) the recorded ones, and says so."""
    if LIBRARY in set(of_one_source(rows)["variant"]):
        return rows
    recorded = records.read(experiment)
    print(f"no cuBLAS without PyTorch; shown from here on: {recorded['source'].iloc[0]}")
    return recorded


def like(rows: pd.DataFrame, found: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """What was found, if it comes from where the rows do; else the record, so that no two GPUs are mixed up."""
    return found if found["source"].iloc[0] == rows["source"].iloc[0] else records.read(experiment)


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """The ladder's rows with `share`: the speed as a part of the library's, at the same size and dtype."""
    rows = of_one_source(rows)
    keys = ["m", "n", "k", "dtype"]
    library = rows[rows["variant"] == LIBRARY].set_index(keys)["median_ms"]
    base = library.reindex(pd.MultiIndex.from_frame(rows[keys]))
    return rows.assign(share=base.to_numpy() / rows["median_ms"].to_numpy())


def share(rows: pd.DataFrame, variant: str, m: int | None = None) -> float:
    """The part of the library's speed that a rung reaches on the square of m (default: the largest for all rungs)."""
    found = shares(rows)
    return value(found, "share", variant=variant, m=m or largest_square(rows), n=m or largest_square(rows))


def largest_square(rows: pd.DataFrame) -> int:
    """The largest square at which all rungs were measured: that of the first rung."""
    squares = rows[(rows["m"] == rows["n"]) & (rows["m"] == rows["k"]) & (rows["dtype"] == "float32")]
    return int(squares["m"].max())


def ladder_table(rows: pd.DataFrame) -> str:
    """Every rung at every size: TFLOP/s, and the share of the library's speed."""
    found = shares(rows)
    sizes = found[["m", "n", "k"]].drop_duplicates().sort_values(["m", "n"], kind="stable")
    names = {(m, n, k): f"{m}³" if m == n == k else f"{m}×{n}×{k}" for m, n, k in sizes.itertuples(index=False)}
    lines = []
    for (dtype, variant), group in found.groupby(["dtype", "variant"], sort=False):
        line = {"dtype": dtype, "rung": variant}
        for row in group.itertuples():
            of_library = "" if variant == LIBRARY else f" ({row.share:.0%})"
            line[names[row.m, row.n, row.k]] = f"{row.tflops:.1f}{of_library}"
        lines.append(line)
    order = {"float32": 0, "float16": 1}
    table = pd.DataFrame(sorted(lines, key=lambda line: order[line["dtype"]]))
    table = table[["dtype", "rung", *(n for n in names.values() if n in table)]]
    return f"TFLOP/s, and the share of cuBLAS\n{text(table)}\n{found['source'].iloc[0]}"


def small_and_awkward(rows: pd.DataFrame) -> str:
    """What the best float32 rung makes of the smallest square, and the library of rows that 16 bytes don't divide."""
    found, large = shares(rows), largest_square(rows)
    squares = found[(found["m"] == found["n"]) & (found["variant"] == "vectorised")].sort_values("m")
    small, last = squares.iloc[0], squares[squares["m"] == large].iloc[0]
    lines = [f"vectorised: {small['share']:.0%} of cuBLAS at {small['m']}³, {last['share']:.0%} at {large}³"]
    awkward = found[(found["m"] != found["n"]) & (found["dtype"] == "float16")].set_index("variant")
    if {LIBRARY, "wgmma"} <= set(awkward.index):
        usual = value(found, "tflops", variant=LIBRARY, m=large, n=large, dtype="float16")
        library, ours = awkward.loc[LIBRARY], awkward.loc["wgmma"]
        lines.append(
            f"float16 at {library['m']}×{library['n']}×{library['k']}: cuBLAS {library['tflops']:.0f} TFLOP/s, "
            f"{library['tflops'] / usual:.0%} of what it does at {large}³; wgmma, copies included, {ours['tflops']:.0f}"
        )
    return "\n".join(lines)


def loads_a_product(rows: int, columns: int) -> float:
    """Loads from shared memory for one product, in a thread that computes a tile of rows × columns."""
    return (rows + columns) / (rows * columns)


def code_lines(function) -> int:
    """A function's or kernel's lines of code, without its docstring, comments and blank lines."""
    source = textwrap.dedent(inspect.getsource(_python(function)))
    lines = {n.lineno for n in ast.walk(ast.parse(source)) if hasattr(n, "lineno")}
    lines |= {n.end_lineno for n in ast.walk(ast.parse(source)) if hasattr(n, "end_lineno")}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def all_of(kernel) -> list:
    """A kernel and all device functions of its module."""
    module = sys.modules[_python(kernel).__module__]
    return [f for f in vars(module).values() if _python(f) is not f and _python(f).__module__ == module.__name__]


def _python(function):
    return getattr(function, "py_func", None) or getattr(function, "fn", function)


def rung_table(rungs: dict[str, tuple | None], rows: pd.DataFrame) -> str:
    """Each rung's lines of code, bytes from memory for a product, where it runs, and its share of the library.

    rungs  name -> (its functions, the tile of a block, bytes an element, where it runs); None for the library
    """
    found = shares(rows)
    squares = found[(found["m"] == largest_square(rows)) & (found["n"] == found["m"])]
    lines = []
    for name, rung in rungs.items():
        mine = squares[squares["variant"] == name]
        reached = " and ".join(f"{s:.0%}" for s in mine["share"]) or "-"
        if rung is None:
            lines.append((name, None, None, "any GPU, any dtype", reached))
            continue
        functions, (down, across), size, where = rung
        code = sum(map(code_lines, functions))
        lines.append((name, code, size / down + size / across, where, reached))
    columns = ["rung", "lines", "bytes", "runs on", f"of cuBLAS at {largest_square(rows)}³"]
    return text(pd.DataFrame(lines, columns=columns), lines="{:.0f}", bytes="{:.3g}")


# what the compiler made of the rungs


def compiling(kernel, arguments, cc) -> Future:
    """ptx.compile_for in the background: Hopper's attention takes its seconds while the reader goes on."""
    return ThreadPoolExecutor(1).submit(ptx.compile_for, kernel, arguments, cc)


def compile_rungs(rungs: dict[str, tuple]) -> Future:
    """Compile kernels in the background: name -> (kernel, arguments, compute capability, its instruction).

    What is being compiled already, by `compiling`, stands in for the first three.
    """

    def compile_all() -> pd.DataFrame:
        lines = []
        for name, (*what, instruction) in rungs.items():
            made = what[0].result() if len(what) == 1 else ptx.compile_for(*what)
            lines.append(
                (
                    name,
                    made.target,
                    made.registers,
                    made.local_bytes,
                    made.float64,
                    instruction,
                    made.count(instruction),
                )
            )
        columns = ["rung", "for", "registers", "local bytes", "float64", "instruction", "times"]
        return pd.DataFrame(lines, columns=columns)

    return ThreadPoolExecutor(1).submit(compile_all)


def compiled_table(compiling: Future) -> str:
    """What the compiler made of the rungs; or in one line why it is not known here."""
    try:
        return text(compiling.result())
    except LabError as e:
        return f"not compiled here: {e}"
