"""Text to a corpus: split by document, drop duplicates, tokenise, shard, and say in a manifest what happened.

    directory/manifest.json        settings, counts, splits, checksums, fingerprint
              train_00000.bin ...  token ids, every document followed by end-of-text
              train.idx            where documents start
              validation_...       the held-out documents

The directory appears whole or not at all (data/files.py). Memory holds a few megabytes of text at a time, and 16 bytes
of hash a document for exact de-duplication.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from arch.errors import InputError
from data.files import MANIFEST, new_directory, read_manifest
from data.shards import SplitWriter, Tokens, open_index, open_split
from data.sources import Counts, Document, as_tuple, check_source, read_documents, source_bytes
from data.tokenizer import Tokenizer, get_tokenizer

SCHEMA = 1
SPLITS = ("train", "validation")
SHARD_TOKENS = 100_000_000
BATCH_BYTES = 4 * 1024 * 1024  # text tokenised at a time
VERIFY_BELOW = 1 << 30  # checksums of a corpus up to this size are verified before it is used again

Progress = Callable[[int, int | None, str], None]  # bytes read, bytes to read (None: unknown), message


@dataclass(frozen=True)
class CorpusSettings:
    """Everything a corpus depends on, apart from the text itself."""

    source: str | tuple[str, ...] = "stdlib:"
    tokenizer: str = "bytes"
    text_key: str = "text"  # of JSONL records
    validation_fraction: float = 0.03  # expected share of documents held out
    max_bytes: int | None = None  # UTF-8 bytes of text taken, in source order; the last document is cut
    seed: int = 0  # of the split

    def __post_init__(self) -> None:
        if not isinstance(self.source, str):
            object.__setattr__(self, "source", tuple(self.source))
        if not 0 < self.validation_fraction < 1:
            raise InputError(
                f"corpus.validation_fraction: {self.validation_fraction} is not between 0 and 1: a split would be empty"
            )
        if self.max_bytes is not None and self.max_bytes <= 0:
            raise InputError(f"corpus.max_bytes: {self.max_bytes} takes no text; give a positive number or null")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"source": list(as_tuple(self.source))}

    @property
    def hash(self) -> str:
        """16 hex digits of SHA-256 over the canonical JSON of the settings."""
        return _hash(self.to_dict())[:16]


class Corpus:
    """A prepared corpus, memory-mapped: `train` and `validation` are 1-D arrays of token ids."""

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory = directory
        self.manifest = manifest
        self.fingerprint: str = manifest["fingerprint"]
        self.train: Tokens = open_split(directory, manifest["splits"]["train"])
        self.validation: Tokens = open_split(directory, manifest["splits"]["validation"])

    @property
    def tokenizer(self) -> Tokenizer:
        return get_tokenizer(self.manifest["tokenizer"]["name"])

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
    if manifest is None or manifest.get("kind") != "corpus" or manifest.get("schema") != SCHEMA:
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
    tokenizer = get_tokenizer(settings.tokenizer)
    manifest: dict[str, Any] = {
        "kind": "corpus",
        "schema": SCHEMA,
        "settings": settings.to_dict(),
        "settings_hash": settings.hash,
        "tokenizer": {"name": tokenizer.name, "vocab_size": tokenizer.vocab_size, "eot_id": tokenizer.eot_id},
    }
    if "stdlib:" in as_tuple(settings.source):
        manifest["python"] = platform.python_version()
    with new_directory(directory, manifest, kind="corpus") as temporary:
        writers = {split: SplitWriter(temporary, split, tokenizer.dtype, shard_tokens) for split in SPLITS}
        try:
            manifest["counts"] = _write_splits(settings, tokenizer, writers, progress)
            manifest["splits"] = {split: writer.close() for split, writer in writers.items()}
        finally:
            for writer in writers.values():
                writer.abandon()
        _check_splits(settings, manifest)
        checksums = {s: [shard["sha256"] for shard in manifest["splits"][s]["shards"]] for s in SPLITS}
        manifest["fingerprint"] = _hash({"settings": settings.to_dict(), "shards": checksums})
    return open_corpus(directory)


def require_tokens(corpus: Corpus, n_tokens: int, epochs: float, context_length: int, batch_rows: int) -> None:
    """Raise InputError unless `epochs` passes over the training split feed ceil(n_tokens / batch tokens) steps."""
    windows = (len(corpus.train) - 1) // context_length
    needed = math.ceil(n_tokens / (batch_rows * context_length)) * batch_rows
    missing = needed - allowed_windows(windows, epochs)
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


def allowed_windows(n_windows: int, epochs: float) -> int:
    """floor(epochs * n_windows) of the decimal number that was written: 1.15 of 100 windows is 115, not 114."""
    return math.floor(Decimal(repr(float(epochs))) * n_windows)


def _existing(settings: CorpusSettings, directory: Path) -> Corpus | None:
    """The corpus of these settings at `directory`, None where it must be built; refuses to replace anything else."""
    manifest = read_manifest(directory, verify=False)
    if manifest is not None and manifest.get("kind") == "corpus":
        if manifest.get("settings_hash") != settings.hash or manifest.get("schema") != SCHEMA:
            theirs, ours = manifest.get("settings", {}), settings.to_dict()
            differ = [f.name for f in fields(settings) if theirs.get(f.name) != ours[f.name]] or ["schema"]
            raise InputError(
                f"{directory} holds a corpus of other settings: hash {manifest.get('settings_hash')}, this study's is "
                f"{settings.hash} (differ: {', '.join(differ)}); rename the study, or delete that directory"
            )
        size = sum(file["bytes"] for file in manifest["files"].values())
        if size > VERIFY_BELOW or read_manifest(directory) is not None:
            return Corpus(directory, manifest)
    if directory.exists():
        if not directory.is_dir():
            raise InputError(f"{directory} is where the corpus goes but is a file; rename the study or move it away")
        known = {MANIFEST, *(f"{split}.idx" for split in SPLITS)}
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


def _write_splits(
    settings: CorpusSettings, tokenizer: Tokenizer, writers: dict[str, SplitWriter], progress: Progress | None
) -> dict[str, int]:
    """Stream every document into its split; the counts of the manifest."""
    counts = Counts()
    seen: set[bytes] = set()
    n_documents = duplicates = 0
    total = source_bytes(settings.source)
    if total is not None and settings.max_bytes is not None:
        total = min(total, settings.max_bytes)
    threshold = int(settings.validation_fraction * (1 << 64))

    for batch in _batches(_first_bytes(read_documents(settings.source, settings.text_key, counts), settings.max_bytes)):
        kept: list[tuple[str, str, int]] = []
        for doc_id, text in batch:
            content = text.encode("utf-8")
            digest = hashlib.blake2b(content, digest_size=16).digest()
            if digest in seen:
                duplicates += 1
                continue
            seen.add(digest)
            draw = hashlib.blake2b(f"{settings.seed}\0{doc_id}\0".encode() + digest, digest_size=8).digest()
            split = "validation" if int.from_bytes(draw, "little") < threshold else "train"
            kept.append((split, text, len(content)))
        n_documents += len(kept)
        encoded = tokenizer.encode_batch([text for _, text, _ in kept])
        for (split, _, n_bytes), ids in zip(kept, encoded, strict=True):
            writers[split].append(ids, tokenizer.eot_id, n_bytes)
        if progress is not None:
            done = counts.read_bytes if total is None else min(counts.read_bytes, total)
            tokens = sum(writer.n_tokens for writer in writers.values())
            progress(done, total, f"{n_documents:,} documents, {tokens:,} tokens")

    skipped = {name: value for name, value in asdict(counts).items() if name != "read_bytes"}
    return {"documents": n_documents, "duplicates": duplicates, **skipped}


def _first_bytes(documents: Iterator[Document], max_bytes: int | None) -> Iterator[Document]:
    """Documents up to `max_bytes` of UTF-8; the last one is cut between characters."""
    if max_bytes is None:
        yield from documents
        return
    for document in documents:
        content = document.text.encode("utf-8")[:max_bytes]
        max_bytes -= len(content)
        text = content.decode("utf-8", errors="ignore")
        if text.strip():
            yield Document(document.doc_id, text)
        if max_bytes <= 0:
            return


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


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
                f"corpus.validation_fraction: the {split} split is empty ({counts['documents']} documents, fraction "
                f"{settings.validation_fraction:g}, seed {settings.seed}); "
                "give more documents (a file in a folder is one, a file named itself is cut into several), or change "
                "the fraction or seed"
            )


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
