"""Test accuracy of a classifier: the share of the test split's examples whose class has the highest logit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from arch.errors import InputError
from scaling.study.types import Count

from .model import LoadedModel
from .task import Reader, Settings, Task


class ClassifySettings(Settings):
    """split: `test`, or `validation` to choose settings by; batch_rows: of a forward pass."""

    split: str = "test"
    batch_rows: Count = 32


class Classify(Task):
    Chosen = ClassifySettings

    def data_path(self) -> Path | None:
        return None

    def data_hash(self) -> str:
        return self._corpus().fingerprint

    def _corpus(self) -> Any:
        from data.corpus import LabelledCorpus, open_corpus

        if self.chosen.split not in ("test", "validation"):
            raise InputError(f"{self.name}: split {self.chosen.split!r} is not test or validation")
        corpus = open_corpus(self.context.corpus)
        if not isinstance(corpus, LabelledCorpus):
            raise InputError(f"{self.name}: the study's corpus is text, not a labelled set: leave the task out")
        return corpus

    def forward_tokens(self, reader: Reader) -> int | None:
        from data.labelled import LabelledSet, is_set

        if not is_set(self.context.corpus):
            return None
        return int(LabelledSet(self.context.corpus).manifest["splits"][self.chosen.split]["tokens"]) - 1

    def prepare(self, tokenizer: Any) -> Any:
        return getattr(self._corpus(), self.chosen.split)

    def evaluate(self, model: LoadedModel, prepared: Any) -> dict[str, Any]:
        """acc and its standard error over examples, n_examples, and the share of the most frequent class."""
        import torch

        from data.windows import batches

        length, n_classes = model.context_length, model.config.n_outputs
        starts = np.arange((len(prepared) - 1) // length) * length
        right, counts = 0, np.zeros(n_classes, np.int64)
        for rows in batches(prepared, starts, length, self.chosen.batch_rows):
            ids = torch.from_numpy(rows).to(model.device)
            with model.reading():
                answers = model.model(input_ids=ids[:, :-1]).logits[:, 0].argmax(-1)
            right += int((answers == ids[:, -1]).sum())
            counts += np.bincount(rows[:, -1], minlength=n_classes)
        accuracy, n = right / len(starts), len(starts)
        error = (accuracy * (1 - accuracy) / max(1, n - 1)) ** 0.5
        return {"acc": accuracy, "acc_stderr": error, "n_examples": n, "most_frequent_acc": int(counts.max()) / n}
