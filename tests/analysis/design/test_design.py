"""The core of `scaling design`: worlds, priors, proposals, their linearised precision, and simulated studies."""

import math
from dataclasses import replace

import numpy as np
import pytest
import yaml
from scipy import optimize

from analysis.design.choose import answers, simulate, summary
from analysis.design.proposal import GRADED, Price, candidates, laid, least_cost, naive, naive_of, scaled, with_sweep
from analysis.design.study_file import Setting, first_rate, text_of
from analysis.design.worlds import KINDS, PUBLISHED, Noise, Scenario, World, literature, paths
from analysis.fits.settings import settings_of
from arch.registry import ARCHITECTURES, register_pattern
from scaling.cli.request import Request
from scaling.cli.sweep import plan_sweep
from scaling.study.spec import load_study
from tests.registries import as_registered

from .worlds import REAL, SIX, WORLD

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


def test_priors_draw_the_same_again():
    prior = literature(257)
    assert prior.draw(np.random.default_rng(3)) == prior.draw(np.random.default_rng(3))
    worlds = [prior.draw(np.random.default_rng(i), ("fitted",)) for i in range(300)]
    assert all(0 < world.e < 1.1 for world in worlds)
    assert np.mean([world.surface.a for world in worlds]) == pytest.approx(np.mean(PUBLISHED), abs=0.012)
    assert literature(100_280).draw(np.random.default_rng(0)).e > 1.5


def test_a_proposal_costs_its_runs_within_the_corpus():
    for proposal in list(candidates(six, 1e16, 1e8))[::40]:
        runs = zip(proposal.sizes, proposal.tokens, proposal.seeds, strict=True)
        assert proposal.cost(six) == pytest.approx(6 * sum(map(math.prod, runs)))
        assert 0.99e16 <= proposal.cost(six) <= 1e16
        assert min(proposal.tokens) > 0 and max(proposal.tokens) <= 1e8 * (1 + 1e-9)
        assert len(set(proposal.layout().run)) == proposal.n_runs == sum(proposal.seeds) <= 64
    ladder = scaled(naive, six, 1e16)
    assert ladder is not None and 0.99e16 <= ladder.cost(six) <= 1e16 and len(set(ladder.tokens)) == 1
    capped, bound = naive_of(six, 1e16, 1e7), naive_of(six, 1e15, 1e9, 1e6)
    assert capped is not None and capped.tokens[0] == 1e7 and 0.99e16 <= capped.cost(six) <= 1e16
    assert bound is not None and 0.99e15 <= bound.cost(six) <= 1e15
    assert bound.sizes[0] == pytest.approx(1e6)
    assert naive_of(six, 1e13, 1e9, 1e6) is None


def test_what_budgets_buy_is_known_before_anything_is_simulated():
    least = least_cost(six, 1e8, 1e6)
    assert any(candidates(six, 1.02 * least, 1e8, least_size=1e6))
    assert not any(candidates(six, 0.98 * least, 1e8, least_size=1e6)) and not any(candidates(six, 1e30, 1e8))
    assert least_cost(six, 1e5, 1e6) == math.inf


def test_simulated_studies_are_the_projects_fits():
    proposal = laid(3e5, 6, 32.0, 40.0, 1.0, (3, -2), 1e9)
    exact = simulate(proposal, Scenario([WORLD], Noise(1e-6), SIX, 5e15), 0)[0]
    assert abs(exact.off_a) < 2e-3 and abs(exact.off_n) < 0.02 and exact.half_a < 1e-3
    noisy = Scenario([WORLD] * 6, Noise(0.003), SIX, 5e15)
    first, other = (summary(simulate(p, noisy, 0)) for p in (proposal, replace(proposal, seeds=(1,) * 6)))
    assert first["half_a"][1] < other["half_a"][1]
    assert answers(proposal, Scenario([WORLD], Noise(1e-6), SIX, 5e15), "exponent") == pytest.approx(1, abs=1e-3)
    assert answers(proposal, Scenario([WORLD], Noise(0.2), SIX, 5e15), "loss") < 0.3


def test_a_study_file_says_the_proposal(tmp_path):
    proposal = laid(3e5, 6, 32.0, 14.0, 1.0, (3, -2), 1e8)
    on_cores = Setting("x", ["llama", "hgrn2"], "books.txt", 2048, False)
    on_gpus = replace(on_cores, gpu=True, held_out=True)
    content = yaml.safe_load(text_of(proposal, on_cores))
    assert content["grid"]["sizes"]["count"] == 6 and content["grid"]["seeds"] == []
    seeds = list(content["grid"]["extra_seeds"].values())
    assert [len(numbers) for numbers in seeds] == [3, 3, 3, 3, 1, 1]
    assert len({number for numbers in seeds for number in numbers}) == 14
    ladder = yaml.safe_load(text_of(naive(2e7), on_cores))["grid"]
    assert ladder["seeds"] == [0] and list(ladder["extra_seeds"].values()) == [[1]]
    for n, tokens, row in zip(proposal.sizes, proposal.tokens, content["overrides"]["by_size"].values(), strict=True):
        assert row["n_tokens"] == pytest.approx(tokens, rel=row["batch_tokens"] / tokens)
        assert row["batch_tokens"] % 2048 == 0 and row["n_tokens"] / row["batch_tokens"] >= min(500, n / 5e3)
    fit, held_out = content["fit"], yaml.safe_load(text_of(proposal, on_gpus))
    assert (fit["loss"], fit["control"], fit["stopped"]) == ("train_smoothed", "bigram", "leave_out")
    assert held_out["fit"] == {"loss": "validation", "stopped": "leave_out", "flops": "exact"}
    assert held_out["training"]["n_checkpoints"] == 18 and held_out["evaluation"]["validation_tokens"] == 262_144
    swept = with_sweep(laid(3e5, 6, 32.0, 20.0, 0.0, (3, 99), 1e8), six)
    content = yaml.safe_load(text_of(swept, on_gpus))
    batches = {row["batch_tokens"] for row in content["overrides"]["by_size"].values()}
    assert len(batches) == 1 and content["training"]["lr"] == "law" and len(content["sweep"]["sizes"]) == 3
    assert min(content["sweep"]["tokens"]) / max(batches) >= 100  # steps of its shortest run
    assert all("lr" not in row for row in content["overrides"]["by_size"].values())
    known = yaml.safe_load(text_of(proposal, replace(on_gpus, law="rates.json")))
    assert known["training"]["lr_law"] == "rates.json" and "sweep" not in known
    assert proposal.resized(4.0, 1e9).cost(six) / proposal.cost(six) == pytest.approx(4.0)
    assert first_rate(4e5, 65_536) == 4e-3 and first_rate(55e3, 1024) == pytest.approx(1.75e-3, rel=0.25)


@pytest.mark.parametrize("tokenizer", ["bytes", "cl100k_base"])
def test_a_study_file_allows_the_sweep_that_it_asks_for(tokenizer, tmp_path):
    """Small sizes, which are swept, pay most for a large vocabulary."""
    swept = with_sweep(laid(2e6, 6, 32.0, 20.0, 0.0, (3, 99), 1e9), six)
    setting = Setting("x", ["hgrn2", "transformer"], "stdlib:", 2048, True, tokenizer=tokenizer)
    (tmp_path / "x.yaml").write_text(text_of(swept, setting))
    planned = plan_sweep(Request(load_study(tmp_path / "x.yaml", out=tmp_path / "out")))
    assert planned.refused is None and planned.share > 0.05


def test_a_study_file_has_the_hybrids_that_were_asked_for(tmp_path):
    own = {"softmax": {"position": "none", "window": 64}}
    with as_registered():
        register_pattern("hgrn2-1to1", ["hgrn2", "softmax"], own, "HGRN2 1:1")
        register_pattern("hgrn2-2to1", ["hgrn2", "hgrn2", "llama"], color="#123456")
        before = {name: ARCHITECTURES[name] for name in ("hgrn2-1to1", "hgrn2-2to1")}
        setting = Setting("x", ["hgrn2", *before], "stdlib:", 256, False)
        (tmp_path / "x.yaml").write_text(text_of(naive(2e7), setting))
        runs = load_study(tmp_path / "x.yaml").runs()
        assert {name: ARCHITECTURES[name] for name in before} == before
    assert {run.arch for run in runs} == {"hgrn2", *before} and {run.config.n_layers % 6 for run in runs} == {0}


def test_the_mean_of_a_curve_is_shorter_than_the_shortest_run(tmp_path):
    proposal = laid(3e5, 6, 64.0, 10.0, 1.0, (1, 1), 1e9)
    (tmp_path / "x.yaml").write_text(text_of(proposal, Setting("x", ["llama"], "stdlib:", 2048, False)))
    study = load_study(tmp_path / "x.yaml")
    shortest = min(run.n_tokens for run in study.runs())
    assert study.fit.smoothing_tokens <= shortest / 9
    settings = settings_of(study.fit, study.grid)
    assert all(settings.settled_after(run.training.warmup_tokens) < run.n_tokens / 4 for run in study.runs())


def test_graded_seeds_are_the_more_the_smaller_a_size_is():
    proposal = laid(3e5, 6, 64.0, 20.0, 0.0, (3, GRADED), 1e9)
    assert proposal.seeds == tuple(round(3 * (proposal.sizes[-1] / n) ** 0.25) for n in proposal.sizes)
    assert proposal.seeds[0] > proposal.seeds[-1] == 3
    assert proposal.words.endswith("seeds: 8 at the smallest, falling to 3")
