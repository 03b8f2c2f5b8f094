"""A run that was trained twice, on two machines or one: its held-out and training losses side by side, as numbers and
as rows and lines for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from analysis.fits.noise import SeedNoise
from analysis.run_evals import held_out_losses
from arch.amounts import count, counted
from data.units import loss_unit
from scaling.rundir.directory import RunDir
from scaling.study.run import RunSpec

WITHIN = 2.0  # standard deviations between seeds


@dataclass(frozen=True)
class Trained:
    """A run as its directory has it. losses: of training, in nats a token, by step; held_out: the values of evaluated
    checkpoints by step, which are compared where `over` agrees."""

    run: RunSpec
    record: dict[str, Any]
    attempts: list[dict[str, Any]]
    losses: dict[int, float]
    held_out: dict[int, HeldOut]

    @property
    def last(self) -> int:
        """The step of the last evaluated checkpoint; 0 where there is none."""
        return max(self.held_out, default=0)


class HeldOut(NamedTuple):
    """A checkpoint's held-out loss in nats a token, its tokens so far, the checksum of its weights ("": not known), and
    the tokens of held-out text that the loss is over."""

    loss: float
    n_tokens: int
    weights: str
    over: int


class Pair(NamedTuple):
    """Two losses at one number of tokens (held-out) or one step (training)."""

    at: int
    a: float
    b: float

    @property
    def difference(self) -> float:
        """B less A, in nats a token."""
        return self.b - self.a

    def to_dict(self, at: str) -> dict[str, Any]:
        return {at: self.at, "a": self.a, "b": self.b, "difference": self.difference}


@dataclass(frozen=True)
class Repeat:
    """A run in A and in B. held_out: at every checkpoint that both evaluated; training: at every step for which both
    have a row; noise: between seeds of its architecture, of log loss at the end, None where it is not known."""

    name: str
    run: RunSpec
    held_out: Sequence[Pair]
    training: Sequence[Pair]
    n_params: int  # without embeddings
    same_weights: bool
    same_training: bool  # the same processes trained both: B is a copy of A
    noise: SeedNoise | None = None

    @cached_property
    def is_bit_equal(self) -> bool:
        """Whether every loss that both have is equal, and the weights of every checkpoint that both evaluated."""
        return self.same_weights and all(pair.a == pair.b for pair in (*self.held_out, *self.training))

    @property
    def is_copy(self) -> bool:
        return self.same_training and self.is_bit_equal

    @property
    def final(self) -> Pair:
        return self.held_out[-1]

    @property
    def percent(self) -> float:
        return 100 * self.final.difference / self.final.a

    @property
    def seed_sds(self) -> float | None:
        """The difference of the final losses in standard deviations between seeds, both of log loss; None: not
        known."""
        if self.final.a == self.final.b:
            return 0.0
        return math.log(self.final.b / self.final.a) / self.noise.s if self.noise and self.noise.s else None

    @property
    def equal_until(self) -> int:
        """The last step up to which all rows of metrics that both have are equal; 0: none is."""
        last = 0
        for pair in self.training:
            if pair.a != pair.b:
                break
            last = pair.at
        return last

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data."""
        held_out, training = largest(self.held_out), largest(self.training)
        return {
            **{"run": self.name, "arch": self.run.arch, "size": self.run.size, "seed": self.run.seed},
            "bit_equal": self.is_bit_equal,
            "final": self.final.to_dict("n_tokens") | {"percent": self.percent, "seed_sds": self.seed_sds},
            "seed_noise": {"s": self.noise.s, "df": self.noise.df} if self.noise else None,
            "largest_held_out": held_out and held_out.to_dict("n_tokens"),
            "largest_training": training and training.to_dict("step"),
            "training_rows": len(self.training),
            "training_equal_until_step": self.equal_until,
            "held_out": [pair.to_dict("n_tokens") for pair in self.held_out],
        }


def largest(pairs: Sequence[Pair]) -> Pair | None:
    """The pair with the largest difference; None without pairs."""
    return max(pairs, key=lambda pair: abs(pair.difference), default=None)


def read_trained(path: Path) -> Trained:
    """The run in a directory. Raises InputError where it is damaged, or was written by another version."""
    rundir = RunDir(path)
    run = rundir.spec()
    held_out = {
        int(row["step"]): HeldOut(
            float(row["loss"]),
            int(row["n_tokens"]),
            str(row.get("weights_sha256") or ""),
            row["settings"]["validation_tokens"],
        )
        for row in held_out_losses(path, run.training)[0]
        if not row["merged"]
    }
    losses = {int(row["step"]): float(row["loss"]) for row in rundir.checked_rows().rows}
    return Trained(run, rundir.record(), rundir.attempts(), losses, held_out)


def not_comparable(a: Trained, b: Trained) -> str:
    """Why the final losses of a run's two trainings cannot be compared; "" where they can."""
    if a.record.get("corpus_fingerprint") != b.record.get("corpus_fingerprint"):
        return "trained on two corpora"
    if not a.last or not b.last:
        both = "both" if not a.last and not b.last else "A" if not a.last else "B"
        return f"no held-out loss in {both}"
    if a.last != b.last:
        return f"its last evaluated checkpoint is step {a.last} in A, {b.last} in B"
    over_a, other = a.held_out[a.last].over, b.held_out[b.last].over
    return f"its held-out losses are over {over_a:,} tokens in A, {other:,} in B" if over_a != other else ""


def compared(name: str, a: Trained, b: Trained, noise: SeedNoise | None = None) -> Repeat:
    """Two trainings of a run whose final losses can be compared (`not_comparable`)."""
    steps = [step for step in sorted(a.held_out) if step in b.held_out]
    both = [(a.held_out[step], b.held_out[step]) for step in steps]
    return Repeat(
        name,
        a.run,
        held_out=[Pair(of_a.n_tokens, of_a.loss, other.loss) for of_a, other in both if of_a.over == other.over],
        training=[Pair(step, a.losses[step], b.losses[step]) for step in sorted(a.losses.keys() & b.losses.keys())],
        n_params=int(a.record["cost"]["n_params_non_embedding"]),
        same_weights=all(of_a.weights == other.weights for of_a, other in both),
        same_training=bool(a.attempts) and a.attempts == b.attempts,
        noise=noise,
    )


def summary(repeats: Sequence[Repeat]) -> dict[str, int]:
    """Counts of runs trained twice: `runs`, `bit_equal`, `judged` (those whose difference is known in standard
    deviations between seeds) and `within` (those of the latter whose final losses differ by at most WITHIN standard
    deviations)."""
    judged = [repeat.seed_sds for repeat in repeats if repeat.seed_sds is not None]
    return {
        "runs": len(repeats),
        "bit_equal": sum(repeat.is_bit_equal for repeat in repeats),
        "judged": len(judged),
        "within": sum(abs(sds) <= WITHIN for sds in judged),
    }


BIT_EQUAL, UNKNOWN = "bit-equal", "not known"


def run_rows(repeats: Sequence[Repeat]) -> list[dict[str, str]]:
    """A row for each run: its final held-out losses, their difference, and the largest difference along both curves."""
    return [_row(repeat) for repeat in repeats]


def unit_of_repeats(repeats: Sequence[Repeat]) -> str:
    """The unit of the runs' losses (data.units)."""
    return loss_unit(repeat.run.corpus.tokenizer for repeat in repeats)


def curve_rows(repeat: Repeat) -> list[dict[str, str]]:
    """A row for each checkpoint that both evaluated, with losses in the repeat's unit."""
    return [{"tokens": count(pair.at, 4), **_losses(pair), "B - A": _difference(pair)} for pair in repeat.held_out]


def short(folder: str) -> str:
    """runs/RUN as RUN; a run of the sweep keeps its folder."""
    return folder.removeprefix("runs/")


def sum_lines(repeats: Sequence[Repeat], noise_of: str | None) -> list[str]:
    """How many runs are bit-equal, and how many final losses lie within the noise between seeds; noise_of: where that
    was measured."""
    if not repeats:
        return ["no run was trained twice"]
    counts = summary(repeats)
    lines = [f"{counts['bit_equal']} of {counted(counts['runs'], 'run')} bit-equal"]
    noises = {repeat.run.arch: repeat.noise.s for repeat in repeats if repeat.noise and not repeat.is_bit_equal}
    of = ", ".join(f"{arch} {s:.2%}" for arch, s in noises.items())
    if counts["judged"]:
        within = f"{counts['within']} of {counts['judged']} final losses within two seed standard deviations"
        lines.append(f"{within}{f' (of the final loss: {of}; seeds of {noise_of})' if of else ''}")
    if unknown := counts["runs"] - counts["judged"]:
        lines.append(
            f"the noise between seeds of {counted(unknown, 'run')} is not known: neither has two seeds of one size"
        )
    return lines


def _row(repeat: Repeat) -> dict[str, str]:
    row = {"run": short(repeat.name), "tokens": count(repeat.final.at, 4), **_losses(repeat.final)}
    if repeat.is_bit_equal:
        return row | {"B - A": BIT_EQUAL}
    sds, held_out, training = repeat.seed_sds, largest(repeat.held_out), largest(repeat.training)
    row |= {"B - A": _difference(repeat.final), "%": f"{repeat.percent:+.3f}"}
    row |= {"seed sds": UNKNOWN if sds is None else f"{sds:+.2f}"}
    row |= {"largest held-out": f"{_difference(held_out)} at {count(held_out.at, 4)}" if held_out else "-"}
    row |= {"largest in training": f"{_difference(training)} at step {training.at}" if training else "-"}
    return row | {"equal until step": str(repeat.equal_until)}


def _losses(pair: Pair) -> dict[str, str]:
    return {"A": f"{pair.a:.5f}", "B": f"{pair.b:.5f}"}


def _difference(pair: Pair) -> str:
    return f"{pair.difference:+.5f}"
