"""What the text of a corpus was, file by file, so that a file that has changed since can be named.

`sources.json` lies in the corpus' directory beside what the manifest checks: it decides nothing, and is written again
where files were touched and hold the same text. A look at it compares sizes and times of change; only where these
differ the text is read again.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from arch.amounts import first_few
from arch.errors import InputError
from data.files import read_json, write_json
from data.settings import CorpusSettings
from data.sources.files import Files
from data.sources.hugging_face import HuggingFace
from data.sources.schemes import find

RECORD = "sources.json"
MOST_FILES = 100_000  # of a corpus; of more none is recorded
NAMED = 3  # in a message
DOCUMENT = re.compile(r"[#:]\d+$")  # what an id has behind the name of its file

Texts = dict[str, str]  # {file: hash of its text}, of all streams; the name of a stream stands in front


class FileTexts:
    """The hash of every file's text while documents are read, in their order."""

    def __init__(self) -> None:
        self._texts: Texts = {}
        self._file, self._hash = "", hashlib.sha256()

    def add(self, stream: str, doc_id: str, digest: bytes) -> None:
        """The digest of the next document."""
        file = f"{stream}: {DOCUMENT.sub('', doc_id)}" if stream else DOCUMENT.sub("", doc_id)
        if file != self._file:
            self._finish()
            self._file = file
        self._hash.update(digest)

    def _finish(self) -> None:
        if self._file and len(self._texts) <= MOST_FILES:
            before = self._texts.get(self._file, "")  # files of one name in two folders
            self._texts[self._file] = hashlib.sha256(before.encode() + self._hash.digest()).hexdigest()[:16]
        self._hash = hashlib.sha256()

    def texts(self) -> Texts:
        self._finish()
        self._file = ""
        return dict(self._texts)


def write_record(settings: CorpusSettings, directory: Path, texts: Texts) -> None:
    """Note the text of the files of `settings` for the corpus at `directory`."""
    stats = _stats(settings)
    if stats is not None and len(texts) <= MOST_FILES:
        write_json(directory / RECORD, {"files": stats, "texts": texts}, kind="corpus-sources")


def is_touched(settings: CorpusSettings, directory: Path) -> bool:
    """Whether files have another size or time of change than noted, or are other ones; False where that is not known:
    nothing is noted, or the text is gone."""
    record = _read(directory)
    if record is None:
        return False
    try:
        stats = _stats(settings)
    except InputError:
        return False
    return stats is not None and stats != record["files"]


def differing(directory: Path, texts: Texts) -> str:
    """The files whose text is another than noted, for a message; "" where that is not known."""
    record = _read(directory)
    before: Texts = record["texts"] if record else texts
    changes = [f"{file} is gone" for file in before if file not in texts]
    changes += [f"{file} is new" for file in texts if file not in before]
    changes = [f"{file} differs" for file in texts if before.get(file, texts[file]) != texts[file]] + changes
    return first_few(changes, NAMED)


def _read(directory: Path) -> dict[str, Any] | None:
    try:
        record = read_json(directory / RECORD)
        return {"files": list(record["files"]), "texts": dict(record["texts"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stats(settings: CorpusSettings) -> list[list[Any]] | None:
    """[name, bytes, time of change in ns] of every file; None where they are too many."""
    stats: list[list[Any]] = []
    for stream in settings.streams:
        for entry in stream.source:
            source = find(entry)
            for file in source.files if isinstance(source, Files) else ():
                status = file.path.stat()
                stats.append([file.doc_id, status.st_size, status.st_mtime_ns])
            if isinstance(source, HuggingFace) and source.place:
                for path in sorted(entry for entry in Path(source.place).rglob("*") if entry.is_file()):
                    status = path.stat()
                    stats.append([path.relative_to(source.place).as_posix(), status.st_size, status.st_mtime_ns])
            if len(stats) > MOST_FILES:
                return None
    return stats
