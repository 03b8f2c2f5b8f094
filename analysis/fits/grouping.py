"""What is fitted together: runs by architecture and point of the grid's axes, after the nuisance axes are resolved.

The table of runs gets the columns `group` (analysis.labels) and `left_out`, why the fits do not use a run ("" where
they do). A nuisance axis keeps, of each cell (group, size, length), the runs at the value whose last loss, mean over
the seeds that all values have, read at the tokens that all values reached, is the lowest; branches of one trunk take
one value, that of the longest. The values are those of any run of the group, begun or not. Where none can be taken no
run stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.fit import NuisanceCell, NuisanceValue
from analysis.fits.losses import RunCurves, resolved
from analysis.fits.settings import FitSettings
from analysis.fits.smooth import read_at
from analysis.labels import Endings, group_of, joined, parts, without
from analysis.run_table import RunTable

LENGTHS = ("n_tokens",)  # how far a run goes: the D of the laws
Row = dict[str, Any]  # of the table of runs
Curve = tuple[np.ndarray, np.ndarray]  # log tokens and log loss


def grouped(table: RunTable, settings: FitSettings | None = None) -> RunTable:
    """The table with the columns `group` and `left_out`, and in `nuisance` how each nuisance axis was resolved. One
    that has been grouped stays as it is. settings: None: those of the table. Raises InputError for losses that no run
    has."""
    if table.nuisance is not None:
        return table
    settings = resolved(table, settings or table.settings)
    runs = table.runs.copy()
    dropped = {*_fields(settings), *LENGTHS}
    places = list(zip(runs["arch"].astype(str), runs["point"], strict=True))
    names = {(arch, point): group_of(arch, without(point, dropped)) for arch, point in set(places)}
    runs["group"] = [names[place] for place in places]
    runs["left_out"] = [f"changed by --set {variant}" if variant else "" for variant in runs["variant"]]
    waiting = runs["n_params_non_embedding"].isna()  # not begun: where it stands is not known
    for arch, mine in runs[~waiting].groupby("arch", sort=False):
        own = mine.loc[mine["left_out"] == "", "group"]
        if len(own) and str(arch) not in set(own):
            runs.loc[waiting & (runs["arch"] == arch), "group"] = own.iloc[0]
    cells: list[NuisanceCell] = []
    if settings.nuisance:
        left: dict[str, str] = {}
        for same_trunks in _cells(replace(table, runs=runs), settings):
            chosen = _one_value(same_trunks)
            cells += [cell.resolved(chosen) for cell in same_trunks if cell.is_judged]
            for cell in same_trunks:
                left |= cell.left_out(chosen)
        runs["left_out"] = [left.get(run, why) for run, why in zip(runs["run_id"], runs["left_out"], strict=True)]
    return replace(table, runs=runs, nuisance=tuple(cells))


def _fields(settings: FitSettings) -> list[str]:
    return [field for axis in settings.nuisance for field in axis.split("+")]


def _cells(table: RunTable, settings: FitSettings) -> list[list[_Cell]]:
    """By group, size and length, a cell for each branch of a trunk, most often one, of those with several values; cells
    without a run that has begun are left out."""
    used: list[Row] = [
        {str(name): value for name, value in row.items()}
        for row in table.runs[table.runs["left_out"] == ""].to_dict("records")
    ]
    fields = _fields(settings)
    begun = [row for row in used if not pd.isna(row["n_params_non_embedding"])]
    endings, curves = Endings([str(row["point"]) for row in begun]), RunCurves(table, settings)
    found: dict[tuple[str, str, str], dict[str, list[Row]]] = {}
    for row in used:
        trunk = str(row.get("trunk") or "")
        branch = str(row["run_id"]).removeprefix(f"{trunk}-") if trunk not in ("", "nan", row["run_id"]) else ""
        if pd.isna(row["n_params_non_embedding"]):  # its name alone is known
            place, branch = endings.read(str(row["run_id"]))
            if place is None:
                continue
            row |= {"point": place, "group": group_of(str(row["arch"]), without(place, {*fields, *LENGTHS}))}
        point = parts(row["point"])
        row["value"] = joined({field: point[field] for field in fields if field in point})
        length = joined({field: value for field, value in point.items() if field in LENGTHS})
        key = str(row["group"]), str(row["size"]), length
        found.setdefault(key, {}).setdefault(branch, []).append(row)
    known = {str(row["run_id"]) for row in begun}
    values: dict[str, list[str]] = {}  # of each group
    kept = {
        key: {branch: rows for branch, rows in branches.items() if any(str(row["run_id"]) in known for row in rows)}
        for key, branches in found.items()
    }
    for (group, _, _), branches in kept.items():
        mine = values.setdefault(group, [])
        mine += dict.fromkeys(row["value"] for rows in branches.values() for row in rows if row["value"] not in mine)
    return [
        [
            _Cell(group, size, ", ".join(filter(None, (length, branch))), rows, values[group], curves, settings)
            for branch, rows in branches.items()
        ]
        for (group, size, length), branches in kept.items()
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
    losses = max(judged, key=lambda cell: cell.end or 0).losses
    return min((value for value in losses if value in often), key=lambda value: losses[value])


@dataclass
class _Cell:
    """The runs of one group, size, length and branch over all `values` that the nuisance axes have in the group."""

    group: str
    size: str
    length: str
    rows: Sequence[Row]
    values: Sequence[str]
    read: RunCurves
    settings: FitSettings

    @cached_property
    def _judged(self) -> tuple[dict[str, float], int, int | None]:
        """Mean log loss of each value over the seeds that all have (each its own where they share none), at the tokens
        that all reached; the number of these seeds (0: none are shared), and the tokens."""
        curves = {value: self._curves(self._of(value)) for value in self.values}
        curves = {value: by_seed for value, by_seed in curves.items() if by_seed}
        if not curves:
            return {}, 0, None
        shared = set.intersection(*(set(by_seed) for by_seed in curves.values()))
        end = min(float(curve[0][-1]) for by_seed in curves.values() for curve in by_seed.values())
        losses = {
            value: float(np.mean([_at(curve, end) for seed, curve in by_seed.items() if seed in (shared or by_seed)]))
            for value, by_seed in curves.items()
        }
        return losses, len(shared), round(float(np.exp(end)))

    @property
    def losses(self) -> dict[str, float]:
        """Log loss of every value that can be judged."""
        return self._judged[0]

    @property
    def end(self) -> int | None:
        """Tokens at which they are compared."""
        return self._judged[2]

    @property
    def is_judged(self) -> bool:
        """Whether a run is still to be trained, or one has a loss of the phase that is fitted."""
        return any(row["state"] != "done" or self._is_read(row) for row in self.rows)

    def resolved(self, chosen: str | None) -> NuisanceCell:
        """By the value `chosen` for the trunk (None: no run has a loss)."""
        losses, n_seeds, end = self._judged
        taken = chosen if chosen in losses else None
        others = [losses[value] - losses[taken] for value in losses if value != taken] if taken is not None else []
        values = [
            NuisanceValue(value, float(np.exp(losses[value])))
            if value in losses
            else NuisanceValue(value, None, self._why(self._of(value)))
            for value in self.values
        ]
        margin = min(others, default=None)
        return NuisanceCell(self.group, self.size, self.length, tuple(values), taken, n_seeds, end, margin)

    def left_out(self, chosen: str | None) -> dict[str, str]:
        """Why the fits do not use runs that are done, by run."""
        done = [row for row in self.rows if row["state"] == "done"] if self.is_judged else []
        if chosen not in self.losses:
            why = "no value of its nuisance axes can be judged"
            if chosen is not None:
                why = f"the longest branch takes {chosen}, which cannot be judged here"
            return {row["run_id"]: why for row in done}
        reasons = {}
        for row in done:
            value = row["value"]
            if value != chosen:
                where = "" if self.losses.get(value, np.inf) >= self.losses[chosen] else " at the longest branch"
                lower = f"{chosen} ends lower than {value}{where}"
                reasons[row["run_id"]] = lower if value in self.losses else f"{value} is not judged"
        return reasons

    def _of(self, value: str) -> list[Row]:
        return [row for row in self.rows if row["value"] == value]

    def _is_read(self, row: Row) -> bool:
        fewest = 1 if self.settings.is_of_ends else 2  # the ends of decays are points
        return row["state"] == "done" and len(self.read.of(str(row["run_id"]))[0]) >= fewest

    def _curves(self, rows: Sequence[Row]) -> dict[int, Curve]:
        """By seed."""
        read = [(int(row["seed"]), self.read.of(str(row["run_id"]))) for row in rows if self._is_read(row)]
        return {seed: (np.log(tokens), np.log(loss)) for seed, (tokens, loss) in read}

    def _why(self, rows: Sequence[Row]) -> str:
        states = Counter(str(row["state"]) for row in rows if row["state"] != "done")
        if states:
            return ", ".join(f"{count} {state}" for state, count in states.items())
        return "its runs are too short" if rows else "not begun"


def _at(curve: Curve, end: float) -> float:
    log_tokens, log_loss = curve
    if len(log_tokens) == 1:  # the end of a decay: those of one length differ by less than a batch
        return float(log_loss[0])
    return float(read_at(log_tokens, log_loss, np.array([min(end, float(log_tokens[-1]))]))[0])
