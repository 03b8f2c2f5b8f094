"""A study's directory as tidy tables: one row a logged step, a run, an evaluated checkpoint.

Readers take what is whole and count what is not: a last line without newline (a run was killed while writing it), a row
that is no JSON, a loss that is not finite. Tokens stay integers and FLOP are float64 from the start: 6 N D of a large
run overflows int64.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from data.files import read_json, read_manifest
from scaling.rundir import RunDir

CONVENTIONS = ("exact", "paper", "6nd")
METRICS = ("step", "n_tokens", "loss", "grad_norm", "lr", "time_s", "tokens_per_s")
RUN_KEYS = ("run_id", "arch", "size", "seed", "n_params_non_embedding")
RUN_ID = re.compile(r"([^-]+)-(.+?)-c\d+-s(\d+)")  # a published size has hyphens: llama-llama-7b-c2048-s0


@dataclass(frozen=True)
class Tables:
    """The three tables of a study, with one column `flops_<convention>` for each FLOP convention."""

    curves: pd.DataFrame
    runs: pd.DataFrame
    evals: pd.DataFrame


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The complete, finite rows of a metrics.jsonl in step order, and how many others were left out.

    A step logged twice counts once (its last row). A missing file has no rows.
    """
    if not path.exists():
        return [], 0
    lines = path.read_bytes().split(b"\n")
    skipped = int(bool(lines.pop().strip()))  # what follows the last newline was never finished
    rows: dict[int, dict[str, Any]] = {}
    for line in lines:
        try:
            row = json.loads(line)
            if not math.isfinite(row["loss"]) or row["n_tokens"] <= 0:
                raise ValueError
            rows[int(row["step"])] = row
        except (ValueError, KeyError, TypeError):
            skipped += 1
    return [rows[step] for step in sorted(rows)], skipped


def run_ids_of(study_dir: Path) -> list[str]:
    """The ids of the study's own runs on disk, in order; variants made with --set are left to those who name them."""
    found = []
    for path in sorted((study_dir / "runs").glob("*/run.json")):
        if not read_json(path).get("spec", {}).get("sets"):
            found.append(path.parent.name)
    return found


def load_runs(study_dir: Path, run_ids: Sequence[str]) -> pd.DataFrame:
    """One row a run, planned or begun: what it is, what it cost, how far it came and, if it failed, why.

    `epochs`: its tokens over those of the training split; above 1 some were seen before. NaN without a corpus.
    """
    rows = [_run_row(study_dir / "runs" / run_id) for run_id in run_ids]
    runs = pd.DataFrame(rows, columns=list(_RUN_COLUMNS)).astype({"step": "int64", "n_tokens": "int64"})
    corpus = read_manifest(study_dir / "corpus", verify=False)
    runs["epochs"] = runs["n_tokens"] / corpus["splits"]["train"]["tokens"] if corpus else float("nan")
    return runs


def load_curves(study_dir: Path, run_ids: Sequence[str]) -> pd.DataFrame:
    """One row a logged step: loss in nats a token, `n_tokens` so far, cumulative training FLOP by convention."""
    frames = []
    for run_id in run_ids:
        header = _header(study_dir / "runs" / run_id)
        rows, _ = read_metrics(study_dir / "runs" / run_id / "metrics.jsonl")
        if header is None or not rows:
            continue
        frame = pd.DataFrame(rows).reindex(columns=list(METRICS))
        frames.append(_with_cost(frame, header))
    return _concat(frames, (*RUN_KEYS, *METRICS, *_flops_columns(), "warmup"))


def load_evals(study_dir: Path, run_ids: Sequence[str]) -> pd.DataFrame:
    """One row an evaluated checkpoint: loss in nats a token, perplexity, bits a byte on the held-out text."""
    columns = ("step", "n_tokens", "loss", "perplexity", "bits_per_byte", "n_tokens_scored", "weights_sha256")
    frames = []
    for run_id in run_ids:
        header = _header(study_dir / "runs" / run_id)
        results = []
        for path in sorted((study_dir / "runs" / run_id / "evals").glob("*/validation.json")):
            try:
                result = read_json(path)
                values = result["values"]
            except (ValueError, KeyError):
                continue  # not ours, or of an earlier version, which the next evaluation replaces
            if values.get("loss") is not None:  # null: a model that diverged
                results.append(result | values)
        if header is not None and results:
            frames.append(_with_cost(pd.DataFrame(results).reindex(columns=list(columns)), header))
    return _concat(frames, (*RUN_KEYS, *columns, *_flops_columns(), "warmup"))


def load_tables(study_dir: Path, run_ids: Sequence[str] | None = None) -> Tables:
    """All three tables of the runs named, or of all of the study's own runs."""
    ids = run_ids_of(study_dir) if run_ids is None else list(run_ids)
    return Tables(load_curves(study_dir, ids), load_runs(study_dir, ids), load_evals(study_dir, ids))


_RUN_COLUMNS = (
    *("run_id", "arch", "size", "seed", "state", "reason", "step", "n_tokens", "epochs", "planned_tokens", "n_params"),
    *("n_params_non_embedding", "flops_per_token_exact", "flops_per_token_paper", "flops_per_token_6nd"),
    *("warmup_tokens", "lr", "last_loss", "time_s", "tokens_per_s", "skipped_rows", "spec_hash", "git_commit"),
)


def _header(run: Path) -> dict[str, Any] | None:
    """run.json with the columns every table repeats; None for a run that has not begun."""
    if not (run / "run.json").exists():
        return None
    record = read_json(run / "run.json")
    spec, cost = record["spec"], record["cost"]
    # nan: a convention that does not cover the architecture
    per_token = {name: float(cost["flops_per_token_train"].get(name, math.nan)) for name in CONVENTIONS}
    for name, value in per_token.items():
        if name in cost["flops_per_token_train"] and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{run / 'run.json'}: cost.flops_per_token_train.{name} must be positive, not {value}")
    return {
        "run_id": record["run_id"],
        **{key: spec[key] for key in ("arch", "size", "seed")},
        "n_params_non_embedding": int(cost["n_params_non_embedding"]),
        "per_token": per_token,
        "record": record,
    }


def _run_row(run: Path) -> dict[str, Any]:
    header = _header(run)
    if header is None:
        named = RUN_ID.match(run.name)
        known = {"arch": named[1], "size": named[2], "seed": int(named[3])} if named else {}
        return {"run_id": run.name, **known, "state": "waiting", "step": 0, "n_tokens": 0, "skipped_rows": 0}
    record = header["record"]
    training, cost = record["spec"]["training"], record["cost"]
    rows, skipped = read_metrics(run / "metrics.jsonl")
    status = RunDir(run).status()
    last = rows[-1] if rows else {}
    return {
        **{key: header[key] for key in RUN_KEYS},
        "state": "running" if rows and status["state"] == "waiting" else status["state"],
        "reason": status["reason"],
        "step": int(last.get("step", 0)),
        "n_tokens": int(last.get("n_tokens", 0)),
        "planned_tokens": int(training["n_tokens"]),
        "n_params": int(cost["n_params"]),
        **{f"flops_per_token_{name}": value for name, value in header["per_token"].items()},
        "warmup_tokens": int(training.get("warmup_tokens") or 0),
        "lr": float(training["lr"]),
        "last_loss": last.get("loss"),
        "time_s": _total_time(rows),
        "tokens_per_s": last.get("tokens_per_s"),  # already a mean over the process's steps
        "skipped_rows": skipped,
        "spec_hash": record.get("spec_hash"),
        "git_commit": record.get("git_commit"),
    }


def _total_time(rows: list[dict[str, Any]]) -> float | None:
    """Seconds over all processes of a run: the clock starts again where one was resumed."""
    times = [float(row["time_s"]) for row in rows if row.get("time_s") is not None]
    if not times:
        return None
    return sum(now for now, after in itertools.pairwise([*times, 0.0]) if after < now)


def _with_cost(frame: pd.DataFrame, header: dict[str, Any]) -> pd.DataFrame:
    for position, key in enumerate(RUN_KEYS):
        frame.insert(position, key, header[key])
    for name, per_token in header["per_token"].items():
        frame[f"flops_{name}"] = frame["n_tokens"].astype("float64") * per_token
    warmup = header["record"]["spec"]["training"].get("warmup_tokens") or 0
    frame["warmup"] = frame["n_tokens"] <= warmup
    return frame


def _flops_columns() -> list[str]:
    return [f"flops_{name}" for name in CONVENTIONS]


def _concat(frames: list[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    if not frames:
        return pd.DataFrame({name: [] for name in columns})
    return pd.concat(frames, ignore_index=True)
