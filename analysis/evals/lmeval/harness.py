"""lm-eval over local rows: its tasks with their own prompts, choices, metrics and aggregation, and our models in its
class.

Nothing is downloaded, no script of a data set runs, and `datasets` writes no cache: the rows come as a list. A model
counts what it truncates and reports its progress, which lm-eval's own class does not. SCROLLS' scores of a text (Shaham
et al. 2022) are ROUGE and F1 against the best reference.

MultiRC: answers are judged one by one, and a question counts where all its answers are judged rightly. lm-eval's task
(0.4.13) has its choices the other way round than its labels: label 1, a right answer, points at "no", so that a model
that is always right scores 0. Here label 1 is "yes", as in SuperGLUE itself and in the lm-eval of HGRN's time, whose
only score was the share of questions without a wrong judgement.
"""

from __future__ import annotations

import os
import re
import string
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import lm_eval.tasks
import numpy as np
import torch
from datasets import Dataset
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.tasks.scrolls import task as scrolls
from lm_eval.utils import env
from rouge_score.rouge_scorer import RougeScorer
from transformers import PreTrainedTokenizerFast

from arch.hf.auto import LinearScalingConfig, LinearScalingForCausalLM
from arch.model.lm import LanguageModel
from data.hf_tokenizer import write_tokenizer
from data.tokenizer import Tokenizer

from ..hf_model import HfModel, HfTokenizer
from .sets import ROUGE, TASKS

# This spares work that changes no result: lm-eval compiles a template for every document, and starts a process for each
# core to draw the thousand samples of a standard error.
env.compile = cache(env.compile)
os.environ["DISABLE_MULTIPROC"] = "1"

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
SCORER = RougeScorer(ROUGE, use_stemmer=False)


def rouge(prediction: str, references: Sequence[str]) -> dict[str, float]:
    """F-measures of ROUGE-1, -2 and -L, 0 to 100, each by its best reference; no stemming, as SCROLLS."""
    scores = [SCORER.score(reference, prediction) for reference in references]
    return {kind: 100 * max(score[kind].fmeasure for score in scores) for kind in ROUGE}


def normalized_words(text: str) -> list[str]:
    """SQuAD's normalisation: lower case, no punctuation, no articles, words by white space."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def word_f1(prediction: str, references: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over words, 0 to 100, by the best reference. 0 where no word is shared."""
    return 100 * max(_f1(normalized_words(prediction), normalized_words(reference)) for reference in references)


def _f1(words: list[str], wanted: list[str]) -> float:
    shared = sum((Counter(words) & Counter(wanted)).values())
    return 2 * shared / (len(words) + len(wanted)) if shared else 0.0


def exact_match(judged: Sequence[tuple[tuple[int, int], bool]]) -> float:
    """The share of questions whose answers were all judged rightly. judged: for each answer its (paragraph, question),
    and whether it was judged rightly."""
    whole: dict[tuple[int, int], bool] = {}
    for question, right in judged:
        whole[question] = whole.get(question, True) and right
    return sum(whole.values()) / len(whole)


def judged(doc: dict[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """MultiRC's scores of one answer, of the log-likelihoods of its choices."""
    right = int(np.argmax([likelihood for likelihood, _ in results])) == doc["label"]
    return {"acc": float(right), "em": ((doc["idx"]["paragraph"], doc["idx"]["question"]), right)}


MULTIRC = {
    "doc_to_choice": "['''{{answer}}\\nIs the answer correct? no''', '''{{answer}}\\nIs the answer correct? yes''']",
    "process_results": judged,
    "metric_list": [
        {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
        {"metric": "em", "aggregation": exact_match, "higher_is_better": True},
    ],
}


def built_once(task: Any) -> Any:
    """lm-eval's task, whose documents and requests are made for the first model and used for all."""
    read, build = task.doc_iterator, task.build_all_requests

    def build_requests(**asked: Any) -> None:
        if task._instances is None:
            build(**asked)
        for request in task._instances:
            request.resps, request.filtered_resps = [], {}  # the last model's answers

    documents = cache(lambda **asked: list(read(**asked)))
    task._instances, task.build_all_requests = None, build_requests
    task.doc_iterator = lambda **asked: iter(documents(**asked))
    return task


def local_task(name: str, rows: Sequence[dict[str, Any]]) -> Any:
    """lm-eval's task for `name`, a key of TASKS, over `rows` of its data set's layout, for lm-eval's evaluator."""
    return built_once(_scrolls_task(name, rows) if TASKS[name].scrolls else _yaml_task(name, rows))


def _yaml_task(name: str, rows: Sequence[dict[str, Any]]) -> Any:
    yaml = TASKS[name].yaml
    assert yaml is not None
    config = load_yaml(Path(lm_eval.tasks.__file__).parent / yaml)
    split = "test" if config.get("test_split") else "validation"
    config |= {"task": name, "dataset_path": "json", "dataset_name": None, "training_split": None}
    config |= {"validation_split": None, "test_split": None, f"{split}_split": split}
    for key in ("tag", "group", "include", "should_decontaminate", "doc_to_decontamination_query"):
        config.pop(key, None)
    if name == "multirc":
        config |= MULTIRC

    class LocalTask(ConfigurableTask):
        def download(self, *args: Any, **kwargs: Any) -> None:
            self.dataset = {split: Dataset.from_list(list(rows))}

    return LocalTask(config=config)


def _scrolls_task(name: str, rows: Sequence[dict[str, Any]]) -> Any:
    """The class of a SCROLLS task, without the download of data and of a metric's script that its constructor makes."""
    base: Any = getattr(scrolls, str(TASKS[name].scrolls))

    class LocalScrolls(base):
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


def hf_model(model: LanguageModel | HfModel) -> Any:
    """The same modules in transformers' class; no weight is copied."""
    if isinstance(model, HfModel):
        return model.hf
    with torch.device("meta"):
        wrapped = LinearScalingForCausalLM(LinearScalingConfig(**model.model_config.to_dict()))
    wrapped.decoder, wrapped.lm_head = model.decoder, model.lm_head
    return wrapped.eval()


def hf_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer in transformers' class, read from the files that every checkpoint carries."""
    if isinstance(tokenizer, HfTokenizer):
        return tokenizer.opened
    with tempfile.TemporaryDirectory() as directory:
        write_tokenizer(tokenizer, Path(directory))
        opened: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(directory)
    return opened


class AnswerTooLong(Exception):
    """An answer of so many tokens does not fit into the window, and lm-eval scores no part of it."""


class PromptsTooLong(Exception):
    """Every prompt would be cut, the shortest has so many tokens with its answer."""


class CountingLM(HFLM):
    """HFLM that counts what it cut. Raises AnswerTooLong, and where `cuts_all` is False PromptsTooLong.

    max_length: tokens of a window, prompt and continuation together. tokens: of each text that was tokenised, by text:
    lm-eval asks for a prompt's again with each answer, and each model again. n_truncated: requests that lost tokens on
    their left; n_requests: all of them, windows of rolling perplexity included.
    """

    def __init__(self, model: Any, tokenizer: Any, max_length: int, batch_size: int, max_gen_toks: int) -> None:
        super().__init__(
            pretrained=model, tokenizer=tokenizer, backend="causal", max_length=max_length, batch_size=batch_size
        )
        self._gen_toks = max_gen_toks
        self.tokens: dict[str, np.ndarray] = {}
        self.n_truncated = self.n_requests = 0
        self.cuts_all = True

    def _count(self, sizes: list[int]) -> None:
        """sizes: of the requests in tokens, prompt and answer."""
        self.n_requests += len(sizes)
        self.n_truncated += sum(size > self.max_length for size in sizes)
        if min(sizes, default=0) > self.max_length and not self.cuts_all:
            raise PromptsTooLong(min(sizes))

    @property
    def max_gen_toks(self) -> int:
        return self._gen_toks

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, left_truncate_len: int | None = None, **more: Any
    ) -> list[int]:
        if string not in self.tokens:
            ids = super().tok_encode(string, add_special_tokens, **more)
            self.tokens[string] = np.array(ids, dtype=np.min_scalar_type(len(self.tokenizer)))
        ids = self.tokens[string].tolist()
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def tok_batch_encode(
        self, strings: list[str], padding_side: str = "left", left_truncate_len: int | None = None, **more: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [self.tok_encode(string, left_truncate_len=left_truncate_len) for string in strings]
        padded = self.tokenizer.pad({"input_ids": rows}, padding_side=padding_side, return_tensors="pt")
        return padded["input_ids"], padded["attention_mask"]

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, override_bs: int | None = None) -> Any:
        longest = max((len(answer) for _, _, answer in requests), default=0)
        if longest > self.max_length:
            raise AnswerTooLong(longest)
        self._count([len(asked) + len(answer) - 1 for _, asked, answer in requests])  # the last is not read
        return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        asked = [request.args for request in requests]
        self._count([len(self.tok_encode(text)) + more.get("max_gen_toks", self._gen_toks) for text, more in asked])
        return super().generate_until(requests, disable_tqdm)

    def _model_generate(self, context: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # a row ends with its end-of-text, also where others of its batch go on: lm-eval would score what stands behind
        return super()._model_generate(context, *args, eos_token_id=self.eot_token_id, **kwargs)
