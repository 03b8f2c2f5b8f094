"""What an evaluation is expected to read and take, beside what it reads and takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.evals.lmeval.sets import TASKS
from analysis.evals.model import LoadedModel, load_guarded
from analysis.evals.planning import forecast_task, measured_paces, readers, token_seconds
from analysis.evals.registry import make_tasks
from analysis.evals.task import Plan, TaskContext
from data.corpus import open_corpus
from data.files import write_json
from flops.hardware import DEVICES
from scaling.cli.evaluate import missing_evaluations
from scaling.cli.evaluation import EvalOptions, planned_reads
from scaling.cli.request import Request
from scaling.study.spec import StudySpec

from .small_study import stored_result, write_study
from .test_lmeval_tasks import ROWS
from .tiny_tasks import HERE

SETTINGS = {
    "perplexity": {"file": "text.txt", "stride": 8},
    "extrapolate": {"n_tokens": 600, "lengths": [16, 24, 64]},
    "niah-easy-facts": {"first_length": 300, "last_length": 600, "n_lengths": 3, "n_depths": 5, "max_new_tokens": 4},
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return write_study(tmp_path_factory.mktemp("study"), steps=1)


@pytest.fixture(scope="module")
def model(study: StudySpec) -> LoadedModel:
    path = study.directory / "runs/llama-14k-c32-s0/checkpoints/00000001"
    return load_guarded(path, open_corpus(study.directory / "corpus"), "cpu", False)


def both(study: StudySpec, model: LoadedModel, name: str, data: Path, **settings: object) -> tuple[Plan, int]:
    """The planned and the counted tokens."""
    context = TaskContext(study.directory / "corpus", data, {name: settings} if settings else {})
    (task,) = make_tasks([name], context)
    plan = task.plan(readers(context.corpus, "bytes", study.runs())["llama-14k-c32-s0"])
    assert plan is not None
    model.n_tokens_read = 0
    task.evaluate(model, task.prepare(model.tokenizer), lambda share: None)
    return plan, model.n_tokens_read


def test_tokens_of_losses_are_planned_exactly(study: StudySpec, model: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The cat sat on the mät.\n" * 9)
    for name, settings in (
        ("validation", {"validation_tokens": 900}),
        ("perplexity", SETTINGS["perplexity"]),
        ("perplexity", {"file": "text.txt", "window": 5000}),
        ("extrapolate", SETTINGS["extrapolate"]),
        ("extrapolate", {"file": "text.txt", "lengths": [16, 50]}),
    ):
        plan, counted = both(study, model, name, tmp_path, **settings)
        assert plan.tokens == counted and plan.estimate == "" and plan.items > 0, name


def test_tokens_of_a_haystack_are_planned_closely(study: StudySpec, model: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "needle").mkdir()
    (tmp_path / "needle/text.txt").write_text("One short sentence of the haystack. " * 40)
    plan, counted = both(study, model, "niah-easy-facts", tmp_path, **SETTINGS["niah-easy-facts"])
    assert plan.items == 15 and plan.estimate
    assert counted == pytest.approx(plan.tokens, rel=0.05)


@pytest.mark.parametrize("name", TASKS)
def test_tokens_of_lm_evals_tasks_are_estimated(study: StudySpec, model: LoadedModel, name: str) -> None:
    """Rows of a few words, beside which prompts and columns that a request leaves out weigh more than they will."""
    settings = {"max_length": 640, "batch_size": 1} | ({"max_new_tokens": 8} if TASKS[name].scrolls else {})
    plan, counted = both(study, model, name, ROWS, **settings)
    assert 0.4 < plan.tokens / counted < 3 and plan.items in (3, 4, 5) and plan.estimate


def test_by_task_for_a_run_that_is_not_trained(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "name: s\ncorpus: {source: 'synthetic:0:60000'}\ngrid: {archs: [tnl], sizes: [14k]}\n"
        "model: {context_length: 32}\ntraining: {n_tokens: 25600, batch_tokens: 256}\n"
        f"evaluation: {{tasks: [piqa, '{HERE}:one'], data: {ROWS}, validation_tokens: 100}}\n"
    )
    from scaling.study.spec import load_study

    request = Request(load_study(tmp_path / "study.yaml"))
    (run,) = request.runs
    plans = planned_reads(request)[run.run_id]
    assert plans["validation"].tokens == 96 and plans["piqa"].tokens > 100 and list(plans) == ["validation", "piqa"]


CPU = DEVICES["cpu"]


def test_measured_results_tell_of_the_others(tmp_path: Path) -> None:
    study = write_study(tmp_path, steps=2)
    tnl, llama = sorted(study.runs(), key=lambda run: run.arch, reverse=True)
    reads = [(tnl, Plan(1000, 4, "windows")), (llama, Plan(1000, 4, "windows"))]
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
    assert [row.checkpoints for row in todo.forecast] == [4, 4, 4, 4]
    lines = todo.text().splitlines()
    cells = {line.split()[0]: line for line in lines}
    assert "10 windows" in cells["validation"] and "1.28k" in cells["validation"]
    assert "1,225 cells" in cells["niah-easy"] and "about" in cells["niah-easy"] and cells["one"].count("-") == 3
    assert lines[-1].startswith("16 of 16 evaluations to do, about ") and lines[-1].endswith("nothing was written)")
    assert any(line.startswith("time of validation, niah-easy, niah-standard: assumed: one core") for line in lines)
    json.dumps(todo.to_dict())
