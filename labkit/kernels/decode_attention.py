"""Chapter 08's decode attention on tensor cores: rings of asynchronous copies; the last block puts the parts together.

A warp walks over tiles of 16 keys; its copies of the keys and values that follow are always under way, into a ring of
its own in shared memory. The query heads that share a KV head are the rows (of the scores) and the columns (of the
sums of values) of m16n8k16 products, so that a key is read once for all of them. Compute capability 8.0.
"""

from functools import cache

from numba import cuda, float32, int32, int64, uint32
from numba.types import float16

from labkit import ptx
from labkit.kernels.decode_parts import HD, LOWEST, PART, ROW, SCALE, SLACK, TILE, WIDE, insert, mix, request, scores

__all__ = ["make_attend"]

ALL = 0xFFFFFFFF


@cache
def make_attend(parts: int = 16, depth: int = 3, group: int = 4, threads: int = 256):
    """RoPE, append and attention: a block has a KV head, its `group` (≤ 8) query heads, and one of `parts` (≤ 32).

    Grid: (parts, KV heads, batch), `threads` threads (a multiple of 128), attend.shared bytes. The last block of a KV
    head adds up its parts.
    """
    BLOCK, WARPS_HERE, PARTS, GROUP = threads, threads // 32, parts, group
    RING = depth * PART
    QUADS = 32 * group  # four numbers of the output each
    SPLIT = max(1, threads // QUADS)  # threads that share a quad in the last merge
    EACH = -(-parts // SPLIT)  # parts that a thread adds
    FIRST = min(EACH, 16)  # parts whose numbers a thread requests at once
    MINE = 4 * FIRST
    OUTS = group * HD
    ODD, PAIRS = depth % 2 == 1, depth // 2
    ML = 2 * WARPS_HERE
    FOURS = WARPS_HERE // 4
    wait, wait_all = ptx.cp_async_wait(depth - 1), ptx.cp_async_wait(0)

    @cuda.jit(device=True, forceinline=True)
    def begin(qkv, b, kv, kv_heads, t, turn, qs, fresh):
        """The queries, times SCALE, and the new key, turned by the angles in turn[0:4]; the new value."""
        heads = uint32(GROUP) * kv_heads
        e = t
        while e < uint32(32 * (GROUP + 3)):
            h, i = e >> uint32(5), uint32(2) * (e & uint32(31))
            if h <= uint32(GROUP):
                at = uint32(HD) * (uint32(GROUP) * kv + h if h < uint32(GROUP) else heads + kv) + i
                x, y = float32(qkv[b, at]), float32(qkv[b, at + uint32(64)])
                z, w = float32(qkv[b, at + uint32(1)]), float32(qkv[b, at + uint32(65)])
                scale = float32(SCALE) if h < uint32(GROUP) else float32(1)
                p = ptx.pack_half2((x * turn[0] - y * turn[2]) * scale, (z * turn[1] - w * turn[3]) * scale)
                q = ptx.pack_half2((x * turn[2] + y * turn[0]) * scale, (z * turn[3] + w * turn[1]) * scale)
                if h < uint32(GROUP):
                    qs[h, i >> uint32(1)], qs[h, (i >> uint32(1)) + uint32(32)] = p, q
                else:
                    fresh[0, i >> uint32(1)], fresh[0, (i >> uint32(1)) + uint32(32)] = p, q
            else:
                d = e - uint32(32 * (GROUP + 1))
                at = uint32(HD) * (heads + kv_heads + kv) + uint32(2) * d
                fresh[1, d] = ptx.pack_half2(float32(qkv[b, at]), float32(qkv[b, at + uint32(1)]))
            e += uint32(BLOCK)

    @cuda.jit(device=True, forceinline=True)
    def keep(fresh, t, base, pos, k_cache, v_cache):
        if t < uint32(128):
            x, y = ptx.unpack_half2(fresh[t >> uint32(6), t & uint32(63)])
            d = uint32(2) * (t & uint32(63))
            if t < uint32(64):
                k_cache[base + pos, d], k_cache[base + pos, d + uint32(1)] = float16(x), float16(y)
            else:
                v_cache[base + pos, d], v_cache[base + pos, d + uint32(1)] = float16(x), float16(y)

    @cuda.jit(device=True, forceinline=True)
    def gather(acc, m, weight, lane, warp, wide, ml):
        """A head's numbers, in the warp's own ring; ml[head]: the largest of all warps, then their sums."""
        g, t = lane >> uint32(2), lane & uint32(3)
        if t == uint32(0) and g < uint32(GROUP):
            ml[g, warp], ml[g, warp + uint32(WARPS_HERE)] = m, weight
        for h in range(2):
            head = uint32(2) * t + uint32(h)
            if head < uint32(GROUP):
                at = warp * uint32(RING) + head * uint32(WIDE) + g
                for j in range(16):
                    wide[at + uint32(8 * j)] = acc[2 * j + h]

    @cuda.jit(device=True, forceinline=True)
    def store_part(wide, ml, e, row, part, factor, partial, stats):
        h, d = e >> uint32(5), uint32(4) * (e & uint32(31))
        largest = float32(LOWEST)
        for f in range(FOURS):
            a, b, c, k = ptx.load4(ml, (h, uint32(4 * f)))
            factor[4 * f], factor[4 * f + 1], factor[4 * f + 2], factor[4 * f + 3] = a, b, c, k
            largest = max(max(max(a, b), max(c, k)), largest)
        x = y = z = w = total = float32(0)
        for i in range(WARPS_HERE):
            f = ptx.exp2(factor[i] - largest)
            total += f * ml[h, uint32(WARPS_HERE + i)]
            a, b, c, k = ptx.words4(wide, uint32(i * RING) + uint32(WIDE) * h + d)
            x += f * a
            y += f * b
            z += f * c
            w += f * k
        ptx.store4(partial, (row + h, part * uint32(HD) + d), x, y, z, w)
        if d == uint32(0):
            stats[row + h, uint32(2) * part], stats[row + h, uint32(2) * part + uint32(1)] = largest, total

    @cuda.jit(device=True, forceinline=True)
    def add_parts(partial, stats, e, row, lane, v, wide):
        """A quad's sum over EACH parts, as a share of the head's whole; a lane knows one part's weight."""
        quad = e % uint32(QUADS)
        share, h, d = e // uint32(QUADS), quad >> uint32(5), uint32(4) * (quad & uint32(31))
        m, weight = float32(LOWEST), float32(0)
        if lane < uint32(PARTS):
            m, weight = stats[row + h, uint32(2) * lane], stats[row + h, uint32(2) * lane + uint32(1)]
        for p in range(FIRST):
            part = share * uint32(EACH) + uint32(p)
            v[4 * p] = v[4 * p + 1] = v[4 * p + 2] = v[4 * p + 3] = float32(0)
            if part < uint32(PARTS):
                v[4 * p], v[4 * p + 1], v[4 * p + 2], v[4 * p + 3] = ptx.load4(
                    partial, (row + h, part * uint32(HD) + d))  # fmt: skip
        largest = m
        for i in range(5):
            largest = max(largest, cuda.shfl_xor_sync(ALL, largest, 16 >> i))
        factor = ptx.exp2(m - largest)
        total = factor * weight
        for i in range(5):
            total += cuda.shfl_xor_sync(ALL, total, 16 >> i)
        factor = factor / total
        x = y = z = w = float32(0)
        for p in range(FIRST):
            f = cuda.shfl_sync(ALL, factor, share * uint32(EACH) + uint32(p))
            x += f * v[4 * p]
            y += f * v[4 * p + 1]
            z += f * v[4 * p + 2]
            w += f * v[4 * p + 3]
        for p in range(FIRST, EACH):
            f = cuda.shfl_sync(ALL, factor, share * uint32(EACH) + uint32(p))
            part = share * uint32(EACH) + uint32(p)
            part = part if part < uint32(PARTS) else uint32(0)  # such a part's factor is zero
            a, b, c, k = ptx.load4(partial, (row + h, part * uint32(HD) + d))
            x += f * a
            y += f * b
            z += f * c
            w += f * k
        ptx.store4(wide, uint32(4) * e, x, y, z, w)

    @cuda.jit(shared_memory_carveout=100)  # as the kernels beside it: an SM is emptied before it changes its split
    def attend(qkv, table, position, k_cache, v_cache, partial, stats, counter, out):
        """qkv: float16[batch, (heads + 2 KV heads) * 128], table: float32[context, 128] (cosines, sines),
        caches: float16[batch * KV heads * context, 128], partial: float32[batch * heads, parts * 128],
        stats: float32[batch * heads, parts * 2], counter: int32[batch * KV heads], zeros (left as zeros)."""
        ring = cuda.shared.array(0, uint32)
        wide = cuda.shared.array(0, float32)
        qs = cuda.shared.array((8, ROW), uint32)
        fresh = cuda.shared.array((2, 64), uint32)
        ml = cuda.shared.array((GROUP, ML), float32)
        acc = cuda.local.array(32, float32)
        s = cuda.local.array(16, float32)
        turn = cuda.local.array(4, float32)
        factors = cuda.local.array(WARPS_HERE, float32)
        v = cuda.local.array(MINE, float32)
        ptx.start_next()
        part, kv, b = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.y), uint32(cuda.blockIdx.z)
        kv_heads = uint32(cuda.gridDim.y)
        t = uint32(cuda.threadIdx.x)
        lane, warp = t & uint32(31), t >> uint32(5)
        pos = uint32(position[0])
        last = pos >> uint32(4)
        base = (b * kv_heads + kv) * uint32(table.shape[0])
        tile, apart = warp * uint32(PARTS) + part, uint32(PARTS * WARPS_HERE)
        step = int64(PARTS * WARPS_HERE * TILE * 2 * HD)  # bytes from a tile of a warp to its next
        ahead = int64(base + uint32(TILE) * tile) * int64(2 * HD) + int64(uint32(16) * lane)
        keys, values = ptx.address(k_cache) + ahead, ptx.address(v_cache) + ahead
        slots = warp * uint32(RING)
        bottom = ptx.shared_address(ring) + uint32(4) * slots
        put = bottom + uint32(4 * ROW) * (lane >> uint32(4)) + uint32(16) * (lane & uint32(15))
        get = bottom + uint32(4 * ROW) * ((lane & uint32(7)) + uint32(8) * (lane >> uint32(4)))
        get += uint32(16) * ((lane >> uint32(3)) & uint32(1))
        for i in range(PAIRS):
            request(keys, tile + uint32(i) * apart, last, pos, lane, put + uint32(8 * PART * i))
            request(values, tile + uint32(i) * apart, last, pos, lane, put + uint32(8 * PART * i + 4 * PART))
            keys, values = keys + step, values + step
        if ODD:
            request(keys, tile + uint32(PAIRS) * apart, last, pos, lane, put + uint32(8 * PART * PAIRS))
            keys += step
        i = uint32(2) * lane
        turn[0], turn[1] = table[pos, i], table[pos, i + uint32(1)]
        turn[2], turn[3] = table[pos, i + uint32(64)], table[pos, i + uint32(65)]
        h = uint32(GROUP) + warp
        while h < uint32(8):  # rows of the tensor core's operand that have no query
            qs[h, lane] = qs[h, lane + uint32(32)] = uint32(0)
            h += uint32(WARPS_HERE)
        ptx.wait_for_previous()
        begin(qkv, b, kv, kv_heads, t, turn, qs, fresh)
        cuda.syncthreads()  # without it: queries and the new key are not there yet
        if part == last % uint32(PARTS):  # the block with the new key keeps it
            keep(fresh, t, base, pos, k_cache, v_cache)
        query = ptx.shared_address(qs) + uint32(4 * ROW) * (lane & uint32(7)) + uint32(16) * (lane >> uint32(3))
        for i in range(32):
            acc[i] = float32(0)
        m, weight, slot = float32(LOWEST), float32(0), uint32(0)
        while tile <= last:
            wait()
            if tile == last:
                cuda.syncwarp()  # without it: another lane's zeros may come after the key
                insert(fresh, uint32(0), pos & uint32(15), lane, ring, slots + slot)
            cuda.syncwarp()  # without it: what other lanes copied is not there yet
            scores(query, get + uint32(4) * slot, s)
            cuda.syncwarp()  # without it: copies overwrite keys that other lanes still read
            if ODD:
                request(values, tile + uint32(PAIRS) * apart, last, pos, lane, put + uint32(4) * slot)
                values += step
            else:
                request(keys, tile + uint32(PAIRS) * apart, last, pos, lane, put + uint32(4) * slot)
                keys += step
            slot = slot + uint32(PART) if slot + uint32(PART) < uint32(RING) else uint32(0)
            if tile == last:
                seen = int32(pos) - int32(uint32(TILE) * tile + uint32(2) * (lane & uint32(3)))
                for i in range(4):
                    s[i] = s[i] if int32(8 * (i // 2) + i % 2) <= seen else float32(LOWEST)
            largest = max(max(s[0], s[1]), max(s[2], s[3]))
            if cuda.any_sync(ALL, largest > m + float32(SLACK)):
                largest = max(largest, cuda.shfl_xor_sync(ALL, largest, 1))
                largest = max(largest, cuda.shfl_xor_sync(ALL, largest, 2))
                largest = max(largest, m)
                factor = ptx.exp2(m - largest)
                m = largest
                weight *= factor
                one = cuda.shfl_sync(ALL, factor, uint32(8) * (lane & uint32(3)))
                two = cuda.shfl_sync(ALL, factor, uint32(8) * (lane & uint32(3)) + uint32(4))
                for i in range(16):
                    acc[2 * i] *= one
                    acc[2 * i + 1] *= two
            for i in range(4):
                s[i] = ptx.exp2(s[i] - m)
            weight += (s[0] + s[1]) + (s[2] + s[3])
            b0, b1 = ptx.pack_half2(s[0], s[1]), ptx.pack_half2(s[2], s[3])
            wait()
            if tile == last:
                cuda.syncwarp()  # as above
                insert(fresh, uint32(1), pos & uint32(15), lane, ring, slots + slot)
            cuda.syncwarp()
            mix(get + uint32(4) * slot, b0, b1, acc)
            cuda.syncwarp()
            if ODD:
                request(keys, tile + uint32(PAIRS + 1) * apart, last, pos, lane, put + uint32(4) * slot)
                keys += step
            else:
                request(values, tile + uint32(PAIRS) * apart, last, pos, lane, put + uint32(4) * slot)
                values += step
            slot = slot + uint32(PART) if slot + uint32(PART) < uint32(RING) else uint32(0)
            tile += apart
        weight += cuda.shfl_xor_sync(ALL, weight, 1)
        weight += cuda.shfl_xor_sync(ALL, weight, 2)
        wait_all()
        cuda.syncwarp()  # without it: sums overwrite values that other lanes still read
        gather(acc, m, weight, lane, warp, wide, ml)
        cuda.syncthreads()  # without it: a warp's sums are missing
        row = (b * kv_heads + kv) * uint32(GROUP)
        e = t
        while e < uint32(QUADS):
            store_part(wide, ml, e, row, part, factors, partial, stats)
            e += uint32(BLOCK)
        cuda.syncthreads()  # without it: the block says that it has stored what some of its threads have not
        came = int32(0)
        if t == uint32(0):
            came = ptx.add_in_order(ptx.address(counter) + int64(4) * int64(b * kv_heads + kv), int32(1))
            came = int32(1) if came == int32(PARTS - 1) else int32(0)
        if cuda.syncthreads_or(came):
            e = t
            while e < uint32(QUADS * SPLIT):
                add_parts(partial, stats, e, row, lane, v, wide)
                e += uint32(BLOCK)
            if t == uint32(0):
                counter[b * kv_heads + kv] = 0
            cuda.syncthreads()  # without it: another thread's share of the parts is missing
            e = t
            while e < uint32(OUTS):
                total = float32(0)
                for i in range(SPLIT):
                    total += wide[e + uint32(i * OUTS)]
                out[b, uint32(OUTS) * kv + e] = float16(total)
                e += uint32(BLOCK)

    attend.shared = max(WARPS_HERE * RING * 4, SPLIT * OUTS * 4)
    return attend
