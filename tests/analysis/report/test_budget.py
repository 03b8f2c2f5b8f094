"""Architectures at one budget: the numbers, the reasons not to believe them, the table."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.fits.comparison.at_budget import at_budget, doubts
from analysis.fits.comparison.frontiers import fit_frontiers
from analysis.fits.fit import NOTHING
from analysis.report.budget import budget_rows, budget_text

from ..fits.comparison.worlds import NEAR, ONE, OTHER_TEXT, study

BUDGET = 1e18


@pytest.fixture(scope="module")
def compared():
    """b needs about a fifth less compute than a; what runs of a cell share is five times their own noise."""
    return fit_frontiers(study([ONE, NEAR], 0.005, 0.001, seed=3), 199)


def test_the_truth_lies_in_the_intervals(compared):
    first, second = at_budget(compared, BUDGET)
    assert (first.arch, second.arch) == ("b", "a") and first.p_best > 0.99
    assert first.p_best + second.p_best == pytest.approx(1)
    for row, surface in ((first, NEAR), (second, ONE)):
        for key in ("loss", "n_opt", "d_opt"):
            low, high = getattr(row, key).interval
            value = {"loss": surface.l_opt, "n_opt": surface.n_opt, "d_opt": surface.d_opt}[key](BUDGET)
            assert low < value < high, key
    low, high = second.compute.interval
    assert low < ONE.flops_to_reach(NEAR.l_opt(BUDGET)) / BUDGET < high and low > 1
    assert first.compute.value == 1 and first.compute.interval is None


def test_losses_overlap_where_their_difference_is_sure(compared):
    """Noise that both share is in both intervals and not in the odds."""
    first, second = at_budget(compared, BUDGET)
    assert first.loss.high > second.loss.low and first.p_best > 0.99


def test_rows_of_text(compared):
    first, second = budget_rows(at_budget(compared, BUDGET))
    assert first["lowest of all in"] == "> 99% of draws" and first["compute for the lowest loss"] == "has it"
    assert (
        second["compute for the lowest loss"].startswith("1.") and " times [1." in second["compute for the lowest loss"]
    )
    high = compared.common[1]
    assert budget_text(3 * high, compared).endswith("(FLOP, 6nd), 3 times what all architectures reached")
    never = budget_rows([replace(at_budget(compared, BUDGET)[0], compute=NOTHING)])
    assert never[0]["compute for the lowest loss"] == "never reaches it"


def test_doubts(compared):
    low, high = compared.common
    middle = float(np.sqrt(low * high))
    assert doubts(compared, middle) == []
    far = [f"{name}: N_opt = " for name in "ab"]
    for result, start in zip(doubts(compared, high), far, strict=True):  # the runs are of small models, trained long
        assert result.startswith(start) and result.endswith("above the largest size that was trained, 32M")
    beyond = doubts(compared, 3 * high)[0]
    assert beyond.startswith("C lies 3 times above what all runs reached") and beyond.endswith("no run checks it")
    assert "20 times above" in (one := doubts(compared, 20 * high)[0]) and "the form of the surface decides" in one
    below = doubts(compared, low / 40)
    assert "40 times below" in below[0] and below[-1].endswith("below the smallest size that was trained, 1M")


def test_doubts_of_a_fit_that_is_not_sure(compared):
    fine = compared.fine.copy()
    fine[1:4] = False
    middle = float(np.sqrt(np.prod(compared.common)))
    lost = replace(compared, fine=fine)
    assert doubts(lost, middle) == ["in 3 of 199 draws an exponent is not identified: they are left out"]
    fine[1:40] = False
    few = replace(compared, fine=fine)
    assert doubts(few, middle) == [
        "in 39 of 199 draws an exponent is not identified: there are no intervals and no odds"
    ]
    rows = at_budget(few, middle)
    assert [(row.p_best, row.loss.interval) for row in rows] == [(None, None)] * 2
    assert [row["lowest of all in"] for row in budget_rows(rows)] == ["not known"] * 2
    nothing = replace(compared, fine=np.zeros_like(fine))
    assert any("nothing is identified" in doubt for doubt in doubts(nothing, middle))
    few = replace(compared, fitted=replace(compared.fitted, df=4))
    assert doubts(few, middle) == ["the noise is known from 4 degrees of freedom alone"]


def test_an_e_of_its_own_is_a_doubt():
    result = fit_frontiers(study([ONE, OTHER_TEXT], 0.001, 0.001, seed=1), 40)
    assert any("do not share one E" in doubt for doubt in doubts(result, result.common[1]))
