"""Messages between this process and a compiler process: a JSON head and a body of bytes, with a fixed prefix.

Used by pool (parent's side) and worker (child's side).
Assumes a byte stream in order; anything that is not a message is a ProtocolError, never a guess.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO, NamedTuple

from humming_compile.errors import ProtocolError

# Prefix: magic, length of the head, length of the body; little-endian.
PREFIX = struct.Struct("<4sIQ")
_MAGIC = b"HCW1"
_MAX_HEAD = 1 << 28
_MAX_BODY = 1 << 32


class Message(NamedTuple):
    """One message. `head` holds JSON values only. (Not of attrs: see nvrtc.py for what a worker imports.)"""

    head: dict[str, Any]
    body: bytes = b""


def encode(message: Message) -> bytes:
    """The bytes of one message."""
    head = json.dumps(message.head).encode()
    return PREFIX.pack(_MAGIC, len(head), len(message.body)) + head + message.body


def decode_prefix(prefix: bytes) -> tuple[int, int]:
    """Lengths (head, body) that a prefix announces."""
    magic, head, body = PREFIX.unpack(prefix)
    if magic != _MAGIC or head > _MAX_HEAD or body > _MAX_BODY:
        raise ProtocolError(f"got {prefix!r} where a message was to begin: something else wrote to the worker's pipe")
    return head, body


def decode_rest(rest: bytes, head_length: int) -> Message:
    """The message whose head and body follow one another in `rest`."""
    try:
        head = json.loads(rest[:head_length])
    except ValueError as error:
        raise ProtocolError(f"the head of a message is not JSON: {error}") from error
    if not isinstance(head, dict):
        raise ProtocolError("the head of a message is not a JSON object")
    return Message(head=head, body=rest[head_length:])


def read_message(stream: BinaryIO) -> Message | None:
    """Reads one message from a blocking stream; None when the stream ends between messages."""
    prefix = stream.read(PREFIX.size)
    if not prefix:
        return None
    if len(prefix) < PREFIX.size:
        raise ProtocolError("the stream ended inside a message")
    head_length, body_length = decode_prefix(prefix)
    rest = stream.read(head_length + body_length)
    if len(rest) < head_length + body_length:
        raise ProtocolError("the stream ended inside a message")
    return decode_rest(rest, head_length)
