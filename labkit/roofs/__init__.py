"""Chapter 03's measurement: the roofs of a GPU and the kernels under them, one list of rows."""

from __future__ import annotations

from labkit import cpu
from labkit.experiment import Unavailable
from labkit.roofs import points, roofs
from labkit.roofs.setup import Kernels, Sizes, gemm_cost, row_costs

__all__ = ["PARTS", "Kernels", "Sizes", "gemm_cost", "measure", "row_costs"]

PARTS = (
    roofs.measure_copy, roofs.measure_read, roofs.measure_l2, roofs.measure_fma, roofs.measure_mma, roofs.measure_wgmma,
    points.measure_rows, points.measure_polynomials, points.measure_gemv, points.measure_naive, points.measure_square,
    points.measure_walk, points.measure_attention,
)  # fmt: skip


def measure(kernels: Kernels, sizes: Sizes | None = None) -> list[dict]:
    """All rows of the record `roofline`; what cannot run here is named and left out."""
    rows = []
    for part in PARTS:
        try:
            rows += part(kernels, sizes or Sizes())
        except (Unavailable, cpu.Unsupported, cpu.BadKernel) as e:
            print(f"{part.__name__.removeprefix('measure_')}: {e}")
    return rows
