"""The layout of every data set's rows: what is checked before anything runs, and what `eval list --rows` prints.

lm-eval takes a row as it comes: a row without its label is scored as wrong, or ends in an error of a template. So each
row is checked first. The layouts are the hub's own; other columns are allowed. A label of -1 is what the hub writes
where a split's labels are hidden.
"""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model
from typing_extensions import TypedDict

from arch.errors import InputError
from data.files import reading
from data.json_lines import json_rows
from scaling.study.file import validate


def _with(pattern: str, fault: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.search(pattern, text):
            raise ValueError(fault)
        return text

    return AfterValidator(check)


NotEmpty = Annotated[str, _with(r"\S", "must not be empty"), "not empty"]
Texts = Annotated[list[str], Field(min_length=1), "at least one"]


class Choices(TypedDict):
    text: Texts
    label: Texts


class Question(TypedDict):
    paragraph: int
    question: int


Index = Annotated[int, Field(ge=0)]
ARC = {"choices": Annotated[Choices, "text: [..], label: [..]"], "answerKey": Annotated[str, "one of the labels"]}
# Of SCROLLS: the ids of all answers to one question are the same
NO_TEXT = "has no empty line between the question and the text"
Asked = Annotated[str, _with(r"\n\n\s*\S", NO_TEXT), "a question, an empty line, the text"]
SUMMARY = {"id": str, "input": NotEmpty, "output": str}
ANSWER = {"id": str, "input": Asked, "output": str}
LETTERED = Annotated[
    str,
    _with(r"(?s)\n\n.*\(A\).*\(B\).*\(C\).*\(D\)", "has no choices (A) to (D) behind the question and an empty line"),
    "a question, an empty line, (A) to (D), the text",
]

ROWS: dict[str, dict[str, Any]] = {
    "boolq": {"passage": str, "question": str, "label": Annotated[Literal[0, 1], "1: yes"]},
    "piqa": {"goal": str, "sol1": str, "sol2": str, "label": Annotated[Literal[0, 1], "0: sol1"]},
    "siqa": dict.fromkeys(("context", "question", "answerA", "answerB", "answerC"), str)
    | {"label": Annotated[Literal["1", "2", "3"], '"1": answerA']},
    "hellaswag": dict.fromkeys(("activity_label", "ctx_a", "ctx_b"), str)
    | {
        "endings": Annotated[list[str], Field(min_length=4, max_length=4), "four"],
        "label": Literal["0", "1", "2", "3"],
    },
    "winogrande": {
        "sentence": Annotated[str, _with("_", "has no _ where the options go"), "with _ where the options go"],
        "option1": NotEmpty,
        "option2": NotEmpty,
        "answer": Literal["1", "2"],
    },
    "arc_easy": {"question": str} | ARC,
    "arc_challenge": {"question": str} | ARC,
    "openbookqa": {"question_stem": str} | ARC,
    "wikitext": {"page": NotEmpty},
    "lambada": {"text": NotEmpty},
    "cb": {
        "premise": str,
        "hypothesis": str,
        "label": Annotated[Literal[0, 1, 2], "0: entailed, 1: contradicted, 2: neither"],
    },
    "copa": dict.fromkeys(("premise", "choice1", "choice2"), NotEmpty)
    | {"question": Literal["cause", "effect"], "label": Annotated[Literal[0, 1], "0: choice1"]},
    "multirc": dict.fromkeys(("paragraph", "question", "answer"), str)
    | {
        "idx": Annotated[Question, "paragraph: number, question: number"],
        "label": Annotated[Literal[0, 1], "1: a right answer"],
    },
    "record": {
        "passage": str,
        "query": Annotated[str, "with @placeholder where the entity goes"],
        "entities": Texts,
        "answers": Texts,
    },
    "rte": {"premise": str, "hypothesis": str, "label": Annotated[Literal[0, 1], "0: entailed"]},
    "wic": {
        "sentence1": str,
        "sentence2": str,
        "start1": Annotated[Index, "a character of sentence1, where the word begins"],
        "end1": Annotated[Index, "where it ends"],
        "label": Annotated[Literal[0, 1], "1: used in the same way"],
    },
    "wsc.fixed": dict.fromkeys(("text", "span1_text", "span2_text"), NotEmpty)
    | {
        "span2_index": Annotated[Index, "the pronoun's place among the words"],
        "label": Annotated[Literal[0, 1], "1: the pronoun means span1_text"],
    },
    "gov_report": SUMMARY,
    "summ_screen_fd": SUMMARY,
    "qmsum": ANSWER,
    "qasper": ANSWER,
    "narrative_qa": ANSWER,
    "quality": {"id": str, "input": LETTERED, "output": Annotated[NotEmpty, "one of the choices"]},
    "contract_nli": ANSWER | {"output": Literal["Not mentioned", "Entailment", "Contradiction"]},
}


@cache
def model_of(data: str) -> type[BaseModel]:
    """The columns of a data set's rows as a model."""
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in ROWS[data].items()}
    return create_model("Row", __config__=ConfigDict(strict=True, frozen=True), **fields)


def contradiction(data: str, row: dict[str, Any]) -> str:
    """What contradicts within a row of its layout, "" where nothing does: lm-eval would score it as wrong, ask for
    another word, or break off."""
    if "choices" in row:
        texts, labels = row["choices"]["text"], row["choices"]["label"]
        if not 2 <= len(texts) == len(labels):
            return f"choices: {len(texts)} texts and {len(labels)} labels: must be as many, two or more"
        if row["answerKey"].lstrip() not in labels:
            return f"answerKey {row['answerKey']!r} is none of {labels}"
    if "start1" in row and not row["start1"] < row["end1"] <= len(row["sentence1"]):
        return f"start1 {row['start1']} to end1 {row['end1']} is no part of sentence1"
    if data == "quality":
        choices = row["input"].partition("\n\n")[2]
        head = " ".join(choices[: choices.find("\n\n", choices.find("(D)"))].split())
        if " ".join(row["output"].split()) not in head:
            return f"output {row['output']!r} is none of the choices"
    if "span2_index" in row and row["span2_index"] >= (n_words := len(row["text"].split())):
        return f"span2_index {row['span2_index']} is behind the {n_words} words"
    return ""


def read_rows(path: Path, task: str, data: str, most_bytes: float = math.inf) -> list[dict[str, Any]]:
    """The records of a JSONL file of the data set `data`, with the columns of its layout: of all lines, or of those
    within its first `most_bytes`.

    Raises InputError with file, line, what is wrong and what was expected: a line that is no record or does not fit the
    layout, a file without rows.
    """
    rows: list[dict[str, Any]] = []
    see = f"`scaling eval list --rows {task}` shows the layout"
    with reading(path, see), open(path, "rb") as lines:
        for number, row in json_rows(iter(lines.readline, b""), str(path), f"; {see}"):
            if not isinstance(row, dict):
                raise InputError(f"{path}: line {number} is not a JSON object; {see}")
            try:
                validate(model_of(data), row, f"{path}: line {number}", [])
            except InputError as error:
                raise InputError(f"{error}; {see}") from None
            rows.append({name: row[name] for name in ROWS[data]})
            if fault := contradiction(data, rows[-1]):
                raise InputError(f"{path}: line {number}: {fault}; {see}")
            if lines.tell() > most_bytes:
                break
    if not rows:
        raise InputError(f"{path}: has no rows; {see}")
    return rows


def show_layout(data: str) -> str:
    """The columns of a data set's rows as text: a line a column."""
    return "\n".join(f"{name}: {_words(kind)}" for name, kind in ROWS[data].items())


def _words(kind: Any) -> str:
    if get_origin(kind) is not Annotated:
        return getattr(kind, "__name__", "") if kind in (str, int) else str(kind).replace("typing.", "")
    inner, *notes = get_args(kind)
    words = {Choices: "object", Question: "object"}.get(inner) or _words(inner)
    return f"{words} ({', '.join(note for note in notes if isinstance(note, str))})"
