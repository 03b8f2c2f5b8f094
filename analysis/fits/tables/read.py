"""Anybody's table as a table of runs, with a count of every row that was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.cost import ROUNDED, SIX_ND
from analysis.fits.points import COPIED, CURVES, ENDS, Reading, copies, refuse_impossible
from analysis.fits.prepare import prepare
from analysis.fits.seeds import ends_of, seed_groups
from analysis.fits.settings import as_it_stands
from analysis.fits.tables.cells import COUNTS, condition_of, numbers, rows_text, same_text, text_of, without_thousands
from analysis.fits.tables.columns import (
    AGREEING,
    FIELDS,
    LABELS,
    LOSS_OF,
    NUMBERS,
    OF_CONVENTION,
    choose,
    convention_of,
    loss_unit_of,
)
from analysis.fits.tables.files import from_frame, read_frame
from analysis.fits.tables.plausible import refuse_two_kinds, refuse_units, units_told
from analysis.run_table import Origin, RunTable
from arch.amounts import count, counted
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
LEAST_CURVE = 8  # different D of one size; a table of runs seldom has as many
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
    blank = np.arange(n_rows)
    for _, cells in frame.items():
        blank = blank[[text_of(cell) == "" for cell in cells.iloc[blank]]]
    frame = _keep_rows(frame, ~np.isin(np.arange(n_rows), blank), dropped, "empty")
    frame, later = _filtered(frame, chosen, where, dropped)
    parts = _group_columns(group, frame, chosen)
    fields, derived, six_nd, named = _number_fields(frame, chosen, convention)
    fields = _derived_conditions(fields, later, dropped)
    for field in fields.columns:  # before equal rows are told apart: those of 0 parameters are no curves
        refuse_impossible(field, fields[field].to_numpy(), fields.index.to_numpy())
    if six_nd is not None:
        refuse_units(six_nd, chosen)
    for field in set(chosen) - set(fields.columns):
        fields[field] = [text_of(cell) for cell in frame.loc[fields.index, chosen[field]]]
    notes: list[str] = []
    if group is None and len({text_of(cell) for cell in fields.get(ARCH, ())}) > 1:
        parts = [chosen[ARCH]]  # laws of several architectures are no law
        notes.append(f"grouped by {chosen[ARCH]!r}; --columns {ARCH}= fits all of its values as one")
    fields["group"] = ""
    if parts:
        names = ([text_of(cell) for cell in frame.loc[fields.index, column]] for column in parts)
        fields["group"] = [", ".join(values) for values in zip(*names, strict=True)]
    fields, several = _once(fields, frame, "run" in chosen, dropped)
    if "run" not in chosen and "run" not in columns:
        _refuse_unnamed_curves(fields, chosen)
    for label, rows in fields.groupby("group", sort=False):
        refuse_two_kinds(rows, frame.loc[rows.index], {chosen[name] for name in NUMBERS if name in chosen})
        _agree(rows, chosen, str(label))
    fields, n_same = _own_recipes(fields)
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


def _group_columns(group: str | None, frame: pd.DataFrame, chosen: Mapping[str, str]) -> list[str]:
    """The columns of --group: one, or several by commas, by their own names or those of fields. Raises InputError for a
    name that none has."""
    known = [*frame.columns, *(field for field in FIELDS if field in chosen and field not in frame.columns)]
    names = [] if group is None else [group] if group in known else [name.strip() for name in group.split(",")]
    for name in names:
        if name not in known:
            raise InputError(f"--group: there is no column {name!r}{nearest(name, known)}")
    return [name if name in frame.columns else chosen[name] for name in names]


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


def _keep_rows(frame: pd.DataFrame, keep: np.ndarray, dropped: dict[str, int], why: str) -> pd.DataFrame:
    """The rows of `keep` [n], the others counted under `why`. Raises InputError where none is left."""
    gone = int((~keep).sum())
    if gone:
        dropped[why] = dropped.get(why, 0) + gone
    if gone == len(frame):
        reasons = ", ".join(f"{number} {reason}" for reason, number in dropped.items())
        raise InputError(f"no row is left ({reasons})")
    return frame[keep] if gone else frame


def _filtered(
    frame: pd.DataFrame, chosen: Mapping[str, str], where: Sequence[str], dropped: dict[str, int]
) -> tuple[pd.DataFrame, list[str]]:
    """The rows that hold all conditions on columns that are there; and the conditions on what is yet to be derived."""
    later = []
    for text in where:
        condition = condition_of(text, [*frame.columns, *chosen, "n_tokens", "flops"])
        column = condition.column if condition.column in frame.columns else chosen.get(condition.column)
        if column is None:
            later.append(text)
        else:
            frame = _keep_rows(frame, condition.holds(frame[column]), dropped, f"not {text}")
    return frame, later


def _derived_conditions(fields: pd.DataFrame, later: Sequence[str], dropped: dict[str, int]) -> pd.DataFrame:
    for text in later:
        condition = condition_of(text, list(fields.columns))
        fields = _keep_rows(fields, condition.holds(fields[condition.column]), dropped, f"not {text}")
    return fields


def _number_fields(
    frame: pd.DataFrame, chosen: Mapping[str, str], convention: str | None
) -> tuple[pd.DataFrame, dict[str, str], tuple[float, float, float] | None, str]:
    """The fields that are numbers, what was derived of them, 6 N D / C where all three were given, and C's name."""
    fields = pd.DataFrame(index=frame.index)
    for field in (*NUMBERS, "unique_tokens"):
        if field in chosen:
            fields[field] = numbers(frame[chosen[field]], field)
    own = convention_of(chosen["flops"]) if "flops" in chosen else None
    if "convention" in chosen:
        stated = same_text(frame[chosen["convention"]])
        if len(stated) > 1:
            raise InputError(f"C is counted by several conventions ({', '.join(stated)}): one fit takes one of them")
        own = stated[0] or own
    if own is not None and convention is not None and own != convention:
        raise InputError(f"--convention {convention}: the table's compute is counted by {own}")
    named = convention or own
    missing = next((field for field in ("n_tokens", "flops") if field not in chosen), None)
    six_nd = None
    with np.errstate(all="ignore"):  # zeros are refused with their rows by Points
        six = 6.0 * fields["n_params"]
        if missing is not None:
            if named not in (None, *SIX_ND):
                raise InputError(
                    f"{missing} is missing, and the convention {named} does not say how C follows from N and D: name "
                    f"the column, or give --convention 6nd"
                )
            named = named or "6nd"
            fields[missing] = fields["flops"] / six if missing == "n_tokens" else six * fields["n_tokens"]
            how = "C / (6 N)" if missing == "n_tokens" else "6 N D"
            return fields, {missing: f"{how} ({named})"}, None, named
        ratio = six * fields["n_tokens"] / fields["flops"]
        six_nd = (float(ratio.min()), float(ratio.median()), float(ratio.max()))
        is_six = bool(np.abs(np.log(ratio)).max() < ROUNDED)
    return fields, {}, six_nd, named or ("6nd" if is_six else chosen["flops"])


def _once(
    fields: pd.DataFrame, frame: pd.DataFrame, has_runs: bool, dropped: dict[str, int]
) -> tuple[pd.DataFrame, bool]:
    """`fields` without the rows that stand twice in the table `frame`, or are the same run again; and whether a run has
    several rows. What is left out is counted in `dropped`.

    A run is named by its column. Without one, each row is a run. Runs of a group whose numbers are all the same, to the
    last bit, are one run, whatever their names, seeds and other labels say.

    Raises InputError where a run has two losses for the same tokens, or two numbers of parameters.
    """
    texts = frame.loc[fields.index].astype(str)
    fields = _first(fields, texts.duplicated().to_numpy(), dropped, TWICE)
    if not has_runs:
        fields = _first(fields, fields.duplicated().to_numpy(), dropped, AGAIN)
        return _first(fields, _copies(fields), dropped, RELABELLED), False
    if (empty := fields["run"] == "").any():
        raise InputError(f"run is empty in {rows_text(fields.index[empty])}")
    keys = ["group", "run"]
    again = fields.duplicated([*keys, "n_params", "n_tokens", "flops", "loss"]).to_numpy()
    fields = _first(fields, again, dropped, AGAIN)
    of_run = fields.groupby(keys, sort=False)
    if (many := of_run["n_params"].transform("nunique") > 1).any():
        rows = fields[many]
        run = rows["run"].iloc[0]
        raise InputError(
            f"run {run!r} has several numbers of parameters in {rows_text(rows.index[rows['run'] == run])}: one run "
            f"has one; name the column that tells runs apart by --columns run=its name"
        )
    if (clash := fields.duplicated([*keys, "n_tokens"], keep=False)).any():
        rows = fields[clash]
        first = (rows["run"] == rows["run"].iloc[0]) & (rows["n_tokens"] == rows["n_tokens"].iloc[0])
        raise InputError(
            f"run {rows['run'].iloc[0]!r} has several losses after {rows['n_tokens'].iloc[0]:.6g} tokens "
            f"({rows_text(rows.index[first])}): keep one, or name the column that tells runs apart"
        )
    several = bool((of_run["loss"].transform("size") > 1).any())
    return _first(fields, _copies(fields), dropped, COPIED), several


def _refuse_unnamed_curves(fields: pd.DataFrame, chosen: Mapping[str, str]) -> None:
    """Raise InputError where rows that count as runs of their own, for want of a column of runs, are evidently curves:
    most rows belong to one size (and seed, recipe, ...) with LEAST_CURVE or more different D. As runs they would make
    intervals many times too narrow."""
    labels = [name for name in ("group", "n_params", *LABELS) if name in fields]
    of_size = fields.groupby(labels, sort=False)
    along = of_size["n_tokens"].transform("nunique") >= LEAST_CURVE
    if along.sum() * 2 <= len(fields):
        return
    first = fields[along].iloc[0]
    rows = fields[(fields[labels] == first[labels]).all(axis=1)]
    column = chosen["n_params"]
    raise InputError(
        f"these rows look like curves, not like runs: N = {count(first['n_params'], 6)} has {len(rows)} rows from "
        f"{count(rows['n_tokens'].min())} to {count(rows['n_tokens'].max())} tokens. Name the column that tells runs "
        f'apart by --columns run="its name" (run="{column}" if a size is one run), or give --columns run= if each '
        "row is a run of its own"
    )


def _own_recipes(fields: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Runs of one group, N, D and recipe, of which two from different trunks have one seed, each as a recipe of its
    own, and how many they are: what they differ by is not the seed, so none of them is a seed of another."""
    if "seed" not in fields:
        return fields, 0
    plain = fields.reset_index(drop=True)
    run = (plain["run"] if "run" in plain else plain.index.to_series()).astype(str)
    trunk = plain["trunk"].where(plain["trunk"] != "", run) if "trunk" in plain else run
    recipe = (plain["recipe"] if "recipe" in plain else pd.Series("", index=plain.index)).to_numpy(dtype=object)
    keys = (plain["group"].astype(str) + "\0" + run).to_numpy(dtype=object)
    tokens, again = plain["n_tokens"].to_numpy(dtype=float), 0
    ends, rows = pd.Series(ends_of(keys, tokens)), plain.groupby(keys).indices
    for _, of_size in ends.groupby([plain["group"].to_numpy()[ends], plain["n_params"].to_numpy()[ends]], sort=False):
        at = of_size.to_numpy()
        for group in seed_groups(
            [str(recipe[i]) for i in at], tokens[at].tolist(), plain["loss"].to_numpy()[at].tolist()
        ):
            mine = plain.loc[at[group]].assign(trunk=trunk)
            trunks = mine[mine["seed"] != ""].groupby("seed")["trunk"].nunique()
            if (trunks > 1).any():
                again += len(group)
                for i in at[group]:
                    recipe[rows[keys[i]]] = f"{recipe[i]} ({trunk[i]})"
    return (fields.assign(recipe=recipe), again) if again else (fields, 0)


def _copies(fields: pd.DataFrame) -> np.ndarray:
    """[n] bool: rows of runs that are another run of their group, number for number."""
    group = pd.factorize(fields["group"])[0]
    run = fields["run"].to_numpy(dtype=object) if "run" in fields else np.arange(len(fields))
    named = np.array([f"{code} {name}" for code, name in zip(group, run, strict=True)], dtype=object)
    numbers = [name for name in (*NUMBERS, "unique_tokens") if name in fields]
    return copies(named, group, *(fields[name].to_numpy() for name in numbers))


def _first(fields: pd.DataFrame, again: np.ndarray, dropped: dict[str, int], why: str) -> pd.DataFrame:
    if again.any():
        dropped[why] = dropped.get(why, 0) + int(again.sum())
    return fields[~again]
