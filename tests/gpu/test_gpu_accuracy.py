"""Every format, activation type, shape and token count against float64, into poisoned and guarded memory.

Called by pytest and by run_on_device.sh.
Assumes a CUDA device with a few gigabytes free; the references run on it in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from humming_kernels.rules import check_layer
from humming_torch.errors import HummingTorchError

from tests.support.direct_launch import compile_all, device_facts, heuristic_sources
from tests.support.error_bounds import Reference, relative_error
from tests.support.guarded import GuardedOutput, poisoned_rows
from tests.support.layers import compute_config, layer_config, make_linear, scale_place
from tests.support.weight_cases import (
    FORMAT_TEXTS,
    LARGE_SHAPES,
    RAGGED_SHAPES,
    SMOLLM2_SHAPES,
    TOKEN_COUNTS,
    TORCH_DTYPES,
    make_activation,
    make_case,
)

SHAPES = (*SMOLLM2_SHAPES, *RAGGED_SHAPES, *LARGE_SHAPES)
MAX_M = max(TOKEN_COUNTS)


def refusals(text: str, activation: str) -> tuple[str, ...]:
    """Why no kernel serves this pair; such a pair must be refused by name instead of running."""
    return check_layer(layer_config(text, 576, 576), compute_config(activation), device_facts().arch)


@pytest.fixture(scope="module", autouse=True)
def all_kernels_compiled() -> Iterator[None]:
    """Compiles what this module needs on all cores at once; later look-ups come from memory."""
    if torch.cuda.is_available():
        layers = [
            (layer_config(text, n, k), compute_config(activation))
            for text in FORMAT_TEXTS
            for activation in ("f16", "bf16")
            for n, k in SHAPES
            if not refusals(text, activation)
        ]
        compile_all(heuristic_sources(layers, MAX_M, device_facts()))
    yield


@pytest.mark.parametrize("activation", ["f16", "bf16"])
@pytest.mark.parametrize("text", FORMAT_TEXTS)
def test_error_is_that_of_the_stated_roundings(
    text: str, activation: str, record_property: Callable[[str, object], None]
) -> None:
    dtype = TORCH_DTYPES[activation]
    if refusals(text, activation):
        with pytest.raises(HummingTorchError, match=text.replace(":", ".")):
            make_linear(make_case(text, 576, 576), dtype, max_m=1)
        return
    faults, largest = [], 0.0
    for n, k in SHAPES:
        case = make_case(text, n, k, seed=n)
        linear = make_linear(case, dtype, max_m=MAX_M)
        rows = make_activation(MAX_M, k, dtype)
        references: dict[str, Reference] = {}
        for m in TOKEN_COUNTS:
            place = scale_place(case, activation, max(m, 1))
            reference = references.setdefault(place, Reference(case, rows, place)) if m else None
            output = GuardedOutput(m, n, dtype)
            linear.forward_into(poisoned_rows(rows[:m]), output.tensor)
            faults += [f"{n}x{k} M={m}: {fault}" for fault in output.faults()]
            if reference is not None:
                error, bound = reference.error(output.tensor, slice(0, m)), reference.bound(slice(0, m))
                largest = max(largest, error / bound)
                if not error <= bound:
                    faults.append(f"{n}x{k} M={m}: error {error:.3e} above {bound:.3e} (scales on the {place})")
    record_property("largest_error_over_bound", round(largest, 4))
    assert not faults, f"{len(faults)} faults, the first ones:\n" + "\n".join(faults[:20])


@pytest.mark.parametrize("activation", ["f16", "bf16"])
@pytest.mark.parametrize("text", ["u4g128:bf16", "u4g32m:f16", "u8cz:f32", "e2m1g32:bf16"])
def test_bias_and_all_positive_inputs(text: str, activation: str) -> None:
    dtype = TORCH_DTYPES[activation]
    for n, k in ((576, 1536), (130, 232)):
        case = make_case(text, n, k, seed=3, bias_dtype=dtype)
        linear = make_linear(case, dtype, max_m=300)
        rows = make_activation(300, k, dtype, positive=True) / 8
        for m in (1, 16, 129, 300):
            reference = Reference(case, rows[:m], scale_place(case, activation, m))
            output = GuardedOutput(m, n, dtype)
            linear.forward_into(rows[:m], output.tensor)
            assert not output.faults()
            assert reference.error(output.tensor, slice(0, m)) <= reference.bound(slice(0, m)), (n, k, m)


def test_rows_beyond_two_to_the_31_elements() -> None:
    """M * N passes 2**31: a 32-bit row offset would wrap from row 74 899 of 75 000 on."""
    n, k, m = 28672, 64, 75_000
    case = make_case("u4g64:bf16", n, k)
    linear = make_linear(case, torch.bfloat16, max_m=m)
    rows = make_activation(m, k, torch.bfloat16)
    output = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
    linear.forward_into(rows, output)
    for first in (0, (1 << 31) // n - 2, m - 64):
        some = slice(first, first + 64)
        reference = Reference(case, rows[some], scale_place(case, "bf16", m))
        assert relative_error(output[some], reference.exact) <= reference.bound(slice(None))
    assert not bool(torch.isnan(output[:: 1 << 7]).any())
