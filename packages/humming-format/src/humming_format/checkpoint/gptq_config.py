"""GPTQ configuration: the keys that exporters write, which of them matter, and which values are understood.
Called by the GPTQ reader.
Assumes the keys listed here; any other key may change what the bits mean, so it is an error, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ..errors import CheckpointError, shown

GPTQ_BITS = (2, 3, 4, 8)
CHECKPOINT_FORMATS: dict[str, int] = {"gptq": 1, "gptq_v2": 0}
"""Known ways of storing zero points: name -> what must be added to the stored field."""

# These say what the bits mean; GptqConfig.read handles each.
MEANING_KEYS = frozenset(
    {"bits", "group_size", "desc_act", "sym", "checkpoint_format", "format", "quant_method", "method"}
)

# Key -> values that leave the meaning of the tensors as described. Any other value is refused.
GUARDED_KEYS: dict[str, tuple[Any, ...]] = {
    "pack_dtype": (None, "int32"),
    "is_marlin_format": (None, False),
    "awq_gemm_checkpoint": (None, False),
    "rotation": (None, {}, ""),
    "rotation_configs": (None, [], {}),
    "adapter": (None, {}),
    "activation": (None, {}),  # quantized activations
    "super_bits": (None,),
    "super_group_size": (None,),
    "data_type": (None, "int"),
    "static_kv_dtype": (None,),
    "static_attention_dtype": (None,),
}

# How the weights were made, or how some library would run them: of no consequence for what the bits mean.
HARMLESS_KEYS = frozenset(
    {
        # AutoGPTQ
        "damp_percent",
        "static_groups",
        "true_sequential",
        "model_name_or_path",
        "model_file_base_name",
        # GPTQModel
        "damp_auto_increment",
        "lm_head",  # whether the head is quantized too: its tensors say so
        "meta",
        "mse",
        "v2",
        "v2_alpha",
        "v2_memory_device",
        "gptaq",
        "foem",
        "act_group_aware",
        "hyb_act",
        "rounding",
        "parallel_packing",
        "device",
        "uri",
        # transformers, optimum
        "tokenizer",
        "dataset",
        "backend",
        "use_cuda_fp16",
        "model_seqlen",
        "block_name_to_quantize",
        "module_name_preceding_first_block",
        "batch_size",
        "pad_token_id",
        "max_input_length",
        "cache_block_outputs",
        "modules_in_block_to_quantize",
        "modules_to_not_convert",
        "use_exllama",
        "disable_exllama",
        "exllama_config",
        # auto-round
        "autoround_version",
        "provider",
        "packing_format",
        "iters",
        "lr",
        "minmax_lr",
        "nsamples",
        "seqlen",
        "amp",
        "enable_quanted_input",
        "enable_minmax_tuning",
        "enable_norm_bias_tuning",
        "low_gpu_mem_usage",
        "gradient_accumulate_steps",
        "quant_block_list",
        "to_quant_block_names",
        "supported_types",
        "scale_dtype",
        "act_bits",
        "act_data_type",
        "act_dynamic",
        "act_group_size",
        "act_sym",
        "static_attention_granularity",
        "static_kv_granularity",
    }
)


@attrs.frozen(kw_only=True)
class GptqConfig:
    """The part of a GPTQ configuration that says what the bits mean.

    `group_size` None: one group of all of K. `checkpoint_format` None: not stated. `source` names the file.
    """

    bits: int
    group_size: int | None
    desc_act: bool
    symmetric: bool
    checkpoint_format: str | None
    source: str

    @classmethod
    def read(cls, raw: Mapping[str, Any], source: str) -> GptqConfig:
        """Check a configuration and keep what matters. Raises CheckpointError."""
        known = MEANING_KEYS | HARMLESS_KEYS | set(GUARDED_KEYS) | {"dynamic"}
        unknown = sorted(set(raw) - known)
        if unknown:
            raise CheckpointError(
                f"{source}: unknown keys in the GPTQ configuration",
                got=", ".join(shown(key, 60) for key in unknown[:20]) + (", ..." if len(unknown) > 20 else ""),
                wanted="only keys whose meaning is known",
                remedy="an unknown key may change what the bits mean; report the exporter that writes it",
            )
        for key, harmless in GUARDED_KEYS.items():
            if key in raw and not any(raw[key] is value or raw[key] == value for value in harmless):
                raise CheckpointError(
                    f"{source}: {key} has a value whose layout is not described",
                    got=shown(raw[key]),
                    wanted=" or ".join(shown(value) for value in harmless),
                )
        _check_dynamic(raw.get("dynamic"), source)
        for key in ("bits", "group_size"):
            if key not in raw:
                raise CheckpointError(f"{source}: the GPTQ configuration lacks {key}")
        bits, group_size = raw["bits"], raw["group_size"]
        if isinstance(bits, bool) or bits not in GPTQ_BITS or not isinstance(bits, int):
            raise CheckpointError(
                f"{source}: bits not described for GPTQ", got=shown(bits), wanted=", ".join(map(str, GPTQ_BITS))
            )
        if isinstance(group_size, bool) or not isinstance(group_size, int) or not (group_size == -1 or group_size > 0):
            raise CheckpointError(
                f"{source}: group_size must be a positive number of columns, or -1 for one group of all columns",
                got=shown(group_size),
            )
        act_bits = raw.get("act_bits")
        if act_bits is not None and (isinstance(act_bits, bool) or not isinstance(act_bits, int) or act_bits < 16):
            raise CheckpointError(
                f"{source}: quantized activations are not described", got=f"act_bits {shown(act_bits)}", wanted=">= 16"
            )
        return cls(
            bits=bits,
            group_size=None if group_size == -1 else group_size,
            desc_act=_flag(raw, "desc_act", source),
            symmetric=_flag(raw, "sym", source),
            checkpoint_format=_checkpoint_format(raw, source),
            source=source,
        )


def _flag(raw: Mapping[str, Any], key: str, source: str) -> bool:
    """A true or false value; absent means false: the tensors alone then say what there is."""
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{source}: {key} must be true or false", got=shown(value))
    return bool(value)


def _checkpoint_format(raw: Mapping[str, Any], source: str) -> str | None:
    stated = {key: raw[key] for key in ("checkpoint_format", "format") if raw.get(key) is not None}
    for key, value in stated.items():
        if not isinstance(value, str) or value not in CHECKPOINT_FORMATS:
            raise CheckpointError(
                f"{source}: {key} is not described", got=shown(value), wanted=" or ".join(CHECKPOINT_FORMATS)
            )
    if len(set(stated.values())) > 1:
        raise CheckpointError(f"{source}: checkpoint_format and format contradict each other", got=shown(stated))
    return next(iter(stated.values()), None)


def _check_dynamic(dynamic: object, source: str) -> None:
    """Per-module rules: "-:pattern" leaves modules unquantized, which their tensors show; others change the meaning."""
    if dynamic is None:
        return
    if not isinstance(dynamic, dict):
        raise CheckpointError(f"{source}: dynamic must be an object", got=shown(dynamic))
    overriding = sorted(pattern for pattern, rule in dynamic.items() if not pattern.startswith("-:") and rule)
    if overriding:
        raise CheckpointError(
            f"{source}: dynamic gives some modules another quantization, which is not described",
            got=", ".join(shown(pattern, 60) for pattern in overriding[:10]),
            wanted='only "-:" patterns, which exclude modules',
        )
