"""`scaling fit study`, `fit runs` and `fit table` of one study: the same numbers."""

import json
import shutil

import pandas as pd
import pytest
from typer.testing import CliRunner

from analysis.fits.approaches import DEFAULTS, STUDY_OBJECTIVE
from analysis.source.parquet import study_of_file
from analysis.table_files import read_table, table_bytes
from arch.errors import InputError
from data.files import read_json, write_json
from scaling.cli.fit import LEVEL, REPLICATES, SEED
from scaling.cli.main import app
from scaling.study.spec import load_study
from tests.analysis.few_replicates import REPLICATES as FEW
from tests.analysis.few_replicates import few_replicates
from tests.analysis.fits.synthetic import SIZES, power_world, write_run


def world(n_params, n_tokens):
    return 0.7 + power_world(n_params, n_tokens)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two architectures at five sizes, three seeds of one."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "s.yaml").write_text(
        f"name: both\nout: {folder}/out\ncorpus: {{source: 'stdlib:'}}\n"
        f"grid: {{archs: [llama, tnl], sizes: [14k, 25k, 55k, 98k, 221k], extra_seeds: {{55k: [1, 2]}}}}\n"
        "training: {n_tokens: 1000000, warmup_tokens: 20480}\n"
        "fit: {smoothing_tokens: 20000}\n"
    )
    spec = load_study(folder / "s.yaml")
    for run in spec.runs():
        rank, n_params = list(SIZES).index(run.size), SIZES[run.size]
        shift = -0.03 * (run.arch == "tnl") + 0.004 * ((rank + 2 * run.seed) % 3 - 1)
        write_run(spec.directory, run.arch, run.size, int(1.5e12 / 6 / n_params), world, seed=run.seed, shift=shift)
        path = spec.directory / "runs" / run.run_id / "run.json"
        write_json(path, read_json(path) | {"spec_hash": run.spec_hash})
    return str(folder / "s.yaml")


def printed(command, *arguments):
    words = [command, *arguments, *(["--replicates", str(FEW)] if command != "study" else [])]
    with few_replicates():
        result = CliRunner().invoke(app, ["fit", *words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def stage(study):
    """What the fit stage stores."""
    return printed("study", study)


def test_a_study_says_its_form_as_the_command_does(study, stage):
    """In a folder of its own, like every changed fit; an unknown name is refused before anything runs."""
    tied = printed("study", study, "--set", "fit.form=over-training")
    assert tied["settings"]["form"] == "over-training" and tied["inputs_hash"] != stage["inputs_hash"]
    asked = printed("runs", study, "--approach", "parametric", "--form", "over-training")["results"]
    by_set = printed("runs", study, "--approach", "parametric", "--set", "fit.form=over-training")["results"]
    assert [law["parametric"] for law in by_set] == [law["parametric"] for law in asked]
    plain, laws = ([fit for fit in fits if fit["approach"] == "parametric"] for fits in (stage["fits"], tied["fits"]))
    assert [law["parametric"] for law in laws] == [law["parametric"] for law in asked]
    assert [law["parametric"] for law in plain] != [law["parametric"] for law in asked]
    assert all(set(law["parametric"]["over_training"]) == {"a", "b", "eta"} for law in laws)
    with pytest.raises(InputError, match=r"s.yaml.*fit.form: 'bent' .*plain, over-training, data-constrained"):
        CliRunner().invoke(app, ["plan", study, "--set", "fit.form=bent"], catch_exceptions=False)


@pytest.fixture(scope="module")
def command(study):
    return printed("runs", study, "--approach", "all")


def test_the_command_gives_the_numbers_of_the_fit_stage(study, stage, command):
    laws = [fit for fit in stage["fits"] if fit["verdict"]]
    assert len(laws) == 6
    for law, other in zip(laws, command["results"], strict=True):
        # the line of a figure: the command makes it for its pictures alone; the rest to the last digit, with intervals,
        # checks and verdict
        assert law | {"curve": []} == other
    assert stage["comparisons"] == command["comparisons"]
    parametric = [law for law in laws if law["approach"] == "parametric"]
    # one approach by itself: the seeds of other architectures tell its noise all the same
    alone = printed("runs", study, "--approach", "parametric")["results"]
    assert [(law["parametric"], law["laws"]) for law in alone] == [
        (law["parametric"], law["laws"]) for law in parametric
    ]
    assert all(("log" not in law["objective"]["name"]) == (STUDY_OBJECTIVE == "least_squares") for law in parametric)
    assert {law["group"] for law in parametric} == {"llama", "tnl"}
    names = {
        tuple(check["name"] for check in claim["checks"]) for law in parametric for claim in law["verdict"]["claims"]
    }
    assert names == {("inside", "fits", "rehearsed", "stable")}


def test_a_study_and_its_exported_table_give_the_same_numbers(study, stage, command, tmp_path):
    """The table carries its runs and the settings of its fit; whoever has it needs nothing else of the study."""
    stored, table = load_study(study).results / "curves.parquet", tmp_path / "runs.parquet"
    shutil.copyfile(stored, table)
    of_table = printed("table", str(table), "--approach", "all")
    assert len(of_table["results"]) == sum(1 for fit in stage["fits"] if fit["verdict"])
    for key in ("input", "results", "not_fitted", "comparisons"):
        assert of_table[key] == command[key], key  # to the last digit, with intervals, checks and verdicts
    paper = printed("table", str(table), "--approach", "isoflop", "--convention", "paper")
    assert {law["conventions"]["C"] for law in paper["results"]} == {"paper"}
    # as any table where it is said how: its rows as they stand
    other = printed("table", str(table), "--approach", "isoflop", "--group", "arch", "--convention", "exact")
    assert other["input"]["rows"]["read"] == len(read_table(stored))
    with pytest.raises(InputError, match=r"holds held-out losses, .* both fits the others: give curves\.parquet"):
        study_of_file(stored.with_name("validation.parquet"))


def test_the_level_of_a_study_is_that_of_its_intervals(study, command):
    """In the fit stage, the command and the exported table alike; --level gives another."""
    level, parametric = "fit.level=0.7", ("--approach", "parametric")
    own = printed("study", study, "--set", level)["fits"]
    laws = [(law["group"], law["laws"]) for law in own if law["approach"] == "parametric"]
    table = str(load_study(study, [level]).results / "curves.parquet")
    for arguments in (("runs", study, "--set", level), ("table", table)):
        results = printed(*arguments, *parametric)["results"]
        assert {law["intervals"]["level"] for law in results} == {0.7}
        assert [(law["group"], law["laws"]) for law in results] == laws
        other = printed(*arguments, *parametric, "--level", "0.9")["results"]
        assert {law["intervals"]["level"] for law in other} == {0.9}
    assert {law["intervals"]["level"] for law in command["results"]} == {0.95}


def test_a_table_that_carries_nonsense_is_refused(tmp_path):
    frame = pd.DataFrame({"run_id": ["a"], "n_tokens": [1], "loss": [1.0]})
    for fit, runs in ((b"{}", b"x"), (b"no", b"x"), (b'{"name": "s", "settings": {"loss": 3}}', b"x")):
        (tmp_path / "t.parquet").write_bytes(table_bytes(frame, {b"fit": fit, b"runs": runs}))
        with pytest.raises(InputError, match=r"t\.parquet: cannot be read"):
            study_of_file(tmp_path / "t.parquet")


def test_the_defaults_of_the_command_are_those_of_the_settings():
    assert (DEFAULTS.n_replicates, DEFAULTS.level, DEFAULTS.seed) == (REPLICATES, LEVEL, SEED)
