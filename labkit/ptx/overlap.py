"""Kernels of one stream that overlap: Hopper's programmatic dependent launch.

Before compute capability 9.0 kernels of a stream never overlap: there these functions emit nothing, and all is right.
"""

from __future__ import annotations

from numba import types
from numba.core.targetconfig import ConfigStack

from labkit.ptx import emit

__all__ = ["start_next", "wait_for_previous"]


def _on_hopper() -> bool:
    return tuple(ConfigStack().top().compute_capability)[:2] >= (9, 0)


def _bare(text: str):
    def codegen(context, builder, sig, arguments):
        if _on_hopper():
            emit.assembly(builder, text, "~{memory}", [], [])
        return context.get_dummy_value()

    return codegen


start_next = emit.typed(
    "start_next", 0, lambda: types.void(), _bare("griddepcontrol.launch_dependents;"),
    """Let the next kernel of the stream start as soon as all blocks came here and there is room for its blocks.

    It counts for a kernel that was launched with ptx.prepare(..., early=True), and orders nothing: what it needs of
    this kernel is there after its own wait_for_previous. PTX manual: "griddepcontrol".
    """,
    plain=emit.nothing,
)  # fmt: skip
wait_for_previous = emit.typed(
    "wait_for_previous", 0, lambda: types.void(), _bare("griddepcontrol.wait;"),
    """Wait until the kernel before has ended and all that it wrote is to be seen. PTX manual: "griddepcontrol".""",
    plain=emit.nothing,
)  # fmt: skip
