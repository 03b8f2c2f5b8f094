"""The noise between seeds at the end of runs, of the fits' groups and parts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.fits.noise import Group, SeedNoises
from analysis.repeats import NoiseOfStudy


def seeds(arch: str, size: str, ends: tuple[float, ...], early: float = 0.1) -> Group:
    """Seeds whose log losses differ by `early` at first and by `ends` at last."""
    table = np.array([[i * early, i * early, end] for i, end in enumerate(ends)])
    return Group(arch, size, table, at=np.array([1.0, 2.0, 3.0]))


def test_it_is_that_of_the_last_losses_alone() -> None:
    noise = NoiseOfStudy(SeedNoises((seeds("tnl", "a", (0.0, 0.02)), seeds("tnl", "b", (0.0, 0.01)))), {})
    of_ends = noise.of_ends("a run", "tnl")
    assert of_ends is not None and noise.df == pytest.approx(2)
    assert of_ends.s == pytest.approx(math.sqrt((0.02**2 / 2 + 0.01**2 / 2) / 2))


def test_architectures_that_differ_keep_their_own_noise() -> None:
    names = [str(i) for i in range(8)]
    groups = [seeds("tnl", name, (0.0, 0.001), 0.001) for name in names]
    groups += [seeds("llama", name, (0.0, 0.1)) for name in names]
    noise = NoiseOfStudy(SeedNoises(tuple(groups)), {"run": "llama"})
    assert noise.noises.kinds == [["tnl"], ["llama"]]
    of_group, by_run, none = noise.of_ends("", "tnl"), noise.of_ends("run", "tnl"), noise.of_ends("", "hgrn2")
    assert of_group is not None and by_run is not None and none is not None
    assert of_group.s == pytest.approx(0.001 / math.sqrt(2)) and by_run.s == pytest.approx(0.1 / math.sqrt(2))
    assert of_group.s < none.s < by_run.s  # of an architecture without seeds: of all


def test_without_two_seeds_there_is_none() -> None:
    noise = NoiseOfStudy(SeedNoises(()), {})
    assert noise.df == 0 and noise.of_ends("a run", "tnl") is None
