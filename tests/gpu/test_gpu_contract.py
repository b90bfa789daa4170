"""What callers rely on beside the numbers: repeatability, streams, CUDA graphs, strides, torch.compile, clean errors.

Called by pytest and by run_on_device.sh.
Assumes a CUDA device.
"""

from __future__ import annotations

import attrs
import pytest
import torch
from humming_torch.errors import HummingTorchError, NotPreparedError
from humming_torch.modules import Linear
from humming_torch.pack import pack

from tests.support.error_bounds import Reference
from tests.support.guarded import GuardedOutput
from tests.support.layers import LayerUnderTest, canonical, make_linear, op_arguments, scale_place
from tests.support.weight_cases import TOKEN_COUNTS, TORCH_DTYPES, make_activation, make_case

BF16 = torch.bfloat16
TEXTS = ("u4g128:bf16", "u8g32m:f16", "e2m1g32:f16", "u4cz:f32")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16)


@pytest.mark.parametrize("text", TEXTS)
def test_repeat_runs_are_bit_equal(text: str) -> None:
    """Twenty launches, into poisoned outputs, while another layer uses the same scratch memory in between."""
    other = make_linear(make_case("u4g64:bf16", 576, 1536, seed=9), BF16, max_m=64)
    noise = make_activation(64, 1536, BF16, seed=9)
    for n, k in ((576, 1536), (4096, 4096)):
        case = make_case(text, n, k)
        linear = make_linear(case, BF16, max_m=1024)
        for m in (1, 8, 17, 64, 129, 1024):
            rows = make_activation(m, k, BF16)
            first = linear.module(rows)
            assert not bool(torch.isnan(first).any())
            different = torch.zeros((), dtype=torch.int64, device="cuda")
            for _ in range(20):
                output = torch.full_like(first, float("nan"))
                linear.forward_into(rows, output)
                different += (bits(output) != bits(first)).sum()
                other.module(noise)
            assert int(different) == 0, f"{n}x{k} M={m}: {int(different)} elements changed in 20 runs"


def test_two_streams_do_not_disturb_each_other() -> None:
    cases = [make_case("u4g128:bf16", 1536, 4096, seed=seed) for seed in (1, 2)]
    linears = [make_linear(case, BF16, max_m=128) for case in cases]
    streams = [torch.cuda.Stream() for _ in linears]
    for m in (1, 16, 64, 128):
        rows = [make_activation(m, 4096, BF16, seed=seed) for seed in (3, 4)]
        wanted = [linear.module(x).clone() for linear, x in zip(linears, rows, strict=True)]
        torch.cuda.synchronize()
        results: list[list[torch.Tensor]] = [[], []]
        for _ in range(30):
            for index, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    results[index].append(linears[index].module(rows[index]))
        torch.cuda.synchronize()
        for index, outputs in enumerate(results):
            wrong = sum(int((bits(output) != bits(wanted[index])).sum()) for output in outputs)
            assert wrong == 0, f"M={m}, stream {index}: {wrong} elements differ"


@pytest.mark.parametrize("text", ["u4g128:bf16", "u8cz:f32"])
def test_capture_and_replay_for_every_token_count(text: str) -> None:
    """After prepare(), each M captures; a replay follows new inputs and equals the call outside the graph."""
    n, k = 576, 1536
    linear = make_linear(make_case(text, n, k, bias_dtype=BF16), BF16, max_m=max(TOKEN_COUNTS))
    fresh = make_activation(max(TOKEN_COUNTS), k, BF16, seed=5)
    graphs = []
    for m in TOKEN_COUNTS:
        rows = torch.zeros((m, k), dtype=BF16, device="cuda")
        output = torch.full((m, n), float("nan"), dtype=BF16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            allocated = linear.module(rows)
            linear.forward_into(rows, output)
            linear.forward_into(rows, output)
        graphs.append((m, graph, rows, output, allocated))
    for m, graph, rows, output, allocated in graphs:
        if m == 0:
            assert allocated.shape == (0, n) and allocated.dtype == BF16
            continue
        rows.copy_(fresh[:m])
        wanted = linear.module(rows)
        for _ in range(3):
            output.fill_(float("nan"))
            graph.replay()
            assert torch.equal(bits(output), bits(wanted)), m
            assert torch.equal(bits(allocated), bits(wanted)), m


def test_graphs_of_one_layer_replay_beside_each_other() -> None:
    """Two graphs of split work, replayed at once on two streams: each has counters and workspace of its own."""
    n, k, m = 576, 8192, 64
    linear = make_linear(make_case("u4g128:bf16", n, k), BF16, max_m=m)
    captured = []
    for seed in (1, 2):
        rows = make_activation(m, k, BF16, seed=seed)
        output = torch.empty((m, n), dtype=BF16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            linear.forward_into(rows, output)
        captured.append((graph, torch.cuda.Stream(), output, linear.module(rows)))
    torch.cuda.synchronize()
    for _ in range(30):
        for graph, stream, output, _ in captured:
            with torch.cuda.stream(stream):
                output.fill_(float("nan"))
                graph.replay()
        torch.cuda.synchronize()
        for _, _, output, wanted in captured:
            assert torch.equal(bits(output), bits(wanted))


def test_unprepared_capture_is_refused_and_leaves_the_stream_usable() -> None:
    n, k = 320, 448
    case = make_case("u8g64z:bf16", n, k)
    module = Linear(pack(canonical(case)), dtype=BF16)
    rows = make_activation(200, k, BF16)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(NotPreparedError, match="prepare"), torch.cuda.graph(graph):
        module(rows)
    module.prepare(200)
    result = module(rows)
    torch.cuda.synchronize()
    reference = Reference(case, rows, scale_place(case, "bf16", 200))
    assert reference.error(result, slice(0, 200)) <= reference.bound(slice(0, 200))
    again = torch.cuda.CUDAGraph()
    with torch.cuda.graph(again):
        captured = module(rows)
    again.replay()
    assert torch.equal(bits(captured), bits(result))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_strided_activations_equal_their_contiguous_copies(dtype: torch.dtype) -> None:
    """A slice of a sequence, a slice of columns, a transposed tensor, rows at an odd address, rows that repeat."""
    n, k = 192, 512
    linear = make_linear(make_case("u4g128:f16", n, k), dtype, max_m=64)
    sequence = make_activation(16, k, dtype).view(2, 8, k)[:, 3:, :]
    wide = make_activation(9, k + 64, dtype)
    odd = make_activation(9, k + 1, dtype)
    flat = make_activation(1, 9 * k + 3, dtype).view(-1)
    tensors = {
        "slice of a sequence": sequence,
        "slice of columns": wide[:, :k],
        "shifted slice of columns": wide[:, 24 : k + 24],
        "slice at an odd address": odd[:, 1:],
        "odd row stride": odd[:, :k],
        "odd start": flat[3:].view(9, k),
        "transposed": make_activation(k, 9, dtype).t(),
        "every other row": make_activation(18, k, dtype)[::2],
        "one row repeated": make_activation(1, k, dtype).expand(9, k),
    }
    for name, tensor in tensors.items():
        wanted = linear.module(tensor.contiguous().clone())
        assert wanted.shape == (*tensor.shape[:-1], n)
        assert torch.equal(bits(linear.module(tensor)), bits(wanted)), name


def test_strided_outputs() -> None:
    n, k, m = 200, 512, 17
    linear = make_linear(make_case("u4g128:bf16", n, k), BF16, max_m=64)
    rows = make_activation(m, k, BF16)
    wanted = linear.module(rows)
    wide = torch.full((m, n + 56), float("nan"), dtype=BF16, device="cuda")
    transposed = torch.full((n, m), float("nan"), dtype=BF16, device="cuda")
    odd = torch.full((m, n + 1), float("nan"), dtype=BF16, device="cuda")
    for name, output in (("columns", wide[:, 8 : n + 8]), ("transposed", transposed.t()), ("odd", odd[:, 1:])):
        linear.forward_into(rows, output)
        assert torch.equal(bits(output.contiguous()), bits(wanted)), name
    assert bool(torch.isnan(wide[:, :8]).all()) and bool(torch.isnan(wide[:, n + 8 :]).all())
    assert bool(torch.isnan(odd[:, 0]).all())


@pytest.mark.parametrize("text", TEXTS)
def test_no_tokens(text: str) -> None:
    linear = make_linear(make_case(text, 576, 192), BF16, max_m=8)
    empty = torch.empty((0, 192), dtype=BF16, device="cuda")
    result = linear.module(empty)
    assert result.shape == (0, 576) and result.dtype == BF16 and result.device.type == "cuda"
    linear.forward_into(empty, torch.empty((0, 576), dtype=BF16, device="cuda"))
    assert linear.module(torch.empty((2, 0, 192), dtype=BF16, device="cuda")).shape == (2, 0, 576)
    torch.cuda.synchronize()


def test_width_is_never_the_padded_one() -> None:
    """Ragged N and K: the result has N columns, and nothing beyond them is written."""
    for n, k in ((130, 232), (464, 704), (232, 464), (130, 10944), (464, 7392), (100, 235), (1, 8)):
        for m in (1, 17):
            case = make_case("u4g32:bf16" if k % 64 else "u4g64:bf16", n, k)
            linear = make_linear(case, BF16, max_m=17)
            output = GuardedOutput(m, n, BF16)
            rows = make_activation(m, k, BF16)
            linear.forward_into(rows, output.tensor)
            assert not output.faults()
            assert linear.module(rows).shape == (m, n)
            reference = Reference(case, rows, scale_place(case, "bf16", m))
            assert reference.error(output.tensor, slice(0, m)) <= reference.bound(slice(0, m))


def test_reordered_columns() -> None:
    """Act-order checkpoints: column j of the codes is column order[j] of the real weight."""
    n, k = 192, 512
    case = make_case("u4g128z:f16", n, k)
    order = torch.randperm(k, generator=torch.Generator().manual_seed(1)).cuda()
    module = Linear(pack(attrs.evolve(canonical(case), column_order=order)), dtype=BF16).prepare(64)
    for m in (1, 33):
        rows = make_activation(m, k, BF16)
        reference = Reference(case, rows[:, order], scale_place(case, "bf16", m))
        assert reference.error(module(rows), slice(0, m)) <= reference.bound(slice(0, m))


def test_bad_input_is_refused_before_any_launch() -> None:
    linear = make_linear(make_case("u4g128:bf16", 192, 256), BF16, max_m=8)
    good = make_activation(8, 256, BF16)
    bad = {
        "k": make_activation(8, 264, BF16),
        "dtype": good.float(),
        "device": good.cpu(),
    }
    for name, tensor in bad.items():
        with pytest.raises(HummingTorchError):
            linear.module(tensor)
            pytest.fail(f"a wrong {name} was accepted")
    for output in (good.new_empty((8, 200)), good.new_empty((7, 192)), good.new_empty((8, 192)).half()):
        with pytest.raises(HummingTorchError):
            linear.forward_into(good, output)
    assert not bool(torch.isnan(linear.module(good)).any())


@pytest.mark.parametrize("text", ["u4g128:bf16", "u8g32m:f16", "u4cz:f32"])
def test_opcheck(text: str) -> None:
    case = make_case(text, 200, 512, bias_dtype=BF16)
    linear = make_linear(case, BF16, max_m=64)
    for m in (0, 1, 17):
        arguments = op_arguments(linear.packed, make_activation(m, 512, BF16))
        torch.library.opcheck(torch.ops.humming_torch.dense_gemm.default, arguments)
        output = torch.empty((m, 200), dtype=BF16, device="cuda")
        torch.library.opcheck(torch.ops.humming_torch.dense_gemm_out.default, (*arguments, output))


def test_compiled_model_with_symbolic_tokens() -> None:
    """fullgraph, one compilation for every M from 2 on, and the same bits as the plain call."""
    linear = make_linear(make_case("u4g128:bf16", 256, 512, bias_dtype=BF16), BF16, max_m=300)

    def model(x: torch.Tensor) -> torch.Tensor:
        return linear.module(x * 2) + 1

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad():
        compiled(make_activation(5, 512, BF16))
        with torch._dynamo.config.patch(error_on_recompile=True):
            for m in (2, 17, 64, 300):
                rows = make_activation(m, 512, BF16)
                assert torch.equal(bits(compiled(rows)), bits(model(rows))), m
        for m in (0, 1):
            rows = make_activation(m, 512, BF16)
            assert torch.equal(bits(compiled(rows)), bits(model(rows))), m


def test_f32_output_is_more_exact_than_bf16() -> None:
    case = make_case("u4c:f32", 576, 576)
    rows = make_activation(33, 576, BF16)
    output = torch.full((33, 576), float("nan"), dtype=torch.float32, device="cuda")
    LayerUnderTest(pack(canonical(case)), BF16, 64).forward_into(rows, output)
    reference = Reference(case, rows, "epilogue")
    assert reference.error(output, slice(0, 33)) < 1e-5


@pytest.mark.parametrize("activation", ["f16", "bf16"])
def test_true_results_near_the_end_of_f16(activation: str) -> None:
    """60 000 is finite, 70 000 is infinite in f16 and never NaN; sums are f32, so the order does not matter."""
    dtype = TORCH_DTYPES[activation]
    n, k = 64, 4096
    case = make_case("e2m1g32:f16", n, k)
    for true, finite in ((110.0, True), (60_000.0, True), (70_000.0, activation == "bf16")):
        scale = torch.full_like(case.scale, 2.0**-6)
        codes = torch.full_like(case.codes, 7)  # the value 6
        rows = torch.full((4, k), true / (6 * 2.0**-6 * k), dtype=dtype, device="cuda")
        linear = make_linear(case.replaced(codes=codes, scale=scale), dtype, max_m=4)
        result = linear.module(rows).double()
        assert not bool(torch.isnan(result).any())
        assert bool(torch.isfinite(result).all()) is finite
        if finite:
            wanted = rows.double().sum(dim=1, keepdim=True) * 6 * 2.0**-6
            assert bool(((result - wanted).abs() <= wanted * 2.0**-8).all())
