"""The main job, step by step: a checkpoint from its file to the tensor cores, each step checked and shown.

Called by the `humming quickstart` command.
Assumes a rich console; where it is not a terminal, progress bars are left out and the lines say the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import torch
from humming_compile.service import default_service
from humming_format.checkpoint import Checkpoint, LayerEntry, read_checkpoint
from humming_format.text import format_weight
from humming_kernels.arch import DeviceFacts
from rich import box
from rich.console import Console
from rich.table import Table

from humming_torch import gpu_timing
from humming_torch.accuracy import error_limit, relative_error
from humming_torch.ahead import linear_layers
from humming_torch.convert import CanonicalWeight, read_layer
from humming_torch.modules import Linear
from humming_torch.pack import pack, unpack
from humming_torch.packed_weight import PackedWeight
from humming_torch.plan import RangeSource, dense_configs, range_sources
from humming_torch.progress import CompileBar, bars, origins_text, shown
from humming_torch.session import compile_request, session_of
from humming_torch.targets import DEFAULT_TARGET, facts_of
from humming_torch.witness import Comparison, Witness

TOKENS = (1, 17, 256)

_LARGE_LAYER = 1 << 22


@attrs.frozen(kw_only=True)
class Shape:
    """One distinct kind of layer: format and size. `entry` and `canonical` are the last layer of it."""

    entry: LayerEntry
    count: int
    canonical: CanonicalWeight

    @property
    def text(self) -> str:
        """The format in its text form."""
        return format_weight(self.canonical.format)

    @property
    def title(self) -> str:
        """Size and format, as the tables name it."""
        return f"{self.entry.n} x {self.entry.k} {self.text}"


@attrs.frozen(kw_only=True)
class Quickstart:
    """What to run on which device. `target` is what to compile for where there is no GPU."""

    path: Path
    device: torch.device
    target: str | None = None
    max_layers: int | None = None

    def run(self, console: Console) -> bool:
        """All steps; returns the verdict, which is also the last line."""
        checkpoint = read_checkpoint(self.path)
        console.print(f"[bold]checkpoint[/bold] {self.path}", highlight=False, soft_wrap=True)
        entries = linear_layers(checkpoint)[: self.max_layers]
        _show_checkpoint(console, checkpoint)
        if not entries:
            console.print("verdict: FAILED, no linear layer is quantized in a way that is described", style="bold red")
            return False
        facts = session_of(self.device).facts if self.device.type == "cuda" else facts_of(self.target or DEFAULT_TARGET)
        dtype = torch.bfloat16 if facts.arch.has("mma_sync_bf16") else torch.float16

        with _threads_for(entries):
            shapes, compared = _convert(console, checkpoint, entries)
            packed, same = _pack(console, shapes, self.device)
        kernels, sources = _compile(console, shapes, facts, dtype)
        right, results = _multiply(console, shapes, packed, self.device, dtype, sources)
        if self.device.type == "cuda":
            _time(console, shapes, packed, dtype)

        good = compared.exact == compared.layers and same and right == results
        console.print(
            f"\nverdict: {'OK' if good else 'FAILED'}, {len(entries)} layers converted and {compared.exact} of "
            f"{compared.layers} compared are exact, {kernels} kernels compiled for {facts.arch.name}, {right} of "
            f"{results} results within their limit on the {_device_name(self.device)}",
            style="bold green" if good else "bold red",
            soft_wrap=True,
        )
        return good


def _show_checkpoint(console: Console, checkpoint: Checkpoint) -> None:
    groups: dict[tuple[int, int, str, str], list[LayerEntry]] = {}
    linear = set(map(id, linear_layers(checkpoint)))
    for entry in checkpoint.layers:
        use = "linear" if id(entry) in linear else "not used here"
        groups.setdefault((entry.n, entry.k, entry.method, use), []).append(entry)
    table = _table(
        console,
        f"what it holds: {len(checkpoint.layers)} matrices, {checkpoint.container}",
        "layers",
        "N x K",
        "stored as",
        "format",
        "MB",
        "bits per weight",
        "use",
    )
    for (n, k, method, use), entries in groups.items():
        weight = entries[0].weight
        table.add_row(
            str(len(entries)),
            f"{n} x {k}",
            method,
            "-" if weight is None else format_weight(weight),
            f"{sum(entry.stored_bytes for entry in entries) / 1e6:.1f}",
            f"{entries[0].bits_per_weight:.2f}",
            use,
        )
    console.print(table)
    for note in checkpoint.notes:
        console.print(f"note: {note}", highlight=False)


def _convert(console: Console, checkpoint: Checkpoint, entries: Sequence[LayerEntry]) -> tuple[list[Shape], Comparison]:
    """Convert every layer and compare it with the witness; keep one layer of each shape."""
    begin = time.perf_counter()
    witness = Witness(checkpoint)
    shapes: dict[tuple[int, int, str], Shape] = {}
    compared: dict[tuple[int, int, str], Comparison] = {}
    for entry in shown(console, "converting", entries):
        canonical = read_layer(entry)
        key = (entry.n, entry.k, format_weight(canonical.format))
        known = shapes.get(key)
        shapes[key] = Shape(entry=entry, count=1 + (known.count if known else 0), canonical=canonical)
        if known is None or witness.whole:
            different = witness.differences(entry, canonical.dequantize())
            before = compared.get(key, Comparison(layers=0, exact=0))
            compared[key] = Comparison(layers=before.layers + 1, exact=before.exact + (different == 0))
    table = _table(
        console, f"conversion, bit for bit in f32 against {witness.name}", "shape", "layers", "compared", "exact"
    )
    for key, shape in shapes.items():
        result = compared[key]
        exact = _mark(result.exact == result.layers, str(result.exact))
        table.add_row(shape.title, str(shape.count), str(result.layers), exact)
    console.print(table)
    total = Comparison(
        layers=sum(result.layers for result in compared.values()),
        exact=sum(result.exact for result in compared.values()),
    )
    console.print(f"{len(entries)} layers in {time.perf_counter() - begin:.1f} s")
    return list(shapes.values()), total


def _pack(console: Console, shapes: Sequence[Shape], device: torch.device) -> tuple[list[PackedWeight], bool]:
    """Pack one layer of each shape on the device; whether each unpacks to what it was."""
    table = _table(
        console,
        "packed for the tensor cores, and unpacked again",
        *("shape", "bricks of 64 x 64", "packed bytes", "stored bytes", "unpacks to the same"),
    )
    weights, all_same = [], True
    for shape in shapes:
        weight = pack(shape.canonical.to(device))
        back = unpack(weight).to("cpu")
        same = torch.equal(back.codes, shape.canonical.codes) and torch.equal(back.scale, shape.canonical.scale)
        strips, bricks, _ = weight.weight.shape
        table.add_row(
            shape.title,
            f"{strips} x {bricks}",
            f"{weight.nbytes:,}",
            f"{shape.entry.stored_bytes:,}",
            _mark(same, "yes" if same else "NO"),
        )
        weights.append(weight)
        all_same = all_same and same
    console.print(table)
    return weights, all_same


def _compile(
    console: Console, shapes: Sequence[Shape], facts: DeviceFacts, dtype: torch.dtype
) -> tuple[int, list[tuple[RangeSource, ...]]]:
    """Compile the kernels of all shapes for every M up to the largest; shapes share what is equal."""
    begin = time.perf_counter()
    per_shape = []
    for shape in shapes:
        layer, compute = dense_configs(shape.text, shape.entry.n, shape.entry.k, dtype, dtype, False)
        per_shape.append(range_sources(layer, compute, facts, max(TOKENS)))
    unique = {entry.source.unit_text: entry.source for ranges in per_shape for entry in ranges}
    with bars(console) as progress:
        bar = CompileBar(progress, len(unique))
        default_service().compile_many([compile_request(source) for source in unique.values()], bar)
    console.print(
        f"{len(unique)} kernels for {facts.arch.name} ({facts.multiprocessors} multiprocessors, M up to {max(TOKENS)}) "
        f"in {time.perf_counter() - begin:.1f} s: {origins_text(bar.origins)}",
        soft_wrap=True,
    )
    return len(unique), per_shape


def _multiply(
    console: Console,
    shapes: Sequence[Shape],
    packed: Sequence[PackedWeight],
    device: torch.device,
    dtype: torch.dtype,
    sources: Sequence[tuple[RangeSource, ...]],
) -> tuple[int, int]:
    """Each shape at each M on the device against float64; returns how many are within their limit, and of how many."""
    name = _device_name(device)
    table = _table(
        console,
        f"result on the {name} against float64, {str(dtype).removeprefix('torch.')} activations",
        "shape",
        *(f"M = {m}: error / limit" for m in TOKENS),
    )
    right = 0
    for shape, weight, ranges in zip(shapes, packed, sources, strict=True):
        layer = Linear(weight, dtype=dtype).prepare(max(TOKENS))
        exact_weight = shape.canonical.dequantize(torch.float64)
        cells = []
        for m in TOKENS:
            activation = torch.randn(m, shape.entry.k, generator=torch.Generator().manual_seed(m)).to(dtype)
            result = layer(activation.to(device)).cpu()
            exact = activation.double() @ exact_weight.t()
            place = next(entry for entry in ranges if m <= entry.last_m).source.recipe.tuning.scale_place
            limit = error_limit(shape.canonical, activation, exact, None if device.type == "cpu" else place)
            error = relative_error(result, exact)
            right += error <= limit
            cells.append(_mark(error <= limit, f"{error:.2e} / {limit:.2e}"))
        table.add_row(shape.title, *cells)
    console.print(table)
    return right, len(shapes) * len(TOKENS)


def _time(console: Console, shapes: Sequence[Shape], packed: Sequence[PackedWeight], dtype: torch.dtype) -> None:
    device = packed[0].device
    bandwidth = gpu_timing.copy_bytes_per_second(device)
    table = _table(
        console,
        f"time on the {_device_name(device)}, weights out of cache; memory bandwidth by a large copy "
        f"{bandwidth / 1e9:.0f} GB/s",
        "shape",
        "M",
        "humming us",
        "torch.mm us",
        "speed-up",
        "share of bandwidth",
    )
    for shape, weight in zip(shown(console, "timing", shapes), packed, strict=True):
        copies = gpu_timing.copies_beyond_cache(weight)
        full = shape.canonical.dequantize().to(device, dtype)
        for m in TOKENS:
            activation = torch.randn(m, shape.entry.k, device=device, dtype=dtype)
            ours = gpu_timing.seconds_of_linear(weight, activation, copies)
            theirs = gpu_timing.seconds_of_mm(full, activation, copies)
            moved = weight.nbytes + 2 * m * (shape.entry.k + shape.entry.n)
            table.add_row(
                shape.title,
                str(m),
                f"{ours * 1e6:.2f}",
                f"{theirs * 1e6:.2f}",
                f"{theirs / ours:.2f}",
                f"{moved / ours / bandwidth:.0%}",
            )
    console.print(table)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU (reference)"


def _mark(good: bool, text: str) -> str:
    return text if good else f"[bold red]{text}[/bold red]"


def _table(console: Console, heading: str, *titles: str) -> Table:
    """A table under a heading of its own line; columns of words to the left, of numbers to the right."""
    console.print(f"\n[bold]{heading}[/bold]", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="left" if title in ("shape", "stored as", "format", "use") else "right")
    return table


@contextmanager
def _threads_for(entries: Sequence[LayerEntry]) -> Iterator[None]:
    """One thread while all layers are small: their many short operations would spend their time meeting."""
    before = torch.get_num_threads()
    if max(entry.n * entry.k for entry in entries) < _LARGE_LAYER:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
