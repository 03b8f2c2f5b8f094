"""`scaling try`: is a change of an architecture worth scaling? A few runs of it beside the study's own, and a verdict.

The two smallest sizes first; unless the variant is better at both, that is all. Then two more sizes, and projections
at larger budgets. Every part does only what is missing, so that the command may be given again after anything.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arch.errors import InputError
from data.files import read_json, write_json
from data.units import loss_unit

from ..rundir.worklist import is_trained
from ..study.run import RunSpec
from .corpus import data_stage, reads_text
from .evaluation import eval_stage
from .evaluation_matrix import shown_words
from .evaluation_tasks import EvalOptions
from .planning import outstanding, timed_plan
from .request import Request
from .training import train_stage
from .trial_runs import Pair, Trial, described, exact

if TYPE_CHECKING:
    from analysis.fits.pairwise import Comparison
    from analysis.fits.points import Points
    from analysis.trial import Difference, Pairs, SeedVariance, Verdict

VERSION = 2  # of try.json
FIRST, MORE = 2, 2  # sizes of each stage
BEYOND = 10.0  # times the study's largest compute: the second budget


@dataclass(frozen=True)
class Options:
    """at: budgets [FLOP] of the projections, none: the study's largest compute and BEYOND times it; go_on: larger
    sizes even where the smallest say stop; train_baseline: the study's own runs too, where they are missing."""

    at: tuple[float, ...] = ()
    go_on: bool = False
    train_baseline: bool = False


class RunsFailed(Exception):
    """Runs or evaluations that ended before their time: {name: reason}."""

    def __init__(self, failed: Mapping[str, str]) -> None:
        super().__init__(f"{len(failed)} failed")
        self.failed = dict(failed)


def planned(trial: Trial, options: Options) -> dict[str, Any]:
    """What would be trained: {"stages": [{"sizes", "pairs", "todo", "missing", "flops_exact", "expected"}], "warnings",
    "at"}; `flops_exact` counts all of the stage's variant runs. Writes nothing."""
    _check_name(trial)
    sizes = trial.sizes()
    stages, warnings = list[dict[str, Any]](), list[str]()
    for chosen in (sizes[:FIRST], sizes[FIRST : FIRST + MORE]):
        if not chosen:
            continue
        requests = trial.requests(chosen)
        pairs = trial.pairs(requests, chosen)
        rows, notes = described(pairs)
        warnings += notes + too_little_text(trial, pairs)
        todo = [run_id for request in requests for run_id in outstanding(request)]
        plans = [timed_plan(request) for request in requests]
        stages.append(
            {
                "sizes": chosen,
                "pairs": rows,
                "todo": todo,
                "missing": [run.run_id for run in missing(trial, chosen)],
                "flops_exact": sum(exact(run) * run.trained_tokens for request in requests for run in request.runs),
                "expected": [plan["expected"]["text"] for plan in plans],
            }
        )
    at = budgets(trial, options)
    return {"variant": trial.variant.record, "match": trial.match, "at": at, "stages": stages, "warnings": warnings}


def budgets(trial: Trial, options: Options) -> list[float]:
    if options.at:
        return sorted(options.at)
    largest = max(exact(run) * run.n_tokens for run in trial.ends(()))
    return [largest, BEYOND * largest]


def missing(trial: Trial, sizes: Sequence[str]) -> list[RunSpec]:
    """The study's own runs at `sizes` that are not done, trunks too. Raises InputError where one is of another spec."""
    request = trial.baseline(sizes)
    request.check_runs()
    return [run for run in request.runs if not is_trained(run, request.rundir(run))]


def try_variant(trial: Trial, options: Options) -> dict[str, Any]:
    """The trial as try.json holds it, which is written after each stage. Raises InputError for what cannot be compared,
    RunsFailed where runs ended before their time."""
    from analysis.trial import NOT_WORTH, Verdict, first_stage, last_stage

    _check_name(trial)
    sizes, at = trial.sizes(), budgets(trial, options)
    first, more = sizes[:FIRST], sizes[FIRST : FIRST + MORE]
    pairs = trial.pairs(trial.requests(first), first)  # refuses before anything is written
    _require_baseline(trial, first, options)
    _say_warnings(trial, pairs)
    _write(trial, {"verdict": None})
    diverged = _train(trial, first, options)
    if diverged:
        return _closed(trial, pairs, at, Verdict(NOT_WORTH, _divergence(diverged)), more)
    differences, seeds = _differences(trial, first, pairs)
    unit = loss_unit([trial.study.corpus.tokenizer])
    verdict = first_stage(differences, unit)
    if not (verdict.goes_on or options.go_on) or not more:
        if verdict.goes_on:
            verdict = last_stage(differences, None, None, unit)
        return _closed(trial, pairs, at, verdict, more, differences, seeds)
    trial.request.say(f"try: {verdict.reason}; on to {' and '.join(more)}")
    every = [*first, *more]
    _require_baseline(trial, more, options)
    more_pairs = trial.pairs(trial.requests(more), more)
    _say_warnings(trial, more_pairs)
    pairs = [*pairs, *more_pairs]
    diverged = _train(trial, more, options)
    if diverged:
        return _closed(trial, pairs, at, Verdict(NOT_WORTH, _divergence(diverged)), [], differences, seeds)
    differences, seeds = _differences(trial, every, pairs)
    projected = _projected(trial, differences, seeds, at)
    final = last_stage(differences, projected.compute, projected.losses, unit)
    return _closed(trial, pairs, at, final, [], differences, seeds, projected)


def _require_baseline(trial: Trial, sizes: Sequence[str], options: Options) -> None:
    lacking = missing(trial, sizes)
    if not lacking or options.train_baseline:
        return
    command = f"scaling train {shown_words(trial.baseline(sizes))} --out {shlex.quote(trial.study.out)}"
    raise InputError(
        f"{trial.study.directory}: {len(lacking)} of the study's own runs at {', '.join(sizes)} are not trained "
        f"({lacking[0].run_id}{', ...' if len(lacking) > 1 else ''}): `{command}` trains them, or add --train-baseline"
    )


def _train(trial: Trial, sizes: Sequence[str], options: Options) -> dict[str, str]:
    """Train and evaluate what is missing at `sizes`; returns the variant's runs that diverged, with the reason."""
    requests = trial.requests(sizes)
    baseline = trial.baseline(sizes)
    failed, diverged = dict[str, str](), dict[str, str]()
    with baseline.writing():
        corpus = data_stage(baseline, any(map(reads_text, [baseline, *requests])))
        if options.train_baseline and missing(trial, sizes):
            trial.request.say("try: the study's own runs first")
            failed |= train_stage(baseline, corpus)[1]
        failed |= _evaluated(baseline)
    for request in requests:
        if failed:
            break
        with request.writing():
            failures = train_stage(request, corpus)[1]
            diverged |= {name: why for name, why in failures.items() if _diverged(request, name)}
            failed |= {name: why for name, why in failures.items() if name not in diverged}
            if not failures:
                failed |= _evaluated(request)
    if failed:
        raise RunsFailed(failed)
    return diverged


def _diverged(request: Request, run_id: str) -> bool:
    run = next(run for run in request.runs if run.run_id == run_id)
    return bool(request.rundir(run).status()["state"] == "failed")


def _divergence(diverged: Mapping[str, str]) -> str:
    name, why = next(iter(diverged.items()))
    return f"the variant's {name} diverged: {why}"


def _evaluated(request: Request) -> dict[str, str]:
    """Evaluate the held-out loss where it is missing; returns what failed."""
    evaluated = eval_stage(request, EvalOptions(tasks=("validation",)))
    return {name: reason for reason, names in evaluated["failed"].items() for name in names}


def _differences(
    trial: Trial, sizes: Sequence[str], pairs: Sequence[Pair]
) -> tuple[list[Difference], SeedVariance | None]:
    from analysis.trial import difference, seed_variance

    tables = [pairs_of_size(trial, size, pairs) for size in sizes]
    seeds = seed_variance(tables, seed_noise(trial))
    return [difference(table, seeds) for table in tables], seeds


@dataclass(frozen=True)
class Projected:
    """The compute for the same loss, or why surfaces give none; losses by a line over the sizes (None: too few)."""

    compute: list[Comparison] | None = None
    compute_reason: str = ""
    losses: list[Comparison] | None = None


def _projected(
    trial: Trial, differences: Sequence[Difference], seeds: SeedVariance | None, at: Sequence[float]
) -> Projected:
    from analysis.trial import project_compute, project_loss

    variants = [
        run for request in trial.requests([d.size for d in differences]) for run in request.runs if not run.branches
    ]
    baseline_runs = [run for run in trial.ends(()) if is_trained(run, trial.request.rundir(run))]
    curves = have_curves([*baseline_runs, *variants])
    noise = seed_noise(trial)
    text = max((difference.se_text or 0.0) / difference.baseline for difference in differences)
    losses = project_loss(differences, seeds, at)
    try:
        tables = points(trial, baseline_runs, curves), points(trial, variants, curves)
        return Projected(project_compute(*tables, at, noise[0] if noise else 0.0, text), losses=losses)
    except InputError as error:
        return Projected(compute_reason=str(error), losses=losses)


def _closed(
    trial: Trial,
    pairs: Sequence[Pair],
    at: Sequence[float],
    verdict: Verdict,
    left: Sequence[str],
    differences: Sequence[Difference] = (),
    seeds: SeedVariance | None = None,
    projected: Projected | None = None,
) -> dict[str, Any]:
    """The result, stored. left: sizes that need not be trained."""
    from analysis.trial import ALONE, LEVEL

    rows, warnings = described(pairs)
    sizes = list(dict.fromkeys(pair.size for pair in pairs))
    runs = [run for request in trial.requests(sizes) for run in request.runs]
    saved = [run for request in (trial.requests(left) if left else []) for run in request.runs]
    projected = projected or Projected()
    result = {
        "study": trial.study.name,
        "level": LEVEL,
        "at": list(at),
        "pairs": rows,
        "differences": [_difference_row(difference) for difference in differences],
        "seed_noise": dataclasses.asdict(seeds) if seeds else None,
        "compute": _rows(projected.compute),
        "compute_reason": projected.compute_reason or None,
        "losses": _rows(projected.losses),
        "verdict": {"word": verdict.word, "reason": verdict.reason},
        "cost": spent(trial, runs),
        "not_trained": {"sizes": list(left), "flops_exact": sum(exact(run) * run.trained_tokens for run in saved)},
        "warnings": [*warnings, *([ALONE] if differences and seeds is None else [])],
    }
    return _write(trial, result)


def _difference_row(difference: Difference) -> dict[str, Any]:
    """For JSON: nats a token, with the interval of the difference."""
    low, high = difference.ends or (None, None)
    kept = {key: value for key, value in dataclasses.asdict(difference).items() if key != "loss"}
    return kept | {"value": difference.value, "low": low, "high": high, "verdict": difference.loss.verdict}


def _rows(comparisons: Sequence[Comparison] | None) -> list[dict[str, Any]] | None:
    """For JSON: the variant's share of the baseline's at each C; null for an end without a bound."""
    if comparisons is None:
        return None
    return [
        {"c": one.at, "ratio": one.ratio.value, "low": one.ratio.low, "high": one.ratio.high, "verdict": one.verdict}
        for one in comparisons
    ]


def _say_warnings(trial: Trial, pairs: Sequence[Pair]) -> None:
    for line in described(pairs)[1] + too_little_text(trial, pairs):
        trial.request.say(f"warning: {line}")


def path_of(trial: Trial) -> Path:
    return trial.folder / "try.json"


def _identity(trial: Trial) -> dict[str, Any]:
    identity = {"variant": trial.variant.record, "match": trial.match, "only": trial.request.only}
    return dict(json.loads(json.dumps(identity)))  # as it is read again


def _check_name(trial: Trial) -> None:
    """Raise InputError where the name is that of another variant, or of the same one matched otherwise."""
    path = path_of(trial)
    if not path.exists():
        return
    try:
        stored = read_json(path)
        stored_identity = {key: stored[key] for key in _identity(trial)}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path}: is damaged: remove it and give the command again") from None
    if stored_identity != _identity(trial):
        what = (
            "another variant"
            if stored_identity["variant"] != trial.variant.record
            else "this variant matched otherwise"
        )
        raise InputError(f"{path.parent}: the name {trial.variant.name} is taken by {what}: give another name")


def _write(trial: Trial, result: dict[str, Any]) -> dict[str, Any]:
    """try.json, atomically; an unfinished one, which keeps the name, only where there is none yet."""
    stored = {"kind": "try", "version": VERSION, **_identity(trial), **result}
    path = path_of(trial)
    if result["verdict"] is None and path.exists():
        return stored
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, stored)
    return stored


POINTS_A_RUN, FIRST_SHARE = 5, 0.1  # of a curve: points, and where they begin


def pairs_of_size(trial: Trial, size: str, pairs: Sequence[Pair]) -> Pairs:
    """The seeds of a size at the end of their longest runs, window by window. Raises InputError where a checkpoint was
    not evaluated, or on other windows."""
    from analysis.held_out import documents_of, load_held_out, paired_difference
    from analysis.trial import Pairs

    size_pairs = [pair for pair in pairs if pair.size == size]
    longest = max(pair.baseline.n_tokens for pair in size_pairs)
    size_pairs = [pair for pair in size_pairs if pair.baseline.n_tokens == longest]
    nats: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    documents = None
    for pair in size_pairs:
        runs = [pair.baseline, pair.variant]
        held_out = [load_held_out(trial.study.directory, run.run_id, run.n_steps) for run in runs]
        documents = documents_of(trial.study.directory, held_out[0])
        paired_difference(held_out[1], held_out[0], documents)  # raises where the windows are others
        for kept, scores in zip(nats, held_out, strict=True):
            kept.append(scores.nats / scores.window_tokens)
    seeds = tuple(pair.baseline.seed for pair in size_pairs)
    flops = exact(size_pairs[0].baseline) * longest
    return Pairs(size, seeds, np.stack(nats[0]), np.stack(nats[1]), flops, documents)


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
                f"{LEAST:g}: no difference will be detected; raise evaluation.validation_tokens or hold out more text"
            )
    return lines


def seed_noise(trial: Trial) -> tuple[float, float] | None:
    """(s, degrees of freedom) of log held-out loss between the study's own seeds; None where none is repeated."""
    from analysis.fits.noise import Group, pool_seed_noise
    from analysis.held_out import load_held_out

    kinds: dict[tuple[str, ...], list[tuple[RunSpec, float]]] = {}
    for run in trial.request.whole_grid:
        if not run.branches:
            with suppress(InputError):  # not trained or not evaluated yet
                held_out = load_held_out(trial.study.directory, run.run_id, run.n_steps)
                kinds.setdefault(run.kind, []).append((run, held_out.loss))
    groups = [
        Group(
            kind[0],
            kind[1],
            np.log([[loss] for _, loss in seeds]),
            tuple(run.run_id for run, _ in seeds),
            tuple(str(run.seed) for run, _ in seeds),
        )
        for kind, seeds in kinds.items()
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
    ends = Points(
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
    return ends.thinned(POINTS_A_RUN, FIRST_SHARE) if curves else ends


def have_curves(runs: Sequence[RunSpec]) -> bool:
    """Whether checkpoints before a run's end can be fitted beside its end: the learning rate never falls."""
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
        result = read_json(path)
        return float(result["seconds"]) + float(result.get("setup_seconds") or 0.0)
    return 0.0
