"""compressed-tensors checkpoints: packed, plain, NVFP4 and MX weights, each module by the group that targets it.
Called through the table of exporters when the configuration says "compressed-tensors".
Assumes tensors PREFIX.weight_packed or .weight with .weight_scale, and what the module's group needs besides.

The global scale of NVFP4, of weights and of activations alike, is a divisor: scale = stored / global."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence

import attrs

from ..errors import CheckpointError, shown
from ..number import number
from ..scale import ScaleFormat
from ..weight import WeightFormat
from ..zero_point import ZeroPointFormat
from .compressed_tensors_config import Arguments, CompressedTensorsConfig, Group, is_mx_scale, read_config
from .entry import LayerEntry, TensorPlace
from .exporter import (
    FLOAT_NUMBERS,
    FoundLayers,
    Options,
    QuantConfig,
    agreed,
    check_bias,
    check_dtype,
    check_matrix,
    check_one_value,
    check_shape,
    children,
    take,
)
from .group_index import needs_column_order
from .matrix_layout import FieldLayout, MatrixLayout, StoredScale
from .targets import Targets

ROLES = {
    "weight_packed": "codes",
    "weight": "codes",
    "weight_scale": "scale",
    "weight_zero_point": "zero_point",
    "weight_global_scale": "outer_scale",
    "weight_g_idx": "group_index",
    "weight_shape": "shape",
    "bias": "bias",
    "input_scale": "activation_scale",
    "input_zero_point": "activation_zero_point",
    "input_global_scale": "activation_outer_scale",
    "output_scale": "output_scale",
    "output_zero_point": "output_zero_point",
}
_PACKED = "packed integers are int32 words; one value per byte is the format int-quantized"
_PLAIN = "one value per element; packed words are the format pack-quantized"
_QUANTIZED_DTYPES = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2")


def read_compressed_tensors(
    places: Mapping[str, TensorPlace], configs: Sequence[QuantConfig], options: Options
) -> FoundLayers:
    """Describe every module with a .weight_packed or a .weight_scale."""
    config = agreed([read_config(config) for config in configs], configs)
    source = configs[0].source
    modules = children(places)
    targets = Targets([group.targets if group.weights else () for group in config.groups], source, modules)
    ignore = Targets([config.ignore], source, modules)
    layers: list[LayerEntry] = []
    used: set[str] = set()
    plain: list[str] = []
    for module, stored in modules.items():
        weight = stored.get("weight")
        if "weight_packed" not in stored and "weight_scale" not in stored:
            if weight is not None and weight.dtype in _QUANTIZED_DTYPES:
                raise CheckpointError(f"tensor {shown(module + '.weight_scale')} is missing", got=shown(weight.tensor))
            is_target = targets.named(module) is not None and ignore.named(module) is None
            if weight is not None and len(weight.shape) == 2 and is_target:
                plain.append(module)
            continue
        group = _group_of(module, config, targets, ignore, source)
        layer = _layer(module, stored, group)
        layers.append(layer)
        used.update(place.tensor for place in layer.tensors.values())
    if not layers:
        raise CheckpointError(
            f"{source} says compressed-tensors, but there is no tensor named *.weight_scale",
            got=f"{len(places)} tensors",
        )
    return FoundLayers(
        layers=tuple(layers),
        used=frozenset(used),
        method="compressed-tensors",
        notes=_notes(config, layers, plain),
    )


def _notes(config: CompressedTensorsConfig, layers: Sequence[LayerEntry], plain: Sequence[str]) -> tuple[str, ...]:
    notes = []
    if plain:
        notes.append(f"{len(plain)} modules are targets but stored unquantized, such as {shown(plain[0])}")
    outputs = sum(1 for layer in layers if "output_scale" in layer.tensors)
    if outputs or any(group.outputs for group in config.groups):
        notes.append(f"quantized outputs, with scales at {outputs} layers, are not described")
    if config.kv_cache:
        notes.append("the exporter wants the key-value cache quantized, which is not described")
    return tuple(notes)


def _group_of(module: str, config: CompressedTensorsConfig, targets: Targets, ignore: Targets, source: str) -> Group:
    if ignore.named(module) is not None:
        raise CheckpointError(
            f"{source} says to ignore {shown(module)}, but it is quantized",
            remedy="remove it from ignore, or the scale from the checkpoint",
        )
    index = targets.named(module)
    if index is not None:
        return config.groups[index]
    # Names of classes: the checkpoint does not say which class a module is of.
    possible = targets.classes()
    candidates = [config.groups[index] for index in possible.values()]
    if not candidates:
        raise CheckpointError(f"{source} has no group for {shown(module)}, which is quantized")
    first = candidates[0]
    for other in candidates[1:]:
        if attrs.evolve(other, name=first.name, targets=first.targets) != first:
            raise CheckpointError(
                f"{source} has several groups that {shown(module)} may fall under",
                got=", ".join(shown(name, 40) for name in sorted(possible)),
                wanted="one class of modules, or targets that are names or patterns",
            )
    return first


def _layer(module: str, stored: Mapping[str, TensorPlace], group: Group) -> LayerEntry:
    weights = group.weights
    if weights is None:
        raise CheckpointError(f"layer {shown(module)}: group {shown(group.name)} has no weights")
    if weights.dynamic is not False:
        raise CheckpointError(f"layer {shown(module)}: dynamic weights are not described", wanted="dynamic false")
    is_mxfp8 = group.stored == "mx" and weights.bits == 8
    code_name = "weight" if group.stored == "plain" or is_mxfp8 else "weight_packed"
    roles = {ending: role for ending, role in ROLES.items() if role != "codes" or ending == code_name}
    needed = [code_name, "weight_scale"]
    if group.stored == "packed":
        needed.append("weight_shape")
    if group.stored == "nvfp4":
        needed.append("weight_global_scale")
    else:
        del roles["weight_global_scale"]
    if not weights.symmetric:
        needed.append("weight_zero_point")
    activation = group.activation
    if activation is not None and activation.static:
        needed += ["input_scale"] + ([] if activation.zero_point.kind.value == "none" else ["input_zero_point"])
    if activation is not None and activation.outer_scale is not None:
        needed.append("input_global_scale")
    tensors = take(module, stored, roles, needed)
    build = {"packed": _packed, "plain": _plain, "nvfp4": _float_blocks, "mx": _float_blocks}[group.stored]
    layer = build(module, tensors, group, weights)
    check_bias(tensors, layer.n)
    _check_activation(tensors)
    if "group_index" in tensors:
        layer = _with_group_index(layer, tensors["group_index"])
    return layer


def _check_activation(tensors: Mapping[str, TensorPlace]) -> None:
    for role in ("activation_scale", "activation_outer_scale", "output_scale"):
        if role in tensors:
            check_dtype(tensors[role], tuple(FLOAT_NUMBERS))
            check_one_value(tensors[role])
    for role in ("activation_zero_point", "output_zero_point"):
        if role in tensors:
            check_one_value(tensors[role])


def _scale(module: str, tensors: Mapping[str, TensorPlace], weights: Arguments, n: int, k: int) -> ScaleFormat:
    """The scale of integer and plain float weights; checks its tensor."""
    place = tensors["scale"]
    check_dtype(place, tuple(FLOAT_NUMBERS))
    if weights.strategy == "tensor_group":
        raise CheckpointError(
            f"layer {shown(module)}: strategy tensor_group is described for NVFP4 only", wanted="tensor, channel, ..."
        )
    scale = ScaleFormat(number=number(FLOAT_NUMBERS[place.dtype]), group_k=weights.group_k, group_n=weights.group_n)
    _check_groups(place, scale, n, k)
    return scale


def _check_groups(place: TensorPlace, scale: ScaleFormat, n: int, k: int) -> None:
    if scale.group_k is None and scale.group_n is None:
        check_one_value(place)
        return
    groups = scale.groups_n(n), scale.groups_k(k)
    if scale.group_k is None and place.shape == (n,):  # a channel scale may be a vector
        return
    if scale.group_k is not None and scale.group_n == 1 and k % scale.group_k:
        raise CheckpointError(
            f"tensor {shown(place.tensor)}: K is not a multiple of the group size", got=f"{k} and {scale.group_k}"
        )
    check_shape(place, groups, f"N {n} and K {k} in groups of {scale.group_n} and {scale.group_k or k}")


def _integer_zero(
    tensors: Mapping[str, TensorPlace], weights: Arguments, groups: tuple[int, int], packed: FieldLayout | None
) -> tuple[ZeroPointFormat, FieldLayout | None]:
    """The zero point of integers, and how it is stored. A symmetric layer may store zeros."""
    half = 1 << (weights.bits - 1)
    plain = FieldLayout(bits=8, word_bits=8, offset=half)
    place = tensors.get("zero_point")
    if weights.symmetric:
        if place is not None:
            check_dtype(place, ("int8",))
            if any(piece.strip(b"\0") for piece in place.read_pieces(1 << 20)):
                raise CheckpointError(
                    f"the configuration says symmetric, but tensor {shown(place.tensor)} holds zero points",
                    wanted="zeros, or no such tensor",
                )
        return ZeroPointFormat.constant(half), None
    place = tensors["zero_point"]
    if packed is not None and place.dtype == "int32":
        check_shape(place, packed.stored_shape(*groups), f"{groups[0]} x {groups[1]} zero points are packed along N")
        return ZeroPointFormat.integer(), packed
    check_dtype(place, ("int8",), "zero points are int8, or int32 words where the weights are packed by group or row")
    if groups != (1, 1):
        check_shape(place, groups, "there is one zero point per scale")
    else:
        check_one_value(place)
    return ZeroPointFormat.integer(), plain


def _packed(module: str, tensors: Mapping[str, TensorPlace], group: Group, weights: Arguments) -> LayerEntry:
    if weights.floating:
        raise CheckpointError(f"layer {shown(module)}: packed floats are not described here", wanted="type int")
    codes = tensors["codes"]
    check_dtype(codes, ("int32",), _PACKED)
    rows, words = check_matrix(codes, "[N, ceil(K * bits / 32)]")
    n, k = _stored_shape(tensors["shape"])
    layout = FieldLayout(bits=weights.bits, word_bits=32, dense=True)
    if (rows, words) != layout.stored_shape(n, k):
        raise CheckpointError(
            f"tensor {shown(codes.tensor)} has the wrong shape",
            got=str(list(codes.shape)),
            wanted=f"{list(layout.stored_shape(n, k))}, since {tensors['shape'].tensor} says {n} x {k}",
            remedy="versions that leave bits of a word unused for 3, 5, 6 or 7 bits are not described",
        )
    fitting = 32 // weights.bits
    if 32 % weights.bits and k > fitting and -(-k // fitting) == words:
        raise CheckpointError(
            f"tensor {shown(codes.tensor)} may be packed in two ways, which K {k} does not tell apart",
            wanted="a larger K",
        )
    scale = _scale(module, tensors, weights, n, k)
    along_n = FieldLayout(bits=weights.bits, word_bits=32, axis=0, dense=True)
    groups = scale.groups_n(n), scale.groups_k(k)
    packs_zero = weights.strategy in ("group", "channel")
    zero_point, zero_layout = _integer_zero(tensors, weights, groups, along_n if packs_zero else None)
    return LayerEntry(
        name=module,
        n=n,
        k=k,
        method="compressed-tensors:pack-quantized",
        weight=WeightFormat(number=weights.number(module), scale=scale, zero_point=zero_point),
        layout=MatrixLayout(codes=layout, zero_point=zero_layout, activation_outer_scale=StoredScale.DIVISOR),
        tensors=tensors,
        activation=group.activation,
    )


def _plain(module: str, tensors: Mapping[str, TensorPlace], group: Group, weights: Arguments) -> LayerEntry:
    codes = tensors["codes"]
    zero_point, zero_layout = ZeroPointFormat.none(), None
    if weights.floating:
        check_dtype(codes, ("float8_e4m3fn",), _PLAIN)
        if not weights.symmetric or weights.bits != 8:
            raise CheckpointError(
                f"layer {shown(module)}: floats of this kind are not described",
                got=f"{weights.bits} bits, symmetric {weights.symmetric}",
                wanted="8 bits, symmetric",
            )
        _refuse(tensors, "zero_point", "floats have no zero point")
        layout = FieldLayout(bits=8, word_bits=8)
    else:
        check_dtype(codes, ("int8",), _PLAIN)
        layout = FieldLayout(bits=8, word_bits=8, offset=1 << (weights.bits - 1))
    n, k = check_matrix(codes, "[N, K]")
    scale = _scale(module, tensors, weights, n, k)
    if not weights.floating:
        zero_point, zero_layout = _integer_zero(tensors, weights, (scale.groups_n(n), scale.groups_k(k)), None)
    return LayerEntry(
        name=module,
        n=n,
        k=k,
        method="compressed-tensors:" + ("float-quantized" if weights.floating else "int-quantized"),
        weight=WeightFormat(number=weights.number(module), scale=scale, zero_point=zero_point),
        layout=MatrixLayout(codes=layout, zero_point=zero_layout, activation_outer_scale=StoredScale.DIVISOR),
        tensors=tensors,
        activation=group.activation,
    )


def _float_blocks(module: str, tensors: Mapping[str, TensorPlace], group: Group, weights: Arguments) -> LayerEntry:
    """NVFP4 and the MX formats: e2m1, e2m3 or e4m3 in groups of 16 or 32 with small scales."""
    is_nvfp4 = group.stored == "nvfp4"
    wanted_strategy, wanted_size = ("tensor_group", 16) if is_nvfp4 else ("group", 32)
    allowed_bits = (4,) if is_nvfp4 else (4, 6, 8)
    if (
        not weights.floating
        or not weights.symmetric
        or weights.bits not in allowed_bits
        or (weights.strategy, weights.group_k) != (wanted_strategy, wanted_size)
    ):
        raise CheckpointError(
            f"layer {shown(module)}: weights of this kind are not described in this format",
            got=f"{weights.bits} bits, {'float' if weights.floating else 'int'}, {weights.strategy} {weights.group_k}, "
            f"symmetric {weights.symmetric}",
            wanted=f"symmetric floats, {wanted_strategy} {wanted_size}",
        )
    if not is_nvfp4 and not is_mx_scale(weights):
        raise CheckpointError(
            f"layer {shown(module)}: scale_dtype is not described", got=shown(weights.scale_dtype), wanted="torch.uint8"
        )
    _refuse(tensors, "zero_point", "floats have no zero point")
    codes, scale_place = tensors["codes"], tensors["scale"]
    number_ = weights.number(module)
    check_dtype(codes, ("float8_e4m3fn",) if weights.bits == 8 else ("uint8",))
    n, words = check_matrix(codes, f"[N, K * {weights.bits} / 8]")
    k = words * 8 // weights.bits
    check_dtype(scale_place, ("float8_e4m3fn",) if is_nvfp4 else ("uint8", "float8_e8m0fnu"))
    scale = ScaleFormat(number=number("e4m3" if is_nvfp4 else "e8m0"), group_k=wanted_size)
    _check_groups(scale_place, scale, n, k)
    outer = None
    if is_nvfp4:
        check_dtype(tensors["outer_scale"], ("float32",))
        check_one_value(tensors["outer_scale"])
        outer = ScaleFormat(number=number("f32"), group_k=None, group_n=None)
    dense = 8 % weights.bits != 0
    return LayerEntry(
        name=module,
        n=n,
        k=k,
        method="compressed-tensors:" + ("nvfp4" if is_nvfp4 else f"mxfp{weights.bits}"),
        weight=WeightFormat(number=number_, scale=scale, outer_scale=outer),
        layout=MatrixLayout(
            codes=FieldLayout(bits=weights.bits, word_bits=8, dense=dense),
            outer_scale=StoredScale.DIVISOR if is_nvfp4 else StoredScale.MULTIPLIER,
            activation_outer_scale=StoredScale.DIVISOR if is_nvfp4 else StoredScale.MULTIPLIER,
        ),
        tensors=tensors,
        activation=group.activation,
    )


def _refuse(tensors: Mapping[str, TensorPlace], role: str, why: str) -> None:
    if role in tensors:
        raise CheckpointError(f"tensor {shown(tensors[role].tensor)} is not expected here", wanted=why)


def _stored_shape(place: TensorPlace) -> tuple[int, int]:
    """N and K as the checkpoint states them beside packed words."""
    check_dtype(place, ("int64", "int32"))
    check_shape(place, (2,), "it holds N and K")
    sides = array("q" if place.dtype == "int64" else "i")
    sides.frombytes(place.read())
    if sys.byteorder == "big":
        sides.byteswap()
    if not all(0 < side < 2**31 for side in sides):
        raise CheckpointError(f"tensor {shown(place.tensor)} does not hold two sides", got=str(list(sides)))
    return sides[0], sides[1]


def _with_group_index(layer: LayerEntry, place: TensorPlace) -> LayerEntry:
    """actorder "group" stores the group of each column; minus ones mean that the order is plain."""
    check_dtype(place, ("int32",))
    check_shape(place, (layer.k,), f"K is {layer.k}")
    scale = layer.weight.scale if layer.weight else None
    if not any(piece.strip(b"\xff") for piece in place.read_pieces(1 << 20)):
        rest = {role: other for role, other in layer.tensors.items() if role != "group_index"}
        return attrs.evolve(layer, tensors={**rest, "unused_group_index": place})
    if scale is None or scale.group_k is None:
        raise CheckpointError(f"tensor {shown(place.tensor)} is not expected here", wanted="only with group scales")
    return attrs.evolve(layer, column_order=needs_column_order(place, scale.group_k, scale.groups_k(layer.k)))
