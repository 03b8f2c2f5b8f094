"""How much of each run's beginning to leave out: on the published study, whose curves fall steeply at first."""

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from analysis.fits.approaches import STUDY_OBJECTIVE
from analysis.fits.diagnose import predictors
from analysis.fits.parametric.curves import FIRST_SHARE, Prepared
from analysis.fits.parametric.curves import prepare as weighted
from analysis.fits.points import CURVES, Points
from analysis.fits.prepare import prepare
from analysis.fits.study_shares import FIRST_SHARES, _errors, better_share, first_shares
from analysis.report.first_shares import first_share_notes, first_share_rows
from analysis.run_table import RunTable
from analysis.source.read import read_runs
from scaling.study.schema import Fit

FOLDER = Path(__file__).resolve().parents[3] / "analysis" / "studies" / "h200-2026"


def read_from(share: float) -> RunTable:
    study = read_runs(FOLDER)
    return replace(study, settings=study.settings.model_copy(update={"first_share": share}))


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return first_shares(read_from(0.1), STUDY_OBJECTIVE)


def test_every_share_is_judged_by_the_same_runs(rows: list[dict]) -> None:
    assert [row["share"] for row in rows] == list(FIRST_SHARES) and [row["own"] for row in rows].count(True) == 1
    assert len({row["n"] for row in rows}) == 1 and rows[0]["n"] > 40
    for row in rows:
        assert sum(told["n"] for told in row["groups"].values()) == row["n"]
        squares = sum(told["n"] * told["error"] ** 2 for told in row["groups"].values())
        assert row["error"] ** 2 * row["n"] == pytest.approx(squares)


def test_every_share_is_fitted_from_where_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below cuts too: the tenth that backtests leave out would hide what is read of it."""
    begin: dict[float, float] = {}

    def noted(points: Points, warmup_tokens: float = 0.0, first_share: float = FIRST_SHARE) -> Prepared:
        found = weighted(points, warmup_tokens, first_share)
        last = {run: float(points.n_tokens[points.run == run].max()) for run in points.run}
        shares = [n / last[run] for n, run in zip(found.points.n_tokens, found.points.run, strict=True)]
        begin[first_share] = min(begin.get(first_share, 1.0), *shares)
        return found

    points = prepare(read_from(0.1), points=CURVES, first_share=0.05).groups["llama"]
    monkeypatch.setattr(predictors, "prepare", noted)
    assert _errors(points, 0.05, STUDY_OBJECTIVE)
    assert list(begin) == [0.05] and 0.05 <= begin[0.05] < 0.06


def test_a_share_that_foretells_better_is_named(rows: list[dict]) -> None:
    best = better_share(rows)
    assert best is not None and best["error"] == min(row["error"] for row in rows)
    (note,) = first_share_notes(rows)
    assert note.endswith(f"Set fit.first_share: {best['share']:g}.")
    taken = [row | {"own": row is best} for row in rows]
    assert better_share(taken) is None and first_share_notes(taken) == []
    settable = [row | {"error": 1e-9} if row["share"] < 0.1 else row for row in rows]
    assert better_share(settable) == best, "fits leave out a tenth at least, so that less is no advice"
    shown = first_share_rows(rows)
    assert shown[1]["from"] == "10% of each run (the fits')" and "(" in shown[1]["LLaMA"]


def test_fits_leave_out_a_tenth_at_least() -> None:
    """Surfaces are fitted to what lies beyond it, so that a smaller share would change nothing and be told as if."""
    assert Fit(first_share=FIRST_SHARE).first_share == FIRST_SHARE
    with pytest.raises(ValidationError, match="greater than or equal to"):
        Fit(first_share=FIRST_SHARE - 0.01)


def test_fits_read_curves_from_the_share_of_the_study_file() -> None:
    starts = {}
    for share in (0.1, 0.3):
        points = prepare(read_from(share), points=CURVES).groups["hgrn2"]
        last = {run: points.n_tokens[points.run == run].max() for run in points.run}
        starts[share] = min(n / last[run] for n, run in zip(points.n_tokens, points.run, strict=True))
    assert 0.1 <= starts[0.1] < 0.13 and 0.3 <= starts[0.3] < 0.4
