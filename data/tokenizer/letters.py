"""Bytes as characters, the way GPT-2's vocabulary and tokenizer.json write them."""

from __future__ import annotations

# one character for each byte: printable Latin-1 as it is, the others from U+0100 on
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_CODES = {byte: 256 + i for i, byte in enumerate(byte for byte in range(256) if byte not in _PRINTABLE)}
_BYTES = {chr(_CODES.get(byte, byte)): byte for byte in range(256)}


def written(token: bytes) -> str:
    """A character for each byte."""
    return token.decode("latin-1").translate(_CODES)


def spelt(token: str) -> bytes:
    """The bytes that `written` made `token` of. Raises KeyError for a character that stands for none."""
    return bytes(_BYTES[character] for character in token)
