"""The section `recipe`: what it fills in, what wins over it, and the runs that follow a law of its sweep."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.rates.law import fit_rates, law_file
from arch.errors import InputError
from data.files import write_json
from flops import count_params
from scaling.study.file import find_study
from scaling.study.plan import plan, recipe_lines, show_plan
from scaling.study.spec import StudySpec, load_study
from scaling.study.sweep import recipe_of, sweep_of
from tests.analysis.rates.worlds import World
from tests.scaling.rated import rated

RECIPE = {"batch_tokens": 4_096, "at_tokens": 1_000_000}
SWEEP = {"tokens": ["10N", "40N"]}


def study(folder: Path, training: dict[str, Any], recipe: dict[str, Any] | None = None, **more: Any) -> Path:
    raw = {
        "name": "s",
        "out": str(folder / "out"),
        "corpus": {"source": "synthetic:0:200000"},
        "grid": {"archs": ["llama", "tnl"], "sizes": ["6k", "10k", "25k"]},
        "model": {"context_length": 64},
        "training": {"n_tokens": "20N", **training},
        "recipe": RECIPE | (recipe or {}),
        "sweep": SWEEP,
        **more,
    }
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def run_of(path: Path, only: str = "arch=llama,size=25k") -> Any:
    return load_study(path).runs(only)[0]


def lines(spec: StudySpec) -> str:
    return show_plan(plan(spec, spec.runs()))


@pytest.mark.parametrize(("length", "wanted"), [(1_000_000, 4_096), (5_657_000, 8_192), (31_250, 1_024)])
def test_the_batch_follows_the_tokens_to_whole_sequences_and_beta2_the_batch(tmp_path, length, wanted):
    run = run_of(study(tmp_path, {"lr": 1e-3, "n_tokens": length}))
    assert run.training.batch_tokens == wanted and run.training.batch_tokens % 64 == 0
    halves = wanted * math.log(0.5) / math.log(run.training.betas[1])
    assert halves == pytest.approx(4_096 * math.log(0.5) / math.log(0.95), rel=1e-3)
    assert run.rules["batch_tokens"] == "4,096 (D / 1,000,000)^0.4"
    other = run_of(study(tmp_path, {"lr": 1e-3, "n_tokens": length}, {"half_life": 500_000}))
    assert other.training.betas == [0.9, pytest.approx(0.5 ** (wanted / 500_000), abs=1e-6)]


def test_the_weight_decay_averages_over_the_stated_share_of_the_tokens(tmp_path):
    """By a run of the recurrence w <- (1 - lr wd) w at the constant rate: after tau D tokens a weight is 1 / e."""
    rules = {"batch_tokens": 512, "timescale": 0.9, "timescale_exponent": -0.5}
    path = study(tmp_path, {"lr": 1e-3, "n_tokens": "30N"}, rules)
    run = run_of(path)
    tau, training = 0.9 * 30**-0.5, run.training
    left = (1 - training.lr * training.weight_decay) ** (tau * run.n_tokens / training.batch_tokens)
    assert left == pytest.approx(math.exp(-1), rel=0.01)
    assert run.rules["weight_decay"] == "B / (lr tau D), tau = 0.9 (D / N)^-0.5"


def test_runs_decay_over_a_fifth_of_their_tokens_and_wait_for_a_law(tmp_path):
    run = run_of(study(tmp_path, {}))
    assert run.is_pending and run.training.schedule == "wsd" and run.training.decay_fraction == 0.2


@pytest.mark.parametrize(
    ("training", "more", "key", "rule"),
    [
        ({"lr": 2e-3}, {}, "lr", "lr by the law"),
        ({"batch_tokens": 2_048}, {}, "batch_tokens", "batch_tokens = 4,096"),
        ({"min_steps": 3_000, "n_tokens": 10**6}, {}, None, "batch_tokens = 4,096"),
        ({"betas": [0.8, 0.97]}, {}, "betas", "betas = 0.9 and 0.5^"),
        ({"weight_decay": 0.3}, {}, "weight_decay", "weight_decay = B"),
        ({"schedule": "constant"}, {}, "schedule", "schedule wsd"),
    ],
)
def test_what_is_given_by_hand_wins_and_is_shown(tmp_path, training, more, key, rule):
    spec = load_study(study(tmp_path, training, **more))
    run = spec.runs("arch=llama,size=25k")[0]
    if key is not None:
        assert getattr(run.training, key) == training[key]
    given = next(name for name in training if name != "n_tokens")
    shown = lines(spec)
    assert f"recipe: by hand: training.{given}, in the place of {rule}" in " ".join(shown.split())
    assert sum("recipe: by hand" in line for line in shown.splitlines()) == 1


def test_a_rate_by_a_law_file_is_not_by_hand():
    assert not any("by hand" in line for line in recipe_lines(load_study(find_study("books"))))


def test_an_override_wins_and_is_shown_and_a_micro_batch_holds(tmp_path):
    over = {"overrides": {"by_arch": {"tnl": {"weight_decay": 0.2}}}}
    spec = load_study(study(tmp_path, {"lr": 1e-3, "n_tokens": 10**7, "micro_batch_tokens": 2_048}, **over))
    tnl, llama = spec.runs("arch=tnl,size=25k")[0], spec.runs("arch=llama,size=25k")[0]
    assert tnl.training.weight_decay == 0.2 and "weight_decay" not in tnl.rules
    assert llama.training.weight_decay != 0.2 and "weight_decay" in llama.rules
    assert "by hand: overrides.by_arch.tnl.weight_decay" in " ".join(lines(spec).split())
    exact = 4_096 * 10**0.4
    assert llama.training.micro_batch_tokens <= 2_048
    assert llama.training.batch_tokens == pytest.approx(exact, rel=0.03)
    assert llama.training.batch_tokens % llama.training.micro_batch_tokens == 0


def test_a_trunk_and_its_branches_share_batch_and_weight_decay(tmp_path):
    path = study(tmp_path, {"lr": 1e-3, "n_tokens": None, "branches": ["10N", "40N"]})
    runs = load_study(path).runs("arch=llama,size=25k")
    assert len({(run.training.batch_tokens, run.training.weight_decay) for run in runs}) == 1
    alone = run_of(study(tmp_path, {"lr": 1e-3, "n_tokens": "20N"}))
    assert runs[0].training.batch_tokens == alone.training.batch_tokens


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"batch_tokens": 0}, "recipe.batch_tokens"),
        ({"at_tokens": "many"}, "recipe.at_tokens"),
        ({"batch_exponent": 1.5}, "recipe.batch_exponent"),
        ({"half_life": 0}, "recipe.half_life"),
        ({"timescale": -1}, "recipe.timescale"),
        ({"timescale_exponent": 0.5}, "recipe.timescale_exponent"),
        ({"tau": 0.2}, "recipe.tau"),
    ],
)
def test_bad_values_are_one_line(tmp_path, recipe, message):
    with pytest.raises(InputError) as error:
        load_study(study(tmp_path, {}, recipe))
    assert message in str(error.value) and "\n" not in str(error.value)


def followed(tmp_path: Path, training: dict[str, Any], recipe: dict[str, Any] | None = None) -> list[Any]:
    """The runs of a study that follows the law of a sweep by RECIPE, whose best rates are a known world's."""
    spec = sweep_of(load_study(study(tmp_path, {})))
    world = World(sizes=(6_000, 10_000, 25_000), c=(-6.0, -0.4, -0.3, 0.0), archs=("llama", "tnl"), noise=0.001)
    points = world.sweep(np.random.default_rng(0))
    fit = fit_rates(points, without=["batch_tokens"], share=True)
    law = law_file(fit, recipe_of(spec, None))
    write_json(tmp_path / "law.json", law.model_dump(mode="json", by_alias=True))
    path = study(tmp_path, {"lr_law": "law.json", "lr_law_beyond": 1e3, **training}, recipe)
    return rated(load_study(path), "arch=llama,size=25k")


def test_a_law_of_the_recipes_sweep_holds_for_runs_by_the_same_rules(tmp_path):
    (run,) = followed(tmp_path, {"n_tokens": "400N"})
    n = count_params(run.config).non_embedding
    world = World(c=(-6.0, -0.4, -0.3, 0.0))
    assert math.log(run.training.lr) == pytest.approx(world.ln_best(n, 400 * n, 1), abs=0.1)
    tau = 1.08 * (run.rate.horizon / n) ** -0.53
    wanted = run.training.batch_tokens / (run.training.lr * tau * run.rate.horizon)
    assert run.training.weight_decay == pytest.approx(wanted, rel=6e-3)
    assert "batch_tokens" not in run.rate.followed.outside and run.rate.followed.outside["n_tokens"] > 9


@pytest.mark.parametrize(
    ("training", "recipe", "message"),
    [
        ({"weight_decay": 0.1}, {}, "its sweep had weight_decay B / (lr tau D), tau = 1.08 (D / N)^-0.53, the run has"),
        ({}, {"timescale": 2.0}, "the run has B / (lr tau D), tau = 2 (D"),
        ({"betas": [0.9, 0.95]}, {}, "its sweep had betas 0.9 and 0.5^(B / 55,351), the run has given by hand"),
        ({"batch_tokens": 4_096}, {}, "had batch_tokens 4,096 (D / 1,000,000)^0.4, the run has given by hand"),
        ({"schedule": "constant"}, {}, "its sweep had schedule schedule wsd"),
    ],
)
def test_runs_by_other_rules_than_the_sweep_are_refused_in_one_line(tmp_path, training, recipe, message):
    with pytest.raises(InputError) as error:
        followed(tmp_path, training, recipe)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_study_without_the_section_is_what_it_was(tmp_path):
    raw = yaml.safe_load(study(tmp_path, {"lr": 1e-3}).read_text())
    del raw["recipe"]
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(raw))
    spec = load_study(tmp_path / "s.yaml")
    assert all(not run.rules and "rules" not in run.model_dump() for run in spec.runs())
    assert "recipe" not in lines(spec)
