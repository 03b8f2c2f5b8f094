"""Constants of the heads, as TNL's and RetNet's decays are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from ...model.mixer import Mixer


class FixedDecays(Mixer):
    """A mixer with a constant `decays` [H], fp32, which `set_decays` sets.

    It is no buffer, which a model in bf16 would round.
    """

    decays: Tensor

    def set_decays(self, decays: Sequence[float]) -> None:
        # not torch.tensor, which DeepSpeed's zero.Init would round
        self.decays = torch.as_tensor(decays, dtype=torch.float32, device="cpu")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As the base class; also moves the decays to the weights' device, so that no pass copies them there."""
        super()._apply(fn, recurse)
        if not self.out.weight.is_meta:
            self.decays = self.decays.to(self.out.weight.device)
        return self

    def decays_like(self, x: Tensor) -> Tensor:
        """`decays` on x's device. This copies only where weights reached their device without _apply; a copy from
        pageable memory is staged at once: neither host nor device waits for the other."""
        return self.decays.to(x.device, non_blocking=True)
