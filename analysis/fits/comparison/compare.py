"""Which architecture needs less compute for the same loss, by how much, and how sure that is.

Surfaces are fitted jointly (joint.py), their noise is paired (draws.py), and everything is read off the draws: compute
gains along the optimal frontiers, savings of tokens at a size, differences of exponents, the compute at which two laws
cross, and how often one beats the other at a budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.fits.comparison.draws import Fitted, draw, fit_paired, p_value_of_one_e
from analysis.fits.comparison.joint import Together, gather, unpack
from analysis.fits.cost import Cost, cost_of
from analysis.fits.points import Points
from analysis.fits.surface import PARAMS, Surface
from arch.amounts import flop
from arch.errors import InputError

ONE_E = 0.01  # p value below which architectures are given an E of their own; at 0.05 intervals hold 2% less often
MIN_FINE = 0.9  # share of draws that must have ended well; below, there is no interval
UNREACHABLE = "unreachable"


@dataclass(frozen=True)
class Compared:
    """Architectures' surfaces on one corpus and context: the fit, and by name its surfaces (arrays [1 + r]: the fit's
    own first, then the draws'), costs of a token, and the ranges of C that the runs cover."""

    points: Together
    fitted: Fitted
    p_one_e: float
    surfaces: dict[str, Surface]
    costs: dict[str, Cost]
    spans: dict[str, tuple[float, float]]
    fine: np.ndarray
    level: float

    @property
    def common(self) -> tuple[float, float]:
        """The range of C that all architectures' runs cover. Raises InputError where there is none."""
        low, high = max(low for low, _ in self.spans.values()), min(high for _, high in self.spans.values())
        if low >= high:
            raise InputError(f"no compute was reached by all: some begin at {flop(low)} FLOP, some end at {flop(high)}")
        return low, high

    def l_opt(self, name: str, c: Any) -> np.ndarray:
        """Along the optimal frontier of an architecture: [1 + r], or [1 + r, k] for k budgets."""
        surface = self.surfaces[name] if np.ndim(c) == 0 else self.surfaces[name].column()
        return np.asarray(surface.l_opt(c, self.costs[name]))

    def flops_to_reach(self, name: str, loss: Any) -> np.ndarray:
        """The least C whose optimum has this loss: [1 + r]; inf where no compute has."""
        return np.asarray(self.surfaces[name].flops_to_reach(loss, self.costs[name]))


def compare_architectures(
    groups: Sequence[Points],
    costs: Mapping[str, Cost] | None = None,
    n_replicates: int = 999,
    level: float = 0.95,
    seed: int = 0,
    wild: bool = False,
    seed_noise: float = 0.0,
) -> Compared:
    """Fit the architectures of `groups` together; `costs` by group's name, or what their own points say; seed_noise:
    the least noise of a run, as a standard deviation of log loss, where seeds tell it.

    One E is shared where the F test does not speak against it. Raises InputError for fewer than two groups, for groups
    of another convention or loss unit or of losses that cannot be compared, and for too few points of one.
    """
    if len(groups) < 2:
        raise InputError(f"a comparison needs two architectures, there is {len(groups)}")
    for name, word in (("convention", "convention"), ("loss_unit", "loss unit"), ("loss_of", "kind of loss")):
        if len(found := {getattr(one, name) for one in groups}) > 1:
            told = ", ".join(one or "unstated" for one in sorted(found))
            raise InputError(f"one comparison takes one {word}, there are {told}")
    points = gather(groups)
    free = fit_paired(points, shared=False, seed_noise=seed_noise)
    p_one_e = p_value_of_one_e(points, free)
    fitted = fit_paired(points, seed_noise=seed_noise) if p_one_e >= ONE_E else free
    surfaces, fine = surfaces_of(points, fitted, n_replicates, seed, wild)
    known = dict(costs) if costs else {one.group: cost_of(one) for one in groups}
    spans = {one.group: (float(one.flops.min()), float(one.flops.max())) for one in groups}
    return Compared(points, fitted, p_one_e, surfaces, known, spans, fine, level)


def surfaces_of(
    points: Together, fitted: Fitted, n_replicates: int, seed: int, wild: bool = False
) -> tuple[dict[str, Surface], np.ndarray]:
    """By name the surfaces of a fit, arrays [1 + r]: its own first, then those of its draws; and which ended well."""
    own, drawn = unpack(points, fitted.theta[None], fitted.shared), draw(points, fitted, n_replicates, seed, wild)
    surfaces = {
        name: Surface(*(np.concatenate([getattr(one[0][name], key) for one in (own, drawn)]) for key in PARAMS))
        for name in points.names
    }
    return surfaces, np.concatenate([own[1], drawn[1]])


def interval(values: np.ndarray, found: Compared) -> list[float | None] | None:
    """[low, high] of draws [1 + r], whose first is the fit's own; null for an end that no finite number is; None where
    too many draws ended at a bound."""
    drawn = values[1:][found.fine[1:]]
    drawn = drawn[~np.isnan(drawn)]
    if len(drawn) < MIN_FINE * (len(values) - 1):
        return None
    ends = np.quantile(drawn, [(1 - found.level) / 2, (1 + found.level) / 2], method="inverted_cdf")
    return [float(end) if math.isfinite(end) else None for end in ends]


def share_where(true: np.ndarray, found: Compared) -> float:
    """The share of the draws (of those [1 + r]) where something is true."""
    return float(true[1:][found.fine[1:]].mean())


def log_gain(found: Compared, reference: str, other: str, loss: Any) -> np.ndarray:
    """log G(L) = log C_ref(L) - log C_other(L) [1 + r] along the optimal frontiers: above 0 where `other` needs less
    compute; inf (-inf) where `reference` (`other`) never reaches the loss, or `other` (`reference`) needs none at all
    for it, as some draws have it; nan where both do."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(found.flops_to_reach(reference, loss)) - np.log(found.flops_to_reach(other, loss))


def token_savings(found: Compared, reference: str, other: str, loss: float, n_params: float) -> dict[str, Any]:
    """S(L, N) = D_ref / D_other of models with `n_params` parameters; "unreachable" where one never gets there."""
    tokens = {name: found.surfaces[name].tokens_to_reach(loss, n_params) for name in (reference, other)}
    if missing := [name for name, drawn in tokens.items() if not math.isfinite(drawn[0])]:
        return {"value": UNREACHABLE, "interval": None, "reason": f"never reached by {' and '.join(missing)}"}
    with np.errstate(invalid="ignore"):
        ratio = tokens[reference] / tokens[other]
    return {"value": float(ratio[0]), "interval": interval(ratio, found), "reason": None}
