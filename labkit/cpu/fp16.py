"""The functions of cuda.fp16, on float32 (three terms: on float64, exact enough to round product and sum once).

`MAKERS` maps a name ("hadd", "__half2int_rz") to what makes its function, once ``half.install()`` has given numba
float16. Functions of math have names in h alone.
"""

import math
import operator
from functools import partial

import numpy as np
from numba import types

from labkit.cpu.libdevice import NEAREST
from labkit.cpu.llvm import bits_as, compiled
from labkit.cpu.plain import PLAIN, fmax, fmin, saturate
from labkit.cpu.rounding import DIRECTIONS, conversion
from labkit.cpu.typed import C_TYPES, typed

MAKERS = {}
MATH = {name: getattr(math, name) for name in ("cos", "exp", "log", "log10", "log2", "sin", "sqrt", "tanh")}
MATH |= {name: PLAIN[name] for name in ("ceil", "exp10", "exp2", "floor", "rint", "rsqrt", "trunc")}
MATH |= {"rcp": NEAREST["rcp"], "tanh_approx": math.tanh}
ONE = {"abs": abs, "neg": operator.neg}
TWO = {name: NEAREST[name] for name in ("add", "sub", "mul", "div")} | {"min": fmin, "max": fmax}
TWO |= {f"{name}_rn": NEAREST[name] for name in ("add", "sub", "mul")}
TWO |= {
    "add_sat": compiled(lambda x, y: saturate(x + y)),
    "sub_sat": compiled(lambda x, y: saturate(x - y)),
    "mul_sat": compiled(lambda x, y: saturate(x * y)),
    "min_nan": compiled(lambda x, y: fmin(x, y) if x == x and y == y else np.nan),
    "max_nan": compiled(lambda x, y: fmax(x, y) if x == x and y == y else np.nan),
}
THREE = {
    "fma": compiled(lambda x, y, z: x * y + z),
    "fma_sat": compiled(lambda x, y, z: saturate(x * y + z)),
    "fma_relu": compiled(lambda x, y, z: max(x * y + z, 0.0) if x * y + z == x * y + z else np.nan),
}
COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ge", "gt", "le", "lt")}  # with NaN: False
COMPARISONS |= {
    "ne": compiled(lambda x, y: x < y or x > y),
    "equ": compiled(lambda x, y: not (x < y or x > y)),  # with NaN, the "unordered" ones are True
    "neu": operator.ne,
    "geu": compiled(lambda x, y: not x < y),
    "gtu": compiled(lambda x, y: not x <= y),
    "leu": compiled(lambda x, y: not x > y),
    "ltu": compiled(lambda x, y: not x >= y),
}
# These are called by names with and without underscores.
BARE = {"abs", "add", "div", "eq", "fma", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "neg", "sub"}


@compiled
def _isinf(x):
    return (1 if x > 0 else -1) if math.isinf(x) else 0


def _add(name, make, result, parameters, inner=None):
    MAKERS[name] = partial(typed, make, [result], parameters, inner)


def _add_operations() -> None:
    groups = ((MATH, "float16", 1), (ONE, "float16", 1), (TWO, "float16", 2), (THREE, "float16", 3))
    for table, result, count in (*groups, (COMPARISONS, "bool", 2)):
        for name in table:
            prefixes = ("h",) if table is MATH else ("h", "__h") if name in BARE else ("__h",)
            for prefix in prefixes:
                inner = "float64" if count == 3 else "float32"
                _add(f"{prefix}{name}", partial(table.get, name), result, ["float16"] * count, inner)
    _add("__hisnan", lambda: math.isnan, "bool", ["float16"], "float32")
    _add("__hisinf", lambda: _isinf, "int32", ["float16"], "float32")


def _add_conversions() -> None:
    for kind, name in (("short", "int16"), ("ushort", "uint16")):
        _add(f"__half_as_{kind}", partial(bits_as, getattr(types, name)), name, ["float16"])
        _add(f"__{kind}_as_half", partial(bits_as, types.float16), "float16", [name])
    for kind, name in C_TYPES.items():
        for mode in () if kind in ("half", "double") else ("rn", *DIRECTIONS):
            if "char" not in kind:
                _add(f"__{kind}2half_{mode}", partial(conversion, name, "float16", mode), "float16", [name])
            if kind != "float" and (mode == "rz" or "char" not in kind):
                _add(f"__half2{kind}_{mode}", partial(conversion, "float16", name, mode), name, ["float16"])
    _add("__half2float", lambda: np.float32, "float32", ["float16"])
    _add("__double2half", lambda: np.float16, "float16", ["float64"])
    _add("__float2half", lambda: np.float16, "float16", ["float32"])
    MAKERS["__half"] = lambda: compiled(lambda x: np.float16(x))


_add_operations()
_add_conversions()
