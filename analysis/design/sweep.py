"""The errors of learning rates after a sweep, and their cost in loss; without a sweep the cost of guessed rates.

A sweep tries SWEPT_RATES rates, FACTOR apart, in cells of some sizes and two lengths; a law fitted to their best rates
(analysis/rates) gives every size its rate. A wrong rate costs CURVATURE (ln rate - ln best)^2 of log loss. The error of
ln rate is that of the law, by least squares on the cells: linearised, not simulated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analysis.design.layout import Layout
from analysis.design.proposal import SWEPT_RATES
from analysis.design.worlds import Noise, World
from scaling.study.rate_law import ArchLaw

FACTOR = 2.0  # between rates
# A rate twice too high costs 1.3 to 2.0% of the loss: 0.027 to 0.042 (ln 2)^2 (docs/research/learning-rates.md, the
# search of the quickstart, with a trial at other lengths: 1.3%).
CURVATURE = 0.03
# Standard deviation of ln of a size's best rate around its law, beyond the errors of the sweep: more than that search
# shows (its misfits have chances of 0.06 to 0.95 without any).
SCATTER = 0.08


def rate_errors(layout: Layout, noise: Noise) -> np.ndarray:
    """[k, k]: covariance of the errors of ln rate at the k sizes, of a law fitted to the layout's sweep. A cell's rates
    are centred at its best rate. Raises ValueError where the layout has no sweep."""
    if layout.swept is None:
        raise ValueError("this layout has no sweep")
    n, d = np.log(layout.swept)
    steps = (np.arange(SWEPT_RATES) - (SWEPT_RATES - 1) / 2) * math.log(FACTOR)
    of_cell = noise.seed / (2 * CURVATURE * math.sqrt(float((steps**2).sum())))
    design = np.column_stack([np.ones(len(n)), n - n.mean(), d - d.mean()])
    law = np.linalg.inv(design.T @ design) * (of_cell**2 + SCATTER**2)
    sizes = [np.flatnonzero(layout.size == i) for i in range(int(layout.size.max()) + 1)]
    at_n = np.array([math.log(layout.n_params[rows[0]]) for rows in sizes])
    at_d = np.array([_horizon(layout, rows) for rows in sizes])
    at = np.column_stack([np.ones(len(sizes)), at_n - n.mean(), at_d - d.mean()])
    return np.asarray(at @ law @ at.T + SCATTER**2 * np.eye(len(sizes)))


def _horizon(layout: Layout, rows: np.ndarray) -> float:
    """ln of the tokens for which a size's rate is chosen: of branches the geometric mean of the shortest and the
    longest (scaling/study/law_file.py), of curves their length."""
    at = np.log(layout.n_tokens[rows])
    return float(at.max() if layout.curves else (at.min() + at.max()) / 2)


def of_laws(laws: Sequence[ArchLaw], layout: Layout) -> np.ndarray:
    """[k, k]: the same for known laws, their mean; a term in the batch is taken at its centre."""
    sizes = [np.flatnonzero(layout.size == i) for i in range(int(layout.size.max()) + 1)]
    at = {
        "n_params": np.array([math.log(layout.n_params[rows[0]]) for rows in sizes]),
        "n_tokens": np.array([_horizon(layout, rows) for rows in sizes]),
    }
    total = np.zeros((len(sizes), len(sizes)))
    for law in laws:
        columns = [at[term] - math.log(law.centre[term]) if term in at else np.zeros(len(sizes)) for term in law.terms]
        design = np.column_stack([np.ones(len(sizes)), *columns])
        total += design @ np.array(law.covariance) @ design.T + law.scatter**2 * np.eye(len(sizes))
    return total / len(laws)


def lost(layout: Layout, world: World, noise: Noise, rng: np.random.Generator) -> np.ndarray:
    """[k]: log loss that the sizes lose by their rates: by the errors of a sweep or law, whatever the world; else as
    the world says."""
    if noise.laws:
        errors, curvature = of_laws(noise.laws, layout), float(np.mean([law.curvature.at for law in noise.laws]))
    elif layout.swept is not None:
        errors, curvature = rate_errors(layout, noise), CURVATURE
    else:
        return world.off(int(layout.size.max()) + 1)
    values, vectors = np.linalg.eigh(errors)  # a known law may have no scatter: singular
    rate_error = vectors @ (np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(len(errors)))
    return np.asarray(curvature * rate_error**2)
