"""Which architecture is best: by the losses at the largest compute that all reached, and by the compute that each needs
for the same loss along its optimal frontier. The verdict on a pair is that of analysis.fits.pairwise alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial

import plotly.graph_objects as go

from analysis.figures.axes import log_axis, power_of_ten
from analysis.figures.palette import arch_colors, dashes, name_of
from analysis.figures.style import GREY, SHADE, WIDTH, band, dress
from analysis.fits.fit import BELIEVE, DO_NOT, Claim
from analysis.fits.noise import SeedNoise
from analysis.fits.pairwise import BETTER, DISPUTED, UNDECIDED, UNKNOWN, WORSE, Compared, Pair
from analysis.fits.study_fits import LossOf, LowestLoss, StudyFits
from analysis.fits.verdict import seeds_that_halve
from analysis.labels import arch_of
from analysis.report.laws import doubted, law_sentences, leading_law
from analysis.report.section import Section, Table
from analysis.report.variants import is_of_variants, variant_lines
from analysis.report.words import (
    believed,
    family_name,
    listed,
    loss_of,
    more_cell,
    noise_text,
    size_of,
    times_cell,
)
from arch.amounts import count, counted

HEIGHT = 380
OTHER_SIZE = 1.5  # times in parameters, from which on sizes are not those of one step of a ladder
BEST_SIZE = "best size, tokens seen"
LAW = "law of N_opt"
THERE, FAR = "lower loss there, by the laws", "lower loss at ten times, by the laws"
RANKINGS = {THERE: 1.0, FAR: 10.0}  # by how many times the end of the range
SAME_LOSS, VERDICT = "compute for the same loss", "verdict"
ANOTHER_SIZE = {  # why another size than the best one may be better: as LossOf.censored says it
    "owned by the largest size": "the best size there is the largest one trained; a larger one may be better",
    "owned by the smallest size": "the best size there is the smallest one trained; a smaller one may be better",
    "a smaller size was still ahead when its run ended": "a smaller size had the lower loss when its run ended; "
    "trained for longer it may be better",
    "the next larger size has no curve here, after its warm-up": "the next larger size has no curve at this compute",
}


def study_lines(fits: StudyFits) -> list[str]:
    """What the study says in few sentences: of each comparison who is best and who is worse, and which laws of the
    optimal size are believed."""
    return [line for lowest in fits.verdicts for line in _comparison(fits, lowest)] + law_sentences(fits)


def losses_table(fits: StudyFits) -> Table:
    """A row an architecture, lowest loss first: its loss at the largest compute that all of them reached, and the size
    that its leading law says is optimal there."""
    rows = []
    for lowest in fits.verdicts:
        head = {"compared": family_name(lowest.at)} if len(fits.verdicts) > 1 or lowest.at else {}
        pairs = _pairs_with_best(fits, lowest)
        for arch, own in lowest.archs.items():
            pair = pairs.get(arch)
            row = head | {
                "architecture": name_of(arch),
                "loss at this C": loss_of(own.loss),
                "above the lowest": more_cell(pair.loss, ".1%") if pair else "",
                SAME_LOSS: times_cell(next(iter(pair.compute.values()), None)) if pair else "",
                VERDICT: _verdict_cell(pair) if pair else "",
                BEST_SIZE: f"{own.size}, {count(own.n_tokens)}",
            }
            rows.append(row | _law_cells(fits, arch))
    heads = list(dict.fromkeys(name for row in rows for name in row))
    rows = [{name: row.get(name, "none is believed" if name == LAW else "") for name in heads} for row in rows]
    return Table("losses", rows, brief=[name for name in heads if name != BEST_SIZE])


def _law_cells(fits: StudyFits, group: str) -> dict[str, str]:
    """The leading law of the optimal size; nothing where none is believed."""
    law = leading_law(fits, group)
    if law is None:
        return {}
    at = law.optima[0]
    return {f"N_opt at {power_of_ten(at.flops)} FLOP": size_of(at.n_params), LAW: believed(law)}


def _pairs_with_best(fits: StudyFits, lowest: LowestLoss) -> dict[str, Pair]:
    """By architecture, all that is known of it against the best one; the best one is not in it."""
    surfaces, best = fits.compared(lowest.at), lowest.best
    return {arch: surfaces.pair(arch, best, loss.against_best) for arch, loss in lowest.archs.items() if arch != best}


def _comparison(fits: StudyFits, lowest: LowestLoss) -> list[str]:
    name = family_name(lowest.at)
    head = f"{name[0].upper()}{name[1:]}: " if lowest.at else ""
    if lowest.c is None:
        surfaces = [head + line for line in _by_surfaces(fits, lowest.at)]
        return variant_lines(fits) or surfaces or [f"{head}No comparison: {lowest.reason}."]
    where = f"C = {power_of_ten(lowest.c)} FLOP ({fits.conventions['C']})"
    best, pairs = name_of(lowest.best), _pairs_with_best(fits, lowest)
    loss = f"{loss_of(lowest.archs[lowest.best].loss)} {fits.unit}"
    what = "points" if len({arch_of(arch) for arch in lowest.archs}) < len(lowest.archs) else "architectures"
    reached = f"{where}, the largest compute that all {len(lowest.archs)} fitted {what} reached"
    if not pairs:
        return [f"{head}{best} alone was fitted. At {where}, the largest compute it reached, its loss is {loss}."]
    verdicts = {pair.verdict for pair in pairs.values()}
    if WORSE in verdicts:
        lines = [f"{best} has the lowest loss at {reached}: {loss}."]
    else:
        none = "No architecture" if what == "architectures" else "No point"
        worse = (
            "is worse than the best by more than seed noise" if DISPUTED not in verdicts else "is best by every measure"
        )
        worse = "is best" if verdicts == {UNKNOWN} else worse
        lines = [f"{none} {worse} at {reached}.", f"The lowest loss measured is that of {best}: {loss}."]
    groups: dict[str, list[str]] = {}
    for arch, pair in pairs.items():
        if pair.verdict != UNKNOWN and (pair.verdict != UNDECIDED or WORSE in verdicts):
            groups.setdefault(_sentence(pair, best), []).append(name_of(arch))
    lines += [f"{listed(names)} {'is' if len(names) == 1 else 'are'} {text}." for text, names in groups.items()]
    lines += [_of_another_size(arch, lowest) for arch, pair in pairs.items() if pair.verdict == WORSE]
    if fits.seed_noise is not None:
        lines += _narrower(lowest, fits.seed_noise)
    else:
        lines.append(
            "No size was trained with more than one seed, so every difference of measured losses may be chance."
        )
    return [head + lines[0], *filter(None, lines[1:])]


def _of_another_size(arch: str, lowest: LowestLoss) -> str:
    """What an architecture that is called worse was read at, where that is quite another size than the best one's and
    another may be better; "" elsewhere."""
    own, best = lowest.archs[arch], lowest.archs[lowest.best]
    times = max(own.n_params / best.n_params, best.n_params / own.n_params)
    if times <= OTHER_SIZE or not (why := _another_size(own)):
        return ""
    return (
        f"The difference of {name_of(arch)} may be of its size: its lowest loss at this C is of {own.size} after "
        f"{count(own.n_tokens)} tokens, {name_of(lowest.best)}'s of {best.size} after {count(best.n_tokens)}, and "
        f"{why}."
    )


def _by_surfaces(fits: StudyFits, at: str) -> list[str]:
    """Of losses without curves: how much more compute the others need than the best, at the largest that all reached;
    empty where no surfaces are compared."""
    surfaces = fits.compared(at)
    if surfaces.main is None:
        return []
    best, lines = surfaces.main.archs[0], []
    for arch in surfaces.main.archs[1:]:
        if (compute := surfaces.main.at(arch, best)) is None or compute.ratio.value is None:
            continue
        hint = _hint(surfaces.ranking(arch, best, 1.0), best)
        believed = "" if hint else f" That {name_of(best)}'s lowest loss there is lower is believed."
        known = (
            f"{fits.settings.level:.0%} interval" if compute.ratio.interval else f"no interval: {compute.ratio.reason}"
        )
        lines.append(
            f"{hint}{name_of(arch)} needs {times_cell(compute)} the compute ({known}) for the loss that "
            f"{name_of(best)} has after {power_of_ten(compute.at)} FLOP, each at its optimal size by the fitted "
            f"surfaces: {_by_counts(surfaces.pair(arch, best))}.{believed}"
        )
    return lines


def _hint(claim: Claim | None, best: str) -> str:
    """Why the compute of a pair is a hint alone, by the verdict on which of the two has the lower loss; "" where it is
    believed that `best` has."""
    if claim is None:
        why = "nothing tells how sure the order of their losses is"
    elif _has_lower_loss(claim) != best:
        why = "the laws of their lowest losses order them the other way"
    elif against := _checks_against(claim):
        why = f"the order of their losses does not pass {listed(against)}"
    else:
        return ""
    return f"Hint, not a result, as {why}: "


def _by_counts(pair: Pair) -> str:
    """The verdict on compute, by all ways to count it and the size."""
    if some := _of_some_counts(pair):
        disputed = f"{DISPUTED}, " * (pair.verdict == DISPUTED)
        verdicts = dict(zip(pair.compute, pair.verdicts, strict=True))
        n, others = len(verdicts), {name: verdict for name, verdict in verdicts.items() if verdict != some}
        if len(others) == n - 1 > 1 and len(set(others.values())) == 1:  # the odd one by its name
            (only,) = set(verdicts) - set(others)
            return f"{some} with {only} alone, of {n} ways to count compute and size"
        rest = "; ".join(f"{verdict} with {name}" for name, verdict in others.items())
        return f"{disputed}{some} by {n - len(others)} of {n} ways to count compute and size ({rest})"
    return "not distinguishable" if pair.by_count in (UNDECIDED, UNKNOWN) else f"{pair.by_count} by every count"


def _of_some_counts(pair: Pair) -> str | None:
    """Where all counts of compute together are undecided: the verdict that some of them have."""
    some = next((verdict for verdict in (WORSE, BETTER) if verdict in pair.verdicts), None)
    return some if pair.by_count == UNDECIDED else None


def _verdict_cell(pair: Pair) -> str:
    if pair.verdict == UNKNOWN:  # a value without an interval
        whys = [compared.ratio.reason for compared in (pair.loss, *pair.compute.values()) if compared is not None]
        return ": ".join([UNKNOWN, *[why for why in whys if why][:1]])
    return f"{UNDECIDED}: {_by_counts(pair)}" if pair.verdict == UNDECIDED and _of_some_counts(pair) else pair.verdict


def _sentence(pair: Pair, best: str) -> str:
    """How an architecture compares with the best one, behind its name and a verb."""
    by_loss = UNKNOWN if pair.loss is None else pair.loss.verdict
    if pair.verdict == WORSE:
        why = "by more than seed noise" if by_loss == WORSE else "by the compute for the same loss, under every count"
        return f"worse than {best} {why}"
    if pair.verdict == BETTER:
        return f"better than {best} by the compute for the same loss, under every count"
    if pair.verdict == DISPUTED:
        return f"worse than {best} by one measure and better by another"
    return f"not distinguishable from {best}" + (": the difference is within seed noise" * (by_loss == UNDECIDED))


def verdict_notes(fits: StudyFits) -> list[str]:
    """What belongs under the table of losses, in short lines, each once."""
    lines = [line for lowest in fits.verdicts for line in _notes(fits, lowest)]
    for group in fits.groups:
        if not group.fitted and not is_of_variants(fits):
            lines.append(f"{name_of(group.name)} is not compared: {group.reason}.")
    return list(dict.fromkeys(lines))


def _notes(fits: StudyFits, lowest: LowestLoss) -> list[str]:
    noise, lines, archs = fits.seed_noise, list[str](), lowest.archs
    if noise is not None and archs:
        more = " The intervals of the differences hold for all pairs of architectures together." * (len(archs) > 1)
        lines.append(
            f"Intervals: {lowest.level:.0%}. They cover other seeds alone (seed noise: {noise_text(noise)}).{more} "
            "Other text, learning rates or training lengths may change the order."
        )
    if len(archs) > 1:
        lines.append(
            "Worse: by the loss at this C, or by the compute for the same loss under every way of counting it, where "
            "neither says the opposite."
        )
    alike: dict[str, list[str]] = {}
    for arch, loss in archs.items():
        if text := _another_size(loss):
            alike.setdefault(text, []).append(name_of(arch))
    lines += [f"{listed(names)}: {text}." for text, names in alike.items()]
    if archs and fits.settings.loss == "train_smoothed":
        lines.append(
            "A smoothed curve ends half a smoothing window before its run, so this C is less than the runs used."
        )
    return lines


def _narrower(lowest: LowestLoss, noise: SeedNoise) -> list[str]:
    """What would halve the widest interval of those that do not tell an architecture from the best."""
    against = {arch: loss.against_best for arch, loss in lowest.archs.items() if loss.against_best}
    open_ = {arch: comparison for arch, comparison in against.items() if comparison.verdict == UNDECIDED}
    if not open_:
        return []
    arch, widest = max(open_.items(), key=lambda pair: pair[1].ratio.high or 0.0)
    sizes = dict.fromkeys((lowest.archs[arch].size, lowest.archs[lowest.best].size))
    return [
        f"{counted(seeds_that_halve(arch, lowest, noise), 'more seed')} of {listed(list(sizes))} would make the "
        f"interval of {name_of(arch)} against {name_of(lowest.best)}, "
        f"{more_cell(widest, '.1%')}, half as wide."
    ]


def _another_size(loss: LossOf) -> str | None:
    """Why another size may be better; None where the best lies between others. Where no other size was trained as far
    nothing was compared, and the size's place in the ladder says nothing."""
    if loss.censored is None or loss.censored not in ANOTHER_SIZE:
        return None
    if loss.n_sizes == 1:
        return "only one size was trained, so the best size is not known"
    if loss.n_rivals == 0:
        return f"only the size {loss.size} was trained that far, so the best size there is not known"
    return ANOTHER_SIZE[loss.censored]


def comparison_sections(fits: StudyFits) -> Iterator[Section]:
    """Of each point of the axes."""
    not_believed = doubted(fits, "parametric")
    for i, comparison in enumerate(fits.comparisons):
        name, losses = f"comparison-{i + 1}" if i else "comparison", fits.lowest_losses(comparison.at)
        section = comparison_section(comparison, fits.settings.level, losses, name)
        yield replace(section, figures={name: partial(comparison_figure, comparison, fits.conventions, not_believed)})


def comparison_section(
    comparison: Compared, level: float, losses: LowestLoss | None = None, name: str = "comparison"
) -> Section:
    """The compute for the same loss, along the optimal frontiers of fitted surfaces. losses: measured at equal compute,
    which the verdicts rest on too (None: of no study)."""
    at = f", {family_name(comparison.at)}" if comparison.at else ""
    return Section(
        "Architectures compared along their optimal frontiers" + at,
        tables=[comparison_table(comparison, losses, name)],
        notes=comparison_notes(comparison, level),
    )


def comparison_table(comparison: Compared, losses: LowestLoss | None = None, name: str = "comparison") -> Table:
    """A row a pair: the compute for the same loss at the end of the range that all reached and beyond it, and the
    verdict on the pair. losses: measured at equal compute, which the verdict rests on too (None: of no study)."""
    rows, view = [], comparison.main
    for other, reference in view.pairs if view else ():
        assert view is not None
        pair = comparison.pair(other, reference, None if losses is None else losses.against(other, reference))
        row = {
            "pair": f"{name_of(other)} against {name_of(reference)}",
            SAME_LOSS: times_cell(view.at(other, reference)),
        }
        row["at ten times that compute"] = times_cell(view.at(other, reference, beyond=True))
        claims = {head: comparison.ranking(other, reference, reach) for head, reach in RANKINGS.items()}
        if view.beyond is None:  # nothing is said there
            claims[FAR] = None
        row |= {head: _ranking_cell(claim) for head, claim in claims.items()}
        rows.append(row | {VERDICT: _verdict_cell(pair)})
    return Table(name, rows, brief=("pair", SAME_LOSS, VERDICT, *RANKINGS))


def _ranking_cell(claim: Claim | None) -> str:
    """Who has the lower loss, and whether to believe it; the checks that speak against it by name."""
    if claim is None:
        return ""
    bad, better = _checks_against(claim), name_of(_has_lower_loss(claim))
    return f"{better}: {DO_NOT} ({', '.join(bad)})" if bad else f"{better}: {BELIEVE}"


def _has_lower_loss(claim: Claim) -> str:
    """Of a claim "A better than B", A."""
    return claim.what.partition(f" {BETTER} than ")[0]


def _checks_against(claim: Claim) -> list[str]:
    return [check.name for check in claim.checks if check.words in claim.against]


def comparison_figure(
    comparison: Compared, conventions: dict[str, str], not_believed: Collection[str] = ()
) -> go.Figure | None:
    """How many times the best architecture's compute the others need for its loss, with intervals that hold for all of
    them at once; dashed: of `not_believed`, groups whose own law is not believed."""
    view = comparison.main
    if view is None:
        return None
    best, colors, dash = view.archs[0], arch_colors(view.archs), dashes(view.archs)
    figure, ends = go.Figure(), [1.0]
    for other in view.archs[1:]:
        rows = [pair for pair in view.compute if (pair.other, pair.reference) == (other, best) and pair.ratio.ends]
        if not rows:
            continue
        c, times = [pair.at for pair in rows], [pair.ratio.value for pair in rows]
        least, most = zip(*(pair.ratio.ends or (0.0, 0.0) for pair in rows), strict=True)
        ends += [*least, *most]
        figure.add_trace(band(zip(c, least, most, strict=True), colors[other]))
        name = name_of(other) + (" (law not believed)" if other in not_believed else "")
        line = {"color": colors[other], "width": 2.4, "dash": "dash" if other in not_believed else dash[other]}
        hover = name_of(other) + "<br>C %{x:.3g}<br>%{y:.3f} times<extra></extra>"
        figure.add_trace(go.Scatter(x=c, y=times, mode="lines+markers", line=line, name=name, hovertemplate=hover))
    if not figure.data:
        return None
    low, high = view.range
    last = view.beyond or high
    if view.beyond:
        figure.add_vrect(high, last, fillcolor=SHADE, line_width=0, layer="below")
    figure.add_hline(1.0, line={"color": GREY, "dash": "dash", "width": 1.3})
    figure.update_xaxes(**log_axis(low, last, f"C of {name_of(best)} (FLOP, {conventions['C']})", "flop"))
    bounds = (max(min(ends) / 1.1, 0.05), min(max(ends) * 1.1, 20.0))
    figure.update_yaxes(**log_axis(*bounds, f"compute for the same loss,<br>times {name_of(best)}'s"))
    figure.update_layout(legend={"x": 1.01, "y": 1})
    dress(figure, WIDTH, HEIGHT)
    return figure


def comparison_notes(comparison: Compared, level: float) -> list[str]:
    """What belongs under the table, in short lines."""
    view = comparison.main
    if view is None:
        reason = comparison.reason or next(iter(comparison.views.values())).reason
        return [f"Architectures are not compared by their surfaces: {reason}."]
    e = "one E shared by all" if view.shared_e else "an E of its own for each, as the test of one E rejects it"
    lines = [
        f"L = E + A / N^alpha + B / D^beta fitted to all architectures at once, {e} (p = {view.p_shared_e:.2g}). "
        f"Compute is that along each architecture's own optimal frontier; intervals ({level:.0%}, nominal) hold for "
        f"all pairs and budgets at once. By compute one is worse where it is so under every count: "
        f"{'; '.join(comparison.views)}. Which loss is lower by the laws has verdicts of its own, as the laws have: it "
        f"is no verdict on losses that were measured."
    ]
    if view.beyond_reason:
        lines.append(f"Not beyond {power_of_ten(view.range[1])} FLOP: {view.beyond_reason}.")
    failed = [f"{name} ({other.reason})" for name, other in comparison.views.items() if other.reason]
    return lines + ([f"Without: {'; '.join(failed)}."] if failed else [])
