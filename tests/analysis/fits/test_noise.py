"""Seed noise: pooling by hand, and how far it remembers itself along a curve."""

import math

import numpy as np
import pytest

from analysis.fits.noise import pool_seed_noise
from tests.analysis.fits.worlds import paths


def test_noise_is_pooled_by_degrees_of_freedom() -> None:
    three = np.array([[0.0], [1.0], [2.0]]) * np.ones((3, 7))  # variance 1, 2 degrees of freedom
    two = np.array([[0.0], [2.0]]) * np.ones((2, 7))  # variance 2, 1 degree of freedom
    lonely = np.zeros((1, 7))
    noise = pool_seed_noise([("llama", "55k", three), ("tnl", "55k", two), ("tnl", "98k", lonely)])
    assert noise is not None
    assert noise.df == 3
    assert noise.s == pytest.approx(math.sqrt((2 * 1 + 1 * 2) / 3))
    assert [group["n_seeds"] for group in noise.groups] == [3, 2]


def test_no_replicates_no_noise() -> None:
    assert pool_seed_noise([("llama", "55k", np.zeros((1, 7)))]) is None
    assert pool_seed_noise([("llama", "55k", np.full((2, 7), np.inf))]) is None


@pytest.mark.parametrize(("memory", "expected"), [(math.inf, 1.0), (1.5, math.exp(-1 / 1.5)), (0.1, 0.01)])
def test_correlation_along_a_curve(memory: float, expected: float) -> None:
    """200 groups of three seeds over four e-folds; what is hardly correlated counts as 0.01."""
    rng = np.random.default_rng(0)
    at = np.arange(0, 4, 0.05)
    groups = [("tnl", f"{i}", 0.01 * np.stack([paths(rng, at, memory) for _ in range(3)])) for i in range(200)]
    noise = pool_seed_noise(groups, 0.05)
    assert noise is not None
    assert noise.s == pytest.approx(0.01, rel=0.06)
    assert noise.correlation == pytest.approx(expected, abs=0.05)


def test_a_stretch_too_short_for_a_correlation_counts_as_correlated() -> None:
    noise = pool_seed_noise([("tnl", "a", np.random.default_rng(0).standard_normal((3, 10)))], 0.05)
    assert noise is not None and noise.correlation == 1.0
