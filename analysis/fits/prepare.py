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
from analysis.fits.merged import calibrations, decayed_at, merged_rows
from analysis.fits.offset import REACH
from analysis.fits.parametric.stopped import without_stopped
from analysis.fits.points import COPIED, CURVES, ENDS, Points, Reading
from analysis.fits.recipes import HIGHER, of_lowest
from analysis.fits.settings import FitSettings
from analysis.run_table import RunTable
from arch.amounts import counted
from arch.errors import InputError
from scaling.study.schedule import MERGED

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
EARLIER = "earlier rows of their run"
STOPPED = "of a size that has stopped learning (fit.stopped)"
FAR = f"merged losses farther than {REACH:g} times from the sizes and tokens that calibrate them"
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
    table, first_share = grouped(table, settings), first_share or settings.first_share
    points = ENDS if settings.is_of_ends else points
    unit, origin = table.loss_unit, table.origin
    if origin is not None and points == CURVES and not origin.several_rows:
        how = "" if "run" in origin.columns else ": name the column of runs by --columns run=its name"
        raise InputError(f"{table.title}: no run has several rows, so there are no curves{how}")
    read, left_out = curves_by_group(table, settings)
    fewest = 2 if points == CURVES and settings.curve_rows else 1
    made: dict[str, list[Row]] = {}
    for group, rows in read.items():
        for row in rows:
            tokens = row["curve"]["n_tokens"]
            first = int(tokens.searchsorted(settings.settled_after(int(row["warmup_tokens"]))))
            if len(tokens) - first < fewest:
                left_out[str(row["run_id"])] = SHORT
                continue
            taken = slice(-1 if points == ENDS else first, None)
            curve = {key: values[taken] for key, values in row["curve"].items()}
            made.setdefault(group, []).append(row | {"curve": curve})
    dropped = dict(table.dropped)
    _count(dropped, left_out.values())
    n_read = len(table.runs) + sum(table.dropped.values()) if origin is None else origin.n_rows
    if settings.points == MERGED:
        n_read += _add_merged(table, made, dropped)
    if not made:
        reasons = ", ".join(f"{count} {why}" for why, count in dropped.items())
        raise InputError(f"{table.title}: no run can be fitted ({reasons or 'it has none'})")
    groups = {group: _points(group, rows, settings, unit) for group, rows in made.items()}
    if origin is not None and points == ENDS:
        _count(dropped, [EARLIER] * (len(table.curves) - sum(map(len, groups.values()))))

    def keep(kept: Mapping[str, Points], why: str) -> None:
        """The points of `kept` in the place of the groups, and what these lack counted: rows, or runs of studies."""
        for group, one in kept.items():
            gone = (len(groups[group]) - len(one)) if origin else (groups[group].n_runs - one.n_runs)
            _count(dropped, [why] * gone)
            groups[group] = one

    keep({group: one.take(~one.copied) for group, one in groups.items()}, COPIED)
    if drop_highest_loss:
        label = "the highest losses" + (" of their group" if len(groups) > 1 else "")
        keep({group: _without_highest(one, drop_highest_loss) for group, one in groups.items()}, label)
    keep({group: one.take(of_lowest(one)) for group, one in groups.items()}, HIGHER)
    if origin is not None:
        notes = list(origin.notes)
    else:
        notes = [f"loss: {settings.loss_name(unit)}; N: non-embedding parameters"]
    if points == CURVES and settings.curve_rows:
        groups = {group: one.thinned(settings.curve_rows, first_share) for group, one in groups.items()}
        notes += [
            f"of each run: {settings.curve_rows} points of its curve, evenly in log D from {first_share:.0%} of its "
            f"tokens"
        ]
    if settings.stopped == "leave_out":
        found = {group: without_stopped(one) for group, one in groups.items()}
        keep({group: one for group, (one, _) in found.items()}, STOPPED)
        for group, (_, gone) in found.items():
            if gone:
                sizes = ", ".join(f"{size.size} ({math.expm1(size.above):.1%}, p = {size.p:.1g})" for size in gone)
                why = "left out, as their losses lie above what the larger sizes' surface says"
                notes += [f"{group}: {why}: {sizes}"]
    if origin is not None:
        found_in = (origin.columns, points, n_read, dropped, origin.derived, origin.six_nd, origin.several_rows)
        return Reading(table.title, groups, *found_in, tuple(notes))
    six = np.concatenate([6 * one.n_params * one.n_tokens / one.flops for one in groups.values()])
    ratio = (float(six.min()), float(np.median(six)), float(six.max()))
    return Reading(table.title, groups, {}, points, n_read, dropped, {}, ratio, points == CURVES, tuple(notes), "runs")


def _count(dropped: dict[str, int], reasons: Iterable[str]) -> None:
    for why in reasons:
        dropped[why] = dropped.get(why, 0) + 1


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
    curves, averaged = RunCurves(table, settings), table.averaged
    found: dict[str, list[Row]] = {}
    left_out: dict[str, str] = {}
    seeds: set[tuple[str, ...]] = set()
    for row in _rows_of(table.runs):
        name = str(row["run_id"])
        if row["left_out"]:
            better = NUISANCE if " ends lower than " in row["left_out"] else UNJUDGED
            left_out[name] = AVERAGED if name in averaged else VARIANT if row["variant"] else better
            continue
        if row["state"] != "done":
            left_out[name] = NOT_DONE
            continue
        curve = curves.whole(name)
        if not len(curve["loss"]):
            left_out[name] = SHORT if settings.points == AUTO else OTHER_PHASE
            continue
        if "seed" in row and str(row.get("trunk") or name) == name:  # branches of one trunk share its seed
            seed = tuple(str(row[key]) for key in ("group", "size", "recipe", "seed"))
            if seed in seeds:
                left_out[name] = SAME_SEED
                continue
            seeds.add(seed)
        found.setdefault(str(row["group"]), []).append(row | {"curve": curve})
    return found, left_out


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


def _add_merged(table: RunTable, made: dict[str, list[Row]], dropped: dict[str, int]) -> int:
    """Add the merged losses of the trunks, less their offset, to the rows of their groups; how many were considered."""
    n_read = 0
    known, taken = calibrations(table, needed=True), decayed_at(table.runs)
    for row in _rows_of(table.runs):
        if not row["left_out"] and row["state"] == "done" and str(row["group"]) in made:
            rows, far = merged_rows(table, known, row, taken)
            made[str(row["group"])] += rows
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
    return _made(group, rows, settings, unit)


def _made(group: str, rows: Sequence[Row], settings: FitSettings, unit: str) -> Points:
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
    wide = max(one.shape[1] for one in shifts)
    made = Points(
        shift=np.concatenate([_widened(one, wide, n) for one, n in zip(shifts, counts, strict=True)]),
        shift_df=max(row.get("shift_df", ()) for row in rows),  # one calibration, of the merged ones
        n_params=each(lambda row: float(row["n_params_non_embedding"])).astype(float),
        n_tokens=tokens,
        flops=flops,
        loss=joined("loss"),
        run=each(_name),
        cell=each(lambda row: row["cell"] if "cell" in row else _cell(row)),
        trunk=each(lambda row: str(row.get("trunk") or _name(row))),
        recipe=each(lambda row: str(row["recipe"])),
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
