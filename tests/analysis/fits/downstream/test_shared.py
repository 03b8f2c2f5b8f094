"""One link for all: the test's size and power (slow), the pooled link, what does not go together."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from analysis.fits.downstream.scores import Scores
from analysis.fits.downstream.shared import fit_shared, pooled
from arch.errors import InputError

from .worlds import FOUR, SHARE, drawn, ladder

ARCHS = ("tnl", "hgrn2", "llama", "cosformer2")


def studies(random: np.random.Generator, n_runs: int, apart: float, n_archs: int = 4) -> list[Scores]:
    return [drawn(random, n_runs, middle=2.2 + apart * i, group=arch)[0] for i, arch in enumerate(ARCHS[:n_archs])]


def test_a_link_of_all_is_recovered_and_another_is_told_apart() -> None:
    loss, flops, run = ladder(6)
    scores = [
        Scores(loss, flops, 0.25 + 0.75 * expit(2 * (2.2 + shift - loss)), run, FOUR, task="t", group=arch)
        for arch, shift in (("tnl", 0.0), ("llama", 0.0))
    ]
    found = fit_shared(scores)
    assert found.link.params()["k"] == pytest.approx(2, rel=1e-6) and found.link.scores.n_runs == 12
    assert found.groups == ("tnl", "llama") and found.link.scores.group == ""
    assert fit_shared(scores[:1]).p is None
    random = np.random.default_rng(0)
    assert (fit_shared(studies(random, 8, 0.4)).p or 1) < 0.01
    alike = fit_shared(studies(random, 8, 0.0))
    assert (alike.p or 0) > 0.05
    assert fit_shared(studies(np.random.default_rng(1), 8, 0.0)[::-1]).p is not None


def test_scores_that_do_not_go_together_are_refused() -> None:
    one, two = studies(np.random.default_rng(1), 6, 0.0, 2)
    with pytest.raises(InputError, match="t: one link takes scores of one task, scale and FLOP convention"):
        pooled([one, replace(two, convention="exact")])
    with pytest.raises(InputError, match="one link takes scores of one task"):
        pooled([one, replace(two, scale=SHARE)])


@pytest.mark.slow
@pytest.mark.parametrize(("n_runs", "n_archs"), [(6, 2), (6, 4), (12, 4)])
def test_size_and_power(n_runs: int, n_archs: int) -> None:
    """docs/research/task-links.md has the figures."""
    random, n = np.random.default_rng([n_runs, n_archs]), 200
    rates = {}
    for apart in (0.0, 0.1, 0.3):
        p = [fit_shared(studies(random, n_runs, apart, n_archs), replicates=199).p or 0 for _ in range(n)]
        rates[apart] = float(np.mean(np.array(p) <= 0.05))
    print(f"{n_archs} architectures of {n_runs} runs: rejected {rates}")
    assert rates[0.0] < 0.09 and rates[0.3] > rates[0.0]
