"""A checkpoint's model as tasks read it: opened and guarded, in its run's precision, with its loss on each token.

Every checkpoint's manifest has the loss of the reloaded model on a fixed batch of held-out text. The guard reads that
batch again and refuses the checkpoint where the loss differs: otherwise a head that was not loaded, a changed
configuration or code that computes something else would score at chance level, and nobody would notice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arch.errors import InputError
from arch.registry import ARCHITECTURES

if TYPE_CHECKING:
    from arch.config import ModelConfig
    from arch.model.lm import LanguageModel
    from data.corpus import Corpus
    from data.tokenizer import Tokenizer

# Nats a token. On one CPU the chunked form, the naive one and float64 agree within 1e-7; the rest is left to GPUs,
# whose matrix products may be in TF32. What is no longer the same model is off by more (tests).
PROBE_TOLERANCE = 1e-3
MAX_LOGITS = 1 << 28  # of one slice: 1 GiB in fp32


@dataclass
class LoadedModel:
    """A checkpoint's model in evaluation mode on `device`; its probe loss was reproduced.

    autocast: forward passes run under bf16 autocast, as in training (never on a CPU). context_length: training length
    in tokens. tokenizer: the checkpoint's. n_tokens_read: rows x tokens that the decoder read, padding included.
    longest: the tokens that it can read, having learned so many places; None: any number.
    """

    model: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer
    device: str
    autocast: bool
    context_length: int
    checkpoint: Path
    n_tokens_read: int = 0
    longest: int | None = None

    def count(self, _module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A hook before forward passes that counts what these read."""
        self.n_tokens_read += (inputs[0] if inputs else named["input_ids"]).numel()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A context for forward passes: without gradients, in the run's precision."""
        import torch

        with torch.inference_mode(), torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.autocast):
            yield

    def check_length(self, n_tokens: int) -> None:
        """Raise InputError where the model cannot read so many."""
        if self.longest is not None and n_tokens > self.longest:
            raise InputError(
                f"{self.checkpoint.name} reads at most {self.longest:,} tokens, because it has learned its positions, "
                f"and {n_tokens:,} are asked for: set shorter windows or lengths"
            )

    def warnings_at(self, length: int) -> list[str]:
        """Warnings for texts of up to `length` tokens; a task puts them into its values as `warnings`."""
        kinds = self.config.kinds  # none of another project's model
        if length <= self.context_length or (kinds and all(map(self._reads_no_more, kinds))):
            return []
        known = ARCHITECTURES.get(self.config.arch)  # a pattern has its label in its study alone
        label = known.label if known else self.config.arch
        line = f"{label} was trained at {self.context_length:,} tokens and is evaluated at up to {length:,}"
        return [line + (": its attention was never trained to read so many" if kinds else "")]

    def _reads_no_more(self, kind: ModelConfig) -> bool:
        """Whether layers of a kind read no more of a longer text than in training: a state, or a window."""
        return kind.constant_state or 0 < getattr(kind.options, "window", 0) <= self.context_length


def token_nats(model: LoadedModel, rows: np.ndarray) -> np.ndarray:
    """float32 [B, T]: -log p of each token of rows [B, T + 1] but the first, given those before it in its row; of a
    classifier [B, 1], that of the last.

    The head runs over slices, so that the logits of a long row of a large vocabulary need not lie in memory at once.
    Raises InputError for ids outside of the model's vocabulary.
    """
    import torch
    import torch.nn.functional as nnf

    from arch.model.layout import check_ids, ids_checked

    model.check_length(rows.shape[1] - 1)
    ids = torch.from_numpy(rows)
    check_ids(ids, model.config.vocab_size)  # here, where no GPU is waited for
    ids = ids.to(model.device)
    step = max(1, MAX_LOGITS // (len(ids) * model.config.vocab_size))
    with ids_checked(), model.reading():
        hidden, _ = model.model.decoder(ids[:, :-1].contiguous(), None, None, None, False, None)
        nats = torch.empty(hidden.shape[:2], dtype=torch.float32, device=ids.device)
        ids = ids[:, -nats.shape[1] - 1 :]
        for start in range(0, nats.shape[1], step):
            logits = model.model.lm_head(hidden[:, start : start + step])
            with torch.autocast(logits.device.type, enabled=False):
                targets = ids[:, 1 + start : 1 + start + logits.shape[1]].flatten()
                losses = nnf.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none")
            nats[:, start : start + step] = losses.view(len(ids), -1)
    values: np.ndarray = nats.cpu().numpy()
    return values


def load_guarded(path: Path, corpus: Corpus, device: str, autocast: bool) -> LoadedModel:
    """The model of the checkpoint at `path` in fp32 on `device`; autocast: read it under bf16 autocast where that is a
    GPU.

    Raises InputError: no intact checkpoint, a tokenizer that is not the corpus', no probe loss, or another probe loss
    than when the checkpoint was written.
    """
    import torch

    from arch.model.lm import load_model
    from data.units import loss_unit
    from scaling.rundir.checkpoint_writer import probe_loss, probe_rows
    from scaling.rundir.find_checkpoint import find_checkpoint

    saved = find_checkpoint(path, lambda line: None)
    tokenizer = saved.tokenizer()
    wanted = corpus.tokenizer
    if tokenizer.identity != wanted.identity:
        raise InputError(
            f"{path}: its tokenizer is {tokenizer.name} ({tokenizer.identity[:12]}), that of the study's corpus is "
            f"{wanted.name} ({wanted.identity[:12]}): the checkpoint belongs to another study"
        )
    model = load_model(path).to(device).eval()
    length = model.model_config.context_length
    rows = torch.from_numpy(probe_rows(corpus.validation, length)).to(device)
    expected = saved.manifest.get("probe_loss")
    if expected is None or saved.manifest.get("probe_rows") != list(rows.shape):
        raise InputError(
            f"{path}: its manifest has no probe loss of this corpus, so nothing shows that this is the model that was "
            f"trained; train it again"
        )
    loss = probe_loss(model, rows)
    if not math.isfinite(loss) or abs(loss - expected) > PROBE_TOLERANCE:
        raise InputError(
            f"{path}: its probe loss is {loss:.4f} {loss_unit([tokenizer.name])} and was {expected:.4f} when it was "
            f"written: this is not the model that was trained (other code, configuration or corpus); not evaluated"
        )
    in_bf16 = autocast and device.startswith("cuda")
    loaded = LoadedModel(model, model.model_config, tokenizer, device, in_bf16, length, path)
    model.decoder.register_forward_pre_hook(loaded.count, with_kwargs=True)  # which other wrappers may hold too
    return loaded
