"""Damaged, hostile and foreign files: whatever the bytes, the answer is a description or a FormatError, and soon."""

import json
import os
import pickle
import tracemalloc

import numpy as np
import pytest
from humming_format import CheckpointError, FormatError
from humming_format.checkpoint import read_checkpoint
from humming_format.checkpoint.json_file import parse_object
from humming_format.checkpoint.safetensors_header import read_header
from humming_format.inspect_report import report_document, report_text


def container(header, data=b"", length=None):
    """A safetensors file of a header given as text or an object."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (b"\x08\x00\x00\x00", "too short"),
        (container({}, length=1 << 63), "claims more bytes"),
        (container({}, length=200), "claims more bytes"),
        (container(b"{"), "not valid JSON"),
        (container(b"[]"), "not a JSON object"),
        (container(b'{"a": "\xff"}'), "not valid JSON"),
        (container(b'{"a":' * 50000), "not valid JSON"),
        (container(b'{"a":' + b"9" * 5000 + b"}"), "not valid JSON"),
        (container(b'{"a": 1, "a": 2}'), "same key twice"),
        (container({"a": []}), "not described as safetensors does"),
        (container({"a": {**entry(), "extra": 1}}, bytes(8)), "not described as safetensors does"),
        (container({"a": entry(dtype="F33")}, bytes(8)), "unknown dtype"),
        (container({"a": entry(dtype=["F32"])}, bytes(8)), "unknown dtype"),
        (container({"a": entry(shape=(-2,))}, bytes(8)), "not a list of sizes"),
        (container({"a": entry(shape=(2.0,))}, bytes(8)), "not a list of sizes"),
        (container({"a": entry(shape=(True, 2))}, bytes(8)), "not a list of sizes"),
        (container({"a": entry(shape=(1,) * 5000)}, bytes(8)), "not a list of sizes"),
        (container({"a": entry(offsets=(0, 8, 8))}, bytes(8)), "not two sizes"),
        (container({"a": entry(offsets=(8, 0))}, bytes(8)), "outside the file"),
        (container({"a": entry(shape=(1 << 40,), offsets=(0, 1 << 42))}, bytes(8)), "outside the file"),
        (container({"a": entry(shape=(3,))}, bytes(8)), "shape and a size that disagree"),
        (container({"a": entry(shape=(1 << 62, 1 << 62))}, bytes(8)), "shape and a size that disagree"),
        (container({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "overlaps"),
        (container({"a": entry(), "b": entry()}, bytes(8)), "overlaps"),
        (container({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20)), "leaves a gap"),
        (container({"a": entry()}, bytes(9)), "longer than its tensors"),
    ],
)
def test_headers_that_lie(tmp_path, content, message):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=message):
        read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 24


def test_good_headers_are_read_as_safetensors_reads_them(tmp_path):
    from safetensors.numpy import load_file, save_file

    random = np.random.default_rng(0)
    kinds = ["bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32", "int64", "float64"]
    tensors = {f"t{i}": random.integers(0, 2, (3, i)).astype(kind) for i, kind in enumerate(kinds)}
    tensors["scalar"] = np.array(3, np.float32)
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    places = read_header(path)
    stored = load_file(path)
    assert set(places) == set(stored)
    for name, place in places.items():
        assert np.array_equal(np.frombuffer(place.read(), place.dtype).reshape(place.shape), stored[name])
        assert place.dtype == str(stored[name].dtype)


def check_any(path):
    """The reader and both reports: a result or a FormatError. Returns whether it was accepted."""
    try:
        checkpoint = read_checkpoint(path)
    except FormatError as error:
        assert len(str(error)) < 4000
        return False
    assert "\n" in report_text(checkpoint) and json.dumps(report_document(checkpoint))
    return True


ENDS = [0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]


def mutate(data, random, first, last):
    """A few changed, removed, repeated or cut bytes between first and last."""
    data = bytearray(data)
    for _ in range(random.integers(1, 4)):
        at = int(random.integers(first, min(last, len(data))))
        kind = random.integers(0, 5)
        if kind == 0:
            data[at] = random.integers(0, 256)
        elif kind == 1:
            data[at] ^= 1 << random.integers(0, 8)
        elif kind == 2:
            del data[at : at + int(random.integers(1, 9))]
        elif kind == 3:
            data[at:at] = data[at : at + int(random.integers(1, 9))]
        else:
            data[at : at + 8] = ENDS[random.integers(0, len(ENDS))].to_bytes(8, "little")
        if len(data) <= first:
            break
    if random.integers(0, 20) == 0:
        del data[int(random.integers(0, len(data))) :]
    return bytes(data)


def test_mutated_safetensors_headers(gptq_model, write_gptq):
    folder = write_gptq(gptq_model(k=128))
    path = folder / "model.safetensors"
    good = path.read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")
    random = np.random.default_rng(0)
    accepted = 0
    for _ in range(400):
        path.write_bytes(mutate(good, random, 0, header))
        accepted += check_any(folder)
    assert accepted < 200  # a changed letter of an unquantized tensor's name is no fault; most changes are


def test_mutated_gguf_headers(write_gguf):
    values = np.random.default_rng(0).standard_normal((8, 64))
    path, _ = write_gguf({"a.weight": (values, "Q4_0"), "b.weight": (values, "Q4_1"), "c.weight": (values, "F16")})
    good = path.read_bytes()
    random = np.random.default_rng(1)
    accepted = sum(write_and_check(path, mutate(good, random, 0, len(good) - 8 * (36 + 40 + 128))) for _ in range(400))
    assert accepted < 300


def write_and_check(path, data):
    path.write_bytes(data)
    return check_any(path)


def test_mutated_configurations(gptq_model, write_gptq):
    model = gptq_model(k=128)
    folder = write_gptq(model)
    path = folder / "quantize_config.json"
    good = path.read_bytes()
    random = np.random.default_rng(2)
    accepted = sum(write_and_check_folder(folder, path, mutate(good, random, 0, len(good))) for _ in range(400))
    assert accepted < 100
    strange = [None, True, -1, 0, 10**30, 1.5, float("nan"), "", "gptq", [], {}, [[]], {"a": {}}, "x" * 10000]
    for key in [*model.config(), "checkpoint_format", "format", "dynamic", "pack_dtype", "rotation", "act_bits", "new"]:
        for value in strange:
            write_and_check_folder(folder, path, json.dumps(model.config(**{key: value})).encode())
    for value in strange:
        (folder / "config.json").write_text(json.dumps({"quantization_config": value}))
        write_and_check_folder(folder, path, good)
        (folder / "config.json").write_text(json.dumps(value))
        write_and_check_folder(folder, path, good)


def write_and_check_folder(folder, path, data):
    path.write_bytes(data)
    return check_any(folder)


def test_random_bytes(tmp_path):
    random = np.random.default_rng(3)
    for name in ("model.safetensors", "model.gguf", "model"):
        for length in (0, 1, 8, 9, 24, 100, 5000):
            path = tmp_path / name
            path.write_bytes(random.integers(0, 256, length, dtype=np.uint8).tobytes())
            assert not check_any(path)
            path.write_bytes(b"GGUF\x03\x00\x00\x00" + path.read_bytes())
            assert not check_any(path)
            path.unlink()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model"])
def test_pickles_are_never_opened(tmp_path, name):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "opened"),)

    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match="pickle file"):
        read_checkpoint(tmp_path / name)
    if "." in name:
        with pytest.raises(CheckpointError, match="pickle file"):
            read_checkpoint(tmp_path)
    assert not (tmp_path / "opened").exists()


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(CheckpointError, match="neither a file nor a folder"):
        read_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError):
        read_checkpoint("a\0b")
    (tmp_path / "notes.txt").write_text("a text")
    with pytest.raises(CheckpointError, match="of no known kind"):
        read_checkpoint(tmp_path / "notes.txt")


def test_shards_and_their_index(gptq_model, write_safetensors, tmp_path):
    from safetensors.numpy import save_file

    model = gptq_model()
    folder = write_safetensors(tmp_path / "sharded", {}, model.config(), plain=False)
    (folder / "model.safetensors").unlink()
    one, two = model.tensors(1), model.tensors(1, "model.layers.10.mlp.down_proj")
    two |= {name: two.pop(name) for name in list(two)}
    moved = "model.layers.10.mlp.down_proj.scales"
    one[moved] = two.pop(moved)  # a layer may be spread over shards
    save_file(one, folder / "model-00001-of-00002.safetensors")
    save_file(two, folder / "model-00002-of-00002.safetensors")
    checkpoint = read_checkpoint(folder)  # without an index: all of them
    assert len(checkpoint.quantized) == 2 and len(checkpoint.files) == 2
    weight_map = dict.fromkeys(one, "model-00001-of-00002.safetensors")
    weight_map |= dict.fromkeys(two, "model-00002-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert read_checkpoint(folder) == checkpoint

    for wrong, message in [
        ({**weight_map, "extra": "model-00001-of-00002.safetensors"}, "'extra' is missing"),
        ({**weight_map, "extra": "model-00003-of-00002.safetensors"}, "shard .* is missing"),
        ({**weight_map, "extra": "../sharded/model-00001-of-00002.safetensors"}, "outside the folder"),
        ({**weight_map, "extra": ".."}, "outside the folder"),
        ({**weight_map, "extra": 3}, "no weight_map"),
        ([], "no weight_map"),
    ]:
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(folder)
    index.unlink()
    save_file({moved: one[moved]}, folder / "model-00003-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="is in two files"):
        read_checkpoint(folder)


def test_unquantized_folders_are_listed(write_safetensors, tmp_path):
    folder = write_safetensors(tmp_path / "plain", {"lm_head.weight": np.zeros((8, 4), np.float32)}, None)
    checkpoint = read_checkpoint(folder)
    assert [(e.name, e.method, e.weight) for e in checkpoint.layers] == [
        ("lm_head", "float32", None),
        ("model.embed_tokens", "float16", None),
    ]
    assert checkpoint.method is None and checkpoint.quantized == ()
    with pytest.raises(CheckpointError, match="is not quantized"):
        read_checkpoint(folder, checkpoint_format="gptq")


def test_json_numbers_and_nesting():
    assert parse_object(b'{"a": [1, 2.5, null]}', "it") == {"a": [1, 2.5, None]}
    for bad in (b'{"a": ' + b"[" * 100000, b'{"a": ' + b"1" * 10000 + b"}", b"\xef\xbb\xbf{}", b"", b"null"):
        with pytest.raises(CheckpointError):
            parse_object(bad, "it")
