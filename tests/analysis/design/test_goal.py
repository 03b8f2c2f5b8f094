"""Designs beside the naive ladder of the same cost, in 240 worlds that no design saw: 30 tell a share to 7 points.
docs/research/designs.md has the figures."""

import numpy as np
import pytest

from tests.analysis.design.goal import FRESH, fresh, goal


@pytest.mark.slow
def test_designs_are_right_more_often_than_the_naive_ladder():
    results = goal(5.75e16, text=0.0, bend=0.0, worlds=fresh(111_000, 8))  # noise between seeds alone
    design, naive = results["design"], results["naive"]
    assert len(design.outcomes) == 8 * sum(FRESH.values()) == 240
    assert design.summary["right"] >= max(0.85, naive.summary["right"] + 0.25)
    assert design.summary["right_a"] >= 0.85
    assert np.nanmedian(design.ratio) == pytest.approx(1, abs=0.25)
