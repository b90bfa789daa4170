"""Writes docs/support.md from the rules of humming-kernels and the record of runs in docs/silicon.json.

Called as `python docs/generate_support.py` (with --check it writes nothing and fails where the page is out of date) and
by a test of humming-kernels. Assumes humming_format and humming_kernels; nothing here knows what is supported.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
from humming_format.text import parse_weight
from humming_format.weight import WeightFormat
from humming_kernels.arch import ARCHS, Arch, find_arch
from humming_kernels.components import DECODERS
from humming_kernels.config import ComputeConfig, LayerConfig, Pipeline
from humming_kernels.rules import ACTIVATIONS, LARGEST_K, LARGEST_N, OUTPUTS, check_layer, stage_sizes

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "support.md"
RECORD = FOLDER / "silicon.json"

ZERO_POINTS = {"": "constant, half of the codes", "z": "integer per scale", "m": "minimum per scale"}
GROUP = "g128"  # stands for every served group size
SCALES = ("f16", "bf16", "f32")
LARGEST_GROUP = 1024

# What people ask for and no kernel serves yet, one spelling of each; the reasons come from the rules.
NOT_SERVED = (
    *(f"{name}g128" for name in ("u1", "u2", "u3", "u5", "u6", "u7", "s4", "s8", "e0m1", "e0m7", "e2m3", "e3m2")),
    "e4m3c:f32",
    "e5m2c:f32",
    "e2m1g32:e8m0",
    "e2m1g16:e4m3*t",
    "u4g128z7",
    "u4g128f",
    "u4t",
    "e4m3b128x128:f32",
    "u4g128:f32",
    "u4g24",
    "u4g32m:f16,f32",
)


@attrs.frozen(kw_only=True)
class Run:
    """A test run on a GPU: what of the table it has executed, and when."""

    target: str
    device: str
    date: str
    tests: str
    activations: tuple[str, ...]
    weights: tuple[str, ...]


def read_runs(text: str) -> tuple[Run, ...]:
    """The record of runs. Raises ValueError where it is of another schema or names what does not exist."""
    document = json.loads(text)
    if document["schema"] != 1:
        raise ValueError(f"docs/silicon.json has schema {document['schema']}; wanted 1")
    runs = []
    for entry in document["runs"]:
        run = Run(**{name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()})
        arch = find_arch(run.target)
        for weight in run.weights:
            layer = LayerConfig(n=4096, k=4096, weight=parse_weight(weight))
            if all(check_layer(layer, ComputeConfig(activation=name), arch) for name in run.activations):
                raise ValueError(f"docs/silicon.json says that {weight} ran on {run.target}; the rules refuse it")
        runs.append(run)
    return tuple(runs)


def row_of(weight: WeightFormat) -> tuple[object, ...]:
    """What a row of the table tells apart: number, zero point, group or channel scale, the number of stored scales."""
    layer, scale = LayerConfig(n=64, k=4096, weight=weight), weight.scale
    stored = scale.number.name if scale is not None and layer.scale_is_grouped else "f32"
    return weight.number.name, weight.zero_point.kind, layer.group_k is not None, stored


def reasons_of(weight: str, activation: str, arch: Arch, output: str | None = None) -> tuple[str, ...]:
    layer = LayerConfig(n=4096, k=4096, weight=parse_weight(weight))
    return check_layer(layer, ComputeConfig(activation=activation, output=output), arch)


class Notes:
    """Reasons, each with a number, in the order in which they were first given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def number(self, reason: str) -> int:
        if reason not in self.texts:
            self.texts.append(reason)
        return self.texts.index(reason) + 1


def mark(weight: str, activation: str, arch: Arch, runs: Sequence[Run], notes: Notes) -> str:
    """The cell of one weight, activation and target."""
    reasons = reasons_of(weight, activation, arch)
    if reasons:
        return "no " + " ".join(f"[{notes.number(reason)}]" for reason in reasons)
    row = row_of(parse_weight(weight))
    for run in runs:
        ran = run.target == arch.name and activation in run.activations
        if ran and any(row_of(parse_weight(text)) == row for text in run.weights):
            return "**run**"
    return "composed"


@attrs.frozen(kw_only=True)
class Row:
    """One line of a number's table; `cells` has one for each target."""

    weight: str
    zero_point: str
    scale: str
    activation: str
    cells: tuple[str, ...]


def rows_of(number: str, runs: Sequence[Run], notes: Notes) -> list[Row]:
    """One row for each zero point, scale and activation of a number that has a decoder."""
    rows = []
    for zero, meaning in ZERO_POINTS.items():
        if zero and number[0] != "u":
            continue
        for sharing, scale in ((sharing, scale) for sharing in (GROUP, "c") for scale in SCALES):
            weight = f"{number}{sharing}{zero}:{scale}"
            if all(reasons_of(weight, activation, arch) for activation in ACTIVATIONS for arch in ARCHS):
                continue  # listed under "Not served"
            stored = row_of(parse_weight(weight))[-1]
            if stored != scale:
                continue  # a row of its own would repeat that of the stored scale
            kind = "group, " if sharing == GROUP else "channel, "
            rows += [
                Row(
                    weight=weight,
                    zero_point=meaning if number[0] == "u" else "none",
                    scale=kind + (scale if sharing == GROUP or zero == "m" else "any, stored as f32"),
                    activation=activation,
                    cells=tuple(mark(weight, activation, arch, runs, notes) for arch in ARCHS),
                )
                for activation in ACTIVATIONS
            ]
    return rows


def columns_of(rows: Sequence[Row]) -> list[list[int]]:
    """Targets side by side that every row treats alike, as lists of indices into ARCHS."""
    columns: list[list[int]] = []
    for index in range(len(ARCHS)):
        if columns and all(row.cells[columns[-1][0]] == row.cells[index] for row in rows):
            columns[-1].append(index)
        else:
            columns.append([index])
    return columns


def number_table(rows: Sequence[Row], columns: Sequence[Sequence[int]]) -> list[str]:
    head = ["weight", "zero point", "scale", "activation"]
    return table(
        [*head, *(" ".join(ARCHS[index].name for index in column) for column in columns)],
        [
            [
                f"`{row.weight}`",
                row.zero_point,
                row.scale,
                row.activation,
                *(row.cells[column[0]] for column in columns),
            ]
            for row in rows
        ],
    )


def target_table() -> list[str]:
    rows = []
    for arch in ARCHS:
        kernels = [Pipeline.MULTISTAGE.name.lower()] + ["warp_specialized"] * arch.has("wgmma")
        copies = ["cp.async" if arch.has("cp_async") else "through registers"]
        if Pipeline.WARP_SPECIALIZED.name.lower() in kernels:
            copies.append("bulk and tensor map")
        outputs = [name for name in OUTPUTS if not reasons_of(f"u4{GROUP}", "f16", arch, output=name)]
        rows.append(
            [
                arch.name,
                "{}.{}".format(*arch.capability),
                f"{arch.shared_memory // 1024} KB",
                ", ".join(name for name in ACTIVATIONS if not reasons_of(f"u4{GROUP}", name, arch)),
                ", ".join(outputs),
                ", ".join(kernels),
                ", ".join(copies),
            ]
        )
    return table(
        ["target", "capability", "shared memory of a block", "activations", "outputs", "pipelines", "copies"], rows
    )


def not_served_table() -> list[str]:
    """Reasons on a target that has every number: those that are about the format alone."""
    arch = find_arch("sm_90a")
    rows = []
    for weight in NOT_SERVED:
        reasons = reasons_of(weight, "bf16", arch)
        if not reasons:
            raise ValueError(f"{weight} is served: take it out of NOT_SERVED in docs/generate_support.py")
        rows.append([f"`{weight}`", "; ".join(reasons)])
    return table(["weight", "why not"], rows)


def run_table(runs: Iterable[Run]) -> list[str]:
    rows = [
        [
            run.target,
            run.device,
            run.date,
            run.tests,
            ", ".join(run.activations),
            f"{len(run.weights)}, in `silicon.json`",
            ", ".join(map(str, group_sizes(run.weights))),
        ]
        for run in runs
    ]
    return table(["target", "device", "date", "tests", "activations", "weights", "group sizes"], rows)


def group_sizes(weights: Iterable[str]) -> list[int]:
    """The sizes of scale groups along k among these formats."""
    scales = [parse_weight(text).scale for text in weights]
    return sorted({scale.group_k for scale in scales if scale is not None and scale.group_k is not None})


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def support_page(runs: Sequence[Run]) -> str:
    """The text of docs/support.md."""
    groups = ", ".join(str(group) for group in range(1, LARGEST_GROUP + 1) if stage_sizes(group))
    notes = Notes()
    rows = {number: rows_of(number, runs, notes) for number in DECODERS}
    columns = columns_of([row for of_number in rows.values() for row in of_number])
    numbers: list[str] = []
    for number, of_number in rows.items():
        numbers += [f"### {number}", "", *number_table(of_number, columns), ""]
    lines = [
        "# What is supported",
        "",
        "Written by `python docs/generate_support.py` from the rules of humming-kernels and `docs/silicon.json`.",
        "",
        "* **run**: executed on a GPU of the target, against float64, on the date and with the group sizes in",
        "  [Runs](#runs); other group sizes of the row are composed.",
        "* composed: the kernel compiles for the target (`nox -s nvrtc`: all weights, group sizes 16 to 256); it was",
        "  not run on such a GPU. That session also refuses spills: with CUDA 12.9 a few of the largest tiles of",
        "  sm_75, sm_80 and sm_86 still spill up to 184 bytes.",
        "* no: refused before anything is compiled, for the reasons with these numbers.",
        "",
        "Formats are spelled as humming-format spells them: number, `g` and group size or `c` for a scale per channel,",
        "`z` for integer zero points or `m` for minimums, and the number of the scales. `g128` stands for every group",
        f"size that is served: {groups}.",
        "",
        f"n is 1 to {LARGEST_N}, k 1 to {LARGEST_K}; the last group of k may be partial; bias is always optional.",
        "",
        "## Targets",
        "",
        *target_table(),
        "",
        "## Weights",
        "",
        *numbers,
        *(f"[{index}] {reason}" + "\n" for index, reason in enumerate(notes.texts, 1)),
        "## Not served",
        "",
        "One spelling for each kind of format, with every reason that the rules give, on sm_90a with bf16 activations.",
        "",
        *not_served_table(),
        "",
        "## Runs",
        "",
        *(run_table(runs) if runs else ["None is recorded."]),
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    text = support_page(read_runs(RECORD.read_text(encoding="utf-8")))
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    written = PAGE.read_text(encoding="utf-8")
    sys.stderr.writelines(difflib.unified_diff(written.splitlines(True), text.splitlines(True), str(PAGE), "generated"))
    return int(written != text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
