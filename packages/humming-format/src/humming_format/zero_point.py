"""Zero points: what is taken off a code before scaling, or added after it.
Called by WeightFormat.
Assumes one zero point per scale group where one is stored at all."""

from __future__ import annotations

import enum

import attrs

from .errors import DescriptorError, shown
from .number import Number, NumberKind


class ZeroPointKind(enum.Enum):
    """How the value of a weight follows from its code."""

    NONE = "none"  # decode(code) * scale
    CONSTANT = "constant"  # (code - value) * scale, one value for the whole matrix, not stored
    INTEGER = "integer"  # (code - zero) * scale, zero: one unsigned integer per scale group
    MINIMUM = "minimum"  # code * scale + minimum, minimum: one float per scale group
    FLOAT = "float"  # (code - zero) * scale, zero: one float per scale group


@attrs.frozen(kw_only=True)
class ZeroPointFormat:
    """`value` belongs to CONSTANT alone and `number` (of what is stored) to MINIMUM and FLOAT alone."""

    kind: ZeroPointKind = ZeroPointKind.NONE
    value: int | None = None
    number: Number | None = None

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.kind, ZeroPointKind):
            raise DescriptorError("unknown kind of zero point", got=shown(self.kind), wanted="a ZeroPointKind")
        if self.kind is ZeroPointKind.CONSTANT:
            if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < 0:
                raise DescriptorError(
                    "a constant zero point needs its value", got=f"value={shown(self.value)}", wanted="an int >= 0"
                )
        elif self.value is not None:
            raise DescriptorError(
                f"a zero point of kind {self.kind.value} has no value of its own",
                got=f"value={shown(self.value)}",
                wanted="value only with kind CONSTANT",
            )
        if self.kind in (ZeroPointKind.MINIMUM, ZeroPointKind.FLOAT):
            if not isinstance(self.number, Number) or self.number.kind is not NumberKind.FLOAT:
                raise DescriptorError(
                    f"a {'minimum' if self.kind is ZeroPointKind.MINIMUM else 'float zero point'} needs the number "
                    "that it is stored in",
                    got=f"number={self.number.name if isinstance(self.number, Number) else shown(self.number)}",
                    wanted="a float such as f16, bf16 or f32",
                )
        elif self.number is not None:
            raise DescriptorError(
                f"a zero point of kind {self.kind.value} has no number of its own",
                got=f"number={self.number.name if isinstance(self.number, Number) else shown(self.number)}",
                wanted="number only with kind MINIMUM or FLOAT",
            )

    @classmethod
    def none(cls) -> ZeroPointFormat:
        """No zero point: value = decode(code) * scale."""
        return cls()

    @classmethod
    def constant(cls, value: int) -> ZeroPointFormat:
        """One fixed integer for the whole matrix: value = (code - constant) * scale."""
        return cls(kind=ZeroPointKind.CONSTANT, value=value)

    @classmethod
    def integer(cls) -> ZeroPointFormat:
        """One stored integer per scale group: value = (code - zero) * scale."""
        return cls(kind=ZeroPointKind.INTEGER)

    @classmethod
    def minimum(cls, number: Number) -> ZeroPointFormat:
        """One stored float per scale group: value = code * scale + minimum."""
        return cls(kind=ZeroPointKind.MINIMUM, number=number)

    @classmethod
    def floating(cls, number: Number) -> ZeroPointFormat:
        """One stored float zero point per scale group: value = (code - zero) * scale."""
        return cls(kind=ZeroPointKind.FLOAT, number=number)
