"""The text that needles are hidden in: a folder of .txt files, joined, in a model's own tokens."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from arch.errors import InputError
from data.files import reading, sha256
from data.sources.content import readable

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer

NO_TEXT = ("license", "readme")  # files about the folder, not of it
SENTENCE_ENDS = tuple(mark.encode() for mark in (".", "!", "?", "。", "！", "？"))


@dataclass(frozen=True)
class Haystack:
    """ids: int64 [n] of the whole text; ends: bool [n + 1], whether a sentence ends before token i."""

    ids: np.ndarray
    ends: np.ndarray

    def cut(self, n_tokens: int) -> np.ndarray:
        """Its first tokens. Raises InputError where it has fewer."""
        if n_tokens > len(self.ids):
            raise InputError(too_little(len(self.ids), n_tokens))
        return self.ids[:n_tokens]

    def insert_at(self, n_tokens: int, depth_percent: float) -> int:
        """Where a needle goes among the first `n_tokens`: at that share of them, moved back to the end of a sentence,
        to the very beginning where there is none. A depth of 100 is after the last token, whatever that is."""
        if depth_percent >= 100:
            return n_tokens
        position = int(n_tokens * depth_percent / 100)
        return int(np.flatnonzero(self.ends[: position + 1])[-1])


def too_little(n_tokens: int, wanted: int) -> str:
    """Of a haystack of n_tokens."""
    return (
        f"the haystack has {n_tokens:,} tokens and {wanted:,} are asked for, {wanted - n_tokens:,} are missing: add "
        f"text to its folder, or ask for shorter lengths"
    )


def text_files(folder: Path) -> list[Path]:
    """The folder's .txt files, sorted by name, without its licence. Raises InputError where there is none."""
    found = sorted(p for p in folder.glob("*.txt") if not p.stem.lower().startswith(NO_TEXT))
    if not found:
        raise InputError(f"haystack: {folder} holds no .txt file; give a folder with text")
    return found


def folder_hash(folder: Path) -> str:
    """Of the names and contents of the files that are read."""
    with reading(f"haystack: {folder}", "mend or remove the file"):
        parts = [f"{readable(path.name)} {sha256(path)}" for path in text_files(folder)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_haystack(folder: Path, tokenizer: Tokenizer) -> Haystack:
    """All files joined by empty lines and tokenised once. Raises InputError where a file is no UTF-8."""
    texts = []
    for path in text_files(folder):
        try:
            texts.append(path.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError as error:
            raise InputError(f"haystack: {path} is not UTF-8 text ({error.reason}); convert or remove it") from None
        except OSError as error:
            raise InputError(f"haystack: {path} cannot be read ({error.strerror}); mend or remove it") from None
    ids = tokenizer.encode_array("\n\n".join(texts)).astype(np.int64)
    return Haystack(ids, _sentence_ends(ids, tokenizer))


def _sentence_ends(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Before token i, white space left out, stands a mark that ends a sentence; not a full stop with a letter or digit
    right behind, as in 3.14. Bytes, because a token need not end where a character does. The beginning counts."""
    known: dict[int, bytes] = {}
    pieces = [known.get(i) or known.setdefault(i, tokenizer.decode_bytes([i])) for i in ids.tolist()]
    ends = np.zeros(len(ids) + 1, dtype=bool)
    ends[0] = True
    tail = b""  # the last few bytes so far, without white space at their end
    stopped = False  # the last byte is a full stop
    for i, piece in enumerate(pieces, start=1):
        if stopped and piece[:1].isalnum():
            ends[i - 1] = False
        kept = piece.rstrip()
        tail = (tail + kept)[-3:] if kept else tail
        ends[i] = tail.endswith(SENTENCE_ENDS)
        stopped = piece.endswith(b".")
    return ends
