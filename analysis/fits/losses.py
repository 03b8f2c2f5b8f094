"""Which losses of a run a fit is of, and the curve that they make.

Losses are those before any decay of the learning rate, or those at the end of one. Never both: a decay lowers the loss
(Haegele et al. 2024, section 3), so that a fit of both would be one of neither; and a loss inside one is no run's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.settings import FitSettings
from analysis.fits.smooth import smooth
from analysis.labels import OF_SOURCE
from analysis.run_table import RunTable
from arch.amounts import counted
from arch.errors import InputError, choice
from scaling.study.schedule import DECAYED, DECAYING, UNDECAYED

AUTO = "auto"
NO_ROWS = np.zeros(0, dtype=int)
NO_CURVE = (
    "decayed losses are one point a run (fit.points), which an envelope of curves cannot be made of: the isoFLOP "
    "profiles and the surface are fitted to them"
)
PHASES: dict[str, str] = {
    UNDECAYED: "before any decay",
    DECAYING: "inside a decay",
    DECAYED: "at the end of a decay",
}


def resolved(table: RunTable, settings: FitSettings) -> FitSettings:
    """The settings with fit.points decided: `auto` takes decayed losses where every architecture has some, else those
    at rates that have not decayed; it stays `auto` where no rate decays. Raises InputError for decayed losses that no
    run has."""
    rows = _rows(table, settings)
    if (
        rows is None
        or settings.points == UNDECAYED
        or (settings.points == AUTO and set(rows["phase"].unique()) <= {UNDECAYED})
    ):
        return settings
    decayed = set(rows.loc[rows["phase"] == DECAYED, "arch"].unique())
    if settings.is_of_ends:
        if not decayed:
            raise InputError(
                "fit.points is decayed, and no run that is done has an evaluated checkpoint at the end of a decay: set "
                "it to undecayed, or evaluate these runs"
            )
        return settings
    archs = set(table.runs.loc[table.runs["state"] == "done", "arch"])
    every = settings.loss == "validation" and archs <= decayed
    return settings.model_copy(update={"points": DECAYED if every else UNDECAYED})


def described(table: RunTable, settings: FitSettings) -> dict[str, Any] | None:
    """{"phase", "text", "left_out": {phase: rows}} of resolved settings; None where no rate decays."""
    rows = _rows(table, settings)
    if settings.points == AUTO or rows is None:
        return None
    counts = rows["phase"].value_counts()
    left = {str(phase): int(number) for phase, number in counts.items() if phase != settings.points}
    if not left:
        return None
    text = f"fitted: losses {PHASES[settings.points]} of the learning rate (fit.points); left out: " + ", ".join(
        f"{counted(number, 'row')} {PHASES[phase]}" for phase, number in left.items()
    )
    if settings.points == UNDECAYED and settings.loss != "validation" and len(table.evals):
        decayed = table.evals.loc[table.evals["phase"] == DECAYED, "arch"]
        if set(table.curves["arch"].unique()) <= set(decayed):
            text += "; every architecture has held-out losses at the end of a decay: fit.loss validation fits these"
    return {"phase": settings.points, "text": text, "left_out": left}


def _rows(table: RunTable, settings: FitSettings) -> pd.DataFrame | None:
    """The rows of runs that are done of the loss that is fitted; None of a table without phases."""
    source = table.evals if settings.loss == "validation" else table.curves
    if "phase" not in source:
        return None
    done = table.runs.loc[(table.runs["state"] == "done") & (table.runs["variant"] == ""), "run_id"]
    return source[source["run_id"].isin(done)]


def _column(table: RunTable, settings: FitSettings, rows: pd.DataFrame) -> str:
    """The column of the loss that is fitted."""
    if settings.source is None:
        return "loss"
    sources = [str(name).removeprefix(OF_SOURCE) for name in rows.columns if str(name).startswith(OF_SOURCE)]
    if settings.source not in sources:
        has = choice(settings.source, sources) if sources else ": its held-out losses are of no mixture"
        raise InputError(f"{table.title}: fit.source: {settings.source!r}{has}")
    return OF_SOURCE + settings.source


@dataclass(frozen=True)
class Curve:
    """The losses of a run that are fitted, [n] each, by rising tokens. own: of somebody else's table its own `flops`,
    `unique_tokens` and `row` there, as far as it has them."""

    n_tokens: np.ndarray
    loss: np.ndarray
    own: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.loss)


class RunCurves:
    """The curves of a table's runs as fits read them: of the phase alone that `settings` (resolved) name, so that
    nothing of another enters a mean. Raises InputError where fits need the batches' difficulty, or the losses of a
    source, and the table has none."""

    def __init__(self, table: RunTable, settings: FitSettings) -> None:
        self.settings = settings
        rows = table.evals if settings.loss == "validation" else table.curves
        column = _column(table, settings, rows)
        if settings.phase is not None and "phase" in rows:
            rows = rows[rows["phase"] == settings.phase]
        self._tokens, self._loss = (rows[name].to_numpy(dtype=float) for name in ("n_tokens", column))
        codes, runs = pd.factorize(rows["run_id"])
        ends = np.cumsum(np.bincount(codes, minlength=len(runs)))[:-1]
        by_run = np.split(np.lexsort((self._tokens, codes)), ends)
        self._rows = dict(zip(map(str, runs), by_run, strict=False))
        named = {"flops": f"flops_{settings.flops}", "unique_tokens": "unique_tokens", "row": "row"}
        known = {} if table.origin is None else {key: name for key, name in named.items() if name in rows}
        self._own = {key: rows[name].to_numpy(dtype=float) for key, name in known.items()}
        if settings.loss != "validation" and settings.control == "bigram":
            if "difficulty" not in rows:
                raise InputError('this table has no column `difficulty`: load_tables(.., control="bigram") adds it')
            self._loss = self._loss - rows["difficulty"].to_numpy(dtype=float)

    def of(self, run_id: str) -> Curve:
        """Loss in nats a token; empty for a run that has none."""
        rows = self._rows.get(run_id, NO_ROWS)
        before, loss = self._tokens[rows], self._loss[rows]
        own = {name: values[rows] for name, values in self._own.items()}
        if self.settings.loss == "validation":
            return Curve(before, loss, own)
        tokens, loss = smooth(before, loss, self.settings.smoothing_tokens, self.settings.smoothing_fraction)
        if len(tokens) != len(before):
            own = {name: np.interp(tokens, before, values) for name, values in own.items()}
        return Curve(tokens, loss, own)
