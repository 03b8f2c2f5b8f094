"""A study with checkpoints of untrained models, guarded like trained ones, in a second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from analysis.evals.results import Result
from arch.model.lm import build_model
from data.corpus import open_corpus, prepare
from data.settings import CorpusSettings
from data.tokenizer import get_tokenizer
from scaling.rundir import checkpoint_writer
from scaling.rundir.checkpoint_writer import probe_rows
from scaling.rundir.directory import RunDir
from scaling.study.spec import StudySpec, load_study

CONTEXT = 32


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
        f"{more}\n",
        encoding="utf-8",
    )
    study = load_study(folder / "small.yaml")
    prepare(CorpusSettings(source="synthetic:0:60000", validation_fraction=0.2), study.directory / "corpus")
    for run in study.runs():
        for step in range(1, steps + 1):
            write_checkpoint(study, run.run_id, step)
        RunDir(study.run_directory(run)).write_status("running", steps, steps * 256, None, None)
    return study


def stored_result(run_id: str, step: int, task: str, values: Mapping[str, Any], **fields: Any) -> Result:
    """A result as it is stored of a run with 64 tokens a step."""
    place = {"run_id": run_id, "step": step, "n_tokens": step * 64, "task": task, "values": values}
    made = {"version": 1, "key": "", "settings": {}, "weights_sha256": "", "data_hash": ""}
    return Result(**place | made | fields)


def write_checkpoint(study: StudySpec, run_id: str, step: int, seed: int | None = None) -> Path:
    (run,) = [run for run in study.runs() if run.run_id == run_id]
    corpus = open_corpus(study.directory / "corpus")
    path = study.run_directory(run) / "checkpoints" / f"{step:08d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    model = build_model(run.config, step if seed is None else seed)
    manifest = {"step": step, "n_tokens": step * 256, "run_id": run_id, "spec_hash": run.spec_hash}
    probe = probe_rows(corpus.validation, CONTEXT)
    checkpoint_writer.write_checkpoint(
        path, model, "fp32", probe, torch.device("cpu"), manifest, get_tokenizer("bytes")
    )
    return path
