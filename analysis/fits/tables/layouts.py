"""Tables in the layouts that other programs write, made one row a run or a point of its curve.

wandb, table of runs: columns `config.x` and `summary.x`, or `config` and `summary` as objects, as the example of its
API writes them; Name or ID names the run. wandb, chart: a column of the axis, and of each run `RUN - METRIC` with
`__MIN` and `__MAX` beside it. isoFLOP: a column of losses for each budget, named by its FLOP.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

import pandas as pd

from analysis.fits.points import rows_text
from analysis.fits.tables.cells import is_empty, text_of
from analysis.fits.tables.columns import NAMES, normal
from arch.amounts import counted_of
from arch.errors import InputError
from data.files import parse_json

OBJECTS, BOUNDS = ("config", "summary"), ("__MIN", "__MAX")
MARKS = {"_step", "_runtime", "_timestamp", "State", "Runtime", "Created", "Sweep", "Tags", "Notes", "User"}
AT = " - "  # between run and metric
LABEL = re.compile(r"([\w./-]+): ([^,]+)")  # of grouped runs: `n_params: 1000000`
BUDGET = re.compile(r"(.*?)[\W_]*(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)[\W_]*(?:flops?)?\s*", re.IGNORECASE)
LEAST_BUDGET = 1e12  # FLOP; smaller numbers in names count something else


def as_rows(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """A table of a known layout with a row for each run or point, and remarks; any other as it stands. Raises
    InputError, one line, for an object that cannot be read and for a chart without an axis."""
    notes: list[str] = []
    layouts: tuple[Callable[[pd.DataFrame, list[str]], pd.DataFrame], ...] = (_of_runs, _chart, _budgets)
    for layout in layouts:
        frame = layout(frame, notes)
    return frame, tuple(notes)


def with_runs(frame: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The rows with the columns that a table of runs has and they have not, by the name of the run. Raises InputError
    where one of the two names no runs, a run is missing or there twice."""
    names = [next((name for name in map(str, part) if normal(name) in NAMES["run"]), None) for part in (frame, runs)]
    if None in names:
        raise InputError(f"--runs: {'the table' if names[0] is None else 'it'} has no column that names its runs")
    keys = [part[name].map(text_of) for part, name in zip((frame, runs), names, strict=True)]
    if (twice := keys[1][keys[1].duplicated()]).any():
        raise InputError(f"--runs: run {twice.iloc[0]!r} is there twice")
    if (missing := keys[0][~keys[0].isin(keys[1])]).any():
        raise InputError(f"--runs: has no run {missing.iloc[0]!r}, of {rows_text(missing.index)}")
    more = runs.set_axis(keys[1])[[name for name in runs if name not in frame]].loc[keys[0]]
    return frame.assign(**{str(name): cells.to_numpy() for name, cells in more.items()})


def _of_runs(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """A wandb table of runs or history: settings and summaries by their own names, the run's name as `run`."""
    for name in OBJECTS:
        if name in frame and all(text_of(cell)[:1] == "{" for cell in frame[name] if not is_empty(cell)):
            cells = [_object(cell, f"{name} in {rows_text([row])}") for row, cell in frame[name].items()]
            flat = pd.json_normalize(cells).set_axis(frame.index).add_prefix(f"{name}.")
            frame = frame.drop(columns=name).join(flat.rename(columns=lambda key: key.removesuffix(".value")))
    heads = {name: name.partition(".")[2] for name in map(str, frame) if name.partition(".")[0] in OBJECTS}
    if not heads and len(MARKS & set(frame)) < 2:
        return frame
    frame = frame.drop(columns=[name for name, head in heads.items() if head.startswith("_wandb")])
    plain = [*heads.values(), *(name for name in map(str, frame) if name not in heads)]
    frame = frame.rename(columns={name: head for name, head in heads.items() if head and plain.count(head) == 1})
    own = next((name for name in ("ID", "id", "Name", "name") if name in frame), None)
    if own is not None and not any(normal(name) in NAMES["run"] for name in map(str, frame)):
        frame = frame.rename(columns={own: "run"})
    if "State" in frame and (ended := frame["State"].map(text_of) != "finished").any():
        states = ", ".join(frame["State"][ended].map(text_of).unique())
        notes.append(
            f"{counted_of(int(ended.sum()), len(frame), 'run', 'is', 'are')} {states}: --where State=finished leaves "
            f"them out"
        )
    return frame


def _object(cell: Any, where: str) -> dict[str, Any]:
    """A cell as JSON or, as pandas writes one, as Python has it."""
    if is_empty(cell):
        return {}
    if isinstance(cell, dict):
        return cell
    try:
        read = parse_json(cell, any_number=True)
    except ValueError:
        try:
            read = ast.literal_eval(re.sub(r"\b(nan|inf)\b", "None", cell))
        except (ValueError, SyntaxError):
            raise InputError(f"{where} is no object that can be read: export its keys as columns") from None
    return dict(read)


def _chart(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """A wandb chart: of each run the rows in which it has a value; the labels of grouped runs say what they share."""
    names = list(map(str, frame))
    wide = [name for name in names if AT in name and {name + bound for bound in BOUNDS} & set(frame)]
    if not wide:
        return frame
    axes = [name for name in names if name.removesuffix(BOUNDS[0]).removesuffix(BOUNDS[1]) not in wide]
    if len(axes) != 1:
        raise InputError(f"is a chart of wandb with {len(axes)} columns for its axis ({', '.join(axes)}): keep one")
    parts: dict[str, pd.DataFrame] = {}
    for name in wide:
        run, _, metric = name.rpartition(AT)
        if not metric.startswith("_"):
            parts.setdefault(run, frame[axes].assign(run=run, **dict(LABEL.findall(run))))[metric] = frame[name]
    metrics = list(dict.fromkeys(name.rpartition(AT)[2] for name in wide))
    notes.append(f"a chart of wandb: {len(parts)} runs over {axes[0]!r}")
    rows = pd.concat(parts.values())
    return rows[~rows.reindex(columns=metrics).map(is_empty).all(axis=1)]


def _budgets(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """An isoFLOP table with a column of losses a budget: a row for each loss."""
    known, names = (*NAMES["loss"], *NAMES["flops"], *NAMES["budget"]), list(map(str, frame))
    named = {name: match for name in names if (match := BUDGET.fullmatch(name)) and float(match[2]) >= LEAST_BUDGET}
    if len(named) < 2 or any(normal(name) in known for name in names if name not in named):
        return frame
    if len(words := {normal(match[1]) for match in named.values()}) > 1:
        raise InputError(f"columns of budgets by several names ({', '.join(sorted(words))}): keep those of one loss")
    budgets = frame.rename(columns={name: match[2] for name, match in named.items()})
    notes.append(f"a column of losses for each of {len(named)} budgets: rows are counted budget by budget")
    rows = budgets.melt([name for name in names if name not in named], var_name="flops", value_name="loss")
    rows = rows[~rows["loss"].map(is_empty)]
    return rows.set_axis(pd.RangeIndex(1, len(rows) + 1)).assign(budget=rows["flops"].to_numpy())
