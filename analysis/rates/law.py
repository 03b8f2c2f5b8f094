"""From a sweep's runs to LR(N, D, batch) of each architecture, by weighted least squares on its cells' best rates; and
why an architecture has no law. All architectures share the noise of a run and the scatter of best rates around their
laws.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize, stats

from analysis.fits.noise import SeedNoise
from arch.amounts import count, counted
from arch.errors import InputError
from scaling.study.rate_law import TERMS, WORDS, ArchLaw, Curvature, LeftOut, Misfit, RateLaw, Recipe, Term

from .cell import Cell, Cubic, Fitted, RatePoint, cubic_of, excess_of, fit_cell

LEVEL = 0.95
MIN_SIZES = 3
FAR_APART = 1.5  # factor by which two horizons, or batches, of one size must differ to determine a term
MISFIT = 1e-3  # chance of the scatter of an architecture's cells beside that of the others, below which it has no law
DRIFT = 2.0  # standard errors from which on the curvature is a function of N


@dataclass(frozen=True)
class RatesFit:
    """cells: in the order of the points; laws: by architecture; without_law: by architecture, why it has no law; noise:
    of a run's log loss around its cell's parabola, pooled over all cells, None where no cell has an optimum."""

    cells: list[Cell]
    laws: dict[str, ArchLaw]
    without_law: dict[str, str]
    noise: SeedNoise | None
    input_hash: str

    @property
    def n_lost(self) -> int:
        """Runs that diverged or hardly learned."""
        return sum(cell.n_lost for cell in self.cells)

    @property
    def unused(self) -> list[Cell]:
        """Cells without an optimum."""
        return [cell for cell in self.cells if cell.fitted is None]

    def usable(self, arch: str) -> list[Cell]:
        """The cells of an architecture that have an optimum."""
        return [cell for cell in self.cells if cell.arch == arch and cell.fitted is not None]


def fit_rates(points: Sequence[RatePoint], without: Sequence[Term] = ()) -> RatesFit:
    """Cells and laws of a sweep. without: terms that the law shall not have (terms_of)."""
    runs_of: dict[tuple[str, str, int, int], list[RatePoint]] = {}
    for point in points:
        runs_of.setdefault(point.cell, []).append(point)
    cells = [fit_cell(runs) for runs in runs_of.values()]
    archs = list(dict.fromkeys(cell.arch for cell in cells))
    cubics = {arch: cubic_of([cell for cell in cells if cell.arch == arch]) for arch in archs}
    cells = [fit_cell(runs, cubics[runs[0].arch].value) for runs in runs_of.values()]
    terms, why = dict[str, list[Term]](), dict[str, str]()
    for arch in archs:
        try:
            terms[arch] = terms_of([cell for cell in cells if cell.arch == arch], without)
        except InputError as error:
            why[arch] = str(error)
    rows = sorted(json.dumps(astuple(point)) for point in points)
    fit = RatesFit(cells, {}, why, None, hashlib.sha256("\n".join(rows).encode()).hexdigest())
    if all(cell.fitted is None for cell in cells):
        return fit
    try:
        noise = noise_of(cells, cubics)
    except InputError as error:
        return replace(fit, without_law=why | dict.fromkeys(terms, str(error)))
    systems = {arch: System.of(fit.usable(arch), of_arch, noise) for arch, of_arch in terms.items()}
    bent = _bent(systems, noise)
    laws = _laws({arch: system for arch, system in systems.items() if arch not in bent}, cubics, noise)
    return replace(fit, noise=noise, laws=laws, without_law=why | bent)


def law_file(fit: RatesFit, recipe: Recipe) -> RateLaw:
    """The fit as a law file. Raises InputError where no architecture has a law."""
    if not fit.laws:
        reasons = "; ".join(f"{arch}: {why}" for arch, why in fit.without_law.items())
        raise InputError(f"no architecture has a law of its learning rate: {reasons}")
    assert fit.noise is not None
    return RateLaw(
        recipe=recipe,
        noise={"sd": fit.noise.s, "dof": fit.noise.df},
        laws=fit.laws,
        without_law=fit.without_law,
        cells=[_cell_row(cell, fit.noise) for cell in fit.cells],
        inputs_sha256=fit.input_hash,
    )


def _cell_row(cell: Cell, noise: SeedNoise) -> dict[str, Any]:
    """A cell for the law file: best_rate and its standard error in ln, or why it has none."""
    keys = ("arch", "size", "n_params", "n_tokens", "batch_tokens", "n_runs", "n_seeds", "n_lost")
    row: dict[str, Any] = {key: getattr(cell, key) for key in keys}
    row |= {"rates": list(cell.rates), "used": list(cell.used)}
    row["losses"] = [loss if math.isfinite(loss) else None for loss in cell.losses]
    if cell.fitted is None:
        return row | {"best_rate": None, "why": cell.reason}
    return row | {
        "best_rate": math.exp(cell.fitted.log_rate),
        "ln_se": noise.s * cell.fitted.unit_se,
        "curvature": cell.fitted.curvature,
        "curvature_se": noise.s * cell.fitted.curvature_unit_se,
    }


def noise_of(cells: Sequence[Cell], cubics: Mapping[str, Cubic]) -> SeedNoise:
    """The noise of a run, pooled over all cells. Raises InputError where nothing was repeated."""
    fitted = [cell.fitted for cell in cells if cell.fitted is not None]
    dof = sum(fit.dof for fit in fitted) - sum(cubic.unit_se > 0 for cubic in cubics.values())
    if dof < 1:
        raise InputError(
            "the errors of the best rates are unknown: give every cell more than three rates, or a second seed"
        )
    return SeedNoise(math.sqrt(sum(fit.rss for fit in fitted) / dof), dof)


def terms_of(cells: Sequence[Cell], without: Sequence[Term] = ()) -> list[Term]:
    """The terms that the usable cells of an architecture determine. Raises InputError, which says what is missing.

    without: terms that are not wanted; the law then holds only for the values of them that were swept.
    """
    usable = [cell for cell in cells if cell.fitted is not None]
    sizes = sorted({(cell.n_params, cell.size) for cell in usable})
    if len({n for n, _ in sizes}) < MIN_SIZES:
        named = ", ".join(name for _, name in sizes) or "none"
        n_without = len(cells) - len(usable)
        none = f"; {counted(n_without, 'cell has', 'cells have')} none" if n_without else ""
        raise InputError(
            f"a law needs a best rate inside the rates tried at {MIN_SIZES} sizes, and there are {len(sizes)} "
            f"({named}){none}"
        )
    terms: list[Term] = ["n_params"]
    for term in TERMS[1:]:
        if term in without or (term == "batch_tokens" and len({cell.batch_tokens for cell in usable}) == 1):
            continue  # of one batch the law is one of this batch
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


@dataclass(frozen=True)
class Line:
    """Least squares of y [cells] on a design [cells, 1 + terms], weights 1 / (se^2 + scatter^2)."""

    coefficients: np.ndarray
    covariance: np.ndarray
    chi2: float


@dataclass(frozen=True)
class System:
    """What the law of an architecture is fitted to: its usable cells, their design [cells, 1 + terms] of ln (term /
    centre), ln best rates [cells] and their standard errors."""

    cells: tuple[Cell, ...]
    terms: tuple[Term, ...]
    centre: np.ndarray
    design: np.ndarray
    y: np.ndarray
    se: np.ndarray

    @classmethod
    def of(cls, cells: Sequence[Cell], terms: Sequence[Term], noise: SeedNoise) -> System:
        logs = _logs(cells, terms)
        centre, fitted = logs.mean(0), _fitted(cells)
        design = np.column_stack([np.ones(len(cells)), logs - centre])
        y, se = (np.array([getattr(fit, name) for fit in fitted]) for name in ("log_rate", "unit_se"))
        return cls(tuple(cells), tuple(terms), centre, design, y, noise.s * se)

    @property
    def dof(self) -> int:
        return len(self.y) - self.design.shape[1]

    @property
    def is_determined(self) -> bool:
        return bool(np.linalg.matrix_rank(self.design) == self.design.shape[1])

    def fit(self, scatter: float, y: np.ndarray | None = None) -> Line:
        """The line through the best rates, or through `y`."""
        y = self.y if y is None else y
        weight = 1 / (self.se**2 + scatter**2)
        covariance = np.linalg.inv(self.design.T @ (weight[:, None] * self.design))
        coefficients = covariance @ (self.design.T @ (weight * y))
        return Line(coefficients, covariance, float(weight @ (y - self.design @ coefficients) ** 2))


def _logs(cells: Sequence[Cell], terms: Sequence[Term]) -> np.ndarray:
    """[cells, terms]: ln of each term."""
    return np.log([[getattr(cell, term) for term in terms] for cell in cells])


def _fitted(cells: Sequence[Cell]) -> list[Fitted]:
    fitted = [cell.fitted for cell in cells if cell.fitted is not None]
    assert len(fitted) == len(cells), "usable cells alone"
    return fitted


def _laws(systems: Mapping[str, System], cubics: Mapping[str, Cubic], noise: SeedNoise) -> dict[str, ArchLaw]:
    """The law of each architecture.

    All architectures share the scatter of best rates around the laws, beyond their errors: the value at which the
    weighted squares (Paule & Mandel 1982) are at the median of their distribution, 0 where they are smaller without
    scatter. The intervals are t times the root of the line's variance plus the scatter's, t of the laws' degrees of
    freedom; the line's variance includes the error of the cubic term, which moves all cells of an architecture.
    """
    if not systems:
        return {}
    dof = sum(system.dof for system in systems.values())
    scatter = _scatter(list(systems.values()), dof)
    quantile = float(stats.t.ppf(0.5 + LEVEL / 2, min(dof, noise.df)))
    laws = {}
    for arch, system in systems.items():
        line, chi2, cubic = system.fit(scatter), system.fit(0.0).chi2, cubics[arch]
        per_cubic = np.array([fit.per_cubic for fit in _fitted(system.cells)])
        moved = system.fit(scatter, per_cubic).coefficients * noise.s * cubic.unit_se
        laws[arch] = ArchLaw(
            terms=list(system.terms),
            centre=dict(zip(system.terms, np.exp(system.centre).tolist(), strict=True)),
            coefficients=line.coefficients.tolist(),
            covariance=(line.covariance + np.outer(moved, moved)).tolist(),
            scatter=scatter,
            quantile=quantile,
            level=LEVEL,
            ranges={term: _ends([getattr(cell, term) for cell in system.cells]) for term in TERMS},
            curvature=_curvature(system.cells, noise, cubic),
            misfit=Misfit(chi2=chi2, dof=system.dof, p=float(stats.chi2.sf(chi2, system.dof))),
            left_out_size=_left_out(system, noise, scatter),
        )
    return laws


def _ends(values: Sequence[int]) -> list[float]:
    return [float(min(values)), float(max(values))]


def _scatter(systems: Sequence[System], dof: int) -> float:
    """The scatter of best rates around their laws: 0 where they lie as close as their errors say."""
    target = float(stats.chi2.median(dof))

    def excess(scatter: float) -> float:
        return sum(system.fit(scatter).chi2 for system in systems) - target

    if excess(0.0) <= 0:
        return 0.0
    high = 0.1
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-6))


def _bent(systems: Mapping[str, System], noise: SeedNoise) -> dict[str, str]:
    """The architectures whose cells lie further from a law than their errors and the scatter of all others explain (an
    F test at MISFIT), and why their runs shall not follow it.

    A run that has not yet left the plateau at its start learns fastest at a very different rate, and one such cell
    among six bends a law by far. Which cells are right is not known: the majority may be wrong, where only the longest
    run left its plateau. A single architecture has none to compare with."""
    reasons = {}
    for arch, system in systems.items():
        others = [other for name, other in systems.items() if name != arch]
        dof = sum(other.dof for other in others)
        if not dof:
            continue
        scatter = _scatter(others, dof)
        p = float(stats.f.sf(system.fit(scatter).chi2 / system.dof, system.dof, dof))
        if p < MISFIT:
            worst = max(_left_out(system, noise, scatter), key=lambda cell: abs(cell.ln_error) / cell.sd, default=None)
            most = (
                ""
                if worst is None
                else (
                    f", most of all {worst.size} at {count(worst.n_tokens)} tokens, whose best rate is "
                    f"{math.exp(-worst.ln_error):.2g} times what the other sizes say"
                )
            )
            reasons[arch] = (
                f"its cells contradict each other (chance {p:.1g}){most}: short runs may not have left their first "
                f"plateau: sweep longer runs, or write rates into overrides.by_run"
            )
    return reasons


def _curvature(cells: Sequence[Cell], noise: SeedNoise, cubic: Cubic) -> Curvature:
    """The weighted mean of the cells' curvatures; a power of N where it drifts by more than DRIFT standard errors."""
    fitted = _fitted(cells)
    k = np.array([fit.curvature for fit in fitted])
    weight = 1 / (noise.s * np.array([fit.curvature_unit_se for fit in fitted])) ** 2
    x = np.log([cell.n_params for cell in cells])
    mean, centre = float(np.average(k, weights=weight)), float(np.average(x, weights=weight))
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
        cubic_se=noise.s * cubic.unit_se,
        per_cubic=float(np.average([fit.curvature_per_cubic for fit in fitted], weights=weight)),
        se=inflated / math.sqrt(float(weight.sum())),
    )


def _left_out(system: System, noise: SeedNoise, scatter: float) -> list[LeftOut]:
    """For the cells of each size the prediction of the law of the other sizes; what its rate would cost is read off the
    cell's own curve. [] where the other sizes do not determine the terms."""
    left_out = []
    for size in dict.fromkeys(cell.size for cell in system.cells):
        rest = System.of([cell for cell in system.cells if cell.size != size], system.terms, noise)
        if rest.dof < 0 or not rest.is_determined:
            continue
        line = rest.fit(scatter)
        for cell in (cell for cell in system.cells if cell.size == size):
            assert cell.fitted is not None
            row = np.concatenate([[1.0], _logs([cell], system.terms)[0] - rest.centre])
            log_rate = float(row @ line.coefficients)
            variance = float(row @ line.covariance @ row) + scatter**2 + (noise.s * cell.fitted.unit_se) ** 2
            cost = excess_of(cell.fitted, math.exp(log_rate), LEVEL, noise.s, noise.df)
            low, high = cost.interval or (0.0, 0.0)
            left_out.append(
                LeftOut(
                    ln_error=log_rate - cell.fitted.log_rate,
                    sd=math.sqrt(variance),
                    excess=cost.value or 0.0,
                    low=low,
                    high=high,
                    size=size,
                    n_params=cell.n_params,
                    n_tokens=cell.n_tokens,
                )
            )
    return left_out
