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


def test_a_size_between_those_of_a_real_sweep_costs_at_most_0_1_percent_and_a_misfit_is_reported():
    """cosFormer2's short runs hardly tell rates apart, and its law says so."""
    fit = fit_rates(points_of("four_rates.csv"))
    for arch in ("llama", "tnl", "hgrn2"):
        assert max(row.excess for row in fit.laws[arch].left_out_size if row.size == "18k") < 0.001
    text = " ".join(verdict(fit))
    assert "cosFormer2: cells lie further from the law" in text and "HGRN2: cells lie further" not in text
    doubt = "cosFormer2: the best rate of 38k at 201k tokens is 0.16 times"
    assert doubt in text and text.count("the other cells say") == 1


def test_a_size_between_those_of_the_published_study_costs_at_most_0_3_percent():
    """7.01M parameters on H200s. cosFormer2's law holds with the cell that its other cells contradict, and where that
    was never run: the doubt's law is this one."""
    points = points_of("h200_hour_rates.csv")
    swept = [point for point in points if point.size != "n7.01m"]
    doubt = fit_rates(swept).doubts["cosformer2"]
    assert (doubt.cell.size, doubt.cell.n_tokens) == ("n360k", 8_388_608)
    others = [point for point in swept if point not in doubt.cell.points]
    assert doubt.law == fit_rates(others).laws["cosformer2"]
    for these in (points, [point for point in points if point not in doubt.cell.points]):
        rows = left_out(these, "n7.01m")
        assert len(rows) == 4 and max(row.high for row in rows) < 0.003
