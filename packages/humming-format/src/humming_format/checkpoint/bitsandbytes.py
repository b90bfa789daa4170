"""bitsandbytes checkpoints of 4 bits: NF4 and FP4 codes in blocks along the flattened weight, scales perhaps in 8 bits.
Called through the table of exporters when the configuration says "bitsandbytes".
Assumes tensors PREFIX.weight uint8 [N K / 2, 1] and, below PREFIX.weight, absmax, quant_map and quant_state.*.

Two codes to a byte, the first one in the high half. A JSON text in the tensor quant_state.bitsandbytes__nf4 says shape
and block size. With double quantization absmax holds bytes: see NestedScale in matrix_layout.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import CheckpointError, shown
from ..number import number
from ..scale import ScaleFormat
from ..weight import WeightFormat
from .entry import LayerEntry, TensorPlace
from .exporter import (
    FoundLayers,
    Options,
    QuantConfig,
    check_bias,
    check_dtype,
    check_keys,
    check_shape,
    children,
    take,
)
from .json_file import parse_object
from .matrix_layout import FieldLayout, MatrixLayout, NestedScale

NUMBERS = {"nf4": "nf4", "fp4": "bnbfp4"}
"""bitsandbytes' name of a code -> ours."""
FIELDS = FieldLayout(bits=4, word_bits=8, axis=0, columns=1, order=(1, 0))
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
ROLES = {
    "weight": "codes",
    "absmax": "scale",
    "quant_map": "quant_map",
    "nested_absmax": "scale_scale",
    "nested_quant_map": "scale_map",
    "state": "state",
    "bias": "bias",
}
_STATE = "bitsandbytes__"
_LARGEST_STATE = 1 << 16
_STATE_KEYS = {"quant_type", "blocksize", "shape", "dtype"}  # dtype: what the weight was, and is made again
_NESTED_KEYS = {"nested_blocksize", "nested_dtype", "nested_offset"}

_KEYS = {
    "quant_method",
    "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    "bnb_4bit_compute_dtype",
    # how the model would be run, and which modules are not quantized, which their tensors show
    "llm_int8_threshold",
    "llm_int8_skip_modules",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "target_parameters",
}
_GUARDED: dict[str, tuple[Any, ...]] = {
    "load_in_4bit": (None, True),
    "_load_in_4bit": (None, True),
    "load_in_8bit": (None, False),
    "_load_in_8bit": (None, False),
    "bnb_4bit_quant_storage": (None, "uint8"),
}


def read_bitsandbytes(
    places: Mapping[str, TensorPlace], configs: Sequence[QuantConfig], options: Options
) -> FoundLayers:
    """Describe every module with a quant_state."""
    for config in configs:
        check_keys(config.raw, f"{config.source}: the bitsandbytes configuration", known=_KEYS, guarded=_GUARDED)
    modules = children(places)
    layers: list[LayerEntry] = []
    used: set[str] = set()
    for module, stored in modules.items():
        inner = dict(modules.get(f"{module}.weight", {}))
        states = modules.get(f"{module}.weight.quant_state", {})
        if not inner and not states:
            if "weight" in stored and stored["weight"].dtype in ("uint8", "int8"):
                raise CheckpointError(f"tensor {shown(f'{module}.weight.quant_state.*')} is missing")
            continue
        if len(states) != 1 or not next(iter(states)).startswith(_STATE):
            raise CheckpointError(
                f"tensor {shown(f'{module}.weight.quant_state.{_STATE}nf4')} is missing",
                got=", ".join(shown(name, 40) for name in sorted(states)) or None,
                wanted="one state per weight",
            )
        own = {name: place for name, place in stored.items() if name in ("weight", "bias")}
        extra = sorted(set(stored) - set(own))
        if extra:
            raise CheckpointError(f"tensor {shown(f'{module}.{extra[0]}')} is not expected here")
        layer = _layer(module, {**inner, **own, "state": next(iter(states.values()))})
        layers.append(layer)
        used.update(place.tensor for place in layer.tensors.values())
    for name in modules:  # what lies below a weight that is itself missing
        above = name[: -len(".weight")] if name.endswith(".weight") else None
        if above is not None and "weight" not in modules.get(above, {}):
            raise CheckpointError(f"tensor {shown(name)} is missing", got=f"only tensors below {shown(name)}")
    if not layers:
        raise CheckpointError(
            f"{configs[0].source} says bitsandbytes, but no weight has a quant_state", got=f"{len(places)} tensors"
        )
    return FoundLayers(layers=tuple(layers), used=frozenset(used), method="bitsandbytes")


def _layer(module: str, stored: Mapping[str, TensorPlace]) -> LayerEntry:
    state = _read_state(stored["state"])
    nested = any(key in state for key in _NESTED_KEYS)
    needed = ["weight", "absmax", "quant_map"] + (["nested_absmax", "nested_quant_map"] if nested else [])
    roles = {name: role for name, role in ROLES.items() if nested or not name.startswith("nested_")}
    tensors = take(f"{module}.weight", stored, roles, needed)
    what = f"tensor {shown(stored['state'].tensor)}"
    kind, block = state["quant_type"], state["blocksize"]
    if not isinstance(kind, str) or kind not in NUMBERS:
        raise CheckpointError(f"{what}: quant_type is not described", got=shown(kind), wanted=" or ".join(NUMBERS))
    if isinstance(block, bool) or block not in BLOCK_SIZES:
        raise CheckpointError(
            f"{what}: blocksize is not described", got=shown(block), wanted=", ".join(map(str, BLOCK_SIZES))
        )
    shape = state["shape"]
    if (
        not isinstance(shape, list)
        or len(shape) != 2
        or not all(isinstance(side, int) and not isinstance(side, bool) and 0 < side < 2**31 for side in shape)
    ):
        raise CheckpointError(f"{what}: shape is not that of a matrix", got=shown(shape), wanted="[N, K]")
    n, k = shape
    if k % block:
        raise CheckpointError(
            f"layer {shown(module)}: blocks run over the ends of rows, which is not described",
            got=f"K {k} and blocks of {block}",
            wanted="K that is a multiple of the block size",
        )
    code_number = number(NUMBERS[kind])
    check_dtype(tensors["codes"], ("uint8",))
    check_shape(tensors["codes"], (n * k // 2, 1), f"{n} x {k} codes lie two to a byte")
    _check_map(tensors["quant_map"], kind)
    blocks = n * k // block
    check_dtype(tensors["scale"], ("uint8",) if nested else ("float32",))
    check_shape(tensors["scale"], (blocks,), f"{n} x {k} weights are in blocks of {block}")
    check_bias(tensors, n)
    return LayerEntry(
        name=module,
        n=n,
        k=k,
        method=f"bitsandbytes:{kind}" + (":nested" if nested else ""),
        weight=WeightFormat(number=code_number, scale=ScaleFormat(number=number("f32"), group_k=block)),
        layout=MatrixLayout(codes=FIELDS, nested=_nested(state, tensors, blocks) if nested else None),
        tensors=tensors,
    )


def _read_state(place: TensorPlace) -> dict[str, Any]:
    check_dtype(place, ("uint8",))
    if place.nbytes > _LARGEST_STATE:
        raise CheckpointError(f"tensor {shown(place.tensor)} is too large for a state", got=f"{place.nbytes} bytes")
    what = f"tensor {shown(place.tensor)}"
    state = parse_object(place.read(), what)
    check_keys(state, what, known=_STATE_KEYS | _NESTED_KEYS)
    missing = sorted((_STATE_KEYS - set(state)) | (_NESTED_KEYS - set(state) if _NESTED_KEYS & set(state) else set()))
    if missing:
        raise CheckpointError(f"{what} lacks {', '.join(missing)}")
    return state


def _check_map(place: TensorPlace, kind: str) -> None:
    """The stored table of values must be the one that the name stands for."""
    check_dtype(place, ("float32",))
    check_shape(place, (16,), "a code has four bits")
    data, single = place.read(), number("f32")
    stored = [single.decode(int.from_bytes(data[at : at + 4], "little")) for at in range(0, 64, 4)]
    if any(one != other for one, other in zip(stored, number(NUMBERS[kind]).values(), strict=True)):
        raise CheckpointError(
            f"tensor {shown(place.tensor)} holds another table of values than {kind}",
            got=", ".join(f"{float(value):g}" for value in stored),
            wanted="the values of the published table",
        )


def _nested(state: Mapping[str, Any], tensors: Mapping[str, TensorPlace], blocks: int) -> NestedScale:
    what = f"tensor {shown(tensors['state'].tensor)}"
    block, offset = state["nested_blocksize"], state["nested_offset"]
    if isinstance(block, bool) or not isinstance(block, int) or not 0 < block < 2**31:
        raise CheckpointError(f"{what}: nested_blocksize is not described", got=shown(block), wanted="256")
    if isinstance(offset, bool) or not isinstance(offset, (int, float)) or not math.isfinite(offset):
        raise CheckpointError(f"{what}: nested_offset is not a number", got=shown(offset))
    if abs(offset) > float(number("f32").largest):
        raise CheckpointError(f"{what}: nested_offset is no f32", got=shown(offset))
    for role in ("scale_map", "scale_scale"):
        check_dtype(tensors[role], ("float32",))
    check_shape(tensors["scale_map"], (256,), "a scale has eight bits")
    check_shape(tensors["scale_scale"], (-(-blocks // block),), f"{blocks} scales are in blocks of {block}")
    return NestedScale(block=block, offset=float(offset))
