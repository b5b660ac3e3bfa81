"""One colour and one marker a variant, all course long."""

from __future__ import annotations

# Okabe and Ito's colours, told apart by every kind of colour vision
ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE, YELLOW, GREY = (
    "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#D9CC2B", "#888888",
)  # fmt: skip
VARIANTS = {
    "unfused": (ORANGE, "o"),
    "fused": (SKY, "o"),
    "unfused-4": (VERMILLION, "s"),
    "fused-4": (BLUE, "s"),
    "copy": (GREY, "X"),
    "numba": (BLUE, "s"),
    "numba-unconfigured": (ORANGE, "v"),
    "numba-new-grid": (VERMILLION, "v"),
    "numba-graph": (GREEN, "*"),
    "torch-eager": (PURPLE, "^"),
    "torch-compile": (YELLOW, "D"),
    "torch-graph": (YELLOW, "P"),
    "torch-compile-graph": (YELLOW, "X"),
    "triton": (GREEN, "D"),
    "event-pair": (VERMILLION, "v"),
    "batch": (ORANGE, "o"),
    "queued": (BLUE, "s"),
    "queued-hot": (SKY, "o"),
    "measured": (BLUE, "s"),
    "from bytes": (ORANGE, "o"),
    "do_bench": (GREEN, "D"),
    "returns": (ORANGE, "o"),
    "separate": (VERMILLION, "s"),
    "fused-1": (ORANGE, "v"),
    "launch": (VERMILLION, "v"),
    "kernel": (BLUE, "s"),
    "read": (BLUE, "s"),
    "fma": (GREEN, "o"),
    "l2": (GREY, "o"),
    "polynomial": (GREEN, "p"),
    "softmax": (BLUE, "D"),
    "layer-norm": (PURPLE, "^"),
    "gemv": (ORANGE, "v"),
    "attention": (VERMILLION, "P"),
    "attention-decode": (VERMILLION, "P"),
    "axpy": (ORANGE, "v"),
    "matmul": (GREEN, "*"),
    "cublas": (GREY, "X"),
    "naive": (VERMILLION, "v"),
    "coalesced": (ORANGE, "v"),
    "tiled": (ORANGE, "s"),
    "register-tiled": (SKY, "s"),
    "vectorised": (BLUE, "s"),
    "mma": (PURPLE, "^"),
    "wgmma": (GREEN, "^"),
    "skinny": (SKY, "D"),
    "split-k": (GREEN, "P"),
    "outer": (VERMILLION, "o"),
    "tall": (PURPLE, "D"),
    "batched": (YELLOW, "s"),
    "dots": (YELLOW, "o"),
    "autotune": (BLUE, "*"),
    "epilogue": (GREEN, "s"),
    "cublas-lt": (PURPLE, "X"),
    "tiled-every": (GREY, "s"),
    "tiled-in-order": (YELLOW, "s"),
    "torch-math": (GREY, "v"),
    "torch-fa2": (SKY, "o"),
    "torch-cudnn": (BLUE, "X"),
    "asked": (BLUE, "o"),
    "fell": (VERMILLION, "X"),
    "ptx": (SKY, "o"),
    "sass": (BLUE, "s"),
    "numba-separate": (VERMILLION, "s"),
    "numba-fused": (SKY, "s"),
    "torch-compile-autotune": (ORANGE, "D"),
    "select": (ORANGE, "s"),
    "fuse": (SKY, "s"),
    "separate-graph": (VERMILLION, "D"),
    "select-graph": (ORANGE, "d"),
    "fuse-graph": (SKY, "D"),
    "floor": (GREY, "_"),
}


def colour(variant: str) -> str:
    """The variant's colour in every figure of the course."""
    return VARIANTS.get(variant, (GREY, "o"))[0]


def marker(variant: str) -> str:
    """The variant's marker in every figure of the course."""
    return VARIANTS.get(variant, (GREY, "o"))[1]


def linestyle(variant: str) -> str:
    """Dashed for what a variant is compared with, so that a line below another still shows."""
    return "--" if variant in ("copy", "from bytes", "launch") or variant.startswith("unfused") else "-"
