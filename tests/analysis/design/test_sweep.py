"""What a sweep of learning rates leaves: beside drawn sweeps through the project's own fit of rates."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.design.expected import CURVATURE, SCATTER, errors_by_laws, errors_by_sweep, lost
from analysis.design.proposal import MOST_SWEEP, SWEPT_SIZES, Price, laid, with_sweep
from analysis.design.worlds import Noise, World
from analysis.rates.law import fit_rates
from tests.analysis.rates.worlds import World as RateWorld

WORLD = World("mistuned", 0.8, 0.36, 0.34, 0.2, 0.2, 0.02, 7)
NOISE = Noise(0.004)


six = Price(lambda n: 6 * n)


def made(n: float):
    return with_sweep(laid(n, 6, 32.0, 20.0, 1.0, 0.0, (3, 99), 1e10, curves=True), six)


def test_errors_of_rates_are_those_of_drawn_sweeps():
    """In 60 sweeps: the law's rate at each size less the best rate, by the fit of rates that `scaling sweep` makes."""
    proposal = replace(laid(3e5, 6, 8.0, 20.0, 1.0, 1.0, (1, 1), 1e10, curves=True), sweep=(0, 1, 3))
    layout = proposal.layout()
    expected = np.sqrt(np.diag(errors_by_sweep(layout, NOISE)))
    sizes = tuple(round(proposal.sizes[i]) for i in proposal.sweep)
    times = tuple(d / proposal.sizes[proposal.sweep[0]] for d in proposal.swept(proposal.sweep[0]))
    world = RateWorld(
        k=CURVATURE, noise=NOISE.seed, scatter=SCATTER, sizes=sizes, horizons=times, seeds=(0,), archs=("llama",)
    )
    rng, errors, laws = np.random.default_rng(0), [], []
    for _ in range(60):
        law = fit_rates(world.sweep(rng)).laws["llama"]
        laws.append(law)
        runs = [(n, row[-1]) for n, row in zip(proposal.sizes, proposal.tokens, strict=True)]
        errors.append([math.log(law.at(n, d, 65_536).rate) - world.ln_best(n, d, 65_536) for n, d in runs])
    drawn = np.sqrt(np.mean(np.square(errors), 0) + SCATTER**2)
    assert drawn == pytest.approx(expected, rel=0.3)
    by_laws = np.sqrt(np.mean([np.diag(errors_by_laws(layout, replace(NOISE, laws=(law,)))) for law in laws], 0))
    assert by_laws == pytest.approx(expected, rel=0.4)


def test_what_is_lost_is_of_the_errors_and_without_a_sweep_of_the_world():
    layout = made(3e5).layout()
    expected = CURVATURE * np.diag(errors_by_sweep(layout, NOISE))
    rng = np.random.default_rng(1)
    drawn = np.mean([lost(layout, WORLD, NOISE, rng) for _ in range(3000)], 0)
    assert drawn == pytest.approx(expected, rel=0.1) and drawn.max() < 0.3 * WORLD.extra
    bare = laid(3e5, 6, 32.0, 20.0, 1.0, 0.0, (3, 99), 1e10, curves=True).layout()
    assert lost(bare, WORLD, NOISE, rng) == pytest.approx(WORLD.off(6))


def test_a_sweep_costs_its_runs_and_no_more_than_its_share():
    swept = made(3e5)
    assert len(swept.sweep) == SWEPT_SIZES and swept.sweep[0] == 0
    main = 6 * sum(n * d for n, d in zip(swept.sizes, swept.trained, strict=True))
    tokens_swept = 6 * 5 * sum(swept.sizes[i] * d for i in swept.sweep for d in swept.swept(i))
    assert swept.cost(six) == pytest.approx(main + tokens_swept) and tokens_swept <= MOST_SWEEP * main
    assert swept.swept(3) == pytest.approx([swept.tokens[0][0] / 8, swept.tokens[0][0] / 2])
    by_size = laid(3e5, 6, 8.0, 20.0, 1.0, 1.0, (3, 99), 1e10, curves=True)
    assert by_size.swept(3) == pytest.approx([20 * by_size.sizes[3] / 8, 20 * by_size.sizes[3] / 2])
    far_apart = laid(3e5, 6, 64.0, 20.0, 1.0, 1.0, (1, 1), 1e10, curves=True)
    assert not with_sweep(far_apart, six).sweep  # one batch would be too small for its longest run
