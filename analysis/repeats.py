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

from analysis.fits.noise import SeedNoise, SeedNoises, pool_seed_noise
from analysis.fits.pairwise import LOSS, UNDECIDED, UNKNOWN, Comparison, compared
from analysis.fits.settings import FitSettings
from analysis.fits.study import WholeCurves
from analysis.run_evals import held_out_losses
from analysis.runs import load_tables
from arch.amounts import count, counted
from arch.errors import InputError
from data.units import loss_unit
from scaling.rundir.directory import RunDir
from scaling.rundir.owner import attempts
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
    """A run as its directory has it. losses: of training, in nats a token, by step; held_out: of evaluated checkpoints,
    by step."""

    run: RunSpec
    record: dict[str, Any]
    attempts: list[dict[str, Any]]
    losses: dict[int, float]
    held_out: dict[int, HeldOut]

    @classmethod
    def read(cls, path: Path) -> Trained:
        """The run in a directory. Raises InputError where it is damaged, or was written by another version."""
        rundir = RunDir(path)
        run = rundir.spec()
        held_out = {}
        for row in held_out_losses(path, run.training)[0]:
            weights, over = str(row.get("weights_sha256") or ""), row["settings"]["validation_tokens"]
            held_out[int(row["step"])] = HeldOut(float(row["loss"]), int(row["n_tokens"]), weights, over)
        losses = {int(row["step"]): float(row["loss"]) for row in rundir.checked_rows().rows}
        return cls(run, rundir.record(), attempts(path), losses, held_out)

    @property
    def last(self) -> int:
        """The step of the last evaluated checkpoint; 0 where there is none."""
        return max(self.held_out, default=0)


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


@dataclass(frozen=True)
class Repeat:
    """A run in A and in B, whose final losses can be compared (`not_comparable`). name: its folder; noise: between
    seeds of its architecture, of log loss at the end, None where it is not known."""

    name: str
    a: Trained
    b: Trained
    noise: SeedNoise | None = None

    @property
    def run(self) -> RunSpec:
        return self.a.run

    @cached_property
    def held_out(self) -> list[tuple[HeldOut, HeldOut]]:
        """In A and B, of every checkpoint that both evaluated."""
        steps = [step for step in sorted(self.a.held_out) if step in self.b.held_out]
        return [(self.a.held_out[step], self.b.held_out[step]) for step in steps]

    @cached_property
    def steps(self) -> list[int]:
        """For which both have a training loss."""
        return sorted(self.a.losses.keys() & self.b.losses.keys())

    @cached_property
    def equal_until(self) -> int:
        """The last step up to which all training losses that both have are equal; 0: none is."""
        last = 0
        for step in self.steps:
            if self.a.losses[step] != self.b.losses[step]:
                break
            last = step
        return last

    @property
    def is_bit_equal(self) -> bool:
        """Whether every loss that both have is equal, and the weights of every checkpoint that both evaluated."""
        alike = all(a.weights == b.weights and (a.loss == b.loss or a.over != b.over) for a, b in self.held_out)
        return alike and self.equal_until == max(self.steps, default=0)

    @property
    def is_copy(self) -> bool:
        """Whether the same processes trained both."""
        return bool(self.a.attempts) and self.a.attempts == self.b.attempts and self.is_bit_equal

    @property
    def comparison(self) -> Comparison:
        """Of the final losses, B against A, with an interval of WITHIN standard deviations between seeds."""
        a, b = self.held_out[-1]
        more = math.log(b.loss / a.loss)
        half = 0.0 if more == 0 else WITHIN * self.noise.s if self.noise and self.noise.s else None
        ends = None if half is None else (more - half, more + half)
        per_token = float(self.a.record["cost"]["flops_per_token_train"].get("exact", math.nan))
        return compared("B", "A", LOSS, per_token * a.n_tokens, more, ends, "no size has two seeds")

    @property
    def seed_sds(self) -> float | None:
        """The difference of the final log losses in standard deviations between seeds; None: not known."""
        if self.comparison.verdict == UNKNOWN:
            return None
        a, b = self.held_out[-1]
        return math.log(b.loss / a.loss) / self.noise.s if a.loss != b.loss and self.noise else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data."""
        a, b = self.held_out[-1]
        final = {"n_tokens": a.n_tokens, "a": a.loss, "b": b.loss, "difference": b.loss - a.loss}
        return {
            **{"run": self.name, "arch": self.run.arch, "size": self.run.size, "seed": self.run.seed},
            "bit_equal": self.is_bit_equal,
            "final": final | {"percent": 100 * (b.loss - a.loss) / a.loss, "seed_sds": self.seed_sds},
            "verdict": self.comparison.verdict,
            "seed_noise": {"s": self.noise.s, "df": self.noise.df} if self.noise else None,
            "training_rows": len(self.steps),
            "training_equal_until_step": self.equal_until,
            "held_out": [
                {"n_tokens": a.n_tokens, "a": a.loss, "b": b.loss} for a, b in self.held_out if a.over == b.over
            ],
        }


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
    a, b = repeat.held_out[-1]
    row = {"run": short(repeat.name), "tokens": count(a.n_tokens, 4), "A": f"{a.loss:.5f}", "B": f"{b.loss:.5f}"}
    if repeat.is_bit_equal:
        return row | {"B - A": BIT_EQUAL}
    sds = repeat.seed_sds
    row |= {"B - A": f"{b.loss - a.loss:+.5f}", "%": f"{100 * (b.loss - a.loss) / a.loss:+.3f}"}
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
