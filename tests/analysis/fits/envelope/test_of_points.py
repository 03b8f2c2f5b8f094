"""Points as curves a size: what counts as a seed of what."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.fits.envelope.of_points import fit_envelope, not_in_curves, seed_noise_of, size_curves
from analysis.fits.points import Points
from analysis.fits.settings import FitSettings

FEW = FitSettings(n_replicates=40)
D = np.geomspace(1e8, 1e10, 40)
SIZES = np.geomspace(1e6, 3e7, 6)


def study(trunks, branches, trunk_noise=0.0, branch_noise=0.0, seed=0, ends=(1.0,)):
    """Curves of SIZES on a known surface; the j-th trunk of a size ends after `ends[j]` of the tokens."""
    rng, parts = np.random.default_rng(seed), []
    for n in SIZES:
        for j in range(trunks):
            shared = trunk_noise * rng.standard_normal()
            d = D * ends[j % len(ends)]
            for k in range(branches):
                loss = (1 + (n / 1e7) ** -0.3 + (d / 1e9) ** -0.3) * np.exp(
                    shared + branch_noise * rng.standard_normal()
                )
                parts.append((np.full(len(d), n), d, loss, f"{n:.0f}-{j}-{k}", f"{n:.0f}-{j}"))
    n, d, loss = (np.concatenate([part[i] for part in parts]) for i in range(3))
    run, trunk = (np.repeat(np.array([part[i] for part in parts], dtype=object), len(D)) for i in (3, 4))
    return Points(n, d, 6 * n * d, loss, run, trunk)


def test_branches_of_one_trunk_are_no_seeds():
    branched = study(1, 3, 0.01, 0.001)
    assert seed_noise_of([branched]) is None
    assert [curve.n_seeds for curve in size_curves(branched)] == [1] * 6
    assert fit_envelope(branched, settings=FEW).parameters["a"].interval is None


def test_noise_between_trunks_is_that_of_trunks():
    """Branches are averaged first: the variance is the trunks' and a third of the branches'."""
    found = [seed_noise_of([study(3, 3, 0.01, 0.001, seed)]) for seed in range(20)]
    assert all(one.df == 12 for one in found)
    assert np.mean([one.s**2 for one in found]) == pytest.approx(0.01**2 + 0.001**2 / 3, rel=0.15)
    assert [curve.n_seeds for curve in size_curves(study(3, 3, 0.01, 0.001))] == [3] * 6


def test_branches_of_other_lengths_leave_the_longest():
    points = study(2, 2, 0.01)
    early = np.array([run.endswith("-1") for run in points.run]) & (points.n_tokens > 3e9)
    found = size_curves(points.take(~early))
    assert all(np.exp(curve.log_c[-1]) == pytest.approx(6 * curve.n_params * 1e10) for curve in found)
    assert [curve.n_seeds for curve in found] == [2] * 6
    assert not_in_curves(points.take(~early)) == ["12 runs that end before the longest of their size"]


def test_runs_of_other_lengths_are_no_seeds():
    for ends, df in (((1.0, 0.5), None), ((1.0, 0.99), 6), ((1.0, 0.97), None), ((1.0, 0.3, 0.99, 0.3), 12)):
        noise = seed_noise_of([study(len(ends), 1, 0.01, ends=ends)])
        assert (noise and noise.df) == df
    points = study(2, 1, 0.01, ends=(1.0, 0.5))
    result = fit_envelope(points, settings=FEW)
    assert result.left_out == ("6 runs that end before the longest of their size",)
    assert all(np.exp(curve.log_c[-1]) == pytest.approx(6 * curve.n_params * 1e10) for curve in size_curves(points))


def test_a_copy_is_no_seed():
    points = study(1, 1, 0.01)
    names = np.array([f"{run} again" for run in points.run], dtype=object)
    again = np.tile(np.arange(len(points)), 2)
    both = np.concatenate([points.run, names])
    copied = replace(points.take(again), run=both, trunk=both, cell=both)
    assert seed_noise_of([copied]) is None
    assert not_in_curves(copied) == ["6 runs with the same numbers under another run name"]
    for one, other in zip(size_curves(copied), size_curves(points), strict=True):
        assert one.n_seeds == 1 and one.log_loss.tolist() == other.log_loss.tolist()
