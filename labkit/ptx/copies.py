"""Copies from global to shared memory that no thread waits for: cp.async (Ampere), and Hopper's tensor copies."""

from __future__ import annotations

from labkit.ptx.emit import instruction, nothing

__all__ = [
    "cp_async_16",
    "cp_async_16_l2_128b",
    "cp_async_commit",
    "cp_async_wait",
    "fence_mbarrier_init",
    "fence_proxy_async",
    "mbarrier_arrive",
    "mbarrier_expect",
    "mbarrier_init",
    "mbarrier_wait",
    "prefetch_map",
    "tma_load_2d",
    "tma_load_3d",
    "tma_store_2d",
    "tma_store_3d",
    "tma_store_commit",
    "tma_store_wait_0",
    "tma_store_wait_1",
]

cp_async_16 = instruction(
    "cp_async_16", "cp.async.cg.shared.global [$0], [$1], 16, $2;", None, "uint32", "int64", "int32", since=(8, 0),
    doc="""Start a copy of 16 bytes to shared memory, past the L1.

    target   uint32 (shared), source int64 (global), both aligned to 16 bytes
    nbytes   int32, 0 … 16: so many are read, the rest is filled with zeros; this is how an edge is guarded
    Compute capability 8.0. PTX manual: "Non-bulk copy: cp.async".
    """,
)  # fmt: skip

cp_async_16_l2_128b = instruction(
    "cp_async_16_l2_128b", "cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;", None, "uint32", "int64", "int32",
    since=(8, 0),
    doc="""cp_async_16, and a hint: what is not in the L2 comes from memory in whole lines of 128 bytes.

    PTX manual: "Non-bulk copy: cp.async", ".level::prefetch_size".
    """,
)  # fmt: skip

cp_async_commit = instruction(
    "cp_async_commit", "cp.async.commit_group;", None, since=(8, 0), plain=nothing,
    doc="""Close a group: all copies of this thread since the last one. PTX manual: "cp.async.commit_group".""",
)  # fmt: skip


def _wait(n: int):
    return instruction(
        f"cp_async_wait_{n}", f"cp.async.wait_group {n};", None, since=(8, 0), plain=nothing,
        doc=f"""Wait until at most {n} of this thread's groups are still under way. Other threads' copies need a
    barrier besides. PTX manual: "cp.async.wait_group".""",
    )  # fmt: skip


WAITS = {f"cp_async_wait_{n}": _wait(n) for n in range(16)}
globals().update(WAITS)  # by their own names, as other intrinsics: cp_async_wait_0, ...
__all__ += WAITS


def cp_async_wait(n: int):
    """The instruction cp_async_wait_n, for a kernel that is built for a constant n, 0 … 15."""
    return WAITS[f"cp_async_wait_{n}"]


# --- mbarriers: a barrier in shared memory that also counts bytes ---------------------------------------------

mbarrier_init = instruction(
    "mbarrier_init", "mbarrier.init.shared::cta.b64 [$0], $1;", None, "uint32", "uint32", since=(8, 0),
    doc="""Make a barrier of 8 bytes at a shared address that completes a phase when `count` arrivals came.

    PTX manual: "mbarrier.init".
    """,
)  # fmt: skip

mbarrier_arrive = instruction(
    "mbarrier_arrive", "{.reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [$0];}", None, "uint32", since=(8, 0),
    doc="""Arrive at a barrier. PTX manual: "mbarrier.arrive".""",
)  # fmt: skip

mbarrier_expect = instruction(
    "mbarrier_expect", "{.reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [$0], $1;}", None,
    "uint32", "uint32", since=(9, 0),
    doc="""Arrive, and let the phase wait for so many bytes of tensor copies besides.

    Compute capability 9.0. PTX manual: "mbarrier.arrive" with ".expect_tx".
    """,
)  # fmt: skip

mbarrier_wait = instruction(
    "mbarrier_wait",
    "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @!done bra again;}",
    None, "uint32", "uint32", since=(9, 0),
    doc="""Wait for the phase of this parity (0 for the first, then 1, 0, ...) to complete.

    Compute capability 9.0. PTX manual: "mbarrier.try_wait".
    """,
)  # fmt: skip

fence_mbarrier_init = instruction(
    "fence_mbarrier_init", "fence.mbarrier_init.release.cluster;", None, since=(9, 0),
    doc="""Let the copy engine see barriers that were just made. PTX manual: "fence.mbarrier_init".""",
)  # fmt: skip

fence_proxy_async = instruction(
    "fence_proxy_async", "fence.proxy.async.shared::cta;", None, since=(9, 0),
    doc="""Let the tensor cores and the copy engine see what this thread stored in shared memory.

    Compute capability 9.0. PTX manual: "fence.proxy.async".
    """,
)  # fmt: skip

# --- tensor copies (TMA) --------------------------------------------------------------------------------------

tma_load_2d = instruction(
    "tma_load_2d",
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3}], [$4];",
    None, "uint32", "int64", "int32", "int32", "uint32", since=(9, 0),
    doc="""Start the copy of one box of a matrix to shared memory; what lies outside the matrix arrives as zeros.

    target   uint32 (shared), aligned to 128 bytes (1,024 where the map swizzles)
    map      int64: address of the tensor map (labkit.ptx.tensor_map)
    column, row  int32: the box's first element
    barrier  uint32 (shared): the mbarrier that counts the box's bytes
    Compute capability 9.0. PTX manual: "cp.async.bulk.tensor".
    """,
)  # fmt: skip

prefetch_map = instruction(
    "prefetch_map", "prefetch.tensormap [$0];", None, "int64", since=(9, 0),
    doc="""Have a tensor map brought to where the copy engine reads it, before the first copy asks for it.

    map  int64: its address. Compute capability 9.0. PTX manual: "prefetch, prefetchu".
    """,
)  # fmt: skip

tma_store_2d = instruction(
    "tma_store_2d", "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$1, $2}], [$3];",
    None, "int64", "int32", "int32", "uint32", since=(9, 0),
    doc="""Start the copy of a box from shared memory to a matrix; what lies outside the matrix is not written.

    map, column, row, source: as in tma_load_2d. Compute capability 9.0. PTX manual: "cp.async.bulk.tensor".
    """,
)  # fmt: skip

tma_load_3d = instruction(
    "tma_load_3d",
    "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3, $4}], [$5];",
    None, "uint32", "int64", "int32", "int32", "int32", "uint32", since=(9, 0),
    doc="""As tma_load_2d, from the matrix with index `plane` of a stack of them.

    target, map, column, row, plane, barrier. Compute capability 9.0. PTX manual: "cp.async.bulk.tensor".
    """,
)  # fmt: skip

tma_store_3d = instruction(
    "tma_store_3d", "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [$0, {$1, $2, $3}], [$4];",
    None, "int64", "int32", "int32", "int32", "uint32", since=(9, 0),
    doc="""As tma_store_2d, to the matrix with index `plane` of a stack of them.

    map, column, row, plane, source. Compute capability 9.0. PTX manual: "cp.async.bulk.tensor".
    """,
)  # fmt: skip

tma_store_commit = instruction(
    "tma_store_commit", "cp.async.bulk.commit_group;", None, since=(9, 0),
    doc="""Close a group of this thread's tensor stores. PTX manual: "cp.async.bulk.commit_group".""",
)  # fmt: skip


def _store_wait(n: int):
    return instruction(
        f"tma_store_wait_{n}", f"cp.async.bulk.wait_group.read {n};", None, since=(9, 0),
        doc=f"""Wait until all but {n} of this thread's groups of tensor stores have read their shared memory.

    Compute capability 9.0. PTX manual: "cp.async.bulk.wait_group".
    """,
    )  # fmt: skip


tma_store_wait_0, tma_store_wait_1 = map(_store_wait, range(2))
