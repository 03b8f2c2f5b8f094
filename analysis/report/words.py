"""Parts of laws and comparisons as text, for sentences and for cells of tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.figures.axes import minus, power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.fit import Estimate, Fit
from analysis.fits.noise import NoisePart, SeedNoise, degrees_text
from analysis.fits.pairwise import Comparison
from analysis.pages.cells import Number, number, shown, signed
from arch.amounts import count, first_few

NAMES = {"envelope": "envelope", "isoflop": "isoFLOP", "parametric": "parametric"}
NOT_IDENTIFIED = "not identified"
NEVER = "never reached"
MOST_NAMED = 3  # runs that a line names


def listed(names: Sequence[str]) -> str:
    """ "A, B and C"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def named(runs: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return first_few(runs, MOST_NAMED) + (" (fits.json names all)" if len(runs) > MOST_NAMED else "")


def noise_text(noise: SeedNoise) -> str:
    """ "0.70% of the loss, 16.8 degrees of freedom", or so much of each part."""
    if len(noise.parts) < 2:
        return _amount(noise)
    return "; ".join(f"{listed([name_of(arch) for arch in part.archs])} {_amount(part)}" for part in noise.parts)


def _amount(noise: SeedNoise | NoisePart) -> str:
    return f"{noise.s:.2%} of the loss, {degrees_text(noise.df)} degrees of freedom"


def loss_of(estimate: Estimate) -> Number:
    """A loss with its interval."""
    assert estimate.value is not None
    tail = f" [{minus(estimate.ends[0])}, {minus(estimate.ends[1])}]" if estimate.ends else ""
    return number(f"{minus(estimate.value)}{tail}", estimate.value, estimate.ends)


def size_of(estimate: Estimate) -> str:
    """N or D of an optimum, with its interval."""
    if estimate.value is None:
        return NOT_IDENTIFIED
    tail = "" if estimate.ends is None else f" [{count(estimate.ends[0])}, {count(estimate.ends[1])}]"
    return number(f"{count(estimate.value)}{tail}", estimate.value, estimate.ends)


def exponent(law: Fit) -> str:
    """a of N_opt ~ C^a, with its interval."""
    return shown(law.a.value, ".3f", law.a.ends) or NOT_IDENTIFIED


def believed(law: Fit) -> str:
    """The verdict in its words; "" where there is none."""
    return law.verdict.believe if law.verdict else ""


def optimum_cells(law: Fit) -> dict[str, str]:
    """Exponent, optimal sizes and tokens of a law, by the heads of their columns."""
    cells = {"a (N_opt exponent)": exponent(law)}
    for at in law.optima:
        c = power_of_ten(at.flops)
        cells |= {f"N_opt at {c} FLOP": size_of(at.n_params), f"D_opt at {c} FLOP": size_of(at.n_tokens)}
    return cells


def more_cell(compared: Comparison | None, form: str) -> str:
    """What the other of a pair has more, as a share with its interval; "" where they are not compared."""
    return "" if compared is None else signed(compared.more.value, form, compared.more.ends)


def times_cell(compared: Comparison | None) -> str:
    """How many times the compute of the other of a pair is needed, with its interval; "" where it is not known."""
    if compared is None:
        return ""
    value, ends = compared.ratio.value, compared.ratio.interval
    if value is None:
        return NEVER
    if ends is None:
        return number(f"{value:.3g} times", value)
    low, high = ("∞" if math.isinf(end) else f"{end:.3g}" for end in ends)
    return number(f"{value:.3g} times [{low}, {high}]", value, ends)


def family_name(at: str) -> str:
    """What is compared: a point of the axes, or the points of an architecture."""
    return f"at {at}" if "=" in at else f"points of {name_of(at)}"
