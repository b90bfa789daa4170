"""Text forms of formats: "u4g128z" to a WeightFormat and back, both ways without loss.
Called by command lines, logs, tests and everybody who types a format.
Assumes the grammar below; the written form is the shortest one, the read form may spell defaults out.

    weight     = NUMBER [ scale [ zero ] [ ":" NUMBER [ "," NUMBER ] ] ] | NUMBER [ "z" VALUE ]
    scale      = "g" K        one scale per row and K columns         "u4g128"
               | "c"          one per row (channel)                   "u8c:f32"
               | "t"          one for the whole matrix (tensor)       "e4m3t:f32"
               | "b" N "x" K  one per block of N rows and K columns   "e4m3b128x128:f32"
    zero       = ""           constant 2**(bits-1) for unsigned numbers, none for all others
               | "z" VALUE    constant VALUE                          "u4g128z0"
               | "z"          one stored integer per scale group      "u4g128z"
               | "m"          one stored minimum per scale group      "u4g32m"
    ":" NUMBER                number of the scales, f16 when left out "e2m1g32:bf16"
    "," NUMBER                number of the minimums, that of the scales when left out
"""

from __future__ import annotations

import re

from .activation import ActivationFormat
from .errors import FormatError, TextError, shown
from .number import number
from .scale import ScaleFormat
from .weight import WeightFormat, symmetric
from .zero_point import ZeroPointFormat, ZeroPointKind

_DEFAULT_SCALE = "f16"
_DIGITS = "[1-9][0-9]{0,11}"
# [0-9] and fullmatch: other scripts' digits and a trailing newline are not part of the grammar.
_WEIGHT = re.compile(
    r"(?P<number>bf16|f16|f32|e[0-9]m[0-9]|[us][0-9])"
    rf"(?:(?P<group>g{_DIGITS})|(?P<channel>c)|(?P<tensor>t)|(?P<block>b{_DIGITS}x{_DIGITS}))?"
    r"(?P<zero>z(?:0|" + _DIGITS + r")|z|m)?"
    r"(?::(?P<scale>[a-z0-9]+)(?:,(?P<minimum>[a-z0-9]+))?)?"
)


def parse_weight(text: str) -> WeightFormat:
    """Read a weight format such as "u4g128z" or "e2m1g32:bf16". Raises TextError."""
    match = _WEIGHT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise TextError(
            "not the text of a weight format",
            got=shown(text),
            wanted='NUMBER, scale and zero point such as "u4g128", "u4g128z", "u4g32m", "u8c:f32" or "e2m1g32:bf16"',
        )
    part = match.groupdict()
    try:
        weight_number = number(part["number"])
        scale = _scale_of(part)
        zero = part["zero"] or ""
        if scale is None and (part["scale"] or zero in ("z", "m")):
            raise TextError(
                "a number of the scales or a stored zero point without a scale",
                got=shown(text),
                wanted="g<K>, c, t or b<N>x<K> before it",
            )
        if part["minimum"] and zero != "m":
            raise TextError("a number of the minimums without minimums", got=shown(text), wanted='"m" before the ":"')
        if zero == "m":
            zero_point = ZeroPointFormat.minimum(number(part["minimum"] or part["scale"] or _DEFAULT_SCALE))
        elif zero == "z":
            zero_point = ZeroPointFormat.integer()
        elif zero:
            zero_point = ZeroPointFormat.constant(int(zero[1:]))
        else:
            zero_point = symmetric(weight_number)
        return WeightFormat(number=weight_number, scale=scale, zero_point=zero_point)
    except TextError:
        raise
    except FormatError as error:
        raise TextError(f"text {shown(text)} names a format that cannot exist: {error}") from error


def format_weight(weight: WeightFormat) -> str:
    """The text form, which `parse_weight` reads back to an equal format."""
    zero_point, scale = weight.zero_point, weight.scale
    text = weight.number.name
    if scale is not None:
        if scale.group_n is None:
            text += "t"
        elif scale.group_n != 1:
            text += f"b{scale.group_n}x{scale.group_k}"
        else:
            text += "c" if scale.group_k is None else f"g{scale.group_k}"
    if zero_point.kind is ZeroPointKind.MINIMUM:
        text += "m"
    elif zero_point.kind is ZeroPointKind.INTEGER:
        text += "z"
    elif zero_point != symmetric(weight.number):
        text += f"z{zero_point.value}"
    if scale is not None:
        minimum = zero_point.number or scale.number
        if scale.number.name != _DEFAULT_SCALE or minimum != scale.number:
            text += f":{scale.number.name}"
        if minimum != scale.number:
            text += f",{minimum.name}"
    return text


def parse_activation(text: str) -> ActivationFormat:
    """Read an activation format: "f16" or "bf16". Raises TextError."""
    try:
        return ActivationFormat(number=number(text))
    except FormatError as error:
        raise TextError(f"not the text of an activation format: {error}") from error


def format_activation(activation: ActivationFormat) -> str:
    """The text form, which `parse_activation` reads back to an equal format."""
    return activation.number.name


def _scale_of(part: dict[str, str | None]) -> ScaleFormat | None:
    scale_number = number(part["scale"] or _DEFAULT_SCALE)
    if part["group"]:
        return ScaleFormat(number=scale_number, group_k=int(part["group"][1:]))
    if part["channel"]:
        return ScaleFormat(number=scale_number, group_k=None)
    if part["tensor"]:
        return ScaleFormat(number=scale_number, group_k=None, group_n=None)
    if part["block"]:
        rows, columns = part["block"][1:].split("x")
        return ScaleFormat(number=scale_number, group_k=int(columns), group_n=int(rows))
    return None
