"""What compiled code depends on, as text that is the same in every process; what can't be told so is not kept on disk.

A function's text says what it does only together with what its free names stand for: numbers and arrays (their
values are compiled in), functions of Python, NumPy and this package (their versions and sources tell), device
functions (text again).
"""

from __future__ import annotations

import ast
import builtins
import cmath
import math
import operator
import weakref
from types import BuiltinFunctionType, FunctionType, ModuleType

import numpy as np
from numba import types

MISSING = object()
PLAIN = (bool, int, str, bytes, type(None), type(...))
PUBLIC = (builtins, math, cmath, operator, np)  # modules whose functions and types mean the same everywhere
HOMES = {module.__name__ for module in PUBLIC}
SCALARS = (types.Number, types.Boolean, types.NoneType, types.EllipsisType, types.SliceType, types.DType)
SCALARS += (types.NumberClass, types.Literal, types.NPDatetime, types.NPTimedelta)
compiled: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # a function that numba compiles -> its key


class Unknown(Exception):
    """Something that no text tells."""


def meaning(source: str, names: dict, own: dict) -> str:
    """What each free name of a function's source stands for; `own` are names of this package's functions."""
    found = free(ast.parse(source).body[0], names)
    return "\n".join(f"{name} = {_own(name, found[name], own) or text(found[name])}" for name in sorted(found))


def _own(name: str, value: object, own: dict) -> str:
    return f"labkit's {name}" if value is not MISSING and own.get(name) is value else ""


def free(function: ast.FunctionDef, names: dict) -> dict[str, object]:
    """A function's free names, dotted ones as far as modules go, and what they stand for (or MISSING)."""
    return _Free(function, names).values


class _Free(ast.NodeVisitor):
    def __init__(self, function: ast.FunctionDef, names: dict):
        self.names, self.values = names, {}
        self.bound = {a.arg for a in (*function.args.posonlyargs, *function.args.args)}
        self.bound |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        for statement in function.body:
            self.visit(statement)

    def visit_Name(self, node: ast.Name) -> None:
        self.note(node.id, [])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        attributes, inner = [], node
        while isinstance(inner, ast.Attribute):
            attributes.insert(0, inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            self.note(inner.id, attributes)
        else:
            self.visit(inner)

    def note(self, name: str, attributes: list[str]) -> None:
        if name in self.bound:
            return
        value = self.names.get(name, vars(builtins).get(name, MISSING))
        for attribute in attributes:
            if not isinstance(value, ModuleType):
                break
            name, value = f"{name}.{attribute}", getattr(value, attribute, MISSING)
        self.values[name] = value


def text(value: object) -> str:
    """A value as text: two values that compile differently have different ones. Raises Unknown."""
    kind = type(value)
    if kind in PLAIN:
        return f"{kind.__name__} {value!r}"
    if kind in (float, complex):
        return f"{kind.__name__} {np.array(value).tobytes().hex()}"  # -0.0 and NaNs, too
    if kind is tuple:
        return f"({', '.join(map(text, value))})"
    if isinstance(value, np.dtype):
        return _dtype(value)
    if isinstance(value, np.generic) and getattr(np, kind.__name__, None) is kind:
        return f"{_dtype(value.dtype)} {value.tobytes().hex()}"
    if kind is np.ndarray:
        return f"array {_dtype(value.dtype)} {value.shape} {value.strides} {value.flags} {value.tobytes().hex()}"
    if isinstance(value, types.Type):
        return type_text(value)
    return _function(value)


def _dtype(dtype: np.dtype) -> str:
    if dtype.hasobject:
        raise Unknown
    return f"{dtype!r} of {dtype.itemsize}"


def _function(value: object) -> str:
    """A function or a class: one that this process compiles by its key, a public one by its place."""
    if isinstance(value, (FunctionType, BuiltinFunctionType, type, np.ufunc, type(np.sum))):
        home = (getattr(value, "__module__", None) or "numpy").split(".")[0].removeprefix("_")  # operator's: _operator
        for module in PUBLIC:
            if home in HOMES and vars(module).get(value.__name__, MISSING) is value:
                return f"{module.__name__}.{value.__name__}"
    elif value in compiled:
        return compiled[value]
    raise Unknown


def type_text(numba_type: types.Type) -> str:
    """A type of numba's as text. Raises Unknown for those whose names don't say all."""
    if isinstance(numba_type, types.BaseTuple):
        if type(numba_type) not in (types.Tuple, types.UniTuple):
            raise Unknown
        return f"({', '.join(map(type_text, numba_type.types))})"
    if isinstance(numba_type, (types.Array, types.DType)):
        type_text(numba_type.dtype)
    elif isinstance(numba_type, types.Omitted):
        return f"omitted {text(numba_type.value)}"
    elif not isinstance(numba_type, (*SCALARS, types.Record)) or isinstance(numba_type, types.IntEnumClass):
        raise Unknown
    if not type(numba_type).__module__.startswith("numba."):
        raise Unknown
    return f"{type(numba_type).__name__} {numba_type!r}"
