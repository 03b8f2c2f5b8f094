"""A checkpoint opened for evaluation, and the guard that refuses one which is not the model that was trained.

Every artifact's manifest has the loss of the reloaded model on a fixed batch of held-out text. The evaluation reads
that batch again and refuses where the loss differs: a head that was not loaded, a changed configuration or code that
computes something else would otherwise score at chance level without a word.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError

from .meter import Meter
from .task import Loaded

if TYPE_CHECKING:
    from data.corpus import Corpus
    from scaling.checkpoint import Checkpoint

# Nats a token. On one CPU the chunked form, the naive one and float64 agree within 1e-7; the rest is left to GPUs,
# whose matrix products may be in TF32. What is no longer the same model is off by more (tests).
PROBE_TOLERANCE = 1e-3


def load_guarded(checkpoint: Path, corpus_dir: Path, device: str, autocast: bool) -> Loaded:
    """The model of `checkpoint` in fp32 on `device`; autocast: read it under bf16 autocast where that is a GPU.

    Raises InputError, one line: no intact checkpoint, a tokenizer that is not the corpus' or not the one whose files
    the checkpoint carries, no probe loss, or one that does not come out again.
    """
    import torch

    from arch.lm import load_model
    from data.corpus import open_corpus
    from scaling.artifacts import probe_loss, probe_rows
    from scaling.checkpoint import find_checkpoint

    found = find_checkpoint(checkpoint, lambda line: None)
    corpus = open_corpus(corpus_dir)
    tokenizer = found.tokenizer()
    check_tokenizer(found, corpus)
    model = load_model(checkpoint, dtype=torch.float32)
    length = model.model_config.context_length
    rows = probe_rows(corpus.validation, length)
    expected = found.manifest.get("probe_loss")
    if expected is None or found.manifest.get("probe_rows") != list(rows.shape):
        raise InputError(
            f"{checkpoint}: its manifest has no probe loss of this corpus, so nobody can tell that this is the model "
            f"that was trained; train it again"
        )
    now = probe_loss(model, rows, torch.device(device))
    if not math.isfinite(now) or abs(now - expected) > PROBE_TOLERANCE:
        raise InputError(
            f"{checkpoint}: its probe loss is {now:.4f} nats per token and was {expected:.4f} when it was written: "
            f"this is not the model that was trained (other code, configuration or corpus); not evaluated"
        )
    meter = Meter()
    meter.attach(model)
    on_gpu = device.startswith("cuda")
    return Loaded(model, model.model_config, tokenizer, device, autocast and on_gpu, length, checkpoint, meter)


def check_tokenizer(checkpoint: Checkpoint, corpus: Corpus) -> None:
    """Raise InputError where the checkpoint's tokenizer is not the corpus', or its files are not what this version
    writes for that name (as where somebody replaced them)."""
    name = checkpoint.tokenizer().name
    if name != corpus.tokenizer.name:
        raise InputError(
            f"{checkpoint.path}: its tokenizer is {name}, the study's corpus is of {corpus.tokenizer.name}: the "
            f"checkpoint belongs to another study"
        )
    if _vocabulary((checkpoint.path / "tokenizer.json").read_bytes()) != _known_vocabulary(name):
        raise InputError(
            f"{checkpoint.path}/tokenizer.json: differs from the tokenizer {name} known here: put the file back that "
            f"training wrote"
        )


@cache
def _vocabulary(content: bytes) -> Any:
    try:
        found = json.loads(content)
        return found["model"]["vocab"], found["added_tokens"]
    except (ValueError, KeyError, TypeError):
        return None


@cache
def _known_vocabulary(name: str) -> Any:
    from data.hf_tokenizer import tokenizer_files

    return _vocabulary(tokenizer_files(name)["tokenizer.json"])
