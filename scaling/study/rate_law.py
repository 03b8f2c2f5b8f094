"""A learning-rate law as a file: what a sweep found, for the runs that follow it. Imports no numpy.

For each architecture ln LR = c0 + c_N ln(N / N0) + c_D ln(D / D0) + c_B ln(B / B0), with N the parameters without
embeddings, D the tokens trained on, B the tokens of a batch, and LR the highest rate of the schedule. analysis/rates
fits it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from arch.amounts import count

from .types import Number, Positive, Section

REACH = 4.0  # a sweep's rates within this factor of the lowest loss's, and at least its neighbours, are fitted
Term = Literal["n_params", "n_tokens", "batch_tokens"]
TERMS: tuple[Term, ...] = ("n_params", "n_tokens", "batch_tokens")
WORDS = {"n_params": "N", "n_tokens": "D", "batch_tokens": "batch"}
OPTIMIZER = ("optimizer", "weight_decay", "eps", "grad_clip")  # of a recipe's optimizer, beside betas


@dataclass(frozen=True)
class Rate:
    """A law's rate for a run, its interval at the law's level, and how many times N, D or the batch lie outside of
    what was swept: {} inside."""

    rate: float
    low: float
    high: float
    outside: dict[Term, float]


class Curvature(Section):
    """ln loss rises by k x^2 + cubic x^3 where the rate is off by a factor e^x; k = at (N / n_params)^exponent."""

    at: Positive
    n_params: Positive
    exponent: Number
    se: Annotated[Number, Field(ge=0)]
    """Standard error of `at`, the cubic term taken as known."""
    cubic: Number
    cubic_se: Annotated[Number, Field(ge=0)]
    per_cubic: Number
    """What `at` moves by where the cubic term is larger by 1."""


class Misfit(Section):
    """How far the cells lie from the law by their errors alone: chi2, its degrees of freedom, its chance."""

    chi2: Annotated[Number, Field(ge=0)]
    dof: int
    p: Number


class LeftOut(Section):
    """What the law of the other sizes says of a cell: the error of its ln rate, and the share of the loss that its rate
    would cost, with an interval."""

    ln_error: Number
    sd: Number
    """Standard deviation of ln_error."""
    excess: Number
    low: Number
    high: Number
    size: str
    n_params: int
    n_tokens: int


class ArchLaw(Section):
    """The law of one architecture. Coefficients are those of 1 and of ln(x / centre) of each term, in this order."""

    terms: list[Term]
    centre: dict[Term, Positive]
    coefficients: list[Number]
    covariance: list[list[Number]]
    scatter: Annotated[Number, Field(ge=0)]
    """Standard deviation of ln of a run's best rate around the law, beyond the sweep's own errors."""
    quantile: Positive
    """Standard deviations between the rate and an end of its interval."""
    level: Annotated[Number, Field(gt=0, lt=1)]
    """What the interval is made to hold the best rate of a run with."""
    ranges: dict[Term, list[Positive]]
    """[smallest, largest] of the cells that the law was fitted to."""
    curvature: Curvature
    misfit: Misfit
    left_out_size: list[LeftOut]
    left_out_far: list[LeftOut] = []
    """As left_out_size, by the cells alone that have at most a quarter of the tokens."""

    @model_validator(mode="after")
    def _same_shape(self) -> ArchLaw:
        size = 1 + len(self.terms)
        right = len(self.coefficients) == size == len(self.covariance)
        if not right or any(len(row) != size for row in self.covariance):
            raise ValueError(f"{len(self.terms)} terms need {size} coefficients and a covariance of {size} x {size}")
        if missing := [term for term in self.terms if term not in self.centre]:
            raise ValueError(f"centre lacks {', '.join(missing)}")
        if missing := [term for term in TERMS if len(self.ranges.get(term, [])) != 2]:
            raise ValueError(f"ranges lack [smallest, largest] of {', '.join(missing)}")
        return self

    @property
    def formula(self) -> str:
        """The law as text: LR = 0.00344 (N / 23k)^-0.49 ..."""
        parts = [f"{math.exp(self.coefficients[0]):.3g}"]
        for term, value in zip(self.terms, self.coefficients[1:], strict=True):
            parts.append(f"({WORDS[term]} / {count(self.centre[term])})^{value:.2f}")
        return "LR = " + " ".join(parts)

    def at(self, n_params: float, n_tokens: float, batch_tokens: float) -> Rate:
        """The rate of a run of N parameters without embeddings, on D tokens, in batches of B tokens."""
        run = {"n_params": n_params, "n_tokens": n_tokens, "batch_tokens": batch_tokens}
        x = [1.0, *(math.log(run[term] / self.centre[term]) for term in self.terms)]
        log_rate = sum(c * value for c, value in zip(self.coefficients, x, strict=True))
        rows = [sum(b * cell for b, cell in zip(x, row, strict=True)) for row in self.covariance]
        variance = sum(a * row for a, row in zip(x, rows, strict=True))
        half = self.quantile * math.sqrt(max(variance, 0.0) + self.scatter**2)
        outside: dict[Term, float] = {}
        for term in TERMS:
            low, high = self.ranges[term]
            times = max(run[term] / high, low / run[term])
            if times > 1 + 1e-6:
                outside[term] = times
        return Rate(math.exp(log_rate), math.exp(log_rate - half), math.exp(log_rate + half), outside)

    def cost_of(self, factor: float, n_params: float) -> tuple[float, float, float]:
        """(excess, low, high): what a rate that is too high by a factor (below 1: too low) adds to the loss, as a share
        of it; the interval is of curvature's and cubic term's errors. Raises ValueError for a factor beyond those that
        were fitted."""
        x, curvature = math.log(factor), self.curvature
        if abs(x) > math.log(REACH) + 1e-9:
            raise ValueError(f"a factor of {factor:g} is beyond the {REACH:g} that parabolas are fitted to")
        times = (n_params / curvature.n_params) ** curvature.exponent
        loss_term = curvature.at * times * x**2 + curvature.cubic * x**3
        of_cubic = curvature.cubic_se * (curvature.per_cubic * times * x**2 + x**3)
        half = self.quantile * math.hypot(curvature.se * times * x**2, of_cubic)
        excess, low, high = (math.expm1(max(value, 0.0)) for value in (loss_term, loss_term - half, loss_term + half))
        return excess, low, high


class Recipe(Section):
    """What all runs of the sweep had in common, and a law therefore holds for."""

    tokenizer: str
    vocab_size: int
    context_length: int
    schedule: dict[str, Any]
    """The schedule by name, with the fields that it reads."""
    optimizer: dict[str, Any]
    """Weight decay, betas, eps and clipping."""
    model: dict[str, dict[str, Any]] = {}
    """By architecture: fields of the model that were the same at all sizes, its shape left out."""
    beta2_batch_tokens: int | None
    """Where given, the batch that beta2 is stated for: other batches take clip(beta2^(B / this), 0.9, 0.9999)."""
    warmup_tokens: list[int]
    """[fewest, most] tokens of warm-up."""
    rules: dict[str, str] = {}
    """What batch, betas and weight decay of each run followed, of the section recipe."""
    corpus_fingerprint: str | None
    loss: str
    """The loss that the rates were compared by."""


class RateLaw(Section):
    """A law file."""

    schema_: Annotated[Literal["scaling.rate-law"], Field(alias="schema")] = "scaling.rate-law"
    version: Literal[1] = 1
    n_params: Literal["non_embedding"] = "non_embedding"
    n_tokens: Literal["trained"] = "trained"
    rate: Literal["peak"] = "peak"
    recipe: Recipe
    sweep: dict[str, Any] | None = None
    """The section of the study file that it is of."""
    noise: dict[str, Any]
    """By architecture, the standard deviation of a run around its cell's curve and its degrees of freedom."""
    laws: dict[str, ArchLaw]
    without_law: dict[str, str]
    """Architectures of the sweep that got no law, and why."""
    alike: dict[Term, Number] = {}
    """By term, where slopes were to be shared, the chance that those of the architectures differ as they do where they
    are one: they share it unless this is small."""
    cells: list[dict[str, Any]]
    """Every cell of the sweep, and what became of it."""
    inputs_sha256: str
