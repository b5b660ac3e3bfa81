"""Addresses; 16 bytes at once, by a thread that waits for them or does not; and a sum in memory."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from labkit.ptx import emit
from labkit.ptx.halves import as_pair

LOAD = "ld.global.v4.b32 {$0,$1,$2,$3}, [$4];"
COPY = (
    "{.reg .u64 a; .reg .u32 s; cvta.to.shared.u64 a, $0; cvt.u32.u64 s, a; "
    "cp.async.cg.shared.global [s], [$1], 16, $2;}"
)
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


def _load8(context, builder, sig, arguments):
    """Eight float16 at array[index] and after it in one load of 16 bytes from global memory, aligned to 16 bytes.

    Four uint32, two neighbours each: unpack_half2 gives their values.
    """
    pointer = _pointer(context, builder, sig.args[0], arguments[0], sig.args[1], arguments[1])
    at = builder.ptrtoint(pointer, ir.IntType(64))
    words = emit.assembly(builder, LOAD, "=r,=r,=r,=r,l", [ir.IntType(32)] * 4, [at])
    return context.make_tuple(builder, sig.return_type, emit.split(builder, words, 4))


def _load8_plain(x, at):
    i, j = at
    a, b = as_pair(x[i, j], x[i, j + 1]), as_pair(x[i, j + 2], x[i, j + 3])
    return a, b, as_pair(x[i, j + 4], x[i, j + 5]), as_pair(x[i, j + 6], x[i, j + 7])


def _copy(context, builder, sig, arguments):
    emit.require("ptx.copy8", (8, 0))
    wide = ir.IntType(64)
    target = _pointer(context, builder, sig.args[0], arguments[0], sig.args[1], arguments[1])
    source = _pointer(context, builder, sig.args[2], arguments[2], sig.args[3], arguments[3])
    nbytes = context.cast(builder, arguments[4], sig.args[4], types.uint32)
    addresses = [builder.ptrtoint(pointer, wide) for pointer in (target, source)]
    emit.assembly(builder, COPY, "l,l,r,~{memory}", [], [*addresses, nbytes])
    return context.get_dummy_value()


def _copy_plain(shared, at, source, index, nbytes):
    i, j = index
    for e in range(4):
        shared[at + e] = as_pair(source[i, j + 2 * e], source[i, j + 2 * e + 1]) if nbytes else 0


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
load8 = emit.typed("load8", 2, lambda array, index: WORDS(array, index), _load8, _load8.__doc__, plain=_load8_plain)
store4 = emit.typed(
    "store4",
    6,
    lambda array, index, *_: types.void(array, index, *[types.float32] * 4),
    _store4,
    _store4.__doc__,
    plain=_store4_plain,
)
copy8 = emit.typed(
    "copy8", 5, lambda *a: types.void(*a), _copy,
    """Start a copy of eight float16 at source[index] and after it to shared[at] and after it; no thread waits.

    shared  uint32, one dimension; `at` a multiple of 4, so that it is aligned to 16 bytes, as source[index] must be
    nbytes  16, or 0: nothing is read then, and zeros are stored; this is how an edge is guarded
    Compute capability 8.0. Without a GPU it is done at once. PTX manual: "Non-bulk copy: cp.async".
    """,
    plain=_copy_plain,
)  # fmt: skip
add_in_order = emit.instruction(
    "add_in_order", "atom.add.acq_rel.gpu.global.s32 $0, [$1], $2;", "int32", "int64", "int32", since=(7, 0),
    doc="""Add to an int32 at a global address and return what it held. What the block's threads stored before the
    barrier ahead of it is there for whoever adds later, and what earlier ones stored may be read after it.

    PTX manual: "atom", with ".acq_rel".
    """,
)  # fmt: skip
