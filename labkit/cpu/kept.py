"""The instruments' machine code, kept on disk: they are the same in every process, and take seconds to compile.

numba can keep compiled functions itself (cache=True), but notices only a change of the file that a function stands in,
not of what was compiled into it. Here everything counts: all files of this package, numba, NumPy. Like `private`,
this touches what numba does not promise to keep; where that fails, or the folder can't be written, nothing is kept.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import numba
import numpy as np
from numba import njit
from numba.core import caching
from platformdirs import user_cache_path


@cache
def stamp() -> str:
    """A hash of all that the machine code depends on, but for the processor, which numba looks at."""
    versions = f"{numba.__version__} {np.__version__}"
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join([versions.encode(), *(p.read_bytes() for p in sources)])).hexdigest()


class _Locator(caching._CacheLocator):
    """In the user's cache folder, or in $LABKIT_CACHE."""

    def __init__(self, function):
        self.module = function.__module__.rpartition(".")[2]

    @classmethod
    def from_function(cls, py_func, py_file):
        return cls(py_func)

    def get_cache_path(self) -> str:
        folder = Path(os.environ.get("LABKIT_CACHE") or user_cache_path("labkit"))
        return str(folder / "instruments")

    def get_source_stamp(self) -> str:
        return stamp()

    def get_disambiguator(self) -> str:
        return self.module


class _Impl(caching.CompileResultCacheImpl):
    _locator_classes = (_Locator,)

    def __init__(self, py_func):
        self._lineno = py_func.__code__.co_firstlineno
        self._locator = _Locator(py_func)
        self._locator.ensure_cache_path()
        name = f"{self._locator.module}.{py_func.__qualname__}-{self._lineno}"
        self._filename_base = self.get_filename_base(name, "")

    def check_cachable(self, cres) -> bool:
        return not (cres.library.has_dynamic_globals or any(not lifted.can_cache for lifted in cres.lifted))


class _Kept(caching.FunctionCache):
    """A damaged file is as good as none: compiled anew, and replaced."""

    _impl_class = _Impl

    def load_overload(self, sig, target_context):
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # pickle raises whatever it stumbles over
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig, data):
        with suppress(Exception):
            super().save_overload(sig, data)


def _has_one_meaning(function) -> bool:
    """Whether a function's place and code say all about it. numba's key has the code's bytes, not the names and
    constants in it: it cannot tell two lambdas of a line apart, generated functions, or closures over functions.
    """
    if function.__name__ == "<lambda>":
        return False
    module = sys.modules.get(function.__module__)
    in_file = function.__globals__ is vars(module) and function.__code__.co_filename == module.__file__
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return in_file and all(isinstance(value, (int, float, str)) for value in cells)


def kept_njit(**options):
    """As numba's njit with these options, for the functions of this package."""
    compiled = njit(**options)

    def decorate(function):
        dispatcher = compiled(function)
        if not _has_one_meaning(function):
            return dispatcher
        with suppress(Exception):  # a folder that can't be written, another numba: it works as well, only later
            dispatcher._cache = _Kept(function)
        return dispatcher

    return decorate
