"""Chapter 08's product for a batch on Hopper: emulated without a GPU, compiled for one, run on one."""

import pathlib
import types

import emulated_wide as emulated
import numpy as np
import pytest

import labkit  # isort: skip
from numba import cuda
from test_decode_product import HOOKS, added, compiles, inputs, keep, reference

from labkit import LabError, device, ptx
from labkit.kernels import decode_wide, decode_wide_sums
from labkit.kernels.decode_wide import make_wide, most_room, wide_grid, wide_launch, wide_plan, wide_room

ENOUGH = 5e-3  # of sums of about 1


def emulate(name, m, K, batch, tiles_n, split, stages, late, module=decode_wide):
    """Fails where the kernel is wrong: blocks and threads in one order, then in the opposite one."""
    w, x, residual = arrays = inputs(np.random.default_rng(m + K + batch), m, K, batch)
    right = reference(name, *arrays)
    kernel = emulated.make(module, K, HOOKS[name], name == "added", tiles_n, split, stages)
    room, counts = module.wide_room(kernel, m, batch)
    counter, found = np.zeros(counts, np.int32), []
    for backwards in (False, True):
        out, workspace = np.full(right.shape, np.nan, np.float16), np.full(room, np.nan, np.float32)
        arguments = w, x, residual if name == "added" else None, out, workspace, counter
        emulated.launch(module, kernel, arguments, late=late, backwards=backwards)
        assert np.abs(out - right).max() < ENOUGH, "other sums, or not written"
        assert not counter.any(), "the counter is left as something else than zeros"
        found.append(out.tobytes())
    assert found[0] == found[1], "other bits in another order"


# hook, rows of w, K, batch, tiles_n, split, stages, late copies
WHOLE = ("added", 67, 264, 3, 8, 1, 2, True)
PARTED = ("added", 5, 264, 9, 8, 2, 2, True)
TINY = ("keep", 1, 8, 1, 8, 1, None, True)


@pytest.mark.parametrize(
    ("name", "m", "K", "batch", "tiles_n", "split", "stages", "late"),
    [
        WHOLE,
        PARTED,
        TINY,
        ("gated", 131, 456, 3, 8, 2, 3, True),
        ("gated", 70, 520, 33, 64, 2, 2, True),
        ("keep", 15, 328, 64, 64, 1, 3, False),
        ("added", 33, 200, 17, 32, 8, 2, True),
        ("gated", 16, 72, 20, 16, 1, 2, False),
    ],
)
def test_products_are_right(name, m, K, batch, tiles_n, split, stages, late):
    emulate(name, m, K, batch, tiles_n, split, stages, late)


WRONG = {  # what stands in one of the two modules -> what a mistake makes of it
    # order
    "x is copied before it is there": ("        ptx.wait_for_previous()  # without it: x", "        #"),
    "warpgroups do not wait either": ("        ptx.wait_for_previous()  # without it: the residual", "        #"),
    "barriers used before they are there": ("        cuda.syncthreads()  # without it: a thread", "        #"),
    "sums over a slice in use": (
        "            ptx.bar_sync_256(uint32(1))  # without it: sums overwrite",
        "            #",
    ),
    "sums of other threads missing": ("        ptx.bar_sync_256(uint32(1))  # without it: sums of", "        #"),
    "barriers that copies do not see": ("            ptx.fence_mbarrier_init()\n", ""),
    "no fence before wgmma": ("        ptx.wgmma_fence()\n", ""),
    # the ring
    "no wait for an empty stage": ("mbarrier_wait(empty + uint32(8 * stage), phase)", "prefetch_map(map_x)"),
    "no wait for a full stage": ("mbarrier_wait(full + uint32(8 * stage), phase)", "wgmma_fence()"),
    "the producer in the wrong phase": ("(empty + uint32(8 * stage), phase)", "(empty + uint32(8 * stage), phase ^ 1)"),
    "warpgroups stay in a phase": ("(full + uint32(8 * stage), phase)", "(full + uint32(8 * stage), uint32(0))"),
    "empty before it has been read": ("            ptx.wgmma_wait_1()\n", ""),
    "empty: the slice at hand": ("if step > 0 and first:", "before = stage\n            if step > 0 and first:"),
    "empty: one slice too many": ("if step > 0 and first:", "if first:"),
    "empty: every warp says so": ("(t & uint32(127)) == uint32(0)", "(t & uint32(31)) == uint32(0)"),
    "empty: one warpgroup is enough": ("uint32(2))  # both warpgroups", "uint32(1))  # both warpgroups"),
    "full without x": ("ptx.mbarrier_expect(barrier, uint32(X_BYTES))", "ptx.mbarrier_expect(barrier, uint32(0))"),
    "full without half of w": (
        "mbarrier_expect(barrier, uint32(2 * W_HALF))",
        "mbarrier_expect(barrier, uint32(W_HALF))",
    ),
    "full: one request is enough": ("uint32(2))  # requests of w and of x", "uint32(1))  # requests of w and of x"),
    "accumulators read too early": ("        acc = ptx.wgmma_wait(acc)\n", ""),
    # slices and descriptors
    "rows of the wrong half": ("int32(pair0), int32(pair0 + half)", "int32(pair0), int32(pair0 + PAIRS)"),
    "both warpgroups the same rows": ("uint32(group * W_HALF)", "uint32(0)"),
    "a step of 32 columns": ("STEP16 = 32 >> 4", "STEP16 = 64 >> 4"),
    "columns multiplied twice": ("acc = wgmma(acc, a + uint64(2 * STEP16)", "acc = wgmma(acc, a + uint64(STEP16)"),
    "rows 512 bytes apart": ("(64 << 32)", "(32 << 32)"),
    "another swizzle": ("LAYOUT = (1 << 62)", "LAYOUT = (2 << 62)"),
    "slices not at 1,024 bytes": ("uint32(0xFFFFFC00)", "uint32(0xFFFFFFF0)"),
    # rows that do not exist
    "a second row past the matrix": ("there = uint32(pair + half) < m", "there = uint32(pair + half) <= m"),
    "the residual past the matrix": ("second if second < m else pair]", "second]"),
    "rows beyond the batch": ("pair < half and b < batch:\n                at", "pair < half:\n                at"),
    "pairs beyond the half": ("pair < half and b < batch:\n                at", "b < batch:\n                at"),
    "accumulators in the wrong rows": ("uint32(at + uint32(8))]", "uint32(at + uint32(4))]"),
}
WRONG_PARTS = {
    "counted in no order": (
        "ptx.add_in_order(ptx.address(counter) + int64(4) * int64(at), int32(1))",
        "counter[at]",
    ),
    "steps past the end of a part": (
        "part + uint32(1))) // uint32(SPLIT)) - first)",
        "SPLIT)) // uint32(SPLIT)) - first)",
    ),
    "counted before it is stored": ("        ptx.bar_sync_256(uint32(1))  # without it: the block says", "        #"),
    "asked before it is known": ("        ptx.bar_sync_256(uint32(1))  # without it: a thread does", "        #"),
    "all parts begin at 0": (
        "request_w(map_w, target, barrier, first + step",
        "request_w(map_w, target, barrier, step",
    ),
    "slices of x of another part": ("full + uint32(8 * s), first + s, b0", "full + uint32(8 * s), s, b0"),
    "the counter is left": ("                counter[at] = 0", "                pass"),
    "the last part is not awaited": ("came == int32(SPLIT - 1) else", "came == int32(0) else"),
    "tiles of x share a counter": ("uint32(uint32(cuda.blockIdx.z) * uint32(cuda.gridDim.x) + tile)", "tile"),
    "parts over each other": ("uint32(at * uint32(SPLIT) + part)", "uint32(at * uint32(SPLIT))"),
    "one part several times": ("k + int64(SIZE * p)", "k"),
    "only the last part": ("e += v[o]\n", "e = v[o]\n"),
    "no residual after parts": ("            if LATE:", "            if EARLY:"),
}
WRONG_TINY = {"more slices than there are": ("int32(min(steps, int32(STAGES)))", "int32(STAGES)")}
MISTAKES = [(WHOLE, *texts) for texts in WRONG.values()] + [(PARTED, *texts) for texts in WRONG_PARTS.values()]
MISTAKES += [(TINY, *texts) for texts in WRONG_TINY.values()]


def wrong_module(right, wrong):
    """decode_wide with a mistake in it, or in decode_wide_sums."""
    sources = [pathlib.Path(module.__file__).read_text(encoding="utf-8") for module in (decode_wide, decode_wide_sums)]
    assert sum(source.count(right) for source in sources) == 1
    made, sums = types.ModuleType("wrong"), types.ModuleType("wrong_sums")
    for module, source in zip((made, sums), sources, strict=True):
        exec(compile(source.replace(right, wrong), module.__name__, "exec"), module.__dict__)
    made.__dict__.update({name: getattr(sums, name) for name in sums.__all__})
    return made


@pytest.mark.filterwarnings("ignore")  # a wrong kernel calculates with NaN
@pytest.mark.parametrize(("case", "right", "wrong"), MISTAKES, ids=[*WRONG, *WRONG_PARTS, *WRONG_TINY])
def test_a_wrong_product_is_rejected(case, right, wrong):
    made = wrong_module(right, wrong)
    with pytest.raises((AssertionError, IndexError)):
        emulate(*case, module=made)


def test_what_cannot_be_built_is_said():
    with pytest.raises(LabError, match="multiple of 8"):
        make_wide(100, keep)
    with pytest.raises(LabError, match="tiles_n=24"):
        make_wide(64, keep, tiles_n=24)
    with pytest.raises(LabError, match="split=9"):
        make_wide(64, keep, split=9)
    with pytest.raises(LabError, match=r"found 10 slices under way, 240 KiB of shared memory.*224 KiB at most"):
        make_wide(4096, keep, stages=10)
    with pytest.raises(LabError, match=r"found 1 slices under way.*expected 2 to 32"):
        make_wide(4096, keep, stages=1)


@pytest.mark.parametrize("short", [(1, 0), (0, 1)])
def test_too_little_room_is_said(short):
    kernel = make_wide(4096, keep, split=2)
    w, x, out = (np.zeros(shape, np.float16) for shape in ((130, 4096), (65, 4096), (65, 130)))
    sums, counts = wide_room(kernel, 130, 65)
    workspace, counter = np.zeros(sums - short[0], np.float32), np.zeros(counts - short[1], np.int32)
    with pytest.raises(LabError, match=f"found room for {sums - short[0]} sums and {counts - short[1]} counts"):
        wide_launch(None, kernel, w, x, None, out, workspace, counter)


def test_there_are_no_more_parts_than_slices():
    kernel = make_wide(136, keep, split=8)
    assert (kernel.split, wide_grid(kernel, 129, 65), wide_room(kernel, 129, 65)) == (3, (2, 3, 2), (98304, 4))
    assert wide_room(make_wide(64, keep, split=8), 129, 65) == (4, 1)


@pytest.mark.parametrize("batch", [4, 16, 64])
@pytest.mark.parametrize(
    ("rows", "K", "split", "ring"),
    [(6144, 4096, 2, 226), (4096, 4096, 4, 226), (28672, 4096, 1, 113), (4096, 14336, 4, 226)],
)
def test_the_plan_of_the_models_matrices(rows, K, batch, split, ring):
    plan = wide_plan(rows, K, batch, 132)
    assert plan == {"tiles_n": max(8, batch), "split": split, "ring": ring << 10}
    kernel = make_wide(K, keep, **plan)
    assert (kernel.split, kernel.tiles_n) == (split, max(8, batch))
    assert (ring - 26) << 10 < kernel.shared <= ring << 10


@pytest.mark.parametrize("sms", [1, 20, 78, 132, 160])
def test_parts_are_no_more_than_one_an_sm(sms):
    for rows in (1, 129, 1030, 4096, 16900):
        for batch in (1, 9, 65, 1000):
            for K in (8, 264, 1032, 14336):
                plan = wide_plan(rows, K, batch, sms)
                kernel = make_wide(K, keep, **plan)
                blocks = np.prod(wide_grid(kernel, rows, batch))
                assert plan["split"] == 1 or blocks <= sms
                assert all(np.less_equal(wide_room(kernel, rows, batch), most_room(sms)))
                assert kernel.shared <= (226 if blocks <= sms else 113) << 10


def compiled(cc, tiles_n, split):
    """As wide_launch compiles it for what wide_plan chooses: two blocks an SM where split is 1."""
    kernel = make_wide(4096, added, True, tiles_n, split, ring=(226 if split > 1 else 113) << 10)
    maps, half, flat = np.zeros(16, np.uint64), np.zeros((2, 8), np.float16), (np.float32, np.int32)
    return ptx.compile_for(kernel, [maps, maps, half, half, half, *(np.zeros(8, kind) for kind in flat), half], cc)


@compiles
@pytest.mark.parametrize(("tiles_n", "split"), [(8, 1), (8, 4), (64, 1), (64, 4)])
def test_products_stay_in_registers_and_under_way(tiles_n, split):
    found = compiled((9, 0, "a"), tiles_n, split)
    assert (found.local_bytes, found.spilled_bytes, found.float64) == (0, 0, 0)
    assert found.notes == ()  # the compiler would say that it waits for each wgmma
    assert found.count("wgmma.mma_async") == 4
    assert found.registers <= (224 if split > 1 else 112)


@compiles
def test_it_is_for_hopper_alone():
    with pytest.raises(LabError, match=r"compute capability 9.0"):
        compiled((8, 0), 8, 1)


def between_nan(array):
    """The array on the GPU with NaN before and after it, and all of that."""
    fence = np.full(1024, np.nan, np.float16)
    whole = cuda.to_device(np.concatenate([fence, array.ravel(), fence]))
    return whole[1024 : 1024 + array.size].reshape(array.shape), whole


@pytest.mark.gpu
@pytest.mark.skipif(device.MACHINE.compute_capability != (9, 0), reason="Hopper's own")
@pytest.mark.parametrize(
    ("name", "K", "tiles_n", "split"),
    [
        ("keep", 8, 8, 3),
        ("gated", 584, 16, 3),
        ("added", 584, 64, 1),
        ("keep", 584, 32, 1),
        ("added", 4104, 64, 3),
        ("gated", 4104, 8, 1),
        ("added", 4104, 8, 3),
    ],
)
def test_products_on_a_gpu(name, K, tiles_n, split):
    kernel = make_wide(K, HOOKS[name], name == "added", tiles_n, split)
    for m in (1, 2, 70, 130, 1029):
        for batch in (1, 9, 17, 64, 70):
            launch_twice(kernel, name, inputs(np.random.default_rng(m + batch), m, K, batch))


def launch_twice(kernel, name, arrays):
    """The sums are right, nothing is written beside them, the counter is zeros again, and the bits are the same."""
    right, K = reference(name, *arrays), arrays[0].shape[1]
    (w, _), (x, _), (residual, _) = map(between_nan, arrays)
    nothing = np.full(right.shape, np.nan, np.float16)
    out, whole = between_nan(nothing)
    room, counts = wide_room(kernel, len(arrays[0]), len(right))
    workspace, counter = cuda.to_device(np.full(room, np.nan, np.float32)), cuda.to_device(np.zeros(counts, np.int32))
    run = wide_launch(ptx.prepare, kernel, w, x, residual if name == "added" else None, out, workspace, counter)
    found = []
    for _ in range(2):
        out.copy_to_device(nothing)
        run()
        found.append(out.copy_to_host())
        labkit.checks.assert_close(found[-1], right, reduction=K, where=f"w{w.shape}, batch {len(right)}")
        assert not counter.copy_to_host().any()
    assert found[0].tobytes() == found[1].tobytes()
    beside = whole.copy_to_host()
    assert np.isnan(beside[:1024]).all()
    assert np.isnan(beside[-1024:]).all()
