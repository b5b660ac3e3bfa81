"""The functions of libdevice: each name of numba.cuda's list matched with what implements it.

`MAKERS` maps a name ("expf") to what makes its function; `REFUSED` holds the names that can't run here. float32
functions return float32, computed there or in float64 and rounded; the fast_ variants are as accurate as the plain.
"""

import math
import operator
import re
from functools import partial

import numpy as np
from numba.cuda import libdevicefuncs

from labkit.cpu.llvm import compiled, fused
from labkit.cpu.plain import PLAIN, round_away
from labkit.cpu.rounding import conversion, directed, to_integer
from labkit.cpu.typed import C_TYPES, CASTS, typed

STEMS = PLAIN | {"llrint": conversion("float64", "int64", "rn"), "llround": to_integer(round_away, "int64", True)}
NEAREST = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "fma": fused}
NEAREST |= {"rcp": compiled(lambda x: np.float32(1.0) / x), "sqrt": math.sqrt, "rsqrt": PLAIN["rsqrt"]}
MAKERS, REFUSED = {}, set()


def _implementation(name: str):
    """What makes a libdevice function's implementation, or None; names tell kinds (f, d, ll, u) and rounding modes."""
    bare = name.removeprefix("fast_")
    if (match := re.fullmatch(r"([a-z]+)2([a-z]+)_(r[nduz])", bare)) and match[2] != "half":
        return partial(conversion, C_TYPES[match[1]], C_TYPES[match[2]], match[3])
    if match := re.fullmatch(r"[fd]?(add|sub|mul|div|rcp|sqrt|rsqrt|fma)f?_(r[nduz])", bare):
        if match[2] == "rn":
            return partial(NEAREST.get, match[1])
        return None if bare.startswith("fma_") else partial(directed, match[1], match[2])
    stems = (bare, re.sub("[fd]$", "", bare), re.sub("^(ull|ll|u)|ll$", "", bare), re.sub("^u|64", "", bare))
    return next((partial(STEMS.get, stem) for stem in (*stems, bare.removesuffix("_rn")) if stem in STEMS), None)


def _fill() -> None:
    for name, (result, arguments) in libdevicefuncs.functions.items():
        name = name.removeprefix("__nv_")
        results = [str(kind) for kind in (result, *(a.ty for a in arguments if a.is_ptr)) if str(kind) in CASTS]
        parameters = [str(argument.ty) for argument in arguments if not argument.is_ptr]
        if make := _implementation(name):
            inner = f"u{parameters[0]}" if name.startswith("u") else None
            MAKERS[name] = partial(typed, make, results, parameters, inner)
        else:
            REFUSED.add(name)


_fill()
