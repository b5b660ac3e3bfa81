"""What is right: one layer's step in float64, in NumPy, and (where PyTorch is) a whole token on the GPU."""

from __future__ import annotations

import math

import numpy as np

from labkit import experiment
from labkit.decoder.layer import HD, Layer, Room, in_float64
from labkit.findings.decode_least import Decoder

EPS = 1e-5


def turned(x: np.ndarray, row: np.ndarray) -> np.ndarray:
    """RoPE of x[..., 128] by a row of the table, float64."""
    (a, b), (cosine, sine) = np.split(x, 2, -1), np.split(row.astype(np.float64), 2)
    return np.concatenate([a * cosine - b * sine, a * sine + b * cosine], -1)


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """weight · x / rms(x), row by row."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def attended(qkv, keys, values, of: Decoder, pos: int, table) -> np.ndarray:
    """Attention's output; keys and values [batch, kv_heads, context, 128] get the new row."""
    n, ends = len(qkv), [of.heads * HD, (of.heads + of.kv_heads) * HD]
    q, k, v = (y.reshape(n, of.kv_heads, -1, HD) for y in np.split(qkv, ends, 1))
    keys[:, :, pos], values[:, :, pos] = turned(k, table[pos])[:, :, 0], v[:, :, 0]
    keys, values = keys[:, :, : pos + 1], values[:, :, : pos + 1]
    s = turned(q, table[pos]) @ keys.swapaxes(-1, -2) / math.sqrt(HD)  # q: groups of heads
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True) @ values).reshape(n, -1)


def gated(both: np.ndarray) -> np.ndarray:
    """silu(gate) · up; both: the gates, then the ups, of each row."""
    gate, up = np.split(both, 2, 1)
    return gate / (1 + np.exp(-gate)) * up


def activated(x: np.ndarray, layer: Layer) -> np.ndarray:
    """silu(gate) · up of the normed x."""
    return gated(normed(x, layer.norm2) @ layer.gate_up.T)


def reference(layer: Layer, x: np.ndarray, of: Decoder, pos: int, table: np.ndarray) -> np.ndarray:
    """One layer's step: x[batch, d] → [batch, d]; x and all of the layer's arrays (in_float64) are float64."""
    qkv = normed(x, layer.norm1) @ layer.qkv.T
    x = x + attended(qkv, layer.keys, layer.values, of, pos, table) @ layer.out.T
    return x + activated(x, layer) @ layer.down.T


# --- a whole token, on the GPU


def on_torch(torch, x):
    """A device array as PyTorch's tensor, the same memory."""
    return torch.as_tensor(x, device="cuda")


def tensors_of(torch, layer: Layer) -> Layer:
    """The same memory, as PyTorch's tensors."""
    return Layer(*(on_torch(torch, x) for x in layer))


def exact_token(layers, x, room: Room) -> np.ndarray:
    """The token through all layers, float64[batch, d]; the new row is the cache's last.

    With PyTorch on the GPU; without it in NumPy, which is slow for large layers.
    """
    try:
        torch = experiment.need("torch")
    except experiment.Unavailable:
        return _exact_on_host(layers, x, room)
    y = on_torch(torch, x).double()
    for layer in layers:
        y = _exact_layer(torch, tensors_of(torch, layer), y, room)
    return y.cpu().numpy()


def _exact_on_host(layers, x, room: Room) -> np.ndarray:
    y, table = x.copy_to_host().astype(np.float64), room.table.copy_to_host()
    for layer in layers:
        there = in_float64(Layer(*(a.copy_to_host() for a in layer)), room.of, room.batch)
        y = reference(there, y, room.of, room.context - 1, table)
    return y


def _exact_layer(torch, w: Layer, x, room: Room):
    """One layer's step in float64 on the GPU; w: its arrays as tensors. Appends float16."""
    of, batch = room.of, room.batch
    cosine, sine = on_torch(torch, room.table)[-1].double().chunk(2)
    kv, silu = of.kv_heads * HD, torch.nn.functional.silu

    def turn(y):
        a, b = y.chunk(2, -1)
        return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)

    def norm(y, weight):
        return y / torch.sqrt((y * y).mean(-1, keepdim=True) + EPS) * weight.double()

    q, k, v = (norm(x, w.norm1) @ w.qkv.double().T).split([of.heads * HD, kv, kv], 1)
    q, k, v = (y.reshape(batch, of.kv_heads, -1, HD) for y in (q, k, v))
    for cache, new in ((w.keys, turn(k)), (w.values, v)):
        cache.view(batch, of.kv_heads, -1, HD)[:, :, -1] = new[:, :, 0].half()
    x = x + _exact_attention(torch, turn(q), w.keys, w.values, of, batch) @ w.out.double().T
    gate, up = (norm(x, w.norm2) @ w.gate_up.double().T).chunk(2, 1)
    return x + (silu(gate) * up) @ w.down.double().T


def _exact_attention(torch, q, keys, values, of: Decoder, batch: int):
    """float64, one sequence at a time (all at once would not fit); q: [batch, kv_heads, group, 128]."""
    keys, values = (c.view(batch, of.kv_heads, -1, HD) for c in (keys, values))
    found = []
    for b in range(batch):
        p = torch.softmax(q[b] @ keys[b].double().mT / math.sqrt(HD), -1)
        found.append((p @ values[b].double()).reshape(1, -1))
    return torch.cat(found)
