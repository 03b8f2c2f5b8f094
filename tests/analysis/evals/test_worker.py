"""The matrix and a worker on it: what is missing, what makes a result stale, what fails and what goes on."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import analysis.evals.model
from analysis.claims import claimed
from analysis.evals.matrix import CurrentResults, Matrix, read_current
from analysis.evals.matrix import matrix_of as expand
from analysis.evals.registry import ENTRIES, make_tasks
from analysis.evals.registry import expand as expand_names
from analysis.evals.results import COLUMNS, tidy, write_table
from analysis.evals.task import MissingData, TaskContext
from analysis.evals.worker import Worker
from arch.errors import InputError
from arch.outside import allow
from scaling.study.spec import StudySpec

from .small_study import write_checkpoint, write_study
from .tiny_tasks import HERE, Tiny

TWO = (f"{HERE}:one", f"{HERE}:two")


def context_of(study: StudySpec, settings: dict[str, Any]) -> TaskContext:
    return TaskContext(study.directory / "corpus", None, {f"{HERE}:{name}": value for name, value in settings.items()})


def matrix_of(study: StudySpec, tasks: Sequence[str] = TWO, which: str = "all", **settings: Any) -> Matrix:
    return expand(study.directory / "runs", study.runs(), make_tasks(tasks, context_of(study, settings)), which)


def current(study: StudySpec, tasks: Sequence[str] = TWO, **settings: Any) -> CurrentResults:
    return read_current(study.directory / "runs", study.runs(), make_tasks(tasks, context_of(study, settings)))


def work(study: StudySpec, matrix: Matrix, attempt: str = "a") -> tuple[Worker, list[str]]:
    lines: list[str] = []
    worker = Worker(study.directory / "corpus", "cpu", attempt, lines.append)
    worker.work(matrix)
    return worker, lines


def missing(matrix: Matrix) -> list[str]:
    return [pair.name for pair in matrix.pairs if pair.stored() is None]


@pytest.fixture
def study(tmp_path: Path) -> StudySpec:
    return write_study(tmp_path, archs="tnl")


def test_everything_missing_is_evaluated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are loaded once for both tasks, and requests are prepared once for all models."""
    study, counts = write_study(tmp_path), Counter[str]()
    load, prepare = analysis.evals.model.load_guarded, Tiny.prepare

    def counted_load(*given: Any) -> Any:
        counts["load"] += 1
        return load(*given)

    def counted_prepare(*given: Any) -> Any:
        counts["prepare"] += 1
        return prepare(*given)

    monkeypatch.setattr(analysis.evals.model, "load_guarded", counted_load)
    monkeypatch.setattr(Tiny, "prepare", counted_prepare)
    matrix = matrix_of(study)
    assert len(matrix.pairs) == len(missing(matrix)) == 8
    worker, lines = work(study, matrix)
    assert (worker.n_done, worker.n_failed, len(lines)) == (8, 0, 8)
    assert counts == {"load": 4, "prepare": 2}
    assert missing(matrix_of(study)) == []
    assert work(study, matrix_of(study))[0].n_done == 0 and counts["load"] == 4
    assert not [path for path in study.directory.rglob("*") if "claim" in path.name or path.suffix == ".failed"]

    result = json.loads(matrix.pairs[0].path.read_text())
    assert matrix.pairs[0].path == study.directory / "runs/llama-14k-c32-s0/evals/00000001/one.json"
    assert result["schema"] == 2 and result["task"] == "one" and result["run_id"] == "llama-14k-c32-s0"
    assert (result["step"], result["n_tokens"], result["forward_tokens"]) == (1, 256, len("one"))
    assert result["seconds"] > 0 and result["setup_seconds"] > 0


def test_what_decides_a_result_makes_it_stale(study: StudySpec, monkeypatch: pytest.MonkeyPatch) -> None:
    work(study, matrix_of(study))
    both = ["tnl-14k-c32-s0/00000001", "tnl-14k-c32-s0/00000002"]
    assert missing(matrix_of(study, one={"seconds": 0.001})) == [f"{name} one" for name in both]
    with monkeypatch.context() as patch:
        patch.setattr(Tiny, "version", 2)
        assert len(missing(matrix_of(study))) == 4
    with monkeypatch.context() as patch:
        patch.setattr(Tiny, "data_hash", lambda self: "other text")
        assert len(missing(matrix_of(study))) == 4
    write_checkpoint(study, "tnl-14k-c32-s0", 2, seed=9)  # trained again: other weights under the same step
    assert {name.split()[0] for name in missing(matrix_of(study))} == {both[1]}
    matrix_of(study).pairs[0].path.write_text("{")
    assert len(missing(matrix_of(study))) == 3


def test_which_checkpoints(tmp_path: Path) -> None:
    study = write_study(tmp_path, steps=3, archs="tnl")
    assert {pair.checkpoint.path.name for pair in matrix_of(study, which="last").pairs} == {"00000003"}
    assert {pair.checkpoint.path.name for pair in matrix_of(study, which="1,2").pairs} == {"00000001", "00000002"}
    with pytest.raises(InputError, match="no run has a checkpoint of step"):
        matrix_of(study, which="7")
    with pytest.raises(InputError, match="write all, last, or steps"):
        matrix_of(study, which="latest")


def test_a_failing_pair_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    matrix = matrix_of(study, two={"fail": "llama"})
    worker, lines = work(study, matrix)
    assert (worker.n_done, worker.n_failed) == (6, 2)
    assert "llama-14k-c32-s0/00000001 two: failed: RuntimeError: no good" in lines
    assert missing(matrix) == ["llama-14k-c32-s0/00000001 two", "llama-14k-c32-s0/00000002 two"]
    # another worker of the same attempt leaves it alone, another attempt tries again
    assert work(study, matrix_of(study, two={"fail": "llama"}), "a")[1] == []
    assert work(study, matrix_of(study, two={"fail": "llama"}), "b")[0].n_failed == 2
    assert work(study, matrix_of(study, two={"fail": "input"}), "b")[1][0].endswith("failed: llama cannot do this")
    assert work(study, matrix_of(study), "b")[0].n_done == 4
    assert not list(study.directory.rglob("*.failed"))


def test_a_task_without_data_is_refused_and_the_others_go_on(study: StudySpec) -> None:
    matrix = matrix_of(study, [*TWO, f"{HERE}:homeless"])
    assert matrix.n_refused == 2 and "scaling eval fetch --tasks homeless" in matrix.refused["homeless"]
    assert work(study, matrix)[0].n_done == 4


def test_a_damaged_checkpoint_fails_alone(study: StudySpec) -> None:
    bad = study.directory / "runs/tnl-14k-c32-s0/checkpoints/00000001"
    content = bytearray((bad / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (bad / "model.safetensors").write_bytes(content)
    (bad.parent / "00000009").mkdir()
    matrix = matrix_of(study)
    assert list(matrix.refused) == ["tnl-14k-c32-s0/00000009"] and matrix.n_refused == 2
    worker, lines = work(study, matrix)
    assert (worker.n_done, worker.n_failed) == (2, 2)
    assert sum("is damaged" in line for line in lines) == 2


def test_a_checkpoint_that_another_worker_is_at_comes_last(study: StudySpec) -> None:
    """Then the worker helps with its remaining tasks, and leaves the claimed one alone."""
    matrix = matrix_of(study)
    with claimed(matrix.pairs[0].checkpoint.results, "one"):
        _, lines = work(study, matrix)
    assert [line.split(":")[0] for line in lines] == [
        "tnl-14k-c32-s0/00000002 one",
        "tnl-14k-c32-s0/00000002 two",
        "tnl-14k-c32-s0/00000001 two",
    ]
    assert missing(matrix) == ["tnl-14k-c32-s0/00000001 one"]


def test_results_that_cannot_be_written_stop_the_worker(study: StudySpec) -> None:
    (study.directory / "runs/tnl-14k-c32-s0/evals").write_text("a file where the directory goes")
    with pytest.raises(InputError, match="cannot be written"):
        work(study, matrix_of(study))


def test_names_presets_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, **settings: Any) -> str:
        with pytest.raises(InputError) as error:
            make_tasks([name], TaskContext(Path("corpus"), None, settings))
        return str(error.value)

    monkeypatch.setitem(analysis.evals.registry.PRESETS, "both", ("perplexity", "validation"))
    assert expand_names(["both", "validation", "m:own", "perplexity-code"]) == [
        *("validation", "perplexity", "m:own", "perplexity-code")
    ]
    message = refused("perplexty")
    assert "'perplexty' is unknown" in message and "did you mean 'perplexity'" in message
    assert "'no.such.module' is code that no study file of your own names" in refused("no.such.module:task")
    allow(["no.such.module"])
    assert "is no module that Python finds" in refused("no.such.module:task")
    assert "another task has the name 'validation'" in refused(f"{HERE}:validation")
    message = refused("validation", extrapolat={})
    assert "unknown task 'extrapolat'" in message and "did you mean 'extrapolate'" in message
    assert "settings.perplexity: unknown key 'strid'" in refused("perplexity", perplexity={"strid": 3})
    message = refused("perplexity-code", **{"perplexity-code": {"file": "a.txt", "stride": 0}})
    assert "settings.perplexity-code: stride: " in message and "greater than 0" in message


def test_every_entry_can_be_made(tmp_path: Path) -> None:
    for task in make_tasks(ENTRIES, TaskContext(tmp_path / "corpus", tmp_path)):
        assert task.name in ENTRIES and task.version >= 1
        assert json.loads(json.dumps(task.settings())) == task.settings()


def test_the_table_is_tidy_and_of_the_weights_that_are_there(study: StudySpec, tmp_path: Path) -> None:
    work(study, matrix_of(study))
    frame = tidy(current(study).results)
    assert tuple(frame.columns) == COLUMNS
    assert len(frame) == 12 and set(frame["metric"]) == {"mean", "top", "none"}  # a truth value is no number
    assert frame[frame["metric"] == "none"]["value"].isna().all()
    row = frame.iloc[0]
    stored = json.loads((study.directory / "runs/tnl-14k-c32-s0/evals/00000001/one.json").read_text())
    assert row["value"] == stored["values"]["mean"] and (row["step"], row["n_tokens"]) == (1, 256)

    path = tmp_path / "results" / "evals.parquet"
    assert write_table(path, frame) and not write_table(path, tidy(current(study).results))
    write_checkpoint(study, "tnl-14k-c32-s0", 2, seed=9)
    assert set(tidy(current(study).results)["step"]) == {1}
    assert tidy([]).empty and write_table(path, tidy([]))


def test_results_that_are_not_current_are_left_out_and_counted(
    study: StudySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(study, matrix_of(study))
    both = ["tnl-14k-c32-s0/00000001", "tnl-14k-c32-s0/00000002"]
    assert len(current(study).results) == 4 and not current(study).lines()
    assert current(study, tasks=TWO[:1]).left_out == {("two", "it is no task of the study"): both}
    changed = current(study, one={"seconds": 0.001})
    assert changed.left_out == {("one", "its settings changed (seconds)"): both} and len(changed.results) == 2
    assert changed.lines() == [f"left out: one of 2 checkpoints, its settings changed (seconds): {', '.join(both)}"]
    with monkeypatch.context() as patch:
        patch.setattr(Tiny, "data_hash", lambda self: "other text")
        assert set(current(study).left_out) == {("one", "its data changed"), ("two", "its data changed")}
        matrix = matrix_of(study, one={"fail": "input"}, two={})
        work(study, matrix)  # one fails now, two is evaluated again
        failed = current(study, one={"fail": "input"}, two={})
        assert set(failed.left_out) == {("one", "it failed (tnl cannot do this)")}
        assert {result.task for result in failed.results} == {"two"}
    with monkeypatch.context() as patch:
        patch.setattr(Tiny, "version", 2)
        (why, _) = current(study, tasks=TWO[:1]).left_out
        assert why == ("one", "it is of version 1 of the task, now 2")
    write_checkpoint(study, "tnl-14k-c32-s0", 2, seed=9)
    assert current(study).left_out[("one", "the checkpoint was written anew")] == both[1:]


def test_results_whose_data_are_missing_stand_and_are_reported(
    study: StudySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(study, matrix_of(study))

    def gone(self: Tiny) -> str:
        raise MissingData("one: text.txt does not exist")

    monkeypatch.setattr(Tiny, "data_hash", gone)
    computed = current(study, tasks=TWO[:1])
    assert len(computed.results) == 2 and computed.unverified == {"one": "text.txt does not exist"}
    assert computed.to_dict()["unverified"] and "not verified: one: text.txt does not exist" in computed.lines()
    assert ("one", "its settings changed (seconds)") in current(study, TWO[:1], one={"seconds": 0.001}).left_out
