"""Rules on the packages' metadata: files, versions, changelogs, declared dependencies, sibling bounds.

Called by test_architecture_metadata.py, by the release session of noxfile.py and by nobody else.
Assumes literal versions: `version = "..."` in pyproject.toml and `__version__ = "..."` in __init__.py.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.architecture.rules.imports import read_imports
from tests.architecture.rules.table import DISTRIBUTION_OF, PACKAGES, Package, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_REQUIRED_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "tests", "src/{import_name}/py.typed")


def read_toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def project_table(root: Path, package: Package) -> dict[str, Any]:
    """The [project] table of one package."""
    table = read_toml(package.folder(root) / "pyproject.toml")["project"]
    assert isinstance(table, dict)
    return table


def file_problems(root: Path, packages: tuple[Package, ...] = PACKAGES) -> list[str]:
    """Files that every package has and one lacks."""
    problems = []
    for package in packages:
        for pattern in _REQUIRED_FILES:
            name = pattern.format(import_name=package.import_name)
            if not (package.folder(root) / name).exists():
                problems.append(f"packages/{package.distribution}/{name} is missing; every package has one")
        if (package.folder(root) / "tests" / "__init__.py").exists():
            problems.append(
                f"packages/{package.distribution}/tests/__init__.py makes a second package `tests`; "
                "drop it, and put shared makers in tests/support"
            )
        licence = package.folder(root) / "LICENSE"
        if not licence.is_file() or licence.read_bytes() != (root / "LICENSE").read_bytes():
            problems.append(f"packages/{package.distribution}/LICENSE differs from LICENSE; copy it, wheels carry it")
        if any(package.folder(root).joinpath("src").glob("humming/**/*")):
            problems.append(f"packages/{package.distribution}: a shared `humming` namespace folder; use the own name")
    return problems


def version_problems(root: Path, packages: tuple[Package, ...] = PACKAGES) -> list[str]:
    """Versions that differ between pyproject.toml, __init__.py and the newest changelog heading."""
    problems = []
    for package in packages:
        folder = f"packages/{package.distribution}"
        declared = project_table(root, package).get("version")
        literal = version_literal(package.source(root) / "__init__.py")
        if declared is None:
            problems.append(f"{folder}/pyproject.toml has no literal version")
        if literal != declared:
            problems.append(f"{folder}: __version__ is {literal}, pyproject.toml says {declared}; change both together")
        heading = newest_changelog_version(package.folder(root) / "CHANGELOG.md")
        if heading != declared:
            problems.append(
                f"{folder}/CHANGELOG.md begins with {heading}, pyproject.toml says {declared}; add a section"
            )
    return problems


def version_literal(path: Path) -> str | None:
    """The literal `__version__` of a module, or None."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if names == ["__version__"] and isinstance(node.value.value, str):
                return node.value.value
    return None


def newest_changelog_version(path: Path) -> str | None:
    """The version of the first `## X.Y.Z` heading; ` (unreleased)` or a date may follow it."""
    found = re.search(r"^## (\d+\.\d+\.\d+)(?: .*)?$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1) if found else None


def bound_problems(root: Path, packages: tuple[Package, ...] = PACKAGES) -> list[str]:
    """Sibling requirements that are not `>=0.N,<0.N+1`, or that exclude the version standing in this tree."""
    versions = {package.distribution: Version(project_table(root, package)["version"]) for package in packages}
    problems = []
    for package in packages:
        place = f"packages/{package.distribution}/pyproject.toml"
        for requirement in _requirements(project_table(root, package)):
            name = canonicalize_name(requirement.name)
            if name not in versions or name == package.distribution:
                continue
            version = versions[name]
            wanted = f">={version.major}.{version.minor},<{version.major}.{version.minor + 1}"
            if version not in requirement.specifier:
                problems.append(f"{place}: {requirement} excludes {name} {version} of this tree; wanted {wanted}")
            elif {str(part) for part in requirement.specifier} != set(wanted.split(",")):
                problems.append(f"{place}: {requirement}; sibling bounds are written {wanted}")
    return problems


def _requirements(project: dict[str, Any]) -> Iterator[Requirement]:
    yield from map(Requirement, project.get("dependencies", []))
    for extra in project.get("optional-dependencies", {}).values():
        yield from map(Requirement, extra)


def dependency_problems(root: Path, packages: tuple[Package, ...] = PACKAGES) -> list[str]:
    """Dependencies declared and never imported, or imported and not declared."""
    problems = []
    for package in packages:
        project = project_table(root, package)
        hard = {canonicalize_name(Requirement(text).name) for text in project.get("dependencies", [])}
        extra = {canonicalize_name(item.name) for item in _requirements(project)} - hard
        always: dict[str, str] = {}
        somewhere: dict[str, str] = {}
        for path in package.python_files(root):
            for item in read_imports(path.read_text(encoding="utf-8"), str(path)):
                if item.top == package.import_name or item.top in sys.stdlib_module_names:
                    continue
                name = str(canonicalize_name(DISTRIBUTION_OF.get(item.top, item.top)))
                place = f"{shown(path, root)}:{item.line}"
                somewhere.setdefault(name, place)
                if not (item.lazy or item.typing_only):
                    always.setdefault(name, place)
        metadata = f"packages/{package.distribution}/pyproject.toml"
        for name, place in somewhere.items():
            if name not in hard and name in always:
                problems.append(f"{metadata}: {name} is imported ({always[name]}) and not in dependencies; add it")
            elif name not in hard | extra:
                problems.append(f"{metadata}: {name} is imported ({place}) and in no dependency or extra; add it")
        for name in sorted((hard | extra) - set(somewhere)):
            if name not in package.data_only and not _names_sibling(name, extra, packages):
                problems.append(f"{metadata}: {name} is declared and never imported; drop it")
    return problems


def _names_sibling(name: str, extra: set[str], packages: tuple[Package, ...]) -> bool:
    """An extra may name a sibling to pass on that sibling's own extra."""
    return name in extra and any(package.distribution == name for package in packages)


def constraint_problems(root: Path, packages: tuple[Package, ...] = PACKAGES) -> list[str]:
    """Direct dependencies without an exact pin in the root, and pins of nothing."""
    workspace = read_toml(root / "pyproject.toml")
    pins = [Requirement(text) for text in workspace["tool"]["uv"]["constraint-dependencies"]]
    problems = [
        f"pyproject.toml: constraint {pin} is not an exact version"
        for pin in pins
        if [part.operator for part in pin.specifier] != ["=="]
    ]
    named = {canonicalize_name(pin.name) for pin in pins}
    direct: set[str] = set()
    for group in workspace.get("dependency-groups", {}).values():
        direct |= {canonicalize_name(Requirement(text).name) for text in group}
    for package in packages:
        direct |= {canonicalize_name(item.name) for item in _requirements(project_table(root, package))}
    direct -= {package.distribution for package in packages}
    problems += [f"pyproject.toml: {name} has no pin in constraint-dependencies" for name in sorted(direct - named)]
    problems += [f"pyproject.toml: {name} is pinned and nothing depends on it" for name in sorted(named - direct)]
    return problems
