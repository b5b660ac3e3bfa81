"""Chapter 08's bench: a decoder layer's arrays and numbers, what is right, PyTorch's ways, and how a step is timed."""

from labkit.decoder.alone import attention_rows, kernel_rows
from labkit.decoder.data import as_many_layers, fits, random_layer, random_x, shorter
from labkit.decoder.exact import reference
from labkit.decoder.layer import HD, Layer, Room, in_float64, rope_table, separate_costs, toy_layer
from labkit.decoder.products import product_rows
from labkit.decoder.torch_layer import torch_step
from labkit.decoder.torch_ways import TorchWays, compiled_rows
from labkit.decoder.ways import Way, run_chain, step_rows

__all__ = [
    "HD",
    "Layer",
    "Room",
    "TorchWays",
    "Way",
    "as_many_layers",
    "attention_rows",
    "compiled_rows",
    "fits",
    "in_float64",
    "kernel_rows",
    "product_rows",
    "random_layer",
    "random_x",
    "reference",
    "rope_table",
    "run_chain",
    "separate_costs",
    "shorter",
    "step_rows",
    "torch_step",
    "toy_layer",
]
