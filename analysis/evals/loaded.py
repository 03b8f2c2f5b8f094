"""A checkpoint opened for evaluation, and the guard that refuses a model which is not the one that was trained.

Every checkpoint's manifest has the loss of the reloaded model on a fixed batch of held-out text. The evaluation reads
that batch again and refuses the checkpoint where the loss differs: otherwise a head that was not loaded, a changed
configuration or code that computes something else would score at chance level, and nobody would notice. The files of
the next checkpoint are read in a thread while a checkpoint is evaluated.
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


MAX_BYTES = 1 << 30  # of weights that wait in memory; larger files are verified ahead, and read again when needed


@dataclass(frozen=True)
class Files:
    """What a checkpoint's directory holds, with verified checksums. weights: None where they are too large to keep in
    memory."""

    checkpoint: Checkpoint
    config: bytes
    weights: dict[str, Tensor] | None


class ReadAhead:
    """Reads each checkpoint once, ahead of its use. pinned: into memory from which a GPU copies while the host goes
    on."""

    def __init__(self, pinned: bool = False) -> None:
        self._pinned = pinned
        self._thread = ThreadPoolExecutor(1, "reader")
        self._next: tuple[Path, Future[Files]] | None = None

    def start(self, path: Path) -> None:
        """Begin to read the checkpoint in the thread."""
        self._next = path, self._thread.submit(self._read, path)

    def files(self, path: Path) -> Files:
        """The files of the checkpoint at `path`. Raises InputError where there is none, or it is damaged."""
        ahead, self._next = self._next, None
        return ahead[1].result() if ahead is not None and ahead[0] == path else self._read(path)

    def _read(self, path: Path) -> Files:
        checkpoint = find_checkpoint(path, lambda line: None)
        config = (path / "config.json").read_bytes()
        if checkpoint.manifest["files"][WEIGHTS]["bytes"] > MAX_BYTES:
            return Files(checkpoint, config, None)
        weights = read_weights(path)
        return Files(checkpoint, config, pinned(weights) if self._pinned else weights)


def pinned(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights in pinned memory, in one piece for each dtype."""
    by_name: dict[str, Tensor] = {}
    for dtype in {tensor.dtype for tensor in weights.values()}:
        some = {name: tensor for name, tensor in weights.items() if tensor.dtype == dtype}
        whole = torch.empty(sum(tensor.numel() for tensor in some.values()), dtype=dtype, pin_memory=True)
        pieces = whole.split([tensor.numel() for tensor in some.values()])
        for (name, tensor), piece in zip(some.items(), pieces, strict=True):
            by_name[name] = piece.view(tensor.shape).copy_(tensor)
    return by_name


# Nats a token. On one CPU the chunked form, the naive one and float64 agree within 1e-7; the rest is left to GPUs,
# whose matrix products may be in TF32. What is no longer the same model is off by more (tests).
PROBE_TOLERANCE = 1e-3
# Of a reading in bf16, whose rounding put it off by 6.6e-4 at most (168 checkpoints of 0.4 to 31 M, on an H100; median
# 4.9e-5): together they are within the tolerance. 9 of those would be read again.
ENOUGH = PROBE_TOLERANCE / 4


@dataclass
class ModelCache:
    """What checkpoints of one study share, opened once: the corpus, its probe batches by context length, the tokenizers
    that were checked, the last model, whose modules serve the next checkpoint of the same configuration, and the reader
    of the next checkpoint's files. passes: None on a CPU.
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
        """A cache for this device: on a GPU with batches as CUDA graphs and weights in pinned memory."""
        on_gpu = device != "cpu"
        return cls(
            ahead=ReadAhead(on_gpu), passes=Batches(partial(print, file=sys.stderr, flush=True)) if on_gpu else None
        )


def load_guarded(
    checkpoint: Path, corpus_dir: Path, device: str, autocast: bool, cache: ModelCache | None = None
) -> LoadedModel:
    """The model of `checkpoint` in fp32 on `device`; autocast: read it under bf16 autocast where that is a GPU.

    cache: of one worker on one corpus and device; a model that was opened with it before is overwritten. Raises
    InputError: no intact checkpoint, a tokenizer that is not the corpus' or differs from the files that the checkpoint
    carries, no probe loss, or another probe loss than when the checkpoint was written.
    """
    from data.corpus import open_corpus

    cache = ModelCache() if cache is None else cache
    last, cache.loaded = cache.loaded, None  # nothing is kept of what is refused
    files = cache.ahead.files(checkpoint)
    saved = files.checkpoint
    corpus = cache.corpus = cache.corpus or open_corpus(corpus_dir)
    tokenizer = _tokenizer(saved, corpus, cache)
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
    expected = saved.manifest.get("probe_loss")
    if expected is None or saved.manifest.get("probe_rows") != list(rows.shape):
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
    """The loss on the probe rows in fp32, as when the checkpoint was written. On a GPU they are first read as
    evaluations read them, which takes a fraction of the time: where that loss is close enough to the expected one, it
    counts."""
    if loaded.passes is not None:
        parts = probe_parts(rows, loaded.config)
        now = float(sum(loaded.passes.few(loaded, part).double().sum() for part in parts)) / rows[:, 1:].numel()
        if abs(now - expected) <= ENOUGH:
            return now
    return probe_loss(loaded.model, rows)


def _tokenizer(checkpoint: Checkpoint, corpus: Corpus, cache: ModelCache) -> Tokenizer:
    """The checkpoint's tokenizer, checked."""
    key = str(checkpoint.manifest["files"].get("tokenizer.json", {}).get("sha256"))  # its file was verified
    if key not in cache.tokenizers:
        tokenizer = checkpoint.tokenizer()
        check_tokenizer(checkpoint, corpus)
        cache.tokenizers[key] = tokenizer
    return cache.tokenizers[key]


def check_tokenizer(checkpoint: Checkpoint, corpus: Corpus) -> None:
    """Raise InputError where the checkpoint's tokenizer is not the corpus', or its files are not what this version
    writes for it (as where somebody replaced them)."""
    tokenizer, wanted = checkpoint.tokenizer(), corpus.tokenizer
    if tokenizer.identity != wanted.identity:
        raise InputError(
            f"{checkpoint.path}: its tokenizer is {tokenizer.name} ({tokenizer.identity[:12]}), that of the study's "
            f"corpus is {wanted.name} ({wanted.identity[:12]}): the checkpoint belongs to another study"
        )
    if _vocabulary((checkpoint.path / "tokenizer.json").read_bytes()) != _known_vocabulary(wanted):
        raise InputError(
            f"{checkpoint.path}/tokenizer.json: differs from this program's tokenizer {tokenizer.name}: put the file "
            f"back that training wrote"
        )


@cache
def _vocabulary(content: bytes) -> Any:
    try:
        vocabulary = json.loads(content)
        return vocabulary["model"]["vocab"], vocabulary["added_tokens"]
    except (ValueError, KeyError, TypeError):
        return None


def _known_vocabulary(tokenizer: Tokenizer) -> Any:
    from data.hf_tokenizer import tokenizer_files

    return _vocabulary(tokenizer_files(tokenizer)["tokenizer.json"])
