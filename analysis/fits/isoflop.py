"""IsoFLOP profiles: the best size at each budget of compute, and the laws through these (Hoffmann et al. 2022,
approach 2).

budgets (budgets.py) -> of each a window of sizes about its lowest loss -> the asymmetry that the windows share
                     -> the minimum of each, with gradients over the losses -> lines of N_opt and D_opt, and L_opt

The lowest loss of a budget is found near it alone. Real budgets span a factor of 10 to 1,000 in N, and no parabola
describes all of that: far from the optimum models are hardly trained. So of each budget a window of sizes about the
lowest loss is read: the widest that a cubic of log loss in log N describes (test of misfit), no farther up than RISE.

A loss surface is steeper on one side of its optimum than on the other, and a parabola through both sides has its
vertex to one side. How much steeper is known badly from one budget, so the budgets share it: the ratio of the cubic
term to the square one is a line in log C, fitted to the cubics of all windows. For L = E + A / N^alpha + B / D^beta
under C = 6 N D the ratio is near (beta - alpha) / 3 at every C.

Laws are lines through the minima in logarithms with two errors: that of each minimum, from the scatter of the losses
about the cubics, and one between budgets, which is estimated and not assumed to be zero (random effects: Paule and
Mandel 1982; intervals as Hartung and Knapp 2001, Student's t with two degrees of freedom less than budgets). What the
budgets share, their asymmetry and the noise of trunks that reach several of them, is carried along by linear
propagation. So no replicates are drawn, and a budget that says little weighs little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg, optimize, stats
from scipy.interpolate import Akima1DInterpolator

from analysis.fits.budgets import TOLERANCE, Readings, read_budgets
from analysis.fits.cost import Cost
from analysis.fits.draws import interval, student_scale
from analysis.fits.fit import (
    D_OPT,
    ISOFLOP,
    L_OPT,
    N_OPT,
    NOTHING,
    Estimate,
    Fit,
    Intervals,
    IsoflopPart,
    Law,
    Minimum,
    NoiseOf,
    Objective,
    Optimum,
)
from analysis.fits.irreducible import NEEDED as FOR_FLOOR
from analysis.fits.irreducible import Irreducible, fit_irreducible
from analysis.fits.noise import SeedNoise
from analysis.fits.points import Points
from arch.amounts import count, counted, counted_of, flop
from arch.errors import InputError, choice

LOCAL, AKIMA = "local", "akima"
MINIMA = {
    LOCAL: "cubic of log loss in log N about the lowest loss of each budget, its asymmetry shared by the budgets",
    AKIMA: "lowest point of Akima's interpolation of the loss in log N at each budget",
}
NEEDED = {LOCAL: 3, AKIMA: 4}  # different sizes in a budget
LEAST_TESTED = 5  # sizes of a window: below, nothing tests its polynomial
RISE = 0.1  # of log loss above the lowest, where a window ends
WIDER = 1.025  # of a window of more than 40 sizes, over the one before
MISFIT = 0.1  # probability of residuals this large, below which a cubic does not describe a window
LEAST_BEND = 2.0  # standard errors of the square term: less may be noise, and no minimum
MIN_BUDGETS = 3  # two fix a line, a third can tell whether it is one
FOR_DRIFT = 4  # budgets, from which on their asymmetry may drift with C
LOSS_REACH = 10.0  # times the last budget, up to which L_opt has an interval: beyond it E decides
LEAST_VARIANCE = 1e-24  # of log loss: noise-free losses have some
FINE = 601  # places between the smallest and the largest size at which an interpolation is read
STEP = 1e-5  # of log loss, for derivatives of an interpolation's minimum
LARGEST = 230.0  # |log| of N, D or loss: 1e100
LEAST_DRAWS = 0.99  # share of the draws that must have a value for an interval of L_opt
METHOD = (
    "random effects: errors of the minima and a scatter between budgets, Student's t; L_opt: {r} draws of these errors"
)
ESTIMAND = "the size of the lowest loss of these runs' recipe at each compute, over text, seeds and budgets like these"


def fit_isoflop(
    points: Points,
    cost: Cost,
    variant: str = LOCAL,
    *,
    at: Sequence[float] = (),
    curve: Sequence[float] = (),
    noise: SeedNoise | None = None,
    n_replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Fit:
    """Laws of N_opt, D_opt and L_opt. variant: how the lowest loss of a budget is found (MINIMA); at, curve: C [FLOP]
    of its optima; noise: between seeds, where the budgets' own losses say none; n_replicates, seed: draws for the
    interval of L_opt, which from four budgets has a floor, from three is a power law.

    Raises InputError for fewer than three budgets with a minimum inside their sizes, and says what is wrong with each.
    """
    if variant not in MINIMA:
        raise InputError(f"--minimum: {variant!r}{choice(variant, list(MINIMA))}")
    readings = read_budgets(points)
    minima = find_minima(readings, cost, variant, noise)
    if readings.offset.any():  # losses as they would be at their budget's own C
        readings = readings.at_budget(minima.rise)
        minima = find_minima(readings, cost, variant, noise)
    if len(minima.used) < MIN_BUDGETS:
        raise InputError(_too_few(minima.budgets, readings))
    laws = Laws.through(minima, cost, n_replicates, seed, level)
    middle = laws.optimum(math.exp(sum(map(math.log, laws.range)) / 2))
    own = minima.noise
    return Fit(
        approach=ISOFLOP,
        group=points.group,
        n_points=len(points),
        n_runs=points.n_runs,
        input_hash=points.input_hash,
        range=laws.range,
        conventions={"C": points.convention, "L": points.loss_unit},
        objective=Objective(f"{MINIMA[variant]}; laws by least squares through these, weighted by their errors"),
        intervals=Intervals(METHOD.format(r=n_replicates), level, ESTIMAND, n_replicates, seed=seed),
        laws=laws.described(middle),
        middle=middle,
        optima=tuple(laws.optimum(c) for c in at),
        curve=tuple(laws.optimum(c) for c in curve),
        isoflop=IsoflopPart(
            minimum=variant,
            minima=minima.budgets,
            from_curves=readings.from_curves,
            noise=() if own is None else (NoiseOf("trunk", own.trunk, own.df), NoiseOf("one loss", own.own, own.df)),
        ),
        left_out=(*readings.left_out, *_alone(minima.budgets)),
        notes=tuple(_untested(minima.used)) if variant == LOCAL else (),
    )


def _alone(budgets: Sequence[Minimum]) -> list[str]:
    n_points = sum(budget.n_points for budget in budgets if budget.n_sizes == 1)
    return [f"{counted(n_points, 'point lies', 'points lie')} at a compute that no other size has"] if n_points else []


def _untested(used: Sequence[Minimum]) -> list[str]:
    few = sum(budget.window < LEAST_TESTED for budget in used)
    if not few:
        return []
    have = counted_of(few, len(used), "budget", "has", "have")
    return [f"{have} fewer than {LEAST_TESTED} sizes about the lowest loss: nothing tests whether their curves fit"]


def _too_few(budgets: Sequence[Minimum], readings: Readings) -> str:
    kept = sum(budget.reason is None for budget in budgets)
    alike: dict[str, list[float]] = {}
    for budget in budgets:
        if budget.reason is not None:
            alike.setdefault(budget.reason, []).append(budget.c)
    why = [
        f"at {flop(at[0])} FLOP {reason}"
        if len(at) == 1
        else f"at {len(at)} budgets from {flop(min(at))} to {flop(max(at))} FLOP {reason}"
        for reason, at in alike.items()
    ]
    details = "; ".join([*why, *readings.left_out])
    return (
        f"isoFLOP: {counted_of(kept, len(budgets), 'budget', 'has', 'have')} a minimum inside "
        f"{'its' if kept == 1 else 'their'} sizes, {MIN_BUDGETS} are needed" + (f" ({details})" if details else "")
    )


# The minimum of each budget


@dataclass(frozen=True)
class Profile:
    """The points of one budget at `log_c`: their rows among the readings [n], log N and log loss [n], ascending in log
    N; sizes [m] and the mean log loss of each. window: first and last size of what is read."""

    log_c: float
    rows: np.ndarray
    x: np.ndarray
    y: np.ndarray
    sizes: np.ndarray
    means: np.ndarray
    window: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, readings: Readings, j: int) -> Profile:
        rows = np.flatnonzero(readings.budget == j)
        rows = rows[np.argsort(readings.log_n[rows], kind="stable")]
        x, y = readings.log_n[rows], np.log(readings.loss[rows])
        sizes, where = np.unique(x, return_inverse=True)
        return cls(float(readings.log_c[j]), rows, x, y, sizes, np.bincount(where, y) / np.bincount(where))

    @property
    def lowest(self) -> int:
        return int(self.means.argmin())

    @property
    def width(self) -> int:
        """Sizes in the window."""
        return self.window[1] - self.window[0] + 1

    @property
    def inside(self) -> np.ndarray:
        """[n] bool: the points of the window."""
        return np.asarray((self.x >= self.sizes[self.window[0]]) & (self.x <= self.sizes[self.window[1]]))

    def windows(self) -> list[Profile]:
        """Nested windows about the lowest size, each by the nearer neighbours wider than the one before: by one, of
        many sizes by WIDER."""
        low, high, last = self.lowest - 1, self.lowest + 1, len(self.sizes) - 1
        nested, centre = [(low, high)], self.sizes[self.lowest]
        while low > 0 or high < last:
            left = centre - self.sizes[low - 1] if low > 0 else math.inf
            right = self.sizes[high + 1] - centre if high < last else math.inf
            low, high = (low - 1, high) if left <= right else (low, high + 1)
            if high - low + 1 >= WIDER * (nested[-1][1] - nested[-1][0] + 1) or (low == 0 and high == last):
                nested.append((low, high))
        return [replace(self, window=window) for window in nested]

    def cubic(self, degree: int = 3) -> tuple[np.ndarray, np.ndarray]:
        """The design of a polynomial about the lowest size over the points of the window, and its pseudo-inverse."""
        x = np.vander(self.x[self.inside] - self.sizes[self.lowest], degree + 1, increasing=True)
        return x, np.linalg.pinv(x)

    def left_by_cubic(self) -> tuple[np.ndarray, int]:
        """What a cubic (of fewer than five sizes a parabola) leaves in the window, and its degrees of freedom."""
        x, inverse = self.cubic(3 if self.width >= LEAST_TESTED else 2)
        y = self.y[self.inside]
        return y - x @ (inverse @ y), len(x) - x.shape[1]

    def residual_maker(self) -> np.ndarray:
        """The matrix that makes these residuals of log losses."""
        x, inverse = self.cubic(3 if self.width >= LEAST_TESTED else 2)
        return np.asarray(np.eye(len(x)) - x @ inverse)

    def no_minimum(self, variant: str) -> str | None:
        """Why it has no minimum, as far as its sizes say."""
        if len(self.sizes) < NEEDED[variant]:
            return f"{counted(len(self.sizes), 'size')}, {NEEDED[variant]} are needed"
        if self.lowest in (0, len(self.sizes) - 1):
            end = "smallest" if self.lowest == 0 else "largest"
            size = count(math.exp(self.sizes[self.lowest]), 4)
            return f"its lowest loss is at its {end} size, {size}: none is on both sides"
        return None


@dataclass(frozen=True)
class Noise:
    """Standard deviations of log loss: of a trunk as a whole, which all of its losses share, and of one loss alone;
    degrees of freedom."""

    trunk: float
    own: float
    df: float

    @property
    def variance(self) -> float:
        return self.trunk**2 + self.own**2

    def covariance(self, gradients: np.ndarray, unit: np.ndarray) -> np.ndarray:
        """[k, k]: of k numbers with gradients [k, p] over log losses of the trunks `unit` [p]."""
        of_trunks = np.zeros((unit.max() + 1, len(gradients)))
        np.add.at(of_trunks, unit, gradients.T)
        return np.asarray(self.own**2 * gradients @ gradients.T + self.trunk**2 * of_trunks.T @ of_trunks)


@dataclass(frozen=True)
class Vertex:
    """Where a budget's loss is lowest: log N and log loss, their gradients over the log losses [p], and the variance of
    log N that the budget's own losses make. bend, asymmetry: of log loss about it (None: interpolated)."""

    log_n: float
    log_loss: float
    of_n: np.ndarray
    of_loss: np.ndarray
    direct: float
    bend: float | None = None
    asymmetry: float | None = None


@dataclass(frozen=True)
class Minima:
    """All budgets, and of the k used: log C, log N and log loss [k], the variance of log N that its own losses make,
    `direct` [k], gradients of both over the log losses [k, p], what all losses share included; unit [p]: trunks of the
    losses; noise: of log loss (None: nothing says it)."""

    budgets: tuple[Minimum, ...]
    log_n: np.ndarray
    log_loss: np.ndarray
    direct: np.ndarray
    of_n: np.ndarray
    of_loss: np.ndarray
    unit: np.ndarray
    noise: Noise | None

    @property
    def used(self) -> list[Minimum]:
        return [budget for budget in self.budgets if budget.reason is None]

    def covariance(self, gradients: np.ndarray) -> np.ndarray:
        """[k, k]: of the minima, by their gradients over the log losses; 0 where nothing says the noise."""
        none = np.zeros((len(gradients), len(gradients)))
        return none if self.noise is None else self.noise.covariance(gradients, self.unit)

    @property
    def log_c(self) -> np.ndarray:
        return np.log([budget.c for budget in self.used])

    @property
    def rise(self) -> float:
        """d log L_opt / d log C through the minima; 0 for fewer than two."""
        return float(np.polyfit(self.log_c, self.log_loss, 1)[0]) if len(self.used) > 1 else 0.0


def find_minima(readings: Readings, cost: Cost, variant: str, seeds: SeedNoise | None) -> Minima:
    profiles = [Profile.of(readings, j) for j in range(len(readings.log_c))]
    usable = [profile for profile in profiles if profile.no_minimum(variant) is None]
    windowed = _with_windows(usable, seeds)
    noise = _noise(windowed, readings, seeds)
    variance, p = 0.0 if noise is None else noise.variance, len(readings.loss)
    vertices: dict[float, Vertex | str] = {}
    for profile, ratio, of_ratio in zip(windowed, *_asymmetry(windowed, p), strict=True):
        if variant == LOCAL:
            vertices[profile.log_c] = _local(profile, float(ratio), of_ratio, variance, p)
        else:
            vertices[profile.log_c] = _interpolated(profile, variance, p)
    windows = {profile.log_c: profile for profile in windowed}
    budgets = tuple(
        _described(
            windows.get(profile.log_c, profile), vertices.get(profile.log_c) or str(profile.no_minimum(variant)), cost
        )
        for profile in profiles
    )
    used = [vertex for vertex in vertices.values() if isinstance(vertex, Vertex)]
    of_n, of_loss = (
        np.array([getattr(vertex, name) for vertex in used]).reshape(-1, p) for name in ("of_n", "of_loss")
    )
    log_n, log_loss, direct = (
        np.array([getattr(vertex, name) for vertex in used]) for name in ("log_n", "log_loss", "direct")
    )
    if variant == LOCAL and len(used) >= MIN_BUDGETS:
        # the error of a minimum goes with 1 / bend, and a bend that noise made too small or too large would weigh its
        # budget wrongly: all are put on a line of log bend over log C
        x = np.log([budget.c for budget in budgets if budget.reason is None])
        bends, x = np.log(np.array([vertex.bend for vertex in used], dtype=float)), x - x.mean()
        ratio = np.exp(bends - np.polyval(np.polyfit(x, bends, 1), x))
        direct, of_n = direct * ratio**2, of_n * ratio[:, None]
    return Minima(budgets, log_n, log_loss, direct, of_n, of_loss, readings.unit, noise)


def _described(profile: Profile, vertex: Vertex | str, cost: Cost) -> Minimum:
    """vertex: or why there is none."""
    c = float(np.exp(profile.log_c))
    budget = Minimum(c, len(profile.rows), len(profile.sizes), window=profile.width)
    if isinstance(vertex, str):
        return replace(budget, reason=vertex)
    n_params = math.exp(vertex.log_n)
    x = profile.sizes if vertex.bend is None else profile.x[profile.inside]
    return replace(
        budget,
        n_params=n_params,
        n_tokens=c / float(cost.per_token(n_params)),
        loss=math.exp(vertex.log_loss),
        reach=(math.exp(x[0]), math.exp(x[-1])),
        window=len(profile.sizes) if vertex.bend is None else profile.width,
        bend=vertex.bend,
        asymmetry=vertex.asymmetry,
    )


def _with_windows(profiles: Sequence[Profile], seeds: SeedNoise | None) -> list[Profile]:
    """Each with its window: the widest whose cubic fits. The noise by which windows are judged is that of the narrowest
    that tell any."""
    squares, df = 0.0, 0
    for profile in profiles:
        windows = profile.windows()
        residual, free = next(
            (window for window in windows if window.width > LEAST_TESTED), windows[-1]
        ).left_by_cubic()
        squares, df = squares + float(residual @ residual), df + free
    variance = max(squares / df, LEAST_VARIANCE) if df else seeds.s**2 if seeds is not None else None
    return [_widest(profile, variance, max(df, 1)) for profile in profiles]


def _widest(profile: Profile, variance: float | None, df: int) -> Profile:
    chosen, top = profile, profile.means[profile.lowest] + RISE
    for window in profile.windows():
        if window.width > LEAST_TESTED:
            if max(profile.means[list(window.window)]) > top:
                break
            residual, free = window.left_by_cubic()
            square = float(residual @ residual)
            if variance is None or (free and stats.f.sf(square / free / variance, free, df) < MISFIT):
                continue  # a wider one may do: of many tests some fail by chance
        chosen = window
    return chosen


def _noise(profiles: Sequence[Profile], readings: Readings, seeds: SeedNoise | None) -> Noise | None:
    """From the residuals of cubics in the windows. Losses of one trunk share part of it: readings of one curve all,
    branches of one run by half or so; two sums of squares tell the two variances (MINQUE: Rao 1972), and
    Satterthwaite's formula their degrees of freedom."""
    residuals, frees = zip(*(profile.left_by_cubic() for profile in profiles), strict=True) if profiles else ((), ())
    free = sum(frees)
    if not free:
        return None if seeds is None or not seeds.s > 0 else Noise(0.0, seeds.s, seeds.df)
    r = np.concatenate(residuals)
    unit = readings.unit[np.concatenate([profile.rows[profile.inside] for profile in profiles])]
    squares = float(r @ r)
    alone = Noise(0.0, math.sqrt(max(squares / free, LEAST_VARIANCE)), float(free))
    if len(np.unique(unit)) == len(unit):
        return alone
    maker = linalg.block_diag(*(profile.residual_maker() for profile in profiles))
    shared = (unit[:, None] == unit[None]).astype(float)
    seen = maker @ shared
    trace = float(np.trace(seen))
    if readings.from_curves:  # a run's noise is that of its whole curve
        s = math.sqrt(max(squares / trace, LEAST_VARIANCE)) if trace > 0 else 0.0
        return Noise(s, 0.0, _degrees(seen)) if s else alone
    table = np.array([[float((seen * seen.T).sum()), trace], [trace, float(free)]])
    trunk, own = np.linalg.lstsq(table, np.array([float(r @ shared @ r), squares]), rcond=None)[0]
    if trunk <= 0:
        return alone
    if own < 0:
        trunk, own = squares / trace, 0.0
    return Noise(math.sqrt(trunk), math.sqrt(own), _degrees(seen @ (seen * trunk + maker * own)))


def _degrees(matrix: np.ndarray) -> float:
    """Satterthwaite's, of a sum of squares y' Q y from Q times the covariance of y."""
    square = float((matrix * matrix.T).sum())
    return float(np.trace(matrix)) ** 2 / square if square > 0 else 1.0


def _asymmetry(profiles: Sequence[Profile], p: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each budget, the ratio of the cubic to the square term of its log loss at its lowest point, as a line in log C
    through those of all windows of five sizes or more (their mean below FOR_DRIFT budgets; 0 without any) [k]; and its
    gradient over the log losses [k, p]."""
    k, log_c = len(profiles), np.array([profile.log_c for profile in profiles])
    known, ratios, weights, gradients = [], [], [], []
    for i, profile in enumerate(profiles):
        if profile.width < LEAST_TESTED:
            continue
        _, inverse = profile.cubic()
        b = inverse @ profile.y[profile.inside]
        at = _vertex(b)
        bend = b[2] + 3 * b[3] * at
        if not bend > 0:
            continue
        ratio, gradient = b[3] / bend, np.zeros(p)
        gradient[profile.rows[profile.inside]] = (inverse[3] - ratio * (inverse[2] + 3 * at * inverse[3])) / bend
        known.append(i)
        ratios.append(ratio)
        weights.append(bend**2 / float(inverse[3] @ inverse[3]))
        gradients.append(gradient)
    if not known:
        return np.zeros(k), np.zeros((k, p))
    columns = 2 if len(known) >= FOR_DRIFT else 1
    x = np.stack([np.ones(k), log_c - log_c[known].mean()], 1)[:, :columns]
    weighted = x[known].T * np.array(weights)
    solve = x @ np.linalg.pinv(weighted @ x[known]) @ weighted  # [k, known]
    return solve @ np.array(ratios), solve @ np.stack(gradients)


def _vertex(b: np.ndarray) -> float:
    """Where the cubic of coefficients b has its minimum, about 0; where its parabola has, if it has none."""
    if not b[2] > 0:
        return 0.0
    at = float(np.clip(-b[1] / (2 * b[2]), -2, 2))
    for _ in range(30):
        bend = 2 * b[2] + 6 * b[3] * at
        if not bend > 0:
            return 0.0
        at += float(np.clip(-(b[1] + 2 * b[2] * at + 3 * b[3] * at**2) / bend, -1, 1))
    return at


def _local(profile: Profile, ratio: float, of_ratio: np.ndarray, variance: float, p: int) -> Vertex | str:
    """The minimum of level + bend (u^2 + ratio u^3) over a budget's window, u = log N less its place; or why there is
    none."""
    rows, x, y = (values[profile.inside] for values in (profile.rows, profile.x, profile.y))
    centre = float(profile.sizes[profile.lowest])
    for _ in range(50):
        u = x - centre
        inverse = np.linalg.pinv(np.stack([np.ones_like(u), u, u**2 + ratio * u**3], 1))
        level, slope, bend = inverse @ y
        if not bend > 0:
            return "its losses do not bend upward: no size is best"
        step = float(np.clip(-slope / (2 * bend), -0.5, 0.5))
        centre += step
        if abs(step) < 1e-12:
            break
    if bend < LEAST_BEND * math.sqrt(variance * float(inverse[2] @ inverse[2])):
        return "its losses bend by no more than their noise may make them"
    if not x[0] < centre < x[-1]:
        return _outside(centre, x)
    of_n, of_loss = np.zeros(p), np.zeros(p)
    of_n[rows], of_loss[rows] = -inverse[1] / (2 * bend), inverse[0]
    direct = variance * float(of_n @ of_n)
    of_n = of_n + float(inverse[1] @ u**3) / 2 * of_ratio
    return Vertex(centre, float(level), of_n, of_loss, direct, float(bend), ratio)


def _interpolated(profile: Profile, variance: float, p: int) -> Vertex | str:
    """The lowest point of Akima's interpolation of the loss, losses of one size averaged (Akima 1970; Porian et al.
    2024); or why there is none."""
    _, where = np.unique(profile.x, return_inverse=True)
    m = len(profile.sizes)
    moves = STEP * np.concatenate([np.zeros((m, 1)), np.eye(m), -np.eye(m)], 1)
    fine = np.linspace(profile.sizes[0], profile.sizes[-1], FINE)
    table = Akima1DInterpolator(profile.sizes, np.exp(profile.means[:, None] + moves))(fine)  # [FINE, 1 + 2 m]
    best = table.argmin(0)
    if best[0] in (0, FINE - 1):
        return _outside(float(fine[best[0]]), profile.sizes)
    inner, each = np.clip(best, 1, FINE - 2), np.arange(table.shape[1])
    before, here, after = (table[inner + k, each] for k in (-1, 0, 1))
    bend = before - 2 * here + after
    step = np.where(bend > 0, np.clip((before - after) / (2 * bend), -1, 1), 0.0)
    log_n = fine[inner] + step * (fine[1] - fine[0])
    log_loss = np.log(here - (before - after) * step / 4)
    share = 1 / np.bincount(where)[where]  # of a size's mean that is a point's
    of_n, of_loss = np.zeros(p), np.zeros(p)
    of_n[profile.rows] = ((log_n[1 : m + 1] - log_n[m + 1 :]) / (2 * STEP))[where] * share
    of_loss[profile.rows] = ((log_loss[1 : m + 1] - log_loss[m + 1 :]) / (2 * STEP))[where] * share
    return Vertex(float(log_n[0]), float(log_loss[0]), of_n, of_loss, variance * float(of_n @ of_n))


def _outside(at: float, log_n: np.ndarray) -> str:
    low, high = np.exp([log_n.min(), log_n.max()])
    place = f"at N = {count(math.exp(at), 4)}" if abs(at) < LARGEST else "far away"
    return f"its minimum {place} is not inside the sizes that it is read from, {count(low, 4)} to {count(high, 4)}"


# Laws through the minima


@dataclass(frozen=True)
class Line:
    """log y = level + slope (log C - centre). scatter, shared [2, 2]: covariances of (level, slope) that budgets make,
    and that their common errors do; df of the first, and of the noise behind the second; tau: standard deviation of
    log y between budgets."""

    level: float
    slope: float
    centre: float
    scatter: np.ndarray
    shared: np.ndarray
    df: float
    noise_df: float
    tau: float

    @classmethod
    def through(
        cls, log_c: np.ndarray, y: np.ndarray, direct: np.ndarray, shared: np.ndarray, noise: Noise | None
    ) -> Line:
        """Random effects: y [k] at log C [k], with variances `direct` [k] of their own noise and covariances `shared`
        [k, k] of all noise."""
        free, centre = len(y) - 2, float(log_c.mean())
        x = np.stack([np.ones(len(y)), log_c - centre], 1)
        direct = np.maximum(direct, 1e-6 * float(direct.max()) + 1e-24)

        def solved(tau2: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
            w = 1 / (direct + tau2)
            inverse = np.linalg.inv((x.T * w) @ x)
            solve = inverse @ (x.T * w)
            return solve @ y, inverse, solve, float((w * (y - x @ (solve @ y)) ** 2).sum())

        tau2 = 0.0
        if solved(0.0)[3] > free:  # the scatter is more than the minima's errors explain
            high = max(float(direct.max()), 1e-12)
            while solved(high)[3] > free:
                high *= 4
            tau2 = float(optimize.brentq(lambda value: solved(value)[3] - free, 0.0, high, xtol=1e-300, rtol=1e-14))
        beta, inverse, solve, q = solved(tau2)
        scatter = inverse * q / free
        common = solve @ (shared - np.diag(direct) * bool(shared.any())) @ solve.T
        whole = solve @ shared @ solve.T
        for i in range(2):  # what noise alone makes of a coefficient is the least of its variance
            common[i, i] = max(common[i, i], whole[i, i] - scatter[i, i])
        if shared.any() and scatter[1, 1] + common[1, 1] <= 0:
            common = whole - scatter
        noise_df = noise.df if noise else 1.0
        return cls(float(beta[0]), float(beta[1]), centre, scatter, common, float(free), noise_df, math.sqrt(tau2))

    def at(self, log_c: float) -> float:
        """log y."""
        return self.level + self.slope * (log_c - self.centre)

    def value(self, c: float, level: float) -> Estimate:
        """y at C [FLOP]; without an interval whose ends no law could have."""
        row = np.array([1.0, math.log(c) - self.centre])
        half = self._half(row, level, self.tau**2)  # the optimum at a compute scatters about the line
        middle = self.at(math.log(c))
        ends = middle - half, middle + half
        return Estimate.of(math.exp(middle), None if max(map(abs, ends)) > LARGEST else tuple(map(math.exp, ends)))

    def exponent(self, level: float) -> Estimate:
        half = self._half(np.array([0.0, 1.0]), level, 0.0)
        return Estimate(self.slope, self.slope - half, self.slope + half)

    def _half(self, row: np.ndarray, level: float, more: float) -> float:
        """Half the width of the interval of row @ (level, slope), with so much more variance between budgets."""
        own, common = float(row @ self.scatter @ row) + more, float(row @ self.shared @ row)
        variance = max(own + common, 1e-300)
        df = variance**2 / (own**2 / self.df + common**2 / max(self.noise_df, 1.0)) if own > 0 else self.noise_df
        return float(stats.t.ppf((1 + level) / 2, max(df, 1.0))) * math.sqrt(variance)


@dataclass(frozen=True)
class Laws:
    """N_opt and D_opt as lines; L_opt = E + beta C^slope, of the study first and then of draws of the minima's errors,
    or below four budgets (level, slope, centre) of a power law without an interval. range: C of the first and last
    budget that has a minimum [FLOP]; level: of intervals."""

    n_opt: Line
    d_opt: Line
    loss: Irreducible | tuple[float, float, float]
    range: tuple[float, float]
    level: float

    @classmethod
    def through(cls, minima: Minima, cost: Cost, n_replicates: int, seed: int, level: float) -> Laws:
        log_c, log_n, growth = minima.log_c, minima.log_n, cost.growth(minima.log_n)
        direct, shared = minima.direct, minima.covariance(minima.of_n)
        log_d = log_c - cost.log_per_token(log_n)
        return cls(
            Line.through(log_c, log_n, direct, shared, minima.noise),
            Line.through(log_c, log_d, growth**2 * direct, growth[:, None] * shared * growth, minima.noise),
            _loss_law(minima, n_replicates, seed),
            (math.exp(log_c.min()), math.exp(log_c.max())),
            level,
        )

    def optimum(self, c: float) -> Optimum:
        """At C [FLOP]; without an interval or a loss that is not to be had."""
        return Optimum(c, self.n_opt.value(c, self.level), self.d_opt.value(c, self.level), self._loss_at(c))

    def _loss_at(self, c: float) -> Estimate:
        """No loss outside three budgets, whose power law runs below any irreducible loss."""
        (low, high), log_c = self.range, math.log(c)
        if not isinstance(self.loss, Irreducible):
            level, slope, centre = self.loss
            inside = low <= c <= high * (1 + 1e-9)
            return Estimate(math.exp(level + slope * (log_c - centre)) if inside else None)
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn = np.log(self.loss.at(log_c))
        in_reach = low * math.exp(-TOLERANCE) <= c <= high * LOSS_REACH * math.exp(TOLERANCE)
        ends = interval(drawn[1:], self.level, LEAST_DRAWS) if in_reach else None
        return Estimate.of(float(np.exp(drawn[0])), None if ends is None else np.exp(ends).tolist())

    def described(self, middle: Optimum) -> tuple[Law, Law, Law]:
        """Each through its value in the middle of the budgets."""
        if isinstance(self.loss, Irreducible):
            exponent, floor = (
                Estimate.of(float(values[0]), interval(values[1:], self.level, LEAST_DRAWS))
                for values in (self.loss.exponent, self.loss.floor)
            )
        else:
            exponent, floor = Estimate(self.loss[1]), NOTHING

        def law(quantity: str, exponent: Estimate, floor: Estimate = NOTHING) -> Law:
            value = middle.of(quantity).value
            centre = None if value is None else (middle.flops, value)
            return Law(quantity, exponent=exponent, floor=floor, centre=centre, range=self.range)

        return (
            law(N_OPT, self.n_opt.exponent(self.level)),
            law(D_OPT, self.d_opt.exponent(self.level)),
            law(L_OPT, exponent, floor),
        )


def _loss_law(minima: Minima, n_replicates: int, seed: int) -> Irreducible | tuple[float, float, float]:
    """L_opt through the minima; its draws have the errors of these, scaled up where they scatter more about the law."""
    log_c, log_loss, noise = minima.log_c, minima.log_loss, minima.noise
    k = len(log_c)
    if k < FOR_FLOOR:
        slope, level = np.polyfit(log_c - log_c.mean(), log_loss, 1)
        return float(level), float(slope), float(log_c.mean())
    own = fit_irreducible(log_c, np.exp(log_loss)[None])
    shared = minima.covariance(minima.of_loss)
    variance = np.maximum(np.diag(shared), 1e-24)
    scale = float(((log_loss - np.log(own.at(log_c)[0])) ** 2 / variance).sum()) / (k - 3)
    df = float(k - 3) if scale > 1 or noise is None else float(k - 3) + noise.df
    if noise is not None and noise.trunk > 0:  # which moves all budgets alike: their scatter does not show it
        df = min(df, noise.df)
    rng = np.random.default_rng([seed, 2])
    root = np.linalg.cholesky(shared + np.diag(1e-9 * variance + 1e-24)) * math.sqrt(max(scale, 1.0))
    moved = rng.standard_normal((n_replicates, k)) @ root.T
    moved *= student_scale(rng, df, n_replicates)[:, None]
    moved[np.abs(moved).max(1) > LARGEST] = np.nan  # losses that no run has, of one degree of freedom
    return fit_irreducible(log_c, np.exp(np.concatenate([log_loss[None], log_loss + moved])))
