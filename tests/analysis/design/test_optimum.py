"""Whether the optima of a study's budgets lie inside of its sizes, in a world whose N_opt is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.design.check import Run
from analysis.design.optimum import budgets_of, outside
from analysis.design.worlds import MIDDLE_D, MIDDLE_N, World, literature

WORLD = World("fitted", 0.8, 0.35, 0.3, 0.2, 0.2, 0.0)
BUDGETS = [2e14, 4e14, 8e14, 1.6e15, 3.2e15]


def n_opt(flops: float) -> float:
    """Of C = 6 N D: where alpha A / N^alpha = beta B / D^beta."""
    a, b = WORLD.a * MIDDLE_N**WORLD.alpha, WORLD.b * MIDDLE_D**WORLD.beta
    power = 1 / (WORLD.alpha + WORLD.beta)
    return (WORLD.alpha * a / (WORLD.beta * b)) ** power * (flops / 6) ** (WORLD.beta * power)


def isoflop(shift: float = 1.0, decayed: bool = True) -> list[Run]:
    """Six sizes a factor 1.7 apart about `shift` times the optimum of each budget."""
    return [
        Run(f"x{k}-{i}", n, flops / (6 * n), 6 * n, f"x{k}-{i}", decayed)
        for k, flops in enumerate(BUDGETS)
        for i, n in enumerate(shift * n_opt(flops) * 1.7 ** (np.arange(6) - 2.5))
    ]


def test_every_budget_of_an_isoflop_grid_about_the_optimum_holds_it():
    budgets = budgets_of(isoflop(), [WORLD])
    assert [budget.flops for budget in budgets] == pytest.approx(BUDGETS)
    assert [budget.n_opt[1] for budget in budgets] == pytest.approx([n_opt(flops) for flops in BUDGETS], rel=0.01)
    assert all(budget.n_sizes == 6 and budget.inside == 1 for budget in budgets) and not outside(budgets)
    assert budgets[2].largest / budgets[2].smallest == pytest.approx(1.7**5)
    n = isoflop()[5].n_params  # a size of the first budget, which is trained at the last too: none of those between
    both = [*isoflop(), Run("again", n, BUDGETS[-1] / (6 * n), 6 * n, "again", True)]
    assert [budget.n_sizes for budget in budgets_of(both, [WORLD])] == [6, 6, 6, 6, 7]


@pytest.mark.parametrize("shift", [1 / 5, 5])
def test_sizes_on_one_side_of_the_optimum_do_not(shift):
    budgets = budgets_of(isoflop(shift), [WORLD])
    assert len(outside(budgets)) == len(BUDGETS) - 2  # of the outermost nothing is asked


def test_whole_curves_to_equal_tokens_hold_optima_of_that_many_tokens_alone():
    """At the compute of each size's run, that size has the most tokens; the larger ones reach it earlier."""
    sizes = 2e5 * 2.0 ** np.arange(6)
    wanted = [flops / 6 / n_opt(flops) for flops in BUDGETS]

    def ladder(tokens: float) -> list[Run]:
        return [Run(f"x{n:.0f}", n, tokens, 6 * n, f"x{n:.0f}", False) for n in sizes]

    assert not outside(budgets_of(ladder(1.2 * max(wanted)), [WORLD]))
    short = outside(budgets_of(ladder(min(wanted) / 4), [WORLD]))
    assert short and all(budget.n_opt[1] < budget.smallest for budget in short)


def test_a_budget_needs_three_sizes_and_worlds_give_a_range():
    assert budgets_of(isoflop()[:2], [WORLD]) == [] and budgets_of([], [WORLD]) == []
    few = [run for run in isoflop() if run.size.endswith(("-0", "-1"))]
    assert budgets_of(few, [WORLD]) == []
    prior, random = literature(257), np.random.default_rng(0)
    budget = budgets_of(isoflop(), [prior.draw(random) for _ in range(100)])[2]
    low, middle, high = budget.n_opt
    assert low < middle < high and 0 < budget.inside < 1 and math.isclose(budget.flops, BUDGETS[2])
