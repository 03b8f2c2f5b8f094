"""Ladders of runs whose scores follow a known law, with noise that a run's checkpoints share."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from analysis.fits.tasks.law import Scores
from analysis.scales import Scale

FOUR = Scale("accuracy", chance=0.25)
TEXT = Scale("perplexity", higher_is_better=False)
N_CHECKPOINTS = 8


def ladder(n_runs: int) -> tuple[np.ndarray, np.ndarray]:
    """(loss, run) of runs of up to six sizes, several seeds where there are more runs, checkpoints spaced by log
    tokens: L = 1.7 + (N / 5e5)^-0.35 + (D / 5e7)^-0.35 in nats."""
    sizes = np.geomspace(1e6, 3e7, min(n_runs, 6))
    n_params = sizes[np.arange(n_runs) % len(sizes)][:, None]
    tokens = 20 * n_params * np.geomspace(0.05, 1, N_CHECKPOINTS)
    loss = 1.7 + (n_params / 5e5) ** -0.35 + (tokens / 5e7) ** -0.35
    return loss.ravel(), np.repeat([f"r{i}" for i in range(n_runs)], N_CHECKPOINTS)


def scores(value: np.ndarray, scale: Scale = FOUR, n_runs: int = 12) -> Scores:
    """Of a ladder, without standard errors."""
    loss, run = ladder(n_runs)
    return Scores(scale, loss, value, run, np.full(len(loss), np.nan))


def drawn(
    random: np.random.Generator,
    n_runs: int,
    steepness: float = 2.0,
    middle: float = 2.2,
    questions: int = 1000,
    run_noise: float = 0.1,
    drift: float = 0.0,
    scale: Scale = FOUR,
) -> Scores:
    """Accuracies of `questions` answers, eta = steepness (middle - L) shifted by `run_noise` a run, and by a random
    walk along it of steps `drift`. Errors are binomial, as lm-eval gives them."""
    loss, run = ladder(n_runs)
    shift = run_noise * random.normal(size=(n_runs, 1)) + drift * random.normal(size=(n_runs, N_CHECKPOINTS)).cumsum(1)
    share = scale.chance + (1 - scale.chance) * expit(steepness * (middle - loss) + shift.ravel())
    value = random.binomial(questions, share) / questions
    return Scores(scale, loss, value, run, np.sqrt(value * (1 - value) / (questions - 1)))
