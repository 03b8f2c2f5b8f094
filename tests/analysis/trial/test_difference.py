"""Differences, lines over compute and verdicts against naive forms of them."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from analysis.held_out import HeldOut, paired_difference
from analysis.trial.difference import BETTER, LEVEL, OPEN, WORSE, Difference, Pairs, difference, seed_variance
from analysis.trial.projection import Gain, Ratio, project_gain, project_ratio
from analysis.trial.verdict import CANNOT_TELL, NOT_WORTH, WORTH, first_stage, last_stage
from data.units import NATS_A_BYTE

from .worlds import BETTER as GOOD
from .worlds import ONE, World, draw, flops_of_sizes


def one(value, low, high, size="a"):
    return Difference(size, (0,), 2.0, 2.0 + value, value, 0.01, None, 10.0, low, high)


def test_one_seed_without_repeats_is_the_paired_difference_of_two_checkpoints():
    pairs = draw(World(repeated=0), GOOD, 0).pairs[0]
    estimate = difference(pairs, seed_variance([pairs]))
    first, second = (HeldOut("x", loss[0] * 64, 64, "c") for loss in (pairs.variant, pairs.baseline))
    paired = paired_difference(first, second, pairs.documents)
    assert estimate.value == pytest.approx(paired.value, abs=1e-12) and estimate.se_text == pytest.approx(paired.se)
    assert estimate.se_seeds is None
    assert (estimate.low, estimate.high) == pytest.approx(paired.interval(LEVEL))


def test_noise_between_seeds():
    rng = np.random.default_rng(0)
    baseline = 2 + 0.1 * rng.standard_normal((3, 40))
    variant = baseline * np.exp([[0.01], [0.02], [0.06]])
    pairs = Pairs("a", (0, 1, 2), baseline, variant)
    variance = seed_variance([pairs, dataclasses.replace(pairs, size="b"), pairs])
    assert variance.value == pytest.approx(np.var([0.01, 0.02, 0.06], ddof=1)) and variance.df == 6
    assert seed_variance([dataclasses.replace(pairs, seeds=(0,), baseline=baseline[:1], variant=variant[:1])]) is None
    pooled = seed_variance([pairs], (0.01, 2.0))
    assert pooled.df == 4 and pooled.value == pytest.approx((2 * variance.value + 2 * 2 * 0.01**2) / 4)
    estimate = difference(pairs, variance)
    assert estimate.se_seeds == pytest.approx(float(baseline.mean()) * math.sqrt(variance.value / 3))
    total = estimate.se_text**2 + estimate.se_seeds**2
    df = total**2 / (estimate.se_text**4 / 39 + estimate.se_seeds**4 / 6)
    assert estimate.df == pytest.approx(df)
    assert estimate.high - estimate.value == pytest.approx(stats.t.ppf(0.95, df) * math.sqrt(total))


def test_too_few_documents_have_no_interval():
    pairs = Pairs("a", (0,), np.full((1, 4), 2.0), np.full((1, 4), 1.9), np.zeros((4, 2), int))
    estimate = difference(pairs, None)
    assert estimate.low is None and estimate.verdict == OPEN
    assert "validation_tokens" in first_stage([estimate], NATS_A_BYTE).reason


def test_a_line_over_compute_is_that_of_scipy():
    rows = [one(value, value - 0.1, value + 0.1) for value in (-0.05, -0.06, -0.09, -0.1)]
    rows = [dataclasses.replace(row, se_text=0.0) for row in rows]
    flops = [1e10, 1e11, 3e11, 2e12]
    x, y = np.log(flops), np.log([row.variant / row.baseline for row in rows])
    fit = stats.linregress(x, y)
    (projected,) = project_ratio(rows, flops, None, [1e13])
    assert projected.ratio == pytest.approx(math.exp(fit.intercept + fit.slope * math.log(1e13)))
    # the error of a mean at x: that of the slope and of the intercept, with their covariance
    spread = fit.intercept_stderr**2 + fit.stderr**2 * (math.log(1e13) ** 2 - 2 * math.log(1e13) * x.mean())
    half = stats.t.ppf((1 + LEVEL) / 2, 2) * math.sqrt(spread)
    assert math.log(projected.high / projected.ratio) == pytest.approx(half)
    assert project_ratio(rows[:2], flops[:2], None, [1e13]) is None


def test_verdicts():
    good, bad, level = one(-0.1, -0.2, -0.05), one(0.1, 0.05, 0.2, "b"), one(-0.1, -0.2, 0.01, "c")
    assert [d.verdict for d in (good, bad, level)] == [BETTER, WORSE, OPEN]
    assert first_stage([good, good], NATS_A_BYTE).goes_on
    refused, open_ = first_stage([good, bad], NATS_A_BYTE), first_stage([good, level], NATS_A_BYTE)
    assert refused.word == NOT_WORTH and not refused.goes_on and "[+0.0500, +0.2000]) nats/byte" in refused.reason
    assert open_.word == CANNOT_TELL and not open_.goes_on
    sure, unsure, poor = Gain(1e20, 2.0, 1.3, 1.1, 1.5), Gain(1e21, 2.0, 1.3, 0.9, 1.8), Gain(1e21, 2, 0.8, 0.7, 0.9)
    smaller, larger = Ratio(1e21, 0.98, 0.97, 0.99), Ratio(1e21, 1.01, 0.99, 1.02)
    assert last_stage([good], [sure, sure], [smaller], NATS_A_BYTE).word == WORTH
    assert last_stage([good], [sure, unsure], [smaller], NATS_A_BYTE).word == CANNOT_TELL
    assert last_stage([good], [sure, poor], [smaller], NATS_A_BYTE).word == NOT_WORTH
    assert "disagree" in last_stage([good], [sure, sure], [larger], NATS_A_BYTE).reason
    assert last_stage([good], None, [smaller], NATS_A_BYTE).word == WORTH
    assert last_stage([good], None, None, NATS_A_BYTE).word == CANNOT_TELL
    assert last_stage([good, bad], [sure], [smaller], NATS_A_BYTE).word == NOT_WORTH


def test_a_variant_known_to_be_better_is_worth_scaling():
    """Where runs have next to no noise, the projections are those of the surfaces that the losses came from."""
    from analysis.fits.cost import cost_of

    world = World(batch=1e-4, own=1e-5, document=1e-4)
    drawn = draw(world, GOOD, 0)
    seeds = seed_variance(drawn.pairs, drawn.noise)
    differences = [difference(pairs, seeds) for pairs in drawn.pairs]
    assert first_stage(differences[:2], NATS_A_BYTE).goes_on
    flops = flops_of_sizes()
    at = [2 * flops[-1], 100 * flops[-1]]
    gains = project_gain(*drawn.points, at, n_replicates=59)
    cost = cost_of(drawn.points[0])
    for gain in gains:
        truth = gain.c / float(GOOD.flops_to_reach(ONE.l_opt(gain.c, cost), cost))
        assert gain.gain == pytest.approx(truth, rel=0.03) and 1 < gain.low < gain.high
    assert last_stage(differences, gains, project_ratio(differences, flops, seeds, at), NATS_A_BYTE).word == WORTH
    wider = project_gain(*drawn.points, at, text_error=0.01, n_replicates=59)
    assert wider[0].low < gains[0].low and wider[0].high > gains[0].high


def test_a_reason_stands_where_surfaces_cannot_be_fitted():
    drawn = draw(World(), ONE, 0)
    few = drawn.points[1].take(np.arange(2))
    assert isinstance(project_gain(drawn.points[0], few, [1e18]), str)
