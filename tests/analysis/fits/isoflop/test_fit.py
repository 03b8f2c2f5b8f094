"""IsoFLOP fits: exact on grids that centre on the optimum, what they refuse, budgets, bias, intervals."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize

from analysis.fits.cost import Cost, six_nd
from analysis.fits.isoflop.bias import surface_optimum
from analysis.fits.isoflop.budgets import read_budgets
from analysis.fits.isoflop.fit import isoflop
from analysis.fits.isoflop.laws import BELOW_0
from analysis.fits.isoflop.minimum import interpolated_minima, parabola_minima
from analysis.fits.isoflop.results import fit_isoflop
from analysis.fits.noise import SeedNoise
from analysis.fits.points import Points
from arch.errors import InputError

from .worlds import Design, Surface, made

SURFACES = [Surface(), Surface(0.465, 0.155)]
INFLATED = {0.34: 1.01427, 0.465: 1.07537}  # by a parabola through nine sizes within a factor of 4 of the optimum


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("variant", ["parabola", "interpolation"])
def test_centred_grids_give_the_exact_exponent_and_the_bias_is_named(surface: Surface, variant: str) -> None:
    points = Design("points", 7, 9, 0.0).points(surface)
    result = fit_isoflop(points, six_nd(), variant, surface=surface, n_replicates=0)
    bias, middle = result.diagnostics["bias"], result.diagnostics["middle"]
    raw = bias["raw"]["params"]
    assert raw["a"] == pytest.approx(surface.exponent, abs=1e-9)
    assert raw["a"] + raw["b"] == pytest.approx(1, abs=1e-12)
    factor = raw["N_opt"] / float(surface.n_opt(middle))
    assert bias["inflated"] == pytest.approx(factor, rel=1e-6)
    assert bias["n_opt_factor"] == pytest.approx([factor] * 7, rel=1e-6)
    if variant == "parabola":
        assert factor == pytest.approx(INFLATED[surface.alpha], abs=1e-5)
        assert f"lies {factor - 1:.1%} above the surface's own optimum" in bias["text"]
    corrected = result.params
    assert corrected["a"] == pytest.approx(surface.exponent, abs=1e-9)
    assert corrected["N_opt"] == pytest.approx(float(surface.n_opt(middle)), rel=1e-6)
    assert corrected["L_opt"] == pytest.approx(surface.l_opt(middle), rel=1e-6)
    assert corrected["E"] == pytest.approx(surface.e, rel=1e-3)
    json.dumps(result.to_dict(), allow_nan=False)


def test_a_drifting_centre_makes_the_exponent_wrong_and_is_corrected() -> None:
    surface = Surface(0.465, 0.155)
    points = Design("points", 7, 9, 0.0, wide=64.0, drift=2.0).points(surface)
    result = fit_isoflop(points, six_nd(), surface=surface, n_replicates=0)
    bias = result.diagnostics["bias"]
    assert abs(bias["raw"]["params"]["a"] - surface.exponent) > 0.005
    assert bias["exponent"] == pytest.approx(bias["raw"]["params"]["a"] - surface.exponent, abs=1e-7)
    assert result.params["a"] == pytest.approx(surface.exponent, abs=1e-7)


def noisy(design: Design, surface: Surface, seed: int = 1) -> Points:
    clean = design.points(surface)
    return replace(clean, loss=design.draw(clean, np.random.default_rng(seed)))


def test_published_numbers_are_of_the_optimum_and_reach_to_the_parabolas() -> None:
    surface, design = Surface(0.465, 0.155), Design("points", 5, 7, 0.003, drift=1.0)
    points, at = noisy(design, surface), [10**19.5, 1e21, 1.05e22, 1.2e22]
    result = fit_isoflop(points, six_nd(), surface=surface, n_replicates=199, at=at)
    plain = fit_isoflop(points, six_nd(), n_replicates=199, at=at)
    raw = result.diagnostics["bias"]["raw"]
    assert raw["params"] == plain.params and raw["intervals"] == plain.intervals
    for name, ends in result.intervals.items():
        assert ends is not None and ends[0] <= min(raw["params"][name], result.params[name])
        assert ends[1] >= max(raw["params"][name], result.params[name])
    assert raw["params"]["N_opt"] / result.params["N_opt"] > 1.05
    for one, own in zip(result.diagnostics["optimum"], raw["optimum"], strict=True):
        low, high = one["intervals"]["N"]
        assert low <= float(surface.n_opt(one["C"])) <= high and low <= own["N"] <= high
    given = [[one["intervals"]["L"] is not None for one in told.diagnostics["optimum"]] for told in (result, plain)]
    assert given == [[True, True, True, False], [True, True, False, False]]
    assert "ten times" in result.interval["without"] and plain.interval["without"] == "L_opt outside the budgets"
    assert result.interval["estimand"].startswith("the optimum: the parabola's minimum less its bias on the fitted")
    assert plain.interval["estimand"].startswith("the parabola's minimum at these sizes, not the optimum")


def test_a_known_surface_is_told_apart_from_one_fitted_to_the_same_losses() -> None:
    surface = Surface()
    points = noisy(Design("curves", 4, 6, 0.003), surface)  # sizes far apart: parabolas miss much of the surface
    options = {"surface": surface, "n_replicates": 199}
    known, fitted = (fit_isoflop(points, six_nd(), known=one, **options) for one in (True, False))  # type: ignore[arg-type]
    widths = [one.intervals["a"][1] - one.intervals["a"][0] for one in (known, fitted)]  # type: ignore[index]
    assert widths[0] < 0.7 * widths[1]
    assert known.params == fitted.params and "given as known" in known.interval["estimand"]
    with pytest.raises(InputError, match="give it as surface"):
        fit_isoflop(points, six_nd(), known=True)


def test_a_surfaces_optimum_under_the_closed_form_and_a_cost_that_bends() -> None:
    log_c = np.log([1e18, 1e20, 1e22])
    for surface in SURFACES:
        found = surface_optimum(surface, six_nd(), log_c, 10.0, 30.0)
        assert np.exp(found) == pytest.approx(surface.n_opt(np.exp(log_c)), rel=1e-6)
    cost = Cost(np.log([1e6, 1e8, 1e10]), np.log([3e7, 9e8, 6e10]), "exact")
    found = surface_optimum(Surface(), cost, log_c, 10.0, 30.0)
    for x, at in zip(log_c, found, strict=True):

        def loss(y: float, x: float = float(x)) -> float:
            return float(Surface()(np.exp(y), np.exp(x) / cost.per_token(np.exp(y))))

        grid = np.linspace(10, 30, 2_001)
        best = grid[np.argmin([loss(y) for y in grid])]
        by_scipy = optimize.minimize_scalar(loss, bounds=(best - 0.1, best + 0.1), method="bounded").x
        assert at == pytest.approx(by_scipy, abs=1e-3)


def test_the_parabola_is_polyfits_and_flatness_is_where_the_loss_has_risen() -> None:
    rng = np.random.default_rng(0)
    x = np.linspace(18, 22, 7)
    loss = 2.5 + 0.05 * (x - 20.3) ** 2 + 0.001 * rng.standard_normal((5, 7))
    found = parabola_minima(x, loss)
    for i in range(5):
        square, linear, constant = np.polyfit(x, loss[i], 2)
        assert found.log_n[i] == pytest.approx(-linear / 2 / square, rel=1e-9)
        assert found.loss[i] == pytest.approx(constant - linear**2 / 4 / square, rel=1e-9)
        ends = np.polyval([square, linear, constant], found.flat[i])
        assert ends / found.loss[i] == pytest.approx([1.005, 1.005], rel=1e-9)


def test_the_interpolation_goes_through_the_sizes_and_finds_the_least() -> None:
    x = np.linspace(18, 22, 9)
    loss = (2.5 + 0.05 * np.cosh(x - 20.3))[None]
    found = interpolated_minima(x, loss)
    assert found.log_n[0] == pytest.approx(20.3, abs=0.02)
    assert found.why_not is None and x[0] < found.flat[0, 0] < 20.3 < found.flat[0, 1] < x[-1]
    twice = interpolated_minima(np.repeat(x, 2), np.repeat(loss, 2, axis=1) + np.tile([0.01, -0.01], 9))
    assert twice.log_n[0] == pytest.approx(found.log_n[0])
    assert "not inside its sizes" in str(interpolated_minima(x, np.linspace(3, 2, 9)[None]).why_not)


def test_minima_outside_and_parabolas_that_open_downward_are_refused_and_named() -> None:
    surface = Surface()
    points = Design("points", 6, 5, 0.0).points(surface)
    loss = points.loss.copy()
    loss[:5] = 2 * loss[:5].max() - loss[:5]  # a hill
    loss[5:10] = np.linspace(3.5, 3.0, 5) + 0.01 * np.array([1, 0, 0, 0, 1])  # falls to the largest size
    keep = np.ones(len(points), dtype=bool)
    keep[10:13] = False  # two sizes are left
    result = fit_isoflop(replace(points, loss=loss).take(keep), six_nd(), n_replicates=0)
    first, second, third = result.diagnostics["refused"]
    assert "opens downward" in first and "is not inside its sizes" in second and "2 sizes, 3 are needed" in third
    alone = points.take(np.append(np.flatnonzero(keep), 10))  # and a size on its own
    told = fit_isoflop(replace(alone, flops=np.append(points.flops[keep], 5e21)), six_nd(), n_replicates=0, at=[1e22])
    assert told.diagnostics["left_out"] == ["1 point lies at a compute that no other size has"]
    assert result.diagnostics["n_budgets"] == 6 and result.diagnostics["n_budgets_used"] == 3
    assert result.params["a"] == pytest.approx(surface.exponent, abs=1e-9)


def test_a_run_that_diverged_takes_its_budget_out_and_no_more() -> None:
    """The parabola through 3, 2, 2, 2 and 60 has its lowest point at -7, whose logarithm ended the fit."""
    surface = Surface()
    points = Design("points", 7, 5, 0.0).points(surface)
    loss = points.loss.copy()
    worst = int(np.lexsort((-points.n_params, points.flops))[0])  # the largest size of the first budget
    loss[worst] *= 20
    result = fit_isoflop(replace(points, loss=loss), six_nd(), surface=surface, n_replicates=0)
    assert [one["reason"] for one in result.diagnostics["budgets"]] == [BELOW_0, *[None] * 6]
    assert result.params["a"] == pytest.approx(surface.exponent, abs=1e-6)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda p: p.take(np.arange(7)), "1 of 1 budget has a minimum inside its sizes, 3 are needed"),
        (lambda p: p.take(np.arange(14)), "2 of 2 budgets have a minimum inside their sizes, 3 are needed"),
        (lambda p: p.take(np.arange(3)), "0 of 1 budget has"),
        (lambda p: p.take(p.n_params < np.median(p.n_params[:7])), "3 are needed"),
        (lambda p: replace(p, loss=np.geomspace(3, 2, len(p))), "0 of 4 budgets have a minimum"),
        (lambda p: p.take(np.arange(0)), "no points"),
        (lambda p: replace(p, loss=np.where(np.arange(len(p)) == 3, np.nan, p.loss)), "row 4"),
    ],
)
def test_too_little_is_an_error_that_says_what_is_needed(make, told) -> None:  # type: ignore[no-untyped-def]
    points = Design("points", 4, 7, 0.0).points(Surface())
    with pytest.raises(InputError, match=told):
        fit_isoflop(make(points), six_nd())


def test_without_anything_that_tells_the_noise_there_is_no_interval() -> None:
    result = fit_isoflop(Design("points", 4, 3, 0.0).points(Surface()), six_nd())
    assert set(result.intervals.values()) == {None} and result.interval["method"].startswith("none")
    seeds = fit_isoflop(Design("points", 4, 3, 0.0).points(Surface()), six_nd(), noise=SeedNoise(0.001, 4))
    assert seeds.intervals["a"] is not None and "replicate seeds" in seeds.interval["method"]


def test_budgets_are_clusters_of_log_compute() -> None:
    points = Design("points", 4, 7, 0.0).points(Surface())
    rng = np.random.default_rng(0)
    flops = points.flops * np.exp(rng.uniform(-0.02, 0.02, len(points)))
    moved = made(Surface(), points.n_params, flops)
    found = read_budgets(moved)
    assert len(found.log_c) == 4 and found.counts().tolist() == [7] * 4 and 0.005 < found.spread.max() < 0.03
    exact = fit_isoflop(points, six_nd(), n_replicates=0)
    result = fit_isoflop(moved, six_nd(), n_replicates=0)  # losses are moved to their budget's C
    assert result.params["a"] == pytest.approx(exact.params["a"], abs=2e-3)
    assert result.params["N_opt"] == pytest.approx(exact.params["N_opt"], rel=5e-3)
    named = read_budgets(moved, budgets=[1e18, 1e20])  # of 1e18, 1e19, 1e20 and 1e21
    assert len(named.log_c) == 2 and "14 points lie more than" in named.left_out[0]
    smeared = made(Surface(), points.n_params, np.geomspace(1e18, 1e19, len(points)))
    with pytest.raises(InputError, match=r"no budgets: 28 points from 1e18 to 1e19 FLOP lie at no common budget"):
        read_budgets(smeared)


def test_no_loss_is_told_beyond_three_budgets() -> None:
    points = Design("points", 3, 7, 0.0).points(Surface())
    inside, beyond = fit_isoflop(points, six_nd(), n_replicates=0, at=[1e20, 1e22]).diagnostics["optimum"]
    assert inside["L"] == pytest.approx(Surface().l_opt(1e20), rel=0.02) and beyond["L"] is None
    assert beyond["N"] is not None and beyond["intervals"]["L"] is None


def test_whole_curves_are_read_at_budgets() -> None:
    surface = Surface()
    points = Design("curves", 4, 9, 0.0).points(surface)
    c = [3e18, 1e19, 1e20, 3e20]
    result = fit_isoflop(points, six_nd(), "interpolation", budgets=c, surface=surface, n_replicates=0)
    assert result.diagnostics["from_curves"] and result.diagnostics["n_budgets_used"] == 4
    for one in result.diagnostics["budgets"]:
        assert one["n_params"] == pytest.approx(float(surface.n_opt(one["c"])), rel=0.08)
    assert result.params["a"] == pytest.approx(surface.exponent, abs=2e-3)
    own = fit_isoflop(points, six_nd(), surface=surface, n_replicates=0)
    assert own.diagnostics["n_budgets"] == 8
    assert own.params["a"] == pytest.approx(surface.exponent, abs=2e-3)


def test_same_answer_for_shuffled_rows_and_other_units() -> None:
    design = Design("points", 5, 7, 0.003)
    clean = design.points(Surface())
    points = replace(clean, loss=design.draw(clean, np.random.default_rng(1)))
    plain = fit_isoflop(points, six_nd(), n_replicates=0)
    shuffled = fit_isoflop(points.take(np.random.default_rng(2).permutation(len(points))), six_nd(), n_replicates=0)
    bits = fit_isoflop(replace(points, loss=points.loss / math.log(2)), six_nd(), n_replicates=0)
    for other, factor in ((shuffled, 1.0), (bits, 1 / math.log(2))):
        assert other.params["a"] == pytest.approx(plain.params["a"], rel=1e-9)
        assert other.params["N_opt"] == pytest.approx(plain.params["N_opt"], rel=1e-9)
        assert other.params["L_opt"] == pytest.approx(plain.params["L_opt"] * factor, rel=1e-9)
    assert shuffled.input_hash == plain.input_hash


def test_runs_are_resampled_from_twenty_and_trunks_count_as_one() -> None:
    design = Design("points", 5, 7, 0.003)
    clean = design.points(Surface())
    points = replace(clean, loss=design.draw(clean, np.random.default_rng(1)))
    result = fit_isoflop(points, six_nd(), n_replicates=199)
    assert result.interval["method"].startswith("wild bootstrap over runs") and result.interval["n_runs"] == 35
    few = Design("branches", 5, 8, 0.003).points(Surface())
    noisy = replace(few, loss=design.draw(few, np.random.default_rng(1)))
    result = fit_isoflop(noisy, six_nd(), n_replicates=199)
    assert result.interval["method"].startswith("parametric") and result.interval["n_trunks"] == 8
    fit = isoflop(noisy, six_nd(), n_replicates=199)
    again = isoflop(noisy, six_nd(), n_replicates=199)
    assert fit.predict("N_opt", 1e22) == again.predict("N_opt", 1e22)
