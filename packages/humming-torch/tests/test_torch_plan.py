"""Plans and launches without a GPU: which kernel for which M, and every byte of the argument block.

Run by pytest.
Assumes stand-ins for the session, the loaded functions and torch.cuda; the kernels' texts are the real ones.
"""

import threading

import attrs
import pytest
import torch
from humming_kernels.arch import DeviceFacts, find_arch
from humming_kernels.heuristic import ranges
from humming_kernels.launch import ARGUMENT_FIELDS, ARGUMENTS, TENSOR_MAP_BYTES, TENSOR_MAP_OFFSET
from humming_torch import launch as launch_module
from humming_torch.checks import read_format
from humming_torch.convert import quantize
from humming_torch.errors import NotPreparedError, UnsupportedError
from humming_torch.launch import Scratch
from humming_torch.pack import pack
from humming_torch.plan import Plan, dense_configs, range_sources

from tests.support.call_stand_ins import STREAM, FakeEncoder, FakeSession, RecordingFunction


def make(text="u4g128z", n=576, k=1536, dtype=torch.bfloat16, bias=False):
    session = FakeSession()
    layer, compute = dense_configs(text, n, k, dtype, dtype, bias)
    packed = pack(quantize(torch.randn(n, k), read_format(text), torch.randn(n) if bias else None))
    return session, Plan(session, layer, compute, dtype), packed


def run(plan, packed, activation, out=None, bias=None):
    return plan.run(activation, packed.weight, packed.weight_scale, packed.zero_point, bias, packed.column_order, out)


def test_every_m_gets_the_kernel_of_its_range(cuda):
    session, plan, packed = make()
    plan.prepare(1024)
    layer, compute = dense_configs("u4g128z", 576, 1536, torch.bfloat16, torch.bfloat16, False)
    found = ranges(layer, compute, session.facts, 1024)
    assert len(found) > 1 and found[0][0] == 1 and found[-1][1] == 1024
    kernels = set()
    for first, last, tuning in found:
        for m in {first, last}:
            before = {id(f): len(f.calls) for f in session.functions.values()}
            run(plan, packed, torch.zeros(m, 1536).bfloat16())
            (used,) = [f for f in session.functions.values() if len(f.calls) > before[id(f)]]
            kernels.add(used.symbol)
            assert used.calls[-1].threads == tuning.threads
    assert len(kernels) == len({tuning for _, _, tuning in found})


@pytest.mark.parametrize("m", [1, 7, 64, 300])
def test_the_argument_block_says_where_everything_is(cuda, m):
    session, plan, packed = make(bias=True)
    plan.prepare(300)
    bias = packed.bias.bfloat16()
    activation = torch.zeros(m, 1536).bfloat16()
    out = torch.zeros(m, 600).bfloat16()[:, :576]
    session.scratches.clear()
    assert run(plan, packed, activation, out, bias) is out
    (call,) = session.calls
    fields = call.fields
    assert call.stream == STREAM
    assert fields["activation"] == activation.data_ptr() and fields["activation_stride"] == 1536
    assert fields["output"] == out.data_ptr() and fields["output_stride"] == 600
    assert fields["weight"] == packed.weight.data_ptr()
    assert fields["weight_scale"] == packed.weight_scale.data_ptr()
    assert fields["zero_point"] == packed.zero_point.data_ptr()
    assert fields["bias"] == bias.data_ptr()
    assert (fields["m"], fields["n"], fields["k"]) == (m, 576, 1536)
    (used,) = session.scratches[-1:] or [Scratch(None, None)]
    for name, tensor in (("workspace", used.workspace), ("counters", used.counters)):
        assert fields[name] == (0 if tensor is None else tensor.data_ptr())
    assert call.grid[0] >= 1 and fields["units_per_block"] >= 1


def test_an_activation_that_lies_badly_is_copied_and_padded(cuda):
    session, plan, packed = make("u4g32z", n=72, k=100)
    plan.prepare(16)
    activation = torch.randn(5, 100).bfloat16()
    run(plan, packed, activation)
    fields = session.calls[-1].fields
    assert fields["activation"] != activation.data_ptr()
    assert (fields["k"], fields["activation_stride"]) == (104, 104)
    session, plan, packed = make("u4g32z", n=72, k=96)
    plan.prepare(16)
    wide = torch.randn(5, 200).bfloat16()
    for view, taken in ((wide[:, :96], True), (wide[:, 8:104], True), (wide[:, 1:97], False), (wide[:1, 1:97], False)):
        run(plan, packed, view)
        assert (session.calls[-1].fields["activation"] == view.data_ptr()) is taken


def test_the_result_of_an_out_with_strided_columns_comes_through_a_copy(cuda):
    session, plan, packed = make()
    plan.prepare(8)
    out = torch.zeros(3, 2 * 576).bfloat16()[:, ::2]
    run(plan, packed, torch.zeros(3, 1536).bfloat16(), out)
    fields = session.calls[-1].fields
    assert fields["output"] != out.data_ptr() and fields["output_stride"] == 576


def test_no_tokens_launch_nothing(cuda):
    session, plan, packed = make()
    cuda.capturing = True
    assert run(plan, packed, torch.zeros(0, 1536).bfloat16()).shape == (0, 576)
    assert session.functions == {}


def test_under_capture_an_unprepared_plan_says_prepare_first_and_launches_nothing(cuda):
    session, plan, packed = make()
    plan.prepare(16)
    cuda.capturing = True
    run(plan, packed, torch.zeros(16, 1536).bfloat16())
    launched = len(session.calls)
    with pytest.raises(NotPreparedError, match=r"17 tokens.*prepared for 16.*prepare\(17\).*Prepare first"):
        run(plan, packed, torch.zeros(17, 1536).bfloat16())
    with pytest.raises(NotPreparedError):
        plan.prepare(32)
    assert len(session.calls) == launched
    cuda.capturing = False
    run(plan, packed, torch.zeros(17, 1536).bfloat16())
    assert len(session.calls) == launched + 1 and plan.max_m >= 17


def test_a_call_allocates_its_output_alone(cuda):
    """After the first call with an M, nothing is planned, loaded or looked up again."""
    session, plan, packed = make()
    plan.prepare(16)
    activation = torch.zeros(4, 1536).bfloat16()
    run(plan, packed, activation)
    session.load = plan._make_launch = None
    run(plan, packed, activation)
    assert len(session.calls) == 2


def test_threads_do_not_mix_their_arguments(cuda):
    session, plan, packed = make()
    plan.prepare(8)
    activations = [torch.zeros(m, 1536).bfloat16() for m in range(1, 9)]

    def work(activation):
        for _ in range(200):
            run(plan, packed, activation)

    threads = [threading.Thread(target=work, args=(activation,)) for activation in activations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pointers = {activation.data_ptr(): activation.shape[0] for activation in activations}
    assert len(session.calls) == 1600
    assert all(pointers[call.fields["activation"]] == call.fields["m"] for call in session.calls)


def test_a_tensor_map_stands_behind_the_arguments_and_is_made_once(cuda, monkeypatch):
    made = []

    class CountingEncoder(FakeEncoder):
        def encode(self, *arguments):
            made.append(arguments)
            return super().encode(*arguments)

    monkeypatch.setattr(launch_module, "TensorMapEncoder", CountingEncoder)
    block = launch_module.ArgumentBlock()
    function = RecordingFunction("kernel")
    plain = launch_module.Launch(
        function=function,
        grid=(1, 1, 1),
        threads=384,
        shared_bytes=0,
        units_per_tile=1,
        units_per_block=1,
        workspace_bytes=0,
        counter_bytes=0,
        tensor_box=None,
    )
    mapped = attrs.evolve(plain, tensor_box=(64, 128))
    fields = {name: 0 for name, _ in ARGUMENT_FIELDS} | {
        "activation": 4096,
        "activation_stride": 520,
        "m": 300,
        "k": 512,
    }
    block.launch(plain, STREAM, *fields.values())
    for _ in range(2):
        block.launch(mapped, STREAM, *fields.values())
    block.launch(mapped, STREAM, *{**fields, "m": 301}.values())
    block.launch(mapped, STREAM, *fields.values())
    assert made == [(4096, 300, 512, 1040, 128, 64), (4096, 301, 512, 1040, 128, 64)]
    sizes = [len(call.data) for call in function.calls]
    assert sizes == [ARGUMENTS.size] + 4 * [TENSOR_MAP_OFFSET + TENSOR_MAP_BYTES]
    maps = [call.data[TENSOR_MAP_OFFSET:].decode().split()[1] for call in function.calls[1:]]
    assert maps == ["300", "300", "301", "300"]
    assert [call.fields["m"] for call in function.calls[1:]] == [300, 300, 301, 300]


def test_maps_of_many_activations_are_not_all_kept(cuda):
    block = launch_module.ArgumentBlock()
    for address in range(0, 16 * 1000, 16):
        block.mapped(address, 64, 1, (64, 8)).append(None)
    assert len(block._mapped) <= 256


@pytest.mark.parametrize(("text", "words"), [("e4m3g128", ("e4m3",)), ("u4g24", ("24",)), ("u4c:f16", ())])
def test_what_no_kernel_serves_is_refused_with_every_reason(text, words):
    layer, compute = dense_configs(text, 64, 256, torch.bfloat16, torch.bfloat16, False)
    facts = DeviceFacts(arch=find_arch("sm_75"), multiprocessors=40)
    with pytest.raises(UnsupportedError) as caught:
        range_sources(layer, compute, facts, 16)
    for word in (*words, "sm_75", "bf16"):
        assert word in str(caught.value)
