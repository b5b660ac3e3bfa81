"""The instrument that counts: which functions generated code calls, and the state that they fill."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import numpy as np

from labkit.cpu import private, requests
from labkit.cpu.access import FAULT, ROWS, TABLE, access_functions, place, pointer
from labkit.cpu.arrays import UNKNOWN, place_arguments, unit_of
from labkit.cpu.instrument import Instrument
from labkit.cpu.requests import (
    CAPACITY,
    COLUMNS,
    FLOPS,
    GROUPS,
    KINDS,
    LOG,
    LOG_SIZE,
    LOGGED,
    PLACES,
    SITES,
    SLOTS,
    STATE,
    TOUCHED,
    WIDTH,
)
from labkit.cpu.tree import Together, assign, call, name, parse

NAMES = access_functions(requests.touch(1), requests.touch(2), requests.touch(3)) | {
    "_pointer": pointer,
    "_place": place,
    "_begin_block": requests.begin_block,
    "_begin_region": requests.begin_region,
    "_begin_thread": requests.begin_thread,
    "_close_warp": requests.close_warp,
    "_meet": requests.meet,
    "_fence": requests.fence,
    "_turn": requests.turn,
    "_key_now": requests.key_now,
    "_set_key": requests.set_key,
    "_entering": requests.entering,
    "_leaving": requests.leaving,
    "_flop": requests.flop,
}


class Counts(Instrument):
    """The instrument of `labkit.traffic.count`."""

    mode = "counted"
    counts_flops = True

    def __init__(self):
        super().__init__()
        self.names = dict(NAMES)

    def end_block(self) -> list[str]:
        return ["_close_warp(_S)"]

    def region(self) -> list[str]:
        return ["_begin_region(_S)"]

    def barrier(self, at: Together) -> list[str]:
        return [f"_meet(_S, _off, {self.site(at, '', at.name)})"]

    warp = barrier

    def loop(self, s: ast.For | ast.While) -> list[ast.stmt]:
        """A loop whose turns are told apart."""
        loop, key, count = self.site(s, "", "loop"), f"_q{len(self.sites)}", f"_c{len(self.sites)}"
        head = [assign(key, call("_key_now", name("_S")), s), assign(count, ast.Constant(0), s)]
        turns = [parse(f"{count} += 1"), parse(f"_turn(_S, {key}, {loop}, {count})")]
        after = parse(f"_set_key(_S, {key})")
        s.body = [*turns, *s.body]
        return [*head, s, after]

    def state(self, arguments: tuple, blocks: int, dynamic: int, fault: np.ndarray, log: int = 0) -> State:
        """The state that the blocks of one part begin with; `log` accesses are kept one by one."""
        table, used = place_arguments(arguments, {UNKNOWN})  # every array counts, written or not
        table = np.concatenate([table, self.shared_rows()])
        slots = np.zeros(STATE, np.int64)
        groups, open_slots = np.empty((CAPACITY, WIDTH), np.int64), np.zeros(2 * CAPACITY, np.int64)
        state = State(
            slots,
            table,
            np.zeros((len(self.sites), len(table) + 1, len(COLUMNS)), np.int64),
            np.zeros(used, np.int64),
            np.zeros(len(KINDS), np.int64),
            np.zeros((log, PLACES), np.int64),
            (groups, open_slots, fault),
        )
        slots[ROWS] = len(table)
        for slot, array in (
            (TABLE, table),
            (FAULT, fault),
            (GROUPS, groups),
            (SLOTS, open_slots),
            (SITES, state.counts),
            (TOUCHED, state.touched),
            (FLOPS, state.flops),
        ):
            slots[slot] = array.ctypes.data
        if log:
            slots[LOG], slots[LOG_SIZE] = state.log.ctypes.data, log
        return state

    def shared_rows(self) -> np.ndarray:
        """The table's rows of the shared arrays; the last column is the bank (word) that each begins at."""
        rows = np.zeros((len(self.shared), 6), np.int64)
        offset = 0
        for row, d in zip(rows, self.shared, strict=True):
            itemsize = private.dtype_of(d.dtype).itemsize
            row[:] = 0, 0, unit_of(private.dtype_of(d.dtype)), 0, 1, 0
            if d.shape != (0,):
                offset = -(-offset // max(4, itemsize)) * max(4, itemsize)
                row[5] = offset // 4
                offset += int(np.prod(d.shape)) * itemsize
        for row, d in zip(rows, self.shared, strict=True):
            if d.shape == (0,):
                row[5] = -(-offset // 16) * 4  # dynamic memory follows the static arrays
        return rows


@dataclass(frozen=True)
class State:
    """What a part of the blocks counts.

    counts   (site, array, COLUMNS); the last array stands for none
    touched  an integer an element of the arguments: 1 read, 2 written
    """

    slots: np.ndarray
    table: np.ndarray
    counts: np.ndarray
    touched: np.ndarray
    flops: np.ndarray
    log: np.ndarray
    kept: tuple

    @property
    def address(self) -> int:
        """What generated code gets."""
        return self.slots.ctypes.data

    @property
    def logged(self) -> np.ndarray:
        """The accesses that were kept one by one."""
        return self.log[: self.slots[LOGGED]]
