"""SLURM's own commands, called here and nowhere else: sbatch, squeue, scontrol, scancel, sacct.

Works without accounting. A controller that restarts is waited for; every other refusal is SLURM's own message. Sites
wrap these commands in scripts that print more: only lines of the requested form are read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from arch.amounts import counted
from arch.errors import InputError
from scaling.rundir.launcher import alone

TIMEOUT_S = 60.0  # of one command
GLANCE_S = 10.0  # of a dry run's: SLURM's commands themselves wait up to minutes for a controller
PATIENCE_S = 60.0  # for a controller that does not answer
BUSY = re.compile(
    r"unable to contact|socket timed out|connection refused|temporarily unable|zero bytes were transmitted|"
    r"communication connection failure|resource temporarily unavailable|slurm_persist|unable to resolve",
    re.IGNORECASE,
)
JOB_ID = re.compile(r"(\d+)(;\S+)?")  # with --parsable; behind the semicolon: the cluster
# Its commands read their options from such variables too, and a job's processes, which may be where a study is
# submitted, have dozens of them: of memory, tasks, binding. What says where SLURM is stays.
OF_SLURM = re.compile(r"(SLURMD?|SBATCH|SALLOC|SRUN|SQUEUE|SCANCEL|SINFO|SCONTROL|SACCT)_.*")
WHERE_SLURM_IS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
# States of a job that will still run, or runs. The others are its end (a requeued job is pending again).
ACTIVE = {
    "PENDING",
    "RUNNING",
    "CONFIGURING",
    "COMPLETING",
    "SUSPENDED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
    "STOPPED",
    "SPECIAL_EXIT",
}
FIELDS = ("ArrayJobID", "ArrayTaskID", "State", "Reason", "NodeList", "TimeUsed", "TimeLeft", "RestartCnt", "Name")


@dataclass(frozen=True)
class Element:
    """A job, or an array's element, as the queue shows it; `index` is None for a job that is no array."""

    job_id: str
    index: int | None
    state: str
    reason: str
    nodes: str
    used: str  # as SLURM writes times: [days-]hours:minutes:seconds
    left: str
    restarts: int
    name: str  # of the job: ids of another cluster's queue may be the same

    @property
    def active(self) -> bool:
        return self.state in ACTIVE


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of SLURM's commands, and so of the jobs that they submit: `env` without the variables of a job
    or a launcher in which this process may run."""
    return {name: value for name, value in alone(env).items() if name in WHERE_SLURM_IS or not OF_SLURM.fullmatch(name)}


def unused_options() -> list[str]:
    """A line on the variables that a user set for sbatch, which are not passed on."""
    names = sorted(name for name in os.environ if name.startswith("SBATCH_"))
    line = f"the environment's {', '.join(names)}: not used; write it into the cluster profile (account, sbatch, ...)"
    return [line] if names else []


def available() -> bool:
    return shutil.which("sbatch") is not None


def require() -> None:
    """Raise InputError where SLURM is not installed."""
    if not available():
        raise InputError(
            "no SLURM here: sbatch is not on the PATH; submit from a login node of the cluster, or run the study here "
            "with `scaling run`"
        )


def silent(patient: bool = True) -> str | None:
    """Why no controller answers, in SLURM's words; None where one does. If `patient`, a restart is waited for."""
    command = ["scontrol", "show", "config"]
    done = _patiently(command) if patient else _call(command, timeout_s=GLANCE_S)
    return None if done.returncode == 0 else _message(done)


def submit(
    script: Path,
    name: str,
    dependencies: Sequence[tuple[str, Sequence[str]]] = (),
) -> str:
    """The id of the job that sbatch made of `script`; it starts in the script's folder.

    `name` is the job's own, by which it is looked up where the controller took it but did not answer, or sbatch printed
    no id. Dependencies: ("afterok", ids), ... Raises InputError with SLURM's message and the script's path, and Unnamed
    where the job was taken, or may have been, and its id is unknown.
    """
    options = ["--parsable", "--kill-on-invalid-dep=yes"]
    options_of_kind = [":".join([kind, *ids]) for kind, ids in dependencies if ids]
    if options_of_kind:
        options.append(f"--dependency={','.join(options_of_kind)}")
    deadline = time.monotonic() + PATIENCE_S
    while True:
        done = _call(["sbatch", *options, script.name], cwd=script.parent)
        if (job_id := job_id_in(done.stdout)) is not None:
            return job_id
        message = _message(done)
        if done.returncode and not BUSY.search(message):
            raise InputError(f"{script}: sbatch: {message}")
        with suppress(InputError):  # squeue got no answer either
            if (job_id := find(name, script.parent)) is not None:
                return job_id
        if time.monotonic() > deadline or not done.returncode:
            what = "" if done.returncode else "took the job and printed no id: "
            raise Unnamed(f"{script}: sbatch {what}{message}; squeue shows no job {name} yet")
        time.sleep(1.0)


class Unnamed(InputError):
    """A job was or may have been submitted, and its id is unknown."""


def job_id_in(printed: str) -> str | None:
    """The id that sbatch --parsable printed: its last line of that form; None without one."""
    ids = [match[1] for line in printed.splitlines() if (match := JOB_ID.fullmatch(line.strip()))]
    return ids[-1] if ids else None


def check(script: str, where: str) -> str | None:
    """Let sbatch check a script without submitting it; returns a warning where it cannot because nodes are down.

    Raises InputError with SLURM's message and `where`.
    """
    done = _patiently(["sbatch", "--test-only"], stdin=script)
    if done.returncode == 0:
        return None
    message = f"{where}: sbatch: {_message(done)}"
    if "node configuration is not available" in message and (lost := _lost_nodes()):
        return (
            f"{message} (now: {counted(lost, 'node is', 'nodes are')} down or drained; the profile alone was checked)"
        )
    raise InputError(message)


def _lost_nodes() -> int:
    """Nodes that no job can have now, whatever it asks for."""
    rows = [line.split() for line in _patiently(["sinfo", "-h", "-N", "-o", "%N %t"]).stdout.splitlines()]
    lost = ("down", "drain", "drng", "fail", "maint", "unk", "boot", "pow", "no_respond")
    states = [words for words in rows if len(words) == 2]
    return len({node for node, state in states if state.startswith(lost) or state.endswith("*")})


def find(name: str, folder: Path) -> str | None:
    """The id of the newest job of this user with that name, submitted in that folder (another study's may be called the
    same), that is still known; None without one.

    Raises InputError where SLURM does not answer.
    """
    done = _patiently(["squeue", "-h", "-t", "all", "--me", f"--name={name}", "-O", "ArrayJobID:|,WorkDir:|"])
    if done.returncode:
        raise InputError(f"squeue: {_message(done)}")
    here = re.compile(rf"(\d+) *\|{re.escape(os.path.realpath(folder))} *\|")
    ids = [match[1] for line in done.stdout.splitlines() if (match := here.fullmatch(line.strip()))]
    return max(ids, key=int, default=None)


def queue(job_ids: Iterable[str]) -> list[Element]:
    """All elements of these jobs that the controller still knows, also those that ended not long ago.

    Raises InputError where it does not answer.
    """
    ids = sorted(set(job_ids), key=int)
    if not ids:
        return []
    columns = ",".join(f"{name}:|" for name in FIELDS)
    done = _patiently(["squeue", "-h", "-r", "-t", "all", f"--jobs={','.join(ids)}", "-O", columns])
    if done.returncode and "invalid job id" in done.stderr.lower():  # all have left its memory
        return []
    if done.returncode:
        raise InputError(f"squeue: {_message(done)}; is this a login node of the cluster?")
    lines = (line for line in done.stdout.splitlines() if line.count("|") >= len(FIELDS))
    return [element for line in lines if (element := _element(line)).job_id in ids]


def _element(line: str) -> Element:
    job, index, state, *reasons, nodes, used, left, restarts, name, _ = (part.strip() for part in line.split("|"))
    reason = "|".join(reasons)  # an admin writes it
    return Element(
        job,
        int(index) if index.isdecimal() else None,
        state,
        "" if reason == "None" else reason,
        nodes,
        used,
        left,
        int(restarts) if restarts.isdecimal() else 0,
        name,
    )


def accounted(job_ids: Iterable[str]) -> list[Element]:
    """The same from the accounting, for jobs that have left the queue; empty where there is none."""
    ids = sorted(set(job_ids), key=int)
    if not ids or shutil.which("sacct") is None:
        return []
    done = _call(["sacct", "-X", "-n", "-P", "-j", ",".join(ids), "-o", "JobID,State,NodeList,Elapsed,JobName"])
    if done.returncode:
        return []
    elements = []
    for line in done.stdout.splitlines():
        number, state, nodes, used, name = [*line.split("|"), "", "", "", ""][:5]
        match = re.fullmatch(r"(\d+)(?:_(\d+))?", number)
        if match:
            index = int(match[2]) if match[2] else None
            elements.append(Element(match[1], index, state.split(" ")[0], "", nodes, used, "", 0, name))
    return elements


def cancel(targets: Iterable[str]) -> None:
    """End jobs ("17") and array elements ("17_3"); those that ended already are no error."""
    ids = list(targets)
    for first in range(0, len(ids), 200):
        done = _patiently(["scancel", *ids[first : first + 200]])
        if done.returncode and "invalid job id" not in done.stderr.lower():
            raise InputError(f"scancel: {_message(done)}")


def max_array_size() -> int | None:
    """The cluster's MaxArraySize: an array has at most so many elements; None where SLURM does not answer."""
    done = _patiently(["scontrol", "show", "config"])
    match = re.search(r"MaxArraySize\s*=\s*(\d+)", done.stdout)
    return int(match[1]) if match else None


def _patiently(command: Sequence[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command that may run twice without harm, repeated until the controller answers."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        done = _call(command, stdin=stdin)
        if done.returncode == 0 or not BUSY.search(done.stderr) or time.monotonic() > deadline:
            return done
        time.sleep(1.0)


def _call(
    command: Sequence[str], cwd: Path | None = None, stdin: str | None = None, timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            env=environment(os.environ),
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise InputError(f"{command[0]}: not on the PATH; is this a login node of the cluster?") from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"socket timed out: no answer in {timeout_s:.0f} s")


def _message(done: subprocess.CompletedProcess[str]) -> str:
    """A command's own message on its failure, in one line."""
    lines = [re.sub(r"^\w+: (error: )?", "", line) for line in (done.stderr or done.stdout).splitlines()]
    return "; ".join(line.strip() for line in lines if line.strip()) or f"exit code {done.returncode}"
