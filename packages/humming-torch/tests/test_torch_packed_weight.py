"""A packed weight survives its state dict, a safetensors file and a move; what does not fit is refused by name.

Run by pytest.
Assumes safetensors.
"""

import json
import pickle

import pytest
import torch
from humming_format.text import parse_weight
from humming_torch.convert import CanonicalWeight, quantize
from humming_torch.errors import ConversionError, HummingTorchError, WeightError
from humming_torch.pack import pack, unpack
from humming_torch.packed_weight import PackedWeight
from safetensors.torch import load_file, save_file


def make(text="u4g64z", n=130, k=232, bias=True):
    generator = torch.Generator().manual_seed(0)
    real = torch.randn(n, k, generator=generator)
    canonical = quantize(real, parse_weight(text), torch.randn(n, generator=generator) if bias else None)
    order = torch.randperm(k, generator=generator) if text == "u4g64z" else None
    return pack(
        CanonicalWeight(
            format=canonical.format,
            codes=canonical.codes,
            scale=canonical.scale,
            zero_point=canonical.zero_point,
            minimum=canonical.minimum,
            bias=canonical.bias,
            column_order=order,
        )
    )


def equal(one, other):
    return (
        one.format == other.format
        and (one.n, one.k) == (other.n, other.k)
        and all(
            (a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b))
            for a, b in zip(one.tensors.values(), other.tensors.values(), strict=True)
        )
    )


def test_state_dict_round_trip_through_a_file(tmp_path, text):
    packed = make(text)
    save_file(packed.state_dict("model.up."), tmp_path / "layer.safetensors")
    assert equal(PackedWeight.from_state_dict(load_file(tmp_path / "layer.safetensors"), "model.up."), packed)


def test_to_and_clone_keep_everything():
    packed = make()
    assert equal(packed.to("cpu"), packed)
    clone = packed.clone()
    assert equal(clone, packed) and clone.weight.data_ptr() != packed.weight.data_ptr()


def changed_document(state, **changes):
    document = {**json.loads(bytes(state["document"].tolist())), **changes}
    return {**state, "document": torch.tensor(list(json.dumps(document).encode()), dtype=torch.uint8)}


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_an_unknown_layout_version_says_so(version):
    state = changed_document(make().state_dict(), layout_version=version)
    with pytest.raises(WeightError, match=r"layout version.*wanted 1.*pack it again"):
        PackedWeight.from_state_dict(state)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda state: {k: v for k, v in state.items() if k != "document"}, "document"),
        (lambda state: {k: v for k, v in state.items() if k != "weight"}, "weight"),
        (lambda state: {k: v for k, v in state.items() if k != "zero_point"}, "zero_point"),
        (lambda state: {**state, "weight": state["weight"][:1]}, r"\[3, 4, 512\]"),
        (lambda state: {**state, "weight_scale": state["weight_scale"].float()}, "float16"),
        (lambda state: {**state, "weight_scale": state["weight_scale"][:, :2].contiguous()}, "4 groups"),
        (lambda state: changed_document(state, format="u4g32z"), "8 groups"),
        (lambda state: changed_document(state, format="u4g64"), "zero_point"),
        (lambda state: changed_document(state, format="nonsense"), "nonsense"),
        (lambda state: changed_document(state, n=0), "incomplete"),
        (lambda state: {**state, "document": torch.tensor([123], dtype=torch.uint8)}, "JSON"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, word):
    with pytest.raises(WeightError, match=word):
        PackedWeight.from_state_dict(change(make().state_dict()))


def test_padding_is_never_visible():
    packed = make(n=65, k=65)
    assert packed.weight.shape[:2] == (2, 2)
    assert (packed.n, packed.k) == (65, 65)
    assert unpack(packed).dequantize().shape == (65, 65)


def test_errors_keep_their_parts_across_processes():
    error = ConversionError("a thing is wrong", got="this", wanted="that", hint="Do so.")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is ConversionError and isinstance(copy, HummingTorchError)
    assert (copy.what, copy.got, copy.wanted, copy.hint) == ("a thing is wrong", "this", "that", "Do so.")
    assert str(copy) == "a thing is wrong; got this; wanted that. Do so."
