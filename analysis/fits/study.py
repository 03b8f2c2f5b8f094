"""What a study's runs say: the envelope of every architecture and the laws of every other approach with their checks
and verdicts, the architectures compared, and what none of this could use. The only place where law constants live.

The fit stage and the command `scaling fit runs STUDY` give the same numbers: both come from `runs_of_study`.
Curves enter as points: under a constant learning rate each is as good as a run that ends there. The surface is fitted
by least squares: the noise between seeds has no outliers that Huber's loss would hold off
(docs/research/parametric-fits.md: its intervals cover as they should and are narrower).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.approaches import CURVE, Fits, Runs, fit_groups, options_of
from analysis.fits.compared import compare_study, contexts
from analysis.fits.envelope import ESTIMAND, METHOD, NO_SEEDS, Curves, fit_envelope, owner_at_ends
from analysis.fits.fit import APPROACHES, ENVELOPE, Fit, Intervals
from analysis.fits.losses import NO_CURVE, described, resolved
from analysis.fits.noise import SeedNoise, SeedNoises, degrees_text
from analysis.fits.points import CURVES, Points
from analysis.fits.prepare import grouped, prepare, read_again, under, whole_curves
from analysis.fits.seeds import Size, SizeCurve, curves_of, seed_noises_of, sizes_of
from analysis.fits.settings import FitSettings
from analysis.fits.study_fits import (
    Group,
    LowestLoss,
    NotPaired,
    SizeOf,
    StudyFits,
    UnusedRun,
)
from analysis.fits.variants import ALIKE
from analysis.fits.verdict import judge_architectures
from analysis.labels import arch_of, families, point_of
from analysis.run_table import RunTable
from arch.amounts import count
from arch.errors import InputError
from data.units import loss_unit
from flops.laws import FITS_SCHEMA
from scaling.study.schedule import UNDECAYED


def runs_of_study(
    study: RunTable, ends: Mapping[str, Points], curves: Mapping[str, Points], ends_alone: bool = False
) -> Runs:
    """A study's runs as the approaches read them (ends, curves: of `prepare`): the envelope is that of whole curves."""
    whole = WholeCurves.of(study)
    return Runs(ends, curves, ends_alone, whole.envelopes(), whole.settings)


def fit_study(
    table: RunTable,
    inputs: Mapping[str, str] | None = None,
    approaches: Sequence[str] = APPROACHES,
) -> StudyFits:
    """Fit every architecture of `table`, at every point of the axes that are no nuisance, by the table's settings;
    `inputs` is {run_id: sha256 of its metrics.jsonl}, recorded as it is. approaches: by which laws are fitted and
    judged; without any there are the envelopes alone, not judged.

    Runs that are not done are left out and listed. An architecture that cannot be fitted has its reason. Raises
    InputError for decayed losses (fit.points) where there are none.
    """
    if table.origin is not None:
        raise InputError(f"{table.title}: is no study: fit its points, of `prepare`, by analysis.fits.approaches")
    settings = resolved(table, table.settings)
    table = grouped(replace(table, settings=settings))
    runs, whole = table.runs[table.runs["arch"].notna()], WholeCurves.of(table)
    noises, own = whole.noises(), whole.envelopes()
    curves = _curves(table) if approaches else {}
    fitted = Fits((), ())
    if approaches:
        runs_of = Runs(curves, curves, False, own, settings)
        fitted = fit_groups(runs_of, approaches, options_of(settings, curve=CURVE))
    every = whole.points | dict(curves)
    envelopes = {result.group: result for result in fitted.results if result.approach == ENVELOPE}
    alone = [
        fit_envelope(every[arch], curves_of, settings=whole.settings)
        for arch, curves_of in own.items()
        if arch not in envelopes and isinstance(curves_of, Curves)
    ]
    envelopes |= {fit.group: fit for fit in alone}
    unit = loss_unit(runs["tokenizer"])
    noise = noises.every
    seed_noise = 0.0 if noise is None else noise.of_runs
    return StudyFits(
        schema=FITS_SCHEMA,
        study=table.name,
        inputs_hash="",
        conventions={
            "C": settings.flops,
            "unit_C": "FLOP",
            "N": "non-embedding parameters",
            "L": settings.loss_name(unit),
            "unit_L": unit,
        },
        settings=settings,
        groups=tuple(_group(runs, arch, whole, own[arch], curves.get(arch)) for arch in own),
        fits=(*fitted.results, *alone),
        # why curves have no envelope stands beside their architecture
        not_fitted=tuple(failed for failed in fitted.failed if failed.approach != ENVELOPE or settings.is_of_ends),
        intervals=_intervals(noise, settings),
        seed_noise=noise,
        not_paired=tuple(whole.not_paired()),
        verdicts=tuple(_verdicts(own, envelopes, settings.level, runs)),
        points=described(table, settings),
        comparisons=tuple(
            compare_study(table, options_of(settings), seed_noise, fits=fitted.results) if approaches else ()
        ),
        left_out=tuple(_left_out(runs)),
        skipped=tuple(_skipped(runs)),
        inputs=dict(inputs or {}),
    )


def seed_noise_of_study(study: RunTable) -> float:
    """The standard deviation of log loss between the study's seeds, of a run's mean where that is known, as its fit
    stage measures it; 0 where it is not measured."""
    noise = WholeCurves.of(study).noises().every
    return 0.0 if noise is None else noise.of_runs


def _curves(table: RunTable) -> Mapping[str, Points]:
    """None where no run can be fitted as points."""
    try:
        return prepare(table, points=CURVES).groups
    except InputError:
        return {}


@dataclass(frozen=True)
class WholeCurves:
    """The whole curves of a grouped table: points and sizes of each group, of runs that have several points. no_flops:
    of groups that the convention `settings.flops` does not count."""

    table: RunTable
    settings: FitSettings
    no_flops: frozenset[str]
    points: dict[str, Points]
    sizes: dict[str, list[Size]]

    @classmethod
    def of(cls, table: RunTable) -> WholeCurves:
        settings, table = resolved(table, table.settings), grouped(table)
        known, points = whole_curves(table, settings)[0], dict[str, Points]()
        for name, whole in known.items():
            if not isinstance(whole, str) and len(curves := whole.take(whole.rows_of_run > 1)):
                points[name] = curves
        no_flops = frozenset(name for name, whole in known.items() if isinstance(whole, str))
        return cls(table, settings, no_flops, points, {name: sizes_of(group) for name, group in points.items()})

    def curves(self, group: str, convention: str) -> list[SizeCurve]:
        """Of every size, with C under a convention; none where that has no formula for the architecture."""
        sizes = self.sizes.get(group, [])
        known = self.table.runs.set_index("run_id").loc[[str(size.points.run[size.row]) for size in sizes]]
        per_token = known[f"flops_per_token_{convention}"].to_numpy(dtype=float)
        return [] if np.isnan(per_token).any() else curves_of(sizes, per_token.tolist())

    def envelopes(self) -> dict[str, Curves | str]:
        """By group, what its envelope is fitted to, or why it has none."""
        runs = self.table.runs[self.table.runs["arch"].notna()]
        groups = list(dict.fromkeys(runs.loc[runs["left_out"] == "", "group"]))
        noises, envelopes = self.noises(), dict[str, Curves | str]()
        for group in groups:
            reason = self._unusable(group, sum(arch_of(other) == arch_of(group) for other in groups) > 1)
            envelopes[group] = reason or Curves(
                self.curves(group, self.settings.flops), self._stretch(group), noises.of(group)
            )
        return envelopes

    def _stretch(self, group: str) -> tuple[float, float]:
        """Its range of C: as stated under a convention of its own, the same points of the same runs."""
        settings = self.settings
        own, counted = (self.curves(group, name) for name in (settings.range_convention, settings.flops))
        if arch_of(group) in settings.range:
            low, high = settings.range[arch_of(group)]
        else:
            low = float(np.exp(min(curve.settled_from for curve in own)))
            high = float(np.exp(max(curve.log_c[-1] for curve in own)))
        first, last = owner_at_ends(own, (low, high))
        return (
            low * counted[first].flops_per_token / own[first].flops_per_token,
            high * counted[last].flops_per_token / own[last].flops_per_token,
        )

    def _unusable(self, group: str, varied: bool) -> str:
        """Why a group has no laws; "" if it has. varied: whether its architecture has other points on the axes, which
        it is compared with."""
        settings, own = self.settings, self.points.get(group)
        no_range = own is not None and under(own, self.table.runs, settings.range_convention) is None
        for key, name, unknown in (
            ("flops", settings.flops, group in self.no_flops),
            ("range_flops", settings.range_convention, no_range),
        ):
            if unknown:
                return f"the convention fit.{key} = {name} has no formula for it: set fit.{key} to exact"
        curves = self.curves(group, settings.flops)
        if not curves and settings.is_of_ends:
            return NO_CURVE
        if not curves or own is None:
            return f"no usable run: none is done and has {_needed(settings)}"
        sizes_n = [curve.n_params for curve in curves]
        if len(sizes_n) == 1 and varied:
            return f"it has one size, {curves[0].size}, and no law of size: its points are compared as variants"
        if len(sizes_n) > 1 and max(sizes_n) <= ALIKE * min(sizes_n):
            return (
                f"its {len(sizes_n)} sizes are shapes of about as many parameters ({count(min(sizes_n))} to "
                f"{count(max(sizes_n))}), which no law of size is fitted to: they are compared as variants"
            )
        return read_again(self.table, own, settings)

    def noises(self) -> SeedNoises:
        """Noise between seeds of each other, after warm-up and inside the architecture's range. Seeds of two sizes that
        read the same text, in the same order, go together, however far they read."""
        runs = self.table.runs
        read = dict(zip(runs["run_id"].astype(str), _text_orders(runs), strict=True))
        counted = [under(point, self.table.runs, self.settings.range_convention) for point in self.points.values()]
        groups = [
            replace(points, cell=np.array([read[run] for run in points.run.tolist()], dtype=object))
            for points in counted
            if points is not None
        ]
        ranges = self.settings.range
        reach = {group.group: ranges[arch_of(group.group)] for group in groups if arch_of(group.group) in ranges}
        return seed_noises_of(groups, reach, "n_tokens")

    def not_paired(self) -> list[NotPaired]:
        """Of each size that has several runs, those that are no seeds of the others."""
        every = [(group, size) for group, sizes in self.sizes.items() for size in sizes]
        unpaired = [(group, str(size.points.size[size.row]), size.unpaired()) for group, size in every]
        return [NotPaired(group, name, tuple(runs)) for group, name, runs in unpaired if runs]


def _text_orders(runs: pd.DataFrame) -> list[str]:
    """What decides the text that each run reads, in its order (data/loader.py), up to any number of tokens."""
    shares = [
        "" if pd.isna(target) else f", {planned} of {target}"
        for planned, target in zip(runs["planned_tokens"], runs["target_tokens"], strict=True)
    ]
    keys = zip(runs["corpus_fingerprint"], runs["context_length"], runs["seed"], shares, strict=True)
    return [f"{corpus}, {context}, {seed}{share}" for corpus, context, seed, share in keys]


def _verdicts(
    own: Mapping[str, Curves | str], fitted: Mapping[str, Fit], level: float, runs: pd.DataFrame
) -> list[LowestLoss]:
    """Of each family that is compared ("" without axes)."""
    usable = {group: curves for group, curves in own.items() if isinstance(curves, Curves)}
    return [
        judge_architectures(
            {group: usable[group].sizes for group in mine},
            fitted,
            {group: usable[group].noise for group in mine},
            level,
            name,
        )
        for name, mine in families(list(usable), contexts(runs)) or [("", [])]
    ]


def _left_out(runs: pd.DataFrame) -> list[dict[str, str]]:
    """Runs that no group is fitted to, and why."""
    rows = runs[runs["left_out"] != ""]
    return [{"run_id": str(run), "why": str(why)} for run, why in zip(rows["run_id"], rows["left_out"], strict=True)]


def _needed(settings: FitSettings) -> str:
    needed = "two evaluated checkpoints" if settings.loss == "validation" else "more tokens than fit.smoothing_tokens"
    return f"{needed} before any decay of the rate" if settings.points == UNDECAYED else needed


def _group(runs: pd.DataFrame, arch: str, whole: WholeCurves, own: Curves | str, ends: Points | None) -> Group:
    """ends: the group's points, which of decayed losses are the ends of its runs."""
    settings, sizes = whole.settings, whole.sizes.get(arch, [])
    mine = runs[(runs["group"] == arch) & (runs["left_out"] == "")]
    ids = {run for size in sizes for run in size.runs}
    known_sizes = [
        SizeOf(curve.size, int(curve.n_params), curve.n_seeds) for curve in whole.curves(arch, settings.flops)
    ]
    if settings.is_of_ends and ends is not None:
        ids, known_sizes, own = set(map(str, ends.run)), _sizes_of_ends(ends), ""
    known = {run: why for size in sizes for run, why in size.left_out.items()}
    left = []
    for row in mine[~mine["run_id"].isin(ids)].to_dict("records"):
        name = str(row["run_id"])
        lacks = (
            "without a loss at the end of a decay (fit.points)"
            if settings.is_of_ends
            else f"without {_needed(settings)}"
        )
        why = _text(row["reason"]) if row["state"] != "done" else known.get(name, lacks)
        why += f" ({row['skipped_why']} left out)" if row["skipped_rows"] else ""
        left.append(UnusedRun(name, str(row["state"]), why))
    return Group(
        name=arch,
        arch=arch_of(arch),
        point=point_of(arch),
        n_runs=len(ids),
        sizes=tuple(known_sizes),
        left_out=tuple(left),
        range_stated=arch_of(arch) in settings.range,
        reason=own if isinstance(own, str) else "",
    )


def _sizes_of_ends(ends: Points) -> list[SizeOf]:
    sizes, first = np.unique(ends.size.astype(str), return_index=True)
    named = zip(sizes.tolist(), ends.n_params[first].tolist(), strict=True)
    seeds = {size: len(set(ends.seed[ends.size == size].tolist())) for size in sizes.tolist()}
    return sorted((SizeOf(size, int(n), seeds[size]) for size, n in named), key=lambda size: size.n_params)


def _skipped(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Runs of which rows or evaluations were left out because the run cannot have written them: how many, and why."""
    rows = runs[runs["skipped_rows"] > 0].to_dict("records")
    return [{"run_id": str(row["run_id"]), "n": int(row["skipped_rows"]), "why": row["skipped_why"]} for row in rows]


def _text(value: Any) -> str:
    return "" if value is None or pd.isna(value) else str(value)


def _intervals(noise: SeedNoise | None, settings: FitSettings) -> Intervals:
    if noise is None:
        return Intervals(NO_SEEDS)
    method = METHOD
    if len(noise.parts) > 1:
        each = (f"{', '.join(part.archs)} {part.s:.2%} ({degrees_text(part.df)})" for part in noise.parts)
        method += (
            ", each architecture with the noise of those that it is not told from (share of the loss, degrees of "
            f"freedom: {'; '.join(each)})"
        )
    return Intervals(method, settings.level, ESTIMAND, settings.n_replicates, seed=settings.seed)
