"""Learning-rate schedules: the rate of a step, and what the rate has done by then. Pure functions of training and step.

Steps are 1-based; a run's schedule is that of all its planned tokens, also where max_steps ends it early. Warm-up is
linear over whole batches, and its last step has the full rate; the last step of a run that decays has exactly
final_lr_fraction of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from arch.errors import InputError

if TYPE_CHECKING:
    from .training import Training

Phase = Literal["undecayed", "decaying", "decayed"]
UNDECAYED: Phase = "undecayed"
DECAYING: Phase = "decaying"
DECAYED: Phase = "decayed"
CONSTANT, COSINE, WSD, INVERSE_SQRT = "constant", "cosine", "wsd", "inverse_sqrt"
READS = {  # the fields that shape a schedule
    CONSTANT: (),
    COSINE: ("final_lr_fraction",),
    WSD: ("decay_fraction", "decay_shape", "final_lr_fraction"),
    INVERSE_SQRT: (),
}
FIELDS = ("schedule", "decay_fraction", "decay_shape", "final_lr_fraction")


def planned_steps(training: Training) -> int:
    """Optimizer steps of the planned tokens, rounded up to whole batches."""
    assert isinstance(training.n_tokens, int), "a multiple of parameters is resolved before a run is"
    return -(-training.n_tokens // training.batch_tokens)


def warmup_steps(training: Training) -> int:
    """The first step with the full rate, less those of no warm-up: 0 without one."""
    return -(-training.warmup_tokens // training.batch_tokens)


def decay_start(training: Training) -> int:
    """The last step before the rate falls towards the end of the run; with a constant or inverse-square-root schedule
    the run's last, since nothing there depends on where it ends."""
    if training.schedule == COSINE:
        return warmup_steps(training)
    n_steps = planned_steps(training)
    if training.schedule == WSD:
        return n_steps - max(1, round(training.decay_fraction * n_steps))
    assert training.schedule in (CONSTANT, INVERSE_SQRT), f"no decay is defined for {training.schedule}"
    return n_steps


def learning_rate(step: int, training: Training) -> float:
    """The rate of `step`.

    constant: `lr` after the warm-up. cosine: half a cosine from `lr` at its end to the final rate (Loshchilov & Hutter
    2017, eq. 5). wsd: `lr`, then over the last decay_fraction of the steps a line, or 1 - sqrt(x), down to the final
    rate (Haegele et al. 2024, section 3: 1 - sqrt ends slightly lower). inverse_sqrt: lr sqrt(w / step) after the w
    steps of warm-up (Vaswani et al. 2017, eq. 3).
    """
    warm = warmup_steps(training)
    if step < warm:
        return training.peak_lr * min(1.0, step * training.batch_tokens / training.warmup_tokens)
    if training.schedule == INVERSE_SQRT:
        return training.peak_lr * math.sqrt(warm / step)
    if training.schedule == CONSTANT or step <= (start := decay_start(training)):
        return training.peak_lr
    final, share = training.final_lr_fraction, (step - start) / (planned_steps(training) - start)
    return training.peak_lr * (final + (1.0 - final) * _left(share, training))


def _left(share: float, training: Training) -> float:
    """What is left of the fall after a share of it, from 1 to exactly 0."""
    match training.schedule, training.decay_shape:
        case "cosine", _:
            return 0.5 * (1.0 + math.cos(math.pi * share))
        case "wsd", "linear":
            return 1.0 - share
        case "wsd", "sqrt":
            return 1.0 - math.sqrt(share)
        case other:
            raise AssertionError(f"no fall of the rate is defined for {other}")


def phase(step: int, training: Training) -> Phase:
    """What the rate has done by `step`: a loss is comparable with those of the same phase alone. `undecayed`: nothing
    that depends on where the run ends."""
    if step <= decay_start(training):
        return UNDECAYED
    return DECAYED if step == planned_steps(training) else DECAYING


def check_schedule(training: Training, where: str) -> None:
    """Raises InputError, one line, where schedule, warm-up and length do not go together."""
    schedule, warm = training.schedule, warmup_steps(training)
    if schedule == INVERSE_SQRT and not training.warmup_tokens:
        raise InputError(
            f"training.warmup_tokens of {where} is 0: schedule inverse_sqrt falls from the end of the warm-up: give one"
        )
    start = decay_start(training)
    if schedule in (COSINE, WSD) and (start < warm or start >= planned_steps(training)):
        raise InputError(
            f"training.warmup_tokens={training.warmup_tokens} of {where} reaches into the decay, which begins after "
            f"{start * training.batch_tokens:,} of {training.n_tokens:,} tokens: shorten one of them"
        )
