"""Chapter 07: what a kernel becomes for each GPU generation, what runs where, and what not being native costs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

import pandas as pd

from labkit import device, ptx
from labkit.errors import LabError
from labkit.findings import listings
from labkit.ptx.compiled import function_of
from labkit.tables import numbered, of_one_source, or_recorded, text, value

__all__ = [
    "arithmetic",
    "assembled_table",
    "compiled_by",
    "different",
    "forward_table",
    "gpus_that_run",
    "instruction_table",
    "loads_table",
    "lock_answer",
    "lock_errors",
    "lock_library",
    "lock_rows",
    "made",
    "native_table",
    "portable_part",
    "ptx_body",
    "refusal",
    "side_by_side",
    "takeaways_07",
    "takers",
    "targets_table",
]

NEEDED = {"mma", "wgmma", "cublas", "torch-fa2", "torch-cudnn"}
LIBRARIES = {"matmul": "cublas", "attention": "torch-cudnn"}
SIDE = 8192  # of the product that the sentences are about
LENGTH = 16384  # of the attention


# compiled


def compiled_by() -> str:
    """Whose machine code the tables show: this machine's compiler's, or the listings'."""
    if trouble := listings.needed():
        return f"{trouble}; shown: listings of {listings.read()['made']}"
    return f"compiled here, by {listings.compiler()}"


def made(kernel, arguments, cc) -> ptx.Compiled:
    """`ptx.compile_for`, or the listing of the same kernel where the compiler is not installed."""
    if listings.needed():
        try:
            return listings.kernel(function_of(kernel).__name__, cc)
        except LabError:
            if ptx.compiler_trouble():
                raise
    return ptx.compile_for(kernel, arguments, cc)


def ptx_body(compiled: ptx.Compiled) -> str:
    """The instructions of a kernel's PTX, without its head and parameters; of a loaded parameter the number alone."""
    body = compiled.ptx[compiled.ptx.index("{") :]
    body = re.sub(r"\[\w*_param_(\d+)\]", r"[param_\1]", body)
    lines = [line.rstrip() for line in body.splitlines() if line.strip()]
    return f"{compiled.name}, PTX for {compiled.target}\n" + "\n".join(lines)


def machine_lines(compiled: ptx.Compiled) -> list[str]:
    """The machine's instructions, without addresses and the padding at the end."""
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.+?)\s*;", compiled.sass)
    return [line for line in found if not line.startswith("NOP")]


def side_by_side(left: ptx.Compiled, right: ptx.Compiled) -> str:
    """Two machine codes beside each other."""
    try:
        columns = [[f"{c.name}, {c.target}", *machine_lines(c)] for c in (left, right)]
    except LabError as e:
        return f"not shown: {e}"
    length, width = max(map(len, columns)), max(map(len, columns[0])) + 3
    columns = [c + [""] * (length - len(c)) for c in columns]
    return "\n".join(f"{a:{width}}{b}".rstrip() for a, b in zip(*columns, strict=True))


def different(compiled: dict[str, ptx.Compiled]) -> int:
    """How many different machine codes there are among these."""
    return len({"\n".join(machine_lines(c)) for c in compiled.values()})


def targets_table(compiled: dict[str, ptx.Compiled]) -> str:
    """For each target the instructions of PTX and of the machine, and from which target on they are the same."""
    first: dict[str, str] = {}
    bodies: dict[str, str] = {}
    lines = []
    for name, c in compiled.items():
        body, code = ptx_body(c).partition("\n")[2], "\n".join(machine_lines(c))
        instructions = len([x for x in body.splitlines() if x.endswith(";") and not x.strip().startswith(".")])
        same = bodies.setdefault(body, name), first.setdefault(code, name)
        lines.append((name, instructions, same[0], len(machine_lines(c)), c.registers, same[1]))
    columns = ["target", "PTX", "PTX as for", "machine", "registers", "machine code as for"]
    table = text(pd.DataFrame(lines, columns=columns))
    return f"instructions\n{table}\n{len(bodies)} different PTX texts, {len(first)} different machine codes"


def instruction_table(program: Callable, instructions: dict[str, str], targets: dict[str, tuple]) -> str:
    """Which instruction the assembler takes for which target."""
    found = takers(program, instructions, targets)
    lines = [(name, *("✓" if t in found[name] else "·" for t in targets)) for name in instructions]
    return text(pd.DataFrame(lines, columns=["instruction", *(t.removeprefix("sm_") for t in targets)]))


def takers(program: Callable, instructions: dict[str, str], targets: dict[str, tuple]) -> dict[str, list[str]]:
    """For each instruction the targets for which the assembler takes it."""
    if not listings.needed():
        return listings.taken(program, instructions, targets)
    return {name: [t for t in listings.read()["taken"][name] if t in targets] for name in instructions}


def native_table(program: Callable, instructions: dict[str, str], targets: dict[str, tuple]) -> str:
    """What the machine does for one instruction of PTX: its products, and how many instructions beside them."""
    here = not listings.needed()
    found = listings.native(program, instructions, targets) if here else listings.read()["native"]
    lines = [(name, *(_of_machine(found[name].get(t)) for t in targets)) for name in instructions]
    return text(pd.DataFrame(lines, columns=["PTX", *targets]))


def _of_machine(counts: dict[str, int] | None) -> str:
    if counts is None:
        return "·"
    products = {k: n for k, n in counts.items() if k.endswith("MMA")}
    told = " ".join(f"{n} {k}" if n > 1 else k for k, n in products.items())
    others = sum(counts.values()) - sum(products.values())
    return f"{told} + {others}" if others > 4 else told  # a few are addresses and waiting


def gpus_that_run(targets: dict[str, tuple], *shipped: str) -> int:
    """How many of the targets' GPUs run machine code for one of those shipped: the same major number, no older."""
    gpus, codes = {cc[:2] for cc in targets.values()}, [targets[name] for name in shipped]
    return sum(any(gpu[0] == code[0] and gpu[1] >= code[1] for code in codes) for gpu in gpus)


def forward_table(compiled: dict[str, ptx.Compiled], targets: dict[str, tuple]) -> str:
    """Whose PTX (rows) is assembled for which GPU (columns)."""
    found = listings.read()["forward"] if listings.needed() else listings.forward(compiled, targets)
    lines = [(name, *("✓" if t in found[name] else "·" for t in targets)) for name in compiled]
    return text(pd.DataFrame(lines, columns=["PTX for", *(t.removeprefix("sm_") for t in targets)]))


def assembled_table(compiling: Future, targets: dict[str, tuple]) -> str:
    """A kernel's PTX assembled for each of these GPUs: the tensor cores' instructions in the machine code."""
    try:
        old = compiling.result()
        lines = [_assembled(old, t, cc) for t, cc in targets.items()]
    except LabError as e:
        return f"not compiled here: {e}"
    columns = [f"{old.name}, PTX for {old.target}, on", "registers", "HMMA", "HGMMA"]
    return text(pd.DataFrame(lines, columns=columns))


def _assembled(old: ptx.Compiled, target: str, cc: tuple) -> tuple:
    new = ptx.assemble(old.ptx, cc)
    return target, new.registers, new.instructions["HMMA"], new.instructions["HGMMA"]


def refusal(kernel, arguments, cc) -> str:
    """What somebody sees who compiles this kernel for this GPU."""
    try:
        return f"{made(kernel, arguments, cc).name} compiles"
    except LabError as refused:
        return f"LabError: {refused}"


def arithmetic(compiled: ptx.Compiled) -> str:
    """The kinds of PTX instructions that compute, and how often each is there; those of float64 are marked."""
    kinds = r"add|sub|mul|fma|mad|div|neg|abs|ex2|sqrt|rcp|cvt|setp|min|max|rem"
    found = Counter(re.findall(rf"(?m)^\s*(?:@!?%\w+\s+)?((?:{kinds})\.[\w.]+)", compiled.ptx))
    rows = [(name, n, "float64" if ".f64" in name else "") for name, n in sorted(found.items())]
    rows = [r for r in rows if re.search(r"\.f\d\d", r[0])]
    return (
        f"{compiled.name}, PTX for {compiled.target}\n{text(pd.DataFrame(rows, columns=['instruction', 'times', '']))}"
    )


# measured


def loads_table(loads: pd.DataFrame) -> str:
    """Whether the driver took code made for each target, and how long it took it."""
    loads = of_one_source(loads)
    lines = []
    for target, group in loads.groupby("target", sort=False):
        line = {"made for": target}
        for kind in ("ptx", "sass"):
            row = group[group["variant"] == kind].iloc[0]
            line[kind.upper()] = row["objection"] or f"loads in {row['median_ms']:.2f} ms"
        lines.append(line)
    return f"{text(pd.DataFrame(lines))}\n{loads['source'].iloc[0]}"


def lock_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, if the first source has every version; else the recorded ones, and says so."""
    return or_recorded(rows, bool(len(rows)) and set(of_one_source(rows)["variant"]) >= NEEDED, "hardware_lock")


def cases(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Each problem with its name and its rows by variant."""
    rows = of_one_source(rows)
    found = []
    for (kernel, n, length, d), group in rows.groupby(["kernel", "n", "seqlen", "head_dim"], sort=False):
        name = f"product, {n}³" if kernel == "matmul" else f"attention, N = {length}, d = {d}"
        found.append((name, group.set_index("variant")))
    return found


def lock_answer(rows: pd.DataFrame) -> str:
    """The table for someone in a hurry: TFLOP/s of each version, and what part the portable one keeps."""
    lines = []
    for name, at in cases(rows):
        speed = at["tflops"]
        library = LIBRARIES["matmul" if name.startswith("product") else "attention"]
        lines.append((name, speed["mma"], speed["wgmma"], speed[library], library, speed["mma"] / speed["wgmma"]))
    columns = ["problem", "portable (mma)", "native (wgmma)", "library", "which", "portable keeps"]
    how = dict.fromkeys(columns[1:4], "{:.0f}") | {"portable keeps": "{:.0%}"}
    shown = text(pd.DataFrame(lines, columns=columns), **how)
    return f"TFLOP/s, float16\n{shown}\n{rows['source'].iloc[0]}\n{device.mode()}"


def portable_part(rows: pd.DataFrame, kernel: str) -> float:
    """The portable kernel's speed as a part of the native one's, at the largest size that was measured."""
    rows = of_one_source(rows)
    at = rows[rows["kernel"] == kernel]
    at = at[at["flops"] == at["flops"].max()] if kernel == "matmul" else at[at["seqlen"] == at["seqlen"].max()]
    return value(at, "tflops", variant="mma") / value(at, "tflops", variant="wgmma")


def lock_errors(rows: pd.DataFrame) -> str:
    """The errors of the portable and the native kernels against float64, at worst."""
    worst = of_one_source(rows).groupby(["kernel", "variant"], sort=False)["error"].max()
    told = [f"{kernel}, {v}: {worst[kernel, v]:.1e}" for kernel in ("matmul", "attention") for v in ("mma", "wgmma")]
    return "error against float64, at worst\n" + "\n".join(told)


def lock_library(rows: pd.DataFrame) -> str:
    """The library's attention of two generations, on the same numbers."""
    lines = []
    for name, at in cases(rows):
        if {"torch-fa2", "torch-cudnn"} <= set(at.index):
            old, new = (at.loc[v, "tflops"] for v in ("torch-fa2", "torch-cudnn"))
            lines.append(
                f"{name}: FlashAttention-2 {old:.0f} TFLOP/s, cuDNN {new:.0f}; the older keeps {old / new:.0%}"
            )
    return "\n".join(lines)


def takeaways_07(rows: pd.DataFrame, loads: pd.DataFrame, lab: pd.DataFrame) -> str:
    """The chapter in five sentences, each with its number."""
    from labkit.findings.fallbacks import guards_hold, loud, names, slowdown

    loads, by = of_one_source(loads), names(lab)
    taken = loads[loads["objection"] == ""].groupby("variant").size()
    ms = loads[loads["objection"] == ""].groupby("variant")["median_ms"].median()
    ratios = {n: slowdown(lab, n) for n in by}
    worst = max(ratios, key=ratios.get)
    kept = [f"{portable_part(rows, kernel):.0%}" for kernel in ("matmul", "attention")]
    return numbered(
        f"On one GPU the portable kernel keeps {kept[0]} of the native one's speed in a product, "
        f"{kept[1]} in attention, with the same error.",
        f"Of {loads['target'].nunique()} targets the driver loads PTX for {taken['ptx']} and machine code for "
        f"{taken['sass']}; PTX takes {ms['ptx']:.1f} ms at load, machine code {ms['sass']:.2f}.",
        f"{len(by)} fallbacks cost {min(ratios.values()):.1f}× to {ratios[worst]:.0f}× ({worst}).",
        f"{loud(lab)} of them said anything; {len(by) - loud(lab)} were silent.",
        f"{guards_hold(lab)} of {len(by)} guards pass the path that was meant and reject the other.",
    )
