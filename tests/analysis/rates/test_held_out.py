"""What a law costs at a size left out, against a known world and against the law file's own figures."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.rates.fit import fit_rates
from analysis.rates.points import points_of
from analysis.rates.rows import verdict

from .held_out import held_out, mean_bound
from .worlds import World

SIZES = (400_000, 1_000_000, 2_500_000, 6_000_000)


def test_a_world_without_noise_costs_nothing_at_a_size_left_out():
    world = World(noise=0.0, cubic=-0.006, sizes=SIZES)
    for cell in held_out(world.sweep(np.random.default_rng(0)), ["n1000000"], replicates=2):
        assert math.log(cell.rate) == pytest.approx(world.ln_best(1e6, cell.n_tokens, 65_536), abs=1e-6)
        assert cell.excess.share < 1e-9 and cell.again == pytest.approx([0, 0], abs=1e-9) and cell.lost == 0


def test_the_excess_is_near_the_law_files_and_its_bound_holds_the_true_one():
    world, random = World(sizes=SIZES), np.random.default_rng(3)
    points = world.sweep(random)
    stored = {(row.size, row.n_tokens): row for row in fit_rates(points).laws["llama"].left_out_size}
    cells = held_out(points, replicates=5)
    assert len(cells) == len(stored) == 8
    for cell in cells:
        # the law file keeps the scatter and the cubic term of all sizes
        assert cell.excess.share == pytest.approx(stored[cell.size, cell.n_tokens].excess, abs=2e-4)
        assert len(cell.again) == 5
    mean, bound = mean_bound(cells, random)
    true = np.mean([math.expm1(world.excess(float(cell.size[1:]), cell.n_tokens, 65_536, cell.rate)) for cell in cells])
    assert mean < bound and 0 < true < bound


def test_a_size_between_those_of_a_real_sweep_costs_at_most_0_3_percent_and_a_misfit_is_reported():
    """docs/research/learning-rates.md: cosFormer2's short runs hardly tell rates apart, and its law says so."""
    points = points_of(pd.read_csv(Path(__file__).with_name("four_rates.csv")))
    cells = held_out(points, ["18k"], replicates=0)
    assert len(cells) == 8
    for arch in ("llama", "tnl", "hgrn2"):
        of_arch = [cell for cell in cells if cell.arch == arch]
        assert max(cell.excess.share for cell in of_arch) < 0.001
        assert mean_bound(of_arch, np.random.default_rng(0))[1] < 0.003
    text = " ".join(verdict(fit_rates(points)))
    assert "cosFormer2: cells lie further from the law" in text and "HGRN2: cells lie further" not in text
    assert (
        "cosFormer2: the best rate of 38k at 201k tokens is 0.16 times" in text
        and text.count("the other cells say") == 1
    )


def test_a_size_between_those_of_the_published_study_costs_at_most_0_3_percent():
    """docs/research/learning-rates.md: 7.01M parameters on H200s. cosFormer2's law holds with the cell that its other
    cells contradict, and where that was never run: the doubt's law is this one."""
    points = points_of(pd.read_csv(Path(__file__).with_name("h200_hour_rates.csv")))
    swept = [point for point in points if point.size != "n7.01m"]
    doubt = fit_rates(swept).doubts["cosformer2"]
    assert (doubt.cell.size, doubt.cell.n_tokens) == ("n360k", 8_388_608)
    rest = [point for point in points if point.cell != doubt.cell.points[0].cell]
    others = [point for point in swept if point.cell != doubt.cell.points[0].cell]
    assert doubt.law == fit_rates(others).laws["cosformer2"]
    for these in (points, rest):
        cells = held_out(these, ["n7.01m"], replicates=0)
        assert len(cells) == 4
        assert max(cell.excess.high for cell in cells) < 0.003
        for cell in cells:
            assert mean_bound([cell], np.random.default_rng(0))[1] < 0.003
