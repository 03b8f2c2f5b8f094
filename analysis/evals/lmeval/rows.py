"""The layout of every data set's rows: what is checked before anything runs, and what `eval list --rows` prints.

lm-eval takes a row as it comes: a row without its label is scored as wrong, or ends in an error of a template. So each
row is checked against this table first. The layouts are the hub's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arch.errors import InputError, nearest
from data.files import reading
from data.json_lines import json_rows

Row = Mapping[str, Any]
CONTRACT = ("Not mentioned", "Entailment", "Contradiction")
SHOWN = 60  # characters of a value that a message repeats


@dataclass(frozen=True)
class Kind:
    """expected: in words, what a value must be; fits: whether a value is that; example: a value that fits."""

    expected: str
    fits: Callable[[Any], bool]
    example: Any


@dataclass(frozen=True)
class Column:
    name: str
    kind: Kind
    about: str = ""


@dataclass(frozen=True)
class Layout:
    """columns: all that are read, others are allowed; together: what contradicts within a row, None where nothing does;
    rule: the same in words."""

    columns: tuple[Column, ...]
    rule: str = ""
    together: Callable[[Row], str | None] = lambda row: None

    def fault(self, row: Row) -> str | None:
        """What is wrong with a row and what was expected, None where nothing is wrong."""
        for column in self.columns:
            if column.name not in row:
                known = {item.name for item in self.columns}
                near = nearest(column.name, [name for name in row if name not in known])
                near = near if "did you mean" in near else ""
                return f"column {column.name!r} is missing{near}: it must be {column.kind.expected}"
            if not column.kind.fits(row[column.name]):
                return f"column {column.name!r} must be {column.kind.expected}, not {_shown(row[column.name])}"
        return self.together(row)


def read_rows(path: Path, task: str, data: str, most_bytes: float = math.inf) -> tuple[list[dict[str, Any]], float]:
    """The records of a JSONL file of the data set `data`, with the columns of its layout, and the share of the file
    that was read: all of it, or the lines within its first `most_bytes`.

    Raises InputError with file, line, what is wrong and what was expected: a line that is no record or does not fit the
    layout, a file without rows.
    """
    rows: list[dict[str, Any]] = []
    layout, n_bytes = ROWS[data], 0
    names = [column.name for column in layout.columns]
    see = f"`scaling eval list --rows {task}` shows the layout"
    with reading(path, see), open(path, "rb") as lines:
        for number, row in json_rows(iter(lines.readline, b""), str(path), f"; {see}"):
            if n_bytes > most_bytes:
                return rows, n_bytes / path.stat().st_size
            n_bytes = lines.tell()
            if not isinstance(row, dict):
                raise InputError(f"{path}: line {number} is not a JSON object; {see}")
            if fault := layout.fault(row):
                raise InputError(f"{path}: line {number}: {fault}; {see}")
            rows.append({name: row[name] for name in names})
    if not rows:
        raise InputError(f"{path}: has no rows; {see}")
    return rows, 1.0


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _texts(least: int, most: int | None = None) -> Kind:
    many = f"{least}" if most == least else f"at least {least}"
    return Kind(
        f"a list of {many} texts",
        lambda v: isinstance(v, list) and least <= len(v) <= (most or len(v)) and all(map(_is_text, v)),
        [".."] * least,
    )


def _label(n: int) -> Kind:
    """A label from 0 to n - 1. The hub writes -1 where a split's labels are hidden."""
    return Kind(f"a whole number from 0 to {n - 1}", lambda v: _is_whole(v) and 0 <= v < n, 0)


def _word(*words: str) -> Kind:
    return Kind("one of " + ", ".join(f'"{word}"' for word in words), lambda v: _is_text(v) and v in words, words[0])


def _is_choices(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    texts, labels = value.get("text"), value.get("label")
    if not isinstance(texts, list) or not isinstance(labels, list):
        return False
    return 1 < len(texts) == len(labels) and all(map(_is_text, [*texts, *labels]))


TEXT = Kind("a text", _is_text, "..")
FILLED = Kind("a text that is not empty", lambda v: _is_text(v) and bool(v.strip()), "..")
WHOLE = Kind("a whole number, 0 or more", lambda v: _is_whole(v) and v >= 0, 0)
CHOICES = Kind(
    '{"text": [..], "label": [..]}, two lists of as many texts, at least 2',
    _is_choices,
    {"text": ["..", ".."], "label": ["A", "B"]},
)
QUESTION = Kind(
    '{"paragraph": number, "question": number}',
    lambda v: isinstance(v, dict) and all(_is_whole(v.get(key)) for key in ("paragraph", "question")),
    {"paragraph": 0, "question": 0},
)


def _answer_key(row: Row) -> str | None:
    labels = row["choices"]["label"]
    return None if row["answerKey"].lstrip() in labels else f"answerKey {row['answerKey']!r} is none of {labels}"


def _inside(row: Row) -> str | None:
    fits = row["start1"] < row["end1"] <= len(row["sentence1"])
    return None if fits else f"start1 {row['start1']} to end1 {row['end1']} is no part of sentence1"


def _pronoun(row: Row) -> str | None:
    n_words = len(row["text"].split())
    return None if row["span2_index"] < n_words else f"span2_index {row['span2_index']} is behind the {n_words} words"


def _blank(row: Row) -> str | None:
    return None if "_" in row["sentence"] else "sentence has no _ where the options go"


def _question_first(row: Row) -> str | None:
    return None if "\n\n" in row["input"] else "input has no empty line between the question and the text"


def _lettered(row: Row) -> str | None:
    fault = _question_first(row)
    if fault:
        return fault
    text = row["input"].partition("\n\n")[2]
    if not all(f"({letter})" in text for letter in "ABCD"):
        return "input has no choices (A) to (D) behind the question"
    head = " ".join(text[: text.find("\n\n", text.find("(D)"))].split())
    return None if " ".join(row["output"].split()) in head else f"output {_shown(row['output'])} is none of the choices"


def _arc(question: str) -> Layout:
    columns = (Column(question, TEXT), Column("choices", CHOICES), Column("answerKey", TEXT, "one of choices' labels"))
    return Layout(columns, "answerKey is one of choices.label", _answer_key)


def _scrolls(output: Kind = TEXT, rule: str = "", together: Callable[[Row], str | None] = lambda row: None) -> Layout:
    columns = (
        Column("id", FILLED, "rows of one id are one question with several answers"),
        Column("input", FILLED, "the text, behind the question and an empty line where there is a question"),
        Column("output", output, "the right answer"),
    )
    return Layout(columns, rule, together)


_ASKED = ("input has an empty line between the question and the text", _question_first)
ROWS: dict[str, Layout] = {
    "boolq": Layout((Column("passage", TEXT), Column("question", TEXT), Column("label", _label(2), "1: yes"))),
    "piqa": Layout(
        (Column("goal", TEXT), Column("sol1", TEXT), Column("sol2", TEXT), Column("label", _label(2), "0: sol1"))
    ),
    "siqa": Layout(
        (
            *(Column(name, TEXT) for name in ("context", "question", "answerA", "answerB", "answerC")),
            Column("label", _word("1", "2", "3"), '"1": answerA'),
        )
    ),
    "hellaswag": Layout(
        (
            *(Column(name, TEXT) for name in ("activity_label", "ctx_a", "ctx_b")),
            Column("endings", _texts(4, 4)),
            Column("label", _word("0", "1", "2", "3"), "the right one of endings"),
        )
    ),
    "winogrande": Layout(
        (
            Column("sentence", TEXT, "with _ where the options go"),
            *(Column(name, FILLED) for name in ("option1", "option2")),
            Column("answer", _word("1", "2"), '"1": option1'),
        ),
        "sentence has a _",
        _blank,
    ),
    "arc_easy": _arc("question"),
    "arc_challenge": _arc("question"),
    "openbookqa": _arc("question_stem"),
    "wikitext": Layout((Column("page", FILLED, "a whole article"),)),
    "lambada": Layout((Column("text", FILLED, "its last word is asked for"),)),
    "cb": Layout(
        (
            *(Column(name, TEXT) for name in ("premise", "hypothesis")),
            Column("label", _label(3), "0: entailed, 1: contradicted, 2: neither"),
        )
    ),
    "copa": Layout(
        (
            Column("premise", FILLED),
            *(Column(name, FILLED) for name in ("choice1", "choice2")),
            Column("question", _word("cause", "effect")),
            Column("label", _label(2), "0: choice1"),
        )
    ),
    "multirc": Layout(
        (
            *(Column(name, TEXT) for name in ("paragraph", "question", "answer")),
            Column("idx", QUESTION, "answers of one question have the same"),
            Column("label", _label(2), "1: a right answer"),
        )
    ),
    "record": Layout(
        (
            Column("passage", TEXT),
            Column("query", TEXT, "with @placeholder where the entity goes"),
            Column("entities", _texts(1)),
            Column("answers", _texts(1)),
        )
    ),
    "rte": Layout(
        (
            *(Column(name, TEXT) for name in ("premise", "hypothesis")),
            Column("label", _label(2), "0: entailed"),
        )
    ),
    "wic": Layout(
        (
            *(Column(name, TEXT) for name in ("sentence1", "sentence2")),
            *(Column(name, WHOLE, "characters of the word in sentence1") for name in ("start1", "end1")),
            Column("label", _label(2), "1: used in the same way"),
        ),
        "start1 to end1 is a part of sentence1",
        _inside,
    ),
    "wsc.fixed": Layout(
        (
            Column("text", FILLED),
            *(Column(name, FILLED) for name in ("span1_text", "span2_text")),
            Column("span2_index", WHOLE, "the pronoun's place among the words, from 0"),
            Column("label", _label(2), "1: the pronoun means span1_text"),
        ),
        "span2_index is less than the number of words",
        _pronoun,
    ),
    "gov_report": _scrolls(),
    "summ_screen_fd": _scrolls(),
    "qmsum": _scrolls(TEXT, *_ASKED),
    "qasper": _scrolls(TEXT, *_ASKED),
    "narrative_qa": _scrolls(TEXT, *_ASKED),
    "quality": _scrolls(FILLED, "choices (A) to (D) stand behind the question, output is one of them", _lettered),
    "contract_nli": _scrolls(_word(*CONTRACT), *_ASKED),
}


def example(data: str) -> dict[str, Any]:
    """An example row with the right columns and types."""
    return {column.name: column.kind.example for column in ROWS[data].columns}


def show_layout(data: str) -> str:
    """The layout of a data set's rows as text, an example last."""
    layout = ROWS[data]
    width = max(len(column.name) for column in layout.columns)
    lines = [
        f"{column.name:{width}}  {column.kind.expected}{f' ({column.about})' if column.about else ''}"
        for column in layout.columns
    ]
    lines += [f"rule: {layout.rule}"] if layout.rule else []
    return "\n".join([*lines, f"example: {json.dumps(example(data))}"])
