"""Which architecture needs less compute for the same loss, by how much, and how sure that is.

Surfaces are fitted jointly, their noise is paired (module joint), and everything is read off the draws along the
optimal frontiers: compute for the same loss, and who is best at a budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from analysis.fits.comparison.joint import Fitted, Together, draw, fit_paired, gather, p_value_of_shared_e
from analysis.fits.cost import Cost, cost_of
from analysis.fits.draws import quantiles
from analysis.fits.pairwise import COMPUTE, Comparison, View, compared
from analysis.fits.points import Points
from analysis.fits.surface import Surface
from arch.amounts import flop
from arch.errors import InputError

OWN_E = 0.01  # p value below which architectures are given an E of their own; at 0.05 intervals hold 2% less often
MIN_FINE = 0.9  # share of draws that must have ended well; below, there is no interval
N_PLACES = 4  # budgets inside the common range at which architectures are compared
BEYOND = 10.0  # times the end of the common range: one more budget
NO_E = 0.01  # of the lowest loss: an E below it is at its bound of 0
NO_E_REASON = (
    "the fit wants no irreducible loss (E = 0): these losses are too far from their floor to tell where it is, so "
    "beyond the range of compute nothing is said"
)
NEVER = "some draws never reach the loss"


@dataclass(frozen=True)
class Frontiers:
    """Architectures' surfaces on one corpus and context: the fit, and by name its surfaces (arrays [1 + r]: the fit's
    own first, then the draws'), costs of a token, and the ranges of C that the runs cover; fine [1 + r]: which of them
    ended well."""

    points: Together
    fitted: Fitted
    p_shared_e: float
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

    @property
    def e_at_bound(self) -> bool:
        """Whether the E of an architecture ended at its bound of 0."""
        least = float(self.points.data.loss.min() * self.points.data.unit)
        return any(float(surface.E[0]) < NO_E * least for surface in self.surfaces.values())

    def l_opt(self, name: str, c: float) -> np.ndarray:
        """Along the optimal frontier of an architecture [1 + r]."""
        with np.errstate(all="ignore"):  # of draws that did not end well
            return np.asarray(self.surfaces[name].l_opt(c, self.costs[name]))

    def log_gain(self, reference: str, other: str, loss: float) -> np.ndarray:
        """log C_ref(L) - log C_other(L) [1 + r], the least computes whose optimum has the loss: above 0 where `other`
        needs less; inf (-inf) where `reference` (`other`) never reaches the loss, or `other` (`reference`) needs none
        at all for it, as some draws have it; nan where both do."""
        least = [self.surfaces[name].flops_to_reach(loss, self.costs[name]) for name in (reference, other)]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(least[0]) - np.log(least[1]))

    def interval(self, values: np.ndarray) -> tuple[float, float] | None:
        """Of draws [1 + r], whose first is the fit's own; an end may be infinite; None where too many draws ended at a
        bound."""
        drawn = values[1:][self.fine[1:]]
        drawn = drawn[~np.isnan(drawn)]
        if len(drawn) < MIN_FINE * (len(values) - 1):
            return None
        low, high = quantiles(drawn, (1 - self.level) / 2).tolist()
        return low, high


def fit_frontiers(
    groups: Sequence[Points],
    n_replicates: int = 999,
    level: float = 0.95,
    seed: int = 0,
    seed_noise: float = 0.0,
) -> Frontiers:
    """Fit the architectures of `groups` together. seed_noise: the least noise of a run, as a standard deviation of log
    loss, where seeds tell it.

    One E is shared where the F test does not speak against it. Raises InputError for fewer than two groups, for groups
    of another convention or loss unit or of losses that cannot be compared, and for too few points of one.
    """
    if len(groups) < 2:
        raise InputError(f"a comparison needs two architectures, there is {len(groups)}")
    for name, word in (("convention", "convention"), ("loss_unit", "loss unit"), ("loss_of", "kind of loss")):
        if len(kinds := {getattr(points, name) for points in groups}) > 1:
            named = ", ".join(kind or "unstated" for kind in sorted(kinds))
            raise InputError(f"one comparison takes one {word}, there are {named}")
    points = gather(groups)
    free = fit_paired(points, shared=False, seed_noise=seed_noise)
    p_shared_e = p_value_of_shared_e(points, free)
    fitted = fit_paired(points, seed_noise=seed_noise) if p_shared_e >= OWN_E else free
    surfaces, fine = draw(points, fitted, n_replicates, seed)
    costs = {group.group: cost_of(group) for group in groups}
    spans = {group.group: (float(group.flops.min()), float(group.flops.max())) for group in groups}
    return Frontiers(points, fitted, p_shared_e, surfaces, costs, spans, fine, level)


def view_of(frontiers: Frontiers) -> View:
    """Every pair of architectures at budgets inside the range that all reached and beyond it; the reference is the
    better one at the end of the range.

    The best is picked after looking, so intervals hold for all pairs at all budgets at once: by the largest of their
    standardised deviations in each draw. Raises InputError where no range of compute is common to all, or nothing is
    identified.
    """
    if not frontiers.fine[0]:
        raise InputError("the exponents of a fitted surface ended at the end of their range: nothing is identified")
    low, high = frontiers.common
    floored = frontiers.e_at_bound
    budgets = [low, *np.geomspace(low, high, N_PLACES)[1:-1].tolist(), high, *([] if floored else [BEYOND * high])]
    names = sorted(frontiers.points.names, key=lambda name: float(frontiers.l_opt(name, high)[0]))
    pairs = list(combinations(names, 2))
    return View(
        archs=tuple(names),
        range=(low, high),
        beyond=None if floored else BEYOND * high,
        beyond_reason=NO_E_REASON if floored else "",
        shared_e=frontiers.fitted.shared,
        p_shared_e=frontiers.p_shared_e,
        compute=tuple(_for_the_same_loss(frontiers, pairs, budgets)),
    )


def _for_the_same_loss(
    frontiers: Frontiers, pairs: Sequence[tuple[str, str]], budgets: Sequence[float]
) -> list[Comparison]:
    places = [(pair, c) for pair in pairs for c in budgets]
    gains = [frontiers.log_gain(*pair, float(frontiers.l_opt(pair[0], c)[0])) for pair, c in places]
    drawn = np.stack(gains)[:, 1:][:, frontiers.fine[1:]]
    own = np.array([gain[0] for gain in gains])
    spread = half = None
    if np.isfinite(drawn).all() and drawn.shape[1]:
        spread = np.maximum(drawn.std(1), 1e-300)
        half = spread * np.quantile((np.abs(drawn - own[:, None]) / spread[:, None]).max(0), frontiers.level)
    return [
        compared(other, best, COMPUTE, c, -gain, None, NEVER)
        if half is None or not math.isfinite(gain)
        else compared(other, best, COMPUTE, c, -gain, (-gain - half[i], -gain + half[i]))
        for i, (((best, other), c), gain) in enumerate(zip(places, own.tolist(), strict=True))
    ]
