"""What a kernel is made of, as a hash: its compiled Python code, and all code and constants that it uses."""

from __future__ import annotations

import functools
import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import numpy as np

CONSTANTS = (bool, int, float, complex, str, bytes, type(None), type(...), np.generic, np.dtype)
UNDER = ("py_func", "fn", "_defn", "__wrapped__", "__func__")  # where numba's and Python's wrappers keep the function
STDLIB = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen")


def fingerprint(thing) -> str:
    """A hash of functions, kernels, and dicts and tuples of them; a comment changes nothing, a factor does.

    Followed are closures, defaults, globals and device functions. Not followed: installed packages (their versions
    tell), labkit but for labkit.ptx, and arrays on a device.
    """
    return hashlib.sha256("\n".join(_parts(thing, {})).encode()).hexdigest()


def _parts(thing, seen: dict[int, object]) -> Iterator[str]:
    """Strings that say what the thing is, the same in every process. `seen` keeps what was met alive, by its id."""
    if isinstance(thing, CONSTANTS):
        yield f"{type(thing).__name__} {thing!r}"
    elif isinstance(thing, (set, frozenset)):
        yield f"set {sorted(map(repr, thing))}"
    elif isinstance(thing, CodeType):
        yield f"code {thing.co_code.hex()} {thing.co_names} {thing.co_varnames}"
        yield from _each(thing.co_consts, seen)
    elif isinstance(thing, np.ndarray):
        yield f"array {thing.shape} {thing.dtype} {thing.tobytes().hex() if thing.nbytes <= 65536 else ''}"
    elif isinstance(thing, (ModuleType, type)) or id(thing) in seen:
        return
    elif isinstance(thing, (dict, list, tuple)):
        seen[id(thing)] = thing  # while at it: one that holds itself has an end
        yield f"{type(thing).__name__} of {len(thing)}"
        yield from _each(thing.items() if isinstance(thing, dict) else thing, seen)
        del seen[id(thing)]
    else:
        seen[id(thing)] = thing
        yield from _function(thing, seen) if isinstance(thing, FunctionType) else _object(thing, seen)


def _each(things, seen: dict[int, object]) -> Iterator[str]:
    for thing in things:
        yield from _parts(thing, seen)


def _object(thing, seen: dict[int, object]) -> Iterator[str]:
    """A kernel or another wrapper of a function, a partial, a number type, something that can be called."""
    inner = next((f for f in (getattr(thing, a, None) for a in UNDER) if isinstance(f, FunctionType)), None)
    call = vars(type(thing)).get("__call__")
    if inner:
        options = getattr(thing, "targetoptions", None) or getattr(thing, "options", None)
        yield from _each((options, inner), seen)
    elif isinstance(thing, functools.partial):
        yield from _each((thing.func, thing.args, thing.keywords), seen)
    elif type(thing).__module__.startswith("numba") and ".types" in type(thing).__module__:
        yield f"type {thing}"
    elif isinstance(call, FunctionType):
        yield from _each((call, getattr(thing, "__dict__", None)), seen)


def _function(function: FunctionType, seen: dict[int, object]) -> Iterator[str]:
    if _of_others(function.__code__.co_filename, function.__module__ or ""):
        yield f"{function.__module__}.{function.__qualname__}"
        return
    yield from _each((function.__code__, function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        try:
            yield from _parts(cell.cell_contents, seen)
        except ValueError:  # not bound yet
            continue
    names = _names(function.__code__)
    yield from _looked_up(function.__globals__, names, seen)


def _looked_up(space: dict, names: list[str], seen: dict[int, object]) -> Iterator[str]:
    """What the names stand for in a module; where one is a module itself, what they stand for there."""
    for name in names:
        value = space.get(name)
        if not isinstance(value, ModuleType):
            yield from _parts(value, seen)
        elif id(value) not in seen and (
            value.__name__ == "labkit" or not _of_others(getattr(value, "__file__", None) or "<frozen", value.__name__)
        ):
            seen[id(value)] = value
            yield from _looked_up(vars(value), names, seen)


def _of_others(file: str, module: str) -> bool:
    """Whether code is Python's own, an installed package's or labkit's, but for labkit.ptx: that is part of kernels."""
    if module == "labkit" or (module.startswith("labkit.") and not module.startswith("labkit.ptx")):
        return True
    return file.startswith(STDLIB) or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _names(code: CodeType) -> list[str]:
    """The names that a function and those inside it may look up."""
    inner = [name for c in code.co_consts if isinstance(c, CodeType) for name in _names(c)]
    return list(dict.fromkeys([*code.co_names, *inner]))
