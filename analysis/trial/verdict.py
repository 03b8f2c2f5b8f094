"""Whether a change is worth scaling: from the differences at single sizes and the projections."""

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
    """A verdict and its reason. goes_on: whether larger sizes are to be trained."""

    word: str
    reason: str
    goes_on: bool = False


def first_stage(differences: Sequence[Difference], unit: str) -> Verdict:
    """The verdict after the smallest sizes: to go on, the variant must be better at every size. unit: of losses
    (data.units)."""
    worse = [difference for difference in differences if difference.verdict == WORSE]
    if worse:
        return Verdict(NOT_WORTH, f"the variant is worse at {_with_intervals(worse, unit)}")
    unknown = [difference for difference in differences if difference.high is None]
    if unknown:
        return Verdict(
            CANNOT_TELL,
            f"the held-out text of {_sizes(unknown)} amounts to too few independent documents for an interval: raise "
            f"evaluation.validation_tokens or hold out more documents",
        )
    level = [difference for difference in differences if difference.verdict == OPEN]
    if level:
        return Verdict(
            CANNOT_TELL,
            f"variant and baseline do not differ clearly at {_with_intervals(level, unit)}; more seeds narrow it",
        )
    return Verdict(CANNOT_TELL, f"the variant is better at {_sizes(differences)}", goes_on=True)


def last_stage(
    differences: Sequence[Difference], gains: Sequence[Gain] | None, ratios: Sequence[Ratio] | None, unit: str
) -> Verdict:
    """The verdict after all sizes: by gains in compute where surfaces could be fitted, else by ratios of the losses."""
    worse = [difference for difference in differences if difference.verdict == WORSE]
    if worse:
        return Verdict(NOT_WORTH, f"the variant is worse at {_with_intervals(worse, unit)}")
    if not gains and not ratios:
        verdicts = [f"{difference.verdict} at {difference.size}" for difference in differences]
        return Verdict(
            CANNOT_TELL,
            f"not enough to project: {counted(len(differences), 'size')} ({', '.join(verdicts)}), "
            f"and a line over compute takes {LEAST_SIZES}",
        )
    rows: list[tuple[float, str, bool, bool]] = []
    if gains:
        for gain in gains:
            text = f"{gain.gain:.2f} [{gain.low:.2f}, {gain.high:.2f}] times the compute at {flop(gain.c)} FLOP"
            rows.append((gain.c, text, gain.low > 1, gain.high < 1))
        what = "the baseline needs"
    else:
        for ratio in ratios or ():
            text = f"{ratio.ratio:.4f} [{ratio.low:.4f}, {ratio.high:.4f}] at {flop(ratio.c)} FLOP"
            rows.append((ratio.c, text, ratio.high < 1, ratio.low > 1))
        what = "the variant's loss over the baseline's is projected at"
    sentence = f"{what} {', '.join(text for _, text, _, _ in rows)} ({LEVEL:.0%} intervals)"
    if all(good for _, _, good, _ in rows):
        against = [ratio for ratio in (ratios or ()) if gains and ratio.ratio >= 1]
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


def _sizes(differences: Sequence[Difference]) -> str:
    return " and ".join(difference.size for difference in differences)


def _with_intervals(differences: Sequence[Difference], unit: str) -> str:
    each = [f"{each.size} ({each.value:+.4f} [{each.low:+.4f}, {each.high:+.4f}])" for each in differences]
    is_known = all(each.se_seeds is not None for each in differences)
    return f"{' and '.join(each)} {unit}{'' if is_known else '; the noise between seeds is not known'}"
