"""What a study would train: sizes, tokens of each, seeds, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.fits.cost import Cost

CURVE = 12  # points that stand for a run's curve
FIRST = 0.1  # of its tokens: where they begin


@dataclass(frozen=True)
class Rows:
    """The points that the proposal's fit reads, of one architecture: arrays [n]. `run` and `trunk` are numbers; points
    of one run share its noise, runs of one trunk the trunk's."""

    n_params: np.ndarray
    n_tokens: np.ndarray
    run: np.ndarray
    trunk: np.ndarray
    size: np.ndarray

    def __len__(self) -> int:
        return len(self.n_params)


@dataclass(frozen=True)
class Proposal:
    """targets [k]: non-embedding parameters of the sizes; tokens [k]: D of each size's end points, ascending; seeds
    [k]: how many of each size. decay: the share of D over which a branch's rate falls, its trunk being shared by all D
    of a size and seed; None: every D is a run of its own at a constant rate. curves: the fit reads whole curves."""

    name: str
    targets: tuple[float, ...]
    tokens: tuple[tuple[float, ...], ...]
    seeds: tuple[int, ...]
    decay: float | None = None
    curves: bool = False

    @property
    def n_runs(self) -> int:
        """End points, of one architecture."""
        return sum(len(own) * seeds for own, seeds in zip(self.tokens, self.seeds, strict=True))

    @property
    def trained(self) -> np.ndarray:
        """[k] tokens that are trained at each size, all seeds together: a branch trains its decay alone."""
        found = []
        for own, seeds in zip(self.tokens, self.seeds, strict=True):
            alone = sum(own) if self.decay is None else max(own) * (1 - self.decay) + self.decay * sum(own)
            found.append(alone * seeds)
        return np.array(found)

    def flops(self, cost: Cost) -> float:
        """Training FLOP of one architecture under the convention of `cost`."""
        return float((self.trained * cost.per_token(np.array(self.targets))).sum())

    def largest(self, cost: Cost) -> float:
        """C of the most expensive end point."""
        ends = np.array([max(own) for own in self.tokens])
        return float((ends * cost.per_token(np.array(self.targets))).max())

    def scaled(self, times: float) -> Proposal:
        """The same with `times` as many tokens everywhere."""
        tokens = tuple(tuple(d * times for d in own) for own in self.tokens)
        return Proposal(self.name, self.targets, tokens, self.seeds, self.decay, self.curves)

    def rows(self) -> Rows:
        """The points of the fit."""
        found: list[tuple[float, float, int, int, int]] = []
        run = trunk = 0
        for rank, (target, own, seeds) in enumerate(zip(self.targets, self.tokens, self.seeds, strict=True)):
            for _ in range(seeds):
                for end in own:
                    along = end * np.geomspace(FIRST, 1, CURVE) if self.curves else np.array([end])
                    found += [(target, float(d), run, trunk, rank) for d in along]
                    run += 1
                    trunk += self.decay is None
                trunk += self.decay is not None
        table = np.array(found)
        whole = table[:, 2:].astype(int)
        return Rows(table[:, 0], table[:, 1], whole[:, 0], whole[:, 1], whole[:, 2])
