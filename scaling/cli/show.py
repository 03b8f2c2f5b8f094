"""Laws and comparisons as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from arch.amounts import counted
from arch.tables import rows_table, wrapped

if TYPE_CHECKING:
    from analysis.fits.study_fits import StudyFits
    from analysis.forecast.outcome import ForecastRound
    from analysis.rates.law import RatesFit


MOST_ROWS = 8  # of the table of a summary
MOST_FORECASTS = 4
MOST_REASONS = 2  # why runs are in no fit


def show_summary(fits: StudyFits, more: Sequence[str], forecasts: Sequence[ForecastRound] = ()) -> str:
    """What the study says in at most 15 lines, where the terminal is wide enough: the comparison and the laws in words,
    one table, a line for each forecast that is measured, and `more`: where the rest is."""
    from analysis.report.comparison import losses_table, study_lines
    from analysis.report.forecast import outcome_lines
    from analysis.report.section import shown_rows
    from analysis.report.variants import is_of_variants, variants_section

    rows = shown_rows(variants_section(fits).tables[0] if is_of_variants(fits) else losses_table(fits))
    left = [f"{len(rows) - MOST_ROWS} more rows are not shown"] if len(rows) > MOST_ROWS else []
    left += _unused(fits)
    table = [rows_table(rows[:MOST_ROWS])] if rows else []
    lines = outcome_lines(forecasts)
    hidden = len(lines) - MOST_FORECASTS
    rest = [f"{hidden} more forecasts are not shown: `scaling predict` has them"] if hidden > 0 else []
    measured = ["\n".join(wrapped(lines[:MOST_FORECASTS] + rest))] if lines else []
    return "\n\n".join(["\n".join(wrapped(study_lines(fits))), *table, *measured, "\n".join(wrapped([*left, *more]))])


def _unused(fits: StudyFits) -> list[str]:
    """How many runs are done and not in the fits, by reason."""
    from analysis.report.runs import unused_runs

    reasons = sorted(unused_runs(fits, done_alone=True).items(), key=lambda item: -len(item[1]))
    shown, rest = reasons[:MOST_REASONS], sum(len(runs) for _, runs in reasons[MOST_REASONS:])
    lines = [f"{counted(len(runs), 'run is', 'runs are')} not in the fits: {why}" for why, runs in shown]
    return [*lines, *([f"{counted(rest, 'run is', 'runs are')} not in them for other reasons"] if rest else [])]


def show_laws(fits: StudyFits) -> str:
    """All that the study says, the laws, and what belongs under them, no wider than the terminal where words allow."""
    from analysis.report.page import laws_of
    from analysis.report.section import terminal

    return "\n\n".join(text for section in laws_of(fits) if (text := terminal(section)))


def show_sweep(fit: RatesFit) -> str:
    """What a sweep over learning rates says: its cells, the laws, the verdict."""
    from analysis.rates.page import cell_rows, law_rows, verdict

    parts = [rows_table(cell_rows(fit)), *([rows_table(law_rows(fit))] if fit.laws else [])]
    return "\n\n".join([*parts, "\n".join(wrapped(verdict(fit)))])
