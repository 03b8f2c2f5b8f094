"""Two architectures, variants or trainings, one against the other: what every comparison is made of, and the only
verdict on a pair.

one = Comparison("tnl", "hgrn2", LOSS, 1e16, Estimate(1.013, 1.002, 1.025))
one.verdict             # WORSE: the whole interval lies above 1
Pair("tnl", "hgrn2", one, {"C exact": other}).verdict
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from analysis.fits.fit import Claim, Estimate, Stored

LOSS, COMPUTE = "loss", "compute"  # losses after equal compute or tokens; compute for the same loss
BETTER, WORSE, UNDECIDED, UNKNOWN, DISPUTED = "better", "worse", "undecided", "not known", "depends on the measure"


@dataclass(frozen=True)
class Comparison(Stored):
    """`other` against `reference`. of: LOSS or COMPUTE; at: the compute [FLOP] of the comparison, the reference's where
    compute is compared; ratio: of the other's to the reference's, above 1 where the other is worse."""

    other: str
    reference: str
    of: str
    at: float
    ratio: Estimate

    @property
    def verdict(self) -> str:
        """WORSE or BETTER where the whole interval says so, UNDECIDED where it holds 1, UNKNOWN without one."""
        if self.ratio.value is None or self.ratio.interval is None:
            return UNKNOWN
        low, high = self.ratio.interval
        return WORSE if low > 1 else BETTER if high < 1 else UNDECIDED

    @property
    def more(self) -> Estimate:
        """The ratio less 1: what the other has more, as a share."""
        value, ends = self.ratio.value, self.ratio.interval
        return Estimate.of(value and value - 1, ends and [end - 1 for end in ends], self.ratio.reason)

    def against(self, reference: str) -> Comparison:
        """The same comparison with this one of the two as the reference."""
        if reference == self.reference:
            return self
        value, ends = self.ratio.value, self.ratio.interval
        turned = None if ends is None else [1 / end if end > 0 else math.inf for end in reversed(ends)]
        ratio = Estimate.of(1 / value if value else None, turned, self.ratio.reason)
        return replace(self, other=self.reference, reference=reference, ratio=ratio)


def compared(
    other: str, reference: str, of: str, at: float, log_ratio: float, ends: Iterable[float] | None, reason: str = ""
) -> Comparison:
    """From the logarithm of the ratio and the ends of its interval (None: without one)."""
    interval = None if ends is None else [_exp(end) for end in ends]
    return Comparison(other, reference, of, at, Estimate.of(_exp(log_ratio), interval, reason))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


@dataclass(frozen=True)
class Pair:
    """All that is known of `other` against `reference`. loss: measured, at equal compute (None: not compared); compute:
    for the same loss at optimal sizes, by the way that compute and size are counted, the study's own first (None: not
    compared under it)."""

    other: str
    reference: str
    loss: Comparison | None = None
    compute: dict[str, Comparison | None] = field(default_factory=dict)

    @property
    def verdicts(self) -> list[str]:
        """On compute, by each count."""
        return [UNKNOWN if comparison is None else comparison.verdict for comparison in self.compute.values()]

    @property
    def by_count(self) -> str:
        """The verdict on compute, which must be the same by every count."""
        return _joint_verdict(self.verdicts, every=True)

    @property
    def verdict(self) -> str:
        """WORSE or BETTER where the measured loss or the compute by every count says so and nothing says the opposite,
        DISPUTED where both are said, UNDECIDED where neither is."""
        known = [comparison.verdict for comparison in (self.loss, *self.compute.values()) if comparison is not None]
        if WORSE in known and BETTER in known:
            return DISPUTED
        return _joint_verdict([self.loss.verdict if self.loss else UNKNOWN, self.by_count], every=False)


def _joint_verdict(verdicts: list[str], every: bool) -> str:
    """Of several: WORSE or BETTER where one, or `every` one, is it."""
    for verdict in (WORSE, BETTER):
        if verdict in verdicts and not (every and set(verdicts) != {verdict}):
            return verdict
    return UNKNOWN if set(verdicts) <= {UNKNOWN} else UNDECIDED


@dataclass(frozen=True)
class View(Stored):
    """Architectures compared by their fitted surfaces, with compute and size counted in one way. archs: the one with
    the lowest loss first; range: of the compute that all reached; beyond: a compute outside of it that is compared too
    (None: `beyond_reason`); shared_e: whether they share one E; p_shared_e: the p value of that; compute: of every pair
    at each compute, with intervals that hold for all of them at once.

    reason: why there is no comparison ("": there is)."""

    archs: tuple[str, ...] = ()
    range: tuple[float, float] = (0.0, 0.0)
    beyond: float | None = None
    beyond_reason: str = ""
    shared_e: bool = True
    p_shared_e: float = 1.0
    compute: tuple[Comparison, ...] = ()
    reason: str = ""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(other, reference), as they are compared."""
        return list(dict.fromkeys((comparison.other, comparison.reference) for comparison in self.compute))

    def at(self, other: str, reference: str, beyond: bool = False) -> Comparison | None:
        """The compute of a pair at the end of the range, or beyond it; None where these are not compared there."""
        c, names = self.beyond if beyond else self.range[1], {other, reference}
        known = (
            comparison
            for comparison in self.compute
            if comparison.at == c and {comparison.other, comparison.reference} == names
        )
        return next((comparison.against(reference) for comparison in known), None)


@dataclass(frozen=True)
class Compared(Stored):
    """Architectures (or points of one) whose losses can be compared, by every way of counting compute and size. at:
    what they share of the axes ("": no axes); reason: why there is no comparison ("": there is); rankings: under the
    study's own counts, which of each pair has the lower loss at the end of the range and at ten times it, where their
    laws tell."""

    at: str = ""
    views: dict[str, View] = field(default_factory=dict)
    reason: str = ""
    rankings: tuple[Claim, ...] = ()

    @property
    def main(self) -> View | None:
        """Under the study's own counts; None where they could not be compared under these."""
        view = next(iter(self.views.values()), None)
        return None if view is None or view.reason else view

    def ranking(self, other: str, reference: str, reach: float) -> Claim | None:
        """Of two at so many times the end of the range; None where their laws do not tell."""
        c = reach * (self.main.range[1] if self.main else 0.0)
        mine = {f"{first} {BETTER} than {second}" for first, second in ((other, reference), (reference, other))}
        return next((claim for claim in self.rankings if claim.what in mine and math.isclose(claim.c, c)), None)

    def pair(self, other: str, reference: str, loss: Comparison | None = None) -> Pair:
        """All that is known of two; loss: measured; their compute at the end of the range."""
        compute = {name: view.at(other, reference) for name, view in self.views.items()}
        return Pair(other, reference, loss, compute)
