"""Quantized linear layers for PyTorch, on kernels composed and compiled on demand.

Called by users; importing it registers the operators under `torch.ops.humming_torch`.
Assumes torch; no driver is touched and no process started before the first GPU call.
"""

from __future__ import annotations

from humming_torch.convert import CanonicalWeight, quantize, read_layer, read_layers
from humming_torch.errors import HummingTorchError
from humming_torch.modules import Linear
from humming_torch.ops.dense import dense
from humming_torch.pack import pack, unpack
from humming_torch.packed_weight import PackedWeight

__version__ = "0.1.0"

__all__ = [
    "CanonicalWeight",
    "HummingTorchError",
    "Linear",
    "PackedWeight",
    "dense",
    "pack",
    "quantize",
    "read_layer",
    "read_layers",
    "unpack",
]
