"""What every approach returns: one law as plain data, with where it came from and whether to believe it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FIT_RESULT_VERSION = 1
WIDE_A = 0.08  # half of the interval of a: more does not tell how to split 100 times the compute by a factor of 1.4
FAR = 100.0  # times beyond the computes of a fit: from there on no backtest comes near, and the form alone speaks
BELIEVE, INSIDE, DO_NOT = "believe", "believe inside the range", "do not believe"


@dataclass(frozen=True)
class Verdict:
    """`believe`: one of "believe", "believe inside the range" and "do not believe"; the reasons in plain words."""

    believe: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class FitResult:
    """A fit of one group by one approach.

    params: by name, in the units of the points (E, A, B, alpha, beta; a, b; N_opt and D_opt as `coef` and `exponent`);
    intervals: of the same names and of predictions, [low, high] or None where there is none to be had;
    interval: its method, level, estimand, replicates and what it was drawn over;
    objective: name, value, and how starts ended; diagnostics: what else a reader should know;
    range: of C [FLOP] that the points cover; conventions: C, N and L by name.
    """

    approach: str
    n_points: int
    params: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float] | None]
    objective: Mapping[str, Any]
    diagnostics: Mapping[str, Any]
    input_hash: str
    group: str = ""
    n_runs: int = 0
    range: tuple[float, float] | None = None
    conventions: Mapping[str, str] = field(default_factory=dict)
    interval: Mapping[str, Any] = field(default_factory=dict)
    verdict: Verdict | None = None
    version: int = FIT_RESULT_VERSION

    def beyond(self, c: float) -> float:
        """How many times C [FLOP] lies above the range, or below it; 1 inside, and where the range is not known."""
        low, high = self.range or (c, c)
        times = max(c / high, low / c)
        return round(times, 9) if times > 1 + 1e-9 else 1.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers at full precision, null for what is not finite."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def plain(value: Any) -> Any:
    """A value as JSON holds it: arrays and tuples as lists, null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return float(value) if math.isfinite(value) else None
