"""A checkpoint's model as tasks read it: in its run's precision, its loss on each token of fixed windows over a text,
and a meter of the tokens that it reads and the seconds that this takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from arch.registry import ARCHITECTURES

if TYPE_CHECKING:
    from torch import Tensor

    from arch.config import ModelConfig
    from arch.model.lm import LanguageModel
    from data.tokenizer import Tokenizer


class Meter:
    """Counts the tokens that pass through a model in an evaluation, and the seconds spent in its forward passes.

    tokens: rows x tokens that the decoder read, padding included. Attached to a model it sees every forward pass, also
    where another wrapper holds the same decoder and head. On a GPU events are read at the end, so nothing waits."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.tokens = 0
        self._seconds = 0.0
        self._depth = 0
        self._events: list[tuple[Any, Any]] = []
        self._begun: Any = None

    @property
    def seconds(self) -> float:
        """Seconds in forward passes since the last reset."""
        if self._events:
            self._events[-1][1].synchronize()
            self._seconds += sum(a.elapsed_time(b) for a, b in self._events) / 1000
            self._events = []
        return self._seconds

    def attach(self, model: LanguageModel) -> None:
        """Count every forward pass of `model` from now on."""
        for module in (model, model.decoder, model.lm_head):
            module.register_forward_pre_hook(lambda _module, _inputs: self._enter())
            module.register_forward_hook(lambda _module, _inputs, _output: self._leave(), always_call=True)
        model.decoder.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.tokens += (inputs[0] if inputs else named["input_ids"]).numel()

    @contextmanager
    def span(self) -> Iterator[None]:
        """Count what happens inside as part of a forward pass, such as the loss of logits."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing of what happens inside, such as a check."""
        tokens = self.tokens
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.tokens = tokens

    def _enter(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._begun = self._now()

    def _leave(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            if isinstance(self._begun, float):
                self._seconds += time.perf_counter() - self._begun
            else:
                self._events.append((self._begun, self._now()))

    @staticmethod
    def _now() -> Any:
        import torch

        if not torch.cuda.is_initialized():
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class Passes(Protocol):
    """Reads batches of ids, as `replayed.Batches` does on a GPU."""

    def nats(self, model: LoadedModel, ids: Tensor) -> Tensor: ...

    def few(self, model: LoadedModel, ids: Tensor) -> Tensor: ...


@dataclass
class LoadedModel:
    """A checkpoint's model in evaluation mode on `device`; its probe loss was reproduced.

    autocast: forward passes run under bf16 autocast, as in training (never on a CPU). context_length: training length
    in tokens. tokenizer: the checkpoint's. meter: counts what the model reads. passes: on a GPU, reads batches of equal
    shape as CUDA graphs.
    """

    model: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer
    device: str
    autocast: bool
    context_length: int
    checkpoint: Path
    meter: Meter = field(default_factory=Meter)
    passes: Passes | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A context for forward passes: without gradients, in the run's precision."""
        import torch

        with torch.inference_mode(), torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.autocast):
            yield

    def warnings_at(self, length: int) -> list[str]:
        """Warnings for texts of up to `length` tokens; a task puts them into its values as `warnings`."""
        architecture = ARCHITECTURES[self.config.arch]
        if architecture.constant_state or length <= self.context_length:
            return []
        return [
            f"{architecture.label} was trained at {self.context_length:,} tokens and is evaluated at up to {length:,}: "
            f"rotary positions beyond the training length were never trained"
        ]


MAX_LOGITS = 1 << 28  # of one slice: 1 GiB in fp32


def token_nats(model: LoadedModel, rows: np.ndarray) -> np.ndarray:
    """float32 [B, T]: -log p of each token of rows [B, T + 1] but the first, given those before it in its row."""
    import torch

    from arch.model.layout import check_ids, ids_checked

    ids = torch.from_numpy(rows)
    check_ids(ids, model.config.vocab_size)  # here, where no GPU is waited for
    with ids_checked():
        nats: np.ndarray = nats_of(model, ids.to(model.device)).cpu().numpy()
    return nats


def nats_of(model: LoadedModel, ids: Tensor) -> Tensor:
    """`token_nats` of ids on the model's device, left there: float32 [B, T].

    The head runs over slices, so that the logits of a long row of a large vocabulary need not lie in memory at once.
    """
    import torch
    import torch.nn.functional as nnf

    nats = torch.empty(ids.shape[0], ids.shape[1] - 1, dtype=torch.float32, device=ids.device)
    step = max(1, MAX_LOGITS // (len(ids) * model.config.vocab_size))
    with model.reading():
        hidden, _ = model.model.decoder(ids[:, :-1].contiguous(), None, None, None, False, None)
        for start in range(0, nats.shape[1], step):
            logits = model.model.lm_head(hidden[:, start : start + step])
            with model.meter.span(), torch.autocast(logits.device.type, enabled=False):
                targets = ids[:, 1 + start : 1 + start + logits.shape[1]].flatten()
                losses = nnf.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none")
            nats[:, start : start + step] = losses.view(len(ids), -1)
    return nats
