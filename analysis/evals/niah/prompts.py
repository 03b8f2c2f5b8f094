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


# The English needle is that of the public tool (gkamradt/LLMTest_NeedleInAHaystack); the Chinese needle says the same.
CLASSIC = {
    "en": Needle(
        "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.",
        "What is the best thing to do in San Francisco?",
        "eat a sandwich and sit in Dolores Park on a sunny day",
    ),
    "zh": Needle(
        "在旧金山最值得做的事，就是找个晴天坐在多洛雷斯公园里吃三明治。",
        "在旧金山最值得做的事是什么？",
        "找个晴天坐在多洛雷斯公园里吃三明治",
    ),
}
FACTS = {
    "en": ("The magic number of the {key} is #{value}.", "What is the magic number of the {key}?"),
    "zh": ("{key}的幸运数字是#{value}。", "{key}的幸运数字是多少？"),
}
KEYS = {
    "en": (
        *("apple", "beach", "bread", "bride", "cabin", "chair", "cloud", "coast", "eagle", "field", "flame", "forge"),
        *("grape", "heron", "horse", "house", "kayak", "lemon", "maple", "mouse", "ocean", "olive", "onion", "otter"),
        *("pearl", "piano", "plain", "queen", "raven", "river", "robin", "shore", "snail", "spoon", "stone", "storm"),
        *("table", "tiger", "torch", "tower", "train", "tulip", "viola", "wagon", "whale", "wheat", "wheel", "zebra"),
    ),
    "zh": ("苹果", "面包", "海滩", "白云", "老鹰", "火焰", "葡萄", "河流", "石头", "老虎", "火车", "钢琴"),
}


def fact(language: str, digits: int, seed: str) -> Needle:
    """A number of so many digits, the first not 0, that belongs to a word; both drawn from `seed` alone.

    A model can know it only from the text, and numbers of equal length are equally hard to spell. The # marks where the
    number begins: a tiny model of bytes copies what followed the same byte before.
    """
    draw = random.Random(f"niah {seed}")
    key, value = draw.choice(KEYS[language]), str(draw.randrange(10 ** (digits - 1), 10**digits))
    statement, question = FACTS[language]
    return Needle(statement.format(key=key, value=value), question.format(key=key), value)


NO_TEXT = ("license", "readme")  # files about the folder, not of it
SENTENCE_ENDS = tuple(mark.encode() for mark in (".", "!", "?", "。", "！", "？"))


@dataclass(frozen=True)
class Haystack:
    """The text that hides a needle. ids: int64 [n], its tokens; ends: bool [n + 1], whether a sentence ends before
    token i."""

    ids: np.ndarray
    ends: np.ndarray

    def cut(self, n_tokens: int) -> np.ndarray:
        """The haystack's first tokens. Raises InputError where it has fewer."""
        if n_tokens > len(self.ids):
            raise InputError(
                f"the haystack has {len(self.ids):,} tokens and {n_tokens:,} are asked for, "
                f"{n_tokens - len(self.ids):,} are missing: add text to its folder, or ask for shorter lengths"
            )
        return self.ids[:n_tokens]

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


def read_haystack(folder: Path, tokenizer: Tokenizer) -> Haystack:
    """All files joined by empty lines and tokenised once. Raises InputError for a file that is not UTF-8."""
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


ASKED = {"en": "Question: {question}\nAnswer:", "zh": "问题：{question}\n答案："}
GAP = {"en": " ", "zh": ""}  # between "Answer:" and the answer


@dataclass(frozen=True)
class Cell:
    """One prompt. insert_at: the tokens of the haystack before the needle; n_haystack: all of them."""

    depth_percent: int
    needle: Needle
    needle_ids: np.ndarray
    question_ids: np.ndarray
    insert_at: int
    n_haystack: int


@dataclass(frozen=True)
class Column:
    """All prompts of one length (tokens, the answer's included), from shallow to deep."""

    length: int
    cells: list[Cell]


@dataclass(frozen=True)
class Prompts:
    """The prompts of a grid. start: the token that every prompt begins with; haystack: int64, the tokens of the longest
    prompt's haystack."""

    start: int
    haystack: np.ndarray
    columns: list[Column]

    def ids(self, cell: Cell) -> np.ndarray:
        """The tokens of a cell's whole prompt."""
        before, after = self.haystack[: cell.insert_at], self.haystack[cell.insert_at : cell.n_haystack]
        return np.concatenate([[self.start], before, cell.needle_ids, after, cell.question_ids])


def needle_text(needle: Needle, variant: Variant) -> str:
    """The needle as it is hidden, on lines of its own. In the easy mode its question stands before it, in the form of
    the question at the end."""
    if variant.mode == "standard":
        return f"\n{needle.statement}\n"
    asked = ASKED[variant.language].format(question=needle.question)
    return f"\n{asked}{GAP[variant.language]}{needle.statement}\n"


def question_text(needle: Needle, language: str) -> str:
    return "\n\n" + ASKED[language].format(question=needle.question)


def text_bytes(settings: NiahSettings, variant: Variant) -> tuple[int, int]:
    """The number of UTF-8 bytes of a hidden needle and of its question; all facts are as long as the first."""
    needle = CLASSIC[variant.language]
    if variant.facts:
        needle = fact(variant.language, settings.digits, str(settings.seed))
    return len(needle_text(needle, variant).encode()), len(question_text(needle, variant.language).encode())


def make_prompts(settings: NiahSettings, variant: Variant, haystack: Haystack, tokenizer: Tokenizer) -> Prompts:
    """The grid's prompts. Raises InputError where the haystack is too short, or a length leaves no room for it."""
    columns = []
    for length in settings.grid_lengths():
        cells = []
        for depth in settings.grid_depths():
            needle = CLASSIC[variant.language]
            if variant.facts:
                needle = fact(variant.language, settings.digits, f"{settings.seed} {length} {depth}")
            needle_ids = _ids(tokenizer, needle_text(needle, variant))
            question_ids = _ids(tokenizer, question_text(needle, variant.language))
            n_haystack = length - settings.max_new_tokens - 1 - len(needle_ids) - len(question_ids)
            if n_haystack < 0:
                raise InputError(
                    f"a length of {length} tokens leaves no room for needle, question and answer, which need "
                    f"{length - n_haystack}; ask for longer ones"
                )
            insert_at = haystack.insert_at(n_haystack, depth)
            cells.append(Cell(depth, needle, needle_ids, question_ids, insert_at, n_haystack))
        columns.append(Column(length, cells))
    longest = max(cell.n_haystack for column in columns for cell in column.cells)
    return Prompts(tokenizer.eot_id, haystack.cut(longest), columns)


def _ids(tokenizer: Tokenizer, text: str) -> np.ndarray:
    return tokenizer.encode_array(text).astype(np.int64)
