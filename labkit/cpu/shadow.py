"""Who touched an element last, and whether that is in order: the compiled part of the checks.

Each element of an array has a shadow of two stamps: when and by whom it was written, and read; where in the source is
kept beside. "When" is an epoch that each barrier advances (and for the lanes of a warp one that syncwarp advances),
so two accesses of one epoch by two threads, one of them a write, are a race, whatever order the threads ran in.

A stamp packs block + 1, epoch, warp epoch, thread and two flag bits into one integer; 0 is "never".
"""

from __future__ import annotations

from labkit.cpu.access import BLOCK_NOW, FAULT, TABLE, THREAD_NOW, constant, find, inlined, jit, note, peek, poke
from labkit.cpu.arrays import LOCAL, UNKNOWN
from labkit.cpu.runtime import Stop, any_active

RACE, UNINITIALISED, TOO_LONG = 11, 12, 13  # fault[0]
ATOMIC, AFTER_PLAIN = 1, 2  # flags of a write stamp: atomic; the block has written it plainly before
IN_WARP, IN_BLOCK, IN_GRID = 1, 2, 3  # flags of a read stamp: who read, besides the thread it names
THREAD, WARP_EPOCH, EPOCH, BLOCK = 2, 12, 25, 41  # the bits where the fields begin
EPOCH_NOW, NOW, EPOCH_STAMP, FENCED, ACQUIRED = 1, 3, 4, 5, 6  # slots of the state
PENDING, PENDING_SITE, PENDING_THREAD = 7, 8, 9
SHADOWS, RELEASED, CHUNKS = 12, 13, 15  # where they lie
CHUNK = 10  # log2 of the shadows that are marked as touched together
WARP_EPOCHS = 16  # 32 slots
SITES = 48
STATE = 49
WATCHED = 5  # the column of the table: whether races are possible at all


@inlined
def shadow_of(S, address, root):
    """(address of the element's shadow, whether it is of shared memory); (0, 0) for what needs no watching."""
    if root == LOCAL:
        return 0, 0
    k = root if root != UNKNOWN else find(S, address)
    row = constant(S, TABLE) + 48 * k
    if k < 0 or constant(row, WATCHED) == 0:
        return 0, 0
    e = constant(row, 3) + ((address - peek(row, 0)) >> constant(row, 2))
    return constant(S, SHADOWS) + 16 * e, constant(row, 4)


@inlined
def sites_of(S, shadow):
    """Where the places in the source of the last write and read are kept, apart from the stamps."""
    return constant(S, SITES) + (shadow - constant(S, SHADOWS))


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
    """Note the first race. The thread runs on, which keeps its loops quick, and is stopped when it is done."""
    if peek(peek(S, FAULT), 0):
        return
    e = (shadow - peek(S, SHADOWS)) >> 4
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
def known_reader(read, now):
    """Whether another read changes nothing: by the same thread, or by one of many of the same warp or block."""
    if read & 3 == IN_WARP:
        return (read ^ now) >> (THREAD + 5) == 0
    return read == now or (same_epoch(read, now) and read & 3 == IN_BLOCK)


@inlined
def on_read(S, address, root, site, size):
    shadow, is_shared = shadow_of(S, address, root)
    if shadow == 0:
        return
    now, written, read = peek(S, NOW), peek(shadow, 0), peek(shadow, 1)
    apart = (written ^ now) >> EPOCH
    if apart == 0 or apart >> (BLOCK - EPOCH) != 0:
        suspicious_read(S, shadow, site, now, is_shared)
    if not known_reader(read, now):
        merged = merged_read(read, now, is_shared)
        mark(S, shadow, is_shared)
        poke(shadow, 1, merged)
        if merged & 3 == 0:
            poke(sites_of(S, shadow), 1, site)


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
    elif written != 0 and conflicts(S, written, now, is_shared):
        note_race(S, READ_WRITE, site, written, peek(sites_of(S, shadow), 0), shadow, is_shared)


@jit
def uninitialised(S):
    """At the end of an epoch: whether something was read that nobody wrote."""
    shadow = peek(S, PENDING)
    if shadow == 0:
        return False
    e = (shadow - peek(S, SHADOWS)) >> 4
    note(S, UNINITIALISED, peek(S, PENDING_SITE), peek(S, PENDING_THREAD), 0, peek(S, BLOCK_NOW), 0, 0, 0, e, 1)
    return True


@inlined
def on_write(S, address, root, site, size):
    shadow, is_shared = shadow_of(S, address, root)
    if shadow == 0:
        return
    if peek(shadow, 0) != 0 or peek(shadow, 1) != 0:
        check_write(S, shadow, site, is_shared, False)
    mark(S, shadow, is_shared)
    poke(shadow, 0, peek(S, NOW))
    poke(sites_of(S, shadow), 0, site)


@inlined
def mark(S, shadow, is_shared):
    """Note where global memory was touched, so that untouched memory is never looked at."""
    if not is_shared:
        poke(constant(S, CHUNKS), (shadow - constant(S, SHADOWS)) >> (4 + CHUNK), 1)


@jit
def check_write(S, shadow, site, is_shared, is_atomic):
    """A write after other accesses. Atomics are ordered among themselves."""
    written, read, now = peek(shadow, 0), peek(shadow, 1), peek(S, NOW)
    harmless = is_atomic and written & ATOMIC and (same_block(written, now) or not written & AFTER_PLAIN)
    if written != 0 and not harmless and conflicts(S, written, now, is_shared):
        note_race(S, WRITE_WRITE, site, written, peek(sites_of(S, shadow), 0), shadow, is_shared)
    elif read != 0 and conflicts_with_readers(S, read, now, is_shared):
        note_race(S, WRITE_READ, site, read, peek(sites_of(S, shadow), 1), shadow, is_shared)


@jit
def on_atomic(S, address, root, site, size):
    shadow, is_shared = shadow_of(S, address, root)
    if shadow == 0:
        return
    now, written = peek(S, NOW), peek(shadow, 0)
    if is_shared and (written == 0 or not same_block(written, now)):
        suspicious_read(S, shadow, site, now, is_shared)
    else:
        check_write(S, shadow, site, is_shared, True)
    plain = written != 0 and same_block(written, now) and (written & AFTER_PLAIN or not written & ATOMIC)
    poke(shadow, 0, now | ATOMIC | (AFTER_PLAIN if plain else 0))
    poke(sites_of(S, shadow), 0, site)
    if not is_shared:
        poke(S, ACQUIRED, 1)
        if peek(S, FENCED):
            poke(peek(S, RELEASED), peek(S, BLOCK_NOW), 1)


@jit
def first_conflict(mine, theirs, my_chunks, their_chunks):
    """The first element that two groups of blocks touched, at least one of them writing; −1 if none."""
    for chunk in range(my_chunks.size):
        if my_chunks[chunk] and their_chunks[chunk]:
            for e in range(chunk << CHUNK, min((chunk + 1) << CHUNK, mine.shape[0])):
                if (mine[e, 0] and (theirs[e, 0] or theirs[e, 1])) or (mine[e, 1] and theirs[e, 0]):
                    return e
    return -1


# time


@inlined
def begin_thread(S, t):
    if peek(constant(S, FAULT), 0):
        raise Stop
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
    """Nothing read may have stayed unwritten, and no race have been noted."""
    if peek(peek(S, FAULT), 0) or uninitialised(S):
        raise Stop


@jit
def barrier(S, off, site):
    if any_active(off):
        if peek(peek(S, FAULT), 0) or uninitialised(S):
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
