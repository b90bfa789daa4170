"""The parsed form of PTX: operands, instructions, registers, variables, kernels.
Made by `parser`, read by `decode`, `definedness` and `machine`.
Assumes nothing about the meaning of an instruction."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Register:
    """index into the register file; type as declared ("b32", "pred", "f32", ...)."""

    index: int
    type: str
    name: str
    negated: bool = False  # `!%p1` as a source predicate


@dataclass(frozen=True)
class Immediate:
    """value is an int, or for 0f/0d literals the raw bits with `float_bits` 32 or 64."""

    value: int
    float_bits: int = 0


@dataclass(frozen=True)
class Symbol:
    name: str
    offset: int = 0


@dataclass(frozen=True)
class Special:
    """%tid.x and friends."""

    name: str


@dataclass(frozen=True)
class Vector:
    """{a, b, c, d}; an element may be None for `_`."""

    items: tuple


@dataclass(frozen=True)
class Address:
    """[base + offset]; base is a Register, Symbol or Immediate. `extra` holds coordinates of a tensor copy."""

    base: object
    offset: int = 0
    extra: tuple = ()


@dataclass(frozen=True)
class Pair:
    """`%r1|%p1`: two destinations."""

    first: object
    second: object


@dataclass
class Instruction:
    opcode: str  # "cp"
    modifiers: tuple  # ("async", "cg", "shared", "global")
    operands: tuple
    predicate: Register | None
    line: int
    text: str
    index: int = 0
    location: tuple = ()  # (file number, line) of the CUDA source, then of the place it is inlined at, from .loc

    files: dict = field(default_factory=dict, repr=False)  # .file number -> name, of the module

    def source(self):
        """Place in the CUDA source as file:line, or an empty string."""
        places = []
        for number, line in self.location:
            name = self.files.get(number, str(number))
            at = name.rfind("/humming/")
            places.append(f"{name[at + 1 :] if at >= 0 else name}:{line}")
        return ", inlined at ".join(places)

    def place(self):
        """Words for a message: the PTX line, its text and its source."""
        source = self.source()
        return f"PTX line {self.line}: {self.text[:80]}" + (f", source {source}" if source else "")

    @property
    def name(self):
        return ".".join((self.opcode, *self.modifiers))

    def has(self, modifier):
        return modifier in self.modifiers


@dataclass
class Variable:
    """A module or function scope variable; space is "shared", "global", "const", "local" or "param"."""

    name: str
    space: str
    align: int
    size: int  # bytes; 0 for `extern .shared x[]`
    data: bytes | None = None
    external: bool = False


@dataclass
class Kernel:
    name: str
    parameters: list = field(default_factory=list)  # (name, offset, size)
    parameter_bytes: int = 0
    instructions: list = field(default_factory=list)
    labels: dict = field(default_factory=dict)  # name -> instruction index
    branch_targets: dict = field(default_factory=dict)  # table name -> list of labels
    registers: list = field(default_factory=list)  # declared type by index
    register_names: list = field(default_factory=list)
    variables: dict = field(default_factory=dict)  # name -> Variable, module scope included
    directives: dict = field(default_factory=dict)  # maxntid, reqnctapercluster, ...
    target: str = ""
