"""`humming explain`: the kernels that a plan has, the floors by hand, measured rows that are of this very layer.

Run by pytest.
Assumes no GPU; the plan's own choice is the truth about kernels.
"""

import json
import sys

import pytest
import torch
from click.testing import CliRunner
from humming_kernels.arch import DeviceFacts, find_arch
from humming_torch import explain_report
from humming_torch.cli import main
from humming_torch.errors import HummingTorchError, UnsupportedError
from humming_torch.explain import explain
from humming_torch.measured import measured_rows
from humming_torch.plan import dense_configs, range_sources

SM90 = DeviceFacts(arch=find_arch("sm_90a"), multiprocessors=132)
BF16 = torch.bfloat16


def run(*arguments):
    return CliRunner().invoke(main, ["explain", *map(str, arguments)])


def documented(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def row(**changes):
    return {
        "bench": "dense",
        "gpu": "NVIDIA H200",
        "m": 64,
        "n": 8192,
        "k": 8192,
        "weight": "u4",
        "scale": "g128 bf16",
        "activation": "bf16",
        "kernel": "some_kernel",
        "median_us": 21.5,
        "floor_us": 13.8,
        "limit_us": 14.0,
        "peers": {"cublas_bf16": 45.0},
        "commit": "abc",
        "date": "2026-01-01T00:00:00+00:00",
        **changes,
    }


@pytest.fixture
def results(tmp_path):
    """Write rows to a folder of results: results(row, ...)."""

    def write(*rows):
        folder = tmp_path / "results" / "gpu"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "dense.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
        return tmp_path / "results"

    return write


@pytest.mark.parametrize(
    ("text", "target", "multiprocessors"),
    [
        ("u4g128:bf16", "sm_90a", 132),
        ("u4g128:bf16", "sm_90a", 78),
        ("u8c:f32", "sm_89", 142),
        ("e2m1g32", "sm_75", 40),
    ],
)
def test_the_ranges_are_those_of_a_plan(text, target, multiprocessors):
    found = documented(
        *("--shape", 4096, 1536, "--format", text, "--target", target, "--multiprocessors", multiprocessors)
    )
    facts = DeviceFacts(arch=find_arch(target), multiprocessors=multiprocessors)
    dtype = BF16 if facts.arch.has("mma_sync_bf16") else torch.float16
    layer, compute = dense_configs(text, 4096, 1536, dtype, dtype, False)
    wanted = range_sources(layer, compute, facts, 8192)
    assert [(each["last_m"], each["symbol"]) for each in found["ranges"]] == [
        (each.last_m, each.source.symbol) for each in wanted
    ]
    assert [each["first_m"] for each in found["ranges"]] == [1, *(each.last_m + 1 for each in wanted[:-1])]
    for each in found["points"]:
        assert each["symbol"] == next(w.source.symbol for w in wanted if each["m"] <= w.last_m)
    assert (found["target"], found["multiprocessors"]) == (target, multiprocessors)


def test_floors_by_hand():
    found = documented("--shape", 8192, 8192, "--format", "u4g128:bf16", "--target", "sm_90a", "--m", 1, "--m", 4096)
    stored = 8192 * 8192 // 2 + 8192 * 64 * 2  # four bits a weight, and a bf16 for each 128 of them
    assert found["layer"]["stored_bytes"] == stored
    few, many = found["points"]
    assert few["read_floor_us"] == many["read_floor_us"] == pytest.approx(5.2 + stored / 4.0e6)
    assert many["matrix_floor_us"] == pytest.approx(2 * 4096 * 8192**2 / 795e6)
    assert few["limit_us"] == few["read_floor_us"] and many["limit_us"] == many["matrix_floor_us"]
    assert few["limit_us"] <= few["expected_us"] < 2 * few["limit_us"]
    assert 0.9 * many["limit_us"] <= many["expected_us"] < 2 * many["limit_us"]


def test_padding_counts_as_stored():
    found = documented("--shape", 130, 232, "--format", "u8c:f32", "--target", "sm_90a")
    assert found["layer"]["stored_bytes"] == 192 * 256 + 192 * 4


def test_devices_that_were_not_measured_have_no_floors_and_no_model():
    for device in (("--target", "sm_80"), ("--target", "sm_90a", "--multiprocessors", 78)):
        found = documented("--shape", 4096, 4096, "--format", "u4g128", *device, "--m", 1)
        (point,) = found["points"]
        assert found["figures"] is None
        assert point["read_floor_us"] is point["matrix_floor_us"] is point["limit_us"] is None
        assert (point["expected_us"] is None) == (device[1] == "sm_80")


def test_rows_of_this_layer_alone_and_the_newest_of_a_point(results):
    folder = results(
        row(),
        row(date="2026-02-01T00:00:00+00:00", median_us=20.0),
        row(date="2025-01-01T00:00:00+00:00", median_us=30.0),
        row(m=1, median_us=15.0),
        row(n=4096, median_us=1.0),
        row(scale="g64 bf16", median_us=1.0),
        row(weight="u4 zero point", median_us=1.0),
        row(activation="f16", median_us=1.0),
        row(bench="launch", median_us=1.0),
        row(gpu="Another", median_us=40.0),
    )
    options = ("--shape", 8192, 8192, "--format", "u4g128:bf16", "--target", "sm_90a", "--results", folder)
    found = documented(*options, "--m", 64)
    (point,) = found["points"]
    assert [(each["gpu"], each["median_us"]) for each in point["measured"]] == [
        ("Another", 40.0),
        ("NVIDIA H200", 20.0),
    ]
    assert len(found["measured"]) == 3
    text = run(*options, "--m", 64).output
    assert "NVIDIA H200 *" in text and "another kernel" in text and "1.43" in text and "cublas_bf16" in text


def test_words_of_rows(results):
    folder = results(
        row(weight="u4 zero point", scale="g64 f16"),
        row(weight="u4 minimum", scale="g32 bf16"),
        row(weight="u8", scale="channel f32"),
    )
    for text in ("u4g64z", "u4g32m:bf16", "u8c:f32"):
        layer, _ = dense_configs(text, 8192, 8192, BF16, BF16, False)
        assert len(measured_rows(folder, layer.weight, 8192, 8192, "bf16")) == 1, text


def test_bad_rows_are_named_with_their_line(results, tmp_path):
    layer, _ = dense_configs("u4g128:bf16", 8192, 8192, BF16, BF16, False)
    without = row()
    del without["limit_us"]
    folder = results(row(), without)
    with pytest.raises(HummingTorchError, match=r"dense.jsonl, line 2.*limit_us"):
        measured_rows(folder, layer.weight, 8192, 8192, "bf16")
    (folder / "gpu" / "dense.jsonl").write_text("\n{broken\n")
    with pytest.raises(HummingTorchError, match=r"line 2, is not JSON"):
        measured_rows(folder, layer.weight, 8192, 8192, "bf16")
    assert measured_rows(tmp_path / "nowhere", layer.weight, 8192, 8192, "bf16") == ()


@pytest.mark.parametrize(("m", "words"), [(1, "weights read once"), (64, "wgmma"), (4096, "blocks that stay")])
def test_the_table_says_why(m, words):
    result = run("--shape", 8192, 8192, "--format", "u4g128:bf16", "--target", "sm_90a", "--m", m)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith(f"M = {m}: ")]
    assert words in line and "132 multiprocessors" in line
    assert max(len(each) for each in result.output.splitlines() if not each.startswith(("M =", "floors"))) <= 118
    assert "…" not in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shape", "64", "64", "--format", "u9g1"], ("u9g1",)),
        (["--shape", "64", "64", "--format", "nf4g64", "--target", "sm_90a"], ("no dense kernel", "nf4")),
        (["--shape", "64", "64", "--format", "u4g64:bf16", "--target", "sm_75", "--activation", "bf16"], ("sm_75",)),
        (["--shape", "64", "--format", "u4g64"], ("--shape",)),
        (["--format", "u4g64"], ("--shape",)),
        (["--shape", "64", "64", "--format", "u4g64", "--m", "0"], ("--m",)),
    ],
)
def test_bad_arguments_are_one_line_and_an_exit_code(arguments, words):
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)
    for word in words:
        assert word in result.output


def explanation(text="u4g128:bf16", measured=(), facts=SM90, tokens=(1, 64)):
    layer, compute = dense_configs(text, 8192, 8192, BF16, BF16, False)
    return explain(layer, compute, facts, tokens, 4096, measured)


def test_lines_of_the_picture(results):
    layer, _ = dense_configs("u4g128:bf16", 8192, 8192, BF16, BF16, False)
    rows = measured_rows(
        results(row(), row(m=1, median_us=15.0, peers={}), row(gpu="Another", m=1)), layer.weight, 8192, 8192, "bf16"
    )
    lines = explain_report.plot_lines(explanation(measured=rows))
    assert lines["limit"] == [(1, 14.0), (64, 14.0)]
    assert lines["humming, NVIDIA H200"] == [(1, 15.0), (64, 21.5)]
    assert lines["cublas_bf16"] == [(64, 45.0)]
    assert [m for m, _ in lines["expected"]] == [1, 64]
    unmeasured = explain_report.plot_lines(explanation())
    assert set(unmeasured) == {"limit", "expected"}
    sm80 = DeviceFacts(arch=find_arch("sm_80"), multiprocessors=108)
    assert explain_report.plot_lines(explanation(facts=sm80)) == {}


def test_a_picture_without_matplotlib_is_refused_by_name(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    options = ("--shape", 8192, 8192, "--format", "u4g128:bf16", "--target", "sm_90a")
    result = run(*options, "--plot", tmp_path / "p.png")
    assert result.exit_code == 1 and "humming-torch[plot]" in result.output


def test_a_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    explain_report.plot(explanation(), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UnsupportedError, match="cannot be written"):
        explain_report.plot(explanation(), tmp_path / "no" / "p.png")
    sm80 = DeviceFacts(arch=find_arch("sm_80"), multiprocessors=108)
    with pytest.raises(UnsupportedError, match="nothing to draw"):
        explain_report.plot(explanation(facts=sm80), tmp_path / "p.png")
