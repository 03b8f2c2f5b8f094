"""Rows of the wrong form are refused with file, line and column before anything runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.evals.lmeval.rows import ROWS as LAYOUTS
from analysis.evals.lmeval.rows import read_rows
from analysis.evals.lmeval.sets import DATA, TASKS
from analysis.evals.planning import check_data
from analysis.evals.registry import layout_of, make_tasks
from analysis.evals.task import TaskContext
from arch.errors import InputError

from .test_lmeval_tasks import ROWS


def first_row(data: str) -> dict[str, Any]:
    return dict(json.loads((ROWS / DATA[data].file).read_text().splitlines()[0]))


def fault_of(folder: Path, task: str, row: dict[str, Any]) -> str:
    """Why a file of a good row and this one is refused."""
    data = TASKS[task].data
    path = folder / DATA[data].file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{json.dumps(first_row(data))}\n\n{json.dumps(row)}\n")
    context = TaskContext(folder / "corpus", folder)
    with pytest.raises(InputError) as error:
        check_data(make_tasks([task], context), context)
    message = str(error.value)
    assert message.startswith(f"{path}: line 3: ") and "\n" not in message
    assert message.endswith(f"; `scaling eval list --rows {task}` shows the layout")
    return message.removeprefix(f"{path}: line 3: ")


@pytest.mark.parametrize("task", TASKS)
def test_every_column_is_needed_and_of_its_type(task: str, tmp_path: Path) -> None:
    data = TASKS[task].data
    assert LAYOUTS.keys() == DATA.keys()
    for column in LAYOUTS[data]:
        row = first_row(data)
        del row[column]
        assert fault_of(tmp_path, task, row).startswith(f"key {column!r} is missing")
        for wrong in (None, 1.5, [], {}):
            assert fault_of(tmp_path, task, first_row(data) | {column: wrong}).removeprefix("key '").startswith(column)


@pytest.mark.parametrize(
    ("task", "changes", "words"),
    [
        ("piqa", {"label": -1}, "label: must be 0 or 1, not -1"),  # a hidden label
        ("piqa", {"label": "1"}, "label: must be 0 or 1, not '1'"),
        ("cb", {"label": 3}, "label: must be 0, 1 or 2, not 3"),
        ("siqa", {"label": "4"}, "label: must be '1', '2' or '3', not '4'"),
        ("hellaswag", {"endings": ["a", "b", "c"]}, "endings: "),
        ("arc-easy", {"answerKey": "E"}, "answerKey 'E' is none of"),
        ("openbookqa", {"choices": {"text": ["a", "b"]}}, "key 'choices.label' is missing"),
        ("openbookqa", {"choices": {"text": ["a", "b"], "label": ["A", "B", "C"]}}, "choices: 2 texts and 3 labels"),
        ("winogrande", {"sentence": "no gap"}, "sentence: has no _ where"),
        ("wic", {"end1": 999}, "start1 14 to end1 999 is no part of sentence1"),
        ("wsc", {"span2_index": 99}, "span2_index 99 is behind the 15 words"),
        ("copa", {"question": "reason"}, "question: must be 'cause' or 'effect', not 'reason'"),
        ("record", {"answers": []}, "answers: "),
        ("scrolls-quality", {"output": "something else"}, "output 'something else' is none of the choices"),
        ("scrolls-quality", {"input": "Why?\n\n (A) one (B) two\n\nText."}, "input: has no choices (A) to (D)"),
        ("scrolls-contractnli", {"output": "entailment"}, "output: must be 'Not mentioned', 'Entailment' or"),
        ("scrolls-narrativeqa", {"input": "no question"}, "input: has no empty line"),
        ("lambada", {"text": " "}, "text: must not be empty"),
    ],
)
def test_a_contradiction_is_reported(task: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert fault_of(tmp_path, task, first_row(TASKS[task].data) | changes).startswith(words)


def test_a_part_of_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": "word " * 9, "more": i}) + "\n" for i in range(1000)))
    rows = read_rows(path, "lambada", "lambada", 10_000)
    assert rows[0] == {"text": "word " * 9} and 100 < len(rows) < 300
    assert len(read_rows(path, "lambada", "lambada")) == 1000


def test_layouts_are_shown_in_words() -> None:
    assert layout_of("piqa").splitlines()[1:] == [
        "goal: str",
        "sol1: str",
        "sol2: str",
        "label: Literal[0, 1] (0: sol1)",
    ]
    assert "endings: list[str] (four)" in layout_of("hellaswag") and "text: str (not empty)" in layout_of("lambada")
    assert "needle/ below the data folder" in layout_of("niah-easy")
