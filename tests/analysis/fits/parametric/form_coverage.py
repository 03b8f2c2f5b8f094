"""Studies drawn from the over-training and the data-constrained forms, and how often their intervals cover."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from analysis.fits.forms import BOTH, DATA_CONSTRAINED, OVER_TRAINING, over_training
from analysis.fits.parametric.fit import ParametricFit, fit_parametric, free_slopes
from analysis.fits.parametric.results import not_identified
from analysis.fits.points import Points
from analysis.fits.surface import Surface

TIED = Surface(1.7, 400.0, 400.0, 0.3, 0.3)
MUENNIGHOFF = Surface(1.87, 521.0, 1488.0, 0.353, 0.353)
R_D, R_N = 15.4, 5.3
NO_END = np.zeros(4, dtype=bool)
EPOCHS = (1, 1, 4, 12, 40)
UNIQUE = (4e9, 4e10, 4e9, 1e9, 4e8)  # tokens, of the runs of one size
Z95 = 1.959964
AGAIN = (10.0, 40.0)  # epochs of the predictions
NEEDS = {"A": "alpha", "B": "beta"}


@dataclass(frozen=True)
class FormCell:
    """Studies of a form: `sizes` of models, 4 token multipliers (over-training) or 5 amounts of text each; s: standard
    deviation of a run's log loss."""

    form: str
    sizes: int
    s: float
    objective: str

    @property
    def surface(self) -> Surface:
        if self.form == OVER_TRAINING:
            return TIED
        return replace(MUENNIGHOFF, r_d=R_D, r_n=R_N if self.form == BOTH else None)

    def points(self) -> Points:
        """Without noise."""
        if self.form == OVER_TRAINING:
            n = np.repeat(np.geomspace(1e7, 1e9, self.sizes), 4)
            d = n * 20 * np.tile(np.geomspace(1, 40, 4), self.sizes)
            return Points(n, d, 6 * n * d, np.asarray(self.surface.loss(n, d)))
        n = np.repeat(np.geomspace(2e7, 2e9, self.sizes), len(EPOCHS))
        unique = np.tile(UNIQUE, self.sizes)
        d = unique * np.tile(EPOCHS, self.sizes)
        loss = np.asarray(self.surface.loss(n, d, unique))
        return Points(n, d, 6 * n * d, loss, unique_tokens=unique)


def estimates(cell: FormCell, points: Points, surface: Surface) -> dict[str, np.ndarray]:
    """What is published, of one surface or of r: parameters, exponents, optima and losses in the middle of the range
    and at ten times its end, and the loss of repeated text. Logarithms of what is positive."""
    one = surface.column() if np.ndim(surface.E) else surface
    c = np.array([math.sqrt(points.flops.min() * points.flops.max()), 10 * points.flops.max()])
    with np.errstate(all="ignore"):
        n, d, loss = (np.log(getattr(one, name)(c)) for name in ("n_opt", "d_opt", "l_opt"))
        found = {"E": surface.E, "A": np.log(surface.A), "B": np.log(surface.B), "alpha": surface.alpha}
        if cell.form == OVER_TRAINING:
            told = over_training(surface)
            found |= {"eta": told["eta"], "Gadre a": np.log(told["a"]), "Gadre b": np.log(told["b"])}
        else:
            found |= {"beta": surface.beta, "a": surface.a, "R_star": np.log(surface.r_d)}
            if surface.r_n is not None:
                found["R_N_star"] = np.log(surface.r_n)
            size = float(points.n_params.max())
            again = one.loss(size, 4e9 * np.array(AGAIN), 4e9)
            found |= {f"L, {epochs:g} epochs": again[..., i] for i, epochs in enumerate(AGAIN)}
        for name, value in (("N_opt", n), ("D_opt", d), ("L_opt", loss)):
            found |= {name: value[..., 0], f"{name} x10": value[..., 1]}
    return {name: np.asarray(value) for name, value in found.items()}


def oracle(cell: FormCell, points: Points) -> dict[str, float]:
    """Widths of the intervals of one who knows the noise, linearised at the true surface (Cramer-Rao)."""
    tied = cell.form == OVER_TRAINING
    jacobian = free_slopes(points, cell.form, cell.surface, NO_END)
    mean_n, mean_d = np.log(points.n_params).mean(), np.log(points.n_tokens).mean()

    def moved(k: int, step: float) -> dict[str, np.ndarray]:
        e, a, b, alpha, beta = cell.surface.to_dict().values()
        stars = [star for star in (cell.surface.r_d, cell.surface.r_n) if star is not None]
        theta = np.array([e, np.log(a) - alpha * mean_n, np.log(b) - beta * mean_d, alpha, beta, *np.log(stars)])
        if tied:
            theta[3:] += step * (k == 3)
        theta[k] += step * (not tied or k < 3)
        e, a, b, alpha, beta = theta[:5]
        rest = np.exp(theta[5:])
        return estimates(
            cell, points, Surface(e, np.exp(a + alpha * mean_n), np.exp(b + beta * mean_d), alpha, beta, *rest)
        )

    gradients = {name: np.zeros(jacobian.shape[1]) for name in moved(0, 0.0)}
    for k in range(jacobian.shape[1]):
        up, down = moved(k, 1e-5), moved(k, -1e-5)
        for name, gradient in gradients.items():
            gradient[k] = (up[name] - down[name]) / 2e-5
    covariance = cell.s**2 * np.linalg.inv(jacobian.T @ jacobian)
    return {name: float(2 * Z95 * np.sqrt(one @ covariance @ one)) for name, one in gradients.items()}


def missing(name: str, gone: dict[str, str], form: str) -> bool:
    """Whether a result withholds the interval of this where these are not identified."""
    of_optimum = name == "a" or name.startswith(("N_opt", "D_opt"))
    return name in gone or NEEDS.get(name) in gone or (of_optimum and bool({"alpha", "beta"} & set(gone)))


def cover_form(cell: FormCell, studies: int, seed: int = 0, replicates: int = 99) -> dict[str, dict[str, float]]:
    """Of each quantity: the share of studies whose 95% interval covers (one that is withheld does), the share `told`
    that have one, and the `width`, the median over the oracle's."""
    rng = np.random.default_rng(seed)
    points = cell.points()
    truth, known = estimates(cell, points, cell.surface), oracle(cell, points)
    hits = dict.fromkeys(truth, 0)
    widths: dict[str, list[float]] = {name: [] for name in truth}
    for study in range(studies):
        loss = points.loss * np.exp(cell.s * rng.standard_normal(len(points)))
        drawn = Points(points.n_params, points.n_tokens, points.flops, loss, unique_tokens=points.unique_tokens)
        fit = fit_of(cell, drawn, replicates, study)
        assert fit.draws is not None
        gone = {name: why for name, why in not_identified(fit).items() if "assumed" not in why}
        values = estimates(cell, points, fit.draws.surface)
        for name, value in values.items():
            low, high = fit.draws.interval(value)
            if missing(name, gone, cell.form):
                hits[name] += 1
                continue
            hits[name] += low <= truth[name] <= high
            widths[name].append(high - low)
    return {
        name: {
            "covers": hits[name] / studies,
            "told": len(widths[name]) / studies,
            "width": float(np.median(widths[name])) / known[name] if widths[name] else math.nan,
        }
        for name in truth
    }


def fit_of(cell: FormCell, points: Points, replicates: int, seed: int) -> ParametricFit:
    options = {"form": cell.form, "objective": cell.objective, "n_replicates": replicates, "seed": seed}
    return fit_parametric(points, **options)  # type: ignore[arg-type]


FORMS_COVERED = (OVER_TRAINING, DATA_CONSTRAINED, BOTH)
