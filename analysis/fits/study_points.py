"""Runs of studies as points, of one study or of several that agree in all that a fit compares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.grouping import grouped
from analysis.fits.merged import calibrations, decayed_at, merged_rows
from analysis.fits.offset import REACH
from analysis.fits.parametric.stopped import without_stopped
from analysis.fits.phases import AUTO, resolved
from analysis.fits.points import COPIED, Points
from analysis.fits.recipes import HIGHER, of_lowest
from analysis.fits.settings import FitSettings
from analysis.fits.study_curves import SAME_SEED, smoothed
from analysis.fits.tables.points import CURVES, ENDS, Reading
from analysis.runs import CONVENTIONS, Tables
from arch.amounts import counted, flop
from arch.errors import InputError, choice
from data.units import loss_unit
from scaling.study.schedule import MERGED

AGREEING = {
    "corpus_fingerprint": "corpus",
    "target_tokens": "corpus.target_tokens",
    "tokenizer": "tokenizer",
    "context_length": "context length",
}
# Rows of a run that curves keep, at steps of 7% over its last decade of tokens (docs/research/parametric-fits.md)
CURVE_ROWS = 32
VARIANT, NUISANCE, UNJUDGED, AVERAGED = (
    "changed by --set",
    "at another value of a nuisance axis than the best",
    "of a value, or of a mean, of a nuisance axis that cannot be judged",
    "averaged with others over a nuisance axis",
)
NOT_DONE, TWICE, SHORT, OTHER_PHASE = (
    "not done",
    "with recipe and seed of a run of another study",
    "without enough points after warm-up",
    "without a loss of the phase of the learning rate that is fitted (fit.points)",
)
STOPPED = "of a size that has stopped learning (fit.stopped)"
FAR = f"merged losses farther than {REACH:g} times from the sizes and tokens that calibrate them"


@dataclass(frozen=True)
class StudyRuns:
    """The tables of a study, and how its file says that they are fitted."""

    name: str
    tables: Tables
    settings: FitSettings

    @cached_property
    def grouped(self) -> Tables:
        """The tables with the groups of the fits, nuisance axes resolved."""
        return grouped(self.tables, resolved(self.tables, self.settings))


def under(study: StudyRuns, convention: str | None, **settings: Any) -> StudyRuns:
    """The study with C under another convention (None: its own) and other settings; a stated range stays where it was.

    Raises InputError for a convention that runs are not counted by.
    """
    if convention is not None:
        if convention not in CONVENTIONS:
            raise InputError(f"--convention: {convention!r}{choice(convention, list(CONVENTIONS))}")
        settings |= {"flops": convention, "range_flops": study.settings.range_convention}
    return replace(study, settings=study.settings.model_copy(update=settings))


def pool(studies: Sequence[StudyRuns]) -> tuple[StudyRuns, dict[str, int]]:
    """One study of the runs of all, each named `study/run`; and how many runs were in two of them, which count once.

    Raises InputError, with what differs, where they do not share corpus, tokenizer, context length and fit settings.
    """
    for one in studies:
        _agree([one])
    if len(studies) == 1:
        return studies[0], {}
    names = [one.name for one in studies]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two studies are called {twice[0]}: give each once, or rename one")
    _agree(studies)
    first = studies[0]
    for other in studies[1:]:
        mine, theirs = first.settings.to_dict(), other.settings.to_dict()
        if differ := [key for key in mine if mine[key] != theirs[key] and key != "range"]:
            keys = {key: "grid.nuisance" if key == "nuisance" else f"fit.{key}" for key in differ}
            told = ", ".join(f"{keys[key]} ({mine[key]} and {theirs[key]})" for key in differ)
            raise InputError(f"studies {first.name} and {other.name} differ in {told}: give both the same by --set")
    ranges = _ranges(studies)
    frames = {}
    for table in ("curves", "runs", "evals"):
        parts = [(one.name, getattr(one.tables, table)) for one in studies]
        named = [_named(part, name) for name, part in parts]
        frames[table] = pd.concat([part for part in named if len(part)] or named[:1], ignore_index=True)
        if "trunk" in frames[table]:  # of one study and not of the other
            frames[table] = frames[table].fillna({"trunk": ""})
    gone = _in_another(studies)
    kept = {name: frame[~frame["run_id"].isin(gone)].reset_index(drop=True) for name, frame in frames.items()}
    tables = Tables(kept["curves"], kept["runs"], kept["evals"])
    whole = StudyRuns(" + ".join(names), tables, first.settings.model_copy(update={"range": ranges}))
    return whole, {TWICE: len(gone)} if gone else {}


def _named(part: pd.DataFrame, study: str) -> pd.DataFrame:
    """Runs, and the trunks that they were branched from, as `study/run`."""
    more = {"trunk": [f"{study}/{one}" if one else one for one in part["trunk"].fillna("")]} if "trunk" in part else {}
    return part.assign(run_id=f"{study}/" + part["run_id"].astype(str), **more)


def _in_another(studies: Sequence[StudyRuns]) -> set[str]:
    """Runs that are done, as `study/run`, of the recipe, seed and trunk of one of a study that comes first."""
    gone: set[str] = set()
    seen: set[tuple[str, str, str]] = set()
    for one in studies:
        mine = {}
        for row in one.tables.runs.itertuples():
            if row.state == "done":
                branched = str(getattr(row, "trunk", None) or "")
                trunk = "" if branched == str(row.run_id) else branched
                mine[f"{one.name}/{row.run_id}"] = (str(row.recipe), str(row.seed), trunk)
        gone |= {name for name, key in mine.items() if key in seen}
        seen |= set(mine.values())
    return gone


def _ranges(studies: Sequence[StudyRuns]) -> dict[str, list[float]]:
    """The stated range of every architecture. Raises InputError where two studies state two."""
    found: dict[str, list[float]] = {}
    for one in studies:
        for arch, ends in one.settings.range.items():
            if found.setdefault(arch, ends) != ends:
                told = " and ".join(f"{flop(low, 4)} to {flop(high, 4)}" for low, high in (found[arch], ends))
                raise InputError(
                    f"studies {' and '.join(one.name for one in studies)} differ in fit.range of {arch} ({told} FLOP): "
                    f"give all the same by --set fit.range.{arch}=[LOW,HIGH]"
                )
    return found


def refuse_ends(study: StudyRuns) -> None:
    """Raise InputError for a study that fits losses at the ends of decays, where curves are asked for."""
    if resolved(study.tables, study.settings).is_of_ends:
        raise InputError(f"--points curves: study {study.name} fits one loss a run, of decayed runs (fit.points)")


def study_points(
    study: StudyRuns, points: str = ENDS, twice: dict[str, int] | None = None, first_share: float | None = None
) -> Reading:
    """The points of every group (an architecture, at a point of the axes): of each run that is done its last loss, or
    its settled curve (`curves`): at most CURVE_ROWS points, evenly in log D, from `first_share` of its tokens on
    (None: of the study's settings). A recipe and seed counts once, and of several recipes at one N and D the lowest
    stays.

    The loss is the study's: smoothed training loss, or held-out loss, of decayed runs (fit.points) always the end's. N
    without embeddings; C under the study's convention. Runs share a `cell` where they saw the same batches: one corpus,
    batch size, context, seed and length.

    Raises InputError where no run is done, and for training loss of text that was seen before.
    """
    tables, settings = study.grouped, resolved(study.tables, study.settings)
    first_share = first_share or settings.first_share
    points = ENDS if settings.is_of_ends else points
    averaged = {run for mean in tables.told["means"].values() for run in mean} if tables.told else set()
    dropped, unit = dict(twice or {}), loss_unit(tables.runs["tokenizer"])
    made: dict[str, list[dict[str, Any]]] = {}
    seeds: set[tuple[str, ...]] = set()
    for record in tables.runs.to_dict("records"):
        row = {str(key): value for key, value in record.items()}
        if row["left_out"]:
            better = NUISANCE if " ends lower than " in row["left_out"] else UNJUDGED
            why = AVERAGED if str(row["run_id"]) in averaged else VARIANT if row["variant"] else better
            dropped[why] = dropped.get(why, 0) + 1
            continue
        if row["state"] != "done":
            dropped[NOT_DONE] = dropped.get(NOT_DONE, 0) + 1
            continue
        tokens, loss = smoothed(tables, settings, str(row["run_id"]))
        if not len(tokens) and settings.points != AUTO:
            dropped[OTHER_PHASE] = dropped.get(OTHER_PHASE, 0) + 1
            continue
        settled = tokens >= settings.settled_after(int(row["warmup_tokens"]))
        tokens, loss = tokens[settled], loss[settled]
        if len(tokens) < (1 if points == ENDS else 2):
            dropped[SHORT] = dropped.get(SHORT, 0) + 1
            continue
        if str(row.get("trunk") or row["run_id"]) == str(row["run_id"]):  # branches of one trunk share its seed
            own = tuple(str(row[key]) for key in ("arch", "size", "recipe", "seed"))
            if own in seeds:
                dropped[SAME_SEED] = dropped.get(SAME_SEED, 0) + 1
                continue
            seeds.add(own)
        taken = slice(-1, None) if points == ENDS else slice(None)
        made.setdefault(str(row["group"]), []).append(row | {"tokens": tokens[taken], "loss": loss[taken]})
    n_merged = _add_merged(tables, made, dropped) if settings.points == MERGED else 0
    if not made:
        told = ", ".join(f"{count} {why}" for why, count in dropped.items())
        raise InputError(f"study {study.name}: no run can be fitted ({told or 'it has none'})")
    groups = {arch: _points(arch, found, settings, unit) for arch, found in made.items()}
    for arch, one in groups.items():
        if gone := one.n_runs - (kept := one.take(~one.copied)).n_runs:
            dropped[COPIED] = dropped.get(COPIED, 0) + gone
        groups[arch] = kept.take(of_lowest(kept))
        if gone := kept.n_runs - groups[arch].n_runs:
            dropped[HIGHER] = dropped.get(HIGHER, 0) + gone
    if points == CURVES:
        groups = {arch: one.thinned(CURVE_ROWS, first_share) for arch, one in groups.items()}
    left_out: tuple[str, ...] = ()
    if settings.stopped == "leave_out":
        groups, left_out = _without_stopped(groups, dropped)
    six = np.concatenate([6 * one.n_params * one.n_tokens / one.flops for one in groups.values()])
    ratio = (float(six.min()), float(np.median(six)), float(six.max()))
    source, n_read = f"study {study.name}", len(tables.runs) + n_merged + sum((twice or {}).values())
    notes: tuple[str, ...] = (f"loss: {settings.loss_name(unit)}; N: non-embedding parameters",)
    if points == CURVES:
        notes += (
            f"of each run: {CURVE_ROWS} points of its curve, evenly in log D from {first_share:.0%} of its tokens",
        )
    return Reading(source, groups, {}, points, n_read, dropped, {}, ratio, points == CURVES, notes + left_out, "runs")


def _without_stopped(groups: dict[str, Points], dropped: dict[str, int]) -> tuple[dict[str, Points], tuple[str, ...]]:
    """Without the sizes that have stopped learning (fit.stopped), and a line on each group's."""
    found, lines = {}, []
    for name, points in groups.items():
        found[name], gone = without_stopped(points)
        if gone:
            dropped[STOPPED] = dropped.get(STOPPED, 0) + points.n_runs - found[name].n_runs
            told = ", ".join(f"{one.size} ({math.expm1(one.above):.1%}, p = {one.p:.1g})" for one in gone)
            lines.append(f"{name}: left out, as their losses lie above what the larger sizes' surface says: {told}")
    return found, tuple(lines)


def _add_merged(tables: Tables, made: dict[str, list[dict[str, Any]]], dropped: dict[str, int]) -> int:
    """Add the merged losses of the trunks, less their offset, to the rows of their groups; how many were considered."""
    n_read = 0
    known, taken = calibrations(tables, needed=True), decayed_at(tables.runs)
    for record in tables.runs.to_dict("records"):
        row = {str(key): value for key, value in record.items()}
        if not row["left_out"] and row["state"] == "done" and str(row["group"]) in made:
            rows, far = merged_rows(tables, known, row, taken)
            made[str(row["group"])] += rows
            n_read += len(rows) + far
            if far:
                dropped[FAR] = dropped.get(FAR, 0) + far
    return n_read


def _points(arch: str, rows: Sequence[dict[str, Any]], settings: FitSettings, unit: str) -> Points:
    repeated = [row for row in rows if row["epochs"] > 1]
    if repeated and settings.loss == "train_smoothed":
        raise InputError(
            f"{counted(len(repeated), 'run')} of {arch} saw text more than once ({repeated[0]['run_id']}: "
            f"{repeated[0]['epochs']:.2f} epochs), where training loss does not measure loss on new text: "
            f"--set fit.loss=validation"
        )
    if any(np.isnan(row[f"flops_per_token_{settings.flops}"]) for row in rows):
        raise InputError(f"{arch}: the convention {settings.flops} has no formula for it: --convention exact")
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
        convention=settings.flops,
        loss_unit=unit,
        held_out=settings.loss == "validation",
        group=arch,
    )


def _widened(shift: np.ndarray, wide: int, rows: int) -> np.ndarray:
    """[rows, wide]: zeros where a point has no error in common with others."""
    return shift if shift.shape[1] else np.zeros((rows, wide))


def _cell(row: dict[str, Any]) -> str:
    """What decides a run's batches: the same for runs that read the same ones to the end."""
    keys = ("corpus_fingerprint", "batch_tokens", "context_length", "seed", "n_tokens")
    return ", ".join(str(row[key])[:12] for key in keys)


def _agree(studies: Sequence[StudyRuns]) -> None:
    done = pd.concat([_done(one).assign(study=one.name) for one in studies], ignore_index=True)
    for key, word in AGREEING.items():
        # a grid that varies the context has one for each of its points
        points = done["point"] if key == "context_length" else pd.Series("", index=done.index)
        for _, mine in done.groupby(points):
            values = mine[["study", key]].dropna().drop_duplicates(key)
            if len(values) < 2:
                continue
            told = " and ".join(f"{str(value)[:12]} in {name}" for name, value in values.itertuples(index=False))
            raise InputError(f"the runs do not share one {word} ({told}): losses of one fit must be comparable")


def _done(study: StudyRuns) -> pd.DataFrame:
    runs = study.tables.runs
    done = runs.loc[(runs["state"] == "done") & (runs["variant"] == "")]
    found = done.reindex(columns=[*AGREEING, "point"]).astype(object)
    return found.assign(target_tokens=found["target_tokens"].fillna("none"))
