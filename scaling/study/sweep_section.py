"""The section `sweep` of a study file: the short runs that its learning rates are found by."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError

from arch.errors import shown

from .types import Count, Distinct, Number, Positive, Section, Seed, Size, Tokens

EVERY = ""  # the key of rates for the sizes that have none of their own
LEAST = 3  # rates: fewer have no parabola


class RateLadder(Section):
    """Rates from the first one up."""

    first: Positive
    factor: Annotated[Number, Field(gt=1)]
    count: Annotated[Count, Field(ge=LEAST, le=50)]

    @property
    def rates(self) -> list[float]:
        try:
            rates = [float(f"{self.first * self.factor**step:.6g}") for step in range(self.count)]
        except OverflowError:
            rates = [math.inf]
        if not math.isfinite(rates[-1]):
            raise ValueError(f"first x factor^{self.count - 1} is no finite rate: write smaller numbers")
        if len(set(rates)) < len(rates):
            raise ValueError(f"a factor of {self.factor:.9g} makes equal rates, to six digits: write a larger one")
        return rates


class RateList(Section):
    rates: Annotated[list[Positive], Field(min_length=LEAST), Distinct]


def _rates(raw: Any) -> dict[str, list[float]]:
    """{size, or EVERY: rates, ascending}."""
    if isinstance(raw, list) or (isinstance(raw, dict) and set(raw) & set(RateLadder.model_fields)):
        return {EVERY: _rates_of(raw)}
    if isinstance(raw, dict) and raw and all(isinstance(key, str) for key in raw):
        return {key: _rates_of(value) for key, value in raw.items()}
    raise ValueError(
        f"must be a list of rates, {{first: 1e-3, factor: 2, count: 5}}, or these by size, not {shown(raw)}"
    )


def _rates_of(raw: Any) -> list[float]:
    try:
        if isinstance(raw, list):
            rates = sorted(RateList.model_validate({"rates": raw}).rates)
            if len({f"{rate:.6g}" for rate in rates}) < len(rates):
                raise ValueError("rates are equal to six digits: write distinct ones")
            return rates
        ladder = RateLadder.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        raise ValueError(
            f"{place}: {message}: write a list of at least {LEAST} rates, or {{first: 1e-3, factor: 2, count: 5}}"
        ) from None
    return ladder.rates


def _some(raw: Any) -> Any:
    return raw if isinstance(raw, list) else [raw]


RatesOfSweep = Annotated[dict[str, list[float]], PlainValidator(_rates)]
LADDER = {EVERY: RateLadder(first=1e-3, factor=2.0, count=5).rates}


class Sweep(Section):
    """Short runs over learning rates, for every architecture of the grid alike."""

    sizes: Annotated[list[Size], Distinct] | None = None
    """The sizes of the grid that are swept; null takes the three smallest."""
    tokens: Annotated[list[Tokens], BeforeValidator(_some), Distinct] = ["10N", "40N"]
    """The lengths of the runs, as `training.n_tokens`; a law's term in tokens needs two."""
    rates: RatesOfSweep = LADDER
    """The rates: a list, or `{first: 1e-3, factor: 2, count: 5}`, or either by size. A cell whose best rate is its
    first or last gets up to two more on that side."""
    seeds: Annotated[list[Seed], Distinct] = [0]
    """Seeds of every rate."""
    batch_tokens: Annotated[list[Count], Distinct] | None = None
    """Batches, for a law with a term in the batch; null takes that of `training`."""
    doubts: Literal["stop", "follow"] = "stop"
    """What runs do where one cell of an architecture contradicts all others: wait for a decision (`stop`), or follow
    the law that is fitted to all cells."""
    share: Positive | None = 0.2
    """The most FLOP that the sweep's first rates may cost, as a share of the study's runs; null sets no limit."""

    @property
    def decisive(self) -> dict[str, Any]:
        """What decides the sweep's runs, for its law file."""
        return self.model_dump(mode="json", exclude={"share", "doubts"})
