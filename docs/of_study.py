"""Tables of the published study, generated from the files in its folder: for README.md and the study's findings."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from analysis.figures.axes import minus, power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.settings import FITS
from analysis.fits.study_fits import StudyFits, read_fits
from analysis.forecast.outcome import ForecastRound, read_forecast
from analysis.report.forecast import forecast_rows
from analysis.report.section import markdown_table as table
from analysis.report.words import NAMES, believed, exponent, size_of, times_cell
from analysis.source.choose import source_of
from arch.amounts import count
from flops.laws import paper_laws
from scaling.study.spec import load_study

FOLDER = Path(__file__).resolve().parents[1] / "analysis" / "studies" / "2026-second"


def summary() -> str:
    """A row an architecture, lowest loss at the largest budget first: its isoFLOP law of N_opt, and what was predicted
    and measured of each round's runs, whose seeds have one prediction."""
    fits, rows = _fits(), []
    for arch, of_arch in _minima(fits).items():
        law, (c, loss, _) = fits.fit(arch, "isoflop"), of_arch[-1]
        assert law is not None
        rows.append(
            {
                "": name_of(arch),
                f"loss at {power_of_ten(c)} FLOP": minus(loss),
                "a (N_opt ~ C^a)": exponent(law) + (", do not believe" if believed(law) == "do not believe" else ""),
                f"N_opt at {power_of_ten(c)} FLOP": size_of(law.optima[0].n_params),
            }
            | _larger_runs(arch)
        )
    return table(rows)


def _larger_runs(arch: str) -> dict[str, str]:
    """What each round predicted and measured."""
    cells = {}
    for round_ in _forecast():
        pairs = zip(forecast_rows(round_), round_.outcomes, strict=True)
        seeds = [row for row, outcome in pairs if outcome.run.arch == arch]
        measured = ", ".join(row["measured"] for row in seeds)
        cells[f"round {round_.number}: predicted, measured"] = f"{seeds[0]['predicted']}: {measured}"
    return cells


def minima() -> str:
    """The lowest loss of each budget by isoFLOP, and N there."""
    rows = []
    for arch, of_arch in _minima(_fits()).items():
        cells = {power_of_ten(c): f"{minus(loss)} ({count(n_params)})" for c, loss, n_params in of_arch}
        rows.append({"": name_of(arch)} | cells)
    return table(rows)


def exponents() -> str:
    """a of N_opt ~ C^a by both approaches, beside what Shen et al. 2024 print (table 3)."""
    fits, printed, rows = _fits(), paper_laws().archs, []
    for arch in _minima(fits):
        row = {"": name_of(arch)}
        for approach in ("isoflop", "parametric"):
            law = fits.fit(arch, approach)
            assert law is not None
            row[NAMES[approach]] = f"{exponent(law)}, {believed(law)}"
        paper = printed[arch].n_opt if arch in printed else None
        rows.append(row | {"the paper's": "not in it" if paper is None else f"{paper.exponent:.3f}"})
    return table(rows)


def counts() -> str:
    """The compute of the other architectures over the best one's for the same loss, by every way of counting."""
    comparison = _fits().comparisons[0]
    assert comparison.main is not None
    best, *others = comparison.main.archs
    rows = []
    for other in others:
        each = comparison.pair(other, best).compute.items()
        rows.append({"": name_of(other)} | {way: times_cell(ratio) for way, ratio in each})
    return table(rows)


def forecast() -> str:
    """What is predicted of the larger runs, and what was measured of those that are trained."""
    return table([row for round_ in _forecast() for row in forecast_rows(round_)])


def _minima(fits: StudyFits) -> dict[str, list[tuple[float, float, float]]]:
    """By architecture, lowest loss at the largest budget first: C, the lowest loss there by isoFLOP and N that has it,
    smallest budget first."""
    by_arch = {
        law.group: sorted(
            (minimum.c, minimum.loss, minimum.n_params)
            for minimum in law.isoflop.used
            if minimum.loss is not None and minimum.n_params is not None
        )
        for law in fits.laws
        if law.isoflop is not None
    }
    return dict(sorted(by_arch.items(), key=lambda item: item[1][-1][1]))


@cache
def _forecast() -> list[ForecastRound]:
    study = load_study(FOLDER, published=True)
    return read_forecast(study, source_of(study, study.runs()))


def _fits() -> StudyFits:
    load_study(FOLDER, published=True)  # registers its hybrid, which `page` forgets again
    return _stored_fits()


@cache
def _stored_fits() -> StudyFits:
    return read_fits(FOLDER / FITS)
