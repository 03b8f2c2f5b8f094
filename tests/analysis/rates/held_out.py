"""What the law of the other sizes costs at a size left out, with all noise redrawn.

    python -m tests.analysis.rates.held_out POINTS.csv [SIZE ..]

prints a row for each architecture and size; tests/analysis/rates/*.csv are such points.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.rates.cell import Cell, Excess, Fitted, excess_of
from analysis.rates.fit import RatesFit, fit_rates
from analysis.rates.points import RatePoint, points_of
from scaling.study.rate_law import Term

REPLICATES, LEVEL = 400, 0.95


@dataclass(frozen=True)
class HeldOut:
    """The law of the other sizes in one cell. excess: of its rate by the cell's own curve, with the interval that the
    noise of the cell gives; again: the same excess of the laws of sweeps whose noise is redrawn, the curves as fitted;
    lost: redrawn sweeps that had no law; fitted, sd: the cell's curve and the noise of a run."""

    arch: str
    size: str
    n_tokens: int
    rate: float
    best: float
    excess: Excess
    fitted: Fitted
    sd: float
    again: np.ndarray
    lost: int


def rates_without(points: Sequence[RatePoint], cell: Cell, without: Sequence[Term]) -> float | None:
    """The rate for the cell by the law of the other sizes."""
    law = fit_rates([point for point in points if point.size != cell.size], without).laws.get(cell.arch)
    return law.at(cell.n_params, cell.n_tokens, cell.batch_tokens).rate if law else None


def redrawn(fit: RatesFit, random: np.random.Generator) -> list[RatePoint]:
    """The runs that curves were fitted to, on these curves, with noise of the sweep's size."""
    assert fit.noise is not None
    points = []
    for cell in fit.cells:
        if cell.fitted is None:
            continue
        curve = cell.fitted
        for point in cell.fitted_points:
            off = math.log(point.lr) - curve.log_rate
            # levels of seeds are additive, and no fit sees them
            ln_loss = curve.curvature * off**2 + curve.cubic * off**3 + fit.noise.sd * random.standard_normal()
            points.append(replace(point, loss=2.0 * math.exp(ln_loss)))
    return points


def held_out(
    points: Sequence[RatePoint],
    sizes: Sequence[str] = (),
    without: Sequence[Term] = (),
    replicates: int = REPLICATES,
    seed: int = 0,
) -> list[HeldOut]:
    """A row for each cell with an optimum, of these sizes or of all, one size left out at a time."""
    fit = fit_rates(points, without)
    assert fit.noise is not None
    cells = [cell for cell in fit.cells if cell.fitted is not None and (not sizes or cell.size in sizes)]
    random = np.random.default_rng(seed)
    again: list[list[float]] = [[] for _ in cells]
    for _ in range(replicates):
        drawn = redrawn(fit, random)
        for size in dict.fromkeys(cell.size for cell in cells):
            laws = fit_rates([point for point in drawn if point.size != size], without).laws
            for place, cell in enumerate(cells):
                if cell.size == size and cell.arch in laws:
                    rate = laws[cell.arch].at(cell.n_params, cell.n_tokens, cell.batch_tokens).rate
                    again[place].append(_cost(fit, cell, rate).share)
    costs = []
    for cell, shares in zip(cells, again, strict=True):
        assert cell.fitted is not None
        rate = rates_without(points, cell, without)
        if rate is not None:
            cost = _cost(fit, cell, rate)
            redrawn_shares = np.array(shares)
            best = math.exp(cell.fitted.log_rate)
            known = cell.arch, cell.size, cell.n_tokens, rate, best, cost, cell.fitted, fit.noise.sd
            costs.append(HeldOut(*known, redrawn_shares, replicates - len(redrawn_shares)))
    return costs


def mean_bound(cells: Sequence[HeldOut], random: np.random.Generator, draws: int = 4000) -> tuple[float, float]:
    """(mean, bound) of the excess over cells of one architecture. The bound is the LEVEL quantile over best rates drawn
    around the fitted ones, with the laws' rates as they are; it is on the safe side, because an error of a best rate
    adds to its square, and held the true mean in 0.99 of 150 simulated searches (docs/research/learning-rates.md)."""
    total = np.zeros(draws)
    for cell in cells:
        off = math.log(cell.rate / cell.best) + cell.sd * cell.fitted.unit_se * random.standard_normal(draws)
        total += np.maximum(cell.fitted.curvature * off**2 + cell.fitted.cubic * off**3, 0.0)
    return float(np.mean([cell.excess.share for cell in cells])), float(np.quantile(total, LEVEL) / len(cells))


def _cost(fit: RatesFit, cell: Cell, rate: float) -> Excess:
    assert cell.fitted is not None and fit.noise is not None
    return excess_of(cell.fitted, rate, LEVEL, fit.noise.sd, fit.noise.dof)


def main(path: str, sizes: Sequence[str]) -> None:
    points = points_of(pd.read_csv(path))
    # one length a size has no term in D
    lengths = {(point.size, point.n_tokens) for point in points}
    without: list[Term] = ["n_tokens"] if len(lengths) == len({point.size for point in points}) else []
    print("| | size | tokens | rate of the law | best | excess | redrawn: median, 95% of sweeps below | lost |")
    costs = held_out(points, sizes, without)
    for cost in costs:
        middle, high = np.quantile(cost.again, (0.5, 0.95))
        print(
            f"| {cost.arch} | {cost.size} | {cost.n_tokens} | {cost.rate:.3g} | {cost.best:.3g} | "
            f"{cost.excess.share:.2%} [{cost.excess.low:.2%}, {cost.excess.high:.2%}] | "
            f"{middle:.2%}, {high:.2%} | {cost.lost} |"
        )
    for arch in dict.fromkeys(cost.arch for cost in costs):
        mean, bound = mean_bound([cost for cost in costs if cost.arch == arch], np.random.default_rng(0))
        print(f"{arch}: mean excess {mean:.2%}, at most {bound:.2%}")


if __name__ == "__main__":
    main(str(Path(sys.argv[1])), sys.argv[2:])
