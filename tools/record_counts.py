"""Record what NVIDIA's profiler counts in the kernels of tests/counted_kernels.py: requests, sectors, bank conflicts.

    python tools/record_counts.py         needs a GPU and ncu; writes data/<device>/counts_ncu.csv and .json

Each kernel's result is compared with NumPy's first. ncu then runs this script again (with --profile-me), which
launches each kernel once between profiler start and stop. In the record, `bytes` are those of the sectors that warps
asked of the L1 cache, whatever answered; FLOPs are the instructions that the GPU counted, an FMA as two.
"""

import math
import sys
from pathlib import Path

import labkit  # isort: skip  # before numba

import ncu

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from counted_kernels import COUNTED

GLOBAL = {
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
}
SHARED = {
    f"shared_{name}_{what}": metric.format(op)
    for what, metric in (
        ("requests", "smsp__inst_executed_op_shared_{}.sum"),
        ("wavefronts", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"),
        ("conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"),
    )
    for name, op in (("load", "ld"), ("store", "st"), ("atomic", "atom"))
}
# the same as attributed to instructions, without what else the hardware's counters see (data of global stores, ...)
BY_INSTRUCTION = {
    f"shared_{name}_{what}_sass": f"smsp__sass_l1tex_data_{unit}_mem_shared_op_{op}.sum"
    for what, unit in (("wavefronts", "pipe_lsu_wavefronts"), ("conflicts", "bank_conflicts_pipe_lsu"))
    for name, op in (("load", "ld"), ("store", "st"))
}
ATOMICS = {
    f"{name}_{what}": f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"
    for name, op in (("atomic", "atom"), ("reduction", "red"))
    for what in ("requests", "sectors")
}
FLOPS = {
    op: f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum"
    for op in ("fadd", "fmul", "ffma", "dadd", "dmul", "dfma")
}
OPTIONAL = {**SHARED, **BY_INSTRUCTION, **ATOMICS, **FLOPS}


def profile_me() -> None:
    """Compile and check each kernel, then launch it once under the profiler."""
    from numba import cuda

    for counted in COUNTED:
        counted.check()
        arguments = counted.on_device()
        cuda.synchronize()
        cuda.profile_start()
        counted.launch(arguments)
        cuda.synchronize()
        cuda.profile_stop()


def rows(kernels: list[dict], errors: dict[str, float]) -> list[dict]:
    """The record's rows from ncu's, in the order of COUNTED; a metric that some kernel lacks is no column."""
    if len(kernels) != len(COUNTED):
        sys.exit(f"ncu saw {len(kernels)} kernels, there are {len(COUNTED)}; nothing is recorded")
    lacking = [c for c, m in OPTIONAL.items() if any(math.isnan(k[m]) for k in kernels)]
    print(f"columns left out: {', '.join(lacking) or 'none'}")
    columns = {c: m for c, m in {**GLOBAL, **OPTIONAL}.items() if c not in lacking}
    found = []
    for counted, kernel in zip(COUNTED, kernels, strict=True):
        if counted.kernel.py_func.__name__ not in kernel["Kernel Name"]:
            sys.exit(f"{counted.name}: ncu saw {kernel['Kernel Name']} in its place; nothing is recorded")
        # whole numbers: a record keeps six digits of the others
        seen = {c: int(kernel[m]) for c, m in columns.items()}
        flops = sum((2 if op.endswith("fma") else 1) * seen.get(op, 0) for op in FLOPS)
        cost = labkit.Cost(32 * seen["load_sectors"], 32 * seen["store_sectors"], flops)
        timed = ncu.timed(kernel[ncu.TIME], cache="L1")
        found.append(labkit.row(counted.name, timed, cost, errors[counted.name], **seen))
    return found


def main() -> None:
    """Check, profile, record."""
    if not labkit.MACHINE.has_gpu:
        sys.exit(f"nothing to record: {labkit.MACHINE.reason}. It takes a real GPU")
    errors = {counted.name: counted.check() for counted in COUNTED}
    print(f"{len(errors)} kernels agree with NumPy")
    ncu.record("counts_ncu", rows(ncu.profile(__file__, [ncu.TIME, *GLOBAL.values()], [*OPTIONAL.values()]), errors))


if __name__ == "__main__":
    profile_me() if "--profile-me" in sys.argv else main()
