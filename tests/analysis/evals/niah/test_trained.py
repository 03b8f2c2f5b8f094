"""Retrieval, trained: two models of bytes are taught it at 512 tokens and go from checkpoint files to heatmaps.

LLaMA's loss stays where it is for some 650 of its 1,465 steps and then falls within 200. HGRN2 learns less;
its figure is printed and held to nothing.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.evals.niah.settings import NiahSettings
from analysis.evals.niah.task import make
from analysis.evals.task import TaskContext
from data.tokenizer import get_tokenizer
from scaling.stages.evaluation_results import current_results
from scaling.stages.request import Request
from scaling.study.spec import StudySpec, load_study

from .recall_corpus import DIGITS, write_corpus, write_haystack

CONTEXT, N_DOCUMENTS = 512, 24_000
TASKS = ("niah-easy-facts", "niah-standard-facts")
GRID = {"first_length": 320, "last_length": 896, "n_lengths": 4, "n_depths": 11, "digits": DIGITS}
STUDY = """
name: needles
out: {folder}/out
corpus: {{source: "{folder}/recall.jsonl", validation_fraction: 0.01}}
grid: {{archs: [llama, hgrn2], sizes: [98k]}}
model: {{context_length: 512, n_heads: 1, init_std: 0.1}}
training:
  n_tokens: 6_000_000
  batch_tokens: 4096
  lr: 2.0e-3
  warmup_tokens: 400_000
  n_checkpoints: 1
  state_every_tokens: 1_000_000
jobs: {{parallel: 2}}
evaluation: {{data: "{folder}/data", settings: {settings}}}
"""


def prepare(folder: Path) -> StudySpec:
    """The study file, its corpus and its haystack; no number that is asked for was trained on."""
    write_haystack(folder / "data/needle", 2000)
    settings = {name: NiahSettings(**GRID).model_dump(exclude_defaults=True) for name in TASKS}
    context = TaskContext(folder, folder / "data", settings)
    prompts = [make(name, context).prepare(get_tokenizer("bytes")) for name in TASKS]
    asked = {cell.needle.answer for prompt in prompts for column in prompt.columns for cell in column.cells}
    write_corpus(folder / "recall.jsonl", N_DOCUMENTS, asked)
    (folder / "needles.yaml").write_text(STUDY.format(folder=folder, settings=json.dumps(settings)))
    return load_study(folder / "needles.yaml")


def scaling(*words: str) -> None:
    subprocess.run([sys.executable, "-m", *words], check=True)


@pytest.mark.slow
def test_trained_models_find_needles(tmp_path):
    study = prepare(tmp_path)
    scaling("scaling", "train", study.path)
    scaling("scaling", "eval", study.path, "--tasks", ",".join(TASKS), "--checkpoints", "last")
    results = current_results(Request(study)).results
    by_task = {(result.run_id.partition("-")[0], result.task): result.values for result in results}
    for (arch, task), values in by_task.items():
        shown = {name: round(values[name], 1) for name in ("acc_trained", "acc_extrapolated", "acc_shuffled")}
        print(f"\n{arch} {task}: {shown}")
    for task in TASKS:
        assert by_task["llama", task]["acc_trained"] >= 80
    assert all(values["acc_shuffled"] <= 10 for values in by_task.values())
