"""Rows that are kept, and their fields as numbers: what a table lacks of tokens or compute follows from C = 6 N D."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analysis.fits.cost import ROUNDED, SIX_ND
from analysis.fits.tables.cells import condition_of, numbers, same_text
from analysis.fits.tables.columns import NUMBERS, convention_of
from arch.errors import InputError


def keep_rows(frame: pd.DataFrame, keep: np.ndarray, dropped: dict[str, int], why: str) -> pd.DataFrame:
    """The rows of `keep` [n], the others counted under `why`. Raises InputError where none is left."""
    gone = int((~keep).sum())
    if gone:
        dropped[why] = dropped.get(why, 0) + gone
    if gone == len(frame):
        told = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise InputError(f"no row is left ({told})")
    return frame[keep] if gone else frame


def filtered(
    frame: pd.DataFrame, chosen: Mapping[str, str], where: Sequence[str], dropped: dict[str, int]
) -> tuple[pd.DataFrame, list[str]]:
    """The rows that hold all conditions on columns that are there; and the conditions on what is yet to be derived."""
    later = []
    for text in where:
        condition = condition_of(text, [*frame.columns, *chosen, "n_tokens", "flops"])
        column = condition.column if condition.column in frame.columns else chosen.get(condition.column)
        if column is None:
            later.append(text)
        else:
            frame = keep_rows(frame, condition.holds(frame[column]), dropped, f"not {text}")
    return frame, later


def derived_conditions(fields: pd.DataFrame, later: Sequence[str], dropped: dict[str, int]) -> pd.DataFrame:
    for text in later:
        condition = condition_of(text, list(fields.columns))
        fields = keep_rows(fields, condition.holds(fields[condition.column]), dropped, f"not {text}")
    return fields


def number_fields(
    frame: pd.DataFrame, chosen: Mapping[str, str], convention: str | None
) -> tuple[pd.DataFrame, dict[str, str], tuple[float, float, float] | None, str]:
    """The fields that are numbers, what was derived of them, 6 N D / C where all three were given, and C's name."""
    fields = pd.DataFrame(index=frame.index)
    for field in (*NUMBERS, "unique_tokens"):
        if field in chosen:
            fields[field] = numbers(frame[chosen[field]], field)
    own = convention_of(chosen["flops"]) if "flops" in chosen else None
    if "convention" in chosen:
        stated = same_text(frame[chosen["convention"]])
        if len(stated) > 1:
            raise InputError(f"C is counted by several conventions ({', '.join(stated)}): one fit takes one of them")
        own = stated[0] or own
    if own is not None and convention is not None and own != convention:
        raise InputError(f"--convention {convention}: the table's compute is counted by {own}")
    named = convention or own
    missing = next((field for field in ("n_tokens", "flops") if field not in chosen), None)
    six_nd = None
    with np.errstate(all="ignore"):  # zeros are refused with their rows by Points
        six = 6.0 * fields["n_params"]
        if missing is not None:
            if named not in (None, *SIX_ND):
                raise InputError(
                    f"{missing} is missing, and the convention {named} does not say how C follows from N and D: name "
                    f"the column, or give --convention 6nd"
                )
            named = named or "6nd"
            fields[missing] = fields["flops"] / six if missing == "n_tokens" else six * fields["n_tokens"]
            how = "C / (6 N)" if missing == "n_tokens" else "6 N D"
            return fields, {missing: f"{how} ({named})"}, None, named
        ratio = six * fields["n_tokens"] / fields["flops"]
        six_nd = (float(ratio.min()), float(ratio.median()), float(ratio.max()))
        is_six = bool(np.abs(np.log(ratio)).max() < ROUNDED)
    return fields, {}, six_nd, named or ("6nd" if is_six else chosen["flops"])
