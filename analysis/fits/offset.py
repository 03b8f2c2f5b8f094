"""By how much merged losses lie above decayed ones, fitted to pairs of both, and what is not known of it.

Pairs of one trunk share its error, so the trunk is the unit, as in a split plot: the slope in ln D is told by pairs of
one trunk, against each other; the mean and the slope in ln N by trunks, of which each counts once. With equal tokens
in every trunk these are least squares, and the intervals those of Student's t with the degrees of freedom of trunks,
whether or not trunks have an error of their own (Searle, Casella & McCulloch 1992, "Variance Components", chapter 4).
A slope is taken where it leaves two degrees of freedom, whether or not a test finds one. docs/research/merged-losses.md
has how often the intervals cover.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

LEAST_PAIRS, LEAST_SIZES = 3, 2
LEFT = 2  # degrees of freedom that a slope must leave
APART = 0.1  # least standard deviation across, in ln, of N and D of pairs that slopes are fitted to
REACH = 2.0  # times beyond the pairs' N and D: farther merged losses enter no fit


@dataclass(frozen=True)
class Calibration:
    """Of one architecture: pairs (size, trunk, n_params, n_tokens, offset), beta [3]: at `center` (ln N, ln D), and the
    slopes over ln N and ln D, 0 where none is told; root [3, 3] of its covariance, with df [3] degrees of freedom of
    its columns: those of trunks, and of pairs within them; scatter: standard deviation of a pair about it, of which
    `of_trunks` is shared by the pairs of a trunk (nan: not told apart); p [2]: of no slope in ln N, ln D (nan: not
    told)."""

    pairs: tuple[dict[str, Any], ...]
    center: np.ndarray
    beta: np.ndarray
    root: np.ndarray
    scatter: float
    of_trunks: float
    df: np.ndarray
    p: tuple[float, float]

    def _design(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        off = np.column_stack([np.log(n_params), np.log(n_tokens)]) - self.center
        return np.column_stack([np.ones(len(off)), off])

    def offset(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        """[m]: ln merged - ln decayed at N and D."""
        return np.asarray(self._design(n_params, n_tokens) @ self.beta)

    def error(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        """[m, 3]: times draws of Student's t with `df`, the error that the offsets have in common."""
        return np.asarray(self._design(n_params, n_tokens) @ self.root)

    def reaches(self, n_params: float, n_tokens: float) -> bool:
        found = ((n_params, "n_params"), (n_tokens, "n_tokens"))
        values = {key: [pair[key] for pair in self.pairs] for _, key in found}
        return all(min(values[key]) / REACH <= value <= max(values[key]) * REACH for value, key in found)

    def to_dict(self, level: float) -> dict[str, Any]:
        """As fits.json has it; interval: of the offset in the middle of the trunks at `level`, by Student's t."""
        half = float(stats.t.isf((1 - level) / 2, self.df[0])) * float(np.linalg.norm(self.root[0]))
        mean = float(self.beta[0])
        slopes = zip(("n_params", "n_tokens"), self.beta[1:].tolist(), self.p, strict=True)
        return {
            "n_pairs": len(self.pairs),
            "n_trunks": len({pair["trunk"] for pair in self.pairs}),
            "sizes": sorted({str(pair["size"]) for pair in self.pairs}),
            "pairs": list(self.pairs),
            "mean": mean,
            "interval": [mean - half, mean + half],
            "scatter": self.scatter,
            "scatter_of_trunks": None if math.isnan(self.of_trunks) else self.of_trunks,
            "df": int(self.df[0]),
            "slopes": {name: {"value": value, "p": p} for name, value, p in slopes if not math.isnan(p)},
        }


@dataclass(frozen=True)
class _Within:
    """Pairs against others of their trunk: slope in ln D (nan: not told), its variance, p of no slope, degrees of
    freedom; and the variance of a pair within its trunk (nan: no trunk has two)."""

    slope: float
    variance: float
    p: float
    df: int
    pair: float


def calibrate(pairs: list[dict[str, Any]]) -> Calibration | None:
    """None of fewer than three pairs, or of pairs at one size."""
    if len(pairs) < LEAST_PAIRS or len({pair["size"] for pair in pairs}) < LEAST_SIZES:
        return None
    names, trunk = np.unique([pair["trunk"] for pair in pairs], return_inverse=True)
    rows = np.array([[math.log(pair["n_params"]), math.log(pair["n_tokens"]), pair["offset"]] for pair in pairs])
    count = np.bincount(trunk)
    means = np.column_stack([np.bincount(trunk, column) / count for column in rows.T])
    center = means[:, :2].mean(0)
    within = _within(rows - means[trunk], len(names))
    told = not math.isnan(within.slope)
    x, held = _between(means[:, :2] - center, told)
    inverse = np.linalg.inv(x.T @ x)
    project = inverse @ x.T
    along = means[:, 1] - center[1]
    y = means[:, 2] - (within.slope * along if told else 0.0)
    coefficients = project @ y
    df = len(names) - x.shape[1]
    variance = float(((y - x @ coefficients) ** 2).sum()) / df  # of a trunk's mean
    beta, root, p = np.zeros(3), np.zeros((3, 3)), [math.nan, math.nan]
    beta[held] = coefficients
    root[np.ix_(held, range(len(held)))] = np.linalg.cholesky(inverse) * math.sqrt(variance)
    for i, column in enumerate(held):
        if column:
            p[column - 1] = _p(coefficients[i], inverse[i, i] * variance, df)
    if told:
        beta[2], p[1] = within.slope, within.p
        root[2, 2] = math.sqrt(within.variance)
        root[held, 2] = -(project @ along) * root[2, 2]
    dfs = np.array([df, df, within.df if told else df])
    of_trunks, scatter = math.nan, math.sqrt(variance)
    if not math.isnan(within.pair):
        shared = max(0.0, variance - within.pair * float((1 / count).mean()))
        of_trunks, scatter = math.sqrt(shared), math.sqrt(shared + within.pair)
    return Calibration(tuple(pairs), center, beta, root, scatter, of_trunks, dfs, (p[0], p[1]))


def _within(off: np.ndarray, n_trunks: int) -> _Within:
    """off [n, 3]: ln N, ln D and offset less the means of their trunks."""
    _, d, y = off.T
    df = len(y) - n_trunks
    if df - 1 >= LEFT and math.sqrt(float((d**2).mean())) >= APART:
        slope = float(d @ y / (d @ d))
        pair = float(((y - slope * d) ** 2).sum()) / (df - 1)
        variance = pair / float(d @ d)
        return _Within(slope, variance, _p(slope, variance, df - 1), df - 1, pair)
    return _Within(math.nan, math.nan, math.nan, df, float((y**2).sum()) / df if df else math.nan)


def _between(where: np.ndarray, told: bool) -> tuple[np.ndarray, list[int]]:
    """The design over trunks, and which of [1, ln N, ln D] it has. told: the slope in ln D is known already."""
    columns = [0, 1] if told else [0, 1, 2]
    x = np.column_stack([np.ones(len(where)), where])[:, columns]
    # D in proportion to N, but for whole batches, tells no slope in D from one in N
    spread = np.linalg.svd(x[:, 1:] / math.sqrt(len(x)), compute_uv=False)[-1]
    if len(x) - len(columns) < LEFT or spread < APART:
        return x[:, :1], [0]
    return x, columns


def _p(value: float, variance: float, df: int) -> float:
    return float(2 * stats.t.sf(abs(value) / math.sqrt(max(variance, 1e-300)), df))
