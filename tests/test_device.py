"""GPU, simulator or none: never a traceback, never silent."""

import types

import pytest

from labkit import LabError, device

MODE = "import labkit; print(labkit.MACHINE.mode, '|', labkit.MACHINE.reason)"


@pytest.mark.skipif(device.MACHINE.has_gpu, reason="there is a GPU")
def test_without_a_gpu_the_simulator_is_on(python):
    done = python(MODE + "; from numba import cuda, config; print(config.ENABLE_CUDASIM, cuda.is_available())")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("simulator |")
    assert done.stdout.endswith("1 True\n")
    assert done.stderr == ""


@pytest.mark.skipif(device.MACHINE.has_gpu, reason="there is a GPU")
def test_numba_alone_may_come_first(python):
    done = python("import numba; " + MODE + "; from numba import cuda; print(cuda.is_available())")
    assert done.stdout.startswith("simulator |")
    assert done.stdout.endswith("True\n")


@pytest.mark.skipif(device.MACHINE.has_gpu, reason="there is a GPU")
def test_imported_too_late_says_what_to_do(python):
    done = python("from numba import cuda; " + MODE + "; print(labkit.mode())")
    assert done.returncode == 0
    assert done.stdout.startswith("none |")
    assert "put `import labkit` above" in done.stderr
    assert "put `import labkit` above" in done.stdout


def test_the_simulator_can_be_asked_for(python):
    done = python(MODE, NUMBA_ENABLE_CUDASIM="1")
    assert done.stdout == "simulator | NUMBA_ENABLE_CUDASIM=1 is set\n"


def test_a_misspelt_simulator_variable_is_not_silent(python):
    done = python(MODE, NUMBA_ENABLE_CUDASIM="true")
    assert "only 1 turns the simulator on" in done.stderr


@pytest.mark.parametrize("visible", ["", "-1", "GPU-00000000-0000-0000-0000-000000000000", "MIG-1/2/3", "nonsense"])
def test_no_value_of_cuda_visible_devices_ends_in_a_traceback(python, visible):
    done = python(
        MODE + "; from labkit import doctor; print(doctor.report(doctor.examine()))", CUDA_VISIBLE_DEVICES=visible
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "unset CUDA_VISIBLE_DEVICES" in done.stdout


def test_every_gpu_of_the_table_has_its_source():
    assert len(device.gpus()) >= 14
    for gpu in device.gpus().values():
        assert gpu.bandwidth_gbps > 100
        assert gpu.tflops["fp32"] > 5
        assert "http" in gpu.source
        assert gpu.date.startswith("20")


def test_a_gpu_is_found_by_slug_and_by_name():
    assert device.find_gpu("nvidia-h200") is device.find_gpu("NVIDIA H200")


def test_an_unknown_gpu_lists_the_known_ones():
    with pytest.raises(LabError, match="nvidia-h200"):
        device.find_gpu("Voodoo 2")


@pytest.mark.parametrize(
    "content",
    [
        lambda path: "gpu;name\nx;y\n",
        lambda path: path.read_text().replace("4800", "nan"),
        lambda path: path.read_text().replace("4800", ""),
        lambda path: path.read_text()[:500],
    ],
)
def test_a_damaged_table_of_gpus_is_one_clear_line(tmp_path, monkeypatch, content):
    (tmp_path / "gpus.csv").write_text(content(device.data_dir() / "gpus.csv"))
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    device.gpus.cache_clear()
    try:
        with pytest.raises(LabError, match=r"gpus\.csv: not the table of GPUs"):
            device.gpus()
    finally:
        device.gpus.cache_clear()


def test_the_last_cache_has_a_plausible_size():
    assert 1 << 20 <= device.last_cache_bytes() <= 4 << 30


@pytest.mark.skipif(device.MACHINE.has_gpu, reason="there is a GPU")
def test_state_of_an_absent_gpu_is_none_not_an_error():
    assert set(device.gpu_state().values()) == {None}


def test_what_fits_leaves_room(monkeypatch):
    monkeypatch.setattr(device, "MACHINE", device.Machine("gpu", "", memory_bytes=100))
    assert device.fits(75)
    assert not device.fits(76)


def test_a_gpu_is_described_by_what_its_driver_says():
    """The attributes are those of the real bindings; their values are its numbers in that list."""
    driver = pytest.importorskip("cuda.bindings.driver")
    names = driver.CUdevice_attribute
    answers = types.SimpleNamespace(
        CUdevice_attribute=names,
        cuDeviceGet=lambda i: (0, 7),
        cuDeviceGetAttribute=lambda attribute, dev: (0, int(attribute)),
        cuDeviceGetName=lambda n, dev: (0, b"Test GPU 9000\0\0"),
        cuDeviceTotalMem=lambda dev: (0, 1 << 30),
        cuDeviceGetUuid=lambda dev: (0, types.SimpleNamespace(bytes=b"\x0f\xf0")),
        cuDriverGetVersion=lambda: (0, 13010),
    )
    found = device._describe(answers)
    assert (found.name, found.slug, found.uuid) == ("Test GPU 9000", "test-gpu-9000", "0ff0")
    assert (found.memory_bytes, found.driver_cuda) == (1 << 30, (13, 1))
    assert found.sms == int(names.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    assert found.shared_bytes == int(names.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
