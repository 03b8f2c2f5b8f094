"""Fits of a whole study, as versioned JSON: the only place where law constants live.

Every figure and table is drawn from what `fit_study` returns. It names the compute convention, the parameter count and
the loss it used, the interval's method and estimand, and the hash of every metrics.jsonl that went in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.envelope.extract import SizeCurve
from analysis.fits.envelope.intervals import ESTIMAND, METHOD, NO_SEEDS
from analysis.fits.envelope.laws import LawSettings, fit_arch, owner_at_ends
from analysis.fits.grouping import grouped
from analysis.fits.merged import calibrations, told_of
from analysis.fits.noise import degrees_text
from analysis.fits.phases import NO_CURVE, resolved, told
from analysis.fits.pooling import SeedNoises
from analysis.fits.settings import FitSettings
from analysis.fits.study_curves import Sizes, not_paired, run_curves, seed_noises, size_curves
from analysis.fits.variants import ALIKE
from analysis.fits.verdict import judge_architectures
from analysis.labels import arch_of, families, point_of
from analysis.runs import CONVENTIONS, Tables
from arch.amounts import count
from data.units import loss_unit
from flops.laws import FITS_SCHEMA
from scaling.study.schedule import MERGED, UNDECAYED

LAWS = ("loss", "n_opt", "d_opt")
NOT_JUDGED = "no usable run: at no size can a value of the nuisance axes, or their mean, be judged"


def fit_study(tables: Tables, settings: FitSettings, inputs: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Fit every architecture of `tables`, at every point of the axes that are no nuisance; `inputs` is {run_id: sha256
    of its metrics.jsonl}, recorded as it is.

    Runs that are not done are left out and listed. An architecture that cannot be fitted is in the result with its
    reason. Raises InputError for decayed losses (fit.points) where there are none.
    """
    settings = resolved(tables, settings)
    tables = grouped(tables, settings)
    if settings.points == MERGED:
        calibrations(tables, needed=True)
    runs = tables.runs[tables.runs["arch"].notna()]
    groups, unit = run_curves(tables, settings), loss_unit(runs["tokenizer"])
    gone = [cell["group"] for cell in (tables.told or {}).get("cells", ()) if cell["chosen"] is None]
    archs = list(dict.fromkeys([*runs.loc[runs["left_out"] == "", "group"], *gone]))
    fitted: dict[str, dict[str, Any]] = {}
    by_convention: dict[str, dict[str, Any]] = {name: {} for name in CONVENTIONS}
    noises = seed_noises(groups, settings)
    made = LawSettings(settings.grid_points, settings.n_replicates, settings.level, settings.optimum, settings.censor)
    usable: dict[str, list[SizeCurve]] = {}
    for arch in archs:
        used = groups.get(arch, {})
        curves = {name: size_curves(used, name, settings) for name in CONVENTIONS}
        result = _describe(runs, arch, used, curves[settings.flops], settings)
        varied = sum(arch_of(other) == arch_of(arch) for other in archs) > 1
        reason = NOT_JUDGED if not used and arch in gone else _unusable(used, curves[settings.flops], settings, varied)
        if reason is None:
            usable[arch] = curves[settings.flops]
            stretches = _stretches(curves, arch, settings)
            for name, stretch in stretches.items():
                seed = (settings.seed, *arch.encode())  # an architecture's interval does not depend on its neighbours
                one = fit_arch(curves[name], stretch, noises.of(arch), made, seed)
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
        "points": told(tables, settings),
        "merged": told_of(tables, settings.level),
        "interval": _interval(noises, settings) | {"not_paired": not_paired(groups)},
        "verdicts": _verdicts(usable, fitted, noises, settings.level, runs),
        "archs": fitted,
        "by_convention": by_convention,
        "nuisance": {"axes": settings.nuisance, **(tables.told or {})},
        "left_out": _left_out(runs),
        "skipped": _skipped(runs),
        "inputs": dict(inputs or {}),
    }


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


def _unusable(sizes: Sizes, curves: list[SizeCurve], settings: FitSettings, varied: bool) -> str | None:
    """Why an architecture has no laws; None if it has. The training loss of text seen before is no loss on new text.
    varied: whether the architecture has other points on the axes, which it is compared with."""
    rows = [run.row for size in sizes.values() for run in size.runs]
    for key, convention in (("flops", settings.flops), ("range_flops", settings.range_convention)):
        if any(np.isnan(getattr(row, f"flops_per_token_{convention}")) for row in rows):
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
    repeated = [(float(row.epochs), str(row.run_id)) for row in rows if row.epochs > 1]
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


def _describe(
    runs: pd.DataFrame, arch: str, used: Sizes, curves: list[SizeCurve], settings: FitSettings
) -> dict[str, Any]:
    mine = runs[(runs["group"] == arch) & (runs["left_out"] == "")]
    ids = {run.name for size in used.values() for run in size.runs}
    known = {run: why for size in used.values() for run, why in size.left_out.items()}
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
