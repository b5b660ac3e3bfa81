"""Atomic updates, plain ones here: blocks run one at a time where a kernel updates global memory atomically."""

from __future__ import annotations

from labkit.cpu.kept import kept_njit

jit = kept_njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)
bounded = kept_njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, boundscheck=True)


def _atomic(update):
    @bounded
    def atomic(array, index, value):
        old = array[index]
        array[index] = update(old, array.dtype.type(value))
        return old

    return atomic


@jit
def _max(a, b):
    return b if b > a or a != a else a


@jit
def _min(a, b):
    return b if b < a or a != a else a


@bounded
def atomic_exch(array, index, value):
    old = array[index]
    array[index] = value
    return old


@bounded
def atomic_cas(array, index, old, value):
    found = array[index]
    if found == old:
        array[index] = value
    return found


@jit
def atomic_compare_and_swap(array, old, value):
    return atomic_cas(array, 0, old, value)


UPDATES = {
    "add": jit(lambda a, b: a + b),
    "sub": jit(lambda a, b: a - b),
    "max": _max,
    "min": _min,
    "nanmax": _max,
    "nanmin": _min,
    "and": jit(lambda a, b: a & b),
    "or": jit(lambda a, b: a | b),
    "xor": jit(lambda a, b: a ^ b),
    "inc": jit(lambda a, b: 0 if a >= b else a + 1),
    "dec": jit(lambda a, b: b if a == 0 or a > b else a - 1),
}
NAMES = {
    **{f"_atomic_{name}": _atomic(update) for name, update in UPDATES.items()},
    **{f"_{f.__name__}": f for f in (atomic_exch, atomic_cas, atomic_compare_and_swap)},
}
