"""The README of humming-format: every example in it is run as it stands."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest
from humming_format.__main__ import main

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def readme_checkpoints(gptq_model, write_safetensors, write_gguf, golden, tmp_path, monkeypatch):
    """What the README calls my-model, my-experts and small.gguf, in the current folder."""
    down, up = gptq_model(n=64, k=256), gptq_model(n=256, k=128)
    down.zeros[down.zeros == 0] = up.zeros[up.zeros == 0] = 1  # nothing to note about zero points
    tensors = {}
    for layer in range(2):
        tensors |= down.tensors(1, f"model.layers.{layer}.mlp.down_proj")
        tensors |= up.tensors(1, f"model.layers.{layer}.mlp.up_proj")
    write_safetensors(tmp_path / "my-model", tensors, down.config(checkpoint_format="gptq"))
    write_gguf({"blk.0.ffn_up.weight": (np.ones((4, 64)), "Q4_1")})
    golden("mxfp4").write(tmp_path / "my-experts")
    monkeypatch.chdir(tmp_path)


def test_python_examples(readme_checkpoints):
    failures, tests = doctest.testfile(str(README), module_relative=False, encoding="utf-8")
    assert failures == 0 and tests > 25


def test_console_examples(readme_checkpoints, capsys):
    examples = re.findall(r"```console\n\$ humming-format ([^\n]*)\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert examples
    for command, expected in examples:
        assert main(command.split()) == 0
        assert capsys.readouterr().out == expected
