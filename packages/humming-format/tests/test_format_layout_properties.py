"""Property tests: any matrix, packed by numpy in any of the layouts that exporters use, is read back code for code."""

import json

import numpy as np
import pytest
from humming_format import CheckpointError
from humming_format.checkpoint import FieldLayout, decode_rows, read_checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

AWQ_FIELDS = (0, 2, 4, 6, 1, 3, 5, 7)


def stream(codes, bits, word_bits):
    """Rows of codes as little-endian bit streams, by numpy's packbits: [rows, words]."""
    rows, count = codes.shape
    flat = ((codes[:, :, None] >> np.arange(bits)) & 1).astype(np.uint8).reshape(rows, count * bits)
    words = -(-count * bits // word_bits)
    flat = np.pad(flat, ((0, 0), (0, words * word_bits - count * bits)))
    return np.ascontiguousarray(np.packbits(flat, axis=1, bitorder="little")).view(f"<u{word_bits // 8}")


def read(layout, words, rows, columns):
    """The codes, one at a time by `place`, from the words of the stored matrix."""
    assert layout.stored_shape(rows, columns) == words.shape
    flat, codes = words.ravel(), np.empty((rows, columns), int)
    for row in range(rows):
        for column in range(columns):
            word, shift = layout.place(rows, columns, row, column)
            value = int(flat[word]) >> shift
            if shift + layout.bits > layout.word_bits:
                value |= int(flat[word + layout.step(rows, columns)]) << (layout.word_bits - shift)
            codes[row, column] = value & ((1 << layout.bits) - 1)
    return codes


sides = st.integers(1, 40)


@given(st.integers(1, 8), st.sampled_from([8, 32]), sides, sides, st.booleans(), st.sampled_from([0, 1]), st.data())
@settings(deadline=None, max_examples=60)
def test_bit_streams_along_either_side(bits, word_bits, rows, columns, transposed, axis, data):
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    codes = random.integers(0, 1 << bits, (rows, columns))
    stored = codes.T if transposed else codes
    words = stream(stored, bits, word_bits) if axis == 1 else stream(stored.T, bits, word_bits).T
    layout = FieldLayout(bits=bits, word_bits=word_bits, axis=axis, transposed=transposed, dense=True)
    assert np.array_equal(read(layout, words, rows, columns), codes)


@given(st.sampled_from([(1, 8), (2, 8), (4, 8), (3, 32), (4, 32)]), sides, sides, st.integers(0, 99), st.data())
@settings(deadline=None, max_examples=60)
def test_strided_fields(width, rows, columns, seed, data):
    """Field f of word w holds element w + W * member of the side, in any order of fields."""
    bits, word_bits = width
    members = word_bits // bits
    order = data.draw(st.permutations(range(members)))
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (rows, columns))
    count = -(-rows // members)
    words = np.zeros((count, columns), np.uint64)
    for row in range(rows):
        words[row % count] |= codes[row].astype(np.uint64) << np.uint64(bits * order[row // count])
    layout = FieldLayout(bits=bits, word_bits=word_bits, axis=0, strided=True, order=tuple(order))
    assert np.array_equal(read(layout, words, rows, columns), codes)


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 2, 4, 8]), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_matrices_that_are_laid_out_anew(rows, groups, size, seed):
    """One group to a row, and two codes to a byte down the columns, high half first."""
    columns = groups * size
    codes = np.random.default_rng(seed).integers(0, 16, (rows, columns))
    anew = np.pad(codes.reshape(-1, size), ((0, rows * groups % 2), (0, 0)))
    words = anew[0::2] << 4 | anew[1::2]
    layout = FieldLayout(bits=4, word_bits=8, axis=0, columns=size, order=(1, 0))
    assert np.array_equal(read(layout, words, rows, columns), codes)


@given(
    st.integers(1, 8),
    st.sampled_from([16, 32, None]),
    st.booleans(),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whole_checkpoints_of_packed_integers(write_golden_like, bits, group, symmetric, groups, n, seed):
    """compressed-tensors, from the words to (q - z) * s: bits, groups, rows and zero points drawn at random."""
    k = groups * (group or 48)
    groups = k // group if group else 1
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << bits, (n, k))
    half = 1 << (bits - 1)
    zeros = np.full((n, groups), half) if symmetric else random.integers(0, 1 << bits, (n, groups))
    scale = (random.random((n, groups)) + 0.01).astype(np.float32)
    tensors = {
        "m.weight_packed": stream(codes, bits, 32).view(np.int32),
        "m.weight_scale": scale,
        "m.weight_shape": np.array([n, k]),
    }
    if not symmetric:
        tensors["m.weight_zero_point"] = np.ascontiguousarray(stream(zeros.T, bits, 32).T).view(np.int32)
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric}
    weights |= {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    scheme = {"targets": ["Linear"], "weights": weights}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": scheme}}
    folder = write_golden_like(tensors, config)
    if 32 % bits and k > 32 // bits and -(-k * bits // 32) == -(-k // (32 // bits)):
        with pytest.raises(CheckpointError, match="may be packed in two ways"):  # few columns of an odd width
            read_checkpoint(folder)
        return
    layer = read_checkpoint(folder).layer("m")
    ours = np.array([[float(value) for value in row] for row in decode_rows(layer, range(n))])
    size = group or k
    exact = (codes - zeros.repeat(size, 1)) * scale.astype(np.float64).repeat(size, 1)
    assert np.array_equal(ours, exact)


@pytest.fixture
def write_golden_like(tmp_path, write_safetensors):
    def write(tensors, config):
        folder = write_safetensors(tmp_path / "model", tensors, None, plain=False)
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
        return folder

    return write
