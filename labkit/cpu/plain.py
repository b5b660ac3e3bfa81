"""CUDA's mathematical and integer functions of plain numbers, by the name that libdevice's names are built on.

`PLAIN` maps such a stem ("fmin", "erfcx", "byte_perm") to its function, of float32 as of float64 or of any integer
type. Those here that neither Python, NumPy nor LLVM has are written out.
"""

import math
import operator

import numpy as np
from numba import types

from labkit.cpu.llvm import (
    as_double,
    as_half,
    as_int16,
    as_int64,
    bitreverse,
    bits_as,
    compiled,
    ctlz,
    ctpop,
    cttz,
    fused,
    mulhi,
)


@compiled
def signbit(x):
    """Whether x has a minus sign, as -0.0 has."""
    return math.copysign(1.0, x) < 0


@compiled
def fmin(x, y):
    """The smaller, a number rather than NaN, -0.0 rather than 0.0."""
    return x if x < y or y != y or (x == y and signbit(x)) else y


@compiled
def fmax(x, y):
    """The larger, a number rather than NaN, 0.0 rather than -0.0."""
    return x if x > y or y != y or (x == y and not signbit(x)) else y


@compiled
def round_away(x):
    """The nearest whole number; of two as near, the one away from zero."""
    whole = np.trunc(x)
    return whole + math.copysign(1.0, x) if abs(x - whole) >= 0.5 else whole


@compiled
def saturate(x):
    """x held between 0 and 1; NaN becomes 0."""
    return min(x, 1.0) if x > 0.0 else 0.0


@compiled
def _fdim(x, y):
    return 0.0 if x <= y else x - y


@compiled
def cbrt(x):
    """The cube root: numba's, which is a power, and one of Newton's steps with the error of the cube."""
    x = np.float64(x)
    root = np.cbrt(x)
    if root == 0 or not math.isfinite(root):
        return root
    square = root * root
    return root - (fused(square, root, -x) + fused(root, root, -square) * root) / (3.0 * square)


@compiled
def _sincospi(x):
    quarter = np.rint(2.0 * np.fmod(np.float64(x), 2.0))  # the multiple of pi / 2 next to pi * x
    rest = math.pi * (np.fmod(np.float64(x), 2.0) - 0.5 * quarter)
    sine, cosine, turn = math.sin(rest), math.cos(rest), int(quarter) & 3 if quarter == quarter else 0
    if turn & 1:
        sine, cosine = cosine, 0.0 - sine
    return (-sine, -cosine) if turn & 2 else (sine, cosine)


@compiled
def _remquo(x, y):
    """The remainder of the quotient rounded to nearest even, and that quotient's sign and last three bits."""
    rest, size, quotient = np.fmod(abs(x), 8 * abs(y)), abs(y), 0
    for factor in (4, 2, 1):
        if rest >= factor * size:
            rest, quotient = rest - factor * size, quotient + factor
    if rest + rest > size or (rest + rest == size and quotient & 1):
        rest, quotient = rest - size, quotient + 1
    quotient = -(quotient & 7) if signbit(x) != signbit(y) else quotient & 7
    return (-rest if signbit(x) else rest), quotient


@compiled
def _ilogb(x):
    if x == 0 or x != x:
        return -(2**31)
    return 2**31 - 1 if math.isinf(x) else math.frexp(x)[1] - 1


@compiled
def _logb(x):
    if x == 0 or x != x or math.isinf(x):
        return -np.inf if x == 0 else abs(x)
    return float(math.frexp(x)[1] - 1)


@compiled
def _modf(x):
    whole = np.trunc(x)
    return math.copysign(0.0 if math.isinf(x) else x - whole, x), whole


@compiled
def _erfcx(x):
    """exp(x * x) * erfc(x): as written for x < 3, beyond by its continued fraction."""
    if x < 3.0:
        return math.exp(x * x) * math.erfc(x)
    value = x
    for k in range(60, 0, -1):
        value = x + 0.5 * k / value
    return 1.0 / (math.sqrt(math.pi) * value)


@compiled
def _erfcinv(y, near_one=0.0, centred=False):
    """The x with erfc(x) = y; or with erf(x) = ``near_one``, if ``centred``. Three of Halley's steps from a fit."""
    if not 0.0 < y < 2.0:
        return np.nan if not (y == 0.0 or y == 2.0) else (np.inf if y == 0.0 else -np.inf)
    tail = min(y, 2.0 - y)
    t = math.sqrt(-2.0 * math.log(0.5 * tail))
    x = math.sqrt(0.5) * (t - (2.30753 + t * 0.27061) / (1.0 + t * (0.99229 + t * 0.04481)))
    x = -x if y > 1.0 else x
    for _ in range(3):
        error = near_one - math.erf(x) if centred else math.erfc(x) - y
        x += error / (2.0 / math.sqrt(math.pi) * math.exp(-x * x) - x * error)
    return x


@compiled
def _erfinv(x):
    return _erfcinv(1.0 - x, x, True) if abs(x) < 0.5 else math.copysign(_erfcinv(1.0 - abs(x)), x)


@compiled
def _byte_perm(x, y, selector):
    """Four of the eight bytes of y:x, each chosen by three bits of a selector's digit."""
    both, result = (np.int64(y) & 0xFFFFFFFF) << 32 | (np.int64(x) & 0xFFFFFFFF), 0
    for digit in range(0, 16, 4):
        result |= (both >> (8 * ((selector >> digit) & 7)) & 0xFF) << (2 * digit)
    return result


@compiled
def _signed24(x):
    return ((np.int64(x) & 0xFFFFFF) ^ 0x800000) - 0x800000


OF_MATH = """acos acosh asin asinh atan atan2 atanh copysign cos cosh erf erfc exp expm1 fabs frexp hypot isfinite isinf
isnan ldexp lgamma log log10 log1p log2 pow sin sinh sqrt tan tanh"""
PLAIN = {name: getattr(math, name) for name in OF_MATH.split()}
PLAIN |= {name: getattr(np, name) for name in ("ceil", "exp2", "floor", "fmod", "nextafter", "rint", "trunc")}
PLAIN |= {
    "finite": math.isfinite,
    "tgamma": math.gamma,
    "scalbn": math.ldexp,
    "nearbyint": np.rint,
    "round": round_away,
    "fmin": fmin,
    "fmax": fmax,
    "fdim": _fdim,
    "saturate": saturate,
    "signbit": signbit,
    "logb": _logb,
    "ilogb": _ilogb,
    "modf": _modf,
    "remquo": _remquo,
    "cbrt": cbrt,
    "erfcx": _erfcx,
    "erfinv": _erfinv,
    "sincospi": _sincospi,
    "exp10": compiled(lambda x: np.power(10.0, np.float64(x))),
    "rsqrt": compiled(lambda x: 1.0 / math.sqrt(np.float64(x))),
    "rcbrt": compiled(lambda x: 1.0 / cbrt(x)),
    "sincos": compiled(lambda x: (math.sin(x), math.cos(x))),
    "sinpi": compiled(lambda x: _sincospi(x)[0]),
    "cospi": compiled(lambda x: _sincospi(x)[1]),
    "remainder": compiled(lambda x, y: _remquo(x, y)[0]),
    "erfcinv": compiled(lambda x: _erfcinv(np.float64(x))),
    "normcdf": compiled(lambda x: 0.5 * math.erfc(-x * math.sqrt(0.5))),
    "normcdfinv": compiled(lambda x: -math.sqrt(2.0) * _erfcinv(2.0 * x)),
    "powi": compiled(lambda x, n: math.pow(np.float64(x), np.float64(n))),
    "fdivide": operator.truediv,
    "fma": fused,
    "abs": abs,
    "min": min,
    "max": max,
    "popc": ctpop,
    "clz": ctlz,
    "brev": bitreverse,
    "ffs": compiled(lambda x: cttz(x) + 1 if x else 0),
    "mulhi": mulhi,
    "byte_perm": _byte_perm,
    "hadd": compiled(lambda x, y: (np.int64(x) + np.int64(y)) >> 1),
    "rhadd": compiled(lambda x, y: (np.int64(x) + np.int64(y) + 1) >> 1),
    "sad": compiled(lambda x, y, z: abs(np.int64(x) - np.int64(y)) + np.int64(z)),
    "mul24": compiled(lambda x, y: _signed24(x) * _signed24(y)),
    "umul24": compiled(lambda x, y: np.int64(x & 0xFFFFFF) * np.int64(y & 0xFFFFFF)),
    "float_as_int": bits_as(types.int32),
    "int_as_float": bits_as(types.float32),
    "double_as_longlong": as_int64,
    "longlong_as_double": as_double,
    "float2half": compiled(lambda x: as_int16(np.float16(x))),
    "half2float": as_half,
    "double2hiint": compiled(lambda x: as_int64(x) >> 32),
    "double2loint": compiled(lambda x: as_int64(x) & 0xFFFFFFFF),
    "hiloint2double": compiled(lambda x, y: as_double(np.int64(x) << 32 | (np.int64(y) & 0xFFFFFFFF))),
}
