"""Links against the numbers they were made with, against a grid search, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from analysis.fits.downstream.forms import Form
from analysis.fits.downstream.link import Link, fit_link
from analysis.fits.downstream.result import to_result
from analysis.fits.downstream.scores import Scores
from analysis.scales import Scale
from arch.errors import InputError

from .worlds import FOUR, RATE, SHARE, TEXT, drawn, ladder

LOSS, FLOPS, RUN = ladder(12)


def exact(value: np.ndarray, scale: Scale) -> Scores:
    return Scores(LOSS, FLOPS, value, RUN, scale, task="t")


@pytest.mark.parametrize("floor", [0.25, 0.31])
def test_exponential_is_recovered(floor: float) -> None:
    """err = eps - k exp(-gamma L), with chance as its floor and with a free one."""
    free = () if floor == 0.25 else ("floor",)
    acc = floor + 2.5 * np.exp(-1.3 * LOSS)
    found = fit_link(exact(acc, FOUR), Form("exponential", free))
    assert found.params() == pytest.approx({"eps": 1 - floor, "k": 2.5, "gamma": 1.3}, rel=1e-6)
    np.testing.assert_allclose(found.predict(LOSS), acc, rtol=1e-7)


@pytest.mark.parametrize(("floor", "ceiling"), [(0.25, 1.0), (0.29, 0.8)])
def test_logistic_is_recovered(floor: float, ceiling: float) -> None:
    free = () if ceiling == 1.0 else ("floor", "ceiling")
    acc = floor + (ceiling - floor) * expit(-3.1 * (LOSS - 2.2))
    found = fit_link(exact(acc, FOUR), Form("logistic", free))
    assert found.params() == pytest.approx({"floor": floor, "ceiling": ceiling, "k": 3.1, "L0": 2.2}, rel=1e-6)
    assert (found.interval(2.0) is None) is bool(free)


def test_power_law_of_perplexity_is_recovered() -> None:
    ppl = np.exp(1.4 * LOSS**1.2)
    found = fit_link(exact(ppl, TEXT))
    assert found.params() == pytest.approx({"k": 1.4, "exponent": 1.2}, rel=1e-6)
    words = fit_link(exact(np.exp(1.31 * LOSS), TEXT))  # the same text, in words
    assert words.params() == pytest.approx({"k": 1.31, "exponent": 1.0}, rel=1e-6)


def test_against_compute() -> None:
    acc = 0.25 + 0.75 * expit(0.4 * np.log(FLOPS / 3e16))
    found = fit_link(exact(acc, FOUR), against="compute")
    assert found.params() == pytest.approx({"floor": 0.25, "ceiling": 1, "k": 0.4, "ln_C0": np.log(3e16)}, rel=1e-6)
    assert found.predict(1e20)[0] == pytest.approx(0.25 + 0.75 * expit(0.4 * np.log(1e20 / 3e16)))
    ppl = fit_link(exact(np.exp(90 * FLOPS**-0.08), TEXT), against="compute")
    assert ppl.params() == pytest.approx({"k": 90, "exponent": -0.08}, rel=1e-6)
    low, high = ppl.steepness() or (1, 1)
    assert low <= -0.08 * (1 - 1e-6) and high >= -0.08 * (1 + 1e-6) and high < 0


def test_the_optimum_is_that_of_a_grid() -> None:
    scores, _ = drawn(np.random.default_rng(0), 6)
    found = fit_link(scores)
    y, noise = scores.fitted, scores.noise
    cost = lambda k, middle: float((((expit(k * (middle - scores.loss)) - y) / noise) ** 2).sum())  # noqa: E731
    grid = [cost(k, middle) for k in np.linspace(1, 4, 61) for middle in np.linspace(1.5, 3, 151)]
    assert found.objective <= min(grid) and found.objective == pytest.approx(min(grid), rel=1e-2)
    assert found.starts()["n_at_optimum"] >= 3 and found.objective == pytest.approx(min(found.ends), rel=1e-8)


def same(one: Link, other: Link) -> None:
    assert other.params() == pytest.approx(one.params(), rel=1e-7)
    for at in (2.0, 2.6):
        for a, b in zip(one.interval(at) or (), other.interval(at) or (), strict=True):
            assert b / other.scores.scale.full == pytest.approx(a / one.scores.scale.full, rel=1e-6)


def test_percent_order_of_rows_and_missing_scores_change_nothing() -> None:
    scores, _ = drawn(np.random.default_rng(1), 8)
    found = fit_link(scores)
    percent = replace(FOUR, full=100.0)
    same(found, fit_link(replace(scores, value=100 * scores.value, error=100 * scores.error, scale=percent)))
    order = np.random.default_rng(2).permutation(len(scores))
    shuffled = scores.take(order)
    same(found, fit_link(shuffled))
    assert shuffled.input_hash == scores.input_hash
    more = {name: np.concatenate([getattr(scores, name), getattr(scores, name)[:5]]) for name in Scores.arrays()}
    more["value"] = np.concatenate([scores.value, np.full(5, np.nan)])
    padded = replace(scores, **more)
    assert padded.n_missing == 5 and len(padded) == len(scores)
    same(found, fit_link(padded))


def test_scores_of_nothing_and_of_everything_do_not_outweigh() -> None:
    """lm-eval's standard error of 0 right answers is 0."""
    scores, _ = drawn(np.random.default_rng(3), 6, scale=SHARE, questions=50, middle=1.0, steepness=3)
    assert (scores.value == 0).any() and (scores.error == 0).any()
    assert np.isfinite(scores.noise).all() and scores.noise.min() > 0
    assert np.isfinite(fit_link(scores).objective)


def test_predictions_respect_chance_and_a_full_score() -> None:
    scores, _ = drawn(np.random.default_rng(4), 6)
    for form in ("logistic", "exponential"):
        found = fit_link(scores, Form(form))
        for at in (0.01, 1.0, 3.0, 30.0):
            low, high = found.interval(at) or (np.nan, np.nan)
            assert 0.25 <= low[0] <= found.predict(at)[0] <= high[0] <= 1


def test_the_interval_of_the_loss_widens_that_of_the_score() -> None:
    found = fit_link(drawn(np.random.default_rng(5), 12)[0])
    low, high = found.interval(2.4) or (0, 0)
    chained = found.interval(2.4, at_interval=(2.3, 2.6)) or (0, 0)
    assert chained[0] < low and chained[1] > high
    assert found.interval(2.4, at_interval=(2.4, 2.4)) == (pytest.approx(low), pytest.approx(high))
    # almost all of it comes from the loss where that is wide
    wide = found.interval(2.4, at_interval=(1.9, 2.9)) or (0, 0)
    assert wide[0] == pytest.approx(found.predict(2.9), abs=0.02) and wide[1] == pytest.approx(
        found.predict(1.9), abs=0.02
    )


def test_few_points() -> None:
    scores, _ = drawn(np.random.default_rng(6), 3)
    with pytest.raises(InputError, match=r"t: 2 checkpoints, a link needs 3"):
        fit_link(scores.take(np.array([0, 20])))
    three = fit_link(scores.take(np.array([7, 15, 23])))
    assert three.interval(2.0) is None and three.steepness() is None
    told = to_result(three)
    assert told.verdict and told.verdict.reach == 1 and told.verdict.reasons == ("no interval: 3 runs, 4 are needed",)
    assert told.intervals.level is None and not any(one.interval for one in told.parameters.values())
    assert to_result(fit_link(scores)).verdict.reach == 1  # type: ignore[union-attr]


def test_what_is_refused() -> None:
    scores, _ = drawn(np.random.default_rng(7), 6)
    loss = scores.loss.copy()
    loss[[3, 9]] = [np.nan, -1]
    with pytest.raises(InputError, match="t: loss is not a positive, finite number in rows 4, 10"):
        replace(scores, loss=loss)
    with pytest.raises(InputError, match="accuracy is not between 0 and 1 in rows 1, 2, 3, 4, 5 and 43 more"):
        replace(scores, value=100 * scores.value)
    with pytest.raises(InputError, match=r"perplexity is not above 1 and finite in row 1$"):
        replace(scores, value=np.concatenate([[np.inf], np.full(47, 9.0)]), scale=TEXT)
    with pytest.raises(InputError, match="exponential is no link of a score of kind perplexity"):
        fit_link(exact(np.exp(LOSS), TEXT), Form("exponential"))
    with pytest.raises(InputError, match="a score of kind trend has no link, only a trend"):
        fit_link(replace(scores, scale=RATE))
    with pytest.raises(InputError, match="all checkpoints have one loss"):
        fit_link(replace(scores, loss=np.full(48, 2.0)))
    with pytest.raises(InputError, match="a score is predicted at a positive, finite loss"):
        fit_link(scores).predict(0.0)
    with pytest.raises(InputError, match="exponential: ceiling cannot be free; floor can"):
        Form("exponential", ("ceiling",))
    with pytest.raises(InputError, match=r"chance is a share in \[0, 1\)"):
        Scale("accuracy", chance=25)


def test_the_verdict() -> None:
    random = np.random.default_rng(8)
    good = to_result(fit_link(drawn(random, 24, questions=20_000, run_noise=0.02)[0]))
    assert good.verdict and good.verdict.reach >= 1
    assert good.parameters.keys() == {"floor", "ceiling", "k", "L0"} and good.parameters["k"].interval and good.range
    assert good.to_dict()["other_form"]["name"] == "exponential"
    bent = exact(0.25 + 0.3 * expit(6 * (2.6 - LOSS)) + 0.005 * random.normal(size=len(LOSS)), FOUR)
    verdict = to_result(fit_link(bent)).verdict
    assert verdict and verdict.reach == 0 and "bend otherwise than the logistic form" in verdict.reasons[0]
