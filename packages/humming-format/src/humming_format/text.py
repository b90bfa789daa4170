"""Text forms of formats: "u4g128z" to a WeightFormat and back, both ways without loss.
Called by command lines, logs, tests and everybody who types a format.
Assumes the grammar below; the written form is the shortest one, the read form may spell defaults out.

    weight     = NUMBER [ scale [ zero ] [ ":" NUMBER [ "," NUMBER ] ] [ outer ] ] | NUMBER [ "z" VALUE ]
    scale      = "g" K        one scale per row and K columns         "u4g128"
               | "c"          one per row (channel)                   "u8c:f32"
               | "t"          one for the whole matrix (tensor)       "e4m3t:f32"
               | "b" N "x" K  one per block of N rows and K columns   "e4m3b128x128:f32"
    zero       = ""           constant 2**(bits-1) for unsigned numbers, none for all others
               | "z" VALUE    constant VALUE                          "u4g128z0"
               | "z"          one stored integer per scale group      "u4g128z"
               | "m"          one stored minimum per scale group      "u4g32m"
               | "f"          one stored float zero per scale group   "u4g64f"
    ":" NUMBER                number of the scales, f16 when left out "e2m1g32:bf16"
    "," NUMBER                number of the minimums or float zeros, that of the scales when left out
    outer      = "*" scale [ ":" NUMBER ]   second level of scales, f32 when left out: "e2m1g16:e4m3*t"
    activation = weight [ "@static" ]   rows are tokens: "f16", "e4m3c:f32" (per token), "e4m3t:f32@static"
"""

from __future__ import annotations

import re

import attrs

from .activation import ActivationFormat
from .codebook import CODEBOOKS
from .errors import FormatError, TextError, shown
from .number import Number, number
from .scale import ScaleFormat
from .weight import WeightFormat, symmetric
from .zero_point import ZeroPointFormat, ZeroPointKind

_DEFAULT_SCALE = "f16"
_DEFAULT_OUTER = "f32"
_STATIC = "@static"
_DIGITS = "[1-9][0-9]{0,11}"


def _scale_pattern(prefix: str) -> str:
    return (
        rf"(?:(?P<{prefix}group>g{_DIGITS})|(?P<{prefix}channel>c)|(?P<{prefix}tensor>t)"
        rf"|(?P<{prefix}block>b{_DIGITS}x{_DIGITS}))"
    )


# [0-9] and fullmatch: other scripts' digits and a trailing newline are not part of the grammar.
_WEIGHT = re.compile(
    rf"(?P<number>bf16|f16|f32|e[0-9]m[0-9]|[us][0-9]|{'|'.join(CODEBOOKS)})"
    rf"{_scale_pattern('')}?"
    r"(?P<zero>z(?:0|" + _DIGITS + r")|z|m|f)?"
    r"(?::(?P<scale>[a-z0-9]+)(?:,(?P<minimum>[a-z0-9]+))?)?"
    rf"(?P<outer>\*{_scale_pattern('outer_')}(?::(?P<outer_scale>[a-z0-9]+))?)?"
)


@attrs.frozen(kw_only=True)
class _Parts:
    """What a text names, before it is known whether of weights or of activations."""

    number: Number
    scale: ScaleFormat | None
    zero_point: ZeroPointFormat
    outer_scale: ScaleFormat | None


def parse_weight(text: str) -> WeightFormat:
    """Read a weight format such as "u4g128z" or "e2m1g32:bf16". Raises TextError."""
    try:
        parts = _parse(text)
        return WeightFormat(
            number=parts.number, scale=parts.scale, zero_point=parts.zero_point, outer_scale=parts.outer_scale
        )
    except TextError:
        raise
    except FormatError as error:
        raise TextError(f"text {shown(text)} names a format that cannot exist: {error}") from error


def _parse(text: str) -> _Parts:
    match = _WEIGHT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise TextError(
            "not the text of a weight format",
            got=shown(text),
            wanted='NUMBER, scale and zero point such as "u4g128", "u4g128z", "u4g32m", "u8c:f32" or "e2m1g32:bf16"',
        )
    part = match.groupdict()
    weight_number = number(part["number"])
    scale = _scale_of(part, "", _DEFAULT_SCALE)
    zero = part["zero"] or ""
    if scale is None and (part["scale"] or part["outer"] or zero in ("z", "m", "f")):
        raise TextError(
            "a number of the scales, an outer scale or a stored zero point without a scale",
            got=shown(text),
            wanted="g<K>, c, t or b<N>x<K> before it",
        )
    if part["minimum"] and zero not in ("m", "f"):
        raise TextError(
            "a number of the minimums without minimums", got=shown(text), wanted='"m" or "f" before the ":"'
        )
    stored = number(part["minimum"] or part["scale"] or _DEFAULT_SCALE)
    if zero == "m":
        zero_point = ZeroPointFormat.minimum(stored)
    elif zero == "f":
        zero_point = ZeroPointFormat.floating(stored)
    elif zero == "z":
        zero_point = ZeroPointFormat.integer()
    elif zero:
        zero_point = ZeroPointFormat.constant(int(zero[1:]))
    else:
        zero_point = symmetric(weight_number)
    outer = _scale_of(part, "outer_", _DEFAULT_OUTER) if part["outer"] else None
    return _Parts(number=weight_number, scale=scale, zero_point=zero_point, outer_scale=outer)


def format_weight(weight: WeightFormat) -> str:
    """The text form, which `parse_weight` reads back to an equal format."""
    return _format(weight)


def parse_activation(text: str) -> ActivationFormat:
    """Read an activation format such as "f16", "e4m3c:f32" or "e4m3t:f32@static". Raises TextError."""
    try:
        static = isinstance(text, str) and text.endswith(_STATIC)
        parts = _parse(text[: -len(_STATIC)] if static else text)
        return ActivationFormat(
            number=parts.number,
            scale=parts.scale,
            zero_point=parts.zero_point,
            outer_scale=parts.outer_scale,
            static=static,
        )
    except FormatError as error:
        raise TextError(f"not the text of an activation format: {error}") from error


def format_activation(activation: ActivationFormat) -> str:
    """The text form, which `parse_activation` reads back to an equal format."""
    return _format(activation) + (_STATIC if activation.static else "")


def _format(described: WeightFormat | ActivationFormat) -> str:
    zero_point, scale, outer = described.zero_point, described.scale, described.outer_scale
    text = described.number.name + _sharing(scale)
    if zero_point.kind is ZeroPointKind.MINIMUM:
        text += "m"
    elif zero_point.kind is ZeroPointKind.FLOAT:
        text += "f"
    elif zero_point.kind is ZeroPointKind.INTEGER:
        text += "z"
    elif zero_point != symmetric(described.number):
        text += f"z{zero_point.value}"
    if scale is not None:
        stored = zero_point.number or scale.number
        if scale.number.name != _DEFAULT_SCALE or stored != scale.number:
            text += f":{scale.number.name}"
        if stored != scale.number:
            text += f",{stored.name}"
    if outer is not None:
        text += f"*{_sharing(outer)}"
        if outer.number.name != _DEFAULT_OUTER:
            text += f":{outer.number.name}"
    return text


def _sharing(scale: ScaleFormat | None) -> str:
    if scale is None:
        return ""
    if scale.group_n is None:
        return "t"
    if scale.group_n != 1:
        return f"b{scale.group_n}x{scale.group_k}"
    return "c" if scale.group_k is None else f"g{scale.group_k}"


def _scale_of(part: dict[str, str | None], prefix: str, default: str) -> ScaleFormat | None:
    scale_number = number(part[prefix + "scale"] or default)
    group, block = part[prefix + "group"], part[prefix + "block"]
    if group:
        return ScaleFormat(number=scale_number, group_k=int(group[1:]))
    if part[prefix + "channel"]:
        return ScaleFormat(number=scale_number, group_k=None)
    if part[prefix + "tensor"]:
        return ScaleFormat(number=scale_number, group_k=None, group_n=None)
    if block:
        rows, columns = block[1:].split("x")
        return ScaleFormat(number=scale_number, group_k=int(columns), group_n=int(rows))
    return None
