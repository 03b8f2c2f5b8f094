"""The layout of every data set's rows: what is checked before anything runs, and what `eval list --rows` prints.

lm-eval takes a row as it comes: a row without its label is scored as wrong, or ends in an error of a template. So each
row is checked first. The layouts are the hub's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator

from arch.errors import InputError
from data.files import reading
from data.json_lines import json_rows
from scaling.study.file import validate


class Row(BaseModel):
    """The columns of a row that are read; others are allowed."""

    model_config = ConfigDict(strict=True, frozen=True)


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


class Choices(Row):
    text: Annotated[list[str], Field(min_length=2)]
    label: Annotated[list[str], Field(min_length=2)]

    @model_validator(mode="after")
    def _as_many(self) -> Choices:
        if len(self.text) != len(self.label):
            raise ValueError("text and label must be as many")
        return self


class Question(Row):
    paragraph: int
    question: int


Filled = Annotated[str, AfterValidator(_filled), Field(description="not empty")]
Texts = Annotated[list[str], Field(min_length=1)]
_IN_SENTENCE1 = Annotated[int, Field(ge=0, description="a character of sentence1: the word lies between the two")]
CONTRACT = Literal["Not mentioned", "Entailment", "Contradiction"]
Rule = Callable[[Any], str | None]  # from a row to what contradicts within it


def _text(about: str) -> Any:
    return Annotated[str, Field(description=about)]


def _label(n: int, about: str) -> Any:
    """A label from 0 to n - 1. The hub writes -1 where a split's labels are hidden."""
    return Annotated[int, Field(ge=0, lt=n, description=about)]


def _layout(rule: Rule | None = None, **columns: Any) -> type[Row]:
    def check(row: Row) -> Row:
        if rule is not None and (fault := rule(row)):
            raise ValueError(fault)
        return row

    fields: dict[str, Any] = {name: (kind, ...) for name, kind in columns.items()}
    validators: dict[str, Any] = {"check": model_validator(mode="after")(check)}
    return create_model("Row", __base__=Row, __validators__=validators, **fields)


def _answer_key(row: Any) -> str | None:
    labels = row.choices.label
    return None if row.answerKey.lstrip() in labels else f"answerKey {row.answerKey!r} is none of {labels}"


def _blank(row: Any) -> str | None:
    return None if "_" in row.sentence else "sentence has no _ where the options go"


def _word_inside(row: Any) -> str | None:
    fits = row.start1 < row.end1 <= len(row.sentence1)
    return None if fits else f"start1 {row.start1} to end1 {row.end1} is no part of sentence1"


def _pronoun_inside(row: Any) -> str | None:
    n_words = len(row.text.split())
    return None if row.span2_index < n_words else f"span2_index {row.span2_index} is behind the {n_words} words"


def _question_first(row: Any) -> str | None:
    return None if "\n\n" in row.input else "input has no empty line between the question and the text"


def _lettered(row: Any) -> str | None:
    text = row.input.partition("\n\n")[2]
    if not all(f"({letter})" in text for letter in "ABCD"):
        return "input has no choices (A) to (D) behind the question and an empty line"
    head = " ".join(text[: text.find("\n\n", text.find("(D)"))].split())
    return None if " ".join(row.output.split()) in head else f"output {row.output!r} is none of the choices"


def _scrolls(output: Any = str, rule: Rule | None = None) -> type[Row]:
    of_question = _text("the same for all answers to one question")
    behind = Annotated[str, AfterValidator(_filled), Field(description="the text, behind a question and an empty line")]
    return _layout(rule, id=of_question, input=behind, output=output)


_KEY = _text("one of the labels")
_ARC = _layout(_answer_key, question=str, choices=Choices, answerKey=_KEY)
_OPENBOOK = _layout(_answer_key, question_stem=str, choices=Choices, answerKey=_KEY)
ROWS: dict[str, type[Row]] = {
    "boolq": _layout(passage=str, question=str, label=_label(2, "1: yes")),
    "piqa": _layout(goal=str, sol1=str, sol2=str, label=_label(2, "0: sol1")),
    "siqa": _layout(context=str, question=str, answerA=str, answerB=str, answerC=str, label=Literal["1", "2", "3"]),
    "hellaswag": _layout(
        activity_label=str,
        ctx_a=str,
        ctx_b=str,
        endings=Annotated[list[str], Field(min_length=4, max_length=4)],
        label=Literal["0", "1", "2", "3"],
    ),
    "winogrande": _layout(
        _blank, sentence=_text("with _ where the options go"), option1=Filled, option2=Filled, answer=Literal["1", "2"]
    ),
    "arc_easy": _ARC,
    "arc_challenge": _ARC,
    "openbookqa": _OPENBOOK,
    "wikitext": _layout(page=Filled),
    "lambada": _layout(text=Filled),
    "cb": _layout(premise=str, hypothesis=str, label=_label(3, "0: entailed, 1: contradicted, 2: neither")),
    "copa": _layout(
        premise=Filled,
        choice1=Filled,
        choice2=Filled,
        question=Literal["cause", "effect"],
        label=_label(2, "0: choice1"),
    ),
    "multirc": _layout(paragraph=str, question=str, answer=str, idx=Question, label=_label(2, "1: a right answer")),
    "record": _layout(
        passage=str,
        query=_text("with @placeholder where the entity goes"),
        entities=Texts,
        answers=Texts,
    ),
    "rte": _layout(premise=str, hypothesis=str, label=_label(2, "0: entailed")),
    "wic": _layout(
        _word_inside,
        sentence1=str,
        sentence2=str,
        start1=_IN_SENTENCE1,
        end1=_IN_SENTENCE1,
        label=_label(2, "1: used in the same way"),
    ),
    "wsc.fixed": _layout(
        _pronoun_inside,
        text=Filled,
        span1_text=Filled,
        span2_text=Filled,
        span2_index=Annotated[int, Field(ge=0, description="the pronoun's place among the words")],
        label=_label(2, "1: the pronoun means span1_text"),
    ),
    "gov_report": _scrolls(),
    "summ_screen_fd": _scrolls(),
    "qmsum": _scrolls(rule=_question_first),
    "qasper": _scrolls(rule=_question_first),
    "narrative_qa": _scrolls(rule=_question_first),
    "quality": _scrolls(Filled, _lettered),
    "contract_nli": _scrolls(CONTRACT, _question_first),
}


def read_rows(path: Path, task: str, data: str, most_bytes: float = math.inf) -> tuple[list[dict[str, Any]], float]:
    """The records of a JSONL file of the data set `data`, with the columns of its layout, and the share of the file
    that was read: all of it, or the lines within its first `most_bytes`.

    Raises InputError with file, line, what is wrong and what was expected: a line that is no record or does not fit the
    layout, a file without rows.
    """
    rows: list[dict[str, Any]] = []
    layout, n_bytes = ROWS[data], 0
    see = f"`scaling eval list --rows {task}` shows the layout"
    with reading(path, see), open(path, "rb") as lines:
        for number, row in json_rows(iter(lines.readline, b""), str(path), f"; {see}"):
            if n_bytes > most_bytes:
                return rows, n_bytes / path.stat().st_size
            n_bytes = lines.tell()
            if not isinstance(row, dict):
                raise InputError(f"{path}: line {number} is not a JSON object; {see}")
            try:
                validate(layout, row, f"{path}: line {number}", [])
            except InputError as error:
                raise InputError(f"{error}; {see}") from None
            rows.append({name: row[name] for name in layout.model_fields})
    if not rows:
        raise InputError(f"{path}: has no rows; {see}")
    return rows, 1.0


def show_layout(data: str) -> str:
    """The layout of a data set's rows as text: a line a column."""
    schema = ROWS[data].model_json_schema()
    width = max(map(len, schema["properties"]))
    return "\n".join(f"{name:{width}}  {_words(column, schema)}" for name, column in schema["properties"].items())


def _words(column: dict[str, Any], schema: dict[str, Any]) -> str:
    """A column of a JSON schema in words."""
    about = f" ({column['description']})" if "description" in column else ""
    if "$ref" in column:
        keys = schema["$defs"][column["$ref"].rpartition("/")[2]]["properties"]
        return "{" + ", ".join(f"{key}: {_words(kind, schema)}" for key, kind in keys.items()) + "}"
    if "enum" in column:
        return "one of " + ", ".join(f'"{word}"' for word in column["enum"])
    if column["type"] == "array":
        least, most = column["minItems"], column.get("maxItems")
        return f"a list of {least if least == most else f'at least {least}'} texts"
    if column["type"] == "integer":
        low, above = column.get("minimum"), column.get("exclusiveMaximum")
        return f"a whole number{f' from {low} to {above - 1}' if above else ''}{about}"
    return f"a text{about}"
