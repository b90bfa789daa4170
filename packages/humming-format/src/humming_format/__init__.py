"""What the bits of a quantized checkpoint mean: numbers, scales, zero points, weight formats, checkpoint readers.
Called by people with a checkpoint at hand, and by the other humming packages.
Assumes nothing but the standard library and attrs: no numpy, no torch, no GPU."""

from .activation import ActivationFormat
from .document import from_document, to_document, weight_from_document
from .errors import CheckpointError, DescriptorError, DocumentError, FormatError, TextError
from .number import NUMBERS, Number, NumberKind, Specials, number
from .scale import ScaleFormat
from .text import format_activation, format_weight, parse_activation, parse_weight
from .weight import WeightFormat, symmetric
from .zero_point import ZeroPointFormat, ZeroPointKind

__version__ = "0.1.0"

__all__ = [
    "NUMBERS",
    "ActivationFormat",
    "CheckpointError",
    "DescriptorError",
    "DocumentError",
    "FormatError",
    "Number",
    "NumberKind",
    "ScaleFormat",
    "Specials",
    "TextError",
    "WeightFormat",
    "ZeroPointFormat",
    "ZeroPointKind",
    "format_activation",
    "format_weight",
    "from_document",
    "number",
    "parse_activation",
    "parse_weight",
    "symmetric",
    "to_document",
    "weight_from_document",
]
