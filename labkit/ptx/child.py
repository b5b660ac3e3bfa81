"""Runs in a process of its own, without numba's simulator: compiles one kernel for a GPU that need not be here.

What numba-cuda asks a driver for is answered from the wanted compute capability.
"""

from __future__ import annotations

import base64
import json
import pickle
import sys


def device_function(function, options: dict):
    """A device function, jitted again from its Python function."""
    from numba import cuda

    return cuda.jit(device=True, **options)(function)


def main() -> None:
    """Answer each pickled request from stdin with a line of JSON on stdout: PTX, machine code, the assembler's log."""
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may write among the answers
    while True:
        try:
            function, kinds, options, cc = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        except Exception as e:  # a kernel that refers to what cannot be found in this process
            answer = {"error": _reason(e)}
        else:
            answer = _answer(function, kinds, options, cc)
        print(json.dumps(answer), file=answers, flush=True)


def _answer(function, kinds, options: dict, cc) -> dict:
    _pretend(cc)
    try:
        return link(function, cc) if isinstance(function, str) else compile_kernel(function, kinds, options, cc)
    except Exception as e:  # whatever numba and the assembler raise, the parent process says it
        return {"error": _reason(e)}


def compile_kernel(function, kinds, options: dict, cc) -> dict:
    """PTX by numba-cuda, machine code by NVIDIA's linker."""
    from numba import cuda

    limit = options.pop("max_registers", None)
    ptx, _ = cuda.compile_ptx(function, tuple(kinds), cc=cc, **options)
    return link(ptx, cc, limit)


def link(ptx: str, cc, limit: int | None = None) -> dict:
    """The machine code of a PTX text, whatever GPU it was written for."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    arch = "sm_" + "".join(str(c) for c in cc)
    settings = LinkerOptions(arch=arch, ptxas_options=["-v"], max_register_count=limit)
    linker = Linker(ObjectCode.from_ptx(ptx.encode()), options=settings)
    code = linker.link("cubin").code
    return {"ptx": ptx, "cubin": base64.b64encode(code).decode(), "log": linker.get_info_log()}


def _pretend(cc) -> None:
    """Let numba-cuda take a device of this compute capability for the current one."""
    from numba.cuda import codegen, compiler, dispatcher

    class Pretended:
        compute_capability = cc
        id = 0

    dispatcher.get_current_device = compiler.get_current_device = Pretended
    codegen.CUDACodeLibrary._ensure_cc = lambda self, asked: cc


def _reason(error: Exception) -> str:
    """An error in one line: the last of numba's many that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "ptx." in line or "rror" in line] or lines or [type(error).__name__]
    return told[0].removeprefix("Failed in cuda mode pipeline (step: native lowering)").strip()[:400]
