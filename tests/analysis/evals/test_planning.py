"""What an evaluation is expected to read and take, beside what it reads and takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.evals.lmeval.sets import TASKS
from analysis.evals.model import LoadedModel, load_guarded
from analysis.evals.planning import measured_pace, readers, token_seconds
from analysis.evals.registry import make_tasks
from analysis.evals.task import TaskContext
from data.corpus import open_corpus
from data.files import write_json
from flops.hardware import DEVICES
from scaling.cli.evaluate import missing_evaluations
from scaling.cli.evaluation import EvalOptions, planned_tokens
from scaling.cli.request import Request
from scaling.study.spec import StudySpec, load_study

from .small_study import stored_result, write_study
from .test_lmeval_tasks import ROWS
from .tiny_tasks import HERE

CPU = DEVICES["cpu"]
GRID = {"first_length": 300, "last_length": 600, "n_lengths": 3, "n_depths": 5, "max_new_tokens": 4}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return write_study(tmp_path_factory.mktemp("study"), steps=1)


@pytest.fixture(scope="module")
def model(study: StudySpec) -> LoadedModel:
    path = study.directory / "runs/llama-14k-c32-s0/checkpoints/00000001"
    return load_guarded(path, open_corpus(study.directory / "corpus"), "cpu", False)


@pytest.mark.parametrize(
    ("name", "settings", "off"),
    [
        ("validation", {"validation_tokens": 900}, 1e-9),
        ("perplexity", {"file": "text.txt", "stride": 8}, 1e-9),
        ("perplexity", {"file": "text.txt", "window": 5000}, 1e-9),
        ("extrapolate", {"n_tokens": 600, "lengths": [16, 24, 64]}, 1e-9),
        ("extrapolate", {"file": "text.txt", "lengths": [16, 50]}, 1e-9),
        ("niah-easy-facts", GRID, 0.3),
        # rows of a few words, beside which prompts and columns that a request leaves out weigh more than they will
        *((name, {"max_length": 640, "batch_size": 1}, 9 if name == "record" else 4) for name in TASKS),
    ],
)
def test_tokens_are_known_before(
    study: StudySpec, model: LoadedModel, name: str, settings: dict[str, Any], off: float, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("The cat sat on the mät.\n" * 9)
    (tmp_path / "needle").mkdir()
    (tmp_path / "needle/text.txt").write_text("One short sentence of the haystack. " * 40)
    if name in TASKS:
        settings = settings | ({"max_new_tokens": 8} if TASKS[name].scrolls else {})
    data = ROWS if name in TASKS else tmp_path
    (task,) = make_tasks([name], TaskContext(study.directory / "corpus", data, {name: settings}))
    expected = task.forward_tokens(readers(study.directory / "corpus", "bytes", study.runs())["llama-14k-c32-s0"])
    model.n_tokens_read = 0
    task.evaluate(model, task.prepare(model.tokenizer))
    assert expected and 1 / (1 + off) <= expected / model.n_tokens_read <= 1 + off


def test_a_run_that_is_not_trained(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "name: s\ncorpus: {source: 'synthetic:0:60000'}\ngrid: {archs: [tnl], sizes: [14k]}\n"
        "model: {context_length: 32}\ntraining: {n_tokens: 25600, batch_tokens: 256}\n"
        f"evaluation: {{tasks: [piqa, '{HERE}:one'], data: {ROWS}, validation_tokens: 100}}\n"
    )
    request = Request(load_study(tmp_path / "study.yaml"))
    (run,) = request.runs
    tokens = planned_tokens(request)[run.run_id]
    assert tokens["validation"] == 96 and tokens["piqa"] > 100 and list(tokens) == ["validation", "piqa"]


def test_measured_results_forecast_the_others(tmp_path: Path) -> None:
    study = write_study(tmp_path, steps=1, archs="tnl")
    (run,), runs_dir = study.runs(), study.directory / "runs"
    assumed = measured_pace(runs_dir, [run], CPU, "cpu")
    assert assumed.seconds("perplexity", run, 1000) == pytest.approx(1000 * token_seconds(run, CPU))
    assert assumed.basis.startswith("assumed pace of one core")
    for task, seconds in (("perplexity", 3.0), ("piqa", 5.0)):
        folder = runs_dir / run.run_id / "evals/00000001"
        folder.mkdir(parents=True, exist_ok=True)
        cost = {"device": "cpu", "seconds": seconds, "forward_tokens": 500, "setup_seconds": 0.5}
        write_json(folder / f"{task}.json", stored_result(run.run_id, 1, task, {}, **cost).to_dict())
    assert not measured_pace(runs_dir, [run], CPU, "cuda").factors
    pace = measured_pace(runs_dir, [run], CPU, "cpu")
    assert pace.seconds("perplexity", run, 1000) == pytest.approx(6.0 + 0.5) and pace.basis == "measured pace"
    assert pace.seconds("niah", run, 1000) == pytest.approx(8.0 + 0.5)


def test_a_dry_run_names_tokens_and_time(tmp_path: Path) -> None:
    (tmp_path / "needle").mkdir()
    (tmp_path / "needle/text.txt").write_text("A sentence of some words. " * 900)
    study = write_study(tmp_path, more=f"evaluation: {{validation_tokens: 320, data: {tmp_path}}}")
    todo = missing_evaluations(Request(study), EvalOptions(("niah", "validation", f"{HERE}:one")))
    assert [len(names) for names in todo.missing.values()] == [4, 4, 4, 4] and todo.seconds > 0
    lines = todo.text().splitlines()
    cells = {line.split()[0]: line for line in lines}
    assert "1.28k" in cells["validation"] and cells["one"].endswith("-")
    last = " ".join(lines[-2:])
    assert "16 of 16 evaluations to do, about " in last and last.endswith("nothing was written)")
