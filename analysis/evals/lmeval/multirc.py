"""SuperGLUE's MultiRC: answers judged one by one, and questions all of whose answers are judged as they are.

lm-eval's task (0.4.13) has its choices the other way round than its labels: label 1, a right answer, points at "no", so
that a model that is always right scores 0. Here label 1 is "yes", as in SuperGLUE itself and in the lm-eval of HGRN's
time, whose only score was the share of questions without a wrong judgement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CHOICES = "['''{{answer}}\\nIs the answer correct? no''', '''{{answer}}\\nIs the answer correct? yes''']"


def exact_match(judged: Sequence[tuple[tuple[int, int], bool]]) -> float:
    """Share of the questions whose answers were all judged as they are: ((paragraph, question), whether) an answer."""
    whole: dict[tuple[int, int], bool] = {}
    for question, right in judged:
        whole[question] = whole.get(question, True) and right
    return sum(whole.values()) / len(whole)


class ByQuestion:
    """In front of lm-eval's task: the metric `em` beside its own."""

    def process_results(self, doc: Any, results: Any) -> dict[str, Any]:
        found: dict[str, Any] = super().process_results(doc, results)  # type: ignore[misc]
        question = (doc["idx"]["paragraph"], doc["idx"]["question"])
        return found | {"em": (question, found["acc"] == 1.0)}

    def aggregation(self) -> dict[str, Any]:
        return {**super().aggregation(), "em": exact_match}  # type: ignore[misc]

    def higher_is_better(self) -> dict[str, bool]:
        return {**super().higher_is_better(), "em": True}  # type: ignore[misc]
