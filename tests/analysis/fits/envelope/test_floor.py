"""L(C) above an irreducible loss beside the pure power law, and which of the two describes the curve."""

import json
import math

import numpy as np
import pytest

from analysis.fits.cost import six_nd
from analysis.fits.envelope.floor import (
    IRREDUCIBLE,
    NEITHER,
    POWER_LAW,
    UNDECIDED,
    Floored,
    irreducible_law,
    out_of_sample,
    which,
)
from analysis.fits.envelope.laws import fit_arch
from analysis.fits.envelope.of_points import fit_envelope
from analysis.fits.fit import L_OPT, Estimate, Law, OutOfSample, plain
from analysis.fits.noise import SeedNoise
from analysis.fits.parametric import fit_parametric, parametric_result
from analysis.fits.points import Points
from analysis.fits.settings import FitSettings

from ..worlds import SETTINGS, Ladder, Setting, World, band_at, within

LOG_C = np.log(np.geomspace(1e10, 1e13, 40))


@pytest.mark.parametrize(("e", "form"), [(0.6, IRREDUCIBLE), (0.0, POWER_LAW)])
def test_the_form_of_a_clean_curve_is_told(e: float, form: str) -> None:
    setting = Setting.of(World(e), Ladder(6, 0.001))
    (_, _, pure), part = fit_arch(setting.curves, setting.stretch, SeedNoise(0.001, 8), SETTINGS, [0])
    law, errors = part.irreducible, part.out_of_sample
    assert part.describes == form and law.identified
    assert law.floor.value == pytest.approx(e, abs=0.06) and law.exponent.value == pytest.approx(-0.15, abs=0.01)
    low, high = law.floor.interval
    assert low <= law.floor.value <= high or e == 0
    x, _, log_loss = setting.beyond
    assert math.log(law.at(math.exp(x)).value) == pytest.approx(log_loss, abs=0.005)  # ten times beyond the range
    assert len(errors) == 3 and all(one.irreducible < 0.01 for one in errors)
    if e:
        assert all(one.power_law > 3 * one.irreducible for one in errors)
        assert abs(math.log(pure.at(math.exp(x)).value) - log_loss) > 0.03
    json.dumps(plain(part), allow_nan=False)


def test_no_law_from_few_points_and_none_where_the_loss_stands_still() -> None:
    few = irreducible_law(LOG_C[:7], np.log(2 - 0.01 * np.arange(7)), None, 0.95)
    assert not few.law.identified and "7 points" in few.law.reason and "8 are needed" in few.law.reason
    still = irreducible_law(LOG_C, np.log(1 + np.exp(-5 * (LOG_C - LOG_C[0]))), None, 0.95)
    assert not still.law.identified and "stops falling" in still.law.reason
    assert out_of_sample(LOG_C[:9], np.log(2 - 0.01 * np.arange(9))) == ()  # too few below any cut


def test_which_form_weighs_the_bend_and_the_prediction() -> None:
    one = Law(L_OPT, floor=Estimate(1.0))
    law, worse = (Floored(one, 0.0, (OutOfSample(1.0, *errors),)) for errors in ((0.02, 0.01), (0.01, 0.02)))
    assert which(law, "convex", True) == which(law, "ragged", False) == IRREDUCIBLE
    assert which(worse, "convex", True) == UNDECIDED and which(worse, "ragged", False) == NEITHER
    assert which(law, "concave", True) == NEITHER
    assert which(worse, None, True) == POWER_LAW and which(law, None, True) == which(worse, None, False) == UNDECIDED


def test_envelope_and_parametric_agree_on_whole_curves_within_their_intervals() -> None:
    """Curves of six sizes in worlds of the fitted form, with noise: a and N_opt of each lie in the other's interval."""
    agreed = 0
    rng = np.random.default_rng(3)
    for e, p, q in ((0.6, 0.3, 0.3), (0.6, 0.34, 0.28), (0.3, 0.28, 0.36)):
        curves, noise = Setting.of(World(e, p, q), Ladder(6, 0.003)).draw(rng)
        points = _points(curves)
        envelope = fit_envelope(points, noise=noise, settings=FitSettings(n_replicates=200))
        c = envelope.middle.flops
        assert c is not None
        fit = fit_parametric(points, cost=six_nd(), noise=(noise.s, noise.df), n_replicates=200)
        parametric = parametric_result(fit, at=[c])
        for one, other in ((envelope.a, parametric.a), (envelope.n_opt, parametric.optima[0].n_params)):
            ends = one.interval
            assert ends is not None
            agreed += ends[0] <= other.value <= ends[1]
        ends = parametric.parameters["a"].interval
        assert ends is not None
        agreed += ends[0] <= envelope.parameters["a"].value <= ends[1]
    assert agreed >= 8  # of nine


def _points(curves: list) -> Points:  # type: ignore[type-arg]
    n = np.concatenate([np.full(len(one.log_c), float(one.n_params)) for one in curves])
    flops, loss = (
        np.exp(np.concatenate([c.log_c for c in curves])),
        np.exp(np.concatenate([c.log_loss for c in curves])),
    )
    run = np.concatenate([np.full(len(one.log_c), one.size, dtype=object) for one in curves])
    return Points(n, flops / 6 / n, flops, loss, run=run)


@pytest.mark.slow
def test_how_often_the_irreducible_forms_intervals_cover() -> None:
    """Reported in docs/research/envelope.md; they fall short of their 95%."""
    for e in (0.0, 0.6):
        for s in (0.003, 0.01):
            setting = Setting.of(World(e), Ladder(6, s))
            rng, hits, told = np.random.default_rng(0), {"E": 0, "exponent": 0, "middle": 0}, {}
            for study in range(300):
                curves, noise = setting.draw(rng)
                _, part = fit_arch(curves, setting.stretch, noise, SETTINGS, [study])
                law = part.irreducible
                told[part.describes] = told.get(part.describes, 0) + 1
                hits["E"] += within(e, law.floor.interval)
                hits["exponent"] += within(-0.15, law.exponent.interval)
                hits["middle"] += law.band is None or within(setting.middle[2], band_at(law, setting.middle[0]))
            print(e, s, {name: count / 300 for name, count in hits.items()}, told)
            assert min(hits.values()) >= 0.8 * 300
