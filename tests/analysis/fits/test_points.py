"""The points that every approach fits, and the cost of a token over model size."""

import json

import numpy as np
import pytest

from analysis.fits.cost import cost_of, six_nd
from analysis.fits.fit import Estimate, Fit, Law
from analysis.fits.points import Points
from analysis.fits.surface import Surface
from arch.errors import InputError

from .built import fit_of


def points(n, d, loss, flops=None, **more):
    n, d, loss = (np.asarray(values) for values in (n, d, loss))
    c = 6.0 * n.astype(float) * d if flops is None else np.asarray(flops)
    return Points(n, d, c, loss, **more)


def test_large_integers_do_not_overflow():
    result = points(np.array([7_000_000_000]), np.array([300_000_000_000]), [2.0])
    assert result.n_params.dtype == np.float64 and result.flops[0] == pytest.approx(1.26e22)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_values_that_are_no_sizes_or_losses_are_refused_by_row(bad):
    with pytest.raises(InputError, match=r"loss is not a positive, finite number in rows 2, 4"):
        points([1e6, 1e6, 1e6, 1e6], [1e8] * 4, [2.0, bad, 2.0, bad])


def test_arrays_of_different_lengths_are_refused():
    with pytest.raises(InputError, match="run: 1 values, loss has 2"):
        points([1e6, 2e6], [1e8] * 2, [2.0, 2.1], run=np.array(["a"]))


def test_what_is_left_out_stands_for_one_run_a_point():
    result = points([1e6, 2e6], [1e8] * 2, [2.0, 2.1]).take([1, 1])
    assert result.run.tolist() == ["row 2"] * 2 and result.n_runs == 1
    assert result.trunk.tolist() == result.run.tolist() and result.unique_tokens.tolist() == [1e8] * 2


def test_copies_are_runs_with_all_rows_of_another_in_any_order():
    """The three of one length have the same ends in every column; c alone has other numbers between."""
    runs = {"a": (2.3, 2.2, 2.1, 2.0), "b": (2.0, 2.1, 2.2, 2.3), "c": (2.3, 2.21, 2.1, 2.0), "d": (2.3, 2.0)}
    tokens = {"a": (1e8, 2e8, 3e8, 4e8), "b": (4e8, 3e8, 2e8, 1e8), "c": (1e8, 2e8, 3e8, 4e8), "d": (1e8, 4e8)}
    rows = [(name, d, loss) for name in runs for d, loss in zip(tokens[name], runs[name], strict=True)]
    order = np.random.default_rng(0).permutation(len(rows))
    name, d, loss = (np.array(column, dtype=object)[order] for column in zip(*rows, strict=True))
    result = points(np.full(len(rows), 1e6), d.astype(float), loss.astype(float), run=name)
    last = next(letter for letter in reversed(list(dict.fromkeys(name.tolist()))) if letter in "ab")
    assert set(result.run[result.copied].tolist()) == {last} and result.copied.sum() == 4
    assert not result.take(result.run != last).copied.any()


def test_runs_are_looked_up_however_many_there_are():
    """2,000 runs of 50 points each."""
    name = np.repeat(np.array([f"run {i}" for i in range(2000)], dtype=object), 50)
    d = np.tile(np.geomspace(1e7, 1e9, 50), 2000)
    result = points(np.full(len(d), 1e6), d, 2 + np.arange(len(d)) * 1e-6, run=name)
    assert result.thinned(5, 0.1).n_runs == 2000 and result.run_share.max() == 1
    assert [rows[0] for rows in result.rows_of_runs.values()] == list(range(0, 100_000, 50))
    assert not result.copied.any()


def test_the_hash_is_of_the_numbers_not_of_their_order():
    group = points([1e6, 2e6], [1e8] * 2, [2.0, 2.1], run=np.array(["a", "b"]))
    assert group.input_hash == group.take([1, 0]).input_hash
    assert group.input_hash != points([1e6, 2e6], [1e8] * 2, [2.0, 2.2], run=np.array(["a", "b"])).input_hash


LADDER = np.geomspace(2e5, 1.4e7, 24)


def costing(a_token):
    """A point of each size of LADDER, whose tokens cost that."""
    return points(LADDER, np.full(len(LADDER), 1e8), np.full(len(LADDER), 2.0), 1e8 * a_token, convention="exact")


def test_the_cost_of_points():
    n = np.array([1e6, 1e6, 4e6, 16e6])
    assert cost_of(points(n, [1e8, 2e8, 1e8, 1e8], [2.0] * 4)).per_token(7e9) == pytest.approx(six_nd().per_token(7e9))
    per_token = np.array([20e6, 20e6, 40e6, 120e6])
    cost = cost_of(points(n, [1e8, 2e8, 1e8, 1e8], [2.0] * 4, per_token * [1e8, 2e8, 1e8, 1e8], convention="exact"))
    assert cost.per_token([1e6, 2e6, 4e6, 16e6]) == pytest.approx([20e6, 20e6 * 2**0.5, 40e6, 120e6])
    growth = np.log(3) / np.log(4)
    assert cost.growth(np.log([0.5e6, 64e6])) == pytest.approx([0.5, growth])
    assert cost.per_token(64e6) == pytest.approx(360e6) and cost.per_token(0.25e6) == pytest.approx(10e6)
    with pytest.raises(InputError, match=r"row \d: C / D"):
        cost_of(points([1e6, 1e6], [1e8, 1e8], [2.0, 2.0], [6e14, 7e14]))
    with pytest.raises(InputError, match="one size only"):
        cost_of(points([1e6, 1e6], [1e8, 1e8], [2.0, 2.0], [7e14, 7e14]))


def test_the_cost_of_columns_that_were_rounded():
    """C with two digits: 6 N D where it is said to be, else the mean cost of each size."""
    n, d = np.array([1.1e6, 1.1e6, 2.3e6, 4.7e6]), np.array([1.23e8, 3.4e8, 5.6e8, 7.8e8])
    rounded = np.array([float(f"{value:.1e}") for value in 6 * n * d])
    assert cost_of(points(n, d, [2.0] * 4, rounded)).per_token(7e9) == pytest.approx(4.2e10)
    cost = cost_of(points(n, d, [2.0] * 4, rounded, convention="exact"))
    assert cost.per_token(n) == pytest.approx(6 * n, rel=0.02) and len(cost.log_n) == 5


def test_two_sizes_that_are_nearly_one_do_not_set_the_cost_of_larger_ones():
    """1% off either way between 1e8 and 1.004e8 would be a growth of 3.85 or more from there on."""
    n = np.array([1e6, 1e7, 1e8, 1.004e8])
    for off in (1, -1):
        per_token = 7 * n * np.array([1, 1, 1 - off * 0.005, 1 + off * 0.005])
        cost = cost_of(points(n, [1e9] * 4, [2.0] * 4, per_token * 1e9, convention="exact"))
        assert len(cost.log_n) == 3 and cost.per_token(1e10) == pytest.approx(7e10, rel=0.01)
        first = cost_of(points(n[::-1] ** -1, [1e9] * 4, [2.0] * 4, 1e9 / per_token[::-1], convention="exact"))
        assert first.per_token(1e-10) == pytest.approx(1e-10 / 7, rel=0.01)


def test_beyond_the_sizes_the_cost_goes_on_as_over_a_factor_of_three():
    n = np.array([1e7, 5e7, 8e7, 1e8])
    per_token = 7 * n * np.array([1, 1, 1, 1.015])
    cost = cost_of(points(n, [1e9] * 4, [2.0] * 4, per_token * 1e9, convention="exact"))
    assert cost.growth(np.log(1e9)) == pytest.approx(1 + np.log(1.015) / np.log(10))
    assert cost.per_token(n) == pytest.approx(per_token) and cost.growth(np.log(1e6)) == pytest.approx(1)
    near = points(n[1:], [1e9] * 3, [2.0] * 3, 7 * n[1:] ** 1.1 * 1e9, convention="exact")
    assert cost_of(near).growth(np.log([1e6, 1e10])) == pytest.approx([1.1, 1.1])
    odd = 7 * n * np.array([1, 1, 1, 50.0])
    with pytest.raises(InputError, match=r"C / D grows as N\^2\.7 from N = 10M to 100M"):
        cost_of(points(n, [1e9] * 4, [2.0] * 4, odd * 1e9, convention="exact"))


@pytest.mark.parametrize("other", [2e4, -1e3])
def test_costs_without_steps_are_read_as_they_are(other):
    """A token of N parameters more than 6 N, or less: as of sizes that count embeddings, which cost nothing."""
    a_token = 6 * LADDER + other * LADDER**0.5
    assert np.allclose(cost_of(costing(a_token)).per_token(LADDER), a_token, rtol=1e-9)


def test_sizes_whose_widths_come_in_steps_do_not_draw_the_optimum_to_themselves():
    """Attention costs what the width does, which grows in steps, while N grows between them by the MLP."""
    smooth = 6 * LADDER + 6 * 2048 * 4 * np.sqrt(LADDER / 48)
    in_steps = 6 * LADDER + 6 * 2048 * 4 * 32 * np.round(np.sqrt(LADDER / 48) / 32)
    cost = cost_of(costing(in_steps))
    assert (np.diff(cost.growth(np.log(np.geomspace(LADDER[0], LADDER[-1], 200, endpoint=False)))) >= -1e-9).all()
    off = np.abs(np.log([cost.per_token(LADDER) / smooth, in_steps / smooth]))
    assert off[0].max() < off[1].max() and off[0].mean() < off[1].mean()
    surface = Surface(1.0, 12.0, 60.0, 0.26, 0.29)
    n_opt = surface.n_opt(np.geomspace(2e14, 4e15, 40), cost)
    assert LADDER[0] < n_opt[0] and n_opt[-1] < LADDER[-1]
    moves = np.diff(np.log(n_opt))
    assert moves.min() > 0 and moves.max() < 3 * np.median(moves)


def test_a_fit_is_read_back_as_it_was_written():
    """An end that is not finite is null, and infinite again."""
    law = Law("L_opt", floor=Estimate.of(1.7, (1.6, float("inf"))), range=(1e10, 1e12))
    stored = as_json(fit_of("isoflop", laws=[law]))
    assert stored["laws"][0]["floor"] == {"value": 1.7, "low": 1.6, "high": None, "reason": ""}
    assert stored["verdict"] is None and Fit.from_dict(stored).law("L_opt").floor.interval == (1.6, float("inf"))
    for wrong in ({"n_points": "3"}, {"range": [1.0]}, {"laws": 3}, {"of_another_version": 1}):
        with pytest.raises(ValueError, match="validation error"):
            Fit.from_dict(stored | wrong)


def as_json(fit):
    return json.loads(json.dumps(fit.to_dict(), allow_nan=False))
