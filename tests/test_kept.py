"""The instruments' machine code is kept on disk, trusted only as long as nothing has changed, and never needed."""

import os
import subprocess
import sys

import pytest

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

x = np.arange(100, dtype=np.float32)
out = np.zeros_like(x)
CHANGE
labkit.cpu.run(double, 4, 32, x, out, checks=True)
counted = labkit.count(double, 4, 32, x, out)
assert (out == 2 * x).all() and counted.total("sectors", "load") == 13, counted.lines
print(len(Compilations.names), "on_read" in Compilations.names)
"""


def compilations(folder, change="") -> tuple[int, bool]:
    """How many functions a process compiles to check and count one kernel; whether an instrument's is among them."""
    script = folder.with_suffix(".py")  # a kernel's source must be somewhere
    script.write_text(CODE.replace("CHANGE", change))
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"} | {"LABKIT_CACHE": str(folder)}
    done = subprocess.run(
        [sys.executable, script],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, read = done.stdout.split()
    return int(count), read == "True"


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    return folder, compilations(folder)


def test_a_second_process_compiles_the_kernel_alone(kept):
    folder, (first, read) = kept
    assert read
    second, read = compilations(folder)
    assert not read
    assert second < first / 3


def test_any_change_of_the_package_counts(kept):
    folder, _ = kept
    change = "from labkit.cpu import kept; kept.stamp = lambda: 'another source'"
    assert compilations(folder, change)[1]


def test_functions_that_look_alike_are_told_apart(kept):
    folder, _ = kept
    change = (
        "from labkit.cpu.functions import FUNCTIONS\n"
        "sin, cos = (FUNCTIONS[f'libdevice.{n}'] for n in ('sinpi', 'cospi'))\n"
        "assert abs(sin(0.5) - 1) < 1e-12 and abs(cos(0.5)) < 1e-12, 'the same code, another constant'"
    )
    for _ in range(2):
        compilations(folder, change)


def test_a_damaged_file_is_compiled_anew(kept, tmp_path):
    folder, _ = kept
    for path in (folder / "instruments").iterdir():
        (tmp_path / "instruments").mkdir(exist_ok=True)
        (tmp_path / "instruments" / path.name).write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert compilations(tmp_path)[1]
    assert not compilations(tmp_path)[1]  # and replaced


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    assert compilations(tmp_path / "file")[1]
