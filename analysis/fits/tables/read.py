"""Anybody's table as a table of runs, with a count of every row that was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.cost import ROUNDED, SIX_ND
from analysis.fits.points import CURVES, ENDS, Reading, refuse_impossible
from analysis.fits.prepare import prepare
from analysis.fits.settings import as_it_stands
from analysis.fits.tables.cells import COUNTS, rows_text, same_text, text_of, without_thousands
from analysis.fits.tables.columns import AGREEING, FIELDS, LOSS_OF, OF_CONVENTION, choose, loss_unit_of
from analysis.fits.tables.files import from_frame, read_frame
from analysis.fits.tables.plausible import refuse_two_kinds, refuse_units, units_told
from analysis.fits.tables.rows import derived_conditions, filtered, keep_rows, number_fields
from analysis.fits.tables.runs import once, own_recipes, refuse_unnamed_curves
from analysis.run_table import Origin, RunTable
from arch.amounts import counted
from arch.errors import InputError, choice, nearest

UNITS = {"nats": "nats/token", "bits": "bits/token"}
UNSTATED = "the table's unit"  # of a loss, where neither the user nor its column says it
NO_RUNS = "no column names the runs, so each row counts as a run of its own: rows of one curve would count as many"
SAME_SEEDS = (
    "of one N and D have one seed (or are among those that do), so they differ by what no column says: they tell no "
    "noise between seeds, and the lowest stands for them; name the column of what differs by --columns recipe=NAME, or "
    "leave the seeds out by --columns seed="
)
ARCH = "arch"  # the field by which a table is grouped unasked
AS_THEY_STAND = "losses are taken as they stand: those of single steps are noisy, and a smoothed column is better"


def read_points(
    source: str | Path | pd.DataFrame,
    columns: Mapping[str, str] | None = None,
    *,
    points: str = ENDS,
    drop_highest_loss: int = 0,
    **options: Any,
) -> Reading:
    """The points of a table: `prepare` of what `read_table` reads by `columns` and `options`. points: the last row of
    each run, or whole curves; drop_highest_loss: so many points of the highest loss are left out of every group."""
    check_choices(points, None, None)
    return prepare(read_table(source, columns, **options), points=points, drop_highest_loss=drop_highest_loss)


def read_table(
    source: str | Path | pd.DataFrame,
    columns: Mapping[str, str] | None = None,
    *,
    where: Sequence[str] = (),
    group: str | None = None,
    convention: str | None = None,
    loss_unit: str | None = None,
) -> RunTable:
    """The runs of a table: a file (files.SUFFIXES) or a data frame, one row a run or many, as they stand: its settings
    smooth nothing and leave nothing out.

    columns: {field: column}, where the names alone do not say it ("" leaves a field out); where: conditions on the rows
    that are kept, as "loss<5"; group: the column or field to group by; convention: of C, by name; where C or D is
    missing it follows from C = 6 N D, which needs "6nd" (the default) or "6nd_total"; loss_unit: nats or bits, a token
    (by default as the column's name says, else unstated); the loss itself is left as it is.

    Raises InputError, one line with row numbers, for what is missing, ambiguous, not positive or no number, for a run
    that occurs with two losses at one place, for a mixture of corpora, tokenizers, contexts, kinds of loss or
    conventions in one group, for columns that count in another unit (module plausible), and where no row is left.
    """
    check_choices(None, convention, loss_unit)
    name, frame = _opened(source)
    try:
        return _read(name, frame, columns or {}, where, group, convention, loss_unit)
    except InputError as error:
        raise InputError(str(error) if str(error).startswith("--") else f"{name}: {error}") from None


def _read(
    name: str,
    frame: pd.DataFrame,
    columns: Mapping[str, str],
    where: Sequence[str],
    group: str | None,
    convention: str | None,
    loss_unit: str | None,
) -> RunTable:
    chosen = choose(list(frame.columns), columns, convention)
    frame = frame.assign(
        **{chosen[field]: without_thousands(frame[chosen[field]]) for field in COUNTS if field in chosen}
    )
    unit = _loss_unit(chosen["loss"], loss_unit)
    n_rows = len(frame)
    dropped: dict[str, int] = {}
    blank = np.array([all(text_of(cell) == "" for cell in row) for row in frame.itertuples(index=False)], dtype=bool)
    frame = keep_rows(frame, ~blank, dropped, "empty")
    frame, later = filtered(frame, chosen, where, dropped)
    if group is not None and group not in frame.columns and group not in chosen:
        known = [*frame.columns, *(field for field in FIELDS if field in chosen and field not in frame.columns)]
        raise InputError(f"--group: there is no column {group!r}{nearest(group, known)}")
    fields, derived, six_nd, named = number_fields(frame, chosen, convention)
    fields = derived_conditions(fields, later, dropped)
    for field in fields.columns:  # before equal rows are told apart: those of 0 parameters are no curves
        refuse_impossible(field, fields[field].to_numpy(), fields.index.to_numpy())
    if six_nd is not None:
        refuse_units(six_nd, chosen)
    for field in set(chosen) - set(fields.columns):
        fields[field] = [text_of(cell) for cell in frame.loc[fields.index, chosen[field]]]
    notes: list[str] = []
    if group is None and len({text_of(cell) for cell in fields.get(ARCH, ())}) > 1:
        group = ARCH  # laws of several architectures are no law
        notes.append(f"grouped by {chosen[ARCH]!r}; --columns {ARCH}= fits all of its values as one")
    fields["group"] = ""
    if group is not None:
        column = group if group in frame.columns else chosen[group]
        fields["group"] = [text_of(cell) for cell in frame.loc[fields.index, column]]
    fields, several = once(fields, frame, "run" in chosen, dropped)
    if "run" not in chosen and "run" not in columns:
        refuse_unnamed_curves(fields, chosen)
    for label, rows in fields.groupby("group", sort=False):
        refuse_two_kinds(rows)
        _agree(rows, chosen, str(label))
    fields, n_same = own_recipes(fields)
    if n_same:
        notes.append(f"{counted(n_same, 'run')} {SAME_SEEDS}")
    runs, curves = _runs_and_curves(fields, named)
    notes += units_told(fields, chosen)
    notes += [] if "run" in chosen else [NO_RUNS]
    notes += [AS_THEY_STAND] if several else []
    if six_nd is not None and max(abs(np.log(six_nd[0])), abs(np.log(six_nd[2]))) > ROUNDED and named in SIX_ND:
        notes.append(f"C was said to be {named}, but 6 N D / C runs from {six_nd[0]:.4g} to {six_nd[2]:.4g}")
    origin = Origin(chosen, derived, six_nd, n_rows, several, unit, tuple(notes))
    return RunTable(runs, curves, curves.iloc[:0], name, as_it_stands(named), dropped, origin)


def _runs_and_curves(fields: pd.DataFrame, convention: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs and curves of a RunTable. Each row of a table that does not name runs is a run; runs of two groups that
    have one name share nothing."""
    if "size" in fields and (empty := fields["size"] == "").any():
        raise InputError(f"size is empty in {rows_text(fields.index[empty])}")
    run = fields["run"] if "run" in fields else pd.Series([f"row {row}" for row in fields.index], fields.index)
    in_group = fields["group"] + ", " + run

    def filled(field: str, otherwise: pd.Series[Any]) -> pd.Series[Any]:
        return fields[field].where(fields[field] != "", otherwise) if field in fields else otherwise

    kinds = [f"{field} " + fields[field].where(fields[field] != "", "unstated") for field in LOSS_OF if field in fields]
    runs = pd.DataFrame(
        {
            "run_id": in_group,
            "run": run,
            "arch": fields["group"],
            "n_params_non_embedding": fields["n_params"],
            "size": fields["size"] if "size" in fields else fields["n_params"].map("{:.6g}".format),
            "recipe": fields.get("recipe", ""),
            "trunk": filled("trunk", run),
            "cell": filled("cell", run) if "cell" in fields or "run" not in fields else in_group,
            "loss_of": [" and ".join(row) for row in zip(*kinds, strict=True)] if kinds else "",
        }
    )
    curves = fields[["n_tokens", "loss", *(["unique_tokens"] if "unique_tokens" in fields else [])]]
    curves = curves.assign(run_id=runs["run_id"], row=fields.index, **{f"flops_{convention}": fields["flops"]})
    every: dict[str, Any] = {"state": "done", "point": "", "variant": "", "epochs": np.nan, "warmup_tokens": 0}
    runs = runs.drop_duplicates("run_id").assign(**every, n_tokens=np.nan)
    return runs.reset_index(drop=True), curves.reset_index(drop=True)


def _opened(source: str | Path | pd.DataFrame) -> tuple[str, pd.DataFrame]:
    if isinstance(source, pd.DataFrame):
        return "the table", from_frame(source)
    return str(source).encode(errors="backslashreplace").decode(), read_frame(source)  # names need not be UTF-8


def check_choices(points: str | None, convention: str | None, loss_unit: str | None) -> None:
    """Raise InputError for one that is none; None: not chosen."""
    if points not in (None, ENDS, CURVES):
        raise InputError(f"--points: {points!r}{choice(points, [ENDS, CURVES])}")
    if loss_unit is not None and loss_unit not in UNITS:
        raise InputError(f"--loss-unit: {loss_unit!r}{choice(loss_unit, list(UNITS))}")
    if convention is not None and convention not in OF_CONVENTION:
        raise InputError(f"--convention: {convention!r}{choice(convention, list(OF_CONVENTION))}")


def _loss_unit(column: str, asked: str | None) -> str:
    """Of the points: as asked for, as the column's name says, or UNSTATED. Raises InputError where the two differ."""
    own = loss_unit_of(column)
    if asked is not None and own is not None and asked != own:
        raise InputError(f"--loss-unit {asked}: the column {column!r} says {own}")
    return UNITS.get(asked or own or "", UNSTATED)


def _agree(rows: pd.DataFrame, chosen: Mapping[str, str], group: str) -> None:
    """Raise InputError where one group has several corpora, tokenizers or contexts: their losses cannot be compared."""
    for field in AGREEING:
        if field in chosen and len(values := same_text(rows[field])) > 1:
            more = f", ... ({len(values)} in all)" if len(values) > 3 else ""
            raise InputError(
                f"{f'group {group!r}' if group else 'the table'} has several values of {field} "
                f"({', '.join(values[:3])}{more}), and losses of one fit must be comparable: choose one by "
                f'--where "{chosen[field]}={values[0]}", group by it, or leave the column out by --columns {field}='
            )
