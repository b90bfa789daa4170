"""`humming prepare` and `humming bundle`: every kernel that loading the model will ask for, none left to compile.

Run by pytest.
Assumes NVRTC in wheels; kernels are compiled into folders of the test run.
"""

import json

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from humming_compile import service
from humming_compile.bundle import Bundle
from humming_compile.errors import MissingFromBundleError
from humming_compile.service import CompileService
from humming_compile.settings import Settings
from humming_format.checkpoint import read_checkpoint
from humming_kernels.arch import DeviceFacts, find_arch
from humming_torch.ahead import kernels_ahead
from humming_torch.cli import main
from humming_torch.convert import read_bias, read_layers
from humming_torch.pack import pack
from humming_torch.plan import dense_configs, range_sources
from humming_torch.session import compile_request

SM90 = DeviceFacts(arch=find_arch("sm_90a"), multiprocessors=132)


@pytest.fixture
def folder(tmp_path_factory):
    """Where kernels of this file are kept: most tests want the same few."""
    return tmp_path_factory.getbasetemp() / "kernel-cache-ahead"


@pytest.fixture
def run(monkeypatch, folder):
    """Run the command in this process."""
    monkeypatch.setenv("HUMMING_COMPILE_CACHE_DIR", str(folder))
    monkeypatch.delenv("HUMMING_COMPILE_BUNDLES", raising=False)
    monkeypatch.setattr(service, "_default", None)
    yield lambda *arguments: CliRunner().invoke(main, list(map(str, arguments)))
    service.default_service().close()


@pytest.fixture
def model(tmp_path):
    """Two shapes in three layers, one with a bias, an embedding table, and a layer that nothing is known of."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q4_0
    for name, n, k in (
        ("token_embd.weight", 96, 64),
        ("blk.0.ffn_up.weight", 96, 64),
        ("blk.1.ffn_up.weight", 96, 64),
        ("blk.0.ffn_down.weight", 64, 96),
    ):
        values = random.standard_normal((n, k)).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("blk.0.ffn_down.bias", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "model.gguf"


def wanted_by_loading(path, dtype, max_m):
    """The sources that the plans of all layers compile, by way of the loaded and packed weights."""
    checkpoint = read_checkpoint(path)
    found = {}
    for entry, weight in read_layers(checkpoint):
        if "token_embd" in entry.name:
            continue
        packed = pack(weight)
        bias = read_bias(checkpoint, entry) is not None
        layer, compute = dense_configs(packed.text, packed.n, packed.k, dtype, dtype, bias)
        found |= {each.source.unit_text: each.source for each in range_sources(layer, compute, SM90, max_m)}
    return found


@pytest.mark.parametrize("max_m", [1, 64, 8192])
def test_what_is_compiled_ahead_is_what_loading_asks_for(model, max_m):
    ahead = kernels_ahead(read_checkpoint(model), SM90, torch.bfloat16, max_m)
    assert {source.unit_text for source in ahead.sources} == set(wanted_by_loading(model, torch.bfloat16, max_m))
    assert [(kind.title, kind.layers) for kind in ahead.kinds] == [
        ("96 x 64 u4g32", 2),
        ("64 x 96 u4g32 with bias", 1),
    ]
    assert ahead.refused == ()


def test_layers_that_nothing_serves_are_named_with_the_reason(gptq_layer, tmp_path, layer_name):
    folder = gptq_layer(n=64, k=96, bits=3, group_size=32).write(tmp_path / "model")
    ahead = kernels_ahead(read_checkpoint(folder), SM90, torch.bfloat16, 64)
    ((name, reason),) = ahead.refused
    assert name == layer_name and "u3" in reason and ahead.sources == ()


def test_prepare_compiles_once_and_says_where(run, model, folder):
    first = run("prepare", model, "--target", "sm_80", "--max-m", 16)
    assert first.exit_code == 0, first.output
    assert "sm_80, 108 multiprocessors, bfloat16, M up to 16" in first.output
    assert "96 x 64 u4g32" in first.output and str(folder) in first.output
    again = run("prepare", model, "--target", "sm_80", "--max-m", 16)
    assert "compiled now" not in again.output and "kernels in" in again.output


def test_a_bundle_alone_serves_every_layer(run, model, tmp_path):
    output = tmp_path / "model.humming"
    result = run("bundle", model, "--target", "sm_90a", "--max-m", 16, "--output", output)
    assert result.exit_code == 0, result.output
    assert f"HUMMING_COMPILE_BUNDLES={output}" in result.output
    about = Bundle.open(output).about
    assert (about["model"], about["max_m"], about["activations"]) == ("model.gguf", 16, ["bfloat16"])
    assert about["devices"] == ["sm_90a, 132 multiprocessors"]
    assert set(about["versions"]) == {"humming_format", "humming_compile", "humming_kernels", "humming_torch"}
    json.dumps(dict(about))
    # No cache, no compiler that could start: only the file.
    settings = Settings(cache_folder=tmp_path / "empty", bundle_files=(output,), cuda_folder=tmp_path / "no-cuda")
    with CompileService(settings, command=("/bin/false",)) as alone:
        requests = [compile_request(s) for s in wanted_by_loading(model, torch.bfloat16, 16).values()]
        assert {artifact.origin for artifact in alone.compile_many(requests)} == {"bundle"}
        more = wanted_by_loading(model, torch.float16, 16)
        with pytest.raises(MissingFromBundleError, match="humming_dense_u4g32__f16"):
            alone.compile_many([compile_request(source) for source in more.values()])


def test_two_targets_and_dtypes_in_one_bundle(run, model, tmp_path):
    output = tmp_path / "both.humming"
    options = ("--target", "sm_75", "--target", "sm_80", "--activation", "f16", "--max-m", 8)
    result = run("bundle", model, *options, "--output", output)
    assert result.exit_code == 0, result.output
    assert Bundle.open(output).targets() == ("sm_75", "sm_80")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prepare", "no-such-model"], ("no-such-model",)),
        (["prepare", "no-such-model", "--target", "sm_1"], ("sm_1", "sm_90a")),
        (["prepare", "m", "--target", "sm_80", "--target", "sm_90a", "--multiprocessors", "9"], ("Give one --target",)),
        (["bundle", "no-such-model"], ("--output",)),
    ],
)
def test_bad_arguments_are_one_line_and_an_exit_code(arguments, words):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (1, 2)
    for word in words:
        assert word in result.output


def test_a_model_without_a_served_layer_is_an_error_with_reasons(run, gptq_layer, tmp_path):
    folder = gptq_layer(n=64, k=96, bits=3, group_size=32).write(tmp_path / "three-bits")
    result = run("prepare", folder, "--target", "sm_90a")
    assert result.exit_code == 1
    assert "no layer that a kernel serves" in result.output and "u3" in result.output


def test_a_bundle_that_cannot_be_written_is_named(run, model, tmp_path):
    result = run("bundle", model, "--target", "sm_80", "--max-m", 8, "--output", tmp_path / "no" / "folder" / "b")
    assert result.exit_code == 1 and "cannot be written" in result.output
