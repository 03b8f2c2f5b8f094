"""The envelope approach on points: curves of runs as one curve a size, and its laws as every approach returns them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from analysis.fits.cost import cost_of
from analysis.fits.envelope.diagnostics import refuted
from analysis.fits.envelope.extract import SizeCurve, average_seeds, near_as_one, near_sizes
from analysis.fits.envelope.intervals import ESTIMAND, METHOD, NO_SEEDS
from analysis.fits.envelope.laws import CURVED, ENVELOPE_ESTIMAND, HULL_ESTIMAND, RAGGED, TIMES_NOISE, fit_arch
from analysis.fits.envelope.optimum import ESTIMAND as OF_OPTIMUM
from analysis.fits.envelope.optimum import FIELLER
from analysis.fits.fit import ENVELOPE, L_OPT, N_OPT, NEAR, Estimate, Fit, Intervals, Law, NoiseOf, Objective, Optimum
from analysis.fits.noise import Group, SeedNoise, SeedNoises
from analysis.fits.points import COPIED, SAME_SEED, Points
from analysis.fits.replicates import SAME_D, alike
from analysis.fits.settings import FitSettings
from analysis.fits.smooth import read_at
from arch.amounts import count, counted, counted_of, flop
from arch.errors import InputError

MIN_SIZES = 2  # of an envelope
NOISE_STEP = 0.05  # log C or D between the points at which seeds are compared
ENDS_EARLY = "runs of its size train on more tokens"
OTHER_RECIPE = "runs of its size by another recipe end lower"
OBJECTIVES = {
    "crossings": "generalised least squares of log C on log N at the crossings of neighbouring sizes; least squares of "
    "log L on log C",
    "envelope": "least squares through the points of the envelope, in logarithms",
    "hull": "least squares through the runs on the convex hull of log L over log C, in logarithms",
}
SETTINGS = FitSettings()
Trunk = list[np.ndarray]  # of each of its branches, most often one, the rows


@dataclass(frozen=True)
class Size:
    """The runs of one number of parameters. sets: groups of trunks that are seeds of each other (module replicates),
    the last of which stands for the size; left_out: of the other runs, {run: why}."""

    points: Points
    sets: list[list[Trunk]]
    left_out: dict[str, str]

    @property
    def row(self) -> int:
        """The first row of the runs that stand for the size."""
        return int(self.sets[-1][0][0][0])

    @property
    def n_params(self) -> float:
        return float(self.points.n_params[self.row])

    @property
    def runs(self) -> list[str]:
        """Those that the size's curve is made of."""
        return self.names(self.sets[-1])

    def names(self, trunks: Sequence[Trunk]) -> list[str]:
        return [str(self.points.run[rows[0]]) for trunk in trunks for rows in trunk]

    def unpaired(self) -> list[str]:
        """Of a size with several runs, those that are no seeds of others."""
        paired = {name for one in self.sets if len(one) > 1 for name in self.names(one)}
        every = dict.fromkeys([*(name for one in self.sets for name in self.names(one)), *self.left_out])
        return [name for name in every if name not in paired] if len(every) > 1 else []


def sizes_of(points: Points) -> list[Size]:
    """The sizes, smallest first, of points of whole curves. A run that is another one under another name is no run, nor
    is one of a recipe and seed again; of a trunk, the branches that reach its most tokens count."""
    copied, again = points.copied, points.trained_again
    by_size: dict[float, dict[str, list[np.ndarray]]] = {}
    left_out: dict[float, dict[str, str]] = {}
    for run, found in points.rows_of_runs.items():
        n_params = float(points.n_params[found[0]])
        if copied[found[0]] or again[found[0]]:
            left_out.setdefault(n_params, {})[str(run)] = COPIED if copied[found[0]] else SAME_SEED
            continue
        rows = found[np.argsort(points.n_tokens[found], kind="stable")]
        by_size.setdefault(n_params, {}).setdefault(str(points.trunk[rows[0]]), []).append(rows)
    return [_size(points, trunks, left_out.get(n_params, {})) for n_params, trunks in sorted(by_size.items())]


def _size(points: Points, trunks: Mapping[str, list[np.ndarray]], left_out: dict[str, str]) -> Size:
    whole: list[Trunk] = []
    for branches in trunks.values():
        *short, longest = _seeds(points, [[rows] for rows in branches])
        whole.append([trunk[0] for trunk in longest])
        left_out |= {str(points.run[trunk[0][0]]): ENDS_EARLY for group in short for trunk in group}
    sets = _seeds(points, whole)
    farthest = max(float(points.n_tokens[rows[-1]]) for trunk in sets[-1] for rows in trunk)
    for rows in (rows for one in sets[:-1] for trunk in one for rows in trunk):
        is_short = float(points.n_tokens[rows[-1]]) < (1 - SAME_D) * farthest
        left_out[str(points.run[rows[0]])] = ENDS_EARLY if is_short else OTHER_RECIPE
    return Size(points, sets, left_out)


def curves_of(sizes: Sequence[Size], per_token: Sequence[float]) -> list[SizeCurve]:
    """One curve a size over C, at its FLOP a token: the mean log loss of the trunks that stand for it (its seeds), each
    the mean of its branches. Sizes whose trunks share fewer than two points have none."""
    found = []
    for size, flops in zip(sizes, per_token, strict=True):
        points, first, seeds = size.points, size.row, size.sets[-1]
        log_tokens, log_loss = average_seeds([_curve(points, trunk, points.n_tokens) for trunk in seeds])
        if len(log_tokens) > 1:
            named = str(points.size[first]), size.n_params, float(flops)
            warmup, log_c = float(points.warmup_tokens[first]), log_tokens + np.log(float(flops))
            found.append(SizeCurve(*named, warmup, len(seeds), log_c, log_loss))
    return found


def size_curves(points: Points) -> list[SizeCurve]:
    """The curves of points that nothing else is known of; `not_in_curves` says what they leave out. Raises InputError
    where a run has a single row, C / D changes within a size, or there are fewer than two sizes."""
    cost = cost_of(points)  # one cost a size
    points = points.take(~points.copied)
    short = [run for run, rows in points.rows_of_runs.items() if len(rows) < 2]
    if short:
        raise InputError(
            f"the envelope needs curves, several rows a run: "
            f"{counted_of(len(short), points.n_runs, 'run', 'has', 'have')} one row ({short[0]})"
        )
    sizes = sizes_of(points)
    if len(sizes) < MIN_SIZES:
        raise InputError(
            f"the envelope needs at least {MIN_SIZES} sizes, there is one (N = {count(float(points.n_params[0]), 6)})"
        )
    log_cost = np.log(points.flops / points.n_tokens)
    own = [math.exp(log_cost[points.n_params == size.n_params].mean()) for size in sizes]
    # a curve lies at its own compute; a token of the optimal size, which may be any, costs what the law of all says
    curves = [replace(curve, flops_per_token=float(cost.per_token(curve.n_params))) for curve in curves_of(sizes, own)]
    for size in sizes:
        if size.n_params not in {curve.n_params for curve in curves}:
            name = points.size[size.row]
            raise InputError(f"the runs of size {name} share fewer than two rows of compute: they cannot be averaged")
    return curves


def not_in_curves(points: Points) -> list[str]:
    """What `size_curves` leaves out, in words: runs that are another under another name, and those that end early."""
    sizes, recipes = sizes_of(points), set(points.recipe[~points.copied].tolist())
    reasons = [why for size in sizes for why in size.left_out.values()]
    gone = reasons.count(COPIED)
    short = len(reasons) - gone
    words = [f"{counted(gone, 'run')} with {COPIED}"] if gone else []
    other = " or are of another recipe" if len(recipes) > len(sizes) else ""
    return words + (
        [f"{counted(short, 'run that ends', 'runs that end')} before the longest of their size{other}"] if short else []
    )


def seed_noises_of(
    groups: Sequence[Points], reach: Mapping[str, Sequence[float]] | None = None, along: str = "flops"
) -> SeedNoises:
    """Noise between seeds of groups, of which those count as one that are not told apart. reach: by group, the stretch
    of C [FLOP] in which its seeds are compared; of others it is all that they have in common. along: `flops` or
    `n_tokens`, over which they are read: to rounding the same, but rounding decides whether two sizes that begin
    together share their first point (`noise.degrees`).

    Seeds are trunks of one size that reach the same tokens by one recipe: branches of one trunk share its noise, and
    runs of other lengths have other schedules."""
    found = []
    for points in groups:
        steps = getattr(points, along)
        low, high = np.log((reach or {}).get(points.group, (1e-300, 1e300)))
        for size in sizes_of(points):
            for seeds in size.sets:
                known = [(_curve(points, trunk, steps), trunk) for trunk in seeds]
                known = [(curve, trunk) for curve, trunk in known if len(curve[0]) > 1]
                if len(known) < 2:
                    continue
                first = seeds[0][0][0]
                tokens = float(points.n_tokens[first])
                off, more = np.log(steps[first] / tokens), np.log(points.flops[first] / steps[first])
                warm = math.log(max(float(points.warmup_tokens[first]), 1.0)) + off
                start = max(low - more, warm, *(curve[0][0] for curve, _ in known))
                end = min(high - more, *(curve[0][-1] for curve, _ in known))
                if start < end:
                    at = np.arange(start, end, NOISE_STEP)
                    table = np.stack([read_at(*curve, at) for curve, _ in known])
                    cells = tuple(str(points.cell[trunk[0][0]]) for _, trunk in known)
                    names = tuple(size.names([trunk for _, trunk in known]))
                    name = str(points.size[first])
                    found.append(Group(points.group, name, table, names, cells, at - off))
    return SeedNoises(tuple(found), NOISE_STEP)


def seed_noise_of(groups: Sequence[Points]) -> SeedNoise | None:
    """Noise between seeds, pooled over all groups; None without such."""
    return seed_noises_of(groups).every


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
    between their seeds (seed_noise_of). at, curve: C [FLOP] of its optima; settings: of grid, optimum and intervals.
    Raises InputError as size_curves does."""
    curves = curves or Curves.of_points(points, noise)
    # an architecture's interval does not depend on its neighbours
    seed = (settings.seed, *points.group.encode())
    laws, part = fit_arch(curves.sizes, curves.stretch, curves.noise, settings, seed)
    spans = [law.range for law in laws if law.range is not None]
    centre = math.sqrt(math.prod(spans[0])) if spans else None
    slack = max(RAGGED, TIMES_NOISE * (curves.noise.s if curves.noise else 0.0))
    check = partial(_checked, curves=curves, slack=slack, factor=settings.near_sizes)
    middle = None if centre is None else check(Optimum(centre, *(law.at(centre) for law in laws)))
    optima, drawn = ([check(_optimum(laws, c)) for c in computes] for computes in (at, curve))
    against = [text for _, texts in ([middle] if middle else []) + optima for text in texts]
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
        middle=middle and middle[0],
        optima=tuple(optimum for optimum, _ in optima),
        curve=tuple(optimum for optimum, _ in drawn),
        envelope=part,
        notes=(*_near(curves.sizes, settings.near_sizes), *dict.fromkeys(against)),
        left_out=curves.left_out,
    )


def _intervals(noise: SeedNoise | None, settings: FitSettings) -> Intervals:
    """How intervals are made, and of what."""
    if noise is None:
        return Intervals(NO_SEEDS)
    fieller = settings.optimum == "crossings"
    of_points = HULL_ESTIMAND if settings.optimum == "hull" else ENVELOPE_ESTIMAND
    return Intervals(
        method=(f"of N_opt and D_opt {FIELLER}; of L " if fieller else "") + METHOD,
        level=settings.level,
        estimand=f"N_opt, D_opt: {OF_OPTIMUM if fieller else of_points}; L: {ESTIMAND}",
        replicates=settings.n_replicates,
        seed=settings.seed,
        noise=NoiseOf("seeds", noise.s, noise.df),
    )


def _optimum(laws: Sequence[Law], c: float) -> Optimum:
    """At C [FLOP]; without the loss of a law that does not describe its points."""
    return Optimum(c, *(Estimate(reason=CURVED) if law.curved else law.at(c) for law in laws))


def _checked(optimum: Optimum, curves: Curves, slack: float, factor: float) -> tuple[Optimum, list[str]]:
    """The optimum without what runs refute (`refuted`), and what they say; beyond the runs' compute it stays."""
    low, high = curves.stretch
    if not low / NEAR <= optimum.flops <= high * NEAR:
        return optimum, []
    values = optimum.n_params.value, optimum.loss.value
    sizes = near_as_one(curves.sizes, factor)
    against = refuted(sizes, min(max(optimum.flops, low), high), *values, slack)
    shown = {N_OPT: lambda: count(values[0] or 0.0), L_OPT: lambda: f"{values[1]:.4g}"}
    texts = [
        f"at {flop(optimum.flops)} FLOP no {name} stands: the law's {shown[name]()} is refuted, as {why}"
        for name, why in against.items()
    ]
    of_size = Estimate(reason=texts[0]) if N_OPT in against else None
    of_loss = Estimate(reason=texts[-1]) if texts else None
    return replace(
        optimum,
        n_params=of_size or optimum.n_params,
        n_tokens=of_size or optimum.n_tokens,
        loss=of_loss or optimum.loss,
    ), texts


def _near(sizes: Sequence[SizeCurve], factor: float) -> list[str]:
    """Which sizes count as one, in words."""
    near = [group for group in near_sizes(sizes, factor) if len(group) > 1]
    if not near:
        return []
    names = ", ".join(f"{count(group[0].n_params)} to {count(group[-1].n_params)} ({len(group)})" for group in near)
    return [f"sizes less than {factor:g} times apart count as one, the best of them at each compute: {names}"]


def _seeds(points: Points, trunks: Sequence[Trunk]) -> list[list[Trunk]]:
    """Trunks in groups of seeds of each other (module replicates); the last stands for the size."""
    ends = [max(runs, key=lambda rows: float(points.n_tokens[rows[-1]]))[-1] for runs in trunks]
    groups = alike(
        [str(points.recipe[end]) for end in ends],
        [float(points.n_tokens[end]) for end in ends],
        [float(np.mean([math.log(points.loss[rows[-1]]) for rows in runs])) for runs in trunks],
    )
    return [[trunks[i] for i in group] for group in groups]


def _curve(points: Points, branches: Trunk, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The logarithms of `steps` [n], C or D, and of the loss of one trunk, its branches averaged where they overlap."""
    return average_seeds([(np.log(steps[rows]), np.log(points.loss[rows])) for rows in branches])
