"""Which modules a source file imports, and whether its package may.

Called by test_architecture_imports.py and by the rule on declared dependencies.
Assumes that imports are written as statements or as `import_module("literal")`.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests.architecture.rules.table import PACKAGES, Lazy, Package, shown


@attrs.frozen(kw_only=True)
class Import:
    """One absolute import: `from a.b import c` is module "a.b" and names ("c",)."""

    module: str
    names: tuple[str, ...]
    line: int
    lazy: bool  # inside a function: it runs when called, not when the file is imported
    typing_only: bool  # under `if TYPE_CHECKING:`; it never runs

    @property
    def top(self) -> str:
        return self.module.split(".")[0]


def read_imports(text: str, filename: str = "<text>") -> list[Import]:
    """Every absolute import of a source text, in the order of its lines."""
    found = list(_walk(ast.parse(text, filename), lazy=False, typing_only=False))
    return sorted(found, key=lambda item: item.line)


def _walk(node: ast.AST, lazy: bool, typing_only: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(module=alias.name, names=(), line=node.lineno, lazy=lazy, typing_only=typing_only)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
        names = tuple(alias.name for alias in node.names)
        yield Import(module=node.module, names=names, line=node.lineno, lazy=lazy, typing_only=typing_only)
    elif isinstance(node, ast.Call) and _called_name(node) in ("import_module", "__import__"):
        argument = node.args[0] if node.args else None
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and argument.value[:1] != ".":
            yield Import(module=argument.value, names=(), line=node.lineno, lazy=lazy, typing_only=typing_only)
    inside = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for child in node.body:
            yield from _walk(child, inside, True)
        for child in node.orelse:
            yield from _walk(child, inside, typing_only)
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, inside, typing_only)


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def import_table_problems(root: Path, packages: tuple[Package, ...] = PACKAGES) -> list[str]:
    """Imports that the import table of the architecture does not allow."""
    return [problem for package in packages for problem in _package_problems(root, package)]


def _package_problems(root: Path, package: Package) -> Iterator[str]:
    source = package.source(root)
    lazy_files: dict[Lazy, set[str]] = {rule: set() for rule in package.lazy}
    for path in package.python_files(root):
        inside = path.relative_to(source).as_posix()
        for item in read_imports(path.read_text(encoding="utf-8"), str(path)):
            place = f"{shown(path, root)}:{item.line}"
            yield from _private_problems(package, item, place)
            if item.top == package.import_name or item.top in sys.stdlib_module_names:
                continue
            if item.top in package.siblings or item.top in package.third_party:
                continue
            rules = [rule for rule in package.lazy if _covers(rule.module, item)]
            if not rules:
                allowed = ", ".join(("the standard library", *package.third_party, *package.siblings))
                yield (
                    f"{place}: {package.distribution} imports {item.module}; it may import {allowed}. "
                    "Move the code to a package that may, or change the table and say why in docs/design-decisions.md"
                )
                continue
            if not (item.lazy or item.typing_only):
                yield f"{place}: {item.module} is imported with the file; import it inside the function that needs it"
            for rule in rules:
                lazy_files[rule].add(inside)
                if rule.files and inside not in rule.files:
                    yield f"{place}: {rule.module} is imported by {inside}; only {', '.join(rule.files)} may import it"
    for rule, files in lazy_files.items():
        if len(files) > rule.at_most:
            yield (
                f"packages/{package.distribution}: {rule.module} is imported in {len(files)} files "
                f"({', '.join(sorted(files))}); at most {rule.at_most} may. Pass the values instead of the module"
            )


def _covers(module: str, item: Import) -> bool:
    """Whether an import reaches `module`: it, something inside it, or `from parent import it`."""
    reached = [item.module, *(f"{item.module}.{name}" for name in item.names)]
    return any(name == module or name.startswith(module + ".") for name in reached)


def _private_problems(package: Package, item: Import, place: str) -> Iterator[str]:
    others = {other.import_name for other in PACKAGES} - {package.import_name}
    if item.top not in others:
        return
    private = [
        part for part in (*item.module.split("."), *item.names) if part.startswith("_") and not part.startswith("__")
    ]
    if private or item.module.endswith("__main__"):
        what = ".".join((item.module, *private[-1:])) if private else item.module
        yield f"{place}: {what} is private to {item.top}; ask for a public name there, or do without it"
