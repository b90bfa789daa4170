"""What the driver makes of a launch: parameters of any alignment, two devices, and a hundred thousand calls.

Called by pytest and by run_on_device.sh.
Assumes a CUDA device; the tests of two devices skip where there is one.
"""

from __future__ import annotations

import os
import resource
import struct

import pytest
import torch
from humming_compile import CompileRequest, default_service
from humming_compile.module import ArgumentBuffer, Function, load_function

from tests.support.layers import make_linear
from tests.support.weight_cases import make_activation, make_case

# 104 bytes of a struct, then 128 bytes that want an alignment of 64, as dense kernels with a tensor map have them.
PARAMETERS = """
struct Fields { unsigned long long output; unsigned words[24]; };
struct alignas(64) Map { unsigned words[32]; };
extern "C" __global__ void copy(const Fields fields, const __grid_constant__ Map map) {
    unsigned* output = reinterpret_cast<unsigned*>(fields.output);
    if (threadIdx.x < 24) output[threadIdx.x] = fields.words[threadIdx.x];
    output[24 + threadIdx.x] = map.words[threadIdx.x];
}
"""


def copy_function(device: int) -> Function:
    major, minor = torch.cuda.get_device_capability(device)
    target = f"sm_{major}{minor}{'a' if major >= 9 else ''}"
    artifact = default_service().compile(CompileRequest(unit_text=PARAMETERS, target=target, name="copy"))
    return load_function(artifact.data, "copy", device)


def run_copy(function: Function, device: int, first: int) -> list[int]:
    """Launches the kernel, and returns the words that reached it: 24 of the struct and 32 of the map."""
    with torch.cuda.device(device):
        output = torch.zeros(56, dtype=torch.int32, device="cuda")
        arguments = ArgumentBuffer(256, parameters=(0, 128))
        struct.pack_into("<Q24I", arguments.view, 0, output.data_ptr(), *range(first, first + 24))
        struct.pack_into("<32I", arguments.view, 128, *range(first + 24, first + 56))
        function.launch((1, 1, 1), 32, 0, torch.cuda.current_stream().cuda_stream, arguments)
        return output.tolist()


def test_a_struct_and_a_map_reach_the_kernel() -> None:
    function = copy_function(torch.cuda.current_device())
    assert function.parameter_bytes in ((104, 128), None)
    assert run_copy(function, torch.cuda.current_device(), 1000) == list(range(1000, 1056))


def test_a_buffer_for_another_kernel_is_refused() -> None:
    function = copy_function(torch.cuda.current_device())
    if function.parameter_bytes is None:
        pytest.skip("this driver does not tell the parameters of a kernel")
    with pytest.raises(ValueError, match="takes parameters of 104, 128 bytes"):
        function.launch((1, 1, 1), 32, 0, 0, ArgumentBuffer(104))


def test_two_devices_have_modules_of_their_own() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    torch.cuda.set_device(0)
    functions = [copy_function(device) for device in (0, 1)]
    assert torch.cuda.current_device() == 0, "loading leaves the current device as it was"
    for first in (0, 500):
        for device in (1, 0):
            assert run_copy(functions[device], device, first) == list(range(first, first + 56))
    assert torch.cuda.current_device() == 0


def test_a_layer_on_each_of_two_devices() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    case = make_case("u4g128:bf16", 576, 1536)
    results = []
    torch.cuda.set_device(0)
    for device in (0, 1):
        with torch.cuda.device(device):
            linear = make_linear(case, torch.bfloat16, max_m=64)
        module = linear.module.to(f"cuda:{device}")
        rows = make_activation(17, 1536, torch.bfloat16).to(f"cuda:{device}")
        results.append(module(rows).cpu())
        assert torch.cuda.current_device() == 0, "a call leaves the current device as it was"
    assert torch.equal(*results)


def test_a_hundred_thousand_calls_leave_nothing_behind() -> None:
    """Over changing numbers of tokens: neither memory of the process or of the device, nor handles, nor files."""
    case = make_case("u4g128:bf16", 576, 1536)
    linear = make_linear(case, torch.bfloat16, max_m=300)
    rows = make_activation(300, 1536, torch.bfloat16)
    views = [rows[:m] for m in range(1, 301)]

    def calls(count: int) -> None:
        with torch.no_grad():
            for index in range(count):
                linear.module(views[index * 7 % 300])
        torch.cuda.synchronize()

    def held() -> tuple[int, int, int, int]:
        free, _ = torch.cuda.mem_get_info()
        return (
            len(os.listdir("/proc/self/fd")),
            len(os.listdir("/proc/self/task")),
            torch.cuda.memory_allocated(),
            -free,
        )

    calls(3000)  # every number of tokens has come, and the allocator has what it needs
    before, peak = held(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls(100_000)
    assert held() == before
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert grown < 8192, f"the process grew by {grown} KiB"
