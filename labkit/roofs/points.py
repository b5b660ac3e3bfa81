"""The points: kernels that read and write arrays, polynomials, products, attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from labkit import checks
from labkit.experiment import need
from labkit.roofs.setup import (
    Candidate,
    Kernels,
    Sizes,
    blocks,
    checked,
    cuda,
    empty,
    fitting,
    gemm_cost,
    normal,
    row_costs,
    timed,
)  # fmt: skip
from labkit.traffic import Cost, elementwise


def measure_rows(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """What reads and writes an array once: elementwise, softmax, layer norm."""
    rows, d = fitting(sizes.elements_log2, 12) // sizes.row, sizes.row
    n, host = rows * d, (normal(rows, d), normal(d), normal(1, d)[0])
    x, gain, bias = (cuda().to_device(a) for a in host)
    out, tmp, flat = empty(rows, d), empty(n), x.reshape(n)
    end, grid = out.reshape(n), blocks(n, 4 * 128)
    first, second = (kernel[grid, 128] for kernel in kernels.separate)
    launches = {
        "separate": lambda: (first(flat, tmp), second(tmp, end)),
        "fused": partial(kernels.fused[grid, 128], flat, end),
        "softmax": partial(kernels.softmax(d // 32)[rows, 32], x, out),
        "layer-norm": partial(kernels.layer_norm(d // 32)[rows, 32], x, gain, bias, out),
    }
    last = [host[0][-1000:].astype(np.float64), *(a.astype(np.float64) for a in host[1:])]
    candidates = []
    for variant, launch in launches.items():
        exact = kernels.references[variant](*last[: 3 if variant == "layer-norm" else 1])
        error = checked(launch, out, exact, reduction=d)
        given = {"n": d, "batch": rows} if variant in ("softmax", "layer-norm") else {"n": n}
        candidates.append(Candidate(variant, launch, row_costs(n)[variant], error, given))
    return timed(candidates, "point")


def measure_polynomials(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """The same bytes, more and more FLOPs."""
    n, c, candidates = fitting(sizes.elements_log2, 8), np.float32(0.5), []
    x, out = np.tanh(normal(n)), empty(n)  # within −1 and 1, so that powers stay small
    source, end, grid = cuda().to_device(x), x[-100_000:].astype(np.float64), blocks(n, 4 * 128)
    for turns in sizes.turns:
        launch = partial(kernels.polynomial[grid, 128], source, c, np.int32(turns), out)
        error = checked(launch, out, kernels.references["polynomial"](end, c, turns), reduction=16 * turns)
        cost = elementwise(n, flops=2 * 16 * turns)
        candidates.append(Candidate("polynomial", launch, cost, error, {"n": n, "degree": 16 * turns}))
    return timed(candidates, "point")


def measure_gemv(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """Our matrix times one vector."""
    n = 1 << sizes.gemv_log2
    host, out = (normal(n, n), normal(n)), empty(n)
    launch = partial(kernels.gemv(16)[n, 32], *(cuda().to_device(a) for a in host), out)
    error = checked(launch, out, host[0][-1000:].astype(np.float64) @ host[1].astype(np.float64), reduction=n)
    candidate = Candidate("gemv", launch, gemm_cost(n, 1, n, 4), error, {"n": n, "batch": 1})
    return timed([candidate], "point", cache="hot")  # no flush: see measure_walk


def _one_product(variant: str, build: Callable, m: int) -> list[dict]:
    """A square fp32 product; build(a, b, out) -> launch."""
    a, b, out = normal(m, m), normal(1, m, m)[0], empty(m, m)
    launch = build(cuda().to_device(a), cuda().to_device(b), out)
    error = checked(launch, out, a.astype(np.float64) @ b.astype(np.float64), reduction=m)
    candidate = Candidate(variant, launch, gemm_cost(m, m, m, 4), error, {"n": m, "batch": m})
    return timed([candidate], "point")


def measure_naive(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """The chapter's plain product."""
    m = sizes.square
    grid = blocks(m, 32), blocks(m, 8)
    return _one_product("naive", lambda *arrays: partial(kernels.naive[grid, (32, 8)], *arrays), m)


def measure_square(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """The same product by cuBLAS, without TF32 (which rounds fp32 inputs to 10 bits of mantissa)."""
    torch = need("torch")
    torch.backends.cuda.matmul.allow_tf32 = False

    def build(a, b, out):
        a, b, out = (torch.as_tensor(t, device="cuda") for t in (a, b, out))
        return partial(torch.matmul, a, b, out=out)

    return _one_product("cublas", build, sizes.square)


def measure_walk(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """One fp16 weight matrix times ever more vectors, by cuBLAS.

    Not flushed: the weights are many times the L2, each call pushes its own beginning out of it, and a flush would
    leave dirty lines behind that the sample had to write back.
    """
    torch = need("torch")
    torch.manual_seed(0)
    n, candidates = sizes.weights, []
    weights = torch.randn(n, n, device="cuda", dtype=torch.float16)
    tokens = torch.randn(max(sizes.batches), n, device="cuda", dtype=torch.float16)
    exact = (tokens.double() @ weights.double()).cpu().numpy()
    for b in sizes.batches:
        out = empty(b, n, dtype=np.float16)
        launch = partial(torch.matmul, tokens[:b], weights, out=torch.as_tensor(out, device="cuda"))
        error = checked(launch, out, exact[:b])
        candidates.append(Candidate("cublas", launch, gemm_cost(b, n, n, 2), error, {"n": n, "batch": b}))
    return timed(candidates, "point", "float16", cache="hot")


def measure_attention(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """PyTorch's attention: a prompt of 4,096 tokens, and a decode step of 16 requests with 4,096 keys each."""
    torch = need("torch")
    attend, rows = torch.nn.functional.scaled_dot_product_attention, []
    heads, keys, d = 32, 4096, 128
    for variant, requests, queries in (("attention", 1, keys), ("attention-decode", 16, 1)):
        q = torch.randn(requests, heads, queries, d, device="cuda", dtype=torch.float16)
        k, v = torch.randn(2, requests, heads, keys, d, device="cuda", dtype=torch.float16)
        one, two, three = (t[-1, -1].double() for t in (q, k, v))
        exact = (torch.softmax(one @ two.T / math.sqrt(d), dim=1) @ three).cpu().numpy()
        error = checks.assert_close(attend(q, k, v)[-1, -1].cpu().numpy(), exact, where=variant)
        read, written = 2 * (q.numel() + 2 * k.numel()), 2 * q.numel()
        cost = Cost(read, written, 4 * requests * heads * queries * keys * d)
        given = {"n": keys, "batch": requests * queries}
        rows += timed([Candidate(variant, partial(attend, q, k, v), cost, error, given)], "point", "float16")
    return rows
