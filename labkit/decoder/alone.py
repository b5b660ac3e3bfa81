"""A layer's kernels one by one: each checked given what those before it left, then timed alone beside a mere read."""

from __future__ import annotations

import functools

import numpy as np
from numba import cuda, uint32
from numba.types import float16

from labkit import checks, device, experiment, ptx, timing
from labkit.decoder.data import filled, on_host
from labkit.decoder.exact import activated, attended, normed
from labkit.decoder.layer import HD, Layer, Room, in_float64
from labkit.decoder.ways import run_chain
from labkit.findings.decode_least import Decoder
from labkit.traffic import Cost

THREADS = 256
NAMES = ("qkv", "attention", "out", "gate-up", "down")


@cuda.jit
def only_read(x, y, out):
    """Read x and y, float16[1, n], n % 8 = 0; it stores nothing, but nobody knows that."""
    total, n = uint32(0), uint32(x.shape[1])
    c = uint32(8) * (uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
    apart = uint32(8 * THREADS) * uint32(cuda.gridDim.x)
    ptx.start_next()
    ptx.wait_for_previous()
    while c < n:
        for e in range(4):
            at = c + uint32(e) * apart
            at = at if at < n else c
            p, q, r, s = ptx.load8(x, (0, at))
            total |= p ^ q ^ r ^ s
            p, q, r, s = ptx.load8(y, (0, at))
            total |= p ^ q ^ r ^ s
        c += uint32(4) * apart
    if total == uint32(0x12345678):
        out[0, 0] = float16(1)


def reads(start, of_two, out):
    """The launch of a read of two arrays of one size, 2,048 threads an SM."""
    x, y = (a.reshape(1, -1) for a in of_two)
    return start(only_read, 8 * device.MACHINE.sms, THREADS, x, y, out)


def halves(w):
    """The upper and the lower half of a matrix."""
    return w[: len(w) // 2], w[len(w) // 2 :]


def kernel_errors(build, layer: Layer, x, room: Room) -> dict[str, float]:
    """Name -> error of each kernel of a fused layer, given what those before it left."""
    w = in_float64(Layer(*(a.copy_to_host() for a in layer)), room.of, room.batch)
    caches = w.keys, w.values, room.of, room.context - 1, on_host(room.table)
    right = {  # what it leaves, and what that should be
        "qkv": (room.qkv, lambda: normed(on_host(x), w.norm1) @ w.qkv.T),
        "attention": (room.a, lambda: attended(on_host(room.qkv), *caches)),
        "out": (room.x1, lambda: on_host(x) + on_host(room.a) @ w.out.T),
        "gate-up": (room.act, lambda: activated(on_host(room.x1), w)),
        "down": (room.out, lambda: on_host(room.x1) + on_host(room.act) @ w.down.T),
    }
    errors = {}
    for name, launch in zip(right, build(layer, x, room), strict=True):
        left, exact = right[name]
        left.copy_to_device(checks.poisoned(left.shape, np.float16))
        launch()
        errors[name] = checks.assert_close(left.copy_to_host(), exact(), reduction=32, where=name)
    return errors


def chains(build, start, layers, x, room: Room) -> dict[str, list]:
    """Name -> launches, one a layer: of each kernel, and of reads of the same bytes."""
    found = {f"{read}{name}": [] for name in NAMES for read in ("", "read-")}
    for layer in layers:
        for name, launch in zip(NAMES, build(layer, x, room, start), strict=True):
            found[name].append(launch)
        both = {"attention": (layer.keys, layer.values)}
        both |= {"qkv": halves(layer.qkv), "out": halves(layer.out)}
        both |= {"gate-up": halves(layer.gate_up), "down": halves(layer.down)}
        for name, arrays in both.items():
            found[f"read-{name}"].append(reads(start, arrays, room.y))
    return found


def chain_rows(found: dict[str, list], nbytes: dict[str, int], errors: dict, room: Room, times: int = 1) -> list[dict]:
    """A row a chain: the time of one of its launches, the chain run through `times` times."""
    fns = {n: functools.partial(run_chain, times * chain) for n, chain in found.items()}
    sizes = {"batch": room.batch, "context": room.context, "layers": 1}
    rows = []
    for name, timed in timing.measure_all(fns, method="graph", warmup=5, rep=30).items():
        n = nbytes[name.removeprefix("read-")]
        each, cost = timed.per(times * len(found[name])), Cost(n, 0, n)
        rows.append(experiment.row(name, each, cost, errors.get(name, np.nan), **sizes))
    return rows


def kernel_rows(build, start, layers, x, room: Room) -> list[dict]:
    """The five kernels of a layer at batch 1, each run through all layers in a graph: none finds its matrix in the L2.

    build  the launches of one layer, five of them: build(layer, x, room[, start])
    start  how each is launched (kernel, grid, block, *arguments, shared=0)
    """
    errors = kernel_errors(build, layers[0], x, room)
    nbytes = room.of.weights | {"attention": room.of.cache(room.batch, room.context)}
    return chain_rows(chains(build, start, layers, x, room), nbytes, errors, room)


def attention_rows(build, start, of: Decoder, batch: int, context: int, layers: int = 4) -> list[dict]:
    """Attention alone, on caches of its own; build(start, qkv, layer, room) returns its one launch in a list."""
    room = Room(of, batch, context, cuda.to_device)
    room.qkv = filled(1, room.qkv.shape)
    shape = batch * of.kv_heads * context, HD
    few = [Layer(*[None] * 6, filled(2 * i, shape), filled(2 * i + 1, shape)) for i in range(layers)]
    run = [build(start, room.qkv, layer, room)[0] for layer in few]
    caches = (on_host(c).reshape(batch, of.kv_heads, context, HD) for c in few[0][-2:])
    right = attended(on_host(room.qkv), *caches, of, context - 1, on_host(room.table))
    run[0]()
    error = checks.assert_close(room.a.copy_to_host(), right, reduction=4, where="attention")
    found = {"attention": run, "read-attention": [reads(start, c[-2:], room.y) for c in few]}
    return chain_rows(found, {"attention": of.cache(batch, context)}, {"attention": error}, room, times=3)
