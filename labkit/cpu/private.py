"""The only place that touches what numba does not promise to keep: type inference, symbols, and its CUDA simulator.

Seen with numba 0.68 and numba-cuda 0.30.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets

import numpy as np
from numba import types
from numba.core import bytecode, compiler, config, typed_passes
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.core.typing import templates
from numba.np.numpy_support import as_dtype

from labkit.cpu.source import BadKernel


class _Found(Exception):
    """Carries the types out of numba's pipeline once they are known."""


@register_pass(mutates_CFG=False, analysis_only=True)
class _Report(AnalysisPass):
    _name = "labkit_report_types"

    def __init__(self):
        AnalysisPass.__init__(self)

    def run_pass(self, state) -> bool:
        raise _Found(dict(state.typemap))


class _TypesOnly(compiler.CompilerBase):
    def define_pipelines(self):
        passes = compiler.DefaultPassBuilder.define_untyped_pipeline(self.state)
        passes.add_pass(typed_passes.NopythonTypeInference, "type inference")
        passes.add_pass(_Report, "report")
        passes.finalize()
        return [passes]


def infer(function, arguments: tuple) -> dict[str, object]:
    """Name -> numba type of every variable of a Python function, as numba types it.

    numba gives each assignment of a name a version of its own (`acc`, `acc.1`); the versions' types are unified, as
    they are where versions meet. A name whose versions do not unify has type None.
    """
    context, target = cpu_target.typing_context, cpu_target.target_context
    context.refresh()
    target.refresh()
    flags = compiler.Flags()
    flags.nrt = True
    flags.error_model = "numpy"
    try:
        compiler.compile_extra(context, target, function, arguments, None, flags, {}, pipeline_class=_TypesOnly)
    except _Found as found:
        (typemap,) = found.args
    versions: dict[str, list] = {}
    for name, numba_type in typemap.items():
        if name.startswith("$"):
            continue  # numba's own, for a part of an expression; they need not unify
        versions.setdefault(name.split(".")[0], []).append(types.unliteral(numba_type))
    return {name: context.unify_types(*found) for name, found in versions.items()}


def one_line(error: NumbaError, name: str) -> BadKernel:
    """A numba error as one line: what it says and where."""
    place = f", line {error.loc.line}" if getattr(error, "loc", None) and error.loc.line else ""
    noise = ("Failed in", "During:", "File ", "There are", "- Of which", "Overload", "Rejected", "raised from")
    lines = [line.strip(" >[]0123456789") for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if line and not line.startswith(noise)]
    return BadKernel(f"{name}{place}: numba can't compile it: {' '.join(said[:3])[:300]}")


def dtype_of(declared) -> np.dtype:
    """The NumPy dtype of what a kernel may give as a dtype: numba's or numba-cuda's types, NumPy's, a string."""
    if isinstance(declared, types.Type):
        return as_dtype(declared)
    if type(declared).__module__.startswith("numba."):  # numba-cuda has types of its own
        known = getattr(types, str(declared), None)
        return as_dtype(known) if known is not None else np.dtype(str(declared))
    return np.dtype(declared)


def storable(numba_type) -> np.dtype | None:
    """The dtype of an array that keeps such values, or None."""
    if isinstance(numba_type, (types.Number, types.Boolean)):
        return as_dtype(numba_type)
    return None


def is_argument(numba_type) -> bool:
    """Whether a kernel takes values of such a type."""
    if isinstance(numba_type, types.BaseTuple):
        return all(map(is_argument, numba_type))
    dates = (types.NPDatetime, types.NPTimedelta)
    return isinstance(numba_type, (types.Array, types.Number, types.Boolean, types.Record, types.EnumMember, *dates))


def as_core_type(value):
    """numba-cuda's own copy of a type (`numba.cuda.types.float32`) as numba's, which its CPU target knows."""
    if type(value).__module__.startswith("numba.cuda.") and hasattr(value, "bitwidth"):
        return getattr(types, str(value), value)
    return value


def signature_types(signature) -> tuple | None:
    """The argument types of an explicit signature ("void(float32[:], int32)", a tuple of types); None if none."""
    from numba.core.sigutils import normalize_signature

    if signature is None:
        return None
    if isinstance(signature, list):
        signature = signature[0]
    return normalize_signature(signature)[0]


def cast(argument, declared, what: str):
    """A scalar as its declared type; an array only if its dtype and dimensions are the declared ones."""
    if isinstance(declared, types.Array):
        found = getattr(argument, "dtype", None)
        if found != as_dtype(declared.dtype) or getattr(argument, "ndim", None) != declared.ndim:
            an_array = isinstance(argument, np.ndarray)
            kind = f"{argument.ndim}-D {found} array" if an_array else type(argument).__name__
            raise BadKernel(f"{what} is a {kind}, declared {declared}")
        return argument
    dtype = storable(declared)
    if dtype is None:
        return argument
    try:
        return np.asarray(argument).astype(dtype).reshape(1)[0]
    except (TypeError, ValueError) as e:
        raise BadKernel(f"{what} is a {type(argument).__name__}, declared {declared}") from e


# whether compiled code may be kept for another process

FIRST = 1 << 40  # of the numbers that numba gives to functions here
SETTINGS = "OPT BOUNDSCHECK LOOP_VECTORIZE SLP_VECTORIZE ENABLE_AVX CPU_NAME CPU_FEATURES USING_SVML DEBUGINFO_DEFAULT"
SETTINGS += " EXTEND_VARIABLE_LIFETIMES LLVM_REFPRUNE_PASS LLVM_REFPRUNE_FLAGS"
OURS = {"numba", "labkit", "builtins", "abc"}  # abc: classes that numba makes as it goes
_looked_at = [0, 0, 0]  # how many of numba's functions, attributes and globals: none of them a stranger's


def distinguish() -> None:
    """Number functions otherwise than any other process, so that none has another function's symbol.

    numba counts from 1 everywhere, and of two functions with one symbol (closures of one name) the linker takes either.
    """
    bytecode.FunctionIdentity._unique_ids = itertools.count(FIRST + secrets.randbits(60))


distinguish()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=distinguish)


def stands_alone(compiled) -> bool:
    """Whether compiled code holds no address of this process, and no symbol that means something else in another."""
    if compiled.library.has_dynamic_globals or any(not lifted.can_cache for lifted in compiled.lifted):
        return False
    symbols = [f.name for f in compiled.library._final_module.functions if not f.is_declaration]
    return all(int(number) >= FIRST for symbol in symbols for number in re.findall(r"B\d+v(\d+)", symbol))


def target() -> str:
    """The processor, and those of numba's settings that change what it compiles."""
    settings = [f"{name}={getattr(config, name, None)}" for name in SETTINGS.split()]
    return f"{cpu_target.target_context.codegen().magic_tuple()} {' '.join(settings)}"


def is_extended() -> bool:
    """Whether a stranger has taught numba what attributes mean, or functions and operators that are not his own."""
    registry = templates.builtin_registry
    for i, known in enumerate((registry.functions, registry.attributes, registry.globals)):
        if any(map(_is_a_strangers, known[_looked_at[i] :])):
            return True
        _looked_at[i] = len(known)
    return False


def _is_a_strangers(entry) -> bool:
    if isinstance(entry, tuple):  # a global, and its type
        return any(map(_is_a_strangers, getattr(entry[1], "templates", ())))
    functions = [getattr(entry, name, None) for name in ("_overload_func", "_definition_func")]
    strangers = {_root(x) for x in (*functions, *entry.__mro__)} - OURS
    return bool(strangers) and not (issubclass(entry, templates.FunctionTemplate) and _root(entry.key) in strangers)


def _root(thing) -> str:
    """The package that something comes from; what names none is Python's."""
    return (getattr(thing, "__module__", None) or "builtins").split(".")[0]
