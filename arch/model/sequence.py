"""Rows in parts: each process of a group reads an equal part of every row, the first one its beginning.

Layers with a state of constant size hand it on: a process continues from what the one before it had at the end of its
part, and the backward pass returns the state's gradient. A process is then one layer behind the one before it: n of
them take the time of L + n - 1 layers for L. Softmax layers exchange heads: each process attends to whole rows with its
share of the heads (DeepSpeed-Ulysses, Jacobs et al. 2023, section 3). Reference: whole rows in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import InputError
from .cache import LayerCache

Kinds = dict[str, tuple[torch.Size, torch.dtype]]


class SequenceGroup:
    """The processes of `group` (None: all) in order, each with a part of every row that one model reads. All must make
    the same calls."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        self._received: dict[Any, Kinds] = {}  # what the process before sends, which it says once
        self._sent = set[Any]()

    def part(self, length: int) -> slice:
        """This process's tokens of a row. Raises InputError where `length` does not divide by the processes."""
        if length % self.size:
            raise InputError(f"rows of {length:,} tokens do not split into {self.size} equal parts")
        own = length // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def receive(self, x: Tensor, place: int) -> tuple[Tensor, LayerCache]:
        """x [B, T, d] and the cache before it, of the process before; {} at the first. place: of the module that reads
        it, its number."""
        if self.rank == 0:
            return x, {}
        if (key := _key(x, place)) not in self._received:
            kinds: list[Any] = [None]
            dist.recv_object_list(kinds, group=self.group, group_src=self.rank - 1)
            self._received[key] = kinds[0]
        x, *states = _Receive.apply(x, self, self._received[key].values())
        return x, dict(zip(self._received[key], states, strict=True))

    def send(self, x: Tensor, place: int, cache: LayerCache) -> Tensor:
        """Send the module's cache after its tokens to the next process. Returns x [B, T, d], of which the loss must be
        made: its backward pass waits for the cache's gradient. Raises InputError where the cache has none."""
        if self.rank == self.size - 1:
            return x
        if x.requires_grad and not all(state.requires_grad for state in cache.values()):
            raise InputError("a layer's state has no gradient: it cannot read rows in parts")
        if (key := _key(x, place)) not in self._sent:
            kinds = {name: (state.shape, state.dtype) for name, state in cache.items()}
            dist.send_object_list([kinds], group=self.group, group_dst=self.rank + 1)
            self._sent.add(key)
        sent: Tensor = _Send.apply(x, self, *cache.values())
        return sent

    def attend(
        self, attention: Callable[[Tensor, Tensor, Tensor], Tensor], query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """attention(query, key, value), each with its own heads, [B, T, heads, p] of this process -> [B, T, H, p]: of
        whole rows, by a share of the heads in each process."""
        mixed = attention(*(self._by_heads(x) for x in (query, key, value)))
        parts = mixed.unflatten(1, (self.size, -1)).movedim(1, 0)
        return _Exchange.apply(parts, self.group).movedim(0, 2).flatten(2, 3)

    def _by_heads(self, x: Tensor) -> Tensor:
        """[B, T, H, p] of this process's tokens -> [B, n T, H / n, p] of its heads."""
        parts = x.unflatten(2, (self.size, -1)).movedim(2, 0)
        return _Exchange.apply(parts, self.group).movedim(0, 1).flatten(1, 2)

    def targets(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Of targets [B, T] of whole rows this process's, and the factor of their mean loss with which the mean over
        processes is the mean over all targets (-100: none), fp64."""
        own = targets[:, self.part(targets.shape[1])]
        return own, own.ne(-100).sum().double() * self.size / targets.ne(-100).sum()


def _key(x: Tensor, place: int) -> Any:
    return place, x.shape, x.dtype, torch.is_autocast_enabled(x.device.type)


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, processes: SequenceGroup, kinds: Any) -> tuple[Tensor, ...]:
        ctx.processes = processes
        return x.view_as(x), *_received(processes, processes.rank - 1, kinds, x.device)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        _send(ctx.processes, ctx.processes.rank - 1, grads[1:])
        return grads[0], None, None


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, processes: SequenceGroup, *states: Tensor) -> Tensor:
        ctx.processes, ctx.kinds = processes, [(state.shape, state.dtype) for state in states]
        _send(processes, processes.rank + 1, states)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None, *_received(ctx.processes, ctx.processes.rank + 1, ctx.kinds, grads[0].device)


def _send(processes: SequenceGroup, to: int, tensors: Any) -> None:
    for tensor in tensors:
        dist.send(tensor.contiguous(), group=processes.group, group_dst=to)


def _received(processes: SequenceGroup, source: int, kinds: Any, device: torch.device) -> list[Tensor]:
    tensors = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in kinds]
    for tensor in tensors:
        dist.recv(tensor, group=processes.group, group_src=source)
    return tensors


class _Exchange(torch.autograd.Function):
    """[n, ..]: the i-th goes to process i and is replaced by what that sends, and so in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _exchanged(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _exchanged(grads[0], ctx.group), None


def _exchanged(x: Tensor, group: Any) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x, group=group)
    return out
