"""Rows and their runs: what is there twice counts once, and a curve's last row is its run's end."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.fits.tables.cells import rows_text
from arch.errors import InputError

TWICE = "exactly as another row"
AGAIN = "the same run again"


def once(
    fields: pd.DataFrame, frame: pd.DataFrame, has_runs: bool, dropped: dict[str, int]
) -> tuple[pd.DataFrame, bool]:
    """`fields` without the rows that stand twice in the table `frame`, or are the same run again; and whether a run has
    several rows. What is left out is counted in `dropped`.

    A run is named by its column. Without one, two rows are the same run where all that a fit would read of them is the
    same. Raises InputError where a run has two losses for the same tokens, or two numbers of parameters.
    """
    texts = frame.loc[fields.index].astype(str)
    fields = _first(fields, texts.duplicated().to_numpy(), dropped, TWICE)
    if not has_runs:
        return _first(fields, fields.duplicated().to_numpy(), dropped, AGAIN), False
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
    return fields, bool((of_run["loss"].transform("size") > 1).any())


def last_points(fields: pd.DataFrame) -> np.ndarray:
    """[n] bool: the row with the most tokens of every run."""
    last = fields.groupby(["group", "run"], sort=False)["n_tokens"].idxmax()
    return np.asarray(fields.index.isin(last))


def _first(fields: pd.DataFrame, again: np.ndarray, dropped: dict[str, int], why: str) -> pd.DataFrame:
    if again.any():
        dropped[why] = dropped.get(why, 0) + int(again.sum())
    return fields[~again]
