"""Compiled functions whose machine code is kept on disk: what takes seconds once takes milliseconds ever after.

numba can keep compiled functions itself (cache=True), but notices only a change of the file that a function stands in,
not of what was compiled into it. Here a name is the hash of everything (see `keys`): a function's text and all that its
free names stand for, argument types, options, this package's sources, the versions and the processor. What can't be
told completely is not kept. Like `private`, this touches what numba does not promise to keep.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from numba import njit
from numba.core.compiler import CompileResult

from labkit.cpu import keys, private, store


def sources() -> list[Path]:
    """The files of this package."""
    return sorted(Path(__file__).parent.glob("*.py"))


def states() -> list[tuple]:
    """What tells whether a file has been changed."""
    return [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in sources()]


@cache
def stamp() -> str:
    """What all that is kept depends on: versions, and the sources of this package."""
    versions = [sys.version]
    for package in ("numba", "llvmlite", "numpy", "numba-cuda"):
        with suppress(metadata.PackageNotFoundError):
            versions.append(metadata.version(package))
    return store.name(*versions, *(path.read_text(encoding="utf-8") for path in sources()))


AS_IMPORTED, _ = states(), stamp()  # now: once someone edits a file, it is not what runs here


def key_of(source: str, names: dict, own: dict, *more: str) -> str:
    """The hash of a function's source, of what its free names stand for, and of more. Raises keys.Unknown.

    own  names that may stand for this package's functions
    """
    return store.name(source, keys.meaning(source, names, own), *more)


def value(kind: str, key_of_it, make):
    """What `make()` gives, from the disk if it is there under the key."""
    try:
        name = _name(key_of_it())
    except keys.Unknown:
        return make()
    found = store.load(kind, name)
    if found is None:
        found = make()
        store.save(kind, name, found)
    return found


def _name(*parts: str) -> str:
    """A file's name. Raises Unknown if numba was taught by others, or a source has changed since: no key tells it."""
    if private.is_extended() or states() != AS_IMPORTED:
        raise keys.Unknown
    return store.name(stamp(), private.target(), *parts)


class _Kept:
    """In the place of numba's cache of one function: a file for each list of argument types."""

    def __init__(self, kind: str, key: str):
        self.kind, self.key = kind, key
        self.cache_path = str(store.folder(kind))

    def load_overload(self, types: tuple, target_context) -> CompileResult | None:
        with suppress(Exception):  # a type without a text, another numba: compiled anew
            found = store.load(self.kind, _name(self.key, *map(keys.type_text, types)))
            if found is not None:
                target_context.refresh()
                return CompileResult._rebuild(target_context, *found)
        return None

    def save_overload(self, types: tuple, compiled: CompileResult) -> None:
        with suppress(Exception):
            if private.stands_alone(compiled):
                store.save(self.kind, _name(self.key, *map(keys.type_text, types)), compiled._reduce())


def keep(dispatcher, kind: str, key: str):
    """The function, for which numba looks on the disk before it compiles."""
    dispatcher._cache = _Kept(kind, key)
    return dispatcher


def _place(function) -> str:
    """What tells a function of this package from all others. Raises Unknown where its place doesn't: two lambdas of a
    line, generated functions and closures over functions look alike.
    """
    module = sys.modules.get(function.__module__)
    in_file = function.__globals__ is vars(module) and function.__code__.co_filename == module.__file__
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    if function.__name__ == "<lambda>" or not in_file or not all(isinstance(c, (int, float, str)) for c in cells):
        raise keys.Unknown
    place = (function.__module__, function.__qualname__, function.__code__.co_firstlineno, *map(keys.text, cells))
    return " ".join(map(str, place))


def kept_njit(**options):
    """As numba's njit with these options, for the functions of this package."""
    compiled = njit(**options)

    def decorate(function):
        try:
            return keep(compiled(function), "instruments", _place(function))
        except keys.Unknown:
            return compiled(function)

    return decorate
