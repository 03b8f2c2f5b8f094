"""A study as its runs leave it on disk, its losses drawn from a known world: what laws.csv says of studies is read from
it by the public commands. Nothing is trained, so that the numbers are those of the analysis alone."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

from analysis.evals.matrix import Pair, RunCheckpoint
from analysis.evals.task import Task
from data.corpus import Corpus
from data.files import new_directory
from data.windows import packed
from flops import count_params
from scaling.cli.corpus import data_stage
from scaling.cli.evaluation import EvalOptions, eval_tasks
from scaling.cli.request import Request
from scaling.cli.training import prepare_runs
from scaling.rundir.saved import WEIGHTS, read_saved
from scaling.study.run import RunSpec

HERE = Path(__file__).parent
TASKS = {"piqa": ("acc", 0.5, 2.4), "arc-easy": ("acc", 0.25, 2.3), "boolq": ("acc", 0.5, -9.0)}  # chance, half way
SCORED = 5  # last checkpoints of a run that have scores
IRREDUCIBLE, N0, D0, POWER = 1.2, 2e4, 4e5, 0.35
SHARE = {"llama": 0.70, "hgrn2": 0.66}  # what each architecture has of the reducible loss
SEED_NOISE, POINT_NOISE = 0.002, 0.001  # of the log loss
BEST_RATE, RATE_POWER, CURVATURE = 3e-3, -0.3, 0.02  # of log loss, a squared log of the rate
UNDECAYED = 0.004  # of log loss: what a run without weight decay loses
WINDOW_SPREAD, OWN_SPREAD = 0.15, 0.03  # of the log loss between held-out windows: of the text, of a run beside it


def world(run: RunSpec, n_tokens: np.ndarray) -> np.ndarray:
    """Losses [nats a byte] of `run` after n_tokens, without the noise of points."""
    n_params = count_params(run.config).non_embedding
    reducible = (n_params / N0) ** -POWER + (n_tokens / D0) ** -POWER
    best = BEST_RATE * (n_params / N0) ** RATE_POWER
    rate = CURVATURE * math.log(run.training.peak_lr / best) ** 2
    shift = SEED_NOISE * float(drawn(run, "seed", 1)[0]) + UNDECAYED * (run.training.weight_decay == 0)
    return np.asarray((IRREDUCIBLE + SHARE[run.arch] * reducible) * np.exp(rate + shift))


def drawn(run: RunSpec, what: str, n: int) -> np.ndarray:
    """Standard normal numbers [n] that depend on nothing but the run and what they are for."""
    key = f"{what} {run.arch} {run.size} {run.seed} {run.training.peak_lr:.6g} {run.n_tokens}"
    key += f" {run.training.weight_decay:g}"
    return np.random.default_rng(zlib.crc32(key.encode())).standard_normal(n)


def write_runs(request: Request) -> None:
    """The directories of the request's runs as if each was trained and its checkpoints evaluated. Runs that are there
    stay; forecast runs that were not predicted are left out, as training does."""
    corpus = data_stage(request)
    (task,) = eval_tasks(request, EvalOptions(tasks=("validation",)))
    runs = {run.run_id: run for run in request.runs}
    for rundir in prepare_runs(request, corpus):
        if rundir.status()["state"] != "waiting":
            continue
        run = runs[rundir.path.name]
        rows = _rows(run)
        rundir.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        for step in run.checkpoint_steps:
            _write_checkpoint(rundir.checkpoint(step), run, step, corpus, task)
        rundir.write_status("done", run.n_steps, run.n_tokens, None, None)


def _rows(run: RunSpec) -> list[dict[str, float]]:
    batch = run.training.batch_tokens
    tokens = batch * np.arange(1, run.n_steps + 1)
    losses = world(run, tokens) * np.exp(0.01 * drawn(run, "batch", len(tokens)))
    return [
        {"step": i + 1, "n_tokens": int(n), "loss": round(float(loss), 9), "grad_norm": 1.0}
        | {"lr": run.training.peak_lr, "time_s": 0.1 * i, "tokens_per_s": 10.0 * batch}
        for i, (n, loss) in enumerate(zip(tokens, losses, strict=True))
    ]


def _write_checkpoint(path: Path, run: RunSpec, step: int, corpus: Corpus, task: Task) -> None:
    """A checkpoint of no weights, and its held-out losses window by window."""
    n_tokens = step * run.training.batch_tokens
    path.parent.mkdir(parents=True, exist_ok=True)
    manifest = {"step": step, "n_tokens": n_tokens, "run_id": run.run_id, "spec_hash": run.spec_hash}
    with new_directory(path, manifest) as folder:
        (folder / WEIGHTS).write_bytes(f"{run.run_id} {step}".encode())
    saved = read_saved(path)
    assert saved is not None
    window = run.context_length
    n_windows = task.settings()["validation_tokens"] // window
    rng = np.random.default_rng(0)  # the text, the same for every run
    text = WINDOW_SPREAD * rng.standard_normal(n_windows) + OWN_SPREAD * drawn(run, "windows", n_windows)
    mean = float(world(run, np.array([float(n_tokens)]))[0]) * math.exp(
        POINT_NOISE * float(drawn(run, "points", run.n_steps)[step - 1])
    )
    nats = np.float32(mean * window * np.exp(text) / np.exp(text).mean()).astype(float)
    loss = float(nats.mean()) / window
    values: dict[str, Any] = {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / math.log(2)}
    values |= {"n_tokens_scored": n_windows * window, "n_bytes_scored": n_windows * window}
    values |= {"n_windows": n_windows, "context_length": window, "window_nats": packed(nats)}
    Pair(RunCheckpoint(path, saved, run), task, task.data_hash()).store(values, seconds=1.0)


def write_scores(request: Request) -> None:
    """results/evals.parquet with scores of TASKS beside the held-out losses, as `scaling eval` leaves it. boolq has no
    trend: its scores are chance."""
    rows = []
    for run in request.runs:
        for step in run.checkpoint_steps[-SCORED:]:
            stored = json.loads((request.rundir(run).evaluation(step)).read_text(encoding="utf-8"))
            loss, n_tokens = stored["values"]["loss"], stored["n_tokens"]
            rows += [(run.run_id, step, n_tokens, *score) for score in _scores(run, step, loss)]
    table = pd.DataFrame(rows, columns=["run_id", "step", "n_tokens", "task", "metric", "value"])
    request.study.results.mkdir(parents=True, exist_ok=True)
    table.to_parquet(request.study.results / "evals.parquet", index=False)


def _scores(run: RunSpec, step: int, loss: float) -> Iterator[tuple[str, str, float]]:
    yield "validation", "loss", loss
    for task, (metric, chance, half) in TASKS.items():
        noise = 0.006 * float(drawn(run, task, run.n_steps)[step - 1])
        yield task, metric, float(np.clip(chance + (1 - chance) * expit(2.5 * (half - loss)) + noise, 0, 1))
        yield task, f"{metric}_stderr", 0.006
