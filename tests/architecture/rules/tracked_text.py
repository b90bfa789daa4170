"""Rules on everything git tracks: no download hosts, no folders of one machine, no lock file; documents that hold.

Called by test_architecture_text.py.
Assumes git, and documents in Markdown with fenced code blocks.
"""

import ast
import doctest
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.architecture.rules.metadata import project_table
from tests.architecture.rules.table import PACKAGES, shown

# Joined from pieces, so that this file does not break its own rule.
_FORBIDDEN = {
    "a package registry's host": re.compile(
        "|".join(("pypi" + r"\.org", "pythonhosted" + r"\.org", "download" + r"\.pytorch", "registry" + r"\.npmjs"))
        + r"|https?://[^\s\"')]+/simple(?![\w-])"
    ),
    "a folder of one machine": re.compile(
        r"(?<![\w.<>}])/(?:" + "|".join(("work", "root", "home/[a-z]")) + r")(?:/|\b(?!/))"
    ),
}
_TEXT_LIMIT = 2_000_000


def tracked_files(root: Path) -> list[Path]:
    """The files that git tracks in this tree, as they stand on disk."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    paths = [root / name for name in done.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def tracked_text_problems(root: Path, files: Iterable[Path]) -> list[str]:
    """Forbidden words in tracked files, and a tracked lock file."""
    problems = []
    for path in files:
        if path.name == "uv.lock":
            problems.append(f"{shown(path, root)} is tracked; it names download addresses. git rm --cached it")
            continue
        data = path.read_bytes()
        if b"\0" in data[:4096] or len(data) > _TEXT_LIMIT:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            for what, pattern in _FORBIDDEN.items():
                if found := pattern.search(line):
                    problems.append(f"{shown(path, root)}:{number}: names {what}: {found.group(0)}")
    return problems


def repeated_test_names(root: Path, files: Iterable[Path]) -> list[str]:
    """Test files that share a name; a name says which package it tests."""
    seen: dict[str, str] = {}
    problems = []
    for path in files:
        if path.name.startswith("test_") and path.suffix == ".py":
            name = shown(path, root)
            if path.name in seen:
                problems.append(f"{name} and {seen[path.name]} share a name; names of test files are unique")
            seen[path.name] = name
    return problems


def document_problems(root: Path, files: Iterable[Path]) -> list[str]:
    """Links, commands and imports of the tracked Markdown files that lead nowhere."""
    problems = []
    for path in files:
        if path.suffix == ".md":
            problems += document_text_problems(path.read_text(encoding="utf-8"), path, root)
    return problems


def document_text_problems(text: str, path: Path, root: Path) -> list[str]:
    """What `document_problems` says about one text, standing or to stand at `path`."""
    found = (*_links(text, path, root), *_blocks(text, root))
    return [f"{shown(path, root)}:{line}: {what}" for line, what in found]


def _links(text: str, path: Path, root: Path) -> Iterator[tuple[int, str]]:
    for found in re.finditer(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)\s]*)?\)", text):
        target = found.group(1)
        if "://" in target or target.startswith("mailto:"):
            continue
        if not (path.parent / target).resolve().is_relative_to(root.resolve()):
            yield text.count("\n", 0, found.start()) + 1, f"link to {target} leaves the repository"
        elif not (path.parent / target).exists():
            yield text.count("\n", 0, found.start()) + 1, f"link to {target}; no such file"


def _blocks(text: str, root: Path) -> Iterator[tuple[int, str]]:
    for found in re.finditer(r"^```(\w+)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        language, body = found.groups()
        first = text.count("\n", 0, found.start(2)) + 1
        if language in ("sh", "bash", "console", "shell"):
            for number, line in enumerate(body.splitlines()):
                yield from ((first + number, what) for what in command_problems(line, root))
        if language == "python":
            yield from ((first, what) for what in code_problems(body))


def console_scripts(root: Path) -> set[str]:
    """The commands that the packages install."""
    return {name for package in PACKAGES for name in project_table(root, package).get("scripts", {})}


def session_names(root: Path) -> set[str]:
    """The sessions that noxfile.py defines."""
    names = set()
    for node in ast.parse((root / "noxfile.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and any("session" in ast.dump(item) for item in node.decorator_list):
            names.add(node.name)
    return names


def command_problems(line: str, root: Path) -> Iterator[str]:
    """What a documented command names that does not exist: a script, a nox session, a file."""
    words = shlex.split(line.removeprefix("$ "), comments=True)
    if words[:2] == ["uv", "run"]:
        words = words[2:]
        while words and words[0].startswith("-"):
            words = words[2:] if words[0] in ("--package", "--group", "--extra", "--with", "--python") else words[1:]
    if not words:
        return
    tool = words[0]
    if tool.startswith("humming") and tool not in console_scripts(root):
        yield f"`{line.strip()}`: no package installs a command {tool}"
    if tool == "nox":
        flags = [index for index, word in enumerate(words) if word in ("-s", "--session", "--sessions")]
        for index in flags:
            for name in words[index + 1 :]:
                if name.startswith("-"):
                    break
                if name.split("(")[0] not in session_names(root):
                    yield f"`{line.strip()}`: noxfile.py has no session {name}"
    if tool in ("pytest", "python", "python3", "bash", "sh"):
        for word in words[1:]:
            name = word.split("::")[0]
            if (
                "/" in name
                and not name.startswith(("-", "<"))
                and not any(c in name for c in "*$<")
                and not (root / name).exists()
            ):
                yield f"`{line.strip()}`: no such file {name}"


def code_problems(body: str) -> Iterator[str]:
    """Python code in a document that does not parse, or imports a name of ours that does not exist."""
    if body.lstrip().startswith(">>>"):
        body = "".join(example.source for example in doctest.DocTestParser().get_examples(body))
    try:
        tree = ast.parse(body)
    except SyntaxError as reason:
        yield f"the code does not parse: {reason}"
        return
    for node in ast.walk(tree):
        modules: list[tuple[str, list[str]]] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [(node.module, [alias.name for alias in node.names])]
        elif isinstance(node, ast.Import):
            modules = [(alias.name, []) for alias in node.names]
        for module, names in modules:
            if module.split(".")[0] not in {package.import_name for package in PACKAGES}:
                continue
            try:
                loaded = importlib.import_module(module)
            except ImportError as reason:
                yield f"import {module} fails: {reason}"
                continue
            for name in names:
                if not hasattr(loaded, name):
                    yield f"from {module} import {name}: no such name"
