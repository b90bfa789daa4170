"""`humming prepare` and `humming bundle`: every kernel of a checkpoint compiled ahead, onto disk or into one file.

Called by cli.py.
Assumes a rich console; weights are never read, so a checkpoint's headers are enough and no GPU is needed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs
import humming_compile
import humming_format
import humming_kernels
import torch
from humming_compile.service import default_service
from humming_compile.settings import BUNDLES
from humming_format.checkpoint import read_checkpoint
from humming_kernels.arch import DeviceFacts
from humming_kernels.compose import KernelSource
from rich import box
from rich.console import Console
from rich.table import Table

import humming_torch
from humming_torch.ahead import KernelsAhead, kernels_ahead, together
from humming_torch.errors import UnsupportedError
from humming_torch.progress import CompileBar, bars, origins_text
from humming_torch.session import compile_request

_SHOWN = 8


@attrs.frozen(kw_only=True)
class ModelKernels:
    """What to compile of which checkpoint: for these devices and activations, for 1 to max_m tokens."""

    path: Path
    devices: tuple[DeviceFacts, ...]
    dtypes: tuple[torch.dtype, ...]
    max_m: int

    def prepare(self, console: Console) -> None:
        """Compile everything into the cache folder."""
        begin = time.perf_counter()
        sources = self._find(console)
        service = default_service()
        with bars(console) as progress:
            bar = CompileBar(progress, len(sources))
            service.compile_many([compile_request(source) for source in sources], bar)
        console.print(
            f"{len(sources)} kernels in {time.perf_counter() - begin:.1f} s: {origins_text(bar.origins)}; kept in "
            f"{service.settings.cache_folder}",
            highlight=False,
            soft_wrap=True,
        )

    def bundle(self, console: Console, output: Path) -> None:
        """Compile everything and write it into one file."""
        begin = time.perf_counter()
        sources = self._find(console)
        about = {
            "model": self.path.name,
            "max_m": self.max_m,
            "activations": [str(dtype).removeprefix("torch.") for dtype in self.dtypes],
            "devices": [f"{facts.arch.name}, {facts.multiprocessors} multiprocessors" for facts in self.devices],
            "versions": {
                module.__name__: module.__version__
                for module in (humming_format, humming_compile, humming_kernels, humming_torch)
            },
        }
        with bars(console) as progress:
            bar = CompileBar(progress, len(sources))
            written = default_service().write_bundle(
                output, [compile_request(source) for source in sources], about=about, progress=bar
            )
        console.print(
            f"{len(written.kernels)} kernels in {time.perf_counter() - begin:.1f} s: {origins_text(bar.origins)}; "
            f"written to {written.path}, {written.path.stat().st_size:,} bytes. Where it is to be used: "
            f"{BUNDLES}={written.path}",
            highlight=False,
            soft_wrap=True,
        )

    def _find(self, console: Console) -> Sequence[KernelSource]:
        """The distinct kernels, with a table of what they are for."""
        checkpoint = read_checkpoint(self.path)
        found = [kernels_ahead(checkpoint, facts, dtype, self.max_m) for facts in self.devices for dtype in self.dtypes]
        for ahead, dtype in zip(found, len(self.devices) * self.dtypes, strict=True):
            _show(console, ahead, str(dtype).removeprefix("torch."), self.max_m)
        sources = together(found)
        if not sources:
            raise UnsupportedError(
                f"{self.path} has no layer that a kernel serves",
                got=_reasons(found),
                wanted="quantized linear layers of a served format",
                hint="humming-format inspect shows what it holds.",
            )
        return sources


def _show(console: Console, ahead: KernelsAhead, activation: str, max_m: int) -> None:
    facts = ahead.facts
    heading = f"{facts.arch.name}, {facts.multiprocessors} multiprocessors, {activation}, M up to {max_m}"
    console.print(f"[bold]{heading}[/bold]", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("layer", "layers", "kernels"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    for kind in ahead.kinds:
        table.add_row(kind.title, str(kind.layers), str(len(kind.symbols)))
    if ahead.kinds:
        console.print(table)
    for reason, count in Counter(reason for _, reason in ahead.refused).items():
        names = [name for name, other in ahead.refused if other == reason]
        shown = ", ".join(names[:_SHOWN]) + (", ..." if count > _SHOWN else "")
        console.print(f"left out {count} layers ({shown}): {reason}", style="yellow", highlight=False, soft_wrap=True)


def _reasons(found: Sequence[KernelsAhead]) -> str:
    reasons = list(dict.fromkeys(reason for ahead in found for _, reason in ahead.refused))
    return "; ".join(reasons[:_SHOWN]) or "none at all"
