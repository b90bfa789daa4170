"""An explanation as tables on a console, and as a picture.

Called by `humming explain`.
Assumes a rich console; the picture needs matplotlib, which is an extra.
"""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from humming_torch.errors import UnsupportedError
from humming_torch.explain import Explanation, Point
from humming_torch.measured import Measured


def report(console: Console, explanation: Explanation) -> None:
    """The kernels for all numbers of tokens, then what each asked-for number costs, and why that kernel."""
    console.print(f"[bold]{explanation.title}[/bold]", highlight=False, soft_wrap=True)
    ranges = _table("M", "tile NxMxk", "warps", "stages", "pipeline", "tiles", "scale in", "threads", "shared KiB")
    for each in explanation.ranges:
        tuning = each.tuning
        ranges.add_row(
            _span(each.first_m, each.last_m),
            each.tile,
            f"{tuning.warps_n}x{tuning.warps_m}x{tuning.warps_k}",
            str(tuning.stages),
            tuning.pipeline.name.lower().replace("_", "-"),
            each.split,
            tuning.scale_place.name.lower(),
            str(each.source.recipe.threads),
            f"{each.source.recipe.shared_bytes / 1024:.1f}",
        )
    console.print(ranges)
    for each in explanation.ranges:
        span = _span(each.first_m, each.last_m)
        console.print(f"{span:>14}  {each.source.symbol}", highlight=False, soft_wrap=True)
    console.print("\n[bold]microseconds[/bold]")
    peers = list(dict.fromkeys(name for point in explanation.points for row in point.measured for name in row.peers))
    times = _table("M", "expected", "read floor", "matrix floor", "limit", "measured", "x limit", *peers, "on")
    for point in explanation.points:
        for row in point.measured or (None,):
            times.add_row(*_point_cells(point, row, peers))
    console.print(times)
    for point in explanation.points:
        console.print(f"M = {point.m}: {point.why}", highlight=False, soft_wrap=True)
    if any(row.kernel != point.range.source.symbol for point in explanation.points for row in point.measured):
        console.print("* with another kernel than is chosen now; --json has its name", highlight=False)
    figures = explanation.figures
    if figures is None:
        console.print("no floors: nothing is measured of such a device", highlight=False)
    else:
        console.print(
            f"floors: {explanation.stored_bytes:,} stored bytes at {figures.read_bytes_per_us / 1e6:.1f} TB/s after "
            f"{figures.read_start_us} us, products at {figures.multiply_flop_per_us / 1e6:.0f} TFLOP/s "
            f"({figures.source}). A time means something beside one from the same process alone.",
            highlight=False,
            soft_wrap=True,
        )


def plot(explanation: Explanation, file: Path) -> None:
    """Draw time against the number of tokens: measured rows and their limit, or what is expected where none are.

    Raises UnsupportedError without matplotlib, and where nothing is known of the layer's times.
    """
    try:
        import matplotlib.pyplot as pyplot  # type: ignore[import-untyped, import-not-found, unused-ignore]

        pyplot.switch_backend("agg")
    except ImportError as error:
        raise UnsupportedError(
            "--plot needs matplotlib, which cannot be imported", got=str(error), hint="pip install humming-torch[plot]"
        ) from error
    lines = plot_lines(explanation)
    if not lines:
        raise UnsupportedError(
            f"nothing to draw for {explanation.title}",
            got="no measured rows and no cost model",
            hint="Give --results with rows of this layer.",
        )
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for name, points in lines.items():
        style = {"limit": "k--", "expected": ":"}.get(name, "o-")
        axes.plot([m for m, _ in points], [us for _, us in points], style, label=name)
    axes.set(title=explanation.title, xlabel="M (tokens)", ylabel="microseconds")
    axes.title.set_fontsize(9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise UnsupportedError(f"the picture cannot be written to {file}", got=str(error)) from error
    finally:
        pyplot.close(figure)


def plot_lines(explanation: Explanation) -> dict[str, list[tuple[int, float]]]:
    """(M, microseconds) of every line of the picture: of the GPU with most rows, else what is expected."""
    lines: dict[str, list[tuple[int, float]]] = {}
    gpus = [row.gpu for row in explanation.measured]
    if gpus:
        gpu = max(gpus, key=gpus.count)
        rows = [row for row in explanation.measured if row.gpu == gpu]
        lines["limit"] = [(row.m, row.limit_us) for row in rows]
        lines[f"humming, {gpu}"] = [(row.m, row.median_us) for row in rows]
        for name in dict.fromkeys(name for row in rows for name in row.peers):
            lines[name] = [(row.m, row.peers[name]) for row in rows if name in row.peers]
    else:
        lines["limit"] = [(point.m, point.limit_us) for point in explanation.points if point.limit_us is not None]
    lines["expected"] = [(point.m, point.expected_us) for point in explanation.points if point.expected_us is not None]
    found = {name: sorted(points) for name, points in lines.items() if points}
    return found if set(found) - {"limit"} else {}


def _point_cells(point: Point, row: Measured | None, peers: list[str]) -> list[str]:
    cells = [str(point.m)]
    cells += [_us(value) for value in (point.expected_us, point.read_floor_us, point.matrix_floor_us, point.limit_us)]
    if row is None:
        return [*cells, "-", "-", *("-" for _ in peers), "-"]
    cells += [_us(row.median_us), f"{row.median_us / row.limit_us:.2f}"]
    mark = "" if row.kernel == point.range.source.symbol else " *"
    return [*cells, *(_us(row.peers.get(name)) for name in peers), row.gpu + mark]


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        words = title in ("pipeline", "tiles", "scale in", "on", "tile NxMxk", "warps")
        table.add_column(title, justify="left" if words else "right", no_wrap=True)
    return table
