"""What is foretold of an evaluation, against what the meter counts when it runs."""

from pathlib import Path

import pytest

from analysis.evals.lmeval.sets import TASKS
from analysis.evals.loaded import load_guarded
from analysis.evals.model import LoadedModel
from analysis.evals.planning import Planned, planned, readers
from analysis.evals.registry import make_tasks
from analysis.evals.task import TaskContext
from scaling.stages.evaluation_tasks import planned_tokens
from scaling.stages.request import Request
from scaling.study.spec import StudySpec

from .small_study import write_study
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
    return load_guarded(path, study.directory / "corpus", "cpu", False)


def both(study: StudySpec, model: LoadedModel, name: str, data: Path, **settings: object) -> tuple[Planned, int]:
    """The planned and the counted tokens."""
    context = TaskContext(study.directory / "corpus", data, {name: settings} if settings else {})
    (task,) = make_tasks([name], context)
    plan = planned([task], readers(context.corpus, "bytes", study.runs())["llama-14k-c32-s0"])[name]
    model.meter.reset()
    task.evaluate(model, task.prepare(model.tokenizer), lambda share, text: None)
    return plan, model.meter.tokens


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
def test_tokens_of_lm_evals_tasks_are_planned_closely(study: StudySpec, model: LoadedModel, name: str) -> None:
    settings = {"max_length": 640, "batch_size": 1} | ({"max_new_tokens": 8} if TASKS[name].scrolls else {})
    plan, counted = both(study, model, name, ROWS, **settings)
    assert counted == pytest.approx(plan.tokens, rel=0.12) and plan.items in (3, 4, 5)
    assert plan.estimate


def test_by_task_for_a_run_that_is_not_trained(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "name: s\ncorpus: {source: 'synthetic:0:60000'}\ngrid: {archs: [tnl], sizes: [14k]}\n"
        "model: {context_length: 32}\ntraining: {n_tokens: 25600, batch_tokens: 256}\n"
        f"evaluation: {{tasks: [piqa, '{HERE}:one'], data: {ROWS}, validation_tokens: 100}}\n"
    )
    from scaling.study.spec import load_study

    request = Request(load_study(tmp_path / "study.yaml"))
    (run,) = request.runs
    tokens = planned_tokens(request, run)
    assert tokens["validation"] == 96 and tokens["piqa"] > 100 and list(tokens) == ["validation", "piqa"]
