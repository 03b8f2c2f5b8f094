"""Which runs of one size are seeds of each other: what two of them differ by is seed noise, and nothing else is.

Seeds share a recipe (all that decides a loss but the seed), reach the same tokens, and come from different trunks:
branches of one trunk share its noise.
"""

from __future__ import annotations

from collections.abc import Sequence

SAME_D = 0.02  # of D, within which two runs are trained to the same tokens


def alike(
    recipes: Sequence[str], tokens: Sequence[float], losses: Sequence[float], same: float = SAME_D
) -> list[list[int]]:
    """Runs (or trunks), by index, in groups of one recipe that reach the same tokens, within `same` of a group's most.

    The last group is the one whose mean stands for the size: of those that reach the most tokens, the one of the lowest
    mean of `losses` (at the end).
    """
    found: list[list[int]] = []
    for recipe in dict.fromkeys(recipes):
        most = 0.0
        mine = [i for i, one in enumerate(recipes) if one == recipe]
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
