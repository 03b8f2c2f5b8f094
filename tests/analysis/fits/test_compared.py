"""Groups of points compared: which has the lower loss, at the end of the range and at ten times it."""

from dataclasses import replace

from analysis.fits.approaches import Options
from analysis.fits.compared import compare_points
from analysis.report.comparison import comparison_table

from .test_verdicts import profiles


def test_a_comparison_ranks_its_pairs_at_both_ends_and_says_whether_to_believe_it(monkeypatch):
    monkeypatch.setattr("analysis.fits.compared.N_REPLICATES", 20)
    points = profiles(budgets=7)
    worse = replace(points, group="tnl", loss=1.03 * points.loss)
    (compared,) = compare_points([replace(points, group="hgrn2"), worse], Options())
    assert [round(claim.reach) for claim in compared.rankings] == [1, 10]
    claim = compared.ranking("tnl", "hgrn2", 1.0)
    assert claim is compared.ranking("hgrn2", "tnl", 1.0) is compared.rankings[0]
    assert claim.what == "hgrn2 better than tnl" and claim.believed
    (row,) = comparison_table(compared).rows
    assert row["lower loss there, by the laws"] == "HGRN2: believe"
    assert row["lower loss at ten times, by the laws"].startswith("HGRN2: ")
