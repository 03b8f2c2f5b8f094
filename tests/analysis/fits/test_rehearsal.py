"""Rehearsals inside the data: what they miss, the intervals that come from it, and where there are none."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from analysis.fits import rehearsal
from analysis.fits.forms import DATA_CONSTRAINED, FORMS, OUTER_EXPONENT, OVER_TRAINING, PLAIN, Form
from analysis.fits.parametric import fit_form
from analysis.fits.points import Points
from analysis.fits.rehearsal import Rule, forecast, rehearse_line, rehearse_optimum
from analysis.fits.solver import LEAST_SQUARES
from analysis.fits.surface import Surface
from arch.errors import InputError

TRUTH = Surface(1.69, 406.4, 410.7, 0.34, 0.28)


def isoflops(noise: float = 0.0, seed: int = 0, budgets: int = 9) -> Points:
    """Nine budgets from 1e18 to 2.6e20 FLOP, nine sizes about the optimum of each."""
    c = np.repeat(1e18 * 2.0 ** np.arange(budgets), 9)
    n = TRUTH.n_opt(c) * np.tile(np.geomspace(0.25, 4, 9), budgets)
    d = c / 6 / n
    drawn = np.random.default_rng(seed).standard_normal(len(c))
    return Points(n, d, c, TRUTH.loss(n, d) * np.exp(noise * drawn))


def test_without_noise_the_surface_is_found_and_nothing_is_missed():
    result = forecast(isoflops())
    rehearsed = result.within
    from_three = rehearsed.n_runs[rehearsed.at] >= 27  # of two budgets nothing tells the exponent of the frontier
    assert np.abs(rehearsed.error[from_three]).max() < 1e-4
    computed = result.predict(TRUTH.n_opt(1e21), TRUTH.d_opt(1e21))
    assert computed.loss.value == pytest.approx(float(TRUTH.l_opt(1e21)), rel=1e-5)
    assert computed.reach == pytest.approx(1e21 / 2.56e20, rel=1e-6)


def test_the_interval_is_the_formula_of_the_docstring():
    runs = forecast(isoflops(0.01)).within
    variance = np.log(runs.reach) + runs.leverage
    by_cut = [np.mean((runs.error**2 / variance)[runs.at == i]) for i in np.unique(runs.at)]
    s = math.sqrt(np.average(by_cut, weights=runs.n_runs[np.unique(runs.at)] ** 3))
    times = stats.t.ppf(0.95, runs.n_cuts)
    for reach, leverage in ((4.0, 0.0), (8.0, 0.5)):
        wanted = times * s * math.sqrt(math.log(reach) + leverage)
        assert float(runs.half_width(reach, leverage)) == pytest.approx(wanted)
    assert float(runs.half_width(1.0)) == pytest.approx(times * s * math.sqrt(math.log(1.5)))


OF_FORMS = {
    PLAIN: TRUTH,
    OVER_TRAINING: replace(TRUTH, alpha=0.3, beta=0.3),
    DATA_CONSTRAINED: replace(TRUTH, r_d=15.0),
    OUTER_EXPONENT: replace(TRUTH, gamma=0.8),
}


@pytest.mark.parametrize(("form", "truth"), OF_FORMS.items())
def test_the_leverage_is_the_variance_of_predictions(form, truth):
    """Of 300 drawn tables, over the variance of a run's log loss; where each run stands twice in a table, the same."""
    n, d = float(TRUTH.n_opt(1e21)), float(TRUTH.d_opt(1e21))
    exact = isoflops()
    unique = exact.n_tokens / (np.tile([1, 4, 20], 27) if form == DATA_CONSTRAINED else 1)
    exact = replace(exact, loss=truth.loss(exact.n_params, exact.n_tokens, unique), unique_tokens=unique)
    fit = forecast(exact, objective=LEAST_SQUARES, form=form, rule=Rule(math.inf))
    slopes = fit.form.slopes_of(fit.surface, n, d, d / 8)[0, 0]
    leverage = float(slopes @ fit.covariance[-1] @ slopes)
    drawn = exact.loss * np.exp(0.003 * np.random.default_rng(0).standard_normal((300, len(exact))))
    predicted = fit_form(exact, drawn, np.ones(len(exact)), LEAST_SQUARES, form).surface.loss(n, d, d / 8)
    assert leverage == pytest.approx(float(np.log(predicted).var()) / 0.003**2, rel=0.25)
    run = np.array([f"run {i}" for i in range(len(exact))])
    twice = replace(exact, run=run).take(np.repeat(np.arange(len(exact)), 2))
    again = forecast(twice, objective=LEAST_SQUARES, form=form, rule=Rule(math.inf))
    assert float(slopes @ again.covariance[-1] @ slopes) == pytest.approx(leverage, rel=1e-3)


def test_a_form_that_lacks_starts_or_derivatives_of_an_unknown_is_refused(monkeypatch):
    class Bent(Form):
        unknowns = (*Form.unknowns, "bend")
        ranges = Form.ranges | {"bend": (0.1, 2.0)}

    monkeypatch.setitem(FORMS, "bent", Bent())
    with pytest.raises(NotImplementedError, match="no starts for E, A, B, alpha, beta, bend"):
        forecast(isoflops(), form="bent")
    with pytest.raises(NotImplementedError, match="derivatives over 5 of 6 unknowns"):
        FORMS["bent"].slopes_of(TRUTH, 1e9, 1e10)


def test_new_runs_lie_inside():
    held = []
    for seed in range(15):
        result = forecast(isoflops(0.01, seed))
        rng = np.random.default_rng(1000 + seed)
        for reach in (2.0, 4.0):
            c = 2.56e20 * reach
            n, d = float(TRUTH.n_opt(c)), float(TRUTH.d_opt(c))
            computed = result.predict(n, d)
            loss = float(TRUTH.loss(n, d)) * math.exp(0.01 * rng.standard_normal())
            held.append(computed.loss.low <= loss <= computed.loss.high)
    assert 0.85 <= np.mean(held) <= 1.0


def test_a_reach_that_nothing_rehearses_has_no_interval():
    result = forecast(isoflops(0.01))
    n, d = float(TRUTH.n_opt(2.56e22)), float(TRUTH.d_opt(2.56e22))
    computed = result.predict(n, d)
    assert computed.loss.interval is None and computed.loss.reason.startswith("nothing rehearses a reach of 100")
    assert math.isnan(float(result.within.half_width(100.0)))


def test_tokens_a_parameter_that_nothing_rehearses_have_no_interval():
    result = forecast(isoflops(0.01)).predict(1e8, 1e13)
    assert result.loss.reason.startswith("nothing rehearses 100k tokens a parameter")


def test_sizes_beyond_the_largest_are_rehearsed_by_leaving_the_largest_out():
    """Laws below cuts in compute have all sizes; only cuts in size show what a larger one may do."""
    n, d = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e7, 1e9, 9), np.geomspace(1e8, 1e11, 9)))
    result = forecast(Points(n, d, 6 * n * d, TRUTH.loss(n, d) * (1 + 0.05 * (n > 2e8))))
    inside, larger = result.predict(9e8, 2e11), result.predict(2e9, 2e11)
    assert np.all(result.points.n_params.max() >= 1e9)
    assert result.beyond.scale() > result.within.scale()
    inside, larger = inside.loss, larger.loss
    assert larger.high is None or larger.high / larger.value > inside.high / inside.value


def test_runs_far_above_the_frontier_weigh_little():
    """Runs mistuned by 30% far from the optimum bend a surface that weighs all alike, and not the forecast's."""
    points = isoflops()
    ratio = np.log(points.n_params / TRUTH.n_opt(points.flops))
    bent = points.loss * np.exp(0.15 * np.where(ratio > 0.6, ratio - 0.6, 0) ** 2)
    points = Points(points.n_params, points.n_tokens, points.flops, bent)
    c = 2.56e21
    truth = float(TRUTH.l_opt(c))
    near, alike = (
        abs(
            math.log(
                forecast(points, rule=Rule(near, near, (0.15, 0.3))).predict(TRUTH.n_opt(c), TRUTH.d_opt(c)).loss.value
                / truth
            )
        )
        for near in (0.03, math.inf)
    )
    assert near < alike / 2


def test_the_share_that_held_is_of_cuts_left_out():
    within = forecast(isoflops(0.01)).within
    share = within.held()
    assert share is not None and 0.8 <= share <= 1
    assert "rehearsed up to" in within.sentence(4.0) and f"{share:.0%} of the runs" in within.sentence(4.0)


def test_optima_are_rehearsed():
    exact, noisy = (rehearse_optimum(isoflops(noise))[0] for noise in (0.0, 0.01))
    assert np.abs(exact.error).max() < 1e-3 < np.abs(noisy.error).max()


def test_lines_are_rehearsed():
    c = 1e18 * 2.0 ** np.arange(8)
    assert np.abs(rehearse_line(c, 3 * c**0.5)[0].error).max() < 1e-9
    bent, leverage = rehearse_line(c, 3 * c**0.5 * np.exp(0.02 * np.log(c / c[0]) ** 2))
    assert float(bent.half_width(8.0, leverage(8 * c[-1]))) > 0.1


def test_many_points_are_read_evenly(monkeypatch):
    monkeypatch.setattr(rehearsal, "MOST_POINTS", 60)
    result = forecast(isoflops(0.01, budgets=12))
    assert len(result.points) == 60
    assert result.points.flops.max() == pytest.approx(1e18 * 2**11)


def test_points_that_identify_no_surface_are_refused():
    with pytest.raises(InputError, match="8 or more points"):
        forecast(isoflops().take(np.arange(6)))
