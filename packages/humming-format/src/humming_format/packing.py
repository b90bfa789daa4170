"""Little-endian bit streams on plain Python ints: codes of a few bits to words and back.
Called by the exact checkpoint decode and by tests, which hold faster implementations against it.
Assumes code i occupies bits [i * bits, (i + 1) * bits) of the stream, and word w bits [w * word_bits, ...).

4 bits in 32-bit words:   word 0 = code 7 .. code 1 code 0   (code 0 in the lowest bits)
3 bits in 32-bit words:   code 10 lies in bits 30 and 31 of word 0 and bit 0 of word 1: codes may straddle words
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import FormatError, shown


def words_needed(count: int, bits: int, word_bits: int = 32) -> int:
    """Number of words that hold `count` codes."""
    _check(bits, word_bits)
    return -(-count * bits // word_bits)


def pack(codes: Sequence[int], bits: int, word_bits: int = 32) -> list[int]:
    """Pack codes into unsigned words. Unused bits of the last word are zero. Raises FormatError."""
    _check(bits, word_bits)
    words = [0] * words_needed(len(codes), bits, word_bits)
    for index, code in enumerate(codes):
        if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code < 1 << bits:
            raise FormatError(
                f"code {index} does not fit", got=shown(code), wanted=f"an int from 0 to {(1 << bits) - 1}"
            )
        word, shift = divmod(index * bits, word_bits)
        spread = code << shift  # reaches into following words when the code straddles
        while spread:
            words[word] |= spread & ((1 << word_bits) - 1)
            spread >>= word_bits
            word += 1
    return words


def unpack(words: Sequence[int], bits: int, count: int, word_bits: int = 32) -> list[int]:
    """The first `count` codes of a stream of unsigned words. Raises FormatError, for example when it is too short."""
    _check(bits, word_bits)
    needed = words_needed(count, bits, word_bits)
    if count < 0 or len(words) < needed:
        raise FormatError(
            f"too few words for {count} codes of {bits} bits",
            got=f"{len(words)} words of {word_bits} bits",
            wanted=f"{needed} or more",
        )
    stream = 0
    for index in range(needed):
        word = words[index]
        if isinstance(word, bool) or not isinstance(word, int) or not 0 <= word < 1 << word_bits:
            raise FormatError(
                f"word {index} is not an unsigned {word_bits}-bit word",
                got=shown(word),
                remedy=f"mask signed words with & {(1 << word_bits) - 1:#x}",
            )
        stream |= word << (index * word_bits)
    mask = (1 << bits) - 1
    return [(stream >> (index * bits)) & mask for index in range(count)]


def _check(bits: int, word_bits: int) -> None:
    for what, value, largest in (("bits of a code", bits, 64), ("bits of a word", word_bits, 64)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
            raise FormatError(f"{what} out of range", got=shown(value), wanted=f"1 to {largest}")
