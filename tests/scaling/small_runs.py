"""Small real runs for the trainer's tests: a prepared run directory on a synthetic corpus, and its process."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from arch.presets import preset
from data.corpus import prepare
from data.files import read_json
from data.settings import CorpusSettings
from scaling.rundir.directory import RunDir
from scaling.rundir.prepare import prepare_run
from scaling.rundir.versions import package_versions
from scaling.study.run import RunSpec
from scaling.study.schema import Corpus
from scaling.study.training import Training

from . import forks
from .forks import Forked

CONTEXT, BATCH = 64, 512  # tokens
EXACT = ("step", "n_tokens", "loss", "grad_norm", "lr")  # columns without times


def make_run(
    tmp_path: Path,
    arch: str = "llama",
    size: str = "14k",
    n_steps: int = 12,
    source: str = "synthetic:0:200000",
    name: str = "study",
    init_std: float = 0.02,
    epochs: float = 1.0,
    shape: dict[str, int] | None = None,
    sequence_processes: int = 1,
    **training: Any,
) -> RunDir:
    """A run directory below tmp_path/name, ready for the trainer; `shape` changes the model."""
    settings: dict[str, Any] = {"n_tokens": n_steps * BATCH, "batch_tokens": BATCH, "lr": 3e-3}
    settings |= {"warmup_tokens": 4 * BATCH, "checkpoint_tokens": [n_steps // 2 * BATCH, n_steps * BATCH]}
    changes: dict[str, Any] = {"context_length": CONTEXT, "chunk_size": 16, "init_std": init_std} | (shape or {})
    model = preset(arch, size, **changes)
    run = RunSpec(
        study=name,
        run_id=f"{arch}-{size}",
        arch=arch,
        size=size,
        seed=0,
        model=model.to_dict(),
        corpus=Corpus(source=[source], epochs=epochs),
        training=Training(**(settings | training)),
        sequence_processes=sequence_processes,
    )
    study = tmp_path / name
    corpus = prepare(CorpusSettings(source=source), study / "corpus")
    about = (corpus.fingerprint, package_versions(), corpus.tokenizer.identity)
    return prepare_run(study / "runs" / run.run_id, run, *about)


def words_of(rundir: RunDir, *options: str) -> tuple[str, ...]:
    return "scaling.trainer.process", str(rundir.path), "--device", "cpu", *options


def start(rundir: RunDir, *options: str, **environment: str) -> Forked:
    """The trainer as a process, in a process group of its own."""
    return forks.start(*words_of(rundir, *options), **environment)[0]


def start_fresh(rundir: RunDir, *options: str, processes: int = 1) -> subprocess.Popen[str]:
    """By an interpreter of its own, with `processes` > 1 under torchrun."""
    return subprocess.Popen(
        forks.command(*words_of(rundir, *options), processes=processes),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def train(
    rundir: RunDir, *options: str, processes: int = 1, fresh: bool = False, **environment: str
) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the trainer's processes; see forks.run."""
    return forks.run(*words_of(rundir, *options), processes=processes, fresh=fresh, **environment)


def train_here(rundir: RunDir) -> int:
    """Train in this process, with the numerics of the trainer's own."""
    from scaling.trainer.loop import Trainer

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    return Trainer(rundir, torch.device("cpu"), time.perf_counter()).train()


def exact_rows(rundir: RunDir) -> list[dict[str, Any]]:
    """The columns of metrics.jsonl that must not differ by a bit."""
    return [{key: row[key] for key in EXACT} for row in rundir.checked_rows().rows]


def status(rundir: RunDir) -> dict[str, Any]:
    """status.json but for the run's name and the digest of metrics.jsonl, which holds times."""
    return {key: value for key, value in read_json(rundir.status_json).items() if key not in ("run_id", "metrics")}
