"""Text to a corpus: split by document, drop duplicates, tokenise, shard, and say in a manifest what happened.

    directory/manifest.json        settings, counts, splits, checksums, fingerprint
              train_00000.bin ...  token ids, every document followed by end-of-text
              train.idx            where documents start
              validation_...       the held-out documents, without passages that the training text holds too

The directory appears whole or not at all (data/files.py). What a corpus is follows from text and settings, not from
where the text lies: a source elsewhere with the same text is the same corpus.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from arch.errors import InputError
from data.clean.filtering import entries_of
from data.files import MANIFEST, new_directory, read_manifest, write_json
from data.settings import LATER, CorpusSettings, as_tuple, hash_of
from data.shards import Tokens, open_index, open_split
from data.sources import check_source
from data.splits import SPLITS, Progress, cut_shared, write_splits
from data.splitting import cleaned_of, text_hash
from data.tokenizer import Tokenizer, get_tokenizer, is_at_hand, refuse_another
from data.tokenizer.json_file import JSON_FILES
from data.tokenizer.ranks import RANKS
from data.training_sample import trained
from data.vocabulary import TRAINED, is_file, portable

SCHEMA = 2  # 1: held-out text was not compared with the training text; still opened
SCHEMAS = (1, SCHEMA)
FAR = 2.0  # the held-out share may differ from what was asked for by this factor before that is told
SHARD_TOKENS = 100_000_000
VERIFY_BELOW = 1 << 30  # checksums of a corpus up to this size are verified before it is used again


class Corpus:
    """A prepared corpus, memory-mapped: `train` and `validation` are 1-D arrays of token ids."""

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory = directory
        self.manifest = manifest
        self.fingerprint: str = manifest["fingerprint"]
        self.train: Tokens = open_split(directory, manifest["splits"]["train"])
        self.validation: Tokens = open_split(directory, manifest["splits"]["validation"])

    def is_known_as(self, fingerprint: str, source: list[str]) -> bool:
        """Whether a run that was made of `source` means this corpus by `fingerprint`: those of earlier versions held
        the source, and were of these very shards."""
        settings = self.manifest["settings"] | {"source": list(as_tuple(source))}
        earlier = {name: value for name, value in settings.items() if name != "validation_tokens"}
        return fingerprint in (self.fingerprint, hash_of({"settings": earlier, "shards": _checksums(self.manifest)}))

    @property
    def warnings(self) -> list[str]:
        """A line for each thing that makes the held-out text another than was asked for."""
        return _warnings(self.manifest)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises InputError where the one of that name is another by now, or cannot be opened."""
        made_with = self.manifest["tokenizer"]
        tokenizer = get_tokenizer(made_with["name"], self.directory)
        refuse_another(tokenizer, made_with.get("identity"), f"{self.directory}: the corpus")
        return tokenizer

    @property
    def bytes_per_token(self) -> dict[str, float]:
        """UTF-8 bytes of text per token by split; end-of-text tokens count as tokens of no bytes."""
        return {name: split["bytes"] / split["tokens"] for name, split in self.manifest["splits"].items()}

    def document_starts(self, split: str) -> np.ndarray:
        """int64 [documents + 1]: document i of `split` is tokens[starts[i] : starts[i + 1]], end-of-text included."""
        return open_index(self.directory, split)


def open_corpus(directory: Path | str, verify: bool = False) -> Corpus:
    """The corpus at `directory`; file sizes are checked, with `verify` checksums too.

    Raises InputError where there is none, or it is damaged.
    """
    directory = Path(directory)
    manifest = read_manifest(directory, verify=verify)
    if manifest is None or manifest.get("kind") != "corpus" or manifest.get("schema") not in SCHEMAS:
        state = "is damaged (a file differs from its manifest)" if (directory / MANIFEST).exists() else "does not exist"
        raise InputError(f"corpus at {directory} {state}; prepare it again with `scaling data STUDY`")
    return Corpus(directory, manifest)


def prepare(
    settings: CorpusSettings,
    directory: Path | str,
    progress: Progress | None = None,
    shard_tokens: int = SHARD_TOKENS,
) -> Corpus:
    """Build the corpus of `settings` at `directory`, or open it at once where it already is.

    Raises InputError: source missing, empty or without usable text; a split without documents; `directory` holds a
    corpus of other settings, or files that are no corpus. OSError (disk full) leaves nothing behind.
    """
    directory = Path(directory)
    existing = _existing(settings, directory)
    if existing is not None:
        return existing
    check_source(settings.source)
    before = entries_of(as_tuple(settings.source))
    own = settings.tokenizer.startswith(TRAINED)
    given = None if own else get_tokenizer(settings.tokenizer)
    manifest: dict[str, Any] = {
        "kind": "corpus",
        "schema": SCHEMA,
        "settings": settings.to_dict(),
        "settings_hash": settings.hash,
    }
    if "stdlib:" in as_tuple(settings.source):
        manifest["python"] = platform.python_version()
    with new_directory(directory, manifest, kind="corpus") as temporary:
        cleaned = cleaned_of(settings, temporary, progress)
        dropped = cleaned.dropped
        tokenizer = given or trained(settings, progress, dropped)
        manifest["tokenizer"] = tokenizer.described()
        reading, manifest["splits"] = write_splits(settings, tokenizer, temporary, shard_tokens, progress, dropped)
        for name, content in tokenizer.files().items():
            (temporary / name).write_bytes(content)
        if entries := before + cleaned.entries:
            manifest["cleaning"] = entries
        manifest["counts"], manifest["text_sha256"] = reading.counts, reading.text_hash
        _check_splits(settings, manifest)
        drawn = {split: manifest["splits"][split]["bytes"] for split in SPLITS}
        manifest["held_out_share"] = drawn["validation"] / sum(drawn.values())  # of the bytes, before the cuts

        def compared(n_tokens: int) -> None:
            if progress is not None:
                told = f"{n_tokens:,} training tokens compared with the held-out text"
                progress(reading.read_bytes, reading.read_bytes, told)

        manifest["shared"] = cut_shared(temporary, tokenizer, manifest["splits"], shard_tokens, compared)
        if not manifest["splits"]["validation"]["documents"]:
            raise InputError(
                f"corpus.source: all of the held-out text ({drawn['validation']:,} bytes) occurs in the training text "
                f"too, in passages of {tokenizer.passage_tokens} tokens; give text that does not repeat itself"
            )
        identity = {"settings": settings.identity(), "shards": _checksums(manifest)}
        manifest["fingerprint"] = hash_of(identity | {"passage_tokens": tokenizer.passage_tokens})
    return open_corpus(directory)


def require_tokens(corpus: Corpus, n_tokens: int, epochs: float, context_length: int, batch_rows: int) -> None:
    """Raise InputError unless `epochs` passes over the training split feed ceil(n_tokens / batch tokens) steps."""
    missing, needed, windows = missing_windows(len(corpus.train), n_tokens, epochs, context_length, batch_rows)
    if missing <= 0:
        return
    if windows:
        enough = math.ceil(100 * Decimal(needed) / windows) / 100
        remedy = f"give more text, plan fewer tokens, or allow repetition with corpus.epochs: {enough:g}"
    else:
        remedy = f"one window of context_length {context_length} is longer than the whole split; give more text"
    raise InputError(
        f"corpus at {corpus.directory} is too small: {needed * context_length:,} tokens are planned and its "
        f"training split ({len(corpus.train):,} tokens, {epochs:g} epochs) falls "
        f"{missing * context_length:,} tokens short; {remedy}"
    )


def missing_windows(
    n_there: int, n_tokens: int, epochs: float, context_length: int, batch_rows: int
) -> tuple[int, int, int]:
    """Windows that `epochs` passes over `n_there` training tokens lack for ceil(n_tokens / batch tokens) steps (0 or
    less: none), windows that these steps read, and windows of one pass."""
    windows = (n_there - 1) // context_length
    needed = math.ceil(n_tokens / (batch_rows * context_length)) * batch_rows
    return needed - allowed_windows(windows, epochs), needed, windows


def allowed_windows(n_windows: int, epochs: float) -> int:
    """floor(epochs * n_windows) of the decimal number that was written: 1.15 of 100 windows is 115, not 114."""
    return math.floor(Decimal(repr(float(epochs))) * n_windows)


def _existing(settings: CorpusSettings, directory: Path) -> Corpus | None:
    """The corpus of these settings at `directory`, None where it must be built; refuses to replace anything else."""
    manifest = read_manifest(directory, verify=False)
    if manifest is not None and manifest.get("kind") == "corpus":
        if not is_of(settings, directory, manifest):
            manifest = _adopted(settings, directory, manifest)
        size = sum(file["bytes"] for file in manifest["files"].values())
        if size > VERIFY_BELOW or read_manifest(directory) is not None:
            return Corpus(directory, manifest)
    if directory.exists():
        if not directory.is_dir():
            raise InputError(f"{directory} is where the corpus goes but is a file; rename the study or move it away")
        known = {MANIFEST, RANKS, *JSON_FILES, *(f"{split}.idx" for split in SPLITS)}
        strangers = [
            path.name
            for path in sorted(directory.iterdir())
            if path.name not in known and not (path.suffix == ".bin" and path.name.startswith(SPLITS))
        ]
        if strangers:
            raise InputError(
                f"{directory} is where the corpus goes but holds other files ({strangers[0]}, ...); "
                "rename the study or move them away"
            )
    return None


def is_of(settings: CorpusSettings, directory: Path, manifest: dict[str, Any]) -> bool:
    """Whether the corpus of `manifest` is known to hold the text of the settings' source. Raises InputError where it is
    a corpus of other settings."""
    theirs, ours = manifest.get("settings", {}), settings.to_dict()
    alike, wanted = theirs | {"tokenizer": portable(theirs.get("tokenizer", ""))}, settings.identity()
    differ = [name for name in wanted | LATER if alike.get(name) != wanted.get(name)]
    if differ or manifest.get("schema") not in SCHEMAS:
        raise InputError(
            f"{directory} holds a corpus of other settings: hash {manifest.get('settings_hash')}, this study's is "
            f"{settings.hash} (differ: {', '.join(differ) or 'schema'}); rename the study, or delete that directory"
        )
    if is_file(settings.tokenizer) and is_at_hand(settings.tokenizer):
        refuse_another(get_tokenizer(settings.tokenizer), manifest["tokenizer"]["identity"], f"{directory}: the corpus")
    return ours["source"] in (theirs.get("source"), *manifest.get("same_text", []))


def _adopted(settings: CorpusSettings, directory: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a corpus that was made of another source, with the source of `settings` noted as one of the same
    text. Raises InputError where its text is another."""
    check_source(settings.source)
    if "text_sha256" in manifest:
        same = text_hash(settings, directory.parent) == manifest["text_sha256"]
    else:  # an earlier version's: made again beside, as that version made it
        temporary = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
        temporary.mkdir()
        try:
            made = write_splits(settings, get_tokenizer(settings.tokenizer), temporary, SHARD_TOKENS)[1]
        finally:
            shutil.rmtree(temporary)
        same = _checksums({"splits": made}) == _checksums(manifest)
    if not same:
        raise InputError(
            f"{directory} holds a corpus of other text: it was made of {', '.join(manifest['settings']['source'])}, "
            f"and {', '.join(as_tuple(settings.source))} holds another; rename the study, or delete that directory"
        )
    manifest = manifest | {"same_text": [*manifest.get("same_text", []), settings.to_dict()["source"]]}
    write_json(directory / MANIFEST, manifest, kind="corpus-manifest")
    return manifest


def _warnings(manifest: dict[str, Any]) -> list[str]:
    settings, splits, lines = manifest["settings"], manifest["splits"], list[str]()
    if "shared" not in manifest:
        lines.append(
            "the corpus was made by an earlier version: passages of its held-out text may also be in its training text"
        )
    n_bytes = {split: splits[split]["bytes"] for split in SPLITS}
    share = manifest.get("held_out_share", n_bytes["validation"] / sum(n_bytes.values()))
    asked, got = settings["validation_fraction"], share
    if asked is None:
        asked, got = settings["validation_tokens"], splits["validation"]["tokens"] + manifest["shared"]["tokens"]
    if not asked / FAR <= got <= asked * FAR:
        wanted = f"validation_fraction {asked:g}" if got is share else f"validation_tokens {asked:,}"
        lines.append(
            f"{share:.2%} of the text's bytes are held out ({n_bytes['validation']:,} bytes in "
            f"{splits['validation']['documents']:,} documents), where corpus.{wanted} was asked for: whole documents "
            f"are drawn, and they are few or of unequal lengths; change it, or cut the text into more documents"
        )
    return lines


def _checksums(manifest: dict[str, Any]) -> dict[str, list[str]]:
    return {split: [shard["sha256"] for shard in manifest["splits"][split]["shards"]] for split in SPLITS}


def _check_splits(settings: CorpusSettings, manifest: dict[str, Any]) -> None:
    counts, splits = manifest["counts"], manifest["splits"]
    skipped = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in counts.items() if name != "documents")
    if counts["documents"] == 0:
        raise InputError(
            f"corpus.source: no usable text in {', '.join(as_tuple(settings.source))} ({skipped}); give UTF-8 text"
        )
    for split in SPLITS:
        if splits[split]["documents"] == 0:
            raise InputError(
                f"corpus.source: the {split} split is empty, for there is {counts['documents']} document; give more "
                "(a file in a folder is one, a file named itself is cut into several)"
            )
