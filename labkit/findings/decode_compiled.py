"""Chapter 08: what a compiler made of the layer, by the names of its kernels."""

from __future__ import annotations

import re

import pandas as pd

from labkit.findings.fallbacks import plain_name
from labkit.tables import of_one_source, text

__all__ = ["compiled_kernels", "kind_of"]

KINDS = {  # of a kernel, by what its name holds; the first that fits
    "product, the compiler's own": r"^triton_red.*mm.*permute",  # the permuted operand is the matrix
    "product, a template": r"^triton_(tem|mm)",
    "fused light work": r"^triton_",
    "attention": r"flash|fmha|sdpa|cudnn",
    "product, a library's": r"gemm|gemv|nvjet|cutlass|cublas|splitk",
}


def kind_of(kernel: str) -> str:
    """attention, a product, fused light work, or one operation."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel, re.I)), "one operation")


def compiled_kernels(rows: pd.DataFrame, variant: str = "torch-compile") -> str:
    """The kernels of a layer of one of PyTorch's variants: kind, name, how often, µs; and all variants by kind."""
    found = of_one_source(rows)
    found = found.assign(kind=found["kernel"].map(kind_of), us=1e3 * found["median_ms"] * found["times"])
    by_kind = found.pivot_table(index="kind", columns="variant", values="times", aggfunc="sum", fill_value=0)
    here = found[found["variant"] == variant]
    table = pd.DataFrame(
        {
            "kind": here["kind"],
            "a layer": here["times"],
            "µs": here["us"],
            f"kernel of {variant}": here["kernel"].map(plain_name),
        }
    )
    counted = text(by_kind.reset_index(), **dict.fromkeys(by_kind.columns, "{:.2g}"))
    listed = text(table, **{"a layer": "{:.2g}", "µs": "{:.1f}"})
    return f"kernels a layer, by kind\n{counted}\n\n{listed}\n{found['source'].iloc[0]} (the profiler's times)"
