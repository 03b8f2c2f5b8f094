"""The runner on a GPU: the CPU's numbers in fp32, and near them under the run's autocast."""

from pathlib import Path

import pytest

from analysis.evals.matrix import matrix_of
from analysis.evals.registry import make_tasks
from analysis.evals.results import Result
from analysis.evals.task import TaskContext
from analysis.evals.worker import Worker
from arch.config import ARCHS

from .small_study import write_study

TASKS = ("validation", "extrapolate", "niah-easy-facts")
SETTINGS = {
    "extrapolate": {"n_tokens": 512},
    "niah-easy-facts": {"first_length": 300, "last_length": 400, "n_lengths": 2, "n_depths": 3, "max_new_tokens": 8},
}
RELATIVE = 1e-4  # trained models differed by 8e-7 at most on an H200; these are not trained


def evaluated(folder: Path, device: str, precision: str) -> dict[tuple[str, str], Result]:
    """{(arch, task): result} of a new study's checkpoints."""
    folder.mkdir(parents=True)
    (folder / "data/needle").mkdir(parents=True)
    (folder / "data/needle/a.txt").write_text("The grass is green. The sky is blue. Here we go. " * 20)
    study = write_study(
        folder, 1, ", ".join(ARCHS), more=f"overrides: {{by_size: {{14k: {{precision: {precision}}}}}}}"
    )
    tasks = make_tasks(TASKS, TaskContext(study.directory / "corpus", folder / "data", SETTINGS))
    matrix = matrix_of(study.directory / "runs", study.runs(), tasks)
    assert not matrix.refused and len(matrix.pairs) == len(ARCHS) * len(TASKS)
    worker = Worker(study.directory / "corpus", device, "test", lambda line: None)
    worker.work(matrix)
    assert worker.n_failed == 0
    stored = {(pair.checkpoint.run.arch, pair.task.name): pair.stored() for pair in matrix.pairs}
    return {name: result for name, result in stored.items() if result is not None}


def numbers(result: Result) -> dict[str, float]:
    return {name: value for name, value in result.values.items() if isinstance(value, float)}


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "relative"), [("fp32", RELATIVE), ("bf16", 2e-2)])
def test_a_gpu_gives_the_cpus_numbers(tmp_path: Path, precision: str, relative: float) -> None:
    expected = evaluated(tmp_path / "cpu", "cpu", precision)
    results = evaluated(tmp_path / "cuda", "cuda", precision)
    assert results.keys() == expected.keys() and len(results) == len(ARCHS) * len(TASKS)
    for name, result in results.items():
        assert result.device == "cuda" and result.key == expected[name].key
        assert result.forward_tokens == expected[name].forward_tokens
        if name[1] == "niah-easy-facts":  # an untrained model's answers are decided by the last bit
            continue
        assert numbers(result) == pytest.approx(numbers(expected[name]), rel=relative), name
