"""Text to a corpus: split by document, drop duplicates, tokenise, shard, and say in a manifest what happened.

    directory/manifest.json        settings, counts, splits, checksums, fingerprint
              train_00000.bin ...  token ids, every document followed by end-of-text
              train.idx            where documents start
              validation_...       the held-out documents, without passages that the training text holds too

A mixture has these files for each of its sources: train.<name>_00000.bin ...

The directory appears whole or not at all (data/files.py). What a corpus is follows from text, settings and the names of
files within their source, not from where the source lies: a folder elsewhere with the same files is the same corpus.
Text whose files were renamed, in the same order, is taken for that of a corpus that is there; made anew it would be
split otherwise.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from arch.errors import InputError
from data.augment import Drawn
from data.clean.filtering import entries_of
from data.files import MANIFEST, damage, read_manifest, seal_directory, write_json
from data.labelled import LabelledSet, Rows, is_set
from data.labelled_sources import make_set
from data.left_out import RECORD as LEFT_OUT
from data.left_out import left_out
from data.loader import Draw
from data.manifest import (
    add_cuts,
    check_splits,
    describe_splits,
    fingerprint_of,
    is_whole,
    parts_of,
    streams_in,
    warnings_of,
)
from data.mixture import Part
from data.resumable import is_left, unfinished
from data.settings import Augmentation, CorpusSettings, identity_of, shown_source
from data.shards import Tokens, open_index, open_split, stem_of
from data.source_record import RECORD, differing, is_touched, write_record
from data.sources.reading import check_source, versions_of
from data.splits import SPLITS, cut_shared, write_splits
from data.splitting import Progress, cleaned_of, read_again, silent
from data.tokenizer import Tokenizer, get_tokenizer, is_at_hand, refuse_another
from data.tokenizer.json_file import JSON_FILES
from data.tokenizer.ranks import RANKS
from data.training_sample import trained
from data.truth.corpus_rate import entropy_rate
from data.vocabulary import TRAINED, is_file

SCHEMA = 2
SHARD_TOKENS = 100_000_000
TEXT_LEFT_OUT = "the corpus' text was left out by a bundle"
VERIFY_BELOW = 1 << 30  # checksums of a corpus up to this size are verified before it is used again
OTHER = "it is of another kind or version"


class Corpus:
    """A prepared corpus, memory-mapped: `train` and `validation` are 1-D arrays of token ids. One that came in a bundle
    has no text: they raise InputError then."""

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory = directory
        self.manifest = manifest
        self.fingerprint: str = manifest["fingerprint"]
        self.damaged = ""  # what was wrong with the one that was here, where this one has replaced it
        self.is_left_out = bool(left_out(directory))

    @cached_property
    def train(self) -> Tokens:
        return self._opened("train")

    @cached_property
    def validation(self) -> Tokens:
        """Checked against its checksums: every held-out loss rests on it."""
        tokens = self._opened("validation")
        if wrong := damage(self.directory, "validation"):
            raise InputError(f"corpus at {self.directory} is damaged ({wrong}); `scaling data STUDY` makes it again")
        return tokens

    def _opened(self, split: str) -> Tokens:
        if self.is_left_out:
            raise InputError(f"{self.directory}: {TEXT_LEFT_OUT}; `scaling data STUDY` makes it again from its source")
        return open_split(self.directory, self.manifest["splits"][split])

    @property
    def warnings(self) -> list[str]:
        """A line for each way in which the held-out text differs from the settings."""
        return warnings_of(self.manifest)

    def n_tokens(self, split: str) -> int:
        return int(self.manifest["splits"][split]["tokens"])

    def parts(self, split: str) -> list[Part]:
        """Where the tokens of each source of a mixture lie in a split; of another corpus the whole, without a name."""
        return parts_of(self.manifest, split)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises InputError where the one of that name is another by now, or cannot be opened."""
        made_with = self.manifest["tokenizer"]
        tokenizer = get_tokenizer(made_with["name"], self.directory)
        refuse_another(tokenizer, made_with["identity"], f"{self.directory}: the corpus")
        return tokenizer

    def drawn(self, augmentation: Augmentation | None, seed: int) -> Draw | None:
        """What draws the rows of training; None: they are read as they are. Raises InputError where these cannot be
        changed so."""
        if augmentation is not None:
            raise InputError("corpus.augment: is of images, and the corpus is text: leave it out")
        return None

    def document_starts(self, split: str) -> np.ndarray:
        """int64 [documents + 1]: document i of `split` is tokens[starts[i] : starts[i + 1]], end-of-text included."""
        return open_index(self.directory, [stem_of(split, part.name) for part in self.parts(split)])


class LabelledCorpus(Corpus):
    """A labelled set as a corpus of rows, each a window whose last target is a class (data.labelled.Rows)."""

    def __init__(self, labelled: LabelledSet) -> None:
        super().__init__(labelled.directory, labelled.manifest)
        self.labelled = labelled

    def _opened(self, split: str) -> Tokens:
        rows: Any = Rows(self.labelled.split(split), self.labelled.facts)
        return rows

    def drawn(self, augmentation: Augmentation | None, seed: int) -> Draw | None:
        return None if augmentation is None else Drawn(self.labelled, augmentation, seed)

    @cached_property
    def test(self) -> Tokens:
        """Checked against its checksums, as `validation`."""
        if wrong := damage(self.directory, "test"):
            raise InputError(f"{self.directory}: is damaged ({wrong}); `scaling data STUDY` makes it again")
        return self._opened("test")

    @property
    def warnings(self) -> list[str]:
        return []


def open_corpus(directory: Path | str, verify: bool = False) -> Corpus:
    """The corpus at `directory`, perhaps one whose text was left out; file sizes are checked, with `verify` checksums
    too.

    Raises InputError where there is none, or it is damaged.
    """
    directory = Path(directory)
    if is_set(directory):
        return LabelledCorpus(LabelledSet(directory, verify))
    manifest = _manifest_of(directory, verify=verify, partial=True)
    if manifest is None or manifest.get("schema") != SCHEMA:
        state = f"is damaged ({damage(directory) or OTHER})" if (directory / MANIFEST).exists() else "does not exist"
        raise InputError(f"corpus at {directory} {state}; prepare it again with `scaling data STUDY`")
    return Corpus(directory, manifest)


def prepare(
    settings: CorpusSettings,
    directory: Path | str,
    progress: Progress = silent,
    shard_tokens: int = SHARD_TOKENS,
    text: bool = True,
) -> Corpus:
    """Build the corpus of `settings` at `directory`, or open it at once where it already is.

    text: whether it is read; one whose text was left out by a bundle is opened as it is without, and else made again,
    which must give the very same corpus.

    Raises InputError: source missing, empty or without usable text; a split without documents; `directory` holds a
    corpus of other settings, or files that are no corpus. OSError (disk full) leaves nothing behind.
    """
    directory = Path(directory)

    def waits() -> None:
        progress(0, None, f"waiting for another process that makes {directory}")

    if settings.labelled:
        return LabelledCorpus(make_set(settings.labelled, directory, progress, waits))
    bundled = _bundled(settings, directory)
    if bundled is not None and not text:
        return bundled
    existing = None if bundled else _existing(settings, directory)
    if existing is not None and not is_left(directory):
        return existing
    if bundled:
        check_at_hand(settings, directory)
    for stream in settings.streams:
        check_source(stream.source)
    before = entries_of(tuple(source for stream in settings.streams for source in stream.source))
    own = settings.tokenizer.startswith(TRAINED)
    given = None if own else get_tokenizer(settings.tokenizer)
    manifest: dict[str, Any] = {
        "kind": "corpus",
        "schema": SCHEMA,
        "settings": settings.to_dict(),
        "settings_hash": settings.hash,
    }
    manifest |= versions_of([source for stream in settings.streams for source in stream.source])

    with unfinished(directory, waits) as work:
        bundled = _bundled(settings, directory)
        if not bundled and (existing := _existing(settings, directory)) is not None:  # another process made it
            return existing
        damaged = (damage(directory) or OTHER) if (directory / MANIFEST).exists() and not bundled else ""
        cleaned = cleaned_of(settings, work.folder, progress)
        dropped = cleaned.dropped
        tokenizer = given or trained(settings, progress, dropped)
        manifest["tokenizer"] = tokenizer.described()
        reading, written = write_splits(settings, tokenizer, work, shard_tokens, progress, dropped)
        for name, content in tokenizer.files().items():
            (work.files / name).write_bytes(content)
        if entries := before + cleaned.entries:
            manifest["cleaning"] = entries
        manifest["counts"], manifest["text_sha256"] = reading.counts, reading.text_hash
        check_splits(settings, reading, written)
        manifest |= describe_splits(settings, written)

        def compared(n_tokens: int) -> None:
            message = f"{n_tokens:,} training tokens compared with the held-out text"
            progress(reading.read_bytes, reading.read_bytes, message)

        names, drawn = [stream.name for stream in settings.streams], manifest["splits"]["validation"]["bytes"]
        cuts = cut_shared(work, tokenizer, names, written, shard_tokens, compared)
        for stream, splits in zip(settings.streams, written, strict=True):
            if not splits["validation"]["documents"]:
                of = f" of source {stream.name}" if stream.name else ""
                raise InputError(
                    f"corpus.source: all of the held-out text{of} ({drawn:,} bytes in all) occurs in the training text "
                    f"too, in passages of {tokenizer.passage_tokens} tokens; give text that does not repeat itself"
                )
        add_cuts(manifest, written, tokenizer.passage_tokens, cuts)
        if rate := entropy_rate(settings, streams_in(manifest)):
            manifest["entropy_rate"] = rate
        manifest["fingerprint"] = fingerprint_of(settings, manifest)
        if bundled:
            manifest = _as_bundled(bundled, manifest["fingerprint"])
        seal_directory(work.files, directory, manifest, kind="corpus")
        write_record(settings, directory, reading.files.texts())
    corpus = open_corpus(directory)
    corpus.damaged = damaged
    return corpus


def _manifest_of(directory: Path, verify: bool = True, partial: bool = False) -> dict[str, Any] | None:
    """The manifest of a corpus, as `read_manifest` has it; None where it is of something else, or not whole."""
    manifest = read_manifest(directory, verify, partial)
    return manifest if manifest is not None and manifest.get("kind") == "corpus" and is_whole(manifest) else None


def _existing(settings: CorpusSettings, directory: Path) -> Corpus | None:
    """The corpus of these settings at `directory`, None where it must be built; refuses to replace anything else."""
    manifest = _manifest_of(directory, verify=False)
    if manifest is not None:
        if not is_of(settings, directory, manifest) or is_touched(settings, directory):
            manifest = _adopted(settings, directory, manifest)
        size = sum(file["bytes"] for file in manifest["files"].values())
        if size > VERIFY_BELOW or read_manifest(directory) is not None:
            return Corpus(directory, manifest)
    if directory.exists():
        if not directory.is_dir():
            raise InputError(f"{directory} is where the corpus goes but is a file; rename the study or move it away")
        ours = (".bin", ".idx")
        other_files = [
            path.name
            for path in sorted(directory.iterdir())
            if path.name not in (MANIFEST, RECORD, LEFT_OUT, RANKS, *JSON_FILES)
            and not (path.suffix in ours and path.name.startswith(SPLITS))
        ]
        if other_files:
            raise InputError(
                f"{directory} is where the corpus goes but holds other files ({other_files[0]}, ...); "
                "rename the study or move them away"
            )
    return None


def _bundled(settings: CorpusSettings, directory: Path) -> Corpus | None:
    """The corpus at `directory` where its text was left out by a bundle. Raises InputError where it is one of other
    settings."""
    manifest = _manifest_of(directory, partial=True) if left_out(directory) else None
    if manifest is None:
        return None
    is_of(settings, directory, manifest)
    return Corpus(directory, manifest)


def check_at_hand(settings: CorpusSettings, directory: Path) -> None:
    """Raise InputError where the text that was left out of the corpus at `directory` cannot be read here."""
    try:
        for stream in settings.streams:
            check_source(stream.source)
    except InputError as error:
        raise InputError(f"{directory}: {TEXT_LEFT_OUT}, and cannot be made again here: {error}") from None


def _as_bundled(bundled: Corpus, fingerprint: str) -> dict[str, Any]:
    """The manifest that the bundle brought. Raises InputError where the corpus that was made is another."""
    if fingerprint != bundled.fingerprint:
        raise InputError(
            f"{bundled.directory}: {TEXT_LEFT_OUT}, and the source gives another corpus here ({fingerprint[:16]}, not "
            f"{bundled.fingerprint[:16]}): give the text that the runs were trained on"
        )
    return bundled.manifest


def is_of(settings: CorpusSettings, directory: Path, manifest: dict[str, Any]) -> bool:
    """Whether the corpus of `manifest` is known to hold the text of the settings' source. Raises InputError where it is
    a corpus of other settings."""
    theirs, ours = identity_of(manifest["settings"]), settings.identity()
    differ = [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]
    if differ or manifest.get("schema") != SCHEMA:
        raise InputError(
            f"{directory} holds a corpus of other settings: hash {manifest.get('settings_hash')}, this study's is "
            f"{settings.hash} (differ: {', '.join(differ) or 'schema'}); rename the study, or delete that directory"
        )
    if is_file(settings.tokenizer) and is_at_hand(settings.tokenizer):
        refuse_another(get_tokenizer(settings.tokenizer), manifest["tokenizer"]["identity"], f"{directory}: the corpus")
    return settings.to_dict()["source"] in (manifest["settings"]["source"], *manifest.get("same_text", []))


def _adopted(settings: CorpusSettings, directory: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a corpus that was made of another source or of files that were touched since, with the source of
    `settings` noted as one of the same text. Raises InputError where its text is another."""
    for stream in settings.streams:
        check_source(stream.source)
    theirs, ours = manifest["settings"]["source"], settings.to_dict()["source"]
    reading = read_again(settings, directory.parent)
    texts = reading.files.texts()
    if reading.text_hash != manifest["text_sha256"]:
        difference = f" ({words})" if (words := differing(directory, texts)) else ""
        what = f"it was made of {shown_source(theirs)}, and {shown_source(ours)} holds another{difference}"
        if ours == theirs:
            what = f"{shown_source(ours)} has changed since{difference}"
        raise InputError(
            f"{directory} holds a corpus of other text: {what}; rename the study, or delete that directory"
        )
    if ours not in (theirs, *manifest.get("same_text", [])):
        manifest = manifest | {"same_text": [*manifest.get("same_text", []), ours]}
        write_json(directory / MANIFEST, manifest, kind="corpus-manifest")
    if texts:
        write_record(settings, directory, texts)
    return manifest
