"""`scaling try`: is a change of an architecture worth scaling? A few runs of it beside the study's own, and a verdict.

The two smallest sizes first; unless the variant is better at both, that is all. Then two more sizes, and projections
at larger budgets. Every part does only what is missing, so that the command may be given again after anything.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from arch.amounts import count, counted, flop
from arch.errors import InputError
from arch.tables import rows_table, wrapped
from data.files import read_json, write_json
from data.units import loss_unit
from flops.quantity import flop as read_flop

from ..rundir.worklist import is_trained
from ..study.run import RunSpec
from ..study.schedule import decay_start, planned_steps
from .corpus import data_stage, reads_text
from .evaluation import VALIDATION, EvalOptions, eval_stage, shown_words
from .options import AsJson, DryRun, Only, Out, Repair, StudyOptions, notify, print_json
from .planning import outstanding, timed_plan
from .request import Request
from .training import check_architectures, train_stage
from .variant import Pair, Trial, exact, opened, read_variant, unlike

if TYPE_CHECKING:
    from analysis.fits.pairwise import Comparison
    from analysis.fits.points import Points
    from analysis.trial import Difference, Pairs, SeedVariance, Verdict

VERSION = 3  # of try.json
FIRST, MORE = 2, 2  # sizes of each stage
BEYOND = 10.0  # times the study's largest compute: the second budget
POINTS_A_RUN, FIRST_SHARE = 5, 0.1  # of a curve: points, and where they begin


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """The study of a trial, what of it is trained, and what is projected."""

    against: Annotated[str, typer.Option(metavar="STUDY", help="The study that it is compared with.")]
    match: Annotated[str, typer.Option(help="Equal tokens (data), or equal exact training FLOP (compute).")] = "data"
    at: Annotated[
        str | None, typer.Option(help="C in FLOP of the projections, as 1e20,1e21; default: the study's largest, x10.")
    ] = None
    go_on: Annotated[bool, typer.Option("--go-on", help="Train the larger sizes whatever the smallest say.")] = False
    train_baseline: Annotated[
        bool, typer.Option("--train-baseline", help="Train the study's own runs first where they are missing.")
    ] = False
    only: Only = None
    out: Out = None
    repair: Repair = False
    dry_run: DryRun = False
    as_json: AsJson = False

    def asked_budgets(self) -> list[float]:
        """Those of --at, ascending. Raises InputError."""
        return sorted(read_flop(amount, "--at") for amount in self.at.split(",")) if self.at else []

    def budgets(self, trial: Trial) -> list[float]:
        """C of the projections in FLOP, ascending."""
        if asked := self.asked_budgets():
            return asked
        largest = max(exact(run) * run.n_tokens for run in trial.ends(()))
        return [largest, BEYOND * largest]


def try_(
    variant: Annotated[
        Path, typer.Argument(metavar="VARIANT", help="A variant's YAML file: name, arch, model, training.")
    ],
    options: TrialOptions,
) -> None:
    """Say whether a change is worth scaling. Trains two small sizes beside the study's own, then two more."""
    options.asked_budgets()  # refused before a new architecture's folder is made
    study = StudyOptions(study=options.against, out=options.out, as_json=options.as_json)
    request = replace(study.request(options.repair), only=options.only)
    with opened(request, read_variant(variant), options.match, options.dry_run) as trial:
        if options.dry_run:
            planned = plan_trial(trial, options)
            return print_json(planned.to_dict()) if options.as_json else print(planned.text())
        try:
            result = try_variant(trial, options)
        except RunsFailed as error:
            for run_id, reason in error.failed.items():
                notify(f"failed: {run_id}: {reason}")
            notify(
                f"error: {counted(len(error.failed), 'run or evaluation is', 'runs or evaluations are')} not done: "
                f"give the same command again"
            )
            raise typer.Exit(1) from None
    print_json(result.stored()) if options.as_json else print(f"\n{result.text()}\n\nstored: {path_of(trial)}")


class RunsFailed(Exception):
    """Runs or evaluations that ended before their time: {name: reason}."""

    def __init__(self, failed: Mapping[str, str]) -> None:
        super().__init__(f"{len(failed)} failed")
        self.failed = dict(failed)


@dataclass(frozen=True)
class StagePlan:
    """What would be trained at `sizes`: the variant's runs `todo`, and the study's own that are `missing`; flops_exact
    counts all of the variant's."""

    sizes: list[str]
    pairs: list[dict[str, Any]]
    todo: list[str]
    missing: list[str]
    flops_exact: float
    expected: list[str]


@dataclass(frozen=True)
class TrialPlan:
    """What a trial would train, and the budgets at which it would project."""

    trial: Trial
    at: list[float]
    stages: list[StagePlan]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        stages = [asdict(stage) for stage in self.stages]
        return {**_identity(self.trial), "at": self.at, "stages": stages, "warnings": self.warnings}

    def text(self) -> str:
        lines = []
        for number, stage in enumerate(self.stages, 1):
            when = "" if number == 1 else " (only if the variant is better at both sizes before)"
            lines.append(
                f"stage {number}{when}: {' and '.join(stage.sizes)}, {flop(stage.flops_exact)} FLOP exact; "
                f"would train {counted(len(stage.todo), 'run')}: {', '.join(stage.todo) or 'none'}"
            )
            lines += stage.expected
            if stage.missing:
                lines.append(f"the study's own runs that are missing: {', '.join(stage.missing)}")
        lines.append(f"projected at {' and '.join(map(flop, self.at))} FLOP exact")
        lines += [f"warning: {line}" for line in self.warnings]
        return "\n".join(wrapped([*lines, "(dry run: nothing was written)"]))


def plan_trial(trial: Trial, options: TrialOptions) -> TrialPlan:
    """What would be trained. Writes nothing."""
    _check_name(trial)
    stages, warnings = list[StagePlan](), list[str]()
    for sizes in (trial.sizes[:FIRST], trial.sizes[FIRST : FIRST + MORE]):
        if sizes:
            requests, pairs = trial.requests(sizes), trial.pairs(sizes)
            warnings += unlike(pairs) + too_little_text(trial, pairs)
            stage = StagePlan(
                sizes=sizes,
                pairs=[pair.to_dict() for pair in pairs],
                todo=[run_id for request in requests for run_id in outstanding(request)],
                missing=[run.run_id for run in _missing(trial, sizes)],
                flops_exact=_flops_of(trial, sizes),
                expected=[str(timed_plan(request).expected) for request in requests],
            )
            stages.append(stage)
    return TrialPlan(trial, options.budgets(trial), stages, warnings)


def _flops_of(trial: Trial, sizes: Sequence[str]) -> float:
    return sum(exact(run) * run.trained_tokens for run in trial.runs(sizes))


def _missing(trial: Trial, sizes: Sequence[str]) -> list[RunSpec]:
    """The study's own runs at `sizes` that are not done, trunks too. Raises InputError where one is of another spec."""
    request = trial.baseline(sizes)
    request.check_runs()
    return [run for run in request.runs if not is_trained(run, request.rundir(run))]


@dataclass
class TrialResult:
    """A trial so far. left: sizes that need not be trained; compute, losses: comparisons at the budgets, and why
    surfaces give none of compute; flops: exact training FLOP of the variant."""

    trial: Trial
    at: list[float]
    pairs: list[Pair]
    verdict: Verdict
    left: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    seeds: SeedVariance | None = None
    compute: list[Comparison] | None = None
    compute_reason: str | None = None
    losses: list[Comparison] | None = None
    warnings: list[str] = field(default_factory=list)
    flops: float = 0.0

    def stored(self) -> dict[str, Any]:
        """The content of try.json."""
        from analysis.trial import LEVEL

        return {
            **{"kind": "try", "version": VERSION, **_identity(self.trial)},
            **{"study": self.trial.study.name, "level": LEVEL, "at": self.at},
            "pairs": [pair.to_dict() for pair in self.pairs],
            "differences": [_difference_row(difference) for difference in self.differences],
            "seed_noise": asdict(self.seeds) if self.seeds else None,
            **{"compute": _ratio_rows(self.compute), "compute_reason": self.compute_reason},
            "losses": _ratio_rows(self.losses),
            "verdict": {"word": self.verdict.word, "reason": self.verdict.reason},
            "flops_exact": self.flops,
            "not_trained": {"sizes": self.left, "flops_exact": _flops_of(self.trial, self.left)},
            "warnings": self.warnings,
        }

    def text(self) -> str:
        """What people read: the verdict, the differences, the projections, and what it took."""
        from analysis.trial import LEVEL

        trial, variant, unit = self.trial, self.trial.variant, loss_unit([self.trial.study.corpus.tokenizer])
        what = ", ".join(f"{field}={value}" for field, value in variant.changes.items()) or f"arch {variant.arch}"
        title = (
            f"try {variant.name}: {variant.baseline} with {what}, matched in {trial.match}; study {trial.study.name}"
        )
        parts = ["\n".join(wrapped([title, f"{self.verdict.word}: {self.verdict.reason}"]))]
        if self.differences:
            heading = f"held-out loss at the last checkpoint, {unit}; {LEVEL:.0%} intervals of the difference\n"
            basis = f"noise between seeds: {self.seeds.basis if self.seeds else 'not known, not counted'}"
            parts.append(heading + rows_table(self._difference_rows()) + "\n" + "\n".join(wrapped([basis])))
        if rows := self._projection_rows():
            parts.append(f"projected; {LEVEL:.0%} intervals\n{rows_table(rows)}")
        lines = [f"no comparison of compute: {self.compute_reason}"] if self.compute_reason else []
        lines.append(f"cost: {flop(self.flops)} FLOP exact")
        if self.left:
            spared = flop(_flops_of(trial, self.left))
            lines.append(f"not trained: {' and '.join(self.left)}, {spared} FLOP exact (--go-on)")
        lines += [f"warning: {line}" for line in self.warnings]
        return "\n\n".join([*parts, "\n".join(wrapped(lines))])

    def _difference_rows(self) -> list[dict[str, object]]:
        rows = []
        for difference in self.differences:
            pair = next(pair for pair in self.pairs if pair.size == difference.size)
            sides, ends = pair.to_dict(), "-"
            base, other = sides["baseline"], sides["variant"]
            if difference.ends is not None:
                ends = "[{:+.4f}, {:+.4f}]".format(*difference.ends)
            rows.append(
                {
                    "size": difference.size,
                    "seeds": len(difference.seeds),
                    "N": f"{count(base['n_params_non_embedding'])} / {count(other['n_params_non_embedding'])}",
                    "FLOP/token": f"{flop(base['flops_per_token_exact'])} / {flop(other['flops_per_token_exact'])}",
                    "baseline": f"{difference.baseline:.4f}",
                    "variant": f"{difference.variant:.4f}",
                    "difference": f"{difference.value:+.4f}",
                    "interval": ends,
                    "": difference.loss.verdict,
                }
            )
        return rows

    def _projection_rows(self) -> list[dict[str, object]]:
        """The variant's compute and losses as shares of the baseline's, a row a budget."""
        rows = []
        projections = (
            (self.compute, "compute for the same loss", ".2f"),
            (self.losses, "loss by a line", ".4f"),
        )
        for place, c in enumerate(self.at):
            row: dict[str, object] = {"C exact": flop(c)}
            for comparisons, head, form in projections:
                if comparisons:
                    ratio = comparisons[place].ratio
                    high = "no bound" if ratio.high is None else format(ratio.high, form)
                    row[f"{head}, times the baseline's"] = f"{ratio.value:{form}} [{ratio.low:{form}}, {high}]"
            rows += [row] if len(row) > 1 else []
        return rows


def _difference_row(difference: Difference) -> dict[str, Any]:
    """For JSON: nats a token, with the interval of the difference."""
    low, high = difference.ends or (None, None)
    kept = {key: value for key, value in asdict(difference).items() if key != "loss"}
    return kept | {"value": difference.value, "low": low, "high": high, "verdict": difference.loss.verdict}


def _ratio_rows(comparisons: Sequence[Comparison] | None) -> list[dict[str, Any]] | None:
    """For JSON: the variant's share of the baseline's at each C; null for an end without a bound."""
    if comparisons is None:
        return None
    return [
        {"c": row.at, "ratio": row.ratio.value, "low": row.ratio.low, "high": row.ratio.high, "verdict": row.verdict}
        for row in comparisons
    ]


def try_variant(trial: Trial, options: TrialOptions) -> TrialResult:
    """The trial, which is stored at its end. Raises InputError for what cannot be compared, RunsFailed where runs ended
    before their time."""
    from analysis.trial import NOT_WORTH, Verdict, first_stage, last_stage

    _check_name(trial)
    at, unit = options.budgets(trial), loss_unit([trial.study.corpus.tokenizer])
    first, more = trial.sizes[:FIRST], trial.sizes[FIRST : FIRST + MORE]
    result = TrialResult(trial, at, trial.pairs(first), Verdict("", ""), more)  # refuses before anything is written
    _require_baseline(trial, first, options)
    for request in (trial.baseline(trial.sizes), *trial.requests(trial.sizes)):
        check_architectures(request)
    _require_documents(trial, result.pairs)
    _say_warnings(trial, result.pairs)
    if not path_of(trial).exists():  # an unfinished one, which keeps the name
        _write(trial, {"kind": "try", "version": VERSION, **_identity(trial), "verdict": None})
    if diverged := _train(trial, first, options):
        result.verdict = Verdict(NOT_WORTH, diverged)
        return _closed(result)
    _measure(result, first)
    result.verdict = first_stage(result.differences, unit)
    if not more or not (result.verdict.goes_on or options.go_on):
        if result.verdict.goes_on:
            result.verdict = last_stage(result.differences, None, None, unit)
        return _closed(result)
    trial.request.say(f"try: {result.verdict.reason}; on to {' and '.join(more)}")
    _require_baseline(trial, more, options)
    larger = trial.pairs(more)
    _say_warnings(trial, larger)
    result.pairs, result.left = [*result.pairs, *larger], []
    if diverged := _train(trial, more, options):
        result.verdict = Verdict(NOT_WORTH, diverged)
        return _closed(result)
    _measure(result, [*first, *more])
    _project(result)
    result.verdict = last_stage(result.differences, result.compute, result.losses, unit)
    return _closed(result)


def _require_baseline(trial: Trial, sizes: Sequence[str], options: TrialOptions) -> None:
    lacking = _missing(trial, sizes)
    if not lacking or options.train_baseline:
        return
    command = f"scaling train {shown_words(trial.baseline(sizes))} --out {shlex.quote(trial.study.out)}"
    raise InputError(
        f"{trial.study.directory}: {len(lacking)} of the study's own runs at {', '.join(sizes)} are not trained "
        f"({lacking[0].run_id}{', ...' if len(lacking) > 1 else ''}): `{command}` trains them, or add --train-baseline"
    )


def _train(trial: Trial, sizes: Sequence[str], options: TrialOptions) -> str:
    """Train and evaluate what is missing at `sizes`; returns how a run of the variant diverged, "" where none did.
    Raises RunsFailed."""
    requests, baseline = trial.requests(sizes), trial.baseline(sizes)
    failed = dict[str, str]()
    with baseline.writing():
        corpus = data_stage(baseline, any(map(reads_text, [baseline, *requests])))
        _require_documents(trial, trial.pairs(sizes))
        if options.train_baseline and _missing(trial, sizes):
            trial.request.say("try: the study's own runs first")
            failed |= train_stage(baseline, corpus)[1]
        failed |= _evaluated(baseline)
    diverged = ""
    for request in requests if not failed else ():
        with request.writing():
            ended = train_stage(request, corpus)[1]
            states = {run.run_id: request.rundir(run).status()["state"] for run in request.runs}
            for name, why in ended.items():
                if states[name] == "failed":
                    diverged = diverged or f"the variant's {name} diverged: {why}"
                else:
                    failed[name] = why
            failed |= {} if ended else _evaluated(request)
        if failed:
            break
    if failed:
        raise RunsFailed(failed)
    return diverged


def _evaluated(request: Request) -> dict[str, str]:
    """Evaluate the held-out loss where it is missing; returns what failed."""
    evaluated = eval_stage(request, EvalOptions(tasks=(VALIDATION,)))
    return {name: reason for reason, names in evaluated["failed"].items() for name in names}


def _measure(result: TrialResult, sizes: Sequence[str]) -> None:
    """The differences at `sizes`."""
    from analysis.trial import difference, seed_variance

    tables = [pairs_of_size(result.trial, size, result.pairs) for size in sizes]
    result.seeds = seed_variance(tables, seed_noise(result.trial))
    result.differences = [difference(table, result.seeds) for table in tables]


def _project(result: TrialResult) -> None:
    """The compute for the same loss, and the losses, at the budgets."""
    from analysis.trial import project_compute, project_loss

    trial, differences, noise = result.trial, result.differences, seed_noise(result.trial)
    variants = [run for run in trial.runs([d.size for d in differences]) if not run.branches]
    baseline = [run for run in trial.ends(()) if is_trained(run, trial.request.rundir(run))]
    # checkpoints before a run's end can be fitted beside its end where no rate depends on where the run ends
    trained = [*baseline, *variants]
    curves = all(run.trunk is None and decay_start(run.training) == planned_steps(run.training) for run in trained)
    text = max((difference.se_text or 0.0) / difference.baseline for difference in differences)
    result.losses = project_loss(differences, result.seeds, result.at)
    try:
        tables = points(trial, baseline, curves), points(trial, variants, curves)
        result.compute = project_compute(*tables, result.at, noise[0] if noise else 0.0, text)
    except InputError as error:
        result.compute_reason = str(error)


def _closed(result: TrialResult) -> TrialResult:
    """The result with its cost and warnings, stored."""
    from analysis.trial import ALONE

    trial, sizes = result.trial, list(dict.fromkeys(pair.size for pair in result.pairs))
    result.flops = _flops_of(trial, sizes)
    result.warnings = [*unlike(result.pairs), *([ALONE] if result.differences and result.seeds is None else [])]
    _write(trial, result.stored())
    return result


def _say_warnings(trial: Trial, pairs: Sequence[Pair]) -> None:
    for line in unlike(pairs):
        trial.request.say(f"warning: {line}")


def path_of(trial: Trial) -> Path:
    return trial.folder / "try.json"


def _identity(trial: Trial) -> dict[str, Any]:
    identity = {"variant": trial.variant.record, "match": trial.match, "only": trial.request.only}
    return dict(json.loads(json.dumps(identity)))  # as it is read again


def _check_name(trial: Trial) -> None:
    """Raise InputError where the name is that of another variant, or of the same one matched otherwise."""
    path, identity = path_of(trial), _identity(trial)
    if not path.exists():
        return
    try:
        raw = read_json(path)
        stored = {key: raw[key] for key in identity}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path}: is damaged: remove it and give the command again") from None
    if stored != identity:
        is_other = stored["variant"] != identity["variant"]
        what = "another variant" if is_other else "this variant matched otherwise"
        raise InputError(f"{path.parent}: the name {trial.variant.name} is taken by {what}: give another name")


def _write(trial: Trial, content: dict[str, Any]) -> None:
    trial.folder.mkdir(parents=True, exist_ok=True)
    write_json(path_of(trial), content)


def pairs_of_size(trial: Trial, size: str, pairs: Sequence[Pair]) -> Pairs:
    """The seeds of a size at the end of their longest runs, window by window. Raises InputError where a checkpoint was
    not evaluated, or on other windows."""
    from analysis.held_out import documents_of, load_held_out, paired_difference
    from analysis.trial import Pairs

    of_size, home = [pair for pair in pairs if pair.size == size], trial.study.directory
    longest = max(pair.baseline.n_tokens for pair in of_size)
    chosen = [pair for pair in of_size if pair.baseline.n_tokens == longest]
    baselines = [load_held_out(home, pair.baseline.run_id, pair.baseline.n_steps) for pair in chosen]
    variants = [load_held_out(home, pair.variant.run_id, pair.variant.n_steps) for pair in chosen]
    for baseline, variant in zip(baselines, variants, strict=True):
        documents = documents_of(home, baseline)
        paired_difference(variant, baseline, documents)  # raises where the windows are others
    seeds = tuple(pair.baseline.seed for pair in chosen)
    flops = exact(chosen[0].baseline) * longest
    nats = [np.stack([held_out.losses for held_out in each]) for each in (baselines, variants)]
    return Pairs(size, seeds, nats[0], nats[1], flops, documents)


def too_little_text(trial: Trial, pairs: Sequence[Pair]) -> list[str]:
    """A line for each context length at which the held-out text, where the corpus is there, has too few independent
    documents for an interval: known before anything is trained."""
    from analysis.held_out import LEAST, independent, spans_of
    from data.corpus import open_corpus

    try:
        corpus = open_corpus(trial.study.directory / "corpus")
    except InputError:
        return []
    lines = []
    for length in dict.fromkeys(pair.baseline.config.context_length for pair in pairs):
        n_windows = independent(spans_of(corpus, length, trial.study.evaluation.validation_tokens))
        if n_windows < LEAST:
            lines.append(
                f"the held-out text amounts to {n_windows:.1f} independent documents, and an interval needs {LEAST:g}: "
                f"no difference will be detected; raise evaluation.validation_tokens or hold out more text"
            )
    return lines


def _require_documents(trial: Trial, pairs: Sequence[Pair]) -> None:
    """Raise InputError where the held-out text says before anything is trained that no difference will be detected."""
    if lines := too_little_text(trial, pairs):
        raise InputError(f"{trial.study.directory / 'corpus'}: {lines[0]}")


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
