"""Expected half-widths against studies that are drawn and fitted; what proposals cost; what a budget buys."""

import numpy as np
import pytest

from analysis.design.choose import Limits, Question, best, naive, saving
from analysis.design.expect import SeedNoise, expected
from analysis.design.priors import MEAN_A, draw, kind_of
from analysis.design.proposal import Proposal
from analysis.fits.cost import six_nd
from analysis.fits.parametric.many import LEAST_SQUARES, fit_many
from analysis.fits.parametric.surface import Surface
from arch.errors import InputError

SIZES = tuple(np.geomspace(4e5, 1.6e7, 6).tolist())
TOKENS = tuple(tuple(n * per for per in (5.0, 20.0, 80.0)) for n in SIZES)


def test_cost_of_branches_and_of_runs():
    cost, seeds = six_nd(), (1, 3, 1, 1, 1, 1)
    runs, branches = (Proposal("one", SIZES, TOKENS, seeds, decay) for decay in (None, 0.1))
    by_hand = sum(6 * n * sum(own) * s for n, own, s in zip(SIZES, TOKENS, seeds, strict=True))
    assert runs.flops(cost) == pytest.approx(by_hand)
    shared = sum(6 * n * s * (72 * n + 0.5 * n + 2 * n + 8 * n) for n, s in zip(SIZES, seeds, strict=True))
    assert branches.flops(cost) == pytest.approx(shared)
    assert runs.n_runs == branches.n_runs == 24 and branches.largest(cost) == pytest.approx(6 * 80 * SIZES[-1] ** 2)
    rows = branches.rows()
    assert len(set(rows.run.tolist())) == 24 and len(set(rows.trunk.tolist())) == 8


@pytest.mark.parametrize("decay", [None, 0.1])
def test_half_widths_are_those_of_fitted_studies(decay):
    """The spread of a, N_opt and L_opt over 400 drawn studies, each fitted by the project's least squares, against the
    linear theory's standard errors, to 15%: the noise is small, for which the theory is exact."""
    world, noise, target = Surface(0.7, 60.0, 120.0, 0.38, 0.36), SeedNoise(0.001), 1e17
    proposal = Proposal("one", SIZES, TOKENS, (1,) * 6, decay)
    rows, cost = proposal.rows(), six_nd()
    one = Surface(*(np.array([value]) for value in vars(world).values()))
    told = expected(one, proposal, noise, cost, target)
    wide = {6: 12.706, 18: 2.160}[len(set(rows.trunk.tolist()))]  # t quantiles of 1 and 13 degrees of freedom
    drawn = world.loss(rows.n_params, rows.n_tokens) * np.exp(
        noise.draw(rows, decay is not None, np.random.default_rng(0), 400)
    )
    fits = fit_many(np.log(rows.n_params), np.log(rows.n_tokens), drawn, objective=LEAST_SQUARES).surface
    for found, half in (
        (fits.a, told.a),
        (np.log(fits.n_opt(target)), told.n_opt),
        (np.log(fits.l_opt(target)), told.l_opt),
    ):
        assert found.std() == pytest.approx(float(half[0]) / wide, rel=0.15)


def test_a_budget_buys_the_proposal_of_the_narrowest_interval():
    rng = np.random.default_rng(0)
    archs = ("llama", "hgrn2")
    assert kind_of("llama") != kind_of("hgrn2") and len(MEAN_A) == 2
    surfaces = {arch: draw(arch, "bytes", 20, rng) for arch in archs}
    question = Question("exponent", surfaces, dict.fromkeys(archs, six_nd()), SeedNoise(), 1e18)
    limits = Limits(1e17, 250e6)
    found = best(question, limits)
    assert [one.width("exponent") for one in found] == sorted(one.width("exponent") for one in found)
    assert all(one.flops <= limits.flops and max(max(d) for d in one.proposal.tokens) <= 250e6 for one in found)
    plain = naive(question, limits, found[0].proposal)
    assert question.flops(plain) <= limits.flops * 1.001
    assert question.judge(plain).width("exponent") > found[0].width("exponent")
    assert saving(question, found[0], plain) > 1
    with pytest.raises(InputError, match="--budget: 1e15 FLOP is too small for any study of 2 architectures"):
        best(question, Limits(1e15, 250e6))
