"""The README's examples run as they stand and print what it says.

Run by pytest.
Assumes the checkpoints that the README speaks of, made here in the current folder.
"""

import doctest
from pathlib import Path

import gguf
import numpy as np
import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def readme_folder(tmp_path, monkeypatch, gptq_layer):
    """`my-gptq-model` and `small.gguf` in the current folder."""
    gptq_layer(n=64, k=256).write(tmp_path / "my-gptq-model")
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q4_1
    values = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)
    writer.add_tensor("blk.0.ffn_up.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.chdir(tmp_path)


def test_readme_examples(readme_folder):
    failed, count = doctest.testfile(str(README), module_relative=False, encoding="utf-8")
    assert failed == 0 and count >= 18
