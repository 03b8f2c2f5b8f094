"""The last evaluated step of each run, and of each of its tasks."""

import pandas as pd

from analysis.last_steps import last_steps

ROWS = [("a", 10, "x", 1.0), ("a", 20, "x", 2.0), ("a", 10, "y", 3.0), ("b", 5, "x", 4.0), ("b", 5, "y", 5.0)]


def test_every_run_has_its_own_last_step() -> None:
    evals = pd.DataFrame(ROWS, columns=["run_id", "step", "task", "value"])
    assert last_steps(evals)["value"].tolist() == [2.0, 4.0, 5.0]
    assert last_steps(evals, "task")["value"].tolist() == [2.0, 3.0, 4.0, 5.0]
    assert last_steps(evals[::-1])["value"].tolist() == [5.0, 4.0, 2.0], "in the order of the table"
    assert last_steps(evals.iloc[:0]).empty
