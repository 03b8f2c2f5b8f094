"""A training step as CUDA graphs, which are recorded once and then replayed.

The first graph runs forward and backward of the first micro-batch; the second does so for each further micro-batch and
adds to the gradients; the third measures and clips the gradients and updates the weights. Between them gradients can be
averaged over processes. A graph reads and writes fixed tensors: tokens, rate, sums and gradients belong to this class,
weights and moments to model and optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from arch.recorder import Recorder, Work

if TYPE_CHECKING:
    from arch.model.lm import LanguageModel


class StepGraphs:
    """The graphs of a step of `model` on micro-batches of ids int64 [micro_rows, context + 1].

    accumulate: micro-batches of a step; dtype: autocast's, None without it; clip: clips all gradients and returns their
    norm before; optimizer: must update by kernels that read rate and step from the device.
    """

    def __init__(
        self,
        model: LanguageModel,
        optimizer: torch.optim.Optimizer,
        clip: Callable[[], Tensor],
        accumulate: int,
        dtype: torch.dtype | None,
        record: Recorder,
    ) -> None:
        self._model, self._optimizer, self._clip, self._record = model, optimizer, clip, record
        self._accumulate, self._dtype = accumulate, dtype
        self._parameters = list(model.parameters())
        device = self._parameters[0].device
        self._total = torch.zeros((), device=device)
        self._rate = torch.zeros((), device=device)
        self._results = torch.zeros(2, device=device)
        self._passes: list[Work] = []
        self._gradients: list[Tensor | None] = []
        self._update: Work | None = None

    def record_passes(self, micro: Tensor) -> None:
        """Record forward and backward on ids like `micro`. The kernels must have run before, and a state must be loaded
        before."""
        self._ids = torch.empty_like(micro, device=self._total.device)
        self._ids.copy_(micro)
        works = [self._first_pass] if self._accumulate == 1 else [self._first_pass, self._next_pass]
        self._passes = [self._record(work) for work in works]
        self._gradients = [parameter.grad for parameter in self._parameters]

    def record_update(self) -> None:
        """Record norm, clipping and update, after a first update, in which the optimizer makes its moments."""
        self.restore_gradients()
        self._update = self._record(self._clip_and_update)

    def passes(self, tokens: Tensor) -> Tensor:
        """The sum of the micro-batches' losses of `tokens` [local rows, context + 1], a scalar that the next call
        overwrites; the gradients of their mean are in the parameters' `grad`."""
        for index, micro in enumerate(tokens.split(len(self._ids))):
            self._ids.copy_(micro, non_blocking=True)
            self._passes[min(index, 1)]()
        return self._total

    def update(self, lr: float) -> tuple[Tensor, Tensor]:
        """Update the weights by the gradients of `passes`. Returns mean loss and gradient norm before clipping,
        scalars."""
        assert self._update is not None, "record_update comes first"
        self._rate.fill_(lr)
        self._update()
        loss, norm = self._results.clone()  # the next step overwrites the results
        return loss, norm

    def restore_gradients(self) -> None:
        """Make the graphs' tensors the parameters' `grad` again, after other code replaced them."""
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient

    def fits(self, tokens: Tensor) -> bool:
        """Whether `tokens` have the shape of the step that was recorded."""
        rows = self._accumulate * len(self._ids)
        return tokens.shape == (rows, self._ids.shape[1]) and tokens.dtype == self._ids.dtype

    def _first_pass(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None  # so that backward makes it, in the graphs' own memory, and does not add
        self._total.copy_(self._forward_and_backward())

    def _next_pass(self) -> None:
        self._total.add_(self._forward_and_backward())

    def _forward_and_backward(self) -> Tensor:
        """One pass, as DeepSpeed's engine makes it, to the bit."""
        ids, device = self._ids, self._ids.device.type
        # entered here: casts of weights are of this pass
        with torch.autocast(device, dtype=self._dtype, enabled=self._dtype is not None):
            loss = self._model(input_ids=ids[:, :-1], targets=ids[:, 1:], loss_only=True).loss
        (loss / self._accumulate).backward()
        return loss.detach()

    def _clip_and_update(self) -> None:
        norm = self._clip()
        with self._on_the_device():
            self._optimizer.step()
        torch.stack([self._total / self._accumulate, norm.to(self._total)], out=self._results)

    @contextmanager
    def _on_the_device(self) -> Iterator[None]:
        """Inside, the optimizer reads its rate from the device; outside, and in saved states, the rate is a number."""
        groups = self._optimizer.param_groups
        before = [(group["lr"], group["capturable"]) for group in groups]
        for group in groups:
            group["lr"], group["capturable"] = self._rate, True
        try:
            yield
        finally:
            for group, (lr, capturable) in zip(groups, before, strict=True):
                group["lr"], group["capturable"] = lr, capturable


def digest(tensors: Sequence[Tensor]) -> list[int]:
    """A hash of every tensor of 32-bit numbers, which changes with any bit and with any exchange of two elements."""
    return [int(x) for x in torch.stack([_hashed(x) for x in tensors]).tolist()]


def _hashed(x: Tensor) -> Tensor:
    bits = x.detach().contiguous().view(torch.int32).flatten()
    total, start = torch.zeros((), dtype=torch.int64, device=x.device), 0
    for part in bits.split(1 << 24):  # each number takes 24 bytes meanwhile
        places = torch.arange(start, start + len(part), device=x.device) * 2 + 1
        total += (part * places).sum()  # int64, modulo 2^64
        start += len(part)
    return total


def spread(reference: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """|reference - other| / |reference| over all numbers of both."""
    difference = torch.stack([(a - b).double().square().sum() for a, b in zip(reference, other, strict=True)]).sum()
    whole = torch.stack([a.double().square().sum() for a in reference]).sum()
    return float((difference / whole).sqrt())
