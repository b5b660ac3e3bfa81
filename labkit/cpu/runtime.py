"""What generated kernels call: who takes part in what, shuffles, votes. All compiled; a block is one thread.

`off` tells who takes part (see generate.py). Operands of warp operations are arrays, an element a thread.
"""

from __future__ import annotations

import numpy as np

from labkit.cpu import atomics
from labkit.cpu.kept import kept_njit

RETURNED = 1
DIVERGED, LANES, LANE_ABSENT = 1, 2, 3  # fault[0]; then line, a thread that is there, one that is missing, block


class Stop(Exception):
    """Raised in a compiled kernel after it has noted a fault."""


jit = kept_njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)


@jit
def any_active(off):
    for x in off:  # noqa: SIM110 (numba compiles no generator)
        if x == 0:
            return True
    return False


@jit
def resume(off, depth):
    """The construct at `depth` ends: those who waited for it run again."""
    for t in range(off.size):
        if off[t] == depth:
            off[t] = 0


@jit
def swap(off, depth):
    """From a branch to its else."""
    for t in range(off.size):
        if off[t] == 0:
            off[t] = depth
        elif off[t] == depth:
            off[t] = 0


@jit
def diverged(off, fault, line, block):
    """Whether some threads reach a barrier and others, that have not returned, don't; notes one of each."""
    if fault[0]:
        return True  # something else came first
    here = missing = -1
    for t in range(off.size):
        if off[t] == 0:
            here = t
        elif off[t] != RETURNED:
            missing = t
    if here < 0 or missing < 0:
        return False
    fault[0], fault[1], fault[2], fault[3], fault[4] = DIVERGED, line, here, missing, block
    return True


@jit
def lanes_missing(off, masks, has_mask, fault, line, block):
    """Whether a warp operation's mask names a lane that has not returned and is not here, or leaves a lane out."""
    if fault[0]:
        return True
    if not has_mask:
        return False
    for first in range(0, off.size, 32):
        here = there = 0
        for lane in range(min(32, off.size - first)):
            here |= (off[first + lane] == 0) << lane
            there |= (off[first + lane] != RETURNED) << lane
        for lane in range(min(32, off.size - first)):
            if here >> lane & 1:
                mask = np.int64(masks[first + lane]) & 0xFFFFFFFF
                wrong = mask & there & ~here | (1 << lane) & ~mask
                if wrong:
                    fault[0], fault[1], fault[2], fault[4] = LANES, line, first + lane, block
                    fault[3] = first + lowest(wrong)
                    return True
    return False


@jit
def lowest(bits):
    lane = 0
    while not bits >> lane & 1:
        lane += 1
    return lane


@jit
def lane_absent(off, source, t, masks, near, fault, line, block):
    """Whether thread t reads the value of a thread that is not here.

    Past the mask's end shfl_up and shfl_down (`near`) read something undefined, which code written for it ignores;
    unless all lanes do.
    """
    if source < 0 or (source < off.size and off[source] == 0):
        return False
    mask = np.int64(masks[t]) & 0xFFFFFFFF
    if near and not mask >> (source & 31) & 1 and mask & mask >> abs(source - t):
        return False
    fault[0], fault[1], fault[2], fault[3], fault[4] = LANE_ABSENT, line, t, source, block
    return True


# shuffles: from which thread, −1 for "my own value"


@jit
def source_shfl_sync(t, lane):
    return (t & ~31) + (np.int64(lane[t]) & 31)


@jit
def source_shfl_xor_sync(t, bits):
    return _in_warp(t, (t & 31) ^ np.int64(bits[t]))


@jit
def source_shfl_up_sync(t, delta):
    return _in_warp(t, (t & 31) - np.int64(delta[t]))


@jit
def source_shfl_down_sync(t, delta):
    return _in_warp(t, (t & 31) + np.int64(delta[t]))


@jit
def _in_warp(t, lane):
    return (t & ~31) + lane if 0 <= lane < 32 else -1


def _shuffle(source_of):
    @jit
    def shuffle(off, t, masks, value, other):
        source = source_of(t, other)
        return value[source] if 0 <= source < off.size else value[t]

    return shuffle


# votes: over the lanes that take part and that the mask names


@jit
def takes_part(off, masks, t, lane):
    other = (t & ~31) + lane
    return other < off.size and off[other] == 0 and (np.int64(masks[t]) >> lane & 1) == 1


@jit
def ballot_sync(off, t, masks, predicate):
    bits = 0
    for lane in range(32):
        if takes_part(off, masks, t, lane) and predicate[(t & ~31) + lane]:
            bits |= 1 << lane
    return np.int32(bits)


@jit
def all_sync(off, t, masks, predicate):
    for lane in range(32):  # noqa: SIM110
        if takes_part(off, masks, t, lane) and not predicate[(t & ~31) + lane]:
            return False
    return True


@jit
def any_sync(off, t, masks, predicate):
    return ballot_sync(off, t, masks, predicate) != 0


@jit
def eq_sync(off, t, masks, predicate):
    return all_sync(off, t, masks, predicate) or not any_sync(off, t, masks, predicate)


@jit
def match_any_sync(off, t, masks, value):
    bits = 0
    for lane in range(32):
        if takes_part(off, masks, t, lane) and value[(t & ~31) + lane] == value[t]:
            bits |= 1 << lane
    return np.int32(bits)


@jit
def match_all_sync(off, t, masks, value):
    """The mask if all values are equal, else 0 (`match_all_pair` makes CUDA's pair of it)."""
    for lane in range(32):
        if takes_part(off, masks, t, lane) and value[(t & ~31) + lane] != value[t]:
            return np.int32(0)
    return np.int32(np.int64(masks[t]))


@jit
def match_all_pair(mask):
    return mask, mask != 0


@jit
def activemask(off, t):
    bits = 0
    for lane in range(min(32, off.size - (t & ~31))):
        bits |= (off[(t & ~31) + lane] == 0) << lane
    return np.uint32(bits)


@jit
def syncthreads_count(off, predicate):
    count = 0
    for t in range(off.size):
        count += off[t] == 0 and predicate[t] != 0
    return np.int32(count)


@jit
def syncthreads_and(off, predicate):
    for t in range(off.size):
        if off[t] == 0 and not predicate[t]:
            return np.int32(0)
    return np.int32(1)


@jit
def syncthreads_or(off, predicate):
    return np.int32(syncthreads_count(off, predicate) > 0)


@jit
def dynamic_view(memory, dtype, itemsize):
    """Dynamic shared memory as an array; all views begin at its start."""
    return memory[: memory.size // itemsize * itemsize].view(dtype)


@jit
def fence():
    return 0


SOURCES = {
    "shfl_sync": source_shfl_sync,
    "shfl_up_sync": source_shfl_up_sync,
    "shfl_down_sync": source_shfl_down_sync,
    "shfl_xor_sync": source_shfl_xor_sync,
}

# the result types of what threads do together, for the function that only types are found of
TYPES = {
    **{name: jit(lambda mask, value, other: value) for name in SOURCES},
    **{name: jit(lambda mask, predicate: predicate != 0) for name in ("all_sync", "any_sync", "eq_sync")},
    **{name: jit(lambda mask, value: np.int32(0)) for name in ("ballot_sync", "match_any_sync", "match_all_sync")},
    **{name: jit(lambda predicate: np.int32(0)) for name in ("syncthreads_count", "syncthreads_and", "syncthreads_or")},
    "activemask": jit(lambda: np.uint32(0)),
    "syncthreads": jit(lambda: 0),
    "syncwarp": jit(lambda mask: 0),
}

NAMES = {
    "np": np,
    "_Stop": Stop,
    "_any_active": any_active,
    "_resume": resume,
    "_swap": swap,
    "_diverged": diverged,
    "_lanes_missing": lanes_missing,
    "_lane_absent": lane_absent,
    "_dynamic_view": dynamic_view,
    "_fence": fence,
    "_match_all_pair": match_all_pair,
    **{
        f"_{f.__name__}": f
        for f in (ballot_sync, all_sync, any_sync, eq_sync, match_any_sync, match_all_sync, activemask)
    },
    **{f"_{f.__name__}": f for f in (syncthreads_count, syncthreads_and, syncthreads_or)},
    **{f"_{name}": _shuffle(source) for name, source in SOURCES.items()},
    **{f"_source_{name}": source for name, source in SOURCES.items()},
    **atomics.NAMES,
    **{f"_type_{name}": function for name, function in TYPES.items()},
}
