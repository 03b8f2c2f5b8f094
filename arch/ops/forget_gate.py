"""The forget gates of HGRN1 and HGRN2: bounded sigmoids and their complements, without cancellation."""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from torch import Tensor


def forget_gate(logits: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """log f and 1 - f for f = bound + (1 - bound) sigmoid(logits), each to about 1e-7 relative.

    1 - f = (1 - bound) sigmoid(-logits) has no cancellation; log f comes from it where f is near 1 and from f itself
    elsewhere, with logsigmoid where bound = 0 (f may underflow there). A bound of exactly 0 counts as a constant: log f
    has no gradient with respect to it (HGRN2's first layer, whose bound is 0 whatever gamma is).
    """
    complement = (1 - bound) * torch.sigmoid(-logits)
    near_one = complement < 0.5
    # each branch is given a harmless argument where the other is taken, else its gradient would be 0 * inf
    small = torch.where(near_one, complement, 0.0)
    f = torch.where(near_one, 1.0, bound + (1 - bound) * torch.sigmoid(logits))
    positive = torch.where(bound > 0, f, 1.0)
    unbounded = nnf.logsigmoid(torch.where(bound > 0, 0.0, logits))
    log_f = torch.where(near_one, torch.log1p(-small), torch.log(positive))
    return torch.where(bound > 0, log_f, unbounded), complement
