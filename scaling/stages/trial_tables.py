"""What a trial's runs left on disk, as the statistics take it: losses by window, points for surfaces, noise, costs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from arch.errors import InputError
from data.files import read_json

from ..study.run import RunSpec
from .trial_runs import Pair, Trial, exact

if TYPE_CHECKING:
    from analysis.fits.points import Points
    from analysis.trial.difference import Pairs

POINTS_A_RUN, FIRST_SHARE = 5, 0.1  # of a curve: points, and where they begin


def pairs_of_size(trial: Trial, size: str, pairs: Sequence[Pair]) -> Pairs:
    """The seeds of a size at the end of their longest runs, window by window. Raises InputError where a checkpoint was
    not evaluated, or on other windows."""
    from analysis.held_out import documents_of, load_held_out, paired_difference
    from analysis.trial.difference import Pairs

    mine = [pair for pair in pairs if pair.size == size]
    longest = max(pair.baseline.n_tokens for pair in mine)
    mine = [pair for pair in mine if pair.baseline.n_tokens == longest]
    nats: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    documents = None
    for pair in mine:
        runs = [pair.baseline, pair.variant]
        found = [load_held_out(trial.study.directory, run.run_id, run.n_steps) for run in runs]
        documents = documents_of(trial.study.directory, found[0])
        paired_difference(found[1], found[0], documents)  # raises where the windows are others
        for kept, one in zip(nats, found, strict=True):
            kept.append(one.nats / one.window_tokens)
    return Pairs(size, tuple(pair.baseline.seed for pair in mine), np.stack(nats[0]), np.stack(nats[1]), documents)


def too_little_text(trial: Trial, pairs: Sequence[Pair]) -> list[str]:
    """A line for each size whose baseline, where it is evaluated, was scored on too few independent documents for an
    interval: known before a variant is trained."""
    from analysis.held_out import LEAST, documents_of, load_held_out, paired_difference

    lines = []
    for size in dict.fromkeys(pair.size for pair in pairs):
        run = max((pair.baseline for pair in pairs if pair.size == size), key=lambda run: run.n_tokens)
        try:
            held_out = load_held_out(trial.study.directory, run.run_id, run.n_steps)
            documents = documents_of(trial.study.directory, held_out)
        except InputError:  # is not evaluated yet
            continue
        n_effective = paired_difference(held_out, held_out, documents).n_effective
        if n_effective < LEAST:
            lines.append(
                f"{size}: the held-out text amounts to {n_effective:.1f} independent documents, and an interval needs "
                f"{LEAST:g}: nothing will be told apart; raise evaluation.validation_tokens or hold out more documents"
            )
    return lines


def seed_noise(trial: Trial) -> tuple[float, float] | None:
    """(s, degrees of freedom) of log held-out loss between the study's own seeds; None where none is repeated."""
    from analysis.fits.noise import Group, pool_seed_noise
    from analysis.held_out import load_held_out

    kinds: dict[tuple[str, ...], list[tuple[RunSpec, float]]] = {}
    for run in trial.study.runs():
        if not run.branches:
            with suppress(InputError):  # not trained or not evaluated yet: it tells nothing
                found = load_held_out(trial.study.directory, run.run_id, run.n_steps)
                kinds.setdefault(run.kind, []).append((run, found.loss))
    groups = [
        Group(
            kind[0],
            kind[1],
            np.log([[loss] for _, loss in found]),
            tuple(run.run_id for run, _ in found),
            tuple(str(run.seed) for run, _ in found),
        )
        for kind, found in kinds.items()
    ]
    pooled = pool_seed_noise(groups)
    return None if pooled is None else (pooled.s, pooled.df)


def points(trial: Trial, runs: Sequence[RunSpec], curves: bool) -> Points:
    """Held-out losses of `runs`: their ends, and with `curves` a few checkpoints before. Raises InputError without."""
    from analysis.fits.points import Points
    from analysis.runs import load_tables

    specs = {run.run_id: run for run in runs}
    rows = load_tables(trial.study.directory, list(specs), "none").evals
    if not curves:
        rows = rows[[n == specs[name].n_tokens for n, name in zip(rows["n_tokens"], rows["run_id"], strict=True)]]
    if rows.empty:
        raise InputError("no held-out losses to fit")
    ids = rows["run_id"].tolist()
    found = Points(
        rows["n_params_non_embedding"].to_numpy(float),
        rows["n_tokens"].to_numpy(float),
        rows["flops_exact"].to_numpy(float),
        rows["loss"].to_numpy(float),
        run=np.array(ids, dtype=object),
        trunk=np.array([specs[name].trunk or name for name in ids], dtype=object),
        cell=np.array([f"{specs[name].size}, seed {specs[name].seed}" for name in ids], dtype=object),
        size=rows["size"].to_numpy(object),
        convention="exact",
    )
    return found.thinned(POINTS_A_RUN, FIRST_SHARE) if curves else found


def have_curves(runs: Sequence[RunSpec]) -> bool:
    """Whether checkpoints before a run's end can stand beside its end: the learning rate never falls."""
    return all(run.training.schedule == "constant" and run.trunk is None for run in runs)


def spent(trial: Trial, runs: Sequence[RunSpec]) -> dict[str, float | None]:
    """Exact training FLOP of `runs`, and seconds of their processes: training, evaluation of the held-out loss."""
    from analysis.runs import load_tables

    table = load_tables(trial.study.directory, [run.run_id for run in runs], "none").runs
    seconds = 0.0
    for run in runs:
        for path in (trial.study.run_directory(run) / "evals").glob("[0-9]*/validation.json"):
            seconds += _seconds(path)
    return {
        "flops_exact": sum(exact(run) * run.trained_tokens for run in runs),
        "train_seconds": float(table["time_s"].fillna(0).astype(float).sum()),
        "eval_seconds": seconds,
    }


def _seconds(path: Path) -> float:
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = read_json(path)
        return float(found["seconds"]) + float(found.get("setup_seconds") or 0.0)
    return 0.0
