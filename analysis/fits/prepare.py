"""From a table of runs to the points that every approach fits: the one way, which alone smooths, selects and groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.grouping import grouped
from analysis.fits.losses import AUTO, RunCurves, resolved
from analysis.fits.merged import calibrations, decayed_at, merged_rows
from analysis.fits.offset import REACH
from analysis.fits.parametric.stopped import without_stopped
from analysis.fits.points import COPIED, CURVES, ENDS, Points, Reading
from analysis.fits.recipes import HIGHER, of_lowest
from analysis.fits.settings import FitSettings
from analysis.run_table import RunTable
from arch.amounts import counted
from arch.errors import InputError
from data.units import loss_unit
from scaling.study.schedule import MERGED

CURVE_ROWS = 32  # of a run that curves keep, at steps of 7% over its last decade of tokens (NOTES.md)
VARIANT, NUISANCE, UNJUDGED, AVERAGED = (
    "changed by --set",
    "at another value of a nuisance axis than the best",
    "of a value, or of a mean, of a nuisance axis that cannot be judged",
    "averaged with others over a nuisance axis",
)
NOT_DONE, SHORT, OTHER_PHASE, SAME_SEED = (
    "not done",
    "without enough points after warm-up",
    "without a loss of the phase of the learning rate that is fitted (fit.points)",
    "a run of the same recipe has the same seed",
)
STOPPED = "of a size that has stopped learning (fit.stopped)"
FAR = f"merged losses farther than {REACH:g} times from the sizes and tokens that calibrate them"
Row = dict[str, Any]  # of the table of runs, with `tokens` [n] and `loss` [n] of its curve


def prepare(
    table: RunTable, settings: FitSettings | None = None, points: str = ENDS, first_share: float | None = None
) -> Reading:
    """The points of every group (an architecture, at a point of the axes): of each run that is done its last loss, or
    its settled curve (`curves`): at most CURVE_ROWS points, evenly in log D, from `first_share` of its tokens on
    (None: of the settings). A recipe and seed counts once, and of several recipes at one N and D the lowest stays.

    settings: how the runs are fitted (None: those of the table). The loss is smoothed training loss, or held-out loss;
    of decayed runs (fit.points) always the end's. N without embeddings; C under the settings' convention. Runs share a
    `cell` where they saw the same batches: one corpus, batch size, context, seed and length.

    Raises InputError where no run is done, and for training loss of text that was seen before.
    """
    settings = resolved(table, settings or table.settings)
    table, first_share = grouped(table, settings), first_share or settings.first_share
    points = ENDS if settings.is_of_ends else points
    unit = loss_unit(table.runs["tokenizer"])
    read, left_out = curves_by_group(table, settings)
    made: dict[str, list[Row]] = {}
    for group, rows in read.items():
        for row in rows:
            settled = row["tokens"] >= settings.settled_after(int(row["warmup_tokens"]))
            tokens, loss = row["tokens"][settled], row["loss"][settled]
            if len(tokens) < (1 if points == ENDS else 2):
                left_out[str(row["run_id"])] = SHORT
                continue
            taken = slice(-1, None) if points == ENDS else slice(None)
            made.setdefault(group, []).append(row | {"tokens": tokens[taken], "loss": loss[taken]})
    dropped = dict(table.dropped)
    for why in left_out.values():
        dropped[why] = dropped.get(why, 0) + 1
    n_read = len(table.runs) + sum(table.dropped.values())
    if settings.points == MERGED:
        n_read += _add_merged(table, made, dropped)
    if not made:
        reasons = ", ".join(f"{count} {why}" for why, count in dropped.items())
        raise InputError(f"study {table.name}: no run can be fitted ({reasons or 'it has none'})")
    groups = {group: _points(group, rows, settings, unit) for group, rows in made.items()}
    for group, one in groups.items():
        kept = _counted(one, one.take(~one.copied), COPIED, dropped)
        groups[group] = _counted(kept, kept.take(of_lowest(kept)), HIGHER, dropped)
    notes = [f"loss: {settings.loss_name(unit)}; N: non-embedding parameters"]
    if points == CURVES:
        groups = {group: one.thinned(CURVE_ROWS, first_share) for group, one in groups.items()}
        notes += [
            f"of each run: {CURVE_ROWS} points of its curve, evenly in log D from {first_share:.0%} of its tokens"
        ]
    if settings.stopped == "leave_out":
        for group, one in groups.items():
            kept, gone = without_stopped(one)
            groups[group] = _counted(one, kept, STOPPED, dropped)
            if gone:
                sizes = ", ".join(f"{size.size} ({math.expm1(size.above):.1%}, p = {size.p:.1g})" for size in gone)
                why = "left out, as their losses lie above what the larger sizes' surface says"
                notes += [f"{group}: {why}: {sizes}"]
    six = np.concatenate([6 * one.n_params * one.n_tokens / one.flops for one in groups.values()])
    ratio = (float(six.min()), float(np.median(six)), float(six.max()))
    several = points == CURVES
    source = f"study {table.name}"
    return Reading(source, groups, {}, points, n_read, dropped, {}, ratio, several, tuple(notes), "runs")


def refuse_ends(table: RunTable) -> None:
    """Raise InputError for runs whose losses at the ends of decays are fitted, where curves are asked for."""
    if resolved(table, table.settings).is_of_ends:
        raise InputError(f"--points curves: study {table.name} fits one loss a run, of decayed runs (fit.points)")


def curves_by_group(table: RunTable, settings: FitSettings) -> tuple[dict[str, list[Row]], dict[str, str]]:
    """The runs of a grouped table that fits may use, by group, each with its whole curve as fits read it; and of the
    others, {run id: why}."""
    curves, averaged = RunCurves(table, settings), table.averaged
    found: dict[str, list[Row]] = {}
    left_out: dict[str, str] = {}
    seeds: set[tuple[str, ...]] = set()
    for record in table.runs.to_dict("records"):
        row = {str(key): value for key, value in record.items()}
        name = str(row["run_id"])
        if row["left_out"]:
            better = NUISANCE if " ends lower than " in row["left_out"] else UNJUDGED
            left_out[name] = AVERAGED if name in averaged else VARIANT if row["variant"] else better
            continue
        if row["state"] != "done":
            left_out[name] = NOT_DONE
            continue
        tokens, loss = curves.of(name)
        if not len(tokens):
            left_out[name] = SHORT if settings.points == AUTO else OTHER_PHASE
            continue
        if str(row.get("trunk") or name) == name:  # branches of one trunk share its seed
            own = tuple(str(row[key]) for key in ("group", "size", "recipe", "seed"))
            if own in seeds:
                left_out[name] = SAME_SEED
                continue
            seeds.add(own)
        found.setdefault(str(row["group"]), []).append(row | {"tokens": tokens, "loss": loss})
    return found, left_out


def whole_curves(rows: Sequence[Row], settings: FitSettings, unit: str) -> Points | None:
    """The whole curves of a group's runs (`curves_by_group`), those inside warm-up too; None where no run has several
    points, or the convention has no formula for them."""
    kept = [row for row in rows if len(row["tokens"]) > 1]
    if not kept or any(np.isnan(row[f"flops_per_token_{settings.flops}"]) for row in kept):
        return None
    return _made(str(kept[0]["group"]), kept, settings, unit)


def under(points: Points, runs: pd.DataFrame, convention: str) -> Points | None:
    """The points with C by another convention, as the table of runs counts their tokens; None where that has no formula
    for one of them."""
    known = runs.set_index("run_id")[f"flops_per_token_{convention}"]
    ids = np.where(np.isin(points.run, known.index), points.run, points.trunk)  # a merged loss is its trunk's
    per_token = known.loc[ids].to_numpy(dtype=float)
    if np.isnan(per_token).any():
        return None
    return replace(points, flops=points.n_tokens * per_token, convention=convention)


def no_formula(group: str, convention: str) -> str:
    return f"{group}: the convention {convention} has no formula for it: --convention exact"


def _counted(before: Points, after: Points, why: str, dropped: dict[str, int]) -> Points:
    """`after`, the runs that it lacks counted."""
    if gone := before.n_runs - after.n_runs:
        dropped[why] = dropped.get(why, 0) + gone
    return after


def _add_merged(table: RunTable, made: dict[str, list[Row]], dropped: dict[str, int]) -> int:
    """Add the merged losses of the trunks, less their offset, to the rows of their groups; how many were considered."""
    n_read = 0
    known, taken = calibrations(table, needed=True), decayed_at(table.runs)
    for record in table.runs.to_dict("records"):
        row = {str(key): value for key, value in record.items()}
        if not row["left_out"] and row["state"] == "done" and str(row["group"]) in made:
            rows, far = merged_rows(table, known, row, taken)
            made[str(row["group"])] += rows
            n_read += len(rows) + far
            if far:
                dropped[FAR] = dropped.get(FAR, 0) + far
    return n_read


def _points(group: str, rows: Sequence[Row], settings: FitSettings, unit: str) -> Points:
    repeated = [row for row in rows if row["epochs"] > 1]
    if repeated and settings.loss == "train_smoothed":
        raise InputError(
            f"{counted(len(repeated), 'run')} of {group} saw text more than once ({repeated[0]['run_id']}: "
            f"{repeated[0]['epochs']:.2f} epochs), where training loss does not measure loss on new text: "
            f"--set fit.loss=validation"
        )
    if any(np.isnan(row[f"flops_per_token_{settings.flops}"]) for row in rows):
        raise InputError(no_formula(group, settings.flops))
    return _made(group, rows, settings, unit)


def _made(group: str, rows: Sequence[Row], settings: FitSettings, unit: str) -> Points:
    counts = [len(row["tokens"]) for row in rows]

    def each(value: Any) -> np.ndarray:
        return np.repeat(np.array([value(row) for row in rows], dtype=object), counts)

    tokens = np.concatenate([row["tokens"] for row in rows])
    text = each(lambda row: row["n_tokens"] / row["epochs"]).astype(float)  # of the training split; nan: not known
    shifts = [row.get("shift", np.zeros((1, 0))) for row in rows]
    wide = max(one.shape[1] for one in shifts)
    return Points(
        shift=np.concatenate([_widened(one, wide, n) for one, n in zip(shifts, counts, strict=True)]),
        shift_df=max(row.get("shift_df", ()) for row in rows),  # one calibration, of the merged ones
        n_params=each(lambda row: float(row["n_params_non_embedding"])).astype(float),
        n_tokens=tokens,
        flops=tokens * each(lambda row: row[f"flops_per_token_{settings.flops}"]).astype(float),
        loss=np.concatenate([row["loss"] for row in rows]),
        run=each(lambda row: str(row["run_id"])),
        cell=each(_cell),
        trunk=each(lambda row: str(row.get("trunk") or row["run_id"])),
        recipe=each(lambda row: str(row["recipe"])),
        size=each(lambda row: str(row["size"])),
        unique_tokens=np.where(np.isfinite(text), np.minimum(tokens, text), tokens),
        warmup_tokens=each(lambda row: settings.settled_after(int(row["warmup_tokens"]))).astype(float),
        convention=settings.flops,
        loss_unit=unit,
        held_out=settings.loss == "validation",
        group=group,
    )


def _widened(shift: np.ndarray, wide: int, rows: int) -> np.ndarray:
    """[rows, wide]: zeros where a point has no error in common with others."""
    return shift if shift.shape[1] else np.zeros((rows, wide))


def _cell(row: Mapping[str, Any]) -> str:
    """What decides a run's batches: the same for runs that read the same ones to the end."""
    keys = ("corpus_fingerprint", "batch_tokens", "context_length", "seed", "n_tokens")
    return ", ".join(str(row[key])[:12] for key in keys)
