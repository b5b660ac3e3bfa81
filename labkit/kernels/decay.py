"""Chapter 07's kernel with the hidden fallback, as its author meant it: the answer to an exercise."""

from __future__ import annotations

import math

from numba import cuda, float32


@cuda.jit
def decay_as_meant(x, terms, out):
    """out[i] = Σ exp(−p · x[i]) for p = 1 … terms, in float32 throughout. x, out: float32[n]."""
    i = cuda.grid(1)  # 0 ≤ i < n
    if i < x.size:
        u, total = x[i], float32(0)
        for p in range(1, terms + 1):
            total += math.exp(-u * float32(p))
        out[i] = total
