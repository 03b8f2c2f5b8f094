"""RULER (Hsieh et al. 2024) by lm-eval's own tasks: `lm_eval:ruler`, or one of its 13 tasks by name.

lm-eval makes the prompts for a tokenizer and a length. Here their texts are local, every task and length has draws of
its own, so that the others and their order decide nothing, and each length has a score with a standard error. Where a
task cannot be made at a length (a byte-level tokenizer has no room for its words in 1,024 tokens), that is left out and
said.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from arch.errors import InputError
from data.files import parse_json, reading, sha256
from scaling.study.types import Count, Distinct

from ..niah.prompts import folder_hash, text_files
from ..results import STDERR
from ..task import MissingData, Reader, Settings
from .task import LmEvalTask, NamedTask, Prepared, require, silence

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer

    from ..model import LoadedModel

ESSAYS = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")
NEEDLES = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", *ESSAYS)
TASKS = (*NEEDLES, "ruler_vt", "ruler_cwe", "ruler_fwe", "ruler_qa_squad", "ruler_qa_hotpot")
HAYSTACK, PUNKT = "needle", "ruler/nltk_data"
SQUAD, HOTPOT = "ruler/dev-v2.0.json", "ruler/hotpot_dev_distractor_v1.json"
TEXTS = {"ruler_qa_squad": SQUAD, "ruler_qa_hotpot": HOTPOT} | dict.fromkeys(ESSAYS, HAYSTACK)
WHAT = {
    HAYSTACK: "a folder of .txt files, with about as many words as the longest prompt has tokens",
    SQUAD: "SQuAD 2.0's development set, {data: [{paragraphs: [{context, qas}]}]}, from rajpurkar.github.io",
    HOTPOT: "HotpotQA's with distractors, [{question, answer, context: [[title, sentences]]}], from hotpotqa.github.io",
    PUNKT: "nltk's punkt_tab, unpacked as tokenizers/punkt_tab/english",
}
ANSWER = 128  # tokens of the longest answer
N_SAMPLES = 500  # lm-eval's, of a task at a length
SEED = 42
NO_ROOM = "in this tokenizer no prompt of this length has room for its text and answer"
PATIENCE = 2000  # drafts of one prompt: two of lm-eval's tasks draft for ever where none fits


class RulerSettings(Settings):
    """lengths: of prompt and answer, in the model's tokens; limit: prompts of a task at a length, null: 500;
    batch_size: rows at once, decides no number but by rounding."""

    lengths: Annotated[tuple[Annotated[Count, Field(ge=256)], ...], Field(min_length=1, strict=False), Distinct] = (
        1024,
        2048,
        4096,
        8192,
    )
    limit: Annotated[int, Field(gt=0, le=N_SAMPLES)] | None = None
    batch_size: Count = 4


class Ruler(NamedTask):
    Chosen = RulerSettings

    @property
    def _members(self) -> tuple[str, ...]:
        return TASKS if self.known_as == "ruler" else (self.known_as,)

    def data_hash(self) -> str:
        """Of the texts that its tasks read."""
        texts = [path for name, path in self._texts().items() if name != PUNKT]
        return "-".join(folder_hash(path) if path.is_dir() else sha256(path) for path in texts)

    def data_path(self) -> None:
        """None: its questions are about its own prompts."""

    def _texts(self) -> dict[str, Path]:
        """By its name each file or folder that its tasks read. Raises MissingData for all that are missing, InputError
        for a package that is."""
        for package in ("lm_eval", "wonderwords", "nltk"):
            require(self.name, package)
        folder = self.context.data or Path("evaluation.data (which the study does not name)")
        names = dict.fromkeys(TEXTS[task] for task in self._members if task in TEXTS)
        names |= {PUNKT: None} if set(NEEDLES) & set(self._members) else {}
        texts = {name: folder / name for name in names}
        if missing := [name for name, path in texts.items() if not path.exists()]:
            lines = "; ".join(f"{name} ({WHAT[name]})" for name in missing)
            raise MissingData(f"{self.name}: in {folder} is missing: {lines}")
        return texts

    def forward_tokens(self, reader: Reader) -> int:
        return sum(self.chosen.lengths) * len(self._members) * (self.chosen.limit or N_SAMPLES)

    def _window(self, context_length: int) -> tuple[int, int]:
        return max(self.chosen.lengths) + ANSWER, ANSWER

    def prepare(self, tokenizer: Tokenizer) -> Prepared:
        silence()
        from .harness import hf_tokenizer

        texts, opened = self._texts(), hf_tokenizer(tokenizer)
        prepared = Prepared({"tasks": {}}, opened)
        with tempfile.TemporaryDirectory() as directory, _seeded():
            opened.save_pretrained(directory)  # lm-eval opens it again, by its path
            for task, length in itertools.product(self._members, self.chosen.lengths):
                try:
                    made = _task(task, length, self.chosen.limit or N_SAMPLES, directory, texts)
                    prepared.tasks["tasks"][f"{task}@{length}"] = made
                except InputError as error:
                    prepared.left_out[f"{task}@{length}"] = str(error)
        if not prepared.tasks["tasks"]:
            raise InputError(f"{self.name}: {_left_out(prepared)}")
        return prepared

    def evaluate(self, model: LoadedModel, prepared: Prepared) -> dict[str, Any]:
        """score@LENGTH, the mean of the tasks' (a share of right answers), and its standard error; by_task the same of
        each task; n_tokens@LENGTH, what its prompts really have with their answers."""
        values = LmEvalTask.evaluate(self, model, prepared)
        longest = max(self.chosen.lengths)
        warnings = model.warnings_at(longest) + ([f"{self.name}: {_left_out(prepared)}"] if prepared.left_out else [])
        for length in self.chosen.lengths:
            of = [task for name, task in prepared.tasks["tasks"].items() if name.endswith(f"@{length}")]
            if sizes := [doc["length"] for task in of for doc in task.eval_docs]:
                values[f"n_tokens@{length}"] = mean = sum(sizes) / len(sizes)
                if mean < length / 2:
                    warnings.append(f"{self.name}: prompts for {length:,} tokens have {mean:,.0f}, by lm-eval's steps")
        return values | {"extrapolated": longest > model.context_length, "warnings": warnings}

    def _scores(self, output: Any) -> dict[str, Any]:
        by_task: dict[str, dict[str, float | None]] = {}
        values: dict[str, Any] = {}
        for length in self.chosen.lengths:
            key, scores = f"score@{length}", []
            for task in self._members:
                if result := output["results"].get(f"{task}@{length}"):
                    error = result["score_stderr,none"]  # a text where there is one prompt alone
                    scores.append((result["score,none"], error if isinstance(error, float) else None))
                    by_task.setdefault(task, {}).update(zip((key, key + STDERR), scores[-1], strict=True))
            if scores:
                means, errors = zip(*scores, strict=True)
                values[key] = sum(means) / len(means)
                values[key + STDERR] = None if None in errors else math.hypot(*errors) / len(errors)
                values[f"n_tasks@{length}"] = len(scores)
        return values | {"by_task": by_task}


def _task(task: str, length: int, n_samples: int, tokenizer: str, texts: dict[str, Path]) -> Any:
    """lm-eval's task over prompts of one length. Raises InputError where lm-eval can make none."""
    from unittest.mock import patch

    import nltk
    from lm_eval.api.metrics import mean
    from lm_eval.tasks._yaml_loader import load_yaml

    from .named import Rows, index, make

    if PUNKT in texts and str(texts[PUNKT]) not in nltk.data.path:
        nltk.data.path.insert(0, str(texts[PUNKT]))  # before its import, which would download it
    function = load_yaml(index()[task].yaml_path)["custom_dataset"]
    asked = sys.modules[function.__module__]
    maker: Any = sys.modules["lm_eval.tasks.ruler.prepare_niah"] if task in NEEDLES else asked
    random.seed(f"{SEED} {task} {length}")
    np.random.seed(random.getrandbits(32))
    if hasattr(maker, "RNG"):
        maker.RNG.seed(SEED)
    drafts = itertools.count()

    def samples(numbers: range, **_: Any) -> Iterator[int]:
        nonlocal drafts
        for number in numbers[:n_samples]:
            drafts = itertools.count()
            yield number

    changes: dict[str, Any] = {"tqdm": samples}
    if task in NEEDLES:
        maker.get_haystack.cache_clear()
        changes["datasets"] = _Essays(texts.get(HAYSTACK))
    if task in ("ruler_vt", "ruler_cwe"):
        draft = maker.generate_input_output
        nothing: Any = (NoPrompt(), []) if task == "ruler_vt" else ("", NoPrompt(), [])
        changes["generate_input_output"] = lambda *a, **k: draft(*a, **k) if next(drafts) < PATIENCE else nothing
    if task in TEXTS and task not in ESSAYS:
        path = texts[TEXTS[task]]
        changes["download_json"] = lambda url: _read_json(path)
        maker.read_squad.cache_clear()
        maker.read_hotpotqa.cache_clear()
    with patch.multiple(maker, **changes):
        made = make(task, Rows(None), {}, {"max_seq_lengths": [length], "tokenizer": tokenizer})["tasks"][task]
    if not all(made.eval_docs["outputs"]):
        raise InputError(NO_ROOM)
    judge = made.process_results
    made.process_results = lambda doc, results: {"score": judge(doc, results)[str(length)]}
    made.aggregation = lambda: {"score": mean}
    return made


class NoPrompt(str):
    """Fits into every length, so that lm-eval stops drafting, and says so when it is taken for a prompt."""

    def rfind(self, *_: Any) -> int:
        raise InputError(NO_ROOM)

    index = rfind


class _Essays:
    """In the place of `datasets` where lm-eval makes needles: the essays are those of the data folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load_dataset(self, *_: Any, **__: Any) -> dict[str, list[str]]:
        assert self._folder is not None
        return {"text": [path.read_text(encoding="utf-8-sig") for path in text_files(self._folder)]}


def _read_json(path: Path) -> Any:
    with reading(path, "fetch it again"):
        return parse_json(path.read_bytes())


@contextmanager
def _seeded() -> Iterator[None]:
    """Leave the process' own draws as they were."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _left_out(prepared: Prepared) -> str:
    reasons: dict[str, list[str]] = {}
    for name, reason in prepared.left_out.items():
        reasons.setdefault(reason, []).append(name)
    return "; ".join(f"not made, {reason}: {', '.join(names)}" for reason, names in reasons.items())
