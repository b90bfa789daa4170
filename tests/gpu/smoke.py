"""First sign of life on a device: one layer per format, a few token counts, errors in a table.

Run as `python -m tests.gpu.smoke`; with `--small` it is what compute-sanitizer watches.
Assumes a CUDA device; exit code 1 when any error is above its bound or any launch fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import torch
from humming_torch.errors import HummingTorchError

from tests.support.direct_launch import compile_all, device_facts, heuristic_sources
from tests.support.error_bounds import Reference
from tests.support.guarded import GuardedOutput, poisoned_rows
from tests.support.layers import compute_config, layer_config, make_linear, scale_place
from tests.support.weight_cases import TORCH_DTYPES, make_activation, make_case

TEXTS = (
    "u4g128:bf16",
    "u4g32z:f16",
    "u4g64m:bf16",
    "u8g128:f16",
    "u8cz:f32",
    "u8g32m:f16",
    "e0m3g128:bf16",
    "e2m1g32:f16",
)
SMALL_TEXTS = ("u4g128:bf16", "u8cz:f32", "u8g32m:f16", "e2m1g32:f16")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="few formats, small ragged shapes (for compute-sanitizer)")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("needs a CUDA device, torch sees none", file=sys.stderr)
        return 2
    texts = SMALL_TEXTS if options.small else TEXTS
    shapes = ((130, 232), (576, 704)) if options.small else ((576, 576), (130, 232), (4096, 4096))
    tokens = (1, 17, 65) if options.small else (1, 8, 16, 17, 64, 129, 257, 1024)
    activations = ("bf16",) if options.small else ("bf16", "f16")
    facts = device_facts()
    begin = time.perf_counter()
    layers = [
        (layer_config(text, n, k), compute_config(activation))
        for text in texts
        for n, k in shapes
        for activation in activations
    ]
    sources = heuristic_sources(layers, max(tokens), facts)
    compile_all(sources)
    print(f"{torch.cuda.get_device_name()}: {len(sources)} kernels in {time.perf_counter() - begin:.1f} s", flush=True)

    wrong = 0
    for text in texts:
        for activation in activations:
            worst = 0.0
            for n, k in shapes:
                try:
                    faults, ratio = check(text, activation, n, k, tokens)
                except (HummingTorchError, RuntimeError) as error:
                    faults, ratio = [f"{type(error).__name__}: {error}"], float("inf")
                worst = max(worst, ratio)
                wrong += bool(faults)
                for fault in faults[:6]:
                    print(f"  {text} {activation} {n}x{k} {fault}", flush=True)
            print(f"{text:14} {activation:5} largest error / bound {worst:.3f}", flush=True)
    print(f"smoke: {'ok' if not wrong else f'{wrong} faults'}, {time.perf_counter() - begin:.1f} s", flush=True)
    return 1 if wrong else 0


def check(text: str, activation: str, n: int, k: int, tokens: Sequence[int]) -> tuple[list[str], float]:
    """Faults of one layer, and its largest error as a share of the bound."""
    dtype = TORCH_DTYPES[activation]
    case = make_case(text, n, k, bias_dtype=dtype)
    linear = make_linear(case, dtype, max_m=max(tokens))
    rows = make_activation(max(tokens), k, dtype)
    faults, worst = [], 0.0
    references: dict[str, Reference] = {}
    for m in tokens:
        place = scale_place(case, activation, m)
        reference = references.setdefault(place, Reference(case, rows, place))
        output = GuardedOutput(m, n, dtype)
        linear.forward_into(poisoned_rows(rows[:m]), output.tensor)
        error, bound = reference.error(output.tensor, slice(0, m)), reference.bound(slice(0, m))
        worst = max(worst, error / bound)
        faults += [f"M={m}: {fault}" for fault in output.faults()]
        if not error <= bound:
            faults.append(f"M={m}: error {error:.3e} above {bound:.3e} (scales on the {place})")
    return faults, worst


if __name__ == "__main__":
    sys.exit(main())
