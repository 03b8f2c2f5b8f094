"""Whether a task's scores follow the loss at all: laws of those that do not are withheld, with the reason.

The ranks of the scores must rise with the ranks of the models: t of the slope of one on the other above that of a
one-sided test at 1%, with the errors that links have (of a random effect of each run, or the jackknife over runs,
whichever says less). Ranks ask for no form: a task at chance, where a form has no slope to speak of, is judged like the
others, and one that bends is not judged by how straight it is. docs/research/task-links.md has how often this passes
tasks that are flat, and those that are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.fits.downstream.by_run import fit_line
from analysis.fits.downstream.link import LEAST_RUNS
from analysis.fits.downstream.run_effect import fit_run_effect, whiten
from analysis.fits.downstream.scores import LOSS, Scores
from analysis.scales import ACCURACY

RISK = 0.01  # one-sided


@dataclass(frozen=True)
class Gate:
    """t: of the slope, above 0 where scores get better; needed: what it must exceed; reason: why a law is withheld,
    None where it is not."""

    t: float | None
    needed: float | None
    reason: str | None


def gate(scores: Scores, against: str = LOSS) -> Gate:
    """Of one architecture's checkpoints."""
    if scores.n_runs < LEAST_RUNS:
        return Gate(None, None, f"{scores.n_runs} run(s) have scores, {LEAST_RUNS} are needed")
    needed = float(stats.t.ppf(1 - RISK, scores.n_runs - 2))
    if np.ptp(scores.fitted) == 0:
        return Gate(None, needed, "every checkpoint has the same score")
    t = _t(scores, against) * (1 if scores.scale.higher_is_better else -1)
    if np.isnan(t):
        return Gate(None, needed, f"one run alone has another {against} than the others")
    return Gate(t, needed, None if t > needed else _why(scores, t, needed, against))


def _t(scores: Scores, against: str) -> float:
    """Of the slope of ranks on ranks: infinite where no two disagree, NaN where it is not known."""
    z, y = (stats.rankdata(one) for one in (scores.order(against), scores.value))
    columns, ones = np.stack([np.ones_like(z), z - z.mean()], axis=1), np.ones(len(z))
    runs = scores.run_number
    effect = fit_run_effect(columns, y, ones, runs)
    white, seen = (whiten(one, ones, runs, effect.ratio) for one in (columns, y))
    line = fit_line(white, seen, ones, runs)
    error = float(np.sqrt(max(effect.covariance[1, 1], line.covariance[1, 1])))
    if not (np.isfinite(error) and np.isfinite(line.without).all()):
        return float("nan")
    slope = float(effect.coef[1])
    return slope / error if error > 1e-9 * abs(slope) else float(np.copysign(np.inf, slope))


def _why(scores: Scores, t: float, needed: float, against: str) -> str:
    told = f"no trend with {against} beyond the noise between runs (t = {t:.1f}, above {needed:.1f} is needed)"
    best = scores.order(against).argmax()
    off = (scores.value[best] / scores.scale.full - scores.scale.chance) * (1 if scores.scale.chance else np.nan)
    error = scores.error[best] / scores.scale.full
    if scores.scale.kind == ACCURACY and off < 2 * error:
        told += f"; the best checkpoint's {scores.value[best]:.4g} is at chance ({_chance(scores):.4g})"
    return told


def _chance(scores: Scores) -> float:
    return scores.scale.chance * scores.scale.full
