"""The envelope approach on points: curves of runs as one curve a size, and its laws as every approach returns them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.fits.cost import cost_of
from analysis.fits.envelope.diagnostics import interval_of_law, predict
from analysis.fits.envelope.extract import SizeCurve, average_seeds
from analysis.fits.envelope.intervals import ESTIMAND, METHOD, NO_SEEDS
from analysis.fits.envelope.laws import ENVELOPE_ESTIMAND, LawSettings, fit_arch
from analysis.fits.envelope.optimum import ESTIMAND as OF_OPTIMUM
from analysis.fits.envelope.optimum import FIELLER
from analysis.fits.noise import Group, SeedNoise, pool_seed_noise
from analysis.fits.points import COPIED, Points
from analysis.fits.pooling import SeedNoises
from analysis.fits.replicates import alike
from analysis.fits.result import FitResult
from analysis.fits.smooth import read_at
from arch.amounts import count, counted, counted_of
from arch.errors import InputError

MIN_SIZES = 2  # of an envelope
NOISE_STEP = 0.05  # log C between the points at which seeds are compared
LAWS = {"n_opt": ("a", "N_opt"), "d_opt": ("b", "D_opt"), "loss": ("L_exponent", "L_opt")}
OBJECTIVES = {
    "crossings": "generalised least squares of log C on log N at the crossings of neighbouring sizes; least squares of "
    "log L on log C",
    "envelope": "least squares through the points of the envelope, in logarithms",
}


def size_curves(points: Points) -> list[SizeCurve]:
    """One curve a number of parameters, smallest first: the mean log loss of the trunks that reach its most tokens (its
    seeds); a trunk's own is the mean of its branches that reach its most tokens. `not_in_curves` tells of the others.

    Raises InputError where a run has a single row, C / D changes within a size, or there are fewer than two sizes.
    """
    cost = cost_of(points)  # one cost a size
    points = points.take(~points.copied)
    runs = _runs(points)
    short = [name for name, rows in runs.items() if len(rows) < 2]
    if short:
        raise InputError(
            f"the envelope needs curves, several rows a run: "
            f"{counted_of(len(short), len(runs), 'run', 'has', 'have')} one row ({short[0]})"
        )
    by_size = _trunks(points)
    if len(by_size) < MIN_SIZES:
        raise InputError(
            f"the envelope needs at least {MIN_SIZES} sizes, there is one (N = {count(next(iter(by_size)), 6)})"
        )
    found = []
    for n_params, trunks in by_size.items():
        seeds = _seeds(points, trunks)[-1]
        log_c, log_loss = average_seeds([_curve(points, branches) for branches in seeds])
        name = str(points.size[seeds[0][0][0]])
        if len(log_c) < 2:
            raise InputError(f"the runs of size {name} share fewer than two rows of compute: they cannot be averaged")
        found.append(SizeCurve(name, n_params, float(cost.per_token(n_params)), 0.0, len(seeds), log_c, log_loss))
    return found


def not_in_curves(points: Points) -> list[str]:
    """What `size_curves` leaves out, in words: runs that are another under another name, and those that end early."""
    kept = points.take(~points.copied)
    used = [run for trunks in _trunks(kept).values() for branches in _seeds(kept, trunks)[-1] for run in branches]
    gone, short = points.n_runs - kept.n_runs, kept.n_runs - len(used)
    told = [f"{counted(gone, 'run')} with {COPIED}"] if gone else []
    other = " or are of another recipe" if len(set(kept.recipe.tolist())) > len(_trunks(kept)) else ""
    return told + (
        [f"{counted(short, 'run that ends', 'runs that end')} before the longest of their size{other}"] if short else []
    )


def seed_noise_of(groups: Sequence[Points]) -> SeedNoise | None:
    """Noise between seeds, pooled over all groups; None without such."""
    return pool_seed_noise(_seeds_of(groups), NOISE_STEP)


def seed_noises_of(groups: Sequence[Points]) -> SeedNoises:
    """Noise between seeds of groups, of which those count as one that are not told apart."""
    return SeedNoises(tuple(_seeds_of(groups)), NOISE_STEP)


def _seeds_of(groups: Sequence[Points]) -> list[Group]:
    """Seeds are trunks of one size that reach the same tokens by one recipe: branches of one trunk share its noise, and
    runs of other lengths have other schedules."""
    found = []
    for given in groups:
        points = given.take(~given.copied)
        for trunks in _trunks(points).values():
            for seeds in _seeds(points, trunks):
                curves = [(_curve(points, branches), str(points.cell[branches[0][0]])) for branches in seeds]
                logs, cells = [one for one, _ in curves if len(one[0]) > 1], [c for one, c in curves if len(one[0]) > 1]
                if len(logs) < 2:
                    continue
                start, end = max(c[0] for c, _ in logs), min(c[-1] for c, _ in logs)
                if start < end:
                    at = np.arange(start, end, NOISE_STEP)
                    first = seeds[0][0][0]
                    log_tokens = at - np.log(points.flops[first] / points.n_tokens[first])
                    table = np.stack([read_at(*curve, at) for curve in logs])
                    found.append(Group(points.group, str(points.size[first]), table, (), tuple(cells), log_tokens))
    return found


def fit_envelope(
    points: Points,
    *,
    noise: SeedNoise | None = None,
    at: Sequence[float] = (),
    n_replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    grid_points: int = 40,
    optimum: str = "crossings",
    censor: bool = True,
) -> FitResult:
    """Laws of whole curves over all the compute that they cover. noise: between seeds (seed_noise_of); without it there
    are no intervals. at: C [FLOP] of `diagnostics["optimum"]`. Raises InputError as size_curves does."""
    curves = size_curves(points)
    low, high = float(points.flops.min()), float(points.flops.max())
    settings = LawSettings(grid_points, n_replicates, level, optimum, censor)
    one = fit_arch(curves, (low, high), noise, settings, (seed, *points.group.encode()))
    interval = interval_of(noise, level, n_replicates, optimum)
    found = envelope_result(one, points, optimum, interval, at)
    return replace(found, diagnostics={**found.diagnostics, "left_out": not_in_curves(points)})


def interval_of(noise: SeedNoise | None, level: float, n_replicates: int, optimum: str) -> dict[str, Any]:
    """How intervals are made, and of what, for laws by `optimum`."""
    if noise is None:
        return {"method": NO_SEEDS, "level": None, "replicates": 0}
    fieller = optimum == "crossings"
    of_optimum = OF_OPTIMUM if fieller else ENVELOPE_ESTIMAND
    return {
        "method": (f"of N_opt and D_opt {FIELLER}; of L " if fieller else "") + METHOD,
        "estimand": f"N_opt, D_opt: {of_optimum}; L: {ESTIMAND}",
        "level": level,
        "replicates": n_replicates,
        "seed_noise": {"s": noise.s, "df": noise.df},
    }


def envelope_result(
    one: Mapping[str, Any], points: Points, optimum: str, interval: Mapping[str, Any], at: Sequence[float] = ()
) -> FitResult:
    """What fit_arch found, as every approach returns it. params: a, b and L_exponent, and N_opt, D_opt and L_opt at
    `diagnostics["middle"]`; a law that is not identified has none, and its reason stands in `not_identified`."""
    laws = one["laws"]
    known = {name: laws[name] for name in LAWS if laws[name]["identified"]}
    spans = [law["range"] for law in known.values()]
    middle = math.sqrt(spans[0][0] * spans[0][1]) if spans else None
    if "n_opt" in known:
        middle = math.sqrt(math.prod(laws["n_opt"]["range"]))
    params: dict[str, float] = {}
    intervals: dict[str, tuple[float, float] | None] = {}
    for name, law in known.items():
        exponent, value = LAWS[name]
        ends = (law["interval"] or {}).get("exponent")
        params[exponent], intervals[exponent] = law["exponent"], tuple(ends) if ends else None
        if middle is not None:
            params[value], intervals[value] = predict(law, middle), interval_of_law(law, middle)
    diagnostics = {
        "middle": middle,
        "optimum": [_optimum(laws, c) for c in at],
        "not_identified": {name: laws[name]["reason"] for name in LAWS if not laws[name]["identified"]},
        "curved": laws["loss"]["curved"],
        "curvature": laws["loss"].get("curvature"),
        "irreducible": laws["irreducible"],
        "alternative": {name: _short(law) for name, law in one["alternative"].items()},
        "crossings": one["crossings"],
        **one["diagnostics"],
    }
    return FitResult(
        approach="envelope",
        n_points=len(points),
        params=params,
        intervals=intervals,
        objective={"name": OBJECTIVES[optimum], "value": None},
        diagnostics=diagnostics,
        input_hash=points.input_hash,
        group=points.group,
        n_runs=points.n_runs,
        range=(one["range"][0], one["range"][1]),
        conventions={"C": points.convention, "L": points.loss_unit},
        interval=interval,
    )


def _runs(points: Points) -> dict[str, np.ndarray]:
    """Rows of each run, by compute."""
    return {str(run): rows[np.argsort(points.flops[rows], kind="stable")] for run, rows in points.rows_of_runs.items()}


def _trunks(points: Points) -> dict[float, list[list[np.ndarray]]]:
    """Of each number of parameters, smallest first: of each trunk, the rows of those of its runs that reach its most
    tokens."""
    found: dict[float, dict[str, list[np.ndarray]]] = {}
    for rows in _runs(points).values():
        of_size = found.setdefault(float(points.n_params[rows[0]]), {})
        of_size.setdefault(str(points.trunk[rows[0]]), []).append(rows)
    return {
        n_params: [[one[0] for one in _seeds(points, [[run] for run in runs])[-1]] for runs in trunks.values()]
        for n_params, trunks in sorted(found.items())
    }


def _seeds(points: Points, trunks: Sequence[list[np.ndarray]]) -> list[list[list[np.ndarray]]]:
    """Trunks, each as its runs' rows, in groups of seeds of each other (module replicates); the last stands for the
    size."""
    ends = [max(runs, key=lambda rows: float(points.n_tokens[rows[-1]]))[-1] for runs in trunks]
    groups = alike(
        [str(points.recipe[end]) for end in ends],
        [float(points.n_tokens[end]) for end in ends],
        [float(np.mean([points.loss[rows[-1]] for rows in runs])) for runs in trunks],
    )
    return [[trunks[i] for i in group] for group in groups]


def _curve(points: Points, branches: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """log C and log loss of one trunk, its branches averaged where they overlap."""
    return average_seeds([(np.log(points.flops[rows]), np.log(points.loss[rows])) for rows in branches])


def _short(law: Mapping[str, Any]) -> dict[str, Any]:
    return {key: law.get(key) for key in ("identified", "reason", "exponent", "coef", "method")}


def _optimum(laws: Mapping[str, Any], c: float) -> dict[str, Any]:
    """{"C", "N", "D", "L", "intervals"}: None for what is not identified, and for the loss of a law that does not
    describe its points."""
    found: dict[str, Any] = {"C": c, "intervals": {}}
    for name, letter in (("n_opt", "N"), ("d_opt", "D"), ("loss", "L")):
        law = laws[name]
        usable = law["identified"] and not law.get("curved", False)
        found[letter] = predict(law, c) if usable else None
        found["intervals"][letter] = interval_of_law(law, c) if usable else None
    return found
