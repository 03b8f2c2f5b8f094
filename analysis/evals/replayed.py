"""A small model's batches as a CUDA graph: a GPU is through with each sooner than the host has launched the next.

The graph reads the model's weights where they lie, so that it serves every checkpoint that is loaded into the same
modules. When it is recorded, the first batch is read both ways, and must give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from arch.model.layout import check_ids, ids_checked
from arch.recorder import CudaRecorder, Recorder, reason_of

from .model import nats_of

if TYPE_CHECKING:
    from arch.model.lm import LanguageModel

    from .model import LoadedModel

MAX_FLOPS = 10**13  # of a batch, 2 a parameter and token: beyond, kernels take longer than the host does to launch them


class Batches:
    """`nats_of` for many batches of many models, as graphs where that is faster: on NVIDIA's GPUs, for small models.

    say: gets one line where a graph cannot be made. record: replaces CUDA's recorder in tests.
    """

    def __init__(self, say: Callable[[str], None], record: Recorder | None = None) -> None:
        self._say, self._record = say, record
        # weak: a model that is no longer used must leave memory, and its graph with it; None: it has no graph
        self._graphs: WeakKeyDictionary[LanguageModel, BatchGraph | None] = WeakKeyDictionary()

    def nats(self, model: LoadedModel, ids: Tensor) -> Tensor:
        """As `nats_of`; the next call may overwrite the returned tensor."""
        if model.model not in self._graphs and self._is_worth_it(model, ids):
            with model.meter.paused():
                self._graphs[model.model] = self._recorded(model, ids)
        graph = self._graphs.get(model.model)
        return graph(model, ids) if graph is not None and graph.fits(model, ids) else nats_of(model, ids)

    def few(self, model: LoadedModel, ids: Tensor) -> Tensor:
        """As `nats_of`, of a few rows [B, T + 1]: by the graph of longer batches of such rows, where there is one; the
        rows are repeated to fill it. Raises InputError for ids outside of the model's vocabulary."""
        with model.reading():
            check_ids(ids, model.config.vocab_size)
        graph = self._graphs.get(model.model)
        n_rows = graph.room_for(model, ids) if graph is not None else 0
        with ids_checked(), model.meter.paused():
            if graph is None or not n_rows:
                return nats_of(model, ids)
            return graph(model, ids[torch.arange(n_rows, device=ids.device) % len(ids)])[: len(ids)]

    def _is_worth_it(self, model: LoadedModel, ids: Tensor) -> bool:
        if self._record is None and (not ids.is_cuda or torch.version.hip):
            return False
        n_params = sum(parameter.numel() for parameter in model.model.parameters())
        return 2 * n_params * ids.numel() <= MAX_FLOPS

    def _recorded(self, model: LoadedModel, ids: Tensor) -> BatchGraph | None:
        """The graph of such batches, None where it cannot be made."""
        eager = nats_of(model, ids)  # kernels are compiled and tuned here, not while they are recorded
        try:
            graph = BatchGraph(model, ids, self._record or CudaRecorder(ids.device))
            if _same_bits(graph(model, ids), eager):
                return graph
            reason = "they give other losses than eager passes"
        except RuntimeError as error:  # of CUDA, and of memory
            reason = reason_of(error)
        if ids.is_cuda:
            torch.cuda.empty_cache()
        self._say(f"{model.checkpoint}: no CUDA graphs: {reason}")
        return None


class BatchGraph:
    """A CUDA graph of one model's passes over batches of one shape. Raises RuntimeError where they cannot be
    recorded."""

    def __init__(self, model: LoadedModel, ids: Tensor, record: Recorder) -> None:
        self._ids, self._autocast = ids.clone(), model.autocast
        self._nats = torch.empty(0)

        def work() -> None:
            self._nats = nats_of(model, self._ids)

        self._replay = record(work)

    def fits(self, model: LoadedModel, ids: Tensor) -> bool:
        return self.room_for(model, ids) == len(ids)

    def room_for(self, model: LoadedModel, ids: Tensor) -> int:
        """How many rows the graph reads, where `ids` are rows of that length and not more of them; else 0."""
        fits = ids.shape[1] == self._ids.shape[1] and model.autocast == self._autocast
        return len(self._ids) if fits and len(ids) <= len(self._ids) else 0

    def __call__(self, model: LoadedModel, ids: Tensor) -> Tensor:
        n_tokens = model.meter.tokens + ids[:, 1:].numel()  # a replay calls no module, which would count them
        with model.meter.span():
            self._ids.copy_(ids)
            self._replay()
        model.meter.tokens = n_tokens
        return self._nats


def _same_bits(first: Tensor, other: Tensor) -> bool:
    return torch.equal(first.view(torch.int32), other.view(torch.int32))
