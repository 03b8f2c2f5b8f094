"""`scaling eval` and `eval table` as they answer: numbers with their errors, nothing stale, nothing untrained."""

import json
import shutil
from pathlib import Path

import pytest

from analysis.evals.results import score_tables
from analysis.evals.worker import Worker
from arch.errors import InputError
from scaling.cli.evaluate import missing_evaluations
from scaling.cli.evaluation import EvalOptions, current_results, eval_matrix
from scaling.cli.main import app
from scaling.cli.request import Request
from scaling.study.spec import StudySpec, load_study
from tests.analysis.evals.small_study import write_study
from tests.analysis.evals.test_lmeval_tasks import ROWS

PIQA = "piqa/validation.jsonl"


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with PIQA asked of its two checkpoints."""
    folder = tmp_path_factory.mktemp("table")
    shutil.copytree(ROWS / "piqa", folder / "piqa")
    settings = "piqa: {max_length: 640}"
    study = write_study(
        folder, archs="tnl", more=f"evaluation: {{tasks: [piqa], data: {folder}, settings: {{{settings}}}}}"
    )
    request = Request(study)
    Worker(request.corpus_directory, "cpu", "a", lambda line: None).work(eval_matrix(request, EvalOptions()))
    return folder


def study_of(folder: Path, *sets: str) -> StudySpec:
    return load_study(folder / "small.yaml", list(sets))


def table(folder: Path, *words: str) -> None:
    app(["eval", "table", str(folder / "small.yaml"), *words], standalone_mode=False)


def test_numbers_come_with_their_errors(evaluated: Path) -> None:
    result = current_results(Request(study_of(evaluated)))
    assert not result.lines()
    (row,) = score_tables(result.results)["piqa"]
    assert list(row) == ["run", "step", "acc", "acc_norm"]
    assert (row["run"], row["step"]) == ("tnl-14k-c32-s0", "2") and " ± " in row["acc"]


def test_rows_that_lost_their_labels_are_not_averaged(evaluated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = evaluated / PIQA
    whole = path.read_text()
    table(evaluated)
    assert "piqa" in capsys.readouterr().out
    try:
        rows = [json.loads(line) for line in whole.splitlines()]
        path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "label"}) + "\n" for row in rows))
        todo = missing_evaluations(Request(study_of(evaluated)), EvalOptions())
        ((why, names),) = todo.refused.items()
        assert names == ["piqa"] and f"{path}: line 1: key 'label' is missing" in why
        table(evaluated, "--json")
        result = json.loads(capsys.readouterr().out)
        (left,) = result["left_out"]
        assert result["rows"] == [] and left["task"] == "piqa" and len(left["checkpoints"]) == 2
        assert "key 'label' is missing" in left["why"]
        with pytest.raises(InputError, match="small: no downstream results that are up to date: run `scaling eval"):
            table(evaluated)
        assert capsys.readouterr().err.startswith("left out: piqa of 2 checkpoints, it cannot be evaluated (")
        path.write_text(whole.replace("bread", "brown"))
        assert {why for _, why in current_results(Request(study_of(evaluated))).left_out} == {"its data changed"}
    finally:
        path.write_text(whole)
    assert not current_results(Request(study_of(evaluated))).lines()


@pytest.mark.parametrize("command", [["study"], ["study", "--dry-run"], ["study", "--json"], ["table"]])
def test_an_untrained_study_has_nothing_to_evaluate(command: list[str], evaluated: Path, tmp_path: Path) -> None:
    line = ["eval", command[0], str(evaluated / "small.yaml"), *command[1:]]
    with pytest.raises(InputError, match=r"small: no checkpoints yet in .*: train first, `scaling train "):
        app([*line, "--out", str(tmp_path / "out")], standalone_mode=False)
    assert not (tmp_path / "out").exists()


def test_a_dry_run_fails_where_the_run_would(evaluated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["eval", "study", str(evaluated / "small.yaml"), "--dry-run", "--tasks", "piqa,boolq"]
    assert app(line, standalone_mode=False) == 1
    result = capsys.readouterr().out.splitlines()
    assert result[0].startswith("boolq: cannot be evaluated: ")
    assert result[1] == "0 of 4 evaluations to do, 2 cannot be done (dry run: nothing was written)"


def test_a_task_from_outside_has_no_layout_here() -> None:
    with pytest.raises(InputError, match="its own module says what it reads"):
        app(["eval", "list", "--rows", "mine:task"], standalone_mode=False)
