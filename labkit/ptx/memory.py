"""Addresses, and 16 bytes at once."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from labkit.ptx import emit
from labkit.ptx.halves import as_pair

ADDRESS = "{.reg .u64 a; cvta.to.shared.u64 a, $1; cvt.u32.u64 $0, a;}"


def _pointer(context, builder, array_type, array, index_type, index):
    """The address of array[index]; index is an integer or a tuple of them."""
    from numba.cuda.np import arrayobj

    made = arrayobj.make_array(array_type)(context, builder, array)
    many = isinstance(index_type, types.BaseTuple)
    kinds = list(index_type) if many else [index_type]
    values = emit.split(builder, index, len(kinds)) if many else [index]
    integers = [context.cast(builder, v, t, types.intp) for v, t in zip(values, kinds, strict=True)]
    shape, strides = (cgutils.unpack_tuple(builder, part) for part in (made.shape, made.strides))
    return cgutils.get_item_pointer2(context, builder, made.data, shape, strides, array_type.layout, integers)


def _first(context, builder, array_type, array):
    from numba.cuda.np import arrayobj

    return builder.ptrtoint(arrayobj.make_array(array_type)(context, builder, array).data, ir.IntType(64))


def _address(context, builder, sig, arguments):
    return _first(context, builder, sig.args[0], arguments[0])


def _shared_address(context, builder, sig, arguments):
    generic = _first(context, builder, sig.args[0], arguments[0])
    return emit.assembly(builder, ADDRESS, "=r,l", [ir.IntType(32)], [generic], effect=False)


def _vector(width: int):
    return ir.VectorType(ir.FloatType(), width)


def _lane(i: int):
    return ir.Constant(ir.IntType(32), i)


# "array[index] and the three after it", 16 bytes in one instruction


def _load4(context, builder, sig, arguments):
    """Four float32 (or uint32) at array[index] and after it, in one load of 16 bytes, aligned to 16 bytes.

    index  an integer, or a tuple of integers for an array of several dimensions
    """
    pointer = _pointer(context, builder, sig.args[0], arguments[0], sig.args[1], arguments[1])
    vector = ir.VectorType(context.get_value_type(sig.return_type.dtype), 4)
    wide = builder.bitcast(pointer, vector.as_pointer(pointer.type.addrspace))
    value = builder.load(wide, align=16)
    parts = [builder.extract_element(value, _lane(i)) for i in range(4)]
    return context.make_tuple(builder, sig.return_type, parts)


def _store4(context, builder, sig, arguments):
    """Store four float32 at array[index] and after it, in one store of 16 bytes (st.v4.f32), aligned to 16 bytes."""
    pointer = _pointer(context, builder, sig.args[0], arguments[0], sig.args[1], arguments[1])
    wide = builder.bitcast(pointer, _vector(4).as_pointer(pointer.type.addrspace))
    value = ir.Constant(_vector(4), ir.Undefined)
    for i in range(4):
        value = builder.insert_element(value, arguments[2 + i], _lane(i))
    builder.store(value, wide, align=16)
    return context.get_dummy_value()


def _load4_plain(x, at):
    """As four loads; without a GPU `at` is a tuple, as in kernels of the course (words4 takes an integer)."""
    i, j = at
    return x[i, j], x[i, j + 1], x[i, j + 2], x[i, j + 3]


def _words4_plain(x, at):
    return x[at], x[at + 1], x[at + 2], x[at + 3]


def _store4_plain(x, at, p, q, r, s):
    i, j = at
    x[i, j], x[i, j + 1], x[i, j + 2], x[i, j + 3] = p, q, r, s


# "eight float16 at array[index] and after it", as four uint32

LOAD = "ld.global.v4.b32 {$0,$1,$2,$3}, [$4];"
STREAM = "ld.global.nc.L1::no_allocate.v4.b32 {$0,$1,$2,$3}, [$4];"
_LOAD8 = """Eight float16 at array[index] and after it in one load of 16 bytes from global memory, 16-byte aligned{}.

    Four uint32, two neighbours each: unpack_half2 gives their values.
    """
_ONCE = """, for what is
    read once and not written by this kernel: it leaves the L1 to others"""


def _load8(text: str):
    def codegen(context, builder, sig, arguments):
        pointer = _pointer(context, builder, sig.args[0], arguments[0], sig.args[1], arguments[1])
        at = builder.ptrtoint(pointer, ir.IntType(64))
        words = emit.assembly(builder, text, "=r,=r,=r,=r,l", [ir.IntType(32)] * 4, [at])
        return context.make_tuple(builder, sig.return_type, emit.split(builder, words, 4))

    return codegen


def _load8_plain(x, at):
    i, j = at
    a, b = as_pair(x[i, j], x[i, j + 1]), as_pair(x[i, j + 2], x[i, j + 3])
    return a, b, as_pair(x[i, j + 4], x[i, j + 5]), as_pair(x[i, j + 6], x[i, j + 7])


WORDS = types.UniTuple(types.uint32, 4)
address = emit.typed(
    "address",
    1,
    lambda array: types.int64(array),
    _address,
    "The address of an array's first element, int64: what cp_async_16 and st_global_b32 take.",
)
shared_address = emit.typed(
    "shared_address",
    1,
    lambda array: types.uint32(array),
    _shared_address,
    "The address of a shared array's first element in shared memory, uint32: what ldmatrix, mbarriers and copies take.",
)
load4 = emit.typed(
    "load4",
    2,
    lambda array, index: types.UniTuple(array.dtype, 4)(array, index),
    _load4,
    _load4.__doc__,
    plain=_load4_plain,
)
words4 = emit.typed(
    "words4",
    2,
    lambda array, at: types.UniTuple(array.dtype, 4)(array, at),
    _load4,
    "array[at] and the three after it, of an array of one dimension, in one load of 16 bytes, aligned to 16 bytes.",
    plain=_words4_plain,
)
load8 = emit.typed(
    "load8", 2, lambda array, index: WORDS(array, index), _load8(LOAD), _LOAD8.format(""), plain=_load8_plain
)
stream8 = emit.typed(
    "stream8", 2, lambda array, index: WORDS(array, index), _load8(STREAM), _LOAD8.format(_ONCE), plain=_load8_plain
)
store4 = emit.typed(
    "store4",
    6,
    lambda array, index, *_: types.void(array, index, *[types.float32] * 4),
    _store4,
    _store4.__doc__,
    plain=_store4_plain,
)
