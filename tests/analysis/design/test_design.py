"""The core of `scaling design`: worlds, priors, proposals, their linearised precision, and simulated studies."""

import math
from dataclasses import replace

import numpy as np
import pytest
import yaml
from scipy import optimize

from analysis.design.choose import Judged, answers, draw, naive_of, saving, simulate, simulated
from analysis.design.expected import missed
from analysis.design.precision import precision
from analysis.design.proposal import (
    DECAY,
    GRADED,
    Price,
    Proposal,
    candidates,
    laid,
    least_cost,
    most_cost,
    naive,
    scaled,
    with_sweep,
)
from analysis.design.study_file import Setting, first_rate, resized, text_of
from analysis.design.worlds import KINDS, Noise, Scenario, World, kind_of, literature, paths
from analysis.fits.cost import Cost, six_nd
from analysis.fits.prepare import prepare
from analysis.fits.settings import settings_of
from analysis.fits.solver import LEAST_SQUARES, fit_surfaces
from analysis.runs import load_tables
from flops.quantity import quantity
from scaling.study.spec import load_study
from tests.analysis.fits.synthetic import BATCH, write_evals, write_run

WORLD = World("fitted", 0.8, 0.36, 0.34, 0.2, 0.2, 0.0)
SIX = six_nd()
KNOTS = np.geomspace(1e5, 1e9, 40)
REAL = Cost(np.log(KNOTS), np.log(6 * KNOTS + 100 * KNOTS**0.7), "exact")


six = Price(lambda n: 6 * n)


@pytest.mark.parametrize("kind", KINDS)
def test_the_optimum_of_a_world_is_that_of_a_search(kind):
    world = World(kind, 0.8, 0.36, 0.34, 0.2, 0.2, 0.1 if kind != "interaction" else 0.7)
    for cost in (SIX, REAL):
        log_c = math.log(3e16)

        def loss(log_n, cost=cost, log_c=log_c):
            return float(world.loss(math.exp(log_n), math.exp(log_c - float(cost.log_per_token(np.array(log_n))))))

        start = min(np.linspace(8, 25, 400), key=loss)
        optimum = optimize.minimize_scalar(
            loss, bounds=(start - 0.1, start + 0.1), method="bounded", options={"xatol": 1e-9}
        )
        assert float(world.log_n_opt(log_c, cost)) == pytest.approx(optimum.x, abs=1e-3)
        log_l = world.log_l_at(world.log_n_opt(log_c, cost), log_c, cost)
        assert float(log_l) == pytest.approx(math.log(optimum.fun), abs=1e-7)


def test_worlds_without_more_are_their_surface_and_noise_is_what_it_says():
    n, d = np.array([1e6, 5e6]), np.array([2e7, 3e8])
    assert WORLD.loss(n, d) == pytest.approx(WORLD.surface.loss(n, d))
    low, high = WORLD.log_n_opt(math.log(1e16) + np.array([-0.35, 0.35]))
    assert (high - low) / 0.7 == pytest.approx(float(WORLD.surface.a), abs=1e-3)
    rng, x = np.random.default_rng(0), np.array([0.0, 1.0])
    many = np.array([paths(rng, x, 2.0) for _ in range(4000)])
    assert many.std(0) == pytest.approx([1, 1], abs=0.04)
    assert np.corrcoef(many.T)[0, 1] == pytest.approx(math.exp(-0.5), abs=0.04)


def test_priors_know_what_kind_an_architecture_is_and_draw_the_same_again():
    assert [kind_of(arch) for arch in ("llama", "hgrn2", "tnl", "mamba2")] == ["transformer", *["linear"] * 3]
    means = {}
    for arch in ("llama", "hgrn2"):
        prior = literature(arch, 257)
        first, same = (prior.draw(np.random.default_rng(3)) for _ in range(2))
        assert first == same
        worlds = [prior.draw(np.random.default_rng(i), ("fitted",)) for i in range(300)]
        means[arch] = np.mean([world.surface.a for world in worlds])
        assert all(0 < world.e < 1.1 for world in worlds)
    assert means["hgrn2"] - means["llama"] == pytest.approx((0.55 - 0.46) / 5, abs=0.012)
    assert literature("llama", 100_280).draw(np.random.default_rng(0)).e > 1.5


def test_a_proposal_costs_its_trunks_and_decays_within_the_corpus():
    proposal = Proposal((1e6, 4e6), ((5e6, 1e7, 2e7), (2e7, 8e7)), (3, 1))
    trunk = 3 * ((1 - DECAY) * 2e7 + DECAY * 3.5e7), (1 - DECAY) * 8e7 + DECAY * 1e8
    assert proposal.cost(six) == pytest.approx(6 * (1e6 * trunk[0] + 4e6 * trunk[1]))
    assert proposal.n_runs == 11 and len(proposal.layout().n_params) == 11
    assert len(set(proposal.layout().trunk)) == 4 and len(set(proposal.layout().run)) == 11
    for proposal in list(candidates(six, 1e16, 1e8))[::40]:
        assert proposal.cost(six) == pytest.approx(1e16, rel=0.011)
        assert max(max(d) for d in proposal.tokens) <= 1e8 * (1 + 1e-9)
        assert all(list(d) == sorted(d) and len(d) >= 2 - proposal.curves for d in proposal.tokens)
    ladder = scaled(naive, six, 1e16)
    assert ladder is not None and ladder.cost(six) == pytest.approx(1e16, rel=0.011)
    assert len({d for d in ladder.tokens}) == 1
    capped = naive_of(six, 1e16, 1e7)
    assert capped is not None and capped.tokens[0] == (1e7,) and capped.cost(six) == pytest.approx(1e16, rel=0.011)
    assert not list(candidates(six, 1e6, 1e8))
    bound = naive_of(six, 1e15, 1e9, 1e6)
    assert bound is not None and bound.cost(six) == pytest.approx(1e15, rel=0.011)
    assert bound.sizes[0] == pytest.approx(1e6)
    assert naive_of(six, 1e13, 1e9, 1e6) is None


def test_what_budgets_buy_is_known_before_anything_is_simulated():
    least, most = least_cost(six, 1e8, 1e6), most_cost(six, 1e8, 1e6)

    def bought(budget: float) -> bool:
        return any(candidate.sizes[0] >= 1e6 for candidate in candidates(six, budget, 1e8))

    assert bought(1.02 * least) and bought(0.98 * most)
    assert not bought(0.98 * least) and not bought(1.02 * most)
    assert least_cost(six, 1e5, 1e6) == math.inf and most_cost(six, 1e5, 1e6) == 0


@pytest.mark.parametrize("cost", [SIX, REAL], ids=["6nd", "real"])
@pytest.mark.parametrize("what", ["branches", "curves"])
def test_linearised_precision_is_that_of_drawn_studies(cost, what):
    proposal = laid(2e5, 6, 16.0, 14.0, 8.0, 1.0, (2, 99), 1e9) if what == "branches" else naive(2e7)
    layout, noise, target = proposal.layout(), Noise(0.002), 5e15
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
    assert np.abs(next(missed(layout, [WORLD], noise, cost, target)).a).max() < 1e-3


def test_simulated_studies_are_the_projects_fits():
    proposal = laid(3e5, 6, 32.0, 40.0, 1.0, 1.0, (3, -2), 1e9, curves=True)
    exact = simulate(proposal, Scenario([WORLD], Noise(1e-6), SIX, 5e15), 0)[0]
    assert abs(exact.off_a) < 2e-3 and abs(exact.off_n) < 0.02 and exact.half_a < 1e-3
    first, other = (
        simulated(Judged(p, 0.0), Scenario([WORLD] * 6, Noise(0.003), SIX, 5e15), 0, lambda: None)
        for p in (proposal, Proposal(proposal.sizes, proposal.tokens, (1,) * 6, 1.0, True))
    )
    assert first.summary["half_a"][1] < other.summary["half_a"][1]
    assert saving(first.summary, other.summary, "exponent") > 1
    assert answers(proposal, Scenario([WORLD], Noise(1e-6), SIX, 5e15), "exponent") == pytest.approx(1, abs=1e-3)
    assert answers(proposal, Scenario([WORLD], Noise(0.2), SIX, 5e15), "loss") < 0.3


def test_a_study_file_says_the_proposal():
    proposal = laid(3e5, 6, 32.0, 14.0, 8.0, 1.0, (3, -2), 1e8)
    setting = Setting("x", ["llama", "hgrn2"], "books.txt", 2048, True)
    content = yaml.safe_load(text_of(proposal, setting))
    assert content["grid"]["sizes"]["count"] == 6 and content["grid"]["seeds"] == []
    seeds = list(content["grid"]["extra_seeds"].values())
    assert [len(numbers) for numbers in seeds] == [3, 3, 3, 3, 1, 1]
    assert len({number for numbers in seeds for number in numbers}) == 14
    ladder = yaml.safe_load(text_of(naive(2e7), setting))["grid"]
    assert ladder["seeds"] == [0] and list(ladder["extra_seeds"].values()) == [[1]]
    for n, tokens, row in zip(proposal.sizes, proposal.tokens, content["overrides"]["by_size"].values(), strict=True):
        assert row["branches"] == pytest.approx(list(tokens), rel=row["batch_tokens"] / tokens[0])
        assert row["batch_tokens"] % 2048 == 0 and row["branches"][0] / row["batch_tokens"] >= min(500, n / 5e3)
    assert content["fit"] == {
        "loss": "validation",
        "points": "decayed",
        "stopped": "leave_out",
        "flops": "exact",
    }  # as simulated
    whole = laid(3e5, 6, 32.0, 20.0, 1.0, 1.0, (3, -2), 1e8, curves=True)
    fit = yaml.safe_load(text_of(whole, setting))["fit"]
    assert fit["loss"] == "train_smoothed" and fit["smoothing_tokens"] <= 0.1 * whole.tokens[0][0] + 1
    held_out = {yaml.safe_load(text_of(p, setting))["evaluation"]["validation_tokens"] for p in (proposal, whole)}
    assert held_out == {262_144}  # the same held-out text for every proposal
    swept = with_sweep(laid(3e5, 6, 32.0, 20.0, 1.0, 0.0, (3, 99), 1e8, curves=True), six)
    content = yaml.safe_load(text_of(swept, setting))
    batches = {row["batch_tokens"] for row in content["overrides"]["by_size"].values()}
    assert len(batches) == 1 and content["training"]["lr"] == "law" and len(content["sweep"]["sizes"]) == 3
    assert min(content["sweep"]["tokens"]) / max(batches) >= 100  # steps of its shortest run
    assert all("lr" not in row for row in content["overrides"]["by_size"].values())
    known = yaml.safe_load(text_of(whole, replace(setting, law="rates.json")))
    assert known["training"]["lr_law"] == "rates.json" and "sweep" not in known
    twice = resized(proposal, 4.0, 1e9)
    assert twice.cost(six) / proposal.cost(six) == pytest.approx(4.0)
    assert first_rate(4e5, 65_536) == 4e-3 and first_rate(55e3, 1024) == pytest.approx(1.75e-3, rel=0.25)


def test_the_points_of_branches_are_their_decayed_losses(tmp_path):
    proposal = laid(3e5, 5, 8.0, 7.0, 8.0, 1.0, (1, 1), 1e8)
    (tmp_path / "x.yaml").write_text(text_of(proposal, Setting("x", ["llama"], "stdlib:", 256, False)))
    study = load_study(tmp_path / "x.yaml")
    cut = {"batch_tokens": BATCH, "schedule": "wsd", "decay_fraction": DECAY}
    ids = []
    for run in study.runs():
        n = round(quantity(run.size.removeprefix("n"), "size", 1e9))
        tokens = max(20, run.n_tokens // BATCH) * BATCH
        named = {"seed": run.seed, "n_params": n, "warmup_tokens": BATCH}
        if run.trunk is None:
            trunk = write_run(tmp_path / "x", run.arch, run.size, tokens, **named)
            ids.append(trunk)
            continue
        ids.append(write_run(tmp_path / "x", run.arch, run.size, tokens, trunk=trunk, **named, **cut))
        write_evals(tmp_path / "x", ids[-1], [tokens // BATCH], [float(WORLD.loss(n, tokens))])
    assert len(set(ids)) == len(study.runs())
    tables = load_tables(tmp_path / "x", ids, study.fit.control, study.evaluation.validation_tokens)
    points = prepare(replace(tables, name="x", settings=settings_of(study.fit, study.grid))).groups["llama"]
    assert len(points) == points.n_runs == proposal.n_runs
    assert points.loss == pytest.approx(WORLD.loss(points.n_params, points.n_tokens))


def test_the_mean_of_a_curve_is_shorter_than_the_shortest_run(tmp_path):
    proposal = laid(3e5, 6, 64.0, 10.0, 1.0, 1.0, (1, 1), 1e9, curves=True)
    (tmp_path / "x.yaml").write_text(text_of(proposal, Setting("x", ["llama"], "stdlib:", 2048, True)))
    study = load_study(tmp_path / "x.yaml")
    shortest = min(run.n_tokens for run in study.runs())
    assert study.fit.smoothing_tokens <= shortest / 9
    settings = settings_of(study.fit, study.grid)
    assert all(settings.settled_after(run.training.warmup_tokens) < run.n_tokens / 4 for run in study.runs())


def test_graded_seeds_are_the_more_the_smaller_a_size_is():
    proposal = laid(3e5, 6, 64.0, 20.0, 1.0, 0.0, (3, GRADED), 1e9, curves=True)
    assert proposal.seeds == tuple(round(3 * (proposal.sizes[-1] / n) ** 0.25) for n in proposal.sizes)
    assert proposal.seeds[0] > proposal.seeds[-1] == 3
    assert proposal.words.endswith("seeds: 8 at the smallest, falling to 3")
