"""A folder of images as a labelled set.

    images:FOLDER:CLASSES:SIZE   FOLDER/{train,val}/CLASS/*.JPEG (or .jpg, .png), of so many classes, read as SIZE x
                                 SIZE pixels of three colours

The set holds the files as they are; a row is the middle of one (data.pixels). The set's test split is `val`, on which
ImageNet's results are published; its validation split is every hundredth image of `train`, in the order of classes and
names.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from arch.errors import InputError

from .files import reading
from .labelled import SPLITS, Facts, LabelledSet, LabelledSplit, write_set
from .pixels import open_image

if TYPE_CHECKING:
    from .splitting import Progress

NAME = "images"
SUFFIXES = (".jpeg", ".jpg", ".png")
HELD_OUT = 100  # of the training images, one in so many
LAYOUT = (
    "a folder with train/CLASS and val/CLASS of .JPEG or .png files, as images:FOLDER:CLASSES:SIZE (ImageNet-1k: "
    "1,281,167 and 50,000 files in 1,000 classes, 144 GB; its val comes as one folder: sort it into the classes' own)"
)


class Images(NamedTuple):
    """A folder of images that is there; classes: the names of its folders, in the order of their numbers."""

    folder: Path
    classes: list[str]


class ImageFolder:
    """The sources `images:...` (data.arena.Task is of the others)."""

    def facts_of(self, text: str) -> Facts:
        """By what follows the name of the source. Raises InputError where that is not FOLDER:CLASSES:SIZE."""
        _, *numbers = text.rsplit(":", 2)
        if len(numbers) < 2 or not all(
            part.isascii() and part.isdecimal() and 1 < int(part) < 1 << 16 for part in numbers
        ):
            raise InputError(f"corpus.source: {NAME}:{text} does not end in :CLASSES:SIZE; name {LAYOUT}")
        n_classes, size = map(int, numbers)
        return Facts(n_classes, vocab_size=256, max_length=3 * size**2, image=(size, size, 3), encoded=True)

    def find(self, text: str) -> Images:
        """Raises InputError where the folder is not there, or has other classes."""
        n_classes, name = self.facts_of(text).n_classes, text.rsplit(":", 2)[0]
        folder = Path(name).expanduser()
        classes = list[list[str]]()
        for split in ("train", "val"):
            if not name or not (folder / split).is_dir():
                raise InputError(f"corpus.source: {name or 'no folder'}: {split} is not there; name {LAYOUT}")
            classes.append(sorted(path.name for path in (folder / split).iterdir() if path.is_dir()))
        train, val = classes
        if len(train) != n_classes or train != val:
            counts = f"train and val have folders of {len(train)} and {len(val)} classes, not the same {n_classes}"
            raise InputError(f"corpus.source: {name}: {counts}; name {LAYOUT}")
        return Images(folder, train)

    def write(self, source: str, directory: Path, progress: Progress) -> LabelledSet:
        """Make the set that `source` names. Raises InputError where files are missing, or are no images."""
        text = source.partition(":")[2]
        images, facts = self.find(text), self.facts_of(text)
        train, val = (_files(images, split) for split in ("train", "val"))
        held_out = slice(HELD_OUT - 1, None, HELD_OUT)
        kept = [file for i, file in enumerate(train) if i % HELD_OUT != HELD_OUT - 1]
        splits = {}
        for split, files in zip(SPLITS, (kept, train[held_out], val), strict=True):
            if not files:
                raise InputError(f"corpus.source: {images.folder}: too few images for a {split} split; name {LAYOUT}")
            splits[split] = _packed(files, directory.parent, progress)
        return write_set(directory, facts, splits, {"source": source})


def _files(images: Images, split: str) -> list[tuple[Path, int]]:
    """The images of a folder `split`, and the class of each."""
    with reading(f"corpus.source: {images.folder / split}"):
        return [
            (path, label)
            for label, name in enumerate(images.classes)
            for path in sorted((images.folder / split / name).iterdir())
            if path.suffix.lower() in SUFFIXES
        ]


def _packed(files: list[tuple[Path, int]], folder: Path, progress: Progress) -> LabelledSplit:
    """The files one after another, in a file without a name in `folder`: they may be more than memory holds."""
    lengths = []
    with tempfile.TemporaryFile(dir=folder) as disk:
        for i, (path, _) in enumerate(files):
            with reading(f"corpus.source: {path}", "leave it out, or put the image in its place"):
                content = np.fromfile(path, np.uint8)
                open_image(content)
            disk.write(content.data)
            lengths.append(len(content))
            progress(i + 1, len(files), f"{i + 1:,} images")
        disk.flush()
        tokens = np.memmap(disk, np.uint8, "r")
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return LabelledSplit(tokens, offsets, np.array([label for _, label in files], np.int64))
