"""From a table of runs to the points that every approach fits: the one way, which alone smooths, selects and groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.grouping import grouped
from analysis.fits.losses import AUTO, RunCurves, resolved
from analysis.fits.parametric import Stopped, without_stopped
from analysis.fits.points import COPIED, CURVES, ENDS, SAME_SEED, Points, Reading
from analysis.fits.seeds import beaten, ends_of
from analysis.fits.settings import FitSettings
from analysis.run_table import RunTable
from arch.amounts import counted
from arch.errors import InputError
from scaling.study.schedule import MERGED

VARIANT, NUISANCE, UNJUDGED = (
    "changed by --set",
    "at another value of a nuisance axis than the best",
    "of a value of a nuisance axis that cannot be judged",
)
NOT_DONE, SHORT, OTHER_PHASE = (
    "not done",
    "without enough points after warm-up",
    "without a loss of the phase of the learning rate that is fitted (fit.points)",
)
HIGHER = "by another recipe that ends higher at the same N and D"
EARLIER = "earlier rows of their run"
STOPPED = "of a size that has stopped learning (fit.stopped)"
FAR = "merged losses too far from the sizes and tokens that calibrate them"
Row = dict[str, Any]  # of the table of runs, with its `curve`: {name: [n]} (RunCurves.whole)


def prepare(
    table: RunTable,
    settings: FitSettings | None = None,
    points: str = ENDS,
    first_share: float | None = None,
    drop_highest_loss: int = 0,
) -> Reading:
    """The points of every group (an architecture, at a point of the axes): of each run that is done its last loss, or
    its settled curve (`curves`): at most `curve_rows` points, evenly in log D, from `first_share` of its tokens on
    (None: of the settings). A recipe and seed counts once, and of several recipes at one N and D the lowest stays.
    drop_highest_loss: so many points of the highest loss are left out of every group.

    settings: how the runs are fitted (None: those of the table). The loss is smoothed training loss, or held-out loss;
    of decayed runs (fit.points) always the end's. N without embeddings; C under the settings' convention. Runs share a
    `cell` where they saw the same batches: one corpus, batch size, context, seed and length.

    Raises InputError where no run is done, for training loss of text that was seen before, and for curves of runs that
    have one row each.
    """
    settings = resolved(table, settings or table.settings)
    table, origin = grouped(table, settings), table.origin
    points = ENDS if settings.is_of_ends else points
    if origin is not None and points == CURVES and not origin.several_rows:
        how = "" if "run" in origin.columns else ": name the column of runs by --columns run=its name"
        raise InputError(f"{table.title}: no run has several rows, so there are no curves{how}")
    dropped, n_read = dict(table.dropped), origin.n_rows if origin else len(table.runs) + sum(table.dropped.values())
    rows = _settled(table, settings, points, dropped)
    if settings.points == MERGED:
        n_read += _add_merged(table, rows, dropped)
    if not rows:
        reasons = ", ".join(f"{count} {why}" for why, count in dropped.items())
        raise InputError(f"{table.title}: no run can be fitted ({reasons or 'it has none'})")
    groups = {group: _points(group, mine, settings, table.loss_unit) for group, mine in rows.items()}
    if origin is not None and points == ENDS:
        _count(dropped, [EARLIER] * (len(table.curves) - sum(map(len, groups.values()))))

    def keep(those: Callable[[Points], Points], why: str) -> None:
        """Those points of every group, and the others counted: rows of a file, or runs of a study."""
        for group, before in groups.items():
            groups[group] = kept = those(before)
            _count(dropped, [why] * (len(before) - len(kept) if origin else before.n_runs - kept.n_runs))

    keep(lambda points: points.take(~points.copied), COPIED)
    keep(lambda points: points.take(~points.trained_again), SAME_SEED)
    if drop_highest_loss:
        of_group = " of their group" if len(groups) > 1 else ""
        keep(lambda points: _without_highest(points, drop_highest_loss), f"the highest losses{of_group}")
    keep(lambda points: points.take(of_lowest(points)), HIGHER)
    notes = [f"loss: {settings.loss_name(table.loss_unit)}; N: non-embedding parameters"] if origin is None else []
    if points == CURVES and settings.curve_rows:
        share = first_share or settings.first_share
        groups = {group: curves.thinned(settings.curve_rows, share) for group, curves in groups.items()}
        notes += [
            f"of each run: {settings.curve_rows} points of its curve, evenly in log D from {share:.0%} of its tokens"
        ]
    if settings.stopped == "leave_out":
        learning = {group: without_stopped(curves) for group, curves in groups.items()}
        keep(lambda points: learning[points.group][0], STOPPED)
        notes += [_stopped_text(group, gone) for group, (_, gone) in learning.items() if gone]
    if origin is not None:
        ratio, several, notes = origin.six_nd, origin.several_rows, [*origin.notes, *notes]
    else:
        six = np.concatenate([6 * group.n_params * group.n_tokens / group.flops for group in groups.values()])
        ratio, several = (float(six.min()), float(np.median(six)), float(six.max())), points == CURVES
    columns, derived, unit = (origin.columns, origin.derived, "rows") if origin else ({}, {}, "runs")
    read = (points, n_read, dropped, derived, ratio, several)
    return Reading(table.title, groups, columns, *read, tuple(notes), unit)


def _settled(table: RunTable, settings: FitSettings, points: str, dropped: dict[str, int]) -> dict[str, list[Row]]:
    """By group, the runs with what is fitted of their curves, after their warm-up: the end, or all that is there."""
    read, left_out = curves_by_group(table, settings)
    fewest = 2 if points == CURVES and settings.curve_rows else 1
    settled: dict[str, list[Row]] = {}
    for group, rows in read.items():
        for row in rows:
            tokens = row["curve"]["n_tokens"]
            first = int(tokens.searchsorted(settings.settled_after(int(row["warmup_tokens"]))))
            if len(tokens) - first < fewest:
                left_out[str(row["run_id"])] = SHORT
                continue
            taken = slice(-1 if points == ENDS else first, None)
            row["curve"] = {key: values[taken] for key, values in row["curve"].items()}
            settled.setdefault(group, []).append(row)
    _count(dropped, left_out.values())
    return settled


def _stopped_text(group: str, gone: Sequence[Stopped]) -> str:
    sizes = ", ".join(f"{size.size} ({math.expm1(size.above):.1%}, p = {size.p:.1g})" for size in gone)
    return f"{group}: left out, as their losses lie above what the larger sizes' surface says: {sizes}"


def _count(dropped: dict[str, int], reasons: Iterable[str]) -> None:
    for why in reasons:
        dropped[why] = dropped.get(why, 0) + 1


def of_lowest(points: Points) -> np.ndarray:
    """[n] bool: points of runs that no other recipe beats. Of runs of one N that end at the same D (within SAME_D), the
    recipe of the lowest mean loss at their ends stays: two recipes at one place are no noise, and their mean no law.
    Runs to other D stay, as each is a place of its own."""
    if len(set(points.recipe.tolist())) < 2:
        return np.ones(len(points), dtype=bool)
    by_size: dict[float, list[int]] = {}
    for i in ends_of(points.run, points.n_tokens):
        by_size.setdefault(float(points.n_params[i]), []).append(i)
    gone: set[str] = set()
    for mine in by_size.values():
        recipes = [str(points.recipe[i]) for i in mine]
        lost = beaten(recipes, points.n_tokens[mine].tolist(), points.loss[mine].tolist())
        gone |= {str(points.run[mine[i]]) for i in lost}
    return np.array([str(name) not in gone for name in points.run])


def _without_highest(points: Points, n: int) -> Points:
    if n < 0:
        raise InputError(f"--drop-highest-loss: {n} is negative")
    if n >= len(points):
        where = f"group {points.group!r}" if points.group else "the table"
        raise InputError(f"--drop-highest-loss {n}: {where} has {counted(len(points), 'point')}")
    return points.take(np.sort(np.argsort(points.loss, kind="stable")[: len(points) - n]))


def refuse_ends(table: RunTable) -> None:
    """Raise InputError for runs whose losses at the ends of decays are fitted, where curves are asked for."""
    if resolved(table, table.settings).is_of_ends:
        raise InputError(f"--points curves: study {table.name} fits one loss a run, of decayed runs (fit.points)")


def curves_by_group(table: RunTable, settings: FitSettings) -> tuple[dict[str, list[Row]], dict[str, str]]:
    """The runs of a grouped table that fits may use, by group, each with its whole curve as fits read it; and of the
    others, {run id: why}."""
    curves = RunCurves(table, settings)
    usable: dict[str, list[Row]] = {}
    left_out: dict[str, str] = {}
    for row in _rows_of(table.runs):
        name = str(row["run_id"])
        if row["left_out"]:
            better = NUISANCE if " ends lower than " in row["left_out"] else UNJUDGED
            left_out[name] = VARIANT if row["variant"] else better
            continue
        if row["state"] != "done":
            left_out[name] = NOT_DONE
            continue
        curve = curves.whole(name)
        if not len(curve["loss"]):
            left_out[name] = SHORT if settings.points == AUTO else OTHER_PHASE
            continue
        row["curve"] = curve
        usable.setdefault(str(row["group"]), []).append(row)
    return usable, left_out


def _rows_of(runs: pd.DataFrame) -> Iterator[Row]:
    """The table of runs row by row, as DataFrame.to_dict("records") has them, in a third of its time."""
    names = [str(name) for name in runs]
    for values in zip(*(runs[name].astype(object).tolist() for name in names), strict=True):
        yield dict(zip(names, values, strict=True))


def whole_curves(rows: Sequence[Row], settings: FitSettings, unit: str) -> Points | None:
    """The whole curves of a group's runs (`curves_by_group`), those inside warm-up too; None where no run has several
    points, or the convention has no formula for them."""
    kept = [row for row in rows if len(row["curve"]["loss"]) > 1]
    if not kept or any(np.isnan(row[f"flops_per_token_{settings.flops}"]) for row in kept):
        return None
    return _joined(str(kept[0]["group"]), kept, settings, unit)


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


def _add_merged(table: RunTable, rows_of: dict[str, list[Row]], dropped: dict[str, int]) -> int:
    """Add the merged losses of the trunks, less their offset, to the rows of their groups; how many were considered."""
    from analysis.fits.merged import calibrations, decayed_at, merged_rows

    n_read = 0
    known, taken = calibrations(table, needed=True), decayed_at(table.runs)
    for row in _rows_of(table.runs):
        if not row["left_out"] and row["state"] == "done" and str(row["group"]) in rows_of:
            rows, far = merged_rows(table, known, row, taken)
            rows_of[str(row["group"])] += rows
            n_read += len(rows) + far
            _count(dropped, [FAR] * far)
    return n_read


def _points(group: str, rows: Sequence[Row], settings: FitSettings, unit: str) -> Points:
    repeated = [row for row in rows if row["epochs"] > 1]
    if repeated and settings.loss == "train_smoothed":
        raise InputError(
            f"{counted(len(repeated), 'run')} of {group} saw text more than once ({repeated[0]['run_id']}: "
            f"{repeated[0]['epochs']:.2f} epochs), where training loss does not measure loss on new text: "
            f"--set fit.loss=validation"
        )
    if any(np.isnan(row[per_token]) for row in rows if (per_token := f"flops_per_token_{settings.flops}") in row):
        raise InputError(no_formula(group, settings.flops))
    return _joined(group, rows, settings, unit)


def _joined(group: str, rows: Sequence[Row], settings: FitSettings, unit: str) -> Points:
    curves, counts = [row["curve"] for row in rows], [len(row["curve"]["loss"]) for row in rows]

    def each(value: Callable[[Row], Any]) -> np.ndarray:
        return np.repeat(np.array([value(row) for row in rows], dtype=object), counts)

    def joined(name: str) -> np.ndarray:
        return np.concatenate([curve[name] for curve in curves])

    tokens, of_file = joined("n_tokens"), "row" in curves[0]
    if "flops" in curves[0]:
        flops = joined("flops")
    else:
        flops = tokens * each(lambda row: row[f"flops_per_token_{settings.flops}"]).astype(float)
    text = each(lambda row: row["n_tokens"] / row["epochs"]).astype(float)  # of the training split; nan: not known
    seen_once = np.where(np.isfinite(text), np.minimum(tokens, text), tokens)
    shifts = [row.get("shift", np.zeros((1, 0))) for row in rows]
    wide = max(shift.shape[1] for shift in shifts)
    made = Points(
        shift=np.concatenate([_widened(shift, wide, n) for shift, n in zip(shifts, counts, strict=True)]),
        shift_df=max(row.get("shift_df", ()) for row in rows),  # one calibration, of the merged ones
        n_params=each(lambda row: float(row["n_params_non_embedding"])).astype(float),
        n_tokens=tokens,
        flops=flops,
        loss=joined("loss"),
        run=each(_name),
        cell=each(lambda row: row["cell"] if "cell" in row else _cell(row)),
        trunk=each(lambda row: str(row.get("trunk") or _name(row))),
        recipe=each(lambda row: str(row["recipe"])),
        seed=each(lambda row: str(row.get("seed", ""))),
        size=each(lambda row: str(row["size"])),
        unique_tokens=joined("unique_tokens") if "unique_tokens" in curves[0] else seen_once,
        row=joined("row").astype(int) if of_file else np.array([]),
        warmup_tokens=each(lambda row: settings.settled_after(int(row["warmup_tokens"]))).astype(float),
        convention=settings.flops,
        loss_unit=unit,
        loss_of=str(rows[0].get("loss_of", "")),
        held_out=settings.loss == "validation",
        group=group,
    )
    return made.take(np.argsort(made.row, kind="stable")) if of_file else made  # as they stand in their table


def _name(row: Row) -> str:
    """Of a run; in somebody else's table those of two groups may share one."""
    return str(row["run"] if "run" in row else row["run_id"])


def _widened(shift: np.ndarray, wide: int, rows: int) -> np.ndarray:
    """[rows, wide]: zeros where a point has no error in common with others."""
    return shift if shift.shape[1] else np.zeros((rows, wide))


def _cell(row: Mapping[str, Any]) -> str:
    """What decides a run's batches: the same for runs that read the same ones to the end."""
    keys = ("corpus_fingerprint", "batch_tokens", "context_length", "seed", "n_tokens")
    return ", ".join(str(row[key])[:12] for key in keys)
