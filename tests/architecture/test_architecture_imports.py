"""The import table of the architecture holds, and each of its rules can fail.

Run by pytest.
Assumes the table in tests/architecture/rules/table.py.
"""

from pathlib import Path

import pytest

from tests.architecture.expect import nothing_wrong
from tests.architecture.rules.imports import import_table_problems, read_imports
from tests.architecture.rules.table import REPOSITORY

FORMAT = "packages/humming-format/src/humming_format"
COMPILE = "packages/humming-compile/src/humming_compile"
KERNELS = "packages/humming-kernels/src/humming_kernels"
TORCH = "packages/humming-torch/src/humming_torch"


def test_every_package_imports_only_what_the_table_allows() -> None:
    nothing_wrong(import_table_problems(REPOSITORY))


def test_the_check_reads_every_package() -> None:
    """A check that finds no file passes for nothing."""
    from tests.architecture.rules.table import PACKAGES

    assert all(package.python_files(REPOSITORY) for package in PACKAGES)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (f"{FORMAT}/bad.py", "import numpy", "imports numpy"),
        (f"{FORMAT}/bad.py", "import torch.nn as nn", "imports torch.nn"),
        (f"{FORMAT}/bad.py", "import humming_kernels", "imports humming_kernels"),
        (f"{FORMAT}/bad.py", "import gguf", "imports gguf"),
        (f"{TORCH}/bad.py", "import gguf", "imported with the file"),
        (f"{FORMAT}/bad.py", "from importlib import import_module\nimport_module('torch')", "imports torch"),
        (f"{COMPILE}/bad.py", "from humming_format import number", "imports humming_format"),
        (f"{COMPILE}/bad.py", "import humming_kernels.compose", "imports humming_kernels.compose"),
        (f"{COMPILE}/module.py", "from cuda.bindings import driver", "imported with the file"),
        (f"{COMPILE}/bad.py", "def f():\n    from cuda.bindings import nvrtc", "only nvrtc.py"),
        (f"{KERNELS}/bad.py", "import humming_compile", "imports humming_compile"),
        (f"{KERNELS}/bad.py", "def f():\n    import torch", "imports torch"),
        (f"{KERNELS}/bad.py", "import cuda", "imports cuda"),
        (f"{TORCH}/bad.py", "from humming_format._codes import table", "private to humming_format"),
        (f"{TORCH}/bad.py", "from humming_kernels import _tables", "private to humming_kernels"),
        (f"{TORCH}/bad.py", "from humming_compile.__main__ import main", "private to humming_compile"),
        (f"{TORCH}/bad.py", "import transformers", "imports transformers"),
    ],
)
def test_a_forbidden_import_is_named(tmp_path: Path, file: str, text: str, words: str) -> None:
    _write(tmp_path, file, text)
    problems = import_table_problems(tmp_path)
    assert len(problems) >= 1
    assert any(words in problem and file in problem for problem in problems), problems


def test_cuda_in_a_fourth_file_is_named(tmp_path: Path) -> None:
    for name in ("module", "toolkit", "worker", "pool"):
        _write(tmp_path, f"{COMPILE}/{name}.py", "def f():\n    from cuda.bindings import driver")
    problems = import_table_problems(tmp_path)
    assert len(problems) == 1 and "4 files" in problems[0] and "at most 3" in problems[0]


def test_allowed_imports_pass(tmp_path: Path) -> None:
    _write(tmp_path, f"{FORMAT}/checkpoint/gguf.py", "import json\nimport attrs")
    _write(tmp_path, f"{COMPILE}/nvrtc.py", "import platformdirs\ndef f():\n    from cuda.bindings import nvrtc")
    _write(tmp_path, f"{KERNELS}/rules.py", "from humming_format import number\nfrom . import arch")
    _write(
        tmp_path,
        f"{TORCH}/plan.py",
        "import torch\nimport humming_compile.service\nfrom humming_format import __version__",
    )
    typing = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from cuda.bindings import driver"
    _write(tmp_path, f"{COMPILE}/module.py", typing)
    assert import_table_problems(tmp_path) == []


def test_read_imports_tells_lazy_from_eager() -> None:
    text = "import a\nclass C:\n    import b\n    def f(self):\n        import c\nimport d\nimport_module('e.f')"
    assert [(item.module, item.lazy) for item in read_imports(text)] == [
        ("a", False),
        ("b", False),
        ("c", True),
        ("d", False),
        ("e.f", False),
    ]


def _write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
