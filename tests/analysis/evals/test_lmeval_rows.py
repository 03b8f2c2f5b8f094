"""Rows of the wrong form are refused with file, line and column before anything runs, and the layouts are
documented."""

import json
from pathlib import Path
from typing import Any

import pytest

import analysis.evals
from analysis.evals.lmeval.rows import ROWS as LAYOUTS
from analysis.evals.lmeval.rows import example, read_rows
from analysis.evals.lmeval.sets import DATA, TASKS
from analysis.evals.planning import check_data
from analysis.evals.registry import layouts_page, make_tasks
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
    for column in LAYOUTS[data].columns:
        row = first_row(data)
        del row[column.name]
        assert fault_of(tmp_path, task, row).startswith(f"column {column.name!r} is missing")
        for wrong in (None, 1.5, [], {}):
            message = fault_of(tmp_path, task, first_row(data) | {column.name: wrong})
            assert message.startswith(f"column {column.name!r} must be {column.kind.expected}, not {wrong!r}")
        assert column.kind.fits(example(data)[column.name])


@pytest.mark.parametrize(
    ("task", "changes", "words"),
    [
        ("piqa", {"label": -1}, "column 'label' must be a whole number from 0 to 1, not -1"),  # a hidden label
        ("piqa", {"label": "1"}, "column 'label' must be a whole number from 0 to 1, not '1'"),
        ("piqa", {"label": True}, "column 'label' must be a whole number from 0 to 1, not True"),
        ("cb", {"label": 3}, "column 'label' must be a whole number from 0 to 2, not 3"),
        ("siqa", {"label": "4"}, 'column \'label\' must be one of "1", "2", "3", not \'4\''),
        ("hellaswag", {"label": ""}, "column 'label' must be one of"),
        ("hellaswag", {"endings": ["a", "b", "c"]}, "column 'endings' must be a list of 4 texts"),
        ("arc-easy", {"answerKey": "E"}, "answerKey 'E' is none of"),
        ("openbookqa", {"choices": {"text": ["a", "b"], "label": ["A"]}}, "column 'choices' must be"),
        ("winogrande", {"sentence": "no gap"}, "sentence has no _"),
        ("wic", {"end1": 999}, "start1 14 to end1 999 is no part of sentence1"),
        ("wsc", {"span2_index": 99}, "span2_index 99 is behind the 15 words"),
        ("copa", {"question": "reason"}, 'column \'question\' must be one of "cause", "effect"'),
        ("record", {"answers": []}, "column 'answers' must be a list of at least 1 texts"),
        ("scrolls-quality", {"output": "something else"}, "output 'something else' is none of the choices"),
        ("scrolls-quality", {"input": "Why?\n\n (A) one (B) two\n\nText."}, "input has no choices (A) to (D)"),
        ("scrolls-contractnli", {"output": "entailment"}, "column 'output' must be one of \"Not mentioned\""),
        ("scrolls-narrativeqa", {"input": "no question"}, "input has no empty line between the question and the text"),
    ],
)
def test_a_contradiction_is_reported(task: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert fault_of(tmp_path, task, first_row(TASKS[task].data) | changes).startswith(words)


def test_a_misspelt_column_is_named(tmp_path: Path) -> None:
    row = first_row("piqa")
    row["lable"] = row.pop("label")
    assert "column 'label' is missing (did you mean 'lable'?)" in fault_of(tmp_path, "piqa", row)


def test_a_part_of_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": "word " * 9, "more": i}) + "\n" for i in range(1000)))
    rows, share = read_rows(path, "lambada", "lambada", 10_000)
    assert rows[0] == {"text": "word " * 9} and 0.1 < share < 0.3 and len(rows) == pytest.approx(1000 * share, rel=0.01)
    assert len(read_rows(path, "lambada", "lambada")[0]) == 1000


def test_the_layouts_are_documented() -> None:
    page = Path(analysis.evals.__path__[0]) / "ROWS.md"
    assert page.read_text() == layouts_page(), "write it again: analysis.evals.registry.layouts_page()"
