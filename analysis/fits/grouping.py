"""What is fitted together: runs by architecture and point of the grid's axes, after the nuisance axes are resolved.

The table of runs gets the columns `group` (analysis.labels) and `left_out`, why the fits do not use a run ("" where
they do). A nuisance axis by `best` keeps, of each cell (group, size, length), the runs at the value whose last loss,
mean over the seeds that all values have, read at the tokens that all values reached, is the lowest; branches of one
trunk take one value, that of the longest. By `mean` it puts one row in place of a seed's runs, whose curve is the mean
of log loss over the values at equal tokens; a seed that lacks a value has none, as means over different values cannot
be compared. The values are those of any run of the group, begun or not. Where none can be taken no run stays.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.losses import RunCurves, logs, mean_curve, resolved
from analysis.fits.settings import FitSettings
from analysis.fits.smooth import read_at
from analysis.labels import Endings, group_of, joined, parts, without
from analysis.run_table import RunTable

LENGTHS = ("n_tokens",)  # how far a run goes: the D of the laws
BEST, MEAN = "best", "mean"
SAME = 1e-9  # of log loss: a tie


def grouped(table: RunTable, settings: FitSettings | None = None) -> RunTable:
    """The table with the columns `group` and `left_out`, the rows of means, and in `nuisance` {"cells": how each
    nuisance axis was resolved, "means": {row of the table: run ids}}. One that has been grouped stays as it is.
    settings: None: those of the table. Raises InputError for losses that no run has."""
    if table.nuisance is not None:
        return table
    settings = resolved(table, settings or table.settings)
    runs = table.runs.copy()
    dropped = {field for axis in settings.nuisance for field in axis.split("+")} | set(LENGTHS)
    places = list(zip(runs["arch"].astype(str), runs["point"], strict=True))
    names = {(arch, point): group_of(arch, without(point, dropped)) for arch, point in set(places)}
    runs["group"] = [names[place] for place in places]
    runs["left_out"] = [f"changed by --set {variant}" if variant else "" for variant in runs["variant"]]
    waiting = runs["n_params_non_embedding"].isna()  # not begun: where it stands is not known
    for arch, mine in runs[~waiting].groupby("arch", sort=False):
        own = mine.loc[mine["left_out"] == "", "group"]
        if len(own) and str(arch) not in set(own):
            runs.loc[waiting & (runs["arch"] == arch), "group"] = own.iloc[0]
    nuisance: dict[str, Any] = {"cells": [], "means": {}}
    if settings.nuisance:
        runs = _resolved(replace(table, runs=runs), settings, nuisance)
    return replace(table, runs=runs, nuisance=nuisance)


def _resolved(table: RunTable, settings: FitSettings, nuisance: dict[str, Any]) -> pd.DataFrame:
    runs = table.runs
    cells = _cells(table, settings)
    left: dict[str, str] = {}
    means: list[dict[str, Any]] = []
    for same_trunks in cells.values():
        varied = [cell for cell in same_trunks if cell.is_varied]
        value = _one_value(varied)
        for cell in varied:
            found, more = cell.resolve(value, left, nuisance["means"])
            if found is not None:
                nuisance["cells"].append(found)
            means += more
    runs = runs.assign(left_out=[left.get(run, why) for run, why in zip(runs["run_id"], runs["left_out"], strict=True)])
    return pd.concat([runs, pd.DataFrame(means)], ignore_index=True).astype(runs.dtypes) if means else runs


def _cells(table: RunTable, settings: FitSettings) -> dict[tuple[str, ...], list[_Cell]]:
    """By group, size and length, a cell for each branch of a trunk, most often one; cells without a run that has begun
    are left out."""
    used = table.runs[table.runs["left_out"] == ""].to_dict("records")
    dropped = {field for axis in settings.nuisance for field in axis.split("+")} | set(LENGTHS)
    begun = [row for row in used if not pd.isna(row["n_params_non_embedding"])]
    endings, curves = Endings([str(row["point"]) for row in begun]), RunCurves(table, settings)
    found: dict[tuple[str, ...], dict[str, list[Any]]] = {}
    for row in used:
        trunk = str(row.get("trunk") or "")
        branch = str(row["run_id"]).removeprefix(f"{trunk}-") if trunk not in ("", "nan", row["run_id"]) else ""
        if pd.isna(row["n_params_non_embedding"]):  # its name alone is known
            point, branch = endings.read(str(row["run_id"]))
            if point is None:
                continue
            row |= {"point": point, "group": group_of(str(row["arch"]), without(point, dropped))}
        length = {field: value for field, value in parts(row["point"]).items() if field in LENGTHS}
        found.setdefault((row["group"], str(row["size"]), joined(length)), {}).setdefault(branch, []).append(row)
    known = {str(row["run_id"]) for row in begun}
    made = {
        key: [
            _Cell((*key[:2], ", ".join(filter(None, (key[2], branch)))), rows, curves, settings)
            for branch, rows in branches.items()
            if any(str(row["run_id"]) in known for row in rows)
        ]
        for key, branches in found.items()
    }
    for group in dict.fromkeys(key[0] for key in made):
        mine = [cell for key, one in made.items() if key[0] == group for cell in one]
        rows = [row for cell in mine for row in cell.rows]
        for cell in mine:
            cell.best, cell.over = ([*dict.fromkeys(cell.value(row, by) for row in rows)] for by in (BEST, MEAN))
    return made


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
    """The runs of one group, size, length and branch over all values of the nuisance axes; `best` and `over`: the
    values of the group, of axes by `best` and by `mean`."""

    key: tuple[str, ...]
    rows: Sequence[dict[str, Any]]
    read: RunCurves
    settings: FitSettings
    best: Sequence[str] = ()
    over: Sequence[str] = ()

    def fields(self, by: str) -> list[str]:
        return [field for axis, how in self.settings.nuisance.items() if how == by for field in axis.split("+")]

    def value(self, row: Mapping[str, Any], by: str) -> str:
        point = parts(row["point"])
        return joined({field: point[field] for field in self.fields(by) if field in point})

    @property
    def is_varied(self) -> bool:
        return len(self.best) > 1 or len(self.over) > 1

    @cached_property
    def by_value(self) -> dict[str, dict[int, list[dict[str, Any]]]]:
        """Runs by value of the axes by `best` and by seed."""
        found: dict[str, dict[int, list[dict[str, Any]]]] = {value: {} for value in self.best}
        for row in self.rows:
            found[self.value(row, BEST)].setdefault(int(row["seed"]), []).append(row)
        return found

    @cached_property
    def curves(self) -> dict[str, dict[int, Any]]:
        """By value and seed, the log curve; a seed that lacks a run of a mean has none."""
        return {value: self._curves(seeds) for value, seeds in self.by_value.items()}

    @cached_property
    def _judged(self) -> tuple[dict[str, float], int, int | None]:
        return _last_losses({value: found for value, found in self.curves.items() if found})

    @property
    def losses(self) -> dict[str, float]:
        """Log loss of every value that can be judged."""
        return self._judged[0]

    @property
    def end(self) -> int | None:
        """Tokens at which they are compared."""
        return self._judged[2]

    def resolve(
        self, chosen: str | None, left: dict[str, str], means: dict[str, list[str]]
    ) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """How it was resolved by the value `chosen` (None where no run has a loss of the phase that is fitted), and
        the rows of means; run ids that the fits do not use go into `left`, the runs of each mean into `means`."""
        losses, n_seeds, end = self._judged
        done = [row for row in self.rows if row["state"] == "done"]
        if len(done) == len(self.rows) and not any(self._is_read(row) for row in done):
            return None, []
        taken = chosen if chosen in losses else None
        values = [
            {
                "value": value,
                "loss": float(np.exp(losses[value])) if value in losses else None,
                "why": "" if value in losses else self._why(seeds),
            }
            for value, seeds in self.by_value.items()
        ]
        rest = sorted(losses[value] - losses[taken] for value in losses if value != taken) if taken is not None else []
        found: dict[str, Any] = {
            **dict(zip(("group", "size", "length"), self.key, strict=True)),
            "values": values,
            "chosen": taken,
            "n_seeds": n_seeds,
            "n_tokens": end,
            "margin": rest[0] if rest else None,
            "tie": bool(rest and abs(rest[0]) < SAME),
            "edge": [] if taken is None else _edges(taken, list(losses)),
            "mean_over": list(self.over) if len(self.over) > 1 else [],
            "incomplete": [],
        }
        if taken is None:
            why = "no value of its nuisance axes can be judged"
            if chosen is not None:
                why = f"the longest branch takes {chosen}, which cannot be judged here"
            elif found["mean_over"]:
                why = f"no seed has all values of the mean over {'; '.join(self.over)}"
            found["incomplete"] = sorted({int(row["seed"]) for row in self.rows})
            left |= {row["run_id"]: why for row in done}
            return found, []
        for value, seeds in self.by_value.items():
            if value != taken:
                where = "" if losses.get(value, np.inf) >= losses[taken] else " at the longest branch"
                why = f"{taken} ends lower than {value}{where}" if value in losses else f"{value} is not judged"
                left |= {row["run_id"]: why for rows in seeds.values() for row in rows if row["state"] == "done"}
        return found, self._means(taken, found, left, means)

    def _is_read(self, row: Mapping[str, Any]) -> bool:
        fewest = 1 if self.settings.is_of_ends else 2  # the ends of decays are points
        return row["state"] == "done" and len(self.read.of(str(row["run_id"]))[0]) >= fewest

    def _curves(self, seeds: Mapping[int, list[dict[str, Any]]]) -> dict[int, Any]:
        found = {}
        for seed, rows in seeds.items():
            done = [row for row in rows if row["state"] == "done"]
            if {self.value(row, MEAN) for row in done} == set(self.over) and all(map(self._is_read, done)):
                curves = [self.read.of(str(row["run_id"])) for row in done]
                found[seed] = mean_curve([logs(*curve) for curve in curves])
        return {seed: curve for seed, curve in found.items() if len(curve[0])}

    def _why(self, seeds: Mapping[int, list[dict[str, Any]]]) -> str:
        rows = [row for mine in seeds.values() for row in mine]
        states = [
            " at ".join(filter(None, (str(row["state"]), self.value(row, MEAN))))
            for row in rows
            if row["state"] != "done"
        ]
        if states:
            return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        missing = [value for value in self.over if value not in {self.value(row, MEAN) for row in rows}]
        if not rows or missing:
            return ", ".join(filter(None, ("; ".join(missing), "not begun")))
        if len(self.over) > 1 and all(map(self._is_read, rows)):
            return f"no seed has all of {'; '.join(self.over)}"
        return "its runs are too short"

    def _means(
        self, taken: str, found: dict[str, Any], left: dict[str, str], means: dict[str, list[str]]
    ) -> list[dict[str, Any]]:
        rows = []
        for seed, mine in self.by_value[taken].items() if len(self.over) > 1 else ():
            done = [row for row in mine if row["state"] == "done"]
            over = "; ".join(self.over)
            if seed not in self.curves[taken]:
                found["incomplete"].append(seed)
                left |= {row["run_id"]: f"seed {seed} lacks a value of the mean over {over}" for row in done}
                continue
            group, size, length = self.key
            name = ", ".join(filter(None, (f"{group}/{size}, seed {seed}", length, f"mean over {over}")))
            means[name] = [row["run_id"] for row in done]
            left |= {row["run_id"]: f"averaged in: {name}" for row in done}
            rows.append(_row_of_mean(name, done))
        return rows


def _row_of_mean(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    recipe = hashlib.sha256(" ".join(str(row["recipe"]) for row in rows).encode()).hexdigest()[:16]
    most = {key: max(row[key] for row in rows) for key in ("epochs", "warmup_tokens")}
    return (
        rows[0]
        | most
        | {
            "run_id": name,
            "recipe": recipe,
            "n_tokens": min(row["n_tokens"] for row in rows),
            "time_s": sum(row["time_s"] or 0.0 for row in rows),
            "skipped_rows": 0,
            "skipped_why": "",
            "left_out": "",
        }
    )


def _last_losses(curves: Mapping[str, Mapping[int, Any]]) -> tuple[dict[str, float], int, int | None]:
    """Mean log loss of each value over the seeds that all have (each its own where they share none), at the tokens that
    all reached; the number of these seeds (0: none are shared), and the tokens."""
    if not curves:
        return {}, 0, None
    shared = set.intersection(*(set(found) for found in curves.values()))
    end = min(float(curve[0][-1]) for found in curves.values() for curve in found.values())
    losses = {
        value: float(np.mean([_at(curve, end) for seed, curve in found.items() if seed in (shared or found)]))
        for value, found in curves.items()
    }
    return losses, len(shared), round(float(np.exp(end)))


def _at(curve: tuple[np.ndarray, np.ndarray], end: float) -> float:
    log_tokens, log_loss = curve
    if len(log_tokens) == 1:  # the end of a decay: those of one length differ by less than a batch
        return float(log_loss[0])
    return float(read_at(log_tokens, log_loss, np.array([min(end, float(log_tokens[-1]))]))[0])


def _edges(chosen: str, values: Sequence[str]) -> list[str]:
    """Of the fields of the chosen value those where it is the smallest or the largest number tried, in words."""
    edges = []
    for field, text in parts(chosen).items():
        try:
            tried = sorted({float(parts(value)[field]) for value in values})
            own = float(text)
        except ValueError:
            continue
        if len(tried) > 1 and own in (tried[0], tried[-1]):
            edges.append(f"{field}={text} is the {'smallest' if own == tried[0] else 'largest'} tried")
    return edges
