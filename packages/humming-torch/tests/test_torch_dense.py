"""The dense operators on the CPU: right against float64, whatever the strides; refused with reasons; traceable.

Run by pytest.
Assumes nothing of a GPU; tests/gpu holds the kernels to the same behaviour.
"""

import pytest
import torch
from humming_format.text import parse_weight
from humming_torch import dense
from humming_torch.convert import CanonicalWeight, quantize
from humming_torch.errors import ActivationError, UnsupportedError, WeightError
from humming_torch.pack import pack

DTYPES = [torch.float16, torch.bfloat16]


def layer(text="u4g32z", n=72, k=96, bias_dtype=None, act_order=False, seed=0):
    """A packed weight and its exact f64 value and bias, neither of which has been packed."""
    generator = torch.Generator().manual_seed(seed)
    bias = None if bias_dtype is None else torch.randn(n, generator=generator).to(bias_dtype)
    canonical = quantize(torch.randn(n, k, generator=generator), parse_weight(text), bias)
    if act_order:
        order = torch.randperm(k, generator=generator)
        canonical = CanonicalWeight(
            format=canonical.format,
            codes=canonical.codes,
            scale=canonical.scale,
            zero_point=canonical.zero_point,
            minimum=canonical.minimum,
            column_order=order,
        )
    return pack(canonical), canonical.dequantize(torch.float64), 0.0 if bias is None else bias.double()


def close(result, exact, dtype):
    """Within 1.2 times what rounding the exact result does."""
    assert result.dtype == dtype
    limit = (exact.to(dtype).double() - exact).norm() if dtype != torch.float32 else 1e-6 * exact.norm()
    assert (result.double() - exact).norm() <= 1.2 * limit


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 2, 17])
def test_every_format_is_right_against_float64(text, dtype, m, rand):
    packed, weight, bias = layer(text, n=130, k=232, bias_dtype=dtype)
    activation = rand(m, m, 232).to(dtype)
    exact = activation.double() @ weight.t() + bias
    close(dense(activation, packed), exact, dtype)
    close(dense(activation, packed, output_dtype=torch.float32), exact, torch.float32)


@pytest.mark.parametrize(("n", "k"), [(464, 232), (130, 464), (232, 7392), (130, 10944), (33, 12)])
@pytest.mark.parametrize("text", ["u4g32", "u8g32z", "u4g128m", "e2m1g32"])
def test_odd_shapes_have_their_own_width(text, n, k, rand):
    packed, weight, _ = layer(text, n, k)
    for m in (1, 17):
        activation = rand(0, m, k).bfloat16()
        result = dense(activation, packed)
        assert result.shape == (m, n) and result.is_contiguous()
        close(result, activation.double() @ weight.t(), torch.bfloat16)


def test_act_order_gathers_the_activations_columns(rand):
    packed, weight, _ = layer("u4g32z", act_order=True)
    activation = rand(1, 5, 96).half()
    close(dense(activation, packed), activation.double() @ weight.t(), torch.float16)


STRIDED = {
    "sequence slice": lambda full: full.reshape(-1, 8, 160)[:, 3:, :96].reshape(-1, 96),
    "row slice": lambda full: full[3:, :96],
    "column slice": lambda full: full[:, :96],
    "column slice at an odd address": lambda full: full[:, 1:97],
    "transposed": lambda full: full[:96, :24].t(),
    "every second column": lambda full: full[:, : 2 * 75 : 2][:, :75],
    "one row for all": lambda full: full[:1, :96].expand(7, 96),
    "reversed": lambda full: full[:, :96].flip(1),
}


@pytest.mark.parametrize("name", sorted(STRIDED))
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_strided_activation_is_as_good_as_a_contiguous_one(name, dtype, rand):
    full = rand(5, 96, 160).to(dtype)
    activation = STRIDED[name](full)
    packed, _, _ = layer(k=activation.shape[1])
    assert torch.equal(dense(activation, packed), dense(activation.contiguous(), packed))


OUTPUTS = {
    "contiguous": lambda m, n: torch.full((m, n), torch.nan),
    "column slice": lambda m, n: torch.full((m, n + 9), torch.nan)[:, 3 : 3 + n],
    "row slice": lambda m, n: torch.full((2 * m, n), torch.nan)[::2],
    "transposed": lambda m, n: torch.full((n, m), torch.nan).t(),
    "every second column": lambda m, n: torch.full((m, 2 * n), torch.nan)[:, ::2],
}


@pytest.mark.parametrize("name", sorted(OUTPUTS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_out_may_be_strided_and_nothing_around_it_is_touched(name, dtype, rand):
    packed, _, _ = layer()
    activation = rand(6, 9, 96).bfloat16()
    out = OUTPUTS[name](9, 72).to(dtype)
    base = out._base if out._base is not None else out
    outside = torch.isnan(base).sum() - out.numel()
    wanted = dense(activation, packed, output_dtype=dtype)
    assert dense(activation, packed, out=out) is out
    assert torch.equal(out, wanted)
    assert torch.isnan(base).sum() == outside


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_tokens_give_an_empty_result(text, dtype):
    packed, _, _ = layer(text)
    result = dense(torch.empty(0, 96, dtype=dtype), packed)
    assert result.shape == (0, 72) and result.dtype == dtype
    out = torch.empty(0, 72, dtype=dtype)
    assert dense(torch.empty(0, 96, dtype=dtype), packed, out=out) is out


BAD_CALLS = [
    (lambda: {"activation": torch.zeros(3, 96)}, ActivationError, ("float32", "float16", "bfloat16")),
    (lambda: {"activation": torch.zeros(3, 95).half()}, ActivationError, ("[3, 95]", "[m, 96]")),
    (lambda: {"activation": torch.zeros(96).half()}, ActivationError, ("[96]", "[m, 96]")),
    (lambda: {"activation": torch.zeros(3, 96, device="meta").half()}, ActivationError, ("meta", "cpu")),
    (lambda: {"activation": torch.zeros(3, 96).half().to_sparse()}, Exception, ()),
    (lambda: {"output_dtype": torch.bfloat16}, ActivationError, ("bfloat16", "float16", "float32")),
    (lambda: {"out": torch.zeros(3, 71).half()}, ActivationError, ("[3, 71]", "[3, 72]")),
    (lambda: {"out": torch.zeros(3, 72).bfloat16()}, ActivationError, ("bfloat16",)),
    (lambda: {"out": torch.zeros(1, 72).half().expand(3, 72)}, ActivationError, ("share memory",)),
    (lambda: {"out": torch.zeros(3, 1).half().expand(3, 72)}, ActivationError, ("share memory",)),
]


@pytest.mark.parametrize(("change", "kind", "words"), BAD_CALLS)
def test_bad_calls_are_refused_with_reasons(change, kind, words):
    packed, _, _ = layer()
    arguments = {"activation": torch.zeros(3, 96).half(), **change()}
    with pytest.raises(kind) as caught:
        dense(arguments.pop("activation"), packed, **arguments)
    for word in words:
        assert word in str(caught.value)


def inputs(packed, activation, **changes):
    names = ("weight", "weight_scale", "zero_point", "bias", "column_order")
    found = {"activation": activation, **{name: packed.tensors[name] for name in names}}
    return tuple({**found, "format": "u4g32z", "n": packed.n, "k": packed.k, **changes}.values())


BAD_WEIGHTS = [
    ({"format": "u4g96z"}, ("weight_scale", "[2, 3, 64]", "[2, 1, 64]", "1 groups")),
    ({"format": "u4g16z"}, ("weight_scale", "6 groups")),
    ({"format": "u4g32"}, ("zero_point",)),
    ({"format": "u8g32z"}, ("weight", "1024")),
    ({"format": "u4"}, ("does not hold u4",)),
    ({"format": "what"}, ("what",)),
    ({"n": 200}, ("weight", "[4, 2, 512]")),
    ({"n": 0}, ("n = 0",)),
    ({"zero_point": torch.zeros(2, 4, 64, dtype=torch.uint8)}, ("zero_point", "[2, 4, 64]", "[2, 3, 64]")),
    ({"weight": torch.zeros(2, 512, 2, dtype=torch.int32).transpose(1, 2)}, ("weight", "strides")),
    ({"bias": torch.zeros(72)}, ("bias", "float32", "float16")),
    ({"bias": torch.zeros(71).half()}, ("bias", "[71]", "[72]")),
    ({"column_order": torch.arange(95)}, ("column order", "[95]", "[96]")),
]


@pytest.mark.parametrize(("changes", "words"), BAD_WEIGHTS)
def test_weights_that_do_not_fit_are_refused_by_the_operator(changes, words):
    packed, _, _ = layer()
    with pytest.raises((WeightError, ActivationError)) as caught:
        torch.ops.humming_torch.dense_gemm(*inputs(packed, torch.zeros(3, 96).half(), **changes))
    for word in words:
        assert word in str(caught.value)


def test_backward_is_refused():
    packed, _, _ = layer()
    result = dense(torch.zeros(2, 96).half().requires_grad_(), packed)
    with pytest.raises(UnsupportedError, match="no backward"):
        result.sum().backward()


@pytest.mark.parametrize("bias_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("act_order", [False, True])
def test_opcheck(bias_dtype, act_order, rand):
    packed, _, _ = layer(bias_dtype=bias_dtype)
    if act_order:
        packed, _, _ = layer(act_order=True)
    for m in (0, 1, 5):
        arguments = inputs(packed, rand(m, m, 96).bfloat16())
        torch.library.opcheck(torch.ops.humming_torch.dense_gemm, arguments)
        torch.library.opcheck(torch.ops.humming_torch.dense_gemm, (*arguments, torch.float32))
        out = torch.zeros(m, 80, dtype=torch.bfloat16)[:, :72]
        torch.library.opcheck(torch.ops.humming_torch.dense_gemm_out, (*arguments, out))


@pytest.mark.parametrize("m", [0, 1, 3])
@pytest.mark.parametrize("output_dtype", [None, torch.float32])
def test_fake_tensors_have_the_true_width(m, output_dtype):
    """2880 features are padded to 2880 = 45 strips; 2890 are not a multiple of anything."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    packed, _, _ = layer("u4g32", n=2890, k=40)
    activation = torch.zeros(m, 40).half()
    real = dense(activation, packed, output_dtype=output_dtype)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = dense(mode.from_tensor(activation), packed, output_dtype=output_dtype)
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
    assert fake.device == real.device


def test_compiled_with_symbolic_m_it_compiles_once(rand):
    packed, _, _ = layer()
    frames = []

    def backend(graph, examples):
        frames.append(graph)
        return graph.forward

    def call(activation):
        return torch.relu(dense(activation * 2, packed))

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    for m in (3, 7, 64, 129):
        activation = rand(m, m, 96).half()
        torch._dynamo.mark_dynamic(activation, 0)
        assert torch.equal(compiled(activation), call(activation))
    assert len(frames) == 1
    assert compiled(torch.zeros(0, 96).half()).shape == (0, 72)
    assert compiled(torch.zeros(1, 96).half()).shape == (1, 72)
    torch._dynamo.reset()
