"""The loss surface L(N, D), and the model that is optimal on it for a budget of compute.

Every form that is fitted is a case of one surface (Hoffmann et al. 2022, eq. 2; Muennighoff et al. 2023):

    L(N, D) = E + A / N^alpha + B / D'^beta,

the sum of both terms to a power in one form, which moves no optimum.

Where text is read once, D' is D; tokens that are read again count for less, by R_D.

Optima need no search. Under C = 6 N D the optimum is a power law of C in closed form (Hoffmann et al., eq. 4). Under a
cost law that is piecewise linear in logarithms every piece has such an optimum too, and the best of them, each kept
inside its piece, is the optimum. So everything broadcasts over many surfaces at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
    """One surface of numbers, or r surfaces of arrays [r].

    E, A and B are in the unit of the loss for N and D counted in ones. r_d: what repeated tokens are worth (inf: as
    much as new ones); None where the form takes them as new. gamma: the power of the sum of both terms (None: 1), in
    whose root A and B are counted then. Arguments of the methods broadcast against the
    parameters: `column()` makes those [r, 1], so that k arguments give [r, k].
    """

    E: Any
    A: Any
    B: Any
    alpha: Any
    beta: Any
    r_d: Any = None
    gamma: Any = None

    def __len__(self) -> int:
        return len(self.E)

    def take(self, which: Any) -> Surface:
        """The surfaces of an index, a mask or a slice."""
        values = (getattr(self, field.name) for field in fields(self))
        return Surface(*(None if value is None else np.asarray(value)[which] for value in values))

    def column(self) -> Surface:
        return self.take((..., None))

    def item(self, which: int = 0) -> Surface:
        """One of r surfaces, its parameters as plain numbers."""
        values = (getattr(self, field.name) for field in fields(self))
        return Surface(*(None if value is None else float(value[which]) for value in values))

    def to_dict(self) -> dict[str, float]:
        """Of one surface: E, A, B, alpha and beta by name."""
        return {name: float(getattr(self, name)) for name in PARAMS}

    def loss(self, n_params: Any, n_tokens: Any, unique_tokens: Any = None) -> Any:
        """L of N parameters after D tokens, of which `unique_tokens` are new (None: all)."""
        log_n, log_d = self._log_amounts(n_params, n_tokens, unique_tokens)
        above = self.A * np.exp(-self.alpha * log_n) + self.B * np.exp(-self.beta * log_d)
        return self.E + (above if self.gamma is None else above**self.gamma)

    def _log_amounts(self, n_params: Any, n_tokens: Any, unique_tokens: Any) -> tuple[np.ndarray, np.ndarray]:
        """Of N, and of D or, where repeated tokens are worth less, of what D is worth."""
        n, d = (np.asarray(value, dtype=float) for value in (n_params, n_tokens))
        if self.r_d is not None:
            unique = d if unique_tokens is None else np.minimum(np.asarray(unique_tokens, dtype=float), d)
            d = effective(d, unique, self.r_d)
        return np.log(n), np.log(d)

    @property
    def a(self) -> Any:
        """Exponent of N_opt over C under C = 6 N D."""
        return self.beta / (self.alpha + self.beta)

    def n_opt(self, flops: Any, cost: Cost | None = None) -> Any:
        """N of the lowest loss at C [FLOP under the convention of `cost`; 6 N D without], for text that is read once.
        Raises InputError for a cost that does not grow with N at its upper end."""
        cost = cost or six_nd()
        log_c = np.log(np.asarray(flops, dtype=float))
        if len(cost.log_n) == 2:  # one power law: its two knots bound nothing
            return np.exp(self._stationary(log_c, *_line(cost, 0)))
        lowest: Any = np.inf
        best: Any = np.nan
        for piece, (low, high) in enumerate(_pieces(cost)):
            growth, level = _line(cost, piece)
            log_n = np.clip(self._stationary(log_c, growth, level) if growth > 0 else high, low, high)
            loss = self._reducible(log_n, log_c - level - growth * log_n)
            lowest, best = np.minimum(lowest, loss), np.where(loss < lowest, log_n, best)
        return np.exp(best)

    def d_opt(self, flops: Any, cost: Cost | None = None) -> Any:
        """D that belongs to `n_opt` at C."""
        cost = cost or six_nd()
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.asarray(flops, dtype=float) / cost.per_token(self.n_opt(flops, cost))

    def l_opt(self, flops: Any, cost: Cost | None = None) -> Any:
        """The lowest loss at C."""
        n_params = self.n_opt(flops, cost)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return self.loss(n_params, np.asarray(flops, dtype=float) / (cost or six_nd()).per_token(n_params))

    def exponents(self, cost: Cost, low: float, high: float) -> dict[str, Any]:
        """a and b, of N_opt and D_opt over C: in closed form where a token costs a power N^g of N (there C = cost D,
        and alpha A / N^alpha is g beta B / D^beta or another multiple of it), else between C = `low` and `high`."""
        if len(cost.log_n) == 2:
            growth = float(cost.growth(cost.log_n[:1])[0])
            both = self.alpha + growth * self.beta
            return {"a": self.beta / both, "b": self.alpha / both}
        ends = np.array([low, high])
        with np.errstate(divide="ignore", invalid="ignore"):
            n_opt = np.log((self.column() if np.ndim(self.E) else self).n_opt(ends, cost))
            d_opt = np.log(ends) - cost.log_per_token(n_opt)
        width = math.log(high / low)
        return {"a": (n_opt[..., 1] - n_opt[..., 0]) / width, "b": (d_opt[..., 1] - d_opt[..., 0]) / width}

    def flops_to_reach(self, loss: Any, cost: Cost | None = None) -> Any:
        """The least C [FLOP] whose optimum has this loss, all tokens new: the inverse of `l_opt`; inf where
        loss <= E."""
        cost = cost or six_nd()
        above = np.asarray(loss, dtype=float) - self.E
        above = np.where(above > 0, above, np.nan) ** (1.0 if self.gamma is None else 1 / self.gamma)
        pieces = [(-np.inf, np.inf)] if len(cost.log_n) == 2 else list(_pieces(cost))
        least: Any = np.inf
        for piece, (low, high) in enumerate(pieces):
            growth, level = _line(cost, piece)
            # at an optimum alpha A / N^alpha = growth beta B / D^beta, and both terms make up L - E
            share = max(growth, 0.0) * self.beta / (self.alpha + max(growth, 0.0) * self.beta)
            with np.errstate(divide="ignore", invalid="ignore"):
                log_n = np.clip(np.log(self.A / (above * share)) / self.alpha, low, high)
                log_c = self._log_tokens(above, log_n) + level + growth * log_n
            least = np.fmin(least, np.where(above > 0, log_c, np.inf))
        return np.exp(least)

    def _log_tokens(self, above: Any, log_n: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            left = above - self.A * np.exp(-self.alpha * log_n)
            return np.where(left > 0, np.log(self.B / np.where(left > 0, left, np.nan)) / self.beta, np.inf)

    def _reducible(self, log_n: Any, log_d: Any) -> Any:
        """L - E of tokens that are all new; nan where a term that is not there (A = 0 or B = 0) would be of no
        parameters or no tokens."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return self.A * np.exp(-self.alpha * log_n) + self.B * np.exp(-self.beta * log_d)

    def _stationary(self, log_c: Any, growth: float, level: float) -> Any:
        """log N where the loss at C stands still, for a token that costs exp(level) N^growth."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(np.divide(self.alpha * self.A, self.beta * self.B))
        return (ratio - np.log(growth) + self.beta * (log_c - level)) / (self.alpha + self.beta * growth)


def effective(amount: Any, unique: Any, r_star: Any) -> np.ndarray:
    """D' = U + U R (1 - exp(-(D / U - 1) / R)) of D tokens of which U are unique (Muennighoff et al. 2023, equation of
    effective data); D itself up to U, and for R = inf."""
    unique = np.minimum(unique, amount)
    repeats = amount / unique - 1
    with np.errstate(invalid="ignore"):
        more = np.where(np.isinf(r_star), repeats, -r_star * np.expm1(-repeats / r_star))
    return np.asarray(unique * (1 + more))


def worth(ratio: np.ndarray, log_r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log of 1 + R (1 - exp(-(ratio - 1) / R)), and its derivative over log R."""
    r = np.exp(log_r)
    k = (ratio - 1) / r
    left = np.exp(-k)
    whole = 1 - r * np.expm1(-k)
    return np.log(whole), r * (-np.expm1(-k) - k * left) / whole


def _line(cost: Cost, piece: int) -> tuple[float, float]:
    """Growth and level of a piece: log cost = level + growth log N."""
    growth = float((cost.log_cost[piece + 1] - cost.log_cost[piece]) / (cost.log_n[piece + 1] - cost.log_n[piece]))
    if growth <= 0 and piece == len(cost.log_n) - 2:
        raise InputError(
            f"the cost of a token does not grow with N from {count(math.exp(cost.log_n[-2]), 6)} to "
            f"{count(math.exp(cost.log_n[-1]), 6)} parameters: no N is optimal"
        )
    return growth, float(cost.log_cost[piece] - growth * cost.log_n[piece])


def _pieces(cost: Cost) -> Iterator[tuple[float, float]]:
    """Where each piece holds, in log N; the first and the last without an end."""
    ends = [-np.inf, *cost.log_n[1:-1].tolist(), np.inf]
    return pairwise(ends)
