"""Scores of a synthetic study: links to its losses, what is left out and withheld, chained predictions, the report."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from analysis.evals.scales import scales_of
from analysis.fits.settings import FitSettings
from analysis.fits.tasks import fit_tasks
from analysis.fits.tasks.places import places_of
from analysis.pages.cells import Number
from analysis.report.task_tables import downstream_notes, task_tables
from analysis.report.tasks import benchmarks_figure, tasks_figure
from analysis.run_table import RunTable
from analysis.runs import load_tables

from ..built import envelopes_of
from ..synthetic import BATCH, SIZES, power_world, write_run

ARCHS = ("llama", "tnl", "hgrn2")
STEPS = (30, 60, 120, 250, 350, 400, 450, 500)
TASKS = ("piqa", "arc-easy", "boolq", "wikitext", "niah-easy", "scrolls-qasper", "lambada", "copa")
SETTINGS = FitSettings(smoothing_tokens=20_000, n_replicates=50)


def scored(task: str, loss: float, arch: str, random: np.random.Generator) -> dict[str, float]:
    """What a task says of a model at a loss: chance for BoolQ, one link for all in PIQA, one each in ARC."""
    if task == "boolq":
        return {"acc": 0.5 + 0.01 * random.normal(), "acc_stderr": 0.01}
    if task in ("piqa", "arc-easy", "copa"):
        share = expit(2.5 * (2.1 + (0.2 * ARCHS.index(arch) if task == "arc-easy" else 0) - loss))
        chance = 0.25 if task == "arc-easy" else 0.5
        acc = float(np.clip(chance + (1 - chance) * share + 0.004 * random.normal(), 0, 1))
        return {"acc": acc, "acc_stderr": 0.004}
    if task == "wikitext":
        return {"word_perplexity": float(np.exp(1.3 * loss + 0.01 * random.normal())), "bits_per_byte": loss}
    if task == "lambada":
        return {"perplexity": float(np.exp(1.1 * loss)), "acc": max(0.0, 0.5 - 0.15 * loss), "acc_stderr": 0.007}
    return {"weighted_avg_acc" if task == "niah-easy" else "f1": 100 * float(expit(2 - loss + 0.05 * random.normal()))}


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
                        for metric, value in scored(task, loss, arch, random).items():
                            rows.append((run_id, step, step * BATCH, task, metric, value))
    rows += [("tnl-25k-c256-s0", 500, 500 * BATCH, "mine", "score", 1.0)]
    evals = pd.DataFrame(rows, columns=["run_id", "step", "n_tokens", "task", "metric", "value"])
    nothing = (evals["task"] == "piqa") & (evals["run_id"] == "tnl-25k-c256-s0") & evals["step"].isin([120, 250])
    evals.loc[nothing, "value"] = np.nan
    return load_tables(folder), evals


@pytest.fixture(scope="module")
def found(study: tuple[RunTable, pd.DataFrame]) -> dict[str, Any]:
    tables, evals = study
    fits = envelopes_of(tables, SETTINGS)
    known = {task: scales for task in evals["task"].unique() if (scales := scales_of(task))}
    told = fit_tasks(fits, tables, evals, known)
    json.dumps(told, allow_nan=False)
    return told


def of(found: dict[str, Any], task: str, metric: str | None = None) -> dict[str, Any]:
    return next(one for one in found["tasks"] if one["task"] == task and metric in (None, one["metric"]))


def test_links_of_a_study(found: dict[str, Any]) -> None:
    piqa = of(found, "piqa")
    assert piqa["scale"]["chance"] == 0.5 and list(piqa["archs"]) == list(ARCHS)
    for arch in ARCHS:
        link = piqa["archs"][arch]["link"]
        steep, middle = (link["parameters"][name] for name in ("k", "L0"))
        assert steep["low"] < 2.5 < steep["high"] and middle["value"] == pytest.approx(2.1, abs=0.05)
        assert link["form"] == "logistic" and link["conventions"]["C"] == "exact"
    assert piqa["shared"]["same"] and piqa["shared"]["p"] > 0.05
    assert piqa["shared"]["link"]["n_runs"] == 20
    arc = of(found, "arc-easy")
    assert arc["shared"]["same"] is False and arc["shared"]["p"] < 0.01
    text = of(found, "wikitext")["archs"]["tnl"]["link"]
    assert {name: one["value"] for name, one in text["parameters"].items()} == pytest.approx(
        {"k": 1.3, "exponent": 1.0}, rel=0.03
    )
    assert [one["metric"] for one in found["tasks"] if one["task"] == "lambada"] == ["perplexity", "acc"]


def test_what_is_left_out_is_counted(found: dict[str, Any]) -> None:
    left = of(found, "piqa")["left_out"]
    assert left == {"it has no score": 2, "it lies inside warm-up": 20, "its run is not done": 9}
    assert found["unknown"] == ["mine"]
    assert of(found, "piqa")["archs"]["tnl"]["n_checkpoints"] == 7 * 8 - 2


def test_the_last_checkpoint_has_the_loss_at_the_end_of_its_run(study: tuple[RunTable, pd.DataFrame]) -> None:
    """Where the smoothed curve, a mean over half of the tokens seen, ended long ago."""
    tables, evals = study
    wide = SETTINGS.model_copy(update={"smoothing_fraction": 0.5})
    rows = evals[(evals["run_id"] == "llama-98k-c256-s0") & (evals["task"] == "piqa")]
    places, _ = places_of(tables, rows, wide)
    curve = tables.curves[tables.curves["run_id"] == "llama-98k-c256-s0"].set_index("n_tokens")["loss"]
    assert {one.n_tokens for one in places.values()} >= {step * BATCH for step in (400, 500)}
    for one in places.values():  # a curve without noise, which the smoothing lifts
        assert one.loss == pytest.approx(curve[int(one.n_tokens)], rel=0.01)
    held_out = SETTINGS.model_copy(update={"loss": "validation"})
    assert set(places_of(tables, rows, held_out)[1].values()) == {"it lies inside warm-up", "its run has no loss there"}


def test_flat_tasks_and_those_of_few_runs_are_withheld(found: dict[str, Any]) -> None:
    for arch, one in of(found, "boolq")["archs"].items():
        assert one["link"] is None and one["curve"] is None and one["predictions"] == [], arch
        assert "no trend with loss beyond the noise between runs (t = " in one["withheld"]
    assert of(found, "copa")["archs"]["tnl"]["withheld"] == "2 run(s) have scores, 4 are needed"
    assert of(found, "boolq")["shared"]["link"] is None
    ranked = of(found, "boolq")["rankings"]
    assert all("signal to noise is" in one["reason"] for one in ranked if len(one["means"]) == 3)


def test_trends_do_not_extrapolate(found: dict[str, Any]) -> None:
    niah = of(found, "niah-easy")["archs"]["tnl"]
    assert niah["link"] is None and niah["trend"]["tau"] > 0.9 and niah["trend"]["t"] > niah["trend"]["needed"]
    curve = niah["curve"]
    assert np.isfinite(curve["value"]).all() and (np.diff(curve["value"]) <= 1e-9).all()  # over rising loss
    assert curve["low"][0] is None and curve["low"][20] < curve["value"][20] < curve["high"][20]


def test_scores_at_a_compute_come_through_the_loss_there(
    study: tuple[RunTable, pd.DataFrame], found: dict[str, Any]
) -> None:
    fits = envelopes_of(study[0], SETTINGS)
    for arch in ARCHS:
        at = fits.verdicts[0].archs[arch].predictions[0]
        told = of(found, "piqa")["archs"][arch]["predictions"][0]
        assert told["c"] == at.flops and told["loss"] == at.loss.value
        if told["value"] is not None:
            assert told["value"] == pytest.approx(0.5 + 0.5 * expit(2.5 * (2.1 - told["loss"])), abs=0.02)
            if told["interval"]:
                assert told["interval"][0] < told["value"] < told["interval"][1]
        else:
            assert told["reason"].startswith("the loss there: ")


def test_rankings_and_decisions(found: dict[str, Any]) -> None:
    piqa = of(found, "piqa")
    large = piqa["rankings"][-1]
    assert large["size"] == "393k" and large["seeds"] and set(large["means"]) == set(ARCHS)
    assert large["reason"] is None or large["ratio"] < large["needed"]
    assert {one["n_pairs"] for one in piqa["decision_accuracy"]} == {1, 3}  # one architecture lacks 14k


def test_the_report_shows_what_is_fitted_and_why_the_rest_is_not(found: dict[str, Any]) -> None:
    shown = task_tables(found)
    assert [row["task"] for row in shown["scores"]][:2] == ["piqa (acc)", "arc-easy (acc)"]
    told = " ".join(line for lines in downstream_notes(found).values() for line in lines)
    assert "boolq (acc)" in told and "withheld: no trend with loss" in told
    assert "Too few runs with scores for a law: copa (acc)." in told
    assert "Of unknown scale, so not fitted: mine." in told
    assert "20 checkpoints left out because it lies inside warm-up" in told
    figure = tasks_figure(found)
    assert figure is not None and "boolq" not in str(figure.layout.annotations)
    nothing = {"tasks": [of(found, "boolq"), of(found, "copa")], "unknown": []}
    assert tasks_figure(nothing) is None and task_tables(nothing)["scores"] == []
    alone = of(found, "piqa") | {"rankings": [{"means": {"tnl": 0.6}, "reason": None}]}
    few = {"tasks": [alone], "unknown": []}  # no table of rankings, so nothing about what is in it
    assert task_tables(few)["rankings"] == downstream_notes(few)["rankings"] == []


def test_last_checkpoints_stand_in_a_table_and_beside_their_compute(found: dict[str, Any]) -> None:
    """The table has the runs whose checkpoints have a place in the fits, in percent with intervals over questions."""
    rows = {row["run"]: row for row in task_tables(found)["benchmarks"]}
    assert len(rows) == 20 and "hgrn2-14k-c256-s0" not in rows
    one, points = rows["tnl-98k-c256-s0"], of(found, "piqa")["archs"]["tnl"]["points"]
    last = points["name"].index("tnl-98k-c256-s0 after 1,024,000 tokens")
    cell = one["piqa (acc), %"]
    assert isinstance(cell, Number) and cell.value == 100 * points["value"][last] and one["tokens"] == "1.024M"
    assert cell.ends == pytest.approx((cell.value - 0.784, cell.value + 0.784), abs=1e-3)
    assert cell == f"{cell.value:.4g} [{cell.ends[0]:.4g}, {cell.ends[1]:.4g}]"
    assert "[" not in one["wikitext (word_perplexity)"]
    figure = benchmarks_figure(found)
    assert figure is not None and "boolq (acc)" in str(figure.layout.annotations)
    curve = of(found, "piqa")["archs"]["llama"]["compute_curve"]
    drawn = [trace for trace in figure.data if trace.mode == "lines" and trace.fill is None and len(trace.x) == 40]
    assert any(list(trace.x) == curve["flops"] and list(trace.y) == curve["value"] for trace in drawn)
    assert curve["low"][20] < curve["value"][20] < curve["high"][20]
    marks = [trace for trace in figure.data if trace.mode == "markers" and trace.xaxis == "x"]
    assert sorted(len(trace.x) for trace in marks) == [6, 7, 7]
    assert all(trace.error_y.array[0] == pytest.approx(0.00784, abs=1e-5) for trace in marks)  # as the table has it
    assert figure.layout.yaxis.tickformat == ".3~%" and tasks_figure(found).layout.yaxis.tickformat == ".3~%"
    assert all(trace.error_y.array is None for trace in tasks_figure(found).data)
