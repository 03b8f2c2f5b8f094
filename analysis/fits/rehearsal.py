"""Rehearsals: laws fitted below a cut inside the data predict what lies above it, at many cuts.

What they miss there tells how far a law may be off beyond the data. At a reach of r times the largest compute that was
fitted, the interval of the loss of a new run has the half-width, in log loss,

    t * s * (log(r) + h)^(1/2),    s^2 = mean over cuts of the mean of error^2 / (log(reach) + h).

h is the variance of the prediction over that of one run's log loss, by the leverage of the runs that were fitted: so
what laws of few runs miss says less of the law of all. At sizes beyond the largest h is left out, since there it is
the form that errs, and intervals with it are too narrow. Of N_opt h alone is in it: few runs tell it badly at any
reach. The mean weighs a cut by the third power of the number of runs below it; t is Student's with as many degrees of
freedom as there are disjoint cuts. Cuts are not exchangeable: the interval is named rehearsed, its level is nominal,
and beyond the largest reach that two disjoint cuts rehearsed there is none. Sizes beyond the largest are rehearsed by
leaving the largest sizes out, and by nothing else.

What predicts is a surface times the law of its frontier. The surface weighs a run by its nearness to the frontier, the
lowest loss at its compute: runs far above it bend the surface where no larger run will be. It tells how far above the
optimum of its compute a run lies. The lowest loss itself is E + A C^-g through the losses that are brought to the
optimum so, by runs still nearer to the frontier and by their compute, since surfaces are bent by what is short and
small, and promise too little. Few computes hardly tell g, so it is expected as other people's tables have it.
docs/research/extrapolation.md says how the constants were chosen and how often the intervals hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from analysis.fits.cost import Cost, cost_of
from analysis.fits.fit import Estimate
from analysis.fits.forms import PLAIN, Form, form_of
from analysis.fits.irreducible import Irreducible, fit_irreducible
from analysis.fits.parametric import fit_form, identifies
from analysis.fits.points import Points
from analysis.fits.solver import DELTA, HUBER
from analysis.fits.surface import Surface
from arch.amounts import count
from arch.errors import InputError

LEVEL = 0.9
NEAREST = 1.5  # a reach of less counts as this
APART = 1.5  # factor in compute from which on two cuts are disjoint
LEAST_CUTS = 2  # disjoint ones that rehearse a reach
LEAST_POINTS = 8  # below a cut
MOST_CUTS, MOST_SIZE_CUTS = 20, 10
MOST_LEFT_OUT = 12  # groups of neighbouring sizes, of more sizes
MOST_POINTS = 2000  # that are read: evenly many of more, in the order of compute
SAME = 0.02  # of log C, log N: nearer ones are one
ALSO_AT = 1.05  # times a run's compute, up to which other runs are its rivals for the lowest loss
LARGER = 1.05  # times the largest fitted size, from which on a size is beyond it
OUTSIDE = 0.05  # of log D / N, by which a run may lie outside of those that were fitted
SINGULAR = 1e-9  # of the largest: singular values of slopes below it are of unknowns that nothing moves
AT = 8  # computes above a cut at which an optimum is compared


@dataclass(frozen=True)
class Rule:
    """The constants of the docstring above. near, nearest: log loss above the frontier at which a run has half its
    weight in the surface and in the frontier's law (inf: all weigh the same); exponent: g of other tables, and the
    standard deviation of its logarithm; by_runs: power of the number of runs below a cut; by_reach: whether log(r) is
    in the variance."""

    near: float = 0.05
    nearest: float = 0.01
    exponent: tuple[float, float] = (0.12, 0.15)
    by_runs: float = 3.0
    by_reach: bool = True


RULE = Rule()
OF_OPTIMA = Rule(by_reach=False)


@dataclass(frozen=True)
class Rehearsal:
    """What laws fitted below k cuts missed of m values above them.

    cut, n_runs [k]: the largest compute fitted [FLOP], and how many runs; at [m]: the index of each value's cut; reach
    [m]: its compute over the cut; error [m]: log of observed over predicted; weight [m]: of the value among its cut's;
    leverage [m]: h of the docstring above.
    """

    cut: np.ndarray
    n_runs: np.ndarray
    at: np.ndarray
    reach: np.ndarray
    error: np.ndarray
    weight: np.ndarray
    leverage: np.ndarray
    rule: Rule = RULE

    def take(self, kept: np.ndarray) -> Rehearsal:
        """The values of a mask [m]."""
        of_values = ("at", "reach", "error", "weight", "leverage")
        return replace(self, **{name: getattr(self, name)[kept] for name in of_values})

    @property
    def n_cuts(self) -> int:
        """Disjoint cuts above which something was predicted."""
        return disjoint(self.cut[np.unique(self.at)])

    @property
    def limit(self) -> float:
        """The largest reach that LEAST_CUTS disjoint cuts rehearsed; 1 where there is none."""
        farthest = np.zeros(len(self.cut))
        np.maximum.at(farthest, self.at, self.reach)
        reached = [far for far in farthest if far and disjoint(self.cut[farthest >= far]) >= LEAST_CUTS]
        return float(max(reached, default=1.0))

    def scale(self, without: int | None = None) -> float:
        """s of the docstring above; `without` one of the cuts."""
        square = self.weight * self.error**2 / self._variance(self.reach, self.leverage)
        total, weight = (np.bincount(self.at, values, len(self.cut)) for values in (square, self.weight))
        by = np.where(weight > 0, self.n_runs**self.rule.by_runs, 0.0)
        if without is not None:
            by[without] = 0.0
        return math.sqrt((by * total / np.maximum(weight, 1e-300)).sum() / by.sum())

    def half_width(self, reach: Any, leverage: Any = 0.0, level: float = LEVEL) -> np.ndarray:
        """Half of the interval of the logarithm at `reach` [..]; nan beyond `limit`."""
        reach = np.asarray(reach, dtype=float)
        if self.limit <= 1:
            return np.full(reach.shape, math.nan)
        wide = _times(self.n_cuts, level) * self.scale() * np.sqrt(self._variance(reach, leverage))
        return np.asarray(np.where(reach <= self.limit * (1 + 1e-9), wide, math.nan))

    def held(self, level: float = LEVEL) -> float | None:
        """The mean over cuts, weighted as in s, of the share of values inside intervals that the other cuts give; None
        where fewer than LEAST_CUTS other disjoint cuts are left."""
        if self.n_cuts <= LEAST_CUTS:
            return None
        shares, cuts = [], np.unique(self.at)
        for cut in cuts:
            mine = self.at == cut
            variance = self._variance(self.reach[mine], self.leverage[mine])
            wide = _times(self.n_cuts - 1, level) * self.scale(without=cut) * np.sqrt(variance)
            shares.append(float(np.average(np.abs(self.error[mine]) <= wide, weights=self.weight[mine])))
        return float(np.average(shares, weights=self.n_runs[cuts] ** self.rule.by_runs))

    def reason(self, reach: float) -> str | None:
        """Why there is no interval at a reach; None where there is one."""
        if reach <= self.limit * (1 + 1e-9) and self.limit > 1:
            return None
        if self.limit <= 1:
            return "nothing could be rehearsed: no two disjoint cuts leave enough below them"
        return (
            f"nothing rehearses a reach of {_times_text(reach)} (two disjoint cuts: {_times_text(self.limit)} at most)"
        )

    def sentence(self, reach: float, level: float = LEVEL) -> str:
        """What the interval at a reach rests on, or why there is none."""
        if why := self.reason(reach):
            return why
        share = self.held(level)
        inside = "" if share is None else f", where {share:.0%} of the runs lay within such intervals"
        at = f"{_times_text(reach)} times the largest compute fitted" if reach > 1 else "inside the compute fitted"
        return f"{at}; rehearsed up to {_times_text(self.limit)} times at {self.n_cuts} disjoint cuts{inside}"

    def _variance(self, reach: np.ndarray, leverage: Any) -> np.ndarray:
        """Over s^2."""
        return np.asarray((np.log(np.maximum(reach, NEAREST)) if self.rule.by_reach else 0.0) + leverage)


def _times_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(n_cuts: int, level: float) -> float:
    return float(stats.t.ppf((1 + level) / 2, n_cuts))


def disjoint(cuts: np.ndarray) -> int:
    """How many of these cuts [FLOP] follow each other by the factor APART."""
    number, last = 0, 0.0
    for cut in np.sort(cuts):
        if cut >= last * APART * (1 - 1e-9):
            number, last = number + 1, float(cut)
    return number


@dataclass(frozen=True)
class Rehearsed:
    """The loss of a run that is to come, of N, D and the unique tokens (None: all are), with its rehearsed interval or
    the reason why there is none; reach: its compute over the largest that was fitted; sentence: what the interval rests
    on."""

    n_params: float
    n_tokens: float
    unique_tokens: float | None
    loss: Estimate
    reach: float
    sentence: str


@dataclass(frozen=True)
class Laws:
    """k surfaces [k], each with the law of its frontier: the lowest loss at C. A loss is that of the frontier at its
    compute times what the surface has at N and D over its own optimum."""

    surface: Surface
    frontier: Irreducible
    cost: Cost

    def take(self, which: Any) -> Laws:
        return Laws(self.surface.take(which), self.frontier.take(which), self.cost)

    def loss(self, n_params: Any, n_tokens: Any, unique_tokens: Any = None) -> np.ndarray:
        """[k, m]; the surface's own where it has no optimum."""
        flops = self.cost.per_token(n_params) * n_tokens
        surface = self.surface.column()
        own = surface.loss(n_params, n_tokens, unique_tokens)
        with np.errstate(all="ignore"):
            loss = own * self.frontier.at(np.log(flops)) / surface.l_opt(flops, self.cost)
        return np.asarray(np.where(np.isfinite(loss), loss, own))

    def lowest(self, c: np.ndarray) -> np.ndarray:
        """At C [m] FLOP, [k, m]."""
        return self.frontier.at(np.log(c))


@dataclass(frozen=True)
class Forecast:
    """The laws [k + 1] below each cut and, last, those that predict runs beyond `points`; and what was rehearsed:
    `within` at sizes up to the largest below a cut, `beyond` at larger ones. cut: computes of the laws that were fitted
    below a compute, the first ones; covariance: of each surface's unknowns (`Form.slopes_of`), over the variance of one
    run's log loss; without: by name, the laws [1] without each group of sizes (None: too few points)."""

    form: Form
    laws: Laws
    cut: np.ndarray
    points: Points
    covariance: np.ndarray
    within: Rehearsal
    beyond: Rehearsal
    without: tuple[tuple[str, Laws | None], ...]

    @property
    def whole(self) -> Laws:
        """The laws [1] of all points."""
        return self.laws.take([-1])

    @property
    def surface(self) -> Surface:
        return self.whole.surface.item()

    def lowest(self, which: int, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log of the lowest loss at C [m] FLOP by one of the laws, and its leverage."""
        laws = self.laws.take([which])
        with np.errstate(all="ignore"):
            n_params = laws.surface.n_opt(c, laws.cost)
            n_tokens = c / laws.cost.per_token(n_params)
            slopes = self.form.slopes_of(laws.surface, n_params, n_tokens)[0]
        return np.log(laws.lowest(c)[0]), np.einsum("mi,ij,mj->m", slopes, self.covariance[which], slopes)

    def rehearsal(self, n_params: float) -> Rehearsal:
        """That of runs of this size."""
        return self.beyond if n_params > LARGER * float(self.points.n_params.max()) else self.within

    def predict(
        self,
        n_params: float,
        n_tokens: float,
        unique_tokens: float | None = None,
        level: float = LEVEL,
        c: float | None = None,
    ) -> Rehearsed:
        """c: the run's FLOP by the points' convention; None: by their cost of a token."""
        run = n_params, n_tokens, unique_tokens
        loss = float(self.whole.loss(np.array([n_params]), np.array([n_tokens]), unique_tokens)[0, 0])
        c = float(self.laws.cost.per_token(n_params)) * n_tokens if c is None else c
        reach, rehearsal = c / float(self.points.flops.max()), self.rehearsal(n_params)
        why = self._outside(n_params, n_tokens) or rehearsal.reason(reach)
        if why is None:
            slopes = self.form.slopes_of(self.surface, n_params, n_tokens, unique_tokens)[0, 0]
            leverage = 0.0 if rehearsal is self.beyond else slopes @ self.covariance[-1] @ slopes
            half = float(rehearsal.half_width(reach, leverage, level))
            ends = loss * math.exp(-half), loss * math.exp(half)
            return Rehearsed(*run, Estimate.of(loss, ends), reach, rehearsal.sentence(reach, level))
        if rehearsal is self.beyond and why.startswith("nothing"):
            why = f"{why} at sizes beyond the largest below a cut"
        return Rehearsed(*run, Estimate(loss, reason=why), reach, why)

    def _outside(self, n_params: float, n_tokens: float) -> str | None:
        every = np.ones((1, len(self.points)), dtype=bool)
        if covered(self.points, every, np.array([n_params]), np.array([n_tokens]))[0, 0]:
            return None
        ratio = self.points.n_tokens / self.points.n_params
        return (
            f"nothing rehearses {count(n_tokens / n_params, 3)} tokens a parameter "
            f"(fitted: {count(ratio.min(), 3)} to {count(ratio.max(), 3)})"
        )


def cuts_of(points: Points) -> np.ndarray:
    """[k, n]: what lies below each cut in compute, then below each cut in size."""
    below: list[np.ndarray] = []
    for values, most in ((points.flops, MOST_CUTS), (points.n_params, MOST_SIZE_CUTS)):
        logs = np.sort(np.log(values))
        ends = np.append(logs[:-1][np.diff(logs) > SAME], logs[-1])[:-1]
        if len(ends) > most:
            wanted = np.linspace(ends[0], ends[-1], most)
            ends = ends[np.unique([np.abs(ends - at).argmin() for at in wanted])]
        below += [np.log(values) <= end + 1e-9 for end in ends]
    return np.array(below, dtype=bool).reshape(len(below), len(points))


def above_frontier(points: Points, below: np.ndarray) -> np.ndarray:
    """[k, n]: log loss above the lowest one at no more compute, among what lies below each cut; inf above the cut."""
    order = np.argsort(points.flops, kind="stable")
    upto = np.searchsorted(points.flops[order], points.flops * ALSO_AT, side="right") - 1
    lowest = np.minimum.accumulate(np.where(below, points.loss, np.inf)[:, order], axis=1)[:, upto]
    return np.where(below, np.log(points.loss / np.where(below, lowest, 1.0)), np.inf)


def by_nearness(excess: np.ndarray, near: float) -> np.ndarray:
    """Weights of runs `excess` above the frontier."""
    if math.isinf(near):
        return np.where(np.isfinite(excess), 1.0, 0.0)
    return np.asarray(1 / (1 + (excess / near) ** 2))


def covered(points: Points, below: np.ndarray, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
    """[k, m]: whether D / N of m runs lies within that of the points below each cut [k, n]."""
    ratio, asked = np.log(points.n_tokens / points.n_params), np.log(n_tokens / n_params)
    low, high = np.where(below, ratio, np.inf).min(1), np.where(below, ratio, -np.inf).max(1)
    return np.asarray((asked >= low[:, None] - OUTSIDE) & (asked <= high[:, None] + OUTSIDE))


def some_of(points: Points, weights: np.ndarray | None) -> tuple[Points, np.ndarray]:
    """At most MOST_POINTS of the points, with their weights."""
    weights = np.ones(len(points)) if weights is None else weights
    if len(points) <= MOST_POINTS:
        return points, weights
    order = np.lexsort((points.n_params, points.flops))
    kept = order[np.linspace(0, len(order) - 1, MOST_POINTS).round().astype(int)]
    return points.take(kept), weights[kept]


def is_enough(points: Points) -> bool:
    """Whether a surface below a cut can be fitted to these points."""
    return len(points) >= LEAST_POINTS and identifies(points)


def size_groups(points: Points) -> list[tuple[str, np.ndarray]]:
    """Each size with its points [n], or of more than MOST_LEFT_OUT so many groups of neighbours."""
    sizes, which = np.unique(np.round(np.log(points.n_params) / SAME), return_inverse=True)
    group = which * min(len(sizes), MOST_LEFT_OUT) // len(sizes)
    groups = []
    for i in np.unique(group):
        mine = group == i
        low, high = float(points.n_params[mine].min()), float(points.n_params[mine].max())
        groups.append((count(low) if high < low * (1 + SAME) else f"{count(low)} to {count(high)}", mine))
    return groups


def _masks(points: Points) -> tuple[np.ndarray, np.ndarray]:
    """Cuts below which enough is left to fit a surface [k, n], and these with all points as the last [k + 1, n]."""
    if not is_enough(points):
        raise InputError(
            f"a rehearsal needs {LEAST_POINTS} or more points that identify a surface; {len(points)} given"
        )
    below = cuts_of(points)
    below = below[np.array([is_enough(points.take(rows)) for rows in below], dtype=bool)]
    return below, np.concatenate([below, np.ones((1, len(points)), dtype=bool)])


def _covariances(slopes: np.ndarray, weights: np.ndarray, run: np.ndarray) -> np.ndarray:
    """[k, u, u]: of the u unknowns of k surfaces, over the variance of one run's log loss. slopes [k, n, u]; weights
    [k, n]; run [n]: rows of one run share its noise. By least squares, to first order; the objective may be another."""
    root = np.sqrt(weights)
    pull = np.linalg.pinv(root[..., None] * slopes, rcond=SINGULAR) * root[:, None]  # of each row on each unknown
    of_runs = np.zeros((len(pull), pull.shape[1], run.max() + 1))
    np.add.at(np.moveaxis(of_runs, 2, 0), run, np.moveaxis(pull, 2, 0))
    return np.asarray(of_runs @ np.swapaxes(of_runs, 1, 2))


def forecast(
    points: Points,
    weights: np.ndarray | None = None,
    *,
    cost: Cost | None = None,
    objective: str = HUBER,
    delta: float = DELTA,
    form: str = PLAIN,
    rule: Rule = RULE,
) -> Forecast:
    """Surfaces below cuts of these points and of all of them, and what they missed of the runs above the cuts.

    weights [n]: of rows, as 1 over the rows of a run (None: alike). Raises InputError for points that identify no
    surface.
    """
    cost = cost or cost_of(points)
    points, weights = some_of(points, weights)
    below, kept = _masks(points)
    groups = size_groups(points)
    enough = [is_enough(points.take(~mine)) for _, mine in groups]
    left = np.array([~mine for (_, mine), good in zip(groups, enough, strict=True) if good], dtype=bool)
    excess = above_frontier(points, np.concatenate([kept, left.reshape(-1, len(points))]))
    near, nearest = (by_nearness(excess, scale) * weights for scale in (rule.near, rule.nearest))
    nearest = nearest * (points.flops / points.flops.max())
    surfaces = fit_form(points, points.loss, near, objective, form, delta=delta).surface
    amounts = points.n_params, points.n_tokens, points.unique_tokens
    with np.errstate(all="ignore"):
        at_optimum = points.loss * surfaces.column().l_opt(points.flops, cost) / surfaces.column().loss(*amounts)
    laws = Laws(surfaces, fit_irreducible(np.log(points.flops), at_optimum, nearest, rule.exponent), cost)
    every, fitted = len(below), laws.loss(*amounts)
    slopes = form_of(form).slopes_of(surfaces, *amounts)
    covariances = _covariances(slopes[: every + 1], near[: every + 1], np.unique(points.run, return_inverse=True)[1])
    cut = np.where(below, points.flops, 0.0).max(1)
    reach = points.flops / cut[:, None]
    at, row = np.nonzero(~below & (reach >= NEAREST) & covered(points, below, points.n_params, points.n_tokens))
    error = np.log(points.loss[row] / fitted[at, row])
    n_runs = (below * weights).sum(1)
    larger = points.n_params[row] > LARGER * np.where(below, points.n_params, 0.0).max(1)[at]
    leverage = np.einsum("mi,mij,mj->m", slopes[at, row], covariances[at], slopes[at, row]) * ~larger
    whole = Rehearsal(cut, n_runs, at, reach[at, row], error, weights[row], leverage, rule)
    within, beyond = whole.take(~larger), whole.take(larger)
    without = iter(range(every + 1, len(near)))
    changed = tuple(
        (name, laws.take([next(without)]) if good else None) for (name, _), good in zip(groups, enough, strict=True)
    )
    by_compute = [bool((points.flops[~rows] > c).all()) for rows, c in zip(below, cut, strict=True)]
    first = cut[: [*by_compute, False].index(False)]  # cuts in compute come first
    return Forecast(form_of(form), laws.take(slice(every + 1)), first, points, covariances, within, beyond, changed)


def rehearse_optimum(
    points: Points,
    weights: np.ndarray | None = None,
    *,
    cost: Cost | None = None,
    objective: str = HUBER,
    delta: float = DELTA,
    form: str = PLAIN,
) -> tuple[Rehearsal, Callable[[float], float]]:
    """What surfaces below cuts missed of N_opt of the surface of all points, all inside its range; and the leverage of
    N_opt of that surface at C."""
    points, weights = some_of(points, weights)
    law = cost or cost_of(points)
    below, kept = _masks(points)
    surfaces = fit_form(points, points.loss, kept * weights, objective, form, delta=delta).surface
    cut, highest = np.where(below, points.flops, 0.0).max(1), float(points.flops.max())
    reached = np.flatnonzero(highest >= cut * NEAREST)
    at = np.repeat(reached, AT)
    c = np.concatenate([np.geomspace(cut[i] * NEAREST, highest, AT) for i in reached] or [np.zeros(0)])
    slopes = form_of(form).slopes_of(surfaces, points.n_params, points.n_tokens, points.unique_tokens)
    covariances = _covariances(slopes, kept * weights, np.unique(points.run, return_inverse=True)[1])
    whole = surfaces.item(len(below))

    def leverage(surface: Surface, at: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        slopes = form_of(form).slopes_of_n_opt(surface, at, law)
        return np.einsum("mi,mij,mj->m", slopes, covariance, slopes)

    with np.errstate(all="ignore"):
        error = np.log(whole.n_opt(c, law) / surfaces.take(at).n_opt(c, law))
        leverages = leverage(surfaces.take(at), c, covariances[at])
    n_runs = (below * weights).sum(1)
    rows = Rehearsal(cut, n_runs, at, c / cut[at], error, np.ones(len(at)), leverages, OF_OPTIMA)
    rows = rows.take(np.isfinite(error) & np.isfinite(leverages))
    return rows, lambda c: float(leverage(whole, np.array([c]), covariances[-1:])[0])


def rehearse_ratio(upper: Forecast, lower: Forecast) -> Rehearsal:
    """What laws below cuts in compute missed of the log ratio of two groups' lowest losses, `upper` over `lower`, of
    the laws of all their points."""
    highest = min(float(group.points.flops.max()) for group in (upper, lower))
    cuts: list[tuple[float, float]] = []
    rows = []
    for i, mine in enumerate(upper.cut if len(lower.cut) else ()):
        j = int(np.abs(np.log(lower.cut / mine)).argmin())
        cut = max(mine, lower.cut[j])
        if cut > APART * min(mine, lower.cut[j]) or highest < cut * NEAREST:
            continue
        c = np.geomspace(cut * NEAREST, highest, AT)
        (a, h_a), (b, h_b), (a_all, _), (b_all, _) = (
            group.lowest(k, c) for group, k in ((upper, i), (lower, j), (upper, -1), (lower, -1))
        )
        rows.append(np.stack([np.full(AT, len(cuts)), c / cut, a_all - b_all - a + b, h_a + h_b]))
        cuts.append((cut, upper.within.n_runs[i] + lower.within.n_runs[j]))
    at, reach, error, leverage = np.concatenate(rows, 1) if rows else np.zeros((4, 0))
    cut, n_runs = np.array(cuts).reshape(-1, 2).T
    whole = Rehearsal(cut, n_runs, at.astype(int), reach, error, np.ones(len(at)), leverage)
    return whole.take(np.isfinite(error) & np.isfinite(leverage))


def rehearse_line(c: Sequence[float], values: Sequence[float]) -> tuple[Rehearsal, Callable[[float], float]]:
    """What power laws through the values [k] at less compute missed of those at more (minima of budgets, crossings);
    and the leverage of the law of all at C."""
    order = np.argsort(c)
    x, y = np.log(np.asarray(c, dtype=float))[order], np.log(np.asarray(values, dtype=float))[order]
    ends = [i for i in range(2, len(x)) if x[i] - x[i - 1] > SAME and len(np.unique(np.round(x[:i], 2))) > 1]

    def leverage(i: int, at: float) -> float:
        off = x[:i] - x[:i].mean()
        return float(1 / i + (at - x[:i].mean()) ** 2 / (off @ off))

    rows = []
    for k, i in enumerate(ends):
        line = np.polynomial.Polynomial.fit(x[:i], y[:i], 1)
        rows += [(k, math.exp(x[j] - x[i - 1]), y[j] - line(x[j]), leverage(i, x[j])) for j in range(i, len(x))]
    rows = [row for row in rows if row[1] >= NEAREST]
    at, reach, error, leverages = (np.array([row[i] for row in rows]) for i in range(4))
    cut, n_runs = np.exp(x[[i - 1 for i in ends]]), np.array(ends, dtype=float)
    rehearsal = Rehearsal(cut, n_runs, at.astype(int), reach, error, np.ones(len(rows)), leverages, OF_OPTIMA)
    return rehearsal, lambda c: leverage(len(x), math.log(c))
