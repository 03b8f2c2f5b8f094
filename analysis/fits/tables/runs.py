"""Rows and their runs: what is there twice counts once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis.fits.points import COPIED, copies
from analysis.fits.recipes import ends_of
from analysis.fits.replicates import alike
from analysis.fits.tables.cells import rows_text
from analysis.fits.tables.columns import LABELS, NUMBERS
from arch.amounts import count
from arch.errors import InputError

TWICE = "exactly as another row"
AGAIN = "the same run again"
LEAST_CURVE = 8  # different D of one size; a table of runs seldom has as many
RELABELLED = "the same numbers under other labels"  # of tables that do not name runs


def once(
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


def refuse_unnamed_curves(fields: pd.DataFrame, chosen: Mapping[str, str]) -> None:
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


def own_recipes(fields: pd.DataFrame) -> tuple[pd.DataFrame, int]:
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
        for group in alike([str(recipe[i]) for i in at], tokens[at].tolist(), plain["loss"].to_numpy()[at].tolist()):
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
    named = np.array([f"{one} {name}" for one, name in zip(group, run, strict=True)], dtype=object)
    numbers = [name for name in (*NUMBERS, "unique_tokens") if name in fields]
    return copies(named, group, *(fields[name].to_numpy() for name in numbers))


def _first(fields: pd.DataFrame, again: np.ndarray, dropped: dict[str, int], why: str) -> pd.DataFrame:
    if again.any():
        dropped[why] = dropped.get(why, 0) + int(again.sum())
    return fields[~again]
