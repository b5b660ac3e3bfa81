"""What NVIDIA's compiler made of chapter 07's kernels, kept in data/listings.json for machines without it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from labkit import device, ptx
from labkit.doctor import installed
from labkit.errors import LabError
from labkit.ptx.compiled import INSTALL, nvdisasm, opcodes, target

FILE = "listings.json"
FIELDS = ("name", "target", "ptx", "registers", "local_bytes", "spilled_bytes", "shared_bytes")


@dataclass(frozen=True)
class Listed(ptx.Compiled):
    """A compiled kernel from the listings: its texts, without the machine code itself."""

    text: str = field(default="", repr=False)

    @property
    def sass(self) -> str:
        return self.text


@cache
def read() -> dict:
    """The listings. Raises LabError where they are missing or damaged."""
    path = device.ROOT / "data" / FILE
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise LabError(f"{path}: no listings ({e}); restore it: git checkout -- {path}") from e


def needed() -> str:
    """Why the listings stand in for the compiler here, or an empty string."""
    return ptx.compiler_trouble() or ("" if disassembler() else "nvdisasm is not installed")


@cache
def disassembler() -> bool:
    """Whether machine code can be read here."""
    try:
        return bool(nvdisasm())
    except LabError:
        return False


def kernel(name: str, cc: tuple) -> Listed:
    """A kernel's listing. Raises LabError with what the compiler said of one that it refused, or for another kernel."""
    found = read()["kernels"].get(name, {}).get(target(cc))
    if found is None:
        raise LabError(f"{needed()}, and there is no listing of {name} for {target(cc)}. {INSTALL}")
    if "refused" in found:
        raise LabError(found["refused"])
    return Listed(**{k: found[k] for k in FIELDS}, cubin=b"", notes=tuple(found["notes"]), text=found["sass"])


def listed(compiled: ptx.Compiled) -> dict:
    """A compiled kernel as the listings keep it: the body of its PTX, its machine instructions line by line."""
    body = re.sub(r"\[\w+_param_(\d+)\]", r"[_param_\1]", compiled.ptx[compiled.ptx.index("{") :])
    found = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.+?)\s*;", compiled.sass)
    sass = "\n".join(f"/*{at}*/ {line};" for at, line in found if line != "NOP")
    kept = {k: getattr(compiled, k) for k in FIELDS}
    return kept | {"ptx": body, "sass": sass, "notes": list(compiled.notes)}


def compiler() -> str:
    """The compiler's version, as it signs its PTX, and numba-cuda's."""
    return f"CUDA {_signed()}, numba-cuda {installed('numba-cuda')}"


@cache
def _signed() -> str:
    from numba import cuda, float32

    @cuda.jit
    def nothing(x):
        x[0] = float32(0)

    signed = re.search(r"release (\d+\.\d+)", ptx.compile_for(nothing, [float32[:]], (9, 0)).ptx)
    return signed[1] if signed else "of an unknown release"


# what the assembler takes, and what it makes of it


def takes(text: str, cc: tuple) -> bool:
    """Whether the assembler takes a PTX text for this GPU."""
    try:
        ptx.assemble(text, cc)
    except LabError:
        return False
    return True


def taken(program: Callable, instructions: dict[str, str], targets: dict[str, tuple]) -> dict[str, list[str]]:
    """For each instruction the targets that have it."""
    return {
        name: [t for t, cc in targets.items() if takes(program(line, t), cc)] for name, line in instructions.items()
    }


def forward(compiled: dict[str, ptx.Compiled], targets: dict[str, tuple]) -> dict[str, list[str]]:
    """For each target's PTX the GPUs that it is assembled for."""
    return {name: [t for t, cc in targets.items() if takes(c.ptx, cc)] for name, c in compiled.items()}


def native(program: Callable, instructions: dict[str, str], targets: dict[str, tuple]) -> dict[str, dict]:
    """For each instruction and target: the machine instructions that a program has more of than one without it."""
    has = taken(program, instructions, targets)
    found: dict[str, dict] = {name: {} for name in instructions}
    for arch, cc in targets.items():
        names = [name for name in instructions if arch in has[name]]
        counts = _counts(program, ["", *(instructions[name] for name in names)], arch, cc)
        for name, count in zip(names, counts[1:], strict=True):
            found[name][arch] = dict(sorted((count - counts[0]).items()))
    return found


def _counts(program: Callable, lines: list[str], arch: str, cc: tuple) -> list[Counter]:
    """The machine instructions of programs of one instruction each, assembled and disassembled together."""
    texts = [program(line, arch, f"one_{i}") for i, line in enumerate(lines)]
    whole = "\n".join([texts[0], *(t[t.index(".visible") :] for t in texts[1:])])
    parts = re.split(r"(?m)^\.text\.one_(\d+):", ptx.assemble(whole, cc).sass)[1:]
    named = {int(i): Counter(opcodes(part)) for i, part in zip(parts[::2], parts[1::2], strict=True)}
    for i, own in named.items():
        if own["CALL"]:  # the function called stands elsewhere: alone, all that is there belongs to it
            named[i] = opcodes(ptx.assemble(texts[i], cc).sass)
    return [Counter({k: n for k, n in named[i].items() if k != "NOP"}) for i in range(len(lines))]
