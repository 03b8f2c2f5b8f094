"""Scores of a synthetic study: laws of its losses, what is left out and withheld, chained predictions, the report."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from analysis.evals.registry import scales_of
from analysis.fits.prepare import grouped
from analysis.fits.settings import FitSettings
from analysis.fits.study_fits import StudyFits
from analysis.fits.task_fits import LengthScores, TaskFit, TaskFits
from analysis.fits.tasks.fit import Places, by_length, fit_tasks
from analysis.pages.cells import Number
from analysis.report.tasks import (
    benchmark_rows,
    benchmarks_figure,
    length_rows,
    lengths_figure,
    score_rows,
    task_sections,
    tasks_figure,
    withheld_lines,
)
from analysis.run_table import RunTable
from analysis.runs import load_tables

from ...report.drawn_paper import check_paper
from ..built import envelopes_of
from ..synthetic import BATCH, SIZES, power_world, write_run

ARCHS = ("llama", "tnl", "hgrn2")
STEPS = (30, 60, 120, 250, 350, 400, 450, 500)
TASKS = ("piqa", "boolq", "wikitext", "niah-easy", "lambada", "copa")
SETTINGS = FitSettings(smoothing_tokens=20_000, n_replicates=50)
LENGTHS = (64, 128, 256, 512, 1024)  # every run was trained on 256


def scored(task: str, loss: float, random: np.random.Generator) -> dict[str, float]:
    """What a task says of a model at a loss: chance for BoolQ."""
    if task == "boolq":
        return {"acc": 0.5 + 0.01 * random.normal(), "acc_stderr": 0.01}
    if task in ("piqa", "copa"):
        acc = float(np.clip(0.5 + 0.5 * expit(2.5 * (2.1 - loss)) + 0.004 * random.normal(), 0, 1))
        return {"acc": acc, "acc_stderr": 0.004}
    if task == "wikitext":
        return {"word_perplexity": float(np.exp(1.3 * loss + 0.01 * random.normal())), "bits_per_byte": loss}
    if task == "lambada":
        return {"perplexity": float(np.exp(1.1 * loss)), "acc": max(0.0, 0.5 - 0.15 * loss), "acc_stderr": 0.007}
    return {"weighted_avg_acc": 100 * float(expit(2 - loss + 0.05 * random.normal()))}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunTable, pd.DataFrame]:
    folder, random, rows = tmp_path_factory.mktemp("study"), np.random.default_rng(0), []
    for i, arch in enumerate(ARCHS):
        for size, n in SIZES.items():
            for seed in (0, 1) if size == "55k" else (0,):
                state = "failed" if (arch, size) == ("hgrn2", "14k") else "done"
                shift = 0.02 * i + 0.003 * float(random.normal())
                run_id = write_run(folder, arch, size, 500 * BATCH, seed=seed, shift=shift, state=state)
                for step in (3, *STEPS):
                    loss = float(power_world(n, np.array([step * BATCH]))[0] * np.exp(shift))
                    for task in TASKS:
                        if task == "copa" and size != "55k":
                            continue  # evaluated for a part of the runs
                        for metric, value in scored(task, loss, random).items():
                            rows.append((run_id, step, step * BATCH, task, metric, value))
    rows += [("tnl-25k-c256-s0", 500, 500 * BATCH, "mine", "score", 1.0)]
    evals = pd.DataFrame(rows, columns=["run_id", "step", "n_tokens", "task", "metric", "value"])
    nothing = (evals["task"] == "piqa") & (evals["run_id"] == "tnl-25k-c256-s0") & evals["step"].isin([120, 250])
    evals.loc[nothing, "value"] = np.nan
    return load_tables(folder), evals


@pytest.fixture(scope="module")
def fits(study: tuple[RunTable, pd.DataFrame]) -> StudyFits:
    tables, evals = study
    fits = envelopes_of(tables, SETTINGS)
    known = {task: scales for task in evals["task"].unique() if (scales := scales_of(task))}
    tasks = fit_tasks(fits, tables, evals, known)
    stored = json.loads(json.dumps(tasks.to_dict(), allow_nan=False))
    assert TaskFits.from_dict(stored).to_dict() == stored
    return replace(fits, downstream=tasks)


def of(fits: StudyFits, task: str) -> TaskFit:
    assert fits.downstream is not None
    return next(fit for fit in fits.downstream.tasks if fit.task == task)


def test_laws_of_a_study(fits: StudyFits) -> None:
    piqa = of(fits, "piqa")
    assert piqa.scale.chance == 0.5 and [law.arch for law in piqa.laws] == list(ARCHS)
    for law in piqa.laws:
        low, high = law.parameters["k"].ends or (9, 0)
        assert law.form == "logistic" and low < 2.5 < high
        assert law.parameters["L0"].value == pytest.approx(2.1, abs=0.05)
    text = of(fits, "wikitext").laws[1].parameters
    assert {name: estimate.value for name, estimate in text.items()} == pytest.approx(
        {"k": 1.3, "exponent": 1.0}, rel=0.03
    )
    assert fits.downstream
    assert [task.metric for task in fits.downstream.tasks if task.task == "lambada"] == ["perplexity", "acc"]


def test_what_is_left_out_is_counted(fits: StudyFits) -> None:
    piqa = of(fits, "piqa")
    assert piqa.left_out == {"it has no score": 2, "it lies inside warm-up": 20, "its run is not done": 9}
    assert fits.downstream and fits.downstream.unknown == ("mine",)
    assert len(piqa.laws[1].scores) == 7 * 8 - 2


def test_the_last_checkpoint_has_the_loss_at_the_end_of_its_run(study: tuple[RunTable, pd.DataFrame]) -> None:
    """Where the smoothed curve, a mean over half of the tokens seen, ended long ago."""
    tables, evals = study
    run_id = "llama-98k-c256-s0"
    rows = evals[(evals["run_id"] == run_id) & (evals["task"] == "piqa")]
    places = Places(tables, rows, SETTINGS.model_copy(update={"smoothing_fraction": 0.5}))
    curve = tables.curves[tables.curves["run_id"] == run_id].set_index("n_tokens")["loss"]
    assert {n_tokens for _, n_tokens in places.losses} >= {step * BATCH for step in (400, 500)}
    for (_, n_tokens), loss in places.losses.items():  # a curve without noise, which the smoothing lifts
        assert loss == pytest.approx(curve[n_tokens], rel=0.01)
    held_out = Places(tables, rows, SETTINGS.model_copy(update={"loss": "validation"}))
    assert set(held_out.reasons.values()) == {"it lies inside warm-up", "its run has no loss there"}


def test_laws_of_flat_tasks_of_few_runs_and_without_a_form_are_withheld(fits: StudyFits) -> None:
    for law in of(fits, "boolq").laws:
        assert law.curve is None and law.predictions == ()
        assert "no trend with loss beyond the noise between runs (t = " in law.withheld
    assert of(fits, "copa").laws[1].withheld == "2 run(s) have scores, 4 are needed"
    needle = of(fits, "niah-easy").laws[1]
    assert needle.withheld == "its scores follow the loss, by no known form"
    assert needle.t and needle.needed and needle.t > needle.needed and needle.curve is None


def test_scores_at_a_compute_come_through_the_loss_there(fits: StudyFits) -> None:
    for law in of(fits, "piqa").laws:
        at, score = fits.verdicts[0].archs[law.arch].predictions[0], law.predictions[0]
        assert (score.flops, score.loss) == (at.flops, at.loss.value)
        if score.loss is None:
            assert score.score.reason.startswith("the loss there: ")
        else:
            assert score.score.value == pytest.approx(0.5 + 0.5 * expit(2.5 * (2.1 - score.loss)), abs=0.02)
            if score.score.ends:
                assert score.score.ends[0] < score.score.value < score.score.ends[1]


def test_the_report_shows_what_is_fitted_and_why_the_rest_is_not(fits: StudyFits) -> None:
    assert fits.downstream is not None
    assert score_rows(fits.downstream)[0]["task"] == "piqa (acc)"
    notes = " ".join(withheld_lines(fits.downstream))
    assert "boolq (acc)" in notes and "withheld: no trend with loss" in notes
    assert re.search(r"copa \(acc\), LLaMA.*: withheld: \d run\(s\) have scores", notes)
    *_, section = task_sections(fits.downstream, fits.conventions)
    assert "Of unknown scale, so not fitted: mine." in section.notes
    assert "20 checkpoints left out because it lies inside warm-up" in notes
    figure = tasks_figure(fits.downstream, fits.unit)
    assert figure is not None and "boolq" not in str(figure.layout.annotations)
    assert figure.layout.yaxis.tickformat == ".3~%"
    withheld = TaskFits((of(fits, "boolq"), of(fits, "copa")), (), ())
    assert tasks_figure(withheld, fits.unit) is None and score_rows(withheld) == []


def test_last_checkpoints_stand_in_a_table_and_beside_their_compute(fits: StudyFits) -> None:
    """The table has the runs whose checkpoints have a place in the fits, in percent with intervals over questions."""
    assert fits.downstream is not None
    rows = {row["run"]: row for row in benchmark_rows(fits.downstream)}
    assert len(rows) == 20 and "hgrn2-14k-c256-s0" not in rows
    row, run_id = rows["tnl-98k-c256-s0"], "tnl-98k-c256-s0"
    (last,) = (
        score for score in of(fits, "piqa").laws[1].scores if (score.run_id, score.n_tokens) == (run_id, 1_024_000)
    )
    cell = row["piqa (acc), %"]
    assert isinstance(cell, Number) and cell.value == 100 * last.value and row["tokens"] == "1.024M"
    assert cell.ends == pytest.approx((cell.value - 0.784, cell.value + 0.784), abs=1e-3)
    assert cell == f"{cell.value:.4g} [{cell.ends[0]:.4g}, {cell.ends[1]:.4g}]"
    assert "[" not in row["wikitext (word_perplexity)"]
    figure = benchmarks_figure(fits.downstream, "exact")
    assert figure is not None and "boolq (acc)" in str(figure.layout.annotations)
    marks = [trace for trace in figure.data if trace.mode == "markers" and trace.xaxis == "x"]
    assert sorted(len(trace.x) for trace in marks) == [6, 7, 7]
    assert all(trace.error_y.array[0] == pytest.approx(0.00784, abs=1e-5) for trace in marks)  # as the table has it


@pytest.fixture(scope="module")
def lengths(study: tuple[RunTable, pd.DataFrame]) -> list[LengthScores]:
    """Of two checkpoints of every run but those of 14k."""
    tables, _ = study
    rows = [
        (run_id, step, step * BATCH, "extrapolate", f"perplexity@{n}", 900 / step + i + n / 256)
        for i, run_id in enumerate(tables.runs["run_id"])
        if "-14k-" not in run_id
        for step in (400, 500)
        for n in reversed(LENGTHS)
    ]
    evals = pd.DataFrame(rows, columns=["run_id", "step", "n_tokens", "task", "metric", "value"])
    tables = replace(tables, runs=tables.runs.assign(context_length=256))
    return by_length(grouped(tables, SETTINGS), evals)


def test_every_run_has_its_last_checkpoint_at_every_context_length(
    study: tuple[RunTable, pd.DataFrame], lengths: list[LengthScores]
) -> None:
    runs = list(study[0].runs["run_id"])
    assert {row.run_id for row in lengths} == {run_id for run_id in runs if "-14k-" not in run_id}
    for row in lengths:
        assert row.perplexity == {str(n): 1.8 + runs.index(row.run_id) + n / 256 for n in LENGTHS}
        assert list(row.perplexity) == [str(n) for n in LENGTHS]
    assert list(dict.fromkeys(row.arch for row in lengths)) == list(dict.fromkeys(study[0].runs["arch"]))


def test_table_and_figure_mark_the_context_lengths_beyond_the_training(lengths: list[LengthScores]) -> None:
    for row, cells in zip(lengths, length_rows(lengths), strict=True):
        assert cells["1,024"] == f"{row.perplexity['1024']:.3f}*" and "*" not in cells["256"]
    figure = lengths_figure(lengths)
    check_paper(figure)
    assert figure is not None and len(figure.data) == len(lengths)
    for trace in figure.data:
        assert trace.y[list(trace.x).index(256)] == 1.0
    sizes = [trace.marker.size for trace in figure.data if trace.showlegend]
    assert len(sizes) == 3 and sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3  # none hides another
    lost = replace(lengths[0], perplexity={"64": 4.0, "256": None})
    assert length_rows([lengths[0], lost])[1]["256"] == "not finite"
    assert lengths_figure([lost]) is None
