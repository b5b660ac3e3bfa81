"""A decoder layer: its weights and caches, what its kernels hand to each other, and what they cost."""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from labkit import checks, device
from labkit.findings.decode_least import Decoder
from labkit.kernels.decode_wide import most_room
from labkit.traffic import Cost

HD = 128  # numbers a head

# float16. Matrices: [outputs, inputs]; norm1, norm2: [1, d].
# qkv: rows for all heads of q, then of k, then of v; gate_up: gates, then ups.
# keys, values: [batch · kv_heads · context, 128].
Layer = namedtuple("Layer", "norm1 qkv out norm2 gate_up down keys values")


def layer_shapes(of: Decoder, batch: int, context: int) -> list[tuple[int, int]]:
    """The shapes of a Layer's arrays, in their order."""
    heads, cache = of.heads * HD, (batch * of.kv_heads * context, HD)
    qkv = (heads + 2 * of.kv_heads * HD, of.d)
    mlp = (1, of.d), (2 * of.ffn, of.d), (of.d, of.ffn)
    return [(1, of.d), qkv, (of.d, heads), *mlp, cache, cache]


def parts_for(of: Decoder, batch: int, context: int) -> int:
    """Parts of the keys: about a block for each SM, at most 16 parts, and at least 64 keys in each."""
    return max(1, min(16, (device.MACHINE.sms or 1) // (of.kv_heads * batch), context // 64))


class Room:
    """What kernels hand to each other, and what all layers share: RoPE's table, the position, attention's parts.

    q, k, v, qkv, a, h, y, x1, out, gate, up, act: float16[batch, …], NaN until written
    scores: float32[batch · heads, context], partial: [batch · heads, parts · 128], stats: [batch · heads, parts · 2]
    counter: int32[batch · kv_heads], zeros; table: float32[context, 128]; position: int32[1], the last one at first
    sums: float32, counts: int32 zeros, for products in parts (decode_wide.most_room)
    """

    def __init__(self, of: Decoder, batch: int, context: int, array, parts: int | None = None):
        """array: makes a device array of a NumPy one."""
        self.of, self.batch, self.context = of, batch, context
        self.parts = parts or parts_for(of, batch, context)
        heads, kv = of.heads * HD, of.kv_heads * HD
        sizes = {"q": heads, "k": kv, "v": kv, "qkv": heads + 2 * kv, "a": heads}
        sizes |= dict.fromkeys(("h", "y", "x1", "out"), of.d)
        sizes |= dict.fromkeys(("gate", "up", "act"), of.ffn)
        for name, n in sizes.items():
            setattr(self, name, array(checks.poisoned((batch, n), np.float16)))
        rows = batch * of.heads
        self.scores = array(np.full((rows, context), np.nan, np.float32))
        self.partial = array(np.full((rows, self.parts * HD), np.nan, np.float32))
        self.stats = array(np.full((rows, 2 * self.parts), np.nan, np.float32))
        self.counter = array(np.zeros(batch * of.kv_heads, np.int32))
        sums, counts = most_room(device.MACHINE.sms or 1)
        self.sums = array(np.full(sums, np.nan, np.float32))
        self.counts = array(np.zeros(counts, np.int32))
        self.table = array(rope_table(context))
        self.position = array(np.array([context - 1], np.int32))


def rope_table(context: int) -> np.ndarray:
    """cos and sin of position · 500000^(−i/64), 0 ≤ i < 64: float32[context, 128]."""
    angle = np.arange(context)[:, None] * 500000.0 ** (-np.arange(HD // 2) / (HD // 2))
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def toy_layer(rng, of: Decoder, batch: int, context: int) -> Layer:
    """A small layer of random numbers, on the host; the norms' weights are near 1."""
    arrays = [rng.standard_normal(shape) for shape in layer_shapes(of, batch, context)]
    for i in (0, 3):
        arrays[i] = 1 + arrays[i] / 4
    for i in (1, 2, 4, 5):
        arrays[i] /= math.sqrt(arrays[i].shape[1])
    return Layer(*(a.astype(np.float16) for a in arrays))


def in_float64(layer: Layer, of: Decoder, batch: int) -> Layer:
    """A copy on the host for the reference; caches by sequence and head: [batch, kv_heads, context, 128]."""
    arrays = [x.astype(np.float64) for x in layer]
    arrays[-2:] = [a.reshape(batch, of.kv_heads, -1, HD) for a in arrays[-2:]]
    return Layer(*arrays)


def separate_costs(of: Decoder, batch: int, context: int) -> dict[str, Cost]:
    """Kernel -> Cost: what each of the 17 separate kernels reads and writes, float16."""
    n, q, kv = batch, of.heads * HD, of.kv_heads * HD

    def rows(count, columns):
        """A product: its matrix and a vector in, a vector out."""
        return Cost(2 * (count + n) * columns, 2 * n * count, 2 * n * count * columns)

    def each(count, reads):
        return Cost(2 * n * count * reads, 2 * n * count, n * count)

    cache = of.cache(batch, context)
    scores = 4 * n * of.heads * context  # float32; they stay in the L2, and do not count
    return {
        "norm (2)": each(of.d, 2) + each(of.d, 2),
        "q": rows(q, of.d),
        "k, v": rows(kv, of.d) + rows(kv, of.d),
        "rotate q, k": each(q, 1) + each(kv, 1),
        "append k, v": each(kv, 1) + each(kv, 1),
        "attention": Cost(cache + 2 * n * q, 2 * n * q, scores * HD),
        "out": rows(of.d, q),
        "gate, up": rows(of.ffn, of.d) + rows(of.ffn, of.d),
        "SiLU · up": each(of.ffn, 2),
        "down": rows(of.d, of.ffn),
        "add (2)": each(of.d, 2) + each(of.d, 2),
    }
