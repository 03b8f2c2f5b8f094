"""Linearised precision beside drawn studies: noise of runs and slopes, and what a sweep of learning rates leaves."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.design.choose import draw
from analysis.design.precision import (
    CURVATURE,
    MEMORY,
    SCATTER,
    errors_by_laws,
    errors_by_sweep,
    lost,
    missed,
    precision,
    variance_of,
)
from analysis.design.proposal import MOST_SWEEP, SWEPT_SIZES, Price, laid, naive, with_sweep
from analysis.design.worlds import Noise, World
from analysis.fits.cost import six_nd
from analysis.fits.solver import LEAST_SQUARES, fit_surfaces
from analysis.rates.law import fit_rates
from tests.analysis.rates.worlds import World as RateWorld

from .worlds import REAL, SIX, WORLD

MISTUNED = World("mistuned", 0.8, 0.36, 0.34, 0.2, 0.2, 0.02, 7)
NOISE = Noise(0.004)
six = Price(lambda n: 6 * n)


def test_the_covariance_is_what_studies_are_drawn_with():
    layout, noise = laid(2e5, 6, 16.0, 14.0, 1.0, (2, 99), 1e9).layout(), Noise(0.004, 0.01, text=5.0)
    at, along = np.log(layout.n_tokens), layout.along_sizes()
    of_runs = (layout.run[:, None] == layout.run) * np.exp(-np.abs(at[:, None] - at) / MEMORY)
    known = noise.seed**2 * of_runs + noise.bend**2 * along @ along.T
    clean = WORLD.loss(layout.n_params, layout.n_tokens)
    known += np.diag((noise.text / clean) ** 2 / layout.window)
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((1, 2, len(at)))
    exact = (weight[0] @ known @ weight[0].T).diagonal()
    assert variance_of(layout, noise, weight, clean[None])[0] == pytest.approx(exact)
    off = np.log(np.stack([draw(layout, WORLD, noise, six_nd(), rng).loss for _ in range(1500)]) / clean)
    assert (off @ weight[0].T).var(0) == pytest.approx(exact, rel=0.12)
    assert np.abs(along.sum(0)).max() < 1e-9


@pytest.mark.parametrize("cost", [SIX, REAL], ids=["6nd", "real"])
def test_linearised_precision_is_that_of_drawn_studies(cost):
    layout, noise, target = naive(2e7).layout(), Noise(0.002), 5e15
    linear = precision(layout, [WORLD], noise, cost, target)
    rng = np.random.default_rng(0)
    drawn = [draw(layout, WORLD, noise, cost, rng) for _ in range(300)]
    fits = fit_surfaces(
        np.log(layout.n_params), np.log(layout.n_tokens), np.stack([p.loss for p in drawn]), objective=LEAST_SQUARES
    )
    at = np.array([drawn[0].flops.min(), drawn[0].flops.max(), target])
    log_n = np.log(fits.surface.column().n_opt(at, cost))
    a = (log_n[:, 1] - log_n[:, 0]) / math.log(at[1] / at[0])
    log_l = np.log(fits.surface.column().l_opt(at, cost))[:, 2]
    for values, sd in ((a, linear.a), (log_n[:, 2], linear.log_n), (log_l, linear.log_l)):
        assert values.std() == pytest.approx(float(sd[0]), rel=0.15)
    assert np.abs(missed(layout, [WORLD], noise, cost, target).a).max() < 1e-3


def made(n: float):
    return with_sweep(laid(n, 6, 32.0, 20.0, 0.0, (3, 99), 1e10), six)


def test_errors_of_rates_are_those_of_drawn_sweeps():
    """In 60 sweeps: the law's rate at each size less the best rate, by the fit of rates that `scaling sweep` makes."""
    proposal = replace(laid(3e5, 6, 8.0, 20.0, 1.0, (1, 1), 1e10), sweep=(0, 1, 3))
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
        runs = [(n, d) for n, d in zip(proposal.sizes, proposal.tokens, strict=True)]
        errors.append([math.log(law.at(n, d, 65_536).rate) - world.ln_best(n, d, 65_536) for n, d in runs])
    drawn = np.sqrt(np.mean(np.square(errors), 0) + SCATTER**2)
    assert drawn == pytest.approx(expected, rel=0.3)
    by_laws = np.sqrt(np.mean([np.diag(errors_by_laws(layout, replace(NOISE, laws=(law,)))) for law in laws], 0))
    assert by_laws == pytest.approx(expected, rel=0.4)


def test_what_is_lost_is_of_the_errors_and_without_a_sweep_of_the_world():
    layout = made(3e5).layout()
    expected = CURVATURE * np.diag(errors_by_sweep(layout, NOISE))
    rng = np.random.default_rng(1)
    drawn = np.mean([lost(layout, MISTUNED, NOISE, rng) for _ in range(3000)], 0)
    assert drawn == pytest.approx(expected, rel=0.1) and drawn.max() < 0.3 * MISTUNED.extra
    bare = laid(3e5, 6, 32.0, 20.0, 0.0, (3, 99), 1e10).layout()
    assert lost(bare, MISTUNED, NOISE, rng) == pytest.approx(MISTUNED.off(6))


def test_a_sweep_costs_its_runs_and_no_more_than_its_share():
    swept = made(3e5)
    assert len(swept.sweep) == SWEPT_SIZES and swept.sweep[0] == 0
    main = 6 * sum(map(math.prod, zip(swept.sizes, swept.tokens, swept.seeds, strict=True)))
    tokens_swept = 6 * 5 * sum(swept.sizes[i] * d for i in swept.sweep for d in swept.swept(i))
    assert swept.cost(six) == pytest.approx(main + tokens_swept) and tokens_swept <= MOST_SWEEP * main
    assert swept.swept(3) == pytest.approx([swept.tokens[0] / 8, swept.tokens[0] / 2])
    by_size = laid(3e5, 6, 8.0, 20.0, 1.0, (3, 99), 1e10)
    assert by_size.swept(3) == pytest.approx([20 * by_size.sizes[3] / 8, 20 * by_size.sizes[3] / 2])
    far_apart = laid(3e5, 6, 64.0, 20.0, 1.0, (1, 1), 1e10)
    assert not with_sweep(far_apart, six).sweep  # one batch would be too small for its longest run
