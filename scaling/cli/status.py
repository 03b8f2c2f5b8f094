"""`scaling status`: how far each run of a study is, here and in a cluster's queue."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arch.amounts import count, counted, first_few
from arch.errors import InputError
from arch.tables import text_table
from flops.tables import duration
from jobs import local, records, slurm
from jobs import status as queue_status

from ..rundir.directory import ENDED, RunDir
from ..rundir.lock import is_locked
from ..rundir.metrics import Pace, pace_of
from ..rundir.owner import last_attempt, this_host, tokens
from ..rundir.prepare import check_run
from ..rundir.tracking import failures
from ..study.run import RunSpec
from ..study.schema import OF_GRID, role_text
from ..study.spec import StudySpec
from .evaluation import VALIDATION, task_names
from .forecast import Waiting
from .options import RunsOptions, notify, print_json
from .request import Request

OTHER_SETTINGS = "other settings"  # a state beside those of status.json
SLOW = 0.75  # of a pace: below it something slows a run down
PACE_BYTES = 1 << 20  # of the rows that a pace is of: some thousand
ELSEWHERE = "weights are elsewhere: it came in a bundle"


def status(study: RunsOptions) -> None:
    """Show how far each run is, here or on a cluster. Prints state, steps, tokens, loss, speed, and why it stopped."""
    request = study.request()
    now = look(request)
    print_status(request, now, study.as_json)
    is_done = all(row["state"] == "done" for row in now.runs)
    report = request.study.directory / "report" / "index.html"
    if is_done and not now.at_work and report.is_file() and not study.as_json:
        return print(f"all runs are done; the report: {report}")
    on_cluster = now.jobs or request.study.jobs.cluster is not None
    study.say_next("watch" if now.at_work else "fit study" if is_done else "submit" if on_cluster else "run")


@dataclass(frozen=True)
class InQueue:
    """The rows of runs and of the newest submission's jobs; and why SLURM does not answer."""

    runs: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    warning: str | None = None

    @property
    def at_work(self) -> bool:
        """Whether a run or a job waits in a queue, or runs."""
        going = any(row["state"] in ("queued", "requeued", "running") for row in self.runs)
        return going or any({"PENDING", "RUNNING"} & set(row["states"]) for row in self.jobs)


def look(request: Request) -> InQueue:
    """How far each of the chosen runs is now."""
    return in_queue(request, status_rows(request.study, request.runs, task_names(request)))


def print_status(request: Request, now: InQueue, as_json: bool) -> None:
    """Print it as a table with lines below, or as JSON."""
    if now.warning:
        notify(f"warning: {now.warning}")
    if as_json:
        head = {"study": request.study.name, "directory": str(request.study.directory)}
        return print_json(head | {"runs": now.runs, "jobs": now.jobs})
    lines = [f"{show_status(now.runs)}{show_jobs(now.jobs)}", *status_lines(request, now)]
    print("\n".join(lines), flush=True)


def status_lines(request: Request, now: InQueue) -> list[str]:
    """What stands below the table: what slows runs down, trackers that fail, and what the study waits for."""
    lines = [*slow_lines(now.runs), *failures(map(request.rundir, request.runs)), *Waiting.of(request).lines(request)]
    if not (where := request.study.directory).exists():  # as from another folder than the study was run in
        lines.append(f"nothing of this study is in {where.absolute()} yet (--out says where else)")
    return lines


def slow_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line on the runs that are slower than they were, by node; of this machine with its load."""
    slow: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["pace"] is not None and row["pace"] < SLOW:
            slow.setdefault(row["node"] or "?", []).append(row)
    lines = []
    for node, runs in slow.items():
        slowest = min(runs, key=lambda row: row["pace"])
        load = ""
        if node == this_host():
            load = f", whose load is {os.getloadavg()[0]:.1f} on {counted(len(local.visible_cores()), 'core')}"
        lines.append(
            f"busy: {counted(len(runs), 'run is', 'runs are')} slower than before on {node}{load}: {slowest['run_id']} "
            f"makes {slowest['pace']:.0%} of its median speed"
        )
    return lines


def in_queue(request: Request, rows: Sequence[dict[str, Any]]) -> InQueue:
    """The rows of `status_rows` with what SLURM says, where it is installed and something was submitted."""
    submissions = [submission for submission in records.submissions(request.study.directory) if submission.ids]
    if not submissions or not slurm.available():
        return InQueue(queue_status.merge(rows, [], []), [])
    try:
        elements = queue_status.look(submissions)
    except InputError as error:
        warning = f"{error}; the table shows what the run directories say"
        return InQueue(queue_status.merge(rows, [], []), [], warning)
    return InQueue(queue_status.merge(rows, submissions, elements), queue_status.job_rows(submissions, elements))


def status_rows(
    study: StudySpec, runs: Sequence[RunSpec], tasks: Sequence[str] | None = (VALIDATION,)
) -> list[dict[str, Any]]:
    """One row a run: how far it came and why it stopped. tasks: that the study asks for; None where that cannot be
    known: `to_evaluate`, the pairs of a planned checkpoint and a task, is None then, and `evaluated`
    counts what there is of any task.

    A run that says it is running while no process trains it was interrupted; it resumes when it is run again. A
    directory that was written with other settings than the study's has the state OTHER_SETTINGS in any case.
    `pace`: of a run in training, its speed of late as a share of its median speed before (metrics.Pace), and
    `seconds_left` are at the speed of late. `weights`: of the newest checkpoint, "here", or "elsewhere" where a bundle
    left them out; None before the first.
    """
    rows = []
    for run in runs:
        rundir = RunDir(study.run_directory(run))
        status, last = rundir.status(), rundir.last_row() or {}
        if other := _other_settings(rundir, run):
            status = status | {"state": OTHER_SETTINGS, "reason": other}
        elif run.is_pending:
            stored_rate = f"holds a run at {rundir.spec().training.lr:g}; " if rundir.run_json.exists() else ""
            state = OTHER_SETTINGS if stored_rate else "waiting"
            pending = run.rate.pending if run.rate else ""
            status = status | {"state": state, "reason": f"{stored_rate}no learning rate yet: {pending}"}
        running = status["state"] == "running" and is_locked(rundir.path)
        pace = pace_of(rundir.rows_back(PACE_BYTES)) if running else Pace(last.get("tokens_per_s"))
        speed, goes_on = pace.tokens_per_s or last.get("tokens_per_s"), status["state"] not in (*ENDED, OTHER_SETTINGS)
        saved, attempt = rundir.checkpoints(verify=False, partial=True), last_attempt(rundir.path) or {}
        elsewhere = saved[-1].left_out if saved else ""
        why = (attempt.get("reason") or status["reason"], attempt.get("damaged") or (ELSEWHERE if elsewhere else None))
        rows.append(
            {
                "run_id": run.run_id,
                "role": run.role,
                "round": run.round_number,
                "state": "interrupted" if status["state"] == "running" and not running else status["state"],
                "step": last.get("step", 0),
                "n_steps": run.n_steps,
                "n_tokens": last.get("n_tokens", 0),
                "loss": last.get("loss"),
                "tokens_per_s": last.get("tokens_per_s"),
                "checkpoints": len(saved),
                "weights": None if not saved else "elsewhere" if elsewhere else "here",
                "evaluated": _evaluated(rundir, None if tasks is None else {f"{task}.json" for task in tasks}),
                "to_evaluate": None if tasks is None else len(run.checkpoint_steps) * len(tasks),
                "seconds_left": (run.n_tokens - last["n_tokens"]) / speed if speed and goes_on else None,
                "pace": pace.share,
                "restarts": max(0, len(tokens(rundir.path)) - 1),
                "node": attempt.get("host"),
                "reason": "; ".join(filter(None, why)) or None,
            }
        )
    return _shared(rows)


def _shared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`seconds_left` is computed from the speed that a run has alone: more where runs here share the GPUs."""
    running_rows = [row for row in rows if row["state"] == "running" and row["node"] == this_host()]
    company = len(running_rows) / (len(local.visible_gpus()) or len(running_rows) or 1)
    for row in running_rows:
        if row["seconds_left"] is not None:
            row["seconds_left"] *= max(1.0, company)
    return rows


def _other_settings(rundir: RunDir, run: RunSpec) -> str | None:
    """Why `scaling run` would refuse this directory: the run there has other settings, or run.json is damaged."""
    try:
        check_run(rundir, run)
    except InputError as error:
        return str(error).removeprefix(f"{rundir.path}: ")
    return None


def _evaluated(rundir: RunDir, names: set[str] | None) -> int:
    """Results of the files `names` (None: of all tasks), valid or not: `scaling eval` checks them."""
    count = 0
    with contextlib.suppress(FileNotFoundError):
        for folder in os.scandir(rundir.path / "evals"):
            if folder.name[:1].isdigit():
                files = {name for name in os.listdir(folder) if name.endswith(".json")}
                count += len(files if names is None else files & names)
    return count


def show_status(rows: Sequence[dict[str, Any]]) -> str:
    """The status rows as a table for reading; columns of the queue only where a run has been in one."""
    queue = any(row.get("job") for row in rows)
    heads = ["run", "state", "steps", "tokens", "loss", "tokens/s", "left", "checkpoints", "evaluated", "restarts"]
    heads += ["job", "node"] * queue
    lines = []
    for row in rows:
        loss, speed = row["loss"], row["tokens_per_s"]
        line = [
            row["run_id"] + role_text(row.get("role", OF_GRID), row.get("round")),
            row["state"],
            f"{row['step']:,}/{row['n_steps']:,}",
            count(row["n_tokens"]),
            f"{loss:.3f}" if loss is not None else "-",
            count(speed) if speed else "-",
            duration(row["seconds_left"]) if row["seconds_left"] is not None else "-",
            str(row["checkpoints"]),
            f"{row['evaluated']}/{'?' if row['to_evaluate'] is None else row['to_evaluate']}",
            str(row["restarts"]),
        ]
        line += [row["job"] or "-", row["node"] or "-"] if queue else []
        lines.append([*line, row["reason"] or ""])
    return text_table([*heads, "reason"], lines)


def show_jobs(rows: Sequence[dict[str, Any]]) -> str:
    """What the newest submission's jobs do, a line each under the table; "" without any."""
    lines = []
    for row in rows:
        states = ", ".join(f"{number} {state.lower()}" for state, number in row["states"].items())
        reasons = f" ({', '.join(row['reasons'])})" if row["reasons"] else ""
        logs = row["logs"]
        log = f"; see {first_few(logs)}" if logs else ""
        lines.append(f"{row['job']}, job {row['id']}: {states}{reasons}{log}")
    return "\n\n" + "\n".join(lines) if lines else ""
