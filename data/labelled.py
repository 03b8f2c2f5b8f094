"""A labelled set on disk: documents as token ids, and the class of each example, which is of one document or of two.

    directory/manifest.json        its facts (Facts), and the files' checksums
              {split}.tokens.npy   uint8 or uint16, the documents one after another
              {split}.offsets.npy  int64 [documents + 1]: document i is tokens[offsets[i] : offsets[i + 1]]
              {split}.labels.npy   int64 [examples]

for the splits train, validation and test. The documents of an example follow one another. An image is a document of its
pixels, row by row (its channels one after another at each pixel).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from arch.errors import InputError
from data.files import damage, new_directory, read_manifest, reading

KIND = "labelled"  # of a manifest
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Facts:
    """What all examples of a set share. padding_id: fills documents up to max_length, and is no token of any; None: all
    documents have max_length tokens. vocab_size counts it. image: height, width and channels."""

    n_classes: int
    vocab_size: int
    max_length: int
    padding_id: int | None = None
    documents_per_example: int = 1
    image: tuple[int, int, int] | None = None

    def check(self, where: object) -> None:
        """Raise InputError where the facts contradict each other."""
        sizes = [self.n_classes, self.vocab_size, self.max_length, *(self.image or ())]
        whole = all(type(size) is int and size > 0 for size in sizes) and self.documents_per_example in (1, 2)
        image = self.image is None or (len(self.image) == 3 and int(np.prod(self.image)) == self.max_length)
        padding = self.padding_id is None or 0 <= self.padding_id < self.vocab_size
        if not (whole and image and padding and self.n_classes > 1 and self.vocab_size <= 1 << 16):
            raise InputError(f"{where}: its facts contradict each other ({asdict(self)}); make it again")


class LabelledSplit(NamedTuple):
    """The arrays of a split, memory-mapped."""

    tokens: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray

    def check(self, facts: Facts, where: object) -> None:
        """Raise InputError where the arrays do not fit together, or the facts."""
        lengths, kinds = np.diff(self.offsets), [array.dtype.name for array in self]
        least = 1 if facts.padding_id is not None else facts.max_length
        fits = (
            kinds in (["uint8", "int64", "int64"], ["uint16", "int64", "int64"])
            and all(array.ndim == 1 for array in self)
            and len(self.labels) > 0
            and len(lengths) == len(self.labels) * facts.documents_per_example
            and int(self.offsets[0]) == 0
            and int(self.offsets[-1]) == len(self.tokens)
            and least <= int(lengths.min()) <= int(lengths.max()) <= facts.max_length
            and 0 <= int(self.labels.min()) <= int(self.labels.max()) < facts.n_classes
        )
        if not fits:
            raise InputError(f"{where}: tokens, offsets and labels do not fit together or the manifest; make it again")

    def rows(self, examples: np.ndarray, facts: Facts) -> np.ndarray:
        """int64 [examples, documents_per_example * max_length + 1]: the documents, each filled up by padding_id, then
        the class."""
        width, each = facts.max_length, facts.documents_per_example
        rows = np.full((len(examples), each * width + 1), facts.padding_id or 0, np.int64)
        for row, example in zip(rows, examples.tolist(), strict=True):
            for i in range(each):
                start, end = self.offsets[example * each + i : example * each + i + 2].tolist()
                row[i * width : i * width + end - start] = self.tokens[start:end]
            row[-1] = self.labels[example]
        return rows


class LabelledSet:
    """A labelled set at a directory. Raises InputError where there is none, or it is damaged (file sizes are checked,
    with `verify` checksums too)."""

    def __init__(self, directory: Path | str, verify: bool = False) -> None:
        self.directory = Path(directory)
        manifest = read_manifest(self.directory, verify)
        if manifest is None or manifest.get("kind") != KIND:
            why = damage(self.directory) or "its manifest is of another kind"
            raise InputError(f"{self.directory}: no labelled set is here ({why}); make it again")
        self.manifest = manifest
        with reading(self.directory, "make it again"):
            facts = manifest["facts"]
            self.facts = Facts(**facts | {"image": facts["image"] and tuple(facts["image"])})
        self.facts.check(self.directory)

    @property
    def fingerprint(self) -> str:
        """What identifies the set: its facts and its files."""
        identity = {"facts": asdict(self.facts), "files": self.manifest["files"]}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def split(self, name: str) -> LabelledSplit:
        """The arrays of train, validation or test."""
        with reading(self.directory, "make it again"):
            arrays = (np.load(self.directory / f"{name}.{part}.npy", mmap_mode="r") for part in LabelledSplit._fields)
            split = LabelledSplit(*arrays)
        split.check(self.facts, f"{self.directory}: {name}")
        return split

    @cached_property
    def train(self) -> LabelledSplit:
        return self.split("train")

    def n_examples(self, split: str) -> int:
        return int(self.manifest["rows"][split])


def write_set(
    directory: Path | str, facts: Facts, splits: Mapping[str, LabelledSplit], origin: Mapping[str, Any]
) -> LabelledSet:
    """Write a set, whole or not at all. origin: source, generator, seed and whatever else says where it comes from.
    Raises InputError where a split does not fit, or holds an id that is none of the vocabulary's or is padding."""
    facts.check(directory)
    if set(splits) != set(SPLITS):
        raise InputError(f"{directory}: a labelled set has the splits {', '.join(SPLITS)}, not {', '.join(splits)}")
    for name, split in splits.items():
        split.check(facts, f"{directory}: {name}")
        if int(split.tokens.max()) >= facts.vocab_size or bool((split.tokens == facts.padding_id).any()):
            raise InputError(f"{directory}: {name} holds ids beyond {facts.vocab_size - 1}, or the padding's")
    rows = {name: len(split.labels) for name, split in splits.items()}
    manifest = {"kind": KIND, "facts": asdict(facts), "rows": rows, "origin": dict(origin)}
    with new_directory(Path(directory), manifest, kind=KIND) as folder:
        for name, split in splits.items():
            for part, array in zip(LabelledSplit._fields, split, strict=True):
                np.save(folder / f"{name}.{part}.npy", array)
    return LabelledSet(directory)
