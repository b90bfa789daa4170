"""docs/support.md says what the rules say, and what it calls composed can be composed.

Run by pytest.
Assumes docs/generate_support.py, which writes the page, and docs/silicon.json, the record of runs on GPUs.
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from humming_format.text import parse_weight
from humming_kernels.arch import ARCHS, DeviceFacts, find_arch
from humming_kernels.compose import compose
from humming_kernels.config import ComputeConfig, LayerConfig
from humming_kernels.heuristic import choose

from tests.support.kernel_cases import MULTIPROCESSORS, WEIGHTS

DOCS = Path(__file__).resolve().parents[3] / "docs"
support = SimpleNamespace(**runpy.run_path(str(DOCS / "generate_support.py")))


def page() -> str:
    return (DOCS / "support.md").read_text(encoding="utf-8")


def cells(text: str) -> list[tuple[str, str, str, str]]:
    """(weight, activation, target, cell) of every line of the tables under Weights."""
    found = []
    for section in re.split(r"^### ", text.split("## Not served")[0], flags=re.MULTILINE)[1:]:
        lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
        head, rows = lines[0], lines[2:]
        for row in rows:
            for targets, cell in zip(head[4:], row[4:], strict=True):
                found += [(row[0].strip("`"), row[3], target, cell) for target in targets.split()]
    return found


def test_the_page_is_up_to_date():
    expected = support.support_page(support.read_runs((DOCS / "silicon.json").read_text(encoding="utf-8")))
    assert page() == expected, "run `python docs/generate_support.py`"


def test_what_is_called_composed_is_composed():
    """By the heuristic's own choice for one token and for many, on every target."""
    composed = 0
    for weight, activation, target, cell in cells(page()):
        layer = LayerConfig(n=4096, k=4096, weight=parse_weight(weight))
        compute, arch = ComputeConfig(activation=activation), find_arch(target)
        if cell.startswith("no "):
            assert support.reasons_of(weight, activation, arch)
            continue
        assert cell in ("composed", "**run**")
        device = DeviceFacts(arch=arch, multiprocessors=MULTIPROCESSORS[target][0])
        for m in (1, 4096):
            assert compose(layer, compute, choose(layer, compute, device, m), arch).target == target
        composed += 1
    assert composed > 300


def test_the_page_has_every_served_weight():
    rows = {support.row_of(parse_weight(weight)) for weight, _, _, _ in cells(page())}
    assert rows == {support.row_of(parse_weight(weight)) for weight in WEIGHTS}
    assert {target for _, _, target, _ in cells(page())} == {arch.name for arch in ARCHS}


def test_every_number_of_a_reason_has_its_text():
    text = page()
    used = {int(number) for _, _, _, cell in cells(text) for number in re.findall(r"\[(\d+)\]", cell)}
    notes = dict(re.findall(r"^\[(\d+)\] (.+)$", text, re.MULTILINE))
    assert used == set(map(int, notes)) and used


def record(**changes: object) -> str:
    run = {
        "target": "sm_90a",
        "device": "NVIDIA H200",
        "date": "2026-01-01",
        "tests": "tests/gpu",
        "activations": ["bf16"],
        "weights": ["u4g64z:f16", "u8c"],
    }
    return json.dumps({"schema": 1, "runs": [{**run, **changes}]})


def test_a_run_marks_what_it_ran_and_nothing_else():
    """Its target, its activations, the rows of its weights; another group size is the same row."""
    text = support.support_page(support.read_runs(record()))
    marked = {(weight, activation, target) for weight, activation, target, cell in cells(text) if cell == "**run**"}
    assert marked == {("u4g128z:f16", "bf16", "sm_90a"), ("u8c:f32", "bf16", "sm_90a")}
    assert "| sm_90a | NVIDIA H200 | 2026-01-01 |" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (record(weights=["u3g128"]), "u3g128 ran on sm_90a; the rules refuse it"),
        (record(target="sm_75"), "ran on sm_75; the rules refuse it"),
        (json.dumps({"schema": 2, "runs": []}), "schema 2; wanted 1"),
    ],
)
def test_a_record_that_cannot_be_true_is_refused(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        support.read_runs(text)


def test_the_check_accepts_the_page_of_today(capsys):
    assert support.main(["--check"]) == 0
    assert capsys.readouterr().err == ""


def test_the_check_finds_a_stale_page(capsys, monkeypatch, tmp_path):
    stale = tmp_path / "support.md"
    stale.write_text(support.PAGE.read_text().replace("**run**", "composed"))
    monkeypatch.setitem(support.main.__globals__, "PAGE", stale)
    before = stale.read_text()
    assert support.main(["--check"]) != 0
    written = capsys.readouterr()
    assert "**run**" in written.err + written.out
    assert stale.read_text() == before
