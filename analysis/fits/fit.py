"""A fitted law, by whatever approach: what `scaling fit` prints, what fits.json stores and what reports read.

from analysis.fits.approaches import fit
found = fit(points, "parametric", at=[1e22])
found.a.value, found.a.interval         # N_opt ~ C^a
found.optima[0].n_params                # N_opt at 1e22 FLOP: an Estimate
found.law("N_opt").at(3e21)             # the same by its power law
found.to_dict(), Fit.from_dict(...)     # as JSON, and back
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, TypeAdapter

from arch.bands import NEAR as NEAR
from arch.bands import Band as Band

ENVELOPE, ISOFLOP, PARAMETRIC = "envelope", "isoflop", "parametric"
APPROACHES = (ENVELOPE, ISOFLOP, PARAMETRIC)
N_OPT, D_OPT, L_OPT = "N_opt", "D_opt", "L_opt"
QUANTITIES = (N_OPT, D_OPT, L_OPT)
FAR = 100.0  # times beyond the computes of a fit: from there on no rehearsal comes near, and the form alone speaks
MOST_LOG = 700.0  # of a float
BELIEVE, DO_NOT = "believe", "do not believe"
PASSED, FAILED, NOT_DONE = "passed", "failed", "not done"  # states of a check


Float = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]  # null where not finite


class Stored:
    """A dataclass that is stored as JSON and read back."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers at full precision, null for what is not finite."""
        stored: dict[str, Any] = json.loads(TypeAdapter(type(self)).dump_json(self))
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The inverse. Raises ValueError for what `to_dict` did not write."""
        return TypeAdapter(cls).validate_json(json.dumps(stored), strict=True)


@dataclass(frozen=True)
class Estimate(Stored):
    """A number with its interval. value: None where it is not known; low, high: both None without an interval, one of
    them where it has no end on that side; reason: why there is no value, or no interval where others have one."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):  # as JSON has them
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                object.__setattr__(self, name, None)

    @classmethod
    def of(cls, value: float | None, ends: Any = None, reason: str = "") -> Estimate:
        """ends: (low, high), or None without an interval."""
        low, high = ends if ends is not None else (None, None)
        return cls(value, low, high, reason)

    @property
    def interval(self) -> tuple[float, float] | None:
        """(low, high), infinite on a side without an end; None without an interval."""
        if self.low is None and self.high is None:
            return None
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    @property
    def ends(self) -> tuple[float, float] | None:
        """(low, high) where both are finite, else None."""
        return None if self.low is None or self.high is None else (self.low, self.high)


NOTHING = Estimate()


@dataclass(frozen=True)
class InverseLine:
    """x = log C at which y is optimal: x = level + slope (y - centre); y is log N, or log of a token's cost.

    covariance [2, 2] of (level, slope) for a noise of 1 in log loss; error: half an interval's width in units of a
    parameter's standard error for that noise (None: the noise is not known); of_tokens: the law is of D = C / y, where
    y is the cost of a token.
    """

    level: float
    slope: float
    centre: float
    covariance: tuple[tuple[float, float], tuple[float, float]]
    error: float | None = None
    of_tokens: bool = False

    @property
    def exponent(self) -> float:
        """Of the law over C."""
        return 1 - 1 / self.slope if self.of_tokens else 1 / self.slope

    @property
    def steepest(self) -> float | None:
        """The upper end of the interval of dy / dx, infinite where a slope of 0 belongs to it; None without one."""
        if self.error is None:
            return None
        low = self.slope - self.error * math.sqrt(self.covariance[1][1])
        return 1 / low if low > 0 else math.inf

    def exponent_interval(self) -> tuple[float, float] | None:
        """None where the noise is not known, or a slope of 0 belongs to it."""
        if self.error is None or self.steepest is None or math.isinf(self.steepest):
            return None
        flattest = 1 / (self.slope + self.error * math.sqrt(self.covariance[1][1]))
        return (1 - self.steepest, 1 - flattest) if self.of_tokens else (flattest, self.steepest)

    def log_value(self, log_c: float) -> float:
        """log N_opt or log D_opt."""
        y = self.centre + (log_c - self.level) / self.slope
        return log_c - y if self.of_tokens else y

    def log_interval(self, log_c: float) -> tuple[float, float] | None:
        """Fieller's, of log N_opt or log D_opt at log C, anywhere: of all y with |log C - level - slope u| <= error
        sqrt(variance of level + slope u), u = y - centre; unbounded where a slope of 0 belongs to the slope's interval.
        None where the noise is not known."""
        if self.error is None:
            return None
        off, k = log_c - self.level, self.error**2
        (v_level, v_both), (_, v_slope) = self.covariance
        square = self.slope**2 - k * v_slope
        if square <= 0 or self.slope <= 0:
            return -math.inf, math.inf
        half = self.slope * off + k * v_both
        root = math.sqrt(max(half**2 - square * (off**2 - k * v_level), 0.0))
        low, high = self.centre + (half - root) / square, self.centre + (half + root) / square
        return (log_c - high, log_c - low) if self.of_tokens else (low, high)


@dataclass(frozen=True)
class Curvature:
    """Whether a pure power law describes L(C). shape: `convex`, as an irreducible loss makes it, `concave` or `ragged`;
    None where noise may bend it so, or nothing could be tested (`reason`)."""

    shape: str | None = None
    reason: str = ""


@dataclass(frozen=True)
class LossLine:
    """How the envelope's points lie about L(C). off_line: root mean square distance in log loss; steep_early: they fall
    faster early on."""

    off_line: float | None = None
    steep_early: bool = False
    curvature: Curvature | None = None


@dataclass(frozen=True)
class Law:
    """How an optimum moves with compute: quantity = coefficient C^exponent, for C [FLOP] in `range`.

    quantity: N_opt, D_opt or L_opt; reason: why it is not identified: then there are no numbers. coefficient: its value
    at C = 1 FLOP, far beyond every range; centre: (C, value), from which predictions go out; floor: E of
    L_opt = E + coefficient C^exponent. band: its interval in the range; of laws through crossings up to 100 times
    beyond it too.
    The rest is known of laws through crossings or points alone: how many these are; line: that of the crossings;
    replicates, and how many of them identify no law; about_loss: of L(C).
    """

    quantity: str
    exponent: Estimate = NOTHING
    coefficient: Estimate = NOTHING
    floor: Estimate = NOTHING
    centre: tuple[float, float] | None = None
    range: tuple[float, float] | None = None
    reason: str = ""
    n_points: int = 0
    band: Band | None = None
    line: InverseLine | None = None
    replicates: int | None = None
    replicates_lost: int | None = None
    about_loss: LossLine | None = None

    @property
    def identified(self) -> bool:
        return not self.reason

    @property
    def curved(self) -> bool:
        """Whether L(C) misses its own points by more than noise: then it predicts nothing."""
        return (
            self.about_loss is not None
            and self.about_loss.curvature is not None
            and self.about_loss.curvature.shape is not None
        )

    def at(self, c: float) -> Estimate:
        """The law at C [FLOP], inside its range or beyond it; of laws without a line, intervals end with the range."""
        if self.centre is None or self.exponent.value is None:
            return Estimate(reason=self.reason or "the law has no centre")
        floor = self.floor.value or 0.0
        value = floor + (self.centre[1] - floor) * (c / self.centre[0]) ** self.exponent.value
        if self.exponent.interval is None:
            return Estimate(value, reason="no interval")
        if self.line is not None:
            logs = self.line.log_interval(math.log(c)) or (-math.inf, math.inf)
            ends = (math.exp(logs[0]), math.exp(logs[1])) if max(map(abs, logs)) < MOST_LOG else None
        else:
            ends = None if self.band is None else self.band.at(c)
        return Estimate.of(
            value, ends, "" if ends else "no interval" if self.beyond(c) <= 1 else "outside of the range"
        )

    def beyond(self, c: float) -> float:
        """How many times C [FLOP] lies outside the range; 1 inside, and so near to its end that it counts as inside."""
        low, high = self.range or (c, c)
        outside = max(low / c, c / high)
        return outside if outside > NEAR else 1.0


@dataclass(frozen=True)
class Optimum:
    """N, D and loss of the optimal model at a compute of `flops`."""

    flops: float
    n_params: Estimate = NOTHING
    n_tokens: Estimate = NOTHING
    loss: Estimate = NOTHING

    def of(self, quantity: str) -> Estimate:
        """By the quantity's name: N_opt, D_opt or L_opt."""
        return {N_OPT: self.n_params, D_OPT: self.n_tokens, L_OPT: self.loss}[quantity]


@dataclass(frozen=True)
class Check:
    """One check of a claim: its state (PASSED, FAILED or NOT_DONE), its number and limit, and both in words."""

    name: str
    state: str
    value: float | None
    limit: float
    words: str


@dataclass(frozen=True)
class Claim:
    """What a law says at C [FLOP], `reach` times the largest compute of its points, with its checks: of N_opt, of the
    loss of a run, or of the ratio of two architectures' lowest losses."""

    what: str
    c: float
    reach: float
    value: float
    checks: tuple[Check, ...]

    @property
    def against(self) -> tuple[str, ...]:
        """Why it is not believed: checks that failed, and those that had to be done and could not be."""
        needed = ("rehearsed", "stable")
        bad = [
            check
            for check in self.checks
            if check.state == FAILED or (check.state == NOT_DONE and check.name in needed)
        ]
        return tuple(check.words for check in bad)

    @property
    def believed(self) -> bool:
        return not self.against

    @property
    def verdict(self) -> str:
        """In words."""
        return DO_NOT + ": " + "; ".join(self.against) if self.against else BELIEVE


@dataclass(frozen=True)
class Prediction:
    """The loss of a model of N parameters after D tokens, without the noise of a new run. rehearsed: what
    analysis.fits.rehearsal predicts of a new run, with its interval or the reason why there is none; rests_on: a
    sentence on that; claim: that the loss lies in the interval."""

    n_params: float
    n_tokens: float
    loss: Estimate
    rehearsed: Estimate | None = None
    rests_on: str = ""
    claim: Claim | None = None


@dataclass(frozen=True)
class Minimum:
    """One budget: C [FLOP], its points and different sizes, and its lowest loss: N, D and loss there. window, reach:
    how many sizes it is read from, and the smallest and the largest; bend, asymmetry: of log loss = lowest + bend (u^2
    + asymmetry u^3) there, u the distance in log N; reason: why the laws do without the budget (None: they use it)."""

    c: float
    n_points: int
    n_sizes: int
    n_params: float | None = None
    n_tokens: float | None = None
    loss: float | None = None
    window: int = 0
    reach: tuple[float, float] | None = None
    bend: float | None = None
    asymmetry: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class NoiseOf:
    """Of what the noise is (a run, a trunk, one loss), its standard deviation in log loss, its degrees of freedom."""

    of: str
    s: float
    df: float


@dataclass(frozen=True)
class SameRuns:
    """Trunks of the same N and D, that differ by their seeds alone: standard deviation of log L between them, its
    degrees of freedom, and the probability of residuals this large from a surface that fits (nan: no other runs)."""

    s: float
    df: int
    p_fits: Float


@dataclass(frozen=True)
class ParametricPart:
    """What the parametric approach has beside its laws: the form of the surface and its parameters by name (E, A, B,
    alpha, beta, and what a form has more); sizes: that were fitted; noise: of what its intervals are drawn;
    over_training: a, b and eta of that form, p_tied: how probable alpha and beta this far apart are where they are
    equal, as it assumes (None: not tested); assumes: what the form takes for granted."""

    form: str
    parameters: dict[str, Estimate]
    sizes: tuple[str, ...] = ()
    noise: tuple[NoiseOf, ...] = ()
    seeds: SameRuns | None = None
    over_training: dict[str, Estimate] | None = None
    p_tied: float | None = None
    assumes: str = ""


@dataclass(frozen=True)
class IsoflopPart:
    """What the isoFLOP approach has beside its laws: its budgets, how their minima are read, whether their losses are
    read off whole curves, and the noise of a trunk and of one loss."""

    minimum: str
    minima: tuple[Minimum, ...]
    from_curves: bool
    noise: tuple[NoiseOf, ...] = ()

    @property
    def used(self) -> tuple[Minimum, ...]:
        """The budgets with a minimum."""
        return tuple(minimum for minimum in self.minima if minimum.reason is None)

    @property
    def refused(self) -> tuple[Minimum, ...]:
        """Those of several sizes that have none."""
        return tuple(minimum for minimum in self.minima if minimum.reason is not None and minimum.n_sizes > 1)


@dataclass(frozen=True)
class EnvelopePoints:
    """The lower envelope of the sizes' curves: at each C [FLOP] the lowest loss, N, D and the size that owns it, and
    why the point says nothing about N_opt (None: it does)."""

    c: tuple[float, ...]
    loss: tuple[float, ...]
    n_params: tuple[float, ...]
    n_tokens: tuple[float, ...]
    size: tuple[str, ...]
    censored: tuple[str | None, ...]


@dataclass(frozen=True)
class Pair:
    """Two neighbouring sizes: C [FLOP] at which the larger one takes over, the sizes' and their tokens' geometric means
    there, and by how much of log C that lies beyond what is compared; or `reason`: why there is no crossing."""

    sizes: tuple[str, str]
    n_params: float
    c: float | None = None
    n_tokens: float | None = None
    beyond: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class EnvelopePart:
    """What the envelope has beside its laws: its points, and pairs of neighbouring sizes with their crossings.
    cost_growth: p of a token's training cost ~ N^p over the optimal sizes."""

    points: EnvelopePoints
    pairs: tuple[Pair, ...]
    cost_growth: float | None = None


@dataclass(frozen=True)
class Objective:
    """What was minimised, and its value; worst: that of the worst of so many starts."""

    name: str
    value: float | None = None
    worst: float | None = None
    starts: int | None = None


@dataclass(frozen=True)
class Intervals:
    """How the intervals of a fit were made: method, nominal level (None: there are none, and `method` says why), what
    they are of, from how many replicates by which seed, drawn over what; noise: between seeds, where they rest on
    it."""

    method: str
    level: float | None = None
    estimand: str = ""
    replicates: int = 0
    seed: int | None = None
    over: str = ""
    noise: NoiseOf | None = None


@dataclass(frozen=True)
class Verdict:
    """How far a law is believed. believe: in words; reach: up to how many times the largest compute that was fitted (0:
    not at all; inf: nothing limits it); reasons in words; claims: what was checked, nearest first."""

    believe: str
    reach: Float
    reasons: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


def believed_to(reach: float, reasons: tuple[str, ...], claims: tuple[Claim, ...] = ()) -> Verdict:
    """The verdict that a law is believed up to `reach`."""
    if reach == 0:
        words = DO_NOT
    elif math.isinf(reach):
        words = BELIEVE
    else:
        times = f"{reach:.3g} times " if f"{reach:.3g}" != "1" else ""
        words = f"believe up to {times}the largest compute"
    return Verdict(words, reach, reasons, claims)


@dataclass(frozen=True)
class Fit(Stored):
    """The laws of one group (an architecture) by one approach.

    laws: N_opt, D_opt and L_opt over C; optima: at each C that was asked for; middle: in the middle of the range (None:
    nothing is identified); curve: at many C, for figures: no verdict is drawn from them; predictions: losses of N and D
    that were asked for. Numbers are in the units of the points. conventions: C, N and L by name; range: of C [FLOP]
    that the points cover; input_hash: of the points. intervals: how they were made. parametric, isoflop, envelope: what
    one approach alone has. left_out: what of the points entered no fit; notes: what a reader should know first.
    """

    approach: str
    group: str
    n_points: int
    n_runs: int
    input_hash: str
    range: tuple[float, float]
    conventions: dict[str, str]
    objective: Objective
    intervals: Intervals
    laws: tuple[Law, ...]
    middle: Optimum | None = None
    optima: tuple[Optimum, ...] = ()
    curve: tuple[Optimum, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    parametric: ParametricPart | None = None
    isoflop: IsoflopPart | None = None
    envelope: EnvelopePart | None = None
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    verdict: Verdict | None = None

    def law(self, quantity: str) -> Law:
        """Of N_opt, D_opt or L_opt."""
        return next(law for law in self.laws if law.quantity == quantity)

    @property
    def a(self) -> Estimate:
        """The exponent of N_opt over C."""
        return self.law(N_OPT).exponent

    @property
    def b(self) -> Estimate:
        """The exponent of D_opt over C."""
        return self.law(D_OPT).exponent

    @property
    def parameters(self) -> dict[str, Estimate]:
        """All that was estimated, by name: of the surface, exponents, and the optimum in the middle; without those that
        the fit does not know."""
        parameters = {"E": self.law(L_OPT).floor} | (self.parametric.parameters if self.parametric else {})
        parameters |= {"a": self.a, "b": self.b, "L_exponent": self.law(L_OPT).exponent}
        if self.middle is not None:
            parameters |= {name: self.middle.of(name) for name in QUANTITIES}
        return {name: estimate for name, estimate in parameters.items() if estimate.value is not None}

    @property
    def reasons(self) -> dict[str, str]:
        """By parameter or law, why it is not identified: each reason once, where it arises."""
        named = [(law.quantity, law.reason) for law in self.laws]
        if self.parametric is not None:
            named += [(name, parameter.reason) for name, parameter in self.parametric.parameters.items()]
        named += [("a", self.a.reason), ("b", self.b.reason)]
        reasons: dict[str, str] = {}
        for name, reason in named:
            if reason and reason not in reasons.values():
                reasons[name] = reason
        return reasons

    def optimum(self, c: float) -> Optimum | None:
        """That of `optima` at C [FLOP], which is one that was asked for; None at others."""
        return next((optimum for optimum in self.optima if optimum.flops == c), None)

    def beyond(self, c: float) -> float:
        """How many times C [FLOP] lies above the range, or below it; 1 inside."""
        low, high = self.range
        times = max(c / high, low / c)
        return round(times, 9) if times > 1 + 1e-9 else 1.0


@dataclass(frozen=True)
class NotFitted(Stored):
    """An approach that cannot fit a group, and why."""

    group: str
    approach: str
    reason: str
