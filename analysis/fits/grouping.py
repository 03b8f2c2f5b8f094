"""What is fitted together: runs by architecture and point of the grid's axes, after the nuisance axes are resolved.

The table of runs gets the columns `group` (analysis.labels) and `left_out`, why the fits do not use a run ("" where
they do). A nuisance axis by `best` keeps, of each cell (group, size, length), the runs at the value whose last loss,
mean over the seeds that all values have, read at the tokens that all values reached, is the lowest. By `mean` it puts
one row in place of a seed's runs, whose curve is the mean of log loss over the values at equal tokens; a seed that
lacks a value has none, as means over different values cannot be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.settings import FitSettings
from analysis.fits.smooth import read_at
from analysis.fits.study_curves import logs, mean_curve, smoothed
from analysis.labels import group_of, joined, parts, without
from analysis.runs import Tables

LENGTHS = ("n_tokens",)  # how far a run goes: the D of the laws
BEST, MEAN = "best", "mean"
SAME = 1e-9  # of log loss: a tie


def grouped(tables: Tables, settings: FitSettings) -> Tables:
    """The tables with the columns `group` and `left_out`, the rows of means, and in `told` {"cells": how each nuisance
    was resolved, "means": {row of the table: run ids}}. Tables that have been grouped stay as they are."""
    if tables.told is not None:
        return tables
    runs = tables.runs.copy()
    dropped = {field for axis in settings.nuisance for field in axis.split("+")} | set(LENGTHS)
    runs["group"] = [
        group_of(str(arch), without(point, dropped)) for arch, point in zip(runs["arch"], runs["point"], strict=True)
    ]
    runs["left_out"] = [f"changed by --set {variant}" if variant else "" for variant in runs["variant"]]
    waiting = runs["n_params_non_embedding"].isna()  # not begun: where it stands is not known
    for arch, mine in runs[~waiting].groupby("arch", sort=False):
        own = mine.loc[mine["left_out"] == "", "group"]
        if len(own) and str(arch) not in set(own):
            runs.loc[waiting & (runs["arch"] == arch), "group"] = own.iloc[0]
    told: dict[str, Any] = {"cells": [], "means": {}}
    if settings.nuisance:
        runs = _resolved(replace(tables, runs=runs), settings, told)
    return replace(tables, runs=runs, told=told)


def _resolved(tables: Tables, settings: FitSettings, told: dict[str, Any]) -> pd.DataFrame:
    runs = tables.runs
    cells: dict[tuple[str, ...], list[Any]] = {}
    for row in runs[(runs["left_out"] == "") & runs["n_params_non_embedding"].notna()].to_dict("records"):
        length = {field: value for field, value in parts(row["point"]).items() if field in LENGTHS}
        trunk = str(row.get("trunk") or "")
        branch = str(row["run_id"]).removeprefix(f"{trunk}-") if trunk not in ("", "nan", row["run_id"]) else ""
        cells.setdefault(
            (row["group"], str(row["size"]), ", ".join(filter(None, (joined(length), branch)))), []
        ).append(row)
    left: dict[str, str] = {}
    means: list[dict[str, Any]] = []
    for key, rows in cells.items():
        cell = _Cell(key, rows, tables, settings)
        if cell.is_varied:
            found, more = cell.resolve(left, told["means"])
            if found is not None:
                told["cells"].append(found)
            means += more
    runs = runs.assign(left_out=[left.get(run, why) for run, why in zip(runs["run_id"], runs["left_out"], strict=True)])
    return pd.concat([runs, pd.DataFrame(means)], ignore_index=True).astype(runs.dtypes) if means else runs


@dataclass
class _Cell:
    """The runs of one group, size and length over all values of the nuisance axes."""

    key: tuple[str, ...]
    rows: Sequence[dict[str, Any]]
    tables: Tables
    settings: FitSettings

    def fields(self, by: str) -> list[str]:
        return [field for axis, how in self.settings.nuisance.items() if how == by for field in axis.split("+")]

    def value(self, row: Mapping[str, Any], by: str) -> str:
        point = parts(row["point"])
        return joined({field: point[field] for field in self.fields(by) if field in point})

    @property
    def is_varied(self) -> bool:
        return len({(self.value(row, BEST), self.value(row, MEAN)) for row in self.rows}) > 1

    def resolve(
        self, left: dict[str, str], means: dict[str, list[str]]
    ) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """How it was resolved (None where no run has a loss of the phase that is fitted), and the rows of means; run
        ids that the fits do not use go into `left`, the runs of each mean into `means`."""
        over = list(dict.fromkeys(self.value(row, MEAN) for row in self.rows))
        by_value: dict[str, dict[int, list[dict[str, Any]]]] = {}
        for row in self.rows:
            by_value.setdefault(self.value(row, BEST), {}).setdefault(int(row["seed"]), []).append(row)
        curves = {value: self._curves(seeds, over) for value, seeds in by_value.items()}
        losses, n_seeds, end = _last_losses({value: found for value, found in curves.items() if found})
        if not losses and all(row["state"] == "done" for row in self.rows):
            return None, []
        chosen = min(losses, key=lambda value: losses[value]) if losses else None
        values = [
            {
                "value": value,
                "loss": float(np.exp(losses[value])) if value in losses else None,
                "why": "" if value in losses else self._why(by_value[value], over),
            }
            for value in by_value
        ]
        rest = (
            sorted(losses[value] - losses[chosen] for value in losses if value != chosen) if chosen is not None else []
        )
        found = {
            **dict(zip(("group", "size", "length"), self.key, strict=True)),
            "values": values,
            "chosen": chosen,
            "n_seeds": n_seeds,
            "n_tokens": end,
            "margin": rest[0] if rest else None,
            "tie": bool(rest and rest[0] < SAME),
            "edge": [] if chosen is None else _edges(chosen, list(losses)),
            "mean_over": over if len(over) > 1 else [],
            "incomplete": [],
        }
        if chosen is None:
            return found, []
        for value, seeds in by_value.items():
            if value != chosen:
                why = f"{chosen} ends lower than {value}" if value in losses else f"{value} is not judged"
                left |= {row["run_id"]: why for rows in seeds.values() for row in rows if row["state"] == "done"}
        return found, self._means(by_value[chosen], over, found, left, means)

    def _curves(self, seeds: Mapping[int, list[dict[str, Any]]], over: Sequence[str]) -> dict[int, Any]:
        """By seed, the log curve at one value; seeds that lack a run have none."""
        found = {}
        for seed, rows in seeds.items():
            done = [row for row in rows if row["state"] == "done"]
            curves = [smoothed(self.tables, self.settings, row["run_id"]) for row in done]
            fewest = 1 if self.settings.points == "decayed" else 2  # the ends of decays are points
            if len(done) >= len(over) and all(len(tokens) >= fewest for tokens, _ in curves):
                found[seed] = mean_curve([logs(*curve) for curve in curves])
        return {seed: curve for seed, curve in found.items() if len(curve[0])}

    def _why(self, seeds: Mapping[int, list[dict[str, Any]]], over: Sequence[str]) -> str:
        states = [str(row["state"]) for rows in seeds.values() for row in rows if row["state"] != "done"]
        if states:
            return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return f"lacks values of {'; '.join(over)}" if len(over) > 1 else "its runs are too short"

    def _means(
        self,
        seeds: Mapping[int, list[dict[str, Any]]],
        over: Sequence[str],
        found: dict[str, Any],
        left: dict[str, str],
        means: dict[str, list[str]],
    ) -> list[dict[str, Any]]:
        rows = []
        for seed, mine in seeds.items() if len(over) > 1 else ():
            done = [row for row in mine if row["state"] == "done"]
            if len(done) < len(over):
                found["incomplete"].append(seed)
                left |= {row["run_id"]: f"seed {seed} lacks a value of the mean over {'; '.join(over)}" for row in done}
                continue
            group, size, length = self.key
            name = ", ".join(filter(None, (f"{group}/{size}, seed {seed}", length, f"mean over {'; '.join(over)}")))
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
    told = []
    for field, text in parts(chosen).items():
        try:
            tried = sorted({float(parts(value)[field]) for value in values})
            own = float(text)
        except ValueError:
            continue
        if len(tried) > 1 and own in (tried[0], tried[-1]):
            told.append(f"{field}={text} is the {'smallest' if own == tried[0] else 'largest'} tried")
    return told
