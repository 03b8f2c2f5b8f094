"""A deterministic judge: how well a generated answer holds the expected one, 1 to 10.

    10  the expected words, in order and together, stand in the answer
     7  at least three quarters of the key words do, in whatever order
     5  at least half of them
     3  at least a quarter
     1  fewer

These are the five levels of the public tool's criteria, which a language model judges there: exact, minor omissions,
moderate with inaccuracies, minor relevance, unrelated. Compared are words without case, width and
punctuation; a Chinese character is a word. Key words are the expected ones but for function words and the words of the
question, which an answer that only repeats the question would hold. An answer that is a number is found or not.
"""

from __future__ import annotations

import re
import unicodedata

LEVELS = ((0.75, 7), (0.5, 5), (0.25, 3))
EXACT, MISSED = 10, 1
WORD = re.compile(r"[㐀-䶿一-鿿]|[^\W_㐀-䶿一-鿿]+")
FUNCTION_WORDS = frozenset(
    WORD.findall(
        "a an and are as at be by for from in is it its of on or that the this to was were will with "
        "的了在是和与一个就去到也着有"
    )
)


def words(text: str) -> list[str]:
    """Lower-case words of letters and digits, in order; each Chinese character by itself."""
    return WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def score(answer: str, expected: str, question: str) -> int:
    """One of 10, 7, 5, 3, 1. `expected` must hold a key word: a ValueError says so."""
    given, wanted = words(answer), words(expected)
    if contains(given, wanted):
        return EXACT
    keys = set(wanted) - FUNCTION_WORDS - set(words(question))
    if not keys:
        raise ValueError(f"the expected answer {expected!r} has no word that the question has not")
    recall = len(keys & set(given)) / len(keys)
    return next((level for least, level in LEVELS if recall >= least), MISSED)


def contains(given: list[str], wanted: list[str]) -> bool:
    return any(given[i : i + len(wanted)] == wanted for i in range(len(given) - len(wanted) + 1))
