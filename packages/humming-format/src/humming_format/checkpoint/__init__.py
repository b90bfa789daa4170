"""Checkpoint readers: from a file or folder to layers, their formats and the places of their tensors.
Called through `read_checkpoint`; one file per exporter, as data.
Assumes only the standard library and attrs."""

from .entry import Checkpoint, LayerEntry, TensorPlace
from .exact import decode_rows, group_of_column
from .gguf import BLOCKS
from .gguf_pieces import PIECES, GgufPieces, Piece
from .layout import GgufBlock, GptqLayout
from .matrix_layout import FieldLayout, MatrixLayout, NestedScale, StoredScale
from .read import KNOWN_METHODS, read_checkpoint

__all__ = [
    "BLOCKS",
    "KNOWN_METHODS",
    "PIECES",
    "Checkpoint",
    "FieldLayout",
    "GgufBlock",
    "GgufPieces",
    "GptqLayout",
    "LayerEntry",
    "MatrixLayout",
    "NestedScale",
    "Piece",
    "StoredScale",
    "TensorPlace",
    "decode_rows",
    "group_of_column",
    "read_checkpoint",
]
