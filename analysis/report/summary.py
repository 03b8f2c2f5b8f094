"""Laws of one group by all approaches in one table: exponent, optima at a compute and verdict, and in few
words why. What `scaling fit` prints first, and the page that --plot draws of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import plotly.graph_objects as go

from analysis.fits.approaches import Fits
from analysis.fits.fit import (
    FAR,
    L_OPT,
    N_OPT,
    QUANTITIES,
    Estimate,
    Fit,
    NotFitted,
    Optimum,
    Verdict,
)
from analysis.fits.points import Points, Reading
from analysis.pages.html import render
from analysis.report.section import Page, Section, Table
from arch.amounts import count, counted, flop

MOST_REASONS, LONGEST = 3, 300  # of one law where all are listed; characters of one reason
SHORT = 160  # characters of the one reason of a summary
INSIDE = 1.1  # times beyond the range that are not named: curves end a little before their last token
SAME = 1e-6  # of C
NOT_KNOWN = "not known"


class Cell(NamedTuple):
    """A value and what stands under it, or in brackets behind it: its interval, or another word on it."""

    value: str
    under: str = ""


def summary_rows(results: Sequence[Fit], failed: Sequence[NotFitted], c: float) -> list[dict[str, Cell]]:
    """A row an approach at C [FLOP], which is one that the results were asked for; those not fitted at the end."""
    rows = []
    for fit in results:
        at, far = fit.optimum(c) or Optimum(c), fit.beyond(c) > FAR
        row = {"approach": Cell(fit.approach), "a": _cell(fit.a, "{:.3f}".format)}
        for name, form in zip(QUANTITIES, (count, count, _four), strict=True):
            value = at.of(name)
            cell = _cell(value, form)
            row[name] = Cell(f"({cell.value})") if far and value.value is not None else cell
        row["verdict"] = Cell(fit.verdict.believe if fit.verdict else "not judged", _where(fit, c))
        rows.append(row)
    rows += [{"approach": Cell(fit.approach), "verdict": Cell("not fitted")} for fit in failed]
    return rows


def summary_table(results: Sequence[Fit], c: float, failed: Sequence[NotFitted] = ()) -> list[dict[str, str]]:
    """`summary_rows` as text."""
    return [{head: cell_text(head, cell) for head, cell in row.items()} for row in summary_rows(results, failed, c)]


def cell_text(head: str, cell: Cell) -> str:
    """The interval of a number in brackets, other words behind a comma."""
    if not cell.under:
        return cell.value
    return f"{cell.value}, {cell.under}" if head == "verdict" else f"{cell.value} [{cell.under}]"


def _cell(estimate: Estimate, form: Any) -> Cell:
    if estimate.value is None:
        return Cell(NOT_KNOWN)
    return Cell(form(estimate.value), "no interval" if estimate.interval is None else between(estimate.interval, form))


def _four(value: float) -> str:
    return f"{value:#.4g}".rstrip(".")


def between(ends: Sequence[float], form: Any) -> str:
    """ "0.351–0.550"; with "to" where an end is negative."""
    low, high = form(ends[0]), form(ends[1])
    return f"{low} to {high}" if "-" in low + high else f"{low}–{high}"


def _where(result: Fit, c: float) -> str:
    """Where C lies beside the range of the fit; "" inside."""
    times = result.beyond(c)
    if times < INSIDE:
        return ""
    side = "below" if c < result.range[0] else "beyond"
    return f"too far: C x {count(times)} {side}" if times > FAR else f"C x {count(times)} {side} range"


def shown_at(results: Sequence[Fit], asked: Sequence[float]) -> tuple[float, ...]:
    """The C [FLOP] of the tables: those that were asked for, else the first of the defaults, the largest that all
    fitted groups reached."""
    return tuple(asked) or tuple(at.flops for at in results[0].optima[:1])


def title(groups: Mapping[str, Points], c: float, group: str = "") -> str:
    """What C is beside the largest that all fitted `groups` reached. group: whose optimum it is ("": of each)."""
    points = list(groups.values())
    low = max(float(part.flops.min()) for part in points) * (1 - SAME)
    high = min(float(part.flops.max()) for part in points) * (1 + SAME)
    largest = "the largest of the points" if len(points) == 1 else "the largest that all fitted groups reached"
    place = f"{count(c / high)} times {largest}"
    if c <= high:
        place = "inside the range of the points" if c >= low else "below the smallest of the points"
        if c >= high * (1 - 3 * SAME):
            place = largest
    return f"{group + ': ' if group else ''}optimum at C = {flop(c)} FLOP ({points[0].convention}), {place}"


def reasons_of(verdict: Verdict) -> list[str]:
    """Each with its C: why a law is not believed at the largest compute; or how far N_opt is right at each compute at
    which it is believed, and why it is not at the next."""
    reasons = []
    for claim in verdict.claims:
        words = claim.against or tuple(check.words for check in claim.checks if check.name == "rehearsed")
        reasons.append(f"at {flop(claim.c)} FLOP: {'; '.join(words)}")
        if claim.against:
            break
    return reasons or list(verdict.reasons)


def first_reasons(results: Sequence[Fit], failed: Sequence[NotFitted]) -> list[str]:
    """A short line a law: its verdict and the reasons for it, or why it could not be fitted."""
    reasons = {}
    for fit in results:
        if fit.verdict is not None:
            why = "; ".join(shortened(reason, SHORT) for reason in reasons_of(fit.verdict))
            reasons[fit.approach] = f"{fit.verdict.believe}: {why}"
    reasons |= {fit.approach: f"not fitted: {shortened(fit.reason, SHORT)}" for fit in failed}
    return [f"{approach}: {reason}" for approach, reason in reasons.items()]


def notes(results: Sequence[Fit]) -> list[str]:
    """What a law says about its points: text that was read again, losses that are likely mistakes; and which believed
    laws exclude each other's optima."""
    return [f"{fit.approach}: note: {note}" for fit in results for note in fit.notes] + _disjoint(results)


def _disjoint(results: Sequence[Fit]) -> list[str]:
    """A line for the first C at which the intervals of two believed laws have nothing in common."""
    believed = [fit for fit in results if fit.verdict is not None and fit.verdict.reach]
    for fit, other in combinations(believed, 2):
        for optimum in fit.optima:
            for name, form in ((N_OPT, count), (L_OPT, _four)):
                ends = [law.optimum(optimum.flops) for law in (fit, other)]
                own, others = (None if at is None else at.of(name).ends for at in ends)
                if own and others and max(own[0], others[0]) > min(own[1], others[1]):
                    return [
                        f"{fit.approach} and {other.approach}: note: at {flop(optimum.flops)} FLOP the intervals of "
                        f"{name}, {between(own, form)} and {between(others, form)}, have nothing in common: their "
                        f"forms differ by more than noise, and the verdicts are of N_opt within a factor of 1.5"
                    ]
    return []


def reason_lines(results: Sequence[Fit], failed: Sequence[NotFitted]) -> list[str]:
    """A line a law: its verdict and the first reasons for it, and its notes; and why the others could not be fitted."""
    lines = []
    for fit in results:
        if fit.verdict is not None:
            reasons = [shortened(why) for why in reasons_of(fit.verdict)]
            more = len(reasons) - MOST_REASONS
            text = "; ".join(reasons[:MOST_REASONS]) + (f"; {more} more reason{'s'[: more > 1]}" if more > 0 else "")
            lines.append(f"{fit.approach}: {fit.verdict.believe}: {text}")
    lines += notes(results)
    return lines + [f"{failure.approach}: not fitted: {shortened(failure.reason)}" for failure in failed]


def shortened(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else text[:longest].rsplit(" ", 1)[0] + " ..."


def fitted_on(results: Sequence[Fit]) -> str:
    """How many points each law rests on, and their range of C."""
    parts = []
    for fit in results:
        span = f"C {flop(fit.range[0])} to {flop(fit.range[1])} FLOP"
        parts.append(f"{fit.approach} {points_text(fit)}, {span}")
    return f"fitted on: {'; '.join(parts)}"


def points_text(result: Fit) -> str:
    """ "240 points of 240 runs"; of isoFLOP those at budgets with a minimum, which alone are read."""
    whole = f"{counted(result.n_points, 'point')} of {counted(result.n_runs, 'run')}"
    if result.isoflop is None:
        return whole
    used = result.isoflop.used
    if result.isoflop.from_curves:
        return f"{counted(len(used), 'budget')} with a minimum, read off {whole}"
    return f"{sum(minimum.n_points for minimum in used):,} of {whole} ({counted(len(used), 'budget')} with a minimum)"


def legend(results: Sequence[Fit], n_computes: int, place: str) -> str:
    """What the cells mean, for a reader who sees the table first. n_computes: how many of the results' C are shown;
    place: where the interval of a value stands."""
    levels = dict.fromkeys(f"{fit.intervals.level:g}" for fit in results if fit.intervals.level)
    units = dict.fromkeys(fit.conventions["L"] for fit in results)
    parts = [
        f"table: {place} its interval{', nominal level ' + ', '.join(levels) if levels else ''}",
        f"L in {', '.join(units) or 'its own unit'}",
    ]
    shown = [(fit, at.flops) for fit in results for at in fit.optima[:n_computes]]
    if any(fit.beyond(c) > FAR for fit, c in shown):
        parts.append(f"(in brackets): more than {FAR:g} times beyond the fit, a formula carried on that nothing checks")
    return "; ".join(parts)


def fits_page(reading: Reading, fits: Fits, computes: Sequence[float]) -> Page:
    """Figures, tables and reasons of every group; HTML with no file beside it, no network. computes: C [FLOP] of the
    tables (none: `shown_at`). The fits need `Options.curve`."""
    names = _file_names(reading.groups)
    sections = [_group_section(reading.groups[group], group, fits, computes, name) for group, name in names.items()]
    drawn = {name: figure for section in sections for name, draw in section.figures.items() if (figure := draw())}
    html = render(
        Path(__file__).with_name("report.html.j2"),
        figures=bool(fits.results),
        name="Scaling laws",
        lead=f"{reading.n_kept:,} of {reading.n_read:,} {reading.unit} of {reading.source}",
        evaluations=None,
        sections=[(section, [drawn[name] for name in section.figures]) for section in sections],
    )
    return Page(html, {table.name: table.rows for section in sections for table in section.tables}, drawn)


def _file_names(groups: Iterable[str]) -> dict[str, str]:
    """By group, how names of its files end: "" of one group alone, of several their number and name."""
    names = {group: f"-{i}-" + re.sub(r"[^\w.-]+", "_", group) for i, group in enumerate(groups, 1)}
    return names if len(names) > 1 else dict.fromkeys(names, "")


def _group_section(points: Points, group: str, fits: Fits, computes: Sequence[float], name: str) -> Section:
    """name: how the names of its files end."""
    from analysis.report.fit_figures import LEGEND, PROFILES, isoflop_figure, optimum_figure

    results, failed = fits.of(group), [failure for failure in fits.failed if failure.group == group]
    if not results:
        return Section(group, notes=reason_lines(results, failed))
    shown = shown_at(results, computes)
    rows = [{"C (FLOP)": flop(c)} | row for c in shown for row in summary_table(results, c, failed)]
    figures: dict[str, Callable[[], go.Figure]] = {f"optima{name}": partial(optimum_figure, points, results)}
    for fit in results:
        if fit.isoflop is not None:
            figures[f"profiles{name}"] = partial(isoflop_figure, points, fit)
    notes = [*reason_lines(results, failed), fitted_on(results), legend(results, len(computes) or 1, "behind a value")]
    lead = [title({group: points}, c, group) for c in shown]
    more = [LEGEND, *([PROFILES] * (len(figures) > 1))]
    return Section(group, lead, figures, [Table(f"optima{name}", rows)], [*notes, *more])
