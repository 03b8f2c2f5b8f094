"""What a study will take and lack before anything runs: its plan with the time of what is missing here, of its
evaluations, and what the fits of its runs cannot determine.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from analysis.fits.settings import MIN_CROSSINGS
from arch.amounts import count, counted, flop
from arch.errors import InputError
from arch.registry import pattern_fields
from data.vocabulary import BYTES
from flops import count_params, train_flops_per_token
from flops.tables import duration
from jobs.expected import Expected, expected_time
from jobs.local import at_once

from ..rundir.directory import RunDir
from ..rundir.tracking import check_trackers
from ..rundir.worklist import is_trained
from ..study.plan import Plan, plan
from ..study.run import RunSpec
from ..study.schedule import DECAYED, phase
from .evaluation import pace_here, planned_tokens
from .forecast import Waiting, trainable
from .gpu_sharing import gains_of, shares_of
from .request import Request
from .training import check_trunks

if TYPE_CHECKING:
    from analysis.design.check import Run

    from ..study.schema import Fit
    from ..study.spec import StudySpec

LINEAR = 0.25  # half of the interval of an exponent between 0 and 1, beyond which the linearised width is a bound alone
MOST_CHECKED = 200  # runs
REFUSES = "training refuses"  # as a warning of a plan begins
LEAST_SIZES = 3  # of a law of N_opt, by any approach


def outstanding(request: Request) -> list[str]:
    """The ids of the runs that `scaling train` would train now. Raises InputError where it would refuse."""
    request.check_runs()
    check_trunks(request)
    todo = [run for run in trainable(request) if not is_trained(run, request.rundir(run))]
    return [run.run_id for run in todo if request.rundir(run).status()["state"] != "failed"]


@dataclass
class TimedPlan:
    """The plan, and the time that what is missing is expected to take here."""

    plan: Plan
    expected: Expected

    def to_dict(self) -> dict[str, Any]:
        return self.plan.to_dict() | {"expected": asdict(self.expected) | {"text": str(self.expected)}}

    @property
    def headline(self) -> str:
        """What is to be done and how long that takes, after a line for each warning."""
        study = self.plan.study
        return "".join(f"warning: {line}\n" for line in self.plan.warnings) + (
            f"{study.name}: {counted(len(self.plan.runs), 'run')}, {count(self.plan.n_tokens)} tokens, "
            f"C = {flop(self.plan.flops_exact)} FLOP exact; everything goes to {study.directory}/\n{self.expected}"
        )


def timed_plan(request: Request) -> TimedPlan:
    """The plan of the chosen runs, with a warning where training would refuse them."""
    todo, done = list[tuple[RunSpec, RunDir]](), list[tuple[RunSpec, RunDir]]()
    for run in request.runs:
        rundir = request.rundir(run)
        if is_trained(run, rundir):
            done.append((run, rundir))
        elif rundir.status()["state"] != "failed":
            todo.append((run, rundir))
    runs, jobs = [run for run, _ in todo], request.study.jobs
    gains = gains_of(runs, shares_of(runs, jobs), at_once(jobs.parallel, jobs.processes))
    expected = expected_time(request.study, todo, done, gains)
    made = plan(request.study, request.runs)
    if request.study.jobs.cluster is None:
        made.outlook.append(str(expected))
    else:
        made.outlook.append("`scaling submit` with --dry-run says how long it takes on the study's cluster")
    made.notes += [f"learning rates (lr: law) are those of {file.path}" for file in request.lock.laws]
    if request.study.recipe is not None:
        laws = dict(item for file in request.lock.laws for item in file.law.laws.items())
        made.notes += [f"{arch}: {laws[arch].formula}" for arch in request.study.grid.archs if arch in laws]
    for check in (request.check_runs, partial(check_trackers, request.study.tracking)):
        try:
            check()
        except InputError as error:
            made.warnings.append(f"{REFUSES}: {error}")
    return TimedPlan(made, expected)


def outlook(request: Request) -> list[str]:
    """Lines on the time of the evaluations, what the fits of these runs will not determine where any architecture has
    several sizes, and what waits."""
    fitted = [run for run in request.runs if not run.is_forecast]
    lines = evaluation_time(request) if request.study.jobs.cluster is None else []
    if len({(run.arch, run.size) for run in fitted}) > len({run.arch for run in fitted}):
        lines += [*fit_notes(fitted), *design_notes(fitted, request.study)]
    return lines + Waiting.of(request).lines(request)


def fit_notes(runs: Sequence[RunSpec]) -> list[str]:
    """A line for each thing that the fits will lack whatever the losses: sizes for a law of N_opt, seeds for
    intervals."""
    sizes: dict[str, set[str]] = {}
    seeds: dict[tuple[str, ...], set[int]] = {}
    for run in runs:
        sizes.setdefault(run.arch, set()).add(run.size)
        seeds.setdefault(run.kind, set()).add(run.seed)
    lines = []
    if few := [arch for arch, own in sizes.items() if len(own) < LEAST_SIZES]:
        lines.append(f"fits: {', '.join(few)} can have no law of N_opt: it takes {LEAST_SIZES} sizes")
    if few := [arch for arch, own in sizes.items() if LEAST_SIZES <= len(own) <= MIN_CROSSINGS]:
        lines.append(
            f"fits: {', '.join(few)} can have no law of N_opt by the envelope, which needs {MIN_CROSSINGS} pairs of "
            f"neighbouring sizes whose curves cross; the parametric surface and isoFLOP may give one"
        )
    if all(len(own) == 1 for own in seeds.values()):
        lines.append("fits: no size has two seeds: no intervals")
    return lines


def design_notes(runs: Sequence[RunSpec], study: StudySpec) -> list[str]:
    """A line for each architecture whose exponent of N_opt these runs may give, and will not determine well enough, and
    the command that proposes other runs for their compute; a single one where there are too many runs to look at, or
    where axes make them several studies."""
    if len(runs) > MOST_CHECKED or any(run.point for run in runs):
        why = f"more than {MOST_CHECKED} runs" if len(runs) > MOST_CHECKED else "axes"
        return [f"design: not checked ({why}): docs/design.md"]
    from analysis.design.check import WIDE_A, expect
    from analysis.design.worlds import TEXT, Noise

    fit, vocabulary = study.fit, {run.arch: run.config.vocab_size for run in runs}
    runs_of = {arch: of for arch, of in runs_by_arch(runs, fit).items() if len({run.size for run in of}) >= LEAST_SIZES}
    means, noise = (0.0, 0.0), Noise()
    if fit.loss == "train_smoothed":
        means, noise = (float(fit.smoothing_tokens), fit.smoothing_fraction), Noise(text=TEXT)
    lines: dict[str, list[str]] = {}
    for arch, arch_runs in runs_of.items():
        try:
            expected = expect(arch_runs, vocabulary[arch], noise, *means)
        except InputError as error:  # shapes of nearly one size, say
            lines.setdefault(f"no law of N_opt: {error}", []).append(arch)
            continue
        if math.isinf(expected.half_a):
            lines.setdefault(f"no law of N_opt: {expected.remedy}", []).append(arch)
        elif expected.half_a > WIDE_A:
            width = f"about ±{expected.half_a:.2f}" if expected.half_a < LINEAR else f"±{LINEAR} or worse"
            text = f"the exponent of N_opt will be known to {width} (limit {WIDE_A})"
            text += f": {expected.remedy}" if expected.remedy else ""
            lines.setdefault(text, []).append(arch)
    noted = [f"design: {', '.join(archs)}: {text}" for text, archs in lines.items()]
    if noted:
        noted.append(
            f"design: computed to first order, for noise between seeds of {noise.seed:.2%} of the loss; intervals of "
            f"whole studies may be narrower or wider. For the same compute `{design_command(runs, study)}` proposes "
            f"sizes, tokens and seeds by simulating such studies"
        )
    return noted


def design_command(runs: Sequence[RunSpec], study: StudySpec) -> str:
    """The command that proposes another study of the compute of these runs."""
    archs, first = list(dict.fromkeys(run.arch for run in runs)), runs[0]
    spent = sum(float(train_flops_per_token(run.config, "exact")) * run.trained_tokens for run in runs)
    least = min(count_params(run.config).non_embedding for run in runs)
    words = ["--arch", ",".join(archs), "--budget", flop(spent), "--context", str(first.config.context_length)]
    words += ["--least-size", count(least)]
    words += ["--tokenizer", study.corpus.tokenizer] if study.corpus.tokenizer != BYTES else []
    words += ["--device", "cpu"] if first.training.precision == "fp32" else []
    words += ["--study", str(study.path)] if study.plugins or any(map(pattern_fields, archs)) else []
    return shlex.join(["scaling", "design", *words])


def runs_by_arch(runs: Sequence[RunSpec], fit: Fit) -> dict[str, list[Run]]:
    """By architecture, its runs as designs see them; not trunks, and no architecture whose costs are not known."""
    from analysis.design.check import Run

    trunks = {run.trunk for run in runs if run.trunk}
    runs_of: dict[str, list[Run]] = {}
    for run in runs:
        if run.run_id in trunks:
            continue
        try:
            per_token = float(train_flops_per_token(run.config, "exact"))
        except InputError:  # of a plugin
            continue
        decayed = fit.loss == "validation" and phase(run.n_steps, run.training) == DECAYED
        n_params, trunk = float(count_params(run.config).non_embedding), run.trunk or run.run_id
        planned = Run(run.size, n_params, float(run.n_tokens), per_token, trunk, bool(run.trunk) or decayed)
        runs_of.setdefault(run.arch, []).append(planned)
    return runs_of


def evaluation_time(request: Request) -> list[str]:
    """A line on the time of the evaluations that are missing; none where none is, and where the tasks' data or the
    corpus are not there to know."""
    try:
        tokens = planned_tokens(request)
    except InputError:
        return []
    pace, seconds, n_checkpoints = pace_here(request), 0.0, 0
    for run in request.runs:
        evals = request.rundir(run).path / "evals"
        for step in run.checkpoint_steps:
            missing = [task for task in tokens[run.run_id] if not (evals / f"{step:08d}" / f"{task}.json").exists()]
            n_checkpoints += bool(missing)
            seconds += sum(pace.seconds(task, run, tokens[run.run_id][task]) for task in missing)
    known = {task for of_run in tokens.values() for task in of_run}
    unknown = [
        word for word in request.study.evaluation.tasks or () if ":" in word and word.partition(":")[2] not in known
    ]
    if not n_checkpoints:
        return []
    workers = at_once(request.study.jobs.parallel, 1)
    return [
        f"evaluations are expected to take about {duration(seconds / workers)} here: "
        f"{counted(n_checkpoints, 'checkpoint')}, {counted(workers, 'worker')} ({pace.basis})"
        + (f"; without {', '.join(unknown)}, of unknown length" if unknown else "")
    ]
