"""What making a corpus would refuse, as far as a quick look without writing can say.

The text is read up to its first document, its size comes from the files' sizes (of compressed ones up to UNPACKED by
decompressing them), and tokens are never counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from arch.errors import InputError
from data.corpus import Corpus, LabelledCorpus, is_of
from data.files import read_manifest
from data.labelled import LabelledSet, is_set
from data.labelled_sources import check_set
from data.left_out import left_out
from data.settings import CorpusSettings, Stream, shown_source
from data.sources.documents import Counts
from data.sources.files import Files
from data.sources.reading import check_source, read_documents
from data.sources.schemes import find
from data.sources.text import NAMED_FILE_PIECE
from data.tokenizer import get_tokenizer
from data.tokenizer.ranks import rank_files
from data.vocabulary import IDS, TRAINED

LOOKED_AT = 1 << 26  # bytes of a source that are read to find its first document
UNPACKED = 1 << 25  # bytes of compressed files that are decompressed to know the size of their text: some seconds


@dataclass(frozen=True)
class Size:
    """Tokens of both splits together. most: there cannot be more, whatever the text is; about: one a byte, an estimate
    for the tokenizer of bytes, None for another."""

    most: int
    about: int | None


def existing_corpus(settings: CorpusSettings, directory: Path) -> Corpus | None:
    """The corpus at `directory` by its manifest and its files' sizes, perhaps one whose text was left out by a bundle;
    None where there is none that is whole.

    Raises InputError: it is of other settings; the source of another place, whose text it may hold too, is not there.
    """
    if settings.labelled:
        return LabelledCorpus(LabelledSet(directory)) if is_set(directory) else None
    manifest = read_manifest(directory, verify=False, partial=True)
    if manifest is None or manifest.get("kind") != "corpus":
        return None
    if not is_of(settings, directory, manifest) and not left_out(directory):
        for stream in settings.streams:
            check_source(stream.source)
    return Corpus(directory, manifest)


def check_text(settings: CorpusSettings) -> list[str]:
    """Raise InputError where a source is not there, is damaged at its start, or has no usable text, or its first record
    has no `text_key`. Returns a line where the little that is read here does not decide it."""
    lines = list[str]()
    if settings.labelled:
        check_set(settings.labelled)
        return lines
    for stream in settings.streams:
        check_source(stream.source)
        if remote := [source for source in stream.source if not find(source).is_at_hand()]:
            lines.append(f"corpus.source: {', '.join(remote)} is read over the network and is not checked here")
            continue
        usable = [_has_text(source, stream.text_key) for source in stream.source]
        shown = shown_source(stream.source)
        if not any(usable) and None not in usable:
            raise InputError(f"corpus.source: no usable text in {shown}; give UTF-8 text")
        if not any(usable):
            lines.append(f"corpus.source: no usable text in the first {LOOKED_AT >> 20} MiB of {shown}")
    return lines


def _has_text(source: str, text_key: str) -> bool | None:
    """None: unknown, because the source continues behind what was read."""
    counts = Counts()
    for _ in read_documents(source, text_key, counts, LOOKED_AT):
        return True
    return None if counts.read_bytes >= LOOKED_AT else False


def check_tokenizer(name: str, fetch: bool) -> list[str]:
    """Raise InputError where a tokenizer cannot be had. fetch: its rank file may be downloaded into tiktoken's folder,
    as making the corpus does; else a line is returned where it is not there."""
    if name.startswith(TRAINED):
        return []
    files = rank_files(name)
    missing = [path for path in files if not path.exists()]
    if missing and not fetch:
        where = missing[0].parent
        return [f"corpus.tokenizer: the rank file of {name} is not in {where} (TIKTOKEN_CACHE_DIR): it is downloaded"]
    if missing or not files:
        get_tokenizer(name)
    return []


def sizes_of(settings: CorpusSettings) -> dict[str, Size | None]:
    """Of each stream, by its name; None where it is not known quickly. Raises InputError as check_source does."""
    return {stream.name: _size_of(stream, settings.tokenizer) for stream in settings.streams}


def _size_of(stream: Stream, tokenizer: str) -> Size | None:
    n_bytes = most = 0
    if tokenizer == IDS:
        return None
    for name in stream.source:
        source = find(name)
        sizes = source.sizes(UNPACKED) if isinstance(source, Files) else source.sizes()
        if sizes is None:
            return None
        n_bytes += sum(sizes)
        # every document ends in a token of its own: a record is longer than its text, a piece of a file is not
        ends = [size // NAMED_FILE_PIECE + 1 if isinstance(source, Files) else size for size in sizes]
        most += sum(sizes) + sum(ends)
    if stream.max_bytes is not None:
        n_bytes, most = min(n_bytes, stream.max_bytes), min(most, 2 * stream.max_bytes)
    return Size(most, n_bytes if tokenizer == "bytes" else None)
