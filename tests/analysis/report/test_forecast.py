"""The report's section Forecast: rows, sentence, notes and figure, before and after the runs are trained."""

from analysis.report.forecast import forecast_figure, forecast_lead, forecast_notes, forecast_rows

GROUP = {
    "reason": None,
    "verdict": {"believe": "do not believe", "reasons": []},
    "noise": {"s": 0.004, "df": 7.0},
    "largest": {"c": 1e16, "loss": 1.35, "size": "n23m", "runs": ["a", "b"]},
    "power_law": {"describes": False},
    "no_interval": None,
}
WITHOUT = {"reason": "its surface is not identified"}


def row(run_id, group="llama", measured=None, loss=1.3, **more):
    found = {"run_id": run_id, "group": group, "size": "n55m", "n_params": 55e6, "n_tokens": 121e6, "c": 4e16}
    found |= {"loss": loss, "interval": [1.28, 1.32], "reason": None, "power_law": 1.1, "drop": 0.05}
    found |= {"measured": measured, "state": "done" if measured else "not trained"}
    found |= dict.fromkeys(("error", "held", "of_drop", "power_law_error", "unchanged_error", "unchanged_held"))
    if measured and loss:
        found |= {"error": measured / loss - 1, "held": 1.28 <= measured <= 1.32, "of_drop": (measured - loss) / 0.05}
        found |= {"power_law_error": measured / 1.1 - 1, "unchanged_error": measured / 1.35 - 1}
        found["unchanged_held"] = False
    return found | more


def told(*measured):
    runs = [row(f"llama-n55m-s{i}", measured=one) for i, one in enumerate(measured)]
    both = sum(measured) / len(measured) if all(measured) else None
    mean = row("", measured=both) | {"run_ids": [one["run_id"] for one in runs]}
    lost = row("tnl-n55m-s0", "tnl", loss=None, interval=None, power_law=None, reason=WITHOUT["reason"])
    held = [one["held"] for one in runs if one["held"] is not None]
    return {
        **{
            "round": 1,
            "level": 0.9,
            "made": "2026-01-02T03:04:05+00:00",
            "program": {"commit": "0123456789abcdef+changes"},
        },
        **{"fitted": {"n_runs": 61, "of": 76}, "conventions": {"L": "held-out loss (nats/token)", "C": "exact"}},
        **{"inputs_hash": "one", "groups": {"llama": GROUP, "tnl": WITHOUT}, "runs": [*runs, lost]},
        "means": [mean, lost | {"run_ids": ["tnl-n55m-s0"]}],
        "n": {"runs": 3, "trained": len(held), "with_interval": len(held), "held": sum(held)},
    }


def test_before_training_the_predictions_stand_alone():
    found = told(None, None)
    assert forecast_lead(found) == "2 of 3 runs are predicted; none of them is trained yet."
    one = found | {"runs": found["runs"][:1], "n": found["n"] | {"runs": 1}}
    assert forecast_lead(one) == "1 of 1 run is predicted; none of them is trained yet."
    first, _, mean, lost = forecast_rows(found)
    assert first["predicted"] == "1.3000 [1.2800, 1.3200]" and first["measured"] == "not trained"
    assert mean["run"] == "LLaMA, n55m: mean of 2 seeds" and first["held"] == first["error"] == ""
    assert lost["predicted"] == "none: its surface is not identified"
    names = {trace.name for trace in forecast_figure(found).data if trace.name}
    assert "predicted, 90% for one run" in names and "measured" not in names


def test_afterwards_the_errors_stand_beside_them():
    found = told(1.31, 1.34)
    assert forecast_lead(found) == (
        "2 of 3 runs are trained; the 90% intervals held 1 of 2 runs; the surfaces were off by 1.92% of the loss "
        "(median), pure power laws by 20.45%, the loss of the largest runs before by 1.85%; the error is 50% of the "
        "predicted drop (median)."
    )
    found["runs"][0] |= {"unchanged_held": True, "of_drop": None}
    assert forecast_lead(found).endswith(
        "; 1 of the intervals contains that loss too, so they do not tell the prediction from no change; the error is "
        "80% of the predicted drop (median of 1 run)."
    )
    found = told(1.31, 1.34)
    first, second, _, _ = forecast_rows(found)
    assert (first["error"], first["held"], first["error over the drop"]) == ("+0.77%", "yes", "+20%")
    assert (second["held"], second["its error"], second["error of no change"]) == ("no", "+21.82%", "\u22120.74%")
    figure = forecast_figure(found)
    (measured,) = [trace for trace in figure.data if trace.hovertemplate and ", measured" in trace.hovertemplate]
    assert list(measured.y) == [1.31, 1.34]


def test_notes_say_from_what_and_how_far_it_is_believed():
    lines = forecast_notes(told(None, None), "one")
    assert "by commit 0123456789ab with changes, from 61 of the 76 runs of the grid" in lines[0]
    assert lines[-2] == (
        "LLaMA: up to 4.0 times the largest C of its fit (2 runs of n23m, mean loss 1.3500); noise of a run about its "
        "surface 0.40% of the loss (7.0 degrees of freedom); verdict on its law: do not believe; its envelope is no "
        "power law by its checks."
    )
    assert lines[-1] == "TNL: nothing is predicted: its surface is not identified."
    assert not any("were made since" in line for line in lines)
    assert any("were made since" in line for line in forecast_notes(told(None, None), "two"))


def test_a_study_without_a_forecast_has_neither_rows_nor_figure():
    assert forecast_rows(None) == [] and forecast_figure(None) is None
