"""What the law of the other sizes costs at a size left out, as the law file has it, and cells that the others
contradict: against a known world and real sweeps (docs/research/learning-rates.md)."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.rates.law import fit_rates
from analysis.rates.page import verdict

from .worlds import World, points_of

SIZES = (400_000, 1_000_000, 2_500_000, 6_000_000)


def left_out(points, size):
    return [row for law in fit_rates(points).laws.values() for row in law.left_out_size if row.size == size]


def test_a_world_without_noise_costs_nothing_at_a_size_left_out():
    for row in left_out(World(noise=0.0, cubic=-0.006, sizes=SIZES).sweep(np.random.default_rng(0)), "n1000000"):
        assert row.ln_error == pytest.approx(0, abs=1e-6) and row.excess < 1e-9


def test_the_true_excess_lies_in_the_interval():
    """Of a size left out, the rate of the law of the other sizes: its cost by the world, where cells have the noise of
    both laws."""
    world, held = World(sizes=SIZES), []
    for seed in range(10):
        points = world.sweep(np.random.default_rng(seed))
        for row in left_out(points, "n1000000"):
            law = fit_rates([point for point in points if point.size != row.size]).laws["llama"]
            rate = law.at(row.n_params, row.n_tokens, 65_536).rate
            true = np.expm1(world.excess(row.n_params, row.n_tokens, 65_536, rate))
            held.append(row.low <= true <= row.high)
    assert np.mean(held) > 0.85


@pytest.mark.parametrize(
    ("table", "size", "cell", "most"),
    [
        ("four_rates.csv", "18k", "38k at 201k tokens", 0.001),
        ("h200_hour_rates.csv", "n7.01m", "n360k at 8.39M", 0.003),
    ],
)
def test_a_size_between_those_of_a_real_sweep_costs_little_and_a_law_of_cells_that_contradict_is_refused(
    table, size, cell, most
):
    """cosFormer2's short runs hardly tell rates apart; 7.01M parameters are of the published study."""
    fit = fit_rates(points_of(table))
    assert set(fit.laws) == {"llama", "tnl", "hgrn2"} and set(fit.without_law) == {"cosformer2"}
    assert f"most of all {cell}" in " ".join(verdict(fit))
    for law in fit.laws.values():
        assert max(row.excess for row in law.left_out_size if row.size == size) < most


def test_architectures_that_scatter_alike_keep_their_laws():
    world, random = World(archs=("llama", "tnl"), scatter=0.08), np.random.default_rng(1)
    assert all(len(fit_rates(world.sweep(random)).laws) == 2 for _ in range(20))
