"""tiktoken's patterns, which cut text into words, in the syntax of Oniguruma, which Hugging Face's tokenizers use."""

from __future__ import annotations

from arch.errors import InputError

from .ranks import PATTERN

# Oniguruma's {1,3}+ would repeat the group, and its $ would end a line
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s+\z|\s*[\r\n]|\s+(?!\S)|\s"
)
_R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+\z|\s+(?!\S)|\s"
KNOWN = {
    PATTERN: _CL100K,
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": _R50K,
}


def oniguruma(name: str, pattern: str) -> str:
    """The pattern of tokenizer `name` as `tokenizers` reads it. Raises InputError where this version knows none."""
    # o200k_base's has no possessive marks, and means the same in both
    plain = not any(mark in pattern for mark in ("++", "*+", "?+", "}+", "$"))
    if plain or pattern in KNOWN:
        return KNOWN.get(pattern, pattern)
    raise InputError(f"corpus.tokenizer: {name} of this version of tiktoken has a pattern that is unknown here")
