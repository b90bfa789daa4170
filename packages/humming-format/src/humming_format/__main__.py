"""The command line: `humming-format inspect PATH` prints what a checkpoint holds.
Called by people, as `humming-format` or `python -m humming_format`.
Assumes exit codes 0 (done), 1 (something is wrong with the checkpoint; one line says what) and 2 (wrong usage)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from . import __version__
from .catalog import CATALOG
from .checkpoint import read_checkpoint
from .errors import FormatError
from .inspect_report import catalog_text, report_document, report_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Wrong usage leaves through argparse with code 2."""
    parser = argparse.ArgumentParser(prog="humming-format", description="What the bits of a checkpoint mean.")
    parser.add_argument("--version", action="version", version=f"humming-format {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="print the layers of a checkpoint, their formats and sizes")
    inspect.add_argument("path", help="a .gguf file, a .safetensors file, or a folder holding either")
    inspect.add_argument("--all", action="store_true", help="one line per layer, instead of one per kind of layer")
    inspect.add_argument(
        "--json", action="store_true", help="print JSON with every layer and the place of every tensor"
    )
    inspect.add_argument(
        "--checkpoint-format",
        choices=("gptq", "gptq_v2"),
        help="how GPTQ zero points are stored: minus one (gptq) or as they are (gptq_v2); overrides the configuration",
    )
    commands.add_parser("catalog", help="print the named formats and their text forms")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "catalog":
            text = catalog_text(CATALOG)
        else:
            checkpoint = read_checkpoint(chosen.path, checkpoint_format=chosen.checkpoint_format)
            if chosen.json:
                text = json.dumps(report_document(checkpoint), indent=2)
            else:
                text = report_text(checkpoint, every_layer=chosen.all)
    except FormatError as error:
        sys.stderr.write(f"humming-format: {error}\n")
        return 1
    try:
        _write(text)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
