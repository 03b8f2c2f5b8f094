"""A run that was trained twice, on two machines or one: its held-out and training losses side by side, as numbers and
as rows and lines for the terminal and the page.

Final losses are compared by the noise between seeds. Its seeds, and the architectures over which it is pooled, are
those of the study's fits. The fits measure it at any point of a curve; at the end of runs it is smaller (a half to a
third in h200-hour), and final losses are compared with that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from analysis.fits.noise import SeedNoise, pool_seed_noise
from analysis.fits.pairwise import LOSS, UNDECIDED, UNKNOWN, Comparison, compared
from analysis.fits.pooling import SeedNoises
from analysis.fits.settings import FitSettings
from analysis.fits.study import WholeCurves
from analysis.run_evals import held_out_losses
from analysis.runs import load_tables
from arch.amounts import count, counted
from arch.errors import InputError
from data.units import loss_unit
from scaling.rundir.directory import RunDir
from scaling.study.run import RunSpec

WITHIN = 2.0  # standard deviations between seeds
BIT_EQUAL = "bit-equal"


class HeldOut(NamedTuple):
    """A checkpoint's held-out loss in nats a token, its tokens so far, the checksum of its weights ("": not known), and
    the tokens of held-out text that the loss is over."""

    loss: float
    n_tokens: int
    weights: str
    over: int


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


class Losses(NamedTuple):
    """Of A and B, in nats a token, at one number of tokens (held-out) or one step (training)."""

    at: int
    a: float
    b: float

    @property
    def difference(self) -> float:
        """B less A."""
        return self.b - self.a


@dataclass(frozen=True)
class Repeat:
    """A run in A and in B. held_out: at every checkpoint that both evaluated; training: at every step for which both
    have a row; noise: between seeds of its architecture, of log loss at the end, None where it is not known."""

    name: str
    run: RunSpec
    held_out: Sequence[Losses]
    training: Sequence[Losses]
    n_params: int  # without embeddings
    flops: float  # of the run, exact
    same_weights: bool
    same_training: bool  # the same processes trained both: B is a copy of A
    noise: SeedNoise | None = None

    @cached_property
    def is_bit_equal(self) -> bool:
        """Whether every loss that both have is equal, and the weights of every checkpoint that both evaluated."""
        return self.same_weights and all(losses.a == losses.b for losses in (*self.held_out, *self.training))

    @property
    def is_copy(self) -> bool:
        return self.same_training and self.is_bit_equal

    @property
    def final(self) -> Losses:
        return self.held_out[-1]

    @property
    def comparison(self) -> Comparison:
        """Of the final losses, B against A, with an interval of WITHIN standard deviations between seeds."""
        more = math.log(self.final.b / self.final.a)
        half = 0.0 if more == 0 else WITHIN * self.noise.s if self.noise and self.noise.s else None
        ends = None if half is None else (more - half, more + half)
        return compared("B", "A", LOSS, self.flops, more, ends, "no size has two seeds")

    @property
    def seed_sds(self) -> float | None:
        """The difference of the final log losses in standard deviations between seeds; None: not known."""
        if self.comparison.verdict == UNKNOWN:
            return None
        more = math.log(self.final.b / self.final.a)
        return more / self.noise.s if more and self.noise else 0.0

    @property
    def equal_until(self) -> int:
        """The last step up to which all rows of metrics that both have are equal; 0: none is."""
        first = next((i for i, losses in enumerate(self.training) if losses.a != losses.b), len(self.training))
        return self.training[first - 1].at if first else 0

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data."""
        a, b, more = self.final.a, self.final.b, self.comparison.more.value
        return {
            **{"run": self.name, "arch": self.run.arch, "size": self.run.size, "seed": self.run.seed},
            "bit_equal": self.is_bit_equal,
            "final": {"n_tokens": self.final.at, "a": a, "b": b, "difference": self.final.difference}
            | {"percent": None if more is None else 100 * more, "seed_sds": self.seed_sds},
            "verdict": self.comparison.verdict,
            "seed_noise": {"s": self.noise.s, "df": self.noise.df} if self.noise else None,
            "training_rows": len(self.training),
            "training_equal_until_step": self.equal_until,
            "held_out": [{"n_tokens": one.at, "a": one.a, "b": one.b} for one in self.held_out],
        }


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


def repeat_of(name: str, a: Trained, b: Trained) -> Repeat:
    """Two trainings of a run whose final losses can be compared (`not_comparable`), without the noise."""
    both = [(a.held_out[step], b.held_out[step]) for step in sorted(a.held_out) if step in b.held_out]
    cost = a.record["cost"]
    return Repeat(
        name,
        a.run,
        held_out=[Losses(of_a.n_tokens, of_a.loss, other.loss) for of_a, other in both if of_a.over == other.over],
        training=[Losses(step, a.losses[step], b.losses[step]) for step in sorted(a.losses.keys() & b.losses.keys())],
        n_params=int(cost["n_params_non_embedding"]),
        flops=float(cost["flops_per_token_train"].get("exact", math.nan)) * a.held_out[a.last].n_tokens,
        same_weights=all(of_a.weights == other.weights for of_a, other in both),
        same_training=bool(a.attempts) and a.attempts == b.attempts,
    )


@dataclass(frozen=True)
class NoiseOfStudy:
    """The noise between a study's seeds. groups: by run, the group that it is fitted with (an architecture at a
    point)."""

    noises: SeedNoises
    groups: dict[str, str]

    @property
    def df(self) -> float:
        """The degrees of freedom of all groups; 0 where no size has two seeds."""
        return self.noises.every.df if self.noises.every else 0.0

    def of_ends(self, run_id: str, arch: str) -> SeedNoise | None:
        """Between the last losses of seeds, over the groups that are pooled with the run's group; over all groups where
        those have no seeds. None where no size of the study has two seeds."""
        group = self.groups.get(run_id, arch)
        part = next((kind for kind in self.noises.kinds if group in kind), [])
        seeds = [seeds_of_size for seeds_of_size in self.noises.groups if seeds_of_size.arch in part or not part]
        return pool_seed_noise([seed._replace(log_loss=seed.log_loss[:, -1:], at=None) for seed in seeds])


def noise_of_study(directory: Path, settings: FitSettings) -> NoiseOfStudy:
    """The noise of held-out losses along the runs, as the fits of `<out>/<study>` with `settings` measure it."""
    settings = settings.model_copy(update={"loss": "validation", "control": "none"})
    if not any((directory / "runs").glob("*/run.json")):
        return NoiseOfStudy(SeedNoises(()), {})
    try:
        read = WholeCurves.of(load_tables(directory, control=settings.control), settings)
    except InputError:  # losses that the fits ask for and no run has
        return NoiseOfStudy(SeedNoises(()), {})
    runs = read.table.runs
    return NoiseOfStudy(read.noises(), dict(zip(runs["run_id"].astype(str), runs["group"].astype(str), strict=True)))


def summary(repeats: Sequence[Repeat]) -> dict[str, int]:
    """Counts of runs trained twice: `runs`, `bit_equal`, `judged` (those whose difference is known in standard
    deviations between seeds) and `within` (those of the latter whose final losses differ by at most WITHIN standard
    deviations)."""
    verdicts = [repeat.comparison.verdict for repeat in repeats]
    return {
        "runs": len(repeats),
        "bit_equal": sum(repeat.is_bit_equal for repeat in repeats),
        "judged": len(verdicts) - verdicts.count(UNKNOWN),
        "within": verdicts.count(UNDECIDED),
    }


def unit_of_repeats(repeats: Sequence[Repeat]) -> str:
    """The unit of the runs' losses (data.units)."""
    return loss_unit(repeat.run.corpus.tokenizer for repeat in repeats)


def short(folder: str) -> str:
    """runs/RUN as RUN; a run of the sweep keeps its folder."""
    return folder.removeprefix("runs/")


def run_rows(repeats: Sequence[Repeat]) -> list[dict[str, str]]:
    """A row for each run: its final held-out losses and their difference."""
    return [_row(repeat) for repeat in repeats]


def _row(repeat: Repeat) -> dict[str, str]:
    final = repeat.final
    row = {"run": short(repeat.name), "tokens": count(final.at, 4), "A": f"{final.a:.5f}", "B": f"{final.b:.5f}"}
    if repeat.is_bit_equal:
        return row | {"B - A": BIT_EQUAL}
    sds, more = repeat.seed_sds, repeat.comparison.more.value
    row |= {"B - A": f"{final.difference:+.5f}", "%": "" if more is None else f"{100 * more:+.3f}"}
    row |= {"seed sds": UNKNOWN if sds is None else f"{sds:+.2f}"}
    return row | {"equal until step": str(repeat.equal_until)}


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
