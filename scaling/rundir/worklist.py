"""Which runs are left to train, and why one ended: what the stages ask about a run's process."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from arch.amounts import counted
from arch.errors import InputError
from flops import cost_table

from ..study.run import RunSpec
from .directory import DAMAGED, ENDED, RunDir
from .lock import is_locked
from .prepare import OtherRun, check_run
from .saved import read_saved

# exit codes of a process that trains, beside owner.SUPERSEDED; 75: it saved its state and is unfinished, so never 0
EXIT_INPUT, EXIT_FAILED, EXIT_STOPPED = 2, 3, 75
ENDED_BY = re.compile(r"(?:\[rank\d+\]: *)?((?:\w+\.)*\w*(?:Error|Exception)\b.*)|\s*traceback : (Signal \d+ \(\w+\))")
TORCHRUNS = "ChildFailedError"
WORKERS_CODE, REFUSED = re.compile(r"\s+exitcode\s*: (-?\d+) "), re.compile(r"error: (.*)")
MAX_ERROR = 200  # characters
VERIFIED_PARAMS = 100_000_000  # checkpoints are checksummed again before they are relied on up to this size


def is_small(run: RunSpec) -> bool:
    """Whether checksums of all the run's checkpoints take no time worth mentioning."""
    return bool(cost_table(run.config)["n_params"] <= VERIFIED_PARAMS)


def check_runs(runs: Iterable[tuple[RunDir, RunSpec]]) -> None:
    """Raise OtherRun, which names all of them, where directories were written for other specs (`check_run`)."""
    others: list[OtherRun] = []
    for rundir, run in runs:
        try:
            check_run(rundir, run)
        except OtherRun as error:
            others.append(error)
    if len(others) > 1:
        paths = [path for error in others for path in error.paths]
        names = ", ".join(path.name for path in paths)
        raise OtherRun(
            f"{others[0].difference}; {counted(len(paths), 'run has', 'runs have')} other settings ({names})", *paths
        )
    if others:
        raise others[0]


def damage_of(rundir: RunDir, weights: bool = True) -> str:
    """How the files of a run that has ended differ from what its training left, so that it would have to be trained
    again; "" where they do not. weights: the last checkpoint counts too, unless the state after its step is there, of
    which it is written again."""
    status = rundir.status()
    if status["state"] == DAMAGED:
        return str(status["reason"])
    if status["state"] in ENDED and not rundir.run_json.exists():
        return "run.json is missing"
    if not weights or status["state"] != "done" or is_trained(run := rundir.spec(), rundir):
        return ""
    if any(state.step == run.n_steps for state in rundir.states(verify=is_small(run))):
        return ""
    return f"{rundir.checkpoint(run.n_steps).relative_to(rundir.path)} is missing or damaged"


def check_damage(runs: Iterable[RunDir], weights: bool) -> None:
    """Raise InputError, which names the first and counts the others, where runs are not as their training left them
    (`damage_of`): nothing is trained again unasked."""
    damaged = [(rundir.path, why) for rundir in runs if (why := damage_of(rundir, weights))]
    if damaged:
        path, why = damaged[0]
        more = f" (and {counted(len(damaged) - 1, 'more run')})" if len(damaged) > 1 else ""
        raise InputError(
            f"{path}: {why}{more}: restore it from a copy, or train again what is lost: `scaling train --repair` does "
            f"it here, and with --prepare leaves it to the next `scaling submit`"
        )


def mark_for_repair(runs: Iterable[RunDir]) -> list[str]:
    """Have damaged runs go on from their newest intact state, or from the start; a line for each."""
    lines = []
    for rundir in runs:
        if why := damage_of(rundir):
            rundir.write_status("running", 0, 0, f"to be repaired: {why}", None)
            lines.append(f"repair: {rundir.path.name}: {why}")
    return lines


def is_trained(run: RunSpec, rundir: RunDir) -> bool:
    """Whether the run is done and its last checkpoint, written before it counts as done, is there, or its weights were
    left out by a bundle."""
    if rundir.status()["state"] != "done":
        return False
    manifest = read_saved(rundir.checkpoint(run.n_steps), is_small(run), partial=True)
    return manifest is not None and manifest.get("spec_hash") == run.spec_hash


def release_states(runs_dir: Path, runs: Iterable[RunSpec]) -> None:
    """Remove the states of these runs' trunks that no branch of theirs needs, or needs any more; the newest
    training.keep_states stay, as of any run, and a trunk in training is left alone. A branch that failed may be tried
    again (--retry-failed, or its directory removed): it needs its state."""
    names = {run.trunk if run.trunk is not None else run.run_id for run in runs if run.trunk or run.branches}
    for name in sorted(names):
        trunk = RunDir(runs_dir / name)
        if not trunk.run_json.exists() or is_locked(trunk.path):
            continue
        run = trunk.spec()
        needed = {step for branch, step in run.branches.items() if not _is_done(RunDir(runs_dir / branch))}
        states = [state.step for state in trunk.states(verify=False)]
        for step in states[: -run.training.keep_states]:
            if step not in needed:
                shutil.rmtree(trunk.state(step))


def _is_done(branch: RunDir) -> bool:
    try:
        return is_trained(branch.spec(), branch)
    except InputError:  # not even prepared
        return False


def thread_environment(threads: int) -> dict[str, str]:
    """The environment of a process of so many threads, before it imports torch. Where a site's OMP_DYNAMIC or
    OMP_THREAD_LIMIT gives it fewer than it counts on, oneDNN's bf16 products leave a part of their result as it lay in
    memory."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    all_of_them = {"OMP_DYNAMIC": "FALSE", "OMP_THREAD_LIMIT": "4096"}
    return {**dict.fromkeys(names, str(threads)), **all_of_them, "PYTHONUNBUFFERED": "1"}


def reason_of(exit_code: int, path: Path) -> str | None:
    """Why a run's process ended other than well; None where the run is done, however its process ended afterwards."""
    rundir = RunDir(path)
    status = rundir.status()
    if exit_code == 0 and status["state"] == "done":
        return None
    if rundir.run_json.exists() and is_trained(rundir.spec(), rundir):
        return None
    if status["state"] == "failed":  # under torchrun the exit code is torchrun's own
        return f"{status['reason']}; last good checkpoint: {status['last_checkpoint'] or 'none'}"
    if exit_code == EXIT_STOPPED and status["reason"]:
        return str(status["reason"])
    lines = _log(rundir)
    if exit_code == 1 and _last(WORKERS_CODE, lines) == str(EXIT_INPUT) and (refused := _last(REFUSED, lines)):
        return refused  # under torchrun, whose own report follows
    if exit_code == EXIT_INPUT:  # the last line of the log is the reason
        message = f"{rundir.log}: could not be written (most likely: {os.strerror(errno.ENOSPC)}): free some space"
        return lines[-1].removeprefix("error: ") if lines else f"{message} and run it again"
    how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
    error = _last(ENDED_BY, [line for line in lines if TORCHRUNS not in line])
    return f"its process {how}{f' ({error[:MAX_ERROR]})' if error else ''}; run it again to continue, see {rundir.log}"


def _log(rundir: RunDir) -> list[str]:
    """The lines of a run's log that say something."""
    try:
        log = rundir.log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in log.splitlines() if line.strip()]


def last_line(rundir: RunDir) -> str:
    """What a run's log says last; "" where there is none."""
    return " ".join("".join(_log(rundir)[-1:]).split())[:MAX_ERROR]


def _last(pattern: re.Pattern[str], lines: Sequence[str]) -> str | None:
    """The group that matched in the last line that begins by `pattern`."""
    matches = [match for line in lines if (match := pattern.match(line))]
    return matches[-1][matches[-1].lastindex or 0] if matches else None
