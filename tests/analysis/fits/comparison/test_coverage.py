"""How often intervals of differences hold, over simulated studies; docs/research/comparisons.md has the figures, which
`python -m tests.analysis.fits.comparison.test_coverage` prints."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.fits.comparison.frontiers import fit_frontiers, view_of
from analysis.fits.surface import Surface

from .worlds import NEAR, ONE, curves, study

LOSSES = (2.7, 3.2, 4.0)  # beyond the range of compute (twelve times its end), at its end, inside
THIRD = Surface(1.69, 406.4, 440.0, 0.34, 0.284)
N_STUDIES, N_DRAWS = 300, 199
DRAWN = 100_000  # seeds of draws begin here: those of studies are other streams
# Noise of a cell and of a run, cells (0: the curves of a ladder), noise of the smallest size over that of the largest.
CELLS = (
    *((0.005, 0.001, 20, 1.0), (0.005, 0.001, 24, 1.0), (0.01, 0.002, 20, 1.0), (0.005, 0.005, 20, 1.0)),
    *((0.0, 0.005, 20, 1.0), (0.003, 0.0005, 14, 1.0), (0.004, 0.001, 0, 1.0), (0.0, 0.005, 0, 1.0)),
)
BROKEN = (0.005, 0.001, 20, 4.0)


def coverage(cell: float, own: float, n_cells: int, uneven: float, n_studies: int = N_STUDIES) -> dict[str, float]:
    """Shares of `n_studies` in which intervals hold, and the median widths of log gains, pooled over LOSSES;
    "unpaired": as if no batches were shared."""
    truth = [math.log(ONE.flops_to_reach(loss) / NEAR.flops_to_reach(loss)) for loss in LOSSES]
    result: dict[str, list[float]] = {}
    for seed in range(n_studies):
        worlds = [ONE, NEAR]
        groups = study(worlds, cell, own, seed, n_cells, uneven) if n_cells else curves(worlds, cell, own, seed)
        apart = [replace(group, cell=np.char.add(group.group, group.cell.astype(str))) for group in groups]
        for name, points in (("paired", groups), ("unpaired", apart)):
            frontiers = fit_frontiers(points, N_DRAWS, seed=seed + DRAWN)
            for loss, value in zip(LOSSES, truth, strict=True):
                low, high = frontiers.interval(frontiers.log_gain("a", "b", loss)) or (-np.inf, np.inf)
                result.setdefault(name, []).append(low <= value <= high)
                result.setdefault(f"width, {name}", []).append(high - low)
            if name == "paired":
                result.setdefault("one E", []).append(frontiers.fitted.shared)
                a = frontiers.surfaces["b"].a - frontiers.surfaces["a"].a
                low, high = frontiers.interval(a) or (-np.inf, np.inf)
                result.setdefault("a", []).append(low <= NEAR.a - ONE.a <= high)
    return {name: float((np.median if "width" in name else np.mean)(values)) for name, values in result.items()}


def joint_coverage(n_studies: int = N_STUDIES) -> float:
    """The share of studies of three architectures whose intervals hold for all pairs and budgets at once."""
    surfaces, held = {"a": ONE, "b": NEAR, "c": THIRD}, []
    for seed in range(n_studies):
        frontiers = fit_frontiers(study(list(surfaces.values()), 0.005, 0.001, seed), N_DRAWS, seed=seed + DRAWN)
        inside = []
        for comparison in view_of(frontiers).compute:
            loss = float(frontiers.l_opt(comparison.reference, comparison.at)[0])
            other, reference = surfaces[comparison.other], surfaces[comparison.reference]
            truth = other.flops_to_reach(loss) / reference.flops_to_reach(loss)
            inside.append(comparison.ratio.low <= truth <= comparison.ratio.high)
        held.append(all(inside))
    return float(np.mean(held))


@pytest.mark.slow
def test_intervals_of_gains_hold_as_often_as_they_say():
    result = [coverage(*cell) for cell in CELLS]
    for name in ("paired", "a"):
        shares = [row[name] for row in result]
        assert 0.92 <= np.mean(shares) <= 0.98 and min(shares) >= 0.90
    assert result[0]["width, unpaired"] >= 3 * result[0]["width, paired"]
    assert 0.92 <= joint_coverage() <= 0.98
    assert 0.97 <= np.mean([row["one E"] for row in result]) <= 1.0


if __name__ == "__main__":
    for cell in (*CELLS, BROKEN):
        print(cell, {name: round(value, 4) for name, value in coverage(*cell).items()}, flush=True)
    print("joint", joint_coverage())
