"""Parse the PTX text that NVRTC emits into Kernel objects.
Called by `api`; the result goes to `decode`.
Assumes one module per text, entries with a `.visible .entry` head, no real function calls."""

from __future__ import annotations

import re

from tests.emulator.errors import ParseError
from tests.emulator.lexical import parse_number, split_top
from tests.emulator.program import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Pair,
    Register,
    Special,
    Symbol,
    Variable,
    Vector,
)

TYPE_BYTES = {
    **{f"{letter}{bits}": bits // 8 for letter in "bsuf" for bits in (8, 16, 32, 64, 128)},
    "pred": 1,
    "f16x2": 4,
    "bf16": 2,
    "bf16x2": 4,
}

_SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]$"
    r"|%(laneid|warpid|nwarpid|smid|nsmid|gridid|is_explicit_cluster|cluster_ctarank|cluster_nctarank"
    r"|lanemask_(eq|le|lt|ge|gt)|clock|clock_hi|clock64|globaltimer|globaltimer_lo|globaltimer_hi"
    r"|dynamic_smem_size|total_smem_size|aggr_smem_size|envreg\d+|pm\d+)$"
)
_LABEL = re.compile(r"\s*([$\w]+)\s*:(?!:)")
_REGISTER_RANGE = re.compile(r"(%?[$\w]+)<(\d+)>$")
_VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(shared|const|global|local)\b(.*?)(?:=\s*(.*))?$", re.S
)


def _strip_comments(text):
    """Blank out comments, keeping line numbers."""
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


class _Scope:
    def __init__(self, parent=None):
        self.parent = parent
        self.registers = {}
        self.ranges = []

    def find(self, name):
        scope = self
        while scope:
            if name in scope.registers:
                return scope.registers[name]
            for prefix, count, kind in scope.ranges:
                if name.startswith(prefix) and name[len(prefix) :].isdigit() and int(name[len(prefix) :]) < count:
                    scope.registers[name] = (kind, None)
                    return scope.registers[name]
            scope = scope.parent
        return None

    def owner(self, name):
        scope = self
        while scope and name not in scope.registers:
            scope = scope.parent
        return scope


class Parser:
    def __init__(self, text):
        self.text = _strip_comments(text)
        self.target = ""
        self.variables = {}
        self.kernels = {}
        self.files = {}

    def line_of(self, position):
        return self.text.count("\n", 0, position) + 1

    def parse(self):
        text, position = self.text, 0
        while True:
            match = re.compile(r"\s*").match(text, position)
            position = match.end()
            if position >= len(text):
                return self.kernels
            line_end = text.find("\n", position)
            line_end = len(text) if line_end < 0 else line_end
            line = text[position:line_end]
            if line.startswith(".file"):
                number, name = re.match(r'\.file\s+(\d+)\s+"([^"]*)"', line).groups()
                self.files[int(number)] = name
                position = line_end
            elif line.startswith((".version", ".address_size", ".pragma", ".loc")):
                position = line_end
            elif line.startswith(".target"):
                self.target = line.split(None, 1)[1].split(",")[0].strip()
                position = line_end
            elif re.match(r"(\.(visible|weak|extern)\s+)*\.(entry|func)\b", text[position : position + 80]):
                position = self._function(position)
            elif line.startswith(".section"):
                position = self._matching(text.index("{", position)) + 1
            else:
                end = self._statement_end(position)
                self._variable(text[position:end], position, self.variables)
                position = end + 1

    def _statement_end(self, position):
        depth = 0
        for index in range(position, len(self.text)):
            character = self.text[index]
            if character in "{(":
                depth += 1
            elif character in "})":
                depth -= 1
            elif character == ";" and depth == 0:
                return index
        raise ParseError(f"line {self.line_of(position)}: statement without ';'")

    def _matching(self, position):
        depth = 0
        for match in re.compile(r"[{}]").finditer(self.text, position):
            depth += 1 if match.group() == "{" else -1
            if depth == 0:
                return match.start()
        raise ParseError(f"line {self.line_of(position)}: '{{' is never closed")

    def _variable(self, statement, position, into):
        statement = statement.strip()
        match = _VARIABLE.match(statement)
        if not match:
            raise ParseError(f"line {self.line_of(position)}: unknown statement {statement[:80]!r}")
        space, body, initialiser = match.groups()
        align = re.search(r"\.align\s+(\d+)", body)
        body = re.sub(r"\.align\s+\d+", "", body)
        pieces = body.split()
        kind = pieces[0].lstrip(".")
        declaration = "".join(pieces[1:])
        name = re.match(r"[$\w.%]+", declaration).group()
        counts = [int(c or 0) for c in re.findall(r"\[(\d*)\]", declaration)]
        size = TYPE_BYTES[kind]
        element = size
        for count in counts:
            size *= count
        data = None
        if initialiser is not None:
            values = [parse_number(v).value for v in split_top(initialiser.strip().strip("{}"))]
            raw = b"".join((v & (256**element - 1)).to_bytes(element, "little") for v in values)
            data = raw.ljust(size, b"\0")
        elif space in ("const", "global") and ".extern" not in statement:
            data = bytes(size)
        into[name] = Variable(
            name, space, int(align.group(1)) if align else element, size, data, ".extern" in statement
        )

    def _function(self, position):
        text = self.text
        head = re.compile(r"(?:\.(?:visible|weak|extern)\s+)*\.(entry|func)\s*(\([^)]*\))?\s*([$\w]+)\s*").match(
            text, position
        )
        kind, _, name = head.groups()
        cursor = head.end()
        parameters = ""
        if cursor < len(text) and text[cursor] == "(":
            close = text.index(")", cursor)
            parameters = text[cursor + 1 : close]
            cursor = close + 1
        semicolon, brace = text.find(";", cursor), text.find("{", cursor)
        if brace < 0 or 0 <= semicolon < brace:
            return semicolon + 1  # a declaration such as vprintf
        end = self._matching(brace)
        if kind == "func":
            return end + 1  # reached only through `call`, which the decoder refuses
        kernel = Kernel(name, target=self.target)
        for directive in re.finditer(r"\.(\w+)\s*([\d, ]*)", text[cursor:brace]):
            numbers = tuple(int(v) for v in directive.group(2).replace(",", " ").split())
            kernel.directives[directive.group(1)] = numbers
        offset = 0
        for part in split_top(parameters):
            align = re.search(r"\.align\s+(\d+)", part)
            part = re.sub(r"\.align\s+\d+|\.ptr|\.global|\.shared|\.const", "", part)
            pieces = part.split()
            size = TYPE_BYTES[pieces[1].lstrip(".")]
            alignment = int(align.group(1)) if align else size
            match = re.match(r"([$\w]+)(?:\[(\d+)\])?$", pieces[-1])
            size *= int(match.group(2) or 1)
            offset = (offset + alignment - 1) // alignment * alignment
            kernel.parameters.append((match.group(1), offset, size))
            offset += size
        kernel.parameter_bytes = offset
        kernel.variables = dict(self.variables)
        _Body(self, kernel).parse(brace + 1, end)
        self.kernels[name] = kernel
        return end + 1


class _Body:
    """Statements between the braces of one entry."""

    def __init__(self, parser, kernel):
        self.parser, self.kernel = parser, kernel
        self.scope = _Scope()
        self.label_scopes = [""]
        self.scope_count = 0
        self.location = ()

    def parse(self, position, end):
        text = self.parser.text
        space = re.compile(r"\s*")
        while True:
            position = space.match(text, position).end()
            if position >= end:
                break
            character = text[position]
            if character == "{":
                self.scope = _Scope(self.scope)
                self.scope_count += 1
                self.label_scopes.append(f"#{self.scope_count}")
                position += 1
            elif character == "}":
                self.scope = self.scope.parent
                self.label_scopes.pop()
                position += 1
            elif character == ";":
                position += 1
            elif re.compile(r"\.loc\s").match(text, position):  # ends with its line
                stop = text.index("\n", position)
                numbers = re.findall(r"(?:\.loc|inlined_at)\s+(\d+)\s+(\d+)", text[position:stop])
                self.location = tuple((int(number), int(line)) for number, line in numbers)
                position = stop
            elif match := _LABEL.match(text, position):
                position = match.end()
                name = match.group(1)
                after = space.match(text, position).end()
                if text.startswith(".branchtargets", after):
                    stop = text.index(";", after)
                    names = split_top(text[after + len(".branchtargets") : stop])
                    self.kernel.branch_targets[name] = names
                    position = stop + 1
                else:
                    self.kernel.labels[name + self.label_scopes[-1]] = len(self.kernel.instructions)
            else:
                stop = self.parser._statement_end(position)
                self.statement(text[position:stop], position)
                position = stop + 1
        for instruction in self.kernel.instructions:
            instruction.operands = tuple(self.resolve_label(o, instruction) for o in instruction.operands)

    def resolve_label(self, operand, instruction):
        if isinstance(operand, Symbol) and "#" in operand.name:
            name, *scopes = operand.name.split("#")
            while scopes:
                candidate = name + "#" + scopes[-1]
                if candidate in self.kernel.labels:
                    return Symbol(candidate, operand.offset)
                scopes.pop()
            return Symbol(name, operand.offset)
        return operand

    def statement(self, statement, position):
        flat = " ".join(statement.split())
        if flat.startswith(".reg"):
            self.declare(flat)
        elif flat.startswith((".shared", ".local", ".const", ".global")):
            self.parser._variable(flat, position, self.kernel.variables)
        elif flat.startswith((".pragma", ".noreturn", ".param")):
            return
        else:
            self.instruction(flat, self.parser.line_of(position))

    def declare(self, flat):
        pieces = flat.split(None, 2)
        kind, names = pieces[1].lstrip("."), pieces[2]
        if kind.startswith("v2") or kind.startswith("v4"):
            raise ParseError(f"vector register declaration {flat!r} is not supported")
        for name in split_top(names):
            match = _REGISTER_RANGE.match(name)
            if match:
                self.scope.ranges.append((match.group(1), int(match.group(2)), kind))
            else:
                self.scope.registers[name] = (kind, None)

    def register(self, name):
        found = self.scope.find(name)
        if found is None:
            return None
        kind, index = found
        if index is None:
            index = len(self.kernel.registers)
            self.kernel.registers.append(kind)
            self.kernel.register_names.append(name)
            self.scope.owner(name).registers[name] = (kind, index)
        return Register(index, kind, name)

    def operand(self, text, line):
        text = text.strip()
        if text == "_":
            return None
        if text.startswith("{"):
            return Vector(tuple(self.operand(p, line) for p in split_top(text[1:-1])))
        if text.startswith("["):
            parts = split_top(text[1:-1])
            base = parts[0]
            extra = tuple(self.operand(p, line) for p in parts[1:])
            match = re.match(r"(.+?)\s*\+\s*(-?\w+)$", base)
            offset = 0
            if match:
                base, offset = match.group(1).strip(), parse_number(match.group(2)).value
            else:
                match = re.match(r"([^-\s]+)\s*-\s*(\d+)$", base)
                if match:
                    base, offset = match.group(1), -int(match.group(2))
            return Address(self.operand(base, line), offset, extra)
        if "|" in text:
            first, second = text.split("|")
            return Pair(self.operand(first, line), self.operand(second, line))
        number = parse_number(text)
        if number is not None:
            return number
        negated = text.startswith("!")
        name = text[1:].strip() if negated else text
        register = self.register(name)
        if register is not None:
            return Register(register.index, register.type, register.name, True) if negated else register
        if name.startswith("%"):
            if _SPECIAL.match(name):
                return Special(name[1:])
            raise ParseError(f"line {line}: register or special register {name} is not declared or not known")
        match = re.match(r"([$\w.]+)\s*(?:\+\s*(\d+))?$", name)
        if match:
            scopes = "".join(self.label_scopes)
            plain = match.group(1)
            known = plain in self.kernel.variables or any(plain == p[0] for p in self.kernel.parameters)
            if plain == "WARP_SZ":
                return Immediate(32)
            return Symbol(plain if known else plain + scopes, int(match.group(2) or 0))
        raise ParseError(f"line {line}: operand {text!r} is not understood")

    def instruction(self, flat, line):
        predicate = None
        body = flat
        if flat.startswith("@"):
            guard, body = flat.split(None, 1)
            predicate = self.operand(guard[1:], line)
        pieces = body.split(None, 1)
        name = pieces[0]
        rest = pieces[1] if len(pieces) > 1 else ""
        # `{` may touch the name: mma... {a}, ; a name ends at the first brace or bracket
        match = re.match(r"[^\[{(%]+", name)
        if match and match.end() < len(name) and not name.startswith("%"):
            rest = name[match.end() :] + " " + rest
            name = match.group()
        opcode, *modifiers = name.split(".")
        modifiers = tuple(modifiers)
        if opcode == "call":
            operands = (Symbol(rest),)
        else:
            operands = tuple(self.operand(p, line) for p in split_top(rest)) if rest.strip() else ()
        self.kernel.instructions.append(
            Instruction(
                opcode,
                modifiers,
                operands,
                predicate,
                line,
                flat,
                index=len(self.kernel.instructions),
                location=self.location,
                files=self.parser.files,
            )
        )


def parse(text):
    """Kernels of a PTX module by name."""
    return Parser(text).parse()
