"""An emulator of PTX on the CPU that also finds races, missing waits and bad accesses.
Imported by tests as `emulator`; the README in this folder explains it.
Assumes numpy; NVRTC only where a test compiles."""

from tests.emulator.api import compile_ptx, program, run
from tests.emulator.errors import EmulatorError, Fault, ParseError, UnknownInstruction
from tests.emulator.memory import Memory
from tests.emulator.report import Report

__all__ = [
    "EmulatorError", "Fault", "Memory", "ParseError", "Report", "UnknownInstruction", "compile_ptx", "program", "run",
]  # fmt: skip
