"""What a kernel is counted to move, against what ncu saw of it on an H200 (data/nvidia-h200/counts_ncu.csv)."""

import numpy as np
import pytest
from counted_kernels import COUNTED
from sampled import sampled

import labkit
from labkit import LabError, device, pictures, records

from numba import cuda, float32  # isort: skip

# what is ours, and ncu's column for it. Of shared memory the counters that ncu derives from the executed instructions:
# those of the hardware also count passes that had to wait for other traffic.
SAME = {
    "load_requests": ("requests", "load", "global"),
    "load_sectors": ("sectors", "load", "global"),
    "store_requests": ("requests", "store", "global"),
    "store_sectors": ("sectors", "store", "global"),
    "shared_load_requests": ("requests", "load", "shared"),
    "shared_store_requests": ("requests", "store", "shared"),
    "shared_load_wavefronts_sass": ("passes", "load", "shared"),
    "shared_store_wavefronts_sass": ("passes", "store", "shared"),
}
NAMED = {"copy", "strided-read-8", "shifted-read", "transpose-naive", "transpose-tiled", "transpose-padded"}
NAMED |= {"matmul-by-rows", "matmul-by-columns", "reduce-interleaved", "gather", "points-aos", "copy-float16"}
EXACT = [c for c in COUNTED if not c.merges]
CHOSEN = [c for c in EXACT if c.name in NAMED] + sampled([c for c in EXACT if c.name not in NAMED], every=10)


def count(entry) -> labkit.Counted:
    return labkit.count(entry.kernel, entry.grid, entry.block, *entry.arguments, shared=entry.shared)


@pytest.fixture(scope="module")
def ncu():
    return records.read("counts_ncu", "nvidia-h200").set_index("variant")


def test_ncu_saw_them_all(ncu):
    assert set(ncu.index) == {c.name for c in COUNTED}
    assert len(EXACT) >= 40
    readme = (device.ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{len(EXACT)} of {len(COUNTED)} kernels exactly" in readme
    assert {c.name for c in CHOSEN} >= NAMED


@pytest.mark.parametrize("entry", CHOSEN, ids=lambda c: c.name)
def test_requests_sectors_and_passes_are_those_of_ncu(entry, ncu):
    found = count(entry)
    seen = ncu.loc[entry.name]
    assert {c: found.total(*ours) for c, ours in SAME.items()} == {c: int(seen[c]) for c in SAME}
    assert found.flops["float32"] == seen["fadd"] + seen["fmul"] + 2 * seen["ffma"]


@pytest.mark.parametrize("entry", [c for c in COUNTED if c.merges], ids=lambda c: c.name)
def test_where_the_compiler_merges_it_is_said(entry, ncu):
    """The source asks for more (or, unrolled, for other) requests than the compiled kernel makes."""
    seen = ncu.loc[entry.name]
    assert any(count(entry).total(*ours) != int(seen[c]) for c, ours in SAME.items())


def test_bank_conflicts_of_the_hardware_within_5_percent(ncu):
    """Passes as the hardware counts them, for kernels whose shared accesses do not wait for anything else."""
    names = ("transpose-padded", "transpose-column-write", "shared-strided-2", "shared-strided-32", "shared-float64-16")
    for entry in (c for c in COUNTED if c.name in names):
        found, seen = count(entry), ncu.loc[entry.name]
        ours = found.total("passes", "load", "shared") + found.total("passes", "store", "shared")
        theirs = seen["shared_load_wavefronts"] + seen["shared_store_wavefronts"]
        assert ours == pytest.approx(theirs, rel=0.05), entry.name


# one small kernel in full

TILE = 32


@cuda.jit
def transpose(a, out):
    tile = cuda.shared.array((TILE, TILE), float32)
    column, row = cuda.grid(2)
    tile[cuda.threadIdx.y, cuda.threadIdx.x] = a[row, column]
    cuda.syncthreads()
    out[column, row] = tile[cuda.threadIdx.y, cuda.threadIdx.x] * float32(2)


@cuda.jit(device=True)
def pick(x, i):
    return x[i]


@cuda.jit
def twice(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = pick(x, i) + pick(x, i + 1)


@pytest.fixture
def square() -> tuple:
    return np.ones((64, 64), np.float32), np.empty((64, 64), np.float32)


def test_everything_about_a_transpose(square):
    found = labkit.count(transpose, (2, 2), (32, 32), *square)
    assert (found.blocks, found.of_blocks, found.sampled, found.barriers) == (4, 4, False, 4)
    assert found.flops == {"float32": 64 * 64, "float64": 0, "float16": 0, "int": 0}
    assert found.cost == labkit.Cost(64 * 64 * 4, 64 * 64 * 4, 64 * 64)
    assert found.sector_cost.written == 64 * 64 * 32  # a sector for each element of a column
    by_array = found.arrays().set_index(["array", "does"])["sectors_per_request"]
    assert by_array["a", "load"] == 4
    assert by_array["out", "store"] == 32
    assert found.predict_ms("nvidia-h200") == labkit.predict_ms(found.cost, "nvidia-h200")


def test_the_listing_shows_each_line_with_what_a_warp_does_there(square):
    lines = labkit.count(transpose, (2, 2), (32, 32), *square).listing().splitlines()
    assert lines[0] == "transpose: 4 of 4 blocks counted"
    assert [line.split("# ")[1] for line in lines if "#" in line] == [
        "a: load, 4 sectors; tile: store, no conflict",
        "tile: load, no conflict; out: store, 32 sectors",
    ]


def test_a_sample_of_blocks_says_so_and_scales(square):
    found = labkit.count(transpose, (2, 2), (32, 32), *square, blocks=2)
    assert (found.blocks, found.sampled) == (2, True)
    assert found.cost.written == 64 * 64 * 4
    assert found.listing().startswith("transpose: 2 of 4 blocks counted")


def test_the_arguments_stay_as_they_are(square):
    a, out = square
    out[:] = 7
    labkit.count(transpose, (2, 2), (32, 32), a, out)
    assert (out == 7).all()


def test_device_functions_are_counted_where_they_are_called():
    x, out = np.zeros(129, np.float32), np.zeros(128, np.float32)
    found = labkit.count(twice, 1, 128, x, out)
    assert found.total("requests", "load") == 8
    assert found.total("sectors", "load") == 4 * 4 + 4 * 5  # the second call's requests are shifted by an element
    assert set(found.lines["function"]) == {"pick", "twice"}


def test_views_lie_where_they_lie_on_a_device():
    memory = np.zeros(129, np.float32)
    found = labkit.count(twice, 1, 127, memory[1:], np.zeros(127, np.float32))
    assert found.total("sectors", "load") == (5 + 5) * 4 - 1 - 0  # both requests are off the boundary


def test_a_bad_index_ends_the_count(square):
    with pytest.raises(labkit.cpu.KernelFault, match="out-of-range index"):
        labkit.count(transpose, (3, 2), (32, 32), *square)


def test_the_picture_shows_which_thread_touches_what(square):
    small = np.ones((32, 32), np.float32)
    found = labkit.touches(transpose, (1, 1), (32, 32), small, small.copy(), array="out")
    assert (found == np.arange(32 * 32).reshape(32, 32).T).all()
    figure = pictures.who_touches(transpose, (1, 1), (32, 32), small, small.copy(), array="out")
    assert repr(figure) == "<Figure: out in transpose: 32 sectors a request>"


def test_a_picture_of_what_is_not_there(square):
    with pytest.raises(LabError, match="no array 'b'; it has a, out, tile"):
        labkit.touches(transpose, (2, 2), (32, 32), *square, array="b")
    with pytest.raises(LabError, match="too large for a picture"):
        pictures.who_touches(transpose, (2, 2), (32, 32), *square, array="a")


@pytest.mark.skipif(device.MACHINE.has_gpu, reason="the records are another GPU's")
def test_the_committed_counts_are_an_h200s():
    assert records.read_provenance("counts_ncu", "nvidia-h200")["device"] == "NVIDIA H200"
