"""labkit.kernels: what the chapters select and do not teach. Compiled here; test_attention.py runs them on a GPU."""

import re
import sys

import numpy as np
import pytest

import labkit
from labkit import ptx
from labkit.kernels import attention_wgmma

ATTENTION = sys.modules["labkit.kernels.attention_wgmma"]
compiles = pytest.mark.skipif(bool(ptx.compiler_trouble()), reason=ptx.compiler_trouble() or "it is here")
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
