"""Which losses a fit is of: those before any decay of the learning rate, or those at the end of one, to which those of
merged weights are added where a study asks for them (analysis.fits.merged).

Never both as they are: a decay lowers the loss (Haegele et al. 2024, section 3), so that a fit of
both would be one of neither; and a loss inside one is no run's end.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.fits.settings import FitSettings
from analysis.runs import Tables
from arch.amounts import counted
from arch.errors import InputError
from scaling.study.schedule import DECAYED, DECAYING, MERGED, UNDECAYED

AUTO = "auto"
NO_CURVE = (
    "decayed losses are one point a run (fit.points), which an envelope of curves cannot be made of: the isoFLOP "
    "profiles and the surface are fitted to them"
)


def resolved(tables: Tables, settings: FitSettings) -> FitSettings:
    """The settings with fit.points decided: `auto` takes decayed losses where every architecture has some, else those
    at rates that have not decayed; it stays `auto` where no rate decays. Raises InputError for decayed losses that no
    run has."""
    found = _rows(tables, settings)
    if (
        found is None
        or settings.points == UNDECAYED
        or (settings.points == AUTO and set(found["phase"]) <= {UNDECAYED})
    ):
        return settings
    archs = set(tables.runs.loc[tables.runs["state"] == "done", "arch"])
    decayed = set(found.loc[found["phase"] == DECAYED, "arch"])
    if settings.is_of_ends:
        if not decayed:
            raise InputError(
                f"fit.points is {settings.points}, and no run that is done has an evaluated checkpoint at the end of a "
                f"decay: set it to undecayed, or evaluate these runs"
            )
        return settings
    every = settings.loss == "validation" and archs <= decayed
    return settings.model_copy(update={"points": DECAYED if every else UNDECAYED})


def told(tables: Tables, settings: FitSettings) -> dict[str, Any] | None:
    """{"phase", "text", "left_out": {phase: rows}} of resolved settings; None where no rate decays."""
    found = _rows(tables, settings)
    if settings.points == AUTO or found is None:
        return None
    rows = found["phase"].value_counts()
    fitted = {DECAYED, MERGED} if settings.points == MERGED else {settings.points}
    left = {str(phase): int(number) for phase, number in rows.items() if phase not in fitted}
    if not left and settings.points != MERGED:
        return None
    words: dict[str, str] = {
        UNDECAYED: "before any decay",
        DECAYING: "inside a decay",
        DECAYED: "at the end of a decay",
        MERGED: "of merged weights",
    }
    which = f"losses {words[settings.phase or UNDECAYED]} of the learning rate"
    if settings.points == MERGED:
        which += (
            f", and of {int(rows.get(MERGED, 0)):,} rows of merged weights, less their offset, those where no branch "
            f"of their trunk has decayed (architectures are compared on decayed losses alone)"
        )
    text = f"fitted: {which} (fit.points); left out: " + (
        ", ".join(f"{counted(number, 'row')} {words[phase]}" for phase, number in left.items()) or "none"
    )
    if settings.points == UNDECAYED and settings.loss != "validation" and _all_evaluated(tables):
        text += "; every architecture has held-out losses at the end of a decay: fit.loss validation fits these"
    return {"phase": settings.points, "text": text, "left_out": left}


def _rows(tables: Tables, settings: FitSettings) -> pd.DataFrame | None:
    """The rows of runs that are done of the loss that is fitted; None of tables that tell no phase."""
    source = tables.evals if settings.loss == "validation" else tables.curves
    if "phase" not in source:
        return None
    done = tables.runs.loc[(tables.runs["state"] == "done") & (tables.runs["variant"] == ""), "run_id"]
    return source[source["run_id"].isin(done)]


def _all_evaluated(tables: Tables) -> bool:
    evals = tables.evals
    if "phase" not in evals or evals.empty:
        return False
    return set(tables.curves["arch"]) <= set(evals.loc[evals["phase"] == DECAYED, "arch"])
