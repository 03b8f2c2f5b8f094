"""What gives away a table whose columns count in another unit, or whose losses are of two kinds."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd

from analysis.fits.seeds import SAME_D, ends_of
from analysis.fits.tables.cells import rows_text
from arch.amounts import count
from arch.errors import InputError

NEAR, NARROW = 5.0, 3.0  # times 1,000 or 1 / 1,000; from the smallest 6 N D / C to the largest
FURTHEST = 10**4.5  # of 6 N D / C or its inverse: embeddings, experts and attention make a hundred at most
LEAST = {"n_params": 1e5, "n_tokens": 1e6}  # of the largest model and the longest run: less may be another unit
A_PARAMETER = (0.1, 1e5)  # tokens, in the median
IN_ANOTHER_UNIT = (
    "{field} runs from {low} to {high} and is read as it stands: if column {column!r} counts millions or "
    "billions, N, D and C below are no parameters, tokens and FLOP, and --at and --predict mean something else"
)
SAME_N = 0.01  # of log N: one size, rounded
APART = 1.35  # between losses of one N and D: more than seeds make, and less than bits are beside nats (1.44)
ALIKE = 0.1  # of the median log ratio: the spread of ratios that are the same everywhere
FOLLOWS, FEW = 0.9, 5  # correlation of the higher losses with the lower, as runs that failed do not have; of so many
ENOUGH = 9  # places: where there are more, three of them will do


def refuse_units(six_nd: tuple[float, float, float], chosen: Mapping[str, str]) -> None:
    """Raise InputError where 6 N D / C (smallest, median, largest) says that N, D and C are not all in parameters,
    tokens and FLOP: near 1,000 or its inverse all along, or beyond what any model has."""
    low, ratio, high = six_nd
    near = abs(abs(np.log(ratio)) - np.log(1e3)) < np.log(NEAR) and high < NARROW * low
    if not near and 1 / FURTHEST < ratio < FURTHEST:
        return
    left = "compute out by --columns flops= (C is then 6 N D)"
    if ratio < 1:
        left = "tokens out by --columns n_tokens= (D is then C / (6 N))"
    columns = ", ".join(repr(chosen[field]) for field in ("n_params", "n_tokens", "flops"))
    raise InputError(
        f"6 N D / C is {ratio:.3g} (median), near 1 where N counts parameters, D tokens and C FLOP: one of the columns "
        f"{columns} is in another unit (millions, billions, GFLOP, ...); write it in full, or leave {left}"
    )


def units_told(fields: pd.DataFrame, chosen: Mapping[str, str]) -> list[str]:
    """Remarks on N and D that hardly any study has, but that may be real."""
    told = []
    for field, least in LEAST.items():
        low, high = float(fields[field].min()), float(fields[field].max())
        if high < least:
            column = chosen.get(field) or chosen["flops"]
            told.append(IN_ANOTHER_UNIT.format(field=field, low=count(low, 4), high=count(high, 4), column=column))
    ratio = float((fields["n_tokens"] / fields["n_params"]).median())
    if not told and not A_PARAMETER[0] < ratio < A_PARAMETER[1]:
        told.append(
            f"D / N is {ratio:.3g} tokens a parameter (median), which hardly any study has: check that N, D and C are "
            "in parameters, tokens and FLOP, not in thousands, millions or billions"
        )
    return told


def refuse_two_kinds(fields: pd.DataFrame, frame: pd.DataFrame, numbers: Collection[str]) -> None:
    """Raise InputError with rows of one group where losses at equal N and D (and recipe, and text) lie in two clusters
    that are farther apart than seeds make them and go together, as of nats a token beside bits a byte; and with the
    column of the table `frame`, none of `numbers`, that tells the clusters apart."""
    run = fields["run"] if "run" in fields else fields.index.to_series()
    ends = fields.iloc[ends_of(run.to_numpy(dtype=object), fields["n_tokens"].to_numpy())]
    labels = [name for name in ("recipe", "unique_tokens") if name in ends]
    size = ends.groupby([*labels, _steps(ends["n_params"], SAME_N)], sort=False).ngroup().to_numpy()
    place = _steps(ends["n_tokens"], SAME_D, size)
    losses = pd.DataFrame(
        {"place": place, "size": size, "row": ends.index, "log_loss": np.log(ends["loss"].to_numpy())}
    )
    losses["first"] = losses.groupby("place")["row"].transform("min")
    losses = losses.sort_values(["size", "first", "log_loss"], ignore_index=True)
    gaps = losses.groupby("place", sort=False)["log_loss"].diff().dropna()
    widest = gaps.groupby(losses["place"], sort=False).idxmax().to_numpy()
    places, high = len(widest), widest[gaps[widest] > np.log(APART)]
    pairs, rows = (np.column_stack([losses[name][high - 1], losses[name][high]]) for name in ("log_loss", "row"))
    if not len(pairs) or 3 * len(pairs) < min(places, ENOUGH):
        return
    low, high = pairs.T
    ratio = float(np.median(high - low))
    follows = len(pairs) >= FEW and min(low.std(), high.std()) > 0 and np.corrcoef(low, high)[0, 1] > FOLLOWS
    if not follows and (high - low).std() > ALIKE * ratio:
        return
    cells = frame.drop(columns=list(numbers)).astype(str)
    values = {name: [set(cells[name].loc[side]) for side in rows.T] for name in cells}
    # of few values: names of runs are all different
    telling = [name for name, (one, other) in values.items() if not one & other and len(one | other) <= len(rows)]
    advice = (
        f"the column {telling[0]!r} tells them apart: --group {telling[0]!r}, or keep one by --where"
        if telling
        else "keep one by --where, or name the column of what differs by --columns recipe=NAME"
    )
    raise InputError(
        f"losses at one N and D differ by a factor of {np.exp(ratio):.3g}, at {len(pairs)} of {places} "
        f"such places ({'; '.join(rows_text(one) for one in rows[:3])}): two kinds of loss, as of a token and of a "
        f"byte, or runs that failed; {advice}"
    )


def _steps(values: pd.Series, within: float, group: np.ndarray | int = 0) -> np.ndarray:
    """[n]: which cluster each value is of, one cluster ending where log value rises by more than `within`, or with its
    group."""
    logs, groups = np.log(values.to_numpy()), np.broadcast_to(group, len(values))
    order = np.lexsort((logs, groups))
    found = np.zeros(len(logs), dtype=int)
    found[order[1:]] = np.cumsum((np.diff(logs[order]) > within) | (np.diff(groups[order]) != 0))
    return found
