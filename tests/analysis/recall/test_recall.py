"""A recall sweep: what its file may say, the rule that chooses a rate, cells that are trained once."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from analysis.recall.figure import figure, record, table
from analysis.recall.recipe import PACKAGED, Run, Trial, read_sweep
from analysis.recall.sweep import _store, cell_key, missing, outcomes, settle, stored, units, work
from analysis.recall.training import train
from arch.errors import InputError
from arch.registry import ARCHITECTURES, register
from flops.conventions import train_flops_per_token
from scaling.cli.main import app
from tests.commands import refused
from tests.registries import as_registered

TINY = {
    "name": "tiny",
    "archs": ["llama", "hgrn2"],
    "problems": [{"length": 16, "pairs": 2}],
    "widths": [16],
    "rates": ["1e-2", 0.005],
    "steps": 4,
    "warm_up_steps": 1,
    "every": 2,
    "vocab_size": 16,
    "held_out_rows": 300,
}


def sweep_of(tmp_path, **changes):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(TINY | changes))
    return read_sweep(str(path))


def run_of(trial, accuracy, seed=0):
    return Run(trial.rate, seed, ((2, 0.1), (4, accuracy)), 1.0, trial.ratio)


def test_the_packages_sweeps_are_whole():
    sweeps = {path.stem: read_sweep(path.stem) for path in PACKAGED.glob("*.yaml")}
    assert set(sweeps) == {"small", "figure3"} and len(sweeps["small"].archs) == 7
    lengths = [(problem.length, problem.pairs) for problem in sweeps["figure3"].problems]
    assert lengths == [(64, 4), (128, 8), (256, 16), (512, 64)]
    small = sweeps["small"]
    heads = {arch: small.config(arch, small.problems[0], 64).n_heads for arch in small.archs}
    assert heads == dict(llama=1, tnl=4, hgrn2=1, cosformer2=1, hgrn1=1, mamba2=2, mamba1=1)
    assert small.rates_of("mamba1") == [1e-2, 2.5e-3, 5e-3] and small.steps_of("mamba1") == 4000


def test_figure_3_tries_what_the_paper_tried():
    """HGRN2, section 4.1: seven learning rates and two expand ratios, and the best of all of them."""
    sweep = read_sweep("figure3")
    assert sorted(sweep.rates) == [1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2] and not sweep.stop
    for width, ratios in ((64, {64}), (128, {64, 128}), (512, {64, 128})):
        trials = sweep.trials("hgrn2", width)
        assert len(trials) == len(set(trials)) == 7 * len(ratios) and {trial.ratio for trial in trials} == ratios
        for ratio in ratios:
            config = sweep.config("hgrn2", sweep.problems[0], width, ratio)
            assert config.d_model // config.n_heads == ratio
    assert [str(trial) for trial in sweep.trials("hgrn1", 512)[:2]] == ["0.001", "0.005"]
    assert sum(len(sweep.trials(unit.arch, unit.width)) for unit in units(sweep)) == 532  # as the file says
    assert sweep.summary() == (
        "tried: learning rates 0.001, 0.005, 0.0005, 0.01, 0.0001, 5e-05, 1e-05, each with expand ratios (in brackets) "
        "hgrn2's 64, 128; all of them; the best counts"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expand_ratios": {"tnl": [64]}}, "expand_ratios.tnl: tnl is not among archs"),
        ({"expand_ratios": {"hgrn2": []}}, "expand_ratios.hgrn2: must name at least one"),
        ({"expand_ratios": {"hgrn2": [8]}, "head_dim": {"hgrn2": 8}}, "head_dim.hgrn2 names one already"),
        ({"expand_ratios": {"hgrn2": [16, 7]}}, "widths: 16 does not split into hgrn2's heads of 7"),
        ({"archs": ["llama", "hgrn3"]}, "unknown architecture 'hgrn3' (did you mean 'hgrn2'?)"),
        ({"widhts": [1]}, "unknown key 'widhts' (did you mean 'widths'?)"),
        ({"rates": []}, "rates: must name at least one"),
        ({"rates": [1e-3, 1e-3]}, "rates: names 0.001 twice"),
        ({"rates": ["fast"]}, "rates.0: must be a valid number, not 'fast'"),
        ({"problems": [{"length": 16, "pairs": 9}]}, "length=16 is too short for 9 pairs: give at least 36"),
        ({"model": {"tnl": {"n_heads": 2}}}, "model.tnl: tnl is not among archs"),
        ({"model": {"hgrn2": {"ssm_state": 4}}}, "model.ssm_state means nothing to hgrn2"),
        ({"widths": [96]}, "widths: 96 does not split into llama's heads of 64"),
        ({"name": "a/b"}, "name: 'a/b' becomes the name of a directory"),
        ({"warm_up_steps": 4}, "warm_up_steps: 4 of 4 steps leave none to train on: give fewer, or more steps"),
    ],
)
def test_mistakes_are_one_line(tmp_path, changes, message):
    with refused(message):
        sweep_of(tmp_path, **changes)


def test_without_learning_nothing_is_recalled():
    short = read_sweep("small").model_copy(update={"steps": 2, "warm_up_steps": 1})
    assert train(short, "llama", short.problems[0], 64, Trial(1e-9), seed=0).accuracy < 0.1


def test_numbers_may_be_written_as_in_a_study(tmp_path):
    sweep = sweep_of(tmp_path, steps="1e3", rows=16.0, rates=["1e-3"], done="9e-1")
    assert (sweep.steps, sweep.rows, sweep.rates, sweep.done) == (1000, 16, [1e-3], 0.9)


def test_no_such_file_names_the_packages():
    with pytest.raises(InputError, match=r"nowhere.yaml: No such file.*figure3, small"):
        read_sweep("nowhere.yaml")


def test_the_rule(tmp_path):
    """Rates in order at the first seed, ended by one that solves; the best counts and is repeated."""
    sweep = sweep_of(tmp_path, rates=[0.1, 0.2, 0.3], seeds=[0, 5], first={"hgrn2": 0.2})
    hgrn2 = units(sweep)[1]
    for accuracies, tried, best in (
        ({0.2: 0.5, 0.1: 0.96, 0.3: 0.99}, [0.2, 0.1], 0.1),
        ({0.2: 0.5, 0.1: 0.6, 0.3: 0.4}, [0.2, 0.1, 0.3], 0.1),
    ):
        asked = []

        def run(trial, seed, accuracies=accuracies, asked=asked):
            asked.append((trial.rate, seed))
            return run_of(trial, accuracies[trial.rate] if seed == 0 else 0.7, seed)

        outcome = settle(sweep, hgrn2, run)
        assert [run.rate for run in outcome.sweep] == tried and outcome.runs[0].rate == best
        assert asked == [(rate, 0) for rate in tried] + [(best, 5)]
        assert outcome.accuracy == pytest.approx((accuracies[best] + 0.7) / 2)
    assert settle(sweep, hgrn2, lambda trial, seed: run_of(trial, 0.1) if seed == 0 else None) is None


def test_cells_are_trained_once_and_again_when_the_recipe_changes(tmp_path):
    sweep, lines = sweep_of(tmp_path), []
    assert set(outcomes(sweep, tmp_path).values()) == {None}
    work(sweep, tmp_path, "cpu", lines.append)
    first = list(outcomes(sweep, tmp_path).values())
    assert [outcome.unit.arch for outcome in first] == ["llama", "hgrn2"] and len(lines) == 4
    work(sweep, tmp_path, "cpu", lines.append)
    assert len(lines) == 4
    unit = first[0].unit
    assert stored(sweep, tmp_path, unit, Trial(0.01), 0).curve[-1][0] == 4
    for changes in ({"steps": 5}, {"rows": 8}, {"weight_decay": 0.0}, {"model": {"llama": {"rope_base": 500.0}}}):
        assert stored(sweep_of(tmp_path, **changes), tmp_path, unit, Trial(0.01), 0) is None
    wider = sweep_of(tmp_path, widths=[16, 32], solved=0.9, seeds=[0, 1])
    assert cell_key(wider, unit, Trial(0.01), 0) == cell_key(sweep, unit, Trial(0.01), 0)
    (tmp_path / "cells").joinpath(f"{unit.name}-lr0.01-s0.json").write_text("{")
    assert outcomes(sweep, tmp_path)[unit] is None


def test_expand_ratios_are_trained_and_reported(tmp_path):
    sweep, lines = sweep_of(tmp_path, archs=["hgrn2"], expand_ratios={"hgrn2": [4, 8]}, stop=False), []
    work(sweep, tmp_path, "cpu", lines.append)
    (outcome,) = outcomes(sweep, tmp_path).values()
    assert [run.trial for run in outcome.sweep] == [Trial(0.01, 4), Trial(0.01, 8), Trial(0.005, 4), Trial(0.005, 8)]
    assert len({run.curve for run in outcome.sweep}) > 1
    assert sorted(path.name for path in (tmp_path / "cells").glob("*e4*.json")) == [
        "hgrn2-16x2-d16-e4-lr0.005-s0.json",
        "hgrn2-16x2-d16-e4-lr0.01-s0.json",
    ]
    row = record(sweep, outcome)
    best = max(outcome.sweep, key=lambda run: run.accuracy)
    assert (row["rate"], row["expand_ratio"]) == (best.rate, best.ratio)
    (cells,) = table([row])
    assert cells["tried at the first seed"].startswith(f"0.01 (4): {outcome.sweep[0].accuracy:.3f}  0.01 (8): ")


def test_table_and_figure(tmp_path):
    sweep = sweep_of(tmp_path, seeds=[0, 1], widths=[16, 32])
    settled = [
        settle(sweep, unit, lambda trial, seed: run_of(trial, 0.4 + trial.rate + 0.1 * seed, seed))
        for unit in units(sweep)[:3]
    ]
    rows = [record(sweep, outcome) for outcome in settled]
    assert [row["accuracy"] for row in rows] == [pytest.approx(0.46)] * 3 and rows[0]["rate"] == 0.01
    assert list(table(rows)[0].values())[3:] == ["0.460", "0: 0.410  1: 0.510", "-", "0.01: 0.410  0.005: 0.405"]
    drawn = figure(sweep, rows)
    assert [(trace.name, list(trace.x)) for trace in drawn.data] == [("LLaMA", [16, 32]), ("HGRN2", [16])]
    assert drawn.data[0].error_y.array == pytest.approx((0.05, 0.05))


def test_what_is_missing_is_counted_before_it_is_trained(tmp_path):
    sweep = sweep_of(tmp_path, seeds=[0, 1, 2])
    command = ["recall", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path), "--dry-run"]
    directory = tmp_path / sweep.name
    flops = sum(
        steps * sweep.rows * config.context_length * train_flops_per_token(config, "exact")
        for config, steps in missing(sweep, directory)
    )
    cost = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["at_most"]
    assert cost["trainings"] == 2 * (2 + 2) and cost["tokens"] == 8 * sweep.steps * sweep.rows * 16  # 2 rates, 2 seeds
    assert cost["flops"] == pytest.approx(flops) and cost["core_seconds"] > 0
    assert (
        f"at most 8 trainings on {cost['tokens']:.3g} tokens, {flops:.3g} FLOP"
        in CliRunner().invoke(app, command).output
    )
    done = units(sweep)[0]
    for trial in sweep.trials(done.arch, done.width):
        _store(sweep, directory, done, run_of(trial, 0.5))
    assert len(list(missing(sweep, directory))) == 2 + 4  # of the first its other seeds


def test_a_plugin_without_costs_has_none(tmp_path):
    with as_registered():
        register("costless", mixer=ARCHITECTURES["tnl"].mixer, options=ARCHITECTURES["tnl"].options)
        sweep_of(tmp_path, archs=["llama", "costless"])
        result = CliRunner().invoke(app, ["recall", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path), "--dry-run"])
        assert result.exit_code == 0, result.output
        assert result.output.endswith("their FLOP are not known, because a plugin gives no costs\n")


def test_command(tmp_path):
    sweep_of(tmp_path)
    command = ["recall", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*command, "--workers", "2", "--json"])  # the workers are processes
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert [row["arch"] for row in result["rows"]] == ["llama", "hgrn2"] and result["missing"] == []
    assert (tmp_path / "tiny/recall.json").exists() and (tmp_path / "tiny/index.html").exists()
    again = CliRunner().invoke(app, [*command, "--dry-run"])
    assert again.output == "nothing to do: all 2 units are trained\n"
    shown = CliRunner().invoke(app, command).output
    assert shown.startswith("tried: learning rates 0.01, 0.005; in this order until one answers 95%; the best counts\n")
    assert any("0.01: " in line for line in shown.splitlines()) and result["summary"] == shown.splitlines()[0]
