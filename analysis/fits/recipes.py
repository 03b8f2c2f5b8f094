"""Runs of one N and D by several recipes: the one that ends lowest stands for them, in every approach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.fits.points import Points
from analysis.fits.replicates import SAME_D, alike

HIGHER = "by another recipe that ends higher at the same N and D"


def of_lowest(points: Points) -> np.ndarray:
    """[n] bool: points of runs that no other recipe beats. Of runs of one N that end at the same D (within SAME_D), the
    recipe of the lowest mean loss at their ends stays: two recipes at one place are no noise, and their mean no law.
    Runs to other D stay, as each is a place of its own."""
    if len(set(points.recipe.tolist())) < 2:
        return np.ones(len(points), dtype=bool)
    by_size: dict[float, list[int]] = {}
    for i in ends_of(points.run, points.n_tokens):
        by_size.setdefault(float(points.n_params[i]), []).append(i)
    gone: set[str] = set()
    for mine in by_size.values():
        recipes = [str(points.recipe[i]) for i in mine]
        lost = beaten(recipes, points.n_tokens[mine].tolist(), points.loss[mine].tolist())
        gone |= {str(points.run[mine[one]]) for one in lost}
    return np.array([str(name) not in gone for name in points.run])


def beaten(recipes: Sequence[str], tokens: Sequence[float], losses: Sequence[float]) -> list[int]:
    """Of runs of one N, by index, those that end at the D of another recipe's, which ends lower (as low: is first)."""
    groups = sorted(
        alike(recipes, tokens, losses), key=lambda group: (float(np.mean([losses[i] for i in group])), min(group))
    )
    kept: list[list[int]] = []
    gone: list[int] = []
    for group in groups:
        reached = max(tokens[i] for i in group)
        others = [max(tokens[i] for i in one) for one in kept if recipes[one[0]] != recipes[group[0]]]
        if any(min(one, reached) >= (1 - SAME_D) * max(one, reached) for one in others):
            gone += group
        else:
            kept.append(group)
    return gone


def ends_of(run: np.ndarray, n_tokens: np.ndarray) -> list[int]:
    """Of each run, in their order, the index of its point with the most tokens."""
    last: dict[str, int] = {}
    for i, name in enumerate(run.astype(str)):
        if name not in last or n_tokens[i] > n_tokens[last[name]]:
            last[name] = i
    return list(last.values())
