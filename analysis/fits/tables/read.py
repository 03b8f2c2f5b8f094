"""Anybody's table as a table of runs, with a count of every row that was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.cost import ROUNDED, SIX_ND
from analysis.fits.points import COPIED, CURVES, ENDS, Reading, copies, refuse_impossible, rows_text
from analysis.fits.prepare import prepare
from analysis.fits.seeds import ends_of, seed_groups
from analysis.fits.settings import FitSettings
from analysis.fits.tables.cells import COUNTS, Condition, numbers, plain_counts, text_of
from analysis.fits.tables.columns import (
    AGREEING,
    LABELS,
    LOSS_OF,
    NUMBERS,
    OF_CONVENTION,
    choose,
    convention_of,
    loss_unit_of,
)
from analysis.fits.tables.doubts import refuse_two_kinds, refuse_units, refuse_unnamed_curves, unit_notes
from analysis.fits.tables.files import from_frame, read_frame
from analysis.fits.tables.layouts import as_rows, with_runs
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
    keep_duplicates: bool = False,
    runs: str | Path | pd.DataFrame | None = None,
) -> RunTable:
    """The runs of a table: a file (files.SUFFIXES) or a data frame, one row a run or many, as they stand: its settings
    smooth nothing and leave nothing out.

    columns: {field: column}, where the names alone do not say it ("" leaves a field out; several columns joined by +
    are a label together); where: conditions on the rows
    that are kept, as "loss<5"; group: the column or field to group by, or several by commas; convention: of C, by name;
    where C or D (or N, left out by "") is missing it follows from C = 6 N D, which needs "6nd" (the default) or
    "6nd_total"; loss_unit: nats or bits, a token (by default as the column's name says, else unstated); is left as it
    is; keep_duplicates: rows and runs of the same numbers, and runs of one N, D and seed, are repeats of which each
    counts; runs: a table of runs, whose columns the rows of a run get.

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
    more = None if runs is None else from_frame(runs) if isinstance(runs, pd.DataFrame) else read_frame(runs)
    try:
        frame, notes = as_rows(frame)
        frame = frame if more is None else with_runs(frame, as_rows(more)[0])
        frame = _with_joined(frame, columns or {})
        chosen = choose(list(frame.columns), columns or {}, convention)
        unit = _loss_unit(chosen["loss"], loss_unit)
        table = _read(name, frame, chosen, columns or {}, where, group, convention, unit, keep_duplicates)
    except InputError as error:
        raise InputError(str(error) if str(error).startswith("--") else f"{name}: {error}") from None
    assert table.origin is not None
    return replace(table, origin=replace(table.origin, notes=(*notes, *table.origin.notes)))


def _with_joined(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """The table with a column for every label that is to be several columns, as run=model+rate."""
    for name in (columns.get(label, "") for label in LABELS):
        parts = [part.strip() for part in name.split("+")]
        if name in frame or len(parts) == 1:
            continue
        for part in parts:
            if part not in frame:
                raise InputError(f"--columns: there is no column {part!r}{nearest(part, list(frame.columns))}")
        texts = [[text_of(cell) for cell in frame[part]] for part in parts]
        frame = frame.assign(**{name: [", ".join(values) for values in zip(*texts, strict=True)]})
    return frame


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

    def keep(self, mask: Any, why: str) -> None:
        """Keep the rows of a mask [n]; the others are counted under `why`. Raises InputError where none is left."""
        kept = self.frame[np.asarray(mask, dtype=bool)]
        if gone := len(self.frame) - len(kept):
            self.frame, self.dropped[why] = kept, self.dropped.get(why, 0) + gone
        if kept.empty:
            reasons = ", ".join(f"{number} {reason}" for reason, number in self.dropped.items())
            raise InputError(f"no row is left ({reasons})")


def _read(
    name: str,
    frame: pd.DataFrame,
    chosen: Mapping[str, str],
    given: Mapping[str, str],
    where: Sequence[str],
    group: str | None,
    convention: str | None,
    unit: str,
    keep_duplicates: bool,
) -> RunTable:
    rows, notes = Rows(frame), list[str]()
    rows.frame = frame.assign(**{chosen[key]: plain_counts(frame[chosen[key]], key) for key in COUNTS if key in chosen})
    blank = np.ones(len(frame), dtype=bool)
    for _, cells in frame.items():
        blank[blank] = [text_of(cell) == "" for cell in cells[blank]]
    rows.keep(~blank, "empty")
    for text in where:
        condition = Condition.of(text, [*frame.columns, *chosen])
        column = condition.column if condition.column in frame else chosen[condition.column]
        rows.keep(condition.holds(rows.frame[column]), f"not {text}")
    amounts = Amounts.of(rows.frame, chosen, convention)
    fields, has_runs = amounts.fields, "run" in chosen
    for label in (*LABELS, *AGREEING):
        fields[label] = [text_of(cell) for cell in rows.frame[chosen[label]]] if label in chosen else ""
    if not has_runs:
        fields["run"] = [f"row {row}" for row in fields.index]
    for label in ("run", "size"):
        if label in chosen and (empty := fields[label] == "").any():
            raise InputError(f"{label} is empty in {rows_text(fields.index[empty])}")
    parts = _group_columns(group, rows.frame, chosen)
    if group is None and fields[ARCH].nunique() > 1:  # laws of several architectures are no law
        parts = [chosen[ARCH]]
        notes.append(f"grouped by {chosen[ARCH]!r}; --columns {ARCH}= fits all of its values as one")
    texts = [[text_of(cell) for cell in rows.frame[column]] for column in parts]
    for column, labels in zip(parts, texts, strict=True):
        if (empty := np.array(labels) == "").any():
            raise InputError(
                f"{column} is empty, and rows are grouped by it: fill it in, or leave such rows out by "
                f'--where "{column}!=", in {rows_text(fields.index[empty])}'
            )
    fields["group"] = [", ".join(values) for values in zip(*texts, strict=True)] if parts else ""
    twice = rows.frame.astype(str).duplicated()
    rows.frame = fields
    if keep_duplicates:
        again = fields.groupby(["group", "run", *NUMBERS]).cumcount()
        fields["run"] = fields["run"].where(again == 0, fields["run"] + " (" + again.add(1).astype(str) + ")")
    else:
        rows.keep(~twice, TWICE)
    several = _drop_copies(rows, has_runs, keep_duplicates)
    fields = rows.frame
    if not has_runs and "run" not in given and "budget" not in chosen:  # nobody has said that each row is a run
        refuse_unnamed_curves(fields, chosen)
    for group_name, of_group in fields.groupby("group", sort=False):
        refuse_two_kinds(of_group)
        _refuse_mixtures(of_group, chosen, str(group_name))
    fields, n_same = (fields, 0) if keep_duplicates else _own_recipes(fields)
    notes += [f"{counted(n_same, 'run')} {SAME_SEEDS}"] if n_same else []
    notes += unit_notes(fields, chosen)
    notes += [] if has_runs else [NO_RUNS]
    notes += [AS_THEY_STAND] if several else []
    notes += amounts.notes
    origin = Origin(chosen, amounts.derived, amounts.six_nd, len(frame), several, unit, tuple(notes), keep_duplicates)
    runs, curves = _runs_and_curves(fields, chosen, amounts.convention)
    nothing_smoothed = {"flops": amounts.convention, "smoothing_tokens": 0, "curve_rows": 0}
    settings = FitSettings().model_copy(update=nothing_smoothed)  # also of a convention that no study has
    return RunTable(runs, curves, curves.iloc[:0], name, settings, rows.dropped, origin)


@dataclass(frozen=True)
class Amounts:
    """fields: the columns that are numbers, by field; derived: a field and what it was made from; six_nd: smallest,
    median and largest 6 N D / C, where all three were given; convention: what C is called."""

    fields: pd.DataFrame
    derived: dict[str, str]
    six_nd: tuple[float, float, float] | None
    convention: str

    @classmethod
    def of(cls, frame: pd.DataFrame, chosen: Mapping[str, str], convention: str | None) -> Amounts:
        """Raises InputError with the rows of what is no amount, for columns in another unit, and for a missing C or D
        that a convention does not give."""
        known = [name for name in (*NUMBERS, "unique_tokens", "budget") if name in chosen]
        fields = pd.DataFrame({name: numbers(frame[chosen[name]], name) for name in known}, index=frame.index)
        for name in known:
            refuse_impossible(name, fields[name].to_numpy(), fields.index.to_numpy())
        own = convention_of(chosen["flops"]) if "flops" in chosen else None
        if "convention" in chosen:
            stated = list(dict.fromkeys(map(text_of, frame[chosen["convention"]])))
            if len(stated) > 1:
                raise InputError(f"C is counted by several conventions ({', '.join(stated)}): one fit takes one")
            own = stated[0] or own
        if own is not None and convention is not None and own != convention:
            raise InputError(f"--convention {convention}: the table's compute is counted by {own}")
        named = convention or own
        if {"n_params", "n_tokens", "flops"} <= set(chosen):
            ratio = 6.0 * fields["n_params"] * fields["n_tokens"] / fields["flops"]
            six_nd = float(ratio.min()), float(ratio.median()), float(ratio.max())
            refuse_units(six_nd, chosen)
            is_six = max(abs(np.log(six_nd[0])), abs(np.log(six_nd[2]))) < ROUNDED
            return cls(fields, {}, six_nd, named or ("6nd" if is_six else chosen["flops"]))
        missing = next(name for name in NUMBERS if name not in chosen)
        how = {"n_params": "C / (6 D)", "n_tokens": "C / (6 N)", "flops": "6 N D"}[missing]
        if named not in (None, *SIX_ND):
            raise InputError(
                f"{missing} is missing, and the convention {named} does not say how C follows from N and D: name the "
                f"column, or give --convention 6nd"
            )
        first, second = (fields[name] for name in NUMBERS[:3] if name != missing)
        fields[missing] = 6.0 * first * second if missing == "flops" else second / (6.0 * first)
        refuse_impossible(missing, fields[missing].to_numpy(), fields.index.to_numpy())
        named = named or "6nd"
        return cls(fields, {missing: f"{how} ({named})"}, None, named)

    @property
    def notes(self) -> list[str]:
        if self.six_nd is None or self.convention not in SIX_ND:
            return []
        low, _, high = self.six_nd
        is_six = max(abs(np.log(low)), abs(np.log(high))) <= ROUNDED
        return (
            [] if is_six else [f"C was said to be {self.convention}, but 6 N D / C runs from {low:.4g} to {high:.4g}"]
        )


def _group_columns(group: str | None, frame: pd.DataFrame, chosen: Mapping[str, str]) -> list[str]:
    """The columns of --group: one, or several by commas, by their own names or those of fields. Raises InputError for a
    name that none has."""
    known = {name: name for name in frame.columns} | {name: chosen[name] for name in chosen if name not in frame}
    names = [] if group is None else [group] if group in known else [name.strip() for name in group.split(",")]
    for name in names:
        if name not in known:
            raise InputError(f"--group: there is no column {name!r}{nearest(name, list(known))}")
    return [known[name] for name in names]


def _drop_copies(rows: Rows, has_runs: bool, keep_duplicates: bool) -> bool:
    """Drop the rows that are the same run again (unless they are kept); returns whether a run has several rows.

    A run is named by its column. Without one, each row is a run. Runs of a group whose numbers are all the same, to the
    last bit, are one run, whatever their names, seeds and other labels say.

    Raises InputError where a run has two losses for the same tokens, or two numbers of parameters.
    """
    keys = ["group", "run"]
    same = [*keys, *NUMBERS] if has_runs else [name for name in rows.frame if name != "run"]
    if not keep_duplicates:
        rows.keep(~rows.frame.duplicated(same), AGAIN)
    fields, of_run = rows.frame, rows.frame.groupby(keys, sort=False)
    several_sizes = of_run["n_params"].transform("nunique") > 1
    same_tokens = fields.duplicated([*keys, "n_tokens"], keep=False)
    for clash, what in ((several_sizes, "numbers of parameters"), (same_tokens, "losses after the same tokens")):
        if clash.any():
            run = fields["run"][clash].iloc[0]
            raise InputError(
                f"run {run!r} has several {what} in {rows_text(fields.index[clash & (fields['run'] == run)])}: name "
                f"the column that tells runs apart by --columns run=its name"
            )
    several = bool((of_run["loss"].transform("size") > 1).any())
    if keep_duplicates:
        return several
    group = pd.factorize(fields["group"])[0]
    named = np.array([f"{code} {run}" for code, run in zip(group, fields["run"], strict=True)], dtype=object)
    columns = [fields[name].to_numpy() for name in (*NUMBERS, "unique_tokens") if name in fields]
    rows.keep(~copies(named, group, *columns), COPIED if has_runs else RELABELLED)
    return several


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
    if not (fields["seed"] != "").any():
        return fields, 0
    trunk, key = fields["trunk"].where(fields["trunk"] != "", fields["run"]), fields["group"] + "\0" + fields["run"]
    ends = fields.assign(trunk=trunk, key=key).iloc[ends_of(key.to_numpy(), fields["n_tokens"].to_numpy())]
    own: dict[str, str] = {}
    for _, of_size in ends.groupby(["group", "n_params"], sort=False):
        for group in seed_groups(of_size["recipe"].tolist(), of_size["n_tokens"].tolist(), of_size["loss"].tolist()):
            mine = of_size.iloc[group]
            if (mine[mine["seed"] != ""].groupby("seed")["trunk"].nunique() > 1).any():
                own |= dict(zip(mine["key"], mine["recipe"] + " (" + mine["trunk"] + ")", strict=True))
    return fields.assign(recipe=[own.get(*pair) for pair in zip(key, fields["recipe"], strict=True)]), len(own)


def _runs_and_curves(
    fields: pd.DataFrame, chosen: Mapping[str, str], convention: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs and curves of a RunTable. Runs of two groups that have one name share nothing."""
    run, in_group = fields["run"], fields["group"] + ", " + fields["run"]
    other_cell = in_group if "run" in chosen and "cell" not in chosen else run
    kinds = [f"{name} " + fields[name].replace("", "unstated") for name in LOSS_OF if name in chosen]
    runs = pd.DataFrame(
        {
            "run_id": in_group,
            "run": run,
            "arch": fields["group"],
            "n_params_non_embedding": fields["n_params"],
            "size": fields["size"] if "size" in chosen else fields["n_params"].map("{:.6g}".format),
            "recipe": fields["recipe"],
            "trunk": fields["trunk"].where(fields["trunk"] != "", run),
            "cell": fields["cell"].where(fields["cell"] != "", other_cell),
            **({"budget": fields["budget"]} if "budget" in fields else {}),
            "loss_of": [" and ".join(row) for row in zip(*kinds, strict=True)] if kinds else "",
        }
    )
    curves = fields[["n_tokens", "loss", *(["unique_tokens"] if "unique_tokens" in fields else [])]]
    curves = curves.assign(run_id=in_group, row=fields.index, **{f"flops_{convention}": fields["flops"]})
    every: dict[str, Any] = {"state": "done", "point": "", "variant": "", "epochs": np.nan, "warmup_tokens": 0}
    runs = runs.drop_duplicates("run_id").assign(**every, n_tokens=np.nan)
    return runs.reset_index(drop=True), curves.reset_index(drop=True)
