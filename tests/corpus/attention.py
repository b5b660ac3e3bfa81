"""What a transformer needs: softmax, norms, attention, the loss."""

import labkit  # isort: skip  # noqa: F401  # before numba

import math

import numpy as np
from numba import cuda, float32, int32

from . import helpers
from .entry import Entry, f64, normal, poison, uniform, whole

THREADS = 32
LOWEST = -1e30
DIM = 6
KEYS = 8


@cuda.jit
def softmax_thread_a_row(x, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        top = x[i, 0]
        for j in range(1, x.shape[1]):
            top = max(top, x[i, j])
        total = float32(0)
        for j in range(x.shape[1]):
            total += math.exp(x[i, j] - top)
        for j in range(x.shape[1]):
            out[i, j] = math.exp(x[i, j] - top) / total


@cuda.jit
def softmax_block_a_row(x, out):
    # a tree for the maximum, a tree for the sum
    s = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x
    n = x.shape[1]
    top = float32(LOWEST)
    for j in range(t, n, THREADS):
        top = max(top, x[i, j])
    s[t] = top
    half = THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if t < half:
            s[t] = max(s[t], s[t + half])
        half //= 2
    cuda.syncthreads()
    top = s[0]
    cuda.syncthreads()
    total = float32(0)
    for j in range(t, n, THREADS):
        e = math.exp(x[i, j] - top)
        out[i, j] = e
        total += e
    s[t] = total
    half = THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if t < half:
            s[t] += s[t + half]
        half //= 2
    cuda.syncthreads()
    total = s[0]
    for j in range(t, n, THREADS):
        out[i, j] /= total


@cuda.jit
def softmax_online(x, out):
    # maximum and sum in one pass; pairs of both are merged in a tree
    tops = cuda.shared.array(THREADS, float32)
    totals = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    row = x[cuda.blockIdx.x]
    top = float32(LOWEST)
    total = float32(0)
    for j in range(t, row.size, THREADS):
        v = row[j]
        if v > top:
            total = total * math.exp(top - v) + float32(1)
            top = v
        else:
            total += math.exp(v - top)
    tops[t], totals[t] = top, total
    cuda.syncthreads()
    half = THREADS >> 1
    while half:
        if t < half:
            a, b = tops[t], tops[t + half]
            both = max(a, b)
            totals[t] = totals[t] * math.exp(a - both) + totals[t + half] * math.exp(b - both)
            tops[t] = both
        cuda.syncthreads()
        half >>= 1
    for j in range(t, row.size, THREADS):
        out[cuda.blockIdx.x, j] = math.exp(row[j] - tops[0]) / totals[0]


@cuda.jit
def softmax_warp_a_row(x, out):
    row = cuda.grid(1) // 32
    lane = cuda.threadIdx.x % 32
    if row >= x.shape[0]:
        return
    top = float32(LOWEST)
    for j in range(lane, x.shape[1], 32):
        top = max(top, x[row, j])
    for k in range(5):
        top = max(top, cuda.shfl_xor_sync(0xFFFFFFFF, top, 16 >> k))
    total = float32(0)
    for j in range(lane, x.shape[1], 32):
        total += math.exp(x[row, j] - top)
    for k in range(5):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 16 >> k)
    for j in range(lane, x.shape[1], 32):
        out[row, j] = math.exp(x[row, j] - top) / total


@cuda.jit(fastmath=True)
def softmax_fastmath(x, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        total = float32(0)
        for j in range(x.shape[1]):
            total += math.exp(x[i, j])
        for j in range(x.shape[1]):
            out[i, j] = math.exp(x[i, j]) / total


@cuda.jit
def layer_norm(x, weight, bias, epsilon, out):
    s = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x
    n = x.shape[1]
    mine = float32(0)
    for j in range(t, n, THREADS):
        mine += x[i, j]
    mean = helpers.block_sum(mine, s) / float32(n)
    mine = float32(0)
    for j in range(t, n, THREADS):
        difference = x[i, j] - mean
        mine += difference * difference
    scale = float32(1) / math.sqrt(helpers.block_sum(mine, s) / float32(n) + epsilon)
    for j in range(t, n, THREADS):
        out[i, j] = (x[i, j] - mean) * scale * weight[j] + bias[j]


@cuda.jit
def rms_norm(x, weight, epsilon, out):
    s = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    row = x[cuda.blockIdx.x]
    mine = float32(0)
    for j in range(t, row.size, THREADS):
        mine += row[j] * row[j]
    s[t] = mine
    for k in range(5):
        cuda.syncthreads()
        half = 16 >> k
        if t < half:
            s[t] += s[t + half]
    cuda.syncthreads()
    scale = 1 / math.sqrt(s[0] / row.size + epsilon)
    for j in range(t, row.size, THREADS):
        out[cuda.blockIdx.x, j] = row[j] * scale * weight[j]


@cuda.jit
def rms_norm_shuffles(x, weight, epsilon, out):
    # a warp a row, the residual added in the same pass
    i = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    lane = cuda.threadIdx.x
    if i < x.shape[0]:
        total = float32(0)
        for j in range(lane, x.shape[1], 32):
            total += x[i, j] * x[i, j]
        for k in range(5):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1 << k)
        scale = cuda.libdevice.rsqrtf(total / float32(x.shape[1]) + epsilon)
        for j in range(lane, x.shape[1], 32):
            out[i, j] = x[i, j] + x[i, j] * scale * weight[j]


@cuda.jit
def attention_row(q, k, v, scale, out):
    # a thread a query; the scores are computed twice rather than kept
    i = cuda.grid(1)
    if i < q.shape[0]:
        top = float32(LOWEST)
        for j in range(k.shape[0]):
            score = helpers.row_dot(q[i], k[j]) * scale
            top = max(top, score)
        total = float32(0)
        for d in range(v.shape[1]):
            out[i, d] = 0
        for j in range(k.shape[0]):
            weight = math.exp(helpers.row_dot(q[i], k[j]) * scale - top)
            total += weight
            for d in range(v.shape[1]):
                out[i, d] += weight * v[j, d]
        for d in range(v.shape[1]):
            out[i, d] /= total


@cuda.jit
def attention_scores_in_shared(q, k, v, scale, out):
    # a block a query, causal: keys after the query do not count
    s = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x
    score = float32(LOWEST)
    if t <= i:
        score = float32(0)
        for d in range(q.shape[1]):
            score += q[i, d] * k[t, d]
        score *= scale
    s[t] = score
    cuda.syncthreads()
    top = s[0]
    for j in range(1, i + 1):
        top = max(top, s[j])
    cuda.syncthreads()
    s[t] = math.exp(score - top) if t <= i else float32(0)
    cuda.syncthreads()
    if t < v.shape[1]:
        total = float32(0)
        value = float32(0)
        for j in range(i + 1):
            total += s[j]
            value += s[j] * v[j, t]
        out[i, t] = value / total


@cuda.jit
def attention_online(q, k, v, scale, out):
    # tiles of keys and values pass through shared memory; each thread keeps one query's maximum, sum and output
    sk = cuda.shared.array((KEYS, DIM), float32)
    sv = cuda.shared.array((KEYS, DIM), float32)
    mine = cuda.local.array(DIM, float32)
    acc = cuda.local.array(DIM, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    n = k.shape[0]
    for d in range(DIM):
        mine[d] = q[i, d] * scale if i < q.shape[0] else float32(0)
        acc[d] = 0
    top = float32(LOWEST)
    total = float32(0)
    for first in range(0, n, KEYS):
        for e in range(t, KEYS * DIM, cuda.blockDim.x):
            row, d = e // DIM, e % DIM
            if first + row < n:
                sk[row, d] = k[first + row, d]
                sv[row, d] = v[first + row, d]
        cuda.syncthreads()
        for row in range(min(KEYS, n - first)):
            score = float32(0)
            for d in range(DIM):
                score += mine[d] * sk[row, d]
            above = max(top, score)
            shrink = math.exp(top - above)
            weight = math.exp(score - above)
            total = total * shrink + weight
            for d in range(DIM):
                acc[d] = acc[d] * shrink + weight * sv[row, d]
            top = above
        cuda.syncthreads()
    if i < q.shape[0]:
        for d in range(DIM):
            out[i, d] = acc[d] / total


@cuda.jit
def rotate_positions(x, cosines, sines, out):
    # pairs of features turn by their position's angle
    i, p = cuda.grid(2)
    if p < x.shape[0] and i < x.shape[1] // 2:
        c, s = cosines[p, i], sines[p, i]
        a, b = x[p, 2 * i], x[p, 2 * i + 1]
        out[p, 2 * i] = a * c - b * s
        out[p, 2 * i + 1] = a * s + b * c


@cuda.jit
def cross_entropy(logits, labels, losses):
    i = cuda.grid(1)
    if i < logits.shape[0]:
        row = logits[i]
        top = -math.inf
        for j in range(row.size):
            top = max(top, row[j])
        total = 0.0
        for j in range(row.size):
            total += math.exp(row[j] - top)
        losses[i] = math.log(total) + top - row[labels[i]]


@cuda.jit
def embedding(table, tokens, out):
    # a block a token
    row = table[tokens[cuda.blockIdx.x]]
    for j in range(cuda.threadIdx.x, row.size, cuda.blockDim.x):
        out[cuda.blockIdx.x, j] = row[j]


@cuda.jit
def top_two(x, values, places):
    # which experts a token goes to
    i = cuda.grid(1)
    if i < x.shape[0]:
        first, second = int32(0), int32(1)
        if x[i, 1] > x[i, 0]:
            first, second = second, first
        for j in range(2, x.shape[1]):
            if x[i, j] > x[i, first]:
                second = first
                first = j
            elif x[i, j] > x[i, second]:
                second = j
        values[i, 0], values[i, 1] = x[i, first], x[i, second]
        places[i, 0], places[i, 1] = first, second


@cuda.jit
def quantize_rows(x, scales, out):
    # int8 with one scale a row
    s = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x
    top = float32(0)
    for j in range(t, x.shape[1], THREADS):
        top = max(top, abs(x[i, j]))
    s[t] = top
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            s[t] = max(s[t], s[t + half])
        cuda.syncthreads()
        half //= 2
    scale = s[0] / float32(127)
    if t == 0:
        scales[i] = scale
    for j in range(t, x.shape[1], THREADS):
        out[i, j] = round(x[i, j] / scale)


def _softmax(x):
    e = np.exp(f64(x) - f64(x).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _layer_norm(x, weight, bias, epsilon, out):
    x = f64(x)
    return {4: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + epsilon) * weight + bias}


def _rms(x, weight, epsilon):
    x = f64(x)
    return x / np.sqrt((x * x).mean(1, keepdims=True) + epsilon) * weight


def _attention(q, k, v, scale, out):
    return {4: _softmax(f64(q) @ f64(k).T * scale) @ f64(v)}


def _causal(q, k, v, scale, out):
    scores = f64(q) @ f64(k).T * scale
    scores[np.triu_indices_from(scores, 1)] = -np.inf
    return {4: _softmax(scores[:, : len(k)]) @ f64(v)}


def _heads(queries, keys, dim):
    def make(rng):
        q, k = normal(rng, (queries, dim)), normal(rng, (keys, dim))
        return q, k, uniform(rng, (keys, dim)), np.float32(dim**-0.5), poison((queries, dim))

    return make


def _rotated(x, cosines, sines, out):
    a, b = f64(x[:, ::2]), f64(x[:, 1::2])
    return {3: np.stack([a * cosines - b * sines, a * sines + b * cosines], 2).reshape(x.shape)}


def _angles(rng):
    angles = rng.uniform(0, 6, (7, 9))
    return normal(rng, (7, 18)), np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), poison((7, 18))


def _cross_entropy(logits, labels, losses):
    return {2: -np.log(_softmax(logits)[np.arange(len(labels)), labels])}


def _top_two(x, values, places):
    order = np.argsort(-x, 1)[:, :2]
    return {1: np.take_along_axis(x, order, 1), 2: order.astype(np.int32)}


def _quantize(x, scales, out):
    scale = (np.abs(x).max(1) / np.float32(127)).astype(np.float32)
    return {1: scale, 2: np.rint(x / scale[:, None]).astype(np.int8)}


def _rows(rows, columns):
    return lambda r: (normal(r, (rows, columns)), poison((rows, columns)))


ENTRIES = [
    Entry(
        softmax_thread_a_row,
        2,
        32,
        _rows(40, 11),
        lambda x, out: {1: _softmax(x)},
        tolerance=2e-6,
        ulp=16,
    ),
    Entry(softmax_block_a_row, 2, THREADS, _rows(2, 75), lambda x, out: {1: _softmax(x)}, tolerance=2e-6, ulp=16),
    Entry(softmax_online, 3, THREADS, _rows(3, 75), lambda x, out: {1: _softmax(x)}, tolerance=2e-6, ulp=32),
    Entry(
        softmax_warp_a_row,
        2,
        96,
        _rows(5, 75),
        lambda x, out: {1: _softmax(x)},
        tolerance=2e-6,
        ulp=16,
        simulator=False,  # it has no shuffles
    ),
    Entry(softmax_fastmath, 2, 32, _rows(40, 11), lambda x, out: {1: _softmax(x)}, tolerance=1e-5, ulp=64),
    Entry(
        layer_norm,
        1,
        THREADS,
        lambda r: (normal(r, (1, 75)), uniform(r, 75), normal(r, 75), np.float32(1e-5), poison((1, 75))),
        _layer_norm,
        tolerance=2e-6,
        ulp=16,
        cancels=True,
    ),
    Entry(
        rms_norm,
        3,
        THREADS,
        lambda r: (normal(r, (3, 75)), uniform(r, 75), np.float32(1e-5), poison((3, 75))),
        lambda x, weight, epsilon, out: {3: _rms(x, weight, epsilon)},
        tolerance=2e-6,
        ulp=8,
    ),
    Entry(
        rms_norm_shuffles,
        2,
        (32, 3),
        lambda r: (normal(r, (5, 75)), uniform(r, 75), np.float32(1e-5), poison((5, 75))),
        lambda x, weight, epsilon, out: {3: f64(x) + _rms(x, weight, epsilon)},
        tolerance=2e-6,
        ulp=16,
        simulator=False,  # it has no shuffles
    ),
    Entry(attention_row, 2, 16, _heads(27, 11, 4), _attention, tolerance=2e-6, ulp=64),
    Entry(attention_scores_in_shared, 4, THREADS, _heads(4, 32, 5), _causal, tolerance=2e-6, ulp=64),
    Entry(attention_online, 2, 16, _heads(27, 21, DIM), _attention, tolerance=2e-6, ulp=64),
    Entry(rotate_positions, (3, 2), (4, 4), _angles, _rotated, tolerance=1e-6, cancels=True),
    Entry(
        cross_entropy,
        2,
        32,
        lambda r: (normal(r, (45, 7)), whole(r, 45, low=0, high=7), poison(45)),
        _cross_entropy,
        tolerance=2e-6,
        ulp=16,
        cancels=True,
    ),
    Entry(
        embedding,
        5,
        16,
        lambda r: (normal(r, (9, 21)), whole(r, 5, np.int64, 0, 9), poison((5, 21))),
        lambda table, tokens, out: {2: table[tokens]},
        ulp=0,
    ),
    Entry(
        top_two,
        2,
        32,
        lambda r: (normal(r, (45, 8)), poison((45, 2)), poison((45, 2), np.int32)),
        _top_two,
        ulp=0,
    ),
    Entry(
        quantize_rows,
        3,
        THREADS,
        lambda r: (normal(r, (3, 75)), poison(3), poison((3, 75), np.int8)),
        _quantize,
        ulp=0,
    ),
]
