"""`Linear`: from a checkpoint, from a real layer, from a saved state; moved, cast, compiled, and refused with reasons.

Run by pytest.
Assumes nothing of a GPU.
"""

import copy
import json
import pickle
import threading

import gguf
import numpy as np
import pytest
import torch
from humming_torch import Linear
from humming_torch.errors import ActivationError, HummingTorchError, WeightError
from safetensors.torch import load_file, save_file


def make(text="u4g32z", bias=True, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(72, 96, generator=generator)
    return Linear.from_float(weight, text, bias=torch.randn(72, generator=generator) if bias else None, dtype=dtype)


def test_from_a_gptq_folder(tmp_path, gptq_layer, layer_name, rand):
    stored = gptq_layer(n=96, k=256, act_order=True, bias=True)
    layer = Linear.from_checkpoint(stored.write(tmp_path), layer_name, dtype=torch.float16)
    activation = rand(0, 2, 5, 256).half()
    exact = activation.double() @ stored.weight.double().t() + torch.from_numpy(stored.bias).double()
    assert torch.allclose(layer(activation).double(), exact, rtol=1e-3, atol=1e-2)
    assert layer.column_order is not None and "96" in repr(layer) and "u4g128z" in repr(layer)


def test_from_a_gguf_file_with_its_bias(tmp_path, rand):
    random = np.random.default_rng(0)
    weight, bias = random.standard_normal((64, 96)).astype(np.float32), random.standard_normal(64).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("blk.0.attn_q.weight", gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.add_tensor("blk.0.attn_q.bias", bias)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    layer = Linear.from_checkpoint(tmp_path / "m.gguf", "blk.0.attn_q.weight")
    activation = rand(1, 3, 96).bfloat16()
    exact = activation.float() @ torch.from_numpy(weight).t() + torch.from_numpy(bias)
    assert torch.allclose(layer(activation).float(), exact, rtol=0.05, atol=0.2)


def test_from_a_real_layer(text, rand):
    real = torch.nn.Linear(96, 72).to(torch.bfloat16)
    layer = Linear.from_float(real, text)
    assert layer.dtype == torch.bfloat16 and layer.bias.dtype == torch.bfloat16
    activation = rand(2, 4, 96).bfloat16()
    error = (layer(activation) - real(activation)).float().norm() / real(activation).float().norm()
    assert error < (0.15 if layer.format.number.bits == 4 else 0.02)


@pytest.mark.parametrize("shape", [(96,), (1, 96), (2, 3, 96), (0, 96), (2, 0, 96)])
def test_leading_dimensions_are_kept(shape):
    layer = make()
    activation = torch.zeros(shape).bfloat16()
    result = layer(activation)
    assert result.shape == (*shape[:-1], 72) and result.dtype == torch.bfloat16
    out = torch.full((*shape[:-1], 72), torch.nan).bfloat16()
    assert layer(activation, out=out) is out
    assert torch.equal(out, result)


def test_out_of_more_dimensions_may_have_any_strides(rand):
    layer = make()
    activation = rand(0, 4, 5, 96).bfloat16()
    wanted = layer(activation)
    for out in (
        torch.full((4, 5, 144), torch.nan)[..., ::2],
        torch.full((5, 4, 72), torch.nan).transpose(0, 1),
        torch.full((4, 72, 5), torch.nan).transpose(1, 2),
    ):
        out = out.bfloat16()
        layer(activation, out=out)
        assert torch.equal(out, wanted)


def test_a_sequence_slice_is_as_good_as_a_contiguous_one(rand):
    layer = make()
    full = rand(0, 2, 8, 96).bfloat16()
    assert torch.equal(layer(full[:, 3:, :]), layer(full[:, 3:, :].contiguous()))


def test_state_dict_round_trip(tmp_path, text, rand):
    first, second = make(text, seed=1), make(text, seed=2)
    activation = rand(0, 3, 96).bfloat16()
    assert not torch.equal(first(activation), second(activation))
    save_file(first.state_dict(), tmp_path / "layer.safetensors")
    second.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    assert torch.equal(first(activation), second(activation))
    third = Linear.from_state_dict(load_file(tmp_path / "layer.safetensors"))
    assert torch.equal(first(activation), third(activation))


def test_a_state_of_another_format_replaces_the_format(rand):
    """What a layer holds comes from the state: a 4-bit layer becomes the 8-bit one that was saved."""
    model = torch.nn.Sequential(make("u4g32z"), make("u4g32z"))[:1]
    other = torch.nn.Sequential(make("u8c:f32", bias=False))
    model.load_state_dict(other.state_dict())
    activation = rand(0, 3, 96).bfloat16()
    assert torch.equal(model(activation), other(activation))
    assert model[0].bias is None


def test_states_that_do_not_fit_are_refused():
    layer = make()
    state = layer.state_dict()
    document = json.loads(bytes(state["document"].tolist()))
    document["layout_version"] = 99
    with pytest.raises(RuntimeError, match=r"unknown layout version.*99"):
        layer.load_state_dict({**state, "document": torch.tensor(list(json.dumps(document).encode())).byte()})
    with pytest.raises(RuntimeError, match="document"):
        layer.load_state_dict({})
    with pytest.raises(RuntimeError, match="extra"):
        layer.load_state_dict({**state, "extra": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="64 x 96"):
        layer.load_state_dict(Linear.from_float(torch.randn(64, 96)).state_dict())


def test_casting_changes_the_activations_and_never_the_stored_scales():
    layer = make("u4g32z")
    scale = layer.weight_scale.clone()
    assert scale.dtype == torch.float16
    cast = copy.deepcopy(layer).to(torch.float16)
    assert cast.dtype == torch.float16 and cast.bias.dtype == torch.float16
    assert cast(torch.zeros(1, 96).half()).dtype == torch.float16
    for change in (torch.nn.Module.bfloat16, torch.nn.Module.float, torch.nn.Module.double):
        changed = change(copy.deepcopy(cast))
        assert torch.equal(changed.weight_scale, scale)
        assert changed.dtype in (torch.float16, torch.bfloat16) and changed.bias.dtype == changed.dtype
    assert make("u4cz:f32").bfloat16().weight_scale.dtype == torch.float32


def test_a_prepared_layer_can_be_copied_and_pickled(rand):
    """Plans hold locks and loaded kernels: copies make their own."""
    layer = make()
    layer._plans[torch.bfloat16, torch.bfloat16] = threading.Lock()
    activation = rand(0, 3, 96).bfloat16()
    for other in (copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer))):
        assert other._plans == {}
        assert torch.equal(other(activation), layer(activation))


def test_swapped_buffers_are_used(rand):
    """torch.func.functional_call puts other tensors in place of a module's buffers."""
    layer, other = make(seed=1), make(seed=2)
    activation = rand(0, 3, 96).bfloat16()
    names = ("weight", "weight_scale", "zero_point", "bias")
    swapped = torch.func.functional_call(layer, {name: getattr(other, name) for name in names}, (activation,))
    assert torch.equal(swapped, other(activation))


def test_moving_keeps_every_dtype():
    layer = make("u4g32m:bf16").to("meta")
    assert {name: tensor.device.type for name, tensor in layer.named_buffers() if name != "document"} == dict.fromkeys(
        ("weight", "weight_scale", "zero_point", "bias"), "meta"
    )
    assert layer.weight_scale.dtype == layer.zero_point.dtype == torch.bfloat16


def test_a_module_without_a_bias_takes_both_activations(rand):
    layer = make(bias=False)
    assert layer(rand(0, 2, 96).half()).dtype == torch.float16
    assert layer(rand(0, 2, 96).bfloat16()).dtype == torch.bfloat16


def test_prepare_on_the_cpu_has_nothing_to_do():
    layer = make()
    assert layer.prepare(16) is layer
    with pytest.raises(HummingTorchError, match="max_m = 0"):
        layer.prepare(0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda layer: layer(torch.zeros(2, 95).bfloat16()), ("[2, 95]", "[..., 96]")),
        (lambda layer: layer(torch.zeros(()).bfloat16()), ("[]",)),
        (lambda layer: layer(torch.zeros(2, 96)), ("float32", "bfloat16")),
        (lambda layer: layer(torch.zeros(2, 96).half()), ("bias", "bfloat16", "float16")),
        (lambda layer: layer(torch.zeros(2, 96).bfloat16(), out=torch.zeros(2, 71).bfloat16()), ("[2, 71]", "[2, 72]")),
        (lambda layer: Linear(layer.packed, dtype=torch.float32), ("float32",)),
        (lambda layer: Linear(layer.packed, output_dtype=torch.float16), ("float16",)),
    ],
)
def test_bad_calls_are_refused_with_reasons(call, words):
    with pytest.raises((ActivationError, WeightError)) as caught:
        call(make())
    for word in words:
        assert word in str(caught.value)


def test_f32_output():
    layer = make(bias=False)
    wide = Linear(layer.packed, output_dtype=torch.float32)
    activation = torch.ones(2, 96).bfloat16()
    assert wide(activation).dtype == torch.float32
    assert torch.equal(wide(activation).bfloat16(), layer(activation))


def test_a_compiled_model_with_symbolic_tokens_is_compiled_once(rand):
    model = torch.nn.Sequential(make(), torch.nn.ReLU())
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        compiled(rand(0, 5, 96).bfloat16())
        with torch._dynamo.config.patch(error_on_recompile=True):
            for shape in ((2, 96), (17, 96), (256, 96)):
                activation = rand(1, *shape).bfloat16()
                assert torch.equal(compiled(activation), model(activation))
        for m in (0, 1):
            assert compiled(torch.zeros(m, 96).bfloat16()).shape == (m, 72)
    torch._dynamo.reset()


def test_export_keeps_the_operator(rand):
    layer = make()
    program = torch.export.export(
        layer, (rand(0, 4, 96).bfloat16(),), dynamic_shapes=({0: torch.export.Dim("m", min=2, max=4096)},)
    )
    assert "humming_torch.dense_gemm" in str(program.graph)
    activation = rand(1, 9, 96).bfloat16()
    assert torch.equal(program.module()(activation), layer(activation))
