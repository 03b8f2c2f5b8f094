"""How hard each training batch is: a bigram model's loss on it, less that model's mean over the training split.

A run's loss at a step is noisy because a step sees a few windows of text, and some text is harder. A bigram model can
read the same batches, which are a pure function of (seed, step), and its mean over the split is known exactly.
Subtracting its deviation (a control variate with coefficient 1, fixed beforehand) keeps each curve's expectation and
removes the noise that any model would see: 61 to 78% of the variance in the quickstart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.evals.baseline import MAX_TRAIN_TOKENS
from data.bigram import Bigram, fit_bigram
from data.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from data.corpus import Corpus
    from scaling.study.spec import RunSpec

STEPS_AT_ONCE = 64


def add_difficulty(curves: pd.DataFrame, runs: Sequence[RunSpec], corpus: Corpus) -> pd.DataFrame:
    """`curves` with a column `difficulty`, nats a token, of the batch of each row's step."""
    model = fit_bigram(corpus.train, corpus.tokenizer.vocab_size, MAX_TRAIN_TOKENS)
    found: dict[tuple[int, int, int], np.ndarray] = {}
    column = np.full(len(curves), np.nan)
    longest = {run.run_id: run.n_steps for run in runs}
    for run in sorted(runs, key=lambda run: -run.n_steps):
        rows = run.training.batch_tokens // run.context_length
        key = (run.seed, rows, run.context_length)
        if key not in found:  # the longest run of a kind comes first and serves the others
            loader = Loader(corpus.train, run.context_length, rows, run.seed, run.corpus.epochs)
            found[key] = batch_difficulty(model, loader, longest[run.run_id])
        mine = (curves["run_id"] == run.run_id).to_numpy()
        column[mine] = found[key][curves.loc[mine, "step"].to_numpy() - 1]
    return curves.assign(difficulty=column)


def batch_difficulty(model: Bigram, loader: Loader, n_steps: int) -> np.ndarray:
    """[n_steps]: mean loss of `model` on each batch less its mean over the text it was counted on, nats a token."""
    means = np.empty(n_steps)
    for first in range(0, n_steps, STEPS_AT_ONCE):
        steps = range(first, min(first + STEPS_AT_ONCE, n_steps))
        batches = np.stack([loader.batch(step) for step in steps])
        means[first : steps.stop] = model.nats(batches[:, :, :-1], batches[:, :, 1:]).mean((1, 2))
    return means - model.mean_nats()
