"""Checks on every access: indices, races, memory nobody wrote; as Oclgrind and compute-sanitizer find them, for certain.

Each element of an array has a shadow: when and by whom it was last written and last read, and at which line. "When" is
an epoch that each barrier advances (and for the lanes of a warp one that syncwarp advances), so two accesses of the
same epoch by two threads, one of them a write, are a race, whatever order the threads ran in.

A stamp packs block + 1, epoch, warp epoch, thread and two flag bits into one integer; 0 is "never".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from labkit.cpu import private
from labkit.cpu.instrument import LOCAL, UNKNOWN, Instrument, place_arguments, unit_of
from labkit.cpu.runtime import Stop, any_active

INDEX, RACE, UNINITIALISED, TOO_LONG = 10, 11, 12, 13  # fault[0]
ATOMIC, AFTER_PLAIN = 1, 2  # flags of a write stamp: atomic; the block has written it plainly before
IN_WARP, IN_BLOCK, IN_GRID = 1, 2, 3  # flags of a read stamp: who read, besides the thread it names
THREAD, WARP_EPOCH, EPOCH, BLOCK = 2, 12, 25, 41  # the bits where the fields begin
BLOCK_NOW, EPOCH_NOW, THREAD_NOW, NOW, EPOCH_STAMP, FENCED, ACQUIRED = range(7)  # slots of the state, `_S`
PENDING, PENDING_SITE, PENDING_THREAD = range(7, 10)
TABLE, ROWS, SHADOWS, RELEASED, FAULT = range(10, 15)  # where the other arrays lie
WARP_EPOCHS = 16  # 32 slots
STATE = 48
WATCHED = 5  # the column of the table: whether races are possible at all

jit = njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, cache=True)
inlined = njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, forceinline=True)


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
def poke(typingctx, address, slot, value):
    """Store a 64-bit integer, as `peek` loads one."""

    def codegen(context, builder, signature, args):
        base = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store(args[2], builder.gep(base, [args[1]]))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), codegen


@jit
def note(S, *values):
    """Write a fault record: what happened, at which site, then the rest."""
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


def first_index(index):
    """The first of an index's integers (compiled code only): what a view is checked by."""


@overload(first_index)
def _first_index(index):
    if isinstance(index, types.Integer):
        return lambda index: np.int64(index)
    if isinstance(index, types.BaseTuple) and index and isinstance(index[0], types.Integer):
        return lambda index: np.int64(index[0])
    return lambda index: np.int64(0)


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
            check_index(S, site, 0, first_index(index), array.shape[0])
            return array[index]

        return view

    @overload(store, inline="never", jit_options={"forceinline": True, "error_model": "numpy"})
    def _store(S, array, index, root, site, value):
        if isinstance(array, types.Array) and is_element(array, index):

            def element(S, array, index, root, site, value):
                touch_write(S, locate(S, array, index, site), root, site, array.itemsize)
                array[index] = value

            return element

        def other(S, array, index, root, site, value):
            array[index] = value

        return other

    @overload(atomic, inline="never", jit_options={"forceinline": True, "error_model": "numpy"})
    def _atomic(S, array, index, root, site):
        def element(S, array, index, root, site):
            touch_atomic(S, locate(S, array, index, site), root, site, array.itemsize)
            return array

        return element

    return {"_ld": load, "_st": store, "_at": atomic}


# shadows: four integers an element: when it was written, where; when it was read, where


@jit
def find(S, address):
    """Which array an address belongs to, or −1."""
    table = peek(S, TABLE)
    for k in range(peek(S, ROWS)):
        if peek(table, 6 * k) <= address < peek(table, 6 * k + 1):
            return k
    return -1


@inlined
def shadow_of(S, address, root):
    """(address of the element's shadow, whether it is of shared memory); (0, 0) for what needs no watching."""
    if root == LOCAL:
        return 0, 0
    k = root if root != UNKNOWN else find(S, address)
    row = peek(S, TABLE) + 48 * k
    if k < 0 or peek(row, WATCHED) == 0:
        return 0, 0
    e = peek(row, 3) + ((address - peek(row, 0)) >> peek(row, 2))
    return peek(S, SHADOWS) + 32 * e, peek(row, 4)


@inlined
def thread_of(stamp):
    return (stamp >> THREAD) & 1023


@inlined
def same_epoch(then, now):
    return (then ^ now) >> EPOCH == 0


@inlined
def same_block(then, now):
    return (then ^ now) >> BLOCK == 0


@inlined
def ordered_by_warp(then, now):
    """Whether syncwarp stands between two accesses of one warp in the same epoch."""
    return (then ^ now) >> (THREAD + 5) & 31 == 0 and (then >> WARP_EPOCH) & 8191 < (now >> WARP_EPOCH) & 8191


@jit
def note_race(S, kind, site, then, then_site, shadow, is_shared):
    e = (shadow - peek(S, SHADOWS)) >> 5
    note(
        S,
        RACE,
        site,
        peek(S, THREAD_NOW),
        thread_of(then),
        peek(S, BLOCK_NOW),
        (then >> BLOCK) - 1,
        kind,
        then_site,
        e,
        is_shared,
    )


@jit
def conflicts(S, then, now, is_shared):
    """Whether an earlier access by another thread is unordered with one now."""
    if same_epoch(then, now):
        return (then ^ now) >> THREAD & 1023 != 0 and not ordered_by_warp(then, now)
    if is_shared or same_block(then, now):
        return False
    return not (peek(S, ACQUIRED) and peek(peek(S, RELEASED), (then >> BLOCK) - 1))


READ_WRITE, WRITE_READ, WRITE_WRITE = 0, 1, 2  # this access first, then the earlier one


@jit
def conflicts_with_readers(S, read, now, is_shared):
    """Whether any earlier read is unordered with a write now."""
    flag = read & 3
    if flag == IN_GRID and not is_shared:
        return True
    if same_epoch(read, now):
        if flag == IN_BLOCK:
            return True
        if flag == IN_WARP:
            return not ordered_by_warp(read, now)
    return conflicts(S, read, now, is_shared)


@inlined
def merged_read(read, now, is_shared):
    """The stamp after another read: who has read in this epoch (in a grid: ever).

    Of several readers it names the first: the last is the likeliest to write next, and doesn't race with itself.
    """
    flag = read & 3
    if read == 0:
        return now
    if not is_shared and (flag == IN_GRID or not same_block(read, now)):
        return read | IN_GRID
    if not same_epoch(read, now):
        return now
    if (read ^ now) >> THREAD & 1023 == 0 and flag == 0:
        return now
    first = now ^ ((read ^ now) & (1023 << THREAD))  # this time, that thread
    if (read ^ now) >> (THREAD + 5) & 31 == 0 and flag != IN_BLOCK:
        return now if ordered_by_warp(read, now) else first | IN_WARP
    return first | IN_BLOCK


@inlined
def on_read(S, address, root, site, size):
    shadow, is_shared = shadow_of(S, address, root)
    if shadow == 0:
        return
    now, written, read = peek(S, NOW), peek(shadow, 0), peek(shadow, 2)
    if (written != 0 or is_shared) and (same_epoch(written, now) or not same_block(written, now)):
        if suspicious_read(S, shadow, site, now, is_shared):
            raise Stop
    if not (same_epoch(read, now) and read & 3 == IN_BLOCK) and read != now:
        merged = merged_read(read, now, is_shared)
        poke(shadow, 2, merged)
        if merged & 3 == 0:
            poke(shadow, 3, site)


@jit
def suspicious_read(S, shadow, site, now, is_shared):
    """A read of what was written in this epoch, by another block, or (shared memory) by nobody yet.

    The last is only noted: another thread may write it later in this epoch, and then it is a race.
    """
    written = peek(shadow, 0)
    if is_shared and (written == 0 or not same_block(written, now)):
        if peek(S, PENDING) == 0:
            poke(S, PENDING, shadow)
            poke(S, PENDING_SITE, site)
            poke(S, PENDING_THREAD, peek(S, THREAD_NOW))
        return False
    if conflicts(S, written, now, is_shared):
        note_race(S, READ_WRITE, site, written, peek(shadow, 1), shadow, is_shared)
        return True
    return False


@jit
def uninitialised(S):
    """At the end of an epoch: whether something was read that nobody wrote."""
    shadow = peek(S, PENDING)
    if shadow == 0:
        return False
    e = (shadow - peek(S, SHADOWS)) >> 5
    note(S, UNINITIALISED, peek(S, PENDING_SITE), peek(S, PENDING_THREAD), 0, peek(S, BLOCK_NOW), 0, 0, 0, e, 1)
    return True


@inlined
def on_write(S, address, root, site, size):
    shadow, is_shared = shadow_of(S, address, root)
    if shadow == 0:
        return
    if (peek(shadow, 0) != 0 or peek(shadow, 2) != 0) and unordered_write(S, shadow, site, is_shared):
        raise Stop
    poke(shadow, 0, peek(S, NOW))
    poke(shadow, 1, site)


@jit
def unordered_write(S, shadow, site, is_shared, is_atomic=False):
    """Whether a write conflicts with the last write or with reads; notes it. Atomics are ordered among themselves."""
    written, read, now = peek(shadow, 0), peek(shadow, 2), peek(S, NOW)
    harmless = is_atomic and written & ATOMIC and (same_block(written, now) or not written & AFTER_PLAIN)
    if written != 0 and not harmless and conflicts(S, written, now, is_shared):
        note_race(S, WRITE_WRITE, site, written, peek(shadow, 1), shadow, is_shared)
        return True
    if read != 0 and conflicts_with_readers(S, read, now, is_shared):
        note_race(S, WRITE_READ, site, read, peek(shadow, 3), shadow, is_shared)
        return True
    return False


@jit
def on_atomic(S, address, root, site, size):
    shadow, is_shared = shadow_of(S, address, root)
    if shadow == 0:
        return
    now, written = peek(S, NOW), peek(shadow, 0)
    if is_shared and (written == 0 or not same_block(written, now)):
        suspicious_read(S, shadow, site, now, is_shared)
    elif unordered_write(S, shadow, site, is_shared, True):
        raise Stop
    plain = written != 0 and same_block(written, now) and (written & AFTER_PLAIN or not written & ATOMIC)
    poke(shadow, 0, now | ATOMIC | (AFTER_PLAIN if plain else 0))
    poke(shadow, 1, site)
    if not is_shared:
        poke(S, ACQUIRED, 1)
        if peek(S, FENCED):
            poke(peek(S, RELEASED), peek(S, BLOCK_NOW), 1)


@jit
def first_conflict(mine, theirs):
    """The first element that two groups of blocks touched, at least one of them writing; −1 if none."""
    for e in range(mine.shape[0]):
        if (mine[e, 0] and (theirs[e, 0] or theirs[e, 2])) or (mine[e, 2] and theirs[e, 0]):
            return e
    return -1


# time


@inlined
def begin_thread(S, t):
    poke(S, THREAD_NOW, t)
    poke(S, NOW, peek(S, EPOCH_STAMP) | peek(S, WARP_EPOCHS + (t >> 5)) << WARP_EPOCH | t << THREAD)


@jit
def begin_epoch(S, block, epoch):
    poke(S, BLOCK_NOW, block)
    poke(S, EPOCH_NOW, epoch)
    poke(S, EPOCH_STAMP, (block + 1) << BLOCK | epoch << EPOCH)
    for w in range(32):
        poke(S, WARP_EPOCHS + w, 0)


@jit
def begin_block(S, b):
    begin_epoch(S, b, 0)
    for slot in (FENCED, ACQUIRED, PENDING):
        poke(S, slot, 0)


@jit
def end_block(S):
    """Nothing read may have stayed unwritten."""
    if uninitialised(S):
        raise Stop


@jit
def barrier(S, off, site):
    if any_active(off):
        if uninitialised(S):
            raise Stop
        begin_epoch(S, peek(S, BLOCK_NOW), peek(S, EPOCH_NOW) + 1)
        if peek(S, EPOCH_NOW) >= 1 << (BLOCK - EPOCH):
            note(S, TOO_LONG, site)
            raise Stop


@jit
def warp(S, off, site):
    """syncwarp and what works like it: orders the lanes of each warp that passes."""
    for t in range(0, off.size, 32):
        if any_active(off[t : t + 32]):
            slot = WARP_EPOCHS + (t >> 5)
            poke(S, slot, min(peek(S, slot) + 1, 8191))


@jit
def fence(S):
    poke(S, FENCED, 1)
    return 0


@jit
def place(S, k, address, nbytes):
    """Where a shared array lies."""
    poke(peek(S, TABLE), 6 * k, address)
    poke(peek(S, TABLE), 6 * k + 1, address + nbytes)


class Checks(Instrument):
    mode = "checked"

    def __init__(self):
        super().__init__()
        self.names = access_functions(on_read, on_write, on_atomic) | {
            "_pointer": pointer,
            "_place": place,
            "_begin_block": begin_block,
            "_end_block": end_block,
            "_begin_thread": begin_thread,
            "_barrier": barrier,
            "_warp": warp,
            "_fence": fence,
        }

    def state(self, arguments: tuple, blocks: int, dynamic: int, fault: np.ndarray) -> State:
        """The state that the blocks of one part begin with."""
        table, used = place_arguments(arguments, self.written)
        rows, total = self.shared_rows(used, dynamic)
        table, shadows = np.concatenate([table, rows]), np.zeros((total, 4), np.int64)
        released, slots = np.zeros(blocks, np.int64), np.zeros(STATE, np.int64)
        slots[ROWS] = len(table)
        for slot, array in ((TABLE, table), (SHADOWS, shadows), (RELEASED, released), (FAULT, fault)):
            slots[slot] = array.ctypes.data
        return State(slots, table, shadows, used, released)

    def shared_rows(self, used: int, dynamic: int) -> tuple[np.ndarray, int]:
        """The table's rows of the shared arrays; all views of dynamic shared memory share their shadows."""
        rows = np.zeros((len(self.shared), 6), np.int64)
        unit = self.dynamic_unit
        first_dynamic = used
        used += dynamic // unit + 1
        for row, d in zip(rows, self.shared, strict=True):
            if d.shape == (0,):
                row[:] = 0, 0, unit.bit_length() - 1, first_dynamic, 1, 1
            else:
                nbytes = int(np.prod(d.shape)) * private.dtype_of(d.dtype).itemsize
                shift = unit_of(private.dtype_of(d.dtype))
                row[:] = 0, 0, shift, used, 1, 1
                used += nbytes >> shift
        return rows, used

    def conflict(self, states: list[State], fault: np.ndarray) -> bool:
        """Whether groups of blocks that ran side by side, each with shadows of its own, got in each other's way."""
        for i, theirs in enumerate(states):
            for mine in states[i + 1 :]:
                e = first_conflict(mine.of_arguments, theirs.of_arguments)
                if e >= 0:
                    fault[:10] = _race_between(mine.shadows[e], theirs.shadows[e], e)
                    return True
        return False


@dataclass(frozen=True)
class State:
    """What a part of the blocks keeps: the slots that generated code knows by their address, and what they point to."""

    slots: np.ndarray
    table: np.ndarray
    shadows: np.ndarray
    used: int
    released: np.ndarray

    @property
    def address(self) -> int:
        return self.slots.ctypes.data

    @property
    def of_arguments(self) -> np.ndarray:
        """The shadows of global memory."""
        return self.shadows[: self.used]


def _race_between(mine: np.ndarray, theirs: np.ndarray, e: int) -> tuple:
    """The fault record of two blocks' accesses."""
    kind = WRITE_WRITE if mine[0] and theirs[0] else WRITE_READ if mine[0] else READ_WRITE
    now, site = mine[:2] if mine[0] else mine[2:]
    then, then_site = theirs[2:] if kind == WRITE_READ else theirs[:2]
    return RACE, site, thread_of(now), thread_of(then), (now >> BLOCK) - 1, (then >> BLOCK) - 1, kind, then_site, e, 0
