"""A task's score as a function of the loss, of one architecture; and whether it follows the loss at all.

eta = a + b z is linear in an abscissa that rises as models get better (-L, of perplexities -ln L), and a form takes it
to the score:
- logistic, of accuracies: share above chance = 1 / (1 + exp(-eta)) (Bhagia et al. 2024, who take the loss on the
  task's own answers for L);
- power, of perplexities: ln P = exp(-eta), a power law of L: the loss on one text against that on another
  (Brandfonbrener et al. 2024, without their shifts).

Scores are fitted by weighted least squares from many starts, weights from their standard errors, then again with a
random effect of each run on eta, at the linearised optimum. Intervals are made on eta, so that the bounds of the score
hold for them too: the wider of the run effect's and the jackknife's over runs (by_run.py).

A law is withheld unless the ranks of the scores rise with the ranks of the models: a one-sided test of the slope at 1%,
by the same two errors. Ranks ask for no form, so that a task at chance is judged like the others. A law is believed
inside the range of its checkpoints alone, and not at all where the scores bend otherwise than its form.
docs/research/task-links.md has coverage and error rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats
from scipy.special import expit, logit

from analysis.fits.fit import Estimate, Verdict, believed_to
from analysis.fits.task_fits import Score
from analysis.fits.tasks.by_run import Coefficients, fit_jackknife, fit_run_effect, whiten
from analysis.scales import ACCURACY, PERPLEXITY, Scale
from arch.amounts import counted
from arch.errors import InputError

RISK = 0.01  # that a flat task is given a law
LEAST_RUNS = 4  # for an interval: two degrees of freedom
LEVEL = 0.95
STEEPNESS = (0.1, 0.5, 1.5, 4.0)  # of starts: b times the spread of z
HEIGHTS = (0.05, 0.3, 0.7)  # of starts: the score where eta = 0, beside the mean
COARSE, FINE = 1e-9, 1e-15  # tolerances of a start, and of the best one's end
ROUNDS = 3  # of the run effect: its ratio settles
MOST = 60.0  # |eta|, beyond which exp is 0 or no use
BENT = 0.01  # p-value of a bend, below which the form does not hold


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of n checkpoints of one architecture. Raises InputError for a score beyond its scale."""

    scale: Scale
    loss: np.ndarray  # nats a token
    value: np.ndarray  # as the task gives it
    run: np.ndarray  # checkpoints of one run share its noise
    error: np.ndarray  # standard error of `value`, NaN where not known

    def __post_init__(self) -> None:
        if self.scale.kind == PERPLEXITY:
            outside, why = ~((self.value > 1) & np.isfinite(self.value)), "is not above 1 and finite"
        elif self.scale.kind == ACCURACY:
            outside = ~((self.value >= 0) & (self.value <= self.scale.full * (1 + 1e-9)))
            why = f"is not between 0 and {self.scale.full:g}"
        else:
            outside, why = ~np.isfinite(self.value), "is not finite"
        if outside.any():
            raise InputError(f"the score of {counted(int(outside.sum()), 'checkpoint')} {why}")

    @classmethod
    def of(cls, scale: Scale, scores: Sequence[Score]) -> Scores:
        return cls(
            scale,
            np.array([score.loss for score in scores]),
            np.array([score.value for score in scores]),
            np.array([score.run_id for score in scores]),
            np.array([math.nan if score.error is None else score.error for score in scores]),
        )

    @property
    def n_runs(self) -> int:
        return len(set(self.run.tolist()))

    @property
    def run_number(self) -> np.ndarray:
        """[n]: 0, 1, .. of each checkpoint's run."""
        return np.unique(self.run, return_inverse=True)[1]

    def order(self, loss: np.ndarray) -> np.ndarray:
        """The abscissa of a law at these losses."""
        return -np.log(loss) if self.scale.kind == PERPLEXITY else -loss

    @property
    def fitted(self) -> np.ndarray:
        """[n]: what a law is fitted to. Of a perplexity its logarithm; otherwise the share above chance,
        (share - chance) / (1 - chance)."""
        if self.scale.kind == PERPLEXITY:
            return np.log(self.value)
        return (self.value / self.scale.full - self.scale.chance) / (1 - self.scale.chance)

    @property
    def noise(self) -> np.ndarray:
        """[n]: the standard error of `fitted`, up to one factor; all 1 where the task gives none.

        That of an accuracy of 0 or 1 is 0, as lm-eval computes it, and would outweigh all others. It is computed again
        with two right and two wrong answers more (Agresti and Coull 1998), from the number of questions that the
        other standard errors imply.
        """
        if self.scale.kind == PERPLEXITY:
            noise = self.error / self.value
            return noise if (np.isfinite(noise) & (noise > 0)).all() else np.ones(len(noise))
        share, error = self.value / self.scale.full, self.error / self.scale.full
        if self.scale.kind == ACCURACY and (known := np.isfinite(error) & (error > 0)).any():
            n = float(np.median(share[known] * (1 - share[known]) / error[known] ** 2))
            added = (share * n + 2) / (n + 4)
            return np.asarray(np.sqrt(added * (1 - added) / n) / (1 - self.scale.chance))
        return np.ones(len(self.value))


@dataclass(frozen=True)
class Trend:
    """t: of the slope of score ranks on loss ranks, above 0 where scores get better; needed: what it must exceed;
    reason: why a law is withheld, "" where it is not."""

    t: float | None
    needed: float | None
    reason: str


def trend_of(scores: Scores) -> Trend:
    """Whether the scores follow the loss beyond the noise between runs."""
    if scores.n_runs < LEAST_RUNS:
        return Trend(None, None, f"{scores.n_runs} run(s) have scores, {LEAST_RUNS} are needed")
    needed = float(stats.t.ppf(1 - RISK, scores.n_runs - 2))
    if np.ptp(scores.value) == 0:
        return Trend(None, needed, "every checkpoint has the same score")
    t = _t_of_ranks(scores) * (1 if scores.scale.higher_is_better else -1)
    if math.isnan(t):
        return Trend(None, needed, "one run alone has another loss than the others")
    reason = ""
    if not t > needed:
        reason = f"no trend with loss beyond the noise between runs (t = {t:.1f}, above {needed:.1f} is needed)"
        scale, best = scores.scale, scores.loss.argmin()
        above_chance = scores.value[best] - scale.chance * scale.full
        if scale.kind == ACCURACY and scale.chance and above_chance < 2 * scores.error[best]:
            reason += f"; the best checkpoint's {scores.value[best]:.4g} is at chance ({scale.chance * scale.full:.4g})"
    return Trend(t, needed, reason)


def _t_of_ranks(scores: Scores) -> float:
    """Infinite where no two ranks disagree, NaN where it is not known."""
    z, y = stats.rankdata(-scores.loss), stats.rankdata(scores.value)
    columns, ones, run = np.stack([np.ones_like(z), z - z.mean()], axis=1), np.ones(len(z)), scores.run_number
    effect, ratio = fit_run_effect(columns, y, ones, run)
    jackknife = fit_jackknife(whiten(columns, ones, run, ratio), whiten(y, ones, run, ratio), run)
    error = float(np.sqrt(max(effect.covariance[1, 1], jackknife.covariance[1, 1])))
    if not np.isfinite([error, jackknife.covariance[1, 1]]).all():
        return math.nan
    slope = float(effect.coef[1])
    return slope / error if error > 1e-9 * abs(slope) else math.copysign(math.inf, slope)


@dataclass(frozen=True)
class Form:
    """shape: from eta to what is fitted; slope: its derivative, of the shape; inverse: of the shape."""

    name: str
    shape: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    inverse: Callable[[Any], Any]


LOGISTIC = Form("logistic", expit, lambda shape: shape * (1 - shape), logit)
POWER = Form("power", lambda eta: np.exp(-eta), lambda shape: -shape, lambda shape: -np.log(shape))
FORMS = {ACCURACY: LOGISTIC, PERPLEXITY: POWER}  # by the kind of a score's scale; others have no law


@dataclass(frozen=True, eq=False)
class Law:
    """coef: a, b of eta = a + b (z - z0); effect and jackknife: two estimates of them with errors."""

    scores: Scores
    form: Form
    z0: float
    coef: np.ndarray
    effect: Coefficients
    jackknife: Coefficients

    @property
    def has_interval(self) -> bool:
        return self.effect.df >= LEAST_RUNS - 2 and bool(np.isfinite(self.jackknife.covariance).all())

    def _half_width(self, gradient: np.ndarray) -> np.ndarray:
        return np.maximum(self.effect.half_width(gradient, LEVEL), self.jackknife.half_width(gradient, LEVEL))

    def _z(self, loss: np.ndarray | float) -> np.ndarray:
        return self.scores.order(np.atleast_1d(np.asarray(loss, dtype=float))) - self.z0

    def _score(self, eta: np.ndarray) -> np.ndarray:
        """In the task's unit."""
        fitted = self.form.shape(np.clip(eta, -MOST, MOST))
        if self.form is POWER:
            return np.asarray(np.exp(fitted))
        scale = self.scores.scale
        return np.asarray(scale.full * (scale.chance + (1 - scale.chance) * fitted))

    def predict(self, loss: np.ndarray | float) -> np.ndarray:
        """[m]: the score expected of a run at these losses [nats a token]."""
        return self._score(self.coef[0] + self.coef[1] * self._z(loss))

    def interval(
        self, loss: np.ndarray | float, loss_interval: tuple[float, float] | None = None
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """(low, high) [m] of `predict` at the level LEVEL; None with too few runs.

        loss_interval: of the one loss itself, at the same level, as L(C) gives it: the two are independent and combined
        by the square-and-add rule (Zou and Donner 2008).
        """
        if not self.has_interval:
            return None
        z = self._z(loss)
        eta = self.coef[0] + self.coef[1] * z
        down = up = self._half_width(np.stack([np.ones_like(z), z], axis=1))
        if loss_interval is not None:
            off = np.sort(self.coef[1] * (np.sort(self._z(np.array(loss_interval))) - z))
            down, up = np.hypot(down, min(off[0], 0.0)), np.hypot(up, max(off[1], 0.0))
        ends = self._score(eta - down), self._score(eta + up)
        return np.minimum(*ends), np.maximum(*ends)

    def parameters(self) -> dict[str, Estimate]:
        """By the papers' names: of the logistic k and L0, of ln P = k L^exponent k and the exponent."""
        a, b = map(float, self.coef)
        half = float(self._half_width(np.array([[0.0, 1.0]]))[0])
        steepness = Estimate.of(b, (b - half, b + half) if self.has_interval else None)
        if self.form is LOGISTIC:
            return {"k": steepness, "L0": Estimate(a / b - self.z0 if b else None)}
        return {"k": Estimate(math.exp(b * self.z0 - a)), "exponent": steepness}

    def p_of_bend(self) -> float | None:
        """The p-value of a quadratic term in eta: small where the form bends otherwise than the scores do. None where
        there are too few runs for one."""
        z, noise = self._z(self.scores.loss), self.scores.noise
        columns, left = _linearised(self.form, self.coef, z, self.scores.fitted)
        columns = np.column_stack([columns, columns[:, 0] * z**2])
        bent = fit_jackknife(columns / noise[:, None], left / noise, self.scores.run_number)
        error = float(np.sqrt(bent.covariance[2, 2]))
        if bent.df < 2 or not error > 0:
            return None
        return float(2 * stats.t.sf(abs(float(bent.coef[2])) / error, bent.df))

    def verdict(self) -> Verdict:
        """Whether the law is believed, up to the best checkpoint."""
        bend, reasons = self.p_of_bend(), list[str]()
        if not self.has_interval:
            reasons = [f"no interval: {counted(self.scores.n_runs, 'run')}, {LEAST_RUNS} are needed"]
        if bend is not None and bend < BENT:
            reasons.insert(0, f"the scores bend otherwise than the {self.form.name} form (p = {bend:.2g})")
            return believed_to(0.0, tuple(reasons))
        return believed_to(1.0, tuple(reasons))


def _linearised(form: Form, coef: np.ndarray, z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The derivatives by a and b [n, 2], and y less the form [n]."""
    shape = form.shape(np.clip(coef[0] + coef[1] * z, -MOST, MOST))
    slope = form.slope(shape)
    return np.stack([slope, slope * z], axis=1), y - shape


def fit_law(scores: Scores) -> Law:
    """The law of an accuracy or a perplexity. Raises InputError for fewer than three checkpoints, and for those that
    all have one loss."""
    form = FORMS[scores.scale.kind]
    z, y, noise, run = scores.order(scores.loss), scores.fitted, scores.noise, scores.run_number
    if len(z) < 3:
        raise InputError(f"{counted(len(z), 'checkpoint')}, a law needs 3")
    z0, spread = float(z.mean()), float(z.std())
    if spread < 1e-9 * max(abs(z0), 1.0):
        raise InputError("all checkpoints have one loss: a law needs several")
    z = z - z0

    def solve(start: np.ndarray, u: np.ndarray, ratio: float, tolerance: float = FINE) -> Any:
        def residuals(coef: np.ndarray) -> np.ndarray:
            return whiten(-_linearised(form, coef, z, y)[1] / noise, u, run, ratio)

        def jacobian(coef: np.ndarray) -> np.ndarray:
            return whiten(_linearised(form, coef, z, y)[0] / noise[:, None], u, run, ratio)

        tolerances = {"ftol": tolerance, "xtol": tolerance, "gtol": tolerance}
        return optimize.least_squares(residuals, start, jacobian, x_scale="jac", max_nfev=200, **tolerances)

    alone = np.zeros(len(z))
    ends = [solve(start, alone, 0.0, COARSE) for start in _starts(form, float(y.mean()), spread)]
    coef, ratio = solve(min(ends, key=lambda end: end.cost).x, alone, 0.0).x, 0.0
    for _ in range(ROUNDS):
        columns, left = _linearised(form, coef, z, y)
        columns = columns / noise[:, None]
        working = left / noise + columns @ coef
        effect, settled = fit_run_effect(columns, working, columns[:, 0], run)
        if settled == ratio:
            break
        ratio = settled
        coef = solve(coef, columns[:, 0], ratio).x
    u = columns[:, 0]
    jackknife = fit_jackknife(whiten(columns, u, run, ratio), whiten(working, u, run, ratio), run)
    return Law(scores, form, z0, coef, effect, jackknife)


def _starts(form: Form, mean: float, spread: float) -> list[np.ndarray]:
    heights = [mean] if form is POWER else [min(max(mean, 1e-12), 1 - 1e-12), *HEIGHTS]
    return [np.array([float(form.inverse(height)), steep / spread]) for height in heights for steep in STEEPNESS]
