"""IsoFLOP profiles: the best size at each budget of compute, and the laws through these (Hoffmann et al. 2022,
approach 2).

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
from typing import Any

import numpy as np
from scipy import stats
from scipy.interpolate import Akima1DInterpolator

from analysis.fits.budgets import TOLERANCE, Readings, read_budgets
from analysis.fits.cost import Cost
from analysis.fits.fit import (
    D_OPT,
    ISOFLOP,
    L_OPT,
    N_OPT,
    NOTHING,
    QUANTITIES,
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
LEAST_TESTED = 5  # sizes of a window: below, nothing tells a misfit
RISE = 0.1  # of log loss above the lowest, where a window ends
MISFIT = 0.1  # probability of residuals this large, below which a cubic does not describe a window
LEAST_BEND = 2.0  # standard errors of the square term: less may be noise, and no minimum
MIN_BUDGETS = 3  # two fix a line, a third can tell whether it is one
FOR_DRIFT = 4  # budgets, from which on their asymmetry may drift with C
FLAT = 0.005  # sizes within this share of the lowest loss count as equally good
LOSS_REACH = 10.0  # times the last budget, up to which L_opt has an interval: beyond it E decides
LEAST_VARIANCE = 1e-24  # of log loss: noise-free losses have some
FINE = 601  # places between the smallest and the largest size at which an interpolation is read
STEP = 1e-5  # of log loss, for derivatives of an interpolation's minimum
LARGEST = 230.0  # |log| of N, D or loss: 1e100
METHOD = (
    "random effects: errors of the minima and a scatter between budgets, Student's t; L_opt: {r} draws of these errors"
)
ESTIMAND = "the size of the lowest loss of these runs' recipe at each compute, over text, seeds and budgets like these"


@dataclass(frozen=True)
class Line:
    """log y = level + slope (log C - centre). scatter, shared [2, 2]: covariances of (level, slope) that budgets make,
    and that their common errors do; df of the first, and of the noise behind the second; tau: standard deviation of
    log y between budgets. No interval where `scatter` is nan."""

    level: float
    slope: float
    centre: float
    scatter: np.ndarray
    shared: np.ndarray
    df: float
    noise_df: float
    tau: float

    def at(self, log_c: float) -> float:
        """log y."""
        return self.level + self.slope * (log_c - self.centre)

    def interval(self, log_c: float | None, level: float) -> tuple[float, float] | None:
        """Of log y at log C; of the slope without one."""
        value = self.slope if log_c is None else self.at(log_c)
        row = np.array([0.0, 1.0]) if log_c is None else np.array([1.0, log_c - self.centre])
        own, common = float(row @ self.scatter @ row), float(row @ self.shared @ row)
        own += 0.0 if log_c is None else self.tau**2  # the optimum at a compute scatters about the line
        if not math.isfinite(own + common):
            return None
        variance = max(own + common, 1e-300)
        df = variance**2 / (own**2 / self.df + common**2 / max(self.noise_df, 1.0)) if own > 0 else self.noise_df
        half = float(stats.t.ppf((1 + level) / 2, max(df, 1.0))) * math.sqrt(variance)
        return value - half, value + half


@dataclass(frozen=True)
class Lowest:
    """L_opt = E + beta C^slope (from four budgets), of the study first and then of draws of the minima's errors; or a
    power law, without draws."""

    law: Irreducible | Line

    def at(self, log_c: float) -> np.ndarray:
        """log L [1 + r]."""
        if isinstance(self.law, Line):
            return np.array([self.law.at(log_c)])
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.log(self.law.at(log_c)))

    def parameters(self) -> dict[str, np.ndarray]:
        """L_exponent and, where there is one, E, [1 + r] each."""
        if isinstance(self.law, Line):
            return {"L_exponent": np.array([self.law.slope])}
        return {"L_exponent": self.law.exponent, "E": self.law.floor}


@dataclass(frozen=True)
class IsoFlop:
    """The minima of the budgets, the lines of N_opt and D_opt through them, L_opt, and the noise of log loss (None:
    nothing tells it)."""

    readings: Readings
    minima: tuple[Minimum, ...]
    lines: dict[str, Line]
    lowest: Lowest
    noise: Noise | None
    variant: str
    level: float

    @property
    def range(self) -> tuple[float, float]:
        """C of the first and last budget that has a minimum [FLOP]."""
        used = [one.c for one in self.minima if one.reason is None]
        return min(used), max(used)

    def optimum(self, name: str, c: float) -> tuple[float | None, tuple[float, float] | None]:
        """N_opt, D_opt or L_opt at C [FLOP], and its interval; no loss outside three budgets, whose power law runs
        below any irreducible loss."""
        log_c = math.log(c)
        if name != L_OPT:
            return math.exp(self.lines[name].at(log_c)), _exp(self.lines[name].interval(log_c, self.level))
        low, high = self.range
        if isinstance(self.lowest.law, Line) and not low <= c <= high * (1 + 1e-9):
            return None, None
        drawn = self.lowest.at(log_c)
        in_reach = low * math.exp(-TOLERANCE) <= c <= high * LOSS_REACH * math.exp(TOLERANCE)
        return float(np.exp(drawn[0])), _exp(_percentiles(drawn[1:], self.level)) if in_reach else None


@dataclass(frozen=True)
class Noise:
    """Standard deviations of log loss: of a trunk as a whole, which all of its losses share, and of one loss alone;
    degrees of freedom; and what tells them."""

    trunk: float
    own: float
    df: float
    source: str

    @property
    def variance(self) -> float:
        return self.trunk**2 + self.own**2


@dataclass
class _Budget:
    """The points of one budget [n], ascending in log N; sizes [m] and the mean log loss of each. window: first and last
    size of what is read."""

    rows: np.ndarray
    x: np.ndarray
    y: np.ndarray
    sizes: np.ndarray
    means: np.ndarray
    window: tuple[int, int] | None = None

    @property
    def lowest(self) -> int:
        return int(self.means.argmin())

    def inside(self, window: tuple[int, int]) -> np.ndarray:
        """[n] bool: the points of a window."""
        return (self.x >= self.sizes[window[0]]) & (self.x <= self.sizes[window[1]])

    def windows(self) -> list[tuple[int, int]]:
        """Nested windows about the lowest size, each by the nearer neighbour wider than the one before."""
        low, high, last = self.lowest - 1, self.lowest + 1, len(self.sizes) - 1
        found, centre = [(low, high)], self.sizes[self.lowest]
        while low > 0 or high < last:
            left = centre - self.sizes[low - 1] if low > 0 else math.inf
            right = self.sizes[high + 1] - centre if high < last else math.inf
            low, high = (low - 1, high) if left <= right else (low, high + 1)
            found.append((low, high))
        return found


def fit_isoflop(
    points: Points,
    cost: Cost,
    variant: str = LOCAL,
    *,
    at: Sequence[float] = (),
    curve: Sequence[float] = (),
    n_replicates: int = 1000,
    seed: int = 0,
    **options: Any,
) -> Fit:
    """Laws of N_opt, D_opt and L_opt: of `isoflop` with its options. at, curve: C [FLOP] of its optima. Raises what
    `isoflop` raises."""
    found = isoflop(points, cost, variant, n_replicates=n_replicates, seed=seed, **options)
    return isoflop_result(found, points, n_replicates, seed, at, curve)


def isoflop(
    points: Points,
    cost: Cost,
    variant: str = LOCAL,
    *,
    budgets: Sequence[float] | None = None,
    tolerance: float = TOLERANCE,
    curves: bool | None = None,
    noise: SeedNoise | None = None,
    n_replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> IsoFlop:
    """variant: how the lowest loss of a budget is found (MINIMA). budgets: their C [FLOP]; without them end points are
    grouped by `tolerance` in log C, and whole curves (`curves`; by default from four rows a run) are read at eight.
    noise: between seeds, where the budgets' own losses tell none. n_replicates, seed: draws for the interval of L_opt.

    Raises InputError for fewer than three budgets with a minimum inside their sizes, and says what is wrong with each.
    """
    if variant not in MINIMA:
        raise InputError(f"--minimum: {variant!r}{choice(variant, list(MINIMA))}")
    readings = read_budgets(points, budgets, tolerance, curves)
    found = _minima(readings, cost, variant, noise)
    if readings.offset is not None and readings.offset.any():  # losses as they would be at their budget's own C
        readings = readings.at_budget(_rise(found.minima))
        found = _minima(readings, cost, variant, noise)
    used = [one for one in found.minima if one.reason is None]
    if len(used) < MIN_BUDGETS:
        raise InputError(_too_few(found.minima, readings, variant))
    log_c = np.log([one.c for one in used])
    growth = cost.growth(found.log_n)
    direct, shared = found.direct, found.of_n @ found.covariance @ found.of_n.T
    lines = {
        N_OPT: _line(log_c, found.log_n, direct, shared, found.noise),
        D_OPT: _line(
            log_c,
            log_c - cost.log_per_token(found.log_n),
            growth**2 * direct,
            growth[:, None] * shared * growth,
            found.noise,
        ),
    }
    of_loss = found.of_loss @ found.covariance @ found.of_loss.T
    lowest = _lowest(log_c, found.log_loss, of_loss, found.noise, n_replicates, seed)
    return IsoFlop(readings, found.minima, lines, lowest, found.noise, variant, level)


@dataclass(frozen=True)
class _Found:
    """All budgets, and of the k used: log N and log loss [k], the variance of log N that its own losses make, `direct`
    [k], gradients of both over the log losses [k, p], what all losses share included; and their covariance [p, p]."""

    minima: tuple[Minimum, ...]
    log_n: np.ndarray
    log_loss: np.ndarray
    direct: np.ndarray
    of_n: np.ndarray
    of_loss: np.ndarray
    covariance: np.ndarray
    noise: Noise | None


def _minima(readings: Readings, cost: Cost, variant: str, seeds: SeedNoise | None) -> _Found:
    sets = [_budget(readings, j) for j in range(len(readings.log_c))]
    reasons = [_not_inside(one, variant) for one in sets]
    usable = [one for one, why in zip(sets, reasons, strict=True) if why is None]
    noise = _with_windows(usable, readings, seeds)
    variance = 0.0 if noise is None else noise.variance
    p = len(readings.loss)
    asymmetry, of_asymmetry = _asymmetry(usable, readings, variance, p)
    minima: list[Minimum] = []
    kept: list[tuple[float, float, float, np.ndarray, np.ndarray]] = []
    place = -1
    for j, (one, why) in enumerate(zip(sets, reasons, strict=True)):
        minimum = Minimum(float(np.exp(readings.log_c[j])), len(one.rows), len(one.sizes), reason=why)
        if why is None:
            place += 1
            if variant == AKIMA:
                minimum, more = _interpolated(minimum, one, variance, p, cost)
            else:
                minimum, more = _local(minimum, one, asymmetry[place], of_asymmetry[place], variance, p, cost)
            kept += [more] if minimum.reason is None and more is not None else []
        minima.append(minimum)
    log_n, log_loss, direct = (np.array([row[i] for row in kept]) for i in range(3))
    of_n, of_loss = (np.stack([row[i] for row in kept]) if kept else np.zeros((0, p)) for i in (3, 4))
    if variant == LOCAL and len(kept) >= MIN_BUDGETS:
        used = [one for one in minima if one.reason is None]
        ratio = _smooth_bends(np.log([one.c for one in used]), np.array([one.bend for one in used], dtype=float))
        direct, of_n = direct * ratio**2, of_n * ratio[:, None]
    return _Found(tuple(minima), log_n, log_loss, direct, of_n, of_loss, _covariance(readings, noise), noise)


def _smooth_bends(log_c: np.ndarray, bends: np.ndarray) -> np.ndarray:
    """[k]: bends over those of a line through their logarithms over log C. The error of a minimum goes with 1 / bend,
    and a bend that noise made too small or too large would weigh its budget wrongly."""
    x = np.stack([np.ones(len(bends)), log_c - log_c.mean()], 1)
    logs = np.log(bends)
    return np.asarray(np.exp(logs - x @ (np.linalg.pinv(x) @ logs)))


def _budget(readings: Readings, j: int) -> _Budget:
    rows = np.flatnonzero(readings.budget == j)
    rows = rows[np.argsort(readings.log_n[rows], kind="stable")]
    x, y = readings.log_n[rows], np.log(readings.loss[rows])
    sizes, where = np.unique(x, return_inverse=True)
    return _Budget(rows, x, y, sizes, np.bincount(where, y) / np.bincount(where))


def _not_inside(one: _Budget, variant: str) -> str | None:
    """Why a budget has no minimum, as far as its sizes tell."""
    if len(one.sizes) < NEEDED[variant]:
        return f"{counted(len(one.sizes), 'size')}, {NEEDED[variant]} are needed"
    if one.lowest in (0, len(one.sizes) - 1):
        end = "smallest" if one.lowest == 0 else "largest"
        return (
            f"its lowest loss is at its {end} size, {count(math.exp(one.sizes[one.lowest]), 4)}: none is on both sides"
        )
    return None


def _design(one: _Budget, window: tuple[int, int], degree: int) -> tuple[np.ndarray, np.ndarray]:
    """[n, degree + 1] about the lowest size, over the points of a window, and its pseudo-inverse."""
    x = np.vander(one.x[one.inside(window)] - one.sizes[one.lowest], degree + 1, increasing=True)
    return x, np.linalg.pinv(x)


def _degree(window: tuple[int, int]) -> int:
    """Of the polynomial that a window is judged by: a cubic, or a parabola of fewer than five sizes."""
    return 3 if window[1] - window[0] + 1 >= LEAST_TESTED else 2


def _residuals(one: _Budget, window: tuple[int, int]) -> tuple[float, int]:
    """Sum of squares about the polynomial of a window, and its degrees of freedom."""
    degree = _degree(window)
    x, inverse = _design(one, window, degree)
    y = one.y[one.inside(window)]
    return float(((y - x @ (inverse @ y)) ** 2).sum()), len(y) - degree - 1


def _with_windows(budgets: Sequence[_Budget], readings: Readings, seeds: SeedNoise | None) -> Noise | None:
    """Set the window of every budget, and tell the noise of log loss about the cubics there. The noise by which windows
    are judged is that of the narrowest that tell any."""
    squares, df = 0.0, 0
    for one in budgets:
        near = next((w for w in one.windows() if w[1] - w[0] >= LEAST_TESTED), one.windows()[-1])
        more, free = _residuals(one, near)
        squares, df = squares + more, df + free
    variance = max(squares / df, LEAST_VARIANCE) if df else seeds.s**2 if seeds is not None else None
    for one in budgets:
        top = one.means[one.lowest] + RISE
        for window in one.windows():
            if window[1] - window[0] >= LEAST_TESTED:
                if max(one.means[window[0]], one.means[window[1]]) > top:
                    break
                more, free = _residuals(one, window)
                if variance is None or (free and stats.f.sf(more / free / variance, free, max(df, 1)) < MISFIT):
                    continue  # a wider one may do: of many tests some fail by chance
            one.window = window
    return _noise(budgets, readings, seeds)


def _noise(budgets: Sequence[_Budget], readings: Readings, seeds: SeedNoise | None) -> Noise | None:
    """From the residuals of cubics in the windows. Losses of one trunk share part of it: readings of one curve all,
    branches of one run by half or so; two sums of squares tell the two variances (MINQUE: Rao 1972), and
    Satterthwaite's formula their degrees of freedom."""
    rows, blocks, residuals = [], [], []
    for one in budgets:
        if one.window is None:
            continue
        inside = one.inside(one.window)
        x, inverse = _design(one, one.window, _degree(one.window))
        maker = np.eye(int(inside.sum())) - x @ inverse
        rows.append(one.rows[inside])
        blocks.append(maker)
        residuals.append(maker @ one.y[inside])
    free = sum(round(float(np.trace(one))) for one in blocks)
    if not free:
        return None if seeds is None or not seeds.s > 0 else Noise(0.0, seeds.s, seeds.df, "replicate seeds")
    r, unit = np.concatenate(residuals), readings.unit[np.concatenate(rows)]
    squares = float(r @ r)
    alone = Noise(0.0, math.sqrt(max(squares / free, LEAST_VARIANCE)), float(free), "scatter about the cubics")
    if len(np.unique(unit)) == len(unit):
        return alone
    ends = np.cumsum([0, *map(len, blocks)])
    m = np.zeros((len(r), len(r)))
    for first, last, block in zip(ends[:-1], ends[1:], blocks, strict=True):
        m[first:last, first:last] = block
    shared = (unit[:, None] == unit[None]).astype(float)
    seen = m @ shared
    trace = float(np.trace(seen))
    if readings.from_curves:  # a run's noise is that of its whole curve
        s = math.sqrt(max(squares / trace, LEAST_VARIANCE)) if trace > 0 else 0.0
        return replace(alone, trunk=s, own=0.0, df=_degrees(seen)) if s else alone
    table = np.array([[float((seen * seen.T).sum()), trace], [trace, float(free)]])
    trunk, own = np.linalg.lstsq(table, np.array([float(r @ shared @ r), squares]), rcond=None)[0]
    if trunk <= 0:
        return alone
    if own < 0:
        trunk, own = squares / trace, 0.0
    return replace(alone, trunk=math.sqrt(trunk), own=math.sqrt(own), df=_degrees(seen @ (seen * trunk + m * own)))


def _degrees(matrix: np.ndarray) -> float:
    """Satterthwaite's, of a sum of squares y' Q y from Q times the covariance of y."""
    square = float((matrix * matrix.T).sum())
    return float(np.trace(matrix)) ** 2 / square if square > 0 else 1.0


def _covariance(readings: Readings, noise: Noise | None) -> np.ndarray:
    """[p, p]: of the log losses; diagonal where no trunk has two."""
    p = len(readings.loss)
    if noise is None:
        return np.zeros((p, p))
    found = noise.own**2 * np.eye(p)
    return found + noise.trunk**2 * (readings.unit[:, None] == readings.unit[None]) if noise.trunk else found


def _asymmetry(
    budgets: Sequence[_Budget], readings: Readings, variance: float, p: int
) -> tuple[np.ndarray, np.ndarray]:
    """Of each budget, the ratio of the cubic to the square term of its log loss at its lowest point, as a line in log C
    through those of all windows of five sizes or more (their mean below FOR_DRIFT budgets; 0 without any) [k]; and its
    gradient over the log losses [k, p]."""
    k = len(budgets)
    log_c = np.array([float(readings.log_c[readings.budget[one.rows[0]]]) for one in budgets])
    ratios, weights, gradients, known = [], [], [], []
    for i, one in enumerate(budgets):
        if one.window is None or one.window[1] - one.window[0] < LEAST_TESTED - 1:
            continue
        inside = one.inside(one.window)
        _, inverse = _design(one, one.window, 3)
        b = inverse @ one.y[inside]
        at = _vertex(b)
        bend = b[2] + 3 * b[3] * at
        if not bend > 0:
            continue
        ratio, gradient = b[3] / bend, np.zeros(p)
        gradient[one.rows[inside]] = (inverse[3] - ratio * (inverse[2] + 3 * at * inverse[3])) / bend
        ratios.append(ratio)
        weights.append(bend**2 / float(inverse[3] @ inverse[3]))
        gradients.append(gradient)
        known.append(i)
    if not known:
        return np.zeros(k), np.zeros((k, p))
    columns = 2 if len(known) >= FOR_DRIFT else 1
    x = np.stack([np.ones(k), log_c - log_c[known].mean()], 1)[:, :columns]
    w = np.array(weights)
    solve = x @ np.linalg.pinv((x[known].T * w) @ x[known]) @ (x[known].T * w)  # [k, known]
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


def _local(
    minimum: Minimum, one: _Budget, ratio: float, of_ratio: np.ndarray, variance: float, p: int, cost: Cost
) -> tuple[Minimum, tuple[float, float, float, np.ndarray, np.ndarray] | None]:
    """The minimum of level + bend (u^2 + ratio u^3) over a budget's window, u = log N less its place."""
    assert one.window is not None
    inside = one.inside(one.window)
    x, y = one.x[inside], one.y[inside]
    n_sizes = one.window[1] - one.window[0] + 1
    minimum = replace(minimum, window=n_sizes, tested=n_sizes >= LEAST_TESTED and len(x) > 4)
    centre = float(one.sizes[one.lowest])
    for _ in range(50):
        u = x - centre
        inverse = np.linalg.pinv(np.stack([np.ones_like(u), u, u**2 + ratio * u**3], 1))
        level, slope, bend = inverse @ y
        if not bend > 0:
            return replace(minimum, reason="its losses do not bend upward: no size is best"), None
        step = float(np.clip(-slope / (2 * bend), -0.5, 0.5))
        centre += step
        if abs(step) < 1e-12:
            break
    if bend < LEAST_BEND * math.sqrt(variance * float(inverse[2] @ inverse[2])):
        return replace(minimum, reason="its losses bend by no more than their noise may make them"), None
    if not x[0] < centre < x[-1]:
        return replace(minimum, reason=_outside(centre, x)), None
    of_n, of_loss = np.zeros(p), np.zeros(p)
    of_n[one.rows[inside]] = -inverse[1] / (2 * bend)
    of_loss[one.rows[inside]] = inverse[0]
    direct = variance * float(of_n @ of_n)
    of_n = of_n + float(inverse[1] @ u**3) / 2 * of_ratio
    half = math.sqrt(math.log1p(FLAT) / bend)
    n_params = math.exp(centre)
    minimum = replace(
        minimum,
        n_params=n_params,
        n_tokens=minimum.c / float(cost.per_token(n_params)),
        loss=math.exp(level),
        error=math.sqrt(direct) if variance else None,
        flat=(math.exp(max(centre - half, x[0])), math.exp(min(centre + half, x[-1]))),
        reach=(math.exp(x[0]), math.exp(x[-1])),
        bend=float(bend),
        asymmetry=float(ratio),
    )
    return minimum, (centre, float(level), direct, of_n, of_loss)


def _interpolated(
    minimum: Minimum, one: _Budget, variance: float, p: int, cost: Cost
) -> tuple[Minimum, tuple[float, float, float, np.ndarray, np.ndarray] | None]:
    """The lowest point of Akima's interpolation of the loss, losses of one size averaged (Akima 1970; Porian et al.
    2024)."""
    _, where = np.unique(one.x, return_inverse=True)
    m = len(one.sizes)
    moved = np.exp(one.means[:, None] + STEP * np.concatenate([np.zeros((m, 1)), np.eye(m), -np.eye(m)], 1))
    fine = np.linspace(one.sizes[0], one.sizes[-1], FINE)
    table = Akima1DInterpolator(one.sizes, moved)(fine)  # [FINE, 1 + 2 m]
    best = table.argmin(0)
    if best[0] in (0, FINE - 1):
        return replace(minimum, window=m, reason=_outside(float(fine[best[0]]), one.sizes)), None
    inner, each = np.clip(best, 1, FINE - 2), np.arange(table.shape[1])
    before, here, after = (table[inner + k, each] for k in (-1, 0, 1))
    bend = before - 2 * here + after
    step = np.where(bend > 0, np.clip((before - after) / (2 * bend), -1, 1), 0.0)
    log_n = fine[inner] + step * (fine[1] - fine[0])
    log_loss = np.log(here - (before - after) * step / 4)
    share = 1 / np.bincount(where)[where]  # of a size's mean that is a point's
    of_n, of_loss = np.zeros(p), np.zeros(p)
    of_n[one.rows] = ((log_n[1 : m + 1] - log_n[m + 1 :]) / (2 * STEP))[where] * share
    of_loss[one.rows] = ((log_loss[1 : m + 1] - log_loss[m + 1 :]) / (2 * STEP))[where] * share
    direct = variance * float(of_n @ of_n)
    near = table[:, 0] <= np.exp(log_loss[0]) * (1 + FLAT)
    flat = (float(np.exp(fine[near.argmax()])), float(np.exp(fine[FINE - 1 - near[::-1].argmax()])))
    n_params = float(np.exp(log_n[0]))
    minimum = replace(
        minimum,
        n_params=n_params,
        n_tokens=minimum.c / float(cost.per_token(n_params)),
        loss=float(np.exp(log_loss[0])),
        error=math.sqrt(direct) if variance else None,
        flat=flat,
        window=m,
        reach=(math.exp(one.sizes[0]), math.exp(one.sizes[-1])),
    )
    return minimum, (float(log_n[0]), float(log_loss[0]), direct, of_n, of_loss)


def _outside(at: float, log_n: np.ndarray) -> str:
    low, high = np.exp([log_n.min(), log_n.max()])
    place = f"at N = {count(math.exp(at), 4)}" if abs(at) < LARGEST else "far away"
    return f"its minimum {place} is not inside the sizes that it is read from, {count(low, 4)} to {count(high, 4)}"


def _line(log_c: np.ndarray, y: np.ndarray, direct: np.ndarray, shared: np.ndarray, noise: Noise | None) -> Line:
    """Random effects: y [k] at log C [k], with variances `direct` [k] of their own noise and covariances `shared`
    [k, k] of all noise."""
    k, centre = len(y), float(log_c.mean())
    x = np.stack([np.ones(k), log_c - centre], 1)

    def solved(tau2: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        w = 1 / (direct + tau2)
        inverse = np.linalg.inv((x.T * w) @ x)
        solve = inverse @ (x.T * w)
        beta = solve @ y
        return beta, inverse, solve, float((w * (y - x @ beta) ** 2).sum())

    free = k - 2
    floor = 1e-6 * float(direct.max()) + 1e-24
    direct = np.maximum(direct, floor)
    low, high = 0.0, max(float(direct.max()), 1e-12)
    if solved(0.0)[3] > free:  # the scatter is more than the minima's errors explain
        while solved(high)[3] > free:
            high *= 4
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if solved(middle)[3] > free else (low, middle)
    tau2 = high if solved(0.0)[3] > free else 0.0
    beta, inverse, solve, q = solved(tau2)
    scatter = inverse * q / free
    common = solve @ (shared - np.diag(direct) * bool(shared.any())) @ solve.T
    whole = solve @ shared @ solve.T
    for i in range(2):  # what noise alone makes of a coefficient is the least of its variance
        common[i, i] = max(common[i, i], whole[i, i] - scatter[i, i])
    if shared.any() and scatter[1, 1] + common[1, 1] <= 0:
        common = whole - scatter
    level, slope = beta.tolist()
    return Line(level, slope, centre, scatter, common, float(free), noise.df if noise else 1.0, math.sqrt(tau2))


def _lowest(
    log_c: np.ndarray, log_loss: np.ndarray, shared: np.ndarray, noise: Noise | None, n_replicates: int, seed: int
) -> Lowest:
    """L_opt through the minima; its draws have the errors of these, scaled up where they scatter more about the law."""
    if len(log_c) < FOR_FLOOR:
        none = np.full((2, 2), np.nan)
        slope, level = np.polyfit(log_c - log_c.mean(), log_loss, 1)
        return Lowest(Line(float(level), float(slope), float(log_c.mean()), none, none, 1.0, 1.0, 0.0))
    free, k = len(log_c) - 3, len(log_c)
    own = fit_irreducible(log_c, np.exp(log_loss)[None])
    off = log_loss - np.log(own.at(log_c)[0])
    variance = np.maximum(np.diag(shared), 1e-24)
    scale = float((off**2 / variance).sum()) / free
    rng = np.random.default_rng([seed, 2])
    df = float(free) if scale > 1 or noise is None else float(free) + noise.df
    if noise is not None and noise.trunk > 0:  # which moves all budgets alike: their scatter does not tell it
        df = min(df, noise.df)
    root = np.linalg.cholesky(shared + np.diag(1e-9 * variance + 1e-24)) * math.sqrt(max(scale, 1.0))
    moved = rng.standard_normal((n_replicates, k)) @ root.T * np.sqrt(df / rng.chisquare(df, (n_replicates, 1)))
    return Lowest(fit_irreducible(log_c, np.exp(np.concatenate([log_loss[None], log_loss + moved]))))


def _rise(minima: Sequence[Minimum]) -> float:
    """d log L_opt / d log C through the minima; 0 for fewer than two."""
    kept = [(math.log(one.c), math.log(one.loss)) for one in minima if one.loss is not None and one.reason is None]
    log_c, log_loss = np.array(kept).reshape(-1, 2).T
    return float(np.polyfit(log_c, log_loss, 1)[0]) if len(kept) > 1 else 0.0


def _too_few(minima: Sequence[Minimum], readings: Readings, variant: str) -> str:
    kept = sum(one.reason is None for one in minima)
    alike: dict[str, list[float]] = {}
    for one in minima:
        if one.reason is not None:
            alike.setdefault(one.reason, []).append(one.c)
    where = {True: "at {0} FLOP", False: "at {1} budgets from {0} to {2} FLOP"}
    why = "; ".join(
        f"{where[len(at) == 1].format(flop(min(at)), len(at), flop(max(at)))} {reason}" for reason, at in alike.items()
    )
    details = "; ".join(part for part in (why, "; ".join(readings.left_out)) if part)
    return (
        f"isoFLOP ({variant}): {counted_of(kept, len(minima), 'budget', 'has', 'have')} a minimum inside "
        f"{'its' if kept == 1 else 'their'} sizes, {MIN_BUDGETS} are needed" + (f" ({details})" if details else "")
    )


def _exp(ends: tuple[float, float] | None) -> tuple[float, float] | None:
    """exp of both ends; None where one is no number that a law could have."""
    if ends is None or max(abs(ends[0]), abs(ends[1])) > LARGEST:
        return None
    return math.exp(ends[0]), math.exp(ends[1])


def _percentiles(values: np.ndarray, level: float) -> tuple[float, float] | None:
    """The central `level` of draws [r]; None where one in a hundred has no value."""
    finite = values[np.isfinite(values)]
    if len(finite) < max(0.99 * len(values), 2):
        return None
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2], method="weibull")
    return float(low), float(high)


def isoflop_result(
    found: IsoFlop,
    points: Points,
    n_replicates: int,
    seed: int,
    at: Sequence[float] = (),
    curve: Sequence[float] = (),
) -> Fit:
    """As every approach returns it. From four budgets L_opt has a floor, from three it is a power law. at, curve: C
    [FLOP] of its optima."""
    middle = _optimum(found, math.exp(sum(math.log(c) for c in found.range) / 2))
    kept = [one for one in found.minima if one.reason is None]
    noise = found.noise
    return Fit(
        approach=ISOFLOP,
        group=points.group,
        n_points=len(points),
        n_runs=points.n_runs,
        input_hash=points.input_hash,
        range=found.range,
        conventions={"C": points.convention, "L": points.loss_unit},
        objective=Objective(f"{MINIMA[found.variant]}; laws by least squares through these, weighted by their errors"),
        intervals=Intervals(METHOD.format(r=n_replicates), found.level, ESTIMAND, n_replicates, seed=seed),
        laws=tuple(_law(found, name, middle) for name in QUANTITIES),
        middle=middle,
        optima=tuple(_optimum(found, c) for c in at),
        curve=tuple(_optimum(found, c) for c in curve),
        isoflop=IsoflopPart(
            minimum=found.variant,
            minima=found.minima,
            from_curves=found.readings.from_curves,
            off_budget=float(np.expm1(found.readings.spread.max())),
            flatness=float(np.median([one.flat[1] / one.flat[0] for one in kept if one.flat is not None])),
            scatter=found.lines[N_OPT].tau,
            noise=()
            if noise is None
            else (NoiseOf("trunk", noise.trunk, noise.df), NoiseOf("one loss", noise.own, noise.df)),
            noise_source="" if noise is None else noise.source,
        ),
        left_out=(*found.readings.left_out, *_alone(found.minima)),
        notes=tuple(_untested(kept)) if found.variant == LOCAL else (),
    )


def _law(found: IsoFlop, quantity: str, middle: Optimum) -> Law:
    """Through its value in the middle of the budgets."""
    value, floor = middle.of(quantity).value, NOTHING
    if quantity == L_OPT:
        drawn = {
            name: Estimate.of(float(values[0]), _percentiles(values[1:], found.level))
            for name, values in found.lowest.parameters().items()
        }
        exponent, floor = drawn["L_exponent"], drawn.get("E", NOTHING)
    else:
        line = found.lines[quantity]
        exponent = Estimate.of(line.slope, line.interval(None, found.level))
    centre = None if value is None else (middle.flops, value)
    return Law(quantity, exponent=exponent, floor=floor, centre=centre, range=found.range)


def _optimum(found: IsoFlop, c: float) -> Optimum:
    """At C [FLOP]; without an interval or a loss that is not to be had."""
    return Optimum(c, *(Estimate.of(*found.optimum(name, c)) for name in QUANTITIES))


def _alone(minima: Sequence[Minimum]) -> list[str]:
    n_points = sum(one.n_points for one in minima if one.n_sizes == 1)
    return [f"{counted(n_points, 'point lies', 'points lie')} at a compute that no other size has"] if n_points else []


def _untested(kept: Sequence[Minimum]) -> list[str]:
    few = sum(not one.tested for one in kept)
    if not few:
        return []
    have = counted_of(few, len(kept), "budget", "has", "have")
    return [f"{have} fewer than {LEAST_TESTED} sizes about the lowest loss: nothing tests whether their curves fit"]
