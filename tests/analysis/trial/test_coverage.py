"""How often intervals of differences and projections hold, and how often a variant that changes nothing is called worth
scaling; docs/research/variants.md has the figures, which `python -m tests.analysis.trial.test_coverage` prints."""

from __future__ import annotations

import math

import pytest

from analysis.trial.difference import difference, seed_variance
from analysis.trial.projection import project_gain, project_ratio
from analysis.trial.verdict import WORTH, first_stage, last_stage
from data.units import NATS_A_BYTE

from .worlds import BETTER, ONE, SIZES, TOKENS_A_PARAMETER, World, draw, flops_of_sizes

N_DRAWS, N_REPLICATES = 300, 99
LARGEST = 6 * SIZES[-1] * TOKENS_A_PARAMETER * SIZES[-1]
AT = (LARGEST, 10 * LARGEST)
WORLDS = {
    "one seed, noise from repeats": World(),
    "one seed, three repeats": World(repeated=3),
    "two seeds": World(n_seeds=2, repeated=0),
    "three seeds": World(n_seeds=3, repeated=0),
    "no batch noise": World(batch=0.0),
    "text noise large": World(document=0.04, n_seeds=3, repeated=0),
}
UNTOLD = World(repeated=0)


def coverage(world: World, variant=ONE, n_draws: int = N_DRAWS) -> float:
    """The coverage of the interval of the difference at the smallest size."""
    n = SIZES[0]
    truth = float(variant.loss(n, TOKENS_A_PARAMETER * n) - ONE.loss(n, TOKENS_A_PARAMETER * n))
    held = 0
    for seed in range(n_draws):
        drawn = draw(world, variant, seed)
        estimate = difference(drawn.pairs[0], seed_variance(drawn.pairs[:2], drawn.noise))
        held += estimate.low <= truth <= estimate.high
    return held / n_draws


def trial(world: World, variant, seed: int, go_on: bool = False):
    """(whether stage 1 passed, gains or why there are none, ratios, the verdict)."""
    drawn = draw(world, variant, seed)
    seeds = seed_variance(drawn.pairs[:2], drawn.noise)
    first = first_stage([difference(pair, seeds) for pair in drawn.pairs[:2]], NATS_A_BYTE)
    if not first.goes_on and not go_on:
        return False, None, None, first.word
    seeds = seed_variance(drawn.pairs, drawn.noise)
    differences = [difference(pair, seeds) for pair in drawn.pairs]
    text = max(at_size.se_text / at_size.baseline for at_size in differences)
    gains = project_gain(*drawn.points, AT, drawn.noise[0] if drawn.noise else 0.0, text, N_REPLICATES)
    ratios = project_ratio(differences, flops_of_sizes(), seeds, AT)
    word = last_stage(differences, None if isinstance(gains, str) else gains, ratios, NATS_A_BYTE).word
    return first.goes_on, gains, ratios, word


def passes(world: World, variant=ONE, n_draws: int = 1000) -> float:
    """The share of trials that go on after the smallest sizes."""
    count = 0
    for seed in range(n_draws):
        drawn = draw(world, variant, seed)
        seeds = seed_variance(drawn.pairs[:2], drawn.noise)
        count += first_stage([difference(pair, seeds) for pair in drawn.pairs[:2]], NATS_A_BYTE).goes_on
    return count / n_draws


def projections(world: World, variant, n_draws: int) -> dict[str, float]:
    """Coverage of gains and ratios at both budgets, where no stage stops, and shares of the verdicts."""
    from analysis.fits.cost import cost_of

    counts = {"gain 1": 0, "gain 2": 0, "ratio 1": 0, "ratio 2": 0, "fitted": 0, WORTH: 0, "worth with stage 1": 0}
    for seed in range(n_draws):
        passed, gains, ratios, word = trial(world, variant, seed, go_on=True)
        counts[WORTH] += word == WORTH
        counts["worth with stage 1"] += passed and word == WORTH
        cost = cost_of(draw(world, variant, seed).points[0])
        for i, c in enumerate(AT):
            ours, theirs = ONE.l_opt(c, cost), variant.l_opt(c, cost)
            truth = float(c / variant.flops_to_reach(ours, cost))
            if not isinstance(gains, str):
                counts["fitted"] += i == 0
                counts[f"gain {i + 1}"] += gains[i].low <= truth <= gains[i].high
            n = math.sqrt(c / 6 / TOKENS_A_PARAMETER)
            ratio = float(variant.loss(n, TOKENS_A_PARAMETER * n) / ONE.loss(n, TOKENS_A_PARAMETER * n))
            counts[f"ratio {i + 1}"] += ratios[i].low <= ratio <= ratios[i].high
            assert theirs > 0
    fitted = max(counts["fitted"], 1)
    return {name: n / (fitted if name.startswith("gain") else n_draws) for name, n in counts.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_intervals_of_differences_hold(name):
    assert coverage(WORLDS[name]) >= 0.86


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_a_variant_that_changes_nothing_seldom_goes_on(name):
    """At most 5%: the error at one of the two sizes alone."""
    assert passes(WORLDS[name]) <= 0.05


@pytest.mark.slow
def test_a_variant_that_changes_nothing_is_hardly_ever_worth_scaling():
    counts = projections(World(), ONE, 60)
    assert counts["worth with stage 1"] <= 0.05 and counts["gain 1"] >= 0.8


if __name__ == "__main__":
    for name, world in (WORLDS | {"one seed, no repeats": UNTOLD}).items():
        print(f"{name}: {coverage(world):.3f} {coverage(world, BETTER):.3f} passes {passes(world):.4f}", flush=True)
    for variant in (ONE, BETTER):
        print(projections(World(), variant, 100), flush=True)
