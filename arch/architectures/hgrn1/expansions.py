r"""Projections from d to n d that cost less than a dense projection's n d^2 (HGRN2, table 2); `expansion` of HGRN1.

    naive  d, d nd -> nd                                  n d^2           (nn.Linear)
    lr     d, d r, r nd -> nd                             d r (n + 1)     r = d / (n + 1), rounded: about d^2
    glt    d = (n e) -> n e;  n e, n e d -> (n d)         d^2             group linear transformation
    glti   d = (m e) -> m e;  m e, m e d, m n -> (n d)    d^2 + n^2       with interaction of the groups, m = n
    krp    d, n d -> (n d)                                n d             Khatri-Rao product: no channel meets another
    kp     d, d d, n -> (n d)                             d^2 + n         Kronecker product: n multiples of a matrix

Channel c of copy j is number j d + c. Source: HGRN2, section 3.1, which gives d r (n + 1), about d^2, for lr. Initially
each output has the variance of a dense projection whose entries have `init_std` (this project's choice).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn


class Expansion(nn.Module):
    """[.., d] -> [.., n d]."""

    def reset_parameters(self, std: float, generator: torch.Generator) -> None:
        """std: standard deviation of the entries of the dense projection in its place."""
        raise TypeError(f"{type(self).__name__} must define reset_parameters")


class LowRank(Expansion):
    def __init__(self, width: int, copies: int) -> None:
        super().__init__()
        rank = max(1, round(width / (copies + 1)))
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width * copies, bias=False)

    def reset_parameters(self, std: float, generator: torch.Generator) -> None:
        nn.init.normal_(self.down.weight, 0.0, std, generator=generator)
        nn.init.normal_(self.up.weight, 0.0, self.down.out_features**-0.5, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


class Grouped(Expansion):
    """GLT and, with `interact`, GLTI."""

    def __init__(self, width: int, copies: int, interact: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(copies, width // copies, width))
        self.mix = nn.Parameter(torch.empty(copies, copies)) if interact else None

    def reset_parameters(self, std: float, generator: torch.Generator) -> None:
        # a group reads d / n inputs; with interaction a copy reads all n groups
        copies = self.weight.shape[0]
        gain = math.sqrt(copies) if self.mix is None else 1.0
        nn.init.normal_(self.weight, 0.0, std * gain, generator=generator)
        if self.mix is not None:
            nn.init.normal_(self.mix, 0.0, 1.0, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        groups = x.reshape(-1, *self.weight.shape[:2]).transpose(0, 1)
        out = (groups @ self.weight).transpose(0, 1)  # [tokens, n, d]
        if self.mix is not None:
            out = (out.mT @ self.mix).mT
        return out.reshape(*x.shape[:-1], -1)


class KhatriRao(Expansion):
    def __init__(self, width: int, copies: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(copies, width))

    def reset_parameters(self, std: float, generator: torch.Generator) -> None:
        nn.init.normal_(self.weight, 0.0, std * math.sqrt(self.weight.shape[1]), generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return (x[..., None, :] * self.weight.to(x.dtype)).flatten(-2)


class Kronecker(Expansion):
    def __init__(self, width: int, copies: int) -> None:
        super().__init__()
        self.shared = nn.Linear(width, width, bias=False)
        self.multiples = nn.Parameter(torch.empty(copies, 1))  # a factor of a matrix, with two dimensions like a matrix

    def reset_parameters(self, std: float, generator: torch.Generator) -> None:
        nn.init.normal_(self.shared.weight, 0.0, std, generator=generator)
        nn.init.normal_(self.multiples, 0.0, 1.0, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        out = self.shared(x)
        return (out[..., None, :] * self.multiples.to(out.dtype)).flatten(-2)


EXPANSIONS: dict[str, Callable[[int, int], Expansion]] = {
    "lr": LowRank,
    "glt": partial(Grouped, interact=False),
    "glti": partial(Grouped, interact=True),
    "krp": KhatriRao,
    "kp": Kronecker,
}
