"""A study's directory as a table of runs: one row a run, a logged step, an evaluated checkpoint.

`point` is where a run stands on the grid's axes ("" without axes), each axis a column of its own; `variant` what --set
changed of it, "" of the study's own runs: fits take these alone. Rows that a run cannot have written are left out and
counted by reason (`skipped_rows` and `skipped_why` of the table of runs); scaling.rundir.metrics defines them. Tokens
stay integers and FLOP are float64 from the start: 6 N D of a large run overflows int64.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.settings import FitSettings
from analysis.fits.study_fits import stored_settings
from analysis.grid_points import SAME, named, point_of_run, with_axes
from analysis.labels import OF_SOURCE
from analysis.run_evals import held_out_losses
from analysis.run_table import CONVENTIONS, RunTable
from arch.errors import InputError
from data.files import read_manifest
from data.manifest import parts_of
from scaling.rundir.directory import DAMAGED, RunDir
from scaling.rundir.owner import attempts
from scaling.study.run import arch_of_run, decisive
from scaling.study.schedule import phases
from scaling.study.schema import FORECAST
from scaling.study.training import Training

METRICS = ("step", "n_tokens", "loss", "grad_norm", "lr", "time_s", "tokens_per_s")
RUN_KEYS = ("run_id", "arch", "size", "seed", "n_params_non_embedding", "point", "variant")
Record = dict[str, Any]
SIZE_AND_SEED = re.compile(r"-(.+?)-c\d+-s(\d+)")  # a published size has hyphens: llama-llama-7b-c2048-s0


def load_tables(
    study_dir: str | Path,
    run_ids: Sequence[str] | None = None,
    control: str | None = None,
    validation_tokens: int | None = None,
) -> RunTable:
    """The table of the runs named, or of all on disk, variants made with --set among them, forecast runs not;
    `curves`: one row a logged step, its loss in nats a token, `n_tokens` so far, cumulative training FLOP by
    convention, both of a branch with its trunk's. `runs`: also those named that have not begun; `epochs`: tokens over
    those of the training split, NaN without a corpus.
    `phase` of curves and evals: undecayed, decaying or decayed (scaling.study.schedule).

    With `control` "bigram" the curves have a column `difficulty`, which fits with that `control` need; None: that of
    the stored fit. With `validation_tokens` held-out losses over another number of tokens are left out and
    counted, as they cannot be compared. Raises InputError where the directory holds no study, or one of its runs is
    damaged.
    """
    study_dir = Path(study_dir)
    begun = _all_begun(study_dir) if run_ids is None else _begun(study_dir, run_ids)
    runs = [_read_run(rundir, record, validation_tokens) for rundir, record in begun]
    settings = stored_settings(study_dir) if control is None else FitSettings.model_validate({"control": control})
    curves = _losses_table(runs, [run.rows for run in runs], METRICS)
    table = RunTable(_runs_table(study_dir, runs), curves, _evals_table(runs), name=study_dir.name, settings=settings)
    if settings.control != "bigram" or table.curves.empty:
        return table
    from analysis.bigram import DIFFICULTY, add_difficulty
    from data.corpus import open_corpus

    specs = [RunDir(study_dir / "runs" / run_id).spec() for run_id in dict.fromkeys(table.curves["run_id"])]
    corpus, folder = open_corpus(study_dir / "corpus"), study_dir / "results" / DIFFICULTY
    return replace(table, curves=add_difficulty(table.curves, specs, corpus, folder))


_EVAL_COLUMNS = ("step", "n_tokens", "loss", "perplexity", "bits_per_byte", "n_tokens_scored", "weights_sha256")
_RUN_COLUMNS = (
    *("run_id", "arch", "size", "seed", "state", "reason", "step", "n_tokens", "epochs", "planned_tokens", "n_params"),
    *("n_params_non_embedding", "flops_per_token_exact", "flops_per_token_paper", "flops_per_token_6nd"),
    *("warmup_tokens", "lr", "last_loss", "time_s", "tokens_per_s", "skipped_rows", "skipped_why"),
    *("batch_tokens", "context_length", "optimizer", "precision", "started", "hardware", "peak_memory_gb"),
    *("spec_hash", "git_commit", "corpus_fingerprint", "tokenizer", "reset_at_documents", "target_tokens", "recipe"),
    *("point", "variant", "trunk", "checked"),
)
# of a run's training: how it is carried out and what it leaves behind, not what it learns
_NOT_OF_RECIPE = (
    *("micro_batch_tokens", "zero_stage", "threads", "log_every", "n_checkpoints", "checkpoint_tokens"),
    *("checkpoint_dtype", "state_every_tokens", "keep_states"),
)


@dataclass(frozen=True)
class _Run:
    """What is on disk of a run: `header` is None before it has begun; `skipped`: what was left out, by reason."""

    path: Path
    header: dict[str, Any] | None
    rows: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    skipped: dict[str, int]


def _all_begun(study_dir: Path) -> list[tuple[RunDir, Record | None]]:
    """The directories of all runs on disk, by name, with what run.json holds; forecast runs are left out. Raises
    InputError where there are none."""
    paths = sorted((study_dir / "runs").glob("*/run.json"))
    if not paths:
        what = "holds no runs/*/run.json" if study_dir.is_dir() else "does not exist"
        raise InputError(f"{study_dir}: {what}: give the directory of a study, <out>/<name>, that has begun to train")
    begun = _begun(study_dir, [path.parent.name for path in paths])
    return [(rundir, record) for rundir, record in begun if record and record["spec"].get("role") != FORECAST]


def _begun(study_dir: Path, run_ids: Sequence[str]) -> list[tuple[RunDir, Record | None]]:
    """The directories of these runs with what run.json holds, None before they have begun."""
    dirs = [RunDir(study_dir / "runs" / run_id) for run_id in run_ids]
    return [(rundir, rundir.record() if rundir.run_json.exists() else None) for rundir in dirs]


def _read_run(rundir: RunDir, record: Record | None, validation_tokens: int | None) -> _Run:
    path, status = rundir.path, rundir.status()
    if status["state"] == DAMAGED:
        raise InputError(f"{path}: {status['reason']}: restore it from a copy, or `scaling train --repair`")
    if record is None:
        return _Run(path, None, [], [], {})
    header = _header(rundir, record)
    read = rundir.checked_rows(record["spec"])
    evals, bad = held_out_losses(path, _training(header))
    skipped = read.left_out | bad
    current = [row for row in evals if validation_tokens in (None, row["settings"]["validation_tokens"])]
    if other := len(evals) - len(current):
        skipped |= {f"not evaluated over {validation_tokens:,} tokens": other}
    return _Run(path, header, read.rows, current, skipped)


def _header(rundir: RunDir, record: Record) -> dict[str, Any]:
    """run.json with the columns every table repeats."""
    try:
        spec, cost = record["spec"], record["cost"]
        # nan: a convention that does not cover the architecture
        per_token = {name: float(cost["flops_per_token_train"].get(name, math.nan)) for name in CONVENTIONS}
        for name, value in per_token.items():
            if name in cost["flops_per_token_train"] and not 0 < value < math.inf:
                raise InputError(
                    f"{rundir.run_json}: cost.flops_per_token_train.{name} must be positive, not {value}; remove the "
                    f"run directory"
                )
        return {
            "run_id": record["run_id"],
            **{key: spec[key] for key in ("arch", "size", "seed")},
            **named(point := point_of_run(spec), spec.get("sets") or ()),
            "fields": point,
            "n_params_non_embedding": int(cost["n_params_non_embedding"]),
            "per_token": per_token,
            "record": record,
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{rundir.run_json}: is damaged ({error}); remove the run directory") from None


def _runs_table(study_dir: Path, runs_read: Sequence[_Run]) -> pd.DataFrame:
    rows = [_run_row(run) for run in runs_read]
    columns = [*_RUN_COLUMNS, *(["prediction"] if any("prediction" in row for row in rows) else [])]  # forecast runs
    assert all(row.keys() <= set(columns) for row in rows), "a value of a run without its column in _RUN_COLUMNS"
    runs = pd.DataFrame(rows, columns=columns).astype({"step": "int64", "n_tokens": "int64"})
    runs["trunk"] = runs["trunk"].astype(object).fillna("")
    corpus = read_manifest(study_dir / "corpus", verify=False, partial=True)
    runs["epochs"] = _epochs(runs, corpus) if corpus else float("nan")
    return with_axes(runs, _points(runs_read), SAME)


def _epochs(runs: pd.DataFrame, corpus: dict[str, Any]) -> pd.Series[float]:
    """How often runs have read their text, of a mixture the source that they repeat most."""
    parts = parts_of(corpus, "train")
    weight = sum(part.weight for part in parts)
    once = min(part.n_tokens / (part.weight / weight) for part in parts)  # tokens of a run that read no source again
    planned = runs["planned_tokens"] + -runs["planned_tokens"] % runs["batch_tokens"]
    targets = runs["target_tokens"].astype(float).fillna(planned)
    return runs["n_tokens"] / (once * np.minimum(1.0, planned / targets))


def _points(runs: Sequence[_Run]) -> dict[str, dict[str, Any]]:
    """By run that has begun, its point by field."""
    return {run.path.name: run.header["fields"] for run in runs if run.header is not None}


def _evals_table(runs: Sequence[_Run]) -> pd.DataFrame:
    sources = dict.fromkeys(key for run in runs for row in run.evals for key in row if key.startswith(OF_SOURCE))
    return _losses_table(runs, [run.evals for run in runs], (*_EVAL_COLUMNS, *sources))


def _losses_table(runs: Sequence[_Run], rows: Sequence[list[Record]], columns: Sequence[str]) -> pd.DataFrame:
    """rows: of each run, with `columns`."""
    frames = [
        _with_cost(pd.DataFrame(own).reindex(columns=list(columns)), run.header)
        for run, own in zip(runs, rows, strict=True)
        if run.header is not None and own
    ]
    flops = [f"flops_{name}" for name in CONVENTIONS]
    nothing = pd.DataFrame({name: [] for name in (*RUN_KEYS, *columns, *flops, "warmup", "phase")})
    return with_axes(pd.concat(frames, ignore_index=True) if frames else nothing, _points(runs))


def _run_row(run: _Run) -> dict[str, Any]:
    header, rows = run.header, run.rows
    if header is None:
        arch = arch_of_run(run.path.name)
        parts = SIZE_AND_SEED.match(run.path.name.removeprefix(arch))
        known = {"arch": arch, "size": parts[1], "seed": int(parts[2])} if parts else {}
        known |= named({}, ())
        return {"run_id": run.path.name, **known, "state": "waiting", "step": 0, "n_tokens": 0, "skipped_rows": 0}
    record = header["record"]
    training, cost = record["spec"]["training"], record["cost"]
    status = RunDir(run.path).status()
    last = rows[-1] if rows else {}
    return {
        **{key: header[key] for key in RUN_KEYS},
        "state": status["state"],
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
        "skipped_rows": sum(run.skipped.values()),
        "skipped_why": ", ".join(f"{count} {reason}" for reason, count in run.skipped.items()),
        "batch_tokens": int(training["batch_tokens"]),
        "context_length": record["model"].get("context_length"),
        "optimizer": _optimizer(training),
        "precision": training.get("precision"),
        **_where(attempts(run.path)),
        "spec_hash": record.get("spec_hash"),
        "git_commit": record.get("git_commit"),
        "corpus_fingerprint": record.get("corpus_fingerprint"),
        "tokenizer": record["spec"].get("corpus", {}).get("tokenizer"),
        "reset_at_documents": bool(training.get("reset_at_documents")),
        "target_tokens": record["spec"].get("corpus", {}).get("target_tokens"),
        "recipe": _recipe(header),
        "trunk": record["spec"].get("trunk") or "",
        "checked": "" if record["spec"].get("checked", True) else "no",
    } | ({"prediction": record["prediction"]} if "prediction" in record else {})


def _recipe(header: dict[str, Any]) -> str:
    """16 hex digits over all that decides a run's loss but its seed: runs that share them are seeds of each other."""
    record = header["record"]
    training = {key: value for key, value in decisive(_training(header)).items() if key not in _NOT_OF_RECIPE}
    parts = {"training": training, "model": record["model"], "n_params": header["n_params_non_embedding"]}
    parts |= {"arch": header["arch"], "corpus": record.get("corpus_fingerprint")}
    if target := record["spec"].get("corpus", {}).get("target_tokens"):
        parts |= {"target_tokens": target}
    content = {
        key: {k: v for k, v in part.items() if v is not None} if isinstance(part, dict) else part
        for key, part in parts.items()
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _optimizer(training: dict[str, Any]) -> str:
    """The trainer's optimizer with what a run has of it, but for the learning rate."""
    named = (("betas", "betas"), ("eps", "eps"), ("weight_decay", "weight decay"), ("grad_clip", "clipping at"))
    parts = [f"{name} {training[key]}" for key, name in named if training.get(key) is not None]
    name = {"adam": "Adam", "muon": "Muon and AdamW"}.get(training.get("optimizer", "adamw"), "AdamW")
    return ", ".join([name, *parts])


def _where(attempts: Sequence[dict[str, Any]]) -> dict[str, str | float | None]:
    """The day (UTC) on which a run's training began, what its processes ran on, and the most memory that tensors took
    on the GPU of the first (GB); None where it was not recorded, as the last of runs that took turns."""
    days = [attempt["started"] for attempt in attempts if isinstance(attempt.get("started"), (int, float))]
    ran = [f"{attempt.get('processes', 1)} x {attempt['hardware']}" for attempt in attempts if attempt.get("hardware")]
    return {
        "started": datetime.fromtimestamp(min(days), UTC).date().isoformat() if days else None,
        "hardware": ", ".join(dict.fromkeys(ran)) or None,
        "peak_memory_gb": max((float(attempt.get("peak_memory_gb", 0)) for attempt in attempts), default=0.0) or None,
    }


def _total_time(rows: list[dict[str, Any]]) -> float | None:
    """Seconds over all processes of a run: the clock starts again where one was resumed."""
    times = [float(row["time_s"]) for row in rows if row.get("time_s") is not None]
    if not times:
        return None
    return sum(now for now, after in itertools.pairwise([*times, 0.0]) if after < now)


def _with_cost(frame: pd.DataFrame, header: dict[str, Any]) -> pd.DataFrame:
    training, tokens = _training(header), frame["n_tokens"]
    columns = {key: header[key] for key in RUN_KEYS} | {str(name): column for name, column in frame.items()}
    columns |= {f"flops_{name}": tokens.astype("float64") * cost for name, cost in header["per_token"].items()}
    columns["warmup"] = tokens <= (header["record"]["spec"]["training"].get("warmup_tokens") or 0)
    columns["phase"] = phases(frame["step"], training)
    return pd.DataFrame(columns, index=frame.index)


def _training(header: dict[str, Any]) -> Training:
    return Training.model_validate(header["record"]["spec"]["training"])
