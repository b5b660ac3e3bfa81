"""A layer's four products for more than one row, alone: ours beside those that PyTorch takes from cuBLAS."""

from __future__ import annotations

import functools

import numpy as np
from numba import cuda

from labkit import checks, experiment
from labkit.decoder.data import filled, on_host, random_x
from labkit.decoder.exact import gated, on_torch, tensors_of
from labkit.decoder.layer import Room
from labkit.decoder.torch_ways import captured
from labkit.decoder.ways import Way, available, timed_rows
from labkit.findings.decode_least import Decoder
from labkit.traffic import Cost

MATRICES = ("qkv", "out", "gate_up", "down")


def prepared(of: Decoder, batch: int) -> tuple:
    """x, and a Room whose h, a and act are random: what the products are given."""
    room = Room(of, batch, 1, cuda.to_device)
    for seed, name in enumerate(("h", "a", "act")):
        setattr(room, name, filled(seed, getattr(room, name).shape))
    return random_x(of, batch), room


def exact_products(w: dict, x, room: Room, bare: bool = False) -> dict[str, np.ndarray]:
    """What the four leave, given what stands in the room; w: float64, by name.

    bare  the sums alone; else out and down with what is added, gate_up as SiLU · up
    """
    h, a, act = (on_host(y) for y in (room.h, room.a, room.act))
    inputs = {"qkv": h, "out": a, "gate_up": h, "down": act}
    sums = {name: y @ w[name].T for name, y in inputs.items()}
    if bare:
        return sums
    added = {"out": on_host(x) + sums["out"], "down": on_host(room.x1) + sums["down"]}
    return sums | added | {"gate_up": gated(sums["gate_up"])}


def left_in(room: Room) -> dict:
    """Where ours leave their results."""
    return dict(zip(MATRICES, (room.qkv, room.x1, room.act, room.out), strict=True))


def cublas(layers, x, room: Room) -> tuple[Way, dict]:
    """PyTorch's: a Way, and where it leaves its results. The bare sums, the least that one can ask."""
    torch = experiment.need("torch")
    weights = [tensors_of(torch, layer) for layer in layers]
    left = left_in(room) | {"gate_up": cuda.device_array((room.batch, 2 * room.of.ffn), np.float16)}
    qkv, x1, both, out = (on_torch(torch, y) for y in left.values())
    h, a, act = (on_torch(torch, y) for y in (room.h, room.a, room.act))

    def call():
        for w in weights:
            torch.mm(h, w.qkv.T, out=qkv)
            torch.mm(a, w.out.T, out=x1)
            torch.mm(h, w.gate_up.T, out=both)
            torch.mm(act, w.down.T, out=out)

    note = "one graph; without additions and SiLU · up"
    return Way(captured(torch, call), 4 * len(layers), False, note), left


def checked(name: str, make, layers, x, room: Room, w: dict) -> tuple[Way, float]:
    """A way, run once on poisoned results, and the largest error of its four products."""
    way, left = make(layers, x, room)
    for y in left.values():
        y.copy_to_device(checks.poisoned(y.shape, np.float16))
    way.run()
    cuda.synchronize()
    right, errors = exact_products(w, x, room, bare=name == "cublas"), []
    for product, y in left.items():
        errors.append(checks.assert_close(y.copy_to_host(), right[product], reduction=32, where=f"{name}, {product}"))
    return way, max(errors)


def product_rows(makers, of: Decoder, layers, batches) -> list[dict]:
    """A row for each way and batch, of the four products of all layers in a graph, and the weights' floor.

    makers  name -> function of (layers, x, room) that returns a Way, which leaves its products in the room; PyTorch's,
            `cublas`, is added
    """
    makers = {name: _in_room(make) for name, make in makers.items()} | {"cublas": cublas}
    w, n, rows = {name: on_host(getattr(layers[-1], name)) for name in MATRICES}, len(layers), []
    nbytes = n * sum(2 * matrix.size for matrix in w.values())
    for batch in batches:
        x, room = prepared(of, batch)
        found = available(makers, functools.partial(checked, layers=layers, x=x, room=room, w=w))
        rows += timed_rows(found, Cost(nbytes, 0, batch * nbytes), batch=batch, layers=n)
    return rows


def _in_room(make):
    return lambda layers, x, room: (make(layers, x, room), left_in(room))
