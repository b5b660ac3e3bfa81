"""CUDA's device functions for numba's CPU target: what ``cuda.popc``, ``cuda.fp16.hadd``, ``libdevice.expf`` mean.

``FUNCTIONS`` maps dotted names (below ``cuda``: "popc", "fp16.hadd", "libdevice.expf"; "math.floor" and "builtins.min"
where numba's two targets differ) to functions that njit compiles; ``REFUSED`` holds the names that can't run here.
Arguments are converted to the declared types and results have the declared type, as in numba-cuda; float32 functions
return float32, computed there or in float64 and rounded. Meanings are those of the CUDA math API and of the libdevice
user's guide; the fast_ variants are as accurate as the plain ones. Half functions need ``half.install()`` first.
"""

import builtins
import math
import operator
import re
from collections.abc import Mapping
from functools import partial

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.cuda import libdevicefuncs
from numba.extending import intrinsic, overload


class Lazily(Mapping):
    """A read-only dict of functions, each made (for numba, it takes a while) when it's first asked for."""

    def __init__(self):
        self._makers, self._made = {}, {}

    def add(self, name: str, maker) -> None:
        self._makers[name] = maker

    def __getitem__(self, name: str):
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __contains__(self, name) -> bool:
        return name in self._makers

    def __iter__(self):
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


FUNCTIONS = Lazily()
REFUSED = {
    "fp16.atomicAdd",
    "math.gcd",
}  # there are no pointers here, and numba-cuda has no gcd; libdevice's join below
FLOATS, INTEGERS = ("float16", "float32", "float64"), ("int8", "int16", "int32", "int64")
CASTS = {name: getattr(np, name) for name in (*FLOATS, *INTEGERS, *(f"u{name}" for name in INTEGERS))}
CASTS["bool"] = np.bool_
C_TYPES = {"float": "float32", "double": "float64", "half": "float16", "char": "int8", "short": "int16"}
C_TYPES |= {"int": "int32", "ll": "int64", "uchar": "uint8", "ushort": "uint16", "uint": "uint32", "ull": "uint64"}
DIRECTIONS = ("rd", "ru", "rz")  # down, up, to zero; rn, to nearest even, is the plain operation
TINY = 2.0**-900  # below it the error of a float64 operation needs scaling
compiled = njit(error_model="numpy", no_cfunc_wrapper=True)  # x / 0 is infinite and raises nothing, as on the GPU


def typed(make, results, parameters, inner=None):
    """What ``make()`` gives, of arguments made ``parameters`` (then to ``inner``), its result as ``results``."""
    implementation, casts = make(), [CASTS[name] for name in parameters]
    insides = [CASTS[inner]] * len(casts) if inner else casts
    (cast, into), (cast_y, into_y), (cast_z, into_z) = [*zip(casts, insides, strict=True), *[(None, None)] * 2][:3]
    give, also = CASTS[results[0]], CASTS[results[-1]]
    if len(results) == 2:
        first = give
        give = compiled(lambda values: (first(values[0]), also(values[1])))
    if len(casts) == 1:
        return compiled(lambda x: give(implementation(into(cast(x)))))
    if len(casts) == 2:
        return compiled(lambda x, y: give(implementation(into(cast(x)), into_y(cast_y(y)))))
    return compiled(lambda x, y, z: give(implementation(into(cast(x)), into_y(cast_y(y)), into_z(cast_z(z)))))


# ------------------------------------------------------------------------------------------------ LLVM's operations
def _of_bits(build):
    @intrinsic
    def call(typingctx, x):
        kind = types.unliteral(x)
        return kind(kind), lambda context, builder, signature, args: build(builder, args[0])

    return call


_DEFINED = ir.Constant(ir.IntType(1), 0)  # zero is a valid argument
ctpop = _of_bits(lambda builder, x: builder.ctpop(x))
ctlz = _of_bits(lambda builder, x: builder.ctlz(x, _DEFINED))
cttz = _of_bits(lambda builder, x: builder.cttz(x, _DEFINED))
bitreverse = _of_bits(lambda builder, x: builder.bitreverse(x))


@intrinsic
def fused(typingctx, x, y, z):
    """x * y + z of one float type, rounded once."""
    return x(x, x, x), lambda context, builder, signature, args: builder.fma(*args)


@intrinsic
def mulhi(typingctx, x, y):
    """The upper half of the product of two integers of one type."""

    def generate(context, builder, signature, args):
        wide = ir.IntType(2 * x.bitwidth)
        product = builder.mul(*[(builder.sext if x.signed else builder.zext)(value, wide) for value in args])
        return builder.trunc(builder.lshr(product, ir.Constant(wide, x.bitwidth)), args[0].type)

    return x(x, x), generate


def bits_as(kind):
    """The function that reads the bits of its argument as a number of type ``kind``."""

    @intrinsic
    def call(typingctx, x):
        def generate(context, builder, signature, args):
            return builder.bitcast(args[0], context.get_value_type(kind))

        return kind(x), generate

    return call


as_int16, as_int64, as_half, as_double = map(bits_as, (types.int16, types.int64, types.float16, types.float64))


# ------------------------------------------------------------------------------------------------- plain functions
@compiled
def _signbit(x):
    return math.copysign(1.0, x) < 0


@compiled
def _fmin(x, y):
    return x if x < y or y != y or (x == y and _signbit(x)) else y


@compiled
def _fmax(x, y):
    return x if x > y or y != y or (x == y and not _signbit(x)) else y


@compiled
def _round(x):
    whole = np.trunc(x)
    return whole + math.copysign(1.0, x) if abs(x - whole) >= 0.5 else whole


@compiled
def _saturate(x):
    return min(x, 1.0) if x > 0.0 else 0.0  # NaN becomes 0


@compiled
def _fdim(x, y):
    return 0.0 if x <= y else x - y


@compiled
def _cbrt(x):
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
    quotient = -(quotient & 7) if _signbit(x) != _signbit(y) else quotient & 7
    return (-rest if _signbit(x) else rest), quotient


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


MATH = (
    "acos acosh asin asinh atan atan2 atanh copysign cos cosh erf erfc exp expm1 fabs frexp hypot isfinite isinf isnan"
)
MATH += " ldexp lgamma log log10 log1p log2 pow sin sinh sqrt tan tanh"
PLAIN = {name: getattr(math, name) for name in MATH.split()}
PLAIN |= {name: getattr(np, name) for name in ("ceil", "exp2", "floor", "fmod", "nextafter", "rint", "trunc")}
PLAIN |= {"finite": math.isfinite, "tgamma": math.gamma, "scalbn": math.ldexp, "nearbyint": np.rint, "round": _round}
PLAIN |= {
    "fmin": _fmin,
    "fmax": _fmax,
    "fdim": _fdim,
    "saturate": _saturate,
    "signbit": _signbit,
    "logb": _logb,
    "cbrt": _cbrt,
}
PLAIN |= {"ilogb": _ilogb, "modf": _modf, "remquo": _remquo, "erfcx": _erfcx, "erfinv": _erfinv, "sincospi": _sincospi}
PLAIN |= {
    "exp10": compiled(lambda x: np.power(10.0, np.float64(x))),
    "rsqrt": compiled(lambda x: 1.0 / math.sqrt(np.float64(x))),
    "rcbrt": compiled(lambda x: 1.0 / _cbrt(x)),
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


# ---------------------------------------------------------------------------------------------- directed rounding
# The result rounded to nearest, and one step from it where the sign of its error (exact - rounded) says so.
@compiled
def _sum_error(x, y, result):
    if math.isinf(result):
        return -result if math.isfinite(x) and math.isfinite(y) else 0.0
    total = x + y
    back = total - x
    return (total - result) + ((x - (total - back)) + (y - back))


@compiled
def _product_error(x, y, result):
    if abs(result) < TINY and x != 0 and y != 0:
        if result == 0:
            return math.copysign(1.0, x) * math.copysign(1.0, y)
        x, y = (x, y * 2.0**300) if abs(x) > abs(y) else (x * 2.0**300, y)
        result *= 2.0**300
    return fused(x, y, -result)


@compiled
def _quotient_error(x, y, result):
    if result == 0 and x != 0 and math.isfinite(y):
        return math.copysign(1.0, x) * math.copysign(1.0, y)
    if abs(x) < 2.0**-500 and abs(y) < 2.0**500:
        x, y = x * 2.0**500, y * 2.0**500
    return fused(-result, y, x) * math.copysign(1.0, y)


@compiled
def _root_error(x, result):
    if x < TINY:
        x, result = x * 2.0**200, result * 2.0**100
    return fused(-result, result, x)


@compiled
def _half_step(x, towards):
    bits = np.int64(as_int16(x)) & 0x7FFF
    if bits == 0:
        return as_half(np.int16(1 if towards > 0 else -0x7FFF))
    return as_half(np.int16(as_int16(x) + (1 if (towards > 0) == (x > 0) else -1)))


def _chooser(direction, half=False):
    """The function that moves a result one step, in ``direction``, if the sign of its error asks for it."""
    step = _half_step if half else np.nextafter
    end = np.float16(np.inf) if half else np.float32(np.inf)

    @compiled
    def down(result, error):
        return step(result, -end) if error < 0 else result

    @compiled
    def up(result, error):
        return step(result, end) if error > 0 else result

    @compiled
    def to_zero(result, error):
        if result == 0:
            return result
        return down(result, error) if result > 0 else up(result, error)

    return {"rd": down, "ru": up, "rz": to_zero}[direction]


@compiled
def _zero_sum(x, y, result):
    """The sum of opposite numbers is -0.0 where one rounds down."""
    return -abs(result) if x == -y and _signbit(x) != _signbit(y) else result


def _directed(operation: str, direction: str):
    choose, is_down, double, one = _chooser(direction), direction == "rd", np.float64, np.float32(1.0)
    if operation in ("add", "sub"):
        subtracts = operation == "sub"

        @compiled
        def add(x, y):
            y = -y if subtracts else y
            result = choose(x + y, _sum_error(double(x), double(y), double(x + y)))
            return _zero_sum(x, y, result) if is_down else result

        return add
    if operation == "fma":

        @compiled
        def fma(x, y, z):
            nearest, product = fused(x, y, z), double(x) * double(y)
            result = choose(nearest, _sum_error(product, double(z), double(nearest)))
            return _zero_sum(product, z, result) if is_down else result

        return fma
    return compiled(
        {
            "mul": lambda x, y: choose(x * y, _product_error(double(x), double(y), double(x * y))),
            "div": lambda x, y: choose(x / y, _quotient_error(double(x), double(y), double(x / y))),
            "rcp": lambda x: choose(one / x, _quotient_error(1.0, double(x), double(one / x))),
            "sqrt": lambda x: choose(math.sqrt(x), _root_error(double(x), double(math.sqrt(x)))),
        }[operation]
    )


def _to_integer(rounding, target: str, from_double: bool):
    """A conversion to the integer type ``target``: beyond its range its end, and of NaN what PTX's cvt gives."""
    give, info = CASTS[target], np.iinfo(target)
    lowest, highest, low, high = give(info.min), give(info.max), float(info.min), float(info.max + 1)
    of_nan = give(info.max // 2 + 1 if info.min == 0 else info.min) if from_double or info.bits == 64 else give(0)

    @compiled
    def convert(x):
        x = rounding(np.float64(x))
        if x != x:
            return of_nan
        return lowest if x < low else highest if x >= high else give(x)

    return convert


def conversion(source: str, target: str, mode: str):
    """The conversion between two types with rounding mode rn, rd, ru or rz."""
    if "int" in target:
        rounding = {"rn": np.rint, "rd": np.floor, "ru": np.ceil, "rz": np.trunc}[mode]
        return _to_integer(rounding, target, source == "float64")
    give = CASTS[target]
    if mode == "rn":
        return compiled(lambda x: give(x))
    choose = _chooser(mode, target == "float16")
    if target == "float16" or source == "float64":
        return compiled(lambda x: choose(give(np.float64(x)), np.float64(x) - np.float64(give(np.float64(x)))))

    @compiled
    def convert(x):
        nearest, upper = give(x), np.float64(x >> 32) * 2.0**32
        return choose(nearest, _sum_error(upper, np.float64(x & 0xFFFFFFFF), np.float64(nearest)))

    return convert


# ------------------------------------------------------------------------------------------------------ the tables
PLAIN |= {"llrint": conversion("float64", "int64", "rn"), "llround": _to_integer(_round, "int64", True)}
NEAREST = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "fma": fused}
NEAREST |= {"rcp": compiled(lambda x: np.float32(1.0) / x), "sqrt": math.sqrt, "rsqrt": PLAIN["rsqrt"]}


def _libdevice(name: str):
    """What makes a libdevice function's implementation, or None; names tell kinds (f, d, ll, u) and rounding modes."""
    bare = name.removeprefix("fast_")
    if (match := re.fullmatch(r"([a-z]+)2([a-z]+)_(r[nduz])", bare)) and match[2] != "half":
        return partial(conversion, C_TYPES[match[1]], C_TYPES[match[2]], match[3])
    if match := re.fullmatch(r"[fd]?(add|sub|mul|div|rcp|sqrt|rsqrt|fma)f?_(r[nduz])", bare):
        if match[2] == "rn":
            return partial(NEAREST.get, match[1])
        return None if bare.startswith("fma_") else partial(_directed, match[1], match[2])
    stems = (bare, re.sub("[fd]$", "", bare), re.sub("^(ull|ll|u)|ll$", "", bare), re.sub("^u|64", "", bare))
    return next((partial(PLAIN.get, stem) for stem in (*stems, bare.removesuffix("_rn")) if stem in PLAIN), None)


def _add_libdevice() -> None:
    for name, (result, arguments) in libdevicefuncs.functions.items():
        name = name.removeprefix("__nv_")
        results = [str(kind) for kind in (result, *(a.ty for a in arguments if a.is_ptr)) if str(kind) in CASTS]
        parameters = [str(argument.ty) for argument in arguments if not argument.is_ptr]
        make = _libdevice(name)
        if make is None:
            REFUSED.add(f"libdevice.{name}")
        else:
            inner = f"u{parameters[0]}" if name.startswith("u") else None
            FUNCTIONS.add(f"libdevice.{name}", partial(typed, make, results, parameters, inner))


# half's functions, on float32 (three terms: on float64, where the product and the sum are exact enough to round once)
HALF_ONE = {"abs": abs, "neg": operator.neg, "exp": math.exp, "log": math.log, "log2": math.log2, "log10": math.log10}
HALF_ONE |= {"cos": math.cos, "sin": math.sin, "sqrt": math.sqrt, "tanh": math.tanh, "tanh_approx": math.tanh}
HALF_ONE |= {"rcp": NEAREST["rcp"]} | {name: PLAIN[name] for name in ("ceil", "exp10", "exp2", "floor", "rint")}
HALF_ONE |= {name: PLAIN[name] for name in ("rsqrt", "trunc")}
HALF_TWO = {name: NEAREST[name] for name in ("add", "sub", "mul", "div")} | {"min": _fmin, "max": _fmax}
HALF_TWO |= {f"{name}_rn": NEAREST[name] for name in ("add", "sub", "mul")}
HALF_TWO |= {
    "add_sat": compiled(lambda x, y: _saturate(x + y)),
    "sub_sat": compiled(lambda x, y: _saturate(x - y)),
    "mul_sat": compiled(lambda x, y: _saturate(x * y)),
    "min_nan": compiled(lambda x, y: _fmin(x, y) if x == x and y == y else np.nan),
    "max_nan": compiled(lambda x, y: _fmax(x, y) if x == x and y == y else np.nan),
}
HALF_THREE = {
    "fma": compiled(lambda x, y, z: x * y + z),
    "fma_sat": compiled(lambda x, y, z: _saturate(x * y + z)),
    "fma_relu": compiled(lambda x, y, z: max(x * y + z, 0.0) if x * y + z == x * y + z else np.nan),
}
HALF_COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ge", "gt", "le", "lt")}  # with NaN: False
HALF_COMPARISONS |= {
    "ne": compiled(lambda x, y: x < y or x > y),
    "equ": compiled(lambda x, y: not (x < y or x > y)),  # with NaN, the "unordered" ones are True
    "neu": operator.ne,
    "geu": compiled(lambda x, y: not x < y),
    "gtu": compiled(lambda x, y: not x <= y),
    "leu": compiled(lambda x, y: not x > y),
    "ltu": compiled(lambda x, y: not x >= y),
}
BARE_HALF = {"abs", "add", "div", "eq", "fma", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "neg", "sub"}
HALF_BITS = {"half_as_short": ("float16", "int16"), "half_as_ushort": ("float16", "uint16")}
HALF_BITS |= {"short_as_half": ("int16", "float16"), "ushort_as_half": ("uint16", "float16")}


def _add_halves() -> None:
    def add(name, make, results, parameters, inner=None):
        FUNCTIONS.add(f"fp16.{name}", partial(typed, make, [results], parameters, inner))

    half, single = ["float16"], "float32"
    groups = ((HALF_ONE, "float16", 1), (HALF_TWO, "float16", 2), (HALF_THREE, "float16", 3))
    for table, result, count in (*groups, (HALF_COMPARISONS, "bool", 2)):
        for name in table:
            of_math = table is HALF_ONE and name not in BARE_HALF  # these have no name with underscores
            for prefix in ["h"] * (of_math or name in BARE_HALF) + ["__h"] * (not of_math):
                inner = "float64" if count == 3 else single
                add(f"{prefix}{name}", partial(table.get, name), result, half * count, inner)
    for name, (source, target) in HALF_BITS.items():
        add(f"__{name}", partial(bits_as, getattr(types, target)), target, [source])
    for kind, name in C_TYPES.items():
        for mode in () if kind in ("half", "double") else ("rn", *DIRECTIONS):
            if "char" not in kind:
                add(f"__{kind}2half_{mode}", partial(conversion, name, "float16", mode), "float16", [name])
            if kind != "float" and (mode == "rz" or "char" not in kind):
                add(f"__half2{kind}_{mode}", partial(conversion, "float16", name, mode), name, half)
    add("__half2float", lambda: np.float32, single, half)
    add("__double2half", lambda: np.float16, "float16", ["float64"])
    add("__float2half", lambda: np.float16, "float16", [single])
    add("__hisnan", lambda: math.isnan, "bool", half, single)
    add("__hisinf", lambda: _half_isinf, "int32", half, single)
    FUNCTIONS.add("fp16.__half", lambda: compiled(lambda x: np.float16(x)))


@compiled
def _half_isinf(x):
    return (1 if x > 0 else -1) if math.isinf(x) else 0


# --------------------------------------------------------------------------------- functions that look at the types
SMALL = {
    types.float32,
    types.float16,
    types.int8,
    types.int16,
    types.uint8,
    types.boolean,
}  # float32 holds their values


def _real(*arguments):
    """float32 where numba-cuda would choose the float32 form for arguments of these types, else float64."""
    return np.float32 if {types.unliteral(argument) for argument in arguments} <= SMALL else np.float64


def by_type(name: str):
    """Register in FUNCTIONS a function, which the decorated chooser implements for given argument types."""

    def register(choose):
        def function(*args):
            raise NotImplementedError(f"{name} is for compiled code")

        FUNCTIONS.add(name, lambda: function)
        overload(function)(choose)
        return choose

    return register


def _is_integer(kind) -> bool:
    return isinstance(kind, (types.Integer, types.Boolean))


def _keeps_type(name, operation):
    @by_type(name)
    def choose(x):
        if isinstance(x, types.Integer):
            return lambda x: operation(x)
        if isinstance(x, types.Boolean):
            return lambda x: operation(np.int8(x))


_keeps_type("popc", ctpop)
_keeps_type("clz", ctlz)


@by_type("ffs")
def _choose_ffs(x):
    find = PLAIN["ffs"]
    if _is_integer(x):
        return lambda x: np.uint32(find(x))


@by_type("brev")
def _choose_brev(x):
    give = np.uint64 if x == types.uint64 else np.uint32  # of an int64 it takes the lower 32 bits, as numba-cuda does
    if _is_integer(x):
        return lambda x: bitreverse(give(x))


@by_type("cbrt")
def _choose_cbrt(x):
    give = _real(x)
    return lambda x: give(_cbrt(give(x)))


@by_type("fma")
def _choose_fma(x, y, z):
    give = _real(x, y, z)
    return lambda x, y, z: fused(give(x), give(y), give(z))


@by_type("selp")
def _choose_selp(test, a, b):
    if isinstance(test, types.Boolean) and a == b and getattr(a, "bitwidth", 0) >= 16 and a != types.float16:
        return lambda test, a, b: a if test else b


def _rounds(name):
    in_floats, in_half = getattr(np, name), getattr(math, name)

    @by_type(f"math.{name}")
    def choose(x):  # of an integer: float64, of a float its type (numba's CPU target: int64)
        if x == types.float16:
            return lambda x: in_half(x)
        give = np.float32 if x == types.float32 else np.float64
        return lambda x: in_floats(give(x))


for _name in ("ceil", "floor", "trunc"):
    _rounds(_name)


def _real_arguments(name, function, count):
    if count == 1:

        @by_type(f"math.{name}")
        def choose(x):
            give = _real(x)
            return lambda x: function(give(x))

    else:

        @by_type(f"math.{name}")
        def choose(x, y):
            give = _real(x, y)
            return lambda x, y: give(function(give(x), give(y)))


_real_arguments("frexp", math.frexp, 1)
_real_arguments("fmod", np.fmod, 2)
_real_arguments("remainder", PLAIN["remainder"], 2)


@by_type("math.modf")
def _choose_modf(x):
    give = np.float32 if x == types.float32 else np.float64
    split = FUNCTIONS["libdevice.modff" if x == types.float32 else "libdevice.modf"]
    return lambda x: split(give(x))


@by_type("math.ldexp")
def _choose_ldexp(x, n):
    give = _real(x)
    return lambda x, n: math.ldexp(give(x), np.int32(n))


@by_type("math.pow")
def _choose_pow(x, y):
    give = _real(x) if types.unliteral(y) == types.int32 else _real(x, y)
    if _is_integer(y):
        return lambda x, y: give(math.pow(np.float64(x), np.float64(y)))
    return lambda x, y: math.pow(give(x), give(y))


def _extremum(name, of_floats):
    own = getattr(builtins, name)

    @by_type(f"builtins.{name}")
    def choose(*args):  # a number before NaN, as fminf; for integers, halves, and more than two: numba's own
        kinds = {types.unliteral(argument) for argument in args}
        if len(args) != 2 or not kinds & {types.float32, types.float64}:
            return lambda *args: own(*args)
        give = _real(*args)
        return lambda *args: of_floats(give(args[0]), give(args[1]))


_add_libdevice()
_add_halves()
_extremum("min", _fmin)
_extremum("max", _fmax)
