"""`read_checkpoint(path)`: finds out what a file or folder is and hands it to the reader that knows it.
Called by people, by the command line and by whoever loads a model.
Assumes safetensors folders in the usual arrangement (shards, index, config.json) or one GGUF file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import CheckpointError, shown
from .entry import Checkpoint, LayerEntry, TensorPlace
from .exporter import Options, natural
from .exporters import EXPORTERS, KNOWN_METHODS, find_configs
from .gguf import read_gguf
from .json_file import read_object
from .safetensors_header import read_header

USES_CHECKPOINT_FORMAT = ("gptq",)
"""Methods for which the argument checkpoint_format means something."""

QUANTIZED_ENDINGS = (".qweight", ".weight_packed", ".weight_scale_inv", "_blocks", ".absmax", ".W_q")
"""Names of tensors that make no sense without a quantization configuration."""

_PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def read_checkpoint(path: str | os.PathLike[str], *, checkpoint_format: str | None = None) -> Checkpoint:
    """Describe the checkpoint at `path`: a .gguf file, a .safetensors file, or a folder holding either.

    `checkpoint_format` ("gptq" or "gptq_v2") says how GPTQ zero points are stored when the configuration does not, or
    says it wrongly. Only headers, group indices and the zero points of symmetric layers are read, not the weights.
    Raises CheckpointError when something is damaged, missing, contradictory or not described.
    """
    options = Options(checkpoint_format=checkpoint_format)
    try:
        place = Path(path)
        if place.is_dir():
            return _read_folder(place, options)
        if place.is_file():
            return _read_file(place, options)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise CheckpointError(f"{shown(str(path))} cannot be read: {error}") from error
    raise CheckpointError(
        f"{shown(str(path))} is neither a file nor a folder", wanted="a .gguf file, a .safetensors file or a folder"
    )


def _read_file(path: Path, options: Options) -> Checkpoint:
    with path.open("rb") as stream:
        start = stream.read(9)
    if start[:4] == b"GGUF" or path.suffix == ".gguf":
        if options.checkpoint_format is not None:
            raise CheckpointError("checkpoint_format is for GPTQ checkpoints, and this is a GGUF file")
        return read_gguf(path)
    if path.suffix in _PICKLE_ENDINGS or start[:2] == b"PK" or (start[:1] == b"\x80" and start[1:2] <= b"\x05"):
        raise _pickle_error(path)
    # A safetensors file begins with the length of its header and the header's brace.
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return _read_safetensors(path, path.parent, {path.name: read_header(path)}, options)
    raise CheckpointError(
        f"{path} is of no known kind", got=f"first bytes {shown(start)}", wanted="a .gguf or .safetensors file"
    )


def _read_folder(folder: Path, options: Options) -> Checkpoint:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    indexes = [name for name in names if name.endswith(".safetensors.index.json")]
    shards = [name for name in names if name.endswith(".safetensors")]
    if len(indexes) > 1:
        raise CheckpointError(f"{folder} holds several indexes", got=", ".join(indexes), wanted="one")
    if indexes:
        headers = _read_index(folder, indexes[0])
        return _read_safetensors(folder, folder, headers, options)
    if shards:
        return _read_safetensors(folder, folder, {name: read_header(folder / name) for name in shards}, options)
    gguf = [name for name in names if name.endswith(".gguf")]
    if len(gguf) == 1:
        return _read_file(folder / gguf[0], options)
    if gguf:
        raise CheckpointError(
            f"{folder} holds several GGUF files", got=", ".join(gguf[:10]), remedy="give the path of one of them"
        )
    pickles = [name for name in names if name.endswith(_PICKLE_ENDINGS)]
    if pickles:
        raise _pickle_error(folder / pickles[0])
    raise CheckpointError(f"{folder} holds no checkpoint", wanted="*.safetensors or one *.gguf")


def _pickle_error(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is a pickle file, which can run any code when it is loaded",
        wanted="safetensors or GGUF",
        remedy="convert it with the tool that wrote it; humming does not open pickles",
    )


def _read_index(folder: Path, index_name: str) -> dict[str, dict[str, TensorPlace]]:
    """Headers of the shards that the index names; each tensor must be in the shard where the index says it is."""
    weight_map = read_object(folder / index_name).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(value, str) for value in weight_map.values()):
        raise CheckpointError(f"{folder / index_name} has no weight_map from tensor names to file names")
    headers: dict[str, dict[str, TensorPlace]] = {}
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard or "\\" in shard or "\x00" in shard or shard in ("", ".", ".."):
            raise CheckpointError(f"{folder / index_name} names a file outside the folder", got=shown(shard))
        if not (folder / shard).is_file():
            raise CheckpointError(f"shard {shown(shard)} is missing in {folder}", remedy="download it again")
        headers[shard] = read_header(folder / shard)
    for tensor, shard in weight_map.items():
        if tensor not in headers[shard]:
            raise CheckpointError(f"tensor {shown(tensor)} is missing in {folder / shard}, where the index puts it")
    return headers


def _read_safetensors(
    path: Path, folder: Path, headers: Mapping[str, Mapping[str, TensorPlace]], options: Options
) -> Checkpoint:
    places: dict[str, TensorPlace] = {}
    for header in headers.values():
        for name, place in header.items():
            if name in places:
                raise CheckpointError(
                    f"tensor {shown(name)} is in two files", got=f"{places[name].file.name} and {place.file.name}"
                )
            places[name] = place
    files = tuple(folder / name for name in headers)
    configured = find_configs(folder)
    if configured is None:
        marked = [name for name in places if name.endswith(QUANTIZED_ENDINGS)]
        if marked:
            raise CheckpointError(
                f"{folder} has quantized tensors ({shown(marked[0])}) but no quantization configuration",
                wanted="quantize_config.json, or quantization_config in config.json",
            )
        if options.checkpoint_format is not None:
            raise CheckpointError(f"checkpoint_format is for GPTQ checkpoints, and {folder} is not quantized")
        layers, others = _plain_layers(places, frozenset())
        return Checkpoint(
            path=path, container="safetensors", method=None, files=files, layers=tuple(layers), others=tuple(others)
        )
    method, configs = configured
    if options.checkpoint_format is not None and method not in USES_CHECKPOINT_FORMAT:
        raise CheckpointError(f"checkpoint_format is for GPTQ checkpoints, and {folder} is one of {method}")
    found = EXPORTERS[method](places, configs, options)
    layers, others = _plain_layers(places, found.used)
    every = sorted([*found.layers, *layers], key=lambda entry: natural(entry.name))
    return Checkpoint(
        path=path,
        container="safetensors",
        method=found.method,
        files=files,
        layers=tuple(every),
        others=tuple(others),
        notes=found.notes,
    )


def _plain_layers(
    places: Mapping[str, TensorPlace], used: frozenset[str]
) -> tuple[list[LayerEntry], list[TensorPlace]]:
    """What belongs to no quantized layer: floating-point matrices as layers without a format, and the rest."""
    layers, others = [], []
    for name, place in sorted(places.items(), key=lambda item: natural(item[0])):
        if name in used:
            continue
        if len(place.shape) == 2 and 0 not in place.shape and place.dtype in ("float16", "bfloat16", "float32"):
            short = name[: -len(".weight")] if name.endswith(".weight") else name
            layers.append(
                LayerEntry(
                    name=short, n=place.shape[0], k=place.shape[1], method=place.dtype, tensors={"weight": place}
                )
            )
        else:
            others.append(place)
    return layers, others


__all__ = ["KNOWN_METHODS", "read_checkpoint"]
