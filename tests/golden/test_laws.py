"""What public commands say is what laws.csv holds: values to 1e-6, intervals within the error of their draws, and, in
tests of their own, the same draws and the same words.

The error of a drawn interval: each of its ends is the quantile p of R replicates, whose standard error is
sqrt(p (1 - p) / R) / f, f the density at that quantile, taken as the normal's with the wider side of the interval for
its width; two draws differ by sqrt(2) of it. Five of that are allowed: of 696 ends of the Chinchilla points, runs.csv
and curves.csv, drawn with two other seeds, the farthest lay 4.3 away. Intervals that are not drawn agree as closely as
values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from scipy import stats

from .make import read_laws
from .sources import SOURCES, Row, Source, by_name

RELATIVE = 1e-6
STANDARD_ERRORS = 5.0  # of a difference between two draws
LAWS = {source.name: [row for row in read_laws() if row["source"] == source.name] for source in SOURCES}
PARAMETERS = [
    pytest.param(source, id=source.name, marks=[pytest.mark.slow] if source.slow else []) for source in SOURCES
]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drawn")


@pytest.fixture(scope="module", params=PARAMETERS)
def compared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, drawn: Path
) -> Iterator[tuple[Source, list[Row]]]:
    """A source, and what its commands say now. One source at a time: the tests below share them."""
    source: Source = request.param
    if source.needs is not None and not source.needs.exists():
        pytest.skip(f"no {source.needs.name}: the tables of ../shared are not part of the repository")
    yield source, source.rows(tmp_path_factory.mktemp("golden"), drawn)


def pairs(compared: tuple[Source, list[Row]]) -> list[tuple[str, Row, Row]]:
    """(name, frozen, now) of the quantities of a source, which must be the same ones."""
    frozen, now = by_name(LAWS[compared[0].name]), by_name(compared[1])
    assert sorted(now) == sorted(frozen)
    return [(name, frozen[name], now[name]) for name in frozen]


def differences(compared: tuple[Source, list[Row]], columns: tuple[str, ...], allowed: dict[str, float]) -> list[str]:
    """The numbers that differ by more than RELATIVE and what is allowed by name of the row [absolute]."""
    different = []
    for name, frozen, now in pairs(compared):
        for column in columns:
            before, after = frozen[column], now[column]
            if (before == "") != (after == ""):
                different.append(f"{name}: {column} was {before or 'none'}, is {after or 'none'}")
            elif before and not math.isclose(
                float(before), float(after), rel_tol=RELATIVE, abs_tol=allowed.get(name, 1e-12)
            ):
                different.append(f"{name}: {column} was {before}, is {after}")
    return different


def error_of_ends(source: Source, row: Row) -> float:
    """What an end of the row's interval may differ by, absolute; 0 where it is not drawn."""
    if not source.replicates or not (row["low"] and row["high"]):
        return 0.0
    tail = (1 - source.level) / 2
    low, high = float(row["low"]), float(row["high"])
    middle = float(row["value"]) if row["value"] else (low + high) / 2
    z = float(stats.norm.isf(tail))
    sigma = max(high - middle, middle - low) / z
    if not math.isfinite(sigma):
        return 0.0
    of_an_end = sigma * math.sqrt(tail * (1 - tail) / source.replicates) / float(stats.norm.pdf(z))
    return STANDARD_ERRORS * math.sqrt(2) * of_an_end


def test_values_are_the_frozen_ones(compared: tuple[Source, list[Row]]) -> None:
    assert differences(compared, ("value",), {}) == []


def test_intervals_are_the_frozen_ones_within_the_error_of_their_draws(compared: tuple[Source, list[Row]]) -> None:
    allowed = {name: error_of_ends(compared[0], frozen) for name, frozen, _ in pairs(compared)}
    assert differences(compared, ("low", "high"), allowed) == []


def test_intervals_are_of_the_same_draws(compared: tuple[Source, list[Row]]) -> None:
    """May be written anew where a change draws otherwise: the test above holds what must not change."""
    assert differences(compared, ("low", "high"), {}) == []


def test_verdicts_and_reasons_are_the_frozen_words(compared: tuple[Source, list[Row]]) -> None:
    """May be written anew where a sentence or a rule of verdicts changes, and the change is meant."""
    different = [
        f"{name}: was {frozen['reason']!r}, is {now['reason']!r}"
        for name, frozen, now in pairs(compared)
        if frozen["reason"] != now["reason"]
    ]
    assert different == []
