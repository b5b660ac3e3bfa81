"""Small arithmetic that numba has no name for."""

from __future__ import annotations

from labkit.ptx import halves
from labkit.ptx.emit import instruction

__all__ = [
    "exp2",
    "ld_global_v4_b32",
    "ld_shared_v4_b32",
    "max_f32",
    "max_nan_f32",
    "pack_half2",
    "same",
    "st_global_b32",
    "st_global_v2_b32",
    "st_global_v4_b32",
    "st_shared_b32",
    "unpack_half2",
]


pack_half2 = instruction(
    "pack_half2", "cvt.rn.f16x2.f32 $0, $2, $1;", "uint32", "float32", "float32", since=(8, 0), effect=False,
    plain=halves.pair,
    doc="""Two float32 rounded to float16 in one uint32: the first in the low half, where memory has it first.

    Compute capability 8.0. PTX manual: "Data Movement and Conversion Instructions: cvt".
    """,
)  # fmt: skip

unpack_half2 = instruction(
    "unpack_half2", "{.reg .b16 lo, hi; mov.b32 {lo, hi}, $2; cvt.f32.f16 $0, lo; cvt.f32.f16 $1, hi;}",
    ("float32",) * 2, "uint32", effect=False, plain=halves.values,
    doc="""The two float16 of a uint32 as float32, the one in the low half first: pack_half2 the other way round.

    PTX manual: "Data Movement and Conversion Instructions: cvt".
    """,
)  # fmt: skip

exp2 = instruction(
    "exp2", "ex2.approx.ftz.f32 $0, $1;", "float32", "float32", effect=False,
    doc="""2 to the power of a float32, by the special function unit (about 2 ulp; tiny results become 0).

    PTX manual: "Floating Point Instructions: ex2".
    """,
)  # fmt: skip

same = instruction(
    "same", "mov.b32 $0, $1;", "int32", "int32", plain=lambda n: n,
    doc="""An int32 of which the compiler knows nothing: a loop that counts with it is not unrolled.

    PTX manual: "Data Movement and Conversion Instructions: mov".
    """,
)  # fmt: skip

max_f32 = instruction(
    "max_f32", "max.f32 $0, $1, $2;", "float32", "float32", "float32", effect=False,
    doc="""The larger of two float32; of a NaN and a number the number. PTX manual: "max".""",
)  # fmt: skip

max_nan_f32 = instruction(
    "max_nan_f32", "max.NaN.f32 $0, $1, $2;", "float32", "float32", "float32", since=(8, 0), effect=False,
    doc="""The larger of two float32; NaN if one of them is NaN. Compute capability 8.0. PTX manual: "max".""",
)  # fmt: skip

st_global_b32 = instruction(
    "st_global_b32", "st.global.b32 [$0], $1;", None, "int64", "uint32",
    doc="""Store a uint32 (such as two float16 from pack_half2) at a global address, aligned to 4 bytes.

    PTX manual: "Data Movement and Conversion Instructions: st".
    """,
)  # fmt: skip

st_global_v2_b32 = instruction(
    "st_global_v2_b32", "st.global.v2.b32 [$0], {$1,$2};", None, "int64", *("uint32",) * 2,
    doc="""Store two uint32 at a global address, aligned to 8 bytes.

    PTX manual: "Data Movement and Conversion Instructions: st".
    """,
)  # fmt: skip

st_global_v4_b32 = instruction(
    "st_global_v4_b32", "st.global.v4.b32 [$0], {$1,$2,$3,$4};", None, "int64", *("uint32",) * 4,
    doc="""Store four uint32 at a global address, aligned to 16 bytes.

    PTX manual: "Data Movement and Conversion Instructions: st".
    """,
)  # fmt: skip

st_shared_b32 = instruction(
    "st_shared_b32", "st.shared.b32 [$0], $1;", None, "uint32", "uint32",
    doc="""Store a uint32 at a shared address, aligned to 4 bytes.

    PTX manual: "Data Movement and Conversion Instructions: st".
    """,
)  # fmt: skip

ld_global_v4_b32 = instruction(
    "ld_global_v4_b32", "ld.global.v4.b32 {$0,$1,$2,$3}, [$4];", ("uint32",) * 4, "int64",
    doc="""Four uint32 (eight float16) from a global address, aligned to 16 bytes.

    PTX manual: "Data Movement and Conversion Instructions: ld".
    """,
)  # fmt: skip

ld_shared_v4_b32 = instruction(
    "ld_shared_v4_b32", "ld.shared.v4.b32 {$0,$1,$2,$3}, [$4];", ("uint32",) * 4, "uint32",
    doc="""Four uint32 from a shared address, aligned to 16 bytes.

    PTX manual: "Data Movement and Conversion Instructions: ld".
    """,
)  # fmt: skip
