"""The table of exporters: what a configuration calls its method -> its reader, and the files that hold configurations.
Called by read_checkpoint. A new exporter is a file of its own and a row here.
Assumes readers that check whatever they are given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, shown
from .autoround import read_autoround
from .awq import read_awq
from .bitnet import read_bitnet
from .bitsandbytes import read_bitsandbytes
from .compressed_tensors import read_compressed_tensors
from .exporter import Exporter, QuantConfig
from .fp8 import read_fp8
from .gptq import read_gptq_configs
from .hqq import read_hqq
from .json_file import read_object
from .modelopt import read_modelopt
from .mxfp4 import read_mxfp4
from .quark import read_quark

EXPORTERS: dict[str, Exporter] = {
    "gptq": read_gptq_configs,
    "awq": read_awq,
    "auto-round": read_autoround,
    "bitnet": read_bitnet,
    "bitsandbytes": read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "hqq": read_hqq,
    "mxfp4": read_mxfp4,
    "modelopt": read_modelopt,
    "quark": read_quark,
}
"""Value of quant_method -> reader."""

KNOWN_METHODS = tuple(EXPORTERS)
"""Values of quant_method that have a reader here."""

# File -> the method that it means when it names none, or None where it must.
CONFIG_FILES: dict[str, str | None] = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
    "quantization_config.json": None,
    "config.json": None,
}
_WITHIN = {"config.json": ("quantization_config", "compression_config")}


def find_configs(folder: Path) -> tuple[str, list[QuantConfig]] | None:
    """The method of a folder and its configurations, one or more that name the same method. None: not quantized."""
    found: list[tuple[str, QuantConfig]] = []
    for name, usual in CONFIG_FILES.items():
        if not (folder / name).is_file():
            continue
        raw: Any = read_object(folder / name)
        source = str(folder / name)
        if name in _WITHIN:
            held = [key for key in _WITHIN[name] if raw.get(key) is not None]
            if not held:
                continue
            if not isinstance(raw[held[0]], dict):
                raise CheckpointError(f"{source}: {held[0]} is not a JSON object", got=shown(raw[held[0]]))
            raw = raw[held[0]]
        found.append((_method(raw, source, usual), QuantConfig(raw=raw, source=source)))
    if not found:
        return None
    method, first = found[0]
    for other, config in found[1:]:
        if other != method:
            raise CheckpointError(
                f"the quantization configurations of {folder} contradict each other on the method",
                got=f"{method} in {first.source}, {other} in {config.source}",
                remedy="remove the wrong one",
            )
    return method, [config for _, config in found]


def _method(raw: Mapping[str, Any], source: str, usual: str | None) -> str:
    stated = {key: raw[key] for key in ("quant_method", "method") if raw.get(key) is not None}
    for key, value in stated.items():
        if not isinstance(value, str) or value not in EXPORTERS:
            raise CheckpointError(
                f"{source}: {key} is not described",
                got=shown(value),
                wanted=", ".join(KNOWN_METHODS) + " (or a GGUF file)",
            )
    if len(set(stated.values())) > 1:
        raise CheckpointError(f"{source}: quant_method and method contradict each other", got=shown(stated))
    method = next(iter(stated.values()), usual)
    if method is None:
        raise CheckpointError(
            f"{source}: quantization_config does not name its quant_method",
            got=shown(sorted(raw)),
            wanted=f"quant_method, one of {', '.join(KNOWN_METHODS)}",
        )
    return method
