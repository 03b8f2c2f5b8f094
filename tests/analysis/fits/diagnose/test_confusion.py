"""The verdict against the truth of simulated studies like the trial study on books."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest

from analysis.fits.fit import DO_NOT

from .confusion import Outcome, matrix, outcomes

OTHER_FORMS = ("interaction", "exponents", "mistuned", "saturating")
FIRST = 1000  # seeds that no threshold was chosen on
DRAWS = 15  # of each kind


def one(job: tuple[str, int]) -> list[Outcome]:
    return outcomes(*job)


@pytest.mark.slow
def test_parametric_is_right_or_says_that_it_is_not_to_be_believed() -> None:
    """60 draws of other forms than the fitted one, and 15 of that: the confusion matrix of
    docs/research/verdicts.md."""
    jobs = [(kind, FIRST + i) for kind in ("fitted", *OTHER_FORMS) for i in range(DRAWS)]
    with ProcessPoolExecutor(2) as pool:
        found = [row for rows in pool.map(one, jobs) for row in rows]
    for approach in ("parametric", "isoflop", "envelope"):
        mine = [row for row in found if row.approach == approach]
        for kind in ("fitted", *OTHER_FORMS):
            print(f"{approach:10} {kind:12} {matrix([row for row in mine if row.kind == kind])}")
        print(f"{approach:10} {'other forms':12} {matrix([row for row in mine if row.kind != 'fitted'])}")
    mine = [row for row in found if row.approach == "parametric" and row.kind != "fitted"]
    assert len(mine) == 60
    assert sum(bool(row.right) or row.verdict == DO_NOT for row in mine) >= 0.8 * len(mine)
    known = [row for row in found if row.approach == "parametric" and row.kind == "fitted"]
    assert sum(row.verdict != DO_NOT for row in known) >= 5  # a verdict that believes nothing is of no use
    believed = [row for row in found if row.verdict != DO_NOT]
    assert sum(bool(row.right) for row in believed) >= 0.8 * len(believed)
    cannot = {"envelope": 0, "parametric": 0}
    for row in found:
        if row.approach in cannot:
            cannot[row.approach] += not row.right
    assert cannot["parametric"] < cannot["envelope"]
