"""decode_wide's kernels without a GPU: every thread of a block is a Python thread, and one of them runs at a time.

A thread runs until it waits for what another does. Which one is next is chosen to be awkward: one warpgroup goes on as
far as it can, then the producer, then the other warpgroup. Tensor copies arrive at once, or when all threads wait.

Asserted besides the sums: nothing is touched before wait_for_previous that the kernel before may write or read; no copy
goes where a wgmma under way reads; no wgmma reads what has not arrived; a sum is stored before it is read; a block's
part is stored before it is counted; nothing is under way at the end.
"""

import os
import types
from collections import Counter
from contextlib import ExitStack, contextmanager
from threading import Lock, Thread
from unittest import mock

import numpy as np
from emulated_warps import Watched, python_of

from labkit import ptx

START = 1104  # of dynamic shared memory: a multiple of 16, of no more
UNKNOWN = 0x7E  # a byte that nobody wrote: two are a NaN
WARPGROUP, CONSUMERS = 128, 256


class Stopped(Exception):
    """Another thread has failed; this one ends too."""


class Turn:
    """A thread of the block: what it waits for, what it has done."""

    def __init__(self, number):
        self.number, self.group, self.lane = number, number // WARPGROUP, number % WARPGROUP
        self.go, self.done, self.ready = closed(), False, lambda: True
        self.waited, self.fenced, self.stores = False, False, 0
        self.multiplied, self.closed, self.over = 0, [], 0  # wgmma: issued, at the end of each group, waited for


class Turns:
    """Python threads of which one runs at a time."""

    def __init__(self, count):
        self.all, self.me = [Turn(number) for number in range(count)], None
        self.end_of_turns, self.error, self.stopping = closed(), None, False

    def run(self, function, arguments, order):
        """order: the threads, in groups; of those that can go on, the first group does."""
        threads = [Thread(target=self.body, args=(turn, function, arguments), daemon=True) for turn in self.all]
        self.turns = self.choose(order)
        with on_one_core():
            for thread in threads:
                thread.start()
            self.hand_over()
            self.end_of_turns.acquire()
            self.stop()
            for thread in threads:
                thread.join()
        if self.error:
            raise self.error

    def body(self, turn, function, arguments):
        try:
            self.pause(turn)
            function(*arguments)
            turn.done = True
            self.hand_over()
        except Stopped:
            pass
        except BaseException as error:
            self.error = error
            self.end_of_turns.release()

    def choose(self, order):
        """Whose turn is next, until all threads are done."""
        while not all(turn.done for turn in self.all):
            group = next((group for group in order if any(map(able, group))), None)
            if group:
                yield from filter(able, group)
            else:
                assert self.nothing_moves(), "all threads wait, and for nothing"

    def hand_over(self):
        """The running thread lets another one run, or itself."""
        self.me = next(self.turns, None)
        (self.me.go if self.me else self.end_of_turns).release()

    def pause(self, turn):
        turn.go.acquire()
        if self.stopping:
            raise Stopped

    def wait_until(self, condition):
        turn = self.me
        if not condition():
            turn.ready = condition
            self.hand_over()
            self.pause(turn)

    def stop(self):
        self.stopping = True
        for turn in self.all:
            if not turn.done:
                turn.go.release()

    def nothing_moves(self):
        """Whether something outside the threads happens, now that all of them wait."""
        return False


def able(turn):
    return not turn.done and turn.ready()


@contextmanager
def on_one_core():
    """Threads of which one runs at a time take turns in half the time."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    if cores:
        os.sched_setaffinity(0, {sorted(cores)[os.getpid() % len(cores)]})
    try:
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, cores)


def closed():
    """A lock that somebody else opens."""
    lock = Lock()
    lock.acquire()
    return lock


class Map:
    """A tensor map: a box of `rows` rows of 64 numbers is copied, with zeros for what lies outside."""

    def __init__(self, array, box):
        self.array, (self.rows, columns) = array, box
        assert columns == 64, "a row of a box is not the 128 bytes that are swizzled"

    def swizzled(self, column, row):
        """The bytes of a box in shared memory: of row r, the 16 bytes c lie at place c ^ (r % 8)."""
        assert min(column, row) >= 0, "a box that begins outside"
        inside = self.array[row : row + self.rows, column : column + 64]
        box = np.zeros((self.rows, 64), np.float16)
        box[: inside.shape[0], : inside.shape[1]] = inside
        r, c = np.divmod(np.arange(8 * self.rows), 8)
        found = np.empty((8 * self.rows, 16), np.uint8)
        found[8 * r + (c ^ r % 8)] = box.view(np.uint8).reshape(-1, 16)
        return found.reshape(-1)


class Copy:
    """A tensor copy under way."""

    def __init__(self, tensor_map, at, column, row, barrier):
        self.map, self.column, self.row, self.barrier = tensor_map, column, row, barrier
        self.span = at, at + 128 * tensor_map.rows


class Mbarrier:
    """A barrier in shared memory: so many arrivals, and the bytes that were announced."""

    def __init__(self, count):
        self.count = self.pending = count
        self.bytes, self.phase = 0, 0

    def change(self, arrivals, nbytes):
        self.pending -= arrivals
        self.bytes += nbytes
        if self.pending == 0 and self.bytes == 0:
            self.phase, self.pending = self.phase + 1, self.count


class Flat(Watched):
    """A watched array of one dimension."""

    def __getitem__(self, at):
        return super().__getitem__((at,))

    def __setitem__(self, at, value):
        super().__setitem__((at,), value)


class Counts(Flat):
    """The counter: changed by add_in_order, and set back to zero."""

    def __getitem__(self, at):
        raise AssertionError("the counter is read in no order")

    def __setitem__(self, at, value):
        assert value == 0, "the counter is changed in no order"
        super().__setitem__(at, value)

    def add(self, at, n):
        old = super().__getitem__(at)
        super().__setitem__(at, old + n)
        return old


class Sums:
    """Dynamic shared memory as float32."""

    def __init__(self, block):
        self.block, self.stored = block, set()

    def __setitem__(self, i, value):
        self.bytes_of(i)[:] = np.array([value], np.float32).view(np.uint8)
        self.stored.add(i)

    def __getitem__(self, i):
        assert i in self.stored, "a sum is read before it is stored"
        return self.bytes_of(i).view(np.float32)[0]

    def bytes_of(self, i):
        assert 0 <= 4 * i < self.block.end - START, "sums outside shared memory"
        assert not self.block.under_way(), "sums where copies or wgmma are under way"
        return self.block.memory[START + 4 * i : START + 4 * i + 4]


class Block(Turns):
    """One block: cuda and ptx as its threads see them."""

    def __init__(self, threads, nbytes, index, grid, early, late):
        super().__init__(threads)
        self.end, self.early, self.late = START + nbytes, early, late
        self.memory, self.mbarriers, self.copies = np.full(self.end, UNKNOWN, np.uint8), {}, []
        self.read, self.products = {}, {}  # of wgmma, by warpgroup and number: spans still read; fragments
        self.came = Counter()  # threads, by warpgroup and number
        self.barriers, self.sums, self.one = {}, Sums(self), [None]
        self.blockIdx, self.gridDim = (types.SimpleNamespace(x=v[0], y=v[1], z=v[2]) for v in (index, grid))

    def under_way(self):
        return bool(self.copies or self.read)

    # cuda

    threadIdx = property(lambda self: types.SimpleNamespace(x=self.me.number))
    shared = property(lambda self: types.SimpleNamespace(array=self.shared_array))
    local = types.SimpleNamespace(array=lambda n, dtype: [None] * n)

    def shared_array(self, n, dtype):
        return self.one if n else self.sums

    def syncthreads(self):
        self.barrier(0, len(self.all))

    def barrier(self, name, count):
        there, turn = self.barriers.get(name, (0, 0))
        self.barriers[name] = (there + 1, turn) if there + 1 < count else (0, turn + 1)
        self.wait_until(lambda: self.barriers[name][1] > turn)

    # ptx: order

    def start_next(self):
        pass

    def wait_for_previous(self):
        self.me.waited = True

    def bar_sync_256(self, name):
        assert self.me.number < CONSUMERS, "the producer at a barrier of the warpgroups"
        self.barrier(name, 256)

    def same(self, n):
        return n

    def address(self, array):
        return array if isinstance(array, Map) else array.array.ctypes.data

    def shared_address(self, array):
        return START

    # ptx: copies and their barriers

    def mbarrier_init(self, at, count):
        assert at in range(START - START % 8, self.end - 7, 8), "a barrier outside shared memory"
        self.mbarriers[at], self.seen = Mbarrier(count), False

    def fence_mbarrier_init(self):
        self.seen = True

    def mbarrier(self, at):
        assert at in self.mbarriers, "a barrier that is not there yet"
        return self.mbarriers[at]

    def mbarrier_expect(self, at, nbytes):
        self.mbarrier(at).change(1, nbytes)

    def mbarrier_arrive(self, at):
        self.mbarrier(at).change(1, 0)

    def mbarrier_wait(self, at, parity):
        barrier = self.mbarrier(at)
        self.wait_until(lambda: barrier.phase & 1 != parity)

    def prefetch_map(self, tensor_map):
        pass

    def tma_load_2d(self, at, tensor_map, column, row, barrier):
        assert self.seen, "a copy that does not see its barrier: fence_mbarrier_init"
        copy = Copy(tensor_map, at, column, row, self.mbarrier(barrier))
        assert self.me.waited or tensor_map.array is self.early, "a copy of x before wait_for_previous"
        assert at % 1024 == 0, "a swizzled box that does not begin at a multiple of 1,024"
        assert within(copy.span, (START, min(self.mbarriers))), "a copy to outside the ring"
        assert not any(meet(copy.span, span) for span in self.read.values()), "a copy to what a wgmma reads"
        assert not any(meet(copy.span, other.span) for other in self.copies), "two copies to one place"
        self.memory[slice(*copy.span)] = UNKNOWN
        self.copies.append(copy)
        if not self.late:
            self.land()

    def land(self):
        """The oldest copy arrives."""
        copy = self.copies.pop(0)
        self.memory[slice(*copy.span)] = found = copy.map.swizzled(copy.column, copy.row)
        copy.barrier.change(0, -len(found))

    def nothing_moves(self):
        if not self.copies:
            return False
        self.land()
        return True

    # ptx: wgmma

    def zeros(self, n):
        return np.zeros(n // 2, np.float32)

    def wgmma(self, n, acc, a, b):
        """Worked out for the first thread of the warpgroup that comes; what it reads is read until it is waited for."""
        me = self.me
        assert me.fenced, "wgmma before wgmma_fence"
        key, me.multiplied = (me.group, me.multiplied), me.multiplied + 1
        self.came[key] += 1
        if key not in self.products:
            (left, span), (right, other) = self.matrix(int(a), 64), self.matrix(int(b), n)
            self.products[key] = fragments(left @ right.T), (a, b)
            self.read[*key, "a"], self.read[*key, "b"] = span, other
        found, operands = self.products[key]
        assert operands == (a, b), "threads of a warpgroup multiply different slices"
        return acc + found[me.lane]

    def matrix(self, descriptor, rows):
        """16 columns that a descriptor tells, and the span of the rows of 128 bytes that they lie in."""
        assert descriptor >> 62 == 1, "not the layout of 128 swizzled bytes"
        start, eight_rows = (descriptor & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
        r, c = np.ogrid[:rows, :16]
        at = start + r // 8 * eight_rows + r % 8 * 128 + 2 * c
        at ^= (at >> 7 & 7) << 4
        span = int(at.min()) & ~127, int(at.max() | 127) + 1
        assert within(span, (START, self.end)), "wgmma on what lies outside shared memory"
        assert not any(meet(span, copy.span) for copy in self.copies), "wgmma on what has not arrived"
        words = self.memory[at[..., None] + [0, 1]].view(np.float16)
        return words[..., 0].astype(np.float32), span

    def wgmma_fence(self):
        self.me.fenced = True

    def wgmma_commit(self):
        self.me.closed.append(self.me.multiplied)

    def wgmma_wait_1(self):
        self.finish(self.me.closed[-2] if len(self.me.closed) > 1 else 0)

    def wgmma_wait(self, acc):
        assert not self.me.multiplied or self.me.closed[-1] == self.me.multiplied, "wgmma in no group are waited for"
        self.finish(self.me.multiplied)
        return acc

    def finish(self, count):
        """The first wgmma of this warpgroup are over, as soon as all of its threads have come to them."""
        me = self.me
        self.wait_until(lambda: not count or self.came[me.group, count - 1] == WARPGROUP)
        me.over = count
        self.read = {key: span for key, span in self.read.items() if key[0] != me.group or key[1] >= count}

    def spread(self, acc, array):
        assert self.me.over == self.me.multiplied, "accumulators are read while a wgmma is under way"
        array[: len(acc)] = list(acc)

    # ptx: parts

    def store4(self, array, at, *values):
        assert at % 4 == 0, "four numbers that do not lie at a multiple of 16 bytes"
        self.me.stores += 1
        for i, value in enumerate(values):
            array[at + i] = value

    def load4(self, array, at):
        assert at % 4 == 0, "four numbers that do not lie at a multiple of 16 bytes"
        return tuple(array[at + i] for i in range(4))

    def add_in_order(self, at, n):
        assert len({turn.stores for turn in self.all[:CONSUMERS]}) == 1, "a part is counted before it is stored"
        return self.counter.add((at - self.address(self.counter)) // 4, n)


def meet(span, other):
    return span[0] < other[1] and other[0] < span[1]


def within(span, other):
    return other[0] <= span[0] and span[1] <= other[1]


def fragments(product):
    """product[64, n], as the 128 threads of a warpgroup hold it."""
    parts = product.reshape(4, 2, 8, -1, 4, 2)  # warp, + 8 rows, row, 8 columns, pair of columns, one of the pair
    return parts.transpose(0, 2, 4, 3, 1, 5).reshape(128, -1)


def make(module, *arguments, **options):
    """module.make_wide, with wgmma and zeros that an emulated block has."""
    with ExitStack() as stack:
        for n in module.MULTIPLY:
            stack.enter_context(mock.patch.dict(module.MULTIPLY, {n: multiply(n)}))
            stack.enter_context(mock.patch.dict(module.ZEROS, {n: zeros(n)}))
        return module.make_wide.__wrapped__(*arguments, **options)


def multiply(n):
    return types.SimpleNamespace(py_func=lambda acc, a, b: ptx.wgmma(n, acc, a, b))  # python_of makes ptx the block


def zeros(n):
    return types.SimpleNamespace(py_func=lambda: ptx.zeros(n))


def launch(module, kernel, arguments, *, late, backwards):
    """module.wide_launch, run block by block; backwards: the last block, the last warpgroup, the last thread first."""

    def run(kernel, grid, threads, map_w, map_x, w, x, residual, workspace, counter, out, *, shared):
        indices = [tuple(map(int, index)) for index in np.ndindex(*grid)]
        for index in reversed(indices) if backwards else indices:
            block = Block(threads, shared, index, grid, map_w.array, late)
            block.counter = Counts(counter, block)
            shapes = [types.SimpleNamespace(shape=a.shape) for a in (w, x)]  # they are read through their maps alone
            watched = Watched(residual, block), Flat(workspace, block), block.counter, Watched(out, block)
            block.run(python_of(kernel, block), (map_w, map_x, *shapes, *watched), order_of(block, backwards))
            assert not block.under_way(), "copies or wgmma are under way at the end"

    with mock.patch.object(ptx, "tensor_map", Map):
        module.wide_launch(run, kernel, *arguments)


def order_of(block, backwards):
    """The threads in the order in which they may go on: the producer is between the warpgroups."""
    first, second, producer = (block.all[i : i + WARPGROUP] for i in (0, WARPGROUP, CONSUMERS))
    if backwards:
        return second[::-1], producer, first[::-1]
    return first, producer, second
