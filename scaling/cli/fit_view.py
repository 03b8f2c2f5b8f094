"""What `scaling fit` prints first: what was read, one table of all approaches, and why they are believed or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.fits.fit import BELIEVE, DO_NOT, Estimate, Fit, NotFitted, Prediction
from analysis.report.summary import (
    Cell,
    cell_text,
    first_reasons,
    fitted_on,
    legend,
    notes,
    reason_lines,
    shortened,
    shown_at,
    summary_rows,
    title,
)
from arch.amounts import count, counted, first_few
from arch.tables import rows_table, wrapped

if TYPE_CHECKING:
    from analysis.fits.approaches import Fits
    from analysis.fits.pairwise import Compared
    from analysis.fits.points import Reading

MOST_GROUPS, FEW_GROUPS = 10, 3  # that are listed in one place; of those without a law at the end of a fit
MORE = "more: --details (parameters, other computes, what was left out), --plot FILE.html, --json (everything)"


def reading_text(reading: Reading) -> str:
    """What was read, left out and kept, and which column is what."""
    unit = reading.unit
    lines = [f"{reading.source}: {_left_out(reading, unit)}"]
    if reading.columns:
        lines.append("columns: " + ", ".join(f"{field} = {name}" for field, name in reading.columns.items()))
    lines += [f"{field} derived: {how}" for field, how in reading.derived.items()]
    if reading.six_nd is not None:
        low, middle, high = reading.six_nd
        lines.append(f"6 N D / C: {low:.4g} to {high:.4g}, median {middle:.4g}")
    lines += reading.notes
    if len(reading.groups) > 1:
        named = [
            f"{name} ({counted(len(group), 'point')} of {counted(group.n_runs, 'run')})"
            for name, group in reading.groups.items()
        ]
        lines.append(f"groups: {first_few(named, MOST_GROUPS)}")
    return "\n".join(wrapped(lines))


def _left_out(reading: Reading, unit: str) -> str:
    gone = ", ".join(f"{count:,} {why}" for why, count in reading.dropped.items())
    kept = f"{reading.n_kept:,} kept ({'last row of each run' if reading.points == 'ends' else 'whole curves'})"
    if unit != "rows" or not reading.several_rows:
        kept = f"{reading.n_kept:,} kept"
    return f"{reading.n_read:,} {unit} read, {gone + ' left out' if gone else 'none left out'}, {kept}"


def summary_text(reading: Reading, fits: Fits, computes: Sequence[float], compared: Sequence[Compared]) -> list[str]:
    """The end of a fit, short: a table of all approaches (of several groups the law of each that is believed most) at
    each of `computes` [FLOP] (none: `shown_at`), the losses of --predict, a reason a law, where the rest is."""
    if len(reading.groups) > 1:
        from analysis.report.comparison import comparison_table
        from analysis.report.section import shown_rows

        fitted = {law.group for law in fits.results}
        parts = [_groups(reading, fits, c) for c in shown_at(fits.results, computes)]
        parts += predictions(fits.results) + [
            rows_table(shown_rows(table)) for table in map(comparison_table, compared) if table.rows
        ]
        laws = [min(mine, key=_doubt) for group in reading.groups if (mine := fits.of(group))]
        lines = [f"{law.group}: {first_reasons([law], ())[0]}" for law in laws[:MOST_GROUPS]]
        lines += [comparison.reason for comparison in compared if comparison.reason]
        lines += _without_law([failure for failure in fits.failed if failure.group not in fitted], FEW_GROUPS)
        return [*parts, "\n".join(wrapped([*lines, MORE]))]
    parts = [
        f"{title(reading.groups, c, *reading.groups)}\n{two_lines(summary_rows(fits.results, fits.failed, c))}"
        for c in shown_at(fits.results, computes)
    ]
    lines = [*first_reasons(fits.results, fits.failed), *notes(fits.results)]
    return [*parts, *predictions(fits.results), "\n".join(wrapped([*lines, MORE]))]


def _groups(reading: Reading, fits: Fits, c: float) -> str:
    """The law of each group that is believed most, at C."""
    fitted, rows = {name: points for name, points in reading.groups.items() if fits.of(name)}, []
    for group in fitted:
        (cells,) = summary_rows([min(fits.of(group), key=_doubt)], (), c)
        texts = {head: cell_text(head, cell) for head, cell in cells.items() if head != "D_opt"}
        rows.append({"group": group} | texts)
    more = [f"{len(rows) - MOST_GROUPS} more groups (--json has them all)"] if len(rows) > MOST_GROUPS else []
    return "\n".join([title(fitted, c, *(fitted if len(fitted) == 1 else ())), rows_table(rows[:MOST_GROUPS]), *more])


def _doubt(law: Fit) -> float:
    """More the less far a law is believed."""
    return -law.verdict.reach if law.verdict else 1.0


def all_text(reading: Reading, fits: Fits, computes: Sequence[float]) -> list[str]:
    """Group by group: a table of all approaches at each of `computes` [FLOP] (none: `shown_at`), the losses of
    --predict, and the reasons of the verdicts."""
    fitted = {law.group for law in fits.results}
    parts = [part for group in reading.groups if group in fitted for part in _group(reading, fits, group, computes)]
    if gone := [failure for failure in fits.failed if failure.group not in fitted]:
        parts.append("\n".join(wrapped(_without_law(gone))))
    return [*parts, "\n".join(wrapped([legend(fits.results, len(computes) or 1, "under a value")]))]


def _group(reading: Reading, fits: Fits, group: str, computes: Sequence[float]) -> list[str]:
    results = fits.of(group)
    failed = [failure for failure in fits.failed if failure.group == group]
    parts = []
    for c in shown_at(results, computes):
        rows = summary_rows(results, failed, c)
        parts.append(f"{title({group: reading.groups[group]}, c, group)}\n{two_lines(rows)}")
    parts += predictions(results)
    lines = reason_lines(results, failed)
    return [*parts, "\n".join(wrapped([*lines, fitted_on(results)]))]


def _without_law(failed: Sequence[NotFitted], most: int = MOST_GROUPS) -> list[str]:
    """Groups that no approach could fit, a line each, by the reasons of the first approaches."""
    by_group: dict[str, list[str]] = {}
    for failure in failed:
        by_group.setdefault(failure.group, []).append(f"{failure.approach}: {failure.reason}")
    lines = [f"{name}: not fitted: {shortened('; '.join(why))}" for name, why in by_group.items()]
    more = [f"{len(lines) - most} more groups are not fitted (--json has them all)"]
    return lines[:most] + (more if len(lines) > most else [])


def two_lines(rows: Sequence[Mapping[str, Cell]]) -> str:
    """A table in which every value has its interval in the row under it."""
    drawn: list[dict[str, str]] = []
    for row in rows:
        drawn.append({head: cell.value for head, cell in row.items()})
        if any(cell.under for cell in row.values()):
            drawn.append({head: cell.under for head, cell in row.items()})
    return rows_table(drawn)


def predictions(results: Sequence[Fit]) -> list[str]:
    """The losses of --predict, a table a law."""
    parts = []
    for result in results:
        if result.predictions:
            rows = [_prediction(loss) for loss in result.predictions]
            why = [loss.claim.verdict for loss in result.predictions if loss.claim and not loss.claim.believed]
            rests = [f"rehearsed: {loss.rests_on}" for loss in result.predictions if loss.rests_on not in "".join(why)]
            why = [*rests, *why]
            lines = wrapped(list(dict.fromkeys(why)))
            group = f"{result.group}: " if result.group else ""
            parts.append("\n".join([f"{group}{result.approach}: predicted loss", rows_table(rows), *lines]))
    return parts


def _prediction(prediction: Prediction) -> dict[str, str]:
    return {
        "N": count(prediction.n_params),
        "D": count(prediction.n_tokens),
        "L": f"{prediction.loss.value:.5g}",
        "interval": interval_cell(prediction.loss.interval, "{:.5g}".format),
        "a new run, rehearsed": _rehearsed(prediction.rehearsed),
        "verdict": "" if prediction.claim is None else BELIEVE if prediction.claim.believed else DO_NOT,
    }


def _rehearsed(estimate: Estimate | None) -> str:
    """The loss that rehearsals predict, with the interval of a new run."""
    if estimate is None or estimate.ends is None:
        return "no interval"
    low, high = estimate.ends
    return f"{estimate.value:.5g} [{low:.5g}, {high:.5g}]"


def interval_cell(ends: Sequence[float] | None, form: Any) -> str:
    return f"{form(ends[0])} to {form(ends[1])}" if ends is not None else "none"


def failed_lines(failed: Sequence[NotFitted]) -> list[str]:
    return [
        f"{failure.group + ': ' if failure.group else ''}{failure.approach}: {failure.reason}" for failure in failed
    ]
