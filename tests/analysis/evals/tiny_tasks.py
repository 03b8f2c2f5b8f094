"""Tiny tasks from outside of the package, named HERE:anything: they read one row, fail or take time as their settings
say."""

from __future__ import annotations

import os
import time
from typing import Any

from analysis.evals.model import LoadedModel
from analysis.evals.task import Settings, Task, TaskContext
from arch.errors import InputError
from arch.outside import allow
from data.tokenizer import Tokenizer

HERE = "tests.analysis.evals.tiny_tasks"
allow([HERE])  # as a study file of the user's own does


class TinySettings(Settings):
    seconds: float = 0.0
    fail: str | None = None


class Tiny(Task):
    Chosen = TinySettings

    def data_path(self) -> None:
        """None: it reads its own name."""

    def data_hash(self) -> str:
        if self.name == "homeless":
            raise InputError("homeless: no data: run `scaling eval fetch --tasks homeless DIR`")
        return "none"

    def prepare(self, tokenizer: Tokenizer) -> Any:
        import torch

        return torch.tensor([tokenizer.encode(self.name)])

    def evaluate(self, model: LoadedModel, prepared: Any) -> dict[str, Any]:
        time.sleep(self.chosen.seconds)
        while self.name == "three" and os.environ.get("TINY_WAIT") == f"{model.config.arch} {model.config.d_model}":
            time.sleep(1.0)  # for a test to kill us
        if self.chosen.fail == "input":
            raise InputError(f"{model.config.arch} cannot do this")
        if self.chosen.fail == model.config.arch:
            raise RuntimeError("no good\nand more lines")
        with model.reading():
            logits = model.model(prepared).logits
        return {"mean": float(logits.mean()), "top": int(logits[0, -1].argmax()), "whole": True, "none": None}


def make(name: str, context: TaskContext) -> Tiny:
    return Tiny(name, context)
