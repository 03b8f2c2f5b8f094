"""The envelope approach: the lowest loss at each compute among the curves of all sizes, and the laws of it (Hoffmann et
al. 2022, approach 1).

curves of sizes -> the envelope on a grid of C, each point with the size that owns it (`extract`)
                -> N_opt and D_opt by the crossings of neighbouring sizes (crossings.py), by the points of the envelope,
                   or by the vertices of its convex hull
                -> L(C): a power law through the points less their steps, and a test whether it is one
                -> a Fit, without optima that a run refutes

Intervals of what rests on points are those of a parametric bootstrap over re-drawn seeds. A study has a handful of runs
an architecture, too few to resample runs. What it can measure is how far two seeds of one size lie apart. That standard
deviation s of log smoothed loss, pooled over all sizes with replicate seeds and taken to hold for every size, is all
that enters: each replicate draws s^2 from its scaled inverse chi-square (so few degrees of freedom widen the interval),
moves every size's curve as a whole by N(0, s^2 / seeds), independently of the others, extracts the envelope again and
fits again. Not modelled: noise along one curve, and that runs of one seed read the same batches.
docs/research/envelope.md has what the intervals cover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.fits import crossings
from analysis.fits.crossings import Crossing, crossing_laws, find_crossings, rise
from analysis.fits.draws import interval, percentiles, student_scale
from analysis.fits.fit import (
    D_OPT,
    ENVELOPE,
    L_OPT,
    N_OPT,
    NEAR,
    Band,
    Curvature,
    EnvelopePart,
    EnvelopePoints,
    Estimate,
    Fit,
    Intervals,
    InverseLine,
    Law,
    LossLine,
    NoiseOf,
    Objective,
    Optimum,
    Pair,
)
from analysis.fits.noise import SeedNoise
from analysis.fits.points import Points
from analysis.fits.seeds import SizeCurve, not_in_curves, size_curves
from analysis.fits.settings import FitSettings
from arch.amounts import count, counted, counted_of, flop

# What a point's code means; 0 is an uncensored point.
REASONS = (
    None,
    "owned by the smallest size",
    "owned by the largest size",
    "inside warm-up",
    "a smaller size was still ahead when its run ended",
    "no curve covers this compute",
    "the next larger size has no curve here, after its warm-up",
)
SMALLEST, LARGEST, WARMUP, ENDED, UNCOVERED, UNRIVALLED = 1, 2, 3, 4, 5, 6
MIN_SIZES = 3  # sizes that must own an uncensored stretch before N_opt and D_opt are laws at all
# A replicate counts with two: a line has a slope then, and dropping the replicates that lost a size to noise would keep
# the well-behaved ones and make the interval of a law that is barely identified too narrow.
MIN_SIZES_REPLICATE = 2
RAGGED = 0.01  # of the loss: the steps of usual ladders stay below
TIMES_NOISE = 3.0
LEVEL = 0.05  # chance of a false alarm of a convex curve
LEVEL_CONCAVE = 0.01  # and of a concave one
NEAR_OPTIMUM = 0.75  # of the distance to the next size; half would be the envelope's own; noise moves the known N_opt
BESIDE = 1.5  # times the sizes with a curve: an optimum there is hardly lower than the nearest of them
BAND = 25  # places of a band within its range

OBJECTIVES = {
    "crossings": "generalised least squares of log C on log N at the crossings of neighbouring sizes; least squares of "
    "log L on log C",
    "envelope": "least squares through the points of the envelope, in logarithms",
    "hull": "least squares through the runs on the convex hull of log L over log C, in logarithms",
}
METHOD = "seed-noise parametric bootstrap, percentile interval, the level of L corrected for its simulated bias"
ESTIMAND = (
    "the line through the lowest loss at each compute under re-drawn seeds (initialisation and order of the data); "
    "text and learning rates fixed"
)
POINTS_ESTIMAND = (
    "the best of these sizes at each compute, whose steps make a too small by about 1 / k^2 for k sizes that own points"
)
HULL_ESTIMAND = "the runs that no straight line of two others in log loss over log compute lies below"
ONE_SIZE = "there is one size: its curve is not the lowest loss of several"
CURVED = "a pure power law does not describe this curve"
NO_SEEDS = "none: no replicate seeds"
UNTESTED = "there are no replicate seeds to tell a bend from noise"
SETTINGS = FitSettings()

# Slope, intercept and centre of r lines in log-log, [r] each; nan: not identified.
Lines = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Curves:
    """What the envelope of a group is fitted to: a curve a size, smallest first, over C in `stretch` [FLOP], and the
    noise between its seeds (None: no intervals); left_out: what of its runs is in no curve, in words."""

    sizes: Sequence[SizeCurve]
    stretch: tuple[float, float]
    noise: SeedNoise | None = None
    left_out: tuple[str, ...] = ()

    @classmethod
    def of_points(cls, points: Points, noise: SeedNoise | None) -> Curves:
        """Over all the compute of points that nothing else is known of. Raises InputError as size_curves does."""
        stretch = float(points.flops.min()), float(points.flops.max())
        return cls(size_curves(points), stretch, noise, tuple(not_in_curves(points)))

    @property
    def slack(self) -> float:
        """By how much of log loss a law and a point may disagree."""
        return max(RAGGED, TIMES_NOISE * (self.noise.s if self.noise else 0.0))


def fit_envelope(
    points: Points,
    curves: Curves | None = None,
    *,
    noise: SeedNoise | None = None,
    at: Sequence[float] = (),
    curve: Sequence[float] = (),
    settings: FitSettings = SETTINGS,
) -> Fit:
    """Laws of the whole curves of a group's `points`: of `curves`, or without them of the points themselves and `noise`
    between their seeds (seeds.seed_noise_of). at, curve: C [FLOP] of its optima; settings: of grid, optimum and
    intervals. Raises InputError as size_curves does."""
    curves = curves or Curves.of_points(points, noise)
    # an architecture's interval does not depend on its neighbours
    laws, part = envelope_laws(curves, settings, (settings.seed, *points.group.encode()))
    sizes = merge_near(curves.sizes, settings.near_sizes)
    if len(sizes) == 1:  # as while the first size of a study trains
        laws = (*laws[:2], Law(L_OPT, reason=ONE_SIZE))
    spans = [law.range for law in laws if law.range is not None]
    centre = math.sqrt(math.prod(spans[0])) if spans else 0.0
    middle = [_checked(Optimum(centre, *(law.at(centre) for law in laws)), curves, sizes)] if spans else []
    optima, drawn = ([_checked(_optimum(laws, c), curves, sizes) for c in computes] for computes in (at, curve))
    against = dict.fromkeys(text for _, texts in middle + optima for text in texts)
    return Fit(
        approach=ENVELOPE,
        group=points.group,
        n_points=len(points),
        n_runs=points.n_runs,
        input_hash=points.input_hash,
        range=curves.stretch,
        conventions={"C": points.convention, "L": points.loss_unit},
        objective=Objective(OBJECTIVES[settings.optimum]),
        intervals=_intervals(curves.noise, settings),
        laws=laws,
        middle=middle[0][0] if middle else None,
        optima=tuple(optimum for optimum, _ in optima),
        curve=tuple(optimum for optimum, _ in drawn),
        envelope=part,
        notes=(*_near_sizes_note(curves.sizes, settings.near_sizes), *against),
        left_out=curves.left_out,
    )


def _intervals(noise: SeedNoise | None, settings: FitSettings) -> Intervals:
    """How intervals are made, and of what."""
    if noise is None:
        return Intervals(NO_SEEDS)
    fieller = f"of N_opt and D_opt {crossings.FIELLER}; of L "
    estimand = {"crossings": crossings.ESTIMAND, "envelope": POINTS_ESTIMAND, "hull": HULL_ESTIMAND}
    return Intervals(
        method=(fieller if settings.optimum == "crossings" else "") + METHOD,
        level=settings.level,
        estimand=f"N_opt, D_opt: {estimand[settings.optimum]}; L: {ESTIMAND}",
        replicates=settings.n_replicates,
        seed=settings.seed,
        noise=NoiseOf("seeds", noise.s, noise.df),
    )


def envelope_laws(
    curves: Curves, settings: FitSettings, seed: Sequence[int]
) -> tuple[tuple[Law, Law, Law], EnvelopePart]:
    """N_opt, D_opt and L(C), and what else the envelope says. settings: the points of the grid, which sizes count as
    one, how N_opt is found, whether points that say nothing about it are left out of its lines, and the replicates and
    level of intervals."""
    sizes, noise = merge_near(curves.sizes, settings.near_sizes), curves.noise
    log_c = np.linspace(math.log(curves.stretch[0]), math.log(curves.stretch[1]), settings.grid_points)
    full = extract(sizes, log_c)
    envelope = full if settings.censor else extract(sizes, log_c, censor=False)
    replicates = None if noise is None else Replicates.draw(envelope, noise, settings, seed)
    pairs = find_crossings(sizes, (float(log_c[0]), float(log_c[-1])))
    by_crossings = crossing_laws(pairs, noise, settings.level)
    if settings.optimum == "crossings":
        own = by_crossings
    elif settings.optimum == "hull":
        own = _hull_laws(curves, settings, seed)
    else:
        own = _point_laws(envelope, replicates, settings.level)
    steps = _steps(envelope, pairs, by_crossings[0].line)
    none = Steps(np.zeros_like(log_c), np.ones(len(log_c), dtype=bool))
    taken = steps if steps is not None and settings.optimum == "crossings" else none  # the papers take nothing off
    loss = _loss_law(envelope, taken, replicates, settings.level)
    if loss.about_loss is not None and loss.identified:
        curvature = _curvature(envelope, steps, replicates, loss.about_loss.off_line or 0.0, curves)
        loss = replace(loss, about_loss=replace(loss.about_loss, curvature=curvature))
        if curvature.shape:
            exponent, coefficient = (Estimate(part.value, reason=CURVED) for part in (loss.exponent, loss.coefficient))
            loss = replace(loss, exponent=exponent, coefficient=coefficient, band=None)
    part = EnvelopePart(
        points=_described(full),
        pairs=tuple(_pair(pair) for pair in pairs),
        cost_growth=_cost_growth(sizes, own[0]),
    )
    return (*own, loss), part


# Geometry: the envelope on a grid, near sizes, the convex hull


@dataclass(frozen=True, eq=False)
class Envelope:
    """Envelopes of r replicates of the curves of `sizes` on a grid of g points: log loss (inf: uncovered), owner and
    code, each [r, g]."""

    sizes: Sequence[SizeCurve]
    log_c: np.ndarray
    log_loss: np.ndarray
    owner: np.ndarray
    code: np.ndarray

    @property
    def settled(self) -> np.ndarray:
        """[r, g]: the points of L(C), those on a curve and after its warm-up."""
        return (self.code != UNCOVERED) & (self.code != WARMUP)

    def owned(self, points: np.ndarray) -> np.ndarray:
        """[r, sizes, g]: which of `points` [r, g] are each size's."""
        return np.asarray(points[:, None] & (self.owner[:, None] == np.arange(len(self.sizes))[:, None]))

    def owns_stretch(self) -> np.ndarray:
        """[r, sizes]: which own two neighbouring uncensored points; a single one may be noise where curves cross."""
        owned = self.owned(self.code == 0)
        return np.asarray((owned[..., 1:] & owned[..., :-1]).any(-1))

    def optima(self) -> dict[str, np.ndarray]:
        """log N and log D [r, g] at its points."""
        log_n = np.log([float(curve.n_params) for curve in self.sizes])[self.owner]
        log_cost = np.log([curve.flops_per_token for curve in self.sizes])[self.owner]
        return {N_OPT: log_n, D_OPT: self.log_c - log_cost}


def extract(
    curves: Sequence[SizeCurve], log_c: np.ndarray, shifts: np.ndarray | None = None, censor: bool = True
) -> Envelope:
    """The envelope of `curves`, smallest size first, on the grid log_c [g]; shifts [r, sizes] move each log loss.

    At each C the owner is the size with the lowest loss among those whose curve covers C. An owned point says something
    about N_opt only where a better size could have shown itself; every other point is censored, with its reason.
    Without `censor` only points in warm-up and without a curve are set apart from the others.
    """
    shifts = np.zeros((1, len(curves))) if shifts is None else shifts
    table = np.stack([curve.read(log_c) for curve in curves])  # [sizes, g]
    moved = table[None] + shifts[:, :, None]
    owner, log_loss = moved.argmin(1), moved.min(1)
    warm_until = np.array([curve.warm_until for curve in curves])
    warm_until -= 1e-12 * np.abs(warm_until)  # a range that begins where the warm-up ends keeps its first point
    code = np.zeros(owner.shape, dtype=int)
    if censor:
        code[owner == len(curves) - 1] = LARGEST
        code[owner == 0] = SMALLEST
        code[(code == 0) & _ended_ahead(curves, log_c, shifts, owner)] = ENDED
        # a larger size whose curve has ended (or not begun) might be ahead; the next one, behind, rules all others out
        rival = np.isfinite(table[1:]) & (log_c > warm_until[1:, None])
        above = np.concatenate([rival, np.ones((1, len(log_c)), dtype=bool)])
        code[(code == 0) & ~above[owner, np.arange(len(log_c))]] = UNRIVALLED
    code[(log_c[None] < warm_until[owner]) & np.isfinite(log_loss)] = WARMUP
    code[~np.isfinite(log_loss)] = UNCOVERED
    return Envelope(curves, log_c, log_loss, owner, code)


def _ended_ahead(curves: Sequence[SizeCurve], log_c: np.ndarray, shifts: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """[r, g]: whether some size smaller than the owner ended before this C while no larger size had overtaken it.

    Two curves of one architecture cross once, so a size that was behind a larger one when it ended stays behind that
    one; a size still ahead of all larger ones might own this point, had it gone on.
    """
    censored = np.zeros(owner.shape, dtype=bool)
    for rank, curve in enumerate(curves[:-1]):
        end = curve.log_c[-1:]
        larger = np.array([other.read(end)[0] for other in curves[rank + 1 :]])
        best = (larger + shifts[:, rank + 1 :]).min(1)  # [r]
        ahead = curve.log_loss[-1] + shifts[:, rank] < best
        censored |= (owner > rank) & (log_c > end)[None] & ahead[:, None]
    return censored


def owner_at_ends(curves: Sequence[SizeCurve], stretch: tuple[float, float]) -> tuple[int, int]:
    """Which curve owns each end of `stretch`: the ends of the same envelope under another convention follow from it."""
    envelope = extract(curves, np.log(np.array(stretch)))
    return int(envelope.owner[0, 0]), int(envelope.owner[0, 1])


def merge_near(curves: Sequence[SizeCurve], factor: float) -> list[SizeCurve]:
    """`curves`, smallest first, with those of near sizes as one: at each compute the lowest loss among them, for the
    geometric means of their sizes and of their costs of a token. Where two such curves cross says little of the optimal
    size: noise, or another shape, moves the crossing by decades."""
    return [_merged(group) if len(group) > 1 else group[0] for group in _near_sizes(curves, factor)]


def _near_sizes(curves: Sequence[SizeCurve], factor: float) -> list[list[SizeCurve]]:
    """`curves`, smallest first, in groups of sizes less than `factor` times the smallest of their group."""
    groups: list[list[SizeCurve]] = []
    for curve in curves:
        if groups and curve.n_params < factor * groups[-1][0].n_params:
            groups[-1].append(curve)
        else:
            groups.append([curve])
    return groups


def _merged(curves: Sequence[SizeCurve]) -> SizeCurve:
    log_c = np.unique(np.concatenate([curve.log_c for curve in curves]))
    return SizeCurve(
        size=f"{curves[0].size} to {curves[-1].size}",
        n_params=float(round(np.exp(np.mean(np.log([float(curve.n_params) for curve in curves]))))),
        flops_per_token=float(np.exp(np.mean(np.log([curve.flops_per_token for curve in curves])))),
        warmup_tokens=max(curve.warmup_tokens for curve in curves),
        n_seeds=min(curve.n_seeds for curve in curves),
        log_c=log_c,
        log_loss=np.min([curve.read(log_c) for curve in curves], axis=0),
    )


def _near_sizes_note(curves: Sequence[SizeCurve], factor: float) -> list[str]:
    """Which sizes count as one, in words."""
    near = [group for group in _near_sizes(curves, factor) if len(group) > 1]
    if not near:
        return []
    names = ", ".join(f"{count(group[0].n_params)} to {count(group[-1].n_params)} ({len(group)})" for group in near)
    return [f"sizes less than {factor:g} times apart count as one, the best of them at each compute: {names}"]


def lower_hull(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the vertices of the lower convex hull of points [n], by rising x (Andrew 1979)."""
    chain: list[int] = []
    xs, ys = x.tolist(), y.tolist()

    def below_middle(first: int, middle: int, last: int) -> bool:
        """Whether the line through two of three points passes through the middle one, or below it."""
        return (xs[middle] - xs[first]) * (ys[last] - ys[first]) <= (ys[middle] - ys[first]) * (xs[last] - xs[first])

    for i in np.lexsort((-y, x)).tolist():
        while chain and xs[chain[-1]] == xs[i]:
            chain.pop()
        while len(chain) > 1 and below_middle(chain[-2], chain[-1], i):
            chain.pop()
        chain.append(i)
    return np.array(chain, dtype=int)


def _described(envelope: Envelope) -> EnvelopePoints:
    covered = envelope.code[0] != UNCOVERED
    owner, log_c = envelope.owner[0, covered], envelope.log_c[covered]
    optima = {name: np.exp(values[0, covered]) for name, values in envelope.optima().items()}
    return EnvelopePoints(
        c=tuple(np.exp(log_c).tolist()),
        loss=tuple(np.exp(envelope.log_loss[0, covered]).tolist()),
        n_params=tuple(optima[N_OPT].tolist()),
        n_tokens=tuple(optima[D_OPT].tolist()),
        size=tuple(envelope.sizes[rank].size for rank in owner),
        censored=tuple(REASONS[k] for k in envelope.code[0, covered]),
    )


def _cost_growth(sizes: Sequence[SizeCurve], n_opt: Law) -> float | None:
    """p of a token's training cost ~ N^p, by least squares over the sizes nearest to the optimal ones at the ends of
    the law's range and all between; 1 for C = 6 N D."""
    if n_opt.range is None or len(sizes) < 2:
        return None
    low, high = (n_opt.at(c).value or math.nan for c in n_opt.range)
    n_params = np.array([float(curve.n_params) for curve in sizes])
    first = max(int(np.searchsorted(n_params, low, side="right")) - 1, 0)
    last = max(min(int(np.searchsorted(n_params, high)), len(sizes) - 1), first + 1)
    cost = np.array([curve.flops_per_token for curve in sizes[first : last + 1]])
    return float(np.polyfit(np.log(n_params[first : first + len(cost)]), np.log(cost), 1)[0])


def _pair(crossing: Crossing) -> Pair:
    named, log_n = (crossing.small.size, crossing.large.size), crossing.middle("n_params")
    if crossing.reason:
        return Pair(named, math.exp(log_n), reason=crossing.reason)
    n_tokens = math.exp(crossing.at - crossing.middle("flops_per_token"))
    return Pair(named, math.exp(log_n), math.exp(crossing.at), n_tokens, crossing.beyond)


# Replicates: what seed noise does to the envelope


@dataclass(frozen=True)
class Replicates:
    """The envelope as re-drawn seeds would have it. shifts [r, sizes]: by how much they move each size's log loss, with
    a noise that each replicate draws as its degrees of freedom leave it open; `moved` by these, `at_s` by the same
    draws with the noise as it was measured."""

    shifts: np.ndarray
    moved: Envelope
    at_s: Envelope

    @classmethod
    def draw(cls, envelope: Envelope, noise: SeedNoise, settings: FitSettings, seed: Sequence[int]) -> Replicates:
        shifts, shifts_at_s = _shifts(envelope.sizes, noise, settings.n_replicates, seed)
        moved = extract(envelope.sizes, envelope.log_c, shifts, settings.censor)
        return cls(shifts, moved, extract(envelope.sizes, envelope.log_c, shifts_at_s))


def _shifts(
    curves: Sequence[SizeCurve], noise: SeedNoise, n_replicates: int, seed: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(list(seed))
    scale = student_scale(rng, noise.df, n_replicates)
    normal = rng.standard_normal((n_replicates, len(curves))) * noise.s
    normal /= np.sqrt([curve.n_seeds for curve in curves])
    return normal * scale[:, None], normal


# Laws through points


def _line_law(
    quantity: str,
    log_c: np.ndarray,
    log_y: np.ndarray,
    lines: Lines | None,
    level: float,
    reason: str = "",
) -> Law:
    """By least squares through points [n], with percentile intervals of coefficient, exponent and the law (`band`)."""
    law = Law(quantity, reason=reason, n_points=len(log_c))
    if reason:
        return law
    own = fit_lines(log_c, log_y[None], np.ones((1, len(log_c)), dtype=bool))
    slope, intercept, centre = (float(value[0]) for value in own)
    coefficient = math.exp(intercept - slope * centre)
    law = replace(
        law,
        exponent=Estimate(slope),
        coefficient=Estimate(coefficient),
        centre=(math.exp(centre), math.exp(intercept)),
        range=(float(np.exp(log_c.min())), float(np.exp(log_c.max()))),
    )
    if lines is None:
        return law
    slopes, intercepts, centres = lines
    law = replace(law, replicates=len(slopes), replicates_lost=int((~np.isfinite(slopes)).sum()))
    if (ends := interval(slopes, level)) is None:
        return law
    with np.errstate(over="ignore"):
        coefficients = interval(np.exp(intercepts - slopes * centres), level)
    at = np.linspace(log_c.min(), log_c.max(), BAND)
    return replace(
        law,
        exponent=Estimate.of(slope, ends),
        coefficient=Estimate.of(coefficient, coefficients),
        band=_band(at, np.exp(intercepts[:, None] + slopes[:, None] * (at - centres[:, None])), level),
    )


def fit_lines(x: np.ndarray, y: np.ndarray, keep: np.ndarray) -> Lines:
    """Least-squares lines y = intercept + slope (x - centre) for x [n] and y [r, n], over the points keep [r, n]:
    slope, intercept and centre, each [r], nan where fewer than two different x are kept. Centred, since at log C = 50
    the raw normal equations lose half of their digits."""
    count = keep.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = (keep * x).sum(1) / count
        intercept = np.where(keep, y, 0.0).sum(1) / count
        off = np.where(keep, x - centre[:, None], 0.0)
        spread = (off**2).sum(1)
        rise = (off * np.where(keep, y - intercept[:, None], 0.0)).sum(1)
        slope = np.where(spread > 0, rise / spread, np.nan)
    return slope, np.where(count > 1, intercept, np.nan), centre


def _band(log_c: np.ndarray, drawn: np.ndarray, level: float) -> Band:
    """Of drawn values [r, g] at log C [g]."""
    low, high = percentiles(drawn, level).tolist()
    return Band(tuple(np.exp(log_c).tolist()), tuple(low), tuple(high))


def _point_laws(envelope: Envelope, replicates: Replicates | None, level: float) -> tuple[Law, Law]:
    """N_opt and D_opt through the uncensored points of the envelope."""
    free, log_c = envelope.code[0] == 0, envelope.log_c
    moved = None if replicates is None else replicates.moved
    n_opt, d_opt = (
        _line_law(
            *(name, log_c[free], values[0, free], None if moved is None else _lines_through(moved, name), level),
            reason=_too_few_sizes(envelope),
        )
        for name, values in envelope.optima().items()
    )
    return n_opt, d_opt


def _lines_through(moved: Envelope, quantity: str) -> Lines:
    free = (moved.code == 0) & (moved.owns_stretch().sum(1) >= MIN_SIZES_REPLICATE)[:, None]
    return fit_lines(moved.log_c, moved.optima()[quantity], free)


def _too_few_sizes(envelope: Envelope) -> str:
    """Why the envelope's points give no N_opt and D_opt; "" if they do."""
    code = envelope.code[0]
    sizes = [curve.size for curve, owns in zip(envelope.sizes, envelope.owns_stretch()[0], strict=True) if owns]
    if len(sizes) >= MIN_SIZES:
        return ""
    own = counted(len(sizes), "interior size owns", "interior sizes own")
    named = f" ({', '.join(sizes)})" if sizes else ""
    lost = {REASONS[k]: int((code == k).sum()) for k in range(1, len(REASONS)) if (code == k).any()}
    detail = "; ".join(f"{counted_of(n, len(code), 'point')} {why}" for why, n in lost.items())
    return f"{own} an uncensored stretch{named}, {MIN_SIZES} are needed" + (f": {detail}" if detail else "")


def _hull_laws(curves: Curves, settings: FitSettings, seed: Sequence[int]) -> tuple[Law, Law]:
    """N_opt and D_opt through the runs on the lower convex hull of log loss over log compute, those of near sizes each
    by itself: a hull keeps the runs that stand out, however densely sizes lie. Its vertices are runs as they were
    trained after warm-up, the smallest and the largest size among them."""
    sizes, noise = curves.sizes, curves.noise
    low, high = np.log(curves.stretch)
    places, losses, ranks = [], [], []
    for rank, curve in enumerate(sizes):
        inside = (curve.log_c >= max(low, curve.settled_from) - 1e-9) & (curve.log_c <= high + 1e-9)
        own = lower_hull(curve.log_c[inside], curve.log_loss[inside])  # no other is a vertex, wherever the curve moves
        places.append(curve.log_c[inside][own])
        losses.append(curve.log_loss[inside][own])
        ranks.append(np.full(len(own), rank))
    x, log_loss, owner = (np.concatenate(parts) for parts in (places, losses, ranks))
    shifts = np.zeros((1, len(sizes)))
    if noise is not None:
        shifts = np.concatenate([shifts, _shifts(sizes, noise, settings.n_replicates, seed)[0]])
    is_vertex = np.zeros((len(shifts), len(x)), dtype=bool)
    for row, shift in enumerate(shifts):
        moved = log_loss + shift[owner]
        vertices = lower_hull(x, moved)
        is_vertex[row, vertices[: int(moved[vertices].argmin()) + 1] if len(vertices) else []] = True
    mine, n_sizes = is_vertex[0], len(set(owner[is_vertex[0]].tolist()))
    few = f"{counted(n_sizes, 'size lies', 'sizes lie')} on the hull, {MIN_SIZES} are needed"
    log_n, log_cost = (np.log([getattr(curve, name) for curve in sizes]) for name in ("n_params", "flops_per_token"))
    n_opt, d_opt = (
        _line_law(
            *(name, x[mine], y[mine]),
            None if noise is None else fit_lines(x, np.broadcast_to(y, is_vertex.shape)[1:], is_vertex[1:]),
            settings.level,
            reason=few if n_sizes < MIN_SIZES else "",
        )
        for name, y in ((N_OPT, log_n[owner]), (D_OPT, x - log_cost[owner]))
    )
    return n_opt, d_opt


# L(C)


@dataclass(frozen=True)
class Steps:
    """How far each point [g] of the envelope of a few sizes lies above a continuous choice of sizes, in log loss; and
    whether its size is near the optimal one: no more than NEAR_OPTIMUM of the distance to the next size away."""

    excess: np.ndarray
    inside: np.ndarray


def _steps(envelope: Envelope, pairs: Sequence[Crossing], n_opt: InverseLine | None) -> Steps | None:
    """None where N_opt is not known.

    Near its minimum log L is a parabola in log N, of a curvature k that the crossings say: the difference of two
    neighbouring curves, a distance h apart in log N, rises by k h a for each e-fold of compute, a the exponent of
    N_opt. A size that is u = log N - log N_opt(C) away from the optimum loses k u^2 / 2 of the loss. Where the size
    that owns a point is not one of those next to N_opt (it lies beyond the sizes, or the run of the right one has
    ended), the point is no point of an envelope: it says nothing about L(C).
    """
    if n_opt is None:
        return None
    log_n = np.log([float(curve.n_params) for curve in envelope.sizes])
    width, owner = np.diff(log_n), envelope.owner[0]
    curvature = max(rise(crossings.crossed(pairs)), 0.0) * n_opt.slope
    off = log_n[owner] - (n_opt.centre + (envelope.log_c - n_opt.level) / n_opt.slope)
    below, above = np.concatenate([width[:1], width]), np.concatenate([width, width[-1:]])
    inside = (off <= NEAR_OPTIMUM * below[owner]) & (off >= -NEAR_OPTIMUM * above[owner])
    return Steps(np.asarray(curvature * off**2 / 2), np.asarray(inside))


def _loss_law(envelope: Envelope, steps: Steps, replicates: Replicates | None, level: float) -> Law:
    """L(C) through the settled points of the envelope, less its steps."""
    used = envelope.settled[0] & steps.inside
    log_c, log_loss = envelope.log_c[used], (envelope.log_loss[0] - steps.excess)[used]
    few = (
        f"{counted(used.sum(), 'point of the range lies', 'points of the range lie')} on a curve, after its "
        f"warm-up; a line needs two"
    )
    lines = None if replicates is None else _loss_lines(envelope, steps, replicates)
    law = _line_law(L_OPT, log_c, log_loss, lines, level, reason=few if used.sum() < 2 else "")
    about = LossLine()
    if law.centre is not None and law.exponent.value is not None:
        line = math.log(law.centre[1]) + law.exponent.value * (log_c - math.log(law.centre[0]))
        about = LossLine(
            off_line=float(np.sqrt(((log_loss - line) ** 2).mean())),
            steep_early=bool(used.sum() > 2 and np.polyfit(log_c, log_loss, 2)[0] > 0),
        )
    return replace(law, about_loss=about)


def _loss_lines(envelope: Envelope, steps: Steps, replicates: Replicates) -> Lines:
    """L(C) of the replicates: their own slopes, about the level of the study's L(C) less its bias.

    The lowest of several curves that chance has moved lies too low on average, so the level of L(C) does (exponents
    hardly do), and drawing noise once more lowers the replicates again. So the replicates' level is put about the
    bias-corrected estimate, twice the fitted level less the mean of refitted ones (Efron and Tibshirani 1993, chapter
    10; linear SIMEX, Cook and Stefanski 1994), and moves with each size by that estimate's own gradient (as Efron 2014
    does for means over replicates). The law itself is left as fitted: it is the line through the envelope, and
    correcting it hardly lowers its error.

    The bias is what noise of the measured s does to the study's level. A level is the mean log loss of the points, so
    moving size i by 1 moves the fitted one by the share of them that i owns, and the mean of `at_s` by i's mean share
    there: what the shifts do to the corrected level, 2 fitted - mean, is the sum of (2 share_i - mean share_i) shift_i.
    """

    def lines_of(envelope: Envelope) -> Lines:
        kept = envelope.settled & steps.inside
        return fit_lines(envelope.log_c, np.where(kept, envelope.log_loss - steps.excess, 0.0), kept)

    def shares_of(envelope: Envelope) -> np.ndarray:
        kept = envelope.settled & steps.inside
        return np.asarray(envelope.owned(kept).sum(-1) / np.maximum(kept.sum(-1), 1)[:, None])

    lines = lines_of(replicates.moved)
    slope, intercept, centre = lines_of(envelope)
    if not np.isfinite(slope[0]):
        return lines
    slopes, levels, centres = lines_of(replicates.at_s)
    bias = float(np.nanmean(levels + slopes * (centre - centres)) - intercept[0])
    weights = 2 * shares_of(envelope)[0] - shares_of(replicates.at_s).mean(0)
    level = intercept - bias + replicates.shifts @ weights
    return lines[0], level, np.full(len(level), centre[0])


def _curvature(
    envelope: Envelope, steps: Steps | None, replicates: Replicates | None, off_line: float, curves: Curves
) -> Curvature:
    """The test's outcome; where there can be no test, or it shows no bend, `off_line` alone says that a line misses its
    points."""
    ragged = "ragged" if off_line > curves.slack else None
    if replicates is None or steps is None:
        why = (
            "N_opt is not identified, so the envelope's steps cannot be told from a bend" if curves.noise else UNTESTED
        )
        return Curvature(ragged, why)
    used = envelope.settled[0] & steps.inside
    if used.sum() < 4:
        return Curvature(reason="fewer than four points")
    log_loss, moved = envelope.log_loss[0, used] - steps.excess[used], replicates.moved.log_loss[:, used]
    shape = bend_of(envelope.log_c[used], log_loss, moved) or ragged
    return Curvature(shape, CURVED if shape else "")


def bend_of(log_c: np.ndarray, log_loss: np.ndarray, moved: np.ndarray) -> str | None:
    """A test for an irreducible loss: of the envelope log_loss [g] at log_c [g], less its steps, and of the envelopes
    `moved` [r, g] that noise makes of it: `convex`, `concave`, or None where noise may bend it so.

    With an irreducible loss log L is convex in log C, so the quadratic term of the least-squares parabola is positive;
    under a power law it is 0 but for noise, whose distribution is that of the replicates. A curve that bends the other
    way, which no irreducible loss makes, counts as well, but only where noise is far less likely.
    """
    x = log_c - log_c.mean()
    weights = np.linalg.pinv(np.stack([np.ones_like(x), x, x**2], 1))[2]
    noise = moved @ weights
    noise -= noise.mean()  # noise drawn once more also bends the envelope on average; the first draw hardly does
    chance = float((noise >= float(log_loss @ weights)).mean())
    return "convex" if chance < LEVEL else "concave" if chance > 1 - LEVEL_CONCAVE else None


# Optima, without those that a run refutes


def _optimum(laws: Sequence[Law], c: float) -> Optimum:
    """At C [FLOP]; without the loss of a law that does not describe its points."""
    return Optimum(c, *(Estimate(reason=CURVED) if law.curved else law.at(c) for law in laws))


def _checked(optimum: Optimum, curves: Curves, sizes: Sequence[SizeCurve]) -> tuple[Optimum, tuple[str, ...]]:
    """The optimum without what runs refute inside their compute, and what they say against it."""
    c, n_opt, d_opt, loss = optimum.flops, optimum.n_params, optimum.n_tokens, optimum.loss
    low, high = curves.stretch
    if not low / NEAR <= c <= high * NEAR:
        return optimum, ()
    against = refuted(sizes, min(max(c, low), high), n_opt.value, loss.value, curves.slack)
    texts = []
    for name, why in against.items():
        stated = count(n_opt.value or 0.0) if name == N_OPT else f"{loss.value:.4g}"
        texts.append(f"at {flop(c)} FLOP no {name} stands: the law's {stated} is refuted, as {why}")
    if N_OPT in against:
        n_opt = d_opt = Estimate(reason=texts[0])
    if texts:  # a loss at a size that is refuted is none either
        loss = Estimate(reason=texts[-1])
    return Optimum(c, n_opt, d_opt, loss), tuple(texts)


def refuted(
    curves: Sequence[SizeCurve], c: float, n_opt: float | None, l_opt: float | None, slack: float
) -> dict[str, str]:
    """What the curves say against an optimum at C [FLOP] among them, by quantity, by more than `slack` of log loss:

    N_opt: of the sizes with a curve there, one that lies between it and the best of them is worse than that;
    L_opt: a run had a lower loss after less compute; or the optimal size is among those, at most BESIDE times beyond
    them, and none of them has a loss as low."""
    log_c, against = math.log(c), {}
    began = [curve for curve in curves if curve.settled_from <= log_c]
    here = [curve for curve in began if log_c <= curve.log_c[-1] + 1e-9]
    losses = [float(np.interp(log_c, curve.log_c, curve.log_loss)) for curve in here]
    best = int(np.argmin(losses)) if losses else 0
    if n_opt is not None and here:
        low, high = sorted((float(here[best].n_params), n_opt))
        for curve, loss in zip(here, losses, strict=True):
            if low < curve.n_params < high and loss > losses[best] + slack:
                against[N_OPT] = (
                    f"there N = {count(curve.n_params)} has {math.exp(loss):.4g}, and N = {count(here[best].n_params)} "
                    f"{math.exp(losses[best]):.4g}"
                )
    if l_opt is not None and began:
        lows = [float(curve.log_loss[curve.log_c <= log_c + 1e-9].min(initial=math.inf)) for curve in began]
        lowest = int(np.argmin(lows))
        beside = here and here[0].n_params / BESIDE <= (n_opt or math.nan) <= here[-1].n_params * BESIDE
        if lows[lowest] < math.log(l_opt) - slack:
            against[L_OPT] = f"N = {count(began[lowest].n_params)} had {math.exp(lows[lowest]):.4g} by then"
        elif beside and losses[best] > math.log(l_opt) + slack:
            against[L_OPT] = f"the best size there, N = {count(here[best].n_params)}, has {math.exp(losses[best]):.4g}"
    return against
