"""Cells and laws of a sweep as rows of text by column, for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Iterator

from analysis.figures.palette import name_of
from arch.amounts import count, counted, counted_of
from scaling.study.rate_law import WORDS, ArchLaw

from .cell import Cell
from .fit import RatesFit


def cell_rows(fit: RatesFit) -> list[dict[str, str]]:
    """A row for each cell. "times or over" is the factor of one standard error, the last column why there is no best
    rate."""
    rows = []
    for cell in fit.cells:
        row = {"architecture": name_of(cell.arch), "size": cell.size, "tokens": count(cell.n_tokens)}
        row |= {"batch": f"{cell.batch_tokens:,}", "rates": f"{cell.rates[0]:g} to {cell.rates[-1]:g}"}
        row |= {"runs": str(cell.n_runs), "diverged": str(cell.n_diverged) if cell.n_diverged else ""}
        row |= {"rate too low": str(cell.n_too_low) if cell.n_too_low else ""}
        if cell.fitted is not None and fit.noise is not None:
            row["best rate"] = f"{math.exp(cell.fitted.log_rate):.3g}"
            row["times or over"] = f"{math.exp(fit.noise.sd * cell.fitted.unit_se):.3g}"
        rows.append(row | {"not used, because": cell.reason})
    return rows


def law_rows(fit: RatesFit) -> list[dict[str, str]]:
    """A row for each law: exponents, the cost of a rate twice too high or low at the middle of the sizes swept, and the
    cost of the other sizes' law at a size left out."""
    rows = []
    for arch, law in fit.laws.items():
        n_params = law.curvature.n_params
        row = {"architecture": name_of(arch), "law": formula(law)}
        row |= {f"exponent of {WORDS[term]}": text for term, text in exponents(law)}
        row |= {name: cost(law, factor, n_params) for name, factor in (("twice too high", 2.0), ("half", 0.5))}
        worst = max(law.left_out_size, key=lambda cell: cell.excess, default=None)
        if worst is not None:
            text = f"{worst.excess:.2%} [{worst.low:.2%}, {worst.high:.2%}]"
            most = max(cell.high for cell in law.left_out_size)
            text += f"; another up to {most:.2%}" if most > worst.high else ""
            row["a size left out costs, in the worst cell"] = text
        row["chance of the misfit"] = f"{law.misfit.p:.2f}"
        rows.append(row)
    return rows


def formula(law: ArchLaw) -> str:
    """The law as text: LR = 0.00344 (N / 23k)^-0.49 ..."""
    parts = [f"{math.exp(law.coefficients[0]):.3g}"]
    for term, value in zip(law.terms, law.coefficients[1:], strict=True):
        parts.append(f"({WORDS[term]} / {count(law.centre[term])})^{value:.2f}")
    return "LR = " + " ".join(parts)


def exponents(law: ArchLaw) -> Iterator[tuple[str, str]]:
    """For each term its exponent ± standard error, as text."""
    for place, term in enumerate(law.terms, start=1):
        yield term, f"{law.coefficients[place]:.2f} ± {math.sqrt(law.covariance[place][place]):.2f}"


def cost(law: ArchLaw, factor: float, n_params: float) -> str:
    excess, low, high = law.cost_of(factor, n_params)
    return f"{excess:.1%} [{low:.1%}, {high:.1%}]"


def verdict(fit: RatesFit) -> list[str]:
    """What the sweep says, in lines: laws, architectures without a law, what was left out."""
    lines = []
    if fit.laws:
        lines.append(f"laws of the learning rate: {', '.join(name_of(arch) for arch in fit.laws)}")
    lines += [f"no law of {name_of(arch)}: {why}" for arch, why in fit.without_law.items()]
    for arch, law in fit.laws.items():
        if law.misfit.p < 0.05:
            lines.append(
                f"{name_of(arch)}: cells lie further from the law than their errors say (chance "
                f"{law.misfit.p:.3f}): the intervals hold this scatter"
            )
    for arch, doubt in fit.doubts.items():
        cell, outlier, law_ = doubt.cell, doubt.outlier, doubt.law
        rest = f"{formula(law_)} (chance of the misfit {law_.misfit.p:.2f})" if law_ else "there is no law"
        lines.append(
            f"{name_of(arch)}: the best rate of {cell.size} at {count(cell.n_tokens)} tokens is {outlier.factor:.2g} "
            f"times what the other cells say, {outlier.sds:.0f} standard deviations off; without it {rest}. "
            f"Short runs may not have left their first plateau: look at both, sweep longer runs, or write rates into "
            f"overrides.by_run"
        )
    if fit.n_diverged:
        are = "is" if fit.n_diverged == 1 else "are"
        lines.append(
            f"{counted(fit.n_diverged, 'run')} diverged and {are} left out, with the other seeds of their rates"
        )
    if fit.n_too_low:
        runs = counted(fit.n_too_low, "run is", "runs are")
        lines.append(f"{runs} left out because of rates that are too low: hardly anything was learned")
    if fit.unused:
        lines.append(
            f"{counted_of(len(fit.unused), len(fit.cells), 'cell', 'has', 'have')} no best rate: "
            f"{', '.join(map(_short, fit.unused))}"
        )
    if fit.noise is not None:
        lines.append(f"noise of a run: {fit.noise.sd:.2%} of its loss ({fit.noise.dof} degrees of freedom)")
    return lines


def _short(cell: Cell) -> str:
    return f"{cell.arch}/{cell.size} at {count(cell.n_tokens)} tokens"
