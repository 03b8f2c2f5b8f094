"""Fits of a whole study, as versioned JSON: the only place where law constants live.

Every figure and table is drawn from what `fit_study` returns. It names the compute convention, the parameter count and
the loss it used, the interval's method and estimand, and the hash of every metrics.jsonl that went in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.envelope.extract import SizeCurve, average_seeds
from analysis.fits.envelope.intervals import ESTIMAND, METHOD, NO_SEEDS
from analysis.fits.envelope.laws import LawSettings, fit_arch, owner_at_ends
from analysis.fits.noise import SeedNoise, pool_seed_noise
from analysis.fits.settings import FitSettings
from analysis.fits.smooth import read_at, smooth
from analysis.fits.verdict import judge
from analysis.runs import CONVENTIONS, Tables
from arch.errors import InputError
from flops.laws import FITS_SCHEMA

LAWS = ("loss", "n_opt", "d_opt")
NOISE_STEP = 0.05  # log C between the points at which seeds are compared


def fit_study(tables: Tables, settings: FitSettings, inputs: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Fit every architecture of `tables`; `inputs` is {run_id: sha256 of its metrics.jsonl}, recorded as it is.

    Runs that are not done are left out and listed. An architecture that cannot be fitted is in the result with its
    reason.
    """
    groups = _run_curves(tables, settings)
    archs = [arch for arch in dict.fromkeys(tables.runs["arch"]) if isinstance(arch, str)]
    fitted: dict[str, dict[str, Any]] = {}
    by_convention: dict[str, dict[str, Any]] = {name: {} for name in CONVENTIONS}
    noise = _seed_noise(groups, settings)
    made = LawSettings(settings.grid_points, settings.n_replicates, settings.level, settings.optimum, settings.censor)
    usable: dict[str, list[SizeCurve]] = {}
    for arch in archs:
        used = groups.get(arch, {})
        curves = {name: _size_curves(used, name, settings) for name in CONVENTIONS}
        result = _describe(tables.runs, arch, used, curves[settings.flops], settings)
        reason = _unusable(used, curves[settings.flops], settings)
        if reason is None:
            usable[arch] = curves[settings.flops]
            stretches = _stretches(curves, arch, settings)
            for name, stretch in stretches.items():
                seed = (settings.seed, *arch.encode())  # an architecture's interval does not depend on its neighbours
                one = fit_arch(curves[name], stretch, noise, made, seed)
                by_convention[name][arch] = {
                    "range": one["range"],
                    **{law: _short(one["laws"][law]) for law in LAWS},
                    "alternative": {law: _short(found) for law, found in one["alternative"].items()},
                }
                if name == settings.flops:
                    result |= one
        fitted[arch] = {"fitted": reason is None, "reason": reason, **result}
    return {
        "schema": FITS_SCHEMA,
        "conventions": {
            "C": settings.flops,
            "unit_C": "FLOP",
            "N": "non-embedding parameters",
            "L": settings.loss_name,
        },
        "settings": settings.to_dict(),
        "interval": _interval(noise, settings),
        "verdict": judge(usable, fitted, noise, settings.level),
        "archs": fitted,
        "by_convention": by_convention,
        "skipped": _skipped(tables.runs),
        "inputs": dict(inputs or {}),
    }


def smoothed(tables: Tables, settings: FitSettings, run_id: str) -> tuple[np.ndarray, np.ndarray]:
    """One run's curve as the fits read it: tokens [n] and loss [n] in nats a token."""
    source = tables.evals if settings.loss == "validation" else tables.curves
    rows = source[source["run_id"] == run_id].sort_values("n_tokens")
    tokens, loss = rows["n_tokens"].to_numpy(dtype=float), rows["loss"].to_numpy(dtype=float)
    if settings.loss == "validation":
        return tokens, loss
    if settings.control == "bigram":
        if "difficulty" not in rows:
            raise InputError('these tables have no column `difficulty`: load_tables(.., control="bigram") adds it')
        loss = loss - rows["difficulty"].to_numpy(dtype=float)
    return smooth(tokens, loss, settings.smoothing_tokens, settings.smoothing_fraction)


# {size: [(row of the runs table, log tokens, log loss), ...]}, runs that are done and long enough
_Sizes = dict[str, list[tuple[Any, np.ndarray, np.ndarray]]]
_Groups = dict[str, _Sizes]  # by architecture


def _run_curves(tables: Tables, settings: FitSettings) -> _Groups:
    groups: _Groups = {}
    for row in tables.runs.itertuples():
        if row.state != "done":
            continue
        tokens, loss = smoothed(tables, settings, str(row.run_id))
        if len(tokens) > 1:
            groups.setdefault(str(row.arch), {}).setdefault(str(row.size), []).append(
                (row, np.log(tokens), np.log(loss))
            )
    return groups


def _size_curves(sizes: _Sizes, convention: str, settings: FitSettings) -> list[SizeCurve]:
    """The curves of one architecture over compute, smallest size first, seeds averaged; none under a convention that
    does not cover it."""
    curves = []
    for size, runs in sizes.items():
        row = runs[0][0]
        per_token = float(getattr(row, f"flops_per_token_{convention}"))
        if np.isnan(per_token):
            continue
        log_c, log_loss = average_seeds([(log_tokens + np.log(per_token), loss) for _, log_tokens, loss in runs])
        if len(log_c) > 1:
            n_params, warmup = int(row.n_params_non_embedding), settings.settled_after(int(row.warmup_tokens))
            curves.append(SizeCurve(size, n_params, per_token, warmup, len(runs), log_c, log_loss))
    return sorted(curves, key=lambda curve: curve.n_params)


def _needed(settings: FitSettings) -> str:
    return "two evaluated checkpoints" if settings.loss == "validation" else "more tokens than fit.smoothing_tokens"


def _unusable(sizes: _Sizes, curves: list[SizeCurve], settings: FitSettings) -> str | None:
    """Why an architecture has no laws; None if it has. The training loss of text seen before is no loss on new text."""
    rows = [row for runs in sizes.values() for row, _, _ in runs]
    for key, convention in (("flops", settings.flops), ("range_flops", settings.range_convention)):
        if any(np.isnan(getattr(row, f"flops_per_token_{convention}")) for row in rows):
            return f"the convention fit.{key} = {convention} has no formula for it: set fit.{key} to exact"
    if not curves:
        return f"no usable run: none is done and has {_needed(settings)}"
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
    if arch in settings.range:
        low, high = settings.range[arch]
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


def _seed_noise(groups: _Groups, settings: FitSettings) -> SeedNoise | None:
    """Noise between the seeds of each size that has several, after warm-up and inside the architecture's range."""
    found = []
    for arch, sizes in groups.items():
        for size, runs in sizes.items():
            row = runs[0][0]
            if len(runs) < 2:
                continue
            own = np.log(float(getattr(row, f"flops_per_token_{settings.range_convention}")))
            low, high = (np.log(v) for v in settings.range.get(arch, (1e-300, 1e300)))
            warm = np.log(max(settings.settled_after(int(row.warmup_tokens)), 1))
            start = max(low - own, warm, *(tokens[0] for _, tokens, _ in runs))
            end = min(high - own, *(tokens[-1] for _, tokens, _ in runs))
            if start < end:
                at = np.arange(start, end, NOISE_STEP)
                found.append((arch, size, np.stack([read_at(tokens, loss, at) for _, tokens, loss in runs])))
    return pool_seed_noise(found, NOISE_STEP)


def _describe(
    runs: pd.DataFrame, arch: str, used: _Sizes, curves: list[SizeCurve], settings: FitSettings
) -> dict[str, Any]:
    mine = runs[runs["arch"] == arch]
    ids = {str(row.run_id) for found in used.values() for row, _, _ in found}
    left = []
    for row in mine[~mine["run_id"].isin(ids)].to_dict("records"):
        why = _text(row["reason"]) if row["state"] != "done" else f"it lacks {_needed(settings)}"
        why += f" ({row['skipped_why']} left out)" if row["skipped_rows"] else ""
        left.append({"run_id": str(row["run_id"]), "state": str(row["state"]), "reason": why})
    return {
        "n_runs": len(ids),
        "sizes": [{"size": c.size, "n_params": c.n_params, "n_seeds": c.n_seeds} for c in curves],
        "left_out": left,
        "range_stated": arch in settings.range,
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


def _interval(noise: SeedNoise | None, settings: FitSettings) -> dict[str, Any]:
    if noise is None:
        return {"method": NO_SEEDS, "estimand": None, "level": None, "replicates": 0, "seed_noise": None}
    return {
        "method": METHOD,
        "estimand": ESTIMAND,
        "level": settings.level,
        "replicates": settings.n_replicates,
        "seed": settings.seed,
        "seed_noise": {
            "s": noise.s,
            "df": noise.df,
            "correlation": noise.correlation,
            "groups": list(noise.groups),
        },
    }
