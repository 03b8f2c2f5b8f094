"""The pace of a run, by its rows."""

from __future__ import annotations

from itertools import accumulate

import pytest

from scaling.rundir.metrics import Pace, pace_of

TOKENS = 100


def rows_back(seconds: list[float]) -> list[dict[str, float]]:
    """Rows of steps that took so long each, the last one first."""
    times = accumulate(seconds)
    return [{"n_tokens": step * TOKENS, "time_s": time_s} for step, time_s in enumerate(times, 1)][::-1]


def test_the_pace_is_that_of_the_last_minute() -> None:
    pace = pace_of(rows_back([1.0] * 300 + [4.0] * 15))
    assert pace.tokens_per_s == pytest.approx(TOKENS / 4) and pace.share == pytest.approx(1 / 4)
    assert pace_of(rows_back([1.0] * 300)).share == pytest.approx(1)


def test_a_single_long_step_slows_nothing() -> None:
    """As one after which a checkpoint was written; it counts in the time left."""
    pace = pace_of(rows_back([1.0] * 300 + [20.0] + [1.0] * 20))
    assert pace.share == pytest.approx(1) and pace.tokens_per_s == pytest.approx(TOKENS * 40 / 59, rel=0.05)


@pytest.mark.parametrize("seconds", [[], [1.0], [1.0] * 30])
def test_a_run_that_has_just_begun_has_no_speed_before(seconds: list[float]) -> None:
    pace = pace_of(rows_back(seconds))
    assert pace.share is None and (pace == Pace()) == (len(seconds) < 2)


def test_rows_of_the_process_before_do_not_count() -> None:
    """Its clock was another."""
    before, now = rows_back([9.0] * 100), rows_back([1.0] * 5)
    assert pace_of(now + before) == pace_of(now) and pace_of(now).tokens_per_s == pytest.approx(TOKENS)
    assert pace_of([{"n_tokens": 2, "loss": 1.0}, {"n_tokens": 1, "loss": 1.0}]) == Pace(), "rows without times"
