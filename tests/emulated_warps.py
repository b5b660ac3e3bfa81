"""Kernels of warps without a GPU: every thread is run as Python, warp instructions on all lanes of a warp at once.

A thread runs until a barrier or shuffle whose result is not known, all threads do, the result is worked out, and they
run again from their start. What mma returns is a promise: it is kept at the barrier. Copies arrive when they are
issued, or as late as a wait allows.
"""

import ctypes
import types
from functools import partial
from itertools import count
from math import prod

import numpy as np

from labkit import ptx

FENCE = 1024


class Unknown(Exception):
    """A thread came to what the other threads have to say first."""


class Promise:
    def __init__(self, call, i):
        self.call, self.i = call, i


class Watched:
    """An array that may not be touched before the kernel before has ended."""

    def __init__(self, array, block):
        self.array, self.block, self.shape = array, block, array.shape

    def __getitem__(self, at):
        assert self.block.me.waited, "read before wait_for_previous"
        assert all(0 <= i < n for i, n in zip(at, self.shape, strict=True)), "read outside"
        return self.array[at]

    def __setitem__(self, at, value):
        assert self.block.me.waited, "written before wait_for_previous"
        assert all(0 <= i < n for i, n in zip(at, self.shape, strict=True)), "written outside"
        self.array[at] = value


class Sums:
    """Dynamic shared memory as numbers: promises are kept at the next barrier."""

    def __init__(self, block):
        self.block, self.values, self.open = block, np.full(block.nbytes // 4, np.nan, np.float32), {}

    def __setitem__(self, at, value):
        me = self.block.me
        assert not [*me.groups, *me.group], "copies are under way to where sums are stored"
        own = self.block.nbytes // 4 // self.block.warps
        assert own * (me.thread // 32) <= at < own * (me.thread // 32 + 1), "sums in another warp's ring"
        if me.past == len(self.block.results):  # else it was stored the last time
            self.open[at] = me.thread, value

    def __getitem__(self, at):
        assert not self.open, "sums are read before a barrier"
        return self.values[at]


class Block:
    """One block: cuda and ptx as its threads see them."""

    def __init__(self, threads, nbytes, index, grid, arrays, early, late):
        self.threads, self.warps, self.nbytes, self.late = threads, threads // 32, nbytes, late
        self.memory, self.owner = np.full(max(nbytes, 16), 0x7E, np.uint8), {}
        self.sums, self.shared_arrays, self.results, self.told = Sums(self), {}, [], {}
        self.arrays, self.early, self.me = arrays, early, None
        self.xyz = types.SimpleNamespace(x=index[0], y=index[1], z=0), types.SimpleNamespace(x=grid[0], y=grid[1], z=1)

    def run(self, function, arguments):
        done = False
        while not done:
            done, self.calls, self.told = True, [[] for _ in range(self.threads)], {}
            for t in range(self.threads):
                fields = {"waited": False, "group": [], "groups": [], "past": 0, "shared": count()}
                self.me = types.SimpleNamespace(thread=t, **fields)
                try:
                    function(*arguments)
                except Unknown:
                    done = False
            if not done:
                self.results.append(self.together())

    def together(self):
        """What the barrier or shuffle brings to which all threads came."""
        assert len(self.told) == self.threads, "some threads came to a barrier that others did not"
        for warp in range(self.warps):
            keep_promises(self.calls[32 * warp : 32 * warp + 32])
        for at, (t, value) in self.sums.open.items():
            self.sums.values[at] = self.calls[t][value.call][-1][value.i] if isinstance(value, Promise) else value
        self.sums.open = {}
        return dict(self.told)

    def ask(self, what):
        """Past: what all threads said here. Else: say it, and wait for the others."""
        if self.me.past < len(self.results):
            self.me.past += 1
            return self.results[self.me.past - 1]
        self.told[self.me.thread] = what
        raise Unknown

    # cuda

    blockIdx = property(lambda self: self.xyz[0])
    gridDim = property(lambda self: self.xyz[1])
    threadIdx = property(lambda self: types.SimpleNamespace(x=self.me.thread))
    shared = property(lambda self: types.SimpleNamespace(array=self.shared_array))
    local = types.SimpleNamespace(array=lambda n, dtype: [None] * n)

    def shared_array(self, shape, dtype):
        if shape == 0:
            return self.sums
        return self.shared_arrays.setdefault(next(self.me.shared), np.full(shape, np.nan, np.float32))

    def syncthreads(self):
        self.ask(None)

    def syncwarp(self):
        pass

    def shfl_xor_sync(self, mask, value, distance):
        return self.ask(value)[self.me.thread ^ distance]

    # ptx

    def start_next(self):
        pass

    def wait_for_previous(self):
        self.me.waited = True

    def address(self, array):
        return (array.array if isinstance(array, Watched) else array).ctypes.data

    def shared_address(self, array):
        return 0

    def cp_async_16(self, at, source, n):
        assert at in range(0, self.nbytes, 16), "a copy to outside the ring"
        if n:
            found = self.array_of(source)
            assert self.me.waited or any(found is a for a in self.early), "a copy of x before wait_for_previous"
        self.me.group.append((at, source, n))
        if not self.late:
            self.arrive([self.me.group.pop()])

    def arrive(self, group):
        for at, source, n in group:
            self.memory[at : at + 16] = np.frombuffer(ctypes.string_at(source, 16), np.uint8) if n else 0
            self.owner[at] = self.me.thread

    def cp_async_commit(self):
        self.me.groups.append(self.me.group)
        self.me.group = []

    def wait(self, n):
        while len(self.me.groups) > n:
            self.arrive(self.me.groups.pop(0))

    def ld_shared_v4_b32(self, at):
        assert self.owner.get(at, self.me.thread) == self.me.thread, "read of what another thread copied"
        return tuple(self.memory[at : at + 16].view(np.uint32))

    def mma_m16n8k16(self, *words):
        calls = self.calls[self.me.thread]
        calls.append([words, None])
        return tuple(Promise(len(calls) - 1, i) for i in range(4))

    def pack_half2(self, a, b):
        return np.array([a, b], np.float16).view(np.uint32)[0]

    def unpack_half2(self, word):
        return tuple(np.array([word], np.uint32).view(np.float16).astype(np.float32))

    def load8(self, array, at):
        found = array[at[0], slice(at[1], at[1] + 8)] if isinstance(array, np.ndarray) else self.row(array, at)
        assert len(found) == 8, "read outside"
        return tuple(np.ascontiguousarray(found).view(np.uint32))

    def row(self, array, at):
        assert array[at] is not None
        return array.array[at[0], at[1] : at[1] + 8]

    def st_global_v4_b32(self, at, *words):
        found = self.array_of(at)
        assert self.me.waited, "a store before wait_for_previous"
        o = (at - found.ctypes.data) // 2
        found.reshape(-1)[o : o + 8] = np.array(words, np.uint32).view(np.float16)

    def array_of(self, at):
        """The array that has the 16 bytes at an address."""
        found = [a for a in self.arrays if at in range(a.ctypes.data, a.ctypes.data + a.nbytes - 15, 16)]
        assert found, "16 bytes outside the arrays, or not aligned"
        return found[0]


def keep_promises(calls):
    """Work out a warp's mma, call by call; a call becomes (words, results)."""
    assert len({len(c) for c in calls}) == 1, "lanes of a warp multiply differently often"
    for i in range(len(calls[0])):
        words = [c[i][0] for c in calls]
        a, b = (np.array([w[s] for w in words], np.uint32) for s in (slice(0, 4), slice(4, 6)))
        c = [[calls[n][x.call][-1][x.i] if isinstance(x, Promise) else x for x in w[6:]] for n, w in enumerate(words)]
        for lane, d in enumerate(mma(a, b, np.array(c, np.float32))):
            calls[lane][i][-1] = d


def mma(a, b, c):
    """d of 32 lanes, from the fragments that ptx.mma_m16n8k16 describes."""
    a, b = (x.view(np.float16).reshape(8, 4, -1, 2).astype(np.float32) for x in (a, b))
    quarters = [a[:, :, i].reshape(8, 8) for i in range(4)]
    left = np.block([quarters[0::2], quarters[1::2]])
    right = np.concatenate([b[:, :, i].reshape(8, 8).T for i in range(2)])
    d = left @ right
    return c + np.stack([d[:8].reshape(32, 2), d[8:].reshape(32, 2)], 1).reshape(32, 4)


def python_of(kernel, block):
    """The kernel's Python function, in a world in which cuda and ptx are the block's."""
    waits = {id(ptx.cp_async_wait(n)): n for n in range(16)}
    word = lambda x: int(x) & 0xFFFFFFFF  # noqa: E731
    world = {"cuda": block, "ptx": block, "uint32": word, "int32": int, "int64": int}
    world |= {"float32": np.float32, "float16": np.float16}

    def plain(x):
        if id(x) in waits:
            return partial(block.wait, waits[id(x)])
        f = getattr(x, "py_func", None) or getattr(x, "fn", None)
        return python(f) if f else x

    def python(f):
        own = {k: plain(x) for k, x in f.__globals__.items() if k in f.__code__.co_names} | world
        own["__builtins__"] = f.__globals__["__builtins__"]
        cells = tuple(types.CellType(plain(c.cell_contents)) for c in f.__closure__ or ())
        return types.FunctionType(f.__code__, own, closure=cells)

    return plain(kernel)


def fenced(shape, fill=None):
    """An array aligned to 16 bytes between NaN, and a function that says whether these still are."""
    raw = np.full(prod(shape) + 2 * FENCE, np.nan, np.float16)
    start = FENCE + -(raw.ctypes.data // 2 + FENCE) % 8
    array = raw[start : start + prod(shape)].reshape(shape)
    array[...] = np.nan if fill is None else fill
    return array, lambda: bool(np.isnan(raw[:start]).all() and np.isnan(raw[start + prod(shape) :]).all())


def run_few(kernel, grid, w, x, residual, out, *, late):
    """A kernel of make_few."""
    for index in np.ndindex(*grid):
        block = Block(256, kernel.shared, index, grid, (w, x), (w,), late)
        watched = [Watched(a, block) for a in (x, residual, out)]
        block.run(python_of(kernel, block), (w, watched[0], w, watched[1], watched[2]))


def run_norm(kernel, x, norm, out):
    """early_norm."""
    for b in range(len(x)):
        block = Block(256, 0, (b, 0), (len(x), 1), (out,), (), False)
        block.run(python_of(kernel, block), (Watched(x, block), norm, Watched(out, block)))
