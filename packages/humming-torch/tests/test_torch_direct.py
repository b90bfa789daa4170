"""The direct call of a layer: the same launch as the plan's behind all checks, for plain calls alone.

Run by pytest.
Assumes tests/support/call_stand_ins.py: a GPU's place is taken by the CPU, kernels are recorded.
"""

import threading

import pytest
import torch
from humming_torch import Linear
from humming_torch.errors import ActivationError, NotPreparedError, WeightError

from tests.support import call_path
from tests.support.call_stand_ins import INDEX, STREAM

N, K = 576, 1536


def make(text="u4g128z", n=N, k=K, bias=True, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(n, k, generator=generator)
    return Linear.from_float(weight, text, bias=torch.randn(n, generator=generator) if bias else None, **options)


def forget(cuda):
    for function in cuda.session.functions.values():
        function.calls.clear()


def only(cuda):
    (call,) = cuda.session.calls
    return call


@pytest.mark.parametrize("m", [1, 5, 16, 64, 200, 1024])
@pytest.mark.parametrize("text", ["u4g128z", "u8c:f32", "u4g32m:bf16"])
def test_a_direct_call_launches_what_the_plan_launches(cuda, counted, text, m):
    layer = make(text, bias=m % 2 == 1)
    activation = torch.zeros(m, K).bfloat16()
    out = torch.zeros(m, N).bfloat16()
    layer(activation, out=out)
    assert len(counted) == 1
    first = only(cuda)
    forget(cuda)
    assert layer(activation, out=out) is out
    assert len(counted) == 1, "the second call of its kind is direct"
    second = only(cuda)
    scratch = {"workspace", "counters"}
    assert {k: v for k, v in second.fields.items() if k not in scratch} == {
        k: v for k, v in first.fields.items() if k not in scratch
    }
    assert (second.grid, second.threads, second.shared_bytes) == (first.grid, first.threads, first.shared_bytes)
    assert second.stream == STREAM and second.data[104:] == first.data[104:]
    for name in scratch:
        assert (second.fields[name] == 0) == (first.fields[name] == 0)
    used = cuda.session.scratches[-1:]
    assert not second.fields["workspace"] or second.fields["workspace"] == used[0].workspace.data_ptr()


@pytest.mark.parametrize("shape", [(3, K), (2, 5, K), (2, 1, 2, K), (1, 1, K), (K,)])
def test_results_of_every_shape(cuda, counted, shape):
    layer = make()
    activation = torch.zeros(shape).bfloat16()
    first = layer(activation)
    forget(cuda)
    result = layer(activation)
    assert len(counted) == 1
    assert result.shape == first.shape == (*shape[:-1], N) and result.dtype == torch.bfloat16
    assert result.is_contiguous() and result.stride() == first.stride()
    assert only(cuda).fields["output"] == result.data_ptr() and only(cuda).fields["m"] == activation.numel() // K
    out = torch.zeros(*shape[:-1], N).bfloat16()
    assert layer(activation, out=out) is out and len(counted) == 1


def test_both_activation_dtypes_and_f32_results(cuda, counted):
    layer = make(bias=False)
    for dtype in (torch.float16, torch.bfloat16, torch.float16):
        for _ in range(2):
            assert layer(torch.zeros(2, K, dtype=dtype)).dtype == dtype
    assert len(counted) == 2
    wide = Linear(layer.packed, output_dtype=torch.float32)
    for _ in range(2):
        assert wide(torch.zeros(2, K).bfloat16()).dtype == torch.float32
    assert len(counted) == 3
    with pytest.raises(AttributeError):
        wide.output_dtype = None


OTHERS = {
    "columns of a wider tensor, rows not aligned": lambda: torch.zeros(4, 2 * K + 4).bfloat16()[:, :K],
    "columns that begin between": lambda: torch.zeros(4, 2 * K).bfloat16()[:, 4 : K + 4],
    "every other column": lambda: torch.zeros(4, 2 * K).bfloat16()[:, ::2],
    "a slice of sequences": lambda: torch.zeros(2, 4, K).bfloat16()[:, 2:],
    "transposed": lambda: torch.zeros(K, 4).bfloat16().t(),
    "one row repeated": lambda: torch.zeros(1, K).bfloat16().expand(4, K),
    "an odd address": lambda: torch.zeros(4 * K + 1).bfloat16()[1:].view(4, K),
    "no tokens": lambda: torch.zeros(0, K).bfloat16(),
    "a new number of tokens": lambda: torch.zeros(7, K).bfloat16(),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_activations_take_the_general_way(cuda, counted, kind):
    layer = make()
    layer(torch.zeros(4, K).bfloat16())
    counted.clear()
    activation = OTHERS[kind]()
    assert layer(activation).shape == (*activation.shape[:-1], N)
    assert len(counted) == 1


@pytest.mark.parametrize("m", [1, 4, 100])
def test_columns_of_a_wider_matrix_are_read_as_they_lie(cuda, counted, m):
    layer = make()
    wide = torch.zeros(m, 2 * K + 8).bfloat16()
    for view in (wide[:, :K], wide[:, 8 : K + 8]):
        forget(cuda)
        layer(view)
        first = only(cuda)
        counted.clear()
        forget(cuda)
        layer(view)
        assert not counted
        fields = only(cuda).fields
        assert fields["activation"] == view.data_ptr()
        assert m == 1 or fields["activation_stride"] == first.fields["activation_stride"] == 2 * K + 8
        assert only(cuda).data[104:] == first.data[104:]  # the tensor map, where there is one


@pytest.mark.parametrize("kind", ["strided", "columns", "f32"])
def test_other_outputs_take_the_general_way(cuda, counted, kind):
    layer = make()
    activation = torch.zeros(4, K).bfloat16()
    layer(activation)
    out = {
        "strided": torch.zeros(4, N + 8).bfloat16()[:, :N],
        "columns": torch.zeros(4, 2 * N).bfloat16()[:, ::2],
        "f32": torch.zeros(4, N),
    }[kind]
    counted.clear()
    assert layer(activation, out=out) is out
    assert len(counted) == 1


ERRORS = {
    "shape": (lambda x: (x[:, :-8], None), ActivationError, "wrong shape"),
    "no dimension": (lambda x: (x[0, 0], None), ActivationError, "wrong shape"),
    "dtype": (lambda x: (x.float(), None), ActivationError, "float32"),
    "the bias's dtype": (lambda x: (x.half(), None), ActivationError, "bias"),
    "layout": (lambda x: (x.to_sparse(), None), ActivationError, "not a strided tensor"),
    "shape of out": (lambda x: (x, torch.zeros(4, N + 1).bfloat16()), ActivationError, "out of the wrong shape"),
    "dtype of out": (lambda x: (x, torch.zeros(4, N).half()), ActivationError, "out does not fit"),
    "overlapping out": (lambda x: (x, torch.zeros(1, N).bfloat16().expand(4, N)), ActivationError, "share memory"),
    "out in autograd": (lambda x: (x, torch.zeros(4, N).bfloat16().requires_grad_()), ActivationError, "grad"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_are_those_of_a_fresh_layer_and_launch_nothing(cuda, kind):
    change, error, words = ERRORS[kind]
    fresh, used = make(), make()
    activation = torch.zeros(4, K).bfloat16()
    for _ in range(2):
        used(activation)
    texts = []
    forget(cuda)
    for layer in (fresh, used):
        given, out = change(activation)
        with pytest.raises(error, match=words) as caught:
            layer(given, out=out)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert cuda.session.calls == []


def test_tensors_of_other_devices_take_the_general_way(cuda, counted):
    """The general way refuses them; here all tensors have one index, so the layer is made to believe in another."""
    layer = make()
    activation = torch.zeros(4, K).bfloat16()
    for _ in range(2):
        layer(activation)
    assert len(counted) == 1
    forget(cuda)
    layer._direct[torch.bfloat16]._index = cuda.device = 0
    assert layer._direct[torch.bfloat16].run(activation, None) is None
    assert cuda.session.calls == []


def test_many_calls_of_changing_tokens_keep_little(cuda):
    layer = make("u4g128", n=64, k=128, bias=False).prepare(2048)
    memory = torch.zeros(5000 * 128).bfloat16()
    cuda.session.load = cuda.session.make_function = None  # nothing is compiled or loaded any more
    for m in (*range(1, 2049), *range(2048, 0, -1)):
        start = 8 * m  # a new address each time
        layer(memory[start : start + 128 * m].view(m, 128))
        forget(cuda)
    plan = layer._plan_of(torch.bfloat16)
    assert len(plan.launches) <= 8192 and len(layer._direct) == 1
    held = [*plan.arguments.plain, *(each for free in plan.arguments._mapped.values() for each in free)]
    assert len(held) <= 1 + 256


def test_replaced_buffers_are_seen_by_every_direct_call(cuda, counted):
    layer, other = make(seed=1), make(seed=2)
    activation = torch.zeros(4, K).bfloat16()
    for _ in range(2):
        layer(activation)
    for name in ("weight", "weight_scale", "zero_point", "bias"):
        before = getattr(layer, name)
        counted.clear()
        forget(cuda)
        torch.func.functional_call(layer, {name: getattr(other, name)}, (activation,))
        assert len(counted) == 1
        assert only(cuda).fields[name] == getattr(other, name).data_ptr() != before.data_ptr()
        forget(cuda)
        layer(activation)
        assert only(cuda).fields[name] == before.data_ptr()
    with pytest.raises(WeightError, match="weight does not fit"):
        torch.func.functional_call(layer, {"weight": other.weight[:1].contiguous()}, (activation,))


def test_memory_moved_below_a_buffer_is_seen(cuda, counted):
    layer = make()
    activation = torch.zeros(4, K).bfloat16()
    for _ in range(2):
        layer(activation)
    counted.clear()
    forget(cuda)
    with torch.no_grad():
        layer.weight.data = layer.weight.data.clone()
    layer(activation)
    assert not counted and only(cuda).fields["weight"] == layer.weight.data_ptr()


def test_loading_and_casting_begin_anew(cuda, counted):
    layer, other = make(seed=1), make(seed=2)
    activation = torch.zeros(4, K).bfloat16()
    layer(activation)
    layer.load_state_dict(other.state_dict())
    forget(cuda)
    layer(activation)
    assert only(cuda).fields["weight"] == layer.weight.data_ptr()
    layer.to(torch.float16)
    with pytest.raises(ActivationError, match="bias"):
        layer(activation)
    counted.clear()
    for _ in range(2):
        assert layer(activation.half()).dtype == torch.float16
    assert len(counted) == 1


def test_another_current_device_is_left_as_it_was(cuda, counted):
    layer = make()
    activation = torch.zeros(4, K).bfloat16()
    layer(activation)
    counted.clear()
    cuda.device = 3
    layer(activation)
    assert cuda.device == 3 and len(counted) == 1


def test_a_thread_binds_the_context_before_its_first_launch(cuda, counted):
    from humming_torch.launch import THREAD

    layer = make()
    activation = torch.zeros(4, K).bfloat16()
    layer(activation)
    counted.clear()
    found = []

    def work():
        found.append(INDEX in THREAD.bound)
        layer(activation)
        found.append(INDEX in THREAD.bound)
        layer(activation)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False, True] and len(counted) == 1


def test_under_capture_only_prepared_tokens_are_launched(cuda, counted):
    layer = make("u4g128", n=64, k=8192, bias=False).prepare(64)
    activation = torch.zeros(64, 8192).bfloat16()
    layer(activation)
    cuda.capturing = True
    counted.clear()
    layer(activation)
    assert not counted
    forget(cuda)
    with pytest.raises(NotPreparedError):
        layer(torch.zeros(2000, 8192).bfloat16())
    assert cuda.session.calls == []


def test_layers_that_always_copy_have_no_direct_calls(cuda, counted):
    layer = make("u4g32z", n=72, k=100, bias=False)
    for _ in range(3):
        assert layer(torch.zeros(2, 100).bfloat16()).shape == (2, 72)
    assert len(counted) == 3


def test_direct_calls_of_threads_do_not_mix(cuda):
    layer = make(bias=False)
    activations = [torch.zeros(m, K).bfloat16() for m in range(1, 9)]
    for activation in activations:
        layer(activation)
    forget(cuda)

    def work(activation):
        for _ in range(200):
            layer(activation)

    threads = [threading.Thread(target=work, args=(activation,)) for activation in activations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tokens = {activation.data_ptr(): activation.shape[0] for activation in activations}
    assert len(cuda.session.calls) == 1600
    assert all(tokens[call.fields["activation"]] == call.fields["m"] for call in cuda.session.calls)


def test_the_breakdown_of_a_call_is_printed(capsys):
    """`python -m tests.support.call_path` shows where the time goes; how long it is is nobody's test."""
    assert call_path.main(["--repeats", "1", "--m", "16", "--shape", "64", "256"]) == 0
    rows = [line.rsplit(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert [unit for *_, unit in rows] == ["ns"] * len(rows)
    assert {"layer(x)", "layer(x, out=y)", "  Plan.run, out"} <= {name.rstrip() for name, _, _ in rows}
