"""The last evaluation of each run, of tables with a row a run, evaluated step and number."""

from __future__ import annotations

import pandas as pd


def last_steps(evals: pd.DataFrame, *by: str) -> pd.DataFrame:
    """The rows of the last evaluated step of each run, or of each run and value of the columns `by`: a task may be
    evaluated at other steps than the next. evals: with run_id and step."""
    return evals[evals["step"] == evals.groupby(["run_id", *by])["step"].transform("max")]
