"""The form of stored predictions: what every reader of the file relies on. Other keys may stand beside."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from analysis.fits.settings import FitSettings

Ends = tuple[float, float] | None  # of an interval
SETTINGS = FitSettings.model_validate


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=False, allow_inf_nan=False)


class _Foretold(_Part):
    """What a run and the mean of the seeds have alike."""

    group: str
    size: str
    n_params: float
    n_tokens: float
    read_at: Annotated[float, Field(gt=0)]
    c: Annotated[float, Field(gt=0)]
    loss: float | None
    interval: Ends
    power_law: float | None
    drop: float | None
    reason: str | None


class _Run(_Foretold):
    run_id: str
    spec_hash: str | None
    arch: str


class _Mean(_Foretold):
    run_ids: Annotated[list[str], Field(min_length=1)]


class _Fitted(_Part):
    n_runs: int
    of: int
    spec_hashes: dict[str, str]


class _Conventions(_Part):
    C: str
    L: str


class _Program(_Part):
    commit: str | None


class _Rehearsal(_Part):
    group: str
    size: str
    n: int


class _Predictions(_Part):
    study: str
    made: str
    program: _Program
    inputs_hash: str
    fitted: _Fitted
    conventions: _Conventions
    settings: Annotated[dict[str, Any], AfterValidator(SETTINGS)]
    level: Annotated[float, Field(gt=0, lt=1)]
    validation_tokens: int | None = None
    groups: dict[str, dict[str, Any]]
    runs: Annotated[list[_Run], Field(min_length=1)]
    means: Annotated[list[_Mean], Field(min_length=1)]
    rehearsals: list[_Rehearsal] = []
    round: int = 1


OF_GROUP = ("verdict", "noise", "largest", "power_law", "no_interval")  # where it has no reason for having nothing


def check_form(found: dict[str, Any], place: int) -> None:
    """Raise ValueError, in one line, where these are no predictions of the round at `place`."""
    try:
        told = _Predictions.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg'].splitlines()[0]}") from None
    if told.round != place + 1:
        raise ValueError(f"it is of round {told.round}")
    ids = [run.run_id for run in told.runs]
    if sorted(ids) != sorted(run_id for mean in told.means for run_id in mean.run_ids) or len(set(ids)) < len(ids):
        raise ValueError("its means are not of its runs, each once")
    losses = {run.run_id: run.loss for run in told.runs}
    if wrong := next((mean for mean in told.means if mean.loss != losses[mean.run_ids[0]]), None):
        raise ValueError(f"the mean of {wrong.size} has another loss than its runs")
    for row in (*told.runs, *told.means):
        if (about := told.groups.get(row.group)) is None:
            raise ValueError(f"groups: lacks {row.group}")
        if "reason" not in about or (about["reason"] is None and (gone := [k for k in OF_GROUP if k not in about])):
            raise ValueError(f"groups.{row.group}: lacks {'reason' if 'reason' not in about else gone[0]}")
        if row.loss is not None and row.drop is None:
            raise ValueError(f"{row.size}: a loss has no drop")
