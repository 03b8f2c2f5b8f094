"""What a study file names must be in its grid, and --set is judged for the runs that --only chooses."""

import pytest
import yaml

from arch.errors import InputError
from scaling.study.spec import load_study
from tests.commands import refused
from tests.scaling.study.test_spec import MINIMAL

GRID = MINIMAL["grid"]
NAMED = {
    "grid": GRID | {"extra_seeds": {"25k": [1]}},
    "model": {"context_length": 64, "decay_slopes": "fixed"},
    "overrides": {"by_size": {"25k": {"lr": 1e-3}}, "by_arch": {"tnl": {"lr": 1e-3}}, "by_run": {"tnl/25k": {}}},
    "fit": {"range": {"tnl": [1, 2]}},
    "jobs": {"resources": {"25k": {"nodes": 2}, "tnl": {"nodes": 2}, "tnl/25k": {"nodes": 2}, "eval": {"nodes": 1}}},
}


@pytest.fixture
def load(tmp_path):
    def from_file(content, sets=None, only=None):
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(MINIMAL | content))
        return load_study(path, sets, only=only)

    return from_file


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"overrides": {"by_size": {"98k": {"lr": 1}}}}, "overrides.by_size.98k: this study has no run of 98k"),
        ({"overrides": {"by_run": {"tnl/98k": {}}}}, "overrides.by_run.tnl/98k: this study has no run of tnl/98k"),
        ({"grid": GRID | {"extra_seeds": {"410m": [1]}}}, "grid.extra_seeds.410m: this study has no run of 410m"),
        ({"fit": {"range": {"hgrn2": [1, 2]}}}, "fit.range.hgrn2: this study has no run of hgrn2 (valid: llama, tnl)"),
        ({"jobs": {"resources": {"7b": {"nodes": 2}}}}, "jobs.resources.7b: this study has no run of 7b"),
    ],
)
def test_what_no_run_reads_is_refused(load, content, message):
    with refused(message, "study.yaml"):
        load(content)


def test_what_set_takes_out_of_the_grid_may_stay_in_the_file(load):
    assert len(load(NAMED).runs()) == 6
    assert len(load(NAMED, ["grid.archs=[llama]"]).runs()) == 3
    assert len(load(NAMED, ["grid.sizes=[14k]"]).runs()) == 2
    assert len(load({"fit": {"range": [1, 2]}}).runs()) == 4  # one range stands for all
    with pytest.raises(InputError, match=r"--set: fit\.range\.hgrn2: this study has no run of hgrn2"):
        load(MINIMAL, ["fit.range.hgrn2=[1, 2]"])


@pytest.mark.parametrize(
    "change", ["training.batch_tokens=16384", "training.warmup_tokens=50000", "model.n_heads=3", "jobs.processes=64"]
)
def test_a_change_is_judged_for_the_chosen_runs_alone(load, change):
    changed = {"14k": {"n_tokens": 100_000, "batch_tokens": 4096, "model": {"d_model": 24}}}
    other = {"25k": {"model": {"d_model": 32}}}
    content = {"overrides": {"by_size": changed | other}}
    with pytest.raises(InputError, match="25k"):
        load(content, [change])
    study = load(content, [change], "size=14k")
    assert {run.size for run in study.runs("size=14k")} == {"14k"} and study.is_variant
    with pytest.raises(InputError, match="25k"):
        study.runs()


def test_without_set_the_whole_file_is_judged(load):
    with pytest.raises(InputError, match="25k"):
        load({"overrides": {"by_size": {"25k": {"warmup_tokens": 50_000}}}}, only="size=14k")


def test_a_change_for_chosen_architectures_must_mean_something_to_these(load):
    with pytest.raises(InputError, match="decay_slopes means nothing to llama, only to tnl"):
        load({}, ["model.decay_slopes=fixed"], "arch=llama")


def test_a_misspelt_section_is_named_before_the_one_that_is_missing_for_it(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\ncorpus: {source: 'stdlib:'}\ngrids: {archs: [tnl], sizes: [6k]}\ntraining: {n_tokens: 8192}\n"
    )
    with pytest.raises(InputError, match=r"unknown key 'grids' \(did you mean 'grid'"):
        load_study(path)
