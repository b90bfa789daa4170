"""The table of the four packages: who may import what, and under which name it is declared.

Read by every rule of this folder. To let a package import something new, change a row here and say why in
docs/design-decisions.md.
Assumes that a distribution has one top-level import name.
"""

from pathlib import Path

import attrs

REPOSITORY = Path(__file__).resolve().parents[3]


@attrs.frozen(kw_only=True)
class Lazy:
    """An import that is allowed inside functions only, so that importing the package never pays for it."""

    module: str  # dotted prefix, such as "cuda" or "cuda.bindings.nvrtc"
    files: tuple[str, ...]  # the files, relative to the import package, that may have it; empty for any file
    at_most: int  # in how many files it may stand


@attrs.frozen(kw_only=True)
class Package:
    """One row: a distribution, its import name, and what its source may import."""

    distribution: str
    import_name: str
    siblings: tuple[str, ...]  # import names of the other packages of this repository
    third_party: tuple[str, ...]  # top-level import names, allowed anywhere
    lazy: tuple[Lazy, ...] = ()
    data_only: tuple[str, ...] = ()  # distributions declared for the files they hold, never imported
    environment_prefix: str | None = None  # of its environment variables; None when it may have none
    machine_variables: tuple[str, ...] = ()  # variables of other programs that settings.py may read as facts

    def folder(self, root: Path) -> Path:
        return root / "packages" / self.distribution

    def source(self, root: Path) -> Path:
        return self.folder(root) / "src" / self.import_name

    def python_files(self, root: Path) -> list[Path]:
        return sorted(self.source(root).rglob("*.py"))


PACKAGES = (
    Package(
        distribution="humming-format",
        import_name="humming_format",
        siblings=(),
        third_party=("attrs",),
    ),
    Package(
        distribution="humming-compile",
        import_name="humming_compile",
        siblings=(),
        third_party=("attrs", "platformdirs"),
        lazy=(
            Lazy(module="cuda.bindings.nvrtc", files=("nvrtc.py",), at_most=1),
            Lazy(module="cuda", files=(), at_most=3),
        ),
        data_only=(
            "nvidia-cuda-nvrtc",
            "nvidia-cuda-nvrtc-cu12",
            "nvidia-cuda-runtime",
            "nvidia-cuda-runtime-cu12",
            "nvidia-cuda-crt",
            "nvidia-cuda-cccl",
            "nvidia-cuda-cccl-cu12",
        ),
        environment_prefix="HUMMING_COMPILE_",
        # Where other programs say that a CUDA toolkit lies, and which devices are hidden.
        machine_variables=("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"),
    ),
    Package(
        distribution="humming-kernels",
        import_name="humming_kernels",
        siblings=("humming_format",),
        third_party=("attrs",),
    ),
    Package(
        distribution="humming-torch",
        import_name="humming_torch",
        siblings=("humming_format", "humming_compile", "humming_kernels"),
        third_party=("attrs", "click", "rich", "torch"),
        lazy=(
            Lazy(module="gguf", files=(), at_most=2),
            Lazy(module="matplotlib", files=("explain_report.py",), at_most=1),
        ),
        environment_prefix="HUMMING_TORCH_",
    ),
)

# Import name of a top-level module -> the distribution that provides it, where the two differ.
DISTRIBUTION_OF = {
    "attr": "attrs",
    "cuda": "cuda-bindings",
    "humming_format": "humming-format",
    "humming_compile": "humming-compile",
    "humming_kernels": "humming-kernels",
    "humming_torch": "humming-torch",
}
MOST_ENVIRONMENT_VARIABLES = 9

# Rooms of the CUDA code; a header includes rooms of a lower rank, or its own.
ROOM_RANK = {
    "base": 0,
    "arch": 1,
    "copy": 2,
    "mma": 2,
    "decode": 2,
    "pipeline": 3,
    "schedule": 3,
    "epilogue": 3,
    "kernels": 4,
}
CUDA_ROOT = Path("packages/humming-kernels/src/humming_kernels/include/humming")

# Lines that read well, by place. A longer file needs a reason: a row in LONGER_FILES of this table.
PYTHON_LINES = 400
COMPONENT_LINES = 200
KERNEL_LINES = 300
LONGER_FILES: dict[str, str] = {}


def shown(path: Path, root: Path) -> str:
    """The path as messages show it: relative to the tree, with forward slashes."""
    return path.relative_to(root).as_posix()
