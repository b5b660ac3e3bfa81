"""Two float16 in a uint32, in Python: what a kernel that runs without a GPU does for pack_half2 and unpack_half2."""

from __future__ import annotations

from numba import cuda, float32, uint32
from numba.cuda import libdevice
from numba.types import float16


@cuda.jit(device=True)
def bits(x):
    """The 16 bits of x rounded to float16."""
    found = uint32(libdevice.float_as_int(float32(float16(x))))
    magnitude = found & uint32(0x7FFFFFFF)
    # the exponents' difference: 112; a subnormal float16 becomes a subnormal float32, exactly
    moved = uint32(libdevice.float_as_int(libdevice.int_as_float(magnitude) * float32(2.0**-112))) >> uint32(13)
    special = uint32(0x7C00) | ((magnitude >> uint32(13)) & uint32(0x3FF))  # infinity, NaN
    is_special = magnitude >= uint32(0x7F800000)
    return ((found >> uint32(16)) & uint32(0x8000)) | (special if is_special else moved)


@cuda.jit(device=True)
def value(half):
    """The float32 of a float16's 16 bits."""
    moved = (half & uint32(0x7FFF)) << uint32(13)
    special = moved | uint32(0x7F800000)  # infinity, NaN
    magnitude = libdevice.int_as_float(moved) * float32(2.0**112)
    if half & uint32(0x7C00) == uint32(0x7C00):
        magnitude = libdevice.int_as_float(special)
    return -magnitude if half & uint32(0x8000) else magnitude


def pair(x, y):
    """x and y rounded to float16 in one uint32, x in the low half."""
    return bits(x) | (bits(y) << uint32(16))


def values(word):
    """The two float16 of a uint32 as float32, the one in the low half first."""
    return value(word & uint32(0xFFFF)), value(word >> uint32(16))


as_pair = cuda.jit(device=True)(pair)  # for other plain meanings to call
