"""From a table of runs over learning rates to laws of the best rate: cells, laws, and why an architecture has no
law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from arch.amounts import count
from arch.errors import InputError
from scaling.study.rate_law import ArchLaw, RateLaw, Recipe, Term

from .cell import Cell, cubic_of, fit_cell
from .law import Noise, Outlier, find_outliers, fit_laws, noise_of, terms_of
from .points import RatePoint, hash_of


@dataclass(frozen=True)
class Doubt:
    """A cell that the other cells of its architecture contradict, and the law of the others alone: None where they have
    none."""

    cell: Cell
    outlier: Outlier
    law: ArchLaw | None


@dataclass(frozen=True)
class RatesFit:
    """cells: in the order of the points; laws: by architecture; without_law: by architecture, why it has no law; noise:
    None where no cell has an optimum; doubts: by architecture."""

    cells: list[Cell]
    laws: dict[str, ArchLaw]
    without_law: dict[str, str]
    noise: Noise | None
    input_hash: str
    doubts: dict[str, Doubt]

    @property
    def n_diverged(self) -> int:
        """Runs that were left out as diverged."""
        return sum(cell.n_diverged for cell in self.cells)

    @property
    def n_too_low(self) -> int:
        """Runs that were left out because they hardly learned: their rates are too low."""
        return sum(cell.n_too_low for cell in self.cells)

    @property
    def unused(self) -> list[Cell]:
        """Cells without an optimum."""
        return [cell for cell in self.cells if cell.fitted is None]


def fit_rates(points: Sequence[RatePoint], without: Sequence[Term] = ()) -> RatesFit:
    """Cells and laws of a sweep. without: terms that the law shall not have (law.terms_of)."""
    fit = _fit(points, without)
    if fit.noise is None or not fit.laws:
        return fit
    usable = {arch: [cell for cell in fit.cells if cell.arch == arch and cell.fitted is not None] for arch in fit.laws}
    terms = {arch: law.terms for arch, law in fit.laws.items()}
    doubts = {}
    for arch, outlier in find_outliers(usable, terms, fit.noise).items():
        out = usable[arch][outlier.place]
        # all is fitted anew: a curve of another shape would leave its mark on the cubic term that all cells share
        again = _fit([point for point in points if point not in out.points], without)
        doubts[arch] = Doubt(out, outlier, again.laws.get(arch))
    return replace(fit, doubts=doubts)


def _fit(points: Sequence[RatePoint], without: Sequence[Term]) -> RatesFit:
    """As `fit_rates`, without doubts."""
    grouped: dict[tuple[str, str, int, int], list[RatePoint]] = {}
    for point in points:
        grouped.setdefault(point.cell, []).append(point)
    cells = [fit_cell(runs) for runs in grouped.values()]
    archs = {point.arch for point in points}
    cubics = {arch: cubic_of([cell for cell in cells if cell.arch == arch]) for arch in archs}
    cells = [fit_cell(runs, cubics[runs[0].arch].value) for runs in grouped.values()]
    of_arch: dict[str, list[Cell]] = {}
    for cell in cells:
        of_arch.setdefault(cell.arch, []).append(cell)
    usable: dict[str, list[Cell]] = {}
    terms: dict[str, list[Term]] = {}
    why: dict[str, str] = {}
    for arch, of_this in of_arch.items():
        try:
            terms[arch] = terms_of(of_this, without)
            usable[arch] = [cell for cell in of_this if cell.fitted is not None]
        except InputError as error:
            why[arch] = str(error)
    noise, laws = None, {}
    if any(cell.fitted is not None for cell in cells):
        try:
            noise = noise_of(cells, cubics)
        except InputError as error:
            why |= dict.fromkeys(usable, str(error))
    if noise is not None and usable:
        laws = fit_laws(usable, terms, cubics, noise)
    return RatesFit(cells, laws, why, noise, hash_of(points), {})


def without_doubtful(fit: RatesFit) -> RatesFit:
    """The fit without the laws of architectures with a doubt: a person decides whether a cell that all others
    contradict counts."""
    why = {
        arch: f"{doubt.cell.size} at {count(doubt.cell.n_tokens)} tokens contradicts its other cells, as `scaling "
        f"sweep` shows: sweep longer runs, write rates into overrides.by_run, or sweep again with sweep.doubts: follow"
        for arch, doubt in fit.doubts.items()
    }
    laws = {arch: law for arch, law in fit.laws.items() if arch not in why}
    return replace(fit, laws=laws, without_law=fit.without_law | why)


def cell_row(cell: Cell, noise: Noise | None) -> dict[str, Any]:
    """A cell as plain data, for the law file and tables: best_rate and its standard error in ln, excess losses."""
    row: dict[str, Any] = {
        key: getattr(cell, key) for key in ("arch", "size", "n_params", "n_tokens", "batch_tokens", "n_runs", "n_seeds")
    }
    row |= {
        "n_diverged": cell.n_diverged,
        "n_too_low": cell.n_too_low,
        "rates": list(cell.rates),
        "used": list(cell.used),
    }
    row["losses"] = [loss if loss == loss else None for loss in cell.losses]
    if cell.fitted is None or noise is None:
        return row | {"best_rate": None, "why": cell.reason}
    return row | {
        "best_rate": math.exp(cell.fitted.log_rate),
        "ln_se": noise.sd * cell.fitted.unit_se,
        "curvature": cell.fitted.curvature,
        "curvature_se": noise.sd * cell.fitted.curvature_unit_se,
    }


def law_file(fit: RatesFit, recipe: Recipe) -> RateLaw:
    """The fit as a law file. Raises InputError where no architecture has a law."""
    if not fit.laws:
        reasons = "; ".join(f"{arch}: {why}" for arch, why in fit.without_law.items())
        raise InputError(f"no architecture has a law of its learning rate: {reasons}")
    assert fit.noise is not None
    return RateLaw(
        recipe=recipe,
        noise={"sd": fit.noise.sd, "dof": fit.noise.dof, "pure_sd": fit.noise.pure_sd, "pure_dof": fit.noise.pure_dof},
        laws=fit.laws,
        without_law=fit.without_law,
        cells=[cell_row(cell, fit.noise) for cell in fit.cells],
        inputs_sha256=fit.input_hash,
    )
