"""LR(N, D, batch) of one architecture by weighted least squares on its cells' best rates, all architectures at once for
what they share: the noise of a run and how far best rates scatter around their laws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from arch.amounts import counted
from arch.errors import InputError
from scaling.study.rate_law import TERMS, WORDS, ArchLaw, Curvature, Term

from .cell import Cell, Cubic, excess_of

LEVEL = 0.95
MIN_SIZES = 3
FAR_APART = 1.5  # times that two horizons, or batches, of one size must differ by to tell a term
ASTRAY = 1e-3  # the chance that any cell of a sweep is called so by noise
DRIFT = 2.0  # standard errors from which on the curvature is a function of N


@dataclass(frozen=True)
class Noise:
    """Of ln loss. sd: standard deviation of a run around its cell's parabola, pooled over all cells; pure_sd: that of
    seeds at one rate alone, None where no seed was repeated."""

    sd: float
    dof: int
    pure_sd: float | None
    pure_dof: int


@dataclass(frozen=True)
class Line:
    """Least squares of y [cells] on a design [cells, 1 + terms], weights 1 / (se^2 + scatter^2)."""

    coefficients: np.ndarray
    covariance: np.ndarray
    chi2: float
    dof: int


def noise_of(cells: Sequence[Cell], cubics: Mapping[str, Cubic]) -> Noise:
    """Raises InputError where nothing was repeated."""
    fitted = [one.fitted for one in cells if one.fitted is not None]
    dof = sum(one.dof for one in fitted) - sum(one.unit_se > 0 for one in cubics.values())
    if dof < 1:
        raise InputError(
            "the errors of the best rates are unknown: give every cell more than three rates, or a second seed"
        )
    pure_dof = sum(one.pure_dof for one in cells)
    pure = math.sqrt(sum(one.pure_rss for one in cells) / pure_dof) if pure_dof else None
    return Noise(math.sqrt(sum(one.rss for one in fitted) / dof), dof, pure, pure_dof)


def terms_of(cells: Sequence[Cell], without: Sequence[Term] = ()) -> list[Term]:
    """The terms that the usable cells of one architecture tell. Raises InputError, one line that says what is missing.

    `without`: terms that are not asked for: the law then holds for what was swept of them alone.
    """
    usable = [one for one in cells if one.fitted is not None]
    sizes = sorted({(one.n_params, one.size) for one in usable})
    if len({n for n, _ in sizes}) < MIN_SIZES:
        named = ", ".join(name for _, name in sizes) or "none"
        lost = sum(one.fitted is None for one in cells)
        none = f"; {counted(lost, 'cell has', 'cells have')} none" if lost else ""
        raise InputError(
            f"a law needs a best rate inside the rates tried at {MIN_SIZES} sizes, and there are {len(sizes)} "
            f"({named}){none}"
        )
    terms: list[Term] = ["n_params"]
    for term in TERMS[1:]:
        if term in without:
            continue
        values = {getattr(one, term) for one in usable}
        if len(values) == 1 and term == "batch_tokens":
            continue  # one batch: the law is one of this batch
        if not _apart(usable, term):
            what = "horizons" if term == "n_tokens" else "batches"
            raise InputError(
                f"a law's term in {WORDS[term]} needs two {what} of one size, {FAR_APART:g} times apart or more: sweep "
                f"a second one"
            )
        terms.append(term)
    if len(usable) <= 1 + len(terms):
        raise InputError(
            f"{counted(len(usable), 'cell has', 'cells have')} a best rate, and a law in "
            f"{', '.join(WORDS[term] for term in terms)} needs {2 + len(terms)}: add rates where there is none, or "
            f"sweep another size"
        )
    return terms


def _apart(cells: Sequence[Cell], term: Term) -> bool:
    """Whether a size was swept at two values of a term, everything else alike."""
    other = {"n_tokens": "batch_tokens", "batch_tokens": "n_tokens"}[term]
    groups: dict[tuple[int, int], list[int]] = {}
    for one in cells:
        groups.setdefault((one.n_params, getattr(one, other)), []).append(getattr(one, term))
    return any(max(found) >= FAR_APART * min(found) for found in groups.values())


def fit_laws(
    cells: Mapping[str, Sequence[Cell]],
    terms: Mapping[str, Sequence[Term]],
    cubics: Mapping[str, Cubic],
    noise: Noise,
) -> dict[str, ArchLaw]:
    """The law of each architecture of its usable `cells`, in its `terms`.

    The scatter of best rates around the laws, beyond their errors, is one for all architectures: the one at which the
    weighted squares (Paule & Mandel 1982) are at the median of their distribution, 0 where they are smaller without
    any. The intervals are t times the root of the line's variance and the scatter's, t of the laws' degrees of freedom;
    the error of the cubic term, which moves all cells of an architecture, is part of the line's.
    """
    systems = {arch: _system(cells[arch], terms[arch], noise) for arch in cells}
    dof = sum(len(y) - design.shape[1] for design, y, _ in systems.values())
    scatter = _scatter([(design, y, se) for design, y, se in systems.values()], dof)
    quantile = float(stats.t.ppf(0.5 + LEVEL / 2, min(dof, noise.dof)))
    found = {}
    for arch, (design, y, se) in systems.items():
        line = weighted(design, y, se, scatter)
        alone = weighted(design, y, se, 0.0)
        cubic = cubics[arch]
        moved = _moved(cells[arch], design, se, scatter) * noise.sd * cubic.unit_se
        found[arch] = ArchLaw(
            terms=list(terms[arch]),
            centre={term: math.exp(value) for term, value in _centre(cells[arch], terms[arch]).items()},
            coefficients=line.coefficients.tolist(),
            covariance=(line.covariance + np.outer(moved, moved)).tolist(),
            scatter=scatter,
            quantile=quantile,
            level=LEVEL,
            ranges={term: _ends([getattr(one, term) for one in cells[arch]]) for term in TERMS},
            curvature=curvature_of(cells[arch], noise, cubic),
            misfit={"chi2": alone.chi2, "dof": alone.dof, "p": float(stats.chi2.sf(alone.chi2, alone.dof))},
            left_out_size=_left_out(cells[arch], terms[arch], noise, scatter),
        )
    return found


@dataclass(frozen=True)
class Astray:
    """A cell that lies away from what all others agree on. factor: its best rate over that of the law of the others of
    its architecture; sds: by how many standard deviations of a cell about that law."""

    place: int
    factor: float
    sds: float


def astray(cells: Mapping[str, Sequence[Cell]], terms: Mapping[str, Sequence[Term]], noise: Noise) -> dict[str, Astray]:
    """The architectures with a cell that all others contradict, at most one cell each.

    A run that has not yet left the plateau at its start learns fastest at quite another rate, and as one of six points
    such a cell bends a law by far. It is judged by the scatter of all other cells, those of the other architectures
    too: where all scatter, no cell is astray. `sds` is compared with Student's t at a chance of ASTRAY for any cell of
    the sweep. fit_laws keeps such a cell: the majority may be wrong, where only the longest run left its plateau.
    """
    systems = {arch: _system(cells[arch], terms[arch], noise) for arch in cells}
    n_cells = sum(len(y) for _, y, _ in systems.values())
    found: dict[str, Astray] = {}
    for arch, (design, y, se) in systems.items():
        for place in range(len(y)):
            kept = np.arange(len(y)) != place
            rest = systems | {arch: (design[kept], y[kept], se[kept])}
            dof = sum(len(values) - rows.shape[1] for rows, values, _ in rest.values())
            if dof < 1 or np.linalg.matrix_rank(design[kept]) < design.shape[1]:
                continue
            scatter = _scatter(list(rest.values()), dof)
            others, best, errors = rest[arch]
            line, row = weighted(others, best, errors, scatter), design[place]
            off = float(y[place] - row @ line.coefficients)
            sd = math.sqrt(float(row @ line.covariance @ row) + float(se[place]) ** 2 + scatter**2)
            one = Astray(place, math.exp(off), abs(off) / sd)
            if 2 * stats.t.sf(one.sds, dof) * n_cells < ASTRAY and (arch not in found or one.sds > found[arch].sds):
                found[arch] = one
    return found


def _ends(values: Sequence[int]) -> list[float]:
    return [float(min(values)), float(max(values))]


def _centre(cells: Sequence[Cell], terms: Sequence[Term]) -> dict[Term, float]:
    return {term: float(np.mean([math.log(getattr(one, term)) for one in cells])) for term in terms}


def _rows(cells: Sequence[Cell], terms: Sequence[Term], centre: Mapping[Term, float]) -> np.ndarray:
    rows = [[1.0, *(math.log(getattr(one, term)) - centre[term] for term in terms)] for one in cells]
    return np.array(rows)


def _system(cells: Sequence[Cell], terms: Sequence[Term], noise: Noise) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(design, ln best rate, its standard error) of usable cells."""
    fitted = [one.fitted for one in cells if one.fitted is not None]
    assert len(fitted) == len(cells), "usable cells alone"
    design = _rows(cells, terms, _centre(cells, terms))
    return design, np.array([one.log_rate for one in fitted]), noise.sd * np.array([one.unit_se for one in fitted])


def _moved(cells: Sequence[Cell], design: np.ndarray, se: np.ndarray, scatter: float) -> np.ndarray:
    """What the coefficients move by where the cubic term is larger by 1."""
    per_cubic = np.array([one.fitted.per_cubic for one in cells if one.fitted is not None])
    return weighted(design, per_cubic, se, scatter).coefficients


def weighted(design: np.ndarray, y: np.ndarray, se: np.ndarray, scatter: float) -> Line:
    weight = 1 / (se**2 + scatter**2)
    covariance = np.linalg.inv(design.T @ (weight[:, None] * design))
    coefficients = covariance @ (design.T @ (weight * y))
    residual = y - design @ coefficients
    return Line(coefficients, covariance, float(weight @ residual**2), len(y) - design.shape[1])


def _scatter(systems: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], dof: int) -> float:
    """0 where the cells lie as close to their laws as their errors say."""

    target = float(stats.chi2.median(dof))

    def excess(scatter: float) -> float:
        return sum(weighted(*one, scatter).chi2 for one in systems) - target

    if excess(0.0) <= 0:
        return 0.0
    high = 0.1
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-6))


def curvature_of(cells: Sequence[Cell], noise: Noise, cubic: Cubic) -> Curvature:
    """The weighted mean of the cells' curvatures; a power of N where it drifts by more than DRIFT standard errors."""
    fitted = [one.fitted for one in cells if one.fitted is not None]
    k = np.array([one.curvature for one in fitted])
    se = noise.sd * np.array([one.curvature_unit_se for one in fitted])
    x = np.log([one.n_params for one in cells])
    weight = 1 / se**2
    mean, centre = float(weight @ k / weight.sum()), float(weight @ x / weight.sum())
    off = x - centre
    spread = float(weight @ off**2)
    slope = float(weight @ (off * (k - mean))) / spread
    # cells scatter around the mean by more than their errors where curvature is not one number
    inflated = max(1.0, math.sqrt(float(weight @ (k - mean) ** 2) / max(len(k) - 1, 1)))
    drifts = abs(slope) * math.sqrt(spread) > DRIFT * inflated
    return Curvature(
        at=mean,
        n_params=math.exp(centre),
        exponent=slope / mean if drifts else 0.0,
        cubic=cubic.value,
        cubic_se=noise.sd * cubic.unit_se,
        per_cubic=float(weight @ np.array([one.curvature_per_cubic for one in fitted]) / weight.sum()),
        se=inflated / math.sqrt(float(weight.sum())),
    )


def _left_out(
    cells: Sequence[Cell], terms: Sequence[Term], noise: Noise, scatter: float
) -> list[dict[str, float | str]]:
    """For each size what the law of the others says there: [{size, n_params, n_tokens, ln_error, sd, excess, low,
    high}]; `excess` is the share of the loss that the law's rate would cost by the cell's own curve, with its interval.
    [] where the others do not tell the terms."""
    found: list[dict[str, float | str]] = []
    for size in dict.fromkeys(one.size for one in cells):
        rest, out = [one for one in cells if one.size != size], [one for one in cells if one.size == size]
        design, y, se = _system(rest, terms, noise)
        if len(rest) < design.shape[1] or np.linalg.matrix_rank(design) < design.shape[1]:
            continue
        line = weighted(design, y, se, scatter)
        rows = _rows(out, terms, _centre(rest, terms))
        for one, row in zip(out, rows, strict=True):
            assert one.fitted is not None
            error = float(row @ line.coefficients) - one.fitted.log_rate
            variance = float(row @ line.covariance @ row) + scatter**2 + (noise.sd * one.fitted.unit_se) ** 2
            cost = excess_of(one.fitted, math.exp(one.fitted.log_rate + error), LEVEL, noise.sd, noise.dof)
            told: dict[str, float | str] = {"ln_error": error, "sd": math.sqrt(variance)}
            told |= {"excess": cost.share, "low": cost.low, "high": cost.high}
            told |= {"size": size, "n_params": one.n_params, "n_tokens": one.n_tokens}
            found.append(told)
    return found
