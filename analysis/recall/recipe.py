"""The settings of a recall sweep: problems, widths, what is tried, and the recipe that all architectures share.

The data are `data.synthetic.mqar_batch`'s, after Arora et al., "Zoology" (arXiv:2312.04927): keys with values, then the
keys again; the loss is over the values asked for. HGRN2's figure 3 (Qin et al. 2024) draws accuracy against width for
lengths 64 to 512, each point the best of a range of learning rates and expand ratios (its section 4.1). Every number
stands with what was tried and the rule that chose among it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from arch.config import ModelConfig
from arch.errors import InputError, nearest
from arch.presets import preset
from data.synthetic import mqar_batch
from scaling.study.file import validate
from scaling.study.patterns import Patterns, PatternsOfStudy
from scaling.study.types import Arch, Count, Distinct, Flag, Name, Number, Positive, Seed
from scaling.study.yaml_text import read_mapping

PACKAGED = Path(__file__).parent / "sweeps"

Rate = Annotated[Number, Field(gt=0, lt=1)]


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Problem(Part):
    """A recall problem. length: tokens of a row; pairs: keys with values in it."""

    length: Count
    pairs: Count

    @property
    def name(self) -> str:
        return f"{self.length}x{self.pairs}"


@dataclass(frozen=True)
class Trial:
    """What is tried of an architecture: a learning rate and, where the sweep names several, an expand ratio."""

    rate: float
    ratio: int | None = None

    def __str__(self) -> str:
        return f"{self.rate:g}" if self.ratio is None else f"{self.rate:g} ({self.ratio})"


class Sweep(Part):
    """Every architecture on every problem at every width, each by its best trial at the first seed.

    architectures: patterns, as in a study file; rates: tried in that order (`first`: an architecture's own beginning),
    each with all of the architecture's `expand_ratios`; with `stop` the sweep ends at a trial that answers a share
    `solved` of the queries. A run ends early when it answers `done`. `seeds` after the first repeat the chosen trial.
    head_dim: d_model / n_heads by architecture, where a single one is tried; model: further fields of its
    configuration; longer: factor of its steps.
    """

    name: Name
    architectures: PatternsOfStudy = Field(default_factory=Patterns)
    archs: Annotated[list[Arch], Distinct]
    problems: Annotated[list[Problem], Distinct]
    widths: Annotated[list[Count], Distinct]
    rates: Annotated[list[Rate], Distinct]
    first: dict[str, Rate] = {}
    seeds: Annotated[list[Seed], Distinct] = [0]
    stop: Flag = True
    n_layers: Count = 2
    head_dim: dict[str, Count] = {}
    expand_ratios: dict[str, Annotated[list[Count], Distinct]] = {}
    model: dict[str, dict[str, int | float | bool | str]] = {}
    init_std: Positive = 0.1
    vocab_size: Count = 64
    rows: Count = 32
    steps: Count = 1000
    longer: dict[str, Count] = {}
    warm_up_steps: Count = 50
    weight_decay: Annotated[Number, Field(ge=0)] = 0.1
    every: Count = 50
    held_out_rows: Count = 256
    done: Annotated[Positive, Field(le=1)] = 0.99
    solved: Annotated[Positive, Field(le=1)] = 0.95

    @model_validator(mode="after")
    def _fits(self) -> Sweep:
        for table in ("first", "head_dim", "expand_ratios", "model", "longer"):
            for arch in getattr(self, table):
                if arch not in self.archs:
                    raise ValueError(f"{table}.{arch}: {arch} is not among archs{nearest(arch, self.archs)}")
        for arch in self.expand_ratios:
            if arch in self.head_dim:
                raise ValueError(f"expand_ratios.{arch}: head_dim.{arch} names one already; leave one of the two out")
        if self.warm_up_steps >= self.steps:  # the cosine behind the warm-up would have no steps, or rise again
            raise ValueError(
                f"warm_up_steps: {self.warm_up_steps} of {self.steps} steps leave none to train on: give fewer, or "
                f"more steps"
            )
        for problem in self.problems:
            mqar_batch(0, 0, 1, problem.length, problem.pairs, self.vocab_size)
            for width in self.widths:
                for arch in self.archs:
                    for trial in self.trials(arch, width):
                        self.config(arch, problem, width, trial.ratio)
        return self

    def config(self, arch: str, problem: Problem, width: int, ratio: int | None = None) -> ModelConfig:
        """The model of one cell: `n_layers` of this width, the MLP, where there is one, as wide; heads as
        wide as `ratio`, None for head_dim.

        Raises InputError where the width has no such heads, or the fields contradict each other.
        """
        head_dim = min(ratio or self.head_dim.get(arch, 64), width)
        if width % head_dim:
            raise InputError(f"widths: {width} does not split into {arch}'s heads of {head_dim}")
        shape = {"n_layers": self.n_layers, "n_heads": width // head_dim, "d_ffn": width, "init_std": self.init_std}
        data = {"d_model": width, "vocab_size": self.vocab_size, "context_length": problem.length}
        changes: dict[str, Any] = shape | data | self.model.get(arch, {})
        return preset(arch, "98k", **changes)

    def rates_of(self, arch: str) -> list[float]:
        return sorted(self.rates, key=lambda rate: rate != self.first.get(arch))

    def trials(self, arch: str, width: int) -> list[Trial]:
        """In the order in which they are tried. No head is wider than the model, so ratios beyond its width count as
        its width, once."""
        ratios: list[int | None] = [*dict.fromkeys(min(ratio, width) for ratio in self.expand_ratios.get(arch, []))]
        return [Trial(rate, ratio) for rate in self.rates_of(arch) for ratio in ratios or [None]]

    def summary(self) -> str:
        """What is tried, and which result counts."""
        ratios = [f"{arch}'s {_listed(of_arch)}" for arch, of_arch in self.expand_ratios.items()]
        first = [f"{arch} from {rate:g} on" for arch, rate in self.first.items()]
        order = f"in this order{f' ({_listed(first)})' if first else ''} until one answers {self.solved:.0%}"
        tried = f"tried: learning rates {_listed(self.rates)}"
        if ratios:
            tried += f", each with expand ratios (in brackets) {_listed(ratios)}"
        return f"{tried}; {order if self.stop else 'all of them'}; the best counts"

    def steps_of(self, arch: str) -> int:
        return self.steps * self.longer.get(arch, 1)


def _listed(values: Iterable[object]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


@dataclass(frozen=True)
class Run:
    """A training. `curve` holds (step, share of the held-out queries answered with their key's value)."""

    rate: float
    seed: int
    curve: tuple[tuple[int, float], ...]
    seconds: float
    ratio: int | None = None

    @property
    def trial(self) -> Trial:
        return Trial(self.rate, self.ratio)

    @property
    def accuracy(self) -> float:
        return self.curve[-1][1]

    def steps_to(self, accuracy: float) -> int | None:
        return next((step for step, share in self.curve if share >= accuracy), None)


def read_sweep(name: str) -> Sweep:
    """The sweep in the file `name`, or a sweep of the package by its bare name. Raises InputError."""
    path = Path(name)
    if not path.is_file() and path.name == name and (PACKAGED / f"{name}.yaml").is_file():
        path = PACKAGED / f"{name}.yaml"
    if not path.is_file():
        why = "Is a directory" if path.is_dir() else "No such file or directory"
        packaged = ", ".join(sorted(file.stem for file in PACKAGED.glob("*.yaml")))
        raise InputError(f"{name}: {why}; sweeps of the package, by bare name: {packaged}")
    raw = read_mapping(path, "sweep", "name, archs, problems, widths, rates, ...")
    return validate(Sweep, raw, name, [])
