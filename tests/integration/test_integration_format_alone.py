"""humming-format reads and prints a checkpoint in an interpreter that can import nothing but it and attrs.

Run by pytest.
Assumes that attrs is a folder of pure Python files.
"""

import json
import subprocess
import sys
from pathlib import Path

import attr
import attrs
import humming_format
import pytest

from tests.support.tiny_gptq import LAYER, K, N, write_tiny_gptq


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A folder through which only humming_format and attrs can be imported."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for module in (attr, attrs, humming_format):
        source = Path(module.__file__ or "").parent
        (folder / source.name).symlink_to(source, target_is_directory=True)
    return folder


RUN = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("humming_format", run_name="__main__")
"""


def run_alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with no site-packages and no environment: `folder` and the standard library are all there is."""
    command = [sys.executable, "-I", "-S", "-B", "-c", RUN, str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_nothing_else_can_be_imported_there(alone: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import torch"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(alone)], capture_output=True, text=True)
    assert done.returncode != 0 and "No module named 'torch'" in done.stderr


def test_inspect_prints_a_table(alone: Path, tmp_path: Path) -> None:
    done = run_alone(alone, "inspect", str(write_tiny_gptq(tmp_path / "model")))
    assert done.returncode == 0, done.stderr
    assert "u4g128" in done.stdout and str(K) in done.stdout and str(N) in done.stdout


def test_inspect_prints_json(alone: Path, tmp_path: Path) -> None:
    done = run_alone(alone, "inspect", "--json", str(write_tiny_gptq(tmp_path / "model")))
    assert done.returncode == 0, done.stderr
    (layer,) = json.loads(done.stdout)["layers"]
    assert (layer["name"], layer["n"], layer["k"]) == (LAYER, N, K)
    # Codes, one 16-bit scale and one 4-bit zero point per group of 128, and a 32-bit group index per k.
    stored = N * K // 2 + 2 * N * 2 + N + K * 4
    assert layer["stored_bytes"] == stored
    assert layer["bits_per_weight"] == pytest.approx(8 * stored / (N * K))


def test_a_folder_that_is_no_checkpoint_is_refused_in_words(alone: Path, tmp_path: Path) -> None:
    done = run_alone(alone, "inspect", str(tmp_path / "absent"))
    assert done.returncode not in (0, None)
    assert "absent" in done.stderr and "Traceback" not in done.stderr
