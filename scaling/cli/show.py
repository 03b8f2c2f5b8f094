"""Laws and comparisons as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from arch.tables import rows_table, wrapped

if TYPE_CHECKING:
    from analysis.fits.pairwise import Compared
    from analysis.fits.study_fits import LowestLoss, StudyFits
    from analysis.forecast.outcome import ForecastRound
    from analysis.rates.law import RatesFit


VARIANT_COLUMNS = ("family", "variant", "held-out loss", "above the first", "verdict")
MOST_ROWS = 8  # of the table of a summary
MOST_FORECASTS = 4


def show_summary(fits: StudyFits, more: Sequence[str], forecasts: Sequence[ForecastRound] = ()) -> str:
    """What the study says in at most 15 lines, where the terminal is wide enough: the comparison and the laws in words,
    one table, a line for each forecast that is measured, and `more`: where the rest is."""
    from analysis.report.forecast import outcome_lines
    from analysis.report.variants import is_of_variants
    from analysis.report.verdict import study_lines, study_rows

    rows = _variants(fits) if is_of_variants(fits) else study_rows(fits)
    left = [f"{len(rows) - MOST_ROWS} more rows are not shown"] if len(rows) > MOST_ROWS else []
    table = [rows_table(rows[:MOST_ROWS])] if rows else []
    lines = outcome_lines(forecasts)
    hidden = len(lines) - MOST_FORECASTS
    rest = [f"{hidden} more forecasts are not shown: `scaling predict` has them"] if hidden > 0 else []
    measured = ["\n".join(wrapped(lines[:MOST_FORECASTS] + rest))] if lines else []
    return "\n\n".join(["\n".join(wrapped(study_lines(fits))), *table, *measured, "\n".join(wrapped([*left, *more]))])


def show_laws(fits: StudyFits) -> str:
    """All that the study says, the laws, and what belongs under them, no wider than the terminal where words allow."""
    from analysis.report.laws import approach_rows, law_notes, law_rows
    from analysis.report.left_out import left_out_lines
    from analysis.report.methods import phase_notes
    from analysis.report.variants import is_of_variants, variant_notes
    from analysis.report.verdict import comparison_table, verdict_notes, verdict_text

    parts = ["\n".join(wrapped(verdict_text(fits)))]
    parts += [rows_table(rows)] if (rows := comparison_table(fits)) else []
    named = fits.conventions
    where = f"C: training FLOP, convention {named['C']}; N: {named['N']}; L: {named['L']}."
    parts += ["\n".join(wrapped([*verdict_notes(fits), where, *phase_notes(fits)]))]
    if not is_of_variants(fits):
        parts += ["laws of the envelope\n" + rows_table(law_rows(fits, (None,), digits=3))]
        parts += ["\n".join(wrapped(law_notes(fits)))]
    parts += ["\n".join(wrapped(left_out_lines(fits)))]
    if rows := _variants(fits):
        parts += ["variants after equal tokens\n" + rows_table(rows)]
    parts += ["\n".join(wrapped(variant_notes(fits)))]
    if not is_of_variants(fits):
        if judged := approach_rows(fits):
            parts += ["N_opt by three approaches, and whether to believe it\n" + rows_table(judged)]
        parts += [
            comparison_text(comparison, fits.settings.level, fits.lowest_losses(comparison.at))
            for comparison in fits.comparisons
        ]
    return "\n\n".join(part for part in parts if part)


def _variants(fits: StudyFits) -> list[dict[str, str]]:
    from analysis.report.variants import variant_rows

    return [{key: row[key] for key in VARIANT_COLUMNS} for row in variant_rows(fits)]


def comparison_text(comparison: Compared, level: float, losses: LowestLoss | None = None) -> str:
    """Several architectures (or other groups) against each other; losses: measured at equal compute, of a study."""
    from analysis.report.comparison import comparison_notes, pair_rows

    rows = pair_rows(comparison, losses)
    title = f"{comparison.at}: " if comparison.at else ""
    title += "compute for the same loss, along the optimal frontiers of fitted surfaces\n"
    notes = "\n".join(wrapped(comparison_notes(comparison, level)))
    return f"{title}{rows_table(rows)}\n\n{notes}" if rows else notes


def show_forecast(forecast: ForecastRound) -> str:
    """Predictions beside what was measured, and what they rest on."""
    from analysis.report.forecast import forecast_lead, forecast_notes, forecast_rows, title_of

    lines = wrapped([forecast_lead(forecast), *forecast_notes(forecast)])
    title = f"{title_of(forecast)}\n" if forecast.number > 1 else ""
    return f"{title}{rows_table(forecast_rows(forecast))}\n\n" + "\n".join(lines)


def show_sweep(fit: RatesFit) -> str:
    """What a sweep over learning rates says: its cells, the laws, the verdict."""
    from analysis.rates.page import cell_rows, law_rows, verdict

    parts = [rows_table(cell_rows(fit)), *([rows_table(law_rows(fit))] if fit.laws else [])]
    return "\n\n".join([*parts, "\n".join(wrapped(verdict(fit)))])
