"""The section forecast: which runs it makes, what they share with the grid's, and what is refused."""

import pytest
import yaml

from arch.errors import InputError
from flops import count_params
from flops.ladder import Ladder
from scaling.cli.planning import outlook
from scaling.cli.request import Request
from scaling.study.plan import plan
from scaling.study.run import RunSpec
from scaling.study.spec import load_study
from scaling.study.sweep import sweep_of
from tests.commands import refused

STUDY = """
name: tiny
corpus: {source: "synthetic:0:200000"}
grid: {archs: [llama, tnl], sizes: [14k, 25k], extra_seeds: {14k: [1]}}
model: {context_length: 64}
training: {n_tokens: 7680, batch_tokens: 256, lr: 3e-3}
forecast: {sizes: [38k], n_tokens: 16000, seeds: [5, 6]}
"""


def loaded(folder, sets=(), only=None, **sections):
    raw = yaml.safe_load(STUDY) | sections
    (folder / "tiny.yaml").write_text(yaml.safe_dump({key: value for key, value in raw.items() if value is not None}))
    return load_study(folder / "tiny.yaml", list(sets), only=only)


def forecast(**changes):
    return yaml.safe_load(STUDY)["forecast"] | changes


def test_forecast_runs_are_of_all_architectures_at_the_studys_settings(tmp_path):
    study = loaded(tmp_path)
    grid, more = study.runs(), study.forecast_runs()
    assert [run.run_id for run in more] == [f"{arch}-38k-c64-s{seed}" for arch in ("llama", "tnl") for seed in (5, 6)]
    assert study.all_runs() == [*grid, *more] and not any(run.is_forecast for run in grid)
    assert {run.n_tokens for run in more} == {16128} and {run.training.lr for run in more} == {3e-3}
    same_without = loaded(tmp_path, forecast=None).runs()
    assert [run.model_dump(mode="json") for run in same_without] == [run.model_dump(mode="json") for run in grid]


def test_the_role_decides_no_number_and_is_no_part_of_a_usual_runs_record(tmp_path):
    study = loaded(tmp_path, forecast=forecast(sizes=["25k"], n_tokens=7680))
    (run,) = [run for run in study.forecast_runs() if run.arch == "tnl" and run.seed == 5]
    of_grid = run.model_copy(update={"role": "grid"})
    assert of_grid.spec_hash == run.spec_hash
    assert "role" not in of_grid.model_dump(mode="json") and run.model_dump(mode="json")["role"] == "forecast"
    assert RunSpec.model_validate(run.model_dump(mode="json")) == run


def test_the_sections_length_takes_the_place_of_every_other(tmp_path):
    study = loaded(tmp_path, overrides={"by_size": {"38k": {"n_tokens": 999, "lr": 1e-3}}})
    assert {(run.n_tokens, run.training.lr) for run in study.forecast_runs()} == {(16128, 1e-3)}
    changed = loaded(tmp_path, ["training.n_tokens=5120"])
    assert {run.n_tokens for run in changed.runs()} == {5120}
    assert {(run.n_tokens, run.run_id[-2:]) for run in changed.forecast_runs()} == {(16128, "s5"), (16128, "s6")}
    longer = loaded(tmp_path, forecast=forecast(n_tokens="20N"))
    assert all(run.n_tokens >= 20 * count_params(run.config).non_embedding for run in longer.forecast_runs())


def test_branches_end_in_one_run_of_the_sections_length(tmp_path):
    training = {"branches": [2560, 5120], "schedule": "wsd", "batch_tokens": 256, "lr": 3e-3}
    study = loaded(tmp_path, training=training)
    assert [run.n_tokens for run in study.forecast_runs()] == [16128] * 4
    assert all(not run.trunk and not run.branches for run in study.forecast_runs())


def test_rounds_have_sizes_lengths_and_seeds_of_their_own(tmp_path):
    """And no run of the rounds before changes with one that is added."""
    first = loaded(tmp_path).forecast_runs()
    ladder = {"from": "55k", "to": "55k", "count": 1}
    rounds = forecast(then={"sizes": ladder, "n_tokens": 20480, "seeds": [5], "level": 0.8})
    study = loaded(tmp_path, forecast=rounds)
    runs = study.forecast_runs()
    assert study.forecast_runs(0) == first == runs[:4] and study.forecast_runs(1) == runs[4:]
    assert [(run.size, run.seed, run.n_tokens, run.round) for run in runs[4:]] == [("n55k", 5, 20480, 1)] * 2
    assert [part.level for part in study.rounds] == [0.9, 0.8]
    assert "round" not in first[0].model_dump() and RunSpec(**runs[4].model_dump()) == runs[4]
    assert runs[4].spec_hash == runs[4].model_copy(update={"round": 0}).spec_hash, "it decides no number"
    changed = loaded(tmp_path, forecast=rounds, overrides={"by_size": {"n55k": {"lr": 1e-3}}})
    assert {run.training.lr for run in changed.forecast_runs(1)} == {1e-3}


def test_plans_warn_of_a_round_that_lies_inside_of_those_before(tmp_path):
    study = loaded(tmp_path, forecast=forecast(then={"sizes": ["25k"], "n_tokens": 16000, "seeds": [7]}))
    (line,) = (warning for warning in plan(study, study.all_runs()).warnings if warning.startswith("forecast: "))
    assert line.startswith("forecast: 2 runs take no more compute than the largest of their architecture in the grid")
    study = loaded(tmp_path, forecast=forecast(then={"sizes": ["55k"], "n_tokens": 16000, "seeds": [7]}))
    assert not any(warning.startswith("forecast: ") for warning in plan(study, study.all_runs()).warnings)


def test_a_run_under_another_name_of_its_size_is_no_forecast(tmp_path):
    """A fit that sees its loss would predict it."""
    runs = {run.run_id: run for run in loaded(tmp_path).all_runs()}
    for grid_size, seed, place in (("14k", 1, "forecast"), ("38k", 5, "then")):
        of = next(run for run in runs.values() if (run.arch, run.size, run.seed) == ("llama", grid_size, seed))
        shape = {key: of.model[key] for key in ("n_layers", "d_model", "n_heads", "d_ffn")}
        section = {"sizes": {"again": shape}, "n_tokens": 16000, "seeds": [seed]}
        rounds = forecast(then=section) if place == "then" else forecast(**section)
        with pytest.raises(
            InputError, match=f"llama-again-c64-s{seed} has the shape and the seed of {of.run_id}: give"
        ):
            loaded(tmp_path, forecast=rounds)
        section["seeds"] = [9]
        assert loaded(tmp_path, forecast=forecast(then=section) if place == "then" else forecast(**section)).all_runs()


def test_sizes_may_be_one_of_a_ladder_or_the_grids_own(tmp_path):
    ladder = {"from": "60k", "to": "60k", "count": 1, "head_dim": 16}
    runs = loaded(tmp_path, forecast=forecast(sizes=ladder)).forecast_runs()
    assert {run.size for run in runs} == {"n60k"}
    assert Ladder(60e3, 60e3, 1).targets == (60e3,) and Ladder(60e3, 60e3, 1).names == ("n60k",)
    grid = {"archs": ["llama"], "sizes": {"from": "20k", "to": "40k", "count": 2}}
    runs = loaded(tmp_path, grid=grid, forecast=forecast(sizes=["n40k"])).forecast_runs()
    assert [run.run_id for run in runs] == ["llama-n40k-c64-s5", "llama-n40k-c64-s6"]


def test_axes_of_the_grid_are_those_of_the_forecast(tmp_path):
    grid = {"archs": ["llama"], "sizes": ["14k"], "axes": {"training.lr": [1e-3, 2e-3]}}
    runs = loaded(tmp_path, grid=grid).forecast_runs()
    assert [run.training.lr for run in runs] == [1e-3, 2e-3] * 2 and len({run.run_id for run in runs}) == 4


def test_only_chooses_among_all_runs_and_a_sweep_has_none(tmp_path):
    study = loaded(tmp_path, sweep={"rates": [1e-3, 2e-3, 4e-3], "tokens": [2560], "share": None})
    assert [run.run_id for run in study.all_runs("size=38k,arch=tnl")] == ["tnl-38k-c64-s5", "tnl-38k-c64-s6"]
    with pytest.raises(InputError, match="no run with size=38k"):
        study.runs("size=38k")
    assert not any(run.is_forecast for run in sweep_of(study).all_runs())


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"forecast": forecast(sizes=["14k"], seeds=[1])}, "forecast: llama-14k-c64-s1 is a run of the grid"),
        ({"forecast": forecast(seeds=[5, 5])}, "forecast.seeds: names 5 twice"),
        ({"forecast": forecast(level=1)}, "forecast.level: must be less than 1"),
        ({"forecast": {"sizes": ["38k"], "seeds": [5]}}, "key 'forecast.n_tokens' is missing"),
        ({"forecast": forecast(sizes={"big": {"n_layers": 2, "d_model": 64, "n_heads": 2, "d_ffn": 96, "hgrn2": {}}})},
         "forecast.sizes.big.hgrn2: this study has no run of hgrn2"),
        ({"grid": {"archs": ["llama"], "sizes": ["14k"], "axes": {"training.n_tokens": [2560, 5120]}}},
         "forecast: n_tokens takes the place of the axis training.n_tokens"),
        ({"grid": {"archs": ["llama"], "sizes": ["14k"],
                   "axes": {"length": {"a": {"training.n_tokens": 2560}, "b": {"training.n_tokens": 5120}}}}},
         "forecast: n_tokens takes the place of the axis training.n_tokens"),
        ({"grid": {"archs": ["llama"], "sizes": ["14k"], "axes": {"training.lr": [1e-3, 2e-3]},
                   "nuisance": {"training.lr": "best"}}}, "forecast: goes with no grid.nuisance"),
        ({"grid": {"archs": ["llama"], "sizes": {"from": "20k", "to": "40k", "count": 2}},
          "forecast": forecast(sizes={"from": "40k", "to": "80k", "count": 2})},
         "forecast.sizes: n40k is another size in grid.sizes"),
        ({"forecast": forecast(then={"sizes": ["38k"], "n_tokens": 20480, "seeds": [6]})},
         "forecast.then: 38k with seed 6 is a run of forecast: give another seed"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(sections, message, tmp_path):
    with refused(message):
        loaded(tmp_path, **sections)


def test_a_plan_marks_forecasts_and_warns_of_those_inside_the_fits(tmp_path):
    study = loaded(tmp_path)
    made = plan(study, study.all_runs())
    assert [run.role for run in made.runs].count("forecast") == 4 and not made.warnings
    grid = {"archs": ["llama"], "sizes": ["14k", "25k"]}
    lines = outlook(Request(loaded(tmp_path, grid=grid)))
    assert "fits: no size has two seeds: no intervals" in lines, "forecasts are no part of the fits"
    inside = loaded(tmp_path, forecast=forecast(sizes=["14k"], n_tokens=2560))
    (line,) = plan(inside, inside.all_runs()).warnings
    assert line.startswith("forecast: 4 runs take no more compute than the largest of their architecture in the grid (")
