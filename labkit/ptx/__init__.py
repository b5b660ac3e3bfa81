"""PTX instructions as functions for numba.cuda kernels, and what the compiler made of a kernel.

Named after the instructions. Without a GPU they can be compiled (compile_for), and the few that have a plain meaning
(load4, load8, copy8, pack_half2, ...) run on the CPU; the others are refused there in one line.
"""

from labkit.ptx.compiled import Compiled, assemble, compile_for, compiler_trouble
from labkit.ptx.copies import *  # noqa: F403
from labkit.ptx.emit import NotOnThisGpu
from labkit.ptx.host import aligned_rows, copy_rows, prepare, tensor_map
from labkit.ptx.layouts import fragment, layout
from labkit.ptx.matrix import *  # noqa: F403
from labkit.ptx.memory import add_in_order, address, copy8, load4, load8, shared_address, store4, words4
from labkit.ptx.overlap import *  # noqa: F403
from labkit.ptx.values import *  # noqa: F403
from labkit.ptx.warpgroup import *  # noqa: F403

__all__ = [
    "Compiled",
    "NotOnThisGpu",
    "add_in_order",
    "address",
    "aligned_rows",
    "assemble",
    "compile_for",
    "compiler_trouble",
    "copy8",
    "copy_rows",
    "fragment",
    "layout",
    "load4",
    "load8",
    "prepare",
    "shared_address",
    "store4",
    "tensor_map",
    "words4",
]
__all__ += [*copies.__all__, *matrix.__all__, *overlap.__all__, *values.__all__, *warpgroup.__all__]  # noqa: F405
