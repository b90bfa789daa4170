"""Calls that torch must see, after direct ones: autograd, modes, fake tensors, vmap, compiled and exported layers.

Run by pytest.
Assumes tests/support/call_stand_ins.py: a GPU's place is taken by the CPU, kernels are recorded.
"""

import pytest
import torch
from humming_torch import Linear
from humming_torch.errors import HummingTorchError

N, K = 576, 1536


def make(text="u4g128z", n=N, k=K, bias=True, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(n, k, generator=generator)
    return Linear.from_float(weight, text, bias=torch.randn(n, generator=generator) if bias else None, **options)


def forget(cuda):
    for function in cuda.session.functions.values():
        function.calls.clear()


def test_an_activation_in_autograd_goes_through_the_operator(cuda, counted, monkeypatch):
    layer = make(bias=False)
    activation = torch.zeros(4, K).bfloat16()
    layer(activation)
    counted.clear()
    forget(cuda)
    result = layer(activation.requires_grad_())
    assert len(counted) == 1 and result.requires_grad and cuda.session.calls == []
    with pytest.raises(HummingTorchError, match="no backward"):
        result.sum().backward()
    with torch.no_grad():
        assert not layer(activation).requires_grad


def test_modes_and_fake_tensors_see_the_operator(cuda):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Listener(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function.name())
            return function(*args, **(kwargs or {}))

    layer = make()
    activation = torch.zeros(4, K).bfloat16()
    layer(activation)
    forget(cuda)
    with Listener():
        layer(activation)
        layer(activation, out=torch.zeros(4, N).bfloat16())
    assert {"humming_torch::dense_gemm", "humming_torch::dense_gemm_out"} <= set(seen)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(mode.from_tensor(activation)).shape == (4, N)
    assert cuda.session.calls == []


def test_vmap_sees_the_operator(cuda):
    """Inside vmap a tensor has no address of its own."""
    layer = make()
    layer(torch.zeros(4, K).bfloat16())
    stack = torch.randn(3, 4, K, generator=torch.Generator().manual_seed(0)).bfloat16()
    forget(cuda)
    result = torch.vmap(layer)(stack)
    assert cuda.session.calls == []
    wanted = torch.stack([torch.ops.humming_torch.dense_gemm(*layer._inputs(rows)) for rows in stack])
    assert torch.equal(result, wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_jit_trace_records_the_operator(cuda):
    layer = make()
    activation = torch.zeros(4, K).bfloat16()
    for _ in range(2):
        layer(activation)
    forget(cuda)
    traced = torch.jit.trace(layer, (activation,), check_trace=False)
    assert "humming_torch::dense_gemm" in str(traced.inlined_graph) and cuda.session.calls == []


def test_inference_mode_gives_inference_tensors(cuda, counted):
    layer = make()
    with torch.inference_mode():
        activation = torch.zeros(4, K).bfloat16()
        first = layer(activation)
        assert layer(activation).is_inference() and first.is_inference()
    assert len(counted) == 1


def test_compiled_and_exported_layers_keep_the_operator_after_direct_calls(cuda, counted):
    layer = make("u4g32z", n=72, k=96)
    activation = torch.randn(4, 96).bfloat16()
    for _ in range(2):
        layer(activation)
    forget(cuda)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        result = compiled(activation)
    exported = torch.export.export(layer, (activation,))
    assert "humming_torch.dense_gemm" in str(exported.graph)
    assert cuda.session.calls == []
    torch._dynamo.reset()
    assert torch.equal(exported.module()(activation), result)
