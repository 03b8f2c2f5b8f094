"""A study directory of a world whose law is known: run.json, metrics.jsonl and status.json, no model behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.files import read_json, write_json
from scaling.rundir.directory import RunDir
from scaling.study.schedule import decay_start
from scaling.study.training import Training

SIZES = {"14k": 14_000, "25k": 25_000, "55k": 55_000, "98k": 98_000, "221k": 221_000, "393k": 393_000}
BATCH = 2048


def power_world(n_params: float, n_tokens: np.ndarray) -> np.ndarray:
    """L(N, D) = (N / 1.2e5)^-0.3 + (D / 2e6)^-0.3: on C = 6 N D, L ~ C^-0.15 and N_opt, D_opt ~ C^0.5."""
    return (n_params / 1.2e5) ** -0.3 + (n_tokens / 2e6) ** -0.3


def write_run(
    study: Path,
    arch: str,
    size: str,
    n_tokens: int,
    world: Callable[[float, np.ndarray], np.ndarray] = power_world,
    seed: int = 0,
    shift: float = 0.0,
    noise: float = 0.0,
    state: str = "done",
    reason: str | None = None,
    warmup_tokens: int = 20_480,
    per_token: float | None = None,
    n_params: int | None = None,
    trunk: str | None = None,
    **schedule: Any,
) -> str:
    """Write one run trained to `n_tokens`; `shift` moves its log loss, `noise` is white in log loss; `schedule`: of
    its training too. Of a branch (trunk: its id) only the rows of its decay. Returns its id."""
    n = SIZES[size] if n_params is None else n_params
    run_id = f"{arch}-{size}-c256-s{seed}" + (f"-d{n_tokens}" if trunk else "")
    run = study / "runs" / run_id
    run.mkdir(parents=True)
    exact = 6.0 * n if per_token is None else per_token
    cost = {
        "n_params": n + 6000,
        "n_params_non_embedding": n,
        "n_params_embedding": 6000,
        "flops_per_token_train": {"exact": exact, "paper": 7.0 * n, "6nd": 6.0 * n},
    }
    training = {"n_tokens": n_tokens, "batch_tokens": BATCH, "warmup_tokens": warmup_tokens, "lr": 1e-3}
    training |= schedule
    spec: dict[str, Any] = {"arch": arch, "size": size, "seed": seed, "training": training, "sets": []}
    spec |= {"trunk": trunk, "corpus": {"tokenizer": "bytes"}}
    begins_after = decay_start(Training(**training)) if trunk else 0
    record = {"schema": 1, "run_id": run_id, "study": study.name, "spec": spec, "spec_hash": "0" * 16, "cost": cost}
    record |= {"model": {}, "corpus_fingerprint": "f" * 64, "versions": {"torch": "2.13.0"}, "git_commit": None}
    write_json(run / "run.json", record)
    tokens = np.arange(BATCH, n_tokens + 1, BATCH, dtype=np.int64)
    rng = np.random.default_rng([seed, *run_id.encode()])
    loss = world(float(n), tokens.astype(float)) * np.exp(shift + noise * rng.standard_normal(len(tokens)))
    rows = [
        f'{{"step": {i + 1}, "n_tokens": {t}, "loss": {v!r}, "grad_norm": 1.0, "lr": 0.001, "time_s": {0.1 * i!r}, '
        '"tokens_per_s": 20480.0}\n'
        for i, (t, v) in enumerate(zip(tokens.tolist(), loss.tolist(), strict=True))
        if i >= begins_after
    ]
    (run / "metrics.jsonl").write_text("".join(rows), encoding="utf-8")
    RunDir(run).write_status(state, len(tokens), int(tokens[-1]), reason, None)
    return run_id


def named_anew(run: Path) -> None:
    """The records of a directory that was copied or renamed are of the run that it is called now."""
    status = RunDir(run).status()
    write_json(run / "run.json", read_json(run / "run.json") | {"run_id": run.name})
    recorded = read_json(run / "status.json")
    RunDir(run).write_status(recorded["state"], status["step"], status["n_tokens"], recorded["reason"], None)


def write_evals(
    study: Path,
    run_id: str,
    steps: Sequence[int],
    losses: Sequence[float],
    kind: str = "evals",
    by_source: Callable[[float], dict[str, float]] | None = None,
) -> None:
    """by_source: of a mixture, the loss of each source, by the loss."""
    for step, loss in zip(steps, losses, strict=True):
        directory = study / "runs" / run_id / kind / f"{step:08d}"
        directory.mkdir(parents=True)
        values = {"loss": loss, "perplexity": float(np.exp(loss)), "bits_per_byte": loss / np.log(2)}
        values |= {"by_source": {name: {"loss": of} for name, of in by_source(loss).items()}} if by_source else {}
        record = {"schema": 2, "task": "validation", "run_id": run_id, "step": step, "n_tokens": step * BATCH}
        record |= {"values": values | {"n_tokens_scored": 65536}, "weights_sha256": "0" * 64}
        record["settings"] = {"validation_tokens": 65536, "batch_rows": 16}
        write_json(directory / "validation.json", record)


def write_study(
    study: Path,
    archs: Sequence[str] = ("llama", "tnl"),
    tokens: dict[str, int] | None = None,
    seed_noise: float = 0.0,
    rng: np.random.Generator | None = None,
    extra_seeds: Sequence[int] = (1, 2),
    **changes: Any,
) -> list[str]:
    """Four-sizes-and-more study: every size with one seed, 55k with more. Budgets let each size be overtaken."""
    tokens = {size: int(3e12 / 6 / n) for size, n in SIZES.items()} if tokens is None else tokens
    rng = rng or np.random.default_rng(0)
    runs = []
    for arch in archs:
        for size, n_tokens in tokens.items():
            for seed in (0, *(extra_seeds if size == "55k" else ())):
                shift = float(seed_noise * rng.standard_normal())
                runs.append(write_run(study, arch, size, n_tokens, seed=seed, shift=shift, **changes))
    return runs
