"""Kernels that the chapters select rather than teach: for Hopper a product and attention, and a large MLP."""

from labkit.kernels.attention_wgmma import attention_wgmma
from labkit.kernels.matmul_wgmma import matmul_wgmma
from labkit.kernels.mlp_streaming import mlp_streaming

__all__ = ["attention_wgmma", "matmul_wgmma", "mlp_streaming"]
