"""Memory accesses in instrumented kernels: the address of an element, its indices checked, and raw 64-bit memory.

An instrument's state is a row of 64-bit slots that compiled code knows by its address, `_S`: arrays in compiled tuples
would be counted at every use. The slots here are those that every instrument has.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from labkit.cpu.kept import kept_njit
from labkit.cpu.runtime import Stop

INDEX = 10  # fault[0]
BLOCK_NOW, THREAD_NOW, TABLE, ROWS, FAULT = 0, 2, 10, 11, 14  # slots

jit = kept_njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)
inlined = kept_njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, forceinline=True)


@intrinsic
def pointer(typingctx, array):
    """The address of an array's first element."""

    def codegen(context, builder, signature, args):
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(struct.data, ir.IntType(64))

    return types.int64(array), codegen


@intrinsic
def peek(typingctx, address, slot):
    """The 64-bit integer number `slot` from an address on (arrays in compiled tuples are counted at every use)."""

    def codegen(context, builder, signature, args):
        base = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(base, [args[1]]))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def constant(typingctx, address, slot):
    """As `peek`, of memory that no kernel changes: the compiler may load it once and keep it."""

    def codegen(context, builder, signature, args):
        base = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        loaded = builder.load(builder.gep(base, [args[1]]))
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def poke(typingctx, address, slot, value):
    """Store a 64-bit integer, as `peek` loads one."""

    def codegen(context, builder, signature, args):
        base = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store(args[2], builder.gep(base, [args[1]]))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), codegen


@jit
def note(S, *values):
    """Write a fault record: what happened, at which site, then the rest. The first one stays."""
    if peek(peek(S, FAULT), 0):
        return
    for i, value in enumerate(values):
        poke(peek(S, FAULT), i, value)


@jit
def bad_index(S, site, axis, index, extent):
    note(S, INDEX, site, peek(S, THREAD_NOW), 0, peek(S, BLOCK_NOW), axis, index, extent)


@inlined
def check_index(S, site, axis, index, extent):
    if index < 0 or index >= extent:
        bad_index(S, site, axis, index, extent)
        raise Stop


def locate(S, array, index, site):
    """The address of an element, its indices checked (compiled code only)."""
    raise NotImplementedError


def is_element(array, index) -> bool:
    """Whether the types mean one element, not a view or a reference to a record."""
    if isinstance(array.dtype, types.Record):
        return False
    if isinstance(index, types.Integer):
        return array.ndim == 1
    return (
        isinstance(index, types.BaseTuple)
        and len(index) == array.ndim
        and all(isinstance(i, types.Integer) for i in index)
    )


@overload(locate, inline="never", jit_options={"forceinline": True})
def _locate(S, array, index, site):
    if isinstance(index, types.Integer):

        def one(S, array, index, site):
            i = np.int64(index)
            check_index(S, site, 0, i, array.shape[0])
            return pointer(array) + i * array.strides[0]

        return one
    if array.ndim == 2:

        def two(S, array, index, site):
            i, j = np.int64(index[0]), np.int64(index[1])
            check_index(S, site, 0, i, array.shape[0])
            check_index(S, site, 1, j, array.shape[1])
            return pointer(array) + i * array.strides[0] + j * array.strides[1]

        return two
    if array.ndim == 3:

        def three(S, array, index, site):
            i, j, k = np.int64(index[0]), np.int64(index[1]), np.int64(index[2])
            check_index(S, site, 0, i, array.shape[0])
            check_index(S, site, 1, j, array.shape[1])
            check_index(S, site, 2, k, array.shape[2])
            return pointer(array) + i * array.strides[0] + j * array.strides[1] + k * array.strides[2]

        return three

    def many(S, array, index, site):
        address = pointer(array)
        for axis, i in enumerate(index):
            check_index(S, site, axis, np.int64(i), array.shape[axis])
            address += np.int64(i) * array.strides[axis]
        return address

    return many


def check_view(S, array, index, site, axis):
    """Check every integer among the indices of a view or a row (compiled code only)."""
    raise NotImplementedError


@overload(check_view, inline="never", jit_options={"forceinline": True, "error_model": "numpy"})
def _check_view(S, array, index, site, axis):
    if isinstance(index, types.Integer):

        def one(S, array, index, site, axis):
            check_index(S, site, axis, np.int64(index), array.shape[axis])

        return one
    if isinstance(index, types.BaseTuple) and len(index) and not isinstance(index[0], types.EllipsisType):
        step = 0 if isinstance(index[0], types.NoneType) else 1

        def each(S, array, index, site, axis):
            check_view(S, array, index[0], site, axis)
            check_view(S, array, index[1:], site, axis + step)

        return each
    return lambda S, array, index, site, axis: None  # slices are cut to fit, as NumPy cuts them


def access_functions(touch_read, touch_write, touch_atomic) -> dict[str, object]:
    """`_ld`, `_st` and `_at` for generated code, around what an instrument does with an address."""

    def load(S, array, index, root, site):
        raise NotImplementedError

    def store(S, array, index, root, site, value):
        raise NotImplementedError

    def atomic(S, array, index, root, site):
        raise NotImplementedError

    @overload(load, inline="never", jit_options={"forceinline": True, "error_model": "numpy"})
    def _load(S, array, index, root, site):
        if not isinstance(array, types.Array):
            return lambda S, array, index, root, site: array[index]
        if is_element(array, index):

            def element(S, array, index, root, site):
                touch_read(S, locate(S, array, index, site), root, site, array.itemsize)
                return array[index]

            return element

        def view(S, array, index, root, site):
            check_view(S, array, index, site, 0)
            return array[index]

        return view

    @overload(store, inline="never", jit_options={"forceinline": True, "error_model": "numpy"})
    def _store(S, array, index, root, site, value):
        if isinstance(array, types.Array) and is_element(array, index):

            def element(S, array, index, root, site, value):
                touch_write(S, locate(S, array, index, site), root, site, array.itemsize)
                array[index] = value

            return element

        def view(S, array, index, root, site, value):
            check_view(S, array, index, site, 0)
            array[index] = value

        return view

    @overload(atomic, inline="never", jit_options={"forceinline": True, "error_model": "numpy"})
    def _atomic(S, array, index, root, site):
        def element(S, array, index, root, site):
            touch_atomic(S, locate(S, array, index, site), root, site, array.itemsize)
            return array

        return element

    return {"_ld": load, "_st": store, "_at": atomic}


# the table of arrays: base, end, log2 of a unit, first unit, space, and a column of the instrument's own


@jit
def find(S, address):
    """Which array an address belongs to, or −1."""
    table = peek(S, TABLE)
    for k in range(peek(S, ROWS)):
        if peek(table, 6 * k) <= address < peek(table, 6 * k + 1):
            return k
    return -1


@jit
def place(S, k, address, nbytes):
    """Where a shared array lies."""
    poke(peek(S, TABLE), 6 * k, address)
    poke(peek(S, TABLE), 6 * k + 1, address + nbytes)
