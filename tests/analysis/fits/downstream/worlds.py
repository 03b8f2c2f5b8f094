"""Ladders of runs whose scores follow a known link, with noise that a run's checkpoints share."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from analysis.fits.downstream.scores import Scores
from analysis.scales import Scale

FOUR = Scale("accuracy", chance=0.25)
SHARE = Scale("accuracy")
TEXT = Scale("perplexity", higher_is_better=False)
RATE = Scale("trend", full=100.0)


def ladder(n_runs: int, n_checkpoints: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(loss, flops, run) of runs of up to six sizes, several seeds where there are more runs, checkpoints spaced by log
    tokens: L = 1.7 + (N / 5e5)^-0.35 + (D / 5e7)^-0.35 in nats."""
    sizes = np.geomspace(1e6, 3e7, min(n_runs, 6))
    n_params = sizes[np.arange(n_runs) % len(sizes)][:, None]
    tokens = 20 * n_params * np.geomspace(0.05, 1, n_checkpoints)
    loss = 1.7 + (n_params / 5e5) ** -0.35 + (tokens / 5e7) ** -0.35
    run = np.repeat([f"r{i}" for i in range(n_runs)], n_checkpoints)
    return loss.ravel(), (6 * n_params * tokens).ravel(), run


def drawn(
    random: np.random.Generator,
    n_runs: int,
    steepness: float = 2.0,
    middle: float = 2.2,
    scale: Scale = FOUR,
    questions: int = 1000,
    run_noise: float = 0.1,
    group: str = "tnl",
    drift: float = 0.0,
) -> tuple[Scores, np.ndarray]:
    """Accuracies of `questions` answers, eta = steepness (middle - L) shifted by `run_noise` a run, and by a random
    walk along it of steps `drift`; and the true ones without noise. Errors are binomial, as lm-eval gives them."""
    loss, flops, run = ladder(n_runs)
    eta = steepness * (middle - loss)
    share = lambda at: scale.chance + (1 - scale.chance) * expit(at)  # noqa: E731
    shift = run_noise * random.normal(size=(n_runs, 1)) + drift * random.normal(size=(n_runs, 8)).cumsum(1)
    found = random.binomial(questions, share(eta + shift.ravel())) / questions
    error = np.sqrt(found * (1 - found) / (questions - 1))
    return Scores(loss, flops, found * scale.full, run, scale, error * scale.full, task="t", group=group), share(eta)
