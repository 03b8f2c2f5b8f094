"""Text from which a tiny model of bytes learns to find a needle: half of it needles, half of it drills in copying.

A document has 511 bytes, so that with its end-of-text it fills a context of 512 tokens. A document of needles is noise
of five sentences (as RULER's, Hsieh et al. 2024) with one or two facts, bare or behind their question, and later each
question with its answer. A drill repeats random words of letters and digits in random order: nearly every byte of it
can be known from the text before, which teaches copying in a tenth of the time that needles alone take.
"""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

from analysis.evals.niah.prompts import fact, needle_text, question_text
from analysis.evals.niah.settings import VARIANTS

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
SYMBOLS = string.ascii_letters + string.digits
BYTES = 511
DIGITS = 5
EASY, STANDARD = VARIANTS["niah-easy-facts"], VARIANTS["niah-standard-facts"]


def write_haystack(folder: Path, n_bytes: int) -> None:
    folder.mkdir(parents=True)
    (folder / "noise.txt").write_text((NOISE * (n_bytes // len(NOISE) + 1))[:n_bytes], encoding="utf-8")


def write_corpus(path: Path, n_documents: int, held_out: set[str], seed: int = 0) -> None:
    """Write the corpus as JSONL; none of its facts has a number of `held_out`."""
    draw = random.Random(seed)
    with open(path, "w", encoding="utf-8") as handle:
        for _ in range(n_documents):
            text = drill(draw) if draw.random() < 0.5 else needles(draw, held_out)
            handle.write(json.dumps({"text": text}) + "\n")


def drill(draw: random.Random) -> str:
    text = ""
    while len(text) < BYTES:
        words = ["".join(draw.choices(SYMBOLS, k=draw.randrange(3, 9))) for _ in range(draw.randrange(2, 9))]
        text += " ".join(draw.choices(words, k=4 * len(words))) + "\n"
    return text[:BYTES]


def needles(draw: random.Random, held_out: set[str]) -> str:
    """The pieces in a random order of places, each answer after its needle, the last answer at the end."""
    pieces: list[tuple[float, str]] = []
    for _ in range(draw.choice((1, 2))):
        needle = fact("en", DIGITS, f"training {draw.random()}")
        while needle.answer in held_out:
            needle = fact("en", DIGITS, f"training {draw.random()}")
        early, late = sorted((draw.random(), draw.random()))
        pieces.append((early, needle_text(needle, draw.choice((EASY, STANDARD)))))
        pieces.append((late, f"{question_text(needle, 'en')} {needle.statement}\n"))
    pieces.sort()
    n_noise = BYTES - sum(len(piece) for _, piece in pieces)
    cuts = sorted(draw.randrange(n_noise + 1) for _ in pieces)
    cuts[-1] = n_noise
    start = draw.randrange(len(NOISE))
    noise = (NOISE * (n_noise // len(NOISE) + 2))[start : start + n_noise]
    text, here = "", 0
    for there, (_, piece) in zip(cuts, pieces, strict=True):
        text, here = text + noise[here:there] + piece, there
    return text
