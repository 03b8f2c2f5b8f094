"""A published law of N_opt and D_opt under test: can its exponents share out C = 6 N D, and in which unit is its C?

Papers print N_opt = k_N C^a and D_opt = k_D C^b, often without the unit of C. At the largest budget that was trained
the law was fitted to, so there 6 N_opt D_opt / C must be near 1: of the usual units one makes it so. A factor of 2.3 a
decade and more is no rounding: the exponents were fitted to different points, or C is another cost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.fits.tables.cells import number_of, numbers, text_of
from analysis.fits.tables.files import read_frame, suffix_of
from arch.errors import InputError, nearest
from flops.laws import PARTS, Laws, paper_laws
from flops.quantity import DAYS, PF_DAY

AUTO = "auto"
UNITS = {
    **{"FLOP": 1.0, "GFLOP": 1e9, "TFLOP": 1e12, "PFLOP": 1e15, "EFLOP": 1e18, "ZFLOP": 1e21},
    **{"TF-days": PF_DAY / 1e3, "PF-days": PF_DAY, "EF-days": PF_DAY * 1e3},
}
SHOWN_AT = (1e18, 1e20, 1e22, 1e24)  # FLOP
HOLDS = 0.02  # of a + b: 6 N D / C then changes by less than 5% a decade
FITS = 3.0  # times more or less than C at the largest budget: beyond it a unit does not fit
CLEAR = 10.0  # times the misfit of the best unit, as a factor of C, that the second best must have at least
SHORT = {"N": "n_opt", "D": "d_opt", "L": "loss"}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_TERM = re.compile(rf"([A-Za-z])(?:_?opt)?\s*=\s*({_NUMBER})\s*\*?\s*C\s*(?:\^|\*\*)\s*\(?({_NUMBER})\)?", re.I)


@dataclass(frozen=True)
class Stated:
    """One law as printed: {n_opt, d_opt, perhaps loss: (coefficient, exponent)} of C in a unit of its own.

    largest: C [FLOP] of the largest budget behind it; cost_growth: p of a token's cost ~ N^p; None: not known.
    """

    name: str
    parts: Mapping[str, tuple[float, float]]
    largest: float | None = None
    cost_growth: float | None = None

    @property
    def a_plus_b(self) -> float:
        return self.parts["n_opt"][1] + self.parts["d_opt"][1]

    def value(self, part: str, c: float, unit: float) -> float:
        """n_opt, d_opt or loss at C [FLOP], for a law whose C counts `unit` FLOP."""
        coef, exponent = self.parts[part]
        return coef * (c / unit) ** exponent

    def six_nd(self, c: float, unit: float) -> float:
        """6 N_opt D_opt / C."""
        return 6 * self.value("n_opt", c, unit) * self.value("d_opt", c, unit) / c


def read_stated(source: str) -> list[Stated]:
    """The laws of a CSV with columns n_opt_coef, n_opt_exponent, d_opt_coef, d_opt_exponent (and arch, loss_coef,
    loss_exponent), one a row; or one law as "N=1.8e8 C^0.71,D=2.6e10 C^0.51". Raises InputError."""
    if suffix_of(source) is None:
        return [_inline(source)]
    frame = read_frame(Path(source))
    needed = [f"{part}_{what}" for part in ("n_opt", "d_opt") for what in ("coef", "exponent")]
    if missing := [name for name in needed if name not in frame.columns]:
        raise InputError(
            f"{source}: has no column {missing[0]}{nearest(missing[0], list(frame.columns))}; a table of laws has "
            f"{', '.join(needed)}"
        )
    parts = [part for part in PARTS if f"{part}_coef" in frame.columns and f"{part}_exponent" in frame.columns]
    columns = {
        f"{part}_{what}": numbers(frame[f"{part}_{what}"], f"{part}_{what}")
        for part in parts
        for what in ("coef", "exponent")
    }
    names = [text_of(cell) for cell in frame["arch"]] if "arch" in frame.columns else [f"row {n}" for n in frame.index]
    found = []
    for i, name in enumerate(names):
        law = {part: (float(columns[f"{part}_coef"][i]), float(columns[f"{part}_exponent"][i])) for part in parts}
        found.append(_checked(Stated(name, law), f"{source}: {name}"))
    return [_with_budget(one, paper_laws()) for one in found]


def check_stated(laws: Sequence[Stated], unit: str = AUTO, at: Sequence[float] = ()) -> dict[str, Any]:
    """a + b, 6 N_opt D_opt / C at `at` [FLOP] and by decade, of every law; the unit of C, found where it is `auto`.

    With `auto` all laws share one unit: that in which 6 N_opt D_opt / C is nearest to 1 at their largest budgets (root
    mean square of its logarithm). A budget is the law's own where it is known, else the largest of `at`. Raises
    InputError for an unknown unit, and where `auto` knows no budget.
    """
    tried: list[dict[str, Any]] = []
    if unit == AUTO:
        tried = _try_units(laws, at)
        named, value = tried[0]["unit"], UNITS[tried[0]["unit"]]
        fits = tried[0]["factor"] <= FITS
        clear = math.log(tried[1]["factor"]) >= math.log(CLEAR)
    else:
        named, value = _unit(unit)
        fits, clear = None, None
    shown = tuple(at) or SHOWN_AT
    return {
        "unit": named,
        "flop_per_unit": value,
        "found": unit == AUTO,
        "unit_fits": fits,
        "unit_clear": clear,
        "units": tried,
        "at": list(shown),
        "laws": [_report(law, value, shown) for law in laws],
    }


def _report(law: Stated, unit: float, at: Sequence[float]) -> dict[str, Any]:
    a, b = law.parts["n_opt"][1], law.parts["d_opt"][1]
    drift = law.a_plus_b - 1
    ratios = [law.six_nd(c, unit) for c in at]
    one_at = None
    if abs(drift) > 1e-12:
        log_c = -math.log10(law.six_nd(1e20, unit)) / drift + 20
        one_at = 10**log_c if abs(log_c) < 300 else None
    identity = None if law.cost_growth is None else a * law.cost_growth + b - 1
    return {
        "name": law.name,
        "a": a,
        "b": b,
        "a_plus_b": law.a_plus_b,
        "factor_per_decade": 10**drift,
        "six_nd_over_c": ratios,
        "max_over_min": max(ratios) / min(ratios),
        "one_at": one_at,
        "holds": abs(drift) <= HOLDS,
        "cost_growth": law.cost_growth,
        "identity_error": identity,
        "largest": law.largest,
        "at_largest": None
        if law.largest is None
        else {part: law.value(part, law.largest, unit) for part in law.parts}
        | {"six_nd_over_c": law.six_nd(law.largest, unit)},
    }


def _try_units(laws: Sequence[Stated], at: Sequence[float]) -> list[dict[str, Any]]:
    """The usual units, the likeliest first; factor: by how much 6 N D differs from C at the largest budgets."""
    budgets = [law.largest or max(at, default=None) for law in laws]
    known = [(law, budget) for law, budget in zip(laws, budgets, strict=True) if budget is not None]
    if len(known) < len(laws):
        name = next(law.name for law, budget in zip(laws, budgets, strict=True) if budget is None)
        raise InputError(
            f"--unit auto: the largest budget behind {name} is not known: give its compute in FLOP as --at 1e22, or "
            f"say the unit, as --unit pf-days"
        )
    found = []
    for name, unit in UNITS.items():
        logs = [math.log(law.six_nd(budget, unit)) for law, budget in known]
        factor = math.exp(math.sqrt(sum(value**2 for value in logs) / len(logs)))
        found.append(
            {"unit": name, "flop_per_unit": unit, "factor": factor, "six_nd_over_c": list(map(math.exp, logs))}
        )
    return sorted(found, key=lambda one: float(one["factor"]))


def _unit(text: str) -> tuple[str, float]:
    plain = text.strip().lower()
    if plain in DAYS:
        return "PF-days", PF_DAY
    for name, value in UNITS.items():
        if plain.removesuffix("s") == name.lower().removesuffix("s"):
            return name, value
    raise InputError(f"--unit: {text!r} is no unit of compute{nearest(text, [AUTO, *UNITS])}")


def _inline(text: str) -> Stated:
    parts: dict[str, tuple[float, float]] = {}
    left = text
    for term in _TERM.finditer(text):
        letter = term[1].upper()
        if letter not in SHORT or SHORT[letter] in parts:
            raise InputError(f"LAW: {term[0]!r}: give N, D and perhaps L, each once")
        parts[SHORT[letter]] = (float(term[2]), float(term[3]))
        left = left.replace(term[0], "", 1)
    if left.strip(" ,;") or not {"n_opt", "d_opt"} <= set(parts):
        raise InputError(
            f'LAW: cannot read {text!r}: write it as "N=1.82e8 C^0.7118,D=2.56e10 C^0.5102", or give a CSV of laws'
        )
    return _checked(Stated("law", parts), "LAW")


def _checked(law: Stated, where: str) -> Stated:
    for part, (coef, exponent) in law.parts.items():
        if not (math.isfinite(coef) and coef > 0 and math.isfinite(exponent) and abs(exponent) < 10):
            raise InputError(f"{where}: {part} = {coef:g} C^{exponent:g} is no power law of compute")
    return law


def _with_budget(law: Stated, paper: Laws) -> Stated:
    """With its largest budget and the growth of its cost, where it is one of the paper's own laws, number by number."""
    for one in paper.archs.values():
        known = {part: getattr(one, part) for part in PARTS}
        if one.range and all(law.parts.get(k) == (v.at, v.exponent) for k, v in known.items() if v is not None):
            return Stated(law.name, law.parts, one.range[1], one.cost_growth)
    return law


def number_list(text: str, option: str) -> list[float]:
    """Positive numbers, by commas. Raises InputError."""
    found = [number_of(part) for part in text.split(",")]
    if any(value is None or not 0 < value < math.inf for value in found):
        raise InputError(f"{option}: {text!r} is no list of positive numbers by commas, as 1e22,1e23")
    return [value for value in found if value is not None]
