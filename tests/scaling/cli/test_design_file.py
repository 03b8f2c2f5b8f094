"""`scaling design --judge`: optima outside of a study's own runs, and leases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from arch.errors import InputError
from flops.hardware import DEVICES
from flops.pace import START_S
from scaling.cli.design_file import Lease, _packed, stages_of
from scaling.cli.main import app
from scaling.study.spec import load_study

PUBLISHED = Path(__file__).parents[3] / "analysis" / "studies" / "2026-second"
LEASE = Lease(DEVICES["h100"], 2, 1800.0)


def study(folder: Path, **more: Any) -> Path:
    raw = {
        "name": "s",
        "corpus": {"source": "synthetic:0:200000"},
        "grid": {"archs": ["llama"], "sizes": {"from": "1M", "to": "8M", "count": 4, "head_dim": 32}, "seeds": [0, 1]},
        "model": {"context_length": 1024},
        "training": {"n_tokens": 40_000_000, "lr": 1e-3, "batch_tokens": 16_384, "precision": "bf16"},
        **more,
    }
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_a_study_without_its_optima_is_refused_by_the_surfaces_of_the_pilot(tmp_path):
    """All sizes of its middle budget lie below the optimum. The pilot lacks one of the architectures."""
    ladders = {("400k", "800k"): "8e13 FLOP", ("401k", "801k"): "1e15 FLOP", ("1.5M", "6M"): "4e15 FLOP"}
    sizes = [{"from": low, "to": high, "count": 3, "head_dim": 32, "layers": 4} for low, high in ladders]
    names = [["n400k", "n566k", "n800k"], ["n401k", "n567k", "n801k"], ["n1.5m", "n3m", "n6m"]]
    by_size = {name: {"n_tokens": n} for of, n in zip(names, ladders.values(), strict=True) for name in of}
    forecast = {"sizes": {"from": "8M", "to": "8M", "count": 1, "head_dim": 32}, "n_tokens": 200_000_000, "seeds": [7]}
    path = study(
        tmp_path,
        architectures={"mixed": {"layers": ["hgrn2", "llama"]}},
        grid={"archs": ["llama", "mixed"], "sizes": sizes, "seeds": [0]},
        sweep={"sizes": ["n400k", "n800k"], "tokens": [8_388_608], "rates": [5e-4, 1e-3, 2e-3]},
        training={"lr": "law", "batch_tokens": 16_384, "precision": "bf16", "schedule": "cosine"},
        overrides={"by_size": by_size},
        forecast=forecast | {"then": forecast | {"seeds": [8, 9]}},
        fit={"loss": "validation", "points": "decayed", "flops": "exact"},
    )
    result = CliRunner().invoke(app, ["design", "--judge", str(path), "--pilot", str(PUBLISHED), "--json"])
    assert isinstance(result.exception, InputError)
    assert "the optimum of llama at 1e15 FLOP" in str(result.exception)
    assert "lies outside of the sizes that are trained there (397k to 804k)" in str(result.exception)
    judged = json.loads(result.stdout)
    for budgets in judged["budgets"].values():
        assert [budget["inside"] < 0.15 for budget in budgets] == [False, True, False]
    assert any("worlds of mixed: the surfaces of the other architectures" in note for note in judged["notes"])
    stages = judged["stages"]
    assert [stage["name"] for stage in stages] == ["sweep", "grid", "forecast", "forecast, round 2"]
    assert [stage["n_runs"] for stage in stages] == [12, 18, 2, 4]
    assert all(seconds <= 1800 for stage in stages for seconds in stage["leases"])


def test_books_holds_its_optima_and_each_stage_fits_a_lease():
    gpus = ["--device", "h100", "--gpus", "4", "--study", "books", "--dry-run"]
    result = CliRunner().invoke(app, ["design", "--judge", "books", "--pilot", str(PUBLISHED), *gpus, "--json"])
    assert result.exit_code == 0, result.exception
    judged = json.loads(result.stdout)
    half = judged["half_a"]
    assert set(judged["budgets"]) == set(half) == {"llama", "hgrn2", "tnl", "hgrn2-3to1"}
    assert (
        max(half["llama"], half["hgrn2"], half["tnl"]) < 0.032 < half["hgrn2-3to1"] < 0.035
    )  # whose surface is refuted
    assert f"noise between seeds: 0.27% of the loss (measured in {PUBLISHED})" in judged["notes"]
    for budgets in judged["budgets"].values():
        assert [budget["flops"] for budget in budgets] == pytest.approx(
            [2e14, 4.2e14, 8.6e14, 1.8e15, 3.7e15], rel=0.01
        )
        assert all(budget["n_sizes"] == 6 and budget["inside"] > 0.9 for budget in budgets)
    assert all(len(stage["leases"]) == 1 for stage in judged["stages"]) and len(judged["stages"]) == 3


def test_leases_hold_what_is_put_into_them_and_no_more():
    start = START_S["GPU"]
    units = [900.0, 800.0, 700.0, 500.0, 400.0, 300.0]
    used = _packed(units, LEASE)
    assert max(used) <= LEASE.seconds and len(used) == 2
    assert sum(units) <= sum(LEASE.gpus * (seconds - start) for seconds in used)
    assert _packed([1780.0] * 4, LEASE) == [1800.0, 1800.0]
    assert _packed([1780.0] * 5, LEASE) == [1800.0] * 3
    assert _packed([100.0], LEASE) == [100.0 + start]


def test_stages_count_branches_forecasts_and_evaluations(tmp_path):
    forecast = {"sizes": {"from": "16M", "to": "16M", "count": 1, "head_dim": 32}, "n_tokens": 80_000_000, "seeds": [7]}
    whole = load_study(study(tmp_path, forecast=forecast, evaluation={"validation_tokens": 10_000_000}))
    (grid, later), _ = stages_of(whole, LEASE)
    assert (grid.n_runs, later.n_runs) == (8, 1) and later.name == "forecast"
    less = load_study(study(tmp_path, evaluation={"validation_tokens": 1_000_000}))
    ((short,), _) = stages_of(less, LEASE)
    assert grid.evaluation == pytest.approx(10 * short.evaluation, rel=0.01) and grid.training == short.training
    tasks = {"validation_tokens": 1_000_000, "tasks": ["extrapolate", "perplexity"], "data": str(tmp_path / "none")}
    ((more,), (note,)) = stages_of(load_study(study(tmp_path, evaluation=tasks)), LEASE)
    assert more.evaluation > short.evaluation and note.startswith("evaluations: without perplexity: their data are")
    trunks = {"lr": 1e-3, "batch_tokens": 16_384, "schedule": "wsd", "branches": [20_000_000, 40_000_000]}
    ((branched,), _) = stages_of(load_study(study(tmp_path, training=trunks)), LEASE)
    assert branched.n_runs == 24
    spent = sum(run.trained_tokens for run in load_study(study(tmp_path, training=trunks)).runs())
    assert spent == pytest.approx(8 * (32e6 + 4e6 + 8e6), rel=0.01)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --arch, or a file to --judge"),
        (["--arch", "llama", "--budget", "1e16", "--gpus", "8"], "--gpus: belongs to --judge"),
        (["--arch", "llama", "--budget", "1e16", "--lease-minutes", "30"], "--lease-minutes: belongs to --judge"),
        (["--judge", "FILE", "--device", "cpu"], "--device cpu: is no GPU"),
        (["--judge", "FILE", "--gpus", "0"], "--gpus"),
        (["--judge", "FILE", "--lease-minutes", "0.5"], "min of one H200 SXM, and a lease has 0.5: plan a shorter run"),
        (["--judge", "no.yaml"], "no.yaml: no such study file"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, words, message):
    file = str(study(tmp_path))
    result = CliRunner().invoke(app, ["design", *(file if word == "FILE" else word for word in words)])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception) and "\n" not in str(result.exception)


@pytest.mark.parametrize(
    "words",
    [
        *("--arch llama", "--ask loss", "--target 1e18", "--budget 1e16", "--gpu-minutes 8", "--wall-minutes 8"),
        *("--corpus x.txt", "--tokenizer bytes", "--corpus-tokens 1e9", "--context 512", "--least-size 1M"),
        *("--no-sweep", "--lr-law x.json", "--studies 40", "--seed 1", "--name other", "--write x.yaml"),
    ],
)
def test_options_that_judging_does_not_use_are_refused(tmp_path, words):
    """Also where their value is the default."""
    option = words.split()[0].replace("--no-sweep", "--sweep/--no-sweep")
    result = CliRunner().invoke(app, ["design", "--judge", str(study(tmp_path)), *words.split()])
    assert str(result.exception) == f"--judge: does not use {option}: leave one of the two out"
    assert isinstance(result.exception, InputError)


def test_a_grid_of_points_and_one_without_budgets_are_refused(tmp_path):
    axes = {"archs": ["llama"], "sizes": ["98k"], "axes": {"training.lr": [1e-3, 2e-3]}}
    result = CliRunner().invoke(app, ["design", "--judge", str(study(tmp_path, grid=axes))])
    assert "its axes make it several studies" in str(result.exception)
    two = {"archs": ["llama"], "sizes": ["98k", "221k"]}
    result = CliRunner().invoke(app, ["design", "--judge", str(study(tmp_path, grid=two))])
    assert "llama: no budget has three sizes" in str(result.exception) and "stage" in result.stdout
