"""Backtest, comparison, influence and verdict: each against something that is known."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.fits.cost import Cost, six_nd
from analysis.fits.diagnose.backtest import LOWEST, RUN, SIZE, Row, backtest, summarise
from analysis.fits.diagnose.believe import _factor, verdict_on
from analysis.fits.diagnose.checks import check_laws
from analysis.fits.diagnose.evidence import Evidence
from analysis.fits.diagnose.influence import Variant, leave_out, sensitivity, variants
from analysis.fits.diagnose.predictors import fitted
from analysis.fits.diagnose.side_by_side import compare_approaches, identities, outside
from analysis.fits.fit import BELIEVE, D_OPT, DO_NOT, INSIDE, L_OPT, N_OPT, Estimate, Fit, Law, Optimum, SameRuns
from analysis.fits.forms import DATA_CONSTRAINED, OVER_TRAINING, PLAIN
from analysis.fits.isoflop import fit_isoflop
from analysis.fits.noise import SeedNoise
from analysis.fits.parametric.fit import fit_parametric
from analysis.fits.parametric.results import ASSUMED, parametric_result
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES
from analysis.fits.surface import Surface, effective
from arch.errors import InputError

from .. import isoflop_coverage as isoflops
from ..built import fit_of
from .worlds import World, study

SURFACE = Surface(1.69, 406.4, 410.7, 0.34, 0.28)


def ends(s: float, seed: int = 0) -> Points:
    design, rng = isoflops.Design("points", 6, 7, s), np.random.default_rng(seed)
    return design.draw(design.points(isoflops.World(), rng), rng)


def test_without_noise_the_surface_foretells_every_run_and_the_others_what_they_see() -> None:
    points = ends(0.0)
    rows = backtest(points, "parametric", n_replicates=0)
    assert {row.what for row in rows} == {RUN, SIZE, LOWEST} and all(row.reason is None for row in rows)
    runs = [row for row in rows if row.what == RUN]
    assert max(abs(row.error or 0) for row in runs) < 1e-6
    for cut in {row.cut for row in rows}:  # every run above the cut, none below
        assert sum(row.cut == cut for row in runs) == (points.flops > cut).sum()
    sizes = [row for row in backtest(points, "isoflop", n_replicates=0) if row.what == SIZE]
    assert sizes
    for row in sizes:
        assert row.predicted == pytest.approx(float(SURFACE.n_opt(row.c or 0)), rel=2e-3)
        assert row.error == pytest.approx(0.0, abs=2e-3)
    assert [row.reason for row in backtest(points, "envelope")] and all(
        "the envelope needs curves" in str(row.reason) for row in backtest(points, "envelope")
    )


def test_intervals_of_a_backtest_hold() -> None:
    rows = [row for seed in range(3) for row in backtest(ends(0.003, seed), "parametric", [1e20], n_replicates=99)]
    held = [row.held for row in rows if row.what == RUN]
    assert len(held) == 42 and sum(map(bool, held)) >= 0.85 * len(held)
    told = summarise(rows)
    assert {one["what"] for one in told} == {RUN, SIZE, LOWEST}
    for one in told:
        mine = [r for r in rows if r.what == one["what"] and one["ratio"][0] <= (r.ratio or 0) < one["ratio"][1]]
        assert one["n"] == len(mine) and one["error"] == pytest.approx(np.median([abs(r.error or 0) for r in mine]))


def test_backtest_of_too_little_says_what_is_needed() -> None:
    points = ends(0.0)
    with pytest.raises(InputError, match="no approach 'psychic'"):
        backtest(points, "psychic")
    with pytest.raises(InputError, match="more than one compute"):
        backtest(points.take(np.arange(7)), "parametric", cost=six_nd())
    early = backtest(points, "isoflop", [1.1e18])
    assert len(early) == 1 and "3 are needed" in str(early[0].reason) and early[0].predicted is None


def claim(approach: str, a: float, half: float, n: float) -> Fit:
    n_opt = Estimate(n, n / 1.1, n * 1.1)
    return fit_of(
        approach,
        a=Estimate(a, a - half, a + half),
        b=Estimate(1 - a),
        middle=Optimum(1e20, n_opt),
        optima=(Optimum(1e20, Estimate(n), Estimate(1e20 / 6 / n), Estimate(2.0)),),
    )


def at(c: float, n: Estimate, d: float) -> tuple[Optimum]:
    return (Optimum(c, n, Estimate(d)),)


CHECKED = Evidence(
    by_size=[{"size": "6M", "a": 0.02, "log_n_opt": 0.05}, {"size": "9M", "a": -0.01, "log_n_opt": 0.0}],
    backtest=[Row("parametric", 1e19, 9, RUN, 1e20, 10.0, 2.0, 2.01, -0.005, (1.9, 2.1), True)] * 10,
)


def test_approaches_disagree_by_joint_errors_or_by_a_factor() -> None:
    one, near, off, far = (
        claim("parametric", 0.5, 0.0196, 1e9),
        claim("isoflop", 0.52, 0.0196, 1.2e9),
        claim("envelope", 0.6, 0.0196, 1.2e9),
        claim("envelope", 0.52, 0.0196, 1.7e9),
    )
    pair = compare_approaches([one, near])["pairs"][0]
    assert pair["in_errors"] == pytest.approx(2**0.5, rel=1e-3) and pair["factor"] == pytest.approx(1.2)
    assert not pair["disagree"] and pair["difference"] == pytest.approx(-0.02)
    assert compare_approaches([one, off])["disagree"] and compare_approaches([one, far])["disagree"]
    assert verdict_on(one, Evidence(pairs=compare_approaches([one, off])["pairs"])).believe == DO_NOT
    told = verdict_on(one, replace(CHECKED, pairs=compare_approaches([one, near])["pairs"]))
    assert told.believe == BELIEVE and "the isoflop approach has an exponent 1.4 joint" in told.reasons[0]
    away = verdict_on(one, replace(CHECKED, pairs=compare_approaches([one, far])["pairs"]))
    assert away.believe == INSIDE and "envelope approach, known no worse, has N_opt a factor of 1.7" in away.reasons[0]
    worse = claim("envelope", 0.52, 0.0392, 1.7e9)
    known = verdict_on(one, replace(CHECKED, pairs=compare_approaches([one, worse])["pairs"]))
    assert known.believe == BELIEVE and "N_opt a factor of 1.7 away and is known worse" in known.reasons[0]


def test_identity_of_exponents_of_a_cost_with_knots() -> None:
    """A growth of 0.755 between 0.95e9 and 1.1e9 parameters, where N_opt lies, and of 0.98 elsewhere: D_opt of a law
    with a = 0.5 falls off by what the cost grows over the law's whole range."""
    knots = np.log([1e7, 0.95e9, 1.1e9, 1e12])
    rises = np.array([0.98, 0.755, 0.98]) * np.diff(knots)
    cost = Cost(knots, np.log(6e7) + np.concatenate([[0.0], np.cumsum(rises)]), "exact")
    c = np.geomspace(1e18, 1e22, 41)
    n = 1e9 * (c / 1e20) ** 0.5
    b = float(np.polyfit(np.log(c), np.log(c / cost.per_token(n)), 1)[0])
    good = claim("isoflop", 0.5, 0.02, 1e9)
    spent = at(1e20, Estimate(1e9), 1e20 / float(cost.per_token(1e9)))
    laws = (Law(N_OPT, exponent=Estimate(0.5)), Law(D_OPT, exponent=Estimate(b)), Law(L_OPT))
    found = identities(replace(good, laws=laws, range=(1e18, 1e22), optima=spent), cost)
    assert abs(found["exponents"]) < 0.005 and not found["off"]


def test_identities_and_what_lies_outside_of_what_was_trained() -> None:
    cost = Cost(np.log([1e6, 1e12]), np.log([6e6, 6e12]) * np.array([1, 1.05]), "exact")
    growth = float(cost.growth(np.log(1e9)))
    good = claim("isoflop", 0.5, 0.02, 1e9)
    assert identities(good, six_nd())["exponents"] == pytest.approx(0) and not identities(good, six_nd())["off"]
    found = identities(good, cost)
    assert found["exponents"] == pytest.approx(0.5 * growth + 0.5 - 1)
    assert found["off"] and found["compute"][0]["six_nd"] == pytest.approx(1)
    left = at(1e20, Estimate(1e9), 1e20 / float(cost.per_token(1e9)))
    surface = identities(replace(good, approach="parametric", optima=left), cost)  # its D is what N leaves of C
    assert surface["exponents"] == pytest.approx(found["exponents"]) and not surface["off"]
    assert identities(replace(good, optima=left), cost)["off"]
    points = ends(0.0)
    told = outside(replace(good, optima=at(1e24, Estimate(1e12), 1e9)), points)
    assert [one["what"] for one in told] == ["N"]
    assert told[0]["factor"] == pytest.approx(1e12 / points.n_params.max())


def test_leaving_out_is_fitting_without() -> None:
    points = ends(0.004)
    whole = fitted("parametric", points, six_nd())
    assert whole.a is not None and whole.n_opt is not None
    for by, labels in (("run", points.run), ("size", points.size)):
        found = leave_out(points, "parametric", 1e20, six_nd(), by)
        assert len(found) == len(set(labels.tolist()))
        assert [abs(one["a"]) for one in found] == sorted((abs(one["a"]) for one in found), reverse=True)
        again = fitted("parametric", points.take(labels != found[0][by]), six_nd())
        assert again.a is not None and again.n_opt is not None
        assert found[0]["a"] == pytest.approx(again.a - whole.a, abs=1e-6)
        assert found[0]["log_n_opt"] == pytest.approx(math.log(again.n_opt(1e20)[0] / whole.n_opt(1e20)[0]), abs=1e-6)
    iso = leave_out(points.take(np.arange(21)), "isoflop", 1e19, six_nd())
    assert len(iso) == 21 and all(one["a"] is not None for one in iso)
    with pytest.raises(InputError, match="not identified"):
        leave_out(points.take(np.arange(14)), "isoflop", 1e19, six_nd())


def test_without_noise_cutting_and_smoothing_change_little() -> None:
    world = World("fitted", 0.8, 0.35, 0.3, 0.2, 0.2, 0.0)
    points, _ = study(world, np.random.default_rng(0))
    points = replace(points, loss=np.asarray(world.loss(points.n_params, points.n_tokens)))
    assert len(variants(points)) == 5 and variants(ends(0.0)) == {}
    seven = replace(points, flops=7 / 6 * points.flops, convention="7nd")
    others = {"C by 7nd": lambda points: Variant(seven), "of no such points": lambda points: None}
    told = {one["variant"]: one for one in sensitivity(points, "parametric", 1e15, six_nd(), others)}
    assert len(told) == 6 and "of no such points" not in told
    for one in told.values():
        assert abs(one["a"]) < 0.005, one
        assert (one["log_n_opt"] is None) == (one["variant"] == "C by 7nd")
    assert list(variants(seven)) == ["C by 6nd", *variants(points)]
    assert not any(name.startswith("mean over") for name in variants(replace(points, held_out=True)))
    assert leave_out(points, "parametric", 1e15, six_nd())[0]["a"] == pytest.approx(0, abs=1e-5)


def test_a_parametric_fit_reads_more_of_the_beginning_where_it_is_asked_to() -> None:
    """It leaves out a tenth of a run by itself, so a transient between 5% and 10% shows in that variant alone."""
    world = World("fitted", 0.8, 0.35, 0.3, 0.2, 0.2, 0.0)
    points, _ = study(world, np.random.default_rng(0))
    ends = {run: points.n_tokens[points.run == run].max() for run in points.run.tolist()}
    share = points.n_tokens / np.array([ends[run] for run in points.run.tolist()])
    loss = np.asarray(world.loss(points.n_params, points.n_tokens)) * np.where(share < 0.1, 1.1, 1.0)
    told = {
        one["variant"]: one
        for one in sensitivity(replace(points, loss=loss), "parametric", 1e15, six_nd())
        if one["variant"].startswith("from")
    }
    assert abs(told["from 5% of each run"]["a"]) > 0.02
    assert max(abs(told[f"from {share} of each run"]["a"]) for share in ("20%", "40%")) < 0.005
    kept = points.take(share >= 0.1)
    assert "from 5% of each run" not in variants(kept, 0.1) and "from 5% of each run" in variants(points, 0.1)


def test_verdicts_and_their_reasons() -> None:
    good = claim("parametric", 0.5, 0.03, 1e9)
    told = verdict_on(good, CHECKED)
    assert told.believe == BELIEVE and told.reasons == (
        "the exponent is known to ±0.03; without any one of 2 sizes it changes by 0.02 or less; fitted below "
        "1 cut of compute, 10 of 10 intervals held the losses above",
    )
    for gone, words in (("by_size", "no fit without one of its sizes"), ("backtest", "no backtest was possible")):
        empty = verdict_on(good, replace(CHECKED, **{gone: ()}, not_done={gone: "too few sizes"}))
        assert empty.believe == INSIDE and empty.reasons[0].startswith(words) and "too few sizes" in empty.reasons[0]
    assert verdict_on(good, Evidence()).believe == INSIDE
    for variant, a, log_n in (
        ("from 40% of each run", 0.06, 0.0),
        ("mean over 50% of the tokens seen", 0.0, 0.3),
        ("mean over 20% of the tokens seen", None, None),
        ("C by exact", -0.07, None),
    ):
        one = [{"variant": variant, "a": a, "log_n_opt": log_n}]
        read = verdict_on(good, replace(CHECKED, sensitivity=one))
        assert read.believe == INSIDE and variant in read.reasons[0]
    little = [{"variant": "C by exact", "a": 0.04, "log_n_opt": None}]
    assert "in 1 other reading" in verdict_on(good, replace(CHECKED, sensitivity=little)).reasons[0]
    for p, believed in ((0.005, INSIDE), (0.05, BELIEVE), (math.nan, BELIEVE)):
        part = replace(good.parametric, seeds=SameRuns(0.003, 4, p))
        assert verdict_on(replace(good, parametric=part), CHECKED).believe == believed
    wide = verdict_on(claim("parametric", 0.5, 0.2, 1e9), Evidence())
    assert wide.believe == DO_NOT and "known to ±0.20 only" in wide.reasons[0]
    bare = (Law(N_OPT, exponent=Estimate(0.5)), Law(D_OPT), Law(L_OPT))
    no = verdict_on(replace(good, laws=bare, middle=Optimum(1e20, Estimate(1e9))), Evidence())
    assert no.believe == DO_NOT and "no interval" in no.reasons[0]
    none = (Law(N_OPT, reason="2 pairs cross"), Law(D_OPT), Law(L_OPT))
    gone = verdict_on(replace(good, laws=none, middle=None), Evidence())
    assert gone.believe == DO_NOT and gone.reasons == ("N_opt is not identified: 2 pairs cross",)
    one_size = verdict_on(good, Evidence(by_size=[{"size": "6M", "a": 0.2, "log_n_opt": 0.0}]))
    assert one_size.believe == DO_NOT and "without the size 6M" in one_size.reasons[0]
    for c, ends, words in (
        (1e24, (0.9e10, 1.1e10), "10k times the largest compute"),
        (1e22, (0.3e10, 1.1e10), "known to a factor of 3.3 only"),
        (1e22, None, "without an interval"),
    ):
        far = verdict_on(replace(good, optima=at(c, Estimate.of(1e10, ends), 1e11)), Evidence())
        assert far.believe == INSIDE and words in far.reasons[0]
    near = {"C": 1e19, "what": "N", "value": 1e10, "factor": 3.0}
    assert verdict_on(good, Evidence(outside=[near])).believe == INSIDE
    assert (
        verdict_on(good, replace(CHECKED, outside=[near | {"C": 1e22}])).believe == BELIEVE
    )  # that is extrapolation, not the edge
    rows = [Row("parametric", 1e19, 9, RUN, 1e20, 10.0, 2.0, 2.1, -0.05, (2.05, 2.15), i > 3) for i in range(10)]
    held = verdict_on(good, Evidence(backtest=rows))
    assert held.believe == INSIDE and "6 of 10 intervals held" in held.reasons[0]


def test_an_exponent_that_is_assumed_is_never_believed_beyond_the_range() -> None:
    good = claim("parametric", 0.5, 0.03, 1e9)
    for p, believed, words in (
        (None, DO_NOT, "was not tested"),
        (0.004, DO_NOT, "these points reject (p = 0.004)"),
        (0.4, INSIDE, "assumed, not fitted"),
    ):
        half = Estimate(0.5, reason=ASSUMED)
        laws = (Law(N_OPT, exponent=half), Law(D_OPT, exponent=half), Law(L_OPT))
        tied = replace(good, laws=laws, parametric=replace(good.parametric, p_tied=p))
        found = verdict_on(tied, CHECKED)
        assert found.believe == believed and words in found.reasons[0]


def test_the_checks_are_of_the_form_that_was_fitted() -> None:
    """Text repeated up to ten times: the data-constrained surface foretells every run, the plain one does not."""
    points = ends(0.0)
    points = replace(points, unique_tokens=np.minimum(points.n_tokens, 3e9))
    worth = effective(points.n_tokens, points.unique_tokens, 5.0)
    points = replace(points, loss=np.asarray(SURFACE.loss(points.n_params, worth)))
    options = {"objective": LEAST_SQUARES, "form": DATA_CONSTRAINED}
    errors = {}
    for form in (PLAIN, DATA_CONSTRAINED):
        rows = backtest(points, "parametric", [1e20], n_replicates=0, objective=LEAST_SQUARES, form=form)
        errors[form] = max(abs(row.error or 0.0) for row in rows if row.what == RUN)
    assert errors[DATA_CONSTRAINED] < 1e-4 and errors[PLAIN] > 20 * errors[DATA_CONSTRAINED]
    left = leave_out(points, "parametric", 1e20, six_nd(), "size", **options)
    assert max(abs(one["a"]) for one in left) < 0.003
    plain = leave_out(points, "parametric", 1e20, six_nd(), "size", LEAST_SQUARES)
    assert max(abs(one["a"] or 1.0) for one in plain) > 0.01
    above = points.flops > 5e18
    late = replace(points, unique_tokens=np.where(above, points.unique_tokens, points.n_tokens))
    early = [row for row in backtest(late, "parametric", [5e18], n_replicates=0, **options) if row.what == RUN]
    fresh = late.n_tokens <= late.unique_tokens
    assert len(early) == (above & fresh).sum() < above.sum()  # nothing tells what repeated text is worth
    fit = fit_parametric(points, n_replicates=0, **options)
    with pytest.raises(InputError, match="to be checked as E \\+ A / N"):
        check_laws(points, [parametric_result(fit)])


def test_a_tied_fit_is_checked_as_such_and_says_what_that_cannot_tell() -> None:
    points = ends(0.002)
    result = parametric_result(fit_parametric(points, form=OVER_TRAINING, n_replicates=49))
    (judged,), told = check_laws(points, [result], n_replicates=19, form=OVER_TRAINING)
    mine = told["approaches"]["parametric"]
    assert all(one["a"] == pytest.approx(0, abs=1e-6) for one in mine["by_size"]) and "assumed" in mine["not_done"]["a"]
    assert judged.verdict is not None and judged.verdict.believe != BELIEVE


def test_each_approach_is_checked_with_the_noise_that_it_was_fitted_with(monkeypatch: pytest.MonkeyPatch) -> None:
    points, given = ends(0.002), {}

    def seen(points: Points, approach: str, **options: object) -> list[Row]:
        given[approach] = options["noise"]
        return []

    monkeypatch.setattr("analysis.fits.diagnose.checks.backtest", seen)
    noise = {"parametric": None, "isoflop": SeedNoise(0.002, 4)}
    results = [claim("parametric", 0.5, 0.03, 1e9), claim("isoflop", 0.5, 0.03, 1e9)]
    check_laws(points, results, noise=noise)
    assert given == noise


def test_diagnosis_of_a_study_is_plain_data_with_a_verdict_each() -> None:
    points, computes = ends(0.002), [1e19, 1e20]
    fit = fit_parametric(points, n_replicates=99)
    results = [
        parametric_result(fit, at=computes),
        fit_isoflop(points, six_nd(), at=computes, n_replicates=99),
    ]
    judged, told = check_laws(points, results, n_replicates=49)
    assert [one.verdict is not None for one in judged] == [True, True]
    assert not told["compare"]["disagree"]
    for one in judged:
        mine = told["approaches"][one.approach]
        assert mine["by_size"] and mine["backtest"] and mine["not_done"] == {}
        assert one.to_dict()["verdict"]["reasons"]
    json.dumps(told)


def test_leaving_out_a_size_compares_exponents_over_the_range_also_under_a_cost_with_knots() -> None:
    """N_opt stays at a trained size while C passes it, so a local slope there would be near 0."""
    points = ends(0.002)
    knots = np.unique(np.log(points.n_params))
    cost = Cost(knots, np.log(6) + knots + 0.3 * np.cos(np.arange(len(knots))), "exact")
    whole = fit_parametric(points, cost=cost, n_replicates=0)
    for one in leave_out(points, "parametric", 1e20, cost, "size"):
        kept = points.take(points.size != one["size"])
        without = fit_parametric(kept, cost=cost, n_replicates=0)
        low, high = points.flops.min(), points.flops.max()
        slopes = [
            np.log(s.n_opt(high, cost) / s.n_opt(low, cost)) / np.log(high / low)
            for s in (whole.surface, without.surface)
        ]
        assert one["a"] == pytest.approx(slopes[1] - slopes[0], abs=1e-4)


def test_a_factor_near_one_is_told_from_it() -> None:
    assert [_factor(math.log(x)) for x in (1.004, 1.02, 1.14, 2.345)] == ["1.00", "1.02", "1.1", "2.3"]
