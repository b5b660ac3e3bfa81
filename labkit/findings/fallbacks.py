"""Chapter 07: fallbacks, their price, what they said and whether their guards hold; and the checks of its exercises."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from labkit import checks, device, progress, ptx
from labkit.checks import WrongAnswer
from labkit.findings import listings
from labkit.ptx.compiled import function_of
from labkit.tables import of_one_source, or_recorded, peaks, text, value

__all__ = [
    "check_float32",
    "check_guard",
    "fallback_errors",
    "fallback_rows",
    "fallback_table",
    "fallbacks_ran",
    "fallbacks_said",
    "guards_hold",
    "guards_table",
    "hidden_time",
    "loud",
    "named_kernels",
    "plain_name",
    "slowdown",
]

HIDDEN = "hidden"  # the exercise's pair; tables leave it out
NEEDED = 6  # fallbacks for which the findings are worth telling


def named_kernels(kernels: list[str], most: int = 3) -> str:
    """Kernels by their plain names, each with its number, in the order in which they ran: 2 × elementwise_kernel."""
    counts = Counter(map(plain_name, kernels))
    told = [f"{n} × {name}" if n > 1 else name for name, n in counts.items()]
    return "; ".join([*told[:most], *([f"{len(told) - most} more"] if len(told) > most else [])])


def plain_name(kernel: str) -> str:
    """void at::native::elementwise_kernel<128, …>(…) is elementwise_kernel."""
    name = re.sub(r"\[abi:.*|\(.*", "", kernel.removeprefix("void ").replace("(anonymous namespace)::", ""))
    head, _, inside = name.partition("<")
    short = head.rpartition("::")[2].strip()
    if short.startswith("Kernel") and inside:  # CUTLASS says it inside
        short = inside.rstrip(">").rpartition("::")[2].strip()
    return (short or kernel.strip())[:60]


def fallback_rows(lab: pd.DataFrame) -> pd.DataFrame:
    """The rows, if most fallbacks were measured; else the recorded ones, and says so."""
    whole = bool(len(lab)) and of_one_source(lab)["fallback"].nunique() >= NEEDED
    return or_recorded(lab, whole, "fallbacks", "too few were measured")


def names(lab: pd.DataFrame) -> list[str]:
    """The fallbacks that were measured, without the exercise's."""
    found = of_one_source(lab)["fallback"]
    return [n for n in dict.fromkeys(found) if n != HIDDEN]


def pair(lab: pd.DataFrame, name: str) -> tuple[pd.Series, pd.Series]:
    """The row of the path that was asked for, and of the one that ran instead."""
    rows = of_one_source(lab)
    at = rows[rows["fallback"] == name].set_index("path")
    return at.loc["asked"], at.loc["fell"]


def slowdown(lab: pd.DataFrame, name: str) -> float:
    """How many times as long the fallback takes."""
    rows = of_one_source(lab)
    rows = rows[rows["fallback"] == name]
    return value(rows, "median_ms", path="fell") / value(rows, "median_ms", path="asked")


def loud(lab: pd.DataFrame) -> int:
    """How many fallbacks said anything, in a warning or a log, when they were first taken."""
    return sum(pair(lab, n)[1]["logged"] > 0 for n in names(lab))


def holds(lab: pd.DataFrame, name: str) -> bool:
    """Whether a guard passed the path that was meant and rejected the other."""
    asked, fell = pair(lab, name)
    return asked["guard"] == "passes" and fell["guard"].startswith("rejects")


def guards_hold(lab: pd.DataFrame) -> int:
    """How many guards do."""
    return sum(holds(lab, n) for n in names(lab))


def fallback_table(lab: pd.DataFrame) -> str:
    """Each fallback: the time of the path that was asked for and of the one that ran, and what it said."""
    lines = []
    for name in names(lab):
        asked, fell = pair(lab, name)
        said = f"{fell['logged']} line{'s' if fell['logged'] > 1 else ''}" if fell["logged"] else "nothing"
        times = asked["median_ms"], fell["median_ms"], slowdown(lab, name)
        lines.append((name, *times, asked["method"], f"{asked['ran']} → {fell['ran']}", said))
    columns = ["fallback", "asked ms", "fell ms", "slowdown", "clock", "on the GPU", "it said"]
    how = {"asked ms": "{:.3f}", "fell ms": "{:.3f}", "slowdown": "{:.1f}×"}
    shown = text(pd.DataFrame(lines, columns=columns), **how)
    note = "on the GPU: kernels and copies of one call, asked → fell"
    return f"{shown}\n{note}\n{lab['source'].iloc[0]}\n{device.mode()}"


def fallbacks_said(lab: pd.DataFrame) -> str:
    """The first line that each of them said; the silent ones by name."""
    told = {n: pair(lab, n)[1] for n in names(lab)}
    lines = [f"{n}: {_printable(row['said'])}" for n, row in told.items() if row["logged"]]
    silent = [n for n, row in told.items() if not row["logged"]]
    return "\n".join([*lines, f"nothing: {', '.join(silent)}"])


def _printable(line: str) -> str:
    """Without colours, and without the folder that a notebook's cells were compiled in."""
    return re.sub(r"(?<![\w/])/\S*/(\w+\.py)", r"\1", re.sub(r"\x1b\[\d*m", "", line))


def fallbacks_ran(lab: pd.DataFrame) -> str:
    """The kernels of both paths."""
    lines = []
    for name in names(lab):
        asked, fell = pair(lab, name)
        lines += [f"{name}", f"  asked: {asked['kernels']}", f"  fell:  {fell['kernels']}"]
    return "\n".join(lines)


def guards_table(lab: pd.DataFrame) -> str:
    """What each guard said of both paths, and whether it holds."""
    lines = []
    for name in names(lab):
        asked, fell = pair(lab, name)
        verdict = _printable(fell["guard"])
        lines.append((name, asked["guard"], verdict if len(verdict) < 70 else verdict[:67] + "…", holds(lab, name)))
    shown = pd.DataFrame(lines, columns=["fallback", "asked", "fell", "holds"]).replace({True: "yes", False: "NO"})
    return f"{text(shown)}\n{guards_hold(lab)} of {len(lines)} guards hold"


def fallback_errors(lab: pd.DataFrame) -> str:
    """Both paths' errors against float64, and which is the more exact."""
    lines, better = [], 0
    for name in names(lab):
        asked, fell = (row["error"] for row in pair(lab, name))
        better += fell < asked
        lines.append((name, asked, fell))
    how = dict.fromkeys(("asked", "fell"), "{:.1e}")
    shown = text(pd.DataFrame(lines, columns=["error of", "asked", "fell"]), **how)
    return f"{shown}\nthe fallback is the more exact in {better} of {len(lines)}"


def hidden_time(lab: pd.DataFrame) -> str:
    """How much longer the exercise's kernel takes than it should."""
    asked, fell = pair(lab, HIDDEN)
    ms = fell["median_ms"], asked["median_ms"]
    gpu = peaks(lab)
    least = f"; its bytes alone take {asked['bytes'] / gpu.bandwidth_gbps / 1e6:.3f} ms (data sheet)" if gpu else ""
    return f"decay: {ms[0]:.3f} ms; as it was meant: {ms[1]:.3f} ms, {ms[0] / ms[1]:.1f}× as fast{least}"


# exercises


def check_float32(kernel, *, arguments: list, exercise: str = "", **case) -> None:
    """Check a kernel as `check_kernel` does; and, where the compiler is here, that it never computes in float64."""
    if checks.is_skeleton(kernel):
        checks.check_kernel(kernel, exercise=exercise, **case)
        return
    checks.check_kernel(kernel, **case)
    if ptx.compiler_trouble():
        print("(whether it computes in float64 cannot be seen here: NVIDIA's compiler is not installed)")
    elif found := ptx.compile_for(kernel, arguments, (9, 0)).float64:
        raise WrongAnswer(
            f"{exercise or function_of(kernel).__name__}: right, but {found} instructions still compute in float64"
        )
    else:
        print("no instruction computes in float64")
    progress.solved(exercise)


SOUND = listings.Listed(
    "sound", "sm_90a", "add.f32 %f1, %f2, %f3;", b"", 168, 0, 0, 0, (), "/*0000*/ HGMMA.64x256x16.F32 R24;"
)  # as a compiled kernel looks that is all right
FAULTS = {
    "without HGMMA (an HMMA is there)": {"text": "/*0000*/ HMMA.16816.F32 R4, R8, R12, R4;"},
    "that computes in float64": {"ptx": "\tadd.f64 \t%fd1, %fd2, %fd3;"},
    "with 64 bytes of local memory": {"local_bytes": 64, "spilled_bytes": 32},
    "that the assembler had to serialise": {"notes": ("wgmma serialized due to a function call",)},
}


def check_guard(guard: Callable, exercise: str = "") -> None:
    """Try a guard(compiled, instruction) on a kernel that is all right, and on four that are not."""
    name = exercise or guard.__name__
    if checks.is_skeleton(guard):
        print(f"{name}: not attempted (replace the `...` in {guard.__name__})")
        return
    sound = (SOUND, "HGMMA"), (replace(SOUND, text=SOUND.text.replace("HGMMA", "HMMA")), "HMMA")
    for made, instruction in sound:
        if objection := _objection(guard, made, instruction, name):
            raise WrongAnswer(f"{name}: it rejects a kernel that is all right ({instruction} asked for): {objection}")
    for fault, changed in FAULTS.items():
        if _objection(guard, replace(SOUND, **changed), "HGMMA", name) is None:
            raise WrongAnswer(f"{name}: it lets a kernel pass {fault}")
    progress.solved(exercise)
    print(f"{name}: right, on two kernels that are sound and {len(FAULTS)} that are not")


def _objection(guard: Callable, made, instruction: str, name: str) -> str | None:
    try:
        guard(made, instruction)
    except AssertionError as e:
        return str(e) or "no message"
    except Exception as e:
        raise WrongAnswer(f"{name}: {type(e).__name__} instead of AssertionError: {e}") from e
    return None
