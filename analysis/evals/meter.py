"""The tokens that pass through a model in an evaluation, and the seconds spent in its forward passes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arch.model.lm import LanguageModel


class Meter:
    """tokens: rows x tokens that the decoder read, padding included. Attached to a model it sees every forward pass,
    also where another wrapper holds the same decoder and head. On a GPU events are read at the end, nothing waits."""

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
        """In forward passes since the last reset."""
        if self._events:
            self._events[-1][1].synchronize()
            self._seconds += sum(a.elapsed_time(b) for a, b in self._events) / 1000
            self._events = []
        return self._seconds

    def attach(self, model: LanguageModel) -> None:
        """Watch `model` from now on."""
        for module in (model, model.decoder, model.lm_head):
            module.register_forward_pre_hook(lambda _module, _inputs: self._enter())
            module.register_forward_hook(lambda _module, _inputs, _output: self._leave(), always_call=True)
        model.decoder.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.tokens += (inputs[0] if inputs else named["input_ids"]).numel()

    @contextmanager
    def span(self) -> Iterator[None]:
        """What happens in here belongs to a forward pass, as the loss of logits does."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens in here is no part of an evaluation's passes, as a check is not."""
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
