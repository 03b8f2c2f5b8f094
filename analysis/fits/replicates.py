"""Which runs of one size are seeds of each other, and which recipe stands for several. What two seeds differ by is seed
noise, and nothing else is.

Seeds share a recipe (all that decides a loss but the seed), reach the same tokens, and come from different trunks:
branches of one trunk share its noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

SAME_D = 0.02  # of D, within which two runs are trained to the same tokens


def alike(
    recipes: Sequence[str], tokens: Sequence[float], losses: Sequence[float], same: float = SAME_D
) -> list[list[int]]:
    """Runs (or trunks), by index, in groups of one recipe that reach the same tokens, within `same` of a group's most.

    The last group is the one whose mean stands for the size: of those that reach the most tokens, the one of the lowest
    mean of `losses` (at the end).
    """
    found: list[list[int]] = []
    by_recipe: dict[str, list[int]] = {}
    for i, recipe in enumerate(recipes):
        by_recipe.setdefault(recipe, []).append(i)
    for mine in by_recipe.values():
        most = 0.0
        for i in sorted(mine, key=lambda i: -tokens[i]):  # stable: seeds stay in their order
            if tokens[i] < (1 - same) * most or not most:
                found.append([])
                most = tokens[i]
            found[-1].append(i)
    farthest = max(tokens, default=0.0)

    def rank(group: list[int]) -> tuple[float, float]:
        reached = max(tokens[i] for i in group)
        full = reached >= (1 - same) * farthest
        return (farthest if full else reached, -sum(losses[i] for i in group) / len(group))

    return sorted(found, key=rank)


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
    names = pd.Series(run.astype(str))
    return pd.Series(n_tokens).groupby(names.to_numpy(), sort=False).idxmax().tolist()
