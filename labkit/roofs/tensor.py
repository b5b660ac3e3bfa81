"""Hopper's fp16 roof: nothing but `wgmma`, its operands at rest in shared memory.

Chapter 03 measures the roof with it; chapter 07 takes such a kernel apart.
"""

from functools import cache

from numba import cuda, float32, int32, uint32, uint64

from labkit import ptx

ROWS, COLUMNS, DEPTH = 128, 128, 64  # of a block's product: C[128, 128] += A[128, 64] · B[64, 128]
THREADS = 256  # two warpgroups, 64 rows each
FLOPS = 2 * 2 * ROWS * COLUMNS * DEPTH  # of a block in one round: the product twice
WORDS = (ROWS + COLUMNS) * DEPTH // 2 + 256  # uint32 of both operands, and room to round up to 1 KiB


@cuda.jit(device=True)
def place(s, row, word):
    """Where the word (two float16) of a row of 128 bytes lies: 16-byte chunks are swapped by the row's number."""
    return s + row * 32 + (((word >> 2) ^ (row & 7)) << 2) + (word & 3)


@cache
def kernel():
    """The kernel(a, b, rounds, out), made when it is first wanted: only Hopper has its instruction."""

    @cuda.jit
    def multiply(a, b, rounds, out):
        """a: uint32[128, 32], pairs of float16; b: uint32[128, 32], transposed; out: float32[128 blocks, 128].

        Every block's 128 rows of out are 2 · rounds · (A · B).
        """
        s = cuda.shared.array(WORDS, uint32)
        start = ptx.shared_address(s)
        base = (start + uint32(1023)) & uint32(0xFFFFFC00)  # the swizzle wants 1 KiB
        skip = int32((base - start) >> uint32(2))
        t = int32(cuda.threadIdx.x)
        for i in range(t, 4096, 256):
            s[place(skip, i >> 5, i & 31)] = a[i >> 5, i & 31]
            s[place(skip + 4096, i >> 5, i & 31)] = b[i >> 5, i & 31]
        ptx.fence_proxy_async()  # or wgmma might not see what the threads stored
        cuda.syncthreads()
        # descriptor: 128-byte swizzle, 1 KiB from eight rows to the next eight, address / 16
        high = (uint64(1) << uint64(62)) | (uint64(64) << uint64(32)) | (uint64(1) << uint64(16))
        da = high | uint64((base + uint32(t >> 7) * uint32(8192)) >> uint32(4))
        db = high | uint64((base + uint32(16384)) >> uint32(4))
        acc = ptx.zeros_64()
        for _ in range(rounds):
            ptx.wgmma_fence()
            acc = ptx.wgmma_m64n128k16(acc, da, db)
            acc = ptx.wgmma_m64n128k16(acc, da + uint64(2), db + uint64(2))  # 16 deep: 32 bytes
            acc = ptx.wgmma_m64n128k16(acc, da + uint64(4), db + uint64(4))
            acc = ptx.wgmma_m64n128k16(acc, da + uint64(6), db + uint64(6))
            acc = ptx.wgmma_m64n128k16(acc, da, db)
            acc = ptx.wgmma_m64n128k16(acc, da + uint64(2), db + uint64(2))
            acc = ptx.wgmma_m64n128k16(acc, da + uint64(4), db + uint64(4))
            acc = ptx.wgmma_m64n128k16(acc, da + uint64(6), db + uint64(6))
            ptx.wgmma_commit()
            acc = ptx.wgmma_wait(acc)
        values = cuda.local.array(64, float32)
        ptx.spread(acc, values)
        row = cuda.blockIdx.x * 128 + (t >> 7) * 64 + ((t >> 5) & 3) * 16 + ((t & 31) >> 2)
        for j in range(16):
            column = 8 * j + 2 * (t & 3)
            out[row, column] = values[4 * j]
            out[row, column + 1] = values[4 * j + 1]
            out[row + 8, column] = values[4 * j + 2]
            out[row + 8, column + 1] = values[4 * j + 3]

    return multiply
