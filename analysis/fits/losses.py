"""Which losses of a run a fit is of, and the curve that they make.

Losses are those before any decay of the learning rate, or those at the end of one, to which those of merged weights are
added where a study asks for them (analysis.fits.merged). Never both as they are: a decay lowers the loss (Haegele et
al. 2024, section 3), so that a fit of both would be one of neither; and a loss inside one is no run's end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.settings import FitSettings
from analysis.fits.smooth import smooth
from analysis.run_table import RunTable
from arch.amounts import counted
from arch.errors import InputError
from scaling.study.schedule import DECAYED, DECAYING, MERGED, UNDECAYED

AUTO = "auto"
NO_ROWS = np.zeros(0, dtype=int)
NO_CURVE = (
    "decayed losses are one point a run (fit.points), which an envelope of curves cannot be made of: the isoFLOP "
    "profiles and the surface are fitted to them"
)


def resolved(table: RunTable, settings: FitSettings) -> FitSettings:
    """The settings with fit.points decided: `auto` takes decayed losses where every architecture has some, else those
    at rates that have not decayed; it stays `auto` where no rate decays. Raises InputError for decayed losses that no
    run has."""
    rows = _rows(table, settings)
    if rows is None or settings.points == UNDECAYED or (settings.points == AUTO and set(rows["phase"]) <= {UNDECAYED}):
        return settings
    archs = set(table.runs.loc[table.runs["state"] == "done", "arch"])
    decayed = set(rows.loc[rows["phase"] == DECAYED, "arch"])
    if settings.is_of_ends:
        if not decayed:
            raise InputError(
                f"fit.points is {settings.points}, and no run that is done has an evaluated checkpoint at the end of a "
                f"decay: set it to undecayed, or evaluate these runs"
            )
        return settings
    every = settings.loss == "validation" and archs <= decayed
    return settings.model_copy(update={"points": DECAYED if every else UNDECAYED})


def described(table: RunTable, settings: FitSettings) -> dict[str, Any] | None:
    """{"phase", "text", "left_out": {phase: rows}} of resolved settings; None where no rate decays."""
    rows = _rows(table, settings)
    if settings.points == AUTO or rows is None:
        return None
    counts = rows["phase"].value_counts()
    fitted = {DECAYED, MERGED} if settings.points == MERGED else {settings.points}
    left = {str(phase): int(number) for phase, number in counts.items() if phase not in fitted}
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
            f", and of {int(counts.get(MERGED, 0)):,} rows of merged weights, less their offset, those where no branch "
            f"of their trunk has decayed (architectures are compared on decayed losses alone)"
        )
    text = f"fitted: {which} (fit.points); left out: " + (
        ", ".join(f"{counted(number, 'row')} {words[phase]}" for phase, number in left.items()) or "none"
    )
    if settings.points == UNDECAYED and settings.loss != "validation" and _all_evaluated(table):
        text += "; every architecture has held-out losses at the end of a decay: fit.loss validation fits these"
    return {"phase": settings.points, "text": text, "left_out": left}


def _rows(table: RunTable, settings: FitSettings) -> pd.DataFrame | None:
    """The rows of runs that are done of the loss that is fitted; None of a table without phases."""
    source = table.evals if settings.loss == "validation" else table.curves
    if "phase" not in source:
        return None
    done = table.runs.loc[(table.runs["state"] == "done") & (table.runs["variant"] == ""), "run_id"]
    return source[source["run_id"].isin(done)]


def _all_evaluated(table: RunTable) -> bool:
    evals = table.evals
    if "phase" not in evals or evals.empty:
        return False
    return set(table.curves["arch"]) <= set(evals.loc[evals["phase"] == DECAYED, "arch"])


class RunCurves:
    """The curves of a table's runs as fits read them: of the phase alone that `settings` (resolved) name, so that
    nothing of another enters a mean. Raises InputError where fits need the batches' difficulty and the table has
    none."""

    def __init__(self, table: RunTable, settings: FitSettings) -> None:
        self.settings = settings
        rows = table.evals if settings.loss == "validation" else table.curves
        if settings.phase is not None and "phase" in rows:
            rows = rows[rows["phase"] == settings.phase]
        self._tokens, self._loss = (rows[name].to_numpy(dtype=float) for name in ("n_tokens", "loss"))
        codes, runs = pd.factorize(rows["run_id"])
        ends = np.cumsum(np.bincount(codes, minlength=len(runs)))[:-1]
        by_run = np.split(np.lexsort((self._tokens, codes)), ends)
        self._rows = dict(zip(map(str, runs), by_run, strict=False))
        named = {"flops": f"flops_{settings.flops}", "unique_tokens": "unique_tokens", "row": "row"}
        known = {} if table.origin is None else {key: name for key, name in named.items() if name in rows}
        self._own = {key: rows[name].to_numpy(dtype=float) for key, name in known.items()}
        self._difficulty: np.ndarray | None = None
        if settings.loss != "validation" and settings.control == "bigram":
            if "difficulty" not in rows:
                raise InputError('this table has no column `difficulty`: load_tables(.., control="bigram") adds it')
            self._difficulty = rows["difficulty"].to_numpy(dtype=float)

    def of(self, run_id: str) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [n], rising, and loss [n] in nats a token; both empty for a run that has none."""
        rows = self._rows.get(run_id, NO_ROWS)
        tokens, loss = self._tokens[rows], self._loss[rows]
        if self.settings.loss == "validation":
            return tokens, loss
        if self._difficulty is not None:
            loss = loss - self._difficulty[rows]
        return smooth(tokens, loss, self.settings.smoothing_tokens, self.settings.smoothing_fraction)

    def whole(self, run_id: str) -> dict[str, np.ndarray]:
        """`n_tokens` and `loss` [n] as `of` has them and, of somebody else's table, its own `flops`, `unique_tokens`
        and `row` there."""
        tokens, loss = self.of(run_id)
        rows = self._rows.get(run_id, NO_ROWS)
        same = len(rows) == len(tokens)  # not smoothed
        return {"n_tokens": tokens, "loss": loss} | {
            key: values[rows] if same else np.interp(tokens, self._tokens[rows], values[rows])
            for key, values in self._own.items()
        }
