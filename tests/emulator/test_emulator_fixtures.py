"""The instruction cases run in the emulator, assemble for Hopper, and match what a GPU gave where that has been recorded.
Run by pytest.
Assumes fixtures/instructions.npz, when there is one, was written by record_on_device.py from the same cases."""
# ruff: noqa: E501  (lines of CUDA and PTX text)

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.instruction_cases import all_cases, difference, outputs_of
from tests.emulator.snippets import emulate

CASES = {case.name: case for case in all_cases()}
RECORDED = Path(__file__).parent / "fixtures" / "instructions.npz"


@pytest.mark.parametrize("name", CASES)
def test_case_runs_and_writes_every_output(name):
    case = CASES[name]
    _, memory = emulate(case.snippet)
    for output, _ in outputs_of(case):
        assert memory[output].unwritten() == 0
        assert memory[output].read().any()


@pytest.mark.skipif(not RECORDED.exists(), reason="no outputs of a GPU have been recorded yet")
@pytest.mark.parametrize("name", CASES)
def test_case_matches_the_gpu(name):
    case = CASES[name]
    _, memory = emulate(case.snippet)
    with np.load(RECORDED) as recorded:
        for output, _ in outputs_of(case):
            words = difference(case, output, memory[output].read(), recorded[f"{name}/{output}"])
            assert words is None, words


def assembler():
    try:
        import triton
    except ImportError:
        return shutil.which("ptxas")
    found = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    return str(found) if found.exists() else shutil.which("ptxas")


@pytest.mark.skipif(assembler() is None, reason="needs ptxas, from a CUDA toolkit or triton")
def test_the_assembler_accepts_every_case(tmp_path):
    """A snippet that only the emulator understands would prove nothing."""
    head = ""
    kernels = []
    for number, case in enumerate(CASES.values()):
        head, _, kernel = case.snippet.text().partition(".visible")
        kernels.append(".visible" + kernel.replace("entry snippet(", f"entry snippet_{number}("))
    path = tmp_path / "cases.ptx"
    path.write_text(head + "\n".join(kernels))
    command = [assembler(), "-arch=sm_90a", "-O1", "-o", str(tmp_path / "out.cubin"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
