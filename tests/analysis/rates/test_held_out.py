"""What the law of the other sizes costs at a size left out, as the law file has it, and cells that the others
contradict: against a known world and real sweeps (docs/research/learning-rates.md)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.rates.cell import RatePoint
from analysis.rates.law import fit_rates
from analysis.rates.page import verdict

from .packaged_laws import second_points
from .worlds import World, points_of

MISSES = Path(__file__).parents[3] / "docs" / "research" / "h200-2026-misses.csv"
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
    """cosFormer2's short runs hardly tell rates apart; 7.01M parameters are of the study h200-hour."""
    fit = fit_rates(points_of(table))
    assert set(fit.laws) == {"llama", "tnl", "hgrn2"} and set(fit.without_law) == {"cosformer2"}
    assert f"most of all {cell}" in " ".join(verdict(fit))
    for law in fit.laws.values():
        assert max(row.excess for row in law.left_out_size if row.size == size) < most


FAR_WORLD = World(sizes=SIZES, horizons=(2.5, 10, 40), archs=("llama", "tnl"))


def test_a_size_left_out_at_four_times_the_tokens_is_predicted_by_the_short_runs_of_the_others_alone():
    points = FAR_WORLD.sweep(np.random.default_rng(0))
    fit = fit_rates(points, share=True)
    rows = [row for row in fit.laws["llama"].left_out_far if row.n_params == 6_000_000]
    assert {row.n_tokens for row in rows} == {60_000_000, 240_000_000}
    for row in rows:
        kept = [p for p in points if p.n_params < 6_000_000 and 4 * p.n_tokens <= row.n_tokens + 4 * 65_536]
        rest = fit_rates(kept, share=True).laws["llama"].at(row.n_params, row.n_tokens, 65_536)
        cell = next(
            cell for cell in fit.usable("llama") if (cell.n_params, cell.n_tokens) == (row.n_params, row.n_tokens)
        )
        # noise, scatter and cubic terms are those of all cells
        assert row.ln_error == pytest.approx(np.log(rest.rate) - cell.fitted.log_rate, abs=0.08)


def test_what_a_rate_costs_at_four_times_the_tokens_is_said_with_its_upper_bound():
    quiet = fit_rates(
        World(sizes=SIZES, horizons=(2.5, 10, 40), noise=0.0005).sweep(np.random.default_rng(0)), share=True
    )
    text = " ".join(verdict(fit_rates(FAR_WORLD.sweep(np.random.default_rng(0)), share=True)))
    assert "at 4 times the tokens of all other sizes a size left out loses" in text and "upper bound" in text
    assert all(row.high < 0.003 for row in quiet.laws["llama"].left_out_far)
    bent = World(sizes=SIZES, horizons=(2.5, 10, 40), noise=0.0005, archs=("llama", "tnl"))
    points = [
        replace(p, lr=p.lr * 4) if p.n_params == 6_000_000 and p.n_tokens > 2e8 else p
        for p in bent.sweep(np.random.default_rng(0))
    ]
    assert "not shown to cost at most 0.3%" in " ".join(verdict(fit_rates(points, share=True)))
    two = fit_rates(
        World(sizes=SIZES[:3], horizons=(10, 15), archs=("llama", "tnl")).sweep(np.random.default_rng(0)), share=True
    )
    assert "cannot be judged" in " ".join(verdict(two))


@pytest.mark.parametrize("table", ["four_rates.csv", "h200_rates.csv", "h200_hour_rates.csv"])
def test_no_sweep_that_was_published_can_judge_a_size_at_four_times_its_tokens(table):
    """Their two lengths are three or four times apart, which leaves one below a quarter: no term in D."""
    fit = fit_rates(points_of(table), share=True)
    assert fit.laws and not any(law.left_out_far for law in fit.laws.values())


def test_the_runs_of_55_million_parameters_are_judged_by_a_quarter_of_their_tokens():
    """docs/research/learning-rates.md: TNL's rate costs little, as far as is known; HGRN2 has no best rate."""
    runs = pd.read_csv(MISSES)
    names = {"n_params": "n_params_non_embedding", "loss": "validation_loss"}
    points = [
        RatePoint(**{key: row[names.get(key, key)] for key in RatePoint.__dataclass_fields__})
        for row in runs[(runs["size"] == "n55m") & (runs["schedule"] == "constant")]
        .assign(batch_tokens=16_384)
        .to_dict("records")
    ]
    fit = fit_rates([*points_of("h200_hour_rates.csv"), *points], share=True)
    (row,) = fit.laws["tnl"].left_out_far
    assert row.n_tokens == 121_012_224 and row.excess == pytest.approx(0.0003, abs=1e-4)
    assert row.high == pytest.approx(0.0054, abs=1e-3) and not fit.laws["hgrn2"].left_out_far
    text = " ".join(verdict(fit))
    assert "upper bound 0.54% (n55m on 121M tokens): not shown to cost at most 0.3%" in text
    assert "HGRN2: at 4 times the tokens of all other sizes a size left out cannot be judged" in text


def test_a_sweep_by_a_recipe_judges_its_rates_at_four_times_the_tokens():
    """LLaMA, three sizes and lengths, trained by the recipe: the bound of 0.3% is missed, and the lines say it."""
    fit = fit_rates(points_of("recipe_rates.csv"), without=["batch_tokens"], share=True)
    law = fit.laws["llama"]
    assert law.terms == ["n_params", "n_tokens"] and not fit.unused
    assert {(row.size, row.n_tokens) for row in law.left_out_far} == {("10k", 801_792), ("18k", 1_480_960)}
    assert all(row.excess < 0.0031 < row.high for row in law.left_out_far)
    text = " ".join(verdict(fit))
    assert "upper bound 1.71% (18k on 1.48M tokens): not shown to cost at most 0.3%" in text


def test_an_upper_bound_does_not_fall_where_the_cubic_term_turns_the_curve():
    """Of cosFormer2's flat cells on the GPU: an upper end that lies below the cost itself."""
    for share in (False, True):
        for law in fit_rates(points_of("h200_rates.csv"), share=share).laws.values():
            assert all(row.low <= row.excess <= row.high for row in law.left_out_size)


def test_an_architecture_whose_quiet_cells_contradict_each_other_by_little_keeps_its_law():
    """HGRN2 3:1 of the second study's second sweep: its runs scatter by 0.13% around their parabolas."""
    points = [point for point in second_points() if point.seed == 1]
    fit = fit_rates(points, without=["batch_tokens"], share=True)
    law = fit.laws["hgrn2-3to1"]
    assert not fit.without_law and law.misfit.p < 1e-6
    assert max(row.excess for row in law.left_out_size) < 0.001


def test_architectures_that_scatter_alike_keep_their_laws():
    world, random = World(archs=("llama", "tnl"), scatter=0.08), np.random.default_rng(1)
    assert all(len(fit_rates(world.sweep(random)).laws) == 2 for _ in range(20))
