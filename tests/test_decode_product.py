"""Chapter 08's product for a few rows of x and its norm: emulated without a GPU, compiled for two, run on one."""

import math
import pathlib
import types

import emulated_warps as emulated
import numpy as np
import pytest

import labkit  # isort: skip
from numba import cuda, float32
from numba.types import float16

from labkit import LabError, device, ptx
from labkit.kernels import decode_product
from labkit.kernels.decode_product import early_norm, few_grid, make_few

trouble = ptx.compiler_trouble()
compiles = pytest.mark.skipif(bool(trouble), reason=trouble or "compiles")


@cuda.jit(device=True, forceinline=True)
def keep(p, q, pair, second, there, old, older, b, out):
    out[b, pair] = float16(p)
    if there:
        out[b, second] = float16(q)


@cuda.jit(device=True, forceinline=True)
def gated(p, q, pair, second, there, old, older, b, out):
    out[b, pair] = float16(p / (float32(1) + math.exp(-p)) * q)


@cuda.jit(device=True, forceinline=True)
def added(p, q, pair, second, there, old, older, b, out):
    out[b, pair] = float16(old + p)
    if there:
        out[b, second] = float16(older + q)


HOOKS = {"keep": keep, "gated": gated, "added": added}


def inputs(rng, m, K, batch):
    """w, x, residual: random, and of every sum about 1."""
    w = (rng.standard_normal((m, K)) / math.sqrt(K)).astype(np.float16)
    return w, *(rng.standard_normal(shape).astype(np.float16) for shape in ((batch, K), (batch, m)))


def reference(name, w, x, residual):
    y = x.astype(np.float64) @ w.astype(np.float64).T
    if name == "keep":
        return y
    if name == "added":
        return residual.astype(np.float64) + y
    half = (len(w) + 1) // 2
    gate, up = y[:, :half], np.zeros((len(x), half))
    up[:, : len(w) - half] = y[:, half:]
    return gate / (1 + np.exp(-gate)) * up


def emulate(module, name, m, K, batch, late=True, **options):
    """The largest error, or why the kernel is wrong."""
    arrays = inputs(np.random.default_rng(m + K + batch), m, K, batch)
    w, x, residual = (emulated.fenced(a.shape, a)[0] for a in arrays)
    right = reference(name, *arrays)
    out, untouched = emulated.fenced(right.shape)
    kernel = module.make_few(K, HOOKS[name], name == "added", **options)
    emulated.run_few(kernel, module.few_grid(kernel, m, batch), w, x, residual, out, late=late)
    assert untouched(), "written outside"
    assert np.isfinite(out).all(), "not written"
    return float(np.abs(out - right).max())


CASES = [  # hook, rows of w, K, batch, late copies, options
    ("added", 33, 520, 17, True, {"tiles": 2, "rows": 4, "depth": 2, "pieces": 1}),
    ("added", 15, 40, 3, False, {"rows": 1, "depth": 1}),
    ("keep", 35, 328, 2, True, {"depth": 1, "pieces": 1}),
    ("keep", 19, 1032, 9, True, {"tiles": 2, "rows": 1, "depth": 3, "pieces": 1}),
]


@pytest.mark.parametrize(
    ("name", "m", "K", "batch", "late", "options"),
    [
        ("keep", 1, 8, 1, True, {}),
        ("added", 15, 40, 3, False, {"rows": 1, "depth": 1}),
        ("gated", 16, 264, 9, True, {"tiles": 2, "rows": 1, "depth": 2, "pieces": 1}),
        ("added", 33, 520, 17, True, {"tiles": 2, "rows": 4, "depth": 1, "pieces": 1}),
        ("keep", 35, 328, 2, False, {"rows": 2, "depth": 3, "pieces": 1}),
        *CASES,
    ],
)
def test_products_are_right(name, m, K, batch, late, options):
    assert emulate(decode_product, name, m, K, batch, late, **options) < 5e-3


WRONG = {  # what stands in the module -> what a mistake makes of it
    "it does not wait for the oldest step": ("ptx.cp_async_wait(depth - 1), ptx", "ptx.cp_async_wait(depth), ptx"),
    "no barrier before a warp's sums are read": ("        cuda.syncthreads()  # without it: a warp's", "        #"),
    "it does not wait for the kernel before": ("        ptx.wait_for_previous()  # without it: x", "        #"),
    "columns past K": (
        "one, other = (ones, others) if inside else (uint32(0), uint32(0))",
        "one, other = ones, others",
    ),
    "rows past the matrix": ("eighths(pair, uint32(m - half)), eighths(b", "eighths(pair, half), eighths(b"),
    "operands of a in a wrong order": ("add(a, 8 * r + 2, b2, b3", "add(a, 8 * r + 2, b0, b1"),
    "the other row of the pair": ("uint32(RING * i + 64)", "uint32(RING * i + 32)"),
    "rows of x that are none": (
        "pair < half and b < batch:\n                p, q",
        "pair < half:\n                p, q",
    ),
}


@pytest.mark.filterwarnings("ignore")  # a wrong kernel overflows and divides by zero
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_product_is_rejected(mistake):
    right, wrong = WRONG[mistake]
    source = pathlib.Path(decode_product.__file__).read_text(encoding="utf-8")
    assert right in source
    made = types.ModuleType("wrong")
    exec(compile(source.replace(right, wrong), "wrong", "exec"), made.__dict__)

    def accepted(case):
        name, m, K, batch, late, options = case
        try:
            return emulate(made, name, m, K, batch, late, **options) < 5e-3
        except (AssertionError, IndexError):
            return False

    assert not all(map(accepted, CASES))


@pytest.mark.parametrize(("batch", "d"), [(2, 8), (1, 520), (1, 4096), (1, 4616)])
def test_norms_are_right(batch, d):
    rng = np.random.default_rng(d)
    x, norm = (emulated.fenced((n, d), rng.standard_normal((n, d)))[0] for n in (batch, 1))
    out, untouched = emulated.fenced((batch, d))
    emulated.run_norm(early_norm, x, norm, out)
    wide = x.astype(np.float64)
    right = norm * wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    assert untouched()
    np.testing.assert_allclose(out, right, rtol=2e-3, atol=1e-6)


def test_what_cannot_be_built_is_said():
    with pytest.raises(LabError, match="multiple of 8"):
        make_few(100, keep)
    with pytest.raises(LabError, match="tiles=9"):
        make_few(64, keep, tiles=9)
    with pytest.raises(LabError, match="rows=3"):
        make_few(64, keep, rows=3)
    with pytest.raises(LabError, match="KiB at most"):
        make_few(4096, keep, tiles=8, rows=4, depth=4)


def test_a_ring_has_room_for_two_blocks_and_no_more_than_a_warp_has_to_do():
    for tiles in range(1, 9):
        kernel = make_few(14336, keep, tiles=tiles)
        assert kernel.shared <= 113 << 10
        assert few_grid(kernel, 4096, 8 * tiles + 1) == (2, 128)
    assert make_few(64, keep).depth == 1


@compiles
@pytest.mark.parametrize("cc", [(8, 0), (9, 0, "a")])
@pytest.mark.parametrize("tiles", [1, 8])
def test_products_stay_in_registers(tiles, cc):
    half = np.zeros((2, 8), np.float16)
    found = ptx.compile_for(make_few(4096, added, True, tiles), [half] * 5, cc)
    assert (found.local_bytes, found.spilled_bytes, found.float64) == (0, 0, 0)
    assert found.registers <= (128 if cc[0] == 9 else 255)
    assert found.count("mma.sync") >= 2 * 2 * tiles  # rows 2; two products of 16 columns a piece


@compiles
@pytest.mark.parametrize("cc", [(8, 0), (9, 0, "a")])
def test_the_norm_stays_in_registers(cc):
    found = ptx.compile_for(early_norm, [np.zeros((2, 8), np.float16)] * 3, cc)
    assert (found.local_bytes, found.float64) == (0, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not device.MACHINE.has_gpu, reason="no GPU here")
@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize(("m", "K"), [(1, 8), (2, 40), (15, 64), (33, 264), (70, 520), (1030, 4104)])
def test_products_on_a_gpu(name, m, K):
    for batch, tiles in ((1, 1), (2, 1), (3, 1), (8, 1), (9, 2), (17, 4), (64, 8), (65, 8)):
        arrays = inputs(np.random.default_rng(batch), m, K, batch)
        right = reference(name, *arrays)
        out = cuda.to_device(np.full(right.shape, np.nan, np.float16))
        w, x, residual = (cuda.to_device(a) for a in arrays)
        for rows in (1, 2, 4):
            kernel = make_few(K, HOOKS[name], name == "added", tiles, rows)
            run = ptx.prepare(kernel, few_grid(kernel, m, batch), 256, w, x, x, residual, out, shared=kernel.shared)
            run()
            labkit.checks.assert_close(out.copy_to_host(), right, reduction=K, where=f"batch {batch}, rows {rows}")


@pytest.mark.gpu
@pytest.mark.skipif(not device.MACHINE.has_gpu, reason="no GPU here")
@pytest.mark.parametrize(("batch", "d"), [(1, 8), (3, 520), (64, 4096), (2, 14336)])
def test_norms_on_a_gpu(batch, d):
    rng = np.random.default_rng(d)
    x, norm = (rng.standard_normal((n, d)).astype(np.float16) for n in (batch, 1))
    out = cuda.to_device(np.full((batch, d), np.nan, np.float16))
    ptx.prepare(early_norm, batch, 256, cuda.to_device(x), cuda.to_device(norm), out)()
    wide = x.astype(np.float64)
    right = norm * wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    labkit.checks.assert_close(out.copy_to_host(), right, reduction=d)
