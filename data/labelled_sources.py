"""The labelled sets that a study file can name as corpus.source: those of data/arena.py, `images:...` of
data/images.py, and `labelled:FOLDER`, a set that is there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from arch.errors import InputError
from data import arena, images
from data.files import fsync_dir, read_manifest
from data.labelled import Facts, LabelledSet, is_set
from data.resumable import is_left, unfinished
from data.vocabulary import FOLDER

if TYPE_CHECKING:
    from data.splitting import Progress

MADE: dict[str, arena.Task | images.ImageFolder] = {**arena.TASKS, images.NAME: images.ImageFolder()}


def facts_of(source: str, directory: Path | None = None) -> Facts:
    """What is known of a labelled set, of the one at `directory` where it is made there and whole. Raises InputError
    where a folder holds none."""
    name, _, rest = source.partition(":")
    if directory is not None and is_set(directory) and read_manifest(directory, verify=False):
        return LabelledSet(directory).facts
    return LabelledSet(Path(rest).expanduser()).facts if name == FOLDER else MADE[name].facts_of(rest)


def check_set(source: str) -> None:
    """Raise InputError where a set, or what it is made of, is not there. Nothing is read."""
    name, _, rest = source.partition(":")
    _ = facts_of(source) if name == FOLDER else MADE[name].find(rest)


def make_set(source: str, directory: Path, progress: Progress, waits: Callable[[], None]) -> LabelledSet:
    """The set at `directory`, made there, or copied, where it is missing or damaged, by one process at a time; `waits`
    is called while another one does. Raises InputError where another set is there."""
    if (there := _existing(source, directory)) is not None and not is_left(directory):
        return there
    with unfinished(directory, waits) as work:
        if (there := _existing(source, directory)) is not None:  # another process made it
            return there
        name, _, rest = source.partition(":")
        if name != FOLDER:
            return MADE[name].write(source, directory, progress)
        origin = LabelledSet(Path(rest).expanduser(), verify=True)
        shutil.rmtree(work.files, ignore_errors=True)  # of a process that was killed
        shutil.copytree(origin.directory, work.files)
        shutil.rmtree(directory, ignore_errors=True)
        work.files.rename(directory)
        fsync_dir(directory.parent)
    return LabelledSet(directory)


def _existing(source: str, directory: Path) -> LabelledSet | None:
    """The set of `source` at `directory`, None where it must be made. Raises InputError where another is there."""
    if read_manifest(directory) is None:
        return None
    there, (name, _, rest) = LabelledSet(directory), source.partition(":")
    if name == FOLDER and Path(rest).expanduser().is_dir():
        is_same = LabelledSet(Path(rest).expanduser()).fingerprint == there.fingerprint
    else:
        is_same = name == FOLDER or there.manifest["origin"]["source"] == source
    if not is_same:
        raise InputError(f"{directory} holds another labelled set: rename the study, or delete that directory")
    return there
