"""From parsed instructions to closures over a Context: operand readers and writers, modifier checks, the registry.
Called by `machine` once per kernel; the rooms in `instructions/` register a rule per opcode.
Assumes register arrays are never changed in place, so that a move may share them."""

from __future__ import annotations

import difflib

import numpy as np

from tests.emulator.errors import UnknownInstruction
from tests.emulator.memory import PARAM_WINDOW
from tests.emulator.program import Address, Immediate, Register, Special, Symbol, Vector

STORAGE = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
TYPES = {
    "pred": np.bool_,
    "b8": np.uint8,
    "u8": np.uint8,
    "s8": np.int8,
    "b16": np.uint16,
    "u16": np.uint16,
    "s16": np.int16,
    "f16": np.uint16,  # halves stay bits; the half room converts
    "bf16": np.uint16,
    "b32": np.uint32,
    "u32": np.uint32,
    "s32": np.int32,
    "f16x2": np.uint32,
    "bf16x2": np.uint32,
    "tf32": np.uint32,
    "f32": np.float32,
    "b64": np.uint64,
    "u64": np.uint64,
    "s64": np.int64,
    "f64": np.float64,
}
UNSIGNED_OF = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

HALF_TYPES = ("f16", "bf16", "f16x2", "bf16x2")
FLOAT_TYPES = ("f32", "f64", *HALF_TYPES)

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "param", "const", "param::entry")
ORDER = ("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "sc")
SCOPES = ("cta", "cluster", "gpu", "sys")
CACHE = (
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc",
    "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
    "L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B",
)  # fmt: skip
STRONG = ("acquire", "release", "acq_rel", "volatile", "relaxed", "sc", "mmio")

REGISTRY = {}
FORMS = {}  # opcode -> list of example forms, for messages


def instruction(*opcodes, forms=()):
    """Register a rule: function(decoder, instruction) -> function(context)."""

    def register(rule):
        for opcode in opcodes:
            REGISTRY[opcode] = rule
            FORMS[opcode] = tuple(forms) or (opcode,)
        return rule

    return register


def known_relatives(name):
    """Known forms that look like an unknown instruction."""
    opcode = name.split(".")[0]
    if opcode in FORMS:
        return list(FORMS[opcode])
    return sorted(difflib.get_close_matches(opcode, REGISTRY, n=6, cutoff=0.4)) or sorted(REGISTRY)


def unknown(ins, why):
    relatives = ", ".join(known_relatives(ins.name))
    return UnknownInstruction(
        f"PTX line {ins.line}: {ins.text}\n  {why}\n  known relatives: {relatives}\n"
        "  add it in tests/emulator/instructions (see README.md there)"
    )


def storage_of(declared):
    if declared == "pred":
        return np.bool_
    if declared in ("f16x2", "bf16x2"):
        return np.uint32
    digits = "".join(c for c in declared.split("x")[0] if c.isdigit())
    return STORAGE[int(digits[-2:])]


class Modifiers:
    """The dotted words of an instruction; every word must be taken, or the instruction is unknown."""

    def __init__(self, ins):
        self.ins = ins
        self.left = list(ins.modifiers)

    def take(self, *choices, default=None):
        """Take the first of the choices that is present."""
        for word in self.left:
            if word in choices:
                self.left.remove(word)
                return word
        return default

    def flag(self, word):
        return self.take(word) is not None

    def ignore(self, *words):
        self.left = [w for w in self.left if w not in words]

    def type(self):
        """Take the last word, which must be a type."""
        if not self.left or self.left[-1] not in TYPES:
            raise unknown(self.ins, f"the last word must be a known type, got {self.left[-1:] or 'none'}")
        return self.left.pop()

    def done(self):
        if self.left:
            raise unknown(self.ins, f"the emulator does not model .{'.'.join(self.left)} here")


class Decoder:
    def __init__(self, kernel, addresses):
        self.kernel = kernel
        self.addresses = addresses  # variable name -> np.uint64 address
        self.parameter_offsets = {name: offset for name, offset, _ in kernel.parameters}

    # -- sources -----------------------------------------------------------------------------------

    def immediate(self, operand, kind):
        dtype = np.dtype(TYPES[kind])
        if operand.float_bits:
            bits = operand.value
            if operand.float_bits == 64 and dtype.itemsize == 4:
                return np.frombuffer(np.float32(np.uint64(bits).view(np.float64)).tobytes(), dtype)[0]
            if operand.float_bits == 32 and kind == "f64":
                return np.float64(np.uint32(bits).view(np.float32))
            return np.frombuffer(bits.to_bytes(8, "little")[: dtype.itemsize], dtype)[0]
        if dtype.kind == "f":
            return dtype.type(operand.value)
        if dtype == np.bool_:
            return np.bool_(operand.value != 0)
        value = operand.value & ((1 << (8 * dtype.itemsize)) - 1)
        return np.frombuffer(value.to_bytes(dtype.itemsize, "little"), dtype)[0]

    def symbol_address(self, symbol, ins):
        if symbol.name in self.parameter_offsets:
            return np.uint64(PARAM_WINDOW + self.parameter_offsets[symbol.name] + symbol.offset)
        if symbol.name in self.addresses:
            return np.uint64(self.addresses[symbol.name] + symbol.offset)
        raise unknown(ins, f"symbol {symbol.name} is not declared")

    def read(self, operand, kind, ins):
        """function(context) -> array [threads] or scalar, of the numpy type of `kind`."""
        dtype = np.dtype(TYPES[kind])
        if isinstance(operand, Register):
            index = operand.index
            storage = np.dtype(storage_of(operand.type))
            if operand.type == "pred":
                if operand.negated:
                    return lambda c: ~c.R[index]
                return lambda c: c.R[index]
            if storage == dtype:
                return lambda c: c.R[index]
            if storage.itemsize == dtype.itemsize:
                return lambda c: c.R[index].view(dtype)
            raw = UNSIGNED_OF[dtype.itemsize]
            if raw == dtype:
                return lambda c: c.R[index].astype(raw)
            return lambda c: c.R[index].astype(raw).view(dtype)
        if isinstance(operand, Immediate):
            value = self.immediate(operand, kind)
            return lambda c: value
        if isinstance(operand, Special):
            name = operand.name
            if np.dtype(dtype).kind == "u":
                return lambda c: c.special(name).astype(dtype)
            return lambda c: c.special(name).astype(UNSIGNED_OF[dtype.itemsize]).view(dtype)
        if isinstance(operand, Symbol):
            address = self.symbol_address(operand, ins).astype(UNSIGNED_OF[dtype.itemsize]).view(dtype)
            return lambda c: address
        raise unknown(ins, f"operand {operand!r} cannot be read here")

    def reads(self, operands, kind, ins):
        return [self.read(o, kind, ins) for o in operands]

    def address(self, operand, ins, space="generic"):
        """function(context) -> uint64 array [threads] of addresses."""
        if not isinstance(operand, Address):
            raise unknown(ins, f"operand {operand!r} is not an address")
        base, offset = operand.base, operand.offset
        if isinstance(base, Register):
            index = base.index
            wide = np.uint64(offset & (2**64 - 1))
            if storage_of(base.type) == np.uint64:
                if offset == 0:
                    return lambda c: c.R[index]
                return lambda c: c.R[index] + wide
            narrow = np.uint32(offset & (2**32 - 1))
            return lambda c: (c.R[index] + narrow).astype(np.uint64)
        if isinstance(base, Symbol):
            value = self.symbol_address(base, ins) + np.uint64(offset & (2**64 - 1))
        elif isinstance(base, Immediate):
            value = np.uint64((base.value + offset) & (2**64 - 1))
        else:
            raise unknown(ins, f"address base {base!r} is not supported")
        return lambda c: c.full(value)

    # -- destinations ------------------------------------------------------------------------------

    def write(self, operand, ins):
        """function(context, value); value is an array or scalar of any type, cut or extended to the register."""
        if operand is None:
            return lambda c, value: None
        if not isinstance(operand, Register):
            raise unknown(ins, f"operand {operand!r} cannot be written")
        index = operand.index
        storage = np.dtype(storage_of(operand.type))

        def write(c, value):
            if value.dtype != storage:
                if value.dtype.itemsize == storage.itemsize:
                    value = value.view(storage)
                elif value.dtype.kind == "f":
                    raise unknown(ins, f"a {value.dtype} result does not fit register {operand.name}")
                else:
                    value = value.astype(storage)
            if value.ndim == 0:
                value = c.full(value)
            mask = c.mask
            c.R[index] = value if mask is None else np.where(mask, value, c.R[index])

        return write

    def items(self, operand):
        return operand.items if isinstance(operand, Vector) else (operand,)

    # -- entry -------------------------------------------------------------------------------------

    def decode(self, ins):
        rule = REGISTRY.get(ins.opcode)
        if rule is None:
            raise unknown(ins, f"opcode {ins.opcode!r} is not known")
        run = rule(self, ins)
        if ins.predicate is not None:
            run = predicated(run, self.read(ins.predicate, "pred", ins))
        return run


def predicated(run, guard):
    """Run under the guard, for those of the active threads where it holds."""

    def guarded(c):
        hold = guard(c)
        outer = c.mask
        mask = hold if outer is None else hold & outer
        if not mask.any():
            return
        if outer is None and mask.all():
            run(c)
            return
        c.set_mask(mask)
        try:
            run(c)
        finally:
            c.set_mask(outer)

    return guarded
