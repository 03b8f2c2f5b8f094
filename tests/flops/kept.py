"""What autograd keeps of a forward pass, measured."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn


class Kept:
    """A tensor that autograd saves, unlike one that only passed by: it lives as long as the graph."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def kept_bytes(model: nn.Module, forward: Callable[[], object], precision: str) -> int:
    """Bytes that autograd keeps after `forward`, each storage once and the model's parameters not at all; `forward`
    gives back what holds the graph."""
    alive: list[weakref.ref[Kept]] = []

    def pack(tensor: Tensor) -> Kept:
        kept = Kept(tensor)
        alive.append(weakref.ref(kept))
        return kept

    cast = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor), cast:
        held = forward()
    tensors = [kept for kept in (reference() for reference in alive) if kept is not None]
    storages = {kept.tensor.untyped_storage().data_ptr(): kept.tensor.untyped_storage().nbytes() for kept in tensors}
    for kept in tensors:
        del kept.tensor  # a node's own output holds the node: nobody would collect the two
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    del held
    return sum(storages.values())
