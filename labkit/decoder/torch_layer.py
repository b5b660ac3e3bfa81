"""The same layer as one writes it in PyTorch, and three ways to ask for its attention."""

from __future__ import annotations

import math

from labkit import experiment
from labkit.decoder.exact import on_torch, tensors_of
from labkit.decoder.layer import HD, Room


def grouped(F, q, keys, values):
    """Four query heads as four queries of their KV head."""
    batch, kv = keys.shape[:2]
    return F.scaled_dot_product_attention(q.view(batch, kv, -1, HD), keys, values)


def gqa(F, q, keys, values):
    """Grouped heads, asked for by name."""
    return F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)


def products(F, q, keys, values):
    """As two batched products: each key and value is read once."""
    batch, kv = keys.shape[:2]
    s = q.view(batch, kv, -1, HD) @ keys.mT / math.sqrt(HD)
    return s.softmax(-1) @ values


ATTENTION = {"enable_gqa": gqa, "grouped as queries": grouped, "two products": products}


def torch_step(of, batch, attend):
    """step(x, weights, position, cosine, sine) -> the token after these layers."""
    torch = experiment.need("torch")
    F, (q_rows, kv) = torch.nn.functional, (of.heads * HD, of.kv_heads * HD)

    def turn(y, cosine, sine):
        a, b = y.chunk(2, -1)
        return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)

    def step(x, weights, position, cosine, sine):
        for norm1, qkv, out, norm2, gate_up, down, keys, values in weights:
            h = F.rms_norm(x, (of.d,), norm1[0], 1e-5)
            q, k, v = (h @ qkv.T).split([q_rows, kv, kv], 1)
            k = turn(k.view(batch, -1, 1, HD), cosine, sine)
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v.view(batch, -1, 1, HD))
            q = turn(q.view(batch, -1, 1, HD), cosine, sine)
            x = x + attend(F, q, keys, values).reshape(batch, -1) @ out.T
            gate, up = (F.rms_norm(x, (of.d,), norm2[0], 1e-5) @ gate_up.T).chunk(2, 1)
            x = x + (F.silu(gate) * up) @ down.T
        return x

    return step


def torch_inputs(layers, x, room: Room):
    """x, the layers' weights and caches (the same memory), position, cosine, sine."""
    torch, shape = experiment.need("torch"), (room.batch, room.of.kv_heads, room.context, HD)
    weights = []
    for layer in layers:
        *w, keys, values = tensors_of(torch, layer)
        weights.append((*w, keys.view(shape), values.view(shape)))
    row = on_torch(torch, room.table)[-1].half()
    position = torch.tensor([room.context - 1], device="cuda")
    return on_torch(torch, x), weights, position, row[: HD // 2], row[HD // 2 :]
