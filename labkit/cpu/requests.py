"""Counts what a kernel really moves: per warp request the sectors of global memory and the passes over shared memory.

A request is one instruction of one warp. Threads run one after another here, so their accesses are brought together
by a key: the place in the source, and in which turn of which loops it was reached (turns of a loop that some lanes
leave early still meet, as on a GPU). A sector is 32 bytes; a pass ("wavefront") over shared memory serves each of 32
banks one 4-byte word, for 8-byte elements half a warp at a time.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from labkit.cpu.access import BLOCK_NOW, ROWS, TABLE, THREAD_NOW, find, inlined, jit, note, peek, poke
from labkit.cpu.arrays import LOCAL, UNKNOWN
from labkit.cpu.runtime import Stop, any_active

TOO_MANY = 20  # fault[0]
KEY, REGION, USED, GROUPS, SLOTS, SITES = 1, 3, 4, 5, 6, 7  # slots of the state
TOUCHED, FLOPS, LOG, LOGGED, LOG_SIZE = range(15, 20)
STATE = 20
CAPACITY = 1 << 16  # groups a warp may have open in one stretch between two meeting points
FIRST = 6  # a group: site, key, array, element size, lanes, its slot, then up to 32 addresses
WIDTH = FIRST + 32
COLUMNS = ("accesses", "bytes", "requests", "sectors", "passes", "ideal")
KINDS = ("float32", "float64", "float16", "int")
MIX = 0x9E3779B97F4A7C15 - (1 << 64)
UNMIX = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
UNMIX -= (1 << 64) * (UNMIX >> 63)
PLACES = 5  # columns of the log: site, thread, root, byte offset, order


@inlined
def mix(key, number):
    return key * np.int64(MIX) + number


@jit
def group_of(S, site, root, size):
    """The address of the open group of this request; a new one if it is the first lane to get here."""
    key = peek(S, KEY)
    slots, groups = peek(S, SLOTS), peek(S, GROUPS)
    h = mix(key, site)
    slot = (h ^ (h >> 29)) & (2 * CAPACITY - 1)
    while True:
        g = peek(slots, slot)
        if g == 0:
            break
        group = groups + 8 * WIDTH * (g - 1)
        if peek(group, 0) == site and peek(group, 1) == key and peek(group, 2) == root and peek(group, 4) < 32:
            return group
        slot = (slot + 1) & (2 * CAPACITY - 1)
    used = peek(S, USED)
    if used == CAPACITY:
        note(S, TOO_MANY, site)
        raise Stop
    poke(slots, slot, used + 1)
    poke(S, USED, used + 1)
    group = groups + 8 * WIDTH * used
    for i, value in enumerate((site, key, root, size, 0, slot)):
        poke(group, i, value)
    return group


@jit
def on_access(S, address, root, site, size):
    """One thread's access."""
    if root == LOCAL:
        return
    k = root if root != UNKNOWN else find(S, address)
    if k < 0:
        return
    group = group_of(S, site, k, size)
    lanes = peek(group, 4)
    poke(group, FIRST + lanes, address)
    poke(group, 4, lanes + 1)
    if peek(S, LOG):
        log_it(S, address, k, site)


@jit
def log_it(S, address, k, site):
    n = peek(S, LOGGED)
    if n < peek(S, LOG_SIZE):
        base = peek(S, LOG) + 8 * PLACES * n
        offset = address - peek(peek(S, TABLE) + 48 * k, 0)
        for i, value in enumerate((site, peek(S, THREAD_NOW), k, offset, n)):
            poke(base, i, value)
        poke(S, LOGGED, n + 1)


def touch(bit):
    """An access that also marks the element of an argument as read (1) or written (2)."""

    @jit
    def access(S, address, root, site, size):
        on_access(S, address, root, site, size)
        if root == LOCAL:
            return
        k = root if root != UNKNOWN else find(S, address)
        row = peek(S, TABLE) + 48 * k
        if k >= 0 and peek(row, 4) == 0:
            slot = peek(S, TOUCHED) + 8 * (peek(row, 3) + ((address - peek(row, 0)) >> peek(row, 2)))
            poke(slot, 0, peek(slot, 0) | bit)

    return access


@jit
def sort(values, n):
    """The first n in order. By insertion: a warp's addresses mostly are, and NumPy's sort takes a second to compile."""
    for i in range(1, n):
        value, j = values[i], i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value


@jit
def distinct(values, n):
    """How many different values the first n are (sorts them)."""
    sort(values, n)
    count = min(n, 1)
    for i in range(1, n):
        count += values[i] != values[i - 1]
    return count


@jit
def sectors(group, scratch):
    """Sectors of 32 bytes that one request touches."""
    lanes, size, n = peek(group, 4), peek(group, 3), 0
    for i in range(lanes):
        first = peek(group, FIRST + i) >> 5
        last = (peek(group, FIRST + i) + size - 1) >> 5
        for sector in range(first, last + 1):
            scratch[n] = sector
            n += 1
    return distinct(scratch, n)


@jit
def passes(group, base, scratch, banks):
    """(passes over shared memory, passes without any bank conflict) of one request."""
    lanes, size = peek(group, 4), peek(group, 3)
    words = max(1, size >> 2)
    at_once = 32 // words
    total = ideal = 0
    for first in range(0, lanes, at_once):
        n = 0
        for i in range(first, min(lanes, first + at_once)):
            for w in range(words):
                scratch[n] = ((peek(group, FIRST + i) - base) >> 2) + w
                n += 1
        sort(scratch, n)
        for bank in range(32):
            banks[bank] = 0
        busiest = 0
        for i in range(n):
            if i == 0 or scratch[i] != scratch[i - 1]:
                banks[scratch[i] & 31] += 1
                busiest = max(busiest, banks[scratch[i] & 31])
        total += busiest
        ideal += 1
    return total, ideal


@jit
def close_warp(S):
    """Count the requests of the warp that has just run, and forget them."""
    used = peek(S, USED)
    if used == 0:
        return
    scratch, banks = np.empty(32 * 16, np.int64), np.empty(32, np.int64)
    for g in range(used):
        group = peek(S, GROUPS) + 8 * WIDTH * g
        site, root, size, lanes = peek(group, 0), peek(group, 2), peek(group, 3), peek(group, 4)
        row = peek(S, TABLE) + 48 * root
        counted = peek(S, SITES) + 8 * (site * (peek(S, ROWS) + 1) + root) * 6
        add(counted, 0, lanes)
        add(counted, 1, lanes * size)
        add(counted, 2, 1)
        if peek(row, 4) == 0:
            add(counted, 3, sectors(group, scratch))
        else:
            total, ideal = passes(group, peek(row, 0) - 4 * peek(row, 5), scratch, banks)
            add(counted, 4, total)
            add(counted, 5, ideal)
        poke(peek(S, SLOTS), peek(group, 5), 0)
    poke(S, USED, 0)


@inlined
def add(address, slot, value):
    poke(address, slot, peek(address, slot) + value)


@inlined
def begin_thread(S, t):
    if t & 31 == 0:
        close_warp(S)
    poke(S, THREAD_NOW, t)
    poke(S, KEY, peek(S, REGION))


@jit
def begin_region(S):
    """A new stretch between two meeting points: what is done in it is never one request with what came before."""
    close_warp(S)
    poke(S, REGION, peek(S, REGION) + 1)


@jit
def begin_block(S, b):
    poke(S, BLOCK_NOW, b)
    close_warp(S)


@jit
def meet(S, off, site):
    close_warp(S)
    if any_active(off):
        none = peek(S, ROWS)  # the array that is none
        add(peek(S, SITES) + 8 * (site * (none + 1) + none) * 6, 0, 1)


@inlined
def turn(S, key, loop, count):
    """The key of one turn of a loop."""
    poke(S, KEY, mix(mix(key, loop), count))


@inlined
def key_now(S):
    return peek(S, KEY)


@inlined
def set_key(S, key):
    poke(S, KEY, key)


@jit
def entering(S, context, site):
    """Ahead of a call of a device function: what happens in it is told apart by where it was called."""
    poke(S, KEY, mix(peek(S, KEY), site + 1))
    return context


def leaving(S, site, value):
    raise NotImplementedError


@overload(leaving, inline="never", jit_options={"forceinline": True})
def _leaving(S, site, value):
    def back(S, site, value):
        poke(S, KEY, (peek(S, KEY) - (site + 1)) * np.int64(UNMIX))
        return value

    return back


def flop(S, value):
    raise NotImplementedError


@overload(flop, inline="never", jit_options={"forceinline": True})
def _flop(S, value):
    kind = KINDS.index(str(value)) if str(value) in KINDS else None
    if kind is None and isinstance(value, types.Integer):
        kind = KINDS.index("int")
    if kind is None:
        return lambda S, value: value

    def counted(S, value):
        add(peek(S, FLOPS), kind, 1)
        return value

    return counted


@jit
def fence(S):
    return 0
