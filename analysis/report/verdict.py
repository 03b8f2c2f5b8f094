"""What the study says in words and as rows of text: for the terminal, the report and the notebook. Whether one
architecture is worse than another is said by analysis.fits.pairwise alone."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.figures.axes import minus, power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.fit import D_OPT, N_OPT, Estimate
from analysis.fits.pairwise import BETTER, DISPUTED, UNDECIDED, UNKNOWN, WORSE, Pair
from analysis.fits.study_fits import LossOf, LowestLoss, StudyFits
from analysis.labels import arch_of
from analysis.pages.cells import Number, number, signed
from analysis.report.believed import believed_rows, law_sentences, leading_law, optimum_sentences
from analysis.report.comparison import times_cell, verdict_cell, verdict_of_some
from analysis.report.laws import size_of
from analysis.report.noise import listed, noise_text
from analysis.report.variants import is_of_variants, variant_lines
from arch.amounts import count

OTHER_SIZE = 1.5  # times in parameters, from which on sizes are not those of one step of a ladder
ANOTHER_SIZE = {
    "owned by the largest size": "the best size there is the largest one trained; a larger one may be better",
    "owned by the smallest size": "the best size there is the smallest one trained; a smaller one may be better",
    "a smaller size was still ahead when its run ended": "a smaller size had the lower loss when its run ended; "
    "trained for longer it may be better",
    "the next larger size has no curve here, after its warm-up": "the next larger size has no curve at this compute",
}


def verdict_text(fits: StudyFits) -> list[str]:
    """What the study says, a sentence a line: which architecture is best, which ones are worse, how large the best one
    should be, and on how many tokens it should train; of each point of the axes by itself."""
    return [line for part in verdict_parts(fits) for line in part]


def verdict_parts(fits: StudyFits) -> list[list[str]]:
    """The same, the lines of each comparison by themselves, what it found first."""
    return [
        [*_comparison(fits, lowest), *(_optimum(fits, lowest) if lowest.c is not None else ())]
        for lowest in fits.verdicts
    ]


def study_lines(fits: StudyFits) -> list[str]:
    """What the study says in few sentences: of each comparison who is best and who is worse, and which laws of the
    optimal size are believed."""
    return [line for lowest in fits.verdicts for line in _comparison(fits, lowest)] + law_sentences(fits)


def study_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row an architecture, lowest loss first: its loss at the largest compute that all reached, and the size that its
    leading law says is optimal there."""
    laws = {row["architecture"]: row for row in believed_rows(fits)}
    rows = []
    for row in comparison_table(fits):
        row.pop("best size, tokens seen")
        law = laws.get(row["architecture"], {})
        size = next((head for head in law if head.startswith("N_opt at")), None)
        sizes = {size: law[size]} if size else {}
        rows.append(row | sizes | ({"law of N_opt": law.get("verdict", "none is believed")} if laws else {}))
    heads = list(dict.fromkeys(head for row in rows for head in row))
    return [{head: row.get(head, "") for head in heads} for row in rows]


def pairs_with_best(fits: StudyFits, lowest: LowestLoss) -> dict[str, Pair]:
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
    best, pairs = name_of(lowest.best), pairs_with_best(fits, lowest)
    loss = f"{_with_interval(lowest.archs[lowest.best].loss)} {fits.unit}"
    what = "points" if len({arch_of(arch) for arch in lowest.archs}) < len(lowest.archs) else "architectures"
    reached = f"{where}, the largest compute that all {len(lowest.archs)} fitted {what} reached"
    if not pairs:
        return [f"{head}{best} alone was fitted. At {where}, the largest compute it reached, its loss is {loss}."]
    verdicts = {pair.verdict for pair in pairs.values()}
    if WORSE in verdicts:
        lines = [f"{best} has the lowest loss at {reached}: {loss}."]
    else:
        none = "No architecture" if what == "architectures" else "No point"
        worse = "is best" if verdicts == {UNKNOWN} else "is worse than the best by more than seed noise"
        lines = [f"{none} {worse} at {reached}.", f"The lowest loss measured is that of {best}: {loss}."]
    groups: dict[str, list[str]] = {}
    for arch, pair in pairs.items():
        if pair.verdict != UNKNOWN and (pair.verdict != UNDECIDED or WORSE in verdicts):
            groups.setdefault(_sentence(pair, best), []).append(name_of(arch))
    lines += [f"{listed(names)} {'is' if len(names) == 1 else 'are'} {text}." for text, names in groups.items()]
    lines += [_of_another_size(arch, lowest) for arch, pair in pairs.items() if _is_of_size(lowest, arch, pair)]
    if fits.seed_noise is None:
        lines.append(
            "No size was trained with more than one seed, so every difference of measured losses may be chance."
        )
    return [head + lines[0], *lines[1:]]


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
        pair = surfaces.pair(arch, best)
        times = f"{times_cell(compute)} ({fits.settings.level:.0%}) the compute of {name_of(best)}"
        where = f"their fitted surfaces at C = {power_of_ten(compute.at)} FLOP ({fits.conventions['C']})"
        lines.append(f"{name_of(arch)} needs {times} for the same loss, by {where}: {_by_counts(pair)}.")
    return lines


def _by_counts(pair: Pair) -> str:
    """The verdict on compute, by all ways to count it and the size."""
    if some := verdict_of_some(pair):
        return f"{some[0]} in {some[1]} of {len(pair.compute)} ways to count compute and size, so not certain"
    return "not distinguishable" if pair.by_count in (UNDECIDED, UNKNOWN) else pair.by_count


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


def _is_of_size(lowest: LowestLoss, arch: str, pair: Pair) -> bool:
    """Whether an architecture that is called worse was read at quite another size than the best, as no better one may
    have been trained so far."""
    own, best = lowest.archs[arch], lowest.archs[lowest.best]
    times = max(own.n_params / best.n_params, best.n_params / own.n_params)
    return pair.verdict == WORSE and _another_size(own) is not None and times > OTHER_SIZE


def _of_another_size(arch: str, lowest: LowestLoss) -> str:
    own, best = lowest.archs[arch], lowest.archs[lowest.best]
    return (
        f"The difference of {name_of(arch)} may be of its size and not of its architecture: its lowest loss at this C "
        f"is of size {own.size} after {count(own.n_tokens)} tokens, {name_of(lowest.best)}'s of {best.size} after "
        f"{count(best.n_tokens)}, and {_another_size(own)}."
    )


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


def _optimum(fits: StudyFits, lowest: LowestLoss) -> list[str]:
    """The sentences on the optimal size of the best: of all approaches, or of the envelope where no other was tried."""
    if lines := optimum_sentences(fits, lowest.best):
        return lines
    envelope, name = fits.envelope(lowest.best), name_of(lowest.best)
    if envelope is None:
        return []
    assert lowest.c is not None
    n, d = (envelope.law(quantity).at(lowest.c) for quantity in (N_OPT, D_OPT))
    if n.value is None:
        return [f"The optimal size of {name} is not identified: {n.reason}."]
    return [
        f"At this compute the optimal {name} has N = {size_of(n)} parameters and trains on D = {size_of(d)} tokens."
    ]


def family_name(at: str) -> str:
    """What is compared: a point of the axes, or the points of an architecture."""
    return f"at {at}" if "=" in at else f"points of {name_of(at)}"


def comparison_table(fits: StudyFits) -> list[dict[str, str]]:
    """A row an architecture, lowest loss first, at the largest compute that all of them reached."""
    rows = []
    for lowest in fits.verdicts:
        head = {"compared": family_name(lowest.at)} if len(fits.verdicts) > 1 or lowest.at else {}
        pairs = pairs_with_best(fits, lowest)
        for arch, own in lowest.archs.items():
            row = head | {"architecture": name_of(arch), "loss at this C": _with_interval(own.loss)}
            row |= {"above the lowest": "", "compute for the same loss": "", "verdict": ""}
            if arch in pairs:
                pair = pairs[arch]
                row |= {"above the lowest": _difference(pair), "verdict": verdict_cell(pair)}
                row |= {"compute for the same loss": times_cell(next(iter(pair.compute.values()), None))}
            rows.append(row | {"best size, tokens seen": f"{own.size}, {count(own.n_tokens)}"})
    return rows


def verdict_notes(fits: StudyFits) -> list[str]:
    """What belongs under the table, in short lines, each once."""
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
    lines += _sizes_that_may_be_better(archs)
    if archs and fits.settings.loss == "train_smoothed":
        lines.append(
            "A smoothed curve ends half a smoothing window before its run, so this C is less than the runs used."
        )
    for arch in archs:
        envelope = fits.envelope(arch)
        if envelope is not None and arch != lowest.best and leading_law(fits, arch) is None:
            law = envelope.law(N_OPT)
            lines += [] if law.identified else [f"{name_of(arch)}: N_opt not identified: {law.reason}."]
    return lines


def _sizes_that_may_be_better(archs: Mapping[str, LossOf]) -> list[str]:
    alike: dict[str, list[str]] = {}
    for arch, loss in archs.items():
        if text := _another_size(loss):
            alike.setdefault(text, []).append(name_of(arch))
    return [f"{listed(names)}: {text}." for text, names in alike.items()]


def _with_interval(estimate: Estimate) -> Number:
    assert estimate.value is not None
    tail = f" [{minus(estimate.ends[0])}, {minus(estimate.ends[1])}]" if estimate.ends else ""
    return number(f"{minus(estimate.value)}{tail}", estimate.value, estimate.ends)


def _difference(pair: Pair) -> str:
    assert pair.loss is not None
    return signed(pair.loss.more.value, ".1%", pair.loss.more.ends)
