"""GPTQ checkpoints (v1 and v2): finds the layers, checks every tensor and describes what the bits mean.
Called through the table of exporters when the configuration says "gptq".
Assumes tensors PREFIX.qweight, .qzeros, .scales and, where there is one, .g_idx and .bias; layout.py draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import CheckpointError, shown
from ..number import number
from ..packing import pack, words_needed
from ..scale import ScaleFormat
from ..weight import WeightFormat
from ..zero_point import ZeroPointFormat
from .entry import LayerEntry, TensorPlace
from .exporter import (
    FLOAT_NUMBERS,
    FoundLayers,
    Options,
    QuantConfig,
    check_bias,
    check_dtype,
    check_shape,
    children,
    take,
)
from .gptq_config import CHECKPOINT_FORMATS, GptqConfig
from .group_index import needs_column_order
from .layout import GptqLayout

ROLES = {"qweight": "codes", "qzeros": "zero_point", "scales": "scale", "g_idx": "group_index", "bias": "bias"}
_PIECE_BYTES = 1 << 20
_PACKED = "GPTQ packs codes into int32 words; one value per byte, or other words, is another format"


def read_gptq_configs(
    places: Mapping[str, TensorPlace], configs: Sequence[QuantConfig], options: Options
) -> FoundLayers:
    """Describe the layers of a checkpoint; where several configurations exist, they must agree."""
    found = [GptqConfig.read(config.raw, config.source) for config in configs]
    first = found[0]
    for other in found[1:]:
        for field in ("bits", "group_size", "desc_act", "symmetric", "checkpoint_format"):
            one, two = getattr(first, field), getattr(other, field)
            if one != two and not (field == "checkpoint_format" and None in (one, two)):
                raise CheckpointError(
                    f"two quantization configurations contradict each other on {field}",
                    got=f"{shown(one)} in {first.source}, {shown(two)} in {other.source}",
                    remedy="remove the wrong one",
                )
    stating = [config for config in found if config.checkpoint_format is not None]
    return read_gptq(places, stating[0] if stating else first, options.checkpoint_format)


def read_gptq(
    places: Mapping[str, TensorPlace], config: GptqConfig, checkpoint_format: str | None = None
) -> FoundLayers:
    """Describe every layer with a .qweight. `checkpoint_format` overrides what the configuration says."""
    method, notes = _choose_format(config, checkpoint_format)
    layout = GptqLayout(bits=config.bits, zero_offset=CHECKPOINT_FORMATS[method])
    modules = {
        module: stored
        for module, stored in children(places).items()
        if "qweight" in stored or "qzeros" in stored or "g_idx" in stored
    }
    if not any("qweight" in stored for stored in modules.values()):
        raise CheckpointError(
            f"{config.source} says GPTQ, but there is no tensor named *.qweight", got=f"{len(places)} tensors"
        )
    layers = []
    used: set[str] = set()
    other_rule: list[str] = []
    wrapping: list[str] = []
    needed = ("qweight", "qzeros", "scales", "g_idx") if config.desc_act else ("qweight", "qzeros", "scales")
    for prefix, stored in modules.items():
        tensors = take(prefix, stored, ROLES, needed)
        layer = _read_layer(prefix, tensors, config, method, layout)
        if config.symmetric and _symmetric_rule(layer, config, layout) != layout.zero_offset:
            other_rule.append(prefix)
        if not config.symmetric and layout.zero_offset and _has_all_ones(layer.tensors["zero_point"], config.bits):
            wrapping.append(prefix)
        layers.append(layer)
        used.update(place.tensor for place in tensors.values())
    if other_rule:
        notes.append(
            f"{len(other_rule)} symmetric layers store zero points by the rule of the other checkpoint_format; "
            f"taken as {1 << (config.bits - 1)}, since the configuration says sym"
        )
    if wrapping:
        notes.append(
            f"{len(wrapping)} layers store zero points of all ones, such as {shown(wrapping[0])}: taken as zero "
            "point 0, stored minus one field by field. Exporters that subtract from whole words (GPTQModel writing "
            "gptq) borrow from the next field instead, and cannot be told apart; export such models as gptq_v2"
        )
    return FoundLayers(layers=tuple(layers), used=frozenset(used), method=method, notes=tuple(notes))


def _choose_format(config: GptqConfig, asked: str | None) -> tuple[str, list[str]]:
    stated = config.checkpoint_format
    if asked is not None:
        if not isinstance(asked, str) or asked not in CHECKPOINT_FORMATS:
            raise CheckpointError("unknown checkpoint_format", got=shown(asked), wanted=" or ".join(CHECKPOINT_FORMATS))
        if stated is not None and stated != asked:
            return asked, [f"read as {asked} as asked, although {config.source} says {stated}"]
        return asked, []
    if stated is not None:
        return stated, []
    return "gptq", [
        f"{config.source} does not state checkpoint_format: taken as gptq, which stores each zero point minus one "
        "(pass checkpoint_format gptq_v2 if it stores them as they are)"
    ]


def _read_layer(
    prefix: str, tensors: Mapping[str, TensorPlace], config: GptqConfig, method: str, layout: GptqLayout
) -> LayerEntry:
    codes = tensors["codes"]
    check_dtype(codes, ("int32",), _PACKED)
    if len(codes.shape) != 2 or 0 in codes.shape or codes.shape[0] * 32 % config.bits:
        raise CheckpointError(
            f"tensor {shown(codes.tensor)} has the wrong shape",
            got=str(list(codes.shape)),
            wanted=f"[K * {config.bits} / 32, N] with whole numbers N and K",
        )
    n, k = codes.shape[1], codes.shape[0] * 32 // config.bits
    scale = tensors["scale"]
    check_dtype(scale, tuple(FLOAT_NUMBERS))
    scale_format = ScaleFormat(number=number(FLOAT_NUMBERS[scale.dtype]), group_k=config.group_size)
    groups = scale_format.groups_k(k)
    said = f"K {k} in groups of {config.group_size or k} is {groups} groups"
    check_shape(scale, (groups, n), said)
    check_dtype(tensors["zero_point"], ("int32",), _PACKED)
    check_shape(tensors["zero_point"], (groups, words_needed(n, config.bits)), said)
    check_bias(tensors, n)
    column_order = False
    if "group_index" in tensors:
        check_dtype(tensors["group_index"], ("int32",))
        check_shape(tensors["group_index"], (k,), f"K is {k}")
        column_order = needs_column_order(tensors["group_index"], config.group_size or k, groups)
    return LayerEntry(
        name=prefix,
        n=n,
        k=k,
        method=method,
        weight=WeightFormat(
            number=number(f"u{config.bits}"),
            scale=scale_format,
            zero_point=ZeroPointFormat.constant(1 << (config.bits - 1))
            if config.symmetric
            else ZeroPointFormat.integer(),
        ),
        layout=layout,
        tensors=dict(tensors),
        column_order=column_order,
    )


def _symmetric_rule(layer: LayerEntry, config: GptqConfig, layout: GptqLayout) -> int:
    """The zero_offset by which all stored zero points of a symmetric layer are 2**(bits-1); refused when neither is."""
    place = layer.tensors["zero_point"]
    row_bytes = place.shape[1] * 4
    middle = 1 << (config.bits - 1)
    rows = {
        offset: b"".join(word.to_bytes(4, "little") for word in pack([middle - offset] * layer.n, config.bits))
        for offset in (layout.zero_offset, 1 - layout.zero_offset)
    }
    possible = set(rows)
    per_piece = max(1, _PIECE_BYTES // row_bytes)
    for piece in place.read_pieces(per_piece * row_bytes):
        possible = {offset for offset in possible if piece == rows[offset] * (len(piece) // row_bytes)}
        if not possible:
            raise CheckpointError(
                f"{config.source} says sym, but tensor {shown(place.tensor)} holds other zero points",
                wanted=f"every stored zero point {middle - 1} (gptq) or {middle} (gptq_v2)",
                remedy="set sym to false in the configuration to use the stored zero points",
            )
    return next(offset for offset in rows if offset in possible)


def _has_all_ones(place: TensorPlace, bits: int) -> bool:
    """Whether some stored zero point is all ones. Not asked of odd widths, which are always subtracted by field."""
    if 8 % bits:
        return False
    ones = (1 << bits) - 1
    without = bytes(
        byte for byte in range(256) if all(byte >> shift & ones != ones for shift in range(0, 8, bits))
    )  # the bytes in which no field is all ones
    return any(piece.translate(None, without) for piece in place.read_pieces(_PIECE_BYTES))
