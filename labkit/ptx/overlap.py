"""Kernels of one stream that overlap (Hopper's programmatic dependent launch), and bytes fetched before their use.

Before compute capability 9.0 kernels of a stream never overlap: there these functions emit nothing, and all is right.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core.targetconfig import ConfigStack

from labkit.ptx import emit, memory
from labkit.ptx.halves import as_pair

__all__ = [
    "add_in_order",
    "close_copies",
    "copy8",
    "ld_acquire",
    "prefetch_l2",
    "start_next",
    "wait_copies",
    "wait_for_previous",
]

COPY = (
    "{.reg .u64 a; .reg .u32 s; cvta.to.shared.u64 a, $0; cvt.u32.u64 s, a; "
    "cp.async.cg.shared.global [s], [$1], 16, $2;}"
)

PREFETCH = "cp.async.bulk.prefetch.L2.global [$0], $1;"


def _on_hopper() -> bool:
    return tuple(ConfigStack().top().compute_capability)[:2] >= (9, 0)


def _bare(text: str):
    def codegen(context, builder, sig, arguments):
        if _on_hopper():
            emit.assembly(builder, text, "~{memory}", [], [])
        return context.get_dummy_value()

    return codegen


def _prefetch(context, builder, sig, arguments):
    if _on_hopper():
        pointer = memory._pointer(context, builder, sig.args[0], arguments[0], sig.args[1], arguments[1])
        at = builder.ptrtoint(pointer, ir.IntType(64))
        nbytes = context.cast(builder, arguments[2], sig.args[2], types.uint32)
        emit.assembly(builder, PREFETCH, "l,r,~{memory}", [], [at, nbytes])
    return context.get_dummy_value()


def _copy(context, builder, sig, arguments):
    emit.require("ptx.copy8", (8, 0))
    wide = ir.IntType(64)
    target = memory._pointer(context, builder, sig.args[0], arguments[0], sig.args[1], arguments[1])
    source = memory._pointer(context, builder, sig.args[2], arguments[2], sig.args[3], arguments[3])
    nbytes = context.cast(builder, arguments[4], sig.args[4], types.uint32)
    addresses = [builder.ptrtoint(pointer, wide) for pointer in (target, source)]
    emit.assembly(builder, COPY, "l,l,r,~{memory}", [], [*addresses, nbytes])
    return context.get_dummy_value()


def _copy_plain(shared, at, source, index, nbytes):
    i, j = index
    for e in range(4):
        shared[at + e] = as_pair(source[i, j + 2 * e], source[i, j + 2 * e + 1]) if nbytes else 0


def _nothing():
    pass


def _no_prefetch(array, index, nbytes):
    pass


start_next = emit.typed(
    "start_next", 0, lambda: types.void(), _bare("griddepcontrol.launch_dependents;"),
    """Let the next kernel of the stream start as soon as all blocks came here and there is room for its blocks.

    It counts for a kernel that was launched with ptx.prepare(..., early=True), and orders nothing: what it needs of
    this kernel is there after its own wait_for_previous. PTX manual: "griddepcontrol".
    """,
    plain=_nothing,
)  # fmt: skip
wait_for_previous = emit.typed(
    "wait_for_previous", 0, lambda: types.void(), _bare("griddepcontrol.wait;"),
    """Wait until the kernel before has ended and all that it wrote is to be seen. PTX manual: "griddepcontrol".""",
    plain=_nothing,
)  # fmt: skip
prefetch_l2 = emit.typed(
    "prefetch_l2", 3, lambda array, index, nbytes: types.void(array, index, nbytes), _prefetch,
    """Start to fetch nbytes from array[index] on into the L2; both multiples of 16 bytes. One thread asks, none waits.

    PTX manual: "cp.async.bulk.prefetch".
    """,
    plain=_no_prefetch,
)  # fmt: skip
copy8 = emit.typed(
    "copy8", 5, lambda *a: types.void(*a), _copy,
    """Start a copy of eight float16 at source[index] and after it to shared[at] and after it; no thread waits.

    shared  uint32, one dimension; `at` a multiple of 4, so that it is aligned to 16 bytes, as source[index] must be
    nbytes  16, or 0: nothing is read then, and zeros are stored; this is how an edge is guarded
    Compute capability 8.0. Without a GPU it is done at once. PTX manual: "Non-bulk copy: cp.async".
    """,
    plain=_copy_plain,
)  # fmt: skip
close_copies = emit.instruction(
    "close_copies", "cp.async.commit_group;", None, since=(8, 0), plain=_nothing,
    doc="""Close a group: all copies of this thread since the last one. PTX manual: "cp.async.commit_group".""",
)  # fmt: skip

ld_acquire = emit.instruction(
    "ld_acquire", "ld.acquire.gpu.global.u32 $0, [$1];", "uint32", "int64",
    doc="""A uint32 at a global address, read anew; what its writer stored before it may be read after it.

    PTX manual: "ld", with ".acquire".
    """,
)  # fmt: skip
add_in_order = emit.instruction(
    "add_in_order", "atom.add.acq_rel.gpu.global.s32 $0, [$1], $2;", "int32", "int64", "int32", since=(7, 0),
    doc="""Add to an int32 at a global address and return what it held. What the block's threads stored before the
    barrier ahead of it is there for whoever adds later, and what earlier ones stored may be read after it.

    PTX manual: "atom", with ".acq_rel".
    """,
)  # fmt: skip


def _wait(n: int):
    return emit.instruction(
        f"wait_copies_{n}", f"cp.async.wait_group {n};", None, since=(8, 0), plain=_nothing,
        doc=f"""Wait until at most {n} of this thread's groups are under way. PTX manual: "cp.async.wait_group".""",
    )  # fmt: skip


WAITS = {f"wait_copies_{n}": _wait(n) for n in range(16)}
globals().update(WAITS)
__all__ += WAITS


def wait_copies(n: int):
    """The instruction that waits until at most n groups are under way, for a kernel that is built for a constant n."""
    return WAITS[f"wait_copies_{n}"]
