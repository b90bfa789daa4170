"""The command line: `humming-compile doctor | stats | clear`.

Called by people and by CI.
Assumes nothing: its task is to say what is missing and the one command that mends it.
"""

from __future__ import annotations

import argparse
import sys

from humming_compile import __version__
from humming_compile.doctor import examine
from humming_compile.errors import HummingCompileError
from humming_compile.settings import VARIABLES, Settings
from humming_compile.store import Store


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0 when all is well, 1 when something is broken."""
    parser = argparse.ArgumentParser(
        prog="humming-compile",
        description="Compiles CUDA text and keeps the result on disk. This command looks after the set-up.",
        epilog="Environment: " + "; ".join(f"{name}: {meaning}" for name, meaning in VARIABLES.items()),
    )
    parser.add_argument("--version", action="version", version=f"humming-compile {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="check compiler, headers, cache folder and driver; compile a test unit")
    doctor.add_argument("--target", default="", help="target of the test compile, for example sm_90a")
    commands.add_parser("stats", help="count what the cache folder holds")
    commands.add_parser("clear", help="remove what the cache folder holds")
    chosen = parser.parse_args(arguments)
    try:
        settings = Settings.from_environment()
        if chosen.command == "doctor":
            return 0 if examine(settings, chosen.target, _say) else 1
        return _stats(settings, clear=chosen.command == "clear")
    except HummingCompileError as error:
        _say("broken", str(error))
        return 1


def _say(topic: str, text: str) -> None:
    sys.stdout.write(f"{topic:<9} {text}\n")
    sys.stdout.flush()


def _stats(settings: Settings, *, clear: bool) -> int:
    store = Store(settings.cache_folder)
    counts = store.clear() if clear else store.stats()
    verb = "removed" if clear else "holds"
    _say("cache", f"{store.folder} {verb} {counts.entries} entries, {counts.bytes / 1e6:.1f} MB")
    if counts.leftovers:
        _say("", f"{counts.leftovers} lock and temporary files of running or ended processes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
