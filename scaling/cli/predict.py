"""`scaling predict`: the losses of forecast runs before they are trained, and against what was measured then."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import FittedOptions, print_json


def predict(
    study: FittedOptions,
    force: Annotated[
        bool, typer.Option("--force", help="Predict anew, which is refused once one of the runs has begun to train.")
    ] = False,
) -> None:
    """Predict larger runs' losses before they are trained.

    Predicts the forecast runs of the study from its fits, and stores that once. Later calls show the predictions beside
    what was measured, and predict the next round of the forecast once the one before is trained.

    Forecast runs (section forecast of the study file) are trained only after this, and enter no fit but those of later
    rounds.
    """
    from ..stages.prediction import predict_stage
    from ..stages.show import show_forecast

    first, *later = rounds = predict_stage(study.request(), force)
    if study.as_json:
        print_json({**first.to_dict(), "later": [one.to_dict() for one in later]})
    else:
        print("\n\n".join(map(show_forecast, rounds)))
    study.say_next("report" if len(rounds[-1].measured) == len(rounds[-1].outcomes) else "train")
