"""The report's section Forecast, and the lines at the end of `scaling run`: before and after the runs are trained."""

import pytest

from analysis.fits.baselines import NO_CHANGE
from analysis.forecast.outcome import ForecastRound, Outcome
from analysis.report.forecast import forecast_figure, forecast_lead, forecast_notes, forecast_rows, outcome_lines
from tests.analysis.forecast.made import predictions, run

from .drawn_paper import check_paper


def forecast(*measured, **more):
    """Two seeds of LLaMA, measured or not, and a run of TNL of which nothing is predicted."""
    seeds = [run(f"llama-55m-s{i}", **more) for i in range(len(measured))]
    lost = run("tnl-55m-s0", arch="tnl", group="tnl", loss=None, interval=None, reason="it has no surface")
    states = [
        Outcome(seed, loss, "done" if loss else "not trained") for seed, loss in zip(seeds, measured, strict=True)
    ]
    return ForecastRound(predictions(*seeds, lost), (*states, Outcome(lost, None, "not trained")))


def test_before_training_the_predictions_stand_alone():
    untrained = forecast(None, None)
    assert forecast_lead(untrained) == "2 of 3 larger runs are predicted; none of them is trained yet."
    first, _, lost = forecast_rows(untrained)
    assert first["predicted"] == "1.3000 [1.2800, 1.3200]" and first["measured"] == "not trained"
    assert first["held"] == first["error"] == "" and lost["predicted"] == "none: it has no surface"
    assert outcome_lines([untrained]) == []
    names = {trace.name for trace in forecast_figure(untrained).data if trace.name}
    assert "predicted, 90% for a run" in names and "measured" not in names


def test_afterwards_the_errors_stand_beside_them():
    trained = forecast(1.31, 1.34, baselines={NO_CHANGE: 1.35})
    assert forecast_lead(trained) == (
        "2 of 3 larger runs are trained; the 90% intervals held 1 of 2 larger runs; predictions were off by 1.92% of "
        "the loss (median)."
    )
    first, second, _ = forecast_rows(trained)
    assert (first["error"], first["held"]) == ("+0.77%", "yes")
    assert second["held"] == "no" and first["over the largest C fitted"] == "2.00"
    figure = forecast_figure(trained)
    check_paper(figure)
    (measured,) = [trace for trace in figure.data if trace.hovertemplate and ", measured" in trace.hovertemplate]
    assert list(measured.y) == [1.31, 1.34]
    assert [1.35] in [list(trace.y) for trace in figure.data]


@pytest.mark.parametrize(
    ("measured", "more", "end"),
    [
        ((1.31, 1.29), {}, "predicted 1.300 (90% interval 1.280 to 1.320), measured 1.310, 1.290: inside."),
        ((1.31, 1.34), {}, "measured 1.310, 1.340: 1 of 2 inside."),
        ((1.34, None), {}, "measured 1.340: outside."),
        ((1.313,), {"interval": None}, "predicted 1.300 (no interval), measured 1.313: +1.0%."),
    ],
)
def test_a_run_ends_with_a_line_a_forecast(measured, more, end):
    (line,) = outcome_lines([forecast(*measured, **more)])
    assert line.startswith("Test on a run that no fit read: LLaMA, ") and line.endswith(end)
    assert " FLOP, 2.0 times its largest fitted run: predicted 1.300 (" in line


def test_notes_say_from_what_it_is_predicted():
    first, _, lost, rests = forecast_notes(forecast(None, None, rests_on="2 times the largest compute fitted"))
    assert "by commit 0123456789ab with changes, when 61 of the 76 runs of the grid were trained" in first
    assert lost == "TNL: nothing is predicted: it has no surface."
    assert rests == "LLaMA 55m: 2 times the largest compute fitted."


@pytest.mark.parametrize(
    ("slope", "end"), [(1.25, "slope of the last two budgets 6.00%."), (1.32, "1.14%: the prediction is not the best.")]
)
def test_the_median_error_stands_beside_those_of_simpler_rules(slope, end):
    rules = {"baselines": {"no change": 1.45, "slope of the last two budgets": slope}}
    (line,) = (note for note in forecast_notes(forecast(1.31, 1.34, **rules)) if note.startswith("Median errors"))
    assert line.startswith("Median errors: predicted 1.92%; no change 8.62%, slope of the last two budgets ")
    assert line.endswith(end)
    assert not any(line.startswith("Median errors") for line in forecast_notes(forecast(None, **rules)))


def test_a_forecast_without_predictions_has_no_figure():
    lost = run("a", loss=None, interval=None, reason="x")
    assert forecast_figure(ForecastRound(predictions(lost), (Outcome(lost, None, "not trained"),))) is None
