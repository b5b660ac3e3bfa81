"""The parts of chapter 08's decode attention: how a warp copies tiles of keys and values, and multiplies them."""

import math

import numpy as np
from numba import cuda, float32, uint32

from labkit import ptx

HD = 128  # numbers a head
SCALE = np.float32(HD**-0.5 / math.log(2))  # scores for 2 to the power of them
LOWEST = np.float32(-1e30)
TILE = 16  # keys that a warp multiplies at once
PART = 1024  # words of a tile's keys, or values, of a warp in the ring


@cuda.jit(device=True, forceinline=True)
def low(x, y):
    """The low halves of two words, in one."""
    return (x & uint32(0xFFFF)) | (y << uint32(16))


@cuda.jit(device=True, forceinline=True)
def high(x, y):
    """The high halves of two words, in one."""
    return (x >> uint32(16)) | (y & uint32(0xFFFF0000))


@cuda.jit(device=True, forceinline=True)
def turned(qkv, b, at, table, pos, i):
    """RoPE: the numbers i and i + 64 of a head that begins at qkv[b, at], turned by the position's angle."""
    x, y = float32(qkv[b, at + i]), float32(qkv[b, at + i + uint32(64)])
    cosine, sine = table[pos, i], table[pos, i + uint32(64)]
    return x * cosine - y * sine, x * sine + y * cosine


@cuda.jit(device=True, forceinline=True)
def request_keys(cache, base, tile, pos, lane, ring, slot):
    """Lane 4 g + t: of the keys g and g + 8 of a tile the numbers 8 t ... 8 t + 7 of each 32. From pos on zeros."""
    for i in range(2):
        key = uint32(TILE) * tile + uint32(8 * i) + (lane >> uint32(2))
        n = uint32(16) if key < pos else uint32(0)
        key = key if key < pos else uint32(0)
        for j in range(4):
            d = uint32(32 * j) + uint32(8) * (lane & uint32(3))
            ptx.copy8(ring, slot + uint32(128 * (4 * i + j)), cache, (base + key, d), n)


@cuda.jit(device=True, forceinline=True)
def request_values(cache, base, tile, pos, lane, ring, slot):
    """Lane 4 g + t: of the values 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of a tile the numbers 8 g ... 8 g + 7 of each 64."""
    for i in range(4):
        key = uint32(TILE) * tile + uint32(2) * (lane & uint32(3)) + uint32(i % 2 + 8 * (i // 2))
        n = uint32(16) if key < pos else uint32(0)
        key = key if key < pos else uint32(0)
        for j in range(2):
            d = uint32(64 * j) + uint32(8) * (lane >> uint32(2))
            ptx.copy8(ring, slot + uint32(128 * (2 * i + j)), cache, (base + key, d), n)


@cuda.jit(device=True, forceinline=True)
def new_key(fresh, tile, pos, lane, ring, slot):
    """Put the new key where its copy left zeros."""
    for i in range(2):
        if uint32(TILE) * tile + uint32(8 * i) + (lane >> uint32(2)) == pos:
            for j in range(4):
                for w in range(4):
                    word = fresh[0, uint32(16 * j + w) + uint32(4) * (lane & uint32(3))]
                    ring[slot + uint32(128 * (4 * i + j) + w)] = word


@cuda.jit(device=True, forceinline=True)
def new_value(fresh, tile, pos, lane, ring, slot):
    """Put the new value where its copy left zeros."""
    for i in range(4):
        if uint32(TILE) * tile + uint32(2) * (lane & uint32(3)) + uint32(i % 2 + 8 * (i // 2)) == pos:
            for j in range(2):
                for w in range(4):
                    word = fresh[1, uint32(32 * j + w) + uint32(4) * (lane >> uint32(2))]
                    ring[slot + uint32(128 * (2 * i + j) + w)] = word


@cuda.jit(device=True, forceinline=True)
def scores(q, ring, slot, s):
    """s[2 i + h] = q[g] · key 8 i + 2 t + h: the queries are the rows of a, the keys the columns of b."""
    zero = uint32(0)
    for i in range(2):
        c = (float32(0), float32(0), float32(0), float32(0))
        for j in range(4):
            k = ptx.words4(ring, slot + uint32(128 * (4 * i + j)))
            c = ptx.mma_m16n8k16(q[4 * j], zero, q[4 * j + 1], zero, k[0], k[1], c[0], c[1], c[2], c[3])
            c = ptx.mma_m16n8k16(q[4 * j + 2], zero, q[4 * j + 3], zero, k[2], k[3], c[0], c[1], c[2], c[3])
        s[2 * i], s[2 * i + 1] = c[0], c[1]


@cuda.jit(device=True, forceinline=True)
def mix(ring, slot, b0, b1, acc):
    """acc[4 s + 2 j + h] += value number 64 j + 8 g + s, weighted for the head 2 t + h: rows of a are numbers of V."""
    v = cuda.local.array(32, uint32)
    for i in range(8):
        v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3] = ptx.words4(ring, slot + uint32(128 * i))
    for w in range(4):
        o = 8 * w
        acc[o], acc[o + 1], acc[o + 2], acc[o + 3] = ptx.mma_m16n8k16(
            low(v[w], v[8 + w]), low(v[4 + w], v[12 + w]), low(v[16 + w], v[24 + w]), low(v[20 + w], v[28 + w]),
            b0, b1, acc[o], acc[o + 1], acc[o + 2], acc[o + 3])  # fmt: skip
        o = 8 * w + 4
        acc[o], acc[o + 1], acc[o + 2], acc[o + 3] = ptx.mma_m16n8k16(
            high(v[w], v[8 + w]), high(v[4 + w], v[12 + w]), high(v[16 + w], v[24 + w]), high(v[20 + w], v[28 + w]),
            b0, b1, acc[o], acc[o + 1], acc[o + 2], acc[o + 3])  # fmt: skip
