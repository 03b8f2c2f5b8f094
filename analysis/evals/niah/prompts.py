"""From a grid to prompts in tokens: lengths, depths, and at each of them a haystack with a needle and a question.

A prompt is an end-of-text token (what precedes every document of a corpus), the beginning of the haystack with the
needle in it, and the question, for a base model to complete. Together with the answer it has exactly the length asked
for, in the model's own tokens. Pieces are tokenised apart, so all prompts of a length share the haystack's tokens.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from arch.errors import InputError
from data.files import reading, sha256
from data.sources.content import readable

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer

    from .settings import NiahSettings, Variant


@dataclass(frozen=True)
class Needle:
    """What is hidden in the haystack. statement: the hidden sentence; answer: the part of it that the model must
    give."""

    statement: str
    question: str
    answer: str

    @property
    def asked(self) -> str:
        return f"Question: {self.question}\nAnswer:"

    def hidden(self, variant: Variant) -> str:
        """The needle on lines of its own; in the easy mode behind its question, in the form of the one at the end."""
        return f"\n{self.asked} {self.statement}\n" if variant.easy else f"\n{self.statement}\n"


CLASSIC = Needle(  # of the public tool, gkamradt/LLMTest_NeedleInAHaystack
    "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.",
    "What is the best thing to do in San Francisco?",
    "eat a sandwich and sit in Dolores Park on a sunny day",
)
KEYS = (
    *("apple", "beach", "bread", "bride", "cabin", "chair", "cloud", "coast", "eagle", "field", "flame", "forge"),
    *("grape", "heron", "horse", "house", "kayak", "lemon", "maple", "mouse", "ocean", "olive", "onion", "otter"),
    *("pearl", "piano", "plain", "queen", "raven", "river", "robin", "shore", "snail", "spoon", "stone", "storm"),
    *("table", "tiger", "torch", "tower", "train", "tulip", "viola", "wagon", "whale", "wheat", "wheel", "zebra"),
)


def fact(digits: int, seed: str) -> Needle:
    """A number of so many digits, the first not 0, that belongs to a word; both drawn from `seed` alone.

    A model can know it only from the text, and numbers of equal length are equally hard to spell. The # marks where the
    number begins: a tiny model of bytes copies what followed the same byte before.
    """
    draw = random.Random(f"niah {seed}")
    key, value = draw.choice(KEYS), str(draw.randrange(10 ** (digits - 1), 10**digits))
    return Needle(f"The magic number of the {key} is #{value}.", f"What is the magic number of the {key}?", value)


NO_TEXT = ("license", "readme")  # files about the folder, not of it
SENTENCE_ENDS = tuple(mark.encode() for mark in (".", "!", "?", "。", "！", "？"))


@dataclass(frozen=True)
class Haystack:
    """The text that hides a needle. ids: int64 [n], its tokens; ends: bool [n + 1], whether a sentence ends before
    token i."""

    ids: np.ndarray
    ends: np.ndarray

    def insert_at(self, n_tokens: int, depth_percent: float) -> int:
        """The place of a needle among the first `n_tokens`: at that share of them, moved back to the end of a sentence,
        or to the beginning where there is none. A depth of 100 is after the last token, wherever its sentence ends."""
        if depth_percent >= 100:
            return n_tokens
        position = int(n_tokens * depth_percent / 100)
        return int(np.flatnonzero(self.ends[: position + 1])[-1])


def text_files(folder: Path) -> list[Path]:
    """The folder's .txt files, sorted by name, without its licence. Raises InputError where there is none."""
    paths = sorted(p for p in folder.glob("*.txt") if not p.stem.lower().startswith(NO_TEXT))
    if not paths:
        raise InputError(f"haystack: {folder} holds no .txt file; give a folder with text")
    return paths


def folder_hash(folder: Path) -> str:
    """A hash of the names and contents of the files that are read."""
    with reading(f"haystack: {folder}", "mend or remove the file"):
        parts = [f"{readable(path.name)} {sha256(path)}" for path in text_files(folder)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_haystack(folder: Path, tokenizer: Tokenizer, most: int) -> Haystack:
    """All files joined by empty lines and tokenised once, cut after `most` tokens. Raises InputError for a file that is
    not UTF-8."""
    texts = []
    for path in text_files(folder):
        with reading(f"haystack: {path}", "convert or remove it"):
            texts.append(path.read_text(encoding="utf-8-sig"))
    ids = tokenizer.encode_array("\n\n".join(texts))[:most].astype(np.int64)
    return Haystack(ids, _sentence_ends(ids, tokenizer))


def _sentence_ends(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Whether a mark that ends a sentence stands before token i, white space left out; a full stop directly before a
    letter or digit, as in 3.14, does not count, the beginning of the text does. Works on bytes, because a token need
    not end where a character does."""
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


@dataclass(frozen=True)
class Cell:
    """One prompt. insert_at: the tokens of the haystack before the needle; n_haystack: all of them."""

    depth_percent: int
    needle: Needle
    needle_ids: np.ndarray
    question_ids: np.ndarray
    insert_at: int
    n_haystack: int

    @property
    def n_tokens(self) -> int:
        return 1 + self.n_haystack + len(self.needle_ids) + len(self.question_ids)


@dataclass(frozen=True)
class Prompts:
    """The prompts of a grid. start: the token that every prompt begins with; haystack: int64, the tokens of the longest
    prompt's haystack; columns: by length (tokens, the answer's included) its prompts, from shallow to deep."""

    start: int
    haystack: np.ndarray
    columns: dict[int, list[Cell]]

    def ids(self, cell: Cell) -> np.ndarray:
        """The tokens of a cell's whole prompt."""
        before, after = self.haystack[: cell.insert_at], self.haystack[cell.insert_at : cell.n_haystack]
        return np.concatenate([[self.start], before, cell.needle_ids, after, cell.question_ids])


def make_prompts(settings: NiahSettings, variant: Variant, haystack: Haystack, tokenizer: Tokenizer) -> Prompts:
    """The grid's prompts. Raises InputError where the haystack is too short, or a length leaves no room for it."""
    columns: dict[int, list[Cell]] = {}
    for length in settings.grid_lengths():
        columns[length] = []
        for depth in settings.grid_depths():
            needle = fact(settings.digits, f"{settings.seed} {length} {depth}") if variant.facts else CLASSIC
            needle_ids = tokenizer.encode_array(needle.hidden(variant)).astype(np.int64)
            question_ids = tokenizer.encode_array(f"\n\n{needle.asked}").astype(np.int64)
            n_haystack = length - settings.max_new_tokens - 1 - len(needle_ids) - len(question_ids)
            if n_haystack < 0:
                raise InputError(
                    f"a length of {length} tokens leaves no room for needle, question and answer, which need "
                    f"{length - n_haystack}: raise first_length"
                )
            insert_at = haystack.insert_at(n_haystack, depth)
            columns[length].append(Cell(depth, needle, needle_ids, question_ids, insert_at, n_haystack))
    longest = max(cell.n_haystack for cells in columns.values() for cell in cells)
    if longest > len(haystack.ids):
        raise InputError(
            f"the haystack has {len(haystack.ids):,} tokens and {longest:,} are asked for: add text to its folder, or "
            f"lower last_length"
        )
    return Prompts(tokenizer.eot_id, haystack.ids[:longest], columns)
