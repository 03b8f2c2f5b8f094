"""The six tasks of the Long Range Arena (Tay et al. 2020, arXiv:2011.04006) as labelled sets, by name.

    listops:SEED  pathfinder:SEED  path-x:SEED   made from a seed (data/listops.py, data/pathfinder.py); listops:SEED:N
                                                 has N training examples, and the others in the arena's proportion
    imdb:FOLDER  aan:FOLDER  cifar10:FOLDER      read from files in their published layout

Text is bytes, without NUL, cut at the arena's length. The arena validates on IMDB's test set; here every tenth review
of the training set is held out for that.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from arch.errors import InputError

from . import listops, pathfinder
from .encoding import n_threads
from .files import reading
from .labelled import SPLITS, Facts, LabelledSet, LabelledSplit, write_set

if TYPE_CHECKING:
    from .splitting import Progress

UNIT = 1000  # examples at most that are made together, whatever the number of processes
HELD_OUT = 10  # of IMDB's reviews, one in so many
CIFAR_RECORD = 1 + 3 * 1024  # bytes: a class; red, green and blue pixels
GREY = (299, 587, 114)  # of red, green and blue, in thousandths (ITU-R BT.601, as the arena's)

Made = tuple[np.ndarray, np.ndarray, np.ndarray]  # tokens one after another; lengths of documents; classes


class Task(NamedTuple):
    """find: what the TEXT of a source NAME:TEXT means, where it is there; splits: those made of it. Both raise
    InputError."""

    facts: Facts
    find: Callable[[str], Any]
    splits: Callable[[Facts, Any, Progress], dict[str, LabelledSplit]]

    def facts_of(self, text: str) -> Facts:
        """Of the set of a source NAME:TEXT: all of a name have the same."""
        return self.facts

    def write(self, source: str, directory: Path, progress: Progress) -> LabelledSet:
        """Make the set that `source` names. Raises InputError."""
        splits = self.splits(self.facts, self.find(source.partition(":")[2]), progress)
        return write_set(directory, self.facts, splits, {"source": source})


class Seeded(NamedTuple):
    """counts: of examples, by split."""

    seed: int
    counts: tuple[int, ...]


def _split(tokens: np.ndarray, lengths: np.ndarray, classes: np.ndarray) -> LabelledSplit:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return LabelledSplit(tokens, offsets, classes.astype(np.int64))


def _seeded(sizes: tuple[int, int, int], text: str) -> Seeded:
    """sizes: the arena's numbers of examples, by split."""
    parts = text.split(":")
    if not (1 <= len(parts) <= 2 and all(part.isascii() and part.isdecimal() for part in parts)):
        raise InputError(f"corpus.source: {text!r} after the name is no SEED or SEED:N with whole numbers from 0")
    seed, n_train = int(parts[0]), int(parts[1]) if len(parts) == 2 else sizes[0]
    counts = tuple(n_train * size // sizes[0] for size in sizes)
    if min(counts) < 1 or seed >= 1 << 63:
        least = sizes[0] // min(sizes)
        raise InputError(f"corpus.source: {text!r}: give at least {least} training examples, and a seed below 2^63")
    return Seeded(seed, counts)


def _generated(
    make: Callable[[int, int, int], Made], facts: Facts, of: Seeded, progress: Progress
) -> dict[str, LabelledSplit]:
    """make: n examples of (seed, n, unit)."""
    tokens, lengths, classes = _in_parallel(partial(make, of.seed), sum(of.counts), facts.max_length, progress)
    ends = np.cumsum([0, *of.counts])
    places = np.concatenate([[0], np.cumsum(lengths)])[ends]
    return {
        name: _split(tokens[places[i] : places[i + 1]], lengths[ends[i] : ends[i + 1]], classes[ends[i] : ends[i + 1]])
        for i, name in enumerate(SPLITS)
    }


def _in_parallel(make: Callable[[int, int], Made], n: int, max_length: int, progress: Progress) -> Made:
    """n examples of the units 0, 1, .., made on all cores. make: some of (n, unit)."""
    size = min(UNIT, n)
    units = range(-(-n // size))
    tokens, lengths, classes = np.empty(n * max_length, np.uint8), np.empty(n, np.int64), np.empty(n, np.int64)
    place = 0
    for unit, made in zip(units, _mapped(partial(make, size), units), strict=True):
        rows = slice(unit * size, min((unit + 1) * size, n))
        lengths[rows], classes[rows] = (part[: rows.stop - rows.start] for part in made[1:])
        end = place + int(lengths[rows].sum())
        tokens[place:end] = made[0][: end - place]
        place = end
        progress(rows.stop, n, f"{rows.stop:,} examples made")
    return tokens[:place], lengths, classes


def _mapped(make: Callable[[int], Made], units: range) -> Iterator[Made]:
    if (processes := min(n_threads(), len(units))) == 1:
        yield from map(make, units)
        return
    interrupted = (signal.SIGINT, signal.SIG_IGN)  # by the user: this process ends the others
    with multiprocessing.get_context("spawn").Pool(processes, signal.signal, interrupted) as pool:
        yield from pool.imap(make, units)


def _images(rules: pathfinder.Rules, seed: int, n: int, unit: int) -> Made:
    pixels, classes = pathfinder.examples(rules, seed, n, unit)
    return pixels.ravel(), np.full(n, pixels.shape[1]), classes


class Layout(NamedTuple):
    """Files or folders of a published folder, and what they are."""

    names: tuple[str, ...]
    description: str

    def folder(self, text: str) -> Path:
        folder = Path(text).expanduser()
        if missing := [name for name in self.names if not text or not (folder / name).exists()]:
            at = f"{text or 'no folder'}: {missing[0]} is not there"
            raise InputError(f"corpus.source: {at}; name the folder of {self.description}")
        return folder


KINDS = ("neg", "pos")  # class 0 and 1
IMDB = Layout(
    tuple(f"{split}/{kind}" for split in ("train", "test") for kind in KINDS),
    "aclImdb (train/pos, train/neg, test/pos, test/neg: 12,500 files NUMBER_RATING.txt each, 84 MB to download)",
)
AAN = Layout(
    tuple(f"new_aan_pairs.{split}.tsv" for split in ("train", "eval", "test")),
    "new_aan_pairs.{train,eval,test}.tsv (147,086, 18,090 and 17,437 lines of class, id, id, text, text between tabs; "
    "in the arena's lra_release.gz, 7.7 GB)",
)
CIFAR10 = Layout(
    (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
    "CIFAR-10's binary version (data_batch_1.bin to data_batch_5.bin and test_batch.bin, 30,730,000 bytes each)",
)


def _texts(documents: Iterator[tuple[int, tuple[bytes, ...]]], max_length: int, progress: Progress) -> LabelledSplit:
    """documents: the class and the texts of each example."""
    tokens, lengths, classes = bytearray(), [], []
    for label, texts in documents:
        classes.append(label)
        for text in texts:
            kept = text.replace(b"\0", b"")[:max_length] or b" "  # a document has at least one token
            tokens += kept
            lengths.append(len(kept))
        progress(len(tokens), None, f"{len(classes):,} examples")
    return _split(np.frombuffer(tokens, np.uint8), np.array(lengths, np.int64), np.array(classes, np.int64))


def _number_of(review: Path) -> int:
    number = review.stem.partition("_")[0]
    if not (number.isascii() and number.isdecimal()):
        raise InputError(f"corpus.source: {review} is no NUMBER_RATING.txt, as 0_9.txt: take it out of its folder")
    return int(number)


def _imdb(facts: Facts, folder: Path, progress: Progress) -> dict[str, LabelledSplit]:
    def reviews(split: str, wanted: Callable[[int], bool]) -> LabelledSplit:
        def read() -> Iterator[tuple[int, tuple[bytes, ...]]]:
            with reading(f"corpus.source: {folder / split}", f"name the folder of {IMDB.description}"):
                files = [(i, path) for i, kind in enumerate(KINDS) for path in (folder / split / kind).glob("*.txt")]
                for number, label, path in sorted((_number_of(path), label, path) for label, path in files):
                    if wanted(number):
                        yield label, (path.read_bytes(),)

        made = _texts(read(), facts.max_length, progress)
        if not len(made.labels):
            raise InputError(f"corpus.source: {folder / split}: too few reviews; name the folder of {IMDB.description}")
        return made

    return {
        "train": reviews("train", lambda number: number % HELD_OUT != 0),
        "validation": reviews("train", lambda number: number % HELD_OUT == 0),
        "test": reviews("test", lambda number: True),
    }


def _aan(facts: Facts, folder: Path, progress: Progress) -> dict[str, LabelledSplit]:
    def pairs(file: Path) -> Iterator[tuple[int, tuple[bytes, ...]]]:
        with reading(f"corpus.source: {file}"), open(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                fields = line.rstrip(b"\r\n").split(b"\t")
                if len(fields) != 5 or fields[0] not in (b"0", b"1", b"0.0", b"1.0"):
                    raise InputError(f"corpus.source: {file}: line {number} is none of class, id, id, text, text")
                yield int(float(fields[0])), (fields[3], fields[4])
            if not lines.tell():
                raise InputError(f"corpus.source: {file} is empty; name the folder of {AAN.description}")

    files = zip(SPLITS, AAN.names, strict=True)
    return {split: _texts(pairs(folder / name), facts.max_length, progress) for split, name in files}


def _cifar10(facts: Facts, folder: Path, progress: Progress) -> dict[str, LabelledSplit]:
    def images(*names: str) -> tuple[np.ndarray, np.ndarray]:
        records = []
        for name in names:
            with reading(f"corpus.source: {folder / name}", f"name the folder of {CIFAR10.description}"):
                records.append(np.fromfile(folder / name, np.uint8).reshape(-1, CIFAR_RECORD))
            highest = int(records[-1][:, 0].max(initial=0))
            if highest >= facts.n_classes or not len(records[-1]):
                fault = f"has class {highest}, not 0 to {facts.n_classes - 1}" if highest else "is empty"
                raise InputError(f"corpus.source: {folder / name} {fault}; name the folder of {CIFAR10.description}")
            progress(sum(map(len, records)), None, name)
        table = np.concatenate(records)
        grey = (table[:, 1:].reshape(-1, 3, 1024).astype(np.uint32) * np.array(GREY, np.uint32)[:, None]).sum(axis=1)
        return ((grey + 500) // 1000).astype(np.uint8), table[:, 0]

    *batches, test = CIFAR10.names
    pixels, classes = images(*batches)
    n_train = len(classes) * 9 // 10  # as the arena splits them
    sets = {
        "train": (pixels[:n_train], classes[:n_train]),
        "validation": (pixels[n_train:], classes[n_train:]),
        "test": images(test),
    }
    return {
        name: _split(pixels.ravel(), np.full(len(classes), facts.max_length), classes)
        for name, (pixels, classes) in sets.items()
    }


def _image_facts(n_classes: int, size: int) -> Facts:
    return Facts(n_classes, vocab_size=256, max_length=size**2, image=(size, size, 1))


OF_LISTOPS = partial(_seeded, (96_000, 2_000, 2_000))
OF_PATHFINDER = partial(_seeded, (160_000, 20_000, 20_000))
TEXT = Facts(n_classes=2, vocab_size=256, max_length=4096, padding_id=0)
TASKS = {
    "listops": Task(
        Facts(n_classes=10, vocab_size=16, max_length=2000, padding_id=listops.PADDING),
        OF_LISTOPS,
        partial(_generated, listops.examples),
    ),
    "pathfinder": Task(
        _image_facts(2, 32), OF_PATHFINDER, partial(_generated, partial(_images, pathfinder.PATHFINDER))
    ),
    "path-x": Task(_image_facts(2, 128), OF_PATHFINDER, partial(_generated, partial(_images, pathfinder.PATH_X))),
    "imdb": Task(TEXT, IMDB.folder, _imdb),
    "aan": Task(replace(TEXT, max_length=4000, documents_per_example=2), AAN.folder, _aan),
    "cifar10": Task(_image_facts(10, 32), CIFAR10.folder, _cifar10),
}
