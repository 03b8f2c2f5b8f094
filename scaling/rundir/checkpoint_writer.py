"""Checkpoints: the weights, in the precision the study asks for, and the tokenizer, guarded by a probe loss.

Every checkpoint is read back before it counts, and the loss of the reloaded model on a fixed batch of held-out text
goes into its manifest: a later evaluation checks by it that the file still holds the model that was trained.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from arch.model.lm import LanguageModel, load_model, read_weights
from data.files import new_directory, writing
from data.hf_tokenizer import tokenizer_files

from .saved import read_saved

if TYPE_CHECKING:
    from arch.config import ModelConfig
    from data.tokenizer import Tokenizer

PROBE_ROWS = 8
PROBE_LOGITS = 1 << 26  # of a pass: 256 MiB in fp32, twice
PROBE_NUMBERS = 1 << 24  # in an activation [rows, positions, d_model] of a pass: 64 MiB beside all that training needs
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}  # training.checkpoint_dtype


class ProbeError(RuntimeError):
    """The reloaded model's probe loss is not a finite number."""


class Sharded(Protocol):
    """A model of which this process has a share alone; the others write and read with it."""

    def save_pretrained(self, directory: Path, dtype: torch.dtype) -> None: ...

    def probe_loss(self, directory: Path, rows: Tensor) -> float: ...

    def is_in(self, directory: Path) -> bool: ...


def probe_rows(validation: Any, context_length: int) -> np.ndarray:
    """The first windows of the validation split, at most 8, int64 [rows, context_length + 1].

    A split shorter than one window gives one shorter row.
    """
    rows = min(PROBE_ROWS, (len(validation) - 1) // context_length)
    if rows < 1:
        return np.asarray(validation[:], dtype=np.int64)[None]
    return np.stack([validation[i * context_length : (i + 1) * context_length + 1] for i in range(rows)]).astype(
        np.int64
    )


def probe_loss(model: LanguageModel, rows: Tensor) -> float:
    """Mean loss in nats a token over rows [B, T + 1] on the model's device, in its own precision: in as few passes as
    memory allows, since a pass of a small model costs a GPU's host the same for all rows."""
    with torch.no_grad():
        losses = [
            model(input_ids=part[:, :-1], targets=part[:, 1:]).loss.double() * len(part)
            for part in probe_parts(rows, model.model_config)
        ]
        return float(torch.stack(losses).sum()) / len(rows)


def probe_parts(rows: Tensor, config: ModelConfig) -> tuple[Tensor, ...]:
    """Rows [B, T + 1] for each pass."""
    documents, length, outputs = config.read_as(rows.shape[1] - 1)
    logits, numbers = outputs * config.n_outputs, documents * length * config.d_model  # of a row
    step = min(PROBE_LOGITS // logits, PROBE_NUMBERS // numbers)
    return rows.split(max(1, step))


def write_checkpoint(
    path: Path,
    model: LanguageModel | Sharded,
    dtype: str,
    probe: np.ndarray,
    device: torch.device,
    manifest: dict[str, Any],
    tokenizer: Tokenizer,
) -> float:
    """Write `model` and the files of `tokenizer` to `path` with `manifest` (step, n_tokens, run_id, spec_hash).

    Returns the probe loss. Raises ProbeError, and writes nothing, where the reloaded model's loss is not finite.
    """
    content = {"schema": 1, "dtype": dtype, "tokenizer": tokenizer.described()} | manifest
    with writing(path), new_directory(path, content, "checkpoint") as temporary:
        model.save_pretrained(temporary, DTYPES[dtype])
        for name, file_content in tokenizer_files(tokenizer).items():
            (temporary / name).write_bytes(file_content)  # the directory is synced as a whole
        rows = torch.from_numpy(probe).to(device)
        if isinstance(model, LanguageModel):
            loss = probe_loss(load_model(temporary).to(device).eval(), rows)
        else:
            loss = model.probe_loss(temporary, rows)
        if not math.isfinite(loss):
            raise ProbeError(f"the probe loss is {loss}")
        content["probe_loss"], content["probe_rows"] = loss, list(probe.shape)
    return loss


def valid_checkpoint(path: Path, spec_hash: str) -> bool:
    """Whether `path` holds an intact checkpoint, of the step in its name and the spec of this hash."""
    manifest = read_saved(path)
    return manifest is not None and manifest.get("spec_hash") == spec_hash


def holds(path: Path, model: LanguageModel | Sharded) -> bool:
    """Whether the intact checkpoint at `path` holds these very weights, in its own precision."""
    if not isinstance(model, LanguageModel):
        return model.is_in(path)
    saved, trained = read_weights(path), dict(model.named_parameters())
    return saved.keys() == trained.keys() and all(
        torch.equal(value, trained[name].detach().to("cpu", value.dtype)) for name, value in saved.items()
    )
