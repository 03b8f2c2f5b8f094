"""Which architectures' noise between seeds counts as one: those that a test does not separate.

One noisy architecture in a common pool widens the intervals of the quiet ones, and its own are too narrow. So the
architectures are put in order of the variance of their curves' means between seeds, and cut in two where the likelihood
ratio of two variances against one is largest (as Scott and Knott, 1974, cut means); the cut stands where a larger one
has a probability below CUT among equal variances with these degrees of freedom, which is simulated; then each part is
cut in the same way. The degrees are Satterthwaite's of each architecture's sum of squares (module noise); architectures
that read the same batches have variances that go together, and are then separated less often than CUT.

A test that finds nothing proves no equality: noise three times as large is often missed where an architecture has two
or three degrees of freedom, and intervals of the noisy one are then too narrow. A larger CUT finds it more often, and
takes degrees of freedom from architectures that are equal (docs/research/pooled-noise.md has both).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from analysis.fits.noise import Group, NoisePart, SeedNoise, pool_seed_noise

CUT = 0.1  # probability of a cut among equal variances
DRAWS = 4000  # of equal variances
LEAST = 1e-300  # variance: what seeds that end alike count as


@dataclass(frozen=True)
class SeedNoises:
    """The noise between seeds of several architectures. groups: their seeds; step: log C between neighbouring points
    of those."""

    groups: tuple[Group, ...]
    step: float = 0.0

    @cached_property
    def every(self) -> SeedNoise | None:
        """Of all architectures as one; None where no size has two seeds."""
        return self._pool(self.groups)

    @cached_property
    def kinds(self) -> list[list[str]]:
        """The architectures with seeds, in parts of one noise, the quietest first."""
        own = {arch: self._pool([group for group in self.groups if group.arch == arch]) for arch in self._archs()}
        known = {arch: noise for arch, noise in own.items() if noise is not None}
        names = list(known)
        variances = [float(noise.of_means or 0.0) ** 2 for noise in known.values()]
        return [[names[i] for i in part] for part in separated(variances, [noise.df for noise in known.values()])]

    def of(self, arch: str) -> SeedNoise | None:
        """Of an architecture and those not separated from it; of all where it has no seeds of its own."""
        return self._pool([group for group in self.groups if group.arch in self._like(arch)])

    def of_others(self, arch: str) -> SeedNoise | None:
        """Of those not separated from an architecture, without it; of all others where it has no seeds."""
        return self._pool([group for group in self.groups if group.arch in self._like(arch) and group.arch != arch])

    def parts(self) -> list[NoisePart]:
        """Of each part, quietest first."""
        parts = []
        for part in self.kinds:
            noise = self.of(part[0])
            assert noise is not None
            parts.append(NoisePart(tuple(part), noise.s, noise.df, noise.of_means))
        return parts

    def _like(self, arch: str) -> list[str]:
        return next((part for part in self.kinds if arch in part), self._archs())

    def _archs(self) -> list[str]:
        return list(dict.fromkeys(group.arch for group in self.groups))

    def _pool(self, groups: Sequence[Group]) -> SeedNoise | None:
        return pool_seed_noise(groups, self.step)


def separated(variances: Sequence[float], df: Sequence[float], level: float = CUT) -> list[list[int]]:
    """Variances with so many degrees of freedom, by index, in parts of one variance, the smallest first."""
    if not len(variances):
        return []
    order = [int(i) for i in np.argsort(variances, kind="stable")]
    values, known = np.maximum([variances[i] for i in order], LEAST), np.array([float(df[i]) for i in order])
    if len(order) == 1:
        return [order]
    ratios = _ratios(values[None], known[None])[0]
    at = int(ratios.argmax()) + 1
    if float((_largest_among_equal(tuple(sorted(np.round(known, 1).tolist()))) >= ratios[at - 1]).mean()) >= level:
        return [order]
    return [
        [part[i] for i in some]
        for part in (order[:at], order[at:])
        for some in separated([variances[i] for i in part], [df[i] for i in part], level)
    ]


def _ratios(variances: np.ndarray, df: np.ndarray) -> np.ndarray:
    """[r, n - 1]: twice the log likelihood ratio of two variances against one, for each cut of variances [r, n], in
    order, with df [r, n] degrees of freedom."""
    squares, known = np.cumsum(df * variances, 1), np.cumsum(df, 1)
    total, low, high = squares[:, -1:], squares[:, :-1], squares[:, -1:] - squares[:, :-1]
    whole, first, second = known[:, -1:], known[:, :-1], known[:, -1:] - known[:, :-1]
    return np.asarray(
        whole * np.log(total / whole) - first * np.log(low / first) - second * np.log(np.maximum(high, LEAST) / second)
    )


@cache
def _largest_among_equal(df: tuple[float, ...]) -> np.ndarray:
    """[DRAWS]: the largest ratio of any cut, among variances that are equal."""
    known = np.array(df)
    drawn = np.random.default_rng(0).chisquare(known, (DRAWS, len(df))) / known
    order = np.argsort(drawn, 1)
    return np.asarray(_ratios(np.take_along_axis(drawn, order, 1), known[order]).max(1))
