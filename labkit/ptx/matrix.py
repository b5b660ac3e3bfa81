"""Warp-level tensor-core instructions: Ampere and newer (mma.sync, ldmatrix), and Hopper's stmatrix.

A *fragment* is the part of a matrix that one lane holds. `labkit.ptx.layout` shows who holds what.
"""

from __future__ import annotations

from labkit.ptx.emit import instruction

__all__ = [
    "ldmatrix_x4",
    "ldmatrix_x4_trans",
    "mma_m16n8k16",
    "stmatrix_x4",
]

U, F = "uint32", "float32"

mma_m16n8k16 = instruction(
    "mma_m16n8k16",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
    (F,) * 4, *(U,) * 6, *(F,) * 4, since=(8, 0), effect=False,
    doc="""d = a · b + c for a 16×16 (float16), b 16×8 (float16), c and d 16×8 (float32), by one warp.

    a0 … a3  uint32, two float16 each; b0, b1 likewise; c0 … c3 float32. Returns d0 … d3.
    With g = lane // 4 and t = lane % 4 a lane holds
      a0: a[g, 2t:2t+2]      a1: a[g + 8, 2t:2t+2]    a2: a[g, 2t+8:2t+10]    a3: a[g + 8, 2t+8:2t+10]
      b0: b[2t:2t+2, g]      b1: b[2t+8:2t+10, g]
      c0, c1: c[g, 2t:2t+2]  c2, c3: c[g + 8, 2t:2t+2]                        (d as c)
    Compute capability 8.0. PTX manual: "Matrix Fragments for mma.m16n8k16 with floating point type".
    """,
)  # fmt: skip

_LDMATRIX = """Four 8×8 matrices of 16-bit values from shared memory{how}, by one warp: uint32 r0 … r3.

    address  uint32 (shared): lane 8i + j gives the address of row j of matrix i, 16 bytes, aligned to 16
    ri       two neighbours of matrix i: {holds}, for g = lane // 4, t = lane % 4
    Compute capability 7.5. PTX manual: "Warp-level matrix load instruction: ldmatrix".
    """


def _ldmatrix(name: str, option: str, doc: str):
    text = f"ldmatrix.sync.aligned.m8n8.x4{option}.shared.b16 {{$0,$1,$2,$3}}, [$4];"
    return instruction(name, text, (U,) * 4, U, since=(7, 5), doc=doc)


ldmatrix_x4 = _ldmatrix("ldmatrix_x4", "", _LDMATRIX.format(how="", holds="[g, 2t:2t+2]"))
ldmatrix_x4_trans = _ldmatrix(
    "ldmatrix_x4_trans", ".trans", _LDMATRIX.format(how=", each transposed", holds="[2t:2t+2, g]")
)

stmatrix_x4 = instruction(
    "stmatrix_x4",
    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1,$2,$3,$4};",
    None, *(U,) * 5, since=(9, 0),
    doc="""Store four 8×8 matrices of 16-bit values to shared memory: ldmatrix_x4 the other way round.

    address, r0 … r3. Compute capability 9.0. PTX manual: "Warp-level matrix store instruction: stmatrix".
    """,
)  # fmt: skip
