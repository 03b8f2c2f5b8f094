"""A labelled set on disk: documents as token ids, and the class of each example, which is of one document or of two.

    directory/manifest.json        its facts (Facts), and the files' checksums
              {split}.tokens.npy   uint8 or uint16, the documents one after another
              {split}.offsets.npy  int64 [documents + 1]: document i is tokens[offsets[i] : offsets[i + 1]]
              {split}.labels.npy   int64 [examples]

for the splits train, validation and test. The documents of an example follow one another. An image is a document of
its pixels, row by row (its channels one after another at each pixel), or the bytes of its file, which are read as
pixels. Training reads a split as Rows: an example is a window whose last target is its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from arch.errors import InputError
from data.files import MANIFEST, damage, hash_of, new_directory, read_manifest, read_object, reading, sha256
from data.pixels import middle
from data.vocabulary import IDS

KIND, SCHEMA = "labelled", 1  # of a manifest
SPLITS = ("train", "validation", "test")
PIECE = 1 << 26  # tokens that are looked at together


@dataclass(frozen=True)
class Facts:
    """What all examples of a set share. padding_id: fills documents up to max_length, and is no token of any; None: all
    documents have max_length tokens. vocab_size counts it. image: height, width and channels. encoded: documents
    are the bytes of images' files, whose middle is a row (data.pixels)."""

    n_classes: int
    vocab_size: int
    max_length: int
    padding_id: int | None = None
    documents_per_example: int = 1
    image: tuple[int, int, int] | None = None
    encoded: bool = False

    @property
    def stored(self) -> dict[str, Any]:
        """As a manifest has them: `encoded` only where it is true, so that other sets keep their fingerprints."""
        return {name: value for name, value in asdict(self).items() if name != "encoded" or value}

    @property
    def row(self) -> int:
        """Ids of an example."""
        return self.documents_per_example * self.max_length

    def check(self, where: object) -> None:
        """Raise InputError where the facts contradict each other."""
        sizes = [self.n_classes, self.vocab_size, self.max_length, *(self.image or ())]
        whole = all(type(size) is int and size > 0 for size in sizes) and self.documents_per_example in (1, 2)
        image = self.image is None or (len(self.image) == 3 and int(np.prod(self.image)) == self.max_length)
        padding = self.padding_id is None or 0 <= self.padding_id < self.vocab_size
        square = not self.encoded or (self.image is not None and self.image[0] == self.image[1] and self.image[2] == 3)
        if not (whole and image and padding and square and self.n_classes > 1 and self.vocab_size <= 1 << 16):
            raise InputError(f"{where}: its facts contradict each other ({asdict(self)}); make it again")


class LabelledSplit(NamedTuple):
    """The arrays of a split, memory-mapped."""

    tokens: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray

    def check(self, facts: Facts, where: object) -> None:
        """Raise InputError where the arrays do not fit together, or the facts."""
        lengths, kinds = np.diff(self.offsets), [array.dtype.name for array in self]
        least, most = 1 if facts.padding_id is not None else facts.max_length, facts.max_length
        if facts.encoded:
            least, most = 1, len(self.tokens)
        fits = (
            kinds in (["uint8", "int64", "int64"], ["uint16", "int64", "int64"])
            and all(array.ndim == 1 for array in self)
            and len(self.labels) > 0
            and len(lengths) == len(self.labels) * facts.documents_per_example
            and int(self.offsets[0]) == 0
            and int(self.offsets[-1]) == len(self.tokens)
            and least <= int(lengths.min()) <= int(lengths.max()) <= most
            and 0 <= int(self.labels.min()) <= int(self.labels.max()) < facts.n_classes
        )
        if not fits:
            raise InputError(f"{where}: tokens, offsets and labels do not fit together or the manifest; make it again")

    def rows(self, examples: np.ndarray, facts: Facts) -> np.ndarray:
        """int64 [examples, documents_per_example * max_length + 1]: the documents, each filled up by padding_id, then
        the class."""
        width, each = facts.max_length, facts.documents_per_example
        rows = np.full((len(examples), facts.row + 1), facts.padding_id or 0, np.int64)
        for row, example in zip(rows, examples.tolist(), strict=True):
            for i in range(each):
                start, end = self.offsets[example * each + i : example * each + i + 2].tolist()
                document = self.tokens[start:end]
                if facts.encoded and facts.image is not None:
                    with reading(f"image {example} of a split", "leave it out of its folder and make the set again"):
                        document = middle(document, facts.image[0])
                row[i * width : i * width + len(document)] = document
            row[-1] = self.labels[example]
        return rows


def is_set(directory: Path) -> bool:
    """Whether the manifest at `directory` is of a labelled set, damaged or not."""
    with suppress(OSError, ValueError):
        return bool(read_object(directory / MANIFEST).get("kind") == KIND)
    return False


class Rows:
    """A split as one array of ids of which only whole rows can be read: that of example i is [i n : i n + n + 1], n ids
    of an example, then its class."""

    ndim, dtype = 1, np.dtype(np.int64)

    def __init__(self, split: LabelledSplit, facts: Facts) -> None:
        self._split, self._facts = split, facts
        self.shape = (len(split.labels) * facts.row + 1,)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice) -> np.ndarray:
        start, stop, step = key.indices(len(self))
        example, within = divmod(start, self._facts.row)
        if step != 1 or within or stop - start != self._facts.row + 1:
            raise ValueError(f"a labelled set is read by rows of {self._facts.row} ids and their class, not {key}")
        row: np.ndarray = self._split.rows(np.array([example]), self._facts)[0]
        return row


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

    def __reduce__(self) -> tuple[type[LabelledSet], tuple[Path]]:
        """A copy in another process opens the files itself."""
        return LabelledSet, (self.directory,)

    @property
    def fingerprint(self) -> str:
        """What identifies the set: its facts and its files."""
        return str(self.manifest["fingerprint"])

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


def write_set(
    directory: Path | str, facts: Facts, splits: Mapping[str, LabelledSplit], origin: Mapping[str, Any]
) -> LabelledSet:
    """Write a set, whole or not at all. origin: its `source`, as a study file names it, and whatever else says where it
    comes from. Raises InputError where a split does not fit, or holds an id that is none of the vocabulary's or is
    padding."""
    facts.check(directory)
    if set(splits) != set(SPLITS):
        raise InputError(f"{directory}: a labelled set has the splits {', '.join(SPLITS)}, not {', '.join(splits)}")
    for name, split in splits.items():
        split.check(facts, f"{directory}: {name}")
        for start in range(0, len(split.tokens), PIECE):
            piece = split.tokens[start : start + PIECE]
            padded = facts.padding_id is not None and bool((piece == facts.padding_id).any())
            if int(piece.max()) >= facts.vocab_size or padded:
                raise InputError(f"{directory}: {name} holds ids beyond {facts.vocab_size - 1}, or the padding's")
    counts = {
        name: {
            "documents": len(split.offsets) - 1,
            "bytes": split.tokens.nbytes,
            "tokens": len(split.labels) * facts.row + 1,
        }
        for name, split in splits.items()
    }
    manifest: dict[str, Any] = {
        "kind": KIND,
        "schema": SCHEMA,
        "facts": facts.stored,
        "origin": dict(origin),
        "settings": {"source": [origin["source"]], "tokenizer": IDS},
        "tokenizer": {"name": IDS, "identity": IDS},
        "counts": {"documents": sum(count["documents"] for count in counts.values())},
        "splits": counts,
    }
    with new_directory(Path(directory), manifest, kind=KIND) as folder:
        for name, split in splits.items():
            for part, array in zip(LabelledSplit._fields, split, strict=True):
                np.save(folder / f"{name}.{part}.npy", array)
        files = {path.name: sha256(path) for path in sorted(folder.iterdir())}
        manifest["fingerprint"] = hash_of({"facts": facts.stored, "files": files})
    return LabelledSet(directory)
