"""Which runs of one size are seeds of each other, the curve that stands for a size, and the noise between seeds.

Seeds share a recipe (all that decides a loss but the seed), reach the same tokens, and come from different trunks:
branches of one trunk share its noise, and runs of other lengths have other schedules. What two seeds differ by is seed
noise, and nothing else is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.fits.cost import cost_of
from analysis.fits.noise import Group, SeedNoise, SeedNoises
from analysis.fits.points import COPIED, SAME_SEED, Points
from analysis.fits.smooth import average_seeds, read_at
from arch.amounts import count, counted, counted_of
from arch.errors import InputError

SAME_D = 0.02  # of D, within which two runs are trained to the same tokens
MIN_SIZES = 2  # of an envelope
NOISE_STEP = 0.05  # log C or D between the points at which seeds are compared
ENDS_EARLY = "runs of its size train on more tokens"
OTHER_RECIPE = "runs of its size by another recipe end lower"
Trunk = list[np.ndarray]  # of each of its branches, most often one, the rows, by rising tokens


@dataclass(frozen=True, eq=False)
class SizeCurve:
    """One size's smoothed curve, its seeds averaged in log loss. C in FLOP of one convention; loss in nats a token.

    Before `warmup_tokens` a point counts as inside warm-up: with a smoothed loss, until the whole window has left it.
    """

    size: str
    n_params: float
    flops_per_token: float
    warmup_tokens: float
    n_seeds: int
    log_c: np.ndarray
    log_loss: np.ndarray

    @property
    def warm_until(self) -> float:
        """log C at the end of the warm-up."""
        return math.log(max(self.warmup_tokens, 1e-300) * self.flops_per_token)

    @property
    def settled_from(self) -> float:
        """log C from which on the curve counts: after its warm-up."""
        return max(float(self.log_c[0]), self.warm_until)

    def read(self, log_c: np.ndarray) -> np.ndarray:
        """Log loss at log C; +inf outside the curve."""
        return read_at(self.log_c, self.log_loss, log_c)


@dataclass(frozen=True)
class Size:
    """The runs of one number of parameters. seeds: groups of trunks that are seeds of each other, the last of which
    stands for the size; left_out: of the other runs, {run: why}."""

    points: Points
    seeds: list[list[Trunk]]
    left_out: dict[str, str]

    @property
    def row(self) -> int:
        """The first row of the runs that stand for the size."""
        return int(self.seeds[-1][0][0][0])

    @property
    def n_params(self) -> float:
        return float(self.points.n_params[self.row])

    @property
    def runs(self) -> list[str]:
        """Those that the size's curve is made of."""
        return self.names(self.seeds[-1])

    def names(self, trunks: Sequence[Trunk]) -> list[str]:
        return [str(self.points.run[rows[0]]) for trunk in trunks for rows in trunk]

    def unpaired(self) -> list[str]:
        """Of a size with several runs, those that are no seeds of others."""
        paired = {name for group in self.seeds if len(group) > 1 for name in self.names(group)}
        every = dict.fromkeys([*(name for group in self.seeds for name in self.names(group)), *self.left_out])
        return [name for name in every if name not in paired] if len(every) > 1 else []


def seed_groups(recipes: Sequence[str], tokens: Sequence[float], losses: Sequence[float]) -> list[list[int]]:
    """Runs (or trunks), by index, in groups of one recipe that reach the same tokens, within SAME_D of a group's most.

    The last group is the one whose mean stands for the size: of those that reach the most tokens, the one of the lowest
    mean of `losses` (at the end).
    """
    groups: list[list[int]] = []
    by_recipe: dict[str, list[int]] = {}
    for i, recipe in enumerate(recipes):
        by_recipe.setdefault(recipe, []).append(i)
    for mine in by_recipe.values():
        most = 0.0
        for i in sorted(mine, key=lambda i: -tokens[i]):  # stable: seeds stay in their order
            if tokens[i] < (1 - SAME_D) * most or not most:
                groups.append([])
                most = tokens[i]
            groups[-1].append(i)
    farthest = max(tokens, default=0.0)

    def rank(group: list[int]) -> tuple[float, float]:
        reached = max(tokens[i] for i in group)
        full = reached >= (1 - SAME_D) * farthest
        return (farthest if full else reached, -sum(losses[i] for i in group) / len(group))

    return sorted(groups, key=rank)


def beaten(recipes: Sequence[str], tokens: Sequence[float], losses: Sequence[float]) -> list[int]:
    """Of runs of one N, by index, those that end at the D of another recipe's, which ends lower (as low: is first)."""
    groups = sorted(
        seed_groups(recipes, tokens, losses),
        key=lambda group: (float(np.mean([losses[i] for i in group])), min(group)),
    )
    kept: list[list[int]] = []
    gone: list[int] = []
    for group in groups:
        reached = max(tokens[i] for i in group)
        others = [max(tokens[i] for i in other) for other in kept if recipes[other[0]] != recipes[group[0]]]
        if any(min(other, reached) >= (1 - SAME_D) * max(other, reached) for other in others):
            gone += group
        else:
            kept.append(group)
    return gone


def ends_of(run: np.ndarray, n_tokens: np.ndarray) -> list[int]:
    """Of each run, in their order, the index of its point with the most tokens."""
    names = pd.Series(run.astype(str))
    return pd.Series(n_tokens).groupby(names.to_numpy(), sort=False).idxmax().tolist()


def sizes_of(points: Points) -> list[Size]:
    """The sizes, smallest first, of points of whole curves. A run that is another one under another name is no run, nor
    is one of a recipe and seed again; of a trunk, the branches that reach its most tokens count."""
    copied, again = points.copied, points.trained_again
    by_size: dict[float, dict[str, list[np.ndarray]]] = {}
    left_out: dict[float, dict[str, str]] = {}
    for run, rows in points.rows_of_runs.items():
        n_params = float(points.n_params[rows[0]])
        if copied[rows[0]] or again[rows[0]]:
            left_out.setdefault(n_params, {})[str(run)] = COPIED if copied[rows[0]] else SAME_SEED
            continue
        rows = rows[np.argsort(points.n_tokens[rows], kind="stable")]
        by_size.setdefault(n_params, {}).setdefault(str(points.trunk[rows[0]]), []).append(rows)
    return [_size(points, trunks, left_out.get(n_params, {})) for n_params, trunks in sorted(by_size.items())]


def _size(points: Points, trunks: Mapping[str, list[np.ndarray]], left_out: dict[str, str]) -> Size:
    whole: list[Trunk] = []
    for branches in trunks.values():
        *short, longest = _seeds(points, [[rows] for rows in branches])
        whole.append([trunk[0] for trunk in longest])
        left_out |= {str(points.run[trunk[0][0]]): ENDS_EARLY for group in short for trunk in group}
    seeds = _seeds(points, whole)
    farthest = max(float(points.n_tokens[rows[-1]]) for trunk in seeds[-1] for rows in trunk)
    for rows in (rows for group in seeds[:-1] for trunk in group for rows in trunk):
        is_short = float(points.n_tokens[rows[-1]]) < (1 - SAME_D) * farthest
        left_out[str(points.run[rows[0]])] = ENDS_EARLY if is_short else OTHER_RECIPE
    return Size(points, seeds, left_out)


def _seeds(points: Points, trunks: Sequence[Trunk]) -> list[list[Trunk]]:
    """Trunks in groups of seeds of each other; the last stands for the size."""
    ends = [max(runs, key=lambda rows: float(points.n_tokens[rows[-1]]))[-1] for runs in trunks]
    groups = seed_groups(
        [str(points.recipe[end]) for end in ends],
        [float(points.n_tokens[end]) for end in ends],
        [float(np.mean([math.log(points.loss[rows[-1]]) for rows in runs])) for runs in trunks],
    )
    return [[trunks[i] for i in group] for group in groups]


def _curve(points: Points, branches: Trunk, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The logarithms of `steps` [n], C or D, and of the loss of one trunk, its branches averaged where they overlap."""
    return average_seeds([(np.log(steps[rows]), np.log(points.loss[rows])) for rows in branches])


def curves_of(sizes: Sequence[Size], per_token: Sequence[float]) -> list[SizeCurve]:
    """One curve a size over C, at its FLOP a token: the mean log loss of the trunks that stand for it (its seeds), each
    the mean of its branches. Sizes whose trunks share fewer than two points have none."""
    curves = []
    for size, flops in zip(sizes, per_token, strict=True):
        points, first, trunks = size.points, size.row, size.seeds[-1]
        log_tokens, log_loss = average_seeds([_curve(points, trunk, points.n_tokens) for trunk in trunks])
        if len(log_tokens) > 1:
            named = str(points.size[first]), size.n_params, float(flops)
            warmup, log_c = float(points.warmup_tokens[first]), log_tokens + np.log(float(flops))
            curves.append(SizeCurve(*named, warmup, len(trunks), log_c, log_loss))
    return curves


def size_curves(points: Points) -> list[SizeCurve]:
    """The curves of points that nothing else is known of; `not_in_curves` says what they leave out. Raises InputError
    where a run has a single row, C / D changes within a size, or there are fewer than two sizes."""
    cost_of(points)  # refuses several costs of a size
    points = points.take(~points.copied)
    short = [run for run, rows in points.rows_of_runs.items() if len(rows) < 2]
    if short:
        raise InputError(
            f"the envelope needs curves, several rows a run: "
            f"{counted_of(len(short), points.n_runs, 'run', 'has', 'have')} one row ({short[0]})"
        )
    sizes = sizes_of(points)
    if len(sizes) < MIN_SIZES:
        raise InputError(
            f"the envelope needs at least {MIN_SIZES} sizes, there is one (N = {count(float(points.n_params[0]), 6)})"
        )
    log_cost = np.log(points.flops / points.n_tokens)
    own = [math.exp(log_cost[points.n_params == size.n_params].mean()) for size in sizes]
    curves = curves_of(sizes, own)
    for size in sizes:
        if size.n_params not in {curve.n_params for curve in curves}:
            name = points.size[size.row]
            raise InputError(f"the runs of size {name} share fewer than two rows of compute: they cannot be averaged")
    return curves


def not_in_curves(points: Points) -> list[str]:
    """What `size_curves` leaves out, in words: runs that are another under another name, and those that end early."""
    sizes, recipes = sizes_of(points), set(points.recipe[~points.copied].tolist())
    reasons = [why for size in sizes for why in size.left_out.values()]
    gone = reasons.count(COPIED)
    short = len(reasons) - gone
    words = [f"{counted(gone, 'run')} with {COPIED}"] if gone else []
    other = " or are of another recipe" if len(recipes) > len(sizes) else ""
    return words + (
        [f"{counted(short, 'run that ends', 'runs that end')} before the longest of their size{other}"] if short else []
    )


def seed_noises_of(
    groups: Sequence[Points], reach: Mapping[str, Sequence[float]] | None = None, along: str = "flops"
) -> SeedNoises:
    """Noise between seeds of groups, of which those count as one that are not told apart. reach: by group, the stretch
    of C [FLOP] in which its seeds are compared; of others it is all that they have in common. along: `flops` or
    `n_tokens`, over which they are read: to rounding the same, but rounding decides whether two sizes that begin
    together share their first point (`noise.degrees`)."""
    measured = []
    for points in groups:
        stretch = (reach or {}).get(points.group, (1e-300, 1e300))
        for size in sizes_of(points):
            for trunks in size.seeds:
                group = _compared(size, trunks, stretch, getattr(points, along))
                measured += [] if group is None else [group]
    return SeedNoises(tuple(measured), NOISE_STEP)


def _compared(size: Size, trunks: Sequence[Trunk], stretch: Sequence[float], steps: np.ndarray) -> Group | None:
    """The seeds of a size at equal `steps` [n] (C or D) after warm-up, within `stretch` [FLOP]; None where fewer than
    two share a stretch."""
    points, first = size.points, trunks[0][0][0]
    curves = [(_curve(points, trunk, steps), trunk) for trunk in trunks]
    curves = [(curve, trunk) for curve, trunk in curves if len(curve[0]) > 1]
    if len(curves) < 2:
        return None
    low, high = np.log(stretch)
    per_token, per_step = np.log(steps[first] / points.n_tokens[first]), np.log(points.flops[first] / steps[first])
    warm = math.log(max(float(points.warmup_tokens[first]), 1.0)) + per_token
    start = max(low - per_step, warm, *(curve[0][0] for curve, _ in curves))
    end = min(high - per_step, *(curve[0][-1] for curve, _ in curves))
    if start >= end:
        return None
    at = np.arange(start, end, NOISE_STEP)
    table = np.stack([read_at(*curve, at) for curve, _ in curves])
    names = tuple(size.names([trunk for _, trunk in curves]))
    cells = tuple(str(points.cell[trunk[0][0]]) for _, trunk in curves)
    return Group(points.group, str(points.size[first]), table, names, cells, at - per_token)


def seed_noise_of(groups: Sequence[Points]) -> SeedNoise | None:
    """Noise between seeds, pooled over all groups; None without such."""
    return seed_noises_of(groups).every
