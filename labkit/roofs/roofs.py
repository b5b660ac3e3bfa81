"""The roofs: memory, L2, fp32 arithmetic, fp16 tensor cores."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from labkit import device
from labkit.experiment import Unavailable, recording
from labkit.roofs.setup import Candidate, Kernels, Sizes, blocks, checked, cuda, empty, fitting, normal, sms, timed
from labkit.traffic import Cost, elementwise


def measure_copy(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """Copies: loads under way by threads a block."""
    rows = []
    for log2 in sizes.copy_log2 if recording() else sizes.copy_log2[-1:]:
        n, candidates = fitting(log2, 8), []
        x = normal(n)
        source, out, end = cuda().to_device(x), empty(n), x[-(1 << 20) :].astype(np.float64)
        for each in sizes.loads[:4]:
            kernel = kernels.copy(each)
            for w in sizes.widths:
                launch = partial(kernel[blocks(n, each * w), w], source, out)
                given = {"n": n, "each": each, "block": w}
                error = checked(launch, out, end)
                candidates.append(Candidate("copy", launch, elementwise(n, flops=0), error, given))
        rows += timed(candidates, "roof")
    return rows


def measure_read(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """Sums by thread; checked on a sixteenth of the array, which is the same part sixteen times over."""
    n, candidates = fitting(sizes.read_log2, 4), []
    part, x = normal(n // 16), empty(n)
    for i in range(16):
        x[i * part.size : (i + 1) * part.size].copy_to_device(part)
    for each in sizes.loads:
        kernel = kernels.read(each)
        for w in sizes.widths:
            grid = 4 * sms(sizes) * sizes.threads // w  # four times what is resident at once
            out = empty(grid * w)
            sums = kernels.references["read"](part.astype(np.float64), each, grid, w)
            error = checked(partial(kernel[grid, w], x[: part.size], out), out, sums, reduction=1000)
            given, cost = {"n": n, "each": each, "block": w}, Cost(4 * n, 4 * grid * w, n)
            candidates.append(Candidate("read", partial(kernel[grid, w], x, out), cost, error, given))
    return timed(candidates, "roof")


def measure_l2(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """Every block reads all of an array that the L2 holds."""
    kernel, w, candidates = kernels.reread(8), sizes.threads // 2, []
    grid = 2 * sms(sizes)
    for mib in sizes.l2_mib:
        n = int(mib * 2**18)
        if 4 * n > 0.9 * device.MACHINE.l2_bytes:
            continue
        x, out = normal(n), empty(grid, w)
        sums = np.tile(x.astype(np.float64).reshape(-1, w).sum(axis=0), (grid, 1))
        launch = partial(kernel[grid, w], cuda().to_device(x), out)
        error = checked(launch, out, sums, reduction=n // w)
        given, cost = {"n": n, "each": 8, "block": w}, Cost(4 * n * grid, 4 * grid * w, n * grid)
        candidates.append(Candidate("l2", launch, cost, error, given))
    return timed(candidates, "roof", cache="hot")


def measure_fma(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """FMAs in registers."""
    n, candidates = 2 * sms(sizes) * sizes.threads, []
    x, out = normal(n), empty(n)
    source, factor, addend = cuda().to_device(x), np.float32(1 - 2**-13), np.float32(0.25)
    exact = kernels.references["fma"](x.astype(np.float64), factor, addend, sizes.rounds)
    cost = elementwise(n, flops=8 * 16 * sizes.rounds * 2)
    for w in sizes.widths:
        launch = partial(kernels.fma[n // w, w], source, factor, addend, np.int32(sizes.rounds), out)
        error = checked(launch, out, exact, reduction=16 * sizes.rounds)
        candidates.append(Candidate("fma", launch, cost, error, {"n": n, "each": 8, "block": w}))
    return timed(candidates, "roof")


def _tensor(variant, kernel, grid, block, operands, out, round_flops, products, each, sizes) -> Candidate:
    """Checked after two rounds (later, rounding adds up), timed for `sizes.tensor_flops`."""
    a, b = (m.astype(np.float64) for m in operands)
    exact = 2 * products * (a @ b.T)
    words = [cuda().to_device(m.view(np.uint32)) for m in operands]
    tiled = np.broadcast_to(exact, (math.prod(out.shape) // exact.size, *exact.shape)).reshape(out.shape)
    error = checked(partial(kernel[grid, block], *words, np.int32(2), out), out, tiled, reduction=4 * a.shape[1])
    rounds = max(int(sizes.tensor_flops / round_flops), 1)
    cost = Cost(0, 4 * math.prod(out.shape), rounds * round_flops)
    launch = partial(kernel[grid, block], *words, np.int32(rounds), out)
    return Candidate(variant, launch, cost, error, {"n": grid * block, "each": each, "block": block})


def _halves(*shape: int) -> np.ndarray:
    """Random (zeros run faster), and so small that thousands of rounds do not overflow."""
    return (normal(*shape) / 64).astype(np.float16)


def measure_mma(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """Products in registers, by mma.sync."""
    if device.MACHINE.compute_capability < (8, 0):
        raise Unavailable("mma.m16n8k16 needs compute capability 8.0")
    candidates = []
    for rows, columns in ((2, 4), (4, 4)):
        for warps in (4, 16):  # an SM
            grid, kernel = sms(sizes) * warps // 4, kernels.mma(rows, columns)
            out = empty(4 * grid, 16 * rows, 8 * columns)
            operands = _halves(16 * rows, 16), _halves(8 * columns, 16)
            flops = 4 * grid * rows * columns * 2 * 16 * 8 * 16
            candidates.append(_tensor("mma", kernel, grid, 128, operands, out, flops, 1, rows * columns, sizes))
    return timed(candidates, "roof", "float16")


def measure_wgmma(kernels: Kernels, sizes: Sizes) -> list[dict]:
    """Products from shared memory, by Hopper's wgmma."""
    if tuple(device.MACHINE.compute_capability[:2]) != (9, 0):
        raise Unavailable("wgmma exists on Hopper only")
    from labkit.roofs import tensor

    grid = 2 * sms(sizes)
    out, operands = empty(128 * grid, 128), (_halves(128, 64), _halves(128, 64))
    flops, kernel, block = grid * tensor.FLOPS, tensor.kernel(), tensor.THREADS
    return timed([_tensor("wgmma", kernel, grid, block, operands, out, flops, 2, 1, sizes)], "roof", "float16")
