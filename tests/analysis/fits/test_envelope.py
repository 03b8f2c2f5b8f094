"""The envelope: who owns which point and why it says nothing about N_opt, near sizes, the hull, L(C) and whether it is
a power law, intervals, and optima that runs refute."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import ConvexHull

from analysis.fits.approaches import Options
from analysis.fits.cost import six_nd
from analysis.fits.envelope import (
    ENDED,
    LARGEST,
    SMALLEST,
    UNCOVERED,
    UNRIVALLED,
    WARMUP,
    Curves,
    bend_of,
    envelope_laws,
    extract,
    fit_envelope,
    fit_lines,
    lower_hull,
    merge_near,
    refuted,
)
from analysis.fits.fit import L_OPT, N_OPT, Law
from analysis.fits.noise import SeedNoise
from analysis.fits.parametric import fit_parametric, parametric_result
from analysis.fits.points import Points
from analysis.fits.prepare import prepare
from analysis.fits.seeds import SizeCurve
from analysis.fits.settings import FitSettings
from analysis.fits.tables import read_table
from arch.errors import InputError

from .test_seeds import drawn
from .worlds import SETTINGS, Ladder, Setting, World, coverage

GEMSTONES = Path(__file__).resolve().parents[4] / "shared" / "data" / "tables" / "gemstones_cooldown.csv"


def line(name: str, rank: int) -> SizeCurve:
    """One FLOP a token, so that log C is log tokens; log losses: a 10; b 10 - x; c 12 - 2x; d 16 - 3x. So b beats a
    from 0 on, c beats b from 2, d beats c from 4."""
    log_c = np.linspace(0.0, 8.0, 50)
    return SizeCurve(name, 10**rank, 1.0, 0, 1, log_c, 10.0 + rank * (rank - 1) - rank * log_c)


A, B, C, D = (line(name, rank) for rank, name in enumerate("abcd"))
E = replace(line("e", 4), log_loss=22.0 - 4 * A.log_c)


def cut(curve: SizeCurve, low: float, high: float) -> SizeCurve:
    keep = (curve.log_c >= low) & (curve.log_c <= high)
    return replace(curve, log_c=curve.log_c[keep], log_loss=curve.log_loss[keep])


@pytest.mark.parametrize(
    ("curves", "grid", "owners", "codes"),
    [
        (
            [A, B, C, D],
            [-0.2, 0.5, 1.9, 2.1, 3.9, 4.1, 7.0, 8.5],
            ".bbccdd.",
            [UNCOVERED, 0, 0, 0, 0, LARGEST, LARGEST, UNCOVERED],
        ),
        ([B, C, D], [1.0, 3.0], "bc", [SMALLEST, 0]),
        ([A, replace(B, warmup_tokens=np.exp(1.5)), C, D], [1.0, 1.9], "bb", [WARMUP, 0]),
        # b ends before c overtakes it at 2
        ([A, cut(B, 0, 1.5), C, D], [1.0, 1.8, 2.5, 3.5], "bccc", [0, ENDED, ENDED, ENDED]),
        # overtaken before it ends: what follows is c's own, and d's, although b was still ahead of d when it ended
        ([A, cut(B, 0, 2.4), C, D, E], [1.0, 2.5, 4.5, 5.5], "bcdd", [0, 0, 0, 0]),
        # c owns from 2 to 4; where d has ended, or not begun, d might have been ahead
        ([A, B, C, cut(D, 0, 2.9)], [1.0, 2.5, 3.0, 3.5], "bccc", [0, 0, UNRIVALLED, UNRIVALLED]),
        ([A, B, C, cut(D, 3.2, 8)], [1.0, 2.5, 3.0, 3.5], "bccc", [0, UNRIVALLED, UNRIVALLED, 0]),
    ],
)
def test_owners_of_crossing_lines_and_what_censors_a_point(
    curves: list[SizeCurve], grid: list[float], owners: str, codes: list[int]
) -> None:
    envelope = extract(curves, np.array(grid))
    named = zip(envelope.owner[0], envelope.code[0], strict=True)
    assert "".join(curves[k].size if code != UNCOVERED else "." for k, code in named) == owners
    assert envelope.code[0].tolist() == codes
    without = extract(curves, np.array(grid), censor=False).code[0]
    assert set(without) <= {0, WARMUP, UNCOVERED} and set(without[envelope.code[0] == WARMUP]) <= {WARMUP}


def test_a_stretch_is_two_neighbouring_points() -> None:
    for grid, owners in (([0.5, 1.0, 2.1, 3.0, 4.1, 5.0], [0, 1, 1, 0]), ([1.0, 1.9, 3.0, 5.0], [0, 1, 0, 0])):
        assert extract([A, B, C, D], np.array(grid)).owns_stretch().tolist() == [owners]


def test_shifts_move_owners() -> None:
    envelope = extract([A, B, C, D], np.array([3.0]), np.array([[0.0] * 4, [0.0, -5.0, 0.0, 0.0]]))
    assert envelope.owner[:, 0].tolist() == [2, 1] and np.allclose(envelope.log_loss[:, 0], [6.0, 2.0])


def test_near_sizes_are_the_best_of_them_at_each_compute() -> None:
    losses = {1e6: [4.0, 3.6], 1.05e6: [3.9, 3.7], 1.09e6: [3.95, 3.5], 1.2e6: [4.1, 3.4]}
    curves = [
        SizeCurve(f"{n:g}", n, 6 * n, 0.0, 2, np.array([1.0, 2.0]), np.log(values)) for n, values in losses.items()
    ]
    near, other = merge_near(curves, 1.1)
    assert np.exp(near.log_loss) == pytest.approx([3.9, 3.5]) and near.n_seeds == 2
    assert near.n_params == pytest.approx((1.05 * 1.09) ** (1 / 3) * 1e6, rel=1e-6)
    assert near.flops_per_token == pytest.approx(6 * near.n_params, rel=1e-6)
    assert near.size == "1e+06 to 1.09e+06" and other is curves[-1]
    assert merge_near(curves, 1.0) == curves


# The hull, and tables of other people


def gemstones() -> Points:
    if not GEMSTONES.is_file():
        pytest.skip("no shared/data/tables beside the repository")
    return prepare(read_table(GEMSTONES), points="curves").groups[""]


def test_the_lower_hull_is_the_lower_side_of_the_hull() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        x, y = rng.standard_normal((2, 30))
        chord = np.interp(x, x[[x.argmin(), x.argmax()]], y[[x.argmin(), x.argmax()]])
        below = [i for i in ConvexHull(np.column_stack([x, y])).vertices if y[i] <= chord[i]]
        assert lower_hull(x, y).tolist() == sorted(below, key=lambda i: x[i])
    # points on a line or at one compute are no vertices
    assert lower_hull(np.array([2.0, 0.0, 1.0, 1.0]), np.array([0.0, 2.0, 1.0, 3.0])).tolist() == [1, 0]
    assert lower_hull(np.array([0.0, 0.0, 1.0]), np.array([1.0, 2.0, 0.0])).tolist() == [0, 2]


def test_the_published_hull_of_the_gemstones_and_crossings_of_near_sizes_agree() -> None:
    """McLeish et al. 2025: the exponent of their 22 models, which differ in width and depth, by the hull. Crossings of
    sizes 1 to 9% apart, which other shapes make, give 0.771."""
    points = gemstones()
    hull = fit_envelope(points, settings=FitSettings(optimum="hull"))
    assert hull.a.value == pytest.approx(0.597, abs=5e-4) and hull.law(N_OPT).n_points == 12
    apart, near = (fit_envelope(points, settings=FitSettings(near_sizes=factor)) for factor in (1.0, 1.1))
    assert apart.a.value == pytest.approx(0.771, abs=1e-3) and near.a.value == pytest.approx(0.597, abs=0.01)
    for fit, disordered in ((apart, 3), (near, 0)):
        at = [pair.c for pair in fit.envelope.pairs if pair.c is not None]
        assert sum(later < earlier for earlier, later in pairwise(at)) == disordered
    assert "95.6M to 104M (5)" in near.notes[0]


@pytest.mark.parametrize("optimum", ["crossings", "envelope", "hull"])
@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_no_optimum_inside_the_range_is_refuted_by_a_run(optimum: str, factor: float) -> None:
    """On the rows of the table alone: no run had a lower loss than L_opt after less compute, by more than 1%."""
    points = gemstones()
    at = np.geomspace(points.flops.min(), points.flops.max(), 40)
    fit = fit_envelope(points, at=at, settings=FitSettings(optimum=optimum, near_sizes=factor))
    stated = [optimum for optimum in fit.optima if optimum.loss.value is not None]
    assert len(stated) > 5
    for minimum in stated:
        assert minimum.loss.value < 1.011 * points.loss[points.flops <= minimum.flops * (1 + 1e-9)].min()
    none = [optimum for optimum in fit.optima if optimum.loss.value is None]
    assert none and all("is refuted, as" in minimum.loss.reason for minimum in none)


def test_what_refutes_an_optimum() -> None:
    losses = {1e6: [4.0, 3.6, 3.5], 1e7: [4.4, 3.5, 3.1], 1e8: [5.0, 4.0, 3.4]}
    x = np.array([1.0, 2.0, 3.0])
    curves = [SizeCurve(f"{n:g}", n, 1.0, 0.0, 1, x, np.log(values)) for n, values in losses.items()]
    for n_opt, l_opt, against in (
        (1e7, 3.09, {}),
        (2e7, 3.08, {}),
        (2e8, 3.1, {N_OPT: "there N = 100M has 3.4, and N = 10M 3.1"}),
        (5e5, 3.1, {N_OPT: "there N = 1M has 3.5, and N = 10M 3.1"}),
        (1e7, 3.2, {L_OPT: "N = 10M had 3.1 by then"}),
        (1e7, 3.0, {L_OPT: "the best size there, N = 10M, has 3.1"}),
        (None, None, {}),
    ):
        assert refuted(curves, float(np.exp(3.0)), n_opt, l_opt, 0.01) == against
    assert L_OPT not in refuted(curves, float(np.exp(3.0)), 5e8, 3.0, 0.01)  # a size that nobody trained may do that


def points_of(curves: list[SizeCurve]) -> Points:
    n = np.concatenate([np.full(len(curve.log_c), float(curve.n_params)) for curve in curves])
    run = np.concatenate([np.full(len(curve.log_c), curve.size, dtype=object) for curve in curves])
    log_c, log_loss = (np.concatenate([getattr(curve, name) for curve in curves]) for name in ("log_c", "log_loss"))
    return Points(n, np.exp(log_c) / 6 / n, np.exp(log_c), np.exp(log_loss), run=run)


def test_the_hull_of_an_ordinary_ladder_and_the_same_for_the_same_seed() -> None:
    """With an interval from the noise between seeds, and near the law of the surface, a = 1/2."""
    points, noise = drawn(2, trunk_noise=0.002), SeedNoise(0.002, 6.0)
    settings = FitSettings(optimum="hull", n_replicates=200)
    fit, again, other = (
        fit_envelope(points, noise=noise, settings=settings.model_copy(update={"seed": seed})) for seed in (1, 1, 2)
    )
    assert fit.a.low < fit.a.value < fit.a.high and fit.a.value == pytest.approx(0.5, abs=0.1)
    assert fit == again and fit.a.low != other.a.low and fit.a.value == other.a.value
    assert "on the convex hull" in fit.objective.name
    few = fit_envelope(points.take(points.n_params < 3e6), settings=FitSettings(optimum="hull"))
    assert "on the hull, 3 are needed" in few.law(N_OPT).reason
    json.dumps(fit.to_dict(), allow_nan=False)


def test_the_options_of_the_envelope() -> None:
    for option in ({"optimum": "hulls"}, {"near_sizes": 0.9}):
        with pytest.raises(InputError, match=f"--{next(iter(option)).replace('_', '-')}: "):
            Options(**option)


def test_envelope_and_surface_agree_within_their_intervals() -> None:
    """Curves of six sizes in worlds of the fitted form, with noise: a and N_opt of each lie in the other's interval."""
    agreed, rng = 0, np.random.default_rng(3)
    for e, p, q in ((0.6, 0.3, 0.3), (0.6, 0.34, 0.28), (0.3, 0.28, 0.36)):
        curves, noise = Setting.of(World(e, p, q), Ladder(6, 0.003)).draw(rng)
        points = points_of(curves)
        envelope = fit_envelope(points, noise=noise, settings=FitSettings(n_replicates=200))
        surface = fit_parametric(points, cost=six_nd(), noise=(noise.s, noise.df), n_replicates=200)
        parametric = parametric_result(surface, at=[envelope.middle.flops])
        for interval, value in (
            (envelope.a.interval, parametric.a.value),
            (envelope.middle.n_params.interval, parametric.optima[0].n_params.value),
            (parametric.a.interval, envelope.a.value),
        ):
            agreed += interval[0] <= value <= interval[1]
    assert agreed >= 8  # of nine


# L(C)


def loss_law(
    curves: list[SizeCurve], stretch: tuple[float, float], noise: SeedNoise | None = None, **more: float
) -> Law:
    settings = SETTINGS.model_copy(update=more)
    return envelope_laws(Curves(curves, stretch, noise), settings, [0])[0][2]


@pytest.mark.parametrize(("ratio", "p", "q"), [(1.8, 0.34, 0.28), (2.5, 0.34, 0.28), (2.0, 0.3, 0.3)])
def test_the_law_is_that_of_a_continuous_choice_of_sizes(ratio: float, p: float, q: float) -> None:
    """The envelope of six sizes lies up to 0.2% and more above it: that is taken off."""
    setting = Setting.of(World(0.0, p, q), Ladder(6, 0.003, ratio))
    log_c = np.linspace(*np.log(setting.stretch), 40)
    true = np.array([setting.world.log_l_opt(x) for x in log_c])
    law, steps = loss_law(setting.curves, setting.stretch), extract(setting.curves, log_c).log_loss[0] - true
    off = np.log([law.at(c).value for c in np.exp(log_c)]) - true
    assert steps.max() > 0.002 and abs(off.mean()) < 0.15 * steps.mean()


def test_points_whose_optimum_lies_outside_the_sizes_are_left_out() -> None:
    """The range begins a factor of thirty below the first crossing: there the envelope is one curve."""
    setting = Setting.of(World(), Ladder(5, 0.003))
    low, high = setting.stretch
    wide, near = (loss_law(setting.curves, (low / times, high)) for times in (30, 1))
    assert wide.range[0] > low / 3 and near.range == pytest.approx((low, high))
    assert wide.exponent.value == pytest.approx(-0.15, abs=0.002) == pytest.approx(near.exponent.value, abs=0.002)


def test_without_crossings_nothing_is_taken_off_and_nothing_tested() -> None:
    setting = Setting.of(World(), Ladder(4, 0.003))
    law = loss_law(setting.curves[:3], setting.stretch, SeedNoise(0.003, 8))
    about = law.about_loss
    assert law.n_points == SETTINGS.grid_points and about.off_line < 0.01 and law.band is not None
    assert about.curvature.shape is None
    assert "N_opt is not identified" in about.curvature.reason


def test_a_line_that_misses_its_points_has_no_band_although_nothing_can_be_tested() -> None:
    """Equal tokens for all sizes: the envelope is made of the ends of runs, and no two neighbours cross."""
    world, curves, tokens = World(0.6), [], np.geomspace(2e4, 3e5, 160)
    for n in 14e3 * 3.0 ** np.arange(5):
        curves.append(
            SizeCurve(f"{n:.0f}", round(n), 6 * n, 2e4, 1, np.log(6 * n * tokens), np.log(world.loss(n, tokens)))
        )
    stretch = (float(np.exp(curves[0].log_c[0])), float(np.exp(curves[-1].log_c[-1])))
    law = loss_law(curves, stretch, SeedNoise(0.003, 8))
    assert law.about_loss.off_line > 0.02
    assert law.about_loss.curvature.shape == "ragged"
    assert law.exponent.interval is None and law.band is None


def test_a_curve_that_bends_is_called_so_and_has_no_interval() -> None:
    for irreducible, shape in ((0.6, "convex"), (0.0, None)):
        setting = Setting.of(World(irreducible), Ladder(6, 0.002))
        law = loss_law(setting.curves, setting.stretch, SeedNoise(0.002, 8))
        bend = law.about_loss.curvature
        assert bend.shape == shape
        assert (law.exponent.interval is None) == (law.band is None) == (shape is not None)
    concave = np.linspace(0, 3, 40) ** 2 * -0.05
    noise = concave + 0.001 * np.random.default_rng(0).standard_normal((200, 1))
    assert bend_of(np.linspace(20, 24, 40), concave, noise) == "concave"


# Intervals


X = np.linspace(24.0, 29.0, 100)
STRAIGHT = SizeCurve("a", 1e4, 6e4, 0.0, 1, X, 1.0 - 0.15 * (X - X[0]))


def level_of(curves: list[SizeCurve], noise: SeedNoise) -> np.ndarray:
    """The interval of L(C) of 20,000 replicates in the middle of the range, in log L over the fitted one."""
    law = loss_law(curves, (math.exp(X[0]), math.exp(X[-1])), noise, n_replicates=20_000, near_sizes=1.0)
    middle = law.band.c[len(law.band.c) // 2]
    return np.log(law.band.at(middle)) - math.log(law.at(middle).value)


def test_one_straight_curve_gives_its_own_law() -> None:
    law = loss_law([STRAIGHT], (math.exp(X[0]), math.exp(X[-1])), SeedNoise(0.01, 4), near_sizes=1.0)
    assert law.exponent.value == pytest.approx(-0.15, rel=1e-9)
    assert law.coefficient.value == pytest.approx(math.exp(1.0 + 0.15 * X[0]), rel=1e-9)


def test_masked_lines_equal_polyfit_on_the_kept_points() -> None:
    rng = np.random.default_rng(0)
    x, y, keep = rng.normal(25, 2, 30), rng.normal(0, 1, (5, 30)), rng.random((5, 30)) < 0.6
    keep[4] = x == x[0]  # one place makes no line
    slope, intercept, centre = fit_lines(x, y, keep)
    for r in range(4):
        expected = np.polyfit(x[keep[r]], y[r][keep[r]], 1)
        assert slope[r] == pytest.approx(expected[0], rel=1e-8)
        assert intercept[r] - slope[r] * centre[r] == pytest.approx(expected[1], rel=1e-7)
    assert np.isnan(slope[4])


def test_the_level_of_one_curve_is_students_t() -> None:
    """One size: nothing to choose from, so no bias, and the level is moved by t s."""
    ends = level_of([STRAIGHT], SeedNoise(0.01, 4))
    assert ends == pytest.approx([-0.02776, 0.02776], rel=0.05)  # t of 4 degrees of freedom: 2.776


def test_the_level_of_two_equal_curves() -> None:
    """The lower of two normal draws lies s / sqrt(pi) too low, half of that with four seeds, and the level is put so
    much higher; the first curve owns all points, half of them when moved, so the corrected level moves with it by 3/2,
    with the other by -1/2: s sqrt(5/2)."""
    curves = [replace(STRAIGHT, n_seeds=4), replace(STRAIGHT, n_seeds=4)]
    ends = level_of(curves, SeedNoise(0.02, 10**6))
    assert (ends[1] - ends[0]) / 2 / 1.96 == pytest.approx(0.01 * math.sqrt(5 / 2), rel=0.03)
    assert ends.mean() == pytest.approx(0.01 / math.sqrt(math.pi), rel=0.15)


def test_a_few_studies_cover() -> None:
    """A quick look at one easy and one hard cell: at least 85% of 40 (4 sigma below 97%). Where noise is large the
    lowest of the curves lies too low: percentiles of the refitted level would cover 78% of 120."""
    for ladder in (Ladder(6, 0.003), Ladder(4, 0.015)):
        cell = coverage(Setting.of(World(), ladder), 40)
        assert min(cell.a, cell.n_opt, cell.n_opt_beyond, cell.d_opt_beyond) >= 0.85, cell
        assert cell.identified > 0.4
    assert coverage(Setting.of(World(), Ladder(6, 0.025)), 120).loss >= 0.88
