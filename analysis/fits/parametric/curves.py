"""What of a table enters a parametric fit: no transients, no row twice, every run with the same weight.

The surface describes losses late in training. A curve's first stretch (warm-up, then the fall from the loss of
guessing) is not on it: rows up to `warmup_tokens` go, and rows before `first_share` of their run's last D. End points
stay. A curve of more than 64 rows becomes 64: rows between neighbouring D, evenly spaced in log D, are averaged in
logarithms, which loses nothing that a fit could tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.points import COPIED, Points
from arch.amounts import count
from arch.errors import InputError

MOST_ROWS = 64  # of a run
FIRST_SHARE = 0.1  # of a run's tokens; one row a run is its last and is kept
SAME = 0.01  # of log N, log D: closer ones are one size, one amount of tokens
LEAST_DISTINCT = 3  # of N and of D: a level, a coefficient and an exponent each
LEAST_POINTS = 6  # different (N, D): five parameters, and one more to tell how well they fit
MOST_RATIO = 1e6  # of the largest loss to the smallest: beyond it a surface of the others is lost in rounding
LEAST_SPREAD = 0.05  # of log D around a line in log N: where D follows N, nothing tells their terms apart


@dataclass(frozen=True)
class Prepared:
    """Points as fitted, weights [n] of which every run's sum to one, and what was left out and why, by count."""

    points: Points
    weights: np.ndarray
    left_out: dict[str, int]


def prepare(points: Points, warmup_tokens: float = 0.0, first_share: float = FIRST_SHARE) -> Prepared:
    """Leave out rows given twice and transients, and weight runs equally.

    A row given twice has the same numbers and the same run (or none named). Runs with the same numbers, to the last
    bit, count once, whatever their names: as two they would tell of noise, and it would be none.
    Raises InputError for a run with two losses at one D, for losses further apart than MOST_RATIO, and where nothing is
    left.
    """
    n = len(points)
    names = points.run.astype(str)
    unnamed = np.char.startswith(names, "row ")  # as Points and tables call runs without a name
    numbers = ("n_params", "n_tokens", "flops", "loss", "unique_tokens")
    table = pd.DataFrame({"run": np.where(unnamed, "", names), **{name: getattr(points, name) for name in numbers}})
    keep = ~table.duplicated().to_numpy()
    named = table[keep & ~unnamed]
    if (twice := named.duplicated(["run", "n_tokens"])).any():
        second = int(named.index[twice][0])
        first = int(np.flatnonzero((names == names[second]) & (points.n_tokens == points.n_tokens[second]))[0])
        raise InputError(
            f"rows {points.row[first]} and {points.row[second]}: run {names[second]} has two rows with "
            f"{points.n_tokens[second]:.6g} tokens; give every run its own name"
        )
    left_out = {"rows given twice": int((~keep).sum())}
    again = np.zeros(n, dtype=bool)
    again[keep] = points.take(keep).copied
    keep &= ~again
    left_out[f"rows with {COPIED}"] = int(again.sum())
    warm = keep & (points.n_tokens <= warmup_tokens)
    early = keep & ~warm & (points.run_share < first_share)
    left_out |= {"rows of warm-up": int(warm.sum()), f"rows before {first_share:g} of their run": int(early.sum())}
    kept = points.take(keep & ~warm & ~early)
    if not len(kept):
        raise InputError(f"a parametric fit needs points; none of {n} rows is left after {count(warmup_tokens)} tokens")
    low, high = int(kept.loss.argmin()), int(kept.loss.argmax())
    if kept.loss[high] > MOST_RATIO * kept.loss[low]:
        raise InputError(
            f"losses run from {kept.loss[low]:.4g} (row {kept.row[low]}) to {kept.loss[high]:.4g} (row "
            f"{kept.row[high]}), which no surface describes: leave out what diverged"
        )
    before = len(kept)
    kept = averaged(kept)
    left_out[f"rows averaged with their neighbours in log D, {MOST_ROWS} a run"] = before - len(kept)
    _, where, rows = np.unique(kept.run.astype(str), return_inverse=True, return_counts=True)
    return Prepared(kept, 1.0 / rows[where], {key: count for key, count in left_out.items() if count})


def averaged(points: Points, most: int = MOST_ROWS) -> Points:
    """Points with at most `most` rows a run: geometric means of D, C, L and unique tokens in even steps of log D."""
    _, run, rows = np.unique(points.run.astype(str), return_inverse=True, return_counts=True)
    if rows.max() <= most:
        return points
    log_d = np.log(points.n_tokens)
    low, high = np.full(len(rows), np.inf), np.full(len(rows), -np.inf)
    np.minimum.at(low, run, log_d)
    np.maximum.at(high, run, log_d)
    share = (log_d - low[run]) / np.maximum(high - low, 1e-300)[run]
    cell = np.where(rows[run] > most, np.minimum(share * most, most - 1).astype(int), most + np.arange(len(log_d)))
    _, first, which = np.unique(np.column_stack([run, cell]), axis=0, return_index=True, return_inverse=True)
    values: dict[str, Any] = {
        name: np.exp(np.bincount(which, np.log(getattr(points, name))) / np.bincount(which))
        for name in ("n_tokens", "flops", "loss", "unique_tokens")
    }
    return replace(points.take(first), **values)


def check_design(log_n: np.ndarray, log_d: np.ndarray, more: int = 0) -> None:
    """Raises InputError, saying how many are needed, where these N and D [n] cannot identify five parameters, and
    `more` that a form has beside them (-1: one less)."""
    wanted = f"L = E + A / N^alpha + B / D^beta needs {LEAST_DISTINCT} or more different"
    for name, values in (("N", log_n), ("D", log_d)):
        found = len(np.unique(_groups(values)))
        if found < LEAST_DISTINCT:
            raise InputError(f"{wanted} {name}; these points have {found}")
    both = len(np.unique(np.column_stack([_groups(log_n), _groups(log_d)]), axis=0))
    if both < LEAST_POINTS + more:
        what = "L = E + A / N^alpha + B / D^beta" + (
            " with repeated data" if more > 0 else " with alpha = beta" * -more
        )
        raise InputError(f"{what} needs {LEAST_POINTS + more} or more different (N, D); {both} given")
    x = log_n - log_n.mean()
    off = log_d - log_d.mean() - (x @ log_d / (x @ x)) * x
    if off.std() < LEAST_SPREAD:
        raise InputError(
            f"D follows N in these points (within {100 * off.std():.2g}% of a power law), so the terms of N and D "
            "cannot be told apart: train some sizes on other amounts of tokens"
        )


def has_design(log_n: np.ndarray, log_d: np.ndarray) -> bool:
    """Whether these N and D [n] can identify the five parameters of the plain form."""
    try:
        check_design(log_n, log_d)
    except InputError:
        return False
    return True


def check_repeats(times: np.ndarray) -> None:
    """Raises InputError where D over unique tokens, `times` [n], is the same above 1 for all: D' is then D times a
    number, and nothing tells what repeated tokens are worth."""
    if times.min() > 1 + SAME and times.max() < times.min() * (1 + SAME):
        raise InputError(
            f"all points read their text {times.min():.3g} times: what repeated tokens are worth shows where "
            "runs read it differently often"
        )


def _groups(values: np.ndarray) -> np.ndarray:
    """[n]: a number for each group of values within SAME of its lowest: rows of a dense curve, each close to the next,
    are not all one."""
    ordered = np.unique(values)
    firsts = []
    at = 0
    while at < len(ordered):
        firsts.append(ordered[at])
        at = int(np.searchsorted(ordered, ordered[at] + SAME, side="right"))
    return np.searchsorted(np.array(firsts), values, side="right")
