"""The parts of chapter 08's decode attention: how a warp copies tiles of keys and values, and multiplies them."""

import math

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from labkit import ptx

HD = 128  # numbers a head
SCALE = np.float32(HD**-0.5 / math.log(2))  # scores for 2 to the power of them
LOWEST = np.float32(-1e30)
SLACK = np.float32(8)  # a score may exceed the running largest by this: weights up to 2⁸; float16 holds 2¹⁵
TILE = 16  # keys that a warp multiplies at once
ROW = 68  # words of a key in shared memory: 64 and four more, so that eight rows begin in different banks
PART = TILE * ROW  # words of a tile's keys, or values, of a warp in the ring
WIDE = HD + 4  # numbers of a head's sums in shared memory: t = 0 and t = 1 store into different banks


@cuda.jit(device=True, forceinline=True)
def request(source, tile, last, pos, lane, at):
    """Start the copies of a tile, 512 bytes (two keys) at a time. source: the lane's 16 bytes of the first two keys,
    at: their place in shared memory. Of the last tile zeros from the position on; after it nothing."""
    if tile < last:
        for e in range(8):
            ptx.cp_async_16_l2_128b(at + uint32(8 * ROW * e), source + int64(512 * e), int32(16))
    elif tile == last:
        old = int32(pos) - int32(uint32(TILE) * tile + (lane >> uint32(4)))  # keys from the lane's first on
        for e in range(8):
            n = int32(16) if int32(2 * e) < old else int32(0)
            ptx.cp_async_16_l2_128b(at + uint32(8 * ROW * e), source + int64(512 * e), n)
    ptx.cp_async_commit()


@cuda.jit(device=True, forceinline=True)
def insert(fresh, which, row, lane, ring, slot):
    """Put the new key, or value, where its copy left zeros."""
    at = slot + uint32(ROW) * row + lane
    ring[at] = fresh[which, lane]
    ring[at + uint32(32)] = fresh[which, lane + uint32(32)]


@cuda.jit(device=True, forceinline=True)
def scores(query, at, s):
    """s[2 i + h] = q[g] · key 8 i + 2 t + h: queries are rows of a, keys columns of b. Four sums: none waits long."""
    zero = uint32(0)
    for i in range(16):
        s[i] = float32(0)
    for j in range(4):
        q0, q1, q2, q3 = ptx.ldmatrix_x4(query + uint32(64 * j))
        k0, k1, k2, k3 = ptx.ldmatrix_x4(at + uint32(64 * j))
        s[0], s[1], s[2], s[3] = ptx.mma_m16n8k16(q0, zero, q1, zero, k0, k1, s[0], s[1], s[2], s[3])
        s[4], s[5], s[6], s[7] = ptx.mma_m16n8k16(q0, zero, q1, zero, k2, k3, s[4], s[5], s[6], s[7])
        k0, k1, k2, k3 = ptx.ldmatrix_x4(at + uint32(64 * j + 32))
        s[8], s[9], s[10], s[11] = ptx.mma_m16n8k16(q2, zero, q3, zero, k0, k1, s[8], s[9], s[10], s[11])
        s[12], s[13], s[14], s[15] = ptx.mma_m16n8k16(q2, zero, q3, zero, k2, k3, s[12], s[13], s[14], s[15])
    s[0], s[1], s[2], s[3] = s[0] + s[8], s[1] + s[9], s[4] + s[12], s[5] + s[13]


@cuda.jit(device=True, forceinline=True)
def mix(at, b0, b1, acc):
    """acc[4 j + 2 r + h] += value number 16 j + 8 r + g, weighted for the head 2 t + h: rows of a are numbers of V."""
    for j in range(8):
        v0, v1, v2, v3 = ptx.ldmatrix_x4_trans(at + uint32(32 * j))
        o = 4 * j
        acc[o], acc[o + 1], acc[o + 2], acc[o + 3] = ptx.mma_m16n8k16(
            v0, v1, v2, v3, b0, b1, acc[o], acc[o + 1], acc[o + 2], acc[o + 3])  # fmt: skip
