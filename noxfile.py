"""Sessions: everything that is run on this repository, by people and by CI, under one name each.

Called as `uv run nox [-s SESSION]`; with no session it runs lint, types, architecture and tests, without a GPU.
Assumes uv on the path; sessions with `venv_backend=WORKSPACE` run in the workspace's own environment.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import nox

# The one table of versions. Exact versions of everything else: constraint-dependencies in pyproject.toml.
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
LOWEST_PYTHON = PYTHONS[0]
CUDA = {
    "12.9": ("cuda-bindings==12.9.10", "nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-runtime-cu12==12.9.79"),
    "13.0": ("cuda-bindings==13.0.3", "nvidia-cuda-nvrtc==13.0.88", "nvidia-cuda-runtime==13.0.96"),
    "13.5": ("cuda-bindings==13.5.0", "nvidia-cuda-nvrtc==13.5.37", "nvidia-cuda-runtime==13.5.37"),
}

ROOT = Path(__file__).resolve().parent
LIGHT = ("humming-format", "humming-compile", "humming-kernels")
PACKAGES = (*LIGHT, "humming-torch")
EXTRAS = {"humming-compile": "cu13"}  # what the tests of a light package use
TEST_FOLDERS = {name: f"packages/{name}/tests" for name in PACKAGES} | {
    "integration": "tests/integration",
    "emulator": "tests/emulator",
}
TEST_TOOLS = (
    "gguf",
    "hypothesis",
    "ml-dtypes",
    "numpy",
    "packaging",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "safetensors",
)
WORKSPACE = "none"  # no environment of nox's own: `uv run` brings the workspace's

nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "types", "architecture", "tests"]
nox.needs_version = ">=2025.2.9"


def workspace_run(session: nox.Session, *command: str) -> None:
    """Run a command in the workspace's environment, which uv creates when it is missing."""
    session.run("uv", "run", *command, external=True)


def pins(session: nox.Session, without: tuple[str, ...] = ()) -> str:
    """A constraints file with the exact versions of the root, but for the distributions named in `without`."""
    table = nox.project.load_toml(ROOT / "pyproject.toml")["tool"]["uv"]["constraint-dependencies"]
    kept = [line for line in table if re.split(r"[=;]", line)[0].strip() not in without]
    path = scratch(session) / "constraints.txt"
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return str(path)


def scratch(session: nox.Session) -> Path:
    """The session's own folder, wherever the session has changed to."""
    folder = ROOT / session.virtualenv.location / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def project(name: str) -> dict[str, Any]:
    """The [project] table of one package."""
    table: dict[str, Any] = nox.project.load_toml(ROOT / "packages" / name / "pyproject.toml")["project"]
    return table


@nox.session(venv_backend=WORKSPACE)
def lint(session: nox.Session) -> None:
    """ruff: rules and format."""
    workspace_run(session, "ruff", "check", ".")
    workspace_run(session, "ruff", "format", "--check", ".")


@nox.session(venv_backend=WORKSPACE)
def types(session: nox.Session) -> None:
    """mypy, strict, on each package's sources."""
    for name in PACKAGES:
        workspace_run(session, "mypy", "--strict", f"packages/{name}/src")


@nox.session(venv_backend=WORKSPACE)
def architecture(session: nox.Session) -> None:
    """The rules of the architecture: imports, rooms, metadata, documents."""
    workspace_run(session, "pytest", "tests/architecture", *session.posargs)


@nox.session(venv_backend=WORKSPACE)
@nox.parametrize("folder", list(TEST_FOLDERS), ids=list(TEST_FOLDERS))
def tests(session: nox.Session, folder: str) -> None:
    """The tests of one package, or across packages; no GPU."""
    workspace_run(session, "pytest", TEST_FOLDERS[folder], *session.posargs)


@nox.session(venv_backend=WORKSPACE, default=False)
def emulate(session: nox.Session) -> None:
    """Every format of the support table on three generations of GPUs, in the emulator; half an hour on two cores."""
    workspace_run(session, "pytest", "tests/emulator", "-m", "nvrtc", "-n", "2", *session.posargs)


@nox.session(python=PYTHONS)
def pythons(session: nox.Session) -> None:
    """The light packages on every Python, with the exact versions of the root."""
    install_light(session, "-c", pins(session))
    session.run("pytest", *light_test_folders(), *session.posargs)


@nox.session(python=LOWEST_PYTHON)
def lowest(session: nox.Session) -> None:
    """The light packages on the lowest Python with the lowest direct dependencies that they declare."""
    install_light(session, "--resolution", "lowest-direct", *declared_dependencies(LIGHT))
    session.run("pytest", *light_test_folders(), *session.posargs)


@nox.session
@nox.parametrize("cuda", list(CUDA), ids=list(CUDA))
def nvrtc(session: nox.Session, cuda: str) -> None:
    """Compile every supported unit for every target with one version of NVRTC."""
    constraints = pins(session, without=tuple(re.split("==", pin)[0] for pin in CUDA[cuda]))
    built = build_wheels(session, LIGHT)
    install(session, "-c", constraints, *TEST_TOOLS, *CUDA[cuda], *map(str, built.values()))
    session.run("humming-compile", "doctor", env=own_cache(session))
    session.run("pytest", "packages/humming-kernels/tests", "-m", "nvrtc", *session.posargs, env=own_cache(session))


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the four wheels, install them by file into an empty environment, use them; then two of them alone."""
    built = build_wheels(session, PACKAGES)
    install(session, "-c", pins(session), *map(str, built.values()))
    session.chdir(scratch(session))  # nothing of the source tree is importable from here
    for name in PACKAGES:
        session.run("python", "-c", f"import {name.replace('-', '_')} as package; print(package.__file__)")
    session.run("humming-format", "--help", silent=True)
    session.run("humming", "--help", silent=True)
    session.run("humming-compile", "doctor", env=own_cache(session))
    session.run("python", str(ROOT / "tests" / "support" / "compile_one.py"), env=own_cache(session))

    alone = empty_environment(session, "format-alone", f"humming-format @ {built['humming-format'].as_uri()}")
    checkpoint = scratch(session) / "checkpoint"
    session.run("python", str(ROOT / "tests" / "support" / "tiny_gptq.py"), str(checkpoint))
    session.run(str(alone / "humming-format"), "inspect", str(checkpoint), external=True)

    with_nvrtc = f"humming-compile[cu13] @ {built['humming-compile'].as_uri()}"
    alone = empty_environment(session, "compile-alone", with_nvrtc)
    session.run(str(alone / "humming-compile"), "doctor", external=True, env=own_cache(session))


@nox.session(venv_backend=WORKSPACE)
def gpu(session: nox.Session) -> None:
    """Tests that need a CUDA device."""
    workspace_run(session, "pytest", "tests/gpu", "-m", "gpu", *session.posargs)


@nox.session(venv_backend=WORKSPACE)
def bench(session: nox.Session) -> None:
    """The dense benchmark on this machine's CUDA device; arguments go to benchmarks.dense."""
    workspace_run(session, "python", "-m", "benchmarks.dense", *session.posargs)


@nox.session(venv_backend=WORKSPACE)
def examples(session: nox.Session) -> None:
    """The README's first command."""
    workspace_run(session, "humming", "quickstart", *session.posargs)


@nox.session(venv_backend=WORKSPACE)
def docs(session: nox.Session) -> None:
    """Links, commands and imports that the documents name exist."""
    workspace_run(session, "pytest", "tests/architecture/test_architecture_text.py", *session.posargs)


@nox.session(venv_backend=WORKSPACE)
def release(session: nox.Session) -> None:
    """Whether a package may be tagged: `nox -s release -- humming-format`; all four when none is named."""
    workspace_run(session, "pytest", "--quiet", "tests/architecture/test_architecture_metadata.py")
    for name in session.posargs or PACKAGES:
        if name not in PACKAGES:
            session.error(f"{name} is no package of this repository; wanted one of {', '.join(PACKAGES)}")
        version = project(name)["version"]
        changelog = (ROOT / "packages" / name / "CHANGELOG.md").read_text(encoding="utf-8")
        heading = next((line for line in changelog.splitlines() if line.startswith("## ")), "")
        wanted = f"## {version} (YYYY-MM-DD)"
        if re.sub(r"\d{4}-\d\d-\d\d", "YYYY-MM-DD", heading) != wanted:
            session.error(f"{name}: its changelog begins with `{heading}`; wanted `{wanted}`: date it")
        tag = f"{name}-v{version}"
        found = session.run("git", "tag", "--list", tag, external=True, silent=True)
        if str(found).strip():
            session.error(f"tag {tag} exists; raise the version in pyproject.toml, __init__.py and CHANGELOG.md")
        session.log(f"{name} {version} may be tagged: git tag -a {tag} -m {tag!r}")


@nox.session(venv_backend=WORKSPACE)
def status(session: nox.Session) -> None:
    """Print the versions of the packages, their bounds, and the table of tested versions."""
    session.log(f"Python {', '.join(PYTHONS)}; running {sys.version.split()[0]}")
    for version, names in CUDA.items():
        session.log(f"CUDA {version}: {', '.join(names)}")
    for name in PACKAGES:
        table = project(name)
        session.log(f"{name} {table['version']}: needs {', '.join(map(str, table['dependencies']))}")
        for extra, needs in table.get("optional-dependencies", {}).items():
            session.log(f"  [{extra}] {', '.join(needs)}")
    workspace_run(session, "python", "-c", "import torch; print('torch', torch.__version__, torch.cuda.is_available())")


def build_wheels(session: nox.Session, names: tuple[str, ...]) -> dict[str, Path]:
    """Build each package's source distribution and, from that, its wheel; returns the wheels by name."""
    folder = scratch(session) / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    for name in names:
        session.run("uv", "build", "--quiet", "--package", name, "--out-dir", str(folder), external=True)
    return {name: next(folder.glob(f"{name.replace('-', '_')}-*.whl")) for name in names}


def install(session: nox.Session, *arguments: str) -> None:
    """Install from a folder outside the workspace: inside it, uv would apply the workspace's pins and sources."""
    with session.chdir(tempfile.gettempdir()):
        session.install(*arguments)


def install_light(session: nox.Session, *options: str) -> None:
    """Test tools first, with the root's versions; then the light packages under the given resolution."""
    install(session, "-c", pins(session), *TEST_TOOLS)
    built = build_wheels(session, LIGHT)
    extras = {name: f"[{EXTRAS[name]}]" if name in EXTRAS else "" for name in LIGHT}
    install(session, *options, *(f"{name}{extras[name]} @ {built[name].as_uri()}" for name in LIGHT))


def declared_dependencies(names: tuple[str, ...]) -> list[str]:
    """What the packages declare, but for each other: as direct requirements, so that uv takes the lowest of each."""
    needs = []
    for name in names:
        needs += project(name)["dependencies"]
        needs += project(name).get("optional-dependencies", {}).get(EXTRAS.get(name, ""), [])
    return [need for need in needs if not need.startswith(PACKAGES)]


def empty_environment(session: nox.Session, name: str, requirement: str) -> Path:
    """A new environment that holds one requirement and what it needs; returns its folder of commands."""
    folder = scratch(session) / name
    python = str(ROOT / session.virtualenv.location / "bin" / "python")
    session.run("uv", "venv", "--quiet", "--clear", "--python", python, str(folder), external=True)
    into = ("--python", str(folder / "bin" / "python"))
    with session.chdir(tempfile.gettempdir()):
        session.run("uv", "pip", "install", "--quiet", *into, "-c", pins(session), requirement, external=True)
    return folder / "bin"


def own_cache(session: nox.Session) -> dict[str, str]:
    """The environment under which kernels are compiled anew, away from the user's cache."""
    return {"HUMMING_COMPILE_CACHE_DIR": str(scratch(session) / "cache")}


def light_test_folders() -> list[str]:
    return [TEST_FOLDERS[name] for name in LIGHT]
