"""Machine code is kept on disk, trusted only as long as nothing that it was made of has changed, and never needed.

Most tests launch a kernel twice in this process, the second time as a new process would: it forgets what it compiled.
Of the pairs that look alike all keys are compared and a spread is launched; LABKIT_ALL=1 launches all.
"""

import enum
import itertools
import linecache
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sampled import sampled

from labkit import MACHINE, cpu
from labkit.cpu import functions, kept, keys, private, program, shadow, store

from numba import cuda, float32, float64  # isort: skip
from numba.core import bytecode  # isort: skip
from numba.core.typing import templates  # isort: skip

pytestmark = pytest.mark.skipif(MACHINE.has_gpu, reason="kernels run on the GPU")

KERNEL = """
@cuda.jit
def k(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = VALUE
"""
_number = itertools.count()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def defined(text: str, **names) -> dict:
    """What a text defines, as if a cell had been run; with names that it finds there."""
    file = f"<cell {next(_number)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = {"cuda": cuda, "np": np, "math": math, "float32": float32, **names}
    exec(compile(text, file, "exec"), space)
    return space


def kernel(value: str, **names):
    return defined(KERNEL.replace("VALUE", value), **names)["k"]


def launched(kernel, x=None, checks=False) -> tuple[list, bool]:
    """What a kernel makes of 1, 2, 3 in a process that knows nothing yet; and whether it had to be compiled."""
    program._programs.clear()
    program.fingerprint.cache_clear()
    x = np.array([1, 2, 3], np.float32) if x is None else x
    out = np.zeros(3, np.float64)
    cpu.run(kernel, 1, 32, x, out, checks=checks)
    (built,) = program._programs.values()
    return out.tolist(), not sum(built.run.stats.cache_hits.values())


# ----------------------------------------------------------------------------------- what is kept, and when it counts
def test_a_kernel_is_compiled_once():
    assert launched(kernel("x[i] * factor", factor=2)) == ([2, 4, 6], True)
    assert launched(kernel("x[i] * factor", factor=2)) == ([2, 4, 6], False)


def config(**values) -> ModuleType:
    module = ModuleType("config")
    vars(module).update(values)
    return module


def device(body: str, **names):
    return defined(f"@cuda.jit(device=True)\ndef f(a):\n    return {body}", **names)["f"]


def closure(factor):
    @cuda.jit(device=True)
    def scaled(a):
        return a * factor

    return scaled


def closure_over(function):
    @cuda.jit(device=True)
    def called(a):
        return function(a)

    return called


def in_a_closure(factor):
    """A kernel whose factor is a variable of the function around it."""
    text = "def make(factor):\n    @cuda.jit\n    def k(x, out):\n        i = cuda.grid(1)\n"
    return defined(f"{text}        if i < out.size:\n            out[i] = x[i] * factor\n    return k")["make"](factor)


TABLE = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
RECORD = np.dtype([("a", np.float32), ("b", np.float32)])
SWAPPED = np.dtype({"names": ["a", "b"], "formats": ["f4", "f4"], "offsets": [4, 0]})
IN_SHARED = """
@cuda.jit
def k(x, out):
    s = cuda.shared.array(N, real)
    t = cuda.threadIdx.x
    if t < N:
        s[t] = 1 / real(3)
    cuda.syncthreads()
    y = s[t % N]
    cuda.syncthreads()
    if t < out.size:
        out[t] = y * s.size
"""

PAIRS = {  # two kernels that look alike, and what each makes of 1, 2, 3
    "a global": (kernel("x[i] * c", c=2), kernel("x[i] * c", c=3), [2, 4, 6], [3, 6, 9]),
    "a global's type": (
        *(kernel("(x[i] + c) - x[i]", c=c) for c in (np.float32(1e-4), np.float64(1e-4))),
        *([float(np.float64(kind(a) + kind(1e-4)) - a) for a in (1, 2, 3)] for kind in (np.float32, np.float64)),
    ),
    "a sign of zero": (*(kernel("math.copysign(x[i], c)", c=c) for c in (0.0, -0.0)), [1, 2, 3], [-1, -2, -3]),
    "a truth": (kernel("x[i] if c else 0", c=True), kernel("x[i] if c else 0", c=False), [1, 2, 3], [0, 0, 0]),
    "a tuple": (kernel("x[i] * c[1]", c=(1, 2)), kernel("x[i] * c[1]", c=(1, 4)), [2, 4, 6], [4, 8, 12]),
    "an array": (kernel("c[1, 0]", c=TABLE), kernel("c[1, 0]", c=TABLE + 1), [3] * 3, [4] * 3),
    "an array's layout": (kernel("c[1, 0]", c=TABLE), kernel("c[1, 0]", c=TABLE.T), [3] * 3, [2] * 3),
    "an array's type": (
        *(kernel("c[0] / 4", c=np.array([-1]).astype(t)) for t in ("i4", "u4")),
        [-0.25] * 3,
        [2**30 - 0.25] * 3,
    ),
    "a closure": (in_a_closure(2), in_a_closure(3), [2, 4, 6], [3, 6, 9]),
    "a module's constant": (*(kernel("x[i] * m.c", m=config(c=c)) for c in (2, 3)), [2, 4, 6], [3, 6, 9]),
    "a module's module's": (*(kernel("x[i] * m.n.c", m=config(n=config(c=c))) for c in (2, 3)), [2, 4, 6], [3, 6, 9]),
    "a device function": (*(kernel("f(x[i])", f=device(f"a * {c}")) for c in (2, 3)), [2, 4, 6], [3, 6, 9]),
    "a device function's global": (*(kernel("f(x[i])", f=device("a * c", c=c)) for c in (2, 3)), [2, 4, 6], [3, 6, 9]),
    "a device function's closure": (*(kernel("f(x[i])", f=closure(c)) for c in (2, 3)), [2, 4, 6], [3, 6, 9]),
    "a closure over a function": (
        *(kernel("f(x[i])", f=closure_over(device(f"a * {c}"))) for c in (2, 3)),
        [2, 4, 6],
        [3, 6, 9],
    ),
    "a module's device function": (
        *(kernel("m.f(x[i])", m=config(f=device(f"a * {c}"))) for c in (2, 3)),
        [2, 4, 6],
        [3, 6, 9],
    ),
    "a device function's device function": (
        *(kernel("f(x[i])", f=device("g(a)", g=device(f"a * {c}"))) for c in (2, 3)),
        [2, 4, 6],
        [3, 6, 9],
    ),
    "two device functions": (
        *(kernel("f(x[i]) - g(x[i])", f=device(f"a * {c}"), g=device(f"a * {d}")) for c, d in ((2, 3), (3, 2))),
        [-1, -2, -3],
        [1, 2, 3],
    ),
    "a function of math": (*(kernel("f(x[i] * 0)", f=f) for f in (math.sin, math.cos)), [0] * 3, [1] * 3),
    "a function of NumPy": (*(kernel("f(x[i] / 4)", f=f) for f in (np.floor, np.ceil)), [0] * 3, [1] * 3),
    "a builtin": (*(kernel("f(x[i], 2)", f=f) for f in (min, max)), [1, 2, 2], [2, 2, 3]),
    "a builtin's name": (kernel("min(x[i], 2)"), kernel("min(x[i], 2)", min=max), [1, 2, 2], [2, 2, 3]),
    "a type": (
        *(kernel("real(1) / real(3)", real=real) for real in (float32, float64)),
        [float(np.float32(1) / np.float32(3))] * 3,
        [1 / 3] * 3,
    ),
    "a shared array's type": (
        *(defined(IN_SHARED, N=2, real=real)["k"] for real in (float32, float64)),
        [2 * float(np.float32(1) / np.float32(3))] * 3,
        [2 / 3] * 3,
    ),
    "a shared array's size": (*(defined(IN_SHARED, N=n, real=float64)["k"] for n in (2, 3)), [2 / 3] * 3, [1] * 3),
    "a function of CUDA": (*(kernel(f"cuda.{f}(c)", c=np.int32(5)) for f in ("popc", "clz")), [2] * 3, [29] * 3),
}


def key(kernel) -> str:
    program._programs.clear()
    program.fingerprint.cache_clear()
    x, out = np.zeros(3, np.float32), np.zeros(3, np.float64)
    return program.program(kernel.fn, (x, out)).run._cache.key


@pytest.mark.parametrize("what", PAIRS)
def test_kernels_that_look_alike_have_keys_of_their_own(what):
    one, other, *_ = PAIRS[what]
    assert key(one) != key(other)
    assert (key(one), key(other)) == (key(one), key(other))


@pytest.mark.parametrize("what", sampled(PAIRS, every=4))
def test_kernels_that_look_alike_are_told_apart(what):
    one, other, of_one, of_other = PAIRS[what]
    assert launched(one) == (of_one, True)
    assert launched(other) == (of_other, True)
    assert launched(one) == (of_one, False)
    assert launched(other) == (of_other, False)


@pytest.mark.parametrize("other", [np.float64, np.int32])
def test_argument_types_count(other):
    x = np.array([1, 2, 3])
    for dtype in (np.float32, other):
        assert launched(kernel("x[i] / 2"), x.astype(dtype)) == ([0.5, 1, 1.5], True)


def test_an_arrays_layout_and_a_records_fields_count():
    x = np.array([[1, 10], [2, 20], [3, 30]], np.float32)
    assert launched(kernel("x[i, 0]"), x) == ([1, 2, 3], True)
    assert launched(kernel("x[i, 0]"), np.asfortranarray(x)) == ([1, 2, 3], True)
    assert launched(kernel("x[i, 0]"), x[:, ::-1]) == ([10, 20, 30], True)
    assert launched(kernel("x[i].a"), x.view(RECORD)[:, 0]) == ([1, 2, 3], True)
    assert launched(kernel("x[i].a"), x.view(SWAPPED)[:, 0]) == ([10, 20, 30], True)


def test_options_and_modes_count():
    assert launched(kernel("x[i] + 1"))[1]
    fast = defined(KERNEL.replace("VALUE", "x[i] + 1").replace("cuda.jit", "cuda.jit(fastmath=True)"))["k"]
    assert launched(fast) == ([2, 3, 4], True)
    assert launched(kernel("x[i] + 1"), checks=True) == ([2, 3, 4], True)
    assert not launched(kernel("x[i] + 1"), checks=True)[1]


def test_numbas_settings_and_the_packages_sources_count(monkeypatch):
    for change in (lambda: None, lambda: monkeypatch.setattr("numba.core.config.OPT", 1)):
        change()
        assert launched(kernel("x[i]")) == ([1, 2, 3], True)
    monkeypatch.setattr("labkit.cpu.kept.stamp", lambda: "another source")
    assert launched(kernel("x[i]")) == ([1, 2, 3], True)


class Colour(enum.IntEnum):
    RED = 2


@pytest.mark.parametrize("thing", [Colour.RED, Colour, object()], ids=["a member", "an enum", "an object"])
def test_what_no_text_tells_has_no_key(thing):
    with pytest.raises(keys.Unknown):
        keys.text(thing)


def test_a_kernel_that_no_key_tells_is_compiled_each_time():
    for _ in range(2):
        assert launched(kernel("x[i] * colour.RED.value", colour=Colour)) == ([2, 4, 6], True)


def test_what_strangers_taught_numba_is_not_kept(monkeypatch):
    class Foreign(templates.AttributeTemplate):
        key = np.ndarray

    registry = templates.builtin_registry
    monkeypatch.setattr(registry, "attributes", [*registry.attributes, Foreign])
    for _ in range(2):
        assert launched(kernel("x[i]")) == ([1, 2, 3], True)


# ----------------------------------------------------------------------------------------- it runs as if just compiled
RACE = """
@cuda.jit
def k(x, out):
    i = cuda.threadIdx.x
    if i < 2:
        out[0] = x[i]
"""
STOPS = """
@cuda.jit
def k(x, out):
    if x[cuda.threadIdx.x % 3] > 2:
        raise ValueError("too large")
"""


@pytest.mark.parametrize("text", [RACE, STOPS, KERNEL.replace("VALUE", "x[i + 1]")])
def test_what_goes_wrong_is_told_alike(text):
    told = set()
    for _ in range(2):
        with pytest.raises((cpu.KernelFault, ValueError)) as caught:
            launched(defined(text)["k"], checks=True)
        told.add((type(caught.value), str(caught.value).replace(defined.__name__, "")))
    assert len(told) == 1


def test_a_kernel_that_cannot_be_typed_is_refused_each_time():
    for _ in range(2):
        with pytest.raises(cpu.BadKernel, match="line 6"):
            launched(kernel("x[i] + 'text'"))


# ------------------------------------------------------------------------------------------------- it never does harm
def damaged(content: bytes):
    middle = len(content) // 2
    return {
        "cut": content[:middle],
        "empty": b"",
        "a byte": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
    }


@pytest.mark.parametrize("damage", ["cut", "empty", "a byte"])
def test_a_damaged_file_is_compiled_anew(folder, damage):
    launched(kernel("x[i]"))
    for path in (p for p in folder.rglob("*") if p.is_file()):
        path.write_bytes(damaged(path.read_bytes())[damage])
    assert launched(kernel("x[i]")) == ([1, 2, 3], True)
    assert launched(kernel("x[i]")) == ([1, 2, 3], False), "replaced"


def test_a_file_under_another_name_is_not_taken(folder):
    launched(kernel("x[i]"))
    (one,) = (folder / "kernels").iterdir()
    launched(kernel("-x[i]"))
    (other,) = {*(folder / "kernels").iterdir()} - {one}
    other.write_bytes(one.read_bytes())
    assert launched(kernel("-x[i]")) == ([-1, -2, -3], True)


def test_a_folder_that_cannot_be_written_does_no_harm(folder):
    folder.write_text("not a folder")
    for _ in range(2):
        assert launched(kernel("x[i]")) == ([1, 2, 3], True)


def test_the_longest_unused_go(folder, monkeypatch):
    monkeypatch.setattr(store, "MOST", 4)
    for i in range(8):
        store.save("numbers", str(i), i)
        for used in (0, i):
            os.utime(folder / "numbers" / str(used), (1000 * (i + 1), 1000 * (i + 1)))
    left = {p.name for p in (folder / "numbers").iterdir()}
    assert {"0", "7"} <= left
    assert len(left) <= 4
    assert [store.load("numbers", n) for n in ("0", "7", "1")] == [0, 7, None]


# ------------------------------------------------------------------------------------------------------ two processes
def test_code_whose_symbols_another_process_may_have_is_not_kept(monkeypatch):
    monkeypatch.setattr(bytecode.FunctionIdentity, "_unique_ids", itertools.count(1))  # as numba counts
    for _ in range(2):
        assert launched(kernel("x[i] - 1")) == ([0, 1, 2], True)


def test_no_two_processes_number_their_functions_alike():
    before = next(bytecode.FunctionIdentity._unique_ids)
    private.distinguish()
    after = next(bytecode.FunctionIdentity._unique_ids)
    assert min(before, after) >= private.FIRST
    assert abs(before - after) > 1e6


CODE = """
import labkit, numpy as np
from numba import cuda
from numba.core import event

class Compilations(event.Listener):
    names = []
    def on_start(self, e): self.names.append(e.data["dispatcher"].py_func.__qualname__)
    def on_end(self, e): pass

event.register("numba:compile", Compilations())

@cuda.jit
def double(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * np.float32(2)

@cuda.jit(device=True)
def warp_sum(a):
    for step in range(5):
        a += cuda.shfl_down_sync(0xFFFFFFFF, a, 16 >> step)
    return a

@cuda.jit(device=True)
def cube(a):
    return a * a * a

@cuda.jit
def sums(x, out):
    parts = cuda.shared.array(4, np.float32)
    t = cuda.threadIdx.x
    total = warp_sum(cube(x[t]) + cuda.fma(x[t], x[t], x[t]))
    if t % 32 == 0:
        parts[t // 32], parts[t // 32] = 0, 0
        parts[t // 32] += total
    cuda.syncthreads()
    if t == 0:
        cuda.atomic.add(out, 0, parts[0] + parts[1] + parts[2] + parts[3])

x = np.arange(100, dtype=np.float32)
out = np.zeros_like(x)
labkit.cpu.run(double, 4, 32, x, out, checks=True)
assert (out == 2 * x).all()
counted = labkit.count(double, 4, 32, x, out)
assert counted.total("sectors", "load") == 13, counted.lines
total = np.zeros(1, np.float32)
labkit.cpu.run(sums, 1, 128, np.ones(128, np.float32), total, checks=True)
assert total[0] == 384, total
print(len(Compilations.names), "on_read" in Compilations.names)
"""


def compilations(folder) -> tuple[int, bool]:
    """How many functions a process compiles to check, count and run kernels; whether an instrument's is among them."""
    script = folder.with_suffix(".py")  # a kernel's source must be somewhere
    script.write_text(CODE)
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"} | {"LABKIT_CACHE": str(folder)}
    done = subprocess.run(
        [sys.executable, script],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, read = done.stdout.split()
    return int(count), read == "True"


def test_a_second_process_compiles_nothing(folder):
    first, read = compilations(folder)
    assert first > 0
    assert read
    assert compilations(folder) == (0, False)


# ------------------------------------------------------------------------------------------ the instruments' functions
def instrument() -> bool:
    """Whether one of the instruments' functions, made anew, must be compiled."""
    function = kept.kept_njit(nogil=True)(shadow.thread_of.py_func)
    assert function(5 << shadow.THREAD) == 5
    return not sum(function.stats.cache_hits.values())


def test_an_instrument_is_compiled_once_for_the_sources_it_was_made_of(monkeypatch):
    assert [instrument(), instrument()] == [True, False]
    monkeypatch.setattr(kept, "stamp", lambda: "another source")
    assert [instrument(), instrument()] == [True, False]


def test_any_change_of_the_package_changes_the_stamp(monkeypatch, tmp_path):
    before = kept.stamp()
    for path in Path(kept.__file__).parent.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(kept, "__file__", str(tmp_path / "kept.py"))
    assert kept.stamp.__wrapped__() == before
    with (tmp_path / "shadow.py").open("a") as file:
        file.write("# a change\n")
    assert kept.stamp.__wrapped__() != before


def test_nothing_is_kept_once_a_source_is_edited(monkeypatch):
    """What runs here is older than the file, and the name would tell of the file."""
    launched(kernel("x[i]"))
    monkeypatch.setattr(kept, "states", lambda: [("shadow.py", 0, 0)])
    for value, made in (("x[i]", [1, 2, 3]), ("-x[i]", [-1, -2, -3]), ("-x[i]", [-1, -2, -3])):
        assert launched(kernel(value)) == (made, True)


def test_a_folder_that_can_only_be_read_is_read(monkeypatch):
    launched(kernel("x[i]"))
    monkeypatch.setattr(os, "utime", lambda path: os.stat("nowhere, or nobody's"))
    assert launched(kernel("x[i]")) == ([1, 2, 3], False)


@pytest.mark.parametrize("damage", ["cut", "empty", "a byte"])
def test_a_damaged_instrument_is_compiled_anew(folder, damage):
    instrument()
    for path in (folder / "instruments").iterdir():
        path.write_bytes(damaged(path.read_bytes())[damage])
    assert [instrument(), instrument()] == [True, False]


def test_instruments_need_no_folder(folder):
    folder.write_text("not a folder")
    assert [instrument(), instrument()] == [True, True]


def test_functions_that_look_alike_are_told_apart():
    for _ in range(2):
        made = {name: functions.FUNCTIONS._makers[f"libdevice.{name}"]() for name in ("sinpi", "cospi")}
        assert abs(made["sinpi"](0.5) - 1) < 1e-12
        assert abs(made["cospi"](0.5)) < 1e-12, "the same code, another constant"
