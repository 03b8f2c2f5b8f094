"""What a corpus depends on, apart from the text itself."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

from arch.errors import InputError, shown
from data.clean.steps import check_steps
from data.files import hash_of
from data.vocabulary import IDS, portable

LEFT_OUT_AT: dict[str, Any] = {"clean": []}  # fields that are no part of a corpus' identity at their default
LONGEST_PERIOD = 100_000  # windows after which the order of a mixture's sources repeats
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")  # of a source, in names of files


@dataclass(frozen=True)
class Weighted:
    """A source of a mixture: `weight` is its share of the training tokens, relative to the other weights.

    `source` may be several strings that are read one after another; `name` is short and no other source's, whatever
    its capitals, "" makes one of the source; `text_key` is the corpus' where it is None."""

    source: str | tuple[str, ...]
    weight: float
    text_key: str | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.source, str):
            object.__setattr__(self, "source", tuple(self.source))


@dataclass(frozen=True)
class Augmentation:
    """How training changes images (data.augment): timm's policy of operations (None: none), the share of images of
    which a place is erased, the parameters of the Beta distributions of mixup and CutMix (0: none), and how much of a
    target is spread over all classes."""

    policy: str | None
    erase: float
    mixup: float
    cutmix: float
    smoothing: float


@dataclass(frozen=True)
class Stream:
    """What is read, split and tokenised as one: a source of a mixture, or all the sources of a corpus without one.

    `max_bytes` and `validation_tokens` are this stream's share of the corpus'."""

    name: str
    weight: float
    source: tuple[str, ...]
    text_key: str
    max_bytes: int | None
    validation_tokens: int | None


@dataclass(frozen=True)
class CorpusSettings:
    """Everything a corpus depends on, apart from the text itself."""

    source: str | tuple[str | Weighted, ...] = "stdlib:"  # all of them weighted, or none
    tokenizer: str = "bytes"
    text_key: str = "text"  # of JSONL records and of tables
    validation_fraction: float | None = 0.03  # expected share of documents held out, of every source
    validation_tokens: int | None = None  # instead: whole documents until so many tokens are held out
    max_bytes: int | None = None  # UTF-8 bytes of text taken, in source order; the last document is cut
    seed: int = 0  # of the split
    clean: tuple[str, ...] = ()  # steps between reading and splitting (data/clean/steps.py)

    def __post_init__(self) -> None:
        if not isinstance(self.source, str):
            object.__setattr__(self, "source", _named(tuple(self.source)))
        object.__setattr__(self, "clean", tuple(self.clean))
        check_steps(self.clean)
        if self.tokenizer == IDS and (len(as_tuple(self.source)) > 1 or self.mixture):
            raise InputError("corpus.source: a labelled set stands alone: name one")
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

    @property
    def mixture(self) -> tuple[Weighted, ...]:
        """The sources of a mixture; () where all sources are one stream."""
        return tuple(source for source in as_tuple(self.source) if isinstance(source, Weighted))

    @property
    def labelled(self) -> str:
        """The labelled set that takes the place of text; "" where there is none."""
        return str(as_tuple(self.source)[0]) if self.tokenizer == IDS else ""

    @property
    def streams(self) -> list[Stream]:
        """What is read and tokenised, in order; limits in tokens and bytes are shared by weight."""
        if not self.mixture:
            whole = as_tuple(self.source)
            return [Stream("", 1.0, whole, self.text_key, self.max_bytes, self.validation_tokens)]
        weights = whole_weights([source.weight for source in self.mixture])
        return [
            Stream(
                source.name,
                source.weight,
                as_tuple(source.source),
                source.text_key or self.text_key,
                _share(self.max_bytes, weight, sum(weights)),
                _share(self.validation_tokens, weight, sum(weights)),
            )
            for source, weight in zip(self.mixture, weights, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """As a manifest has them, without those of LEFT_OUT_AT at their defaults."""
        sources: list[Any] = list(as_tuple(self.source))
        if self.mixture:
            sources = [asdict(source) | {"source": list(as_tuple(source.source))} for source in self.mixture]
        settings = asdict(self) | {"source": sources, "clean": list(self.clean)}
        return {name: value for name, value in settings.items() if value != LEFT_OUT_AT.get(name, ...)}

    def identity(self) -> dict[str, Any]:
        """What a corpus is made by beside its text: the settings without the sources, wherever they lie; of a mixture's
        sources the weights, and what their records are read by. Names of files are no part of it, but a document's
        draw has its file's name (data/splitting.py): the same text under other names is split otherwise."""
        return identity_of(self.to_dict())

    @property
    def hash(self) -> str:
        """16 hex digits of SHA-256 over the canonical JSON of the identity."""
        return hash_of(self.identity())[:16]


def identity_of(settings: dict[str, Any]) -> dict[str, Any]:
    """`CorpusSettings.identity` of what `to_dict` gave."""
    identity = {name: value for name, value in settings.items() if name != "source"}
    identity["tokenizer"] = portable(settings["tokenizer"])
    if is_mixture(settings["source"]):
        weights = whole_weights([source["weight"] for source in settings["source"]])
        identity["mixture"] = [
            {"weight": weight, "text_key": source["text_key"] or settings["text_key"]}
            for weight, source in zip(weights, settings["source"], strict=True)
        ]
    return identity


def is_mixture(source: Any) -> bool:
    """Whether the sources of a stored corpus are those of a mixture."""
    return isinstance(source, list) and bool(source) and isinstance(source[0], dict)


def shown_source(source: Any) -> str:
    """Sources for a message, whether they are CorpusSettings' own or those of `to_dict`."""
    in_words = {"stdlib:": "Python's standard library", "packages:": "installed Python packages"}
    names: list[str] = []
    for entry in as_tuple(source):
        entry = asdict(entry) if isinstance(entry, Weighted) else entry
        names += as_tuple(entry if isinstance(entry, str) else entry["source"])
    return ", ".join(in_words.get(name, name) for name in names)


def whole_weights(weights: list[float]) -> list[int]:
    """Weights as the smallest whole numbers in the same proportions: [0.5, 0.25] as [2, 1], by their decimal digits.

    Raises InputError where one is no positive number, or they repeat only after more than LONGEST_PERIOD windows."""
    for weight in weights:
        if not 0 < weight < math.inf:
            raise InputError(f"corpus.source: weight {weight:g} is no positive number; leave that source out")
    exact = [Fraction(repr(float(weight))) for weight in weights]
    scale = math.lcm(*(part.denominator for part in exact))
    whole = [int(part * scale) for part in exact]
    whole = [part // math.gcd(*whole) for part in whole]
    if sum(whole) > LONGEST_PERIOD:
        raise InputError(
            f"corpus.source: weights {', '.join(f'{part:.12g}' for part in weights)} are in the proportions "
            f"{':'.join(map(str, whole))}; write them with fewer digits, so that these add up to {LONGEST_PERIOD:,} "
            f"at most"
        )
    return whole


def as_tuple(source: Any) -> tuple[Any, ...]:
    return (source,) if isinstance(source, str) else tuple(source)


def _share(total: int | None, weight: int, of: int) -> int | None:
    return None if total is None else -(-total * weight // of)


def _named(sources: tuple[Any, ...]) -> tuple[Any, ...]:
    """The sources of a mixture with a name each; strings as they are."""
    weighted = [source for source in sources if isinstance(source, Weighted)]
    if not weighted:
        return sources
    if len(weighted) < len(sources):
        raise InputError("corpus.source: some sources have a weight and others have none; give each one or none")
    whole_weights([source.weight for source in weighted])
    taken: set[str] = set()
    for source in weighted:
        if source.name and (not NAME.fullmatch(source.name) or source.name.lower() in taken):
            why = "write letters, digits and '-', at most 40"
            if source.name.lower() in taken:
                why = "another source has it, or one that differs in capitals alone, as file names must not"
            raise InputError(f"corpus.source: name {shown(source.name)} of {shown_source([source])}: {why}")
        taken |= {source.name.lower()}
    named = []
    for source in weighted:
        name, number = source.name or _short(source.source), 2
        while not source.name and name.lower() in taken:
            name, number = f"{_short(source.source)}-{number}", number + 1
        taken.add(name.lower())
        named.append(replace(source, name=name))
    return tuple(named)


def _short(source: str | tuple[str, ...]) -> str:
    """A name for a source: the end of its path without suffixes, or its scheme and what follows."""
    first = as_tuple(source)[0] if as_tuple(source) else ""
    last = PurePosixPath(first).name.split(".")[0] or first
    return re.sub(r"[^A-Za-z0-9]+", "-", last).strip("-")[:32] or "source"
