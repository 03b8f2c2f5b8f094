"""A published law of N_opt and D_opt under test: can its exponents share out C = 6 N D, and in which unit is its C?

Papers print N_opt = k_N C^a and D_opt = k_D C^b, often without the unit of C. At the largest budget that was trained
the law was fitted to, so there 6 N_opt D_opt / C must be near 1: of the usual units one makes it so. A factor of 2.3 a
decade and more is no rounding: the exponents were fitted to different points, or C is another cost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.fits.fit import Stored
from analysis.fits.tables.cells import number_of, numbers, text_of
from analysis.fits.tables.files import read_frame, suffix_of
from arch.errors import InputError, nearest
from flops.laws import PARTS, paper_laws
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

    def value(self, part: str, c: float, unit: float) -> float:
        """n_opt, d_opt or loss at C [FLOP], for a law whose C counts `unit` FLOP."""
        coefficient, exponent = self.parts[part]
        return coefficient * (c / unit) ** exponent

    def six_nd(self, c: float, unit: float) -> float:
        """6 N_opt D_opt / C."""
        return 6 * self.value("n_opt", c, unit) * self.value("d_opt", c, unit) / c


@dataclass(frozen=True)
class Unit:
    """A unit of C, and by how much 6 N D differs from C at the largest budgets where C is counted in it, as a factor
    (root mean square of its logarithm)."""

    unit: str
    flop_per_unit: float
    factor: float


@dataclass(frozen=True)
class LawCheck:
    """One law: N_opt ~ C^a, D_opt ~ C^b; by which factor 6 N_opt D_opt / C changes a decade of C; its values at the
    computes that are shown; max_over_min: of these; one_at: C [FLOP] where it is 1 (None: nowhere); holds: whether
    C = 6 N D can hold at every C; identity_error: a p + b - 1, p the growth of its own cost of a token."""

    name: str
    a: float
    b: float
    a_plus_b: float
    factor_per_decade: float
    six_nd_over_c: tuple[float, ...]
    max_over_min: float
    one_at: float | None
    holds: bool
    cost_growth: float | None
    identity_error: float | None
    largest: float | None

    @classmethod
    def of(cls, law: Stated, unit: float, at: Sequence[float]) -> LawCheck:
        a, b = law.parts["n_opt"][1], law.parts["d_opt"][1]
        drift, ratios = a + b - 1, tuple(law.six_nd(c, unit) for c in at)
        log_c = 20 - math.log10(law.six_nd(1e20, unit)) / drift if abs(drift) > 1e-12 else math.inf
        return cls(
            name=law.name,
            a=a,
            b=b,
            a_plus_b=a + b,
            factor_per_decade=10**drift,
            six_nd_over_c=ratios,
            max_over_min=max(ratios) / min(ratios),
            one_at=10**log_c if abs(log_c) < 300 else None,
            holds=abs(drift) <= HOLDS,
            cost_growth=law.cost_growth,
            identity_error=None if law.cost_growth is None else a * law.cost_growth + b - 1,
            largest=law.largest,
        )


@dataclass(frozen=True)
class LawsCheck(Stored):
    """Laws under test, their C in `unit`, at computes `at` [FLOP]. units: where the unit was not given, all usual ones,
    the likeliest first; unit_fits, unit_clear: whether it makes 6 N D near C, and no other does (None: it was
    given)."""

    unit: str
    flop_per_unit: float
    at: tuple[float, ...]
    laws: tuple[LawCheck, ...]
    units: tuple[Unit, ...] = ()
    unit_fits: bool | None = None
    unit_clear: bool | None = None


def check_stated(laws: Sequence[Stated], unit: str = AUTO, at: Sequence[float] = ()) -> LawsCheck:
    """a + b, 6 N_opt D_opt / C at `at` [FLOP] and by decade, of every law; the unit of C, sought where it is `auto`.

    With `auto` all laws share one unit: that in which 6 N_opt D_opt / C is nearest to 1 at their largest budgets. A
    budget is the law's own where it is known, else the largest of `at`. Raises
    InputError for an unknown unit, and where `auto` knows no budget.
    """
    shown = tuple(at) or SHOWN_AT
    if unit != AUTO:
        name, value = _unit(unit)
        return LawsCheck(name, value, shown, tuple(LawCheck.of(law, value, shown) for law in laws))
    best, second, *others = _usual_units(laws, at)
    return LawsCheck(
        unit=best.unit,
        flop_per_unit=best.flop_per_unit,
        at=shown,
        laws=tuple(LawCheck.of(law, best.flop_per_unit, shown) for law in laws),
        units=(best, second, *others),
        unit_fits=best.factor <= FITS,
        unit_clear=second.factor >= CLEAR,
    )


def _usual_units(laws: Sequence[Stated], at: Sequence[float]) -> list[Unit]:
    """The likeliest first."""
    budgets = [law.largest or max(at, default=0.0) for law in laws]
    if not all(budgets):
        name = laws[budgets.index(0.0)].name
        raise InputError(
            f"--unit auto: the largest budget behind {name} is not known: give its compute in FLOP as --at 1e22, or "
            f"say the unit, as --unit pf-days"
        )
    units = []
    for name, value in UNITS.items():
        logs = [math.log(law.six_nd(budget, value)) for law, budget in zip(laws, budgets, strict=True)]
        units.append(Unit(name, value, math.exp(math.sqrt(sum(log**2 for log in logs) / len(logs)))))
    return sorted(units, key=lambda unit: unit.factor)


def _unit(text: str) -> tuple[str, float]:
    plain = text.strip().lower()
    if plain in DAYS:
        return "PF-days", PF_DAY
    for name, value in UNITS.items():
        if plain.removesuffix("s") == name.lower().removesuffix("s"):
            return name, value
    raise InputError(f"--unit: {text!r} is no unit of compute{nearest(text, [AUTO, *UNITS])}")


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
    names = [text_of(cell) for cell in frame["arch"]] if "arch" in frame.columns else [f"row {n}" for n in frame.index]
    parts = {}
    for part in PARTS:
        columns = f"{part}_coef", f"{part}_exponent"
        if set(columns) <= set(frame.columns):
            parts[part] = list(zip(*(numbers(frame[name], name).tolist() for name in columns), strict=True))
    laws = [Stated(name, {part: values[i] for part, values in parts.items()}) for i, name in enumerate(names)]
    return [_with_budget(_checked(law, f"{source}: {law.name}")) for law in laws]


def _inline(text: str) -> Stated:
    parts: dict[str, tuple[float, float]] = {}
    left = text
    for term in _TERM.finditer(text):
        part = SHORT.get(term[1].upper())
        if part is None or part in parts:
            raise InputError(f"LAW: {term[0]!r}: give N, D and perhaps L, each once")
        parts[part] = float(term[2]), float(term[3])
        left = left.replace(term[0], "", 1)
    if left.strip(" ,;") or not {"n_opt", "d_opt"} <= set(parts):
        raise InputError(
            f'LAW: cannot read {text!r}: write it as "N=1.82e8 C^0.7118,D=2.56e10 C^0.5102", or give a CSV of laws'
        )
    return _checked(Stated("law", parts), "LAW")


def _checked(law: Stated, where: str) -> Stated:
    for part, (coefficient, exponent) in law.parts.items():
        if not (math.isfinite(coefficient) and coefficient > 0 and math.isfinite(exponent) and abs(exponent) < 10):
            raise InputError(f"{where}: {part} = {coefficient:g} C^{exponent:g} is no power law of compute")
    return law


def _with_budget(law: Stated) -> Stated:
    """With its largest budget and the growth of its cost, where it is one of the paper's own laws, number by number."""
    for printed in paper_laws().archs.values():
        own = {part: getattr(printed, part) for part in PARTS}
        same = all(
            law.parts.get(part) == (law_of.at, law_of.exponent) for part, law_of in own.items() if law_of is not None
        )
        if printed.range and same:
            return replace(law, largest=printed.range[1], cost_growth=printed.cost_growth)
    return law


def number_list(text: str, option: str) -> list[float]:
    """Positive numbers, by commas. Raises InputError."""
    values = [number_of(part) for part in text.split(",")]
    if any(value is None or not 0 < value < math.inf for value in values):
        raise InputError(f"{option}: {text!r} is no list of positive numbers by commas, as 1e22,1e23")
    return [value for value in values if value is not None]
