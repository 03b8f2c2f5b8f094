"""The verdict of the fits in words and as rows of text: for the terminal, the report and the notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from analysis.figures.axes import minus, power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.fit import D_OPT, L_OPT, N_OPT, QUANTITIES, Estimate, Fit, Optimum
from analysis.fits.study_fits import LossOf, LowestLoss, StudyFits
from analysis.fits.verdict import MISSED
from analysis.labels import arch_of
from analysis.pages.cells import Number, number, signed
from analysis.report.believed import believed_rows, law_sentences, leading_law, optimum_sentences
from analysis.report.laws import NOT_IDENTIFIED
from analysis.report.noise import listed, noise_text
from analysis.report.variants import is_of_variants, variant_lines

OTHER_SIZE = 1.5  # times in parameters, from which on sizes are not those of one step of a ladder
ANOTHER_SIZE = {
    "owned by the largest size": "the best size there is the largest one trained; a larger one may be better",
    "owned by the smallest size": "the best size there is the smallest one trained; a smaller one may be better",
    "a smaller size was still ahead when its run ended": "a smaller size had the lower loss when its run ended; "
    "trained for longer it may be better",
    "the next larger size has no curve here, after its warm-up": "the next larger size has no curve at this compute",
}


def verdict_text(fits: StudyFits) -> list[str]:
    """What the study says, a sentence a line: which architecture is best, which ones are worse by more than noise, how
    large the best one should be, and on how many tokens it should train; of each point of the axes by itself."""
    return [line for part in verdict_parts(fits) for line in part]


def verdict_parts(fits: StudyFits) -> list[list[str]]:
    """The same, the lines of each comparison by themselves, what it found first."""
    return [_text(fits, told) for told in fits.verdicts]


def study_lines(fits: StudyFits) -> list[str]:
    """What the study says in few sentences: of each comparison who is best and who is worse by more than noise, and
    which laws of the optimal size are believed."""
    return [line for told in fits.verdicts for line in _comparison(fits, told)] + law_sentences(fits)


def study_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row an architecture, lowest loss first: its loss at the largest compute that all reached, and the size that its
    leading law says is optimal there."""
    laws = {row["architecture"]: row for row in believed_rows(fits)}
    rows = []
    for row in comparison_table(fits):
        shown = {key: value for key, value in row.items() if key != "best size, tokens seen"}
        law = laws.get(row["architecture"], {})
        for head, value in law.items():
            if head.startswith("N_opt at"):
                shown[head] = value
                break
        rows.append(shown | ({"law of N_opt": law.get("verdict", "none is believed")} if laws else {}))
    heads = list(dict.fromkeys(head for row in rows for head in row))
    return [{head: row.get(head, "") for head in heads} for row in rows]


def _text(fits: StudyFits, told: LowestLoss) -> list[str]:
    """The sentences of a comparison, and those on the optimal size of the best."""
    lines, best = _comparison(fits, told), told.best
    if told.c is None:
        return lines
    return lines + (optimum_sentences(fits, best) or _by_envelope(fits.envelope(best), told.archs[best].predictions[0]))


def _comparison(fits: StudyFits, told: LowestLoss) -> list[str]:
    name = family_name(told.at)
    head = f"{name[0].upper()}{name[1:]}: " if told.at else ""
    if told.c is None:
        return variant_lines(fits) or [f"{head}No comparison: {told.reason}."]
    where = f"C = {power_of_ten(told.c)} FLOP ({fits.conventions['C']})"
    best, others = told.best, [arch for arch in told.archs if arch != told.best]
    loss = f"{_with_interval(told.archs[best].loss, _loss)} {fits.unit}"
    is_apart = any(told.archs[arch].significant for arch in others)
    what = "points" if len({arch_of(arch) for arch in told.archs}) < len(told.archs) else "architectures"
    reached = f"{where}, the largest compute that all {len(told.archs)} fitted {what} reached"
    if not others:
        lines = [f"{name_of(best)} alone was fitted. At {where}, the largest compute it reached, its loss is {loss}."]
    elif is_apart:
        lines = [f"{name_of(best)} has the lowest loss at {reached}: {loss}."]
    else:
        known = fits.seed_noise is not None
        none = "No architecture" if what == "architectures" else "No point"
        told_apart = f"{none} is worse than the best by more than seed noise" if known else f"{none} is best"
        lines = [
            f"{told_apart} at {reached}.",
            f"The lowest loss measured is that of {name_of(best)}: {loss}.",
        ]
    for apart, text in (
        (False, f"not distinguishable from {name_of(best)}: the difference is within seed noise"),
        (True, f"worse than {name_of(best)} by more than seed noise"),
    ):
        if is_apart and (found := [name_of(arch) for arch in others if told.archs[arch].significant is apart]):
            lines.append(f"{listed(found)} {'is' if len(found) == 1 else 'are'} {text}.")
    lines += [_of_another_size(arch, best, told.archs) for arch in others if _is_of_size(told.archs, arch, best)]
    if others and fits.seed_noise is None:
        lines.append("No size was trained with more than one seed, so every difference may be chance.")
    return [head + lines[0], *lines[1:]]


def _is_of_size(archs: Mapping[str, LossOf], arch: str, best: str) -> bool:
    """Whether an architecture that is called worse was read at quite another size than the best, as no better one may
    have been trained so far."""
    one, other = archs[arch], archs[best]
    times = max(one.n_params / other.n_params, other.n_params / one.n_params)
    return bool(one.significant) and _another_size(one) is not None and times > OTHER_SIZE


def _of_another_size(arch: str, best: str, archs: Mapping[str, LossOf]) -> str:
    one, other = archs[arch], archs[best]
    return (
        f"The difference of {name_of(arch)} may be of its size and not of its architecture: its lowest loss at this C "
        f"is of size {one.size} after {_count(one.n_tokens)} tokens, {name_of(best)}'s of {other.size} after "
        f"{_count(other.n_tokens)}, and {_another_size(one)}."
    )


def _by_envelope(fit: Fit | None, at: Optimum) -> list[str]:
    """What the envelope's laws say of the optimal size, where no other approach was tried."""
    if fit is None:
        return []
    name = name_of(fit.group)
    if at.n_params.value is None:
        return [f"The optimal size of {name} is not identified: {at.n_params.reason}."]
    n, d = (_predicted(fit, at, quantity, _count) for quantity in (N_OPT, D_OPT))
    return [f"At this compute the optimal {name} has N = {n} parameters and trains on D = {d} tokens."]


def family_name(at: str) -> str:
    """What is compared: a point of the axes, or the points of an architecture."""
    return f"at {at}" if "=" in at else f"points of {name_of(at)}"


def _compared_at(fits: StudyFits, told: LowestLoss) -> dict[str, str]:
    """The first cell of a row, where there are several comparisons."""
    return {"compared": family_name(told.at)} if len(fits.verdicts) > 1 or told.at else {}


def comparison_table(fits: StudyFits) -> list[dict[str, str]]:
    """A row an architecture, lowest loss first, at the largest compute that all of them reached."""
    rows = []
    for told, (arch, one) in ((at, found) for at in fits.verdicts for found in at.archs.items()):
        apart = {True: "yes", False: "no", None: "not known"}[one.significant]
        rows.append(
            _compared_at(fits, told)
            | {
                "architecture": name_of(arch),
                "loss at this C": _with_interval(one.loss, _loss),
                "above the lowest": "" if arch == told.best else _difference(one),
                "more than seed noise": "" if arch == told.best else apart,
                "best size, tokens seen": f"{one.size}, {_count(one.n_tokens)}",
            }
        )
    return rows


def with_bits(rows: list[dict[str, str]], corpus: dict[str, Any] | None) -> list[dict[str, str]]:
    """Rows of `comparison_table` with bits/byte beside each loss, where tokens are bytes; corpus: its manifest. Ends of
    documents are tokens too: a byte has as many as in the held-out text."""
    if corpus is None or corpus["tokenizer"]["name"] != "bytes":
        return rows
    held_out, found = corpus["splits"]["validation"], []
    bits = held_out["tokens"] / held_out["bytes"] / math.log(2)
    for row in rows:
        cell, told = row["loss at this C"], {}
        assert isinstance(cell, Number)
        for head, value in row.items():
            told[head] = value
            if value is cell:
                told["bits/byte"] = number(_loss(cell.value * bits), cell.value * bits)
        found.append(told)
    return found


def prediction_table(fits: StudyFits) -> list[dict[str, str]]:
    """N_opt, D_opt and loss by the laws, at the common compute and at the end of each architecture's own range."""
    return [
        _compared_at(fits, told)
        | {
            "architecture": name_of(arch),
            "C (FLOP)": number(power_of_ten(at.flops), at.flops),
            "N_opt": _predicted(fits.envelope(arch), at, N_OPT, _count),
            "D_opt (tokens)": _predicted(fits.envelope(arch), at, D_OPT, _count),
            "loss by the law": _predicted(fits.envelope(arch), at, L_OPT, _loss),
        }
        for told in fits.verdicts
        for arch, one in told.archs.items()
        for at in one.predictions
    ]


def known_predictions(fits: StudyFits) -> list[dict[str, str]]:
    """Rows of `prediction_table`; none where these laws know no optimal size at all."""
    rows = prediction_table(fits)
    return rows if any(row["N_opt"] != NOT_IDENTIFIED for row in rows) else []


def verdict_notes(fits: StudyFits) -> list[str]:
    """What belongs under the two tables, in short lines, each once."""
    lines = [line for told in fits.verdicts for line in _notes(fits, told)]
    for group in fits.groups:
        if not group.fitted and not is_of_variants(fits):
            lines.append(f"{name_of(group.name)} is not compared: {group.reason}.")
    return list(dict.fromkeys(lines))


def _notes(fits: StudyFits, told: LowestLoss) -> list[str]:
    noise, lines = fits.seed_noise, []
    archs = told.archs
    if noise is not None and archs:
        more = " The intervals of the differences hold for all pairs of architectures together." * (len(archs) > 1)
        lines.append(
            f"Intervals: {told.level:.0%}. They cover other seeds alone (seed noise: {noise_text(noise)}).{more} "
            "Other text, learning rates or training lengths may change the order."
        )
    alike: dict[str, list[str]] = {}
    for arch, one in archs.items():
        if text := _another_size(one):
            alike.setdefault(text, []).append(name_of(arch))
    lines += [f"{listed(found)}: {text}." for text, found in alike.items()]
    if archs and fits.settings.loss == "train_smoothed":
        lines.append(
            "A smoothed curve ends half a smoothing window before its run, so this C is less than the runs used."
        )
    predicted = [(arch, at, name) for arch, one in archs.items() for at in one.predictions for name in QUANTITIES]
    if any(at.of(name).value is not None and _beyond(fits, arch, at, name) > 1 for arch, at, name in predicted):
        lines.append(
            "~: extrapolated beyond the range that the law was fitted to; no interval covers the error of this."
        )
    if (
        any(at.of(name).value is not None and at.of(name).interval is None for _, at, name in predicted)
        and noise is not None
    ):
        lines.append(
            "A law of L has no interval where it is extrapolated, nor where too many replicates could not be fitted."
        )
    for arch, one in archs.items():
        n_opt = one.predictions[0].n_params
        if n_opt.value is None and arch != told.best and leading_law(fits, arch) is None:
            lines.append(f"{name_of(arch)}: N_opt not identified: {n_opt.reason}.")
    return lines


def _another_size(one: LossOf) -> str | None:
    """Why another size may be better; None where the best lies between others. Where no other size was trained as far
    nothing was compared, and the size's place in the ladder says nothing."""
    if one.censored is None or one.censored not in ANOTHER_SIZE:
        return None
    if one.n_sizes == 1:
        return "only one size was trained, so the best size is not known"
    if one.n_rivals == 0:
        return f"only the size {one.size} was trained that far, so the best size there is not known"
    return ANOTHER_SIZE[one.censored]


def _with_interval(one: Estimate, show: Any) -> Number:
    assert one.value is not None
    tail = f" [{show(one.ends[0])}, {show(one.ends[1])}]" if one.ends else ""
    return number(f"{show(one.value)}{tail}", one.value, one.ends)


def _beyond(fits: StudyFits, group: str, at: Optimum, quantity: str) -> float:
    """How many times a prediction's C lies outside the range of its law; 1 inside."""
    fit = fits.envelope(group)
    return 1.0 if fit is None else fit.law(quantity).beyond(at.flops)


def _predicted(fit: Fit | None, at: Optimum, quantity: str, show: Any) -> str:
    one = at.of(quantity)
    if one.value is None or fit is None:
        return one.reason if one.reason.startswith(MISSED) else NOT_IDENTIFIED
    if fit.law(quantity).beyond(at.flops) <= 1:
        return _with_interval(one, show)
    return number(f"~{_with_interval(one, show)}", one.value, one.ends, "extrapolated")


def _difference(one: LossOf) -> str:
    ends = [math.expm1(end) for end in one.difference.ends or ()]
    return signed(math.expm1(one.difference.value or 0.0), ".1%", ends)


def _loss(value: float) -> str:
    return minus(value)


def _count(value: float) -> str:
    """Three digits: 37.7k, 2.02M."""
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:
            return f"{value / limit:#.3g}".rstrip(".") + suffix
    return f"{value:.3g}"
