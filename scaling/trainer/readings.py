"""The numbers of logged steps, read some steps later, so that the host does not wait for the device.

On a GPU a step's numbers are copied to pinned memory and read a fixed number of steps later, on every rank after the
same step, since they decide whether all ranks continue. On a CPU they are read at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .engine import Engine

LAG = 4  # steps on a GPU


@dataclass(frozen=True)
class Reading:
    """The numbers of a step: mean over ranks of loss (nats per token) and gradient norm, its rate, whether to stop; the
    steps skipped so far (Engine.skipped), and those in a row that end with it."""

    step: int
    lr: float
    loss: float
    grad_norm: float
    stop: bool
    n_skipped: int
    in_a_row: int


class Readings:
    """Numbers on their way from `engine`'s device, read `lag` steps after their step. wait: calls its argument, which
    waits for the device."""

    def __init__(
        self,
        engine: Engine,
        lag: int | None = None,
        wait: Callable[[Callable[[], object]], object] = lambda work: work(),
    ) -> None:
        self._engine, self._on_gpu, self._wait = engine, engine.device.type == "cuda", wait
        self.lag = (LAG if self._on_gpu else 0) if lag is None else lag
        self._pending: deque[tuple[int, float, Tensor, torch.cuda.Event | None]] = deque()

    def put(self, step: int, lr: float, loss: Tensor, norm: Tensor, stop: bool) -> None:
        """This rank's numbers of `step`, scalars on the device. Every rank must call it."""
        values = self._engine.mean(torch.stack([loss, norm.to(loss), torch.full_like(loss, float(stop))]))
        values = torch.cat([values, self._engine.skipped])
        arrived = None
        if self._on_gpu:
            host_values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host_values.copy_(values, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
            values = host_values
        self._pending.append((step, lr, values, arrived))

    def take(self, step: int) -> Iterator[Reading]:
        """The readings of steps up to `step`, in order; waits for the device where necessary."""
        while self._pending and self._pending[0][0] <= step:
            at, lr, values, arrived = self._pending.popleft()
            if arrived is not None:
                self._wait(arrived.synchronize)
            loss, norm, stop, *skipped = (float(value) for value in values.tolist())
            yield Reading(at, lr, loss, norm, bool(stop), *map(int, skipped))
