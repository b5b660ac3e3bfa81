"""`labkit.cpu` finds every seeded fault where it is and says so; about right kernels that come close it says nothing.

A spread of both runs by default; LABKIT_ALL=1 runs all.
"""

from collections import Counter

import numpy as np
import pytest
from faults import FAULTS
from innocent import INNOCENT
from sampled import sampled

from labkit import cpu
from labkit.cpu import faults

LEAST = 2  # of a kind, where so many are seeded
LAUNCH = {faults.TOO_MANY_THREADS, faults.TOO_MUCH_SHARED, faults.EMPTY_GRID, faults.DIMENSIONS}
RACES = {faults.SHARED_RACE, faults.GLOBAL_RACE}
INDICES = {faults.OUT_OF_RANGE, faults.NEGATIVE}
ADVICE = {  # words of what to do
    faults.OUT_OF_RANGE: "guard it",
    faults.NEGATIVE: "guard it",
    faults.SHARED_RACE: "cuda.syncthreads()",
    faults.GLOBAL_RACE: "cuda.atomic",
    faults.DIVERGENT: "move the barrier",
    faults.UNINITIALISED: "write it",
    faults.LANES: "mask",
    faults.TOO_MANY_THREADS: "take smaller blocks",
    faults.TOO_MUCH_SHARED: "take smaller tiles",
    faults.EMPTY_GRID: "at least 1",
    faults.DIMENSIONS: "give tuples",
}


CHOSEN = sampled(list(enumerate(FAULTS)), every=10, group=lambda pair: pair[1].kind, least=LEAST)
RIGHT = sampled(INNOCENT, every=12)


def launched(case) -> None:
    arguments = case.arguments(np.random.default_rng(0))
    cpu.run(case.kernel, case.grid, case.block, *arguments, shared=case.shared, checks=True)


def text(fault, line: int) -> str:
    """The source line of a number, without its mark."""
    with open(fault.kernel.py_func.__code__.co_filename) as f:
        return f.read().splitlines()[line - 1].split("#")[0].strip()


def test_the_sample_covers_every_kind():
    seeded, chosen = Counter(f.kind for f in FAULTS), Counter(f.kind for _, f in CHOSEN)
    assert seeded.keys() == ADVICE.keys() == chosen.keys()
    assert all(chosen[k] >= min(LEAST, seeded[k]) for k in seeded)


@pytest.mark.parametrize("fault", [pytest.param(f, id=f"{i}-{f.name}") for i, f in CHOSEN])
def test_a_seeded_fault_is_found_and_told(fault):
    with pytest.raises(cpu.KernelFault) as caught:
        launched(fault)
    found, message = caught.value, str(caught.value)
    assert found.kind == fault.kind, message
    assert "\n" not in message
    assert ADVICE[found.kind] in message
    if fault.kind in LAUNCH:
        assert message.startswith(f"{fault.name}: ")
    else:
        assert_place_told(fault, found, message)


def assert_place_told(fault, found, message: str) -> None:
    names = {fault.name, *(f.py_func.__name__ for f in fault.also)}
    assert found.line in fault.lines, message
    assert message.startswith(tuple(f"{name}, line {found.line} (`" for name in names)), message
    assert text(fault, found.line) in message
    assert f"block {found.block}, thread {found.thread}" in message
    if fault.kind in RACES:
        assert found.other_line in fault.lines, message
        assert f"line {found.other_line}" in message
        assert f"thread {found.other_thread} in line" in message or "another thread in line" in message
        assert (found.other_block, found.other_thread) != (found.block, found.thread)
    if fault.kind in RACES | INDICES | {faults.UNINITIALISED}:
        index = ", ".join(map(str, found.index)) if isinstance(found.index, tuple) else found.index
        assert f"{found.array}[{index}]" in message
    if fault.kind in {faults.DIVERGENT, faults.LANES}:
        assert f"thread {found.other_thread}" in message


@pytest.mark.parametrize("right", [pytest.param(r, id=r.name) for r in RIGHT])
def test_no_fault_in_a_right_kernel(right):
    launched(right)
