"""The steps of `corpus.clean`: what leaves documents out of a corpus between reading and splitting.

    near_duplicates        of documents that are nearly alike (a similarity of at least 0.8) the first by id stays
    near_duplicates:0.9    the same, of another similarity

A similarity is Jaccard's, of the documents' 5-grams of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from arch.errors import InputError, nearest

NAMES = ("near_duplicates",)
SIMILARITY = 0.8
LEAST = 0.5  # of a similarity: text of one kind is as alike


@dataclass
class Cleaned:
    """dropped: digests (data.clean.near.digest_of) of the documents to leave out; entries: manifest["cleaning"]."""

    dropped: set[bytes] = field(default_factory=set)
    entries: list[dict[str, Any]] = field(default_factory=list)


def similarity_of(step: str) -> float:
    """Of a step that drops near-duplicates. Raises InputError for any other word, one line."""
    name, colon, value = step.partition(":")
    if name not in NAMES:
        raise InputError(f"corpus.clean: unknown step {step!r}{nearest(name, list(NAMES))}")
    try:
        similarity = float(value) if colon else SIMILARITY
    except ValueError:
        similarity = -1.0
    if not LEAST <= similarity <= 1:
        raise InputError(f"corpus.clean: {step!r} has no similarity between {LEAST} and 1; write {name}, or {name}:0.9")
    return similarity


def check_steps(steps: Sequence[str]) -> None:
    """Raise InputError, one line, for a step that is none or is named twice."""
    names = [step.partition(":")[0] for step in steps if similarity_of(step)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"corpus.clean: names {sorted(twice)[0]} twice")
