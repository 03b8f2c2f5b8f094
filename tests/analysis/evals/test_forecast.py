"""Times of evaluations: from this study's own results where there are some, else from the pace expected of a device."""

import json
from pathlib import Path

import pytest

from analysis.evals.planning import Planned, forecast_task, measured_paces, token_seconds
from data.files import write_json
from flops.hardware import DEVICES
from scaling.stages.evaluation_plan import missing_evaluations, show_missing
from scaling.stages.evaluation_tasks import EvalOptions
from scaling.stages.request import Request

from .small_study import stored_result, write_study
from .tiny_tasks import HERE

CPU = DEVICES["cpu"]


def test_measured_results_tell_of_the_others(tmp_path: Path) -> None:
    study = write_study(tmp_path, steps=2)
    tnl, llama = sorted(study.runs(), key=lambda run: run.arch, reverse=True)
    reads = [(tnl, Planned(1000, 4, "windows")), (llama, Planned(1000, 4, "windows"))]
    guess = forecast_task("perplexity", reads, [], CPU)
    expected = 1000 * (token_seconds(tnl, CPU) + token_seconds(llama, CPU))
    assert guess.seconds == pytest.approx(expected) and guess.basis.startswith("assumed: one core")
    assert (guess.checkpoints, guess.examples, guess.kind, guess.forward_tokens) == (2, 4, "windows", 2000)

    runs_dir = study.directory / "runs"
    for task, seconds in (("perplexity", 3.0), ("piqa", 5.0)):
        folder = runs_dir / tnl.run_id / "evals/00000001"
        folder.mkdir(parents=True, exist_ok=True)
        cost = {"device": "cpu", "seconds": seconds, "forward_tokens": 500, "setup_seconds": 0.5}
        write_json(folder / f"{task}.json", stored_result(tnl.run_id, 1, task, {}, **cost).to_dict())
    known = measured_paces(runs_dir, study.runs(), CPU, "cpu")
    assert measured_paces(runs_dir, study.runs(), CPU, "cuda") == []
    measured = forecast_task("perplexity", reads[:1], known, CPU)
    assert measured.seconds == pytest.approx(6.0 + 0.5) and measured.basis == "measured: 1 result of this task"
    other = forecast_task("niah", reads[:1], known, CPU)
    assert other.seconds == pytest.approx(8.0 + 0.5) and other.basis == "measured: 2 results of other tasks"
    unknown = forecast_task("other", [(tnl, None)], known, CPU)
    assert unknown.seconds is None and unknown.forward_tokens is None and unknown.estimate == "the task cannot tell"


def test_a_dry_run_names_examples_tokens_and_time(tmp_path: Path) -> None:
    (tmp_path / "needle").mkdir()
    (tmp_path / "needle/text.txt").write_text("A sentence of some words. " * 900)
    study = write_study(tmp_path, more=f"evaluation: {{validation_tokens: 320, data: {tmp_path}}}")
    todo = missing_evaluations(Request(study), EvalOptions(("niah", "validation", f"{HERE}:one")))
    assert [row["checkpoints"] for row in todo["forecast"]] == [4, 4, 4, 4]
    lines = show_missing(todo).splitlines()
    cells = {line.split()[0]: line for line in lines}
    assert "10 windows" in cells["validation"] and "1.28k" in cells["validation"]
    assert "1,225 cells" in cells["niah-easy"] and "about" in cells["niah-easy"] and cells["one"].count("-") == 3
    assert lines[-1].startswith("16 of 16 evaluations to do, about ") and lines[-1].endswith("nothing was written)")
    assert any(line.startswith("time of validation, niah-easy, niah-standard: assumed: one core") for line in lines)
    json.dumps(todo)
