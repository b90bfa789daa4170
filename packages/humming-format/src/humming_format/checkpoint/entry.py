"""What a checkpoint reader returns: layers, what their bits mean, and where each of their tensors lies on disk.
Called by every reader of this folder, which fill these in, and by whoever loads or prints a checkpoint.
Assumes tensors are stored densely, row-major and little-endian, so that a plain file read gets one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from ..activation import ActivationFormat
from ..errors import CheckpointError
from ..weight import WeightFormat
from .gguf_pieces import GgufPieces
from .layout import GgufBlock, GptqLayout
from .matrix_layout import MatrixLayout


@attrs.frozen(kw_only=True)
class TensorPlace:
    """Where one stored tensor lies. `offset` counts bytes from the start of `file`; `dtype` is spelled as in torch.

    GGUF blocks are given as dtype "uint8" and shape [..., bytes of one row].
    """

    file: Path
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def part(self, index: int) -> TensorPlace:
        """The tensor at one index of the first side, as a place of its own."""
        size = self.nbytes // self.shape[0]
        return attrs.evolve(self, shape=self.shape[1:], offset=self.offset + index * size, nbytes=size)

    def read(self) -> bytes:
        """The bytes of the tensor. Raises CheckpointError when the file has become shorter or unreadable."""
        return b"".join(self.read_pieces(self.nbytes or 1))

    def read_pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """The bytes of the tensor in pieces of `piece_bytes`, the last one possibly shorter."""
        try:
            with self.file.open("rb") as stream:
                stream.seek(self.offset)
                left = self.nbytes
                while left:
                    data = stream.read(min(piece_bytes, left))
                    if not data:
                        raise CheckpointError(
                            f"{self.file} ends inside tensor {self.tensor}",
                            got=f"{left} bytes too few",
                            remedy="the file changed after it was inspected",
                        )
                    left -= len(data)
                    yield data
        except OSError as error:
            raise CheckpointError(f"{self.file} cannot be read: {error}") from error


@attrs.frozen(kw_only=True)
class LayerEntry:
    """One weight matrix [n, k], or a stack of one per expert.

    `method` names the way of storing: "gptq", "gptq_v2", "gguf:Q4_1", "float16", ... `weight` is None for matrices that
    are not quantized, and for kinds that this version does not describe; `layout` is None with it.
    `tensors` by role: "codes", "scale", "zero_point", "outer_scale", "group_index", "bias", "activation_scale",
    "activation_outer_scale", "activation_multiplier" (the input's columns are multiplied by it first), and more that
    a layout names; "blocks" for GGUF, "weight" for a plain matrix.
    `column_order`: the columns must be sorted by their group index ("group_index") before packing.
    `activation`: how the exporter wants the input quantized; None where it says nothing.
    `experts`: every tensor has a first side of that many experts, and `expert(index)` is one of them.
    `parts`: the projections that the rows belong to, in order, each taking as many rows, one part after the other or,
    if `interleaved`, in turns row by row; empty for a single projection.
    """

    name: str
    n: int
    k: int
    method: str
    tensors: Mapping[str, TensorPlace]
    weight: WeightFormat | None = None
    layout: GptqLayout | GgufBlock | GgufPieces | MatrixLayout | None = None
    column_order: bool = False
    activation: ActivationFormat | None = None
    experts: int | None = None
    parts: tuple[str, ...] = ()
    interleaved: bool = False

    @property
    def weights(self) -> int:
        """Number of weights, of all experts."""
        return self.n * self.k * (1 if self.experts is None else self.experts)

    def expert(self, index: int) -> LayerEntry:
        """One expert of a stack. Raises CheckpointError when there is no such expert."""
        if self.experts is None or not 0 <= index < self.experts:
            raise CheckpointError(
                f"layer {self.name} has no expert {index}",
                got="no stack of experts" if self.experts is None else f"{self.experts} experts",
            )
        return attrs.evolve(
            self,
            name=f"{self.name}.{index}",
            experts=None,
            tensors={role: place.part(index) for role, place in self.tensors.items()},
        )

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors of the layer in the checkpoint."""
        return sum(place.nbytes for place in self.tensors.values())

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per weight, scales, zero points and group indices included, bias not."""
        return 8 * sum(place.nbytes for role, place in self.tensors.items() if role != "bias") / self.weights


@attrs.frozen(kw_only=True)
class Checkpoint:
    """A checkpoint: its matrices, and the tensors that are not matrices (`others`).

    In stored order for GGUF, in the natural order of names for safetensors.

    `notes` are sentences on what had to be assumed, for people to read.
    """

    path: Path
    container: str
    method: str | None
    files: tuple[Path, ...]
    layers: tuple[LayerEntry, ...]
    others: tuple[TensorPlace, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def quantized(self) -> tuple[LayerEntry, ...]:
        """The layers whose quantization is described."""
        return tuple(entry for entry in self.layers if entry.weight is not None)

    def layer(self, name: str) -> LayerEntry:
        """The layer of that name. Raises CheckpointError."""
        for entry in self.layers:
            if entry.name == name:
                return entry
        raise CheckpointError(
            f"{self.path} has no layer {name!r}",
            got=f"{len(self.layers)} layers",
            remedy="humming-format inspect --all lists their names",
        )
