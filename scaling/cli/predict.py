"""`scaling predict`: the losses of forecast runs before they are trained, and against what was measured then."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import AsJson, Fitted, Out, Plugin, print_json, request_of


def predict(
    study: Fitted,
    out: Out = None,
    force: Annotated[
        bool, typer.Option("--force", help="Predict anew, which is refused once one of the runs has begun to train.")
    ] = False,
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> None:
    """Predict the losses of the study's forecast runs from its fits, and store that once; later calls show the
    predictions beside what was measured, and predict the next round of the forecast once the one before is trained.

    Forecast runs (section forecast of the study file) are trained only after this, and enter no fit but those of
    later rounds.
    """
    from ..stages.prediction import predict_stage
    from ..stages.show import show_forecast

    first, *later = predict_stage(request_of(study, None, None, out, as_json, True, plugin), force)
    print_json({**first, "later": later}) if as_json else print("\n\n".join(map(show_forecast, [first, *later])))
