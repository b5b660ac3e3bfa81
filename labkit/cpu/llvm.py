"""LLVM's operations on numbers as functions for njit, for what numba's CPU target has no name for.

`compiled` is the njit that all of CUDA's device functions here are made with.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from labkit.cpu.kept import kept_njit

compiled = kept_njit(error_model="numpy", no_cfunc_wrapper=True)  # x / 0 is infinite and raises nothing, as on the GPU


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
