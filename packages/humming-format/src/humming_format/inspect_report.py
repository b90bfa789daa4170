"""What `humming-format inspect` prints: a table for people, or a plain dict for programs.
Called by the command line.
Assumes a Checkpoint; layers whose names differ only in numbers and that are stored alike share a line of the table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .catalog import CatalogRow
from .checkpoint import Checkpoint, LayerEntry, TensorPlace
from .document import to_document
from .inspect_schemes import exceptions, schemes
from .text import format_activation, format_weight

REPORT_SCHEMA = 1
_MOST_EXCEPTIONS = 20


def report_text(checkpoint: Checkpoint, *, every_layer: bool = False) -> str:
    """The table, the totals and the notes."""
    header = ("layer", "count", "N x K", "format", "stored as", "bytes", "bits/weight")
    rows = [_row(name, entries) for name, entries in _grouped(checkpoint.layers, every_layer)]
    lines = [f"{checkpoint.path}: {checkpoint.container}, {checkpoint.method or 'not quantized'}", ""]
    lines += _table([header, *rows], right={1, 2, 5, 6}) if rows else ["no matrices"]
    totals = _totals(checkpoint)
    lines.append("")
    if totals["quantized_layers"]:
        lines.append(
            f"quantized   {totals['quantized_layers']:>5} layers   {totals['quantized_weights']:>15,} weights "
            f"{totals['quantized_bytes']:>15,} bytes   {totals['quantized_bits_per_weight']:.3f} bits/weight"
        )
    if totals["other_layers"]:
        lines.append(
            f"other       {totals['other_layers']:>5} layers   {totals['other_layer_weights']:>15,} weights "
            f"{totals['other_layer_bytes']:>15,} bytes"
        )
    if totals["other_tensors"]:
        lines.append(
            f"other       {totals['other_tensors']:>5} tensors  {'':>15}         {totals['other_bytes']:>15,} bytes"
        )
    lines += _scheme_lines(checkpoint)
    lines += [f"note: {note}" for note in checkpoint.notes]
    return "\n".join(_printable(line) for line in lines)


def report_document(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything that is known, as a dict that JSON can hold."""
    return {
        "schema": REPORT_SCHEMA,
        "path": str(checkpoint.path),
        "container": checkpoint.container,
        "method": checkpoint.method,
        "files": [str(file) for file in checkpoint.files],
        "totals": _totals(checkpoint),
        "schemes": [
            {
                "format": None if scheme.weight == "-" else scheme.weight,
                "activation": scheme.activation,
                "method": scheme.method,
                "layers": len(scheme.layers),
                "weights": scheme.weights,
                "stored_bytes": scheme.stored_bytes,
                "bits_per_weight": scheme.bits_per_weight,
            }
            for scheme in schemes(checkpoint)
        ],
        "exceptions": [entry.name for entry in exceptions(schemes(checkpoint))],
        "layers": [
            {
                "name": entry.name,
                "n": entry.n,
                "k": entry.k,
                "method": entry.method,
                "format": format_weight(entry.weight) if entry.weight else None,
                "weight": to_document(entry.weight) if entry.weight else None,
                "activation": format_activation(entry.activation) if entry.activation else None,
                "column_order": entry.column_order,
                "experts": entry.experts,
                "parts": list(entry.parts),
                "interleaved": entry.interleaved,
                "stored_bytes": entry.stored_bytes,
                "bits_per_weight": entry.bits_per_weight,
                "tensors": {role: _place(place) for role, place in entry.tensors.items()},
            }
            for entry in checkpoint.layers
        ],
        "others": [_place(place) for place in checkpoint.others],
        "notes": list(checkpoint.notes),
    }


def catalog_text(rows: Sequence[CatalogRow]) -> str:
    """The catalog as a table."""
    return "\n".join(
        _table([("name", "format", "met as"), *((row.name, row.text, row.note) for row in rows)], right=())
    )


def _place(place: TensorPlace) -> dict[str, Any]:
    return {
        "file": str(place.file),
        "tensor": place.tensor,
        "dtype": place.dtype,
        "shape": list(place.shape),
        "offset": place.offset,
        "nbytes": place.nbytes,
    }


def _totals(checkpoint: Checkpoint) -> dict[str, Any]:
    quantized = checkpoint.quantized
    plain = [entry for entry in checkpoint.layers if entry.weight is None]
    weights = sum(entry.weights for entry in quantized)
    stored = sum(entry.stored_bytes for entry in quantized)
    bits = sum(entry.bits_per_weight * entry.weights for entry in quantized)
    return {
        "quantized_layers": len(quantized),
        "quantized_weights": weights,
        "quantized_bytes": stored,
        "quantized_bits_per_weight": bits / weights if weights else 0.0,
        "other_layers": len(plain),
        "other_layer_weights": sum(entry.weights for entry in plain),
        "other_layer_bytes": sum(entry.stored_bytes for entry in plain),
        "other_tensors": len(checkpoint.others),
        "other_bytes": sum(place.nbytes for place in checkpoint.others),
    }


def _scheme_lines(checkpoint: Checkpoint) -> list[str]:
    """What a model of several schemes adds to the report: the schemes, and the layers that leave the usual one."""
    found = schemes(checkpoint)
    if sum(scheme.weight != "-" for scheme in found) < 2:
        return []
    header = ("scheme", "layers", "weights", "bytes", "bits/weight")
    rows = [
        (
            scheme.label,
            str(len(scheme.layers)),
            f"{scheme.weights:,}",
            f"{scheme.stored_bytes:,}",
            f"{scheme.bits_per_weight:.3f}",
        )
        for scheme in found
    ]
    lines = ["", *_table([header, *rows], right={1, 2, 3, 4}), "", f"layers that are not {found[0].label}:"]
    groups = _grouped(exceptions(found), every_layer=False)
    lines += [
        f"  {name if len(name) <= 80 else name[:77] + '...'}{f' x{len(entries)}' if len(entries) > 1 else ''}: "
        f"{format_weight(entries[0].weight) if entries[0].weight else entries[0].method}"
        for name, entries in groups[:_MOST_EXCEPTIONS]
    ]
    if len(groups) > _MOST_EXCEPTIONS:
        lines.append(f"  and {len(groups) - _MOST_EXCEPTIONS} more kinds")
    return lines


def _grouped(layers: Sequence[LayerEntry], every_layer: bool) -> list[tuple[str, list[LayerEntry]]]:
    if every_layer:
        return [(entry.name, [entry]) for entry in layers]
    groups: dict[tuple[object, ...], list[LayerEntry]] = {}
    for entry in layers:
        pattern = re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", entry.name)  # whole parts between dots that are numbers
        likeness = (
            *(pattern, entry.n, entry.k, entry.experts, entry.method, entry.weight, entry.activation),
            *(entry.column_order, entry.stored_bytes),
        )
        groups.setdefault(likeness, []).append(entry)
    return [(str(key[0]) if len(group) > 1 else group[0].name, group) for key, group in groups.items()]


def _row(name: str, entries: list[LayerEntry]) -> tuple[str, ...]:
    first = entries[0]
    text = format_weight(first.weight) if first.weight else "-"
    if first.column_order:
        text += " +order"
    if first.activation is not None:
        text += f" x {format_activation(first.activation)}"
    return (
        name if len(name) <= 80 else name[:77] + "...",
        f"x{len(entries)}",
        f"{first.n} x {first.k}" if first.experts is None else f"{first.experts} x {first.n} x {first.k}",
        text,
        first.method,
        f"{sum(entry.stored_bytes for entry in entries):,}",
        f"{first.bits_per_weight:.3f}",
    )


def _table(rows: Sequence[tuple[str, ...]], right: set[int] | tuple[()]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for position, row in enumerate(rows):
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
        if position == 0:
            lines.append("  ".join("-" * width for width in widths))
    return lines


def _printable(line: str) -> str:
    """Control characters in names from a file must not reach the terminal."""
    return "".join(character if character.isprintable() else "?" for character in line)
