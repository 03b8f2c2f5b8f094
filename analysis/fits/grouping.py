"""What is fitted together: runs by architecture and point of the grid's axes, after the nuisance axes are resolved.

The table of runs gets the columns `group` (analysis.labels) and `left_out`, why the fits do not use a run ("" where
they do). A nuisance axis keeps, of each cell (group, size, length), the runs at the value whose last loss, mean over
the seeds that all values have, read at the tokens that all values reached, is the lowest; branches of one trunk take
one value, that of the longest. The values are those of any run of the group that has begun. Where none can be taken no
run stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.fits.fit import NuisanceCell, NuisanceValue
from analysis.fits.losses import Curve, RunCurves, resolved
from analysis.fits.settings import FitSettings
from analysis.fits.smooth import read_at
from analysis.labels import group_of, joined, parts, without
from analysis.run_table import RunTable

LENGTH = "n_tokens"  # an axis of how far a run goes: the D of the laws


def grouped(table: RunTable, settings: FitSettings | None = None) -> RunTable:
    """The table with the columns `group` and `left_out`, and in `nuisance` how each nuisance axis was resolved. One
    that has been grouped stays as it is. settings: None: those of the table. Raises InputError for losses that no run
    has."""
    if table.nuisance is not None:
        return table
    settings = resolved(table, settings or table.settings)
    runs, fields = table.runs.copy(), [field for axis in settings.nuisance for field in axis.split("+")]
    places = list(zip(runs["arch"].astype(str), runs["point"], strict=True))
    names = {(arch, point): group_of(arch, without(point, {*fields, LENGTH})) for arch, point in set(places)}
    runs["group"] = [names[place] for place in places]
    runs["left_out"] = [f"changed by --set {variant}" if variant else "" for variant in runs["variant"]]
    waiting = runs["n_params_non_embedding"].isna()  # not begun: where it stands is not known
    for arch, mine in runs[~waiting & (runs["left_out"] == "")].groupby("arch", sort=False)["group"]:
        if str(arch) not in set(mine):
            runs.loc[waiting & (runs["arch"] == arch), "group"] = mine.iloc[0]
    table = replace(table, runs=runs, nuisance=())
    if not fields:
        return table
    cells, left = list[NuisanceCell](), dict[str, str]()
    for branches in _cells(table, settings, fields):
        chosen = _one_value(branches)
        for cell in branches:
            if cell.is_judged:
                cells.append(cell.resolved(chosen))
                left |= cell.left_out(chosen)
    runs["left_out"] = [left.get(run, why) for run, why in zip(runs["run_id"], runs["left_out"], strict=True)]
    return replace(table, nuisance=tuple(cells))


@dataclass(frozen=True)
class _Run:
    """curve: None where it has too few losses of the phase that is fitted."""

    run_id: str
    state: str
    seed: str
    value: str
    curve: Curve | None


@dataclass(frozen=True)
class _Cell:
    """The runs of one group, size, length and branch, over all `values` that the nuisance axes have in the group.

    losses: mean log loss of each value that has one over the seeds that all have (each its own where they share none),
    at the log tokens `end` that all reached; n_seeds: the number of these seeds (0: none are shared).
    """

    group: str
    size: str
    length: str
    runs: Sequence[_Run]
    values: Sequence[str]
    losses: dict[str, float]
    n_seeds: int
    end: float

    @classmethod
    def of(cls, group: str, size: str, length: str, runs: Sequence[_Run], values: Sequence[str]) -> _Cell:
        curves: dict[str, dict[str, Curve]] = {}
        for value in values:
            if mine := {run.seed: run.curve for run in runs if run.value == value and run.curve is not None}:
                curves[value] = mine
        shared = set.intersection(*map(set, curves.values())) if curves else set()
        ends = [np.log(curve.n_tokens[-1]) for mine in curves.values() for curve in mine.values()]
        end = float(min(ends, default=0.0))
        losses = {
            value: float(np.mean([_at(curve, end) for seed, curve in mine.items() if seed in (shared or mine)]))
            for value, mine in curves.items()
        }
        return cls(group, size, length, runs, values, losses, len(shared), end)

    @property
    def is_judged(self) -> bool:
        """Whether a run is still to be trained, or one has a loss of the phase that is fitted."""
        return bool(self.losses) or any(run.state != "done" for run in self.runs)

    def resolved(self, chosen: str | None) -> NuisanceCell:
        """By the value `chosen` for the trunk (None: no run has a loss)."""
        values = [
            NuisanceValue(value, float(np.exp(self.losses[value])))
            if value in self.losses
            else NuisanceValue(value, None, self._why(value))
            for value in self.values
        ]
        taken = chosen if chosen in self.losses else None
        margin = n_tokens = None
        if taken is not None:
            others = (loss - self.losses[taken] for value, loss in self.losses.items() if value != taken)
            margin = min(others, default=None)
        if self.losses:
            n_tokens = round(float(np.exp(self.end)))
        return NuisanceCell(self.group, self.size, self.length, tuple(values), taken, self.n_seeds, n_tokens, margin)

    def left_out(self, chosen: str | None) -> dict[str, str]:
        """Why the fits do not use runs that are done, by run."""
        reasons = {}
        for run in self.runs:
            if run.state != "done" or (run.value == chosen and chosen in self.losses):
                continue
            if chosen is None:
                reasons[run.run_id] = "no value of its nuisance axes can be judged"
            elif chosen not in self.losses:
                reasons[run.run_id] = f"the longest branch takes {chosen}, which cannot be judged here"
            elif run.value not in self.losses:
                reasons[run.run_id] = f"{run.value} is not judged"
            else:
                where = "" if self.losses[run.value] >= self.losses[chosen] else " at the longest branch"
                reasons[run.run_id] = f"{chosen} ends lower than {run.value}{where}"
        return reasons

    def _why(self, value: str) -> str:
        states = [run.state for run in self.runs if run.value == value]
        counts = Counter(state for state in states if state != "done")
        if counts:
            return ", ".join(f"{count} {state}" for state, count in counts.items())
        return "its runs are too short" if states else "not begun"


def _cells(table: RunTable, settings: FitSettings, fields: Sequence[str]) -> list[list[_Cell]]:
    """By group, size and length, a cell for each branch of a trunk, most often one, of those with several values."""
    curves, fewest = RunCurves(table, settings), 1 if settings.is_of_ends else 2  # the ends of decays are points
    branches_of: dict[tuple[str, str, str], dict[str, list[_Run]]] = {}
    values: dict[str, list[str]] = {}  # of each group
    runs = table.runs[(table.runs["left_out"] == "") & table.runs["n_params_non_embedding"].notna()]
    for run in runs.itertuples():
        point, trunk, name = parts(str(run.point)), str(run.trunk), str(run.run_id)
        value = joined({field: point[field] for field in fields if field in point})
        if value not in (known := values.setdefault(str(run.group), [])):
            known.append(value)
        curve = curves.of(name) if run.state == "done" else None
        length = joined({LENGTH: point[LENGTH]} if LENGTH in point else {})
        branch = name.removeprefix(f"{trunk}-") if trunk not in ("", name) else ""
        own = _Run(name, str(run.state), str(run.seed), value, curve if curve and len(curve) >= fewest else None)
        branches_of.setdefault((str(run.group), str(run.size), length), {}).setdefault(branch, []).append(own)
    return [
        [
            _Cell.of(group, size, ", ".join(filter(None, (length, branch))), mine, values[group])
            for branch, mine in branches.items()
        ]
        for (group, size, length), branches in branches_of.items()
        if len(values[group]) > 1
    ]


def _one_value(cells: Sequence[_Cell]) -> str | None:
    """The value that all branches of a trunk take: of those that most of them have, the lowest at the longest branch;
    None where none is judged."""
    count = Counter(value for cell in cells for value in cell.losses)
    often = {value for value, n in count.items() if n == max(count.values())}
    judged = [cell for cell in cells if often & set(cell.losses)]
    if not judged:
        return None
    losses = max(judged, key=lambda cell: cell.end).losses
    return min((value for value in losses if value in often), key=lambda value: losses[value])


def _at(curve: Curve, end: float) -> float:
    """Log loss at log tokens `end`."""
    log_tokens, log_loss = np.log(curve.n_tokens), np.log(curve.loss)
    if len(curve) == 1:  # the end of a decay: those of one length differ by less than a batch
        return float(log_loss[0])
    return float(read_at(log_tokens, log_loss, np.array([min(end, float(log_tokens[-1]))]))[0])
