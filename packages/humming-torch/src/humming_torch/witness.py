"""Independent decoders of stored layers: what a conversion is compared with, bit for bit.

Called by the quickstart command and by tests.
Assumes the `gguf` package for GGUF files; of GPTQ layers, humming_format decodes a few rows on Python fractions.
"""

from __future__ import annotations

import attrs
import torch
from humming_format.checkpoint import Checkpoint, LayerEntry, decode_rows

from humming_torch.errors import UnsupportedError

ROWS = 4
"""Rows of a layer that are decoded on fractions."""


@attrs.frozen(kw_only=True)
class Comparison:
    """How many layers were compared with a witness, and how many of them were equal in every bit."""

    layers: int
    exact: int


class Witness:
    """Decodes layers of one checkpoint without any code of `humming_torch.convert`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._gguf = _gguf_tensors(checkpoint) if checkpoint.container == "gguf" else None

    @property
    def name(self) -> str:
        """Who the witness is, in words."""
        if self._gguf is not None:
            return "the gguf package's own dequantization"
        return f"exact fractions, {ROWS} rows of one layer of each shape"

    @property
    def whole(self) -> bool:
        """Whether every weight of every layer is compared."""
        return self._gguf is not None

    def differences(self, entry: LayerEntry, values: torch.Tensor) -> int:
        """How many weights of the f32 [n, k] that a conversion gave differ from the witness's, in any bit."""
        if self._gguf is not None:
            return _differences(values, self._gguf.dequantize(entry.name))
        step = max(1, (entry.n - 1) // (ROWS - 1))
        rows = sorted({min(entry.n - 1, index * step) for index in range(ROWS)})
        exact = [[float(value) for value in row] for row in decode_rows(entry, rows)]
        # Through f64: a code difference of 9 bits times a scale of 24 is exact there, and is rounded to f32 once.
        return _differences(values[rows], torch.tensor(exact, dtype=torch.float64).to(torch.float32))


def _differences(values: torch.Tensor, wanted: torch.Tensor) -> int:
    """Bit by bit: NaN and the sign of zero count."""
    if values.shape != wanted.shape:
        return wanted.numel()
    return int((values.contiguous().view(torch.int32) != wanted.contiguous().view(torch.int32)).sum())


class _GgufTensors:
    """Tensors of a GGUF file through the `gguf` package."""

    def __init__(self, path: str) -> None:
        try:
            import gguf
        except ImportError as error:
            raise UnsupportedError(
                "the gguf package is not installed, and a GGUF conversion is checked against it",
                hint="pip install 'humming-torch[gguf]'",
            ) from error
        self._tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        self._dequantize = gguf.quants.dequantize

    def dequantize(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        return torch.from_numpy(self._dequantize(tensor.data, tensor.tensor_type))


def _gguf_tensors(checkpoint: Checkpoint) -> _GgufTensors:
    return _GgufTensors(str(checkpoint.files[0]))
