"""Why the second study's forecasts missed, by the table of its grid: what its page says is what the table gives."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from analysis.fits.points import Points
from analysis.fits.rehearsal import forecast

RESEARCH = Path(__file__).parents[3] / "docs" / "research"
PAGE = (RESEARCH / "second-study.md").read_text(encoding="utf-8")
ARCHS = {"llama": "LLaMA", "hgrn2": "HGRN2", "tnl": "TNL", "hgrn2-3to1": "HGRN2 3:1"}
PARTS = ("held_out_loss", "english", "chinese")
LARGEST, BEFORE = 3e15, 1e15  # FLOP: below the largest budget of the grid; above its third


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return pd.read_csv(RESEARCH / "second-study-grid.csv")


def points_of(table: pd.DataFrame, part: str) -> Points:
    return Points(*(table[name].to_numpy() for name in ("n_params", "n_tokens", "flops", part)))


def signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def test_chinese_falls_faster_than_english_where_the_largest_budget_is_predicted_from_the_three_lowest(runs):
    grid = runs[runs.flops < 4e15]
    for arch in ARCHS:
        of_arch, cells = grid[grid.arch == arch], []
        above = of_arch[of_arch.flops > LARGEST]
        for part in PARTS:
            laws = forecast(points_of(of_arch[of_arch.flops < BEFORE], part))
            errors = [
                row[part] / laws.predict(row.n_params, row.n_tokens).loss.value - 1 for _, row in above.iterrows()
            ]
            cells.append(100 * float(np.mean(errors)))
        assert cells[1] > -0.2 and cells[2] < cells[1] - 2
        assert f"| {ARCHS[arch]} | {' | '.join(map(signed, cells))} |" in PAGE


def surface_with_depth(of_arch: pd.DataFrame, by_depth: bool) -> tuple[float, np.ndarray]:
    """The sum of squares of log residuals of E + A / N^alpha + B / D^beta, and its parameters (log E, log A, log alpha,
    log B, log beta; then what eight layers add to log A and log B, where by_depth)."""
    n, d = of_arch.n_params.to_numpy() / 2e6, of_arch.n_tokens.to_numpy() / 1e8
    deep, loss = (of_arch.n_layers == 8).to_numpy() * float(by_depth), of_arch.held_out_loss.to_numpy()

    def residuals(p: np.ndarray) -> np.ndarray:
        terms = (
            np.exp(p[1] + p[5] * deep - np.exp(p[2]) * np.log(n)),
            np.exp(p[3] + p[6] * deep - np.exp(p[4]) * np.log(d)),
        )
        return np.log(np.exp(p[0]) + sum(terms)) - np.log(loss)

    best = optimize.least_squares(residuals, [math.log(0.6), -1.2, -1.2, -1.2, -1.2, 0, 0], max_nfev=2000)
    return 2 * best.cost, best.x


def test_of_four_layers_english_alone_is_one_surface(runs):
    four = runs[(runs.flops < 4e15) & (runs.n_layers == 4)]
    for arch, label in ARCHS.items():
        of_arch, cells = four[four.arch == arch], []
        for part in PARTS:
            total, _ = surface_with_depth(of_arch.assign(held_out_loss=of_arch[part]), by_depth=False)
            log_loss = np.log(of_arch[part])
            within = float(((log_loss - log_loss.groupby(of_arch["size"]).transform("mean")) ** 2).sum())
            n_sizes = of_arch["size"].nunique()
            dof = len(of_arch) - n_sizes
            p = stats.f.sf((total - within) / (n_sizes - 5) / (within / dof), n_sizes - 5, dof)
            assert (p > 0.05) == (part == "english" or (arch, part) == ("llama", "held_out_loss"))
            shown = f"{p:.0e}" if p < 5e-4 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
            cells.append(f"{shown} ({math.sqrt(within / dof):.2%})")
        assert f"| {label} | {' | '.join(cells)} |" in PAGE


def test_eight_layers_are_another_surface_than_four(runs):
    grid = runs[runs.flops < 4e15]
    for arch in ARCHS:
        of_arch = grid[grid.arch == arch]
        (plain, _), (deep, parameters) = (surface_with_depth(of_arch, by_depth) for by_depth in (False, True))
        dof = len(of_arch) - 7
        p = stats.f.sf((plain - deep) / 2 / (deep / dof), 2, dof)
        assert p < 0.01
        residual = [100 * math.sqrt(total / len(of_arch)) for total in (plain, deep)]
        cells = [f"{residual[0]:.2f}%", f"{residual[1]:.2f}%", signed(100 * math.expm1(parameters[5])) + "%"]
        cells += [signed(100 * math.expm1(parameters[6])) + "%", f"{p:.0e}" if p < 5e-4 else f"{p:.3f}"]
        assert f"| {ARCHS[arch]} | {' | '.join(cells)} |" in PAGE
