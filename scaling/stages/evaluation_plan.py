"""What `scaling eval study --dry-run` prints: what is missing of the matrix checkpoints x tasks, and its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arch.amounts import count, counted, counted_of
from arch.tables import text_table, wrapped
from flops.tables import duration

from .evaluation_matrix import eval_matrix
from .evaluation_tasks import EvalOptions
from .request import Request

if TYPE_CHECKING:
    from analysis.evals.matrix import Pair


def missing_evaluations(request: Request, options: EvalOptions) -> dict[str, Any]:
    """What eval_stage would do: {"pairs", "missing": {task: [checkpoints]}, "refused": {task or RUN/STEP: why},
    "n_refused", "forecast": [Forecast as a dictionary, of each task that is missing], "workers"}."""
    from analysis.evals import planning
    from flops.hardware import DEVICES
    from jobs.local import at_once, visible_gpus

    request.check_runs()
    matrix = eval_matrix(request, options)
    todo: dict[str, list[Pair]] = {pair.task.name: [] for pair in matrix.pairs}
    for pair in matrix.pairs:
        if pair.stored() is None:
            todo[pair.task.name].append(pair)
    kind = "cuda" if visible_gpus() else "cpu"
    device = DEVICES["h100" if kind == "cuda" else "cpu"]
    paces = planning.measured_paces(request.study.directory / "runs", request.runs, device, kind)
    readers = planning.readers(request.corpus_directory, request.study.corpus.tokenizer, request.runs)
    forecasts = []
    for name, pairs in todo.items():
        runs = {pair.checkpoint.run.run_id: pair.checkpoint.run for pair in pairs}
        plans = {run_id: pairs[0].task.plan(readers[run_id]) for run_id in runs}
        reads = [(pair.checkpoint.run, plans[pair.checkpoint.run.run_id]) for pair in pairs]
        if reads:
            forecasts.append(planning.forecast_task(name, reads, paces, device).to_dict())
    return {
        "pairs": len(matrix.pairs) + matrix.n_refused,
        "missing": {name: [pair.checkpoint.name for pair in pairs] for name, pairs in todo.items()},
        "refused": matrix.refused,
        "n_refused": matrix.n_refused,
        "forecast": forecasts,
        "workers": options.workers or at_once(request.study.jobs.parallel, 1),
    }


def show_missing(todo: dict[str, Any]) -> str:
    """missing_evaluations for people."""
    rows, notes = [], list[str]()
    for row in todo["forecast"]:
        tokens, seconds, examples = row["forward_tokens"], row["seconds"], row["examples"]
        each = "-" if examples is None else f"{examples:,} {row['kind']}"
        about = "about " if row["estimate"] else ""
        rows.append(
            (
                row["task"],
                f"{row['checkpoints']:,}",
                each,
                "-" if tokens is None else f"{about}{count(tokens)}",
                "-" if seconds is None else duration(seconds),
            )
        )
        notes += [f"{row['task']}: tokens estimated ({row['estimate']})"] if row["estimate"] else []
    heads = ("task", "checkpoints", "each", "forward tokens in all", "expected time")
    lines = [text_table(heads, rows), *notes] if rows else []
    for basis in dict.fromkeys(row["basis"] for row in todo["forecast"] if row["basis"]):
        names = [row["task"] for row in todo["forecast"] if row["basis"] == basis]
        lines.append(f"time of {', '.join(names)}: {basis}")
    lines += [f"{name}: cannot be evaluated: {why}" for name, why in todo["refused"].items()]
    n_missing = sum(map(len, todo["missing"].values()))
    in_all = sum(row["seconds"] or 0.0 for row in todo["forecast"])
    workers = min(todo["workers"], max(1, n_missing))
    lines.append(
        f"{counted_of(n_missing, todo['pairs'], 'evaluation')} to do"
        + (f", about {duration(in_all / workers)} with {counted(workers, 'worker')}" if in_all else "")
        + (f", {todo['n_refused']:,} cannot be done" if todo["n_refused"] else "")
        + " (dry run: nothing was written)"
    )
    return "\n".join([*lines[:1], *wrapped(lines[1:])] if rows else wrapped(lines))
