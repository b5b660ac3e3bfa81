"""Random layers on the GPU, as large as a model's: made there, for the host would take a minute."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, uint32
from numba.types import float16

from labkit import device
from labkit.decoder.layer import Layer, layer_shapes
from labkit.findings.decode_least import Decoder

THREADS = 256


@cuda.jit(device=True, forceinline=True)
def scrambled(x):
    """A hash of 32 bits."""
    x = uint32((x ^ (x >> uint32(16))) * uint32(0x7FEB352D))  # the product is a uint64
    x = uint32((x ^ (x >> uint32(15))) * uint32(0x846CA68B))
    return x ^ (x >> uint32(16))


@cuda.jit
def fill(seed, scale, middle, out):
    """out ← middle + scale · random normal numbers, float16[n] (Box and Muller)."""
    i = uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x)
    if i < uint32(out.shape[0]):
        a = scrambled(i ^ uint32(seed))
        p = (float32(a >> uint32(8)) + float32(1)) * float32(2.0**-24)  # in (0, 1]
        q = float32(scrambled(a) >> uint32(8)) * float32(2.0**-24 * math.tau)
        far = scale * math.sqrt(float32(-2) * math.log(p))
        out[i] = float16(middle + far * math.cos(q))


def filled(seed: int, shape, scale: float = 1.0, middle: float = 0.0):
    """A device array of random normal numbers, float16."""
    out = cuda.device_array(math.prod(shape), np.float16)
    grid = -(-out.size // THREADS)
    fill[grid, THREADS](np.uint32(seed), np.float32(scale), np.float32(middle), out)
    return out.reshape(shape)


def on_host(x) -> np.ndarray:
    """A device array as float64."""
    return x.copy_to_host().astype(np.float64)


def random_layer(of: Decoder, number: int, batch: int, context: int) -> Layer:
    """A layer of random numbers on the GPU; products keep the size of what goes in."""
    shapes = layer_shapes(of, batch, context)
    scales = [0.1, 0, 0, 0.1, 0, 0, 1, 1]
    arrays = []
    for i, (shape, scale) in enumerate(zip(shapes, scales, strict=True)):
        seed = 0x9E3779B9 * (8 * number + i) % 2**32
        arrays.append(filled(seed, shape, scale or shape[1] ** -0.5, scale == 0.1))
    return Layer(*arrays)


def random_x(of: Decoder, batch: int):
    """A token's rows for each sequence: float16[batch, d] on the GPU."""
    rng = np.random.default_rng(0)
    return cuda.to_device(rng.standard_normal((batch, of.d)).astype(np.float16))


def shorter(layer: Layer, of: Decoder, batch: int, context: int) -> Layer:
    """The same weights with smaller caches: the first rows of the larger ones."""
    rows = batch * of.kv_heads * context
    return layer._replace(keys=layer.keys[:rows], values=layer.values[:rows])


def as_many_layers(of: Decoder, context: int = 4096, most: int = 32) -> int:
    """How many layers fit into this GPU's memory."""
    one = sum(of.weights.values()) + of.cache(1, context)
    return max(1, min(most, int(0.85 * device.MACHINE.memory_bytes) // one))


def fits(nbytes: int) -> bool:
    """Whether so much more fits into the GPU's memory, with a tenth to spare."""
    return nbytes < 0.9 * cuda.current_context().get_memory_info().free


@cuda.jit
def blank_last(context, cache):
    """The last row of each head's cache ← NaN; a block a head, a thread a number."""
    cache[(cuda.blockIdx.x + 1) * context - 1, cuda.threadIdx.x] = float16(math.nan)


def forget(layers, room) -> None:
    """Blank what a step appends: a way that does not append shows it."""
    heads = room.of.kv_heads * room.batch
    for layer in layers:
        for cache in (layer.keys, layer.values):
            blank_last[heads, cache.shape[1]](room.context, cache)
