"""Every exporter's golden checkpoint, damaged: each change is read or refused by name, and some must be refused."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from humming_format import CheckpointError, FormatError
from humming_format.checkpoint import decode_rows, read_checkpoint
from humming_format.checkpoint.hqq import HARMLESS
from humming_format.inspect_report import report_document, report_text

NAMES = sorted(path.stem for path in (Path(__file__).parent / "golden").glob("*.json"))
STRANGE = [None, True, -1, 0, 7, 10**30, 1.5, "", "x", [], {}, [[]], [1], {"a": {}}, "x" * 5000]


# What may be absent: ModelOpt folds pre_quant_scale into the norm before the layer where it can; HQQ adds what it was
# told, as time goes by.
# Symmetric layers of Quark may store zero points, all zero, or none.
SYMMETRIC = ("quark_int4_wo_32", "quark_int8")
OPTIONAL = ("g_idx", "pre_quant_scale", *HARMLESS)


def check_any(path):
    """A description or a FormatError, the reports included; of what is accepted, a row is decoded as well."""
    try:
        checkpoint = read_checkpoint(path)
        for layer in checkpoint.quantized[:1]:
            decode_rows(layer if layer.experts is None else layer.expert(0), [0, layer.n - 1])
    except FormatError as error:
        assert len(str(error)) < 4000
        return False
    assert "\n" in report_text(checkpoint) and json.dumps(report_document(checkpoint))
    return True


def places(value, path=()):
    """Every place in a nested JSON value."""
    if isinstance(value, dict):
        for key in value:
            yield (*path, key)
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from places(value[index], (*path, index))


def changed(value, path, new):
    """A copy with another value at a place, or without it."""
    value = copy.deepcopy(value)
    inner = value
    for part in path[:-1]:
        inner = inner[part]
    if new is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return value


@pytest.mark.parametrize("name", NAMES)
def test_changed_configurations(golden, tmp_path, name):
    model = golden(name)
    folder = model.write(tmp_path)
    assert check_any(folder)
    path = folder / model.config_file
    every = list(places(model.config))
    random = np.random.default_rng(0)
    chosen = every if len(every) < 40 else [every[index] for index in random.choice(len(every), 40, replace=False)]
    for place in chosen:
        for new in [*STRANGE, KeyError]:
            path.write_text(json.dumps(changed(model.config, place, new)))
            check_any(folder)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_keys_are_refused_wherever_an_object_says_what_bits_mean(golden, tmp_path, name):
    model = golden(name)
    quant = model.config if model.config_file != "config.json" else model.config["quantization_config"]
    quant["surprise_key"] = 1
    with pytest.raises(CheckpointError, match="surprise_key"):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize("name", NAMES)
def test_damaged_tensors(golden, tmp_path, name):
    """A tensor less, a tensor more beside a quantized one, another dtype, another shape: never a wrong description."""
    model = golden(name)
    good = dict(model.tensors)
    clean = read_checkpoint(model.write(tmp_path))
    owned = {place.tensor for layer in clean.quantized for role, place in layer.tensors.items() if role != "bias"}
    random = np.random.default_rng(1)
    for key in good if len(good) < 30 else random.choice(list(good), 30, replace=False).tolist():
        dtype, shape, data = good[key]
        model.tensors = {other: value for other, value in good.items() if other != key}
        accepted = check_any(model.write(tmp_path))
        if key in owned and not key.endswith(OPTIONAL) and not (name in SYMMETRIC and key.endswith("zero_point")):
            assert not accepted, f"accepted without {key}"
        for changed_to in (
            ("int64", shape, data * 8) if len(data) else None,
            (dtype, (*shape, 1), data),
            (dtype, (shape[0] * 2, *shape[1:]), data * 2) if shape else None,
            (dtype, (shape[0] // 2, *shape[1:]), data[: len(data) // 2]) if shape and shape[0] % 2 == 0 else None,
            (dtype, (0, *shape[1:]), b"") if shape else None,
            (dtype, shape[::-1], data),
        ):
            if changed_to is None:
                continue
            if changed_to[0] == "int64":
                changed_to = ("int64", shape, bytes(8 * int(np.prod(shape))))
            model.tensors = {**good, key: changed_to}
            check_any(model.write(tmp_path))
    for layer in clean.quantized[:1]:
        stem = next(iter(layer.tensors.values())).tensor.rpartition(".")[0]
        model.tensors = {**good, f"{stem}.surprise": ("float32", (2,), bytes(8))}
        with pytest.raises(CheckpointError, match="surprise"):
            read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_file_is_refused(golden, tmp_path, name):
    folder = golden(name).write(tmp_path)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    for length in (0, 7, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            read_checkpoint(folder)
