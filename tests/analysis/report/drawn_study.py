"""A study of up to four architectures as its runs leave it on disk, its losses and scores drawn from known worlds:
enough for every part of the report."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit

from data.corpus import prepare
from data.settings import CorpusSettings
from scaling.study.spec import StudySpec, load_study

from ..fits.synthetic import BATCH, SIZES, write_evals, write_run

ARCHS = {"llama": 1.0, "tnl": 1.06, "hgrn2": 0.97, "cosformer2": 1.03}  # how much of A + B each has
BUDGETS = {size: int(min(6e6, 9e12 / 6 / n)) for size, n in SIZES.items()}
SEED_NOISE, POINT_NOISE = 0.002, 0.003  # of the log loss
STEPS = (0.25, 0.4, 0.55, 0.7, 0.85, 1.0)  # checkpoints, shares of a run
CSR = {"piqa": ("acc", 0.5, 1.9), "arc-easy": ("acc", 0.25, 1.7), "boolq": ("acc", 0.5, -9.0)}  # chance, loss half way


def world(arch: str) -> Callable[[float, np.ndarray], np.ndarray]:
    """L = 0.9 + ((N / 1.2e5)^-0.34 + (D / 2e6)^-0.34) x what the architecture has of it."""
    return lambda n, tokens: 0.9 + 0.5 * ARCHS[arch] * ((n / 1.2e5) ** -0.34 + (tokens / 2e6) ** -0.34)


def write_study(folder: Path, archs: Sequence[str] = tuple(ARCHS), small: Sequence[str] = ()) -> StudySpec:
    """The study `drawn` of some of ARCHS in `folder`: corpus, runs, evaluations; no results yet. small: architectures
    whose two larger sizes wait, and whose largest failed."""
    text = folder / "text"
    text.mkdir(parents=True)
    for i in range(12):
        (text / f"{i:02d}.txt").write_text(random.Random(i).randbytes(720_000).hex(), encoding="utf-8")
    corpus = {"source": str(text), "validation_fraction": 0.5}
    (folder / "drawn.yaml").write_text(
        f"name: drawn\nout: {folder}/out\ncorpus: {{source: '{text}', validation_fraction: 0.5}}\n"
        f"grid: {{archs: [{', '.join(archs)}], sizes: [{', '.join(SIZES)}], extra_seeds: {{55k: [1, 2]}}}}\n"
        "training: {n_tokens: 1000000, warmup_tokens: 20480}\n"
        "fit: {range: [5.0e+10, 8.0e+12], smoothing_tokens: 40000}\n",
        encoding="utf-8",
    )
    study = load_study(folder / "drawn.yaml")
    prepare(CorpusSettings(**corpus), study.directory / "corpus")
    rng, rows = np.random.default_rng(0), []
    for run in study.runs():
        if run.arch in small and run.size in ("98k", "221k"):
            continue
        shift = SEED_NOISE * float(rng.normal())
        draw = world(run.arch)
        n_tokens = BUDGETS[run.size]
        noises = {"seed": run.seed, "shift": shift, "noise": POINT_NOISE}
        failed = {"state": "failed", "reason": "loss is nan at step 12"}
        broken = failed if run.arch in small and run.size == "393k" else {}
        write_run(study.directory, run.arch, run.size, n_tokens, draw, **noises, **broken)
        steps = [max(1, int(share * n_tokens / BATCH)) for share in STEPS]
        losses = [float(draw(SIZES[run.size], np.array([step * BATCH]))[0] * math.exp(shift)) for step in steps]
        write_evals(study.directory, run.run_id, steps, losses)
        for step, loss in zip(steps, losses, strict=True):
            for task, metric, value in _scores(loss, run.arch, rng):
                rows.append((run.run_id, step, step * BATCH, task, metric, value))
    if rows:
        study.results.mkdir(parents=True, exist_ok=True)
        table = pd.DataFrame(rows, columns=["run_id", "step", "n_tokens", "task", "metric", "value"])
        table.to_parquet(study.results / "evals.parquet", index=False)
    return study


def _scores(loss: float, arch: str, rng: np.random.Generator) -> list[tuple[str, str, float]]:
    result = [("validation", "loss", loss)]
    for task, (metric, chance, half) in CSR.items():
        value = chance + (1 - chance) * expit(2.5 * (half - loss)) + 0.006 * rng.normal()
        result += [(task, metric, float(np.clip(value, 0, 1))), (task, f"{metric}_stderr", 0.006)]
    result.append(("wikitext", "word_perplexity", float(np.exp(1.3 * loss + 1 + 0.01 * rng.normal()))))
    weak = 0.4 if arch == "tnl" else 1.0
    result.append(("niah-easy", "weighted_avg_acc", float(100 * weak * expit(6 * (1.7 - loss) + 0.1 * rng.normal()))))
    return result
