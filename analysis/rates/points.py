"""Runs of a sweep as points: the rate of each run and its loss at the end."""

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
    """A run of a sweep. n_params: without embeddings; n_tokens: trained on; lr: the highest rate of its schedule; loss:
    nats a token at its end, nan where it diverged."""

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
        """The run's cell: runs of a cell differ by rate and seed alone."""
        return self.arch, self.size, self.n_tokens, self.batch_tokens


def points_of(frame: pd.DataFrame) -> list[RatePoint]:
    """The points of a table with the columns of RatePoint; a loss that is empty, infinite or nan is of a run that
    diverged. Raises InputError for a missing column and an impossible row."""
    names = list(RatePoint.__dataclass_fields__)
    if missing := [name for name in names if name not in frame.columns]:
        raise InputError(f"the table of rates lacks the column(s) {', '.join(missing)}: it needs {', '.join(names)}")
    points = []
    for number, row in enumerate(frame[names].to_dict("records"), 1):
        try:
            counts = {name: int(float(row[name])) for name in (*COUNTS, "seed")}
            lr = float(row["lr"])
            loss = float(row["loss"]) if row["loss"] not in (None, "") else math.nan
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"the table of rates: row {number} has no number where it needs one: {row}") from None
        if min(counts[name] for name in COUNTS) <= 0 or not 0 < lr < math.inf or loss <= 0:
            raise InputError(
                f"the table of rates: row {number}: lr, loss, {', '.join(COUNTS)} must be positive, but it has "
                f"lr {lr:g}, loss {loss:g}, {', '.join(f'{name} {counts[name]}' for name in COUNTS)}"
            )
        points.append(RatePoint(str(row["arch"]), str(row["size"]), **counts, lr=lr, loss=loss))
    _refuse_twice(points)
    return points


def _refuse_twice(points: Sequence[RatePoint]) -> None:
    seen = set()
    for point in points:
        key = (*point.cell, point.seed, point.lr)
        if key in seen:
            raise InputError(
                f"the table of rates has two runs of {point.arch}/{point.size}, {point.n_tokens:,} tokens, batch "
                f"{point.batch_tokens:,}, seed {point.seed}, lr {point.lr:g}: keep one"
            )
        seen.add(key)


def hash_of(points: Sequence[RatePoint]) -> str:
    """SHA-256 over the points, whatever their order."""
    rows = sorted(json.dumps(astuple(point)) for point in points)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()
