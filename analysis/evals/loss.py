"""Held-out loss of a checkpoint: nats a token, perplexity and bits a byte, over fixed windows of the validation split.

The windows do not overlap, are one context long and lie evenly over the split, so that a few of them see as many
documents as possible; every model of a study is scored on the same ones. Each predicts its own first token from one
token before it, like a training sequence. Bits a byte divide by the bytes of the very tokens scored (an end-of-text
token is scored but has no bytes), so they compare across tokenizers.

One atomic file per (checkpoint, task): <run>/evals/<step>/validation.json. What decides its numbers is hashed into its
`key`; it is valid as long as the key is what would be computed today.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arch.errors import InputError
from data.files import read_json, read_manifest, write_json

if TYPE_CHECKING:
    from data.corpus import Corpus

TASK = "validation"
VERSION = 1  # of the method; a change makes every stored result stale


@dataclass(frozen=True)
class LossSettings:
    """How to score: tokens of the split (rounded down to whole windows, at least one), rows a forward pass."""

    validation_tokens: int = 65_536
    batch_rows: int = 16
    autocast: bool = False  # bf16, on a GPU only: the precision that a bf16 run trains in


@dataclass(frozen=True)
class Pending:
    """A checkpoint without a valid result."""

    run_id: str
    checkpoint: Path
    result: Path


def window_starts(n_split_tokens: int, context_length: int, validation_tokens: int) -> np.ndarray:
    """int64 [n]: where each window begins; window s predicts tokens s+1 .. s+context_length.

    Raises InputError where the split is shorter than one window.
    """
    available = (n_split_tokens - 1) // context_length
    if available < 1:
        raise InputError(
            f"corpus: the validation split has {n_split_tokens} tokens, too few for one window of context_length="
            f"{context_length}; raise corpus.validation_fraction or shorten the context"
        )
    wanted = min(available, max(1, validation_tokens // context_length))
    return np.arange(wanted, dtype=np.int64) * available // wanted * context_length


def windows(tokens: Any, context_length: int, settings: LossSettings) -> Iterator[np.ndarray]:
    """Batches [rows, context_length + 1] of token ids, the last one possibly shorter."""
    starts = window_starts(len(tokens), context_length, settings.validation_tokens)
    for first in range(0, len(starts), settings.batch_rows):
        rows = starts[first : first + settings.batch_rows]
        yield np.stack([np.asarray(tokens[s : s + context_length + 1], dtype=np.int64) for s in rows])


def result_key(weights_sha256: str, corpus_fingerprint: str, settings: LossSettings) -> str:
    """16 hex digits over everything that decides a result."""
    parts = {"version": VERSION, "weights": weights_sha256, "corpus": corpus_fingerprint, **asdict(settings)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def evaluate_checkpoint(
    checkpoint: Path, corpus: Corpus, settings: LossSettings, device: str = "cpu"
) -> dict[str, Any] | None:
    """The result of one checkpoint; None where its files do not match its manifest.

    `loss` is the mean over all scored tokens in nats, null (with `reason`) where it is not finite.
    """
    import torch

    from arch.lm import load_model

    manifest = read_manifest(checkpoint)
    if manifest is None:
        return None
    model = load_model(checkpoint, dtype=torch.float32).to(device).eval()
    context_length = model.model_config.context_length
    nats, n_scored, n_bytes, n_windows = 0.0, 0, 0, 0
    autocast = settings.autocast and device.startswith("cuda")
    with torch.inference_mode(), torch.autocast(device.split(":")[0], torch.bfloat16, enabled=autocast):
        for batch in windows(corpus.validation, context_length, settings):
            rows = torch.from_numpy(batch).to(device)
            mean = model(input_ids=rows[:, :-1].contiguous(), targets=rows[:, 1:].contiguous()).loss
            targets = batch[:, 1:]
            nats += float(mean) * targets.size
            n_scored += targets.size
            n_windows += len(targets)
            n_bytes += len(corpus.tokenizer.decode_bytes(targets.ravel().tolist()))
    loss = nats / n_scored
    weights = manifest["files"]["model.safetensors"]["sha256"]
    result: dict[str, Any] = {
        "schema": 1,
        "task": TASK,
        "key": result_key(weights, corpus.fingerprint, settings),
        "run_id": manifest["run_id"],
        "step": manifest["step"],
        "n_tokens": manifest["n_tokens"],
        "loss": None,
        "perplexity": None,
        "bits_per_byte": None,
        "n_tokens_scored": n_scored,
        "n_bytes_scored": n_bytes,
        "n_windows": n_windows,
        "context_length": context_length,
        "settings": asdict(settings),
        "weights_sha256": weights,
        "corpus_fingerprint": corpus.fingerprint,
        "device": device,
    }
    if not math.isfinite(loss):
        return result | {"reason": "the loss is not finite"}
    result["loss"] = loss
    result["perplexity"] = math.exp(loss) if loss < 700 else None
    result["bits_per_byte"] = nats / math.log(2) / n_bytes if n_bytes else None
    return result


def missing(
    runs_dir: Path, run_ids: Sequence[str], corpus_fingerprint: str, settings: LossSettings
) -> tuple[list[Pending], list[str]]:
    """Checkpoints of the runs without a valid result, and a line for each directory that is no checkpoint."""
    pending, warnings = [], []
    for run_id in run_ids:
        for checkpoint in sorted((runs_dir / run_id / "checkpoints").glob("[0-9]*")):
            manifest = read_manifest(checkpoint, verify=False)
            if manifest is None or "model.safetensors" not in manifest["files"]:
                warnings.append(f"{run_id}: checkpoint {checkpoint.name} has no valid manifest; skipped")
                continue
            result = runs_dir / run_id / "evals" / checkpoint.name / f"{TASK}.json"
            key = result_key(manifest["files"]["model.safetensors"]["sha256"], corpus_fingerprint, settings)
            if _stored_key(result) != key:
                pending.append(Pending(run_id, checkpoint, result))
    return pending, warnings


def evaluate_runs(
    pending: Sequence[Pending],
    corpus_dir: Path,
    settings: LossSettings,
    device: str = "cpu",
    progress: Callable[[int, int, str], None] | None = None,
) -> list[str]:
    """Evaluate and store each of `pending`; returns a line for each that was skipped because its files are damaged.

    progress(done, total, text) after each.
    """
    from data.corpus import open_corpus

    corpus = open_corpus(corpus_dir)
    warnings: list[str] = []
    for done, one in enumerate(pending, start=1):
        result = evaluate_checkpoint(one.checkpoint, corpus, settings, device)
        if result is None:
            text = f"{one.run_id}: checkpoint {one.checkpoint.name} has a wrong checksum; skipped"
            warnings.append(text)
        else:
            one.result.parent.mkdir(parents=True, exist_ok=True)
            write_json(one.result, result, kind="eval")
            loss = "not finite" if result["loss"] is None else f"{result['loss']:.4f} nats/token"
            text = f"{one.run_id} at {result['n_tokens']:,} tokens: held-out loss {loss}"
        if progress is not None:
            progress(done, len(pending), text)
    return warnings


def _stored_key(path: Path) -> str | None:
    try:
        return read_json(path)["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
