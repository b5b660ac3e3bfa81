"""Instructions as functions: their layouts, their refusals, and what kernels that use them are compiled to."""

import subprocess
import sys

import numpy as np
import pytest
from numba import cuda, float32, int32, uint32

import labkit  # before numba
from labkit import kernels, pictures, ptx
from labkit.ptx import compiled, layouts

X = np.zeros(64, np.float32)
OPERANDS = [(i, o) for i, operands in layouts.LAYOUTS.items() for o in operands]
compiles = pytest.mark.skipif(bool(ptx.compiler_trouble()), reason=ptx.compiler_trouble() or "it is here")


# --- layouts


@pytest.mark.parametrize(("instruction", "operand"), OPERANDS)
def test_every_element_has_one_place(instruction, operand):
    threads, places = ptx.fragment(instruction, operand)
    assert (threads >= 0).all()
    assert len({*zip(threads.flat, places.flat, strict=True)}) == threads.size  # nobody holds two in one place
    assert threads.max() + 1 in (32, 128)


def test_fragments_multiply_as_the_instruction_does():
    """The elements that meet in the manual's words: a row of a, a column of b, for every c."""
    a, b, c = (ptx.fragment("mma_m16n8k16", o) for o in "abc")
    # lane 5 is g = 1, t = 1; a1 holds rows 9, columns 2 and 3 in its low and high half (places 2 and 3)
    assert [tuple(np.argwhere((a[0] == 5) & (a[1] == p))[0]) for p in (2, 3)] == [(9, 2), (9, 3)]
    assert [tuple(np.argwhere((b[0] == 5) & (b[1] == p))[0]) for p in (2, 3)] == [(10, 1), (11, 1)]
    assert tuple(np.argwhere((c[0] == 5) & (c[1] == 3))[0]) == (9, 3)


def test_ldmatrix_gives_what_mma_takes():
    """a's four 8×8 quarters, in the order of its registers, are what ldmatrix_x4 delivers; b's two are transposed."""
    plain, _ = ptx.fragment("ldmatrix_x4", "r")
    a, _ = ptx.fragment("mma_m16n8k16", "a")
    assert np.array_equal(plain.reshape(4, 8, 8)[1], a[8:, :8])
    trans, _ = ptx.fragment("ldmatrix_x4_trans", "r")
    b, _ = ptx.fragment("mma_m16n8k16", "b")
    assert np.array_equal(trans.reshape(4, 8, 8)[1], b[8:])


def test_a_layout_is_told_and_drawn():
    assert ptx.layout("mma_m16n8k16", "b").splitlines()[1].split()[:2] == ["0:0", "4:0"]
    assert "4 elements a thread" in repr(pictures.who_holds("mma_m16n8k16", "c"))
    with pytest.raises(labkit.LabError, match="no layout of 'z' of 'mma_m16n8k16'; there are"):
        ptx.fragment("mma_m16n8k16", "z")


# --- without a GPU


@cuda.jit
def reverse_quads(x, out):
    t = cuda.threadIdx.x
    a, b, c, d = ptx.load4(x, (cuda.blockIdx.x, 4 * t))
    ptx.store4(out, (cuda.blockIdx.x, 4 * (31 - t)), d, c, b, a)


@cuda.jit
def tensor_cores(out):
    a = uint32(0)
    d0, d1, d2, d3 = ptx.mma_m16n8k16(a, a, a, a, a, a, out[0], out[1], out[2], out[3])
    out[0] = d0 + d1 + d2 + d3


@pytest.mark.skipif(labkit.MACHINE.has_gpu, reason="about the CPU")
def test_quads_run_on_the_cpu_and_are_counted():
    x = np.random.default_rng(0).standard_normal((3, 128), dtype=np.float32)
    out = np.full_like(x, np.nan)
    labkit.cpu.run(reverse_quads, 3, 32, x, out, checks=True)
    assert np.array_equal(out, x[:, ::-1])
    assert labkit.count(reverse_quads, 3, 32, x, out).cost == labkit.Cost(x.nbytes, x.nbytes)


@cuda.jit
def copied_ahead(x, out):
    """out = 2 x where x has that, else 0: through shared memory, and as float32."""
    ring = cuda.shared.array(128, uint32)
    t = uint32(cuda.threadIdx.x)
    ptx.start_next()
    ptx.wait_for_previous()
    ptx.copy8(ring, 4 * t, x, (cuda.blockIdx.x, 8 * t), 16 if 8 * t < x.shape[1] else 0)
    ptx.cp_async_commit()
    ptx.cp_async_wait_0()
    words = ptx.words4(ring, 4 * t)
    for i in range(4):
        a, b = ptx.unpack_half2(words[i])
        doubled = ptx.pack_half2(a + a, b + b)
        out[cuda.blockIdx.x, 8 * t + 2 * i], out[cuda.blockIdx.x, 8 * t + 2 * i + 1] = ptx.unpack_half2(doubled)


@cuda.jit
def loaded(x, out):
    t = uint32(cuda.threadIdx.x)
    a, b, c, d = ptx.load8(x, (0, 8 * t))
    out[4 * t], out[4 * t + 1], out[4 * t + 2], out[4 * t + 3] = a, b, c, d


@pytest.mark.skipif(labkit.MACHINE.has_gpu, reason="about the CPU")
def test_copies_ahead_and_halves_have_a_plain_meaning():
    special = [0.0, -0.0, 6e-8, -6e-5, 65504.0, np.inf, -np.inf, 1 / 3]  # a subnormal, the largest, infinities
    x = np.concatenate([np.random.default_rng(0).standard_normal(40), special])[None].repeat(2, 0).astype(np.float16)
    x[1] *= np.float16(0.25)
    out = np.full((2, 256), np.nan, np.float32)
    labkit.cpu.run(copied_ahead, 2, 32, x, out, checks=True)
    with np.errstate(over="ignore"):
        assert np.array_equal(out[:, :48], (x + x).astype(np.float32))
    assert not out[:, 48:].any()
    words = np.zeros(24, np.uint32)
    labkit.cpu.run(loaded, 1, 6, x, words, checks=True)
    assert np.array_equal(words, x[0].view(np.uint32))


@compiles
def test_what_overlaps_is_emitted_from_hopper_on():
    x, out = np.zeros((2, 48), np.float16), np.zeros((2, 256), np.float32)
    new, old = (ptx.compile_for(copied_ahead, (x, out), cc) for cc in ((9, 0), (8, 0)))
    for name, there in {"griddepcontrol": (2, 0), "cp.async.cg": (1, 1)}.items():
        assert (new.count(name), old.count(name)) == there, name
    assert new.float64 == old.float64 == new.local_bytes == old.local_bytes == 0
    with pytest.raises(labkit.LabError, match=r"ptx.copy8 needs compute capability 8.0 or newer"):
        ptx.compile_for(copied_ahead, (x, out), (7, 5))
    assert ptx.cp_async_wait(3) is ptx.cp_async_wait_3


@pytest.mark.skipif(labkit.MACHINE.has_gpu, reason="about the CPU")
def test_what_only_a_gpu_has_is_refused_in_one_line():
    with pytest.raises(labkit.LabError, match=r"line \d+ .*ptx.mma_m16n8k16 is an instruction that only a GPU has"):
        tensor_cores[1, 32](X)
    with pytest.raises(labkit.LabError, match="an instruction that only a GPU has"):
        ptx.ldmatrix_x4(0)
    with pytest.raises(labkit.Unavailable, match="needs a GPU"):
        kernels.matmul_wgmma(X, X, X)


# --- compiled, for GPUs that are not here


@cuda.jit
def creeping(x, out):
    out[cuda.grid(1)] = x[cuda.grid(1)] * 0.1  # 0.1 is a float64


@cuda.jit
def looking_up(x, out):
    table = cuda.local.array(64, float32)
    for i in range(64):
        table[i] = x[i] * x[0]
    for i in range(cuda.threadIdx.x):
        table[int32(x[i]) & 63] += float32(1)  # an index that only the data knows
    out[0] = table[int32(x[1]) & 63]


@cuda.jit
def hopper(out):
    acc = ptx.wgmma_m64n128k16(ptx.zeros_64(), 0, 0)
    out[0] = ptx.wgmma_wait(acc)[0]


@cuda.jit
def hopper_with_a_call(out, n):
    acc = ptx.wgmma_m64n128k16(ptx.zeros_64(), 0, 0)
    out[n // int(out[1])] = ptx.wgmma_wait(acc)[0]  # a division of 64 bits is a call


@compiles
def test_the_reader_sees_what_the_compiler_made():
    quads = ptx.compile_for(reverse_quads, (X.reshape(1, -1), X.reshape(1, -1)), (8, 0))
    assert (quads.target, quads.count("ld.global.v4"), quads.count("st.global.v4")) == ("sm_80", 1, 1)
    assert quads.float64 == quads.local_bytes == quads.spilled_bytes == 0
    assert 0 < quads.registers < 64
    tensor = ptx.compile_for(tensor_cores, (X,), (8, 0))
    assert tensor.count("mma.sync") == 1
    assert tensor.count("wgmma") == 0


@compiles
def test_the_reader_sees_float64_and_local_memory():
    assert ptx.compile_for(creeping, (X, X), (8, 0)).float64 > 0
    assert ptx.compile_for(looking_up, (X, X), (8, 0)).local_bytes >= 256


@compiles
def test_wgmma_is_for_hopper_alone_and_the_assembler_tells_when_it_serialises():
    assert ptx.compile_for(hopper, (X,), (9, 0, "a")).count("wgmma.mma_async") == 1
    for cc in ((8, 0), (10, 0)):
        with pytest.raises(labkit.LabError, match=r"hopper does not compile for sm_\d+: .*9.0 only.*compiled for"):
            ptx.compile_for(hopper, (X,), cc)
    serialised = ptx.compile_for(hopper_with_a_call, (X, 3), (9, 0, "a"))
    assert any("serialized" in note for note in serialised.notes)


@compiles
def test_an_older_gpu_is_named():
    with pytest.raises(labkit.LabError, match=r"ptx.mma_m16n8k16 needs compute capability 8.0 or newer; .* for 7.5"):
        ptx.compile_for(tensor_cores, (X,), (7, 5))


@compiles
def test_hoppers_product_uses_its_tensor_cores_and_nothing_slow():
    kernel = sys.modules["labkit.kernels.matmul_wgmma"].matmul_tiles
    tensor_map, n = np.zeros(16, np.uint64), np.int32(1)
    made = ptx.compile_for(kernel, (tensor_map,) * 3 + (n,) * 3, (9, 0, "a"))
    assert made.count("wgmma.mma_async") == 4
    assert made.local_bytes == made.spilled_bytes == made.float64 == 0
    assert made.notes == ()  # nothing is serialised


@cuda.jit
def what_no_kernel_here_uses(x, out):
    """Instructions that the chapters and labkit.kernels leave out: each must assemble all the same."""
    at = ptx.shared_address(cuda.shared.array(64, uint32))
    ptx.cp_async_16(at, ptx.address(x), int32(16))
    ptx.cp_async_wait_1()
    ptx.cp_async_wait_3()
    ptx.st_global_b32(ptx.address(out), ptx.pack_half2(ptx.exp2(x[0]), ptx.max_f32(x[1], x[2])))
    wide = ptx.wgmma_wait(ptx.wgmma_m64n256k16(ptx.zeros_128(), 0, 0))
    out[1] = wide[0] + ptx.wgmma_wait(ptx.wgmma_m64n128k16_bn(ptx.zeros_64(), 0, 0))[0]


@compiles
def test_every_instruction_assembles():
    made = ptx.compile_for(what_no_kernel_here_uses, (X, X), (9, 0, "a"))
    for name in ("cp.async.wait_group 1", "cp.async.wait_group 3", "st.global.b32", "cvt.rn.f16x2", "ex2", "max.f32"):
        assert made.count(name), name
    assert made.count("wgmma.mma_async") == 2


@compiles
@pytest.mark.parametrize(
    ("arguments", "cc", "reason"),
    [
        ((X, X), (9,), "expected one such as"),
        ((X, X), "sm_90", "expected one such as"),
        ((X, [1.0]), (9, 0), "found list as a kernel's argument"),
        ((X,), (9, 0), "does not compile for sm_90"),
        ((X, X), (3, 0), "does not compile for sm_30"),
    ],
)
def test_bad_requests_end_in_one_line(arguments, cc, reason):
    with pytest.raises(labkit.LabError, match=reason) as e:
        ptx.compile_for(creeping, arguments, cc)
    assert "\n" not in str(e.value)


def test_without_a_compiler_it_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr(labkit.device, "toolkit_trouble", lambda driver=None: "the CUDA toolkit's NVVM is missing")
    with pytest.raises(labkit.LabError, match=r"NVVM is missing. pip install -e '.\[cu13\]' installs"):
        ptx.compile_for(creeping, (X, X), (9, 0))


def test_a_child_that_dies_is_reported(monkeypatch):
    compiled._child.cache_clear()
    monkeypatch.setattr(compiled, "CHILD", "raise SystemExit('out of luck')")
    monkeypatch.setattr(labkit.device, "toolkit_trouble", lambda driver=None: "")
    with pytest.raises(labkit.LabError, match=r"ended early \(out of luck\)"):
        ptx.compile_for(creeping, (X, X), (9, 0))


def test_plain_numba_suffices_to_import_it():
    """As on macOS: no numba-cuda, only plain numba's simulator."""
    code = "import sys; sys.modules['numba.cuda.extending'] = None; import labkit; from labkit import ptx; ptx.load4"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- PTX texts, assembled as a driver does


@compiles
def test_a_ptx_text_is_assembled_for_a_newer_gpu_as_it_is():
    old = ptx.compile_for(tensor_cores, [X], (8, 0))
    new = ptx.assemble(old.ptx, (9, 0, "a"))
    assert (new.name, new.target) == ("tensor_cores", "sm_90a")
    assert new.ptx == old.ptx
    assert new.count("mma.sync") == 1
    assert new.registers > 0
    assert new.cubin != old.cubin


@compiles
def test_what_a_gpu_does_not_take_is_said():
    new = ptx.compile_for(reverse_quads, [X.reshape(1, 64), X.reshape(1, 64)], (9, 0))
    with pytest.raises(labkit.LabError, match=r"reverse_quads does not assemble for sm_80: .*\.target"):
        ptx.assemble(new.ptx, (8, 0))
    with pytest.raises(labkit.LabError, match="the text does not assemble for sm_90"):
        ptx.assemble("no PTX at all", (9, 0))


def test_mangled_names_are_spoken():
    assert compiled._spoken("_ZN8__main__5scaleB2v8B100cw51") == "scale"
    assert compiled._spoken("_ZN6labkit7kernels12matmul_wgmma12matmul_tilesB3v15B116cw51") == "matmul_tiles"
    assert compiled._spoken("one_3") == "one_3"
