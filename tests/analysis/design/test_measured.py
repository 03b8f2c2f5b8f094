"""What a pilot's runs tell of their noise, of runs drawn with a known one."""

import numpy as np
import pytest

from analysis.design.measured import bend, seeds_alone, text_noise
from analysis.design.proposal import laid
from analysis.design.simulate import draw
from analysis.design.worlds import Noise, World
from analysis.fits.cost import six_nd
from analysis.fits.parametric import fit_parametric
from analysis.fits.solver import LEAST_SQUARES

WORLD = World("fitted", 0.8, 0.36, 0.34, 0.2, 0.2, 0.0)


def test_the_noise_of_the_text_is_that_of_single_steps_whatever_their_batch():
    rng = np.random.default_rng(0)
    curves = []
    for batch, n in ((1024, 2e5), (4096, 4e5), (65_536, 4e6)):
        tokens = batch * np.arange(1, 1501, dtype=float)
        loss = WORLD.loss(n, tokens) + 5.0 / np.sqrt(batch) * rng.standard_normal(len(tokens))
        curves.append((tokens, loss, float(batch)))
    assert text_noise(curves) == pytest.approx(5.0, rel=0.05)
    assert text_noise([(np.arange(1.0, 50), np.ones(49), 1024.0)]) is None and text_noise([]) is None


def test_seeds_differ_by_their_text_too():
    assert seeds_alone(0.006, 5.0, 2.0, 4e5) == pytest.approx((0.006**2 - (2.5**2) / 4e5) ** 0.5)
    assert seeds_alone(0.006, 5.0, 2.0, 1e4) == pytest.approx(0.002)


@pytest.mark.parametrize("truth", [0.0, 0.015])
def test_curves_that_bend_differ_from_curves_that_do_not(truth):
    layout = laid(3e5, 8, 32.0, 20.0, 1.0, 0.0, (2, 99), 1e9, curves=True).layout()
    noise, rng = Noise(0.004, bend=truth), np.random.default_rng(1)
    fits = [
        fit_parametric(draw(layout, WORLD, noise, six_nd(), rng), objective=LEAST_SQUARES, n_replicates=0)
        for _ in range(12)
    ]
    assert bend(fits, noise) == pytest.approx(truth, abs=0.004)
