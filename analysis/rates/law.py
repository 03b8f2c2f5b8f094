"""LR(N, D, batch) of each architecture by weighted least squares on its cells' best rates. All architectures share the
noise of a run and the scatter of best rates around their laws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from arch.amounts import counted
from arch.errors import InputError
from scaling.study.rate_law import TERMS, WORDS, ArchLaw, Curvature, LeftOut, Misfit, Term

from .cell import Cell, Cubic, excess_of

LEVEL = 0.95
MIN_SIZES = 3
FAR_APART = 1.5  # factor by which two horizons, or batches, of one size must differ to determine a term
OUTLIER_CHANCE = 1e-3  # that noise alone makes any cell of a sweep an outlier
DRIFT = 2.0  # standard errors from which on the curvature is a function of N


@dataclass(frozen=True)
class Noise:
    """The noise of ln loss. sd: standard deviation of a run around its cell's parabola, pooled over all cells; pure_sd:
    that between seeds at one rate, None where no seed was repeated."""

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
    """The noise of a run, pooled over all cells. Raises InputError where nothing was repeated."""
    fitted = [cell.fitted for cell in cells if cell.fitted is not None]
    dof = sum(fit.dof for fit in fitted) - sum(cubic.unit_se > 0 for cubic in cubics.values())
    if dof < 1:
        raise InputError(
            "the errors of the best rates are unknown: give every cell more than three rates, or a second seed"
        )
    pure_dof = sum(cell.pure_dof for cell in cells)
    pure = math.sqrt(sum(cell.pure_rss for cell in cells) / pure_dof) if pure_dof else None
    return Noise(math.sqrt(sum(fit.rss for fit in fitted) / dof), dof, pure, pure_dof)


def terms_of(cells: Sequence[Cell], without: Sequence[Term] = ()) -> list[Term]:
    """The terms that the usable cells of an architecture determine. Raises InputError, which says what is missing.

    without: terms that are not wanted; the law then holds only for the values of them that were swept.
    """
    usable = [cell for cell in cells if cell.fitted is not None]
    sizes = sorted({(cell.n_params, cell.size) for cell in usable})
    if len({n for n, _ in sizes}) < MIN_SIZES:
        named = ", ".join(name for _, name in sizes) or "none"
        n_without = sum(cell.fitted is None for cell in cells)
        none = f"; {counted(n_without, 'cell has', 'cells have')} none" if n_without else ""
        raise InputError(
            f"a law needs a best rate inside the rates tried at {MIN_SIZES} sizes, and there are {len(sizes)} "
            f"({named}){none}"
        )
    terms: list[Term] = ["n_params"]
    for term in TERMS[1:]:
        if term in without:
            continue
        values = {getattr(cell, term) for cell in usable}
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
    """Whether a size was swept at two values of a term, with everything else equal."""
    other = {"n_tokens": "batch_tokens", "batch_tokens": "n_tokens"}[term]
    groups: dict[tuple[int, int], list[int]] = {}
    for cell in cells:
        groups.setdefault((cell.n_params, getattr(cell, other)), []).append(getattr(cell, term))
    return any(max(values) >= FAR_APART * min(values) for values in groups.values())


def fit_laws(
    cells: Mapping[str, Sequence[Cell]],
    terms: Mapping[str, Sequence[Term]],
    cubics: Mapping[str, Cubic],
    noise: Noise,
) -> dict[str, ArchLaw]:
    """The law of each architecture of its usable `cells`, in its `terms`.

    All architectures share the scatter of best rates around the laws, beyond their errors: the value at which the
    weighted squares (Paule & Mandel 1982) are at the median of their distribution, 0 where they are smaller without
    scatter. The intervals are t times the root of the line's variance plus the scatter's, t of the laws' degrees of
    freedom; the line's variance includes the error of the cubic term, which moves all cells of an architecture.
    """
    systems = {arch: _system(cells[arch], terms[arch], noise) for arch in cells}
    dof = sum(len(y) - design.shape[1] for design, y, _ in systems.values())
    scatter = _scatter([(design, y, se) for design, y, se in systems.values()], dof)
    quantile = float(stats.t.ppf(0.5 + LEVEL / 2, min(dof, noise.dof)))
    laws = {}
    for arch, (design, y, se) in systems.items():
        line = weighted(design, y, se, scatter)
        alone = weighted(design, y, se, 0.0)
        cubic = cubics[arch]
        moved = _moved(cells[arch], design, se, scatter) * noise.sd * cubic.unit_se
        laws[arch] = ArchLaw(
            terms=list(terms[arch]),
            centre={term: math.exp(value) for term, value in _centre(cells[arch], terms[arch]).items()},
            coefficients=line.coefficients.tolist(),
            covariance=(line.covariance + np.outer(moved, moved)).tolist(),
            scatter=scatter,
            quantile=quantile,
            level=LEVEL,
            ranges={term: _ends([getattr(cell, term) for cell in cells[arch]]) for term in TERMS},
            curvature=curvature_of(cells[arch], noise, cubic),
            misfit=Misfit(chi2=alone.chi2, dof=alone.dof, p=float(stats.chi2.sf(alone.chi2, alone.dof))),
            left_out_size=_left_out(cells[arch], terms[arch], noise, scatter),
        )
    return laws


@dataclass(frozen=True)
class Outlier:
    """A cell that all others contradict. factor: its best rate over that of the law of its architecture's other cells;
    sds: the same in standard deviations of a cell about that law."""

    place: int
    factor: float
    sds: float


def find_outliers(
    cells: Mapping[str, Sequence[Cell]], terms: Mapping[str, Sequence[Term]], noise: Noise
) -> dict[str, Outlier]:
    """The architectures with a cell that all others contradict, at most one cell each.

    A run that has not yet left the plateau at its start learns fastest at a very different rate, and such a cell among
    six bends a law by far. It is judged by the scatter of all other cells, also those of other architectures: where all
    scatter, no cell is an outlier. `sds` is compared with Student's t at a chance of OUTLIER_CHANCE for any cell of the
    sweep. fit_laws keeps such a cell: the majority may be wrong, where only the longest run left its plateau.
    """
    systems = {arch: _system(cells[arch], terms[arch], noise) for arch in cells}
    n_cells = sum(len(y) for _, y, _ in systems.values())
    outliers: dict[str, Outlier] = {}
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
            outlier = Outlier(place, math.exp(off), abs(off) / sd)
            is_unlikely = 2 * stats.t.sf(outlier.sds, dof) * n_cells < OUTLIER_CHANCE
            if is_unlikely and (arch not in outliers or outlier.sds > outliers[arch].sds):
                outliers[arch] = outlier
    return outliers


def _ends(values: Sequence[int]) -> list[float]:
    return [float(min(values)), float(max(values))]


def _centre(cells: Sequence[Cell], terms: Sequence[Term]) -> dict[Term, float]:
    return {term: float(np.mean([math.log(getattr(cell, term)) for cell in cells])) for term in terms}


def _rows(cells: Sequence[Cell], terms: Sequence[Term], centre: Mapping[Term, float]) -> np.ndarray:
    rows = [[1.0, *(math.log(getattr(cell, term)) - centre[term] for term in terms)] for cell in cells]
    return np.array(rows)


def _system(cells: Sequence[Cell], terms: Sequence[Term], noise: Noise) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(design, ln best rate, its standard error) of usable cells."""
    fitted = [cell.fitted for cell in cells if cell.fitted is not None]
    assert len(fitted) == len(cells), "usable cells alone"
    design = _rows(cells, terms, _centre(cells, terms))
    return design, np.array([fit.log_rate for fit in fitted]), noise.sd * np.array([fit.unit_se for fit in fitted])


def _moved(cells: Sequence[Cell], design: np.ndarray, se: np.ndarray, scatter: float) -> np.ndarray:
    """How far the coefficients move where the cubic term is larger by 1."""
    per_cubic = np.array([cell.fitted.per_cubic for cell in cells if cell.fitted is not None])
    return weighted(design, per_cubic, se, scatter).coefficients


def weighted(design: np.ndarray, y: np.ndarray, se: np.ndarray, scatter: float) -> Line:
    weight = 1 / (se**2 + scatter**2)
    covariance = np.linalg.inv(design.T @ (weight[:, None] * design))
    coefficients = covariance @ (design.T @ (weight * y))
    residual = y - design @ coefficients
    return Line(coefficients, covariance, float(weight @ residual**2), len(y) - design.shape[1])


def _scatter(systems: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], dof: int) -> float:
    """The scatter of best rates around their laws: 0 where they lie as close as their errors say."""

    target = float(stats.chi2.median(dof))

    def excess(scatter: float) -> float:
        return sum(weighted(*system, scatter).chi2 for system in systems) - target

    if excess(0.0) <= 0:
        return 0.0
    high = 0.1
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-6))


def curvature_of(cells: Sequence[Cell], noise: Noise, cubic: Cubic) -> Curvature:
    """The weighted mean of the cells' curvatures; a power of N where it drifts by more than DRIFT standard errors."""
    fitted = [cell.fitted for cell in cells if cell.fitted is not None]
    k = np.array([fit.curvature for fit in fitted])
    se = noise.sd * np.array([fit.curvature_unit_se for fit in fitted])
    x = np.log([cell.n_params for cell in cells])
    weight = 1 / se**2
    mean, centre = float(weight @ k / weight.sum()), float(weight @ x / weight.sum())
    off = x - centre
    spread = float(weight @ off**2)
    slope = float(weight @ (off * (k - mean))) / spread
    # where curvature differs between cells, they scatter around the mean by more than their errors
    inflated = max(1.0, math.sqrt(float(weight @ (k - mean) ** 2) / max(len(k) - 1, 1)))
    drifts = abs(slope) * math.sqrt(spread) > DRIFT * inflated
    return Curvature(
        at=mean,
        n_params=math.exp(centre),
        exponent=slope / mean if drifts else 0.0,
        cubic=cubic.value,
        cubic_se=noise.sd * cubic.unit_se,
        per_cubic=float(weight @ np.array([fit.curvature_per_cubic for fit in fitted]) / weight.sum()),
        se=inflated / math.sqrt(float(weight.sum())),
    )


def _left_out(cells: Sequence[Cell], terms: Sequence[Term], noise: Noise, scatter: float) -> list[LeftOut]:
    """For the cells of each size the prediction of the law of the other sizes; what its rate would cost is read off the
    cell's own curve. [] where the other sizes do not determine the terms."""
    left_out = []
    for size in dict.fromkeys(cell.size for cell in cells):
        rest, out = [cell for cell in cells if cell.size != size], [cell for cell in cells if cell.size == size]
        design, y, se = _system(rest, terms, noise)
        if len(rest) < design.shape[1] or np.linalg.matrix_rank(design) < design.shape[1]:
            continue
        line = weighted(design, y, se, scatter)
        rows = _rows(out, terms, _centre(rest, terms))
        for cell, row in zip(out, rows, strict=True):
            assert cell.fitted is not None
            error = float(row @ line.coefficients) - cell.fitted.log_rate
            variance = float(row @ line.covariance @ row) + scatter**2 + (noise.sd * cell.fitted.unit_se) ** 2
            cost = excess_of(cell.fitted, math.exp(cell.fitted.log_rate + error), LEVEL, noise.sd, noise.dof)
            left_out.append(
                LeftOut(
                    ln_error=error,
                    sd=math.sqrt(variance),
                    excess=cost.share,
                    low=cost.low,
                    high=cost.high,
                    size=size,
                    n_params=cell.n_params,
                    n_tokens=cell.n_tokens,
                )
            )
    return left_out
