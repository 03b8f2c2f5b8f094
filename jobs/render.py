"""A job of a plan as a batch script: Jinja2 templates that a cluster's admin can read and replace (docs/clusters.md).

No name is spliced into shell text: every value of a study goes through the one filter `quote`, #SBATCH lines hold
numbers and checked words alone, and run ids are read from a file at run time.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from arch.arguments import plugin_words
from arch.errors import InputError
from scaling.study.jobs_schema import Cluster

from .model import ArrayJob, Resources

TEMPLATES = Path(__file__).parent / "templates"
UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True)
class Paths:
    """Where a submission's things are; all absolute. `work` is where the study's relative paths start."""

    submission: Path
    code: Path
    study_file: Path
    directory: Path  # of the study's output: <out>/<study>
    work: Path

    def elements(self, job: ArrayJob) -> Path:
        return self.submission / f"{job.name}.elements"

    def script(self, job: ArrayJob) -> Path:
        return self.submission / f"{job.name}.sbatch"

    @property
    def runs(self) -> Path:
        return self.directory / "runs"


@dataclass(frozen=True)
class ScriptContext:
    """What every script of a submission shares: the cluster, the paths, the command lines' own options."""

    study: str
    profile: Cluster
    paths: Paths
    python: str
    options: tuple[str, ...] = ()  # of the `scaling` commands: --set, ...
    only: tuple[str, ...] = ()  # of those that take runs: --only ...
    retry: bool = False  # train on the runs that failed
    plugins: tuple[str, ...] = ()  # of the study, which no run's record may name by itself
    python_path: str = ""  # PYTHONPATH where the study is submitted: some sites hand no environment on to a job

    @property
    def study_arguments(self) -> list[str]:
        """STUDY and the options that make it the study that was submitted."""
        return [str(self.paths.study_file), "--out", str(self.paths.directory.parent), *self.options]


def job_name(context: ScriptContext, job: ArrayJob) -> str:
    """The job's name in the queue: of one submission alone, so that it can be found there."""
    return UNSAFE.sub("_", f"{context.study}-{context.paths.submission.name}-{job.name}")


def sbatch_options(context: ScriptContext, job: ArrayJob) -> list[str]:
    """The options of the script's #SBATCH lines; none has a space, a quote or a path in it."""
    profile, resources = context.profile.of_kind(job.kind), job.resources
    log = f"logs/{job.name}_{'%A_%a' if is_array(job) else '%j'}.log"
    options = [f"--job-name={job_name(context, job)}", f"--output={log}", "--open-mode=append"]
    options.append("--requeue" if profile.requeue else "--no-requeue")
    options += [f"--nodes={resources.nodes}", f"--ntasks-per-node={resources.at_once * resources.tasks_per_node}"]
    options += [f"--cpus-per-task={resources.cpus_per_task}", f"--time={resources.minutes}"]
    if resources.memory_mb is not None:
        options.append(f"--mem={resources.memory_mb}M")
    if resources.gpus_per_node:
        options.append(_gpus_option(profile, resources.gpus_per_node))
    if is_array(job):
        limit = f"%{job.throttle}" if job.throttle else ""
        options.append(f"--array=0-{len(job.elements) - 1}{limit}")
        options.append(f"--signal=B:USR1@{profile.signal_s}")
    words = ((name, getattr(profile, name)) for name in ("partition", "account", "qos", "constraint"))
    options += [f"--{name}={word}" for name, word in words if word is not None]
    return options + list(profile.sbatch)


def _gpus_option(profile: Cluster, number: int) -> str:
    count = f"{profile.gpu_type}:{number}" if profile.gpu_type else str(number)
    return f"--gpus-per-node={count}" if profile.ask_gpus == "gpus-per-node" else f"--gres=gpu:{count}"


def _srun(profile: Cluster, resources: Resources) -> list[str]:
    """srun with what all steps of a job ask for: beside others only for a share of the node."""
    words = ["srun", *profile.srun, f"--cpus-per-task={resources.cpus_per_task}"]
    if resources.at_once > 1:
        words.append("--exact")
        words += [f"--mem={resources.memory_mb // resources.at_once}M"] if resources.memory_mb is not None else []
        words += [_gpus_option(profile, resources.tasks_per_node)] if resources.gpus_per_node else []
    return words


def is_array(job: ArrayJob) -> bool:
    return job.kind in ("train", "eval")


def render(context: ScriptContext, job: ArrayJob) -> str:
    """The batch script of a job. Raises InputError for a path that no script can hold, and for a broken template."""
    for path in (context.paths.submission, context.paths.work, context.paths.study_file, context.python):
        if any(character in str(path) for character in "\n\r\0"):
            raise InputError(f"{str(path)!r}: a line break in a path: rename it, batch scripts are read by lines")
    profile = context.profile.of_kind(job.kind)
    python = [*profile.container, profile.python or context.python]
    srun = _srun(profile, job.resources)
    try:
        return (
            _templates(profile.templates)
            .get_template(f"{job.kind}.sbatch.j2")
            .render(
                job=job,
                resources=job.resources,
                profile=profile,
                paths=context.paths,
                sbatch=sbatch_options(context, job),
                srun=quote_all(srun),
                python=quote_all(python),
                python_here=quote_all([*srun, "--nodes=1", "--ntasks=1", *python] if profile.srun else python),
                environment=profile.environment,
                python_path=os.pathsep.join(filter(None, [str(context.paths.code), context.python_path])),
                signal_s=profile.signal_s,
                max_restarts=profile.max_restarts,
                retry=context.retry,
                plugin_options=plugin_words(context.plugins),
                study_arguments=context.study_arguments,
                only=list(context.only),
            )
        )
    except jinja2.TemplateError as error:
        where = getattr(error, "filename", None) or profile.templates or TEMPLATES
        line = f" line {error.lineno}:" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise InputError(f"{where}:{line} the template of {job.kind} jobs: {error}") from None
    except (OSError, UnicodeDecodeError) as error:  # only an own template can be of another encoding
        what = f"the template of {job.kind} jobs or one that it includes cannot be read"
        raise InputError(f"{profile.templates}: {what}: {' '.join(str(error).split())}") from None


def quote_all(words: Sequence[object]) -> str:
    """Words as a shell reads them back."""
    return shlex.join(str(word) for word in words)


@cache
def _templates(folder: str | None) -> jinja2.Environment:
    """folder: a profile's own, which jobs.profile has found to be one."""
    folders = [TEMPLATES] if folder is None else [Path(folder).expanduser(), TEMPLATES]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell, not HTML: `quote` is the escape
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    environment.filters["quote_all"] = quote_all
    return environment
