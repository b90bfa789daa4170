"""Versions, changelogs, dependencies and sibling bounds agree with each other and with the sources.

Run by pytest.
Assumes the rows in tests/architecture/rules/table.py.
"""

import shutil
from pathlib import Path

import pytest

from tests.architecture.expect import nothing_wrong
from tests.architecture.rules.metadata import (
    bound_problems,
    constraint_problems,
    dependency_problems,
    file_problems,
    newest_changelog_version,
    version_problems,
)
from tests.architecture.rules.table import PACKAGES, REPOSITORY

FORMAT = "packages/humming-format"
KERNELS = "packages/humming-kernels"
TORCH = "packages/humming-torch"


def test_every_package_has_its_files() -> None:
    nothing_wrong(file_problems(REPOSITORY))


def test_versions_and_changelogs_agree() -> None:
    nothing_wrong(version_problems(REPOSITORY))


def test_sibling_bounds_admit_this_tree() -> None:
    nothing_wrong(bound_problems(REPOSITORY))


def test_declared_dependencies_are_the_imported_ones() -> None:
    nothing_wrong(dependency_problems(REPOSITORY))


def test_every_direct_dependency_is_pinned_exactly() -> None:
    nothing_wrong(constraint_problems(REPOSITORY))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the metadata of this repository, with sources that import what is declared; all rules pass on it."""
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(REPOSITORY / name, tmp_path)
    for package in PACKAGES:
        source, folder = package.source(tmp_path), package.folder(tmp_path)
        source.mkdir(parents=True)
        (folder / "tests").mkdir()
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"):
            shutil.copy(package.folder(REPOSITORY) / name, folder)
        shutil.copy(package.source(REPOSITORY) / "__init__.py", source)
        shutil.copy(package.source(REPOSITORY) / "py.typed", source)
        eager = "\n".join(f"import {name}" for name in (*package.third_party, *package.siblings))
        lazy = "\n".join(f"    import {rule.module}" for rule in package.lazy)
        (source / "all.py").write_text(f"{eager}\ndef f():\n    pass\n{lazy}\n", encoding="utf-8")
    return tmp_path


def test_the_copied_tree_passes(tree: Path) -> None:
    assert file_problems(tree) == []
    assert bound_problems(tree) == []
    assert dependency_problems(tree) == []
    assert constraint_problems(tree) == []


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "src/humming_format/py.typed", "tests"])
def test_a_missing_file_is_named(tree: Path, name: str) -> None:
    path = tree / FORMAT / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    problems = file_problems(tree)
    assert len(problems) == 1 and f"{FORMAT}/{name} is missing" in problems[0]


def test_a_second_package_tests_is_named(tree: Path) -> None:
    (tree / FORMAT / "tests/__init__.py").touch()
    assert ["second package `tests`" in problem for problem in file_problems(tree)] == [True]


def test_a_licence_that_differs_is_named(tree: Path) -> None:
    (tree / FORMAT / "LICENSE").write_text("all rights reserved\n", encoding="utf-8")
    assert ["LICENSE differs" in problem for problem in file_problems(tree)] == [True]


def test_a_shared_namespace_folder_is_named(tree: Path) -> None:
    (tree / FORMAT / "src/humming").mkdir()
    (tree / FORMAT / "src/humming/format.py").touch()
    assert any("namespace" in problem for problem in file_problems(tree))


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("pyproject.toml", 'version = "0.', 'version = "7.', "change both together"),
        ("pyproject.toml", 'version = "0.', 'version = "7.', "add a section"),
        ("src/humming_format/__init__.py", '__version__ = "0.', '__version__ = "7.', "change both together"),
        ("CHANGELOG.md", "## 0.", "## 7.", "add a section"),
    ],
)
def test_a_version_that_drifts_is_named(tree: Path, file: str, old: str, new: str, words: str) -> None:
    _replace(tree / FORMAT / file, old, new)
    assert any(words in problem for problem in version_problems(tree))


def test_a_raised_version_breaks_the_bounds_of_its_siblings(tree: Path) -> None:
    _replace(tree / FORMAT / "pyproject.toml", 'version = "0.', 'version = "7.')
    problems = bound_problems(tree)
    assert any(KERNELS in problem and "excludes humming-format 7." in problem for problem in problems)
    assert any(TORCH in problem and "excludes humming-format 7." in problem for problem in problems)


def test_a_loose_bound_is_named(tree: Path) -> None:
    path = tree / KERNELS / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    start = text.index("humming-format>=")
    path.write_text(text[:start] + "humming-format>=0" + text[text.index('"', start) :], encoding="utf-8")
    problems = bound_problems(tree)
    assert len(problems) == 1 and "sibling bounds are written" in problems[0]


def test_an_undeclared_import_is_named(tree: Path) -> None:
    (tree / FORMAT / "src/humming_format/bad.py").write_text("import numpy\n", encoding="utf-8")
    assert any("numpy is imported" in problem and "add it" in problem for problem in dependency_problems(tree))


def test_an_unused_dependency_is_named(tree: Path) -> None:
    _replace(tree / KERNELS / "pyproject.toml", 'dependencies = ["attrs', 'dependencies = ["jinja2>=3", "attrs')
    problems = dependency_problems(tree)
    assert any("jinja2 is declared and never imported" in problem for problem in problems)


def test_an_eager_import_of_an_extra_is_named(tree: Path) -> None:
    (tree / TORCH / "src/humming_torch/bad.py").write_text("import gguf\n", encoding="utf-8")
    assert any(
        "gguf is imported" in problem and "not in dependencies" in problem for problem in dependency_problems(tree)
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('  "attrs==', '  "attrs>=', "not an exact version"),
        ('  "attrs==', '  "attrz==', "attrs has no pin"),
        ('  "attrs==', '  "attrz==', "attrz is pinned and nothing depends on it"),
    ],
)
def test_a_bad_pin_is_named(tree: Path, old: str, new: str, words: str) -> None:
    _replace(tree / "pyproject.toml", old, new)
    assert any(words in problem for problem in constraint_problems(tree))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("# Changelog\n\n## 0.2.0 (unreleased)\n\n## 0.1.0 (2026-01-01)\n", "0.2.0"),
        ("## 1.2.3\n", "1.2.3"),
        ("# Changelog\n\nnothing yet\n", None),
    ],
)
def test_newest_changelog_version(tmp_path: Path, text: str, version: str | None) -> None:
    path = tmp_path / "CHANGELOG.md"
    path.write_text(text, encoding="utf-8")
    assert newest_changelog_version(path) == version


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{path} no longer has {old!r}; mend this test"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
