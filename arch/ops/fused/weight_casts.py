"""The weights of a model's products in autocast's dtype, all of them by one launch at the start of a pass.

Each product casts its own weights (`linear.cast`): in a small model that is a launch of 2 us for each of them, of a
step of a few hundred. A pass notes which products there are, in which order their weights lie beside each other; the
next one finds them cast. What is cast is gone with the pass: nothing here can be older than the weights.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ...kernel_config import CAST_AHEAD

Key = tuple[int, ...]  # identities of a product's weights, which `groups` keeps alive

_pass = threading.local()


class WeightCasts:
    """Of one model. `groups`: the weights of each product, as the last pass had them."""

    def __init__(self) -> None:
        self.groups: list[tuple[Tensor, ...]] = []
        self.dtype: torch.dtype | None = None
        self.table: Tensor | None = None  # of `cast_pieces`, for weights that lie at `addresses`
        self.addresses: list[int] = []
        self.recorded: list[Tensor] = []  # tables that CUDA graphs read, which must not be freed

    @contextmanager
    def once(self) -> Iterator[None]:
        """Inside, `cast_before` finds what the pass before this one cast product by product."""
        before = getattr(_pass, "open", None)
        _pass.open = opened = _Pass(self._cast())
        try:
            yield
        finally:
            _pass.open = before
        if opened.missed:
            self.groups, self.dtype, self.table = list(opened.asked.values()), opened.dtype, None

    def _cast(self) -> dict[Key, Tensor]:
        weights = [weight for group in self.groups for weight in group]
        numbers = sum(weight.numel() for weight in weights)
        if not weights or self.dtype is None or numbers > CAST_AHEAD:
            return {}
        # DeepSpeed's stage 3 empties matrices between passes
        if not all(w.dtype == torch.float32 and w.is_contiguous() and w.dim() == 2 for w in weights):
            return {}
        from .triton.weight_casts import cast_all, table_of

        addresses = [weight.data_ptr() for weight in weights]
        recording = weights[0].is_cuda and torch.cuda.is_current_stream_capturing()
        if self.table is None or addresses != self.addresses:
            if recording:
                return {}  # no table can be copied to the GPU while a graph is recorded
            self.table, self.addresses = table_of(weights), addresses
        if recording:
            self.recorded.append(self.table)
        copies = cast_all(self.table, numbers, self.dtype)
        sizes = [sum(weight.numel() for weight in group) for group in self.groups]
        return {
            tuple(map(id, group)): part.view(-1, group[0].shape[1])
            for group, part in zip(self.groups, copies.split(sizes), strict=True)
        }


class _Pass:
    def __init__(self, copies: dict[Key, Tensor]) -> None:
        self.copies = copies
        self.asked: dict[Key, tuple[Tensor, ...]] = {}
        self.dtype: torch.dtype | None = None
        self.missed = False  # one of these was not among the copies


def cast_before(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor | None:
    """The weights [width, d] as one matrix of that dtype, where this pass has it."""
    opened: _Pass | None = getattr(_pass, "open", None)
    if opened is None or not all(weight.is_leaf for weight in weights):  # what is computed is another in each pass
        return None
    key = tuple(map(id, weights))
    opened.asked[key] = tuple(weights)
    opened.dtype = dtype
    copy = opened.copies.get(key)
    if copy is None or copy.dtype != dtype:
        opened.missed = True
        return None
    return copy
