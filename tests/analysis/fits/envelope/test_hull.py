"""The convex hull as an envelope, sizes that count as one, and optima that runs refute."""

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import ConvexHull

from analysis.fits.envelope.diagnostics import refuted
from analysis.fits.envelope.extract import SizeCurve, near_as_one
from analysis.fits.envelope.hull import lower_hull
from analysis.fits.envelope.of_points import fit_envelope
from analysis.fits.fit import L_OPT, N_OPT
from analysis.fits.noise import SeedNoise
from analysis.fits.prepare import prepare
from analysis.fits.settings import FitSettings
from analysis.fits.tables import read_table
from arch.errors import InputError

from .test_of_points import study

GEMSTONES = Path(__file__).resolve().parents[5] / "shared" / "data" / "tables" / "gemstones_cooldown.csv"


def gemstones():
    if not GEMSTONES.is_file():
        pytest.skip("no shared/data/tables beside the repository")
    return prepare(read_table(GEMSTONES), points="curves").groups[""]


def test_the_lower_hull_is_the_lower_side_of_the_hull():
    rng = np.random.default_rng(0)
    for _ in range(50):
        x, y = rng.standard_normal((2, 30))
        vertices = ConvexHull(np.column_stack([x, y])).vertices
        chord = np.interp(x, x[[x.argmin(), x.argmax()]], y[[x.argmin(), x.argmax()]])
        below = [i for i in vertices if y[i] <= chord[i]]
        assert lower_hull(x, y).tolist() == sorted(below, key=lambda i: x[i])


def test_points_on_a_line_or_at_one_compute_are_no_vertices():
    assert lower_hull(np.array([2.0, 0.0, 1.0, 1.0]), np.array([0.0, 2.0, 1.0, 3.0])).tolist() == [1, 0]
    assert lower_hull(np.array([0.0, 0.0, 1.0]), np.array([1.0, 2.0, 0.0])).tolist() == [0, 2]


def test_the_published_hull_of_the_gemstones():
    """McLeish et al. 2025: the exponent of their 22 models, which differ in width and depth, by the hull."""
    found = fit_envelope(gemstones(), settings=FitSettings(optimum="hull"))
    assert found.a.value == pytest.approx(0.597, abs=5e-4)
    assert found.law(N_OPT).n_points == 12


def test_near_sizes_are_one_and_crossings_then_agree_with_the_hull():
    """Without it crossings of sizes 1 to 9% apart, which other shapes make, give 0.771."""
    apart, near = (fit_envelope(gemstones(), settings=FitSettings(near_sizes=factor)) for factor in (1.0, 1.1))
    assert apart.a.value == pytest.approx(0.771, abs=1e-3) and apart.envelope.n_crossings_disordered == 3
    assert near.a.value == pytest.approx(0.597, abs=0.01) and near.envelope.n_crossings_disordered == 0
    assert "95.6M to 104M (5)" in near.notes[0]


@pytest.mark.parametrize("optimum", ["crossings", "envelope", "hull"])
@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_no_optimum_inside_the_range_is_refuted_by_a_run(optimum, factor):
    """The checks written down once more, on the rows of the table alone: no run had a lower loss than L_opt after less
    compute, by more than 1%; and none of the sizes at most 1.5 times from N_opt is as low, where L_opt is below all."""
    points = gemstones()
    at = np.geomspace(points.flops.min(), points.flops.max(), 40)
    found = fit_envelope(points, at=at, settings=FitSettings(optimum=optimum, near_sizes=factor))
    stated = [one for one in found.optima if one.loss.value is not None]
    assert len(stated) > 5
    for one in stated:
        assert one.loss.value < 1.011 * points.loss[points.flops <= one.flops * (1 + 1e-9)].min()
    none = [one for one in found.optima if one.loss.value is None]
    assert none and all("is refuted, as" in one.loss.reason for one in none)


def line(n_params, losses, at=(1.0, 2.0, 3.0)):
    return SizeCurve(f"{n_params:g}", n_params, 1.0, 0.0, 1, np.array(at), np.log(losses))


def test_what_refutes_an_optimum():
    curves = [line(1e6, [4.0, 3.6, 3.5]), line(1e7, [4.4, 3.5, 3.1]), line(1e8, [5.0, 4.0, 3.4])]
    c = float(np.exp(3.0))
    assert refuted(curves, c, 1e7, 3.09, 0.01) == {}
    assert refuted(curves, c, 2e7, 3.08, 0.01) == {}
    assert refuted(curves, c, 2e8, 3.1, 0.01) == {
        N_OPT: "there N = 100M has 3.4, and N = 10M 3.1",
    }
    assert refuted(curves, c, 5e5, 3.1, 0.01) == {N_OPT: "there N = 1M has 3.5, and N = 10M 3.1"}
    assert refuted(curves, c, 1e7, 3.2, 0.01) == {L_OPT: "N = 10M had 3.1 by then"}
    assert refuted(curves, c, 1e7, 3.0, 0.01) == {L_OPT: "the best size there, N = 10M, has 3.1"}
    assert L_OPT not in refuted(curves, c, 5e8, 3.0, 0.01)  # a size that nobody trained may do that
    assert refuted(curves, c, None, None, 0.01) == {}


def test_near_sizes_are_the_best_of_them_at_each_compute():
    curves = [line(1e6, [4.0, 3.6]), line(1.05e6, [3.9, 3.7]), line(1.09e6, [3.95, 3.5]), line(1.2e6, [4.1, 3.4])]
    curves = [
        SizeCurve(*(one.size, one.n_params, 6 * one.n_params, 0.0, 2, one.log_c[:2], one.log_loss)) for one in curves
    ]
    near, other = near_as_one(curves, 1.1)
    assert np.exp(near.log_loss) == pytest.approx([3.9, 3.5]) and near.n_seeds == 2
    assert near.n_params == pytest.approx((1.05 * 1.09) ** (1 / 3) * 1e6, rel=1e-6)
    assert near.flops_per_token == pytest.approx(6 * near.n_params, rel=1e-6)
    assert near.size == "1e+06 to 1.09e+06" and other is curves[-1]
    assert near_as_one(curves, 1.0) == curves


def test_the_hull_of_an_ordinary_ladder():
    """With an interval from the noise between seeds, and near the law of the surface, a = 1/2."""
    points, noise = study(2, 1, 0.002), SeedNoise(0.002, 6.0)
    found = fit_envelope(points, noise=noise, settings=FitSettings(optimum="hull", n_replicates=200))
    low, high = found.a.interval
    assert low < found.a.value < high and found.a.value == pytest.approx(0.5, abs=0.1)
    assert found.law(N_OPT).method.startswith("vertices of the convex hull")
    few = points.take(points.n_params < 3e6)
    assert "on the hull, 3 are needed" in fit_envelope(few, settings=FitSettings(optimum="hull")).law(N_OPT).reason


def test_the_options_of_the_envelope():
    from analysis.fits.approaches import Options

    for option in ({"optimum": "hulls"}, {"near_sizes": 0.9}):
        with pytest.raises(InputError, match=f"--{next(iter(option)).replace('_', '-')}: "):
            Options(**option)
