"""A model at ZeRO stage 3, whose weights no process has all of: it is written as a checkpoint and read back a
weight at a time. Every process calls each of these functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arch.model.lm import WEIGHTS, LanguageModel, empty_of

from ..rundir.checkpoint_writer import probe_loss
from ..rundir.saved import stored_weights
from .engine import Engine
from .pieces import Part, numbers, read_part


def saved_model(engine: Engine) -> LanguageModel | ShardedModel | None:
    """The engine's model as this rank writes it: at stage 3 with all others, else the first rank alone (None
    elsewhere)."""
    if engine.stage == 3:
        return ShardedModel(engine)
    return None if engine.ranks.rank else engine.model


class ShardedModel:
    """The model of an engine at stage 3, as a checkpoint has it."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._model = engine, engine.model
        with torch.device("meta"):
            self._shapes = empty_of(engine.model.model_config)
        self._shapes.decoder.document_start_id = engine.model.decoder.document_start_id

    def save_pretrained(self, directory: Path | None, dtype: torch.dtype) -> None:
        """As LanguageModel's, by the first process, to which the others give each weight in turn (directory: None).
        Raises the first one's OSError on all."""

        def write() -> None:
            weights = self._gathered(self._shapes.stored_dtypes(dtype))
            try:
                if directory is not None:
                    self._shapes.save_pretrained(directory, dtype, weights)
            finally:
                for _ in weights:  # the others gather all of them
                    pass

        self._engine.together(write)

    def _gathered(self, names: Iterable[str]) -> Iterator[Tensor]:
        from deepspeed.runtime.zero import GatheredParameters

        parameters = dict(self._model.named_parameters())
        for name in names:
            with GatheredParameters([parameters[name]]):
                yield parameters[name]

    def probe_loss(self, directory: Path | None, rows: Tensor) -> float:
        """As `checkpoint_writer.probe_loss`, of the weights in the directory that the first process names: each process
        reads its shares, and then has its own weights again."""
        zero = self._engine.deepspeed_engine.optimizer
        zero.checkpoint_event_prologue()  # frees the copies of whole weights
        shares = list(self._shares())
        kept = [part.of(part.flat).to("cpu", copy=True) for part in shares]
        stored = stored_weights(self._engine.from_first_rank(directory) / WEIGHTS)

        def read() -> None:
            for part in shares:
                read_part([stored[part.name]], part, part.flat)

        self._engine.together(read)
        zero.checkpoint_event_epilogue()
        loss = probe_loss(self._model.eval(), rows)
        self._model.train()
        zero.checkpoint_event_prologue()
        for part, values in zip(shares, kept, strict=True):
            part.of(part.flat).copy_(values)
        zero.checkpoint_event_epilogue()
        return loss

    def is_in(self, directory: Path) -> bool:
        """Whether the intact checkpoint there holds these very weights, in its own precision."""
        stored = stored_weights(directory / WEIGHTS)

        def has_shares() -> bool:
            return stored.keys() == self._engine.shapes.keys() and all(
                torch.equal(values, part.of(part.flat).to("cpu", values.dtype))
                for part in self._shares()
                for values in [numbers(stored[part.name], part.start, part.length)]
            )

        return all(self._engine.together(has_shares))

    def follow(self, dtype: torch.dtype, rows: np.ndarray) -> None:
        """What the other processes do while the first one writes a checkpoint."""
        self.save_pretrained(None, dtype)
        self.probe_loss(None, torch.from_numpy(rows).to(self._engine.device))

    def _shares(self) -> Iterator[Part]:
        """What this process has of each weight."""
        parameter: Any
        for name, parameter in self._model.named_parameters():
            size = parameter.ds_tensor.numel()
            start = self._engine.ranks.rank * size  # the last one's is padded
            if (length := min(size, parameter.ds_numel - start)) > 0:
                yield Part(name, start, parameter.ds_tensor, 0, length)
