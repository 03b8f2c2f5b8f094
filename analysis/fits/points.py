"""What every approach fits: n points of loss over parameters and tokens, of one architecture on one corpus.

Numbers are float64 from the start: 6 N D of a large run overflows int64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from arch.errors import InputError

NUMBERS = ("n_params", "n_tokens", "flops", "loss", "unique_tokens")
FURTHEST = 1e100  # a number above it, or below its inverse, is a mistake, and products of two would overflow
SHOWN = 5  # row numbers that a message lists
COPIED = "the same numbers under another run name"
SAME_SEED = "a run of the same recipe has the same seed"
ENDS, CURVES = "ends", "curves"  # what is read of a run


def _no_values() -> np.ndarray:
    """Of a column that `Points` fills itself."""
    return np.zeros(0)


@dataclass(frozen=True)
class Points:
    """n points; every array has one value a point, those that are left out stand for what their comment says.

    A point is a run's last loss, or one of many along its curve. Raises InputError, with row numbers, for values that
    are not finite and positive or that nobody can have measured, and for arrays of different lengths.
    """

    n_params: np.ndarray  # N, by the convention that the result names
    n_tokens: np.ndarray  # D, tokens trained on
    flops: np.ndarray  # C, training FLOP under `convention`
    loss: np.ndarray  # nats a token, or whatever `loss_unit` says
    run: np.ndarray = field(default_factory=_no_values)  # its run: points of one run share its noise
    trunk: np.ndarray = field(default_factory=_no_values)  # the run it was branched from; its own run's
    cell: np.ndarray = field(default_factory=_no_values)  # runs that saw the same batches share it; its own
    recipe: np.ndarray = field(default_factory=_no_values)  # runs that differ by seed alone share it; ""
    seed: np.ndarray = field(default_factory=_no_values)  # of its run, where that is known; ""
    size: np.ndarray = field(default_factory=_no_values)  # name of its size; N as text
    unique_tokens: np.ndarray = field(default_factory=_no_values)  # of the text; all of n_tokens
    budget: np.ndarray = field(default_factory=_no_values)  # nominal C, by which isoFLOP groups; 0: there is none
    row: np.ndarray = field(default_factory=_no_values)  # in the table, for messages; 1, 2, ...
    warmup_tokens: np.ndarray = field(default_factory=_no_values)  # up to which its run warms up; 0
    convention: str = "6nd"  # of C
    loss_unit: str = "nats/token"
    loss_of: str = ""  # corpus, tokenizer, ... as far as columns tell: losses of two different ones are not compared
    keeps_copies: bool = False  # runs of the same numbers are repeats, each of its own
    group: str = ""  # the architecture, or whatever the table was grouped by

    def __post_init__(self) -> None:
        n = len(self.loss)
        # made where they are needed: a fit of runs makes Points by the hundred
        defaults: dict[str, Callable[[], Any]] = {
            "row": lambda: np.arange(1, n + 1),
            "run": lambda: np.array([f"row {i + 1}" for i in range(n)], dtype=object),
            "trunk": lambda: self.run,
            "cell": lambda: self.run,
            "recipe": lambda: np.full(n, "", dtype=object),
            "seed": lambda: np.full(n, "", dtype=object),
            "size": lambda: np.array([f"{value:.6g}" for value in self.n_params], dtype=object),
            "unique_tokens": lambda: self.n_tokens,
            "budget": lambda: np.zeros(n),
            "warmup_tokens": lambda: np.zeros(n),
        }
        for name, default in defaults.items():
            if n and not len(getattr(self, name)):
                object.__setattr__(self, name, default())
        for name in NUMBERS:
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        for name in self._columns:
            if len(getattr(self, name)) != n:
                raise InputError(f"{name}: {len(getattr(self, name))} values, loss has {n}")
        for name in NUMBERS:
            refuse_impossible(name, getattr(self, name), self.row)

    @property
    def _columns(self) -> list[str]:
        return [column.name for column in fields(self) if isinstance(getattr(self, column.name), np.ndarray)]

    def __len__(self) -> int:
        return len(self.loss)

    def take(self, keep: np.ndarray | Sequence[int]) -> Points:
        """The points of a mask or of indices, which may repeat."""
        return replace(self, **{name: getattr(self, name)[keep] for name in self._columns})

    @property
    def copied(self) -> np.ndarray:
        """[n] bool: points of runs that are another run, to the last bit of every number, under another name."""
        if self.keeps_copies:
            return np.zeros(len(self), dtype=bool)
        return copies(self.run, *(getattr(self, name) for name in NUMBERS))

    @property
    def trained_again(self) -> np.ndarray:
        """[n] bool: points of runs whose recipe and seed a run of their size has that comes first. Branches of a trunk
        share its seed, and are none."""
        first: dict[tuple[Any, ...], Any] = {}
        again = np.zeros(len(self), dtype=bool)
        for run, rows in self.rows_of_runs.items() if any(self.seed) else ():
            own = tuple(getattr(self, name)[rows[0]] for name in ("size", "recipe", "seed"))
            if own[-1] and self.trunk[rows[0]] == run:
                again[rows] = first.setdefault(own, run) != run
        return again

    def thinned(self, count: int, first_share: float) -> Points:
        """At most `count` points of every run: those nearest to even steps of log D from `first_share` of its tokens
        (or its first point, where that is later) to its end."""
        keep: list[int] = []
        for mine in self.rows_of_runs.values():
            log_d = np.log(self.n_tokens[mine])
            late = log_d >= log_d.max() + np.log(first_share) - 1e-9
            mine, log_d = mine[late], log_d[late]
            wanted = np.linspace(log_d.min(), log_d.max(), count)
            keep += mine[sorted({int(np.abs(log_d - at).argmin()) for at in wanted})].tolist()
        return self.take(keep)

    @property
    def run_share(self) -> np.ndarray:
        """[n]: tokens over those at the last point of the same run."""
        codes, _ = pd.factorize(self.run)
        last = np.zeros(len(self))
        np.maximum.at(last, codes, self.n_tokens)
        return np.asarray(self.n_tokens / last[codes])

    @cached_property
    def rows_of_runs(self) -> dict[Any, np.ndarray]:
        """Of each run, in the order of their first points, the indices of its points, ascending. A comparison of all
        points with each name would take minutes for a million points of hundreds of runs."""
        codes, runs = pd.factorize(self.run)
        ends = np.cumsum(np.bincount(codes, minlength=len(runs)))[:-1]
        return (
            dict(zip(runs.tolist(), np.split(np.argsort(codes, kind="stable"), ends), strict=True)) if len(runs) else {}
        )

    @property
    def rows_of_run(self) -> np.ndarray:
        """[n]: how many points the run of each has."""
        codes, _ = pd.factorize(self.run)
        return np.asarray(np.bincount(codes)[codes]) if len(codes) else codes

    @property
    def n_runs(self) -> int:
        return len(set(self.run.tolist()))

    @property
    def input_hash(self) -> str:
        """Of the numbers, labels and convention, whatever the order of the points."""
        columns = (map(float.hex, getattr(self, name).tolist()) for name in NUMBERS)
        rows = sorted(zip(*columns, map(str, self.run.tolist()), strict=True))
        return hashlib.sha256(repr((self.convention, self.loss_unit, rows)).encode()).hexdigest()


@dataclass(frozen=True)
class Reading:
    """Points by group ("" where the table was not grouped), and how they came about.

    points: "ends", the last row of each run, or "curves", all of them; n_read: rows of the table (or what `unit` says);
    dropped: those left out, by reason, in the order of the steps; derived: a field and what it was made from; six_nd:
    smallest, median and largest 6 N D / C where the source has all three; several_rows: whether a run has more than
    one.
    """

    source: str
    groups: Mapping[str, Points]
    columns: Mapping[str, str]
    points: str
    n_read: int
    dropped: Mapping[str, int]
    derived: Mapping[str, str]
    six_nd: tuple[float, float, float] | None
    several_rows: bool
    notes: tuple[str, ...] = ()
    unit: str = "rows"

    @property
    def n_kept(self) -> int:
        """What was not dropped."""
        return self.n_read - sum(self.dropped.values())

    def to_dict(self) -> dict[str, Any]:
        """For JSON, the points themselves left out."""
        return {
            "source": self.source,
            "points": self.points,
            "columns": dict(self.columns),
            "derived": dict(self.derived),
            self.unit: {"read": self.n_read, "dropped": dict(self.dropped), "kept": self.n_kept},
            "six_nd_over_c": None if self.six_nd is None else list(self.six_nd),
            "groups": [
                {"group": name, "n_points": len(points), "n_runs": points.n_runs, "convention": points.convention}
                for name, points in self.groups.items()
            ],
            "notes": list(self.notes),
        }


def refuse_impossible(name: str, value: np.ndarray, row: np.ndarray) -> None:
    """Raise InputError with the numbers of the rows [n] where a value [n] is not positive and finite, or is none that
    anybody can have measured."""
    for bad, why in (
        (~(np.isfinite(value) & (value > 0)), "is not a positive, finite number"),
        ((value > FURTHEST) | (value < 1 / FURTHEST), f"lies outside of {1 / FURTHEST:g} to {FURTHEST:g}"),
    ):
        if bad.any():
            raise InputError(f"{name} {why} in {rows_text(row[bad])}")


def rows_text(rows: Iterable[Any]) -> str:
    """ "row 3", "rows 3, 7", or the first few and how many more."""
    named = list(map(str, rows))
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return f"row{'' if len(named) == 1 else 's'} {', '.join(named[:SHOWN])}{more}"


def copies(run: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
    """[n] bool: rows of runs whose rows all have the same numbers, to the last bit, as those of a run that comes first.

    Two trainings do not end at the same float64: such a run is one that is already there, and would count as another.
    Runs are compared by the sum of 64-bit hashes of their rows, in whatever order these stand.
    """
    if not len(run):
        return np.zeros(0, dtype=bool)
    columns = {str(i): np.asarray(column, dtype=np.float64) for i, column in enumerate(numbers)}
    rows = pd.util.hash_pandas_object(pd.DataFrame(columns), index=False).to_numpy()
    which, names = pd.factorize(np.asarray(run).astype(str).astype(object))
    total = np.zeros(len(names), dtype=np.uint64)
    np.add.at(total, which, rows)
    again = pd.DataFrame({"total": total, "rows": np.bincount(which, minlength=len(names))}).duplicated()
    return np.asarray(again.to_numpy()[which])
