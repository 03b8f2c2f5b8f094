"""What runs were to cost and what they cost."""

from dataclasses import replace

import pandas as pd
import pytest

from analysis.costs import costs_of, costs_table
from analysis.report.runs import BRANCHES, branch_notes, cost_notes
from arch.amounts import flop
from flops.hardware import DEVICES
from flops.pace import NEXT_S, START_S
from scaling.study.cost import pace_of
from scaling.study.run import RunSpec
from scaling.study.spec import load_study


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunSpec]:
    """A trunk with two branches, and a size without."""
    folder = tmp_path_factory.mktemp("costs")
    (folder / "s.yaml").write_text(
        "name: demo\ncorpus: {source: 'stdlib:'}\ngrid: {archs: [tnl], sizes: [14k, 25k]}\n"
        "training: {batch_tokens: 2048, threads: 2}\n"
        "overrides: {by_size: {14k: {schedule: wsd, branches: [40960, 81920]}, 25k: {n_tokens: 40960}}}\n"
    )
    return load_study(folder / "s.yaml").runs()


def table(runs: list[RunSpec], hardware: object, **changes: object) -> pd.DataFrame:
    rows = [
        {"run_id": run.run_id, "state": "done", "n_tokens": run.n_tokens, "flops_per_token_exact": 1e5, "time_s": 30.0}
        | {"tokens_per_s": 1e4, "hardware": hardware}
        | changes
        for run in runs
    ]
    return pd.DataFrame(rows)


def test_planned_and_spent_of_gpus(runs: list[RunSpec]) -> None:
    costs = costs_of(runs, table(runs, "2 x NVIDIA H200"))
    assert [cost.run_id for cost in costs] == [run.run_id for run in runs]
    for cost, run in zip(costs, runs, strict=True):
        assert (cost.units, cost.spent_minutes, cost.tokens) == (
            2,
            1.0,
            run.trained_tokens,
        )  # a branch's without its trunk's
        seconds = run.trained_steps * pace_of(run, DEVICES["h200"], 2).step_seconds + START_S["GPU"]
        assert cost.planned_minutes == pytest.approx(seconds * 2 / 60, rel=1e-12)
        assert cost.mfu_exact == pytest.approx(run.trained_tokens * 1e5 / (60 * 989.5e12), rel=1e-12)
    assert sum(run.trained_tokens != run.n_tokens for run in runs) == 2
    notes = " ".join(cost_notes(costs))
    assert f"Training took {len(runs):.1f} minutes" in notes and "MFU: " in notes
    assert list(costs_table(costs)["mfu_exact"]) == [cost.mfu_exact for cost in costs]


def test_branches_have_a_note_since_their_tokens_are_of_the_whole_path(runs: list[RunSpec]) -> None:
    trained = table(runs, "1 x NVIDIA H200")
    assert branch_notes(costs_of(runs, trained), trained) == [BRANCHES]
    whole = [run for run in runs if run.trained_tokens == run.n_tokens]
    assert branch_notes(costs_of(whole, trained), trained) == []


def test_the_forecasts_share_is_told(runs: list[RunSpec]) -> None:
    first, *rest = costs_of(runs, table(runs, "1 x NVIDIA H200"))
    notes = cost_notes([replace(first, is_forecast=True), *rest])
    assert f", {flop(first.flops_exact)} FLOP" not in notes[0] and f", {flop(first.flops_exact)} of them" in notes[0]
    assert "of its devices (1 x NVIDIA H200), 0.5 of them the forecast's; " in notes[1]
    assert "forecast" not in " ".join(cost_notes([first, *rest]))


def test_what_is_not_done_is_not_held_against_the_plan(runs: list[RunSpec]) -> None:
    """A plan is of all steps of a run."""
    rows = table(runs, "1 x NVIDIA H200")
    rows.loc[0, ["state", "n_tokens"]] = ["failed", 2048]
    costs = costs_of(runs, rows)
    notes = " ".join(cost_notes(costs))
    planned = sum(cost.planned_minutes or 0.0 for cost in costs[1:])
    assert (
        f"Training took {0.5 * (len(runs) - 1):.1f} minutes of its devices (1 x NVIDIA H200); {planned:,.1f} " in notes
    )
    assert "Not done: 1 of the runs, which took 0.5 minutes more" in notes


@pytest.mark.parametrize(("gpus", "start"), [(1, NEXT_S["GPU"]), (2, START_S["GPU"])])
def test_a_run_of_several_gpus_starts_processes_of_its_own(runs: list[RunSpec], gpus: int, start: float) -> None:
    (cost, *_), run = costs_of(runs, table(runs, f"{gpus} x NVIDIA H200")), runs[0]
    seconds = run.trained_steps * pace_of(run, DEVICES["h200"], gpus).step_seconds + start
    assert cost.planned_minutes == pytest.approx(seconds * gpus / 60, rel=1e-12)


@pytest.mark.parametrize(
    ("hardware", "units", "planned"),
    [
        ("1 x AMD EPYC 9B14 96-Core Processor", 2, True),  # cores, as many as its threads; their peak is no MFU
        ("1 x NVIDIA GeForce RTX 4090", None, False),
        ("1 x NVIDIA H200, 2 x NVIDIA H100", None, False),
        (None, None, False),
    ],
)
def test_a_device_that_is_not_known_has_no_plan(
    runs: list[RunSpec], hardware: object, units: int | None, planned: bool
) -> None:
    for cost in costs_of(runs, table(runs, hardware)):
        assert (cost.units, cost.planned_minutes is not None, cost.mfu_exact) == (units, planned, None)
        assert (cost.spent_minutes is not None) == planned and cost.flops_exact == cost.tokens * 1e5


def test_a_run_that_waits_costs_nothing(runs: list[RunSpec]) -> None:
    nothing = {"state": "waiting", "n_tokens": 0, "time_s": None, "tokens_per_s": None, "flops_per_token_exact": None}
    costs = costs_of(runs, table(runs, None, **nothing))
    assert [cost.flops_exact for cost in costs] == [0.0] * len(runs)
    assert cost_notes(costs) == []
