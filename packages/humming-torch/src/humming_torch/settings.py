"""The environment variables of this package, read in one place.

Called by `pack.py` and `session.py` through `current()`.
Assumes nothing; a bad value is an error that names the variable.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

import attrs

from humming_torch.errors import HummingTorchError

PACK_CHUNK = "HUMMING_TORCH_PACK_CHUNK_MIB"


@attrs.frozen(kw_only=True)
class Settings:
    """`pack_chunk_bytes`: how much temporary memory packing may use at once, beyond its input and its output."""

    pack_chunk_bytes: int = 64 << 20

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        text = environment.get(PACK_CHUNK, "").strip()
        if not text:
            return cls()
        if not text.isdecimal() or int(text) < 1:
            raise HummingTorchError(
                f"environment variable {PACK_CHUNK} is not a size",
                got=repr(text),
                wanted="a whole number of MiB, at least 1",
                hint="Unset it to use 64.",
            )
        return cls(pack_chunk_bytes=int(text) << 20)


@functools.lru_cache(maxsize=1)
def current() -> Settings:
    """The settings of this process, read once, at first use."""
    return Settings.from_environment(os.environ)
