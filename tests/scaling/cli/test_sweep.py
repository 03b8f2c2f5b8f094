"""Sweeps over learning rates: what is trained, where more rates are tried, and the law that runs follow."""

from __future__ import annotations

import io
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from analysis.rates.law import LEVEL
from arch.errors import InputError
from data.files import new_directory, read_json, write_json
from flops import count_params
from scaling.cli import fitting
from scaling.cli import sweep as stage
from scaling.cli.corpus import data_stage
from scaling.cli.main import app
from scaling.cli.request import Request
from scaling.cli.status import OTHER_SETTINGS, status_rows
from scaling.cli.training import prepare_runs
from scaling.rundir.prepare import prepare_run
from scaling.study.rates import read_law
from scaling.study.spec import load_study
from scaling.study.sweep import recipe_of, sweep_of
from tests.analysis.rates.worlds import World
from tests.scaling.rated import rated

SMALL = {"corpus": {"source": "synthetic:0:200000", "epochs": 20}, "evaluation": {"validation_tokens": 1024}}
WORLD = World(c=(-6.5, -0.4, -0.1, 0.0), noise=0.002)


def write(folder: Path, **more: Any) -> Path:
    raw = {
        "name": "s",
        "out": str(folder / "out"),
        "corpus": {"source": "synthetic:0:30000000", "tokenizer": "bytes"},
        "grid": {"archs": ["llama", "tnl"], "sizes": ["25k", "6k", "14k", "10k"]},
        "model": {"context_length": 64},
        "training": {"lr": "law", "n_tokens": "100N", "batch_tokens": 512, "n_checkpoints": 4},
        "sweep": {"rates": {"first": 2e-3, "factor": 2, "count": 4}, "share": 9},
        **more,
    }
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_runs_are_those_of_the_study_at_other_rates_and_lengths(tmp_path):
    overrides = {"by_size": {"6k": {"n_tokens": 10**6, "eps": 1e-7, "lr": 1e-3}}, "by_arch": {"tnl": {"lr": 1e-3}}}
    spec = sweep_of(load_study(write(tmp_path, overrides=overrides)))
    runs = spec.runs()
    assert {run.size for run in runs} == {"6k", "10k", "14k"}  # the three smallest
    assert len(runs) == len({run.run_id for run in runs}) == 2 * 3 * 2 * 4
    assert {run.training.lr for run in runs} == {2e-3, 4e-3, 8e-3, 16e-3}
    assert {math.ceil(run.training.n_tokens / count_params(run.config).non_embedding) for run in runs} == {10, 40}
    assert all(run.checkpoint_steps == [run.n_steps] for run in runs)
    assert {run.training.eps for run in runs if run.size == "6k"} == {1e-7}  # what else the study says holds
    assert runs[0].run_id == "llama-6k-c64-s0-lr0.002-n_tokens10N"
    assert spec.directory == tmp_path / "out" / "s" / "sweep"
    # the same numbers as a run of the study at that rate
    same = load_study(write(tmp_path), ["training.lr=0.002", "training.n_tokens=10N", "training.n_checkpoints=1"])
    (alike,) = [run for run in same.runs() if (run.arch, run.size) == ("llama", "10k")]
    assert alike.spec_hash in {run.spec_hash for run in runs}


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"sizes": ["98k"]}, "sweep.sizes: this study has no size 98k"),
        ({"rates": {"98k": [1, 2, 3]}, "share": 9}, "sweep.rates.98k: this sweep has no size 98k"),
        ({"rates": {"6k": [1e-3, 2e-3, 4e-3]}}, "sweep.rates has none for 10k, 14k"),
        ({"rates": [1e-3, 2e-3]}, "write a list of at least 3 rates"),
        ({"rates": 3}, "sweep.rates: must be a list of rates"),
        ({"rates": {"first": 1e-3, "factor": 1, "count": 5}}, "factor"),
        ({"rates": {"first": 1e300, "factor": 1e300, "count": 5}}, "sweep.rates: first x factor^4 is no finite rate"),
        ({"rates": {"first": 1e-3, "factor": 1.0000001, "count": 5}}, "makes equal rates, to six digits"),
        ({"rates": [1e-3, 1.0000001e-3, 2e-3]}, "rates are equal to six digits"),
        ({"tokens": ["10N", "10.001N"], "share": 9}, "n_tokens10.001N have the same"),
        ({"share": 0.01}, "and sweep.share allows 1%"),
        ({"tokens": ["10N", "10N"]}, "names '10N' twice"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_in_one_line(tmp_path, sweep, message):
    with pytest.raises(InputError) as error:
        stage.sweep_stage(Request(load_study(write(tmp_path, sweep=sweep))))
    assert message in str(error.value) and "\n" not in str(error.value)


def settled(world: World, diverged: float, most: float = math.inf) -> Any:
    """What training and evaluation would leave of every run: losses of the world; failed above a rate; interrupted
    after so many runs."""

    def train_stage(request: Request, corpus: Any) -> tuple[list[str], dict[str, str]]:
        now: list[str] = []
        for run, rundir in zip(request.runs, prepare_runs(request, corpus), strict=True):
            if rundir.status()["state"] != "waiting":
                continue
            if len(now) == most:
                raise KeyboardInterrupt
            now.append(run.run_id)
            random = np.random.default_rng(zlib.crc32(run.run_id.encode()))
            if run.training.peak_lr > diverged:
                rundir.write_status("failed", 3, 3 * run.training.batch_tokens, "loss is nan", None)
                continue
            n = count_params(run.config).non_embedding
            excess = world.excess(n, run.n_tokens, 65_536, run.training.peak_lr)
            loss = math.exp(0.7 + excess + world.noise * random.standard_normal())
            values = {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / math.log(2)}
            evaluation = {"step": run.n_steps, "n_tokens": run.n_tokens, "values": values | {"n_tokens_scored": 4096}}
            evaluation["settings"] = {"validation_tokens": request.study.evaluation.validation_tokens}
            path = rundir.path / "evals" / f"{run.n_steps:08d}" / "validation.json"
            path.parent.mkdir(parents=True)
            write_json(path, evaluation, kind="evaluation")
            with new_directory(rundir.checkpoint(run.n_steps), {"step": run.n_steps, "spec_hash": run.spec_hash}):
                pass
            rundir.write_status("done", run.n_steps, run.n_tokens, None, None)
        return now, {}

    return train_stage


CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"sweep": {"seeds": [0, 1]}}, "is of another section sweep than the study file has now"),
    ({"grid": {"archs": ["llama", "hgrn2"]}}, "its sweep had no hgrn2"),
    ({"training": {"weight_decay": 0.2}}, "its sweep had other runs of llama"),
    ({"training": {"precision": "bf16"}}, "its sweep had other runs of llama"),
    ({"training": {"warmup_tokens": 4096}}, "its sweep had other runs of llama"),
    ({"model": {"norm_eps": 1e-4}}, "its sweep had other runs of llama"),
    ({"corpus": {"source": "synthetic:1:200000"}}, "its sweep had other runs of llama"),
]


def test_from_runs_to_a_law_that_the_study_follows(tmp_path, monkeypatch):
    """The losses are a known world's: training takes minutes (the slow test below does it)."""
    monkeypatch.setattr(stage, "train_stage", settled(WORLD, diverged=0.05))
    monkeypatch.setattr(stage, "_evaluate", lambda request: None)
    path = write(tmp_path, **SMALL, grid={"archs": ["llama"], "sizes": ["6k", "10k", "14k", "25k"]})
    path.write_text(path.read_text().replace("100N", "20N"))
    request = Request(load_study(path))
    assert all(run.is_pending for run in request.runs)
    with pytest.raises(InputError, match=r"`scaling sweep .*` first"), request.writing():
        pass
    shown = CliRunner().invoke(app, ["plan", str(path)])
    assert "learning rates by a sweep first: 6 cells, 24 runs" in shown.output and " law " in shown.output

    result = stage.sweep_stage(request)
    fit = result.fit
    assert len(result.trained) == len(set(result.trained)) == sum(cell.n_runs for cell in fit.cells)
    lowest, most = min(min(cell.rates) for cell in fit.cells), 4 * 16e-3
    assert result.extended and lowest >= 2e-3 / 4 and max(max(cell.rates) for cell in fit.cells) <= most
    assert all(not cell.extend or len(cell.rates) == 6 for cell in fit.cells)
    law = read_law(result.law).law
    assert law.recipe.corpus_fingerprint and law.recipe.optimizer["betas"] == [0.9, 0.95]
    rate = law.laws["llama"].at(10_000, 2e5, 512)
    assert math.log(rate.low) < WORLD.ln_best(10_000, 2e5, 65_536) < math.log(rate.high)
    assert "twice too high" in result.report.read_text()

    again = stage.sweep_stage(Request(load_study(path)))
    assert again.trained == [] and again.extended == result.extended
    runs = rated(load_study(path))
    assert not any(run.is_pending for run in runs)
    assert runs[0].rate.followed.level == LEVEL and runs[0].training.lr == float(f"{runs[0].training.peak_lr:.3g}")
    planned = json.loads(CliRunner().invoke(app, ["plan", str(path), "--json"]).stdout)
    assert f"learning rates (lr: law) are those of {result.law}" in planned["notes"]
    # a law of other text is a warning
    content = read_json(result.law)
    content["recipe"]["corpus_fingerprint"] = "0123"
    write_json(result.law, content)
    output = io.StringIO()
    data_stage(Request(load_study(path), stream=output))
    assert "a law that was swept on another corpus (0123)" in output.getvalue()
    # another sweep is still to come, whatever the file there says, and can be asked for
    sections = yaml.safe_load(path.read_text())
    for more, reason in CHANGED:
        path.write_text(
            yaml.safe_dump(
                {
                    key: {**value, **more.get(key, {})} if isinstance(value, dict) else value
                    for key, value in sections.items()
                }
            )
        )
        pending = [run for run in rated(load_study(path)) if run.is_pending]
        assert pending and {run.arch for run in pending} == ({"hgrn2"} if "grid" in more else {"llama"})
        assert all(reason in run.rate.pending and not run.rate.swept for run in pending)
        with pytest.raises(InputError, match=f"(?s){reason}.*`scaling sweep .*` first"):
            Request(load_study(path)).check_rates()
        assert CliRunner().invoke(app, ["sweep", str(path), "--dry-run"]).exit_code == 0
        assert reason in CliRunner().invoke(app, ["plan", str(path)]).output.replace("\n", " ")
    # --set makes other runs, not another sweep; a run that the law says nothing of is not swept for again
    path.write_text(yaml.safe_dump(sections))
    assert not any(run.is_pending for run in rated(load_study(path, ["grid.sizes=[14k, 25k]"])))
    for run in rated(load_study(path, ["training.weight_decay=0.3"])):
        assert run.rate.swept and "its sweep had weight_decay 0.1, the run has 0.3" in run.rate.pending
    # one more architecture: runs may have to be trained again, which is announced before
    following = Request(load_study(path), stream=io.StringIO())
    prepare_runs(following, data_stage(following))
    path.write_text(yaml.safe_dump(sections | {"grid": {**sections["grid"], "archs": ["llama", "hgrn2"]}}))
    output = io.StringIO()
    stage.sweep_stage(Request(load_study(path), stream=output))
    assert "warning: 4 runs that are there follow a law" in output.getvalue()
    assert not any(run.is_pending for run in rated(load_study(path)))
    path.write_text(yaml.safe_dump(sections))
    result.law.write_text("{")
    assert all("is no law file" in run.rate.pending for run in rated(load_study(path)))


def test_a_sweep_that_is_cut_short_says_which_rates_are_missing_and_ends_with_the_same_law(tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "_evaluate", lambda request: None)
    laws, shown = [], ""
    for name, most in (("whole", math.inf), ("cut", 11)):
        (tmp_path / name).mkdir()
        path = write(tmp_path / name, **SMALL, grid={"archs": ["llama"], "sizes": ["6k", "10k", "14k", "25k"]})
        monkeypatch.setattr(stage, "train_stage", settled(WORLD, diverged=0.05, most=most))
        while True:
            try:
                result = stage.sweep_stage(Request(load_study(path), stream=io.StringIO()))
                break
            except KeyboardInterrupt:
                shown += CliRunner().invoke(app, ["sweep", str(path), "--dry-run"]).stdout
        laws.append((read_law(result.law).law.inputs_sha256, result.extended))
    assert laws[0] == laws[1] and laws[0][1]
    assert "sweep: llama/6k 10N: its best rate is at the edge" in shown and "would train 15 of 26 runs" in shown


def test_a_sweep_by_a_recipe_shares_slopes_and_its_runs_follow_the_same_rules(tmp_path, monkeypatch):
    """Batches differ with the tokens; weight decay with the rate too, so that lr weight_decay is one in a cell."""
    monkeypatch.setattr(stage, "train_stage", settled(WORLD, diverged=9.0))
    monkeypatch.setattr(stage, "_evaluate", lambda request: None)
    more = {
        "grid": {"archs": ["llama", "tnl"], "sizes": ["6k", "10k", "14k", "25k"]},
        "training": {"n_tokens": "80N", "n_checkpoints": 4},
        "recipe": {"batch_tokens": 1_024, "at_tokens": 200_000},
        "sweep": {"rates": {"first": 2e-3, "factor": 2, "count": 4}, "tokens": ["5N", "20N"], "share": 9},
    }
    path = write(tmp_path, **SMALL, **more)
    result = stage.sweep_stage(Request(load_study(path)))
    swept = sweep_of(load_study(path)).runs()
    assert len({run.training.batch_tokens for run in swept}) > 3
    for cell in {(run.arch, run.size, run.n_tokens) for run in swept}:
        same = [run.training for run in swept if (run.arch, run.size, run.n_tokens) == cell]
        products = [training.peak_lr * training.weight_decay for training in same]
        assert max(products) == pytest.approx(min(products), rel=0.01)
    law = read_law(result.law).law
    assert law.laws["llama"].terms == ["n_params", "n_tokens"] and set(law.alike) == {"n_params", "n_tokens"}
    assert law.laws["llama"].coefficients[1:] == law.laws["tnl"].coefficients[1:]
    assert (
        set(law.recipe.rules) == {"batch_tokens", "betas", "weight_decay"}
        and "weight_decay" not in law.recipe.optimizer
    )
    for run in rated(load_study(path)):
        n, training = count_params(run.config).non_embedding, run.training
        tau = 1.08 * (run.rate.horizon / n) ** -0.53
        assert training.batch_tokens / (training.peak_lr * training.weight_decay * run.rate.horizon) == pytest.approx(
            tau, rel=0.01
        )
    shown = " ".join(CliRunner().invoke(app, ["plan", str(path)]).output.split())
    assert "recipe: weight_decay = B / (lr tau D)" in shown and "learning rates (lr: law) are those of" in shown
    assert f"llama: {law.laws['llama'].formula}" in shown
    other = {**more, "recipe": {"batch_tokens": 1_024, "at_tokens": 200_000, "timescale": 0.5}}
    pending = rated(load_study(write(tmp_path, **SMALL, **other)))
    assert all("its sweep had other runs of" in run.rate.pending for run in pending)


def test_runs_that_diverge_move_a_cell_down_twice_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "train_stage", settled(WORLD, diverged=0.0))
    monkeypatch.setattr(stage, "_evaluate", lambda request: None)
    grid = {"archs": ["llama"], "sizes": ["6k", "10k", "14k"]}
    path = write(tmp_path, **SMALL, grid=grid, sweep={"rates": [2e-3, 4e-3, 8e-3, 16e-3], "share": None})
    with pytest.raises(InputError, match=r"every run diverged|at 3 sizes, and there are 0"):
        stage.sweep_stage(Request(load_study(path)))
    tried = {json.loads(path.read_text())["spec"]["training"]["lr"] for path in tmp_path.rglob("run.json")}
    assert tried == {5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3}


@pytest.mark.parametrize(
    ("grid", "sweep", "why"),
    [
        ({"sizes": ["6k", "10k"]}, {}, "a law needs a best rate inside the rates tried at 3 sizes, and there are 2"),
        ({}, {"sizes": ["6k"]}, "a law needs a best rate inside the rates tried at 3 sizes, and there are 1"),
        ({}, {"tokens": ["100N", "140N"]}, "a law's term in D needs two horizons of one size"),
        ({}, {"rates": [4e-3, 8e-3, 16e-3]}, "give some cells more than three rates, or a second seed"),
    ],
)
def test_a_sweep_that_can_have_no_law_is_refused_before_it_trains(tmp_path, grid, sweep, why):
    grid = {"archs": ["llama", "tnl"], "sizes": ["6k", "10k", "14k"]} | grid
    path = str(write(tmp_path, grid=grid, sweep={"share": None} | sweep))
    assert why in CliRunner().invoke(app, ["plan", path]).output
    with pytest.raises(InputError, match=why):
        stage.sweep_stage(Request(load_study(path)))
    assert not list(tmp_path.rglob("run.json"))


def test_batches_of_a_sweep_stay_what_they_are(tmp_path):
    training = {"lr": "law", "n_tokens": "100N", "batch_tokens": 512, "min_steps": 1000}
    sweep = {"batch_tokens": [512, 1024], "share": None}
    overrides = {"by_size": {"6k": {"min_steps": training.pop("min_steps")}}}
    for more in ({"training": {**training, "min_steps": 1000}}, {"training": training, "overrides": overrides}):
        with pytest.raises(InputError, match=r"^.*sweep.batch_tokens: training.min_steps would halve.*$"):
            sweep_of(load_study(write(tmp_path, sweep=sweep, **more)))


class Plateau(World):
    """LLaMA's shortest runs of the smallest size learn fastest at seven times the rate that the others say."""

    def excess(self, n: float, d: float, b: float, lr: float, offset: float = 0.0) -> float:
        return super().excess(n, d, b, lr, offset + (math.log(7) if n < 6200 and d < 100_000 else 0.0))


def test_runs_wait_where_one_cell_contradicts_the_others(tmp_path, monkeypatch):
    world = Plateau(c=(-6.5, -0.4, -0.1, 0.0), noise=0.0005)
    monkeypatch.setattr(stage, "train_stage", settled(world, diverged=9.0))
    monkeypatch.setattr(stage, "_evaluate", lambda request: None)
    sweep = {"rates": {"first": 1e-3, "factor": 2, "count": 8}, "share": None}
    path = write(tmp_path, **SMALL, sweep=sweep)
    path.write_text(path.read_text().replace("100N", "20N"))
    result = stage.sweep_stage(Request(load_study(path), stream=io.StringIO()))
    assert list(read_law(result.law).law.laws) == ["tnl"]
    with pytest.raises(InputError, match=r"contradict each other.*6k at 59.9k tokens.*overrides\.by_run"):
        Request(load_study(path)).check_rates()
    Request(load_study(path, only="arch=tnl"), "arch=tnl").check_rates()


def test_runs_without_a_rate_are_none_of_the_trained_ones(tmp_path):
    """Of a study that was trained at the default rate, which then is to take a law's."""
    training = {"n_tokens": "20N", "batch_tokens": 512, "n_checkpoints": 2}
    more = {**SMALL, "grid": {"archs": ["llama"], "sizes": ["6k", "10k", "14k"]}}
    trained = Request(load_study(write(tmp_path, training=training, **more)), stream=io.StringIO())
    settled(WORLD, diverged=1.0)(trained, data_stage(trained))
    path = write(tmp_path, training=training | {"lr": "law"}, **more)
    pending = Request(load_study(path), stream=io.StringIO())
    shown = CliRunner().invoke(app, ["plan", str(path), "--json"])
    assert all(row["lr"] is None and row["spec_hash"] is None for row in json.loads(shown.stdout)["runs"])
    assert not {run.spec_hash for run in pending.runs} & {run.spec_hash for run in trained.runs}
    for row in status_rows(pending.study, pending.runs):
        assert row["state"] == OTHER_SETTINGS and "holds a run at 0.0003; no learning rate yet" in row["reason"]
    shown = CliRunner().invoke(app, ["run", str(path), "--dry-run"])
    assert "would train 3 of 3 runs" in shown.output
    shown = CliRunner().invoke(app, ["data", str(path)])  # needs no rate
    assert shown.exit_code == 0 and (pending.study.directory / "corpus" / "manifest.json").exists()
    # nothing is spent on a law that these directories could not follow
    with pytest.raises(InputError, match=r"holds a run at learning rate 0\.0003, and the sweep is to give another"):
        stage.sweep_stage(pending)
    assert not (trained.study.directory / "sweep" / "runs").exists()
    # fits and report are of the runs that there are
    with pending.writing(rates=False):
        runs = fitting.runs_at_stored_rates(pending)
    assert [run.spec_hash for run in runs] == [run.spec_hash for run in trained.runs]
    assert "warning: 3 runs are taken at the rates of their training" in pending.stream.getvalue()


def test_a_sweep_of_other_training_says_what_to_remove(tmp_path):
    spec = sweep_of(load_study(write(tmp_path, **SMALL)))
    run = spec.runs()[0]
    prepare_run(spec.run_directory(run), run, "f", {}, "0" * 64)
    path = write(tmp_path, **SMALL, training={"lr": "law", "n_tokens": "100N", "batch_tokens": 512, "eps": 1e-7})
    refused = stage.plan_sweep(Request(load_study(path))).refused
    assert "training.eps=1e-08" in refused and refused.endswith(f": remove {spec.directory} to sweep again")


def test_a_rate_between_the_best_and_one_that_diverged_is_tried(tmp_path, monkeypatch):
    """Every run above 10e-3 diverges, and the best rate lies above it."""
    monkeypatch.setattr(stage, "train_stage", settled(World(c=(-5.0, -0.1, 0.0, 0.0), noise=0.0), diverged=0.010))
    monkeypatch.setattr(stage, "_evaluate", lambda request: None)
    grid = {"archs": ["llama"], "sizes": ["6k", "10k", "14k"]}
    path = write(
        tmp_path, **SMALL, grid=grid, sweep={"rates": [2e-3, 4e-3, 8e-3, 16e-3], "tokens": "6N", "share": None}
    )
    with pytest.raises(InputError, match="at 3 sizes, and there are 0"):
        stage.sweep_stage(Request(load_study(path)))
    tried = {json.loads(path.read_text())["spec"]["training"]["lr"] for path in tmp_path.rglob("run.json")}
    assert sorted(tried) == pytest.approx([2e-3, 4e-3, 8e-3, 8e-3 * 2**0.25, 8e-3 * 2**0.5, 16e-3], rel=1e-5)


def test_axes_that_are_not_swept_are_named_and_the_law_has_the_swept_model(tmp_path):
    grid = {"archs": ["tnl"], "sizes": ["6k", "10k", "14k"], "axes": {"model.decay": ["dependent", "none"]}}
    path = write(tmp_path, grid=grid)
    for command in (["sweep", str(path), "--dry-run"], ["plan", str(path)]):
        shown = CliRunner().invoke(app, command).output
        assert (
            "axes are not swept (model.decay): the rates of all points follow a sweep of the study without axes"
            in shown
        )
    swept = recipe_of(sweep_of(load_study(path)), None).model["tnl"]
    assert swept["decay"] == "independent" and not {"n_layers", "d_model", "context_length"} & set(swept)
    grid["axes"] = {"training.lr": ["law", 1e-3]}
    shown = CliRunner().invoke(app, ["plan", str(write(tmp_path, grid=grid))]).output
    assert "learning rates by a sweep first" in shown and "axes are not swept" not in shown


def test_a_sweep_is_of_the_files_own_runs(tmp_path):
    shown = CliRunner().invoke(app, ["sweep", str(write(tmp_path)), "--set", "training.lr=1e-3"])
    assert isinstance(shown.exception, InputError) and "is of the study file's own runs" in str(shown.exception)


@pytest.mark.slow
def test_a_sweep_on_two_cores(tmp_path):
    """Real runs, of seconds each: they are trained, judged and drawn; all rates are too low, so there is no law."""
    grid = {"archs": ["llama"], "sizes": ["6k", "10k", "14k"]}
    rates = [2e-6, 4e-6, 8e-6]
    path = write(tmp_path, grid=grid, **SMALL, sweep={"rates": rates, "tokens": "6N", "share": None})
    with pytest.raises(InputError, match="a law needs a best rate inside the rates tried at 3 sizes"):
        stage.sweep_stage(Request(load_study(path)))
    tried = {json.loads(path.read_text())["spec"]["training"]["lr"] for path in tmp_path.rglob("run.json")}
    assert sorted(tried) == pytest.approx([*rates, 16e-6, 32e-6])
    points = stage.points_of_sweep(Request(sweep_of(load_study(path)))).values()
    losses = {(point.size, point.lr): point.loss for point in points}
    assert len(losses) == 9 and all(losses[size, 8e-6] < losses[size, 2e-6] < 5.6 for size in grid["sizes"])
    assert "no law of LLaMA" in (tmp_path / "out/s/sweep/report/index.html").read_text()
