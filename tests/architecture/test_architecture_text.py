"""What git tracks names no download host and no machine's folders; documents name things that exist.

Run by pytest.
Assumes a git checkout.
"""

from pathlib import Path

import pytest

from tests.architecture.expect import nothing_wrong
from tests.architecture.rules.table import REPOSITORY
from tests.architecture.rules.tracked_text import (
    code_problems,
    command_problems,
    document_problems,
    document_text_problems,
    repeated_test_names,
    session_names,
    tracked_files,
    tracked_text_problems,
)


def test_tracked_files_name_no_registry_and_no_machine() -> None:
    nothing_wrong(tracked_text_problems(REPOSITORY, tracked_files(REPOSITORY)))


def test_the_lock_file_is_ignored() -> None:
    assert "uv.lock" in (REPOSITORY / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert REPOSITORY / "uv.lock" not in tracked_files(REPOSITORY)


def test_names_of_test_files_are_unique() -> None:
    nothing_wrong(repeated_test_names(REPOSITORY, tracked_files(REPOSITORY)))


def test_documents_name_things_that_exist() -> None:
    nothing_wrong(document_problems(REPOSITORY, tracked_files(REPOSITORY)))


@pytest.mark.parametrize(
    "line",
    [
        "index = https://" + "pypi" + ".org/simple",
        "https://files." + "pythonhosted" + ".org/packages/aa/x.whl",
        "https://" + "download" + ".pytorch.org/whl/cu130",
        "find-links = http://mirror.example/" + "simple",
        "open('/" + "work/main/file')",
        "cd /" + "root/.cache",
    ],
)
def test_a_forbidden_word_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "file.md"
    path.write_text("fine\n" + line + "\n", encoding="utf-8")
    problems = tracked_text_problems(tmp_path, [path])
    assert len(problems) == 1 and problems[0].startswith("file.md:2:")


@pytest.mark.parametrize(
    "line", ["a/work/b", "the root / of a tree", "{name}/root/", "https://example.org/plain-words"]
)
def test_harmless_words_pass(tmp_path: Path, line: str) -> None:
    path = tmp_path / "file.md"
    path.write_text(line + "\n", encoding="utf-8")
    assert tracked_text_problems(tmp_path, [path]) == []


def test_a_tracked_lock_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "uv.lock"
    path.touch()
    assert "uv.lock is tracked" in tracked_text_problems(tmp_path, [path])[0]


def test_repeated_test_names_are_named(tmp_path: Path) -> None:
    paths = [tmp_path / "a/test_same.py", tmp_path / "b/test_same.py"]
    assert len(repeated_test_names(tmp_path, paths)) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("See [the page](absent.md).", "no such file"),
        ("See [the page](../../outside.md).", "leaves the repository"),
        ("```sh\nuv run humming-absent --help\n```", "no package installs"),
        ("```sh\nuv run nox -s absent\n```", "no session absent"),
        ("```sh\nuv run pytest tests/absent.py\n```", "no such file tests/absent.py"),
        ("```python\nfrom humming_format import absent_name\n```", "no such name"),
        ("```python\nimport humming_format.absent\n```", "fails"),
        ("```python\nif:\n```", "does not parse"),
        ("```python\n>>> from humming_format import absent_name\n1\n```", "no such name"),
    ],
)
def test_a_document_that_leads_nowhere_is_named(text: str, words: str) -> None:
    problems = document_text_problems(f"# Title\n\n{text}\n", REPOSITORY / "docs" / "planted.md", REPOSITORY)
    assert len(problems) == 1 and words in problems[0], problems


def test_documented_commands_that_exist_pass() -> None:
    for line in ("uv run pytest tests/architecture -n 2", "uv run nox -s lint types", "pip install uv", "# a remark"):
        assert list(command_problems(line, REPOSITORY)) == []
    assert list(code_problems("import humming_format\nimport torch")) == []
    assert list(code_problems(">>> import humming_format\n>>> 1 +\\\n... 1\n2\n")) == []


def test_session_names_are_read() -> None:
    assert {"lint", "types", "tests", "wheels", "release"} <= session_names(REPOSITORY)
