"""A study's corpus on the own disk of a node: copied there once, for all runs that train on it."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from pathlib import Path

from arch.errors import InputError

from .corpus import Corpus, open_corpus
from .files import STAGE


def open_staged(directory: Path) -> Corpus:
    """The corpus at `directory`, or the node's copy of it, which the first process that comes makes. One that cannot be
    copied is read where it is. Raises InputError as open_corpus."""
    corpus = open_corpus(directory)
    if not (folder := os.environ.get(STAGE)):
        return corpus
    copy = Path(folder) / f"corpus-{corpus.fingerprint[:16]}"
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{copy}.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not copy.exists():
                temporary = Path(f"{copy}.tmp")
                shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
                shutil.copytree(directory, temporary)
                temporary.rename(copy)
        return open_corpus(copy)
    except (OSError, InputError) as error:
        why = " ".join(str(error).split())[:300]
        print(f"the corpus is read from {directory}: no copy at {copy}: {why}", file=sys.stderr, flush=True)
        return corpus
