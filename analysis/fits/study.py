"""Fits of a whole study, as versioned JSON: the only place where law constants live.

Every figure and table is drawn from what `fit_study` returns. It names the compute convention, the parameter count and
the loss it used, the interval's method and estimand, and the hash of every metrics.jsonl that went in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.envelope.extract import SizeCurve
from analysis.fits.envelope.intervals import ESTIMAND, METHOD, NO_SEEDS
from analysis.fits.envelope.laws import fit_arch, owner_at_ends
from analysis.fits.envelope.of_points import Size, curves_of, seed_noises_of, sizes_of
from analysis.fits.grouping import grouped
from analysis.fits.losses import NO_CURVE, described, resolved
from analysis.fits.merged import calibrations, calibrations_to_dict
from analysis.fits.noise import degrees_text
from analysis.fits.points import Points
from analysis.fits.pooling import SeedNoises
from analysis.fits.prepare import Row, curves_by_group, under, whole_curves
from analysis.fits.settings import FitSettings
from analysis.fits.variants import ALIKE
from analysis.fits.verdict import judge_architectures
from analysis.labels import arch_of, families, point_of
from analysis.run_table import CONVENTIONS, RunTable
from arch.amounts import count
from arch.errors import InputError
from data.units import loss_unit
from flops.laws import FITS_SCHEMA
from scaling.study.schedule import MERGED, UNDECAYED

LAWS = ("loss", "n_opt", "d_opt")
NOT_JUDGED = "no usable run: at no size can a value of the nuisance axes, or their mean, be judged"


def fit_study(
    table: RunTable, settings: FitSettings | None = None, inputs: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Fit every architecture of `table`, at every point of the axes that are no nuisance, by `settings` (None: those of
    the table); `inputs` is {run_id: sha256 of its metrics.jsonl}, recorded as it is.

    Runs that are not done are left out and listed. An architecture that cannot be fitted is in the result with its
    reason. Raises InputError for decayed losses (fit.points) where there are none.
    """
    if table.origin is not None:
        raise InputError(f"{table.title}: is no study: fit its points, of `prepare`, by analysis.fits.approaches")
    settings = resolved(table, settings or table.settings)
    table = grouped(table, settings)
    if settings.points == MERGED:
        calibrations(table, needed=True)
    runs = table.runs[table.runs["arch"].notna()]
    read, unit = WholeCurves.of(table, settings), loss_unit(runs["tokenizer"])
    nuisance = table.nuisance or {}
    gone = [cell["group"] for cell in nuisance.get("cells", ()) if cell["chosen"] is None]
    archs = list(dict.fromkeys([*runs.loc[runs["left_out"] == "", "group"], *gone]))
    fitted: dict[str, dict[str, Any]] = {}
    by_convention: dict[str, dict[str, Any]] = {name: {} for name in CONVENTIONS}
    noises = read.noises()
    usable: dict[str, list[SizeCurve]] = {}
    for arch in archs:
        curves = read.by_convention(arch)
        result = _describe(runs, arch, read, curves[settings.flops])
        varied = sum(arch_of(other) == arch_of(arch) for other in archs) > 1
        judged = bool(read.rows.get(arch)) or arch not in gone
        reason = _unusable(read.rows.get(arch, ()), curves[settings.flops], settings, varied) if judged else NOT_JUDGED
        if reason is None:
            usable[arch] = curves[settings.flops]
            stretches = _stretches(curves, arch, settings)
            for name, stretch in stretches.items():
                seed = (settings.seed, *arch.encode())  # an architecture's interval does not depend on its neighbours
                one = fit_arch(curves[name], stretch, noises.of(arch), settings, seed)
                by_convention[name][arch] = {
                    "range": one["range"],
                    **{law: _short(one["laws"][law]) for law in LAWS},
                    "alternative": {law: _short(found) for law, found in one["alternative"].items()},
                }
                if name == settings.flops:
                    result |= one
        named = {"arch": arch_of(arch), "point": point_of(arch)}
        fitted[arch] = named | {"fitted": reason is None, "reason": reason, **result}
    return {
        "schema": FITS_SCHEMA,
        "conventions": {
            "C": settings.flops,
            "unit_C": "FLOP",
            "N": "non-embedding parameters",
            "L": settings.loss_name(unit),
            "unit_L": unit,
        },
        "settings": settings.to_dict(),
        "points": described(table, settings),
        "merged": calibrations_to_dict(table, settings.level),
        "interval": _interval(noises, settings) | {"not_paired": read.not_paired()},
        "verdicts": _verdicts(usable, fitted, noises, settings.level, runs),
        "archs": fitted,
        "by_convention": by_convention,
        "nuisance": {"axes": settings.nuisance, **nuisance},
        "left_out": _left_out(runs),
        "skipped": _skipped(runs),
        "inputs": dict(inputs or {}),
    }


@dataclass(frozen=True)
class WholeCurves:
    """The whole curves of a grouped table. rows: by group, the runs that have one; points and sizes: by group, those
    that the convention `settings.flops` counts."""

    table: RunTable
    settings: FitSettings
    rows: dict[str, list[Row]]
    points: dict[str, Points]
    sizes: dict[str, list[Size]]

    @classmethod
    def of(cls, table: RunTable, settings: FitSettings) -> WholeCurves:
        settings = resolved(table, settings)
        table = grouped(table, settings)
        read, _ = curves_by_group(table, settings)
        rows = {group: [row for row in mine if len(row["curve"]["loss"]) > 1] for group, mine in read.items()}
        unit = loss_unit(table.runs["tokenizer"])
        made = {group: whole_curves(mine, settings, unit) for group, mine in rows.items()}
        points = {group: one for group, one in made.items() if one is not None}
        return cls(table, settings, rows, points, {group: sizes_of(one) for group, one in points.items()})

    def by_convention(self, group: str) -> dict[str, list[SizeCurve]]:
        """By convention, the curve of every size; none under one that has no formula for the architecture."""
        sizes = self.sizes.get(group, [])
        known = self.table.runs.set_index("run_id").loc[[str(size.points.run[size.row]) for size in sizes]]
        found: dict[str, list[SizeCurve]] = {}
        for name in CONVENTIONS:
            per_token = known[f"flops_per_token_{name}"].to_numpy(dtype=float)
            curves = [] if np.isnan(per_token).any() else curves_of(sizes, per_token.tolist())
            found[name] = [replace(curve, n_params=int(curve.n_params)) for curve in curves]  # as JSON has them
        return found

    def noises(self) -> SeedNoises:
        """Noise between seeds of each other, after warm-up and inside the architecture's range. Seeds of two sizes that
        read the same text, in the same order, go together, however far they read."""
        read = {str(row["run_id"]): _text_order(row) for rows in self.rows.values() for row in rows}
        counted = [under(one, self.table.runs, self.settings.range_convention) for one in self.points.values()]
        groups = [
            replace(one, cell=np.array([read[run] for run in one.run.tolist()], dtype=object))
            for one in counted
            if one is not None
        ]
        ranges = self.settings.range
        reach = {one.group: ranges[arch_of(one.group)] for one in groups if arch_of(one.group) in ranges}
        return seed_noises_of(groups, reach, "n_tokens")

    def not_paired(self) -> list[dict[str, Any]]:
        """Of each size that has several runs, those that are no seeds of the others."""
        every = [(group, size) for group, sizes in self.sizes.items() for size in sizes]
        found = [(group, str(size.points.size[size.row]), size.unpaired()) for group, size in every]
        return [{"arch": group, "size": name, "runs": runs} for group, name, runs in found if runs]


def _text_order(row: Row) -> str:
    """What decides the text that a run reads, in its order (data/loader.py), up to any number of tokens."""
    target = row.get("target_tokens")
    share = f", {row['planned_tokens']} of {target}" if target and target == target else ""
    return f"{row['corpus_fingerprint']}, {row['context_length']}, {row['seed']}{share}"


def _verdicts(
    usable: Mapping[str, list[SizeCurve]],
    fitted: Mapping[str, Any],
    noises: SeedNoises,
    level: float,
    runs: pd.DataFrame,
) -> list[dict[str, Any]]:
    """What `judge_architectures` says of each family that is compared, with its name in `at` ("" without axes)."""
    alike = contexts(runs)
    noise = {group: noises.of(group) for group in usable}
    return [
        {"at": name} | judge_architectures({group: usable[group] for group in mine}, fitted, noise, level)
        for name, mine in families(list(usable), alike) or [("", [])]
    ]


def contexts(runs: pd.DataFrame) -> dict[str, str]:
    """By group, what its runs' tokens are read after, the context length and whether documents are read apart: losses
    that differ in it are not compared within an architecture."""
    read = runs["context_length"].astype(str) + runs["reset_at_documents"].map({True: ", apart"}).fillna("")
    known = read[runs["context_length"].notna() & (runs["left_out"] == "")].groupby(runs["group"])
    used = runs.loc[runs["left_out"] == "", "group"].unique()
    return {str(group): str([]) for group in used} | {str(group): str(sorted(one.unique())) for group, one in known}


def _left_out(runs: pd.DataFrame) -> list[dict[str, str]]:
    """Runs that no group is fitted to, and why."""
    found = runs[runs["left_out"] != ""]
    return [{"run_id": str(run), "why": str(why)} for run, why in zip(found["run_id"], found["left_out"], strict=True)]


def _needed(settings: FitSettings) -> str:
    needed = "two evaluated checkpoints" if settings.loss == "validation" else "more tokens than fit.smoothing_tokens"
    return f"{needed} before any decay of its rate" if settings.points == UNDECAYED else needed


def _unusable(rows: Sequence[Row], curves: list[SizeCurve], settings: FitSettings, varied: bool) -> str | None:
    """Why an architecture has no laws; None if it has. The training loss of text seen before is no loss on new text.
    varied: whether the architecture has other points on the axes, which it is compared with."""
    for key, convention in (("flops", settings.flops), ("range_flops", settings.range_convention)):
        if any(np.isnan(row[f"flops_per_token_{convention}"]) for row in rows):
            return f"the convention fit.{key} = {convention} has no formula for it: set fit.{key} to exact"
    if not curves and settings.is_of_ends:
        return NO_CURVE
    if not curves:
        return f"no usable run: none is done and has {_needed(settings)}"
    sizes_n = [curve.n_params for curve in curves]
    if len(sizes_n) == 1 and varied:
        return f"it has one size, {curves[0].size}, and no law of size: its points are compared after equal tokens"
    if len(sizes_n) > 1 and max(sizes_n) <= ALIKE * min(sizes_n):
        return (
            f"its {len(sizes_n)} sizes are shapes of about as many parameters ({count(min(sizes_n))} to "
            f"{count(max(sizes_n))}), which no law of size is fitted to: they are compared after equal tokens"
        )
    repeated = [(float(row["epochs"]), str(row["run_id"])) for row in rows if row["epochs"] > 1]
    if repeated and settings.loss == "train_smoothed":
        most, run_id = max(repeated)
        return (
            f"{len(repeated)} of its runs saw text more than once ({run_id}: {most:.2f} epochs), where training loss "
            "does not measure loss on new text: set fit.loss to validation (nothing is trained again)"
        )
    return None


def _stretches(curves: dict[str, list[SizeCurve]], arch: str, settings: FitSettings) -> dict[str, tuple[float, float]]:
    """The range of C by convention: as stated under its own, the same points of the same runs elsewhere."""
    own = curves[settings.range_convention]
    if arch_of(arch) in settings.range:
        low, high = settings.range[arch_of(arch)]
    else:
        low = float(np.exp(min(c.settled_from for c in own)))
        high = float(np.exp(max(c.log_c[-1] for c in own)))
    first, last = owner_at_ends(own, (low, high))
    return {
        name: (
            low * others[first].flops_per_token / own[first].flops_per_token,
            high * others[last].flops_per_token / own[last].flops_per_token,
        )
        for name, others in curves.items()
        if others
    }


def _describe(runs: pd.DataFrame, arch: str, read: WholeCurves, curves: list[SizeCurve]) -> dict[str, Any]:
    settings, sizes = read.settings, read.sizes.get(arch, [])
    mine = runs[(runs["group"] == arch) & (runs["left_out"] == "")]
    ids = {run for size in sizes for run in size.runs}
    known = {run: why for size in sizes for run, why in size.left_out.items()}
    left = []
    for row in mine[~mine["run_id"].isin(ids)].to_dict("records"):
        name = str(row["run_id"])
        lacks = NO_CURVE if settings.is_of_ends else f"it lacks {_needed(settings)}"
        why = _text(row["reason"]) if row["state"] != "done" else known.get(name, lacks)
        why += f" ({row['skipped_why']} left out)" if row["skipped_rows"] else ""
        left.append({"run_id": name, "state": str(row["state"]), "reason": why})
    return {
        "n_runs": len(ids),
        "sizes": [{"size": c.size, "n_params": c.n_params, "n_seeds": c.n_seeds} for c in curves],
        "left_out": left,
        "range_stated": arch_of(arch) in settings.range,
    }


def _skipped(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Runs of which rows or evaluations were left out because the run cannot have written them: how many, and why."""
    found = runs[runs["skipped_rows"] > 0].to_dict("records")
    return [{"run_id": str(row["run_id"]), "n": int(row["skipped_rows"]), "why": row["skipped_why"]} for row in found]


def _text(value: Any) -> str:
    return "" if value is None or pd.isna(value) else str(value)


def _short(law: dict[str, Any]) -> dict[str, Any]:
    return {key: law[key] for key in ("identified", "reason", "exponent", "coef", "r2", "interval")} | {
        "curved": law.get("curved", False),
        "range": law.get("range"),
        "replicates": law.get("replicates"),
        "replicates_not_identified": law.get("replicates_not_identified"),
    }


def _apart(noises: SeedNoises) -> str:
    """Of architectures that are told apart in their noise, whose is how large."""
    parts = noises.parts()
    if len(parts) < 2:
        return ""
    told = (f"{', '.join(part['archs'])} {part['s']:.2%} ({degrees_text(part['df'])})" for part in parts)
    return (
        ", each architecture with the noise of those that it is not told from (share of the loss, degrees of freedom: "
        f"{'; '.join(told)})"
    )


def _interval(noises: SeedNoises, settings: FitSettings) -> dict[str, Any]:
    noise = noises.every
    if noise is None:
        return {"method": NO_SEEDS, "estimand": None, "level": None, "replicates": 0, "seed_noise": None}
    return {
        "method": METHOD + _apart(noises),
        "estimand": ESTIMAND,
        "level": settings.level,
        "replicates": settings.n_replicates,
        "seed": settings.seed,
        "seed_noise": {
            "s": noise.s,
            "of_means": noise.of_means,
            "df": noise.df,
            "correlation": noise.correlation,
            "shared_batches": noise.shared,
            "groups": list(noise.groups),
            "parts": noises.parts(),
        },
    }
