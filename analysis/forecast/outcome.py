"""What became of predictions: the measured losses beside them, and whether the intervals held them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.fits.losses import RunCurves
from analysis.forecast.stored import PredictedRun, Predictions, name_of_round, read_rounds
from analysis.run_table import RunTable
from analysis.source.base import NOT_TRAINED, WAITING
from analysis.source.choose import Source
from analysis.source.published import Published

if TYPE_CHECKING:
    from scaling.study.spec import StudySpec

NOT_EVALUATED = "not evaluated at its end"
OTHERWISE = "trained without this prediction"
SAME = 1e-6  # of tokens


@dataclass(frozen=True)
class Outcome:
    """A predicted run and its measured loss; None: `state`, the run's, says why."""

    run: PredictedRun
    measured: float | None
    state: str

    @property
    def error(self) -> float | None:
        """Measured over predicted, less 1."""
        return None if self.measured is None or self.run.loss is None else self.measured / self.run.loss - 1

    @property
    def held(self) -> bool | None:
        """Whether the interval has the measured loss; None without one of the two."""
        if self.measured is None or self.run.interval is None:
            return None
        return self.run.interval[0] <= self.measured <= self.run.interval[1]

    def to_dict(self) -> dict[str, Any]:
        derived = {name: getattr(self, name) for name in ("measured", "state", "error", "held")}
        return self.run.model_dump(mode="json") | derived


@dataclass(frozen=True)
class ForecastRound:
    """The predictions of one round of a forecast, and what was measured of each run."""

    predictions: Predictions
    outcomes: tuple[Outcome, ...]

    @property
    def number(self) -> int:
        return self.predictions.round

    @property
    def judged(self) -> list[Outcome]:
        """Those that have an interval and a measured loss."""
        return [outcome for outcome in self.outcomes if outcome.held is not None]

    @property
    def measured(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.measured is not None]

    @property
    def by_size(self) -> list[list[Outcome]]:
        """The outcomes of the seeds of each group and size."""
        sizes: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in self.outcomes:
            sizes.setdefault((outcome.run.group, outcome.run.size), []).append(outcome)
        return list(sizes.values())

    def to_dict(self) -> dict[str, Any]:
        n_held = sum(bool(outcome.held) for outcome in self.judged)
        counts = {"runs": len(self.outcomes), "trained": len(self.measured), "with_interval": len(self.judged)}
        return self.predictions.model_dump(mode="json") | {
            "runs": [outcome.to_dict() for outcome in self.outcomes],
            "n": counts | {"held": n_held},
        }


def read_forecast(study: StudySpec, source: Source, before: int | None = None) -> list[ForecastRound]:
    """The rounds that are predicted (those before one), with what `source` has of their runs. Raises InputError where
    predictions cannot be read (analysis.forecast.stored.read_rounds)."""
    rounds = read_rounds(study, before)
    if isinstance(source, Published):
        for stored in rounds:
            source.check_has(name_of_round(stored.round - 1))
    return [outcomes_of(stored, source.forecast) for stored in rounds]


def outcomes_of(predictions: Predictions, table: RunTable | None) -> ForecastRound:
    """table: of the forecast runs that have begun."""
    if table is None:
        return ForecastRound(predictions, tuple(Outcome(run, None, NOT_TRAINED) for run in predictions.runs))
    curves, runs = RunCurves(table, predictions.settings), table.runs.set_index("run_id")
    outcomes = []
    for run in predictions.runs:
        state = str(runs["state"].get(run.run_id, NOT_TRAINED))
        if state != "done":
            outcomes.append(Outcome(run, None, NOT_TRAINED if state == WAITING else state))
        elif "prediction" not in runs or runs["prediction"][run.run_id] != predictions.digest(run):
            outcomes.append(Outcome(run, None, OTHERWISE))
        else:
            curve = curves.of(run.run_id)
            tokens, loss = curve.n_tokens, curve.loss
            is_at_end = len(tokens) > 0 and abs(tokens[-1] / run.read_at - 1) <= SAME
            outcomes.append(Outcome(run, float(loss[-1]), state) if is_at_end else Outcome(run, None, NOT_EVALUATED))
    return ForecastRound(predictions, tuple(outcomes))
