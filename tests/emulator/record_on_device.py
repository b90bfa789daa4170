"""Run the instruction cases and twenty composed kernels on a GPU and in the emulator, and compare.

Run as `python -m tests.emulator.record_on_device OUT` on a machine with a Hopper GPU. Writes OUT/instructions.npz
(outputs of the GPU, to be kept in tests/emulator/fixtures) and OUT/emulator_kernels.json (differences per kernel).
Assumes torch with CUDA, cuda-bindings, and this checkout on the import path.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import attrs
import numpy as np
import torch
from humming_compile.errors import HummingCompileError
from humming_compile.module import ArgumentBuffer, load_function

from tests.emulator.dense_cases import DTYPES, DenseCase, Inputs, random_tunings, run_case
from tests.emulator.instruction_cases import all_cases, difference, outputs_of
from tests.emulator.snippets import MapOf, emulate
from tests.support.direct_launch import forced_call


def tensor_map_bytes(content: MapOf, address: int) -> np.ndarray:
    """What the driver encodes for a MapOf, two-byte elements."""
    from cuda.bindings import driver

    swizzles = driver.CUtensorMapSwizzle
    swizzle = {
        0: swizzles.CU_TENSOR_MAP_SWIZZLE_NONE, 32: swizzles.CU_TENSOR_MAP_SWIZZLE_32B,
        64: swizzles.CU_TENSOR_MAP_SWIZZLE_64B, 128: swizzles.CU_TENSOR_MAP_SWIZZLE_128B,
    }[content.swizzle]  # fmt: skip
    status, encoded = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        len(content.sizes),
        address,
        [driver.cuuint64_t(v) for v in content.sizes],
        [driver.cuuint64_t(v) for v in content.strides],
        [driver.cuuint32_t(v) for v in content.box],
        [driver.cuuint32_t(1) for _ in content.box],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status:
        raise RuntimeError(f"cuTensorMapEncodeTiled failed with {status}")
    return np.array([int(v) for v in encoded.opaque], np.uint64).view(np.uint8)


def run_on_device(snippet) -> dict[str, np.ndarray]:
    """Outputs of a snippet by name. The driver compiles its PTX text."""
    function = load_function(snippet.text().encode() + b"\0", "snippet", torch.cuda.current_device())
    tensors: dict[str, torch.Tensor] = {}
    for name, content, _ in snippet.buffers:
        if isinstance(content, MapOf):
            content = tensor_map_bytes(content, tensors[content.buffer].data_ptr())
        raw = np.ascontiguousarray(content).reshape(-1).view(np.uint8).copy()
        tensors[name] = torch.from_numpy(raw).cuda()
    arguments = ArgumentBuffer.from_bytes(np.array([t.data_ptr() for t in tensors.values()], np.uint64).tobytes())
    function.launch(
        (1, 1, 1), snippet.threads, snippet.shared_bytes, torch.cuda.current_stream().cuda_stream, arguments
    )
    torch.cuda.synchronize()
    return {
        name: tensors[name].cpu().numpy().view(np.asarray(content).dtype)
        for name, content, role in snippet.buffers
        if role == "output"
    }


def record_instructions(folder: Path) -> int:
    recorded, wrong = {}, 0
    for case in all_cases():
        try:
            results = run_on_device(case.snippet)
        except HummingCompileError as error:
            wrong += 1
            print("FAILED", case.name, error, flush=True)
            continue
        _, memory = emulate(case.snippet)
        for name, _ in outputs_of(case):
            recorded[f"{case.name}/{name}"] = results[name]
            words = difference(case, name, memory[name].read(), results[name])
            if words:
                wrong += 1
                print("DIFFERS", words, flush=True)
    np.savez_compressed(folder / "instructions.npz", **recorded)
    print(f"{len(recorded)} outputs recorded, {wrong} differ from the emulator", flush=True)
    return wrong


def kernel_cases() -> list[DenseCase]:
    bases = [
        DenseCase(text="u4g128:f16", activation="f16", target="sm_90a", m=37, n=136, k=264),
        DenseCase(text="u8g32z:bf16", activation="bf16", target="sm_90a", m=19, n=200, k=392),
        DenseCase(text="e2m1g32:f16", activation="f16", target="sm_90a", m=40, n=136, k=264),
        DenseCase(text="u4g64m:bf16", activation="bf16", target="sm_90a", m=9, n=72, k=520),
        DenseCase(text="u8cz:f32", activation="f16", target="sm_90a", m=37, n=136, k=264),
    ]
    return [
        attrs.evolve(base, tuning=tuning)
        for seed, base in enumerate(bases)
        for tuning in random_tunings(4, 50 + seed, base.layer, base.compute, base.target)
    ]


def compare_kernels(folder: Path) -> int:
    rows, wrong = [], 0
    for case in kernel_cases():
        inputs = Inputs(case)
        begin = time.perf_counter()
        emulated = run_case(case, inputs=inputs, profile=False).output
        seconds = time.perf_counter() - begin
        packed = inputs.packed.to("cuda")
        output = torch.full((case.m, case.n), float("nan"), dtype=DTYPES[case.activation], device="cuda")
        forced_call(case.layer, case.compute, case.tuning, packed, inputs.activation.cuda(), output)()
        torch.cuda.synchronize()
        real, model = output.cpu().double(), emulated.double()
        scale = float(real.abs().max())
        difference_ = float((real - model).abs().max()) / scale
        unit = float(torch.finfo(DTYPES[case.activation]).eps)
        ok = difference_ <= unit  # one step of the output's rounding at its largest magnitude
        wrong += not ok
        row = {
            "kernel": case.source().symbol,
            "m": case.m,
            "n": case.n,
            "k": case.k,
            "difference": difference_,
            "equal": float((real == model).double().mean()),
            "emulated_seconds": round(seconds, 3),
            "ok": ok,
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    (folder / "emulator_kernels.json").write_text(
        json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1)
    )
    print(f"{len(rows)} kernels compared, {wrong} beyond the rounding of the output", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    return int(bool(record_instructions(folder) + compare_kernels(folder)))


if __name__ == "__main__":
    sys.exit(main())
