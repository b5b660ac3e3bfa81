"""What `labkit doctor` finds on this machine, and for each trouble the line that mends it."""

import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from labkit import device

OLDEST_DRIVER = {12: "525.60", 13: "580.65"}  # the first driver that runs code of each CUDA major version
PACKAGES = (
    "numpy",
    "numba",
    "numba-cuda",
    "cuda-bindings",
    "cuda-core",
    "pandas",
    "matplotlib",
    "jupyterlab",
)
BASELINES = ("torch", "triton")


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report. `fix` is a line to type or do; it is empty where all is well."""

    topic: str
    text: str
    fix: str = ""


def examine() -> list[Finding]:
    """All findings on this machine, troubles included. Never raises."""
    return [*_mode(), *_environment(), *_packages(), *_toolkit(), *_gpu()]


def report(findings: list[Finding]) -> str:
    """The findings as text: one line each, its remedy below it."""
    lines = []
    for f in findings:
        lines.append(f"{'!' if f.fix else ' '} {f.topic:12} {f.text}")
        if f.fix:
            lines.append(f"{'':15}mend it: {f.fix}")
    troubles = sum(bool(f.fix) for f in findings)
    lines.append(f"{troubles} trouble{'s' * (troubles != 1)} found" if troubles else "all is well")
    return "\n".join(lines)


def pip() -> str:
    """The line that installs into the Python that runs now, as short as it is right."""
    python = Path(sys.executable)
    return f"{python.relative_to(device.ROOT) if python.is_relative_to(device.ROOT) else python} -m pip install"


def installed(package: str) -> str:
    """The package's version, or an empty string where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _mode() -> Iterator[Finding]:
    machine = device.MACHINE
    text = {
        "gpu": f"GPU: kernels run on {machine.name}",
        "simulator": f"no GPU: kernels run compiled on the CPU, times are recorded ones ({machine.reason})",
        "none": f"neither GPU nor simulator ({machine.reason})",
    }[machine.mode]
    fix = "restart the kernel and put `import labkit` above every import of numba" if machine.mode == "none" else ""
    yield Finding("mode", text, fix)
    if machine.mode == "simulator" and device.driver_probe()[0] is None:
        yield Finding(
            "GPU",
            f'none is needed. To use one: install NVIDIA\'s driver, then {pip()} -e ".[cu13,baselines]"',
        )


def _environment() -> Iterator[Finding]:
    simulator = device.ENVIRONMENT.get(device.SIMULATOR_VARIABLE, "")
    if simulator not in ("", "0", "1"):
        yield Finding(
            "simulator",
            f"{device.SIMULATOR_VARIABLE}={simulator!r} is ignored: numba knows only 1",
            f"export {device.SIMULATOR_VARIABLE}=1   (or: unset {device.SIMULATOR_VARIABLE})",
        )
    elif simulator == "1" and device.MACHINE.reason.endswith("is set") and device.driver_probe()[0]:
        yield Finding(
            "simulator",
            f"{device.SIMULATOR_VARIABLE}=1 hides a GPU that answers",
            f"unset {device.SIMULATOR_VARIABLE}",
        )
    visible = device.ENVIRONMENT.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        yield _visible_devices(visible)


def _visible_devices(visible: str) -> Finding:
    """CUDA_VISIBLE_DEVICES may be empty, a list of numbers, a UUID (GPU-…) or a MIG slice (MIG-…)."""
    if visible.strip() in ("", "-1", "NoDevFiles"):
        return Finding("visible", f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU", "unset CUDA_VISIBLE_DEVICES")
    kind = "MIG slice" if "MIG-" in visible else "UUID" if "GPU-" in visible else "numbers"
    text = f"CUDA_VISIBLE_DEVICES={visible} ({kind})"
    if kind == "MIG slice":
        text += ": a slice has a share of the SMs and of the bandwidth; compare with its own peaks only"
    if device.driver_probe()[0] is None:
        return Finding("visible", f"{text}: no GPU answers to it", "unset CUDA_VISIBLE_DEVICES, or see `nvidia-smi -L`")
    return Finding("visible", text)


def _packages() -> Iterator[Finding]:
    found = [f"{p} {installed(p)}" for p in PACKAGES if installed(p)]
    yield Finding("python", f"{platform.python_version()}, {', '.join(found)}")
    numpy = installed("numpy")
    if numpy and installed("numba-cuda") and tuple(map(int, numpy.split(".")[:2])) >= (2, 5):
        yield Finding(
            "numpy",
            f"NumPy {numpy} is too new for numba-cuda: its first compile fails (`row_stack` is gone)",
            f'{pip()} "numpy<2.5"',
        )
    if not installed("numba-cuda") and platform.system() != "Darwin":
        yield Finding("numba-cuda", "not installed", f'{pip()} -e ".[test]"')
    missing = [p for p in BASELINES if not installed(p)]
    text = ", ".join(f"{p} {installed(p) or 'not installed'}" for p in BASELINES)
    if missing and device.MACHINE.has_gpu:
        yield Finding("baselines", text, f'{pip()} -e ".[baselines]"')
    else:
        yield Finding("baselines", text + " (optional: their recorded rows are shown)" * bool(missing))


def _toolkit() -> Iterator[Finding]:
    driver, why = device.driver_probe()
    if platform.system() == "Darwin":
        yield Finding("toolkit", "none on macOS, and none is needed: the simulator serves")
        return
    major = device.driver_cuda(driver)[0] if driver else 13
    extra = f'{pip()} -e ".[cu{min(max(major, 12), 13)}]"'
    trouble = device.toolkit_trouble(driver)
    if not trouble:
        yield Finding("toolkit", f"NVRTC {'.'.join(map(str, device.toolkit_version()))}, complete")
    elif "too new" in trouble:
        newer = OLDEST_DRIVER.get(device.toolkit_version()[0], "a newer one")
        yield Finding("toolkit", trouble, f"update the driver to {newer} or later, or {extra}")
    else:
        yield Finding("toolkit", f"{trouble} (kernels cannot be compiled for a GPU)", extra if driver else "")
    if not driver and shutil.which("nvidia-smi"):
        yield Finding("driver", f"nvidia-smi is there, but {why}", "restart the machine, or reinstall the driver")


def _gpu() -> Iterator[Finding]:
    machine = device.MACHINE
    if not machine.has_gpu:
        return
    cc = ".".join(map(str, machine.compute_capability))
    state = {key: "not available" if value is None else value for key, value in device.gpu_state().items()}
    yield Finding(
        "GPU",
        f"{machine.name}, compute capability {cc}, {machine.sms} SMs, L2 {machine.l2_bytes / 2**20:.0f} MiB, "
        f"{machine.memory_bytes / 2**30:.0f} GiB, driver {state['driver']}, "
        f"CUDA {'.'.join(map(str, machine.driver_cuda))}",
    )
    yield _peaks(machine)
    clocks = f"SM {state['sm_clock_mhz']} MHz, memory {state['memory_clock_mhz']} MHz"
    yield Finding("clocks", f"{clocks}, slowed by: {_listed(state['slowed_by'])}")
    others = _listed(state["other_pids"])
    trouble = others not in ("none", "not available")
    fix = "wait for them, or expect a flag on every measurement" if trouble else ""
    yield Finding("users", f"other processes on this GPU: {others}", fix)


def _listed(found: list | str) -> str:
    return found if isinstance(found, str) else ", ".join(map(str, found)) or "none"


def _peaks(machine) -> Finding:
    try:
        gpu = device.find_gpu(machine.name)
    except device.LabError as e:
        return Finding("peaks", str(e), "add a row with its source to data/gpus.csv")
    rates = ", ".join(f"{k} {v:g}" for k, v in gpu.tflops.items() if v)
    return Finding("peaks", f"{gpu.bandwidth_gbps:g} GB/s; TFLOP/s: {rates} (data sheet)")
