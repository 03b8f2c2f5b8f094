"""What a corpus depends on, apart from the text itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from arch.errors import InputError
from data.clean.steps import check_steps
from data.vocabulary import portable

LATER: dict[str, Any] = {"clean": []}  # fields that came later, at the values of the corpora before them


@dataclass(frozen=True)
class CorpusSettings:
    """Everything a corpus depends on, apart from the text itself."""

    source: str | tuple[str, ...] = "stdlib:"
    tokenizer: str = "bytes"
    text_key: str = "text"  # of JSONL records
    validation_fraction: float | None = 0.03  # expected share of documents held out
    validation_tokens: int | None = None  # instead: whole documents until so many tokens are held out
    max_bytes: int | None = None  # UTF-8 bytes of text taken, in source order; the last document is cut
    seed: int = 0  # of the split
    clean: tuple[str, ...] = ()  # steps between reading and splitting (data/clean/steps.py)

    def __post_init__(self) -> None:
        if not isinstance(self.source, str):
            object.__setattr__(self, "source", tuple(self.source))
        object.__setattr__(self, "clean", tuple(self.clean))
        check_steps(self.clean)
        if (self.validation_fraction is None) == (self.validation_tokens is None):
            raise InputError("corpus: give validation_fraction or validation_tokens, and null for the other")
        if self.validation_tokens is not None and self.validation_tokens <= 0:
            raise InputError(
                f"corpus.validation_tokens: {self.validation_tokens} holds nothing out; give a positive number"
            )
        if self.validation_fraction is not None and not 0 < self.validation_fraction < 1:
            raise InputError(
                f"corpus.validation_fraction: {self.validation_fraction} is not between 0 and 1: a split would be empty"
            )
        if self.max_bytes is not None and self.max_bytes <= 0:
            raise InputError(f"corpus.max_bytes: {self.max_bytes} takes no text; give a positive number or null")

    def to_dict(self) -> dict[str, Any]:
        """As a manifest has them; fields that came later are left out at their defaults, as earlier manifests do."""
        settings = asdict(self) | {"source": list(as_tuple(self.source)), "clean": list(self.clean)}
        return {name: value for name, value in settings.items() if value != LATER.get(name, ...)}

    def identity(self) -> dict[str, Any]:
        """What a corpus is made by beside its text: the settings without the places of files, which decide nothing."""
        found = {name: value for name, value in self.to_dict().items() if name != "source"}
        return found | {"tokenizer": portable(self.tokenizer)}

    @property
    def hash(self) -> str:
        """16 hex digits of SHA-256 over the canonical JSON of the identity."""
        return hash_of(self.identity())[:16]


def as_tuple(source: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return (source,) if isinstance(source, str) else tuple(source)


def hash_of(value: Any) -> str:
    """SHA-256, in hex, over the canonical JSON of `value`."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
