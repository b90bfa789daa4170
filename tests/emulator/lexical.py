"""Literals and lists of PTX text.
Called by `parser`.
Assumes comments have been taken out."""

from __future__ import annotations

import re
import struct

from tests.emulator.program import Immediate


def split_top(text, separator=","):
    """Split at separators that stand outside of braces and brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == separator and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    tail = text[start:].strip()
    if tail or parts:
        parts.append(tail)
    return parts


def parse_number(text):
    """Immediate of a literal or None."""
    text = text.strip()
    if re.match(r"0[fF][0-9a-fA-F]{8}$", text):
        return Immediate(int(text[2:], 16), 32)
    if re.match(r"0[dD][0-9a-fA-F]{16}$", text):
        return Immediate(int(text[2:], 16), 64)
    match = re.match(r"(-?)(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uU]?$", text)
    if match:
        digits = match.group(2)
        is_octal = len(digits) > 1 and digits[0] == "0" and digits[1] in "01234567"
        value = int(digits, 8 if is_octal else 0)
        return Immediate(-value if match.group(1) else value)
    match = re.match(r"-?\d+\.\d*(?:[eE][-+]?\d+)?$", text)
    if match:
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
    return None
