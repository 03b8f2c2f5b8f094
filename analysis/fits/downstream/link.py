"""One link: a task's score as a function of loss, or of compute, for one architecture.

Weighted least squares by scipy from many starts, weights from the scores' standard errors; then again with a random
effect of each run on eta (run_effect.py, at the linearised optimum). Intervals are made on eta, where the form is a
line, so that the bounds of the score hold for them too: the wider of that model's and of the jackknife over runs
(by_run.py), which needs no model of what a run's checkpoints share. docs/research/task-links.md has the coverage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

from analysis.fits.downstream.by_run import Line, fit_line
from analysis.fits.downstream.forms import EXPONENTIAL, FORMS, POWER, Form
from analysis.fits.downstream.run_effect import RunEffect, fit_run_effect, whiten
from analysis.fits.downstream.scores import COMPUTE, LOSS, Scores
from arch.amounts import counted
from arch.errors import InputError

LEAST_RUNS = 4  # for an interval: two degrees of freedom
LEVEL = 0.95
STEEPNESS = (0.1, 0.5, 1.5, 4.0)  # of starts: b times the spread of z
HEIGHTS = (0.05, 0.3, 0.7)  # of starts: where eta = 0 lies between floor and ceiling, beside the mean score
SAME_OPTIMUM = 1e-6  # relative, of objectives
COARSE, FINE = 1e-9, 1e-15  # tolerances of a start, and of the best one's end
ROUNDS = 3  # of the run effect: its ratio settles


@dataclass(frozen=True, eq=False)
class Link:
    """`theta` of form.value at z - z0; `effect` and `line`: its errors; `against`: "loss" or "compute"."""

    scores: Scores
    form: Form
    against: str
    z0: float
    theta: np.ndarray
    effect: RunEffect
    line: Line
    objective: float  # sum of ((fitted - form) / noise)^2, of the first fit
    ends: tuple[float, ...]  # the objective that each start ended at

    @property
    def has_interval(self) -> bool:
        """Not with a free floor or ceiling: no coverage was shown for them."""
        return not self.form.free and self.effect.df >= LEAST_RUNS - 2 and bool(np.isfinite(self.line.without).all())

    def _half_width(self, gradient: np.ndarray, level: float) -> np.ndarray:
        return np.maximum(self.effect.half_width(gradient, level), self.line.half_width(gradient, level))

    def z(self, at: np.ndarray | float) -> np.ndarray:
        """The abscissa of losses [nats a token], or of compute [FLOP], less z0."""
        at = np.atleast_1d(np.asarray(at, dtype=float))
        if not (np.isfinite(at) & (at > 0)).all():
            raise InputError(f"{self.scores.task}: a score is predicted at a positive, finite {self.against}")
        if self.against == COMPUTE:
            return np.log(at) - self.z0
        return (-np.log(at) if self.form.name == POWER else -at) - self.z0

    def to_score(self, fitted: np.ndarray) -> np.ndarray:
        """From the fitted scale to the task's; the exponential form does not exceed a full score."""
        if self.form.name == POWER:
            return np.asarray(np.exp(fitted))
        scale = self.scores.scale
        return np.asarray(scale.full * (scale.chance + (1 - scale.chance) * np.minimum(fitted, 1.0)))

    def predict(self, at: np.ndarray | float) -> np.ndarray:
        """[m]: the score expected of a run at these losses, or compute."""
        return self.to_score(self.form.value(self.theta, self.z(at)))

    def interval(
        self,
        at: np.ndarray | float,
        level: float = LEVEL,
        at_interval: tuple[float, float] | None = None,
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """(low, high) [m] of `predict`; None where there is none to be had.

        at_interval: of the one loss itself, at the same level, as L(C) gives it: the two are independent and combined
        by the square-and-add rule (Zou and Donner 2008).
        """
        if not self.has_interval:
            return None
        z = self.z(at)
        eta = self.theta[0] + self.theta[1] * z
        down = up = self._half_width(np.stack([np.ones_like(z), z], axis=1), level)
        if at_interval is not None:
            worse, better = sorted(self.z(one)[0] for one in at_interval)
            off = np.sort(self.theta[1] * np.array([worse - z[0], better - z[0]]))
            down, up = np.hypot(down, min(off[0], 0.0)), np.hypot(up, max(off[1], 0.0))
        ends = [self.to_score(self.form.shape(np.clip(one, -60, 60))) for one in (eta - down, eta + up)]
        return np.minimum(*ends), np.maximum(*ends)

    def params(self) -> dict[str, float]:
        """By the papers' names, of the score as a share: forms.py."""
        a, b = float(self.theta[0]), float(self.theta[1])
        scale = self.scores.scale
        if self.form.name == POWER:  # ln P = k L^exponent, or k C^exponent
            sign = 1 if self.against == LOSS else -1
            return {"k": float(np.exp(-a + b * self.z0)), "exponent": sign * b}
        floor, ceiling = (scale.chance + (1 - scale.chance) * one for one in self.form.ends(self.theta))
        if self.form.name == EXPONENTIAL:
            k = (1 - scale.chance) * (1 - self.form.ends(self.theta)[0]) * np.exp(a - b * self.z0)
            return {"eps": 1 - floor, "k": float(k), "gamma": b}
        middle = self.z0 - a / b if b else float("nan")
        return {
            "floor": floor,
            "ceiling": ceiling,
            "k": b,
            **({"L0": -middle} if self.against == LOSS else {"ln_C0": middle}),
        }

    def steepness(self, level: float = LEVEL) -> tuple[float, float] | None:
        """The interval of `k`, `gamma`, or `exponent`, whichever the form has."""
        if not self.has_interval:
            return None
        half = float(self._half_width(np.array([[0.0, 1.0]]), level)[0])
        found = (float(self.theta[1]) - half, float(self.theta[1]) + half)
        return (-found[1], -found[0]) if self.form.name == POWER and self.against == COMPUTE else found

    def curvature(self) -> float | None:
        """The p-value of a quadratic term in eta: small where the form bends otherwise than the scores do. None where
        there are too few runs to tell."""
        z = self.scores.order(self.against) - self.z0
        columns = self.form.jacobian(self.theta, z)
        columns = np.column_stack([columns, columns[:, 0] * z**2])
        rest = self.scores.fitted - self.form.value(self.theta, z)
        line = fit_line(columns, rest, self.scores.noise, self.scores.run_number)
        t = line.t(len(self.theta))
        return float(2 * stats.t.sf(abs(t), line.df)) if line.df >= 2 and np.isfinite(t) else None

    def starts(self) -> dict[str, Any]:
        """How the starts ended."""
        best = min(self.ends)
        return {
            "n": len(self.ends),
            "n_at_optimum": sum(one <= best * (1 + SAME_OPTIMUM) + 1e-12 for one in self.ends),
            "worst": max(self.ends),
        }


def default_form(scores: Scores) -> Form:
    """What a study's law is: the logistic of an accuracy, the power law of a perplexity. Raises InputError for a score
    that has no form."""
    if scores.scale.kind not in FORMS:
        raise InputError(f"{scores.task}: a score of kind {scores.scale.kind} has no link, only a trend")
    return Form(FORMS[scores.scale.kind][0])


def fit_link(scores: Scores, form: Form | None = None, against: str = LOSS) -> Link:
    """Raises InputError for a form that is not of this kind of score, fewer checkpoints than parameters and one, and
    checkpoints that all have one loss."""
    form = form or default_form(scores)
    if form.name not in FORMS.get(scores.scale.kind, ()):
        raise InputError(f"{scores.task}: {form.name} is no link of a score of kind {scores.scale.kind}")
    n_params = 2 + len(form.free)
    if len(scores) <= n_params:
        raise InputError(f"{scores.task}: {counted(len(scores), 'checkpoint')}, a link needs {n_params + 1}")
    z = scores.order(against)
    z0, spread = float(z.mean()), float(z.std())
    if spread < 1e-9 * max(abs(z0), 1.0):
        raise InputError(f"{scores.task}: all checkpoints have one {against}: a link needs several")
    z, y, noise = z - z0, scores.fitted, scores.noise
    low = np.array([-np.inf, -np.inf, *(-1.0 if one == "floor" else 0.0 for one in form.free)])
    high = np.array([np.inf, np.inf, *(1.0 for _ in form.free)])
    runs, ratio = scores.run_number, 0.0

    def solve(start: np.ndarray, u: np.ndarray, tolerance: float = FINE) -> Any:
        return optimize.least_squares(
            lambda theta: whiten((form.value(theta, z) - y) / noise, u, runs, ratio),
            start,
            lambda theta: whiten(form.jacobian(theta, z) / noise[:, None], u, runs, ratio),
            bounds=(low, high),
            x_scale="jac",
            ftol=tolerance,
            xtol=tolerance,
            gtol=tolerance,
            max_nfev=200,
        )

    alone = np.zeros(len(z))
    found = [solve(start, alone, COARSE) for start in _starts(form, y, spread)]
    best = solve(min(found, key=lambda one: one.cost).x, alone)
    theta = best.x
    for _ in range(ROUNDS):
        columns = form.jacobian(theta, z) / noise[:, None]
        working = (y - form.value(theta, z)) / noise + columns @ theta
        effect = fit_run_effect(columns, working, columns[:, 0], runs)
        if effect.ratio == ratio:
            break
        ratio = effect.ratio
        theta = solve(theta, columns[:, 0]).x
    white, seen = (whiten(one, columns[:, 0], runs, ratio) for one in (columns, working))
    line = fit_line(white, seen, np.ones(len(z)), runs)
    return Link(
        scores,
        form,
        against,
        z0,
        theta,
        effect,
        line,
        2 * float(best.cost),
        tuple(2 * float(one.cost) for one in found),
    )


def _starts(form: Form, y: np.ndarray, spread: float) -> list[np.ndarray]:
    level = float(y.mean())
    heights = [level] if form.name == POWER else [level, *HEIGHTS]
    ends = {"floor": min(0.0, float(y.min())), "ceiling": min(1.0, max(0.5, float(y.max()) * 1.05))}
    return [
        np.array([float(form.inverse(np.array(height))), steep / spread, *(ends[one] for one in form.free)])
        for height in heights
        for steep in STEEPNESS
    ]
