"""Quark checkpoints: integers, FP8, the MX formats and NVFP4, one scheme for the model or one per pattern of names.
Called through the table of exporters when the configuration says "quark".
Assumes tensors PREFIX.weight, .weight_scale, perhaps .weight_zero_point and .weight_scale_2, .input_scale and so on.

int4 and uint4 in groups lie as in AWQ: int32 [K, N/8], scales [K/g, N], signed codes as two's complement nibbles, which
plus 8 are the codes of the description. The second scale of NVFP4 multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from ..errors import CheckpointError, shown
from ..number import number
from ..scale import ScaleFormat
from ..weight import WeightFormat, symmetric
from ..zero_point import ZeroPointFormat
from .awq import ORDER
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
from .matrix_layout import FieldLayout, MatrixLayout
from .quark_config import DTYPES, LayerSpec, Spec, read_config


def read_quark(places: Mapping[str, TensorPlace], configs: Sequence[QuantConfig], options: Options) -> FoundLayers:
    """Describe every module with a .weight_scale."""
    config = agreed([read_config(config) for config in configs], configs)
    layers: list[LayerEntry] = []
    used: set[str] = set()
    for module, stored in children(places).items():
        weight = stored.get("weight")
        quantized = weight is not None and weight.dtype in {dtype for _, dtype, _, _ in DTYPES.values()}
        if "weight_scale" not in stored and not quantized:
            continue
        matching = [spec for pattern, spec in config.layers if fnmatchcase(module, pattern)]
        if any(spec != matching[0] for spec in matching[1:]):
            raise CheckpointError(f"{configs[0].source} has several layer_quant_config that fit {shown(module)}")
        layer = _layer(module, stored, matching[0] if matching else config.usual, config.reorder)
        layers.append(layer)
        used.update(place.tensor for place in layer.tensors.values())
    if not layers:
        raise CheckpointError(
            f"{configs[0].source} says Quark, but there is no tensor named *.weight_scale", got=f"{len(places)} tensors"
        )
    return FoundLayers(layers=tuple(layers), used=frozenset(used), method="quark")


def _layer(module: str, stored: Mapping[str, TensorPlace], spec: LayerSpec, reorder: bool) -> LayerEntry:
    weight = spec.weight
    name, dtype, bits, offset = DTYPES[weight.dtype]
    integer = name.startswith("u")
    roles = {"weight": "codes", "weight_scale": "scale", "bias": "bias"}
    needed = ["weight", "weight_scale"]
    if integer:
        roles["weight_zero_point"] = "zero_point"
        needed += [] if weight.symmetric else ["weight_zero_point"]
    if weight.outer:
        roles["weight_scale_2"] = "outer_scale"
        needed.append("weight_scale_2")
    if spec.activation is not None and spec.activation.static:
        roles |= {"input_scale": "activation_scale", "input_zero_point": "activation_zero_point"}
        needed.append("input_scale")
    if spec.activation is not None and spec.activation.outer_scale is not None:
        roles["input_scale_2"] = "activation_outer_scale"
        needed.append("input_scale_2")
    tensors = take(module, stored, roles, needed)
    check_dtype(tensors["codes"], (dtype,))
    packed_integer = dtype == "int32"
    if packed_integer and weight.sharing != "g":
        raise CheckpointError(
            f"layer {shown(module)}: {weight.dtype} is described in groups only", got=weight.sharing, wanted="per_group"
        )
    if (integer and not packed_integer and weight.sharing == "g") or weight.outer != (
        name == "e2m1" and weight.group == 16
    ):
        raise CheckpointError(
            f"layer {shown(module)}: {weight.dtype} with this sharing of scales is not described",
            got=f"{weight.sharing}{weight.group or ''}, {'two levels' if weight.outer else 'one level'}",
        )
    first, second = check_matrix(tensors["codes"], "[N, K], packed or not")
    order = ORDER if reorder else ()
    if packed_integer:
        k, n = first, second * 8
        fields = FieldLayout(bits=4, word_bits=32, transposed=True, order=order, offset=offset)
    else:
        n, k = first, second * 8 // bits
        fields = FieldLayout(bits=bits, word_bits=8, dense=bool(8 % bits), offset=offset)
    scale = _scale(module, tensors["scale"], weight, n, k, transposed=packed_integer)
    code_number = number(name)
    zero_point, zero_fields = symmetric(code_number), None
    if integer and weight.symmetric:
        _check_zeros(tensors, offset)
    elif integer:
        zero_point, zero_fields = ZeroPointFormat.integer(), fields
        groups = scale.groups_n(n), scale.groups_k(k)
        _check_zero_shape(tensors["zero_point"], fields, groups, dtype, packed_integer)
    for role in ("outer_scale", "activation_scale", "activation_outer_scale"):
        if role in tensors:
            check_dtype(tensors[role], tuple(FLOAT_NUMBERS))
            check_one_value(tensors[role])
    _check_zeros(tensors, 128, "activation_zero_point")
    check_bias(tensors, n)
    outer = None
    if weight.outer:
        outer = ScaleFormat(number=number(FLOAT_NUMBERS[tensors["outer_scale"].dtype]), group_k=None, group_n=None)
    return LayerEntry(
        name=module,
        n=n,
        k=k,
        method=f"quark:{weight.dtype}",
        weight=WeightFormat(number=code_number, scale=scale, zero_point=zero_point, outer_scale=outer),
        layout=MatrixLayout(codes=fields, zero_point=zero_fields, scale_transposed=packed_integer),
        tensors=tensors,
        activation=spec.activation,
    )


def _scale(module: str, place: TensorPlace, weight: Spec, n: int, k: int, *, transposed: bool) -> ScaleFormat:
    if weight.exponents:
        check_dtype(place, ("uint8", "float8_e8m0fnu"))
        scale_number = number("e8m0")
    elif weight.outer:
        check_dtype(place, ("float8_e4m3fn",))
        scale_number = number("e4m3")
    else:
        check_dtype(place, tuple(FLOAT_NUMBERS))
        scale_number = number(FLOAT_NUMBERS[place.dtype])
    if weight.sharing == "t":
        check_one_value(place)
        return ScaleFormat(number=scale_number, group_k=None, group_n=None)
    if weight.sharing == "c":
        if weight.axis != 0:
            raise CheckpointError(
                f"layer {shown(module)}: ch_axis is not described", got=shown(weight.axis), wanted="0"
            )
        check_shape(place, (n,), f"N is {n}")
        return ScaleFormat(number=scale_number, group_k=None)
    scale = ScaleFormat(number=scale_number, group_k=weight.group)
    if k % (weight.group or 1):
        raise CheckpointError(
            f"layer {shown(module)}: K is not a multiple of the group size", got=f"{k} and {weight.group}"
        )
    groups = scale.groups_k(k)
    check_shape(place, (groups, n) if transposed else (n, groups), f"N {n} and K {k} are in groups of {weight.group}")
    return scale


def _check_zero_shape(
    place: TensorPlace, fields: FieldLayout, groups: tuple[int, int], dtype: str, packed_integer: bool
) -> None:
    check_dtype(place, (dtype,))
    if packed_integer:
        check_shape(place, fields.stored_shape(*groups), "zero points are packed as the codes are")
    elif groups == (1, 1):
        check_one_value(place)
    else:
        check_shape(place, (groups[0],), "there is one zero point per row")


def _check_zeros(tensors: Mapping[str, TensorPlace], offset: int, role: str = "zero_point") -> None:
    """Symmetric signed integers may store zero points, all zero; symmetric unsigned ones are not described."""
    if role in tensors:
        if not offset:
            raise CheckpointError(f"tensor {shown(tensors[role].tensor)} of unsigned integers is said to be symmetric")
        if any(piece.strip(b"\0") for piece in tensors[role].read_pieces(1 << 20)):
            raise CheckpointError(
                f"the configuration says symmetric, but tensor {shown(tensors[role].tensor)} holds zero points",
                wanted="zeros",
            )
