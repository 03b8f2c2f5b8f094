"""What a batch script does after a run's step: `python -m jobs.outcome RUN_DIR CODE --submission N --max-restarts M`.

What is on disk decides, not the exit code of srun, which mixes those of all tasks. Exit codes: 0 the run is done, go
on with the next; 75 queue this job again; 76 another job has the run now, leave it alone; anything else: give the run
up, for the printed reason.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from arch.amounts import counted
from arch.arguments import Parser, add_plugin
from arch.errors import InputError
from arch.registry import load_plugins
from scaling.rundir.directory import RunDir
from scaling.rundir.owner import SUPERSEDED, Attempt, Superseded, attempts
from scaling.rundir.worklist import EXIT_FAILED, EXIT_INPUT, EXIT_STOPPED, is_trained, last_line

from .task import token


def main(arguments: list[str] | None = None) -> int:
    """Judge the run of the command line; returns the exit code and prints one line."""
    parser = Parser("python -m jobs.outcome", "Judge a run whose step has ended.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("code", type=int, help="exit code of srun")
    parser.add_argument("--submission", type=int, default=0)
    parser.add_argument("--max-restarts", type=int, required=True, help="in a row that bring no newer saved state")
    add_plugin(parser)
    options = parser.parse_args(arguments)
    try:
        load_plugins(options.plugin)
        attempt = Attempt(options.run_dir, token(os.environ, options.submission))
        verdict, line = judge_attempt(RunDir(options.run_dir), attempt, options.code, options.max_restarts)
    except InputError as error:
        verdict, line = EXIT_INPUT, f"error: {error}"
    except Superseded as error:
        verdict, line = SUPERSEDED, str(error)
    print(line, file=sys.stderr, flush=True)
    return verdict


def judge_attempt(rundir: RunDir, attempt: Attempt, code: int, max_restarts: int) -> tuple[int, str]:
    """(exit code, line). Counts the attempts since the newest saved state: a run that is preempted often continues; one
    that dies before it saves anything does not. Raises InputError without a run, Superseded
    where a newer attempt owns it."""
    run = rundir.spec()
    attempt.register()  # a step that died before it registered is an attempt too
    attempt.record(exit_code=code)
    if is_trained(run, rundir):
        return 0, f"{run.run_id}: done"
    if code == EXIT_INPUT:
        return EXIT_INPUT, f"{run.run_id}: bad input, see {rundir.log}"
    if rundir.status()["state"] == "failed":
        return EXIT_FAILED, f"{run.run_id}: failed: {rundir.status()['reason']}"
    newest = max((state.step for state in rundir.states(verify=False)), default=0)
    fruitless = 0
    for earlier in reversed(attempts(rundir.path)):
        if earlier["step"] < newest:
            break
        fruitless += 1
    how = "stopped" if code == EXIT_STOPPED else f"ended with exit code {code}"
    how += f" at step {newest} of {run.n_steps}"
    if fruitless <= max_restarts:
        return EXIT_STOPPED, f"{run.run_id}: {how}: to be queued again"
    reason = f"{how}: given up after {counted(fruitless, 'attempt')} without a newer saved state"
    reason += f"; its log ends: {last}" if (last := last_line(rundir)) else ""
    attempt.record(reason=reason)  # for `scaling status`, when SLURM has forgotten the job
    return code or EXIT_FAILED, f"{run.run_id}: {reason}"


if __name__ == "__main__":
    sys.exit(main())
