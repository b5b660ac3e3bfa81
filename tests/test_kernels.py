"""labkit.kernels: what the chapters select and do not teach. Compiled here, run on a GPU that has the instructions."""

import re
import sys

import numpy as np
import pytest

import labkit
from labkit import ptx
from labkit.kernels import attention_wgmma

ATTENTION = sys.modules["labkit.kernels.attention_wgmma"]
compiles = pytest.mark.skipif(bool(ptx.compiler_trouble()), reason=ptx.compiler_trouble() or "it is here")
hopper = pytest.mark.skipif(labkit.MACHINE.compute_capability != (9, 0), reason="needs a Hopper")
TENSOR_MAP, INT, FLOAT = np.zeros(16, np.uint64), np.int32(1), np.float32(1)


@compiles
@pytest.mark.parametrize("head_dim", [64, 128])
def test_attention_overlaps_softmax_with_the_product_before_it(head_dim):
    kernel, z = ATTENTION.attention_kernel(head_dim)
    made = ptx.compile_for(kernel, (TENSOR_MAP,) * 4 + (INT, INT, FLOAT), (9, 0, "a"))
    assert made.local_bytes == made.spilled_bytes == made.float64 == 0
    assert made.notes == ()  # nothing is serialised
    assert made.count("wgmma.mma_async") == 2 * (head_dim // 16 + z.bc // 16)  # the first and last tile apart
    # between "all but the newest group" and "all", the exponentials of a tile: two rows a lane
    under_way = re.search(r"DEPBAR\.LE gsb0, 0x1(.*?)DEPBAR\.LE gsb0, 0x0", made.sass, re.DOTALL).group(1)
    assert under_way.count("MUFU.EX2") >= z.bc // 2


@pytest.mark.parametrize("head_dim", [64, 128])
def test_attention_fits_hoppers_shared_memory(head_dim):
    assert ATTENTION.sizes(head_dim).shared <= 227 * 1024


def test_attention_without_hopper_is_unavailable():
    if labkit.MACHINE.compute_capability == (9, 0):
        pytest.skip("this is a Hopper")
    q = np.zeros((1, 8, 64), np.float16)
    with pytest.raises(labkit.Unavailable):
        attention_wgmma(q, q, q, q)


def reference(q, k, v, causal):
    """Attention in float64; a row that sees no key becomes zeros."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    if causal:
        hidden = np.arange(k.shape[1])[None, :] > np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        scores[:, hidden] = -np.inf
    top = scores.max(-1, keepdims=True)
    p = np.exp(scores - np.where(np.isinf(top), 0, top))
    return p @ v / np.maximum(p.sum(-1, keepdims=True), np.finfo(float).tiny)


@pytest.mark.gpu
@hopper
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("planes", "seqlen_q", "seqlen_k", "largest"),
    [
        (1, 1, 1, 4),
        (2, 7, 7, 4),
        (3, 100, 100, 4),
        (1, 1000, 1000, 4),
        (200, 130, 259, 4),
        (2, 777, 333, 4),
        (1, 1000, 1000, 1e4),
    ],
)
def test_attention_is_right_at_odd_lengths(head_dim, causal, planes, seqlen_q, seqlen_k, largest):
    from numba import cuda

    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((planes, n, head_dim)) for n in (seqlen_q, seqlen_k, seqlen_k))
    q *= largest / 4  # scores are about normal: 4 is their largest
    q, k, v = (x.astype(np.float16) for x in (q, k, v))
    out = cuda.to_device(np.full_like(q, np.nan))
    attention_wgmma(*map(cuda.to_device, (q, k, v)), out, causal=causal)()
    right = reference(q, k, v, causal)
    assert np.linalg.norm(out.copy_to_host() - right) <= 2e-3 * np.linalg.norm(right)
