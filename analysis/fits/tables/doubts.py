"""What gives away a table whose columns count in another unit, whose losses are of two kinds, or whose rows are
curves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis.fits.points import rows_text
from analysis.fits.seeds import ends_of
from analysis.fits.tables.columns import LABELS, NUMBERS
from arch.amounts import count
from arch.errors import InputError

NEAR, NARROW = 5.0, 3.0  # times 1,000 or 1 / 1,000; from the smallest 6 N D / C to the largest
FURTHEST = 10**4.5  # of 6 N D / C or its inverse: embeddings, experts and attention make a hundred at most
LEAST = {"n_params": 1e5, "n_tokens": 1e6}  # of the largest model and the longest run: less may be another unit
A_PARAMETER = (0.1, 1e5)  # tokens, in the median
APART = 1.35  # between losses of one N and D: more than seeds make, and less than bits are beside nats (1.44)
ALIKE = 0.1  # of the median log ratio: the spread of ratios that are the same everywhere
ENOUGH = 9  # places: where there are more, three of them will do
LEAST_CURVE = 8  # different D of one size; a table of runs seldom has as many


def refuse_units(six_nd: tuple[float, float, float], chosen: Mapping[str, str]) -> None:
    """Raise InputError where 6 N D / C (smallest, median, largest) says that N, D and C are not all in parameters,
    tokens and FLOP: near 1,000 or its inverse all along, or beyond what any model has."""
    low, ratio, high = six_nd
    near = abs(abs(np.log(ratio)) - np.log(1e3)) < np.log(NEAR) and high < NARROW * low
    if not near and 1 / FURTHEST < ratio < FURTHEST:
        return
    tokens, compute = "tokens out by --columns n_tokens= (D is then C / (6 N))", "compute out by --columns flops="
    left, columns = tokens if ratio < 1 else compute, ", ".join(repr(chosen[field]) for field in NUMBERS[:3])
    raise InputError(
        f"6 N D / C is {ratio:.3g} (median), near 1 where N counts parameters, D tokens and C FLOP: one of the columns "
        f"{columns} is in another unit (millions, billions, GFLOP, ...); write it in full, or leave {left}"
    )


def unit_notes(fields: pd.DataFrame, chosen: Mapping[str, str]) -> list[str]:
    """Remarks on N and D that hardly any study has, but that may be real."""
    notes = []
    for field, least in LEAST.items():
        low, high = float(fields[field].min()), float(fields[field].max())
        if high < least:
            notes.append(
                f"{field} runs from {count(low, 4)} to {count(high, 4)} and is read as it stands: if column "
                f"{chosen.get(field) or chosen['flops']!r} counts millions or billions, N, D and C below are no "
                f"parameters, tokens and FLOP, and --at and --predict mean something else"
            )
    ratio = float((fields["n_tokens"] / fields["n_params"]).median())
    if not notes and not A_PARAMETER[0] < ratio < A_PARAMETER[1]:
        notes.append(
            f"D / N is {ratio:.3g} tokens a parameter (median), which hardly any study has: check that N, D and C are "
            "in parameters, tokens and FLOP, not in thousands, millions or billions"
        )
    return notes


def refuse_two_kinds(fields: pd.DataFrame) -> None:
    """Raise InputError with rows of one group where the ends of runs of one N and D (to 1%), recipe and text differ by
    one factor that is more than seeds make, as of nats a token beside bits a byte."""
    ends = fields.iloc[ends_of(fields["run"].to_numpy(), fields["n_tokens"].to_numpy())]
    keys = [ends[name] for name in ("recipe", "unique_tokens") if name in ends]
    keys += [np.log(ends[name]).round(2) for name in ("n_params", "n_tokens")]
    places = ends["loss"].groupby(keys, sort=False).agg(["size", "min", "max", "idxmin", "idxmax"])
    places = places[places["size"] > 1]
    wide = places[places["max"] > APART * places["min"]]
    if not len(wide) or 3 * len(wide) < min(len(places), ENOUGH):
        return
    ratios = np.log((wide["max"] / wide["min"]).to_numpy())
    ratio = float(np.median(ratios))
    if ratios.std() > ALIKE * ratio:
        return
    rows = [sorted(pair) for pair in zip(wide["idxmin"], wide["idxmax"], strict=True)][:3]
    raise InputError(
        f"losses at one N and D differ by a factor of {np.exp(ratio):.3g}, at {len(wide)} of {len(places)} such places "
        f"({'; '.join(map(rows_text, rows))}): two kinds of loss, as of a token and of a byte, or runs that failed; "
        f"keep one by --where, group by a column that tells them apart, or name it by --columns recipe=NAME"
    )


def refuse_unnamed_curves(fields: pd.DataFrame, chosen: Mapping[str, str]) -> None:
    """Raise InputError where rows that count as runs of their own, for want of a column of runs, are evidently curves:
    most rows belong to one size (and seed, recipe, ...) with LEAST_CURVE or more different D. As runs they would make
    intervals many times too narrow."""
    labels = ["group", "n_params", *(name for name in LABELS if name != "run")]
    along = fields.groupby(labels, sort=False)["n_tokens"].transform("nunique") >= LEAST_CURVE
    if along.sum() * 2 <= len(fields):
        return
    first = fields[along].iloc[0]
    rows = fields[(fields[labels] == first[labels]).all(axis=1)]
    raise InputError(
        f"these rows look like curves, not like runs: N = {count(first['n_params'], 6)} has {len(rows)} rows from "
        f"{count(rows['n_tokens'].min())} to {count(rows['n_tokens'].max())} tokens. Name the column that tells runs "
        f'apart by --columns run="its name" (run="{chosen["n_params"]}" if a size is one run), or give --columns run= '
        "if each row is a run of its own"
    )
