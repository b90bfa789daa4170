"""Any TuningConfig gives the same result within the stated rounding: a sample of the valid ones, forced one by one.

Called by pytest and by run_on_device.sh.
Assumes a CUDA device; the heuristic plays no part here.
"""

from __future__ import annotations

import pytest
import torch
from humming_kernels.compose import compose
from humming_torch.pack import pack

from benchmarks.sweep import Space
from tests.support.direct_launch import compile_all, device_facts, forced_call
from tests.support.error_bounds import Reference
from tests.support.guarded import GuardedOutput, poisoned_rows
from tests.support.layers import canonical, compute_config, layer_config, tuning_of
from tests.support.tunings import place_of, tuning_document
from tests.support.weight_cases import make_activation, make_case

SAMPLE = 24


@pytest.mark.parametrize("m", [1, 19, 70, 300])
@pytest.mark.parametrize("text", ["u4g128:bf16", "u8g32m:f16", "e2m1g32:f16", "u4cz:f32"])
def test_any_tuning_gives_the_same_result(text: str, m: int) -> None:
    n, k = 464, 1480
    facts = device_facts()
    case = make_case(text, n, k, seed=m, bias_dtype=torch.bfloat16)
    layer, compute = layer_config(text, n, k, bias=True), compute_config("bf16")
    packed = pack(canonical(case))
    rows = make_activation(m, k, torch.bfloat16)
    tunings = Space(layer, compute, facts.arch, m, tuning_of(case, "bf16", m)).sample(SAMPLE, seed=m)
    compile_all([compose(layer, compute, tuning, facts.arch) for tuning in tunings])
    references: dict[str, Reference] = {}
    faults = []
    for tuning in tunings:
        output = GuardedOutput(m, n, torch.bfloat16)
        call = forced_call(layer, compute, tuning, packed, poisoned_rows(rows), output.tensor)
        call()
        first = output.tensor.clone()
        output.tensor.fill_(float("nan"))
        call()
        place = place_of(tuning)
        reference = references.setdefault(place, Reference(case, rows, place))
        error, bound = reference.error(output.tensor, slice(0, m)), reference.bound(slice(0, m))
        found = output.faults()
        if not error <= bound:
            found.append(f"error {error:.3e} above {bound:.3e}")
        if not torch.equal(first.view(torch.int16), output.tensor.view(torch.int16)):
            found.append("two launches differ")
        faults += [f"{tuning_document(tuning)}: {fault}" for fault in found]
    assert not faults, "\n".join(faults[:20])
