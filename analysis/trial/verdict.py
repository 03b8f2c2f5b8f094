"""Worth scaling, not worth it, or not to be told: from the differences at single sizes and the projections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arch.amounts import counted, flop

from .difference import LEVEL, OPEN, WORSE, Difference
from .projection import LEAST_SIZES, Gain, Ratio

WORTH, NOT_WORTH, CANNOT_TELL = "worth scaling", "not worth", "cannot tell"
ALONE = "seeds were not repeated anywhere: these differences hold for the initial weights that were trained, no others"


@dataclass(frozen=True)
class Verdict:
    """The word, and why; `goes_on`: whether larger sizes are to be trained."""

    word: str
    reason: str
    goes_on: bool = False


def first_stage(differences: Sequence[Difference], unit: str) -> Verdict:
    """After the smallest sizes: to go on the variant must be better at every one. unit: of losses (data.units)."""
    worse = [one for one in differences if one.verdict == WORSE]
    if worse:
        return Verdict(NOT_WORTH, f"the variant is worse at {_told(worse, unit)}")
    unknown = [one for one in differences if one.high is None]
    if unknown:
        return Verdict(
            CANNOT_TELL,
            f"the held-out text of {_sizes(unknown)} amounts to too few independent documents for an interval: raise "
            f"evaluation.validation_tokens or hold out more documents",
        )
    level = [one for one in differences if one.verdict == OPEN]
    if level:
        return Verdict(
            CANNOT_TELL,
            f"variant and baseline are not told apart at {_told(level, unit)}; more seeds narrow it",
        )
    return Verdict(CANNOT_TELL, f"the variant is better at {_sizes(differences)}", goes_on=True)


def last_stage(
    differences: Sequence[Difference], gains: Sequence[Gain] | None, ratios: Sequence[Ratio] | None, unit: str
) -> Verdict:
    """After all sizes: by gains in compute where surfaces could be fitted, else by ratios of the losses."""
    worse = [one for one in differences if one.verdict == WORSE]
    if worse:
        return Verdict(NOT_WORTH, f"the variant is worse at {_told(worse, unit)}")
    if not gains and not ratios:
        told = [f"{one.verdict} at {one.size}" for one in differences]
        return Verdict(
            CANNOT_TELL,
            f"not enough to project: {counted(len(differences), 'size')} ({', '.join(told)}), "
            f"and a line over compute takes {LEAST_SIZES}",
        )
    rows: list[tuple[float, str, bool, bool]] = []
    if gains:
        for gain in gains:
            text = f"{gain.gain:.2f} [{gain.low:.2f}, {gain.high:.2f}] times the compute at {flop(gain.c)} FLOP"
            rows.append((gain.c, text, gain.low > 1, gain.high < 1))
        what = "the baseline needs"
    else:
        for one in ratios or ():
            text = f"{one.ratio:.4f} [{one.low:.4f}, {one.high:.4f}] at {flop(one.c)} FLOP"
            rows.append((one.c, text, one.high < 1, one.low > 1))
        what = "the variant's loss over the baseline's is projected at"
    sentence = f"{what} {', '.join(text for _, text, _, _ in rows)} ({LEVEL:.0%} intervals)"
    if all(good for _, _, good, _ in rows):
        against = [one for one in (ratios or ()) if gains and one.ratio >= 1]
        if against:
            return Verdict(
                CANNOT_TELL,
                f"{sentence}; but the ratio of the losses is projected at {against[0].ratio:.4f} at "
                f"{flop(against[0].c)} FLOP: the two disagree",
            )
        return Verdict(WORTH, sentence)
    if max(rows)[3]:
        return Verdict(NOT_WORTH, sentence)
    return Verdict(CANNOT_TELL, f"{sentence}: the advantage is not certain there")


def _sizes(found: Sequence[Difference]) -> str:
    return " and ".join(one.size for one in found)


def _told(found: Sequence[Difference], unit: str) -> str:
    each = " and ".join(f"{one.size} ({one.value:+.4f} [{one.low:+.4f}, {one.high:+.4f}])" for one in found)
    unknown = "; the noise between seeds is not known" if any(one.se_seeds is None for one in found) else ""
    return f"{each} {unit}{unknown}"
