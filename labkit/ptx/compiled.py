"""Compile a kernel for any GPU, without one, and read what it became: registers, local memory, instructions."""

from __future__ import annotations

import atexit
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from labkit import device
from labkit.errors import LabError

INSTALL = "pip install -e '.[cu13]' installs NVIDIA's compiler (Linux, Windows; no GPU is needed)"
_LOCK = threading.Lock()
CHILD = "import numba.cuda; from labkit.ptx import child; child.main()"


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled for one GPU generation.

    target         such as sm_90a
    registers      a thread
    local_bytes    a thread's local memory: arrays with an index that is not constant, and spilled registers
    spilled_bytes  stored because registers ran out
    shared_bytes   static shared memory a block (dynamic shared memory is the launch's)
    notes          what the assembler warns of, such as wgmma that it had to serialise
    """

    name: str
    target: str
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    registers: int
    local_bytes: int
    spilled_bytes: int
    shared_bytes: int
    notes: tuple[str, ...] = ()

    def count(self, instruction: str) -> int:
        """How often an instruction stands in the PTX, by the start of its name: `mma.sync`, `ld.global.v4`."""
        return len(re.findall(rf"(?m)^\s*(?:@!?%\w+\s+)?\{{?\s*{re.escape(instruction)}", self._flat))

    @property
    def float64(self) -> int:
        """How many PTX instructions compute in float64."""
        return len(re.findall(r"(?m)^\s*(?:@!?%\w+\s+)?\w+[\w.]*\.f64\b", self.ptx))

    @cached_property
    def _flat(self) -> str:
        return self.ptx.replace(";", ";\n")  # inline assembly may hold several instructions a line

    @cached_property
    def sass(self) -> str:
        """The machine code, disassembled. Raises LabError without nvdisasm."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(self.cubin)
            done = subprocess.run([nvdisasm(), "-c", path], capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"nvdisasm cannot read {self.name} ({done.stderr.strip()}); a newer one may")
        return done.stdout

    @property
    def instructions(self) -> Counter:
        """How often each machine instruction stands in the code, by its first name: HMMA, FFMA, LDG."""
        return opcodes(self.sass)


def compile_for(kernel, arguments, cc) -> Compiled:
    """What `kernel` becomes on a GPU of compute capability `cc`; needs no GPU, but NVIDIA's compiler (extra `cu13`).

    arguments  one for each of the kernel's: NumPy arrays and scalars, device arrays, or numba types
    cc         (8, 0), or (9, 0, "a") for what exists on that generation only (wgmma)

    Raises LabError without the compiler, and with the compiler's reason for a kernel that it refuses.
    """
    trouble = compiler_trouble()
    if trouble:
        raise LabError(f"{trouble}. {INSTALL}")
    if not (isinstance(cc, tuple) and len(cc) in (2, 3) and all(isinstance(c, int) for c in cc[:2])):
        raise LabError(f'found {cc!r} for a compute capability, expected one such as (8, 0) or (9, 0, "a")')
    request = _pickled((function_of(kernel), [_type(a) for a in arguments], _options(kernel), cc))
    answer = _ask_child(request)
    if "error" in answer:
        raise LabError(f"{function_of(kernel).__name__} does not compile for {target(cc)}: {answer['error']}")
    return _read(function_of(kernel).__name__, target(cc), answer)


def assemble(text: str, cc) -> Compiled:
    """The machine code of a PTX text on a GPU of compute capability `cc`: what its driver makes of it at load.

    Needs no GPU, but NVIDIA's compiler. Raises LabError with the assembler's reason for what that GPU does not take.
    """
    trouble = compiler_trouble()
    if trouble:
        raise LabError(f"{trouble}. {INSTALL}")
    found = re.search(r"\.entry\s+(\w+)", text)
    name = _spoken(found[1]) if found else "the text"
    answer = _ask_child(_pickled((text, (), {}, cc)))
    if "error" in answer:
        raise LabError(f"{name} does not assemble for {target(cc)}: {answer['error']}")
    return _read(name, target(cc), answer)


def opcodes(sass: str) -> Counter:
    """How often each instruction stands in disassembled machine code."""
    return Counter(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", sass))


def _spoken(mangled: str) -> str:
    """The last name in an Itanium-mangled one, which numba gives its kernels: _ZN8__main__5scaleB2v8… is scale."""
    rest, name = mangled.removeprefix("_ZN"), mangled
    while rest != mangled and (length := re.match(r"\d+", rest)):
        name, rest = rest[length.end() :][: int(length[0])], rest[length.end() + int(length[0]) :]
    return name


def target(cc) -> str:
    """The assembler's name of a compute capability: sm_90a."""
    return "sm_" + "".join(str(c) for c in cc)


def compiler_trouble() -> str:
    """Why kernels cannot be compiled here, or an empty string."""
    return device.toolkit_trouble()


def function_of(kernel):
    """The Python function of a kernel, be it numba.cuda's, the simulator's or labkit.cpu's."""
    return getattr(kernel, "py_func", None) or getattr(kernel, "fn", kernel)


def _options(kernel) -> dict:
    """The decorator's options that change the code."""
    options = getattr(kernel, "targetoptions", None) or getattr(kernel, "options", {})
    return {k: options[k] for k in ("fastmath", "launch_bounds", "max_registers") if options.get(k)}


def _type(argument):
    """The numba type by which a kernel takes an argument. Raises LabError for what it cannot take."""
    from numba import types
    from numba.core.types import Type

    if isinstance(argument, Type):
        return argument
    if hasattr(argument, "dtype") and hasattr(argument, "strides") and np.ndim(argument):
        layout = "C" if argument.flags["C_CONTIGUOUS"] else "A"
        return types.Array(_scalar(np.dtype(argument.dtype)), argument.ndim, layout)
    if isinstance(argument, (bool, int, float, np.generic)):
        return _scalar(np.asarray(argument).dtype)
    raise LabError(f"found {type(argument).__name__} as a kernel's argument, expected arrays, numbers or numba types")


def _scalar(dtype):
    from numba import from_dtype
    from numba.core import types

    return types.float16 if dtype == np.float16 else from_dtype(dtype)


def _pickled(what) -> bytes:
    """Pickled by value, device functions as what they must be compiled from again."""
    import io

    from numba.core.serialize import NumbaPickler

    class Pickler(NumbaPickler):
        def reducer_override(self, found):
            if type(found).__name__ in ("Kernel", "FakeCUDAKernel", "CUDADispatcher"):
                from labkit.ptx import child

                options = dict(getattr(found, "targetoptions", None) or getattr(found, "options", {}))
                kept = {k: options[k] for k in ("fastmath", "forceinline", "inline") if options.get(k)}
                return child.device_function, (function_of(found), kept)
            return super().reducer_override(found)

    buffer = io.BytesIO()
    Pickler(buffer).dump(what)
    return buffer.getvalue()


def _ask_child(request: bytes) -> dict:
    """Compile in a process without the simulator: this one may have turned it on, and cannot leave it."""
    with _LOCK:
        child = _child()
        try:
            child.stdin.write(request)
            child.stdin.flush()
            return json.loads(child.stdout.readline())
        except (OSError, ValueError):
            _child.cache_clear()  # the next call starts another
            child.kill()
            last = (child.stderr.read().decode(errors="replace").strip().splitlines() or ["nothing was said"])[-1]
            raise LabError(f"the compiler's process ended early ({last})") from None


@cache
def _child() -> subprocess.Popen:
    """The process that compiles, one for all calls: it takes seconds to start."""
    environment = {k: v for k, v in os.environ.items() if k != device.SIMULATOR_VARIABLE}
    environment["PYTHONPATH"] = os.pathsep.join([str(device.ROOT), *sys.path])
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CHILD], stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    )
    atexit.register(child.communicate)  # its input ends, and so does it
    return child


def _read(name: str, arch: str, answer: dict) -> Compiled:
    log = answer["log"]

    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found[1]) if found else 0

    notes = [m[1] for m in re.finditer(r"\((?:C\d+)\) (.+)", log)]
    return Compiled(
        name=name,
        target=arch,
        ptx=answer["ptx"],
        cubin=base64.b64decode(answer["cubin"]),
        registers=number(r"Used (\d+) registers"),
        local_bytes=number(r"(\d+) bytes stack frame"),
        spilled_bytes=number(r"(\d+) bytes spill stores"),
        shared_bytes=sum(map(int, re.findall(r"(?m)^\.shared .*\.b8 \S+\[(\d+)\]", answer["ptx"]))),
        notes=tuple(notes),
    )


def nvdisasm() -> str:
    """The path of NVIDIA's disassembler. Raises LabError where it is not installed."""
    spec = find_spec("nvidia")
    for place in spec.submodule_search_locations if spec else ():
        for path in Path(place).glob("**/bin/nvdisasm*"):
            return str(path)
    found = shutil.which("nvdisasm")
    if not found:
        raise LabError("nvdisasm is not installed, and machine code cannot be read; pip install nvidia-cuda-nvdisasm")
    return found
