"""Kernels that the chapters select rather than teach: Hopper's matrix product."""

from labkit.kernels.matmul_wgmma import matmul_wgmma

__all__ = ["matmul_wgmma"]
