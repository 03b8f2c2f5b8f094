"""Architectures compared by their surfaces: what the joint fit finds, how pairing narrows intervals, what a pair's one
verdict rests on, and what is refused."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from analysis.fits.comparison.frontiers import fit_frontiers, view_of
from analysis.fits.comparison.joint import fit_paired, gather, p_value_of_shared_e
from analysis.fits.fit import Estimate
from analysis.fits.pairwise import (
    BETTER,
    COMPUTE,
    DISPUTED,
    LOSS,
    UNDECIDED,
    UNKNOWN,
    WORSE,
    Compared,
    Comparison,
    Pair,
    View,
)
from analysis.fits.surface import Surface
from arch.errors import InputError

from .worlds import NEAR, ONE, OTHER_TEXT, curves, study

NOISE = (0.005, 0.001)  # of cells and of runs, in log loss


@pytest.fixture(scope="module")
def frontiers():
    return fit_frontiers(study([ONE, NEAR], *NOISE, seed=3), n_replicates=199)


@pytest.mark.parametrize("other", [NEAR, OTHER_TEXT])
def test_without_noise_all_parameters_are_found(other):
    """With one E, and with an E of its own for each where the texts differ."""
    result = fit_frontiers(study([ONE, other], 0, 0, seed=0), n_replicates=3)
    assert result.fine.all() and result.fitted.shared == (other is NEAR)
    for surface, fitted in zip((ONE, other), result.surfaces.values(), strict=True):
        for name in ("E", "A", "alpha", "B", "beta"):
            assert getattr(fitted, name)[0] == pytest.approx(getattr(surface, name), rel=1e-6)


def test_a_term_that_vanished_stops_no_step():
    """Where size tells nothing, A of an architecture goes to nothing, and its columns with it."""
    flat = Surface(1.69, 1e-9, 410.7, 0.34, 0.28)
    surfaces = fit_frontiers(study([ONE, flat], 0.001, 0.0005, seed=0), n_replicates=3).surfaces
    assert (
        surfaces["b"].beta[0] == pytest.approx(0.28, rel=0.05) and pytest.approx(406.4, rel=0.3) == surfaces["a"].A[0]
    )


def test_the_two_noises_are_separated():
    fitted = [fit_paired(gather(study([ONE, NEAR], *NOISE, seed=seed))) for seed in range(20)]
    assert np.mean([joint.noise["cell"] ** 2 for joint in fitted]) ** 0.5 == pytest.approx(NOISE[0], rel=0.15)
    assert np.mean([joint.noise["run"] ** 2 for joint in fitted]) ** 0.5 == pytest.approx(NOISE[1], rel=0.15)
    assert 9 <= fitted[0].df <= 16  # 40 runs, 9 parameters, most of 20 cells' means


def test_noise_between_seeds_is_the_least_noise_of_a_run():
    data = gather(study([ONE, NEAR], *NOISE, seed=3))
    plain, floored = fit_paired(data), fit_paired(data, seed_noise=0.02)
    assert floored.noise["run"] == pytest.approx((0.02**2 - floored.noise["cell"] ** 2) ** 0.5, rel=0.02)
    assert plain.noise["run"] < 0.002 and fit_paired(data, seed_noise=0.001).noise == plain.noise


def test_pairing_makes_the_interval_three_times_narrower(frontiers):
    """Beside the same runs as if no two had read the same batches."""
    groups = study([ONE, NEAR], *NOISE, seed=3)
    apart = [replace(group, cell=np.char.add(group.group, group.cell.astype(str))) for group in groups]
    unpaired = fit_frontiers(apart, n_replicates=199)
    for loss in (2.7, 3.2, 4.0):
        paired, wide = (np.diff(fit.interval(fit.log_gain("a", "b", loss)))[0] for fit in (frontiers, unpaired))
        assert wide > 3 * paired


def test_a_single_pair_that_shares_its_batches_does_not_tell_the_noise_of_all():
    """Runs of equal compute read batches of their own, but for two that happen to agree."""
    groups = study([ONE, NEAR], 0.005, 0.001, seed=0)
    alone = [replace(group, cell=group.run) for group in groups]
    one_pair = [replace(group, cell=np.where(np.arange(len(group)) == 3, "both", group.run)) for group in groups]
    expected, fitted = (fit_frontiers(points, 9).fitted for points in (alone, one_pair))
    assert fitted.df == expected.df > 20 and fitted.noise == expected.noise


def test_what_is_read_off_a_comparison(frontiers):
    view = view_of(frontiers)
    assert view.shared_e and view.archs == ("b", "a") and view.pairs == [("a", "b")]
    assert [comparison.at for comparison in view.compute][::3] == pytest.approx([*view.range])
    assert len(view.compute) == 5
    for comparison in view.compute:
        truth = ONE.flops_to_reach(NEAR.l_opt(comparison.at)) / comparison.at
        assert comparison.of == COMPUTE and comparison.ratio.value == pytest.approx(truth, rel=0.06)
        assert comparison.ratio.low < truth < comparison.ratio.high and comparison.verdict == WORSE
    assert view.at("a", "b", beyond=True).at == view.beyond == pytest.approx(10 * view.range[1])
    turned = view.at("b", "a")
    assert turned.verdict == BETTER and turned.ratio.value * view.at("a", "b").ratio.value == pytest.approx(1)
    assert View.from_dict(view.to_dict()) == view


def test_the_order_of_rows_and_architectures_changes_nothing(frontiers):
    groups = study([ONE, NEAR], *NOISE, seed=3)
    turned = fit_frontiers([group.take(np.arange(len(group))[::-1]) for group in groups[::-1]], n_replicates=19)
    assert turned.log_gain("a", "b", 3.0)[0] == pytest.approx(frontiers.log_gain("a", "b", 3.0)[0], rel=1e-7)


def test_a_draw_that_needs_no_compute_for_a_loss_gives_no_warning(frontiers):
    """Draws at a bound of the fit may have it: no interval reads them, and their logarithm is no news to a user."""
    tiny = Surface(*(np.array([value]) for value in (0.0, 1.0, 1e-200, 0.3, 0.217)))
    result = replace(frontiers, surfaces=frontiers.surfaces | {"a": tiny})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result.log_gain("b", "a", 3.0)[0] == np.inf


def test_what_costs_more_a_token_needs_more_compute(frontiers):
    groups = study([ONE, NEAR], *NOISE, seed=3)
    dear = [groups[0], replace(groups[1], flops=groups[1].flops * 1.5)]  # b's token costs half as much again
    gains = [fit.log_gain("a", "b", 3.0)[0] for fit in (frontiers, fit_frontiers(dear, n_replicates=3))]
    assert gains[0] - gains[1] == pytest.approx(np.log(1.5), rel=1e-6)


def test_views_without_a_comparison_have_their_reason(frontiers):
    for broken, why in (
        (replace(frontiers, fine=np.zeros_like(frontiers.fine)), "nothing is identified"),
        (replace(frontiers, spans={"a": (1e15, 1e16), "b": (1e18, 1e19)}), "no compute was reached by all"),
    ):
        with pytest.raises(InputError, match=why):
            view_of(broken)


def test_what_cannot_be_compared_is_refused():
    group, other = study([ONE, NEAR], *NOISE, seed=0)
    for groups, message in (
        ([group], "needs two architectures"),
        ([group, replace(other, convention="exact")], "one convention, there are 6nd, exact"),
        ([group, replace(other, loss_unit="bits/byte")], "one loss unit"),
        ([group, replace(other, loss_of="corpus c4")], "one kind of loss, there are unstated, corpus c4"),
        ([group, other.take(np.arange(5))], "b: L = E .* these points have 2"),
        ([group, other.take(np.flatnonzero(other.n_params == other.n_params[0]))], "b: .* needs 3 or more different N"),
        ([group, replace(other, n_tokens=20 * other.n_params)], "b: .*D follows N"),
    ):
        with pytest.raises(InputError, match=message):
            fit_frontiers(groups, n_replicates=3)


def p_values(other, n_studies, drawn=study, noise=NOISE):
    data = (gather(drawn([ONE, other], *noise, seed)) for seed in range(n_studies))
    return np.array([p_value_of_shared_e(points, fit_paired(points, shared=False)) for points in data])


OTHER_TEXT = replace(NEAR, E=NEAR.E + 0.15)


@pytest.mark.parametrize(("drawn", "noise", "of_two"), [(study, NOISE, NOISE), (curves, (0.0, 0.005), (0.004, 0.001))])
def test_one_e_is_kept_and_other_texts_are_found(drawn, noise, of_two):
    """By a difference of 0.15 nats."""
    assert p_values(NEAR, 5, drawn, noise).min() > 0.01 > np.median(p_values(OTHER_TEXT, 3, drawn, of_two))


@pytest.mark.slow
def test_the_test_of_one_e_errs_as_often_as_it_says():
    """Under one E its p values are uniform."""
    same = p_values(NEAR, 80)
    assert 0.35 < np.mean(same < 0.5) < 0.65 and np.mean(same < 0.05) < 0.15
    assert np.mean(p_values(OTHER_TEXT, 20) < 0.01) > 0.8
    assert np.mean(p_values(NEAR, 40, curves, (0.0, 0.005)) < 0.01) < 0.05
    assert np.mean(p_values(OTHER_TEXT, 10, curves, (0.004, 0.001)) < 0.01) > 0.8


ABOVE, ACROSS, BELOW = (Estimate(1.0, low, high) for low, high in ((1.1, 1.2), (0.9, 1.2), (0.8, 0.9)))
NONE = Estimate(1.1)


@pytest.mark.parametrize(
    ("loss", "by_count", "verdict"),
    [
        (ABOVE, (ACROSS, ACROSS), WORSE),  # measured
        (ACROSS, (ABOVE, ABOVE), WORSE),  # by every count
        (ACROSS, (ABOVE, ACROSS), UNDECIDED),
        (ABOVE, (ABOVE, BELOW), DISPUTED),
        (ABOVE, (ACROSS, BELOW), DISPUTED),
        (ACROSS, (ABOVE, BELOW), DISPUTED),
        (BELOW, (BELOW, NONE), BETTER),
        (NONE, (BELOW, BELOW), BETTER),
        (NONE, (BELOW, NONE), UNDECIDED),
        (NONE, (NONE, NONE), UNKNOWN),
        (None, (), UNKNOWN),
        (NONE, (ACROSS,), UNDECIDED),
    ],
)
def test_a_pair_has_one_verdict(loss, by_count, verdict):
    measured = loss and Comparison("a", "b", LOSS, 1e18, loss)
    compute = {str(i): Comparison("a", "b", COMPUTE, 1e18, ratio) for i, ratio in enumerate(by_count)}
    assert Pair("a", "b", measured, compute).verdict == verdict
    turned = {name: comparison.against("a") for name, comparison in compute.items()}
    opposite = {WORSE: BETTER, BETTER: WORSE}
    assert Pair("b", "a", measured and measured.against("a"), turned).verdict == opposite.get(verdict, verdict)


def test_a_view_that_could_not_be_made_leaves_a_pair_undecided():
    above = Comparison("a", "b", COMPUTE, 1e18, ABOVE)
    view = View(("b", "a"), (1e16, 1e18), compute=(above,))
    assert Compared("", {"exact": view}).pair("a", "b").verdict == WORSE
    both = Compared("", {"exact": view, "seconds": View(reason="no speed")})
    assert both.pair("a", "b").verdict == UNDECIDED
