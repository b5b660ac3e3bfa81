"""Every kernel of the corpus does what NumPy says: on the CPU, checked access by access; and on a GPU, if there is one.

Here the kernels run in `labkit.cpu` with all checks on, so this also shows that no check sees a fault where there is
none. On a GPU machine the same kernels run as numba.cuda compiles them, and both results must be the same: equal for
integers, within the entry's ulp for floats. Without a GPU a spread of all modules runs by default; LABKIT_ALL=1 runs
all.
"""

import numpy as np
import pytest
from corpus import ENTRIES, MODULES
from sampled import ALL, sampled

from labkit import MACHINE, cpu

from numba import cuda  # isort: skip

BY_NAME = {e.name: e for e in ENTRIES}


def module(entry) -> str:
    return entry.kernel.py_func.__module__


CHOSEN = [e.name for e in sampled(ENTRIES, every=18, group=module, everything=ALL or MACHINE.has_gpu)]


def fresh(entry) -> tuple:
    return entry.arguments(np.random.default_rng(7))


def on_cpu(entry, checks: bool) -> tuple:
    arguments = fresh(entry)
    cpu.run(entry.kernel, entry.grid, entry.block, *entry.viewed(arguments), shared=entry.shared, checks=checks)
    return arguments


def launched(entry) -> tuple:
    """As a learner launches it: on the GPU, or in what `@cuda.jit` gives without one."""
    arguments = [cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in fresh(entry)]
    entry.kernel[entry.grid, entry.block, 0, entry.shared](*entry.viewed(arguments))
    return tuple(a.copy_to_host() if hasattr(a, "copy_to_host") else a for a in arguments)


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def assert_right(entry, after: tuple) -> None:
    """The arguments are as `expected` says; those it leaves out are as before."""
    before = fresh(entry)
    expected = entry.expected(*before)
    for position, original in enumerate(fresh(entry)):
        if not isinstance(original, np.ndarray):
            continue
        found, right = after[position], np.asarray(expected.get(position, original))
        if entry.tolerance == 0 or position not in expected:
            np.testing.assert_array_equal(found, right, err_msg=f"{entry.name}, argument {position}")
        else:
            allowed = entry.tolerance * max(1e-30, float(np.nanmax(np.abs(wide(right)))))
            np.testing.assert_allclose(wide(found), wide(right), rtol=0, atol=allowed)


def ulps(a: np.ndarray, b: np.ndarray, cancels: bool) -> float:
    """How far apart two float arrays are, in units of the last place (of the largest value, if small ones cancel)."""
    if a.dtype.kind == "c":
        parts = f"f{a.dtype.itemsize // 2}"
        a, b = np.ascontiguousarray(a).view(parts), np.ascontiguousarray(b).view(parts)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    size = np.abs(b).astype(b.dtype)
    unit = np.spacing(np.full_like(size, np.nanmax(size)) if cancels else size).astype(np.float64)
    with np.errstate(invalid="ignore"):  # inf − inf, where both are the same
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64)) / unit
    return float(np.max(np.where(same, 0, apart), initial=0))


def test_the_corpus_is_as_large_as_it_should_be():
    assert len(BY_NAME) == len(ENTRIES) >= 60


def test_the_sample_covers_every_module():
    assert {module(BY_NAME[name]) for name in CHOSEN} == {m.__name__ for m in MODULES}


@pytest.mark.parametrize("name", CHOSEN)
def test_right_and_without_a_fault(name):
    assert_right(BY_NAME[name], on_cpu(BY_NAME[name], checks=True))


@pytest.mark.skipif(not MACHINE.has_gpu, reason="needs a GPU")
@pytest.mark.parametrize("name", BY_NAME)
def test_the_gpu_agrees(name):
    entry = BY_NAME[name]
    there = launched(entry)
    assert_right(entry, there)
    for position, (gpu, here) in enumerate(zip(there, on_cpu(entry, checks=False), strict=True)):
        if not isinstance(gpu, np.ndarray):
            continue
        if gpu.dtype.kind in "fc":
            apart = ulps(here, gpu, entry.cancels)
            print(f"{name}, argument {position}: {apart:.1f} ulp")
            assert apart <= entry.ulp, f"{name}, argument {position}: {apart:.1f} ulp apart, allowed {entry.ulp}"
        else:
            np.testing.assert_array_equal(here, gpu, err_msg=f"{name}, argument {position}")
