"""Rows drawn by processes of their own, ahead of the step that takes them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from arch.errors import InputError


class _Calls:
    """A data set of torch's DataLoader whose indices are the arguments of calls."""

    def __init__(self, call: Callable[..., np.ndarray]) -> None:
        self.call = call

    def __getitem__(self, arguments: tuple[Any, ...]) -> np.ndarray | InputError:
        try:
            return self.call(*arguments)
        except InputError as error:  # raised here, it would come with a traceback as its text
            return error


def _ignore_signals(worker: int) -> None:
    """A worker ends with the process that it works for, which may still write a state when all are asked to stop."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(name, signal.SIG_IGN)


def ahead(
    call: Callable[..., np.ndarray], arguments: Iterable[tuple[Any, ...]], processes: int
) -> Iterator[np.ndarray]:
    """call(*arguments[0]), call(*arguments[1]), .., in this order, computed by so many processes, two calls each ahead.
    `call` is pickled. Raises the InputError of a call where its result would come; whatever else a call raises too, as
    torch's DataLoader words it."""
    import torch
    from torch.utils.data import DataLoader

    calls: Any = _Calls(call)
    loader = DataLoader(
        calls,
        batch_size=None,
        sampler=arguments,
        num_workers=processes,
        multiprocessing_context="spawn",
        worker_init_fn=_ignore_signals,
        generator=torch.Generator(),  # not the global one, whose state would change
    )
    for result in loader:
        if isinstance(result, InputError):
            raise result
        yield result.numpy()
