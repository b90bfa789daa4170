"""Direct calls of a layer on a real device: the bits of the general way, on any stream, in any thread, on any device.

Called by pytest and by run_on_device.sh.
Assumes a CUDA device; one test wants two.
"""

from __future__ import annotations

import threading

import pytest
import torch

from tests.support.layers import make_linear
from tests.support.weight_cases import TOKEN_COUNTS, make_activation, make_case

BF16 = torch.bfloat16
N, K = 576, 1536


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16)


@pytest.mark.parametrize("text", ["u4g128:bf16", "u8g32m:f16", "u4cz:f32"])
def test_direct_results_are_those_of_the_general_way(text: str) -> None:
    module = make_linear(make_case(text, N, K, bias_dtype=BF16), BF16, max_m=max(TOKEN_COUNTS)).module
    for m in TOKEN_COUNTS:
        rows = make_activation(m, K, BF16)
        wanted = module._general(rows, None)
        if m == 0:
            continue
        direct = module._direct[BF16]
        for view in (rows, torch.cat([rows, rows], dim=1)[:, :K]):
            result = direct.run(view, None)
            assert result is not None, f"M={m} is a plain call"
            assert torch.equal(bits(result), bits(wanted)), m
        batch = direct.run(rows.view(1, m, K), None)
        assert batch is not None and batch.shape == (1, m, N) and torch.equal(bits(batch[0]), bits(wanted)), m
        out = torch.full((m, N), float("nan"), dtype=BF16, device="cuda")
        assert direct.run(rows, out) is out
        assert torch.equal(bits(out), bits(wanted)), m


def test_a_result_lies_on_the_current_stream() -> None:
    """The layer's input is written on a side stream; a launch elsewhere would read it too early."""
    module = make_linear(make_case("u4g128:bf16", N, K), BF16, max_m=64).module
    rows = make_activation(64, K, BF16)
    wanted = module(rows)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = torch.zeros_like(rows)
        torch.cuda._sleep(20_000_000)
        late.copy_(rows)
        result = module(late)
    stream.synchronize()
    assert torch.equal(bits(result), bits(wanted))


def test_threads_call_one_layer_side_by_side() -> None:
    module = make_linear(make_case("u4g128:bf16", N, K), BF16, max_m=64).module
    inputs = [make_activation(m, K, BF16, seed=m) for m in (1, 16, 40, 64)]
    wanted = [module(rows).clone() for rows in inputs]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            results = [module(inputs[index]) for _ in range(200)]
            torch.cuda.current_stream().synchronize()
            wrong.append(sum(not torch.equal(bits(each), bits(wanted[index])) for each in results))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0] * len(inputs)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_devices_and_the_current_one_is_left_alone() -> None:
    module = make_linear(make_case("u4g128:bf16", N, K), BF16, max_m=16).module
    rows = make_activation(16, K, BF16)
    wanted = module(rows)
    moved = module.to("cuda:1")
    for current in (0, 1, 0):
        with torch.cuda.device(current):
            for _ in range(2):
                result = moved(rows.to("cuda:1"))
                assert result.device == torch.device("cuda", 1)
                assert torch.equal(bits(result.to("cuda:0")), bits(wanted))
            assert torch.cuda.current_device() == current
