"""The house rules on Python sources hold, and each can fail.

Run by pytest.
Assumes the sizes and names in tests/architecture/rules/table.py.
"""

from pathlib import Path

import pytest

from tests.architecture.expect import nothing_wrong
from tests.architecture.rules.python_source import (
    environment_problems,
    length_problems,
    over_length,
    source_style_problems,
)
from tests.architecture.rules.table import LONGER_FILES, PYTHON_LINES, REPOSITORY

OPENING = '"""What it does.\n\nWho calls it.\nWhat it assumes.\n"""\n'
FORMAT = "packages/humming-format/src/humming_format"
COMPILE = "packages/humming-compile/src/humming_compile"
TORCH = "packages/humming-torch/src/humming_torch"


def test_sources_open_with_three_lines_and_have_no_print_assert_or_broad_except() -> None:
    nothing_wrong(source_style_problems(REPOSITORY))


def test_python_files_are_short_enough_to_read() -> None:
    nothing_wrong(length_problems(REPOSITORY))


def test_reasons_for_longer_files_are_still_needed() -> None:
    for name, reason in LONGER_FILES.items():
        path = REPOSITORY / name
        assert path.is_file(), f"{name} is in LONGER_FILES and does not exist"
        assert len(reason.split()) >= 4, f"{name}: give the reason in words"
        assert over_length(path, REPOSITORY, 200, reasons={}), f"{name} is short now; drop its row"


def test_environment_is_read_in_settings_only() -> None:
    nothing_wrong(environment_problems(REPOSITORY))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "docstring of 0 lines"),
        ('"""Only one line."""', "docstring of 1 lines"),
        (OPENING + "print('hello')  # noqa: T201", "print in a package"),
        (OPENING + "def f(x):\n    assert x  # noqa: S101", "bare assert"),
        (OPENING + "try:\n    f()\nexcept Exception:  # noqa: BLE001\n    pass", "broad except"),
        (OPENING + "try:\n    f()\nexcept (OSError, BaseException):\n    pass", "broad except"),
        (OPENING + "try:\n    f()\nexcept:\n    pass", "broad except"),
    ],
)
def test_bad_style_is_named(tmp_path: Path, text: str, words: str) -> None:
    _write(tmp_path, f"{FORMAT}/bad.py", text)
    problems = source_style_problems(tmp_path)
    assert len(problems) == 1 and words in problems[0] and f"{FORMAT}/bad.py:" in problems[0]


def test_good_style_passes(tmp_path: Path) -> None:
    body = "try:\n    f()\nexcept OSError:\n    pass\ntry:\n    f()\nexcept BaseException:\n    g()\n    raise"
    _write(tmp_path, f"{FORMAT}/good.py", OPENING + body)
    assert source_style_problems(tmp_path) == []


def test_a_long_file_is_named_and_a_reason_admits_it(tmp_path: Path) -> None:
    _write(tmp_path, f"{FORMAT}/long.py", "x = 1\n" * PYTHON_LINES)
    problems = length_problems(tmp_path)
    assert len(problems) == 1 and f"{PYTHON_LINES + 1} lines" in problems[0]
    path = tmp_path / FORMAT / "long.py"
    assert over_length(path, tmp_path, PYTHON_LINES, reasons={f"{FORMAT}/long.py": "one table, kept whole"}) == []


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (f"{COMPILE}/store.py", "import os\nx = os.environ['HUMMING_COMPILE_CACHE']", "outside settings.py"),
        (f"{COMPILE}/store.py", "from os import getenv", "outside settings.py"),
        (f"{FORMAT}/settings.py", "import os\nx = os.getenv('HUMMING_FORMAT_DEBUG')", "names begin with"),
        (f"{COMPILE}/settings.py", "import os\nx = os.environ.get('EDITOR_PATH')", "reads EDITOR_PATH"),
        (
            f"{COMPILE}/settings.py",
            "import os\nx = os.environ.get('HUMMING_TORCH_X')",
            "wanted prefix HUMMING_COMPILE_",
        ),
        (
            f"{TORCH}/settings.py",
            "NAMES = (" + ", ".join(f"'HUMMING_TORCH_V{i}'" for i in range(10)) + ")",
            "at most 9",
        ),
    ],
)
def test_bad_environment_use_is_named(tmp_path: Path, file: str, text: str, words: str) -> None:
    _write(tmp_path, file, text)
    problems = environment_problems(tmp_path)
    assert any(words in problem for problem in problems), problems


def test_environment_read_in_settings_passes(tmp_path: Path) -> None:
    _write(
        tmp_path,
        f"{COMPILE}/settings.py",
        "import os\nx = [os.environ.get(n) for n in ('HUMMING_COMPILE_CACHE', 'CUDA_HOME')]",
    )
    _write(tmp_path, f"{TORCH}/message.py", "x = 'set HUMMING_TORCH_LOG to see more'")
    assert environment_problems(tmp_path) == []


def _write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
