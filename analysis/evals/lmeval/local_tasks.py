"""lm-eval's tasks over local rows: its own prompts, choices, metrics and aggregation, with our place of the data.

Nothing is downloaded, no script of a data set runs, and `datasets` writes no cache: the rows come as a list.
"""

from __future__ import annotations

import os
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from arch.errors import InputError

from .sets import DATA, TASKS

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


@lru_cache(maxsize=1)
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)


def rouge(prediction: str, references: Sequence[str]) -> dict[str, float]:
    """F-measures of ROUGE-1, -2 and -L, 0 to 100, each by its best reference; no stemming, as SCROLLS."""
    scores = [_scorer().score(reference, prediction) for reference in references]
    return {kind: 100 * max(score[kind].fmeasure for score in scores) for kind in ("rouge1", "rouge2", "rougeL")}


def normalized_words(text: str) -> list[str]:
    """SQuAD's normalisation: lower case, no punctuation, no articles, words by white space."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def word_f1(prediction: str, references: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over words, 0 to 100, by the best reference. 0 where no word is shared."""
    return 100 * max(_f1(normalized_words(prediction), normalized_words(reference)) for reference in references)


def _f1(words: list[str], wanted: list[str]) -> float:
    shared = sum((Counter(words) & Counter(wanted)).values())
    return 2 * shared / (len(words) + len(wanted)) if shared else 0.0


MULTIRC_CHOICES = "['''{{answer}}\\nIs the answer correct? no''', '''{{answer}}\\nIs the answer correct? yes''']"


def exact_match(judged: Sequence[tuple[tuple[int, int], bool]]) -> float:
    """The share of questions whose answers were all judged rightly. judged: for each answer its (paragraph, question),
    and whether it was judged rightly."""
    whole: dict[tuple[int, int], bool] = {}
    for question, right in judged:
        whole[question] = whole.get(question, True) and right
    return sum(whole.values()) / len(whole)


class ByQuestion:
    """Before lm-eval's task in the order of bases: adds the metric `em`."""

    def process_results(self, doc: Any, results: Any) -> dict[str, Any]:
        scores: dict[str, Any] = super().process_results(doc, results)  # type: ignore[misc]
        question = (doc["idx"]["paragraph"], doc["idx"]["question"])
        return scores | {"em": (question, scores["acc"] == 1.0)}

    def aggregation(self) -> dict[str, Any]:
        return {**super().aggregation(), "em": exact_match}  # type: ignore[misc]

    def higher_is_better(self) -> dict[str, bool]:
        return {**super().higher_is_better(), "em": True}  # type: ignore[misc]


class BuiltOnce:
    """Before lm-eval's task in the order of bases: documents and requests are made for the first model and used for
    all."""

    _instances: list[Any] | None = None
    _documents: list[tuple[int, dict[str, Any]]] | None = None

    def doc_iterator(self, **asked: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._documents is None:
            self._documents = list(super().doc_iterator(**asked))  # type: ignore[misc]
        return iter(self._documents)

    def build_all_requests(self, **asked: Any) -> None:
        if self._instances is None:
            super().build_all_requests(**asked)  # type: ignore[misc]
            return
        for request in self._instances:
            request.resps, request.filtered_resps = [], {}  # the last model's answers


def local_task(name: str, rows: Sequence[dict[str, Any]]) -> Any:
    """lm-eval's task for `name`, a key of TASKS, over `rows`, for lm-eval's evaluator. Raises InputError where the rows
    do not have the data set's form."""
    _waste_less()
    try:
        return _scrolls_task(name, rows) if TASKS[name].scrolls else _yaml_task(name, rows)
    except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        file = DATA[TASKS[name].data].file
        raise InputError(
            f"{name}: the rows of {file} are not of the form that lm-eval's task reads "
            f"({type(error).__name__}: {error}); fetch the file again"
        ) from None


def _waste_less() -> None:
    """Spare lm-eval work that changes no result: it compiles a template for every document, and starts a process for
    each core to draw the thousand samples of a standard error."""
    from lm_eval.utils import env

    if not hasattr(env.compile, "cache_info"):
        env.compile = cache(env.compile)
    os.environ["DISABLE_MULTIPROC"] = "1"


def _yaml_task(name: str, rows: Sequence[dict[str, Any]]) -> Any:
    import lm_eval.tasks
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    yaml = TASKS[name].yaml
    assert yaml is not None
    config = load_yaml(Path(lm_eval.tasks.__file__).parent / yaml)
    split = "test" if config.get("test_split") else "validation"
    config |= {"task": name, "dataset_path": "json", "dataset_name": None, "training_split": None}
    config |= {"validation_split": None, "test_split": None, f"{split}_split": split}
    for key in ("tag", "group", "include", "should_decontaminate", "doc_to_decontamination_query"):
        config.pop(key, None)
    bases: tuple[type, ...] = (BuiltOnce, ConfigurableTask)
    if name == "multirc":
        config["doc_to_choice"] = MULTIRC_CHOICES
        bases = (BuiltOnce, ByQuestion, ConfigurableTask)

    class LocalTask(*bases):  # type: ignore[misc]
        def download(self, *args: Any, **kwargs: Any) -> None:
            self.dataset = {split: Dataset.from_list(list(rows))}

    return LocalTask(config=config)


def _scrolls_task(name: str, rows: Sequence[dict[str, Any]]) -> Any:
    """The class of a SCROLLS task, without the download of data and of a metric's script that its constructor makes."""
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks.scrolls import task as scrolls

    base: Any = getattr(scrolls, str(TASKS[name].scrolls))

    class LocalScrolls(BuiltOnce, base):
        def __init__(self) -> None:
            ConfigurableTask.__init__(self, config={"task": name, "metadata": {"version": base.VERSION}})

        def download(self, *args: Any, **kwargs: Any) -> None:
            self.dataset = {"validation": Dataset.from_list(merge_references(rows))}

        def has_training_docs(self) -> bool:
            return False

        def _make_compute_metrics(self, value: str) -> Callable[[Any], float]:
            return lambda samples: mean_score(value.rpartition("/")[2], samples)

    return LocalScrolls()


def merge_references(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record for each question, with its answers in `outputs`: the hub has one record for each answer, under the
    same `id`."""
    merged: dict[Any, dict[str, Any]] = {}
    for row in rows:
        record = {key: value for key, value in row.items() if key != "output"}
        merged.setdefault(row["id"], {"pid": row["id"]} | record | {"outputs": []})["outputs"].append(row["output"])
    return list(merged.values())


def mean_score(metric: str, samples: Sequence[tuple[str, Sequence[str]]]) -> float:
    """Mean of a SCROLLS metric over (prediction, references), 0 to 100."""
    if metric == "f1":
        scores = [word_f1(prediction, references) for prediction, references in samples]
    else:
        scores = [rouge(prediction, references)[metric] for prediction, references in samples]
    return sum(scores) / len(scores)
