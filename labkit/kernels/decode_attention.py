"""Chapter 08's decode attention on tensor cores: rings of asynchronous copies; the last block puts the parts together.

A warp walks over tiles of 16 keys; its copies of the keys and values that follow are always under way, into a ring of
its own in shared memory. The query heads that share a KV head are the rows (of the scores) and the columns (of the
sums of values) of m16n8k16 products, so that a key is read once for all of them. Compute capability 8.0.
"""

from functools import cache

from numba import cuda, float32, int32, uint32
from numba.types import float16

from labkit import ptx
from labkit.kernels.decode_parts import (
    HD,
    LOWEST,
    PART,
    SCALE,
    TILE,
    mix,
    new_key,
    new_value,
    request_keys,
    request_values,
    scores,
    turned,
)

__all__ = ["make_attend"]

ALL = 0xFFFFFFFF


@cache
def make_attend(parts: int = 16, depth: int = 3, group: int = 4, threads: int = 256):
    """RoPE, append and attention: a block has a KV head, its `group` query heads, and one of `parts` parts of the keys.

    Grid: (parts, KV heads, batch), `threads` threads, attend.shared bytes. The last block of a KV head puts its parts
    together.
    """
    BLOCK, WARPS_HERE, PARTS, GROUP, DEPTH = threads, threads // 32, parts, group, depth
    RING, OUTS, PAIRS, TWO = depth * PART, group * HD, 2 * parts, group * 2 * parts
    wait, wait_all = ptx.wait_copies(depth - 1), ptx.wait_copies(0)

    @cuda.jit(device=True, forceinline=True)
    def request(k_cache, v_cache, base, turn, first, apart, pos, lane, ring, slot):
        """Start a turn's copies: a tile's keys, then its values, then the next tile's keys, ..."""
        tile = first + (turn >> uint32(1)) * apart
        if turn & uint32(1):
            request_values(v_cache, base, tile, pos, lane, ring, slot)
        else:
            request_keys(k_cache, base, tile, pos, lane, ring, slot)
        ptx.close_copies()

    @cuda.jit(device=True, forceinline=True)
    def prepare(qkv, table, pos, b, kv, kv_heads, t, qs, fresh):
        """The queries, times SCALE, and the new key, turned; the new value."""
        heads = uint32(GROUP) * kv_heads
        e = t
        while e < uint32(32 * (GROUP + 1)):
            h, i = e >> uint32(5), uint32(2) * (e & uint32(31))
            at = uint32(HD) * (uint32(GROUP) * kv + h if h < uint32(GROUP) else heads + kv)
            p, q = turned(qkv, b, at, table, pos, i)
            r, s = turned(qkv, b, at, table, pos, i + uint32(1))
            if h < uint32(GROUP):
                qs[h, i >> uint32(1)] = ptx.pack_half2(p * float32(SCALE), r * float32(SCALE))
                qs[h, (i >> uint32(1)) + uint32(32)] = ptx.pack_half2(q * float32(SCALE), s * float32(SCALE))
            else:
                fresh[0, i >> uint32(1)] = ptx.pack_half2(p, r)
                fresh[0, (i >> uint32(1)) + uint32(32)] = ptx.pack_half2(q, s)
            e += uint32(BLOCK)
        if t < uint32(64):
            at = uint32(HD) * (heads + kv_heads + kv) + uint32(2) * t
            fresh[1, t] = ptx.pack_half2(float32(qkv[b, at]), float32(qkv[b, at + uint32(1)]))

    @cuda.jit(device=True, forceinline=True)
    def gather(acc, m, norm, lane, warp, wide, ml):
        """The warp's sums for the block: wide[warp, head, number], ml[warp, head] (largest, sum)."""
        g, t = lane >> uint32(2), lane & uint32(3)
        if t == uint32(0) and g < uint32(GROUP):
            ml[warp, uint32(2) * g], ml[warp, uint32(2) * g + uint32(1)] = m, norm
        for h in range(2):
            head = uint32(2) * t + uint32(h)
            if head < uint32(GROUP):
                at = (warp * uint32(GROUP) + head) * uint32(HD) + uint32(8) * g
                for s in range(8):
                    wide[at + uint32(s)] = acc[4 * s + h]
                    wide[at + uint32(64 + s)] = acc[4 * s + 2 + h]

    @cuda.jit(device=True, forceinline=True)
    def store_part(wide, ml, e, row, part, partial, stats):
        h, d = e >> uint32(7), e & uint32(127)
        largest = float32(LOWEST)
        for w in range(WARPS_HERE):
            largest = max(largest, ml[w, uint32(2) * h])
        total, value = float32(0), float32(0)
        for w in range(WARPS_HERE):
            factor = ptx.exp2(ml[w, uint32(2) * h] - largest)
            total += factor * ml[w, uint32(2) * h + uint32(1)]
            value += factor * wide[uint32(w * OUTS) + e]
        partial[row + h, part * uint32(HD) + d] = value
        if d == uint32(0):
            stats[row + h, uint32(2) * part], stats[row + h, uint32(2) * part + uint32(1)] = largest, total

    @cuda.jit(device=True, forceinline=True)
    def store_out(both, partial, e, row, b, kv, out):
        h, d = e >> uint32(7), e & uint32(127)
        largest = float32(LOWEST)
        for p in range(PARTS):
            largest = max(largest, both[h, 2 * p])
        total, value = float32(0), float32(0)
        for p in range(PARTS):
            factor = ptx.exp2(both[h, 2 * p] - largest)
            total += factor * both[h, 2 * p + 1]
            value += factor * partial[row + h, uint32(HD * p) + d]
        out[b, (kv * uint32(GROUP) + h) * uint32(HD) + d] = float16(value / total)

    @cuda.jit(shared_memory_carveout=100)  # as the kernels beside it: an SM is emptied before it changes its split
    def attend(qkv, table, position, k_cache, v_cache, partial, stats, counter, out):
        """qkv: float16[batch, (heads + 2 KV heads) * 128], table: float32[context, 128] (cosines, sines),
        caches: float16[batch * KV heads * context, 128], partial: float32[batch * heads, parts * 128],
        stats: float32[batch * heads, parts * 2], counter: int32[batch * KV heads], zeros (left as zeros)."""
        ring = cuda.shared.array(0, uint32)
        wide = cuda.shared.array(0, float32)
        qs = cuda.shared.array((GROUP, 64), uint32)
        fresh = cuda.shared.array((2, 64), uint32)
        ml = cuda.shared.array((WARPS_HERE, 16), float32)
        both = cuda.shared.array((GROUP, PAIRS), float32)
        came = cuda.shared.array(4, int32)  # one is used; all arrays are a multiple of 16 bytes, so all begin at one
        q = cuda.local.array(16, uint32)
        acc = cuda.local.array(32, float32)
        s = cuda.local.array(4, float32)
        ptx.start_next()
        part, kv, b = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.y), uint32(cuda.blockIdx.z)
        kv_heads = uint32(cuda.gridDim.y)
        t = uint32(cuda.threadIdx.x)
        lane, warp = t & uint32(31), t >> uint32(5)
        pos = uint32(position[0])
        last = pos >> uint32(4)
        base = (b * kv_heads + kv) * uint32(table.shape[0])
        tile, apart = warp * uint32(PARTS) + part, uint32(PARTS * WARPS_HERE)
        first, turn, slot = tile, uint32(0), uint32(0)
        slots = warp * uint32(RING) + uint32(4) * lane
        for i in range(DEPTH):
            request(k_cache, v_cache, base, turn, first, apart, pos, lane, ring, slots + uint32(i * PART))
            turn += uint32(1)
        ptx.wait_for_previous()
        prepare(qkv, table, pos, b, kv, kv_heads, t, qs, fresh)
        cuda.syncthreads()  # without it: queries and the new key are not there yet
        if part == last % uint32(PARTS) and t < uint32(128):  # the block with the new key keeps it
            word = fresh[t >> uint32(6), t & uint32(63)]
            x, y = ptx.unpack_half2(word)
            d = uint32(2) * (t & uint32(63))
            if t < uint32(64):
                k_cache[base + pos, d], k_cache[base + pos, d + uint32(1)] = float16(x), float16(y)
            else:
                v_cache[base + pos, d], v_cache[base + pos, d + uint32(1)] = float16(x), float16(y)
        g = lane >> uint32(2)
        for j in range(4):
            for w in range(4):
                q[4 * j + w] = uint32(0)
                if g < uint32(GROUP):
                    q[4 * j + w] = qs[g, uint32(16 * j + w) + uint32(4) * (lane & uint32(3))]
        for i in range(32):
            acc[i] = float32(0)
        m, norm = float32(LOWEST), float32(0)
        while tile <= last:
            wait()
            if tile == last:
                new_key(fresh, tile, pos, lane, ring, slots + slot)
            scores(q, ring, slots + slot, s)
            request(k_cache, v_cache, base, turn, first, apart, pos, lane, ring, slots + slot)
            turn += uint32(1)
            slot = slot + uint32(PART) if slot + uint32(PART) < uint32(RING) else uint32(0)
            largest = m
            for i in range(4):
                key = uint32(TILE) * tile + uint32(2) * (lane & uint32(3)) + uint32(8 * (i // 2) + i % 2)
                s[i] = s[i] if key <= pos else float32(LOWEST)
                largest = max(largest, s[i])
            largest = max(largest, cuda.shfl_xor_sync(ALL, largest, 1))
            largest = max(largest, cuda.shfl_xor_sync(ALL, largest, 2))
            factor = ptx.exp2(m - largest)
            m = largest
            for i in range(4):
                s[i] = ptx.exp2(s[i] - m)
            norm = norm * factor + (s[0] + s[1]) + (s[2] + s[3])
            one = cuda.shfl_sync(ALL, factor, uint32(8) * (lane & uint32(3)))
            two = cuda.shfl_sync(ALL, factor, uint32(8) * (lane & uint32(3)) + uint32(4))
            for i in range(16):
                acc[2 * i] *= one
                acc[2 * i + 1] *= two
            wait()
            if tile == last:
                new_value(fresh, tile, pos, lane, ring, slots + slot)
            mix(ring, slots + slot, ptx.pack_half2(s[0], s[1]), ptx.pack_half2(s[2], s[3]), acc)
            request(k_cache, v_cache, base, turn, first, apart, pos, lane, ring, slots + slot)
            turn += uint32(1)
            slot = slot + uint32(PART) if slot + uint32(PART) < uint32(RING) else uint32(0)
            tile += apart
        norm += cuda.shfl_xor_sync(ALL, norm, 1)
        norm += cuda.shfl_xor_sync(ALL, norm, 2)
        wait_all()
        cuda.syncthreads()  # without it: sums overwrite another warp's ring
        gather(acc, m, norm, lane, warp, wide, ml)
        cuda.syncthreads()  # without it: a warp's sums are missing
        row = (b * kv_heads + kv) * uint32(GROUP)
        e = t
        while e < uint32(OUTS):
            store_part(wide, ml, e, row, part, partial, stats)
            e += uint32(BLOCK)
        cuda.threadfence()
        cuda.syncthreads()  # without it: the block says that it has stored what some of its threads have not
        if t == uint32(0):
            came[0] = cuda.atomic.add(counter, b * kv_heads + kv, 1)
        cuda.syncthreads()  # without it: came is old
        if came[0] == PARTS - 1:
            cuda.threadfence()
            e = t
            while e < uint32(TWO):
                h, p = e // uint32(PAIRS), e % uint32(PAIRS)
                both[h, p] = stats[row + h, p]
                e += uint32(BLOCK)
            if t == uint32(0):
                counter[b * kv_heads + kv] = 0
            cuda.syncthreads()  # without it: the parts' sums are missing
            e = t
            while e < uint32(OUTS):
                store_out(both, partial, e, row, b, kv, out)
                e += uint32(BLOCK)

    attend.shared = max(WARPS_HERE * RING * 4, WARPS_HERE * OUTS * 4)
    return attend
