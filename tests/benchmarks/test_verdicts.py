"""Simulated studies of curves: where their optimum lies, and that the envelope's claims are judged."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.design.worlds import KINDS
from benchmarks.verdicts import DESIGNS, LADDERS, LOST, ONE_RATE, STUDIES, claims, world_of


@pytest.mark.parametrize("design", STUDIES)
@pytest.mark.parametrize("kind", [*KINDS, ONE_RATE])
def test_tokens_of_studies_are_scaled_to_their_world(design, kind):
    rng = np.random.default_rng(0)
    world = world_of(kind, rng)
    points = DESIGNS[design](world, rng)
    largest = points.n_params == points.n_params.max()
    n_opt = math.exp(world.log_n_opt(math.log(points.flops[largest].max())))
    assert 0.49 < n_opt / points.n_params.max() < 1.01
    assert points.n_runs == sum(LADDERS[design].seeds)


def test_sizes_that_share_a_rate_lose_most_at_the_ends_of_the_ladder(monkeypatch):
    monkeypatch.setitem(LADDERS, "golden", replace(LADDERS["golden"], noise=0.0))
    rng = np.random.default_rng(0)
    world = world_of(ONE_RATE, rng)
    points = DESIGNS["golden"](world, rng)
    lost = np.log(points.loss / world.loss(points.n_params, points.n_tokens))
    off = np.log10(points.n_params / math.sqrt(points.n_params.min() * points.n_params.max()))
    each = (lost / off**2)[np.abs(off) > 0.01]
    assert each == pytest.approx(each[0]) and LOST[0] < each[0] < LOST[1]


def test_claims_of_studies_are_those_of_the_envelope():
    made = [claim for seed in range(3) for claim in claims("quickstart", "fitted", seed)]
    assert {claim.what for claim in made} == {"N_opt, envelope"}
    assert {claim.reach for claim in made} == {1, 10} and any(claim.right for claim in made)
