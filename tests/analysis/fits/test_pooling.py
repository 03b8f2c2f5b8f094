"""Which noise between seeds counts as one, and what that does to intervals."""

import numpy as np
import pytest

from analysis.fits.noise import Group
from analysis.fits.pooling import CUT, SeedNoises, separated


def seeds(arch, s, rng, sizes=4, n=3):
    """Groups of n seeds of `sizes` sizes of one architecture, whose curves lie apart as wholes."""
    return [Group(arch, str(i), s * rng.standard_normal((n, 1)) + np.zeros((n, 7))) for i in range(sizes)]


def test_a_noisy_architecture_is_in_no_pool_of_the_others():
    rng = np.random.default_rng(0)
    quiet = [group for arch in ("llama", "tnl", "hgrn2") for group in seeds(arch, 0.004, rng)]
    noises = SeedNoises(tuple(quiet + seeds("cosformer2", 0.04, rng)))
    assert [sorted(part) for part in noises.kinds] == [["hgrn2", "llama", "tnl"], ["cosformer2"]]
    assert noises.of("llama") == noises.of("tnl") == SeedNoises(tuple(quiet)).every
    assert noises.of("llama").df == 24 and noises.of_others("llama").df == 16
    assert noises.of("cosformer2").df == 8 and noises.of_others("cosformer2") is None
    assert noises.of("cosformer2").s > 5 * noises.of("llama").s
    assert noises.of("mamba2") == noises.of_others("mamba2") == noises.every  # it has no seeds to tell it by
    assert [one.df for one in noises.parts()] == [24, 8]


def test_equal_noise_is_cut_as_seldom_as_the_test_says():
    rng, df = np.random.default_rng(1), (2.0, 4.0, 4.0, 6.0)
    cut = [len(separated(rng.chisquare(df) / df, df)) > 1 for _ in range(2000)]
    assert np.mean(cut) == pytest.approx(CUT, abs=0.02)  # three standard errors


def test_noises_come_in_as_many_parts_as_are_separated():
    variances = [100.0, 1.1, 1.0, 9800.0, 110.0]
    assert separated(variances, [30.0] * 5) == [[2, 1], [0, 4], [3]]
    assert separated(variances, [0.5] * 5) == [[2, 1, 0, 4, 3]]
    assert separated([0.0, 1.0, 1.1], [8.0] * 3) == [[0], [1, 2]]  # seeds that end alike
    assert separated([2.0], [1.0]) == [[0]] and separated([], []) == []
    assert SeedNoises(()).kinds == [] and SeedNoises(()).of("llama") is None
