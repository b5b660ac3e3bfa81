"""Hopper's warpgroup instructions: four warps multiply tiles that lie in shared memory. Compute capability 9.0 only."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from labkit.ptx import emit
from labkit.ptx.emit import instruction

__all__ = [
    "bar_sync_128",
    "spread",
    "wgmma_commit",
    "wgmma_fence",
    "wgmma_m64n128k16",
    "wgmma_m64n128k16_bn",
    "wgmma_m64n256k16",
    "wgmma_m64n256k16_bn",
    "wgmma_wait",
    "wgmma_wait_1",
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

_WGMMA = """acc += A · B by one warpgroup, A 64×16 and B 16×{n} in shared memory (float16), acc 64×{n} (float32).

    acc  {count} float32 a lane (labkit.ptx.zeros_{count}()): with w = warp % 4, g = lane // 4, t = lane % 4,
         acc[4j : 4j + 4] is C[16w + g, 8j + 2t], its right neighbour, and the same two of row 16w + g + 8
    a, b  uint64 descriptors of shared memory (PTX manual: "Matrix Descriptor"; labkit.kernels.matmul_wgmma has both);
         A with k contiguous, B with {major} contiguous
    The result may be read after wgmma_wait(acc) only. Compute capability 9.0 (sm_90a). PTX manual: "wgmma.mma_async".
    """


def _wgmma(name: str, n: int, transposed: bool):
    count = n // 2

    def codegen(context, builder, sig, arguments):
        emit.require(f"ptx.{name}", HOPPER, HOPPER)
        acc, a, b = arguments
        registers = ",".join(f"${i}" for i in range(count))
        text = (
            f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{registers}}}, "
            f"${2 * count}, ${2 * count + 1}, 1, 1, 1, 0, {int(transposed)};"
        )
        return _tied(context, builder, sig, acc, count, text, [a, b], ["l", "l"])

    def signature(acc, a, b):
        return acc(acc, types.uint64, types.uint64)

    doc = _WGMMA.format(n=n, count=count, major="n" if transposed else "k")
    return emit.typed(name, 3, signature, codegen, doc)


def _tied(context, builder, sig, acc, count: int, text: str, more, letters):
    """Assembly that changes the accumulators in place: the same registers go in and come out."""
    constraints = ["=f"] * count + [str(i) for i in range(count)] + letters + ["~{memory}"]
    values = emit.split(builder, acc, count)
    struct = emit.assembly(builder, text, ",".join(constraints), [ir.FloatType()] * count, values + more)
    return context.make_tuple(builder, sig.return_type, emit.split(builder, struct, count))


def _wait_all(context, builder, sig, arguments):
    count = sig.args[0].count
    return _tied(context, builder, sig, arguments[0], count, "wgmma.wait_group.sync.aligned 0;", [], [])


def _zeros(count: int):
    def codegen(context, builder, sig, arguments):
        return context.make_tuple(builder, sig.return_type, [ir.Constant(ir.FloatType(), 0.0)] * count)

    doc = f"{count} accumulators of a lane, all zero."
    return emit.typed(f"zeros_{count}", 0, lambda: types.UniTuple(types.float32, count)(), codegen, doc)


def _spread(context, builder, sig, arguments):
    """Each accumulator into its place of a local array; after unrolling the array lives in registers again."""
    from numba.cuda.np import arrayobj

    array = arrayobj.make_array(sig.args[1])(context, builder, arguments[1])
    for i, value in enumerate(emit.split(builder, arguments[0], sig.args[0].count)):
        builder.store(value, builder.gep(array.data, [ir.Constant(ir.IntType(32), i)]))
    return context.get_dummy_value()


wgmma_m64n256k16 = _wgmma("wgmma_m64n256k16", 256, transposed=False)
wgmma_m64n128k16 = _wgmma("wgmma_m64n128k16", 128, transposed=False)
wgmma_m64n256k16_bn = _wgmma("wgmma_m64n256k16_bn", 256, transposed=True)
wgmma_m64n128k16_bn = _wgmma("wgmma_m64n128k16_bn", 128, transposed=True)
wgmma_wait = emit.typed(
    "wgmma_wait", 1, lambda acc: acc(acc), _wait_all, "Wait for all wgmma; returns the accumulators, now readable."
)
zeros_128, zeros_64 = _zeros(128), _zeros(64)
spread = emit.typed(
    "spread", 2, lambda acc, array: types.void(acc, array), _spread, "Accumulators into a local array, to loop over."
)
