"""Verdicts: each of the four checks by itself, and what a law is believed of."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.fits import approaches
from analysis.fits.fit import N_OPT, Law, believed_to
from analysis.fits.points import Points
from analysis.fits.rehearsal import MOST_LEFT_OUT, forecast, size_groups
from analysis.fits.surface import Surface
from analysis.fits.verdicts import HELD, judge, judge_loss, judge_ranking
from analysis.report.summary import reasons_of
from arch.errors import InputError

TRUTH = Surface(1.69, 406.4, 410.7, 0.34, 0.28)


def profiles(noise: float = 0.001, budgets: int = 9, away: float = 1.0) -> Points:
    """Nine sizes about the optimum (or `away` times it) of each budget from 1e18 FLOP on."""
    c = np.repeat(1e18 * 2.0 ** np.arange(budgets), 9)
    n = away * TRUTH.n_opt(c) * np.tile(np.geomspace(0.25, 4, 9), budgets)
    n = 1e7 * 1.25 ** np.round(np.log(n / 1e7) / np.log(1.25))  # a ladder of sizes
    drawn = np.random.default_rng(0).standard_normal(len(c))
    return Points(n, c / 6 / n, c, TRUTH.loss(n, c / 6 / n) * np.exp(noise * drawn))


def judged(points, approach="parametric", **options):
    asked = approaches.Options(n_replicates=40, **options)
    result, surface = approaches.fit_with_surface(points, approach, None, None, asked)
    return judge(result, points, surface or (lambda kept: approaches.fit(kept, approach, **options)))


def check_of(verdict, name, claim=0):
    return next(check for check in verdict.claims[claim].checks if check.name == name)


@pytest.mark.parametrize("approach", ["parametric", "isoflop"])
def test_a_right_law_of_many_budgets_is_believed(approach):
    computed = judged(profiles(), approach)
    assert computed.reach >= 1 and computed.believe.startswith("believe up to")
    first = computed.claims[0]
    assert first.reach == 1 and first.believed
    assert [check.name for check in first.checks] == ["inside", "fits", "rehearsed", "stable"]
    assert first.value == pytest.approx(float(TRUTH.n_opt(2.56e20)), rel=0.1)


def test_a_reach_that_nothing_rehearses_is_not_believed():
    computed = judged(profiles(), at=[2.56e21, 2.56e23])
    assert computed.reach in (1, 10)
    far = check_of(computed, "rehearsed", -1)
    assert far.state == "not done" and "nothing rehearses a reach of 1,000" in far.words
    assert not computed.claims[-1].believed


def test_an_optimum_outside_of_what_was_trained_is_not_believed():
    computed = judged(profiles(away=12.0))
    check = check_of(computed, "inside")
    assert check.state == "failed" and check.value > check.limit == 1.2
    assert computed.reach == 0 and "outside what was trained" in computed.reasons[0]


def test_a_law_that_bends_is_refuted_by_its_rehearsal():
    points = profiles()
    ratio = np.log(points.flops / points.flops.min())
    bent = points.loss + 0.02 * ratio * np.log(points.n_params / TRUTH.n_opt(points.flops))
    computed = judged(replace(points, loss=bent), "isoflop")
    assert check_of(computed, "rehearsed").value > 1.2


def test_one_size_that_decides_is_named():
    """Sizes that are mistuned each in its own way."""
    points = profiles(0.02, 6)
    computed = judged(points)
    check = check_of(computed, "stable")
    assert check.state == "failed" and "without the size" in check.words


def test_repeated_runs_that_lie_off_the_surface_fail_the_fit():
    points = profiles(0.0)
    off = points.loss * np.exp(0.05 * np.sin(3 * np.log(points.n_params)))
    points = replace(points, loss=off, recipe=np.arange(len(points)).astype(str).astype(object))
    again = points.take(np.repeat(np.arange(len(points)), 2))
    noise = np.exp(0.001 * np.random.default_rng(1).standard_normal(len(again)))
    again = replace(again, loss=again.loss * noise, run=np.arange(len(again)).astype(str).astype(object))
    again = replace(again, trunk=again.run, cell=again.run)
    computed = judged(again)
    assert check_of(computed, "fits").state == "failed" and "refute" in check_of(computed, "fits").words


def test_of_many_sizes_neighbours_are_left_out_together():
    points = profiles()
    groups = size_groups(points)
    assert len(groups) <= MOST_LEFT_OUT
    assert np.sum([mine for _, mine in groups], axis=0).tolist() == [1] * len(points)


def test_the_loss_of_a_larger_run_is_believed_where_it_is_rehearsed():
    n, d = (float(of(1e21)) for of in (TRUTH.n_opt, TRUTH.d_opt))
    options = approaches.Options(n_replicates=40, predict=[(n, d), (30 * n, 30 * d), (n, 1e4 * d)])
    result, _ = approaches.fit_with_surface(profiles(), "parametric", None, None, options)
    near, far, outside = result.predictions
    assert near.claim.believed and near.claim.verdict == "believe"
    assert near.rehearsed.low < float(TRUTH.loss(n, d)) < near.rehearsed.high
    checks = {check.name: check for check in near.claim.checks}
    assert list(checks) == ["inside", "fits", "rehearsed", "stable"]
    assert checks["rehearsed"].value == pytest.approx(near.rehearsed.high / near.rehearsed.value)
    assert checks["stable"].limit == checks["rehearsed"].value > checks["stable"].value > 1
    assert far.claim.verdict.startswith("do not believe: ") and "nothing rehearses a reach of" in far.claim.verdict
    assert [check.state for check in outside.claim.checks[:1]] == ["failed"]


def test_a_loss_that_one_size_decides_is_not_believed():
    points = profiles()
    largest = points.n_params >= np.unique(points.n_params)[-3]
    off = replace(points, loss=points.loss * np.where(largest, 0.9, 1.0))
    known = forecast(off)
    claim = judge_loss(known, known.predict(float(TRUTH.n_opt(5e20)), float(TRUTH.d_opt(5e20))), None)
    assert not claim.believed and {check.state for check in claim.checks[2:]} != {"passed"}


def test_a_loss_whose_rehearsals_miss_is_not_believed():
    """The last of seven budgets lies 1% above the law of the others, whose intervals are narrower."""
    points = profiles(budgets=7)
    off = replace(points, loss=points.loss * np.where(points.flops > 0.9 * points.flops.max(), 1.01, 1.0))
    asked = float(TRUTH.n_opt(6.4e19)), float(TRUTH.d_opt(6.4e19))
    for given, believed in ((points, True), (off, False)):
        known = forecast(given)
        run = known.predict(*asked)
        claim = judge_loss(known, run, None)
        assert claim.believed is believed
        share = known.rehearsal(asked[0]).held()
        assert (share >= HELD) is believed and f"where {share:.0%} of the runs lay within" in run.sentence
        assert believed or f"of the runs that were rehearsed {share:.0%} lay within" in claim.verdict


def test_the_share_that_held_is_as_nominal_where_the_law_is_right():
    """Tables of N and D at random: laws of few runs miss by more than that of all, and weigh as little as in s."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        n, d = np.exp(rng.uniform(np.log(1e7), np.log(1e10), 300)), np.exp(rng.uniform(np.log(1e9), np.log(1e12), 300))
        points = Points(n, d, 6 * n * d, TRUTH.loss(n, d) * np.exp(0.005 * rng.standard_normal(300)))
        known = forecast(points)
        assert known.within.held() > HELD and known.beyond.held() > HELD


@pytest.mark.parametrize(("above", "believed"), [(1.03, True), (1.0003, False)])
def test_a_ranking_is_believed_where_the_difference_is_more_than_rehearsals_miss(above, believed):
    points = profiles()
    noise = np.exp(0.001 * np.random.default_rng(1).standard_normal(len(points)))
    groups = {"this": forecast(replace(points, loss=points.loss * above * noise)), "that": forecast(points)}
    claim = judge_ranking(groups, 1e21)
    assert claim.believed is believed
    assert [check.name for check in claim.checks] == ["inside", "fits", "rehearsed", "stable"]
    if believed:
        assert claim.what == "that better than this"
        assert claim.value == pytest.approx(1 / above, abs=0.01) and claim.reach == pytest.approx(1e21 / 2.56e20)
    else:
        assert "the difference of" in claim.verdict or "the difference is" in claim.verdict


def test_groups_of_the_same_losses_have_no_ranking():
    groups = {"this": forecast(profiles()), "that": forecast(profiles())}
    with pytest.raises(InputError, match="the losses are the same"):
        judge_ranking(groups, 1e21)


def test_a_law_without_an_exponent_says_why():
    result = approaches.fit(profiles(), "parametric", n_replicates=40)
    gone = replace(result, laws=(Law(N_OPT, reason="no term of N"), *result.laws[1:]))
    computed = judge(gone, profiles(), approaches.fit)
    assert (computed.reach, computed.reasons, computed.claims) == (0, ("N_opt is not identified: no term of N",), ())


def test_a_reach_of_hardly_more_than_one_is_the_largest_compute():
    assert believed_to(1.0004, ()).believe == believed_to(1.0, ()).believe == "believe up to the largest compute"
    assert believed_to(1.35, ()).believe == "believe up to 1.35 times the largest compute"


def test_a_verdict_is_of_the_n_opt_of_its_law():
    """Whatever the settings of the fit are: near sizes as one or not, the points of the envelope, its hull."""
    n = np.repeat([1e7, 1.05e7, 3e7, 1e8, 1.04e8, 3e8, 1e9], 40)
    d = np.tile(np.geomspace(1e8, 1e11, 40), 7)
    shape = np.where((n == 1.05e7) | (n == 1.04e8), 0.997, 1.0)
    run = np.array([f"{size:g}" for size in n], dtype=object)
    points = Points(n, d, 6 * n * d, TRUTH.loss(n, d) * shape, run=run)
    for options in ({}, {"near_sizes": 1.0}, {"optimum": "hull"}, {"optimum": "envelope"}):
        runs = approaches.Runs({}, {"": points})
        (law,) = approaches.fit_groups(runs, ["envelope"], approaches.Options(at=(6e21,), **options)).results
        for claim in law.verdict.claims:
            assert claim.value == pytest.approx(law.law(N_OPT).at(claim.c).value), options


def test_reasons_name_their_compute():
    believed, near = judged(profiles()), judged(profiles(away=12.0))
    assert [why.partition(":")[0] for why in reasons_of(believed)] == ["at 2.56e20 FLOP", "at 2.56e21 FLOP"]
    assert "N_opt is right to a factor of" in reasons_of(believed)[0]
    assert reasons_of(near)[0].startswith("at 2.56e20 FLOP: the optimal ")
