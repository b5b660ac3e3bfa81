"""Directed rounding (rd down, ru up, rz to zero), of arithmetic and of conversions between types.

The result rounded to nearest is moved one step where the sign of its error (exact - rounded) says so.
"""

import math

import numpy as np

from labkit.cpu.llvm import as_half, as_int16, compiled, fused
from labkit.cpu.plain import signbit
from labkit.cpu.typed import CASTS

DIRECTIONS = ("rd", "ru", "rz")  # rn, to nearest even, is the plain operation
TINY = 2.0**-900  # below it the error of a float64 operation needs scaling


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
    return -abs(result) if x == -y and signbit(x) != signbit(y) else result


def directed(operation: str, direction: str):
    """The arithmetic ``operation`` (add, sub, mul, div, rcp, sqrt, fma) of floats, rounded in ``direction``."""
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


def to_integer(rounding, target: str, from_double: bool):
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
        return to_integer(rounding, target, source == "float64")
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
