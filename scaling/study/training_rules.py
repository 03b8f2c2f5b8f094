"""How the keys that a study gives of `training` become the training of one run: counts, batch and betas by rule, the
branches of a trunk, and what a run asks of a law of learning rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arch.amounts import counted
from arch.config import ModelConfig
from arch.errors import InputError

from .schedule import CONSTANT, FIELDS, SCHEDULES, WSD, decay_start
from .training import Training, split_batch
from .types import tokens_of

LAW = "law"
LAW_KEYS = ("lr_law", "lr_law_beyond")  # gone into lr
BATCH_KEYS = ("min_steps", "beta2_batch_tokens")  # gone into batch_tokens and betas
LOWEST_BETA2, HIGHEST_BETA2 = 0.9, 0.9999
CHECKPOINT_DECADES = 1.5  # n_checkpoints lie evenly in log tokens over this many decades before the end

Keys = dict[str, Any]  # of a section `training`, without its defaults


@dataclass(frozen=True)
class Sized:
    """The model of a run as far as its training depends on it. processes: that share out a batch's sequences, each of
    them `sequence_processes` that read parts of the same; n_params: without embeddings; flops_per_token: to train on,
    `exact`; both are counted where asked for. where: what messages call the run."""

    context_length: int
    processes: int
    n_params: Callable[[], int]
    flops_per_token: Callable[[], float]
    where: str
    sequence_processes: int = 1

    def tokens(self, length: int | str) -> int:
        """The tokens of a length as the study says it."""
        return tokens_of(length, self.n_params, self.flops_per_token)


@dataclass(frozen=True)
class Resolved:
    """The training of a run, or of a trunk with that of its branches by the ending of their ids; notes for the reader
    of the plan."""

    training: Training
    branches: dict[str, Training]
    notes: list[str]


def or_default(given: Keys, key: str) -> Any:
    """What the keys say, or the section's default."""
    return given[key] if given.get(key) is not None else Training.model_fields[key].default


def schedule_of(given: Keys) -> dict[str, Any]:
    """The schedule by name, with the fields that it reads."""
    schedule = given.get("schedule", CONSTANT)
    return {"schedule": schedule} | {key: or_default(given, key) for key in SCHEDULES[schedule].reads}


def lengths_of(given: Keys, model: Sized) -> list[int]:
    """The tokens of the run, or of each branch; [] where none are given."""
    lengths = given.get("branches") or [given.get("n_tokens")]
    most = given.get("max_tokens") or math.inf
    return [int(min(model.tokens(length), most)) for length in lengths if length is not None]


def horizon_of(given: Keys, model: Sized) -> float | None:
    """The tokens that a rate is chosen for: those of the run; of a trunk, whose branches share its rate, the geometric
    mean of the shortest and the longest branch. None where none are given."""
    tokens = lengths_of(given, model)
    return math.sqrt(min(tokens) * max(tokens)) if tokens else None


def check_read(given: Keys, changes: Mapping[str, Any], where: str) -> None:
    """Raise InputError for what shapes another schedule than the run's, but where `changes`, of the command line or an
    axis, chose the schedule."""
    schedule = given.get("schedule", CONSTANT)
    for field in FIELDS[1:]:
        chosen = "schedule" in changes and field not in changes
        if field in given and field not in SCHEDULES[schedule].reads and not chosen:
            raise InputError(
                f"training.{field} of {where} means nothing to schedule {schedule}, only to "
                f"{', '.join(name for name, other in SCHEDULES.items() if field in other.reads)}: leave it out"
            )


def resolve_training(given: Keys, model: Sized) -> Resolved:
    """The keys as the training of a run, their rules followed. Raises InputError where they do not go together."""
    ruled = _with_betas(_with_batch(given, model))
    ruled = {key: value for key, value in ruled.items() if key not in (*LAW_KEYS, *BATCH_KEYS)}
    result = _branched(ruled, model) if ruled.get("branches") else Resolved(_counted(ruled, model), {}, [])
    fewest, lengths = given.get("min_steps"), lengths_of(given, model)
    batch = result.training.batch_tokens
    if fewest is not None and lengths and (steps := -(-min(lengths) // batch)) < fewest:
        result.notes.append(
            f"{model.where}: min_steps={fewest} is not reached: {counted(steps, 'step')} of {batch:,} tokens, a batch "
            f"that cannot be halved"
        )
    return result


def check_parts(config: ModelConfig, training: Training, processes: int, where: str) -> None:
    """Raise InputError where that many of a run's processes cannot read a part of every sequence each."""
    key = f"jobs.sequence_processes={processes} of {where}"
    if config.context_length % processes:
        raise InputError(f"{key} does not divide model.context_length={config.context_length}: change one of them")
    if training.zero_stage > 1:
        raise InputError(
            f"{key}: at training.zero_stage={training.zero_stage} processes wait for each other's gradients in the "
            f"backward pass, in which each waits for the next one's state: take stage 0 or 1"
        )
    try:
        config.check_split(processes)
    except InputError as error:
        raise InputError(f"{key}: {error}") from None


def _with_batch(given: Keys, model: Sized) -> Keys:
    """The batch halved until the run, or the shortest branch, has `min_steps`. It stays a whole number of sequences for
    every process, so that a short run on long sequences may have fewer."""
    fewest, lengths = given.get("min_steps"), lengths_of(given, model)
    if fewest is None or not lengths:
        return given
    batch, whole = or_default(given, "batch_tokens"), model.context_length * model.processes
    while batch * fewest > min(lengths) and batch % (2 * whole) == 0:
        batch //= 2
    micro = given.get("micro_batch_tokens")
    if micro is not None and batch % (micro * model.processes):
        given = given | {"micro_batch_tokens": None}  # the share of a process is smaller by now
    return given | {"batch_tokens": batch}


def beta2_at(stated: float, stated_batch: int, batch_tokens: int) -> float:
    """clip(b0^(B / B0), 0.9, 0.9999), to six decimals: the second average forgets half within the same number of tokens
    at every batch (Marek et al. 2025, arXiv 2507.07101). A beta2 that is stated outside of the limits stays what it is
    at its own batch."""
    if batch_tokens == stated_batch:
        return stated
    return round(min(max(stated ** (batch_tokens / stated_batch), LOWEST_BETA2), HIGHEST_BETA2), 6)


def _with_betas(given: Keys) -> Keys:
    """The betas of the run's batch, where `beta2_batch_tokens` says for which batch they are stated."""
    stated = given.get("beta2_batch_tokens")
    if stated is None:
        return given
    first, second = or_default(given, "betas")
    return given | {"betas": [first, beta2_at(second, stated, or_default(given, "batch_tokens"))]}


def _branched(given: Keys, model: Sized) -> Resolved:
    """A trunk at a constant rate, from which runs of several lengths are decayed (Haegele et al. 2024, section 5; Hu et
    al. 2024, section 4): each branch is the wsd run of its length, and trains the decay alone. The trunk ends where
    the decay of the longest branch begins."""
    where = model.where
    if (schedule := given.get("schedule", CONSTANT)) != WSD:
        raise InputError(
            f"training.branches of {where} needs schedule wsd, not {schedule}: a branch is the fall at the end of such "
            f"a run"
        )
    for key in ("n_tokens", "max_steps"):
        if given.get(key) is not None:
            raise InputError(
                f"training.{key} of {where} and training.branches both say how long its runs are: leave one of them out"
            )
    trunk_keys = {key: value for key, value in given.items() if key not in ("branches", "max_tokens")}
    points, notes = _branch_points(given["branches"], given.get("max_tokens"), model)
    branches = {label: _counted(_ending_at(trunk_keys, tokens), model) for label, tokens in points.items()}
    starts = {label: decay_start(training) for label, training in branches.items()}
    if not starts[first := min(starts, key=lambda label: starts[label])]:
        raise InputError(
            f"training.branches of {where}: the rate of {first} falls from its first step, so it has no trunk: make it "
            f"longer, or lower training.decay_fraction"
        )
    batch = branches[first].batch_tokens
    constant = {key: value for key, value in trunk_keys.items() if key not in FIELDS}
    return Resolved(_counted(_ending_at(constant, max(starts.values()) * batch), model), branches, notes)


def _branch_points(lengths: Sequence[int | str], most: int | None, model: Sized) -> tuple[dict[str, int], list[str]]:
    """{label: tokens}, shortest first; of several of one length the first is kept, and notes name the others."""
    points: dict[str, int] = {}
    same: dict[str, list[str]] = {}
    for item in lengths:
        tokens = model.tokens(item)
        label = _branch_label(tokens) if isinstance(item, int) else f"d{item.lower()}"
        if most is not None and tokens > most:
            original, tokens, label = label, most, _branch_label(most)
            same.setdefault(label, []).append(original)
        existing = next((name for name, n_tokens in points.items() if n_tokens == tokens), None)
        if existing is None:
            points[label] = tokens
        elif label != existing:
            same.setdefault(existing, []).append(label)
    notes = [
        f"{model.where}: {', '.join(dict.fromkeys(others))} cut to one run, {label}" for label, others in same.items()
    ]
    return dict(sorted(points.items(), key=lambda point: point[1])), notes


def _branch_label(tokens: int) -> str:
    """d5m of 5,000,000: exact, whatever the number."""
    for unit, letter in ((10**9, "b"), (10**6, "m"), (10**3, "k")):
        if tokens % (unit // 100 or 1) == 0 and tokens >= unit:
            return f"d{tokens / unit:.2f}".rstrip("0").rstrip(".") + letter
    return f"d{tokens}"


def _ending_at(given: Keys, n_tokens: int) -> Keys:
    """The keys for a run of `n_tokens`; of stated checkpoints those that it comes to."""
    checkpoints = [tokens for tokens in given.get("checkpoint_tokens") or [] if tokens <= n_tokens]
    return given | {"n_tokens": n_tokens, "checkpoint_tokens": checkpoints or None}


def _counted(given: Keys, model: Sized) -> Training:
    """The section with its token counts filled in. Raises InputError where sizes do not go together."""
    training, where, context = Training(**given), model.where, model.context_length
    if training.n_tokens is None:
        raise InputError(f"training.n_tokens is missing for {where}: give it in training or in the overrides")
    n_tokens = model.tokens(training.n_tokens)
    n_tokens = min(n_tokens, training.max_tokens or n_tokens)
    training = training.model_copy(update={"n_tokens": n_tokens, "max_tokens": None})
    batch = training.batch_tokens
    if batch % context:
        raise InputError(
            f"training.batch_tokens={batch} of {where} is not a multiple of model.context_length={context}: a batch "
            f"holds whole sequences"
        )
    micro = training.micro_batch_tokens or batch
    if batch % micro or micro % context:
        raise InputError(
            f"training.micro_batch_tokens={micro} of {where} must divide batch_tokens={batch} and be a multiple of "
            f"model.context_length={context}"
        )
    split = split_batch(training, context, model.processes)
    if not split.is_even:
        n, each = model.processes, model.sequence_processes
        processes = f"{n}" if each == 1 else f"{n * each}, {each} to a sequence,"
        raise InputError(
            f"training.batch_tokens={batch} of {where}: {counted(split.rows, 'sequence does', 'sequences do')} not "
            f"split over jobs.processes={processes} and micro-batches of {micro // context}: change one of them"
        )
    if training.optimizer == "muon" and training.zero_stage:
        raise InputError(
            f"training.zero_stage={training.zero_stage} of {where} cuts matrices up, and optimizer muon moves "
            f"whole ones: leave zero_stage out, or take adamw"
        )
    if batch > n_tokens:
        raise InputError(
            f"training.batch_tokens={batch} of {where} is more than n_tokens={n_tokens}: one step would train on more "
            f"tokens than are planned; lower the one or raise the other"
        )
    if training.warmup_tokens >= n_tokens:
        raise InputError(
            f"training.warmup_tokens={training.warmup_tokens} of {where} is not below n_tokens={n_tokens}: the run "
            f"would end before it reaches its learning rate; lower the one or raise the other (max_steps ends a trial "
            f"early)"
        )
    SCHEDULES[training.schedule].check(training, where)
    tokens = training.checkpoint_tokens
    if tokens is None:
        count = training.n_checkpoints
        spaced = [n_tokens * 10 ** (-CHECKPOINT_DECADES * (1 - i / (count - 1))) for i in range(count - 1)]
        tokens = sorted({math.ceil(at / batch) * batch for at in [*spaced, n_tokens]})
    elif tokens[-1] > n_tokens:
        raise InputError(
            f"training.checkpoint_tokens of {where} ends at {tokens[-1]}, after the run's n_tokens={n_tokens}: remove "
            f"it or train longer"
        )
    return training.model_copy(update={"checkpoint_tokens": tokens})
