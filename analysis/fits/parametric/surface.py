"""The loss surface L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, eq. 2), and what follows from it.

Under C = 6 N D its optimum is a power law of C in closed form (their eq. 4). Under a real cost law, piecewise linear in
logarithms, each piece has such an optimum too; the best of them, each kept inside its piece, is the optimum. So nothing
here iterates, and everything broadcasts over many surfaces at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.fits.cost import Cost, six_nd
from arch.amounts import count
from arch.errors import InputError

PARAMS = ("E", "A", "B", "alpha", "beta")


@dataclass(frozen=True)
class Surface:
    """One surface of numbers, or r surfaces of arrays [r], in the units of the points: E, A and B in those of the loss,
    N and D counted in ones. Arguments of the methods broadcast against the parameters; `column()` makes those [r, 1],
    so that k arguments give [r, k]."""

    E: Any
    A: Any
    B: Any
    alpha: Any
    beta: Any

    def __len__(self) -> int:
        return len(self.E)

    def take(self, which: Any) -> Surface:
        """The surfaces of an index, a mask or a slice."""
        return Surface(*(np.asarray(getattr(self, one.name))[which] for one in fields(self)))

    def column(self) -> Surface:
        return self.take((..., None))

    def to_dict(self) -> dict[str, float]:
        """Of one surface: its five parameters by name."""
        return {one.name: float(getattr(self, one.name)) for one in fields(self)}

    def loss(self, n_params: Any, n_tokens: Any) -> Any:
        """L at N parameters and D tokens."""
        log_n, log_d = (np.log(np.asarray(value, dtype=float)) for value in (n_params, n_tokens))
        return self.E + self.A * np.exp(-self.alpha * log_n) + self.B * np.exp(-self.beta * log_d)

    @property
    def a(self) -> Any:
        """Exponent of N_opt over C under C = 6 N D."""
        return self.beta / (self.alpha + self.beta)

    @property
    def b(self) -> Any:
        """Exponent of D_opt over C under C = 6 N D."""
        return self.alpha / (self.alpha + self.beta)

    @property
    def G(self) -> Any:
        """N_opt = G (C / 6)^a and D_opt = (C / 6)^b / G."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.divide(self.alpha * self.A, self.beta * self.B) ** (1 / (self.alpha + self.beta))

    def n_opt(self, flops: Any, cost: Cost | None = None) -> Any:
        """N that has the lowest loss at C [FLOP under the convention of `cost`; 6 N D without one]."""
        return best_size(flops, cost or six_nd(), self.stationary, self._reducible)

    def d_opt(self, flops: Any, cost: Cost | None = None) -> Any:
        """D that belongs to `n_opt` at C."""
        cost = cost or six_nd()
        return np.asarray(flops, dtype=float) / cost.per_token(self.n_opt(flops, cost))

    def l_opt(self, flops: Any, cost: Cost | None = None) -> Any:
        """The lowest loss at C."""
        n_params = self.n_opt(flops, cost)
        return self.loss(n_params, np.asarray(flops, dtype=float) / (cost or six_nd()).per_token(n_params))

    def flops_to_reach(self, loss: Any, cost: Cost | None = None) -> Any:
        """The least C [FLOP] whose optimum has this loss: the inverse of `l_opt`; inf where loss <= E."""
        cost = cost or six_nd()
        above = self._above(loss)
        pieces = [(-np.inf, np.inf)] if len(cost.log_n) == 2 else _pieces(cost)
        found: Any = np.inf
        for piece, (low, high) in enumerate(pieces):
            growth, level = _line(cost, piece)
            # at an optimum alpha A / N^alpha = growth beta B / D^beta, and both terms make up L - E
            share = max(growth, 0.0) * self.beta / (self.alpha + max(growth, 0.0) * self.beta)
            with np.errstate(divide="ignore", invalid="ignore"):
                log_n = np.clip(np.log(self.A / (above * share)) / self.alpha, low, high)
                log_c = self._log_tokens(above, log_n) + level + growth * log_n
            found = np.fmin(found, np.where(above > 0, log_c, np.inf))
        return np.exp(found)

    def tokens_to_reach(self, loss: Any, n_params: Any) -> Any:
        """D at which a model of N parameters has this loss; inf where it never does (L <= E + A / N^alpha)."""
        return np.exp(self._log_tokens(self._above(loss), np.log(np.asarray(n_params, dtype=float))))

    def _above(self, loss: Any) -> Any:
        above = np.asarray(loss, dtype=float) - self.E
        return np.where(above > 0, above, np.nan)

    def _log_tokens(self, above: Any, log_n: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            left = above - self.A * np.exp(-self.alpha * log_n)
            return np.where(left > 0, np.log(self.B / np.where(left > 0, left, np.nan)) / self.beta, np.inf)

    def _reducible(self, log_n: Any, log_d: Any) -> Any:
        """nan where a term that is not there (A = 0 or B = 0) would be of no parameters or no tokens."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.A * np.exp(-self.alpha * log_n) + self.B * np.exp(-self.beta * log_d)

    def stationary(self, log_c: Any, growth: float, level: float, excess: Any = None) -> Any:
        """log N where the loss at C stands still, for a cost of exp(level) N^growth a token. excess: alpha times how
        far it lies above the optimum of 6 N D for the same D, where a form has another than the surface's."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(np.divide(self.alpha * self.A, self.beta * self.B * (growth if excess is None else 1.0)))
            ratio = ratio if excess is None else ratio + excess
        return (ratio + self.beta * (log_c - level)) / (self.alpha + self.beta * growth)


def best_size(
    flops: Any,
    cost: Cost,
    stationary: Callable[[Any, float, float], Any],
    reducible: Callable[[Any, Any], Any],
) -> Any:
    """N of the lowest loss at C [FLOP]. stationary: of log C, growth and level of a piece of the cost law, log N where
    the loss, which has one minimum there, stands still; reducible: the loss above E, of log N and log D."""
    log_c = np.log(np.asarray(flops, dtype=float))
    if len(cost.log_n) == 2:  # one power law: its two knots bound nothing
        return np.exp(stationary(log_c, *_line(cost, 0)))
    best: Any = np.inf
    found: Any = np.nan
    for piece, (low, high) in enumerate(_pieces(cost)):
        growth, level = _line(cost, piece)
        log_n = np.clip(stationary(log_c, growth, level) if growth > 0 else high, low, high)
        loss = reducible(log_n, log_c - level - growth * log_n)
        best, found = np.minimum(best, loss), np.where(loss < best, log_n, found)
    return np.exp(found)


def _line(cost: Cost, piece: int) -> tuple[float, float]:
    """Growth and level of a piece: log cost = level + growth log N."""
    growth = float((cost.log_cost[piece + 1] - cost.log_cost[piece]) / (cost.log_n[piece + 1] - cost.log_n[piece]))
    if growth <= 0 and piece == len(cost.log_n) - 2:
        raise InputError(
            f"the cost of a token does not grow with N from {count(math.exp(cost.log_n[-2]), 6)} to "
            f"{count(math.exp(cost.log_n[-1]), 6)} parameters: no N is optimal"
        )
    return growth, float(cost.log_cost[piece] - growth * cost.log_n[piece])


def _pieces(cost: Cost) -> list[tuple[float, float]]:
    """Where each piece holds, in log N; the first and the last without an end."""
    ends = [-np.inf, *cost.log_n[1:-1].tolist(), np.inf]
    return list(pairwise(ends))
