"""The catalog: formats that people meet, under the names that people use.
Called by command lines and documentation; `find("gptq-int4-g128")` gives the row.
Assumes nothing depends on a row's presence: every format can be written as text or built from its parts."""

from __future__ import annotations

import difflib

import attrs

from .errors import FormatError, shown
from .text import parse_weight
from .weight import WeightFormat


@attrs.frozen(kw_only=True)
class CatalogRow:
    """A named format: the name, its text form and one line on where it is met."""

    name: str
    text: str
    note: str

    @property
    def weight(self) -> WeightFormat:
        """The descriptor."""
        return parse_weight(self.text)


CATALOG: tuple[CatalogRow, ...] = tuple(
    CatalogRow(name=name, text=text, note=note)
    for name, text, note in (
        ("gptq-int4-g128", "u4g128", "GPTQ, 4 bits, symmetric, group size 128: the most common one"),
        ("gptq-int4-g128-asymmetric", "u4g128z", "GPTQ, 4 bits, sym=false: one stored zero point per group"),
        ("gptq-int4-g64", "u4g64", "GPTQ, 4 bits, symmetric, group size 64"),
        ("gptq-int4-g32", "u4g32", "GPTQ, 4 bits, symmetric, group size 32"),
        ("gptq-int4-channel", "u4c", "GPTQ, 4 bits, symmetric, group size -1"),
        ("gptq-int8-g128", "u8g128", "GPTQ, 8 bits, symmetric, group size 128"),
        ("gptq-int8-channel", "u8c", "GPTQ, 8 bits, symmetric, group size -1"),
        ("gguf-q4_0", "u4g32", "GGUF Q4_0: blocks of 32, one f16 scale"),
        ("gguf-q4_1", "u4g32m", "GGUF Q4_1: blocks of 32, one f16 scale and one f16 minimum"),
        ("gguf-q8_0", "u8g32", "GGUF Q8_0: blocks of 32, one f16 scale; stored signed, described as offset binary"),
        ("int8-channel", "u8c:f32", "8-bit integers with one f32 scale per output channel"),
        ("e0m3-g128", "e0m3g128:bf16", "sign and magnitude, 4 bits: a symmetric integer without the extra negative"),
        ("fp4-g32", "e2m1g32:bf16", "e2m1 with plain bf16 scales in groups of 32"),
        ("mxfp4", "e2m1g32:e8m0", "OCP microscaling fp4: e2m1 with power-of-two scales in groups of 32"),
        ("awq-int4-g128", "u4g128z", "AWQ, 4 bits, group size 128"),
        ("gguf-q5_0", "u5g32", "GGUF Q5_0: blocks of 32, one f16 scale"),
        ("gguf-q4_k", "u4g32m:f32", "GGUF Q4_K: the products of its two levels of scales and minimums"),
        ("gguf-q6_k", "u6g16:f32", "GGUF Q6_K: the products of its two levels of scales"),
        ("gguf-iq4_nl", "iq4nlg32", "GGUF IQ4_NL: a codebook of 16 integers in blocks of 32"),
        ("nvfp4", "e2m1g16:e4m3*t", "NVFP4: e2m1 with e4m3 scales in groups of 16 and one f32 scale"),
        ("mxfp8", "e4m3g32:e8m0", "OCP microscaling fp8: e4m3 with power-of-two scales in groups of 32"),
        ("nf4", "nf4g64:f32", "bitsandbytes NF4: a codebook with one scale per 64 weights"),
        ("hqq-int4-g64", "u4g64f", "HQQ, 4 bits: a float zero point per group"),
        ("bitnet", "u2tz1:bf16", "ternary weights with one scale"),
        ("fp8-block", "e4m3b128x128:f32", "e4m3 with one f32 scale per block of 128 by 128"),
        ("fp8-channel", "e4m3c:f32", "e4m3 with one f32 scale per output channel"),
        ("fp8-tensor", "e4m3t:f32", "e4m3 with one f32 scale"),
    )
)
"""The rows, in the order in which they are shown."""


def find(name: str) -> CatalogRow:
    """The row of that name. Raises FormatError with the nearest names."""
    for row in CATALOG:
        if row.name == name:
            return row
    names = [row.name for row in CATALOG]
    near = difflib.get_close_matches(name, names, n=3) if isinstance(name, str) else []
    raise FormatError("no such row in the catalog", got=shown(name), wanted=" or ".join(near) or ", ".join(names))
