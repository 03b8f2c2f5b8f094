"""The noise of a curve's points by the text they are of: closed forms beside drawn ones and a plain covariance."""

import numpy as np
import pytest

from analysis.design.choose import draw
from analysis.design.layout import SHARED, Layout, drawn, seeds_alone, text_noise, weighed
from analysis.design.precision import MEMORY, along_sizes, precision, spread
from analysis.design.proposal import laid, naive
from analysis.design.worlds import Noise, World
from analysis.fits.cost import six_nd

WORLD = World("fitted", 0.8, 0.36, 0.34, 0.2, 0.2, 0.0)
NOISE = Noise(0.004, text=5.0, bend=0.01)


def text_covariance(layout: Layout) -> np.ndarray:
    """[n, n]: of the text's noise, where a token's noise is 1 nat."""
    start = np.maximum(layout.n_tokens - layout.window / 2, 0.0)
    end = start + layout.window
    common = np.minimum(end[:, None], end[None]) - np.maximum(start[:, None], start[None])
    text, run = ((labels[:, None] == labels[None]).astype(float) for labels in (layout.text, layout.run))
    return np.maximum(common, 0.0) / np.outer(layout.window, layout.window) * (SHARED * text + (1 - SHARED) * run)


def covariance(layout: Layout, noise: Noise, loss: np.ndarray) -> np.ndarray:
    """[n, n]: of the log losses of whole curves."""
    at, along = np.log(layout.n_tokens), along_sizes(layout)
    of_seeds = (layout.trunk[:, None] == layout.trunk[None]) * np.exp(-np.abs(at[:, None] - at[None]) / MEMORY)
    of_text = text_covariance(layout) / np.outer(loss, loss)
    return noise.seed**2 * of_seeds + noise.bend**2 * along @ along.T + noise.text**2 * of_text


@pytest.fixture(scope="module")
def layout():
    return laid(2e5, 6, 16.0, 14.0, 1.0, 1.0, (2, 99), 1e9, curves=True).layout()


def test_means_have_in_common_what_their_windows_have(layout):
    known = text_covariance(layout)
    assert np.diag(known) == pytest.approx(1 / layout.window)
    rng = np.random.default_rng(0)
    draws = np.stack([drawn(layout, rng) for _ in range(4000)])
    assert np.median(draws.var(0) / np.diag(known)) == pytest.approx(1, abs=0.05)
    weight = rng.standard_normal((3, 2, len(layout.window)))
    assert weighed(layout, weight) == pytest.approx(np.einsum("wkn,nm,wkm->wk", weight, known, weight))
    assert (draws @ weight[0, 0]).var() == pytest.approx(weighed(layout, weight)[0, 0], rel=0.1)
    ladder = naive(2e7).layout()  # all sizes read the text of seed 0, in the same order
    first, other = (np.flatnonzero(ladder.size == k)[-1] for k in (0, 5))
    both = text_covariance(ladder)
    assert both[first, other] == pytest.approx(SHARED * both[first, first])
    first, other = (np.flatnonzero(layout.size == k)[-1] for k in (0, 5))
    assert known[first, other] == 0  # each size its own


def test_the_covariance_is_what_studies_are_drawn_with(layout):
    n, d = layout.n_params, layout.n_tokens
    clean = WORLD.loss(n, d)
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((1, 2, len(n)))
    known = covariance(layout, NOISE, clean)
    exact = (weight[0] @ known @ weight[0].T).diagonal()
    assert spread(layout, NOISE, weight, clean[None])[0] == pytest.approx(exact)
    drawn_losses = np.stack([draw(layout, WORLD, NOISE, six_nd(), rng).loss for _ in range(1500)])
    off = np.log(drawn_losses / clean)
    assert (off @ weight[0].T).var(0) == pytest.approx(exact, rel=0.12)
    assert np.abs(along_sizes(layout).sum(0)).max() < 1e-9
    linear = [precision(layout, [WORLD], noise, six_nd(), 5e15).a[0] for noise in (Noise(0.004), NOISE)]
    assert linear[1] > linear[0]


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
