"""Contexts longer than those of the training: of the published study's runs, and of one without its own length."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.fits.grouping import grouped
from analysis.fits.tasks.lengths import by_length
from analysis.report.lengths import length_rows, lengths_figure
from analysis.source.read import read_runs

FOLDER = Path(__file__).resolve().parents[3] / "analysis" / "studies" / "h200-2026"


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    study = read_runs(FOLDER)
    return by_length(grouped(study, study.settings), pd.read_parquet(FOLDER / "evals.parquet"))


def test_every_run_has_its_last_checkpoint_at_every_length(rows: list[dict]) -> None:
    scores = pd.read_parquet(FOLDER / "evals.parquet")
    asked = scores[scores["metric"] == "perplexity@8192"]
    assert {row["run_id"] for row in rows} == set(asked["run_id"])
    for row in rows:
        (value,) = asked[asked["run_id"] == row["run_id"]]["value"]
        assert row["perplexity"]["8192"] == value and list(row["perplexity"]) == ["512", "1024", "2048", "4096", "8192"]
    assert list(dict.fromkeys(row["arch"] for row in rows)) == ["llama", "tnl", "hgrn2", "cosformer2"]


def test_table_and_figure_say_which_lengths_lie_beyond_the_training(rows: list[dict]) -> None:
    for row, cells in zip(rows, length_rows(rows), strict=True):
        assert cells["8,192"] == f"{row['perplexity']['8192']:.3f}*" and "*" not in cells["2,048"]
    figure = lengths_figure(rows)
    assert figure is not None and len(figure.data) == len(rows)
    for trace in figure.data:
        assert trace.y[list(trace.x).index(2048)] == 1.0
    sizes = [trace.marker.size for trace in figure.data if trace.showlegend]
    assert len(sizes) == 4 and sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4  # none hides another


def test_a_run_without_a_finite_perplexity_is_told_and_not_drawn(rows: list[dict]) -> None:
    lost = rows[0] | {"perplexity": {"512": 4.0}}
    (cells,) = length_rows([lost | {"perplexity": {"512": 4.0}}])
    assert cells["512"] == "4.000"
    assert length_rows([rows[0], lost])[1]["2,048"] == "not finite"
    assert lengths_figure([lost]) is None
