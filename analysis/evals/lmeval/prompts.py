"""What lm-eval's tasks ask of a row, as far as its length goes: how many tokens an evaluation will read.

The templates are those of lm-eval 0.4.13, filled with the columns of rows.py; a test compares their lengths with the
requests that lm-eval makes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..planning import Planned, Reader, by_tokenizer

LETTERED = r"\(A\)[\s\S]*?\(D\)[\s\S]*?\n\n"  # QuALITY's choices, in front of the story


@dataclass(frozen=True)
class Prompt:
    """asked: the template; answers: literal continuations; columns: those that hold continuations; many: the column
    that holds a list of continuations, where it is nested with dots; without: a pattern of marks that lm-eval removes;
    lettered: these marks are the choices; generated: the model continues the prompt; judged: but rows whose `output` is
    yes or no are scored by likelihood; rolling: the text is read in whole windows; scores: what of a row is scored,
    where that is not the continuations behind a blank."""

    asked: str
    answers: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    many: str = ""
    without: str = ""
    lettered: bool = False
    generated: bool = False
    judged: bool = False
    rolling: bool = False
    scores: Callable[[Mapping[str, Any]], Sequence[str]] | None = None

    def continuations(self, row: Mapping[str, Any]) -> Sequence[str]:
        """The texts whose likelihood is asked for."""
        if self.lettered:
            choices = re.search(LETTERED, row["input"])
            return re.split(r" *\([A-D]\) *", choices[0])[1:] if choices else []
        if self.many:
            texts: Any = row
            for key in self.many.split("."):
                texts = texts[key]
            return list(texts)
        return [*self.answers, *(str(row[name]) for name in self.columns)]

    def scored(self, row: Mapping[str, Any]) -> Sequence[str]:
        """The texts that lm-eval scores whole, each in a single window. Where it removes marks from a text, that text
        may be longer here. Empty where all is generated or rolling."""
        if self.rolling or (self.generated and not self.is_judged(row)):
            return []
        if self.scores is not None:
            return self.scores(row)
        texts = self.continuations(row)
        return [f" {' '.join(text.split()) if self.lettered else text}" for text in texts]

    def is_judged(self, row: Mapping[str, Any]) -> bool:
        return self.judged and str(row["output"]).strip(" .").lower() in _YES_NO


def _without_brackets(row: Mapping[str, Any]) -> list[str]:
    return [
        " " + re.sub(r"\[.*?\]", "", e.strip().replace(" [title]", ". ")).replace("  ", " ") for e in row["endings"]
    ]


def _with_entities(row: Mapping[str, Any]) -> list[str]:
    before = "\n" if "\n@highlight\n" in row["passage"].strip() else "\n\n"  # the prompt's end counts to the answer
    return [f"{before}   - {row['query']}".replace("@placeholder", entity) for entity in row["entities"]]


_YES_NO = ("no", "yes")
_INPUT = "{input}\n\nQuestion: \nAnswer:"
_SUMMARY = "{input}\n\nQuestion: What is a summary of the preceding text?\nAnswer:"
PROMPTS: dict[str, Prompt] = {
    "boolq": Prompt("{passage}\nQuestion: {question}?\nAnswer:", _YES_NO),
    "piqa": Prompt("Question: {goal}\nAnswer:", columns=("sol1", "sol2")),
    "siqa": Prompt("Q: {context} {question}\nA:", columns=("answerA", "answerB", "answerC")),
    "hellaswag": Prompt("{activity_label}: {ctx_a} {ctx_b}", many="endings", scores=_without_brackets),
    "winogrande": Prompt(
        "{option1}",
        columns=("sentence", "sentence"),
        scores=lambda row: [" " + row["sentence"].partition("_")[2].strip()],
    ),
    "arc_easy": Prompt("Question: {question}\nAnswer:", many="choices.text"),
    "arc_challenge": Prompt("Question: {question}\nAnswer:", many="choices.text"),
    "openbookqa": Prompt("{question_stem}", many="choices.text"),
    "wikitext": Prompt("{page}", rolling=True),
    "lambada": Prompt(
        "", columns=("text",), scores=lambda row: [row["text"][len(row["text"].rpartition(" ")[0].rstrip()) :]]
    ),
    "cb": Prompt("{premise}\nQuestion: {hypothesis}. True, False, or Neither?\nAnswer:", ("True", "False", "Neither")),
    "copa": Prompt(
        "{premise} because",
        columns=("choice1", "choice2"),
        scores=lambda row: [f"  {row[choice]}" for choice in ("choice1", "choice2")],
    ),
    "multirc": Prompt(
        "{paragraph}\nQuestion: {question}\nAnswer:{answer}\nIs the answer correct?",
        _YES_NO,
        scores=lambda row: [f" {row['answer']}\nIs the answer correct? yes"],
    ),
    "record": Prompt(
        "{passage}\n\n  - {query}", many="entities", without="@highlight|@placeholder", scores=_with_entities
    ),
    "rte": Prompt("{premise}\nQuestion: {hypothesis} True or False?\nAnswer:", ("True", "False")),
    "wic": Prompt(
        "Sentence 1: {sentence1}\nSentence 2: {sentence2}\nQuestion: Is the word 'table' used in the same way in the "
        "two sentences above?\nAnswer:",
        _YES_NO,
    ),
    "wsc.fixed": Prompt(
        'Passage: {text}\nQuestion: In the passage above, does the pronoun "*{span2_text}*" refer to '
        '"*{span1_text}*"?\nAnswer:',
        _YES_NO,
    ),
    "gov_report": Prompt(_SUMMARY, generated=True),
    "summ_screen_fd": Prompt(_SUMMARY, generated=True),
    "qmsum": Prompt(_INPUT, generated=True),
    "qasper": Prompt(_INPUT, _YES_NO, generated=True, judged=True),
    "narrative_qa": Prompt(_INPUT, generated=True),
    "quality": Prompt(_INPUT, without=LETTERED, lettered=True),
    "contract_nli": Prompt("{input}\n\nHypothesis: \nConclusion:", ("Not mentioned", "Entailment", "Contradiction")),
}


def lengths(prompt: Prompt, row: Mapping[str, Any], reader: Reader, max_length: int, new_tokens: int) -> list[int]:
    """The number of tokens that each forward pass of this row reads, without padding."""
    text = prompt.asked.format_map(row)
    asked = len((re.sub(prompt.without, "", text) if prompt.without else text).encode())
    if prompt.rolling:
        n_tokens = reader.tokens_of(asked)
        return [n_tokens] if n_tokens <= max_length else [max_length] * math.ceil(n_tokens / max_length)
    if prompt.generated and not prompt.is_judged(row):
        return [min(reader.tokens_of(asked), max_length - new_tokens) + new_tokens - 1]
    texts = prompt.continuations(row)
    if not reader.exact and prompt.answers and len(prompt.answers) == len(texts) and " " not in "".join(texts):
        texts = texts[:1]  # answers of one token share a forward pass
    return [min(max_length, max(1, reader.tokens_of(asked + 1 + len(text.encode())) - 1)) for text in texts]


def longest(name: str, rows: Sequence[Mapping[str, Any]], count: Callable[[str], int]) -> int:
    """The length, in tokens by `count`, of the longest text that is scored whole: no window may be shorter. 0 where
    there is none."""
    return max((count(text) for row in rows for text in set(PROMPTS[name].scored(row))), default=0)


def planned(
    name: str, rows: Sequence[Mapping[str, Any]], share: float, reader: Reader, window: tuple[int, int],
    limit: int | None,
) -> Planned:  # fmt: skip
    """One evaluation of the data set `name`. rows: those in the first `share` of its file, of the layout of rows.py;
    window: tokens of a window, and of a generated answer."""
    prompt = PROMPTS[name]
    if limit is not None and len(rows) >= limit:
        rows, share = rows[:limit], 1.0
    read = sum(sum(lengths(prompt, row, reader, *window)) for row in rows)
    how = ["lm-eval pads its batches", *([by_tokenizer(reader)] if not reader.exact else [])]
    how += ["answers as long as max_new_tokens"] if prompt.generated else []
    how += [] if share == 1.0 else [f"from the first {share:.0%} of the rows"]
    return Planned(round(read / share), round(len(rows) / share), "documents", ", ".join(how))
