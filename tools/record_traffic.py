"""Record what NVIDIA's profiler sees of chapter 02's kernels: the bytes on the memory bus, beside the cost model's.

    python tools/record_traffic.py        needs a GPU and ncu; writes data/<device>/traffic_ncu.csv and .json

ncu runs this script again (with --profile-me), which launches each variant once between profiler start and stop.
"""

import csv
import os
import subprocess
import sys

import numpy as np

import labkit
from labkit import checks, notebooks, records

N = 1 << 28
CELLS = ["mode", "kernel", "check", "variants", "four", "variants-four"]
VARIANTS = {"unfused": "unfused", "fused": "fused", "unfused-4": "unfused4", "fused-4": "fused4"}
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum")


def cost(variant: str) -> labkit.Cost:
    """The cost model's claim for a variant."""
    one = labkit.elementwise(N)
    return one + one if variant.startswith("unfused") else one


def profile_me() -> None:
    """Check each variant, then launch it once under the profiler."""
    from numba import cuda

    chapter = notebooks.namespace(notebooks.chapters(["02"])[0], CELLS)
    host = np.random.default_rng(0).standard_normal(N, dtype=np.float32)
    x, out = cuda.to_device(host), cuda.to_device(np.full_like(host, np.nan))
    for name in VARIANTS.values():
        launch = chapter[name](x, out)
        launch()
        checks.assert_close(out.copy_to_host(), host.astype(np.float64) * 6, where=name)
        cuda.profile_start()
        launch()
        cuda.synchronize()
        cuda.profile_stop()


def profiled() -> list[dict[str, float]]:
    """One dict of METRICS for each kernel that ncu saw, in order, in bytes and ns."""
    command = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    command += ["--profile-from-start", "off", "--metrics", ",".join(METRICS)]
    done = subprocess.run([*command, sys.executable, __file__, "--profile-me"], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode or len(lines) < 3:
        sys.exit(f"ncu failed ({done.returncode}): {(done.stderr or done.stdout).strip()[-1000:]}")
    header, _units, *rows = csv.reader(lines)
    return [{m: float(row[header.index(m)].replace(",", "")) for m in METRICS} for row in rows]


def main() -> None:
    """Profile, compare, record."""
    kernels, rows = profiled(), []
    for variant in VARIANTS:
        count = 2 if variant.startswith("unfused") else 1
        mine, kernels = kernels[:count], kernels[count:]
        read, written, ns = (sum(k[m] for k in mine) for m in METRICS)
        timed = labkit.Timing(np.array([ns / 1e6]), np.zeros(1, bool), "ncu", "cold", ("timed under a profiler",))
        model = cost(variant)
        seen = {"read_model": model.read, "read_ncu": read, "written_model": model.written, "written_ncu": written}
        rows.append(labkit.row(variant, timed, model, n=N, **seen))
    if kernels:
        sys.exit(f"ncu saw {len(kernels)} kernels more than the variants have; nothing is recorded")
    os.environ["LABKIT_RECORD"] = "1"
    labkit.live_or_recorded("traffic_ncu", lambda: rows)
    print(records.read("traffic_ncu", labkit.MACHINE.slug).to_string())


if __name__ == "__main__":
    profile_me() if "--profile-me" in sys.argv else main()
