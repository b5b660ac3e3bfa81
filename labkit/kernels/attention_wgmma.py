"""Attention for Hopper, and for Hopper only: the tiled algorithm of chapter 06 with wgmma and tensor copies.

out = softmax(q · kᵀ / √D) · v, forward. A block computes rows of the result, 64 a warpgroup. K and V come in tiles, two
of each in shared memory, each with two barriers: `full` (its bytes have arrived) and, 16 bytes on, `empty` (every
warpgroup is done with it). No warp does nothing but copy: a thread of the first warpgroup fetches K, one of the last V.

While the tensor cores work on P · V of one tile, the warpgroup takes the exponentials of the next: S of the next tile
is started first, then that product, and only S is awaited. For D = 128 two warpgroups besides take turns at the tensor
cores, so that one multiplies while the other exponentiates; for D = 64 there are three, without turns (measured:
faster than two, with turns or without).

What lies outside a matrix arrives as zeros, is masked, and is never written: every length is right. Symbols and the
overlap of products and softmax: the FlashAttention papers (Dao et al. 2022; Dao 2023; Shah et al. 2024).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from labkit import device, ptx
from labkit.errors import LabError
from labkit.experiment import Unavailable, need
from labkit.kernels.attention_parts import (
    CORE,
    descriptor,
    inline,
    mask,
    online_softmax,
    pack,
    rescale,
    scores,
    sizes,
    weighted,
)  # fmt: skip


def transfers(z):
    """Device functions for one thread: fetch(tile j of K or V), fetch_q."""
    TILE, PANEL, PANELS, BC, Q_PANEL, Q_BYTES, FULL_Q = (
        z.tile, z.panel, z.panels, z.bc, z.q_panel, z.q_bytes, z.full_q,
    )  # fmt: skip

    @inline
    def fetch(tensor, target, full, j):
        """Tile j takes turns with its neighbours in two stages: it waits until the one before last is done with."""
        stage, phase = uint32(j & 1), uint32(((j >> 1) & 1) ^ 1)
        barrier = full + uint32(8) * stage
        ptx.mbarrier_wait(barrier + uint32(16), phase)
        ptx.mbarrier_expect(barrier, uint32(TILE))
        for p in range(PANELS):
            panel = target + stage * uint32(TILE) + uint32(p * PANEL)
            ptx.tma_load_3d(panel, tensor, 64 * p, int32(j * BC), int32(cuda.blockIdx.y), barrier)

    @inline
    def fetch_q(tensor, tiles, row):
        ptx.mbarrier_expect(tiles + uint32(FULL_Q), uint32(Q_BYTES))
        for p in range(PANELS):
            panel = tiles + uint32(p * Q_PANEL)
            ptx.tma_load_3d(panel, tensor, 64 * p, row, int32(cuda.blockIdx.y), tiles + uint32(FULL_Q))

    return fetch, fetch_q


def attend(z):
    """A device function: O and l of a warpgroup's rows over n ≥ 1 tiles of keys."""
    start_scores, add_weighted, (fetch, fetch_q) = scores(z), weighted(z), transfers(z)
    S_SIZE, P_SIZE, O_SIZE, BC, TILE = z.bc // 2, z.bc // 4, z.D // 2, z.bc, z.tile
    K_AT, V_AT, FULL_Q, FULL_K, FULL_V = z.k_at, z.v_at, z.full_q, z.full_k, z.full_v
    LAST, TURNS = 128 * (z.groups - 1), z.turns
    V_CORE = CORE | z.panel >> 4 << 16  # V has its keys down the rows; its panels lie so far apart
    zeros, gather = (getattr(ptx, f"{name}_{O_SIZE}") for name in ("zeros", "gather"))

    @inline
    def rescaled(O, factors):
        o = cuda.local.array(O_SIZE, float32)
        ptx.spread(O, o)
        rescale(o, factors)
        return gather(o)

    @inline
    def arrived(tiles, full, j):
        ptx.mbarrier_wait(tiles + uint32(full) + uint32(8 * (j & 1)), uint32((j >> 1) & 1))

    @inline
    def release(tiles, full, j):
        """One thread a warpgroup: what tile j's stage holds has been read."""
        if int32(cuda.threadIdx.x) & 127 == 0:
            ptx.mbarrier_arrive(tiles + uint32(full + 16) + uint32(8 * (j & 1)))

    @inline
    def softmax(acc, S, m, l, alpha, all_see, mine, j, seqlen, reach, scale):
        ptx.spread(acc, S)
        if int32((j + 1) * BC) > all_see:
            mask(S, mine, int32(j * BC), seqlen, reach)
        online_softmax(S, m, l, alpha, scale)

    @inline
    def over_keys(map_q, map_k, map_v, tiles, row, mine, n, seqlen, reach, scale, l):
        thread = int32(cuda.threadIdx.x)
        group = thread >> 7
        q = descriptor(CORE, tiles + uint32(8192 * group))
        k, v = descriptor(CORE, tiles + uint32(K_AT)), descriptor(V_CORE, tiles + uint32(V_AT))
        all_see = min(seqlen, int32(row + 64 * group + reach + 1))  # keys that no row of the group masks
        S, P = cuda.local.array(S_SIZE, float32), cuda.local.array(P_SIZE, uint32)
        m, alpha = cuda.local.array(2, float32), cuda.local.array(2, float32)
        m[0], m[1] = float32(-np.inf), float32(-np.inf)
        if thread == 0:
            fetch_q(map_q, tiles, row)
            fetch(map_k, tiles + uint32(K_AT), tiles + uint32(FULL_K), int32(0))
            if n > 1:
                fetch(map_k, tiles + uint32(K_AT), tiles + uint32(FULL_K), int32(1))
        if thread == LAST:
            fetch(map_v, tiles + uint32(V_AT), tiles + uint32(FULL_V), int32(0))
        O = zeros()
        ptx.mbarrier_wait(tiles + uint32(FULL_Q), uint32(0))
        arrived(tiles, FULL_K, int32(0))
        acc = ptx.wgmma_wait(start_scores(q, k))
        release(tiles, FULL_K, int32(0))
        softmax(acc, S, m, l, alpha, all_see, mine, int32(0), seqlen, reach, scale)
        pack(S, P)
        arrived(tiles, FULL_V, int32(0))
        if TURNS and group == 1:
            ptx.bar_arrive_256(uint32(1))  # the first turn is group 0's
        j = int32(1)
        while j < n:
            if thread == 0 and j + 1 < n:
                fetch(map_k, tiles + uint32(K_AT), tiles + uint32(FULL_K), int32(j + 1))
            if thread == LAST:
                fetch(map_v, tiles + uint32(V_AT), tiles + uint32(FULL_V), int32(j))
            cuda.syncwarp()  # without it: the copying thread's warp comes to wgmma in parts
            arrived(tiles, FULL_K, int32(j))
            if TURNS:
                ptx.bar_sync_256(uint32(1 + group))
            acc = start_scores(q, k + uint64(uint32(j & 1) * uint32(TILE >> 4)))
            O = add_weighted(O, P, v + uint64(uint32((j - 1) & 1) * uint32(TILE >> 4)))
            if TURNS:
                ptx.bar_arrive_256(uint32(2 - group))
            acc = ptx.wgmma_wait_older(acc)  # S is here; O += P · V is still being computed ...
            release(tiles, FULL_K, int32(j))
            softmax(acc, S, m, l, alpha, all_see, mine, int32(j), seqlen, reach, scale)  # ... during this
            arrived(tiles, FULL_V, int32(j))  # not later: over its loop the assembler can't move the next line up
            O = ptx.wgmma_wait(O)
            release(tiles, FULL_V, int32(j - 1))
            O = rescaled(O, alpha)
            pack(S, P)
            j = int32(j + 1)
        if TURNS and group == 0:
            ptx.bar_sync_256(uint32(1))  # group 1's last arrival
        return ptx.wgmma_wait(add_weighted(O, P, v + uint64(uint32((n - 1) & 1) * uint32(TILE >> 4))))

    return over_keys


def finish(z):
    """A device function: out's rows of a warpgroup ← O / l, through its own rows of Q in shared memory."""
    O_SIZE, PANELS, Q_PANEL = z.D // 2, z.panels, z.q_panel

    @inline
    def store(map_out, O, l, tiles, row):
        thread = int32(cuda.threadIdx.x)
        lane, group, factors = thread & 31, thread >> 7, cuda.local.array(2, float32)
        for i in range(2):
            total = l[i] + cuda.shfl_xor_sync(0xFFFFFFFF, l[i], 1)
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 2)
            factors[i] = float32(0) if total == float32(0) else float32(1) / total  # a row without keys: zeros
        o = cuda.local.array(O_SIZE, float32)
        ptx.spread(O, o)
        rescale(o, factors)
        r = ((thread >> 5) & 3) * 16 + (lane & 15)  # the row that this lane addresses for stmatrix
        for p in range(PANELS):
            panel = tiles + uint32(p * Q_PANEL + 8192 * group)
            for c in range(4):
                at = panel + uint32(128 * r + ((2 * c + (lane >> 4)) ^ (r & 7)) * 16)
                x = 32 * p + 8 * c
                low, high = ptx.pack_half2(o[x], o[x + 1]), ptx.pack_half2(o[x + 2], o[x + 3])
                more_low, more_high = ptx.pack_half2(o[x + 4], o[x + 5]), ptx.pack_half2(o[x + 6], o[x + 7])
                ptx.stmatrix_x4(at, low, high, more_low, more_high)
        ptx.fence_proxy_async()  # without it: the copy engine may not see what was just stored
        ptx.bar_sync_128(uint32(4 + group))
        if thread & 127 == 0:
            for p in range(PANELS):
                panel = tiles + uint32(p * Q_PANEL + 8192 * group)
                ptx.tma_store_3d(map_out, 64 * p, int32(row + 64 * group), int32(cuda.blockIdx.y), panel)
            ptx.tma_store_commit()
            ptx.tma_store_wait_0()  # without it: shared memory may be gone while it is read

    return store


@lru_cache
def attention_kernel(D: int):
    """The kernel for head_dim D, 64 or 128, and its sizes; a block takes z.br rows, the last rows first."""
    z = sizes(D)
    over_keys, store = attend(z), finish(z)
    zeros = getattr(ptx, f"zeros_{D // 2}")
    BR, BC, GROUPS, FULL_Q, FULL_K, FULL_V = z.br, z.bc, z.groups, z.full_q, z.full_k, z.full_v

    @cuda.jit(fastmath=True, launch_bounds=(z.threads, 1))
    def attention_tiles(map_q, map_k, map_v, map_out, seqlen, reach, scale):
        """Maps of float16[planes, seqlen, D]; row i sees the keys up to i + reach; scale: log2(e) / √D."""
        shared = cuda.shared.array(0, uint32)
        tiles = (ptx.shared_address(shared) + uint32(1023)) & uint32(0xFFFFFC00)
        thread = int32(cuda.threadIdx.x)
        row = int32((int32(cuda.gridDim.x) - 1 - int32(cuda.blockIdx.x)) * BR)
        mine = int32(row + 16 * (thread >> 5) + ((thread & 31) >> 2))  # this lane's first row
        keys = max(int32(0), min(int32(seqlen), int32(row + BR + reach)))  # later ones no row of the block sees
        n = int32(uint32(keys + (BC - 1)) // uint32(BC))
        if thread == 0:
            ptx.mbarrier_init(tiles + uint32(FULL_Q), uint32(1))
            for s in range(2):
                for full in (FULL_K, FULL_V):
                    ptx.mbarrier_init(tiles + uint32(full + 8 * s), uint32(1))
                    ptx.mbarrier_init(tiles + uint32(full + 16 + 8 * s), uint32(GROUPS))
            ptx.fence_mbarrier_init()
        cuda.syncthreads()  # without it: a thread waits at a barrier that is not there yet
        l = cuda.local.array(2, float32)
        l[0], l[1] = float32(0), float32(0)
        O = zeros()
        if n > 0:
            q, k, v = ptx.address(map_q), ptx.address(map_k), ptx.address(map_v)
            O = over_keys(q, k, v, tiles, row, mine, n, int32(seqlen), int32(reach), scale, l)
        store(ptx.address(map_out), O, l, tiles, row)

    return attention_tiles, z


def attention_wgmma(q, k, v, out, causal: bool = False):
    """Build out = softmax(q · kᵀ / √head_dim) · v on Hopper's tensor cores: launch(stream=None).

    q, out  float16[planes, seqlen_q, head_dim] on the device, contiguous; planes = batch · heads, head_dim 64 or 128
    k, v    float16[planes, seqlen_k, head_dim]
    causal  row i sees the keys up to i + seqlen_k − seqlen_q; a row that sees none becomes zeros

    Raises Unavailable on any other machine, LabError for another head_dim. Source: the FlashAttention-3 paper.
    """
    need("cuda.bindings.driver")
    if device.MACHINE.compute_capability != (9, 0):
        raise Unavailable("wgmma needs a GPU of compute capability 9.0 (Hopper)")
    planes, seqlen_q, D = q.shape
    if D not in (64, 128):
        raise LabError(f"found head_dim {D}, expected 64 or 128: pad the heads, or use another kernel")
    kernel, z = attention_kernel(D)
    maps = [ptx.tensor_map(x, (rows, 64)) for x, rows in ((q, z.br), (k, z.bc), (v, z.bc), (out, 64))]
    reach = k.shape[1] - seqlen_q if causal else k.shape[1]
    scale = np.float32(math.log2(math.e) / math.sqrt(D))
    grid = (-(-seqlen_q // z.br), planes)
    return ptx.prepare(kernel, grid, z.threads, *maps, np.int32(k.shape[1]), np.int32(reach), scale, shared=z.shared)
