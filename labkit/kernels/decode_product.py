"""Chapter 08's product for a few rows of x, on tensor cores: each weight is read once for all of them.

A warp multiplies 16 rows of w (rows of the tensor core's operand a) by 8 rows of x (columns of b). The order of the
columns within a sum is free. So in every piece of 32 columns the lane that holds row g takes eight columns that are
neighbours, 16 bytes of w and 16 of x, and multiplies exactly what it has copied itself: no ldmatrix, no barrier on
the way. Compute capability 8.0.
"""

from functools import cache

from numba import cuda, float32, int32, int64, uint32
from numba.types import float16

from labkit import ptx
from labkit.errors import LabError
from labkit.kernels.decode_norm import early_norm

__all__ = ["early_norm", "few_grid", "make_few"]

THREADS = 256
WARPS = THREADS // 32
PIECE = 32  # columns that four lanes copy of a row: 64 bytes, two full sectors
LANES = 128  # words that a warp copies at once, 16 bytes a lane
TWO_AN_SM = 113 << 10  # bytes of shared memory, so that two blocks fit an SM
MOST = 226 << 10  # bytes of shared memory that a block may have on an H100 or H200


def few_grid(kernel, rows: int, batch: int) -> tuple[int, int]:
    """The grid of a kernel of make_few for w[rows, K] and x[batch, K]."""
    pairs = (rows + 1) // 2
    return -(-batch // (8 * kernel.tiles)), -(-pairs // (8 * kernel.rows))


@cuda.jit(device=True, forceinline=True)
def eighths(i, n):
    """How many of i, i + 8, i + 16, … are below n."""
    return uint32(uint32(n - i + uint32(7)) >> uint32(3)) if i < n else uint32(0)


@cuda.jit(device=True, forceinline=True)
def add(a, i, b0, b1, acc, c):
    """acc[c:c+4] += two words of the rows g (a[i:i+2]) and g + 8 (a[i+4:i+6]) · two words of x: 16 columns."""
    acc[c], acc[c + 1], acc[c + 2], acc[c + 3] = ptx.mma_m16n8k16(
        a[i], a[i + 4], a[i + 1], a[i + 5], b0, b1, acc[c], acc[c + 1], acc[c + 2], acc[c + 3])  # fmt: skip


def _plan(K, tiles, rows, depth, pieces, ring):
    """Pieces a step and steps under way. Raises LabError for what cannot be built."""
    if K < 8 or K % 8:
        raise LabError(f"found rows of {K} numbers, expected a multiple of 8: copies are of 16 bytes")
    if not 1 <= tiles <= 8 or rows not in (1, 2, 4):
        raise LabError(f"found tiles={tiles}, rows={rows}; expected 1 to 8 tiles of x, 1, 2 or 4 of w")
    one = 4 * WARPS * LANES * (2 * rows + tiles)  # bytes of a piece of all warps
    fit = max(1, ring // one)
    pieces = pieces or (2 if fit >= 8 else 1)  # whole lines of 128 bytes where four such steps have room
    if depth is None:
        depth = max(1, min(15, fit // pieces, -(-K // (PIECE * pieces * WARPS))))  # no more than a warp has
    if not 1 <= depth <= 16 or depth * pieces * one > MOST:
        raise LabError(
            f"{depth} steps of {pieces} pieces take {depth * pieces * one >> 10} KiB of shared memory, expected 1 to "
            f"16 steps and {MOST >> 10} KiB at most: fewer tiles, rows, or steps"
        )
    return pieces, depth


def _make_copies(K, tiles, rows, pieces):
    """request_w, request_x: start a step's copies; multiply: add a step that has arrived."""
    TILES, ROWS, PIECES = tiles, rows, pieces
    XS = 2 * LANES * rows  # words before those of x in a piece
    EACH = XS + LANES * tiles  # words of a piece
    APART = 16 * K  # bytes from a row to the eighth after it

    @cuda.jit(device=True, forceinline=True)
    def request_w(first, second, ones, others, col, at):
        """Columns col … col + 7 of each piece, of tiles r < ones, and of their rows of the second half, r < others.

        first, second: address of column 0 of the lane's rows of tile 0; at: the lane's slot. Nothing is read of what
        does not exist (its address is of no matter): zeros are stored.
        """
        for e in range(PIECES):
            c = uint32(col + uint32(PIECE * e))
            inside, ahead = c < uint32(K), int64(uint32(2) * c)
            one, other = (ones, others) if inside else (uint32(0), uint32(0))
            for r in range(ROWS):
                to = uint32(at + uint32(4 * EACH * e + 8 * LANES * r))
                n = int32(16) if uint32(r) < one else int32(0)
                ptx.cp_async_16(to, first + ahead + int64(APART * r), n)
                n = int32(16) if uint32(r) < other else int32(0)
                ptx.cp_async_16(uint32(to + uint32(4 * LANES)), second + ahead + int64(APART * r), n)

    @cuda.jit(device=True, forceinline=True)
    def request_x(mine, count, col, at):
        """The same columns of tiles n < count of x. mine: address of column 0 of the lane's row of tile 0."""
        for e in range(PIECES):
            c = uint32(col + uint32(PIECE * e))
            here, ahead = count if c < uint32(K) else uint32(0), int64(uint32(2) * c)
            for n in range(TILES):
                to = uint32(at + uint32(4 * (EACH * e + XS + LANES * n)))
                ptx.cp_async_16(to, mine + ahead + int64(APART * n), int32(16) if uint32(n) < here else int32(0))

    @cuda.jit(device=True, forceinline=True)
    def multiply(at, a, acc):
        """acc[4 (TILES r + n) …] += tile r of w · tile n of x; at: the lane's slot, a: room for words of w."""
        for e in range(PIECES):
            o = uint32(at + uint32(4 * EACH * e))
            for r in range(2 * ROWS):
                i, word = 4 * r, uint32(o + uint32(4 * LANES * r))
                a[i], a[i + 1], a[i + 2], a[i + 3] = ptx.ld_shared_v4_b32(word)
            for n in range(TILES):
                b0, b1, b2, b3 = ptx.ld_shared_v4_b32(uint32(o + uint32(4 * (XS + LANES * n))))
                for r in range(ROWS):
                    add(a, 8 * r, b0, b1, acc, 4 * (TILES * r + n))
                for r in range(ROWS):
                    add(a, 8 * r + 2, b2, b3, acc, 4 * (TILES * r + n))

    return request_w, request_x, multiply, EACH * pieces


@cache
def make_few(K, after, adds=False, tiles=1, rows=2, depth=None, pieces=None, ring=TWO_AN_SM):
    """out = w · x for rows of K numbers, K a multiple of 8; a block has 8 · rows pairs of rows of w and all columns.

    after          what becomes of the sums of the rows `pair` and `pair + half` of w, as in the chapter's make_gemv
    adds           the residual's two numbers are fetched for `after`
    tiles          of 8 rows of x that share a weight (1 … 8): more rows than 8 · tiles read w again
    rows           tiles of 16 rows of w (1, 2, 4) that share what is read of x
    depth, pieces  a warp has `depth` steps under way, of `pieces` · 32 columns; left out: what `ring` bytes hold

    Launch: few_grid(kernel, …), 256 threads, kernel.shared bytes.
    """
    pieces, depth = _plan(K, tiles, rows, depth, pieces, ring)
    request_w, request_x, multiply, SLOT = _make_copies(K, tiles, rows, pieces)
    STEP, DEPTH, ROWS, TILES = PIECE * pieces, depth, rows, tiles
    SUMS, HELD = 4 * rows * tiles, 8 * rows  # numbers of a lane; its words of w
    RING = max(depth * SLOT, 32 * SUMS)  # words of a warp
    ROUND, AHEAD = 4 * depth * SLOT, depth * WARPS * STEP
    FIRST = -PIECE & 0xFFFFFFFF  # of a lane's column: the first of its piece, the same for the whole warp
    PAIRS = 16 * SUMS  # pairs of sums of a block
    EACH = -(-PAIRS // THREADS)
    OLD = EACH if adds else 1
    EARLY = adds and EACH <= 2  # the residual's numbers come while w streams, if there are registers for them
    LATE = adds and not EARLY
    wait, wait_all = ptx.cp_async_wait(depth - 1), ptx.cp_async_wait(0)
    bounds = THREADS, 2 if rows * tiles < 16 and 4 * WARPS * RING <= TWO_AN_SM else 1

    @cuda.jit(device=True, forceinline=True)
    def place(e, pair0, b0):
        """Row of w, row of x and place among a warp's sums of the block's pair of sums e; a lane has c0, c2 or c1, c3.

        e = 32 (2 (TILES r + n) + h) + lane, 0 ≤ h < 2: so a warp reads 32 neighbours.
        """
        lane, h, tile = uint32(e & uint32(31)), uint32((e >> uint32(5)) & uint32(1)), uint32(e >> uint32(6))
        r = uint32(tile // uint32(TILES))
        n = uint32(tile - uint32(TILES) * r)
        pair = uint32(pair0 + uint32(8) * r + (lane >> uint32(2)))
        b = uint32(b0 + uint32(8) * n + uint32(2) * (lane & uint32(3)) + h)
        return pair, b, uint32(uint32(128) * tile + uint32(32) * h + lane)

    @cuda.jit(device=True, forceinline=True)
    def add_up(sums, at):
        """A pair's sums, of all warps in their order."""
        p = q = float32(0)
        for i in range(WARPS):
            p += sums[uint32(at + uint32(RING * i))]
            q += sums[uint32(at + uint32(RING * i + 64))]
        return p, q

    @cuda.jit(device=True, forceinline=True)
    def fetch(residual, t, pair0, b0, m, half, batch, old, older):
        """The residual's numbers of this thread's sums."""
        for i in range(EACH):
            e = uint32(t + uint32(THREADS * i))
            pair, b, _ = place(e, pair0, b0)
            second = uint32(pair + half)
            old[i] = older[i] = float16(0)
            if e < uint32(PAIRS) and pair < half and b < batch:
                old[i], older[i] = residual[b, pair], residual[b, second if second < m else pair]

    @cuda.jit(device=True, forceinline=True)
    def finish(sums, t, pair0, b0, m, half, batch, old, older, out):
        """This thread's sums, and what becomes of them."""
        for i in range(EACH):
            e = uint32(t + uint32(THREADS * i))
            pair, b, at = place(e, pair0, b0)
            if e < uint32(PAIRS) and pair < half and b < batch:
                p, q = add_up(sums, at)
                there = uint32(pair + half) < m
                second = uint32(pair + half) if there else pair
                one, two = (float32(old[i]), float32(older[i])) if adds else (float32(0), float32(0))
                after(p, q, pair, second, there, one, two, b, out)

    @cuda.jit(shared_memory_carveout=100, launch_bounds=bounds)  # an SM is emptied before it changes its split
    def few(w, x, norm, residual, out):
        """w: float16[rows, K], x: [batch, K], residual, out: [batch, …]; norm is not used (early_norm came before).

        Reads 2 · rows · K bytes of w once for 8 · tiles rows of x; a block reads these rows of x whole, from the L2.
        """
        ring = cuda.shared.array(0, uint32)
        sums = cuda.shared.array(0, float32)
        acc = cuda.local.array(SUMS, float32)
        a = cuda.local.array(HELD, uint32)
        old = cuda.local.array(OLD, float16)
        older = cuda.local.array(OLD, float16)
        ptx.start_next()
        t = uint32(cuda.threadIdx.x)
        lane, warp = uint32(t & uint32(31)), uint32(t >> uint32(5))
        m, batch = uint32(w.shape[0]), uint32(x.shape[0])
        half = uint32(uint32(m + uint32(1)) >> uint32(1))
        pair0 = uint32(uint32(8 * ROWS) * uint32(cuda.blockIdx.y))
        b0 = uint32(uint32(8 * TILES) * uint32(cuda.blockIdx.x))
        pair, b = uint32(pair0 + (lane >> uint32(2))), uint32(b0 + (lane >> uint32(2)))
        first = ptx.address(w) + int64(2 * K) * int64(pair)
        second = first + int64(2 * K) * int64(half)
        mine = ptx.address(x) + int64(2 * K) * int64(b)
        ones, others, count = eighths(pair, half), eighths(pair, uint32(m - half)), eighths(b, batch)
        begin = uint32(uint32(STEP) * warp + uint32(8) * (lane & uint32(3)))
        bottom = uint32(ptx.shared_address(ring) + uint32(4 * RING) * warp + uint32(16) * lane)
        col = begin
        for i in range(DEPTH):
            request_w(first, second, ones, others, col, uint32(bottom + uint32(4 * SLOT * i)))
            ptx.cp_async_commit()
            col = uint32(col + uint32(WARPS * STEP))
        ptx.wait_for_previous()  # without it: x is not there yet, and `out` may still be read
        col = begin
        for i in range(DEPTH):
            request_x(mine, count, col, uint32(bottom + uint32(4 * SLOT * i)))
            ptx.cp_async_commit()
            col = uint32(col + uint32(WARPS * STEP))
        if EARLY:
            fetch(residual, t, pair0, b0, m, half, batch, old, older)
        for i in range(SUMS):
            acc[i] = float32(0)
        slot = uint32(0)
        while col & uint32(FIRST) < uint32(K + AHEAD):  # col: AHEAD of what is multiplied
            wait()  # of 2 · depth + i groups all but depth - 1: w and x of step i have arrived
            at = uint32(bottom + slot)
            multiply(at, a, acc)
            request_w(first, second, ones, others, col, at)
            request_x(mine, count, col, at)
            ptx.cp_async_commit()
            slot = uint32(slot + uint32(4 * SLOT))
            slot = slot if slot < uint32(ROUND) else uint32(0)
            col = uint32(col + uint32(WARPS * STEP))
        wait_all()  # without it: zeros that are still under way overwrite sums
        cuda.syncwarp()  # without it: sums overwrite what other lanes have not multiplied yet
        for i in range(SUMS):
            sums[uint32(uint32(RING) * warp + uint32(32 * i) + lane)] = acc[i]
        if LATE:
            fetch(residual, t, pair0, b0, m, half, batch, old, older)
        cuda.syncthreads()  # without it: a warp's sums are missing
        finish(sums, t, pair0, b0, m, half, batch, old, older, out)

    few.shared, few.tiles, few.rows, few.depth, few.pieces = 4 * WARPS * RING, tiles, rows, depth, pieces
    return few
