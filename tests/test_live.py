"""The chapters' live branches without a GPU: a faked GPU, numba's simulator, made-up times.

That they run, and that findings, figures and records take what they return; nothing about speed.
"""

import types

import numpy as np
import pytest

import labkit  # isort: skip
from labkit import device, experiment, notebooks, records, timing

pytestmark = pytest.mark.skipif(device.MACHINE.has_gpu, reason="a GPU runs the chapters really")

GPU = device.Machine("gpu", "faked", "NVIDIA H200", (9, 0), 132, 60 << 20, 140 << 30, "faked", (13, 0))
STATE = {"driver": "1.2.3", "sm_clock_mhz": 1, "memory_clock_mhz": 1, "slowed_by": [], "other_pids": []}
SMALLER = {  # sizes that the simulator can do; each must stand in the chapter
    "01": {"1 << 26, np.float32": "1 << 6, np.float32", "range(10, 29, 2)": "range(3, 9, 2)"},
    "02": {
        "range(16, 29)": "range(5, 8)",
        "(16, 18, 20, 22, 24, 28)": "(5, 7)",
        "(18, 20, 22, 24, 26, 27, 28)": "(5, 6, 7)",
        "(18, 22, 28)": "(5, 7)",
        '"d": 4096} for t in (64, 1024, 4096, 16384)': '"d": 37} for t in (4, 8)',
        '{"tokens": 16384, "d": 4096}': '{"tokens": 8, "d": 37}',
        'a.__cuda_array_interface__["data"][0] for': "a for",
    },
    "03": {
        "roofs.measure(kernels)": "roofs.measure(kernels, roofs.Sizes(copy_log2=(8, 9), read_log2=10, widths=(32, 64), "
        "sms=2, threads=64, rounds=2, l2_mib=(0.0625,), elements_log2=12, row=128, gemv_log2=5, square=20))"
    },
    "04": {
        "TUNED if labkit.MACHINE.has_gpu else SMALL": "SMALL",
        # nbval has these checks run; here they would take half a minute
        "check(vectorised(*SMALL, False, launch_bounds=(128, 2)), over(32, 32, 64))": "",
        "check(register_tiled, over(TILE, TILE, 256))": "",
        "vectorised(*shape, labkit.MACHINE.has_gpu,": "vectorised(*shape, False,",
        "for n in (1024, 2048, 4096)]": "for n in (16, 40, 33)]",
        'ladder_grid += [square(n, "float16") for n in (1024, 2048, 4096, 8192)]': "",
        'ladder_grid += [awkward("float16")]': "",
        '"m": 4097, "n": 4095, "k": 4093': '"m": 41, "n": 35, "k": 37',
        "ladder_grid[2:4] + ladder_grid[6:]": "ladder_grid",
        # shapes have kernels of their own: few different ones, so that few have to be compiled
        "= (*shape, 1)[:4]": "= (*(16 + x % 2 * 3 for x in shape[:2]), 17 + shape[2] % 3 * 3, *shape[3:], 1)[:4]",
        "in uses.items() for shape in shapes]": "in [*uses.items()][::4] for shape in shapes[:1]]",
    },
    "05": {
        # nbval has these checks run; here they would take half a minute
        "check_plain(32, 2, 8)": "",
        "check_plain(5, 4, 3)": "",
        "for choice, kernel in fused_epilogues.items():": "for choice, kernel in {}.items():",
        '"width 128": (at_128, takes, (9, 0, "a"), "mma.sync"),': "",
        "block(1 << 20, width, 4) for": "block(33, width, 4) for",
        "block(1 << 20, width, 2) for": "block(33, width, 2) for",
        'block(1 << 20, 32, 4, "float32")': 'block(7, 5, 2, "float32")',
        "block(1 << k, 64, 4) for k in (16, 18, 22)": "block(1 << k, 64, 4) for k in (2, 3, 4)",
    },
    "06": {
        # nbval has these checks run; here they would take half a minute
        "check_tiled(\n    64": "print(\n    64",
        "SHAPE = TUNED if labkit.MACHINE.has_gpu else {": "SHAPE = {",
        '"mma, d 128": (make_mma(128), of_mma, (9, 0, "a"), "mma.sync"),': "",
        "compiled = look_into_compiled()": 'compiled = labkit.read("attention_compiled")',
        "grid=single + half": "grid=[single[0], half[0]]",
        "both(2048, head_dims=(64,), planes=16) + both(8192, head_dims=(64,), planes=4)": (
            "both(20, head_dims=(64,), planes=2)"
        ),
        "(1 << 25)": "(1 << 11)",
        "range(10, 18 if labkit.recording() else 14)": "range(4, 6)",
        "memory_row(variant, 1024)": "memory_row(variant, 8)",
        "context.memory_manager.deallocations.clear()  # numba frees late": "",
        "data(1, 1, 100, 64,": "data(1, 1, 40, 64,",
    },
    "07": {
        "code().get_kernel(name)": "pass",  # there is no driver
        "rows = lock.run()": 'rows = labkit.read("hardware_lock")',  # tensor cores, all of it
        "1 << 24, np.float32": "1 << 7, np.float32",
        "0.1, 2, 1 << 24": "0.1, 2, 1 << 7",
        "1 << 23, np.float32": "1 << 7, np.float32",
    },
    "08": {
        # nbval has the toy check run
        'print(f"error over 3 steps: {check_steps(separate):.1e}")': "",
        "on_gpu(select)": "",
        "on_gpu(fused)": "",
        "on_gpu(batched, batch=3)": "",
        # a small model, and kernels that a CPU runs and compiles fast
        "graph, stream = clocks.capture(lambda stream: [launch(stream) for launch in chain])": "",
        "        graph.launch(stream)\n\n    return replay": (
            "        [launch() for launch in holds]\n\n    return replay\n\n\n"
            "model = findings.Decoder(d=512, heads=4, kv_heads=1, head_dim=128, ffn=512)"
        ),
        "ptx.prepare(kernel, grid, block, *arguments, shared=shared, early=True)": (
            "lambda stream=None: kernel[grid, block, 0, shared](*arguments)"
        ),
        "if shared > 48 << 10 and labkit.MACHINE.has_gpu:": "if False:",
        "start = ptx.prepare": (
            "start = lambda kernel, grid, block, *given: lambda stream=None: kernel[grid, block](*given)"
        ),
        "TUNED = Tuning(2, SHARED // 2, 512, 4, 512)": "",
        "SMALL = Tuning(1, 0, 128, 1, 512)": "TUNED = SMALL = Tuning(1, 0, 128, 1, 512)",
        "if tuning is TUNED:": "if tuning is None:",
        "room, ptx.prepare)": "room, early)",
        "decoder.as_many_layers(model)": "2",
        # attention is two launches there; what takes tensor cores is left out
        "decoder.kernel_rows(fused, early, *target())": (
            "decoder.kernel_rows(lambda *a: (lambda c: [c[0], lambda *s: [c[1](*s), c[2](*s)], *c[3:]])(fused(*a)), "
            "early, *target())"
        ),
        "LARGER_CACHES = [(1, 32768), (16, 4096), (64, 4096)]": "LARGER_CACHES = []",
        'by_batch = labkit.live_or_recorded("decode_products", product_rows)': (
            'by_batch = labkit.read("decode_products")'
        ),
    },
}


def made_up_times(fns, method="events", cache="cold", **options):
    """Calls each function once; what is unfused takes twice as long."""
    found = {}
    for name, fn in fns.items():
        fn(0) if method == "graph" else fn()
        slower = 2 if any(word in str(name) for word in ("unfused", "separate")) else 1
        found[name] = timing.Timing(np.array([1.0, 1.1, 1.2]) * slower, np.zeros(3, bool), method, cache)
    return found


def faked_need(module):
    """The driver's copy; no PyTorch and no Triton."""
    if module != "cuda.bindings.driver":
        raise labkit.Unavailable(f"{module} is not installed")
    return types.SimpleNamespace(cuMemcpyDtoDAsync=lambda target, source, size, stream: target.copy_to_device(source))


@pytest.fixture
def faked_gpu(monkeypatch, tmp_path):
    """A GPU for labkit, the simulator for numba, and a data folder of the test's own with the committed records."""
    for module in (device, labkit):
        monkeypatch.setattr(module, "MACHINE", GPU)
    monkeypatch.setattr(device, "gpu_state", lambda: STATE)
    monkeypatch.setattr(device, "toolkit_version", lambda: (13, 0))
    for module in (timing, labkit):
        monkeypatch.setattr(module, "measure_all", made_up_times)
    monkeypatch.setattr(labkit, "measure", lambda fn, **options: made_up_times({"": fn}, **options)[""])
    monkeypatch.setattr(labkit, "need", faked_need)
    target = tmp_path / "data" / "nvidia-h200"
    target.mkdir(parents=True)
    for path in [device.data_dir() / "gpus.csv", *(device.data_dir() / "nvidia-h200").iterdir()]:
        (target.parent / path.name if path.name == "gpus.csv" else target / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("LABKIT_DATA", str(target.parent))
    return target


def run_live(number: str, tmp_path) -> dict:
    """All code cells of a chapter at small sizes, but those that need a real CUDA graph; what they define."""
    book = notebooks.read(notebooks.chapters([number])[0])
    code = [c for c in book.cells if c.cell_type == "code" and c.id != "graph-check"]
    for large, small in SMALLER[number].items():
        assert any(large in c.source for c in code), f"{large!r} is not in chapter {number} any more"
        for cell in code:
            cell.source = cell.source.replace(large, small)
    path = tmp_path / f"{number}_live.ipynb"
    notebooks.write(book, path)
    return notebooks.namespace(path, [c.id for c in code])


@pytest.mark.parametrize("number", SMALLER)
def test_a_live_run(faked_gpu, tmp_path, capsys, number):
    if notebooks.DRAFTS in notebooks.chapters([number])[0].parts:
        pytest.skip("a draft: it waits for its records")
    before = {p.name: p.read_bytes() for p in faked_gpu.iterdir()}
    run_live(number, tmp_path)
    out = capsys.readouterr().out
    assert "Mode: live" in out
    assert "is not installed" in out  # the missing baselines are named
    assert {p.name: p.read_bytes() for p in faked_gpu.iterdir()} == before, "nothing is recorded unasked"


@pytest.mark.parametrize(
    ("number", "names"),
    [
        ("01", ["launch_overhead", "launch_budget", "launch_crossover"]),
        ("02", ["fused_vs_unfused", "timing_trap", "fused_chain"]),
    ],
)
def test_a_live_run_that_records(faked_gpu, tmp_path, monkeypatch, number, names):
    monkeypatch.setenv("LABKIT_RECORD", "1")
    assert experiment.recording()
    run_live(number, tmp_path)
    for name in names:
        assert records.read_provenance(name)["driver"] == "1.2.3", name
        assert records.read(name)["error"].dropna().lt(1e-6).all()
