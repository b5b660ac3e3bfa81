"""Each trouble comes with the line that mends it."""

import sys

import pytest

from labkit import device, doctor


def fixes(findings) -> str:
    return "\n".join(f.fix for f in findings)


@pytest.mark.skipif(device.MACHINE.has_gpu, reason="there is a GPU")
def test_a_healthy_machine_without_a_gpu_is_well_and_knows_the_way_to_one():
    text = doctor.report(doctor.examine())
    assert "all is well" in text
    assert '".[cu13,baselines]"' in text


def test_numpy_too_new(monkeypatch):
    versions = {"numpy": "2.5.1", "numba-cuda": "0.30.4"}
    monkeypatch.setattr(doctor, "installed", lambda p: versions.get(p, "1.0"))
    assert 'pip install "numpy<2.5"' in fixes(doctor._packages())


def test_numba_cuda_missing(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda p: "" if p == "numba-cuda" else "1.0")
    monkeypatch.setattr(doctor.platform, "system", lambda: "Linux")
    assert '".[test]"' in fixes(doctor._packages())


def test_baselines_missing_matter_only_with_a_gpu(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda p: "" if p in doctor.BASELINES else "1.0")
    monkeypatch.setattr(device, "MACHINE", device.Machine("gpu", "", name="X"))
    assert '".[baselines]"' in fixes(doctor._packages())
    monkeypatch.setattr(device, "MACHINE", device.Machine("simulator", ""))
    assert "baselines" not in fixes(doctor._packages())


class Driver:
    """A driver that runs one CUDA version at most."""

    def __init__(self, version):
        self.version = version

    def cuDriverGetVersion(self):
        return 0, self.version


@pytest.mark.parametrize(("version", "extra"), [(12040, "cu12"), (13000, "cu13")])
def test_toolkit_missing_names_the_extra_for_the_driver(monkeypatch, version, extra):
    monkeypatch.setattr(device, "toolkit_trouble", lambda driver: "the CUDA toolkit's NVRTC library is missing")
    monkeypatch.setattr(device, "driver_probe", lambda: (Driver(version), ""))
    assert f'".[{extra}]"' in fixes(doctor._toolkit())


def test_driver_too_old_for_the_toolkit(monkeypatch):
    pathfinder = pytest.importorskip("cuda.pathfinder")
    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", lambda part: None)
    monkeypatch.setattr(device, "toolkit_version", lambda: (13, 0))
    monkeypatch.setattr(device, "driver_probe", lambda: (Driver(12040), ""))
    assert device.toolkit_trouble(Driver(13000)) == ""
    found = list(doctor._toolkit())
    assert "13.0 is too new for the driver, which runs CUDA 12.4 at most" in found[0].text
    assert "580.65" in found[0].fix
    assert '".[cu12]"' in found[0].fix


def test_a_toolkit_too_new_for_the_driver_means_no_gpu(monkeypatch):
    monkeypatch.setattr(device, "driver_probe", lambda: (Driver(12040), ""))
    monkeypatch.setattr(device, "toolkit_trouble", lambda driver: "too new" if driver else "")
    monkeypatch.setenv(device.SIMULATOR_VARIABLE, "")
    monkeypatch.delitem(sys.modules, "numba.cuda", raising=False)  # as in a process that imports labkit first
    assert device._find().mode == "simulator"


def test_a_gpu_whose_driver_tells_nothing(monkeypatch):
    machine = device.Machine("gpu", "", "GRID vGPU", (7, 5), 40, 4 << 20, 16 << 30, "", (12, 4))
    monkeypatch.setattr(device, "MACHINE", machine)
    monkeypatch.setattr(
        device,
        "gpu_state",
        lambda: dict.fromkeys(("driver", "sm_clock_mhz", "memory_clock_mhz", "slowed_by", "other_pids")),
    )
    text = doctor.report(list(doctor._gpu()))
    assert "not available" in text
    assert "data/gpus.csv" in text  # no peaks known: says where to add them


def test_other_users_of_the_gpu_are_named(monkeypatch):
    machine = device.Machine("gpu", "", "NVIDIA H200", (9, 0), 132, 60 << 20, 140 << 30, "", (13, 0))
    monkeypatch.setattr(device, "MACHINE", machine)
    state = {
        "driver": "1",
        "sm_clock_mhz": 1,
        "memory_clock_mhz": 1,
        "slowed_by": ["hw_slowdown"],
        "other_pids": [4242],
    }
    monkeypatch.setattr(device, "gpu_state", lambda: state)
    text = doctor.report(list(doctor._gpu()))
    assert "4242" in text
    assert "hw_slowdown" in text


@pytest.mark.parametrize(("visible", "kind"), [("0,1", "numbers"), ("GPU-123", "UUID"), ("MIG-123", "MIG slice")])
def test_visible_devices_are_told_apart(monkeypatch, visible, kind):
    monkeypatch.setattr(device, "driver_probe", lambda: (Driver(13000), ""))
    found = doctor._visible_devices(visible)
    assert kind in found.text
    assert not found.fix


def test_the_doctor_hints_at_a_hidden_gpu(monkeypatch):
    monkeypatch.setitem(device.ENVIRONMENT, device.SIMULATOR_VARIABLE, "1")
    monkeypatch.setattr(device, "MACHINE", device.Machine("simulator", "NUMBA_ENABLE_CUDASIM=1 is set"))
    monkeypatch.setattr(device, "driver_probe", lambda: (Driver(13000), ""))
    assert "unset NUMBA_ENABLE_CUDASIM" in fixes(doctor._environment())


def test_a_misspelt_variable(python):
    code = "from labkit import doctor; print(doctor.report(doctor.examine()))"
    assert "export NUMBA_ENABLE_CUDASIM=1" in python(code, NUMBA_ENABLE_CUDASIM="true").stdout
