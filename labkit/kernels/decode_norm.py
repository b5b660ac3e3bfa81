"""Chapter 08's norm as a kernel of its own: for a few rows of x it precedes the products of decode_product.py."""

import math

from numba import cuda, float32, int64, uint32

from labkit import ptx

__all__ = ["early_norm"]

THREADS = 256
WARPS = THREADS // 32
ALL = 0xFFFFFFFF
NEAR = 2  # loads of 16 bytes that a thread keeps of a row: 4,096 columns
HELD = 4 * NEAR + 4  # words: of these, and of one load more


@cuda.jit(device=True, forceinline=True)
def squares(a, i):
    """The sum of the squares of the eight float16 in a[i:i+4]."""
    total = float32(0)
    for j in range(4):
        p, q = ptx.unpack_half2(a[i + j])
        total += p * p
        total += q * q
    return total


@cuda.jit(device=True, forceinline=True)
def store_normed(out, at, a, n, i, scale):
    """16 bytes of out, from its start `at` on: a[i:i+4] · scale · n[i:i+4]."""
    for j in range(4):
        p, q = ptx.unpack_half2(a[i + j])
        f, g = ptx.unpack_half2(n[i + j])
        a[i + j] = ptx.pack_half2(p * scale * f, q * scale * g)
    ptx.st_global_v4_b32(out + at, a[i], a[i + 1], a[i + 2], a[i + 3])


@cuda.jit(device=True, forceinline=True)
def take8(x, b, c, d, a, i):
    """a[i:i+4] ← x[b, c:c+8], past the end zeros."""
    a[i] = a[i + 1] = a[i + 2] = a[i + 3] = uint32(0)
    if c < d:
        a[i], a[i + 1], a[i + 2], a[i + 3] = ptx.load8(x, (b, c))


@cuda.jit(device=True, forceinline=True)
def block_sum(x, t, sums):
    """The sum over the block's 256 threads, in all of them."""
    for i in range(5):
        x += cuda.shfl_xor_sync(ALL, x, 16 >> i)
    if t & uint32(31) == uint32(0):
        sums[t >> uint32(5)] = x
    cuda.syncthreads()  # without it: a thread adds sums that other warps have not stored
    total = float32(0)
    for i in range(WARPS):
        total += sums[i]
    return total


@cuda.jit(shared_memory_carveout=100)  # as the kernels beside it
def early_norm(x, norm, out):
    """out[b] = norm · x[b] / rms(x[b]). x, out: float16[batch, d], norm: float16[1, d], d a multiple of 8.

    Grid (batch,), 256 threads. Reads 4 d bytes and writes 2 d a row; of the columns after 4,096 x is read twice.
    """
    sums = cuda.shared.array(WARPS, float32)
    a = cuda.local.array(HELD, uint32)
    n = cuda.local.array(HELD, uint32)
    ptx.start_next()
    t, b, d = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x), uint32(x.shape[1])
    for e in range(NEAR):
        take8(norm, uint32(0), uint32(8) * (t + uint32(THREADS * e)), d, n, 4 * e)
    ptx.wait_for_previous()  # without it: x is not there yet, and `out` may still be read
    for e in range(NEAR):
        take8(x, b, uint32(8) * (t + uint32(THREADS * e)), d, a, 4 * e)
    total = float32(0)
    for e in range(NEAR):
        total += squares(a, 4 * e)
    c = uint32(uint32(8) * (t + uint32(THREADS * NEAR)))
    while c < d:
        take8(x, b, c, d, a, 4 * NEAR)
        total += squares(a, 4 * NEAR)
        c = uint32(c + uint32(8 * THREADS))
    scale = float32(1) / math.sqrt(block_sum(total, t, sums) / float32(d) + float32(1e-5))
    row = ptx.address(out) + int64(2) * int64(b) * int64(d)
    for e in range(NEAR):
        c = uint32(uint32(8) * (t + uint32(THREADS * e)))
        if c < d:
            store_normed(row, int64(uint32(2) * c), a, n, 4 * e, scale)
    c = uint32(uint32(8) * (t + uint32(THREADS * NEAR)))
    while c < d:
        take8(x, b, c, d, a, 4 * NEAR)
        take8(norm, uint32(0), c, d, n, 4 * NEAR)
        store_normed(row, int64(uint32(2) * c), a, n, 4 * NEAR, scale)
        c = uint32(c + uint32(8 * THREADS))
