"""Rules on the text of the Python sources: length, opening lines, prints, asserts, excepts, environment.

Called by test_architecture_python.py.
Assumes sources that parse; ruff reports the same prints and asserts, but a `noqa` comment silences ruff and not these.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.rules.table import (
    LONGER_FILES,
    MOST_ENVIRONMENT_VARIABLES,
    PACKAGES,
    PYTHON_LINES,
    Package,
    shown,
)

_VARIABLE = re.compile(r"HUMMING_[A-Z0-9_]+")
_BROAD = ("Exception", "BaseException")


def source_style_problems(root: Path, packages: tuple[Package, ...] = PACKAGES) -> list[str]:
    """Prints, bare asserts, broad excepts and missing opening lines in the packages' sources."""
    problems = []
    for package in packages:
        for path in package.python_files(root):
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
            problems += [f"{shown(path, root)}:{line}: {what}" for line, what in _style(tree)]
    return problems


def _style(tree: ast.Module) -> Iterator[tuple[int, str]]:
    opening = [line for line in (ast.get_docstring(tree) or "").splitlines() if line.strip()]
    if len(opening) < 3:
        yield (
            1,
            (
                f"the file begins with a docstring of {len(opening)} lines; "
                "wanted three: what it does, who calls it, what it assumes"
            ),
        )
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield node.lineno, "print in a package; write to the stream that the caller gave, or log"
        if isinstance(node, ast.Assert):
            yield node.lineno, "bare assert vanishes under -O; raise an error of errors.py"
        if isinstance(node, ast.ExceptHandler) and _is_broad(node) and not _always_raises(node):
            yield node.lineno, "broad except hides errors; name the errors that the body can raise"


def _is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in _BROAD for kind in kinds)


def _always_raises(handler: ast.ExceptHandler) -> bool:
    """Cleaning up and raising again hides nothing."""
    return isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None


def length_problems(root: Path, packages: tuple[Package, ...] = PACKAGES) -> list[str]:
    """Source files longer than reads well, without a row that says why."""
    problems = []
    for package in packages:
        for path in package.python_files(root):
            problems += over_length(path, root, PYTHON_LINES)
    return problems


def over_length(path: Path, root: Path, most: int, reasons: dict[str, str] | None = None) -> list[str]:
    """One sentence when the file has more than `most` lines and no reason for it."""
    count = len(path.read_text(encoding="utf-8").splitlines())
    name = shown(path, root)
    if count <= most or (LONGER_FILES if reasons is None else reasons).get(name):
        return []
    return [
        f"{name}: {count} lines; at most {most} read well. "
        "Split it by idea, or give the reason in LONGER_FILES of tests/architecture/rules/table.py"
    ]


def environment_problems(root: Path, packages: tuple[Package, ...] = PACKAGES) -> list[str]:
    """Environment variables read outside settings.py, named against the rule, or too many."""
    problems = []
    variables: set[str] = set()
    for package in packages:
        for path in package.python_files(root):
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text, str(path))
            settings = path == package.source(root) / "settings.py"
            for node in ast.walk(tree):
                place = f"{shown(path, root)}:{getattr(node, 'lineno', 0)}"
                if _touches_environment(node) and not settings:
                    problems.append(f"{place}: the environment is read outside settings.py; read it there")
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    for name in _VARIABLE.findall(node.value):
                        if package.environment_prefix is None and name.startswith(_prefixes()):
                            continue  # a message that tells of another package's variable
                        if not name.startswith(_prefixes()):
                            problems.append(f"{place}: {name}; names begin with {' or '.join(_prefixes())}")
            if settings:
                for place_line, name in _names_read(tree):
                    if name in package.machine_variables:
                        continue
                    variables.add(name)
                    if package.environment_prefix is None or not name.startswith(package.environment_prefix):
                        wanted = package.environment_prefix or "none: this package has no settings"
                        problems.append(f"{shown(path, root)}:{place_line}: reads {name}; wanted prefix {wanted}")
    if len(variables) > MOST_ENVIRONMENT_VARIABLES:
        problems.append(
            f"{len(variables)} environment variables ({', '.join(sorted(variables))}); "
            f"at most {MOST_ENVIRONMENT_VARIABLES}. Make it an argument"
        )
    return problems


def _prefixes() -> tuple[str, ...]:
    return tuple(package.environment_prefix for package in PACKAGES if package.environment_prefix is not None)


def _touches_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
        return node.attr in ("environ", "environb", "getenv", "getenvb", "putenv")
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return any(alias.name in ("environ", "environb", "getenv", "getenvb", "putenv") for alias in node.names)
    return False


def _names_read(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names of environment variables in settings.py: every whole constant that is written like one.

    Constants that are not handed to a function, an index or a table are messages, not names.
    """
    for node in ast.walk(tree):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Subscript):
            values = [node.slice]
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            values = [*node.elts]
        elif isinstance(node, ast.Dict):
            values = [*node.keys, *node.values]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            values = [node.value]
        for value in values:
            text = value.value if isinstance(value, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", text):
                yield value.lineno, text
