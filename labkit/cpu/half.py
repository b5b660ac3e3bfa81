"""float16 for numba's CPU target: ``install()`` teaches it what the CUDA target knows of ``numba.float16``.

Plain numba has the type ``float16`` and no representation of it. Here it is LLVM's ``half``; every operation
converts to float32, works there and rounds once, to nearest even: for + - * / and the square root this is the
correctly rounded half (float32 has more than twice its digits). The result types are those of numba-cuda:

* half with half, bool or int8: half for + - * / and their in-place forms; float32 for // % ** and divmod
* half with another type: what numba makes of that type and float32 (a Python number is int64 or float64)
* -, +, abs, min, max, ``float(h)``, and math's ceil cos exp exp2 fabs floor log log2 log10 sin sqrt tanh trunc: half

``min`` and ``max`` take the number where the other operand is NaN, and -0.0 < +0.0, as CUDA's ``__hmin`` does.
"""

import math
import operator

import numpy as np
from llvmlite import ir
from numba.core import boxing, pythonapi, types
from numba.core.imputils import Registry as Lowerings
from numba.core.registry import cpu_target
from numba.core.typing.templates import AbstractTemplate, signature
from numba.core.typing.templates import Registry as Typings
from numba.extending import NativeValue, models, register_model

HALF, FLOAT, DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
STAYS_HALF_WITH = (types.float16, types.boolean, types.int8)  # the types whose values all are halves
ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv)
IN_PLACE = {operator.iadd: operator.add, operator.isub: operator.sub}
IN_PLACE |= {operator.imul: operator.mul, operator.itruediv: operator.truediv}
MATH = {f: f for f in (math.cos, math.exp, math.log, math.log2, math.log10, math.sin, math.sqrt, math.tanh)}
MATH |= {math.ceil: np.ceil, math.floor: np.floor, math.trunc: np.trunc, math.exp2: np.exp2}  # float32 -> float32
LOWERINGS, TYPINGS = Lowerings("half"), Typings()  # of the CPU target alone: numba.cuda reads numba's common ones
_state = {"installed": False, "hardware": True}


class HalfAwareFloat(models.PrimitiveModel):
    """The representation of numba's floats: ``half`` for float16, as ever for the others."""

    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, {16: HALF, 32: FLOAT, 64: DOUBLE}[fe_type.bitwidth])


# ---------------------------------------------------------------------------------------------------- conversions
def has_conversion_instructions() -> bool:
    """Whether the compiled code has float16 conversions in hardware (else LLVM would call functions we lack)."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return not triple.startswith(("x86", "i386", "i686")) or "+f16c" in features.split(",")


def _constant(bits: int) -> ir.Constant:
    return ir.Constant(I32, bits)


def _extend_in_software(builder, value):
    """float32 of a half from its bits: exponent and mantissa moved up, and scaled by the exponents' difference."""
    bits = builder.zext(builder.bitcast(value, I16), I32)
    sign = builder.shl(builder.and_(bits, _constant(0x8000)), _constant(16))
    moved = builder.shl(builder.and_(bits, _constant(0x7FFF)), _constant(13))
    scaled = builder.fmul(builder.bitcast(moved, FLOAT), ir.Constant(FLOAT, 2.0**112))
    special = builder.icmp_unsigned(">=", moved, _constant(0x7C00 << 13))  # infinity or NaN
    magnitude = builder.select(special, builder.or_(moved, _constant(0x7F800000)), builder.bitcast(scaled, I32))
    return builder.bitcast(builder.or_(magnitude, sign), FLOAT)


def _round_in_software(builder, value):
    """Half of a float32, to nearest even: large, subnormal and normal results each in their way."""
    bits = builder.bitcast(value, I32)
    magnitude = builder.and_(bits, _constant(0x7FFFFFFF))
    sign = builder.lshr(builder.and_(bits, _constant(0x80000000)), _constant(16))
    is_nan = builder.icmp_unsigned(">", magnitude, _constant(0x7F800000))
    large = builder.select(is_nan, _constant(0x7E00), _constant(0x7C00))
    half = ir.Constant(FLOAT, 0.5)  # its last place is that of the subnormal halves
    shifted = builder.bitcast(builder.fadd(builder.bitcast(magnitude, FLOAT), half), I32)
    subnormal = builder.sub(shifted, _constant(0x3F000000))
    odd = builder.and_(builder.lshr(magnitude, _constant(13)), _constant(1))
    rebased = builder.add(magnitude, _constant(((15 - 127) << 23) + 0xFFF))
    normal = builder.lshr(builder.add(rebased, odd), _constant(13))
    result = builder.select(builder.icmp_unsigned("<", magnitude, _constant(0x38800000)), subnormal, normal)
    result = builder.select(builder.icmp_unsigned(">=", magnitude, _constant(0x47800000)), large, result)
    return builder.bitcast(builder.trunc(builder.or_(result, sign), I16), HALF)


def extend(builder, value):
    """float32 of a half: exact."""
    return builder.fpext(value, FLOAT) if _state["hardware"] else _extend_in_software(builder, value)


def round_single(builder, value):
    """Half of a float32, rounded to nearest even."""
    return builder.fptrunc(value, HALF) if _state["hardware"] else _round_in_software(builder, value)


def round_double(builder, value):
    """Half of a float64, rounded once: through the float32 that is rounded to odd, which keeps what was cut off."""
    single = builder.fptrunc(value, FLOAT)
    back = builder.fpext(single, DOUBLE)
    magnitude = [builder.and_(builder.bitcast(x, I64), ir.Constant(I64, 2**63 - 1)) for x in (back, value)]
    bits = builder.bitcast(single, I32)
    away = builder.zext(builder.icmp_unsigned(">", *magnitude), I32)
    odd = builder.or_(builder.sub(bits, away), _constant(1))
    inexact = builder.fcmp_ordered("!=", back, value)
    return round_single(builder, builder.bitcast(builder.select(inexact, odd, bits), FLOAT))


def _lower_conversions() -> None:
    @LOWERINGS.lower_cast(types.float16, types.float32)
    @LOWERINGS.lower_cast(types.float16, types.float64)
    @LOWERINGS.lower_cast(types.float16, types.Integer)
    def from_half(context, builder, fromty, toty, value):
        return context.cast(builder, extend(builder, value), types.float32, toty)

    @LOWERINGS.lower_cast(types.float32, types.float16)
    def from_single(context, builder, fromty, toty, value):
        return round_single(builder, value)

    @LOWERINGS.lower_cast(types.float64, types.float16)
    def from_double(context, builder, fromty, toty, value):
        return round_double(builder, value)

    @LOWERINGS.lower_cast(types.Integer, types.float16)
    def from_integer(context, builder, fromty, toty, value):  # float32 holds every integer that isn't infinite as half
        return round_single(builder, context.cast(builder, value, fromty, types.float32))

    @LOWERINGS.lower_constant(types.float16)
    def constant(context, builder, ty, value):
        return ir.Constant(HALF, float(np.float16(value)))

    @LOWERINGS.lower(bool, types.float16)
    def truth(context, builder, sig, args):
        return builder.icmp_unsigned("!=", _bits(builder, "and_", args[0], 0x7FFF), ir.Constant(I16, 0))


def _exchange_with_python() -> None:
    """Box a half as a Python float and unbox it from any number; numba keeps one function for all of its floats."""
    box, unbox = boxing.box_float, boxing.unbox_float

    def box_float(typ, value, c):
        if typ != types.float16:
            return box(typ, value, c)
        return c.pyapi.float_from_double(c.context.cast(c.builder, value, typ, types.float64))

    def unbox_float(typ, obj, c):
        if typ != types.float16:
            return unbox(typ, obj, c)
        double = unbox(types.float64, obj, c)
        return NativeValue(c.context.cast(c.builder, double.value, types.float64, typ), is_error=double.is_error)

    pythonapi._boxers.functions[types.Float] = box_float
    pythonapi._unboxers.functions[types.Float] = unbox_float


# ----------------------------------------------------------------------------------------------------- operations
def _declare(function, lowering, count: int) -> None:
    """Type ``function`` of ``count`` halves (or what stays half with a half) as half, before numba's own typing."""

    class HalfOperation(AbstractTemplate):
        key = function
        metadata = {"target": "cpu"}  # noqa: RUF012 - asked before the templates of every target

        def generic(self, args, kws):
            if len(args) == count and not kws and types.float16 in args and set(args) <= set(STAYS_HALF_WITH):
                return signature(types.float16, *[types.float16] * count)

    TYPINGS.register_global(function)(HalfOperation)
    LOWERINGS.lower(function, *[types.float16] * count)(lowering)


def _bits(builder, operation: str, value, mask: int):
    return getattr(builder, operation)(builder.bitcast(value, I16), ir.Constant(I16, mask))


def _on_bits(operation: str, mask: int):
    def lowering(context, builder, sig, args):
        return builder.bitcast(_bits(builder, operation, args[0], mask), HALF)

    return lowering


def _through_single(function):
    """The lowering that calls ``function`` of float32 arguments and rounds its float32 result."""

    def lowering(context, builder, sig, args):
        typing = context.typing_context
        called = typing.resolve_value_type(function)
        single = called.get_call_type(typing, [types.float32] * len(args), {})
        call = context.get_function(called, single)
        result = call(builder, [extend(builder, value) for value in args])
        return context.cast(builder, result, single.return_type, types.float16)

    return lowering


def _extremum(comparison: str, on_tie: str):
    """The lowering of min and max: a number before NaN, and of two zeros the one that ``on_tie`` of the signs gives."""

    def lowering(context, builder, sig, args):
        first, second = (extend(builder, value) for value in args)
        tie = getattr(builder, on_tie)(*[builder.bitcast(value, I16) for value in args])
        take_first = builder.or_(
            builder.fcmp_ordered(comparison, first, second), builder.fcmp_unordered("uno", second, second)
        )
        result = builder.select(take_first, *args)
        return builder.select(builder.fcmp_ordered("==", first, second), builder.bitcast(tie, HALF), result)

    return lowering


def _identity(context, builder, sig, args):
    return args[0]


def install() -> None:
    """Make numba's CPU target handle float16; further calls do nothing."""
    if _state["installed"]:
        return
    _state.update(installed=True, hardware=has_conversion_instructions())
    register_model(types.Float)(HalfAwareFloat)
    _lower_conversions()
    _exchange_with_python()
    for function in ARITHMETIC:
        _declare(function, _through_single(function), 2)
    for in_place, function in IN_PLACE.items():
        _declare(in_place, _through_single(function), 2)
    for function, single in MATH.items():
        _declare(function, _through_single(single), 1)
    for function, lowering in (
        (operator.pos, _identity),
        (float, _identity),
        (operator.neg, _on_bits("xor", 0x8000)),
        (abs, _on_bits("and_", 0x7FFF)),
        (math.fabs, _on_bits("and_", 0x7FFF)),
    ):
        _declare(function, lowering, 1)
    _declare(min, _extremum("<", "or_"), 2)
    _declare(max, _extremum(">", "and_"), 2)
    cpu_target.target_context.refresh()  # numba's own come first: without this it misses some of them
    cpu_target.typing_context.install_registry(TYPINGS)
    cpu_target.target_context.install_registry(LOWERINGS)
