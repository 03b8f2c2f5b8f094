"""Runs of a sweep as points: one a run, with its rate and the loss that it ended at."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import pandas as pd

from arch.errors import InputError

COUNTS = ("n_params", "n_tokens", "batch_tokens")


@dataclass(frozen=True)
class RatePoint:
    """One run. n_params: without embeddings; n_tokens: trained on; lr: the highest rate of its schedule; loss: nats a
    token at its end, nan where it diverged."""

    arch: str
    size: str
    n_params: int
    n_tokens: int
    batch_tokens: int
    seed: int
    lr: float
    loss: float

    @property
    def cell(self) -> tuple[str, str, int, int]:
        """Runs of one cell differ by rate and seed alone."""
        return self.arch, self.size, self.n_tokens, self.batch_tokens


def points_of(frame: pd.DataFrame) -> list[RatePoint]:
    """The points of a table with the columns of RatePoint; a loss that is empty, infinite or nan is of a run that
    diverged. Raises InputError, one line, for a column that is missing and a row that cannot be."""
    names = list(RatePoint.__dataclass_fields__)
    if missing := [name for name in names if name not in frame.columns]:
        raise InputError(f"the table of rates lacks the column(s) {', '.join(missing)}: it needs {', '.join(names)}")
    found = []
    for number, row in enumerate(frame[names].to_dict("records"), 1):
        try:
            counts = {name: int(float(row[name])) for name in (*COUNTS, "seed")}
            lr = float(row["lr"])
            loss = float(row["loss"]) if row["loss"] not in (None, "") else math.nan
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"the table of rates: row {number} holds no number where one must be: {row}") from None
        if min(counts[name] for name in COUNTS) <= 0 or not 0 < lr < math.inf or loss <= 0:
            raise InputError(
                f"the table of rates: row {number}: lr, loss, {', '.join(COUNTS)} must be positive, but it has "
                f"lr {lr:g}, loss {loss:g}, {', '.join(f'{name} {counts[name]}' for name in COUNTS)}"
            )
        found.append(RatePoint(str(row["arch"]), str(row["size"]), **counts, lr=lr, loss=loss))
    _refuse_twice(found)
    return found


def _refuse_twice(points: Sequence[RatePoint]) -> None:
    seen = set()
    for one in points:
        key = (*one.cell, one.seed, one.lr)
        if key in seen:
            raise InputError(
                f"the table of rates has two runs of {one.arch}/{one.size}, {one.n_tokens:,} tokens, batch "
                f"{one.batch_tokens:,}, seed {one.seed}, lr {one.lr:g}: keep one"
            )
        seen.add(key)


def hash_of(points: Sequence[RatePoint]) -> str:
    """SHA-256 over the points, in an order of their own."""
    rows = sorted(json.dumps(astuple(one)) for one in points)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()
