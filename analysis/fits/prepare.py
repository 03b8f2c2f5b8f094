"""From a table of runs to the points that every approach fits: the one way, which alone smooths, selects and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.losses import AUTO, Curve, RunCurves, resolved
from analysis.fits.points import COPIED, CURVES, ENDS, SAME_SEED, Points, Reading
from analysis.fits.seeds import beaten, ends_of
from analysis.fits.settings import FitSettings
from analysis.labels import group_of, without
from analysis.run_table import Origin, RunTable
from arch.amounts import counted
from arch.errors import InputError

VARIANT, LENGTH = "changed by --set", "n_tokens"  # an axis of how far a run goes: the D of the laws
NOT_DONE, SHORT, OTHER_PHASE = (
    "not done",
    "without enough points after warm-up",
    "without a loss of the phase of the learning rate that is fitted (fit.points)",
)
HIGHER = "by another recipe that ends higher at the same N and D"
EARLIER = "earlier rows of their run"
STOPPED = "of a size that has stopped learning (fit.stopped)"
BATCHES = ("corpus_fingerprint", "batch_tokens", "context_length", "seed", "n_tokens")  # decide a run's batches


def prepare(table: RunTable, points: str = ENDS, drop_highest_loss: int = 0) -> Reading:
    """The points of every group (an architecture, at a point of the axes): of each run that is done its last loss, or
    its settled curve (`curves`): at most `curve_rows` points, evenly in log D, from `first_share` of its tokens on. A
    recipe and seed counts once, and of several recipes at one N and D the lowest stays. drop_highest_loss: so many
    points of the highest loss are left out of every group.

    The loss is smoothed training loss, or held-out loss, by the table's settings; of decayed runs (fit.points) always
    the end's. N without embeddings; C under the settings' convention. Runs share a `cell` where they saw the same
    batches: one corpus, batch size, context, seed and length.

    Raises InputError where no run is done, for training loss of text that was seen before, and for curves of runs that
    have one row each.
    """
    settings = resolved(table, table.settings)
    table, origin = grouped(table), table.origin
    points = ENDS if settings.is_of_ends else points
    if origin is not None and points == CURVES and not origin.several_rows:
        how = "" if "run" in origin.columns else ": name the column of runs by --columns run=its name"
        raise InputError(f"{table.title}: no run has several rows, so there are no curves{how}")
    curves, dropped = whole_curves(table, settings)
    dropped = Counter(table.dropped) + dropped
    fewest = 2 if points == CURVES and settings.curve_rows else 1
    groups: dict[str, Points] = {}
    for name, whole in curves.items():
        if isinstance(whole, str):
            raise InputError(whole)
        settled = whole.take(whole.n_tokens >= whole.warmup_tokens)
        settled = settled.take(settled.rows_of_run >= fewest)
        dropped += Counter({SHORT: whole.n_runs - settled.n_runs})
        if len(settled):
            if why := read_again(table, settled, settings):
                raise InputError(why)
            last = ends_of(settled.run, settled.n_tokens)
            groups[name] = settled.take(np.sort(last)) if points == ENDS else settled
    if not groups:
        reasons = ", ".join(f"{count} {why}" for why, count in dropped.items())
        raise InputError(f"{table.title}: no run can be fitted ({reasons or 'it has none'})")
    if origin is not None and points == ENDS:
        dropped += Counter({EARLIER: len(table.curves) - sum(map(len, groups.values()))})

    def keep(those: Callable[[Points], Points], why: str) -> None:
        """Those points of every group, and the others counted: rows of a file, or runs of a study."""
        nonlocal dropped
        for name, before in groups.items():
            groups[name] = kept = those(before)
            dropped += Counter({why: len(before) - len(kept) if origin else before.n_runs - kept.n_runs})

    keep(lambda group: group.take(~group.copied), COPIED)
    keep(lambda group: group.take(~group.trained_again), SAME_SEED)
    if drop_highest_loss:
        of_group = " of their group" if len(groups) > 1 else ""
        keep(lambda group: _without_highest(group, drop_highest_loss), f"the highest losses{of_group}")
    keep(lambda group: group.take(of_lowest(group)), HIGHER)
    notes = [] if origin else [f"loss: {settings.loss_name(table.loss_unit)}; N: non-embedding parameters"]
    if points == CURVES and settings.curve_rows:
        share = settings.first_share
        groups = {name: group.thinned(settings.curve_rows, share) for name, group in groups.items()}
        notes += [
            f"of each run: {settings.curve_rows} points of its curve, evenly in log D from {share:.0%} of its tokens"
        ]
    if settings.stopped == "leave_out":
        from analysis.fits.stopped import stopped_text, without_stopped

        learning = {name: without_stopped(group) for name, group in groups.items()}
        keep(lambda group: learning[group.group][0], STOPPED)
        notes += [stopped_text(name, gone) for name, (_, gone) in learning.items() if gone]
    if origin is None:
        six = np.concatenate([6 * group.n_params * group.n_tokens / group.flops for group in groups.values()])
        ends = float(six.min()), float(np.median(six)), float(six.max())
        n_runs = len(table.runs) + sum(table.dropped.values())
        origin, unit = Origin({}, {}, ends, n_runs, points == CURVES, table.loss_unit), "runs"
    else:
        unit = "rows"
    read = origin.n_rows, dict(dropped), origin.derived, origin.six_nd, origin.several_rows
    return Reading(table.title, groups, origin.columns, points, *read, (*origin.notes, *notes), unit)


def grouped(table: RunTable, settings: FitSettings | None = None) -> RunTable:
    """The table of runs with the columns `group`, an architecture at a point of the grid's axes, and `left_out`, why
    the fits do not use a run ("" where they do). Nuisance axes and lengths make no groups: their values are recipes, of
    which the lowest stays at each size and D. A table that has been grouped stays as it is. settings: None: those of
    the table."""
    if "group" in table.runs:
        return table
    runs, axes = table.runs.copy(), (settings or table.settings).nuisance
    no_group = {LENGTH, *(field for axis in axes for field in axis.split("+"))}
    places = list(zip(runs["arch"].astype(str), runs["point"], strict=True))
    names = {(arch, point): group_of(arch, without(point, no_group)) for arch, point in set(places)}
    runs["group"] = [names[place] for place in places]
    runs["left_out"] = [f"{VARIANT} {variant}" if variant else "" for variant in runs["variant"]]
    waiting = runs["n_params_non_embedding"].isna()  # not begun: where it stands is not known
    for arch, mine in runs[~waiting & (runs["left_out"] == "")].groupby("arch", sort=False)["group"]:
        if str(arch) not in set(mine):
            runs.loc[waiting & (runs["arch"] == arch), "group"] = mine.iloc[0]
    return replace(table, runs=runs)


def whole_curves(table: RunTable, settings: FitSettings) -> tuple[dict[str, Points | str], Counter[str]]:
    """By group of a grouped table, the points of all losses of the runs that fits may use, or why they have no C; and
    how many other runs there are, by reason. `warmup_tokens`: up to which no loss of a run is fitted."""
    losses = RunCurves(table, settings)
    groups: dict[str, tuple[list[int], list[Curve]]] = {}
    left_out = Counter[str]()
    for i, run in enumerate(table.runs.itertuples()):
        if run.left_out:
            left_out[VARIANT] += 1
        elif run.state != "done":
            left_out[NOT_DONE] += 1
        elif len(curve := losses.of(str(run.run_id))):
            places, curves = groups.setdefault(str(run.group), ([], []))
            places.append(i)
            curves.append(curve)
        else:
            left_out[SHORT if settings.points == AUTO else OTHER_PHASE] += 1
    return {
        name: _points(name, table.runs.iloc[places], curves, settings, table)
        for name, (places, curves) in groups.items()
    }, left_out


def _points(
    name: str, runs: pd.DataFrame, curves: Sequence[Curve], settings: FitSettings, table: RunTable
) -> Points | str:
    """Of the runs of a group of a table and their losses; or why their C is not known."""
    lengths = [len(curve) for curve in curves]
    own = {key: np.concatenate([curve.own[key] for curve in curves]) for key in curves[0].own}
    tokens = np.concatenate([curve.n_tokens for curve in curves])

    def each(values: Any, kind: type = object) -> np.ndarray:
        return np.repeat(np.asarray(values, dtype=kind), lengths)

    if "flops" not in own:
        own["flops"] = tokens * each(runs[f"flops_per_token_{settings.flops}"], float)
        if np.isnan(own["flops"]).any():
            return no_formula(name, settings.flops)
    text = each(runs["n_tokens"] / runs["epochs"], float)  # of the training split; nan: not known
    names = runs["run" if "run" in runs else "run_id"].astype(str)  # those of two groups of a file may be the same
    cells = (
        runs["cell"]
        if "cell" in runs
        else [", ".join(map(str, row)) for row in runs[list(BATCHES)].itertuples(index=False)]
    )
    points = Points(
        n_params=each(runs["n_params_non_embedding"], float),
        n_tokens=tokens,
        flops=own["flops"],
        loss=np.concatenate([curve.loss for curve in curves]),
        run=each(names),
        cell=each(cells),
        trunk=each(runs["trunk"].where(runs["trunk"] != "", names).astype(str)),
        recipe=each(runs["recipe"].astype(str)),
        seed=each(runs["seed"].astype(str)) if "seed" in runs else np.array([]),
        size=each(runs["size"].astype(str)),
        unique_tokens=own.get("unique_tokens", np.where(text < tokens, text, tokens)),
        budget=each(runs["budget"], float) if "budget" in runs else np.array([]),
        row=own["row"].astype(int) if "row" in own else np.array([]),
        warmup_tokens=each([settings.settled_after(int(warmup)) for warmup in runs["warmup_tokens"]], float),
        convention=settings.flops,
        loss_unit=table.loss_unit,
        loss_of=str(runs["loss_of"].iloc[0]) if "loss_of" in runs else "",
        keeps_copies=table.origin is not None and table.origin.keeps_copies,
        group=name,
    )
    return points.take(np.argsort(points.row, kind="stable")) if "row" in own else points  # as in their table


def read_again(table: RunTable, points: Points, settings: FitSettings) -> str:
    """Why the losses of these runs are no losses on new text; "" where they are."""
    fitted = table.runs["run_id"].isin(set(points.run.tolist()))
    runs = table.runs[fitted & (table.runs["epochs"] > 1)].sort_values("epochs")
    if runs.empty or settings.loss != "train_smoothed":
        return ""
    return (
        f"{counted(len(runs), 'run')} of {points.group} saw text more than once ({runs['run_id'].iloc[-1]}: "
        f"{runs['epochs'].iloc[-1]:.2f} epochs), where training loss does not measure loss on new text: set fit.loss "
        f"to validation (nothing is trained again)"
    )


def under(points: Points, runs: pd.DataFrame, convention: str) -> Points | None:
    """The points with C by another convention, as the table of runs counts their tokens; None where that has no formula
    for one of them."""
    known = runs.set_index("run_id")[f"flops_per_token_{convention}"]
    per_token = known.loc[points.run].to_numpy(dtype=float)
    if np.isnan(per_token).any():
        return None
    return replace(points, flops=points.n_tokens * per_token, convention=convention)


def no_formula(group: str, convention: str) -> str:
    other = "6nd" if convention == "exact" else "exact"
    return f"{group}: the convention {convention} has no formula for it: --convention {other}"


def refuse_ends(table: RunTable) -> None:
    """Raise InputError for runs whose losses at the ends of decays are fitted, where curves are asked for."""
    if resolved(table, table.settings).is_of_ends:
        raise InputError(f"--points curves: study {table.name} fits one loss a run, of decayed runs (fit.points)")


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
