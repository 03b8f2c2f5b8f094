"""A study with checkpoints of untrained models, guarded like trained ones, in a second; and tiny tasks on them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from analysis.evals.task import Loaded, Place, Say, Settings
from arch.errors import InputError
from arch.lm import build_model
from data.corpus import CorpusSettings, open_corpus, prepare
from data.tokenizer import Tokenizer
from scaling.artifacts import probe_rows, write_artifact
from scaling.spec import StudySpec, load_study

CONTEXT = 32
HERE = "tests.analysis.evals.small_study"  # its tasks are named HERE:slow


def write_study(
    folder: Path, steps: int = 2, archs: str = "llama, tnl", sizes: str = "14k", more: str = "evaluation: {}"
) -> StudySpec:
    """A study of `steps` checkpoints a run: step s is the model of seed s."""
    (folder / "small.yaml").write_text(
        f"name: small\nout: {folder}/out\n"
        'corpus: {source: "synthetic:0:60000", validation_fraction: 0.2}\n'
        f"grid: {{archs: [{archs}], sizes: [{sizes}]}}\n"
        f"model: {{context_length: {CONTEXT}, init_std: 0.2}}\n"  # untrained, but no layer is a mere trifle
        "training: {n_tokens: 25600, batch_tokens: 256}\n"
        f"{more}\n"
    )
    study = load_study(folder / "small.yaml")
    prepare(CorpusSettings(source="synthetic:0:60000", validation_fraction=0.2), study.directory / "corpus")
    for run in study.runs():
        for step in range(1, steps + 1):
            write_checkpoint(study, run.run_id, step)
    return study


def write_checkpoint(study: StudySpec, run_id: str, step: int, seed: int | None = None) -> Path:
    (run,) = [run for run in study.runs() if run.run_id == run_id]
    corpus = open_corpus(study.directory / "corpus")
    path = study.run_directory(run) / "checkpoints" / f"{step:08d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    model = build_model(run.config, step if seed is None else seed)
    manifest = {"step": step, "n_tokens": step * 256, "run_id": run_id, "spec_hash": run.spec_hash}
    probe = probe_rows(corpus.validation, CONTEXT)
    write_artifact(path, model, "fp32", probe, torch.device("cpu"), manifest, "bytes")
    return path


class TinySettings(Settings):
    seconds: float = 0.0
    fail: str | None = None


class Tiny:
    """Reads one row; fails, or takes time, as it is told."""

    version = 1

    def __init__(self, name: str, place: Place) -> None:
        self.name, self._settings = name, place.settings_of(name, TinySettings)

    def settings(self) -> dict[str, Any]:
        return self._settings.model_dump()

    def data_hash(self) -> str:
        if self.name == "homeless":
            raise InputError("homeless: no data: run `scaling eval fetch --tasks homeless DIR`")
        return "none"

    def prepare(self, tokenizer: Tokenizer) -> torch.Tensor:
        return torch.tensor([tokenizer.encode(self.name)])

    def evaluate(self, model: Loaded, prepared: torch.Tensor, say: Say) -> dict[str, Any]:
        say(0.5, "half")
        time.sleep(self._settings.seconds)
        if self._settings.fail == "input":
            raise InputError(f"{model.config.arch} cannot do this")
        if self._settings.fail == model.config.arch:
            raise RuntimeError("no good\nand more lines")
        with model.reading():
            logits = model.model(prepared).logits
        return {"mean": float(logits.mean()), "top": int(logits[0, -1].argmax()), "whole": True, "none": None}


def make(name: str, place: Place) -> Tiny:
    return Tiny(name, place)
