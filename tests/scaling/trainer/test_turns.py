"""Runs that take turns: whose the seconds are, and how their speeds stay comparable."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from scaling.trainer.turns import Bursts, Clock, Lane, Steps, finish


class Time:
    """Stands still unless somebody spends it."""

    def __init__(self) -> None:
        self.now = 100.0

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    fake = Time()
    monkeypatch.setattr(time, "perf_counter", lambda: fake.now)
    yield fake


def run(clock: Time, seconds: list[float], work: float, wait: float, n_steps: int) -> Steps:
    """Each turn takes `work` of its own, and waits for the GPU."""
    own_clock = Clock()
    begun = own_clock.now()
    for _ in range(n_steps):
        clock.spend(work)
        own_clock.wait(lambda: clock.spend(wait))
        seconds.append(own_clock.now() - begun)
        yield from own_clock.hand_over()
    return 0


def test_a_run_alone_has_all_the_seconds(clock: Time) -> None:
    seconds: list[float] = []
    assert finish(run(clock, seconds, 1.0, 2.0, 3)) == 0
    assert seconds == [3.0, 6.0, 9.0]


def test_seconds_of_runs_in_turns_are_those_that_pass_and_waiting_is_everybodys(clock: Time) -> None:
    """The first in a round waits for all: 6 of the 9 seconds of each round."""
    seconds: list[list[float]] = [[], [], []]
    given = ((0.5, 6.0), (1.0, 0.0), (1.5, 0.0))
    runs = [run(clock, times, *work, 40) for times, work in zip(seconds, given, strict=True)]
    lanes, waited = [Lane() for _ in runs], 0.0
    for turn in range(40):
        part = waited / 3 if turn else None
        waited = sum(lane.send(steps, part) for lane, steps in zip(lanes, runs, strict=True))
    assert clock.now == 100 + 40 * 9
    for times in seconds:
        assert times == sorted(times)
    steady = [times[-1] - times[-11] for times in seconds]
    assert steady == pytest.approx([10 * 2.5, 10 * 3.0, 10 * 3.5]) and sum(steady) == pytest.approx(90)


def test_bursts_are_steps_without_the_others(clock: Time) -> None:
    """8 of 128, timed from an idle GPU to an idle GPU."""
    waits: list[float] = []
    bursts, goes_on = Bursts(lambda: waits.append(clock.now)), []
    for step in range(300):
        clock.spend(0.5 if goes_on and goes_on[-1] else 2.0)
        goes_on.append(bursts.goes_on(disturbed=step == 150))
    spells = [i for i in range(300) if goes_on[i]]
    assert spells == [*range(8), *range(128, 136), *range(256, 264)]
    assert bursts.step_seconds == 0.5 and len(waits) == 6


def test_a_burst_with_a_checkpoint_in_it_is_made_again_and_never_starves_the_others(clock: Time) -> None:
    bursts, goes_on = Bursts(lambda: None), []
    for step in range(40):
        clock.spend(0.5)
        if step == 3:
            clock.spend(7.0)
        goes_on.append(bursts.goes_on(disturbed=step == 3))
    assert bursts.step_seconds == 0.5
    assert [i for i in range(40) if goes_on[i]] == [0, 1, 2, *range(10, 18)]
    bursts, goes_on = Bursts(lambda: None), [bursts.goes_on(disturbed=True) for _ in range(200)]
    assert bursts.step_seconds is None and goes_on.count(False) > 100


def test_what_a_run_sets_of_its_context_is_its_own() -> None:
    from data.files import check_guards, guarded

    def steps(names: list[str], name: str) -> Steps:
        with guarded(lambda: names.append(name)):
            for _ in range(3):
                check_guards()
                yield 0.0
        check_guards()
        return 0

    names: list[list[str]] = [[], []]
    lanes, works = [Lane(), Lane()], [steps(turns, name) for turns, name in zip(names, "ab", strict=True)]
    for _ in range(3):
        for lane, work in zip(lanes, works, strict=True):
            lane.send(work, None)
    check_guards()
    for lane, work in zip(lanes, works, strict=True):
        with pytest.raises(StopIteration, match="0"):
            lane.send(work, None)
    assert names == [["a"] * 3, ["b"] * 3]
