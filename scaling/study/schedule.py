"""Learning-rate schedules: the rate of a step, and what the rate has done by then. Pure functions of training and step.

Steps are 1-based; a run's schedule is that of all its planned tokens, also where max_steps ends it early. Warm-up is
linear over whole batches, and its last step has the full rate; the last step of a run that decays has exactly
final_lr_fraction of it.

A new schedule is a subclass of `Schedule` in SCHEDULES, and the fields of `training` that it alone reads, in
training.py; nothing else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import chain
from typing import Any, Literal, Protocol

from arch.errors import InputError

Phase = Literal["undecayed", "decaying", "decayed"]
UNDECAYED: Phase = "undecayed"
DECAYING: Phase = "decaying"
DECAYED: Phase = "decayed"
CONSTANT, COSINE, WSD, INVERSE_SQRT = "constant", "cosine", "wsd", "inverse_sqrt"


class Training(Protocol):
    """What a schedule reads of the section of training.py, whose key `schedule` takes the names of SCHEDULES."""

    n_tokens: Any
    batch_tokens: int
    warmup_tokens: int
    schedule: str
    decay_fraction: float
    decay_shape: Literal["linear", "sqrt"]
    final_lr_fraction: float

    @property
    def peak_lr(self) -> float: ...


class Schedule(ABC):
    """What the rate does after the warm-up. reads: the fields of `training` that shape it."""

    name: str
    reads: tuple[str, ...] = ()

    def decay_start(self, training: Training) -> int:
        """The last step before the rate falls towards the end of the run; the run's last where nothing depends on where
        it ends."""
        return planned_steps(training)

    def share(self, step: int, training: Training) -> float:
        """The rate of a step after the warm-up, over the peak rate."""
        return 1.0

    @abstractmethod
    def check(self, training: Training, where: str) -> None:
        """Raises InputError, one line, where schedule, warm-up and length do not go together."""


class Constant(Schedule):
    """`lr`."""

    name = CONSTANT

    def check(self, training: Training, where: str) -> None:
        """It goes with every length."""


class Falling(Schedule):
    """A schedule that ends at final_lr_fraction of the peak rate."""

    reads: tuple[str, ...] = ("final_lr_fraction",)

    def share(self, step: int, training: Training) -> float:
        start = self.decay_start(training)
        if step <= start:
            return 1.0
        final, passed = training.final_lr_fraction, (step - start) / (planned_steps(training) - start)
        return final + (1.0 - final) * self.left(passed, training)

    @abstractmethod
    def left(self, passed: float, training: Training) -> float:
        """What is left of the fall after a share of it, from 1 to exactly 0."""

    def check(self, training: Training, where: str) -> None:
        start = self.decay_start(training)
        if not warmup_steps(training) <= start < planned_steps(training):
            raise InputError(
                f"training.warmup_tokens={training.warmup_tokens} of {where} reaches into the decay, which begins "
                f"after {start * training.batch_tokens:,} of {training.n_tokens:,} tokens: shorten one of them"
            )


class Cosine(Falling):
    """Half a cosine from `lr` at the end of the warm-up to the final rate (Loshchilov & Hutter 2017, eq. 5)."""

    name = COSINE

    def decay_start(self, training: Training) -> int:
        return warmup_steps(training)

    def left(self, passed: float, training: Training) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * passed))


class Wsd(Falling):
    """`lr`, then over the last decay_fraction of the steps a line, or 1 - sqrt(x), down to the final rate (Haegele et
    al. 2024, section 3: 1 - sqrt ends slightly lower)."""

    name = WSD
    reads = ("decay_fraction", "decay_shape", "final_lr_fraction")

    def decay_start(self, training: Training) -> int:
        n_steps = planned_steps(training)
        return n_steps - max(1, round(training.decay_fraction * n_steps))

    def left(self, passed: float, training: Training) -> float:
        return 1.0 - (passed if training.decay_shape == "linear" else math.sqrt(passed))


class InverseSqrt(Schedule):
    """lr sqrt(w / step) after the w steps of warm-up (Vaswani et al. 2017, eq. 3)."""

    name = INVERSE_SQRT

    def share(self, step: int, training: Training) -> float:
        return math.sqrt(warmup_steps(training) / step)

    def check(self, training: Training, where: str) -> None:
        if not training.warmup_tokens:
            raise InputError(
                f"training.warmup_tokens of {where} is 0: schedule inverse_sqrt falls from the end of the warm-up: "
                "give one"
            )


SCHEDULES: dict[str, Schedule] = {schedule.name: schedule for schedule in (Constant(), Cosine(), Wsd(), InverseSqrt())}
FIELDS = ("schedule", *sorted(set(chain.from_iterable(schedule.reads for schedule in SCHEDULES.values()))))


def planned_steps(training: Training) -> int:
    """Optimizer steps of the planned tokens, rounded up to whole batches."""
    assert isinstance(training.n_tokens, int), "a multiple of parameters is resolved before a run is"
    return -(-training.n_tokens // training.batch_tokens)


def warmup_steps(training: Training) -> int:
    """The first step with the full rate, less those of no warm-up: 0 without one."""
    return -(-training.warmup_tokens // training.batch_tokens)


def decay_start(training: Training) -> int:
    """`Schedule.decay_start` of the training's."""
    return SCHEDULES[training.schedule].decay_start(training)


def learning_rate(step: int, training: Training) -> float:
    """The rate of `step`."""
    if step < warmup_steps(training):
        return training.peak_lr * min(1.0, step * training.batch_tokens / training.warmup_tokens)
    return training.peak_lr * SCHEDULES[training.schedule].share(step, training)


def phases(steps: Iterable[float], training: Training) -> list[Phase]:
    """What the rate has done by each of `steps`: a loss is comparable with those of the same phase alone. `undecayed`:
    nothing that depends on where the run ends."""
    start, last = decay_start(training), planned_steps(training)
    return [UNDECAYED if step <= start else DECAYED if step == last else DECAYING for step in steps]


def phase(step: int, training: Training) -> Phase:
    """That of one step."""
    return phases([step], training)[0]
