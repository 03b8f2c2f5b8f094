"""What enters a fit: transients, rows given twice, weights, and designs that identify nothing."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.fits.parametric.curves import check_design, prepare
from analysis.fits.parametric.fit import fit_parametric
from analysis.fits.points import Points
from arch.errors import InputError

from .cases import SURFACES, grid


def points(n, d, loss=None, run=()):
    n, d = np.asarray(n), np.asarray(d)
    loss = 2.0 + 1e-3 * np.arange(len(n)) if loss is None else np.asarray(loss)
    return Points(n, d, 6.0 * n * d, loss, np.asarray(run, dtype=object))


def test_a_run_of_many_rows_weighs_as_much_as_an_end_point():
    curve = points([1e6] * 8 + [2e6], [*np.arange(1, 9) * 1e8, 5e8], run=["a"] * 8 + ["b"])
    found = prepare(curve, first_share=0.25)
    assert found.points.n_tokens.tolist() == [2e8, 3e8, 4e8, 5e8, 6e8, 7e8, 8e8, 5e8]
    assert found.weights.tolist() == [1 / 7] * 7 + [1]
    assert found.left_out == {"rows before 0.25 of their run": 1}
    assert prepare(curve, 3e8, 0.0).left_out == {"rows of warm-up": 3}


def test_a_long_curve_becomes_fewer_rows_of_the_same_surface():
    n, d = np.repeat([1e6, 2e6], [5000, 10]), np.concatenate([np.linspace(1e8, 1e10, 5000), np.geomspace(1e9, 9e9, 10)])
    loss = SURFACES[0].loss(n, d)
    curve = points(n, d, loss, ["a"] * 5000 + ["b"] * 10)
    found = prepare(curve, first_share=0.0)
    kept = found.points
    assert (kept.run == "a").sum() == 64 and (kept.run == "b").sum() == 10
    assert kept.loss == pytest.approx(SURFACES[0].loss(kept.n_params, kept.n_tokens), rel=2e-5)
    assert kept.flops == pytest.approx(6 * kept.n_params * kept.n_tokens)
    assert kept.loss[kept.run == "b"] == pytest.approx(loss[5000:], rel=1e-14)
    assert list(found.left_out.values()) == [4936] and found.weights.sum() == pytest.approx(2)


def test_a_row_given_twice_is_one_and_two_seeds_are_two():
    twice = points([1e6, 1e6, 2e6], [1e8, 1e8, 1e8], [2.0, 2.0, 1.9], ["a", "a", "b"])
    assert prepare(twice).points.run.tolist() == ["a", "b"] and prepare(twice).left_out == {"rows given twice": 1}
    assert len(prepare(points([1e6, 1e6], [1e8, 1e8], [2.0, 2.0])).points) == 1  # no run is named
    assert len(prepare(points([1e6, 1e6], [1e8, 1e8], [2.0, 2.0], ["s0", "s1"])).points) == 1
    assert len(prepare(points([1e6, 1e6], [1e8, 1e8], [2.0, 2.0 + 1e-15], ["s0", "s1"])).points) == 2


def test_runs_copied_under_other_names_count_once():
    n, d = grid(4, 3)
    ends = points(n, d, SURFACES[0].loss(n, d), [f"a{i}" for i in range(12)])
    again = np.tile(np.arange(12), 4)
    names = np.array([f"copy {i // 12} of {i % 12}" for i in range(48)], dtype=object)
    copied = replace(ends.take(again), run=names, trunk=names, cell=names)
    found = prepare(copied)
    assert found.points.run.tolist() == names[:12].tolist()
    assert found.left_out == {"rows with the same numbers under another run name": 36}
    narrow, honest = (fit_parametric(one, n_replicates=1) for one in (copied, ends))
    assert narrow.replicates is None and narrow.effects.df == pytest.approx(honest.effects.df)


def test_a_curve_copied_under_another_name_counts_once_and_one_that_parts_from_it_twice():
    d = np.arange(1, 9) * 1e8
    curve = points([1e6] * 24, np.tile(d, 3), np.tile(2 + 1e8 / d, 3), np.repeat(["a", "b", "c"], 8))
    curve.loss[-1] += 1e-3
    found = prepare(curve.take(np.arange(24)[::-1]), first_share=0.0)
    assert sorted(set(found.points.run)) == ["b", "c"]  # the one that comes first
    assert found.left_out == {"rows with the same numbers under another run name": 8}


def test_two_losses_of_one_run_at_one_d_are_refused():
    with pytest.raises(InputError, match="rows 1 and 2: run a has two rows with 1e\\+08 tokens"):
        prepare(points([1e6, 1e6], [1e8, 1e8], [2.0, 2.1], ["a", "a"]))


def test_nothing_left_is_an_error():
    with pytest.raises(InputError, match="none of 2 rows"):
        prepare(points([1e6, 2e6], [1e8, 1e8]), warmup_tokens=1e9)


@pytest.mark.parametrize(
    ("n", "d", "why"),
    [
        ([1e6], [1e8], "3 or more different N; these points have 1"),
        ([1e6] * 6, np.geomspace(1e8, 1e9, 6), "3 or more different N; these points have 1"),
        (np.geomspace(1e6, 1e8, 6), [1e8] * 6, "3 or more different D; these points have 1"),
        ([1e6, 2e6, 4e6], [1e8, 3e8, 2e8], "6 or more different \\(N, D\\); 3 given"),
        (np.geomspace(1e6, 1e8, 8), 20 * np.geomspace(1e6, 1e8, 8), "D follows N"),
    ],
)
def test_designs_that_identify_nothing_are_refused(n, d, why):
    with pytest.raises(InputError, match=why):
        check_design(np.log(n), np.log(d))


def test_a_grid_is_enough():
    n, d = grid(3, 3)
    check_design(np.log(n), np.log(d))


def test_a_dense_curve_is_many_amounts_of_tokens():
    """Rows of curves lie closer together than two runs would; they are not all one."""
    d = np.geomspace(1e8, 1e9, 2000)
    n = np.repeat([1e6, 2e6, 4e6], len(d))
    check_design(np.log(n), np.log(np.tile(d, 3)))
    with pytest.raises(InputError, match="3 or more different D; these points have 1"):
        check_design(np.log([1e6, 2e6, 4e6, 8e6]), np.log([1e8, 1.002e8, 1.004e8, 1.009e8]))
