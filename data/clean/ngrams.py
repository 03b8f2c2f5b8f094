"""Words of a text as hashes, and n-grams of them: what is alike, and what occurs again, is judged by these.

A word is a run of letters, digits and marks, after compatibility normalisation (NFKC) and in lower case; what lies
between words (spaces, punctuation, markup) does not count. In scripts that set no spaces between words (Chinese,
Japanese, Thai, Lao, Khmer, Burmese) every character is a word of its own. So a text needs no language to be named, and
one that mixes scripts is cut as each of them is. Hashes have 64 bits: with 10^8 n-grams of one text and 10^6 of
another, about one chance in 180,000 that any two of them collide.
"""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np

BASE = 0x9E3779B97F4A7C15  # odd; of the hash of a word's characters
STEP = 0xD1B54A32D192ED03  # odd; of the hash of an n-gram's words
PIECE = 1 << 16  # characters hashed at a time: what is in work stays in a core's cache
LONGEST = 64  # characters; in a longer word, exchanging two that are so far apart changes nothing
APART, LETTER, ALONE = 0, 1, 2  # between words, of a word, a word of its own
UNSPACED = (  # blocks of scripts without spaces between words
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF)),
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
)


def word_hashes(text: str) -> np.ndarray:
    """uint64 [n]: a hash of each word of `text`, in order."""
    text = unicodedata.normalize("NFKC", text).lower()
    kinds, pieces, start = _kinds(), [], 0
    while start < len(text):
        end = min(start + PIECE, len(text))
        while end < len(text) and kinds[ord(text[end])] == LETTER and end - start < 2 * PIECE:
            end += 1  # to the end of the word
        pieces.append(_piece(text[start:end]))
        start = end
    return np.concatenate(pieces) if pieces else np.empty(0, np.uint64)


def ngram_hashes(words: np.ndarray, n: int, whole: bool = False) -> np.ndarray:
    """uint64 [len(words) - n + 1]: a hash of words[i : i + n] at every i. Of fewer words than n none; with `whole` one,
    of all of them, so that a short text is alike itself."""
    if len(words) < n:
        if not whole or not len(words):
            return np.empty(0, np.uint64)
        n = len(words)
    last = len(words) - n + 1
    out = words[:last].copy()
    for i in range(1, n):
        out *= np.uint64(STEP)
        out += words[i : i + last]
    return mixed(out)


def mixed(values: np.ndarray) -> np.ndarray:
    """uint64 of the same shape: a bijection of 64 bits whose every output bit depends on every input bit (the
    finaliser of splitmix64: Steele, Lea and Flood, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def words_of(text: str) -> list[str]:
    """The words themselves: what `word_hashes` hashes, one character after the other (slow; for people and tools)."""
    text = unicodedata.normalize("NFKC", text).lower()
    kinds = _kinds()[np.frombuffer(text.encode("utf-32-le"), np.uint32)].tolist()
    words: list[str] = []
    before = APART
    for character, kind in zip(text, kinds, strict=True):
        if kind == LETTER and before == LETTER:
            words[-1] += character
        elif kind:
            words.append(character)
        before = kind
    return words


def is_unspaced(text: str) -> bool:
    """Whether a third or more of the words of `text` are characters of scripts without spaces."""
    kinds = _kinds()[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
    words = (kinds[1:] == LETTER) & (kinds[:-1] != LETTER)  # but for one at the very beginning
    return 2 * int((kinds == ALONE).sum()) > int(words.sum())


def _piece(text: str) -> np.ndarray:
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    kinds = _kinds()[points]
    before = np.concatenate([[APART], kinds[:-1]])
    begins = (kinds == ALONE) | ((kinds == LETTER) & (before != LETTER))
    starts = np.flatnonzero(begins)
    if not len(starts):
        return np.empty(0, np.uint64)
    points, kinds = points[starts[0] :], kinds[starts[0] :]
    lengths = np.diff(np.append(starts, starts[0] + len(points)))
    places = np.arange(len(points)) - np.repeat(starts - starts[0], lengths)
    values = points.astype(np.uint64) * _powers()[places & (LONGEST - 1)]
    values[kinds == APART] = 0
    return mixed(np.add.reduceat(values, starts - starts[0]))


@cache
def _powers() -> np.ndarray:
    """uint64 [LONGEST]: BASE^(i + 1) modulo 2^64."""
    return np.multiply.accumulate(np.full(LONGEST, BASE, np.uint64))


@cache
def _kinds() -> np.ndarray:
    """uint8 [0x110000]: APART, LETTER or ALONE of every code point."""
    categories = (unicodedata.category(chr(point))[0] for point in range(0x110000))
    kinds = np.fromiter((LETTER if category in "LNM" else APART for category in categories), np.uint8, 0x110000)
    for first, last in UNSPACED:
        part = kinds[first : last + 1]
        part[part == LETTER] = ALONE
    return kinds
