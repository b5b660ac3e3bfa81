"""Record what NVIDIA's profiler sees of chapter 02's kernels: the bytes on the memory bus, beside the cost model's.

    python tools/record_traffic.py        needs a GPU and ncu; writes data/<device>/traffic_ncu.csv and .json

ncu runs this script again (with --profile-me), which launches each variant once between profiler start and stop.
"""

import sys

import ncu
import numpy as np

import labkit
from labkit import checks, notebooks

N = 1 << 28
CELLS = ["mode", "kernel", "check", "variants", "four", "variants-four"]
VARIANTS = {"unfused": "unfused", "fused": "fused", "unfused-4": "unfused4", "fused-4": "fused4"}
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", ncu.TIME)


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


def main() -> None:
    """Profile, compare, record."""
    kernels, rows = ncu.profile(__file__, METRICS), []
    for variant in VARIANTS:
        count = 2 if variant.startswith("unfused") else 1
        mine, kernels = kernels[:count], kernels[count:]
        read, written, ns = (sum(k[m] for k in mine) for m in METRICS)
        model = cost(variant)
        seen = {"read_model": model.read, "read_ncu": read, "written_model": model.written, "written_ncu": written}
        rows.append(labkit.row(variant, ncu.timed(ns), model, n=N, **seen))
    if kernels:
        sys.exit(f"ncu saw {len(kernels)} kernels more than the variants have; nothing is recorded")
    ncu.record("traffic_ncu", rows)


if __name__ == "__main__":
    profile_me() if "--profile-me" in sys.argv else main()
