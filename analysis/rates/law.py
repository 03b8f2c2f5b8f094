"""From a sweep's runs to LR(N, D, batch) of each architecture, by weighted least squares on its cells' best rates; and
why an architecture has no law. All architectures share the scatter of best rates around their laws, the noise of a run
where a test does not tell theirs apart, and where asked the slopes that it does not.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
from scipy import optimize, stats

from analysis.fits.noise import SeedNoise, equal_parts
from arch.amounts import count, counted
from arch.errors import InputError
from scaling.study.rate_law import TERMS, WORDS, ArchLaw, Curvature, LeftOut, Misfit, RateLaw, Recipe, Term

from .cell import Cell, Cubic, Fitted, RatePoint, cubic_of, excess_of, fit_cell

Noise = Mapping[str, SeedNoise]  # by architecture
LEVEL = 0.95
MIN_SIZES = 3
FAR_APART = 1.5  # factor by which two horizons, or batches, of one size must differ to determine a term
MISFIT = 1e-3  # chance of the scatter of an architecture's cells beside that of the others, below which it has no law
DRIFT = 2.0  # standard errors from which on the curvature is a function of N
UNKNOWNS = 3  # of a cell's parabola
NO_ERRORS = "the errors of the best rates are unknown: give some cells more than three rates, or a second seed"
APART = 0.05  # chance of slopes that differ so much, below which architectures keep slopes of their own
LITTLE = 0.003  # of the loss: what a rate may cost
FAR = 4.0  # times the tokens of all cells of the other sizes: how far a size left out is predicted


@dataclass(frozen=True)
class RatesFit:
    """cells: in the order of the points; laws: by architecture; without_law: by architecture, why it has no law; noise:
    of a run's log loss around its cell's parabola, by architecture, empty where no cell has an optimum; alike: by
    term, where slopes were to be shared, the chance that those of the architectures differ as they do where they are
    one: shared from APART on."""

    cells: list[Cell]
    laws: dict[str, ArchLaw]
    without_law: dict[str, str]
    noise: Noise
    input_hash: str
    alike: dict[Term, float] = field(default_factory=dict)

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


def fit_rates(points: Sequence[RatePoint], without: Sequence[Term] = (), share: bool = False) -> RatesFit:
    """Cells and laws of a sweep. without: terms that the law shall not have (terms_of); share: whether architectures
    have the slopes in common that a test does not tell apart."""
    runs_of = _by_cell(points)
    cells = [fit_cell(runs) for runs in runs_of]
    archs = list(dict.fromkeys(cell.arch for cell in cells))
    cubics = {arch: cubic_of([cell for cell in cells if cell.arch == arch]) for arch in archs}
    cells = [fit_cell(runs, cubics[runs[0].arch].value) for runs in runs_of]
    terms, why = dict[str, list[Term]](), dict[str, str]()
    for arch in archs:
        try:
            of_arch = [cell for cell in cells if cell.arch == arch]
            usable = [cell for cell in of_arch if cell.fitted is not None]
            terms[arch] = terms_of(usable, without, len(of_arch) - len(usable))
        except InputError as error:
            why[arch] = str(error)
    rows = sorted(json.dumps(astuple(point)) for point in points)
    fit = RatesFit(cells, {}, why, {}, hashlib.sha256("\n".join(rows).encode()).hexdigest())
    if all(cell.fitted is None for cell in cells):
        return fit
    try:
        noise = noise_of(cells, cubics)
    except InputError as error:
        return replace(fit, without_law=why | dict.fromkeys(terms, str(error)))
    systems = {arch: System.of(fit.usable(arch), of_arch, noise) for arch, of_arch in terms.items()}
    bent = _bent(systems, noise)
    systems = {arch: system for arch, system in systems.items() if arch not in bent}
    alike = _alike(systems, noise) if share and len(systems) > 1 else {}
    shared = [term for term, chance in alike.items() if chance >= APART]
    laws = _laws(systems, shared, cubics, noise)
    return replace(fit, noise=noise, laws=laws, without_law=why | bent, alike=alike)


def _by_cell(points: Sequence[RatePoint]) -> list[list[RatePoint]]:
    """The runs of each cell, in the order of the points."""
    runs_of: dict[tuple[str, str, int, int], list[RatePoint]] = {}
    for point in points:
        runs_of.setdefault(point.cell, []).append(point)
    return list(runs_of.values())


def law_file(fit: RatesFit, recipe: Recipe) -> RateLaw:
    """The fit as a law file. Raises InputError where no architecture has a law."""
    if not fit.laws:
        reasons = "; ".join(f"{arch}: {why}" for arch, why in fit.without_law.items())
        raise InputError(f"no architecture has a law of its learning rate: {reasons}")
    return RateLaw(
        recipe=recipe,
        noise={arch: {"sd": of_arch.s, "dof": of_arch.df} for arch, of_arch in fit.noise.items()},
        laws=fit.laws,
        without_law=fit.without_law,
        alike=fit.alike,
        cells=[_cell_row(cell, fit.noise[cell.arch]) for cell in fit.cells],
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


def noise_of(cells: Sequence[Cell], cubics: Mapping[str, Cubic]) -> Noise:
    """The noise of a run of each architecture, pooled over its cells and over architectures that a test does not tell
    apart (equal_parts); an architecture without a degree of freedom has that of all. Raises InputError where nothing
    was repeated."""
    rss, dof = dict[str, float](), dict[str, int]()
    for arch, cubic in cubics.items():
        fitted = [cell.fitted for cell in cells if cell.arch == arch and cell.fitted is not None]
        rss[arch] = sum(fit.rss for fit in fitted)
        dof[arch] = max(0, sum(fit.dof for fit in fitted) - (cubic.unit_se > 0))

    def pool(archs: Sequence[str]) -> SeedNoise:
        n = sum(dof[arch] for arch in archs)
        return SeedNoise(math.sqrt(sum(rss[arch] for arch in archs) / n), n)

    known = [arch for arch, n in dof.items() if n]
    if not known:
        raise InputError(NO_ERRORS)
    parts = equal_parts([rss[arch] / dof[arch] for arch in known], [dof[arch] for arch in known])
    pools = {known[i]: pool([known[j] for j in part]) for part in parts for i in part}
    return {arch: pools.get(arch) or pool(known) for arch in cubics}


def lacking(points: Sequence[RatePoint], without: Sequence[Term] = ()) -> str | None:
    """Why no architecture of a sweep can have a law, whatever the losses of its runs will be; None where one can."""
    by_cell = _by_cell(points)
    if max(map(len, by_cell)) <= UNKNOWNS:
        return NO_ERRORS
    cells, why = [fit_cell(runs) for runs in by_cell], ""
    for arch in dict.fromkeys(cell.arch for cell in cells):
        try:
            terms_of([cell for cell in cells if cell.arch == arch], without)
            return None
        except InputError as error:
            why = str(error)
    return why


def terms_of(usable: Sequence[Cell], without: Sequence[Term] = (), n_unusable: int = 0) -> list[Term]:
    """The terms that the usable cells of an architecture determine, beside which `n_unusable` have no best rate. Raises
    InputError, which says what is missing.

    without: terms that are not wanted; the law then holds only for the values of them that were swept.
    """
    sizes = sorted({(cell.n_params, cell.size) for cell in usable})
    if len({n for n, _ in sizes}) < MIN_SIZES:
        named = ", ".join(name for _, name in sizes) or "none"
        none = f"; {counted(n_unusable, 'cell has', 'cells have')} none" if n_unusable else ""
        raise InputError(
            f"a law needs a best rate inside the rates tried at {MIN_SIZES} sizes, and there are {len(sizes)} "
            f"({named}){none}"
        )
    terms: list[Term] = ["n_params"]
    for term in TERMS[1:]:
        if term in without or (term == "batch_tokens" and len({cell.batch_tokens for cell in usable}) == 1):
            continue  # of one batch the law is one of this batch
        if not _apart(usable, term, without):
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


def _apart(cells: Sequence[Cell], term: Term, without: Sequence[Term]) -> bool:
    """Whether a size was swept at two values of a term, with everything else equal that is not `without`."""
    other: Term = "batch_tokens" if term == "n_tokens" else "n_tokens"
    groups: dict[tuple[int, int], list[int]] = {}
    for cell in cells:
        groups.setdefault((cell.n_params, 0 if other in without else getattr(cell, other)), []).append(
            getattr(cell, term)
        )
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
    def of(cls, cells: Sequence[Cell], terms: Sequence[Term], noise: Noise) -> System:
        logs = _logs(cells, terms)
        centre, fitted = logs.mean(0), _fitted(cells)
        design = np.column_stack([np.ones(len(cells)), logs - centre])
        y = np.array([fit.log_rate for fit in fitted])
        se = np.array([noise[cell.arch].s * fit.unit_se for cell, fit in zip(cells, fitted, strict=True)])
        return cls(tuple(cells), tuple(terms), centre, design, y, se)

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


@dataclass(frozen=True)
class Joint:
    """Systems whose slopes of some terms are one. system: of all their cells, with a level for each architecture;
    places: by architecture, the columns of its 1 and terms there."""

    system: System
    places: dict[str, list[int]]

    @classmethod
    def of(cls, systems: Mapping[str, System], shared: Sequence[Term] = ()) -> Joint:
        columns, places = dict[tuple[str, str], int](), dict[str, list[int]]()
        for arch, system in systems.items():
            keys = [(arch, ""), *(("" if term in shared else arch, term) for term in system.terms)]
            places[arch] = [columns.setdefault(key, len(columns)) for key in keys]
        blocks = []
        for arch, system in systems.items():
            block = np.zeros((len(system.y), len(columns)))
            block[:, places[arch]] = system.design
            blocks.append(block)
        every = list(systems.values())
        y, se = (np.concatenate([getattr(system, name) for system in every]) for name in ("y", "se"))
        cells = tuple(cell for system in every for cell in system.cells)
        return cls(System(cells, (), np.zeros(0), np.concatenate(blocks), y, se), places)

    def line_of(self, line: Line, arch: str) -> Line:
        """What a line through all cells is for an architecture: coefficients and covariance."""
        at = self.places[arch]
        return Line(line.coefficients[at], line.covariance[np.ix_(at, at)], line.chi2)


def _alike(systems: Mapping[str, System], noise: Noise) -> dict[Term, float]:
    """By term, the chance that slopes of its architectures differ as they do where they are one: an F test of what
    sharing it adds to the weighted squares, at the scatter of laws that share nothing."""
    own = Joint.of(systems).system
    scatter = _scatter([own], own.dof)
    chances = dict[Term, float]()
    for term in TERMS:
        n_more = sum(term in system.terms for system in systems.values()) - 1
        if n_more > 0:
            rise = Joint.of(systems, [term]).system.fit(scatter).chi2 - own.fit(scatter).chi2
            dof = min(own.dof, *(noise[arch].df for arch in systems))
            chances[term] = float(stats.f.sf(max(rise, 0.0) / n_more, n_more, dof))
    return chances


def _logs(cells: Sequence[Cell], terms: Sequence[Term]) -> np.ndarray:
    """[cells, terms]: ln of each term."""
    return np.log([[getattr(cell, term) for term in terms] for cell in cells])


def _fitted(cells: Sequence[Cell]) -> list[Fitted]:
    fitted = [cell.fitted for cell in cells if cell.fitted is not None]
    assert len(fitted) == len(cells), "usable cells alone"
    return fitted


def _laws(
    systems: Mapping[str, System], shared: Sequence[Term], cubics: Mapping[str, Cubic], noise: Noise
) -> dict[str, ArchLaw]:
    """The law of each architecture; the slopes of the terms of `shared` are one for all.

    All architectures share the scatter of best rates around the laws, beyond their errors: the value at which the
    weighted squares (Paule & Mandel 1982) are at the median of their distribution, 0 where they are smaller without
    scatter. The intervals are t times the root of the line's variance plus the scatter's, t of the laws' degrees of
    freedom; the line's variance includes the error of the cubic terms, each of which moves all cells of an
    architecture. A misfit is that to a line of the architecture's own.
    """
    if not systems:
        return {}
    joint = Joint.of(systems, shared)
    whole = joint.system
    scatter = _scatter([whole], whole.dof)
    line = whole.fit(scatter)
    moved = [
        whole.fit(scatter, _per_cubic(whole, arch)).coefficients * noise[arch].s * cubics[arch].unit_se
        for arch in systems
    ]
    line = replace(line, covariance=line.covariance + sum(np.outer(move, move) for move in moved))
    groups = [systems] if shared else [{arch: system} for arch, system in systems.items()]
    left_out, far = (
        [row for group in groups for row in _left_out(group, shared, noise, scatter, times)] for times in (0.0, FAR)
    )
    laws = {}
    for arch, system in systems.items():
        chi2, own = system.fit(0.0).chi2, joint.line_of(line, arch)
        laws[arch] = ArchLaw(
            terms=list(system.terms),
            centre=dict(zip(system.terms, np.exp(system.centre).tolist(), strict=True)),
            coefficients=own.coefficients.tolist(),
            covariance=own.covariance.tolist(),
            scatter=scatter,
            quantile=float(stats.t.ppf(0.5 + LEVEL / 2, min(whole.dof, noise[arch].df))),
            level=LEVEL,
            ranges={term: _ends([getattr(cell, term) for cell in system.cells]) for term in TERMS},
            curvature=_curvature(system.cells, noise[arch], cubics[arch]),
            misfit=Misfit(chi2=chi2, dof=system.dof, p=float(stats.chi2.sf(chi2, system.dof))),
            left_out_size=[row for name, row in left_out if name == arch],
            left_out_far=[row for name, row in far if name == arch],
        )
    return laws


def _per_cubic(system: System, arch: str) -> np.ndarray:
    """[cells]: what the cells' best rates move by where the cubic term of an architecture is larger by 1."""
    pairs = zip(system.cells, _fitted(system.cells), strict=True)
    return np.array([fit.per_cubic if cell.arch == arch else 0.0 for cell, fit in pairs])


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


def _bent(systems: Mapping[str, System], noise: Noise) -> dict[str, str]:
    """The architectures whose cells lie further from a law than their errors and the scatter of all others explain (an
    F test at MISFIT) and lose more than LITTLE of the loss by what the other sizes say, and why their runs shall not
    follow it.

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
        rows = [row for _, row in _left_out({arch: system}, (), noise, scatter)] if p < MISFIT else []
        if any(row.excess > LITTLE for row in rows):
            worst = max(rows, key=lambda row: row.excess)
            most = (
                f"{worst.size} at {count(worst.n_tokens)} tokens, whose best rate is {math.exp(-worst.ln_error):.2g} "
                f"times what the other sizes say: theirs costs {worst.excess:.1%} of its loss"
            )
            reasons[arch] = (
                f"its cells contradict each other (chance {p:.1g}), most of all {most}: short runs may not have left "
                f"their first plateau: sweep longer runs, or write rates into overrides.by_run"
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


def _left_out(
    systems: Mapping[str, System], shared: Sequence[Term], noise: Noise, scatter: float, times: float = 0.0
) -> list[tuple[str, LeftOut]]:
    """For the cells of each size the prediction of the laws of the other sizes, by architecture; what its rate would
    cost is read off the cell's own curve. times: by those cells alone that have at most 1 / times the cell's tokens.
    Cells whose terms the rest does not determine are left out."""
    cells = [cell for system in systems.values() for cell in system.cells]
    rows = []
    for size, n_tokens in dict.fromkeys((cell.size, cell.n_tokens if times else 0) for cell in cells):
        rest = {
            arch: System.of(kept, system.terms, noise)
            for arch, system in systems.items()
            if (kept := [cell for cell in system.cells if _is_other(cell, size, n_tokens, times)])
        }
        joint = Joint.of(rest, shared) if rest else None
        if joint is None or joint.system.dof < 0 or not joint.system.is_determined:
            continue
        whole = joint.system.fit(scatter)
        for cell in cells:
            if cell.size == size and cell.arch in rest and n_tokens in (0, cell.n_tokens):
                line = joint.line_of(whole, cell.arch)
                rows.append((cell.arch, _predicted(cell, rest[cell.arch], line, noise[cell.arch], scatter)))
    return rows


def _is_other(cell: Cell, size: str, n_tokens: int, times: float) -> bool:
    """Whether a cell is of another size, and of at most 1 / times as many tokens, to a batch."""
    return cell.size != size and (not times or cell.n_tokens <= n_tokens / times + cell.batch_tokens)


def _predicted(cell: Cell, rest: System, line: Line, noise: SeedNoise, scatter: float) -> LeftOut:
    """What the law of other cells says of a cell."""
    assert cell.fitted is not None
    row = np.concatenate([[1.0], _logs([cell], rest.terms)[0] - rest.centre])
    log_rate = float(row @ line.coefficients)
    variance = float(row @ line.covariance @ row) + scatter**2 + (noise.s * cell.fitted.unit_se) ** 2
    cost = excess_of(cell.fitted, math.exp(log_rate), LEVEL, noise.s, noise.df)
    low, high = cost.interval or (0.0, 0.0)
    return LeftOut(
        ln_error=log_rate - cell.fitted.log_rate,
        sd=math.sqrt(variance),
        excess=cost.value or 0.0,
        low=low,
        high=high,
        size=cell.size,
        n_params=cell.n_params,
        n_tokens=cell.n_tokens,
    )
