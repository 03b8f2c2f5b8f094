"""A checkpoint opened for evaluation, and the guard that refuses one which is not the model that was trained.

Every checkpoint's manifest has the loss of the reloaded model on a fixed batch of held-out text. The evaluation reads
that batch again and refuses where the loss differs: a head that was not loaded, a changed configuration or code that
computes something else would otherwise score at chance level without a word.
"""

from __future__ import annotations

import json
import math
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from arch.errors import InputError
from arch.model.lm import WEIGHTS, empty_model, load_weights, read_weights
from data.units import loss_unit
from scaling.rundir.checkpoint_writer import probe_loss, probe_parts, probe_rows
from scaling.rundir.find_checkpoint import find_checkpoint

from .model import LoadedModel, Meter
from .replayed import Batches

if TYPE_CHECKING:
    from data.corpus import Corpus
    from data.tokenizer import Tokenizer
    from scaling.rundir.saved import Checkpoint


MAX_BYTES = 1 << 30  # of weights that wait in memory; larger ones are verified ahead, and read again when it is time


@dataclass(frozen=True)
class Files:
    """What a checkpoint's directory holds, its checksums verified; weights: None where they are too large to wait."""

    found: Checkpoint
    config: bytes
    weights: dict[str, Tensor] | None


class ReadAhead:
    """Reads checkpoints, once each; `pinned`: weights lie where a GPU copies them from while the host goes on."""

    def __init__(self, pinned: bool = False) -> None:
        self._pinned = pinned
        self._thread = ThreadPoolExecutor(1, "reader")
        self._next: tuple[Path, Future[Files]] | None = None

    def start(self, path: Path) -> None:
        """Read it now, in the thread."""
        self._next = path, self._thread.submit(self._read, path)

    def files(self, path: Path) -> Files:
        """Of the checkpoint at `path`. Raises InputError where none is, or it is damaged."""
        ahead, self._next = self._next, None
        return ahead[1].result() if ahead is not None and ahead[0] == path else self._read(path)

    def _read(self, path: Path) -> Files:
        found = find_checkpoint(path, lambda line: None)
        config = (path / "config.json").read_bytes()
        if found.manifest["files"][WEIGHTS]["bytes"] > MAX_BYTES:
            return Files(found, config, None)
        weights = read_weights(path)
        return Files(found, config, pinned(weights) if self._pinned else weights)


def pinned(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same in pinned memory, in one piece for each dtype."""
    found: dict[str, Tensor] = {}
    for dtype in {tensor.dtype for tensor in weights.values()}:
        some = {name: tensor for name, tensor in weights.items() if tensor.dtype == dtype}
        whole = torch.empty(sum(tensor.numel() for tensor in some.values()), dtype=dtype, pin_memory=True)
        pieces = whole.split([tensor.numel() for tensor in some.values()])
        for (name, tensor), piece in zip(some.items(), pieces, strict=True):
            found[name] = piece.view(tensor.shape).copy_(tensor)
    return found


# Nats a token. On one CPU the chunked form, the naive one and float64 agree within 1e-7; the rest is left to GPUs,
# whose matrix products may be in TF32. What is no longer the same model is off by more (tests).
PROBE_TOLERANCE = 1e-3
# Of a reading in bf16, whose rounding put it off by 6.6e-4 at most (168 checkpoints of 0.4 to 31 M, on an H100; median
# 4.9e-5): together they are within the tolerance. 9 of those would be read again.
ENOUGH = PROBE_TOLERANCE / 4


@dataclass
class ModelCache:
    """What checkpoints of one study have in common, opened once: the corpus, its probe batches by context length, the
    tokenizers that were found right, the last model, whose modules serve the next checkpoint of its configuration, and
    the files of the next one. passes: of a GPU.
    """

    corpus: Corpus | None = None
    probes: dict[int, Tensor] = field(default_factory=dict)
    tokenizers: dict[str, Tokenizer] = field(default_factory=dict)  # by the SHA-256 of their files
    config: bytes = b""
    loaded: LoadedModel | None = None
    ahead: ReadAhead = field(default_factory=ReadAhead)
    passes: Batches | None = None

    @classmethod
    def of_device(cls, device: str) -> ModelCache:
        """On a GPU with batches as graphs, and weights that wait where it copies them from."""
        on_gpu = device != "cpu"
        return cls(
            ahead=ReadAhead(on_gpu), passes=Batches(partial(print, file=sys.stderr, flush=True)) if on_gpu else None
        )


def load_guarded(
    checkpoint: Path, corpus_dir: Path, device: str, autocast: bool, cache: ModelCache | None = None
) -> LoadedModel:
    """The model of `checkpoint` in fp32 on `device`; autocast: read it under bf16 autocast where that is a GPU.

    cache: of one worker on one corpus and device; a model opened with it before is no longer what it was.
    Raises InputError, one line: no intact checkpoint, a tokenizer that is not the corpus' or not the one whose files
    the checkpoint carries, no probe loss, or one that does not come out again.
    """
    from data.corpus import open_corpus

    cache = ModelCache() if cache is None else cache
    last, cache.loaded = cache.loaded, None  # nothing is kept of what is refused
    files = cache.ahead.files(checkpoint)
    found = files.found
    corpus = cache.corpus = cache.corpus or open_corpus(corpus_dir)
    tokenizer = _tokenizer(found, corpus, cache)
    if last is not None and files.config == cache.config:
        model, meter = last.model, last.meter
    else:
        del last  # two may not fit
        model, meter = empty_model(checkpoint, device=device).eval(), Meter()
        meter.attach(model)
    load_weights(model, checkpoint, files.weights)
    length = model.model_config.context_length
    rows = cache.probes.get(length)
    if rows is None:
        rows = cache.probes[length] = torch.from_numpy(probe_rows(corpus.validation, length)).to(device)
    expected = found.manifest.get("probe_loss")
    if expected is None or found.manifest.get("probe_rows") != list(rows.shape):
        raise InputError(
            f"{checkpoint}: its manifest has no probe loss of this corpus, so nothing shows that this is the model "
            f"that was trained; train it again"
        )
    on_gpu = device.startswith("cuda")
    loaded = LoadedModel(
        model, model.model_config, tokenizer, device, autocast and on_gpu, length, checkpoint, meter, cache.passes
    )
    now = _probe_loss(loaded, rows, expected)
    if not math.isfinite(now) or abs(now - expected) > PROBE_TOLERANCE:
        raise InputError(
            f"{checkpoint}: its probe loss is {now:.4f} {loss_unit([tokenizer.name])} and was {expected:.4f} when it "
            f"was written: this is not the model that was trained (other code, configuration or corpus); not evaluated"
        )
    meter.reset()  # the probe is none of an evaluation's passes
    cache.config, cache.loaded = files.config, loaded
    return loaded


def _probe_loss(loaded: LoadedModel, rows: Tensor, expected: float) -> float:
    """In fp32, as when the checkpoint was written; or as evaluations read it, which takes a GPU a fraction of the time,
    where that comes close enough."""
    if loaded.passes is not None:
        parts = probe_parts(rows, loaded.config)
        now = float(sum(loaded.passes.few(loaded, part).double().sum() for part in parts)) / rows[:, 1:].numel()
        if abs(now - expected) <= ENOUGH:
            return now
    return probe_loss(loaded.model, rows)


def _tokenizer(found: Checkpoint, corpus: Corpus, cache: ModelCache) -> Tokenizer:
    """The checkpoint's, once checked."""
    key = str(found.manifest["files"].get("tokenizer.json", {}).get("sha256"))  # its file was verified
    if key not in cache.tokenizers:
        tokenizer = found.tokenizer()
        check_tokenizer(found, corpus)
        cache.tokenizers[key] = tokenizer
    return cache.tokenizers[key]


def check_tokenizer(checkpoint: Checkpoint, corpus: Corpus) -> None:
    """Raise InputError where the checkpoint's tokenizer is not the corpus', or its files are not what this version
    writes for it (as where somebody replaced them)."""
    own, wanted = checkpoint.tokenizer(), corpus.tokenizer
    if own.identity != wanted.identity:
        raise InputError(
            f"{checkpoint.path}: its tokenizer is {own.name} ({own.identity[:12]}), the study's corpus is of "
            f"{wanted.name} ({wanted.identity[:12]}): the checkpoint belongs to another study"
        )
    if _vocabulary((checkpoint.path / "tokenizer.json").read_bytes()) != _known_vocabulary(wanted):
        raise InputError(
            f"{checkpoint.path}/tokenizer.json: differs from the tokenizer {own.name} known here: put the file back "
            f"that training wrote"
        )


@cache
def _vocabulary(content: bytes) -> Any:
    try:
        found = json.loads(content)
        return found["model"]["vocab"], found["added_tokens"]
    except (ValueError, KeyError, TypeError):
        return None


def _known_vocabulary(tokenizer: Tokenizer) -> Any:
    from data.hf_tokenizer import tokenizer_files

    return _vocabulary(tokenizer_files(tokenizer)["tokenizer.json"])
