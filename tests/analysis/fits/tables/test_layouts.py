"""Tables as wandb exports them, and isoFLOP tables with a column a budget: the same points as from one row a run."""

import numpy as np
import pandas as pd
import pytest

from analysis.fits.tables import read_points
from tests.analysis.fits.tables.test_reading import grid, refused

RUNS = grid().rename(columns={"N": "n_params", "D": "n_tokens"}).assign(run=lambda t: [f"run - {i}" for i in t.index])
STEPS = np.arange(1, 11)
CURVES = pd.concat(
    RUNS.assign(n_tokens=RUNS["n_tokens"] * step / 10, loss=RUNS["loss"] * step**-0.05, step=step) for step in STEPS
)


def numbers(source, columns=None, **options):
    """N, D and loss of the points, sorted."""
    points = read_points(source, columns, **options).groups[""]
    return np.sort(np.array([points.n_params, points.n_tokens, points.loss]).T, axis=0)


PLAIN = numbers(RUNS)


def chart(columns=("loss",), axis="n_tokens"):
    """As the panel of a chart exports it: the union of all axes, a cell where a run has a value there."""
    wide = pd.DataFrame({axis: np.sort(CURVES[axis].unique())})
    for run, mine in CURVES.groupby("run"):
        for name in columns:
            values = wide[axis].map(mine.set_index(axis)[name])
            wide = wide.assign(**{f"{run} - {name}{bound}": values for bound in ("", "__MIN", "__MAX")})
    return wide


def test_a_table_of_runs_of_wandb(tmp_path):
    """By columns with config. and summary., by objects as pandas writes them to CSV, and as JSON lines."""
    flat = RUNS.rename(columns={"n_params": "config.n_params", "n_tokens": "summary.n_tokens", "loss": "summary.loss"})
    flat = flat.rename(columns={"run": "Name"}).assign(**{"summary._wandb.runtime": 5, "State": "finished"})
    assert numbers(flat) == pytest.approx(PLAIN)
    config = [{"n_params": {"value": n}, "wd": float("nan")} for n in RUNS["n_params"]]
    summary = RUNS[["n_tokens", "loss"]].assign(_step=7).to_dict("records")
    objects = pd.DataFrame({"summary": summary, "config": config, "name": RUNS["run"]})
    objects.to_csv(tmp_path / "project.csv")
    objects.to_json(tmp_path / "project.jsonl", orient="records", lines=True)
    for path in (tmp_path / "project.csv", tmp_path / "project.jsonl"):
        assert numbers(path) == pytest.approx(PLAIN)
        assert read_points(path).columns["run"] == "run"
    refused("summary in row 2 is no object that can be read", objects.assign(summary=["{}", "{1:"] + ["{}"] * 14))
    crashed = flat.assign(State=["crashed", *["finished"] * 15])
    assert "1 of 16 runs is crashed: --where State=finished leaves them out" in read_points(crashed).notes
    assert len(numbers(crashed, where=["State=finished"])) == 15
    refused("no column for n_tokens or flops", flat.drop(columns="summary.n_tokens"))
    both = flat.assign(**{"config.loss": 1.0})
    refused('no column for loss: .*"?summary.loss', both)
    assert numbers(both, {"loss": "summary.loss"}) == pytest.approx(PLAIN)


def test_a_history_of_wandb_as_json_lines(tmp_path):
    history = CURVES.rename(columns={"step": "_step"}).assign(_runtime=1.0, _timestamp=2.0)
    history.to_json(tmp_path / "history.jsonl", orient="records", lines=True)
    assert numbers(tmp_path / "history.jsonl", points="curves") == pytest.approx(numbers(CURVES, points="curves"))


def test_a_chart_of_wandb(tmp_path):
    """With the table of runs beside it, or with labels that say N; a run that lacks is named, an axis of steps too."""
    runs = RUNS.rename(columns={"run": "Name"}).assign(State="finished", Runtime=1).drop(columns=["n_tokens", "loss"])
    runs.to_csv(tmp_path / "runs.csv")
    chart(("loss", "step")).rename(columns=lambda name: name.replace("- step", "- _step")).to_csv(
        tmp_path / "chart.csv", index=False
    )
    curves = numbers(CURVES, points="curves")
    reading = read_points(tmp_path / "chart.csv", points="curves", runs=tmp_path / "runs.csv")
    assert "a chart of wandb: 16 runs over 'n_tokens'" in reading.notes and reading.groups[""].n_runs == 16
    assert numbers(tmp_path / "chart.csv", points="curves", runs=runs) == pytest.approx(curves)
    labels = dict(zip(RUNS["run"], RUNS["n_params"], strict=True))

    def labelled(name):
        run, _, rest = name.rpartition(" - ")
        return f"n_params: {labels[run]:.0f}, {run} - {rest}" if run else name

    assert numbers(chart().rename(columns=labelled), points="curves") == pytest.approx(curves)
    refused("no column for n_params", chart())
    refused("--runs: has no run 'run - 3'", chart(), runs=runs.drop(index=3))
    refused("--runs: run 'run - 1' is there twice", chart(), runs=pd.concat([runs, runs[1:2]]))
    refused("--runs: it has no column that names its runs", chart(), runs=RUNS[["n_params"]])
    refused("2 columns for its axis", chart().assign(Step=1))
    refused("no column for n_tokens or flops", chart(axis="step"), runs=runs)


@pytest.mark.parametrize("named", ["{:.0e}", "loss @ {:g} FLOPs", "C={:.1e}"])
def test_an_isoflop_table_with_a_column_a_budget(named):
    n, c = (np.ravel(axis) for axis in np.meshgrid(np.geomspace(1e7, 1e9, 9), [1e18, 3e18, 1e19]))
    long = pd.DataFrame({"n_params": n, "flops": c, "loss": 1.7 + 400 / n**0.34 + 410 / (c / 6 / n) ** 0.28})[:-2]
    wide = long.pivot(index="n_params", columns="flops", values="loss").rename(columns=named.format).reset_index()
    assert numbers(wide) == pytest.approx(numbers(long)) and len(long) == 25
    assert any("for each of 3 budgets" in note for note in read_points(wide).notes)
    odd = wide.rename(columns={named.format(1e18): "accuracy 1e18"})
    refused("columns of budgets by several names", odd)
