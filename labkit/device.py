"""What this machine is: a GPU, numba's simulator, or neither; its limits, and the peaks of known GPUs.

Nothing here imports numba: the choice between GPU and simulator must fall before numba is imported.
"""

import csv
import os
import sys
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from labkit.errors import LabError

ROOT = Path(__file__).resolve().parent.parent
SIMULATOR_VARIABLE = "NUMBA_ENABLE_CUDASIM"
TOO_LATE = (
    "no GPU is usable here, and numba.cuda was imported before labkit, so its simulator can no longer be "
    "turned on. Restart the kernel and put `import labkit` above every import of numba"
)


@dataclass(frozen=True)
class Machine:
    """Where kernels run in this process.

    `mode` is "gpu", "simulator" or "none"; `reason` says why in one line. The other fields describe the GPU
    and are empty without one. Sizes are in bytes.
    """

    mode: str
    reason: str
    name: str = ""
    compute_capability: tuple[int, int] | None = None
    sms: int = 0
    l2_bytes: int = 0
    memory_bytes: int = 0
    uuid: str = ""
    driver_cuda: tuple[int, int] | None = None
    shared_bytes: int = 0  # of shared memory, that a block may have at most

    @property
    def has_gpu(self) -> bool:
        """True where kernels run on a real GPU."""
        return self.mode == "gpu"

    @property
    def slug(self) -> str:
        """The folder name of this GPU's records: `NVIDIA H200` is `nvidia-h200`."""
        return slug(self.name)


@dataclass(frozen=True)
class Gpu:
    """Data-sheet peaks of one GPU: GB/s (1e9 bytes/s) and dense TFLOP/s; None where the chip lacks a format."""

    gpu: str
    name: str
    compute_capability: str
    sms: int
    l2_mib: float
    memory_gb: float
    bandwidth_gbps: float
    tflops: dict[str, float | None] = field(hash=False)
    source: str
    date: str


def slug(name: str) -> str:
    """A device's name as a folder name: lower case, words joined by dashes."""
    words = "".join(c if c.isalnum() else " " for c in name.lower()).split()
    return "-".join(words)


@cache
def gpus() -> dict[str, Gpu]:
    """The GPUs of `data/gpus.csv` by slug. Raises LabError where the table is missing or damaged."""
    path = data_dir() / "gpus.csv"
    try:
        with path.open(newline="", encoding="utf-8") as f:
            return {row["gpu"]: _gpu(row) for row in csv.DictReader(f)}
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as e:
        raise LabError(f"{path}: not the table of GPUs ({e!r}); restore it with `git checkout -- {path}`") from e


def _gpu(row: dict[str, str]) -> Gpu:
    if None in row or not all((row["name"], row["source"], row["date"])):
        raise ValueError(f"the row {row['gpu']!r} is incomplete")
    tflops = {key.removesuffix("_tflops"): _number(row[key]) for key in row if key.endswith("_tflops")}
    return Gpu(
        gpu=row["gpu"],
        name=row["name"],
        compute_capability=row["compute_capability"],
        sms=int(row["sms"]),
        l2_mib=_number(row["l2_mib"]),
        memory_gb=_number(row["memory_gb"]),
        bandwidth_gbps=_number(row["bandwidth_gbps"] or "0"),
        tflops=tflops,
        source=row["source"],
        date=row["date"],
    )


def _number(text: str) -> float | None:
    if text and not 0 < float(text) < float("inf"):
        raise ValueError(f"{text} is no size or rate")
    return float(text) if text else None


def find_gpu(name: str) -> Gpu:
    """The data-sheet row for a slug or a device name. Raises LabError that lists what is known."""
    key = slug(name)
    for gpu in gpus().values():
        if key in (gpu.gpu, slug(gpu.name)):
            return gpu
    raise LabError(f"no data-sheet row for {name!r}; data/gpus.csv knows {', '.join(gpus())}")


def data_dir() -> Path:
    """Where the records lie: `$LABKIT_DATA`, or `data/` beside the package."""
    return Path(os.environ.get("LABKIT_DATA") or ROOT / "data")


def last_cache_bytes() -> int:
    """Size of the CPU's last cache in bytes (32 MiB where the system does not say)."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K"):
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes, default=32 << 20)


def driver_probe() -> tuple[object | None, str]:
    """The CUDA driver's API module if a GPU answers, and why not otherwise. Never raises."""
    try:
        from cuda.bindings import driver
    except ImportError as e:
        return None, f"the CUDA bindings are not installed ({e})"
    try:
        (error,) = driver.cuInit(0)
        if error:
            return None, f"the CUDA driver says {error.name}"
        error, count = driver.cuDeviceGetCount()
        return (driver, "") if count else (None, "the CUDA driver sees no GPU")
    except Exception as e:  # the loader has errors of its own; whatever they are, there is no usable GPU
        missing = type(e).__name__ == "DynamicLibNotFoundError"
        return None, "no NVIDIA driver is installed" if missing else str(e).split(". ")[0]


def driver_cuda(driver) -> tuple[int, int]:
    """The newest CUDA version that the driver runs."""
    number = int(driver.cuDriverGetVersion()[1])
    return number // 1000, number % 1000 // 10


def toolkit_trouble(driver=None) -> str:
    """Why kernels cannot be compiled for a GPU here (with this driver), or an empty string. Never raises."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
    except ImportError as e:
        return f"the CUDA bindings are not installed ({e})"
    try:
        nvrtc = load_nvidia_dynamic_lib("nvrtc")
    except Exception:  # one class for each way of not being there
        return "the CUDA toolkit's NVRTC library is missing"
    try:
        load_nvidia_dynamic_lib("nvvm")
    except Exception:
        # numba-cuda also looks in the toolkit that holds NVRTC
        if not any((folder / "nvvm").is_dir() for folder in Path(nvrtc.abs_path).resolve().parents):
            return "the CUDA toolkit's NVVM library is missing"
    if driver and toolkit_version()[0] > driver_cuda(driver)[0]:
        newest, toolkit = (".".join(map(str, v)) for v in (driver_cuda(driver), toolkit_version()))
        return f"the CUDA toolkit {toolkit} is too new for the driver, which runs CUDA {newest} at most"
    return ""


def toolkit_version() -> tuple[int, int]:
    """The version of NVRTC, which compiles kernels."""
    from cuda.bindings import nvrtc

    return tuple(nvrtc.nvrtcVersion()[1:])


def fits(nbytes: int) -> bool:
    """Whether so many bytes of arrays fit in the GPU's memory, with a quarter left for everything else."""
    return nbytes <= 0.75 * MACHINE.memory_bytes


def _simulator_wanted() -> bool:
    value = os.environ.get(SIMULATOR_VARIABLE, "")
    if value not in ("", "0", "1"):
        warnings.warn(
            f"{SIMULATOR_VARIABLE}={value!r} is ignored by numba: only 1 turns the simulator on", stacklevel=2
        )
    return value == "1"


def _find() -> Machine:
    """Look for a usable GPU; without one turn numba's simulator on while that is still possible."""
    if _simulator_wanted():
        return Machine("simulator", f"{SIMULATOR_VARIABLE}=1 is set")
    driver, why = driver_probe()
    why = why or toolkit_trouble(driver)
    if not why:
        os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")  # its text has a path in it
        return _describe(driver)
    if "numba.cuda" in sys.modules:
        if sys.modules["numba"].config.ENABLE_CUDASIM:
            return Machine("simulator", why)
        warnings.warn(TOO_LATE, stacklevel=2)
        return Machine("none", f"{why}; numba.cuda was imported before labkit")
    os.environ[SIMULATOR_VARIABLE] = "1"
    if "numba" in sys.modules:  # it has read the variable already, but numba.cuda has not asked for it yet
        sys.modules["numba"].config.ENABLE_CUDASIM = 1
    return Machine("simulator", why)


def _describe(driver) -> Machine:
    """The first visible GPU, asked through the driver (numba is not imported yet)."""
    attribute = driver.CUdevice_attribute
    _, dev = driver.cuDeviceGet(0)

    def ask(name: str) -> int:
        return int(driver.cuDeviceGetAttribute(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), dev)[1])

    return Machine(
        mode="gpu",
        reason="a GPU answers and its toolkit is complete",
        name=driver.cuDeviceGetName(128, dev)[1].split(b"\0")[0].decode(),
        compute_capability=(ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")),
        sms=ask("MULTIPROCESSOR_COUNT"),
        l2_bytes=ask("L2_CACHE_SIZE"),
        shared_bytes=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        memory_bytes=int(driver.cuDeviceTotalMem(dev)[1]),
        uuid=driver.cuDeviceGetUuid(dev)[1].bytes.hex(),
        driver_cuda=driver_cuda(driver),
    )


def mode() -> str:
    """What a chapter says first: where kernels run, and whose times are shown. The same on all machines alike."""
    if MACHINE.has_gpu:
        return f"Mode: live. Kernels run and are timed on this machine's {MACHINE.name}."
    if MACHINE.mode == "simulator":
        return (
            "Mode: recorded. No GPU is usable here (`labkit doctor` says why).\n"
            "Kernels run compiled on the CPU, and checks watch every access; GPU times come from the records in data/."
        )
    return f"Mode: none. {TOO_LATE}."


def gpu_state() -> dict[str, object]:
    """The GPU's present state from NVML; None where the driver does not tell.

    Keys: driver, sm_clock_mhz, memory_clock_mhz, slowed_by (list of reasons), other_pids (list). Never raises:
    laptops, MIG slices and virtual GPUs answer "N/A" to some of these.
    """
    asked = {
        "driver": lambda system, gpu: ".".join(f"{n:02}" for n in system.get_kernel_mode_driver_version()),
        "sm_clock_mhz": lambda system, gpu: gpu.get_clock("sm").get_current_mhz(),
        "memory_clock_mhz": lambda system, gpu: gpu.get_clock("memory").get_current_mhz(),
        "slowed_by": lambda system, gpu: [r.value for r in gpu.current_clock_event_reasons if _slows(r.value)],
        "other_pids": lambda system, gpu: [p.pid for p in gpu.compute_running_processes if p.pid != os.getpid()],
    }
    return {key: _ask(question) for key, question in asked.items()}


def _ask(question):
    try:
        from cuda.core import Device, system

        return question(system, Device(0).to_system_device())
    except Exception:  # NVML has an exception for every way of not answering; to us they are one
        return None


def _slows(reason: str) -> bool:
    return "slowdown" in reason or "power_cap" in reason


ENVIRONMENT = dict(os.environ)  # as the user set it; child processes get this one, and decide for themselves
MACHINE = _find()
