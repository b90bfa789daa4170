"""Importing a package starts nothing and loads little, and a package that does is named.

Run by pytest; each test starts a fresh interpreter.
Assumes that the packages are installed in the interpreter that runs the tests.
"""

from pathlib import Path

import pytest

from tests.architecture.expect import nothing_wrong
from tests.architecture.rules.light_import import import_in_child, light_import_problems

# Everything a light package must do without. The most modules that its import may load stand beside each package:
# a third to a half above what it loads today, so that one heavy import shows and a new small file does not.
WITHOUT = ("torch", "numpy", "gguf", "cuda", "safetensors", "rich", "click", "triton")
MOST_MODULES = {"humming_format": 90, "humming_compile": 145, "humming_kernels": 120}


@pytest.mark.parametrize("import_name", sorted(MOST_MODULES))
def test_light_packages_import_without_torch_or_a_driver(import_name: str) -> None:
    nothing_wrong(light_import_problems(import_name, MOST_MODULES[import_name], WITHOUT))


def test_importing_the_torch_package_touches_no_driver() -> None:
    report = import_in_child("humming_torch", blocked=("gguf",))
    assert report.error == ""
    assert [name for name in report.modules if name.split(".")[0] == "cuda"] == []
    ours = import_in_child("torch")
    assert sorted(set(report.events) - set(ours.events)) == []
    assert report.threads <= ours.threads


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import torch", "fails without torch"),
        ("import sys, types\nsys.modules['cuda'] = types.ModuleType('cuda')", "loads cuda"),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''])", "subprocess.Popen"),
        ("import os\nif os.fork() == 0:\n    os._exit(0)\nos.wait()", "os.fork"),
        ("import ctypes, ctypes.util\nctypes.CDLL(None)", "ctypes.dlopen"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(2,), daemon=True).start()",
            "threads running",
        ),
        ("import email.mime.text, http.client, asyncio, unittest.mock", "at most 20"),
    ],
)
def test_a_heavy_import_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "heavy_package.py").write_text(text + "\n", encoding="utf-8")
    problems = light_import_problems("heavy_package", 20, ("torch",), paths=(tmp_path,))
    assert any(words in problem for problem in problems), problems


def test_an_empty_import_passes(tmp_path: Path) -> None:
    (tmp_path / "light_package.py").write_text("import json\n", encoding="utf-8")
    assert light_import_problems("light_package", 20, ("torch",), paths=(tmp_path,)) == []
