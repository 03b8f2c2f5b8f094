"""What a study will take before anything runs: parameters, tokens, steps and FLOP of every run, as data and as a table
for reading. Imports no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from arch.amounts import byte_size, count, counted, first_few, flop
from arch.registry import warnings_of
from arch.tables import text_table, wrapped
from flops import cost_table, count_params
from flops.quantity import PF_DAY

from .axes import fields_of, short, unread
from .cost import bytes_of_checkpoints
from .file import given_in
from .recipe import BY_HAND
from .run import RunSpec
from .schema import FORECAST, role_text
from .spec import StudySpec

if TYPE_CHECKING:
    from arch.config import ModelConfig

DEEPER, LARGER = 1.5, 1.05  # times as many layers at a smaller width: another shape; times the parameters: another size
MOST_LINES = 40
MOST_PLACES = 3  # of values given by hand in the place of a rule
NUMBER = re.compile(r"\d+(?:\.\d+)?(?= times)")
UNKNOWN = "unknown"
TOGETHER = "s*: all seeds in one line, and a trunk with its branches where there are many; --json lists every run"


@dataclass(frozen=True)
class RunPlan:
    """A run. n_tokens, n_steps, flops (by convention, those that cover its architecture): from the first token on, of a
    branch that of its trunk; trained_tokens, spent_exact (nan: not known): what it takes itself. lr: None before it has
    one."""

    run_id: str
    arch: str
    size: str
    seed: int
    point: dict[str, Any]
    role: str
    round: int | None  # of a forecast run, from 1 on
    trunk: str | None
    n_params: int
    n_params_non_embedding: int
    n_tokens: int
    n_steps: int
    batch_tokens: int
    trained_tokens: int
    lr: float | None
    spec_hash: str | None
    flops: dict[str, float]
    spent_exact: float
    n_checkpoints: int
    checkpoint_bytes: float

    @classmethod
    def of(cls, run: RunSpec) -> RunPlan:
        cost = cost_table(run.config)
        per_token_of = cost["flops_per_token_train"]
        return cls(
            run_id=run.run_id,
            arch=run.arch,
            size=run.size,
            seed=run.seed,
            point=run.point,
            role=run.role,
            round=run.round_number,
            trunk=run.trunk,
            n_params=cost["n_params"],
            n_params_non_embedding=cost["n_params_non_embedding"],
            n_tokens=run.n_tokens,
            n_steps=run.n_steps,
            batch_tokens=run.training.batch_tokens,
            trained_tokens=run.trained_tokens,
            lr=None if run.is_pending else run.training.peak_lr,
            spec_hash=None if run.is_pending else run.spec_hash,
            flops={name: float(per_token) * run.n_tokens for name, per_token in per_token_of.items()},
            spent_exact=float(per_token_of.get("exact", math.nan)) * run.trained_tokens,
            n_checkpoints=len(run.checkpoint_steps),
            checkpoint_bytes=bytes_of_checkpoints(run),
        )

    @property
    def exact(self) -> float:
        """C under `exact`; nan: not known."""
        return self.flops.get("exact", math.nan)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: FLOP keys name their convention."""
        row = asdict(self) | {"spent_exact": _or_none(self.spent_exact)}
        return row | {f"flops_{name}": value for name, value in row.pop("flops").items()}


@dataclass
class Plan:
    """Lines for the reader: `notes`, `warnings`, and `outlook`: time, evaluations, and what the fits will lack."""

    study: StudySpec
    runs: list[RunPlan]
    notes: list[str]
    warnings: list[str]
    outlook: list[str] = field(default_factory=list)

    @property
    def flops_exact(self) -> float:
        """What all runs spend."""
        return sum(run.spent_exact for run in self.runs)

    @property
    def n_tokens(self) -> int:
        return sum(run.trained_tokens for run in self.runs)

    @property
    def n_checkpoints(self) -> int:
        return sum(run.n_checkpoints for run in self.runs)

    @property
    def checkpoint_bytes(self) -> float:
        return sum(run.checkpoint_bytes for run in self.runs)

    def to_dict(self) -> dict[str, Any]:
        whole = self.flops_exact
        totals = {"n_runs": len(self.runs), "n_tokens": self.n_tokens, "flops_exact": _or_none(whole)}
        totals |= {"n_checkpoints": self.n_checkpoints, "checkpoint_bytes": self.checkpoint_bytes}
        return {
            "study": self.study.name,
            "directory": str(self.study.directory),
            "sets": list(self.study.sets),
            "runs": [run.to_dict() | {"share": _or_none(run.spent_exact / whole)} for run in self.runs],
            "totals": totals,
            "outlook": self.outlook,
            "notes": self.notes,
            "warnings": self.warnings,
        }


def plan(study: StudySpec, runs: Sequence[RunSpec]) -> Plan:
    """The plan of runs of a study, forecasts among them."""
    rows = [RunPlan.of(run) for run in runs]
    without = unread(study.grid.axes, study.grid.archs)
    notes = recipe_lines(study)
    notes += [f"axis {field} means nothing to {', '.join(archs)}: one run there" for field, archs in without.items()]
    notes += dict.fromkeys(note for run in runs for note in run.notes)
    unchecked = dict.fromkeys(run.arch for run in runs if not run.checked)
    without_checks = [f"{', '.join(unchecked)}: not checked before training (jobs.checked: false)"] if unchecked else []
    return Plan(study, rows, notes, [*without_checks, *confounded(runs), *_not_beyond(rows)])


def recipe_lines(study: StudySpec) -> list[str]:
    """The rules of the section recipe with their sources, a line each; a rule that keys of training replace names
    them. A rate by a law file (`lr: law`) follows its rule."""
    if study.recipe is None:
        return []
    given = {
        f"overrides.{by}.{key}": given_in(change) for by, table in study.overrides for key, change in table.items()
    }
    given |= {"training": given_in(study.training) | given_in(study.set_training)}
    given |= {"grid.axes": {short(field): values for field, values in fields_of(study.grid.axes).items()}}
    lines = []
    for rule, line in study.recipe.lines.items():
        by_hand = [(place, key, keys.get(key)) for place, keys in given.items() for key in BY_HAND[rule]]
        hand = [f"{place}.{key}" for place, key, value in by_hand if value not in (None, "law")]
        what = f"by hand: {first_few(hand, MOST_PLACES)}, in the place of {line}" if hand else line
        lines.append(f"recipe: {what}")
    return lines


def confounded(runs: Sequence[RunSpec]) -> list[str]:
    """A line for each reason why a law of these runs would be one of more than size and tokens."""
    return [*warnings_of((run.size, run.config) for run in runs), *_jumps_of_shape(runs)]


def _jumps_of_shape(runs: Sequence[RunSpec]) -> list[str]:
    """A line about each pair of neighbouring sizes, LARGER times apart or more, of which the larger is narrower and at
    least DEEPER times as deep: a law through both is one of depth too (docs/research/second-study.md)."""
    models: dict[tuple[str, str], dict[str, tuple[int, ModelConfig]]] = {}
    for run in runs:
        sized = count_params(run.config).non_embedding, run.config
        models.setdefault((run.arch, str(run.point)), {})[run.size] = sized
    jumps: dict[str, list[str]] = {}
    for (arch, _), sizes in models.items():
        by_size = sorted(sizes.items(), key=lambda item: item[1][0])
        for (below, (few, small)), (above, (many, large)) in pairwise(by_size):
            narrower = large.d_model < small.d_model and large.n_layers >= DEEPER * small.n_layers
            if narrower and many >= LARGER * few:
                line = (
                    f"from {below} to {above} the width falls from {small.d_model} to {large.d_model} and the depth "
                    f"goes from {small.n_layers} to {large.n_layers} layers: a law through both bends there; `layers` "
                    "of a ladder keeps one depth"
                )
                jumps.setdefault(line, []).append(arch)
    return [f"{', '.join(dict.fromkeys(archs))}: {line}" for line, archs in jumps.items()]


def _not_beyond(rows: Sequence[RunPlan]) -> list[str]:
    """A line a round about forecast runs that lie inside of what is fitted: the grid, and the rounds before."""
    lines = []
    for number in sorted({row.round for row in rows if row.round}):
        before: dict[str, float] = {}
        for row in rows:
            if (row.round or 0) < number:
                before[row.arch] = max(before.get(row.arch, 0.0), row.exact)
        inside = [row for row in rows if row.round == number and row.exact <= before.get(row.arch, 0.0)]
        if inside:
            earlier = " and rounds before" if number > 1 else ""
            lines.append(
                f"forecast: {counted(len(inside), 'run takes', 'runs take')} no more compute than the largest of their "
                f"architecture in the grid{earlier} ({inside[0].run_id}): a forecast is of a run beyond the fits"
            )
    return lines


def show_plan(plan: Plan) -> str:
    """The table of runs, then totals and notes. Runs that differ by seed alone share a line where there are more than
    MOST_LINES, and where that is not enough a trunk's branches too; tokens, steps and C are then those of the first and
    the last."""
    namings: tuple[Callable[[RunPlan], str], ...] = (
        lambda run: run.run_id,
        lambda run: _without_seed(run.run_id, run.seed),
        lambda run: _without_seed(run.trunk or run.run_id, run.seed),
    )
    groups: dict[str, list[RunPlan]] = {}
    for naming in namings:
        groups = {}
        for run in plan.runs:
            groups.setdefault(naming(run), []).append(run)
        if len(groups) <= MOST_LINES:
            break
    return "\n".join([_table(groups, plan.flops_exact), *wrapped(_closing(plan, len(groups)))])


def _without_seed(run_id: str, seed: int) -> str:
    """llama-12m-c2048-s* of llama-12m-c2048-s3: ids end in seed, axes and branch, so the last such part is the seed."""
    before, there, after = run_id.rpartition(f"-s{seed}")
    return f"{before}-s*{after}" if there else run_id


def _table(groups: dict[str, list[RunPlan]], whole: float) -> str:
    branches = any(run.trunk for runs in groups.values() for run in runs)
    several = any(len(runs) > 1 for runs in groups.values())
    heads = ["run", *["runs"] * several, "N non-emb.", "tokens", *["trained"] * branches, "steps", "lr", "C exact"]
    lines = []
    for name, runs in groups.items():
        ends = [run for run in runs if run.trunk] or runs  # a trunk is no point of its own beside its branches
        lines.append(
            [
                name + role_text(runs[0].role, runs[0].round),
                *[f"{len(runs):,}"] * several,
                count(runs[0].n_params_non_embedding),
                _span([run.n_tokens for run in ends], count),
                *[count(sum(run.trained_tokens for run in runs))] * branches,
                _span([run.n_steps for run in ends], lambda steps: f"{steps:,}"),
                _span([run.lr for run in runs], lambda rate: "law" if rate is None else f"{rate:g}"),
                _span([run.exact for run in ends], _flop),
                UNKNOWN if math.isnan(whole) else f"{sum(run.spent_exact for run in runs) / whole:.1%}",
            ]
        )
    return text_table([*heads, "share"], lines)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _flop(value: float, digits: int = 3) -> str:
    return UNKNOWN if math.isnan(value) else flop(value, digits)


def _span(values: Sequence[Any], form: Callable[[Any], str]) -> str:
    """The least and the most."""
    ordered = sorted(values, key=lambda value: -1.0 if value is None else value)
    return " to ".join(dict.fromkeys((form(ordered[0]), form(ordered[-1]))))


def _closing(plan: Plan, n_lines: int) -> list[str]:
    """The lines below the table."""
    runs = plan.runs
    n_branches, n_forecast = sum(bool(run.trunk) for run in runs), sum(run.role == FORECAST for run in runs)
    parts = [f"{n_branches:,} of them branches"] * bool(n_branches) + [f"{n_forecast:,} forecast"] * bool(n_forecast)
    about = f" ({', '.join(parts)})" if parts else ""
    return [
        *[TOGETHER] * (n_lines < len(runs)),
        f"{counted(len(runs), 'run')}{about}, {count(plan.n_tokens)} tokens, "
        f"{counted(plan.n_checkpoints, 'checkpoint')} ({byte_size(plan.checkpoint_bytes)})",
        f"{'spent' if n_branches else 'C'} = {_flop(plan.flops_exact, 4)} FLOP exact "
        f"({_flop(plan.flops_exact / PF_DAY)} PF-days)",
        *plan.outlook,
        *_together(plan.notes),
        *(f"warning: {line}" for line in plan.warnings),
        f"everything goes to {plan.study.directory}/",
    ]


def _together(notes: Sequence[str]) -> list[str]:
    """Notes of `arch/size: text`, one for all sizes of an architecture whose texts differ by numbers alone, that of the
    largest number, and for all architectures that have the same."""
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for note in notes:
        where, colon, text = note.partition(": ")
        arch, slash, size = where.partition("/")
        known = slash and colon
        alike.setdefault((arch, NUMBER.sub("#", text)) if known else (note, ""), []).append((size, text))
    archs_of: dict[tuple[str, str], list[str]] = {}
    for (arch, kind), sized in alike.items():
        size, text = max(sized, key=lambda pair: max(map(float, NUMBER.findall(pair[1])), default=0.0))
        more = f" and {counted(len(sized) - 1, 'more size')}" if len(sized) > 1 else ""
        if more and NUMBER.search(text):
            more = f", the farthest of {counted(len(sized), 'size')}"
        archs_of.setdefault((size + more, text) if kind else ("", arch), []).append(arch)
    return [f"{sizes} ({', '.join(archs)}): {text}" if sizes else text for (sizes, text), archs in archs_of.items()]
