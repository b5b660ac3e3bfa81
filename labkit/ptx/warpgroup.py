"""Hopper's warpgroup instructions: four warps multiply tiles that lie in shared memory. Compute capability 9.0 only."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from labkit.ptx import emit
from labkit.ptx.emit import instruction

__all__ = [
    "bar_arrive_256",
    "bar_sync_128",
    "bar_sync_256",
    "gather_32",
    "gather_64",
    "spread",
    "wgmma_commit",
    "wgmma_fence",
    "wgmma_m64n8k16",
    "wgmma_m64n16k16",
    "wgmma_m64n32k16",
    "wgmma_m64n64k16",
    "wgmma_m64n64k16_ra_bn",
    "wgmma_m64n128k16",
    "wgmma_m64n128k16_bn",
    "wgmma_m64n128k16_first",
    "wgmma_m64n128k16_ra_bn",
    "wgmma_m64n176k16",
    "wgmma_m64n176k16_first",
    "wgmma_m64n256k16",
    "wgmma_m64n256k16_bn",
    "wgmma_wait",
    "wgmma_wait_1",
    "wgmma_wait_older",
    "zeros_4",
    "zeros_8",
    "zeros_16",
    "zeros_32",
    "zeros_64",
    "zeros_128",
]

HOPPER = (9, 0)

wgmma_fence = instruction(
    "wgmma_fence", "wgmma.fence.sync.aligned;", None, only=HOPPER,
    doc="""Order registers and shared memory before the first wgmma. PTX manual: "wgmma.fence".""",
)  # fmt: skip

wgmma_commit = instruction(
    "wgmma_commit", "wgmma.commit_group.sync.aligned;", None, only=HOPPER,
    doc="""Close a group of wgmma. PTX manual: "wgmma.commit_group".""",
)  # fmt: skip

wgmma_wait_1 = instruction(
    "wgmma_wait_1", "wgmma.wait_group.sync.aligned 1;", None, only=HOPPER,
    doc="""Wait until at most one group is under way: the shared memory of the one before it may be overwritten.

    Accumulators may only be read after wgmma_wait(acc). PTX manual: "wgmma.wait_group".
    """,
)  # fmt: skip


bar_sync_128 = instruction(
    "bar_sync_128", "bar.sync $0, 128;", None, "uint32",
    doc="""A barrier of 128 threads, by its number 1 … 15 (0 is cuda.syncthreads). PTX manual: "bar".""",
)  # fmt: skip

bar_sync_256 = instruction(
    "bar_sync_256", "bar.sync $0, 256;", None, "uint32",
    doc="""As bar_sync_128, of 256 threads. PTX manual: "bar".""",
)  # fmt: skip

bar_arrive_256 = instruction(
    "bar_arrive_256", "bar.arrive $0, 256;", None, "uint32",
    doc="""Arrive at a barrier of 256 threads and go on: others wait there (bar_sync_256). PTX manual: "bar".""",
)  # fmt: skip

_WGMMA = """{formula} by one warpgroup: A 64×16 in {where}, B 16×{n} in shared memory (float16), acc 64×{n} (float32).

    acc  {count} float32 a lane (labkit.ptx.zeros_{count}()): with w = warp % 4, g = lane // 4, t = lane % 4,
         acc[4j : 4j + 4] is C[16w + g, 8j + 2t], its right neighbour, and the same two of row 16w + g + 8
    a    {a}
    b    uint64 descriptor of shared memory (PTX manual: "Matrix Descriptor"; labkit.kernels has examples);
         B with {major} contiguous
    The result may be read after wgmma_wait(acc) only. Compute capability 9.0 (sm_90a). PTX manual: "wgmma.mma_async".
    """
_IN_SHARED = "uint64 descriptor, as b; A with k contiguous"
_IN_REGISTERS = "uint32 a0 … a3: a warp's 16 rows, two float16 each, laid out as mma_m16n8k16's a"


def _wgmma(n: int, *, transposed: bool = False, first: bool = False, registers: bool = False):
    """One shape. transposed: B with n contiguous; first: acc = A · B; registers: A is held by the lanes."""
    count, width = n // 2, 4 if registers else 1
    name = f"wgmma_m64n{n}k16" + "_ra" * registers + "_bn" * transposed + "_first" * first
    a = [f"${count + i}" if first else f"${2 * count + i}" for i in range(width)]
    b = f"${(1 if first else 2) * count + width}"
    text = (
        f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{','.join(f'${i}' for i in range(count))}}}, "
        f"{'{' + ','.join(a) + '}' if registers else a[0]}, {b}, {'PRED' if first else '1'}, 1, 1"
        f"{'' if registers else ', 0'}, {int(transposed)};"
    )
    if first:  # the predicate is false: what the accumulators held does not count
        text = f"{{.reg .pred PRED; setp.ne.b32 PRED, 0, 0; {text}}}"
    letters = ["r"] * 4 + ["l"] if registers else ["l", "l"]
    operands = [types.uint32] * 4 + [types.uint64] if registers else [types.uint64] * 2

    def codegen(context, builder, sig, arguments):
        emit.require(f"ptx.{name}", HOPPER, HOPPER)
        if not first:
            return _tied(context, builder, sig, arguments[0], count, text, list(arguments[1:]), letters)
        constraints = ",".join(["=f"] * count + letters + ["~{memory}"])
        struct = emit.assembly(builder, text, constraints, [ir.FloatType()] * count, list(arguments))
        return context.make_tuple(builder, sig.return_type, emit.split(builder, struct, count))

    def signature(*given):
        return types.UniTuple(types.float32, count)(*([] if first else [given[0]]), *operands)

    doc = _WGMMA.format(
        formula="acc = A · B" if first else "acc += A · B",
        where="registers" if registers else "shared memory",
        a=_IN_REGISTERS if registers else _IN_SHARED,
        n=n,
        count=count,
        major="n" if transposed else "k",
    )
    return emit.typed(name, len(operands) + (not first), signature, codegen, doc)


def _tied(context, builder, sig, acc, count: int, text: str, more, letters):
    """Assembly that changes the accumulators in place: the same registers go in and come out."""
    constraints = ["=f"] * count + [str(i) for i in range(count)] + letters + ["~{memory}"]
    values = emit.split(builder, acc, count)
    struct = emit.assembly(builder, text, ",".join(constraints), [ir.FloatType()] * count, values + more)
    return context.make_tuple(builder, sig.return_type, emit.split(builder, struct, count))


def _wait(groups: int):
    text = f"wgmma.wait_group.sync.aligned {groups};"

    def codegen(context, builder, sig, arguments):
        return _tied(context, builder, sig, arguments[0], sig.args[0].count, text, [], [])

    return codegen


def _zeros(count: int):
    def codegen(context, builder, sig, arguments):
        return context.make_tuple(builder, sig.return_type, [ir.Constant(ir.FloatType(), 0.0)] * count)

    doc = f"{count} accumulators of a lane, all zero."
    return emit.typed(f"zeros_{count}", 0, lambda: types.UniTuple(types.float32, count)(), codegen, doc)


def _places(context, builder, kind, array, count: int) -> list:
    """Pointers to the first elements of a local array; after unrolling the array lives in registers again."""
    from numba.cuda.np import arrayobj

    data = arrayobj.make_array(kind)(context, builder, array).data
    return [builder.gep(data, [ir.Constant(ir.IntType(32), i)]) for i in range(count)]


def _spread(context, builder, sig, arguments):
    values = emit.split(builder, arguments[0], sig.args[0].count)
    for value, place in zip(values, _places(context, builder, sig.args[1], arguments[1], len(values)), strict=True):
        builder.store(value, place)
    return context.get_dummy_value()


def _gather(count: int):
    def codegen(context, builder, sig, arguments):
        places = _places(context, builder, sig.args[0], arguments[0], count)
        return context.make_tuple(builder, sig.return_type, [builder.load(place) for place in places])

    doc = f"The first {count} of a local array of float32 as accumulators: spread the other way round."
    return emit.typed(f"gather_{count}", 1, lambda array: types.UniTuple(types.float32, count)(array), codegen, doc)


wgmma_m64n8k16, wgmma_m64n16k16, wgmma_m64n32k16, wgmma_m64n64k16 = map(_wgmma, (8, 16, 32, 64))
wgmma_m64n256k16 = _wgmma(256)
wgmma_m64n128k16 = _wgmma(128)
wgmma_m64n256k16_bn = _wgmma(256, transposed=True)
wgmma_m64n128k16_bn = _wgmma(128, transposed=True)
wgmma_m64n128k16_first = _wgmma(128, first=True)
wgmma_m64n176k16 = _wgmma(176)
wgmma_m64n176k16_first = _wgmma(176, first=True)
wgmma_m64n64k16_ra_bn = _wgmma(64, transposed=True, registers=True)
wgmma_m64n128k16_ra_bn = _wgmma(128, transposed=True, registers=True)
wgmma_wait = emit.typed(
    "wgmma_wait", 1, lambda acc: acc(acc), _wait(0), "Wait for all wgmma; returns the accumulators, now readable."
)
wgmma_wait_older = emit.typed(
    "wgmma_wait_older", 1, lambda acc: acc(acc), _wait(1),
    "Wait for all wgmma but the newest group; returns the accumulators of an older one, now readable.",
)  # fmt: skip
zeros_128, zeros_64, zeros_32, zeros_16, zeros_8, zeros_4 = map(_zeros, (128, 64, 32, 16, 8, 4))
gather_64, gather_32 = map(_gather, (64, 32))
spread = emit.typed(
    "spread", 2, lambda acc, array: types.void(acc, array), _spread, "Accumulators into a local array, to loop over."
)
