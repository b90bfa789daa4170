"""Configuration of compressed-tensors: groups of modules, and how each stores weights and wants activations.
Called by the compressed-tensors reader.
Assumes the keys listed here; any other key may change what the bits mean, so it is an error, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ..activation import ActivationFormat
from ..errors import CheckpointError, shown
from ..number import Number, number
from ..scale import ScaleFormat
from ..zero_point import ZeroPointFormat
from .exporter import QuantConfig, check_keys, flag, names

STORED = {
    "pack-quantized": "packed",  # int32 words
    "int-quantized": "plain",  # one value per element
    "float-quantized": "plain",
    "naive-quantized": "plain",
    "nvfp4-pack-quantized": "nvfp4",
    "mxfp4-pack-quantized": "mx",  # bytes, e8m0 scales
    "mxfp6-pack-quantized": "mx",
    "mxfp8-quantized": "mx",
}
"""Format -> the way in which it stores weights."""

_CONFIG_KEYS = {
    "config_groups",
    "format",
    "ignore",
    "quant_method",
    "quantization_status",
    "global_compression_ratio",
    "version",
    "kv_cache_scheme",  # how the cache is stored while the model runs: no weight depends on it
    # how transformers would run the model
    "run_compressed",
    "dequantize",
    "use_optimized_inference",
}
_CONFIG_GUARDED: dict[str, tuple[Any, ...]] = {
    "sparsity_config": (None, {}),
    "transform_config": (None, {}, {"config_groups": {}}),
    "moe_sparsity_config": (None,),
}
_GROUP_KEYS = {"targets", "weights", "input_activations", "output_activations", "format"}
_ARGUMENT_KEYS = {
    "num_bits",
    "type",
    "symmetric",
    "group_size",
    "strategy",
    "block_structure",
    "dynamic",
    "actorder",
    "scale_dtype",
    "zp_dtype",
    "observer",
    "observer_kwargs",
}
_FLOATS = {4: "e2m1", 6: "e2m3", 8: "e4m3"}
_MX_SCALES = (None, "torch.uint8", "uint8", "torch.float8_e8m0fnu")


@attrs.frozen(kw_only=True)
class Arguments:
    """One set of quantization arguments. `group_k` and `group_n` as in ScaleFormat."""

    bits: int
    floating: bool
    symmetric: bool
    strategy: str
    group_k: int | None
    group_n: int | None
    dynamic: bool | str
    scale_dtype: str | None

    def number(self, what: str) -> Number:
        """The number of the codes: unsigned for integers, whose zero point 2**(bits-1) stands for 0."""
        if not self.floating:
            return number(f"u{self.bits}")
        if self.bits not in _FLOATS:
            raise CheckpointError(
                f"{what}: floats of this width are not described", got=f"{self.bits} bits", wanted="4, 6 or 8"
            )
        return number(_FLOATS[self.bits])


@attrs.frozen(kw_only=True)
class Group:
    """One entry of config_groups. `activation` None: not quantized."""

    name: str
    targets: tuple[str, ...]
    weights: Arguments | None
    stored: str
    activation: ActivationFormat | None
    outputs: bool


@attrs.frozen(kw_only=True)
class CompressedTensorsConfig:
    """All groups, and what is left out."""

    groups: tuple[Group, ...]
    ignore: tuple[str, ...]
    kv_cache: bool


def read_config(config: QuantConfig) -> CompressedTensorsConfig:
    """Check a configuration and keep what matters. Raises CheckpointError."""
    what = f"{config.source}: the compressed-tensors configuration"
    raw = config.raw
    check_keys(raw, what, known=_CONFIG_KEYS, guarded=_CONFIG_GUARDED)
    status = raw.get("quantization_status", "compressed")
    if status != "compressed":
        raise CheckpointError(
            f"{what}: quantization_status is not described",
            got=shown(status),
            wanted="compressed",
            remedy="weights of any other status are stored as floats; save the model compressed",
        )
    groups = raw.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise CheckpointError(f"{what} has no config_groups", got=shown(groups), wanted="an object of groups")
    return CompressedTensorsConfig(
        groups=tuple(_group(name, group, raw.get("format"), what) for name, group in groups.items()),
        ignore=names(raw, "ignore", what),
        kv_cache=raw.get("kv_cache_scheme") is not None,
    )


def _group(name: str, raw: Any, usual_format: Any, what: str) -> Group:
    what = f"{what}: group {shown(name, 60)}"
    if not isinstance(raw, Mapping):
        raise CheckpointError(
            f"{what} is not spelled out",
            got=shown(raw),
            wanted="an object with targets and weights; names of ready-made schemes are not described",
        )
    check_keys(raw, what, known=_GROUP_KEYS)
    form = raw.get("format") if raw.get("format") is not None else usual_format
    weights = None if raw.get("weights") is None else _arguments(raw["weights"], f"{what}: weights")
    stored = STORED.get(form) if isinstance(form, str) else None
    if weights is not None and stored is None:
        raise CheckpointError(f"{what}: format is not described", got=shown(form), wanted=", ".join(STORED))
    inputs = raw.get("input_activations")
    arguments = None if inputs is None else _arguments(inputs, f"{what}: input_activations")
    return Group(
        name=name,
        targets=names(raw, "targets", what),
        weights=weights,
        stored=stored or "",
        activation=None if arguments is None else _activation(arguments, f"{what}: input_activations"),
        outputs=raw.get("output_activations") is not None,
    )


def _arguments(raw: Any, what: str) -> Arguments:
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"{what} must be an object", got=shown(raw))
    check_keys(raw, what, known=_ARGUMENT_KEYS)
    bits = raw.get("num_bits", 8)
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 8:
        raise CheckpointError(f"{what}: num_bits is not described", got=shown(bits), wanted="1 to 8")
    kind = raw.get("type", "int")
    if not isinstance(kind, str) or kind.lower() not in ("int", "float"):
        raise CheckpointError(f"{what}: type is not described", got=shown(kind), wanted="int or float")
    dynamic = raw.get("dynamic", False)
    if not isinstance(dynamic, bool) and dynamic != "local":
        raise CheckpointError(f"{what}: dynamic is not described", got=shown(dynamic), wanted="true, false or local")
    actorder = raw.get("actorder")
    if actorder is not None and actorder is not False and actorder not in ("group", "dynamic", "weight", "static"):
        raise CheckpointError(f"{what}: actorder is not described", got=shown(actorder), wanted="group or weight")
    scale_dtype = raw.get("scale_dtype")
    if scale_dtype is not None and not isinstance(scale_dtype, str):
        raise CheckpointError(f"{what}: scale_dtype is not described", got=shown(scale_dtype), wanted="a dtype")
    strategy, group_k, group_n = _strategy(raw, what)
    return Arguments(
        bits=bits,
        floating=kind.lower() == "float",
        symmetric=flag(raw, "symmetric", what, default=True),
        strategy=strategy,
        group_k=group_k,
        group_n=group_n,
        dynamic=dynamic,
        scale_dtype=scale_dtype,
    )


def _strategy(raw: Mapping[str, Any], what: str) -> tuple[str, int | None, int | None]:
    """Strategy, group_k, group_n."""
    size, strategy = raw.get("group_size"), raw.get("strategy")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not (size == -1 or size > 0)):
        raise CheckpointError(f"{what}: group_size must be a positive int, -1 or null", got=shown(size))
    if strategy is None:
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = strategy.lower() if isinstance(strategy, str) else strategy
    if strategy in ("group", "tensor_group"):
        if size is None or size == -1:
            raise CheckpointError(f"{what}: strategy {strategy} needs a group_size", got=shown(size))
        return strategy, size, 1
    if size is not None and size != -1:
        raise CheckpointError(f"{what}: a group_size goes with strategy group", got=f"{shown(strategy)} and {size}")
    blocks = raw.get("block_structure")
    if isinstance(blocks, str) and len(blocks) < 24 and blocks.count("x") == 1:
        blocks = [int(part) for part in blocks.split("x") if part.isascii() and part.isdigit()]
    if strategy == "block":
        if (
            not isinstance(blocks, list)
            or len(blocks) != 2
            or not all(isinstance(side, int) and not isinstance(side, bool) and 0 < side < 2**31 for side in blocks)
        ):
            raise CheckpointError(f"{what}: block_structure must be two sizes", got=shown(blocks), wanted="[128, 128]")
        return strategy, blocks[1], blocks[0]
    if blocks is not None:
        raise CheckpointError(f"{what}: a block_structure goes with strategy block", got=shown(strategy))
    if strategy in ("channel", "token"):
        return strategy, None, 1
    if strategy == "tensor":
        return strategy, None, None
    raise CheckpointError(
        f"{what}: strategy is not described",
        got=shown(strategy),
        wanted="tensor, channel, group, block, token or tensor_group",
    )


def is_mx_scale(arguments: Arguments) -> bool:
    """Whether the scales are powers of two, stored as exponents."""
    return arguments.scale_dtype in _MX_SCALES


def _activation(arguments: Arguments, what: str) -> ActivationFormat:
    static = arguments.dynamic is False
    name = f"s{arguments.bits}" if not arguments.floating else arguments.number(what).name
    zero_point = ZeroPointFormat.none()
    if not arguments.symmetric:
        if arguments.floating:
            raise CheckpointError(f"{what}: floats with a zero point are not described", wanted="symmetric true")
        name, zero_point = f"u{arguments.bits}", ZeroPointFormat.integer()
    if name == "s1":
        raise CheckpointError(f"{what}: symmetric integers of one bit are not described", wanted="2 to 8 bits")
    if static and arguments.strategy != "tensor":
        raise CheckpointError(
            f"{what}: static activations are described per tensor only", got=arguments.strategy, wanted="tensor"
        )
    if arguments.strategy == "block" or (arguments.dynamic == "local") != (arguments.strategy == "tensor_group"):
        raise CheckpointError(
            f"{what}: this strategy of activations is not described",
            got=f"{arguments.strategy}, dynamic {shown(arguments.dynamic)}",
            wanted="tensor, token or group, or tensor_group with dynamic local",
        )
    scale_number, outer = "f32", None
    if arguments.strategy == "tensor_group":
        scale_number, outer = "e4m3", ScaleFormat(number=number("f32"), group_k=None, group_n=None)
    elif arguments.scale_dtype is not None and is_mx_scale(arguments):
        scale_number = "e8m0"
    scale = ScaleFormat(
        number=number(scale_number),
        group_k=arguments.group_k,
        group_n=None if arguments.strategy == "tensor" else arguments.group_n,
    )
    return ActivationFormat(number=number(name), scale=scale, zero_point=zero_point, outer_scale=outer, static=static)
