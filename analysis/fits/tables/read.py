"""Anybody's table as a table of runs, with a count of every row that was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.cost import ROUNDED, SIX_ND
from analysis.fits.points import COPIED, CURVES, ENDS, Reading, copies, refuse_impossible
from analysis.fits.prepare import prepare
from analysis.fits.seeds import ends_of, seed_groups
from analysis.fits.settings import as_it_stands
from analysis.fits.tables.cells import COUNTS, condition_of, numbers, rows_text, text_of, without_thousands
from analysis.fits.tables.columns import (
    AGREEING,
    FIELDS,
    LOSS_OF,
    NUMBERS,
    OF_CONVENTION,
    choose,
    convention_of,
    loss_unit_of,
)
from analysis.fits.tables.doubts import refuse_two_kinds, refuse_units, refuse_unnamed_curves, unit_notes
from analysis.fits.tables.files import from_frame, read_frame
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
TWICE = "exactly as another row"
AGAIN = "the same run again"
RELABELLED = "the same numbers under other labels"  # of tables that do not name runs
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
    that are kept, as "loss<5"; group: the column or field to group by, or several by commas; convention: of C, by
    name; where C or D is missing it follows from C = 6 N D, which needs "6nd" (the default) or "6nd_total";
    loss_unit: nats or bits, a token (by default as the column's name says, else unstated); the loss itself is left
    as it is.

    Raises InputError, one line with row numbers, for what is missing, ambiguous, not positive or no number, for a run
    that occurs with two losses at one place, for a mixture of corpora, tokenizers, contexts, kinds of loss or
    conventions in one group, for columns that count in another unit (module doubts), and where no row is left.
    """
    check_choices(None, convention, loss_unit)
    name = "the table"
    if isinstance(source, pd.DataFrame):
        frame = from_frame(source)
    else:
        name, frame = str(source).encode(errors="backslashreplace").decode(), read_frame(source)  # need not be UTF-8
    try:
        chosen = choose(list(frame.columns), columns or {}, convention)
        unit = _loss_unit(chosen["loss"], loss_unit)
        return _read(name, Rows(frame), chosen, where, group, convention, unit, unasked="run" not in (columns or {}))
    except InputError as error:
        raise InputError(str(error) if str(error).startswith("--") else f"{name}: {error}") from None


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


@dataclass
class Rows:
    """The rows that are kept, and how many were dropped, by reason."""

    frame: pd.DataFrame
    dropped: dict[str, int] = field(default_factory=dict)

    def keep(self, mask: np.ndarray, why: str) -> None:
        """Keep the rows of a mask [n]; the others are counted under `why`. Raises InputError where none is left."""
        gone = int((~mask).sum())
        if gone:
            self.dropped[why] = self.dropped.get(why, 0) + gone
            self.frame = self.frame[mask]
        if not len(self.frame):
            reasons = ", ".join(f"{number} {reason}" for reason, number in self.dropped.items())
            raise InputError(f"no row is left ({reasons})")


def _read(
    name: str,
    rows: Rows,
    chosen: Mapping[str, str],
    where: Sequence[str],
    group: str | None,
    convention: str | None,
    unit: str,
    unasked: bool,
) -> RunTable:
    """unasked: the user has not said which column names the runs."""
    n_rows, has_runs, notes = len(rows.frame), "run" in chosen, list[str]()
    counts = {chosen[key]: without_thousands(rows.frame[chosen[key]]) for key in COUNTS if key in chosen}
    rows.frame = rows.frame.assign(**counts)
    blank = np.ones(n_rows, dtype=bool)
    for _, cells in rows.frame.items():
        blank[blank] = [text_of(cell) == "" for cell in cells[blank]]
    rows.keep(~blank, "empty")
    for text in where:
        condition = condition_of(text, [*rows.frame.columns, *chosen])
        column = condition.column if condition.column in rows.frame else chosen[condition.column]
        rows.keep(condition.holds(rows.frame[column]), f"not {text}")
    fields, derived, six_nd, named = _number_fields(rows.frame, chosen, convention)
    for number in fields.columns:  # before equal rows are told apart: those of 0 parameters are no curves
        refuse_impossible(number, fields[number].to_numpy(), fields.index.to_numpy())
    if six_nd is not None:
        refuse_units(six_nd, chosen)
    for label in set(chosen) - set(fields.columns):
        fields[label] = [text_of(cell) for cell in rows.frame[chosen[label]]]
    parts = _group_columns(group, rows.frame, chosen)
    if group is None and ARCH in chosen and len({text_of(cell) for cell in rows.frame[chosen[ARCH]]}) > 1:
        parts = [chosen[ARCH]]  # laws of several architectures are no law
        notes.append(f"grouped by {chosen[ARCH]!r}; --columns {ARCH}= fits all of its values as one")
    texts = [[text_of(cell) for cell in rows.frame[column]] for column in parts]
    fields["group"] = [", ".join(values) for values in zip(*texts, strict=True)] if parts else ""
    twice = rows.frame.astype(str).duplicated().to_numpy()
    rows.frame = fields
    rows.keep(~twice, TWICE)
    several = _drop_copies(rows, has_runs)
    fields = rows.frame
    if not has_runs and unasked:
        refuse_unnamed_curves(fields, chosen)
    for group_name, of_group in fields.groupby("group", sort=False):
        refuse_two_kinds(of_group)
        _refuse_mixtures(of_group, chosen, str(group_name))
    fields, n_same = _own_recipes(fields)
    notes += [f"{counted(n_same, 'run')} {SAME_SEEDS}"] if n_same else []
    notes += unit_notes(fields, chosen)
    notes += [] if has_runs else [NO_RUNS]
    notes += [AS_THEY_STAND] if several else []
    if six_nd is not None and max(abs(np.log(six_nd[0])), abs(np.log(six_nd[2]))) > ROUNDED and named in SIX_ND:
        notes.append(f"C was said to be {named}, but 6 N D / C runs from {six_nd[0]:.4g} to {six_nd[2]:.4g}")
    origin = Origin(chosen, derived, six_nd, n_rows, several, unit, tuple(notes))
    runs, curves = _runs_and_curves(fields, named)
    return RunTable(runs, curves, curves.iloc[:0], name, as_it_stands(named), rows.dropped, origin)


def _number_fields(
    frame: pd.DataFrame, chosen: Mapping[str, str], convention: str | None
) -> tuple[pd.DataFrame, dict[str, str], tuple[float, float, float] | None, str]:
    """The fields that are numbers, what was derived of them, 6 N D / C where all three were given, and C's name."""
    fields = pd.DataFrame(
        {name: numbers(frame[chosen[name]], name) for name in (*NUMBERS, "unique_tokens") if name in chosen},
        index=frame.index,
    )
    own = convention_of(chosen["flops"]) if "flops" in chosen else None
    if "convention" in chosen:
        stated = list(dict.fromkeys(map(text_of, frame[chosen["convention"]])))
        if len(stated) > 1:
            raise InputError(f"C is counted by several conventions ({', '.join(stated)}): one fit takes one of them")
        own = stated[0] or own
    if own is not None and convention is not None and own != convention:
        raise InputError(f"--convention {convention}: the table's compute is counted by {own}")
    named = convention or own
    with np.errstate(all="ignore"):  # zeros are refused with their rows later
        six = 6.0 * fields["n_params"]
        if "n_tokens" in chosen and "flops" in chosen:
            ratio = six * fields["n_tokens"] / fields["flops"]
            is_six = bool(np.abs(np.log(ratio)).max() < ROUNDED)
            ends = (float(ratio.min()), float(ratio.median()), float(ratio.max()))
            return fields, {}, ends, named or ("6nd" if is_six else chosen["flops"])
        missing, how = ("n_tokens", "C / (6 N)") if "flops" in chosen else ("flops", "6 N D")
        if named not in (None, *SIX_ND):
            raise InputError(
                f"{missing} is missing, and the convention {named} does not say how C follows from N and D: name the "
                f"column, or give --convention 6nd"
            )
        fields[missing] = fields["flops"] / six if missing == "n_tokens" else six * fields["n_tokens"]
    named = named or "6nd"
    return fields, {missing: f"{how} ({named})"}, None, named


def _group_columns(group: str | None, frame: pd.DataFrame, chosen: Mapping[str, str]) -> list[str]:
    """The columns of --group: one, or several by commas, by their own names or those of fields. Raises InputError for a
    name that none has."""
    known = [*frame.columns, *(name for name in FIELDS if name in chosen and name not in frame.columns)]
    names = [] if group is None else [group] if group in known else [name.strip() for name in group.split(",")]
    for name in names:
        if name not in known:
            raise InputError(f"--group: there is no column {name!r}{nearest(name, known)}")
    return [name if name in frame.columns else chosen[name] for name in names]


def _drop_copies(rows: Rows, has_runs: bool) -> bool:
    """Drop the rows that are the same run again; returns whether a run has several rows.

    A run is named by its column. Without one, each row is a run. Runs of a group whose numbers are all the same, to the
    last bit, are one run, whatever their names, seeds and other labels say.

    Raises InputError where a run has two losses for the same tokens, or two numbers of parameters.
    """
    if not has_runs:
        rows.keep(~rows.frame.duplicated().to_numpy(), AGAIN)
        rows.keep(~_copies(rows.frame), RELABELLED)
        return False
    if (empty := rows.frame["run"] == "").any():
        raise InputError(f"run is empty in {rows_text(rows.frame.index[empty])}")
    keys = ["group", "run"]
    rows.keep(~rows.frame.duplicated([*keys, *NUMBERS]).to_numpy(), AGAIN)
    of_run = rows.frame.groupby(keys, sort=False)
    if (many := of_run["n_params"].transform("nunique") > 1).any():
        run = rows.frame["run"][many].iloc[0]
        raise InputError(
            f"run {run!r} has several numbers of parameters in "
            f"{rows_text(rows.frame.index[many & (rows.frame['run'] == run)])}: one run has one; name the column that "
            f"tells runs apart by --columns run=its name"
        )
    if (clash := rows.frame.duplicated([*keys, "n_tokens"], keep=False)).any():
        clashing = rows.frame[clash]
        run, n_tokens = clashing["run"].iloc[0], clashing["n_tokens"].iloc[0]
        same = clashing.index[(clashing["run"] == run) & (clashing["n_tokens"] == n_tokens)]
        raise InputError(
            f"run {run!r} has several losses after {n_tokens:.6g} tokens ({rows_text(same)}): keep one, or name the "
            f"column that tells runs apart"
        )
    several = bool((of_run["loss"].transform("size") > 1).any())
    rows.keep(~_copies(rows.frame), COPIED)
    return several


def _copies(fields: pd.DataFrame) -> np.ndarray:
    """[n] bool: rows of runs that are another run of their group, number for number."""
    group = pd.factorize(fields["group"])[0]
    run = fields["run"].to_numpy(dtype=object) if "run" in fields else np.arange(len(fields))
    named = np.array([f"{code} {name}" for code, name in zip(group, run, strict=True)], dtype=object)
    columns = [fields[name].to_numpy() for name in (*NUMBERS, "unique_tokens") if name in fields]
    return copies(named, group, *columns)


def _refuse_mixtures(rows: pd.DataFrame, chosen: Mapping[str, str], group: str) -> None:
    """Raise InputError where one group has several corpora, tokenizers or contexts: their losses cannot be compared."""
    for name in AGREEING:
        if name in chosen and len(values := list(dict.fromkeys(rows[name]))) > 1:
            more = f", ... ({len(values)} in all)" if len(values) > 3 else ""
            raise InputError(
                f"{f'group {group!r}' if group else 'the table'} has several values of {name} "
                f"({', '.join(values[:3])}{more}), and losses of one fit must be comparable: choose one by "
                f'--where "{chosen[name]}={values[0]}", group by it, or leave the column out by --columns {name}='
            )


def _own_recipes(fields: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Runs of one group, N, D and recipe, of which two from different trunks have one seed, each as a recipe of its
    own, and how many they are: what they differ by is not the seed, so none of them is a seed of another."""
    if "seed" not in fields:
        return fields, 0
    plain = fields.reset_index(drop=True)
    run = (plain["run"] if "run" in plain else plain.index.to_series()).astype(str)
    plain["trunk"] = plain["trunk"].where(plain["trunk"] != "", run) if "trunk" in plain else run
    plain["recipe"] = plain.get("recipe", "")
    plain["key"] = plain["group"].astype(str) + "\0" + run
    ends, n_same = plain.iloc[ends_of(plain["key"].to_numpy(dtype=object), plain["n_tokens"].to_numpy(dtype=float))], 0
    for _, of_size in ends.groupby(["group", "n_params"], sort=False):
        for group in seed_groups(of_size["recipe"].tolist(), of_size["n_tokens"].tolist(), of_size["loss"].tolist()):
            mine = of_size.iloc[group]
            if (mine[mine["seed"] != ""].groupby("seed")["trunk"].nunique() > 1).any():
                n_same += len(group)
                own = (mine["recipe"] + " (" + mine["trunk"] + ")").set_axis(mine["key"])
                rows = plain["key"].isin(mine["key"])
                plain.loc[rows, "recipe"] = plain.loc[rows, "key"].map(own)
    return (fields.assign(recipe=plain["recipe"].to_numpy(dtype=object)), n_same) if n_same else (fields, 0)


def _runs_and_curves(fields: pd.DataFrame, convention: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs and curves of a RunTable. Each row of a table that does not name runs is a run; runs of two groups that
    have one name share nothing."""
    if "size" in fields and (empty := fields["size"] == "").any():
        raise InputError(f"size is empty in {rows_text(fields.index[empty])}")
    run = fields["run"] if "run" in fields else pd.Series([f"row {row}" for row in fields.index], fields.index)
    in_group = fields["group"] + ", " + run

    def filled(name: str, otherwise: pd.Series[Any]) -> pd.Series[Any]:
        return fields[name].where(fields[name] != "", otherwise) if name in fields else otherwise

    kinds = [f"{name} " + fields[name].where(fields[name] != "", "unstated") for name in LOSS_OF if name in fields]
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
