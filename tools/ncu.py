"""Run a script under NVIDIA's profiler, ncu, and read its table; the part that the recording tools share.

The script launches each kernel that counts between cuda.profile_start() and cuda.profile_stop(), in a known order.
"""

import csv
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

import labkit
from labkit import records

FLAGS = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--profile-from-start", "off"]
TIME = "gpu__time_duration.sum"


def profile(script: str, metrics: Sequence[str], optional: Sequence[str] = ()) -> list[dict]:
    """Run `script --profile-me` under ncu; one dict for each kernel it saw, in order: see `parsed`.

    An optional metric that this ncu does not know is left out, with a line on stderr; all of them where it fails
    without a name.
    """
    if not shutil.which("ncu"):
        sys.exit("ncu is not on the PATH; it comes with the CUDA toolkit (Nsight Compute)")
    wanted = [*metrics, *optional]
    while True:
        command = ["ncu", *FLAGS, "--metrics", ",".join(wanted), sys.executable, script, "--profile-me"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        kernels = parsed(done.stdout, metrics, optional)
        if not done.returncode and kernels:
            return kernels
        said = f"{done.stdout}\n{done.stderr}".strip()
        lost = set(unknown(said, wanted)) or set(optional)
        if not lost & set(wanted) & set(optional) or lost & set(metrics):
            sys.exit(f"ncu failed ({done.returncode}): {(done.stderr or done.stdout).strip()[-1000:]}")
        print(f"left out, as ncu does not take them: {', '.join(sorted(lost))}\n{said[-1000:]}", file=sys.stderr)
        wanted = [m for m in wanted if m not in lost]


def parsed(output: str, metrics: Sequence[str], optional: Sequence[str] = ()) -> list[dict]:
    """The kernels of ncu's CSV table: `Kernel Name`, and each metric in base units (an optional one may be NaN)."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        return []
    header, _units, *rows = csv.reader(lines)
    missing = [m for m in metrics if m not in header]
    if missing:
        sys.exit(f"ncu's table has no {', '.join(missing)}; it has {', '.join(header)}")
    kernels = []
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        found = {m: _number(cells.get(m, "")) for m in (*metrics, *optional)}
        empty = [m for m in metrics if math.isnan(found[m])]
        if empty:
            sys.exit(f"ncu found no {', '.join(empty)} for {cells.get('Kernel Name', 'a kernel')}")
        kernels.append({"Kernel Name": cells.get("Kernel Name", ""), **found})
    return kernels


def unknown(said: str, metrics: Sequence[str]) -> list[str]:
    """The metrics that ncu's error lines name."""
    errors = "\n".join(line for line in said.splitlines() if line.startswith("==ERROR=="))
    return [m for m in metrics if re.search(rf"\b{m.partition('.')[0]}\b", errors)]


def timed(ns: float, cache: str = "cold") -> labkit.Timing:
    """A profiled kernel's time as a record keeps it."""
    return labkit.Timing(np.array([ns / 1e6]), np.zeros(1, bool), "ncu", cache, ("timed under a profiler",))


def record(name: str, rows: list[dict]) -> None:
    """Store the rows in data/<device>/<name>.csv and .json, and print them."""
    os.environ["LABKIT_RECORD"] = "1"
    labkit.live_or_recorded(name, lambda: rows)
    print(records.read(name, labkit.MACHINE.slug).to_string())


def _number(text: str) -> float:
    """A cell's number; NaN for an empty one or ncu's n/a."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan
