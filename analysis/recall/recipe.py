"""What a recall sweep may say: problems, widths, learning rates, and the one recipe that all architectures share.

The data are `data.synthetic.mqar_batch`'s, after Arora et al., "Zoology" (arXiv:2312.04927): keys with values, then the
keys again; the loss is over the values asked for. HGRN2's figure 3 (Qin et al. 2024) draws accuracy against width for
lengths 64 to 512. Every number in a figure carries the rates that were tried and the rule that chose one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from arch.config import ModelConfig
from arch.errors import InputError, nearest
from arch.presets import preset
from data.synthetic import mqar_batch
from scaling.fields import Arch, Count, Distinct, Name, Number, Positive, Seed
from scaling.study_file import read_mapping, validate

PACKAGED = Path(__file__).parent / "sweeps"


Rate = Annotated[Number, Field(gt=0, lt=1)]


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Problem(Part):
    """length: tokens of a row; pairs: keys with values in it."""

    length: Count
    pairs: Count

    @property
    def name(self) -> str:
        return f"{self.length}x{self.pairs}"


class Sweep(Part):
    """Every architecture on every problem at every width, each by its best learning rate at the first seed.

    rates: tried in that order (`first`: an architecture's own beginning); with `stop` the sweep ends at a rate that
    answers a share `solved` of the queries. A run ends early when it answers `done`. `seeds` after the first repeat the
    chosen rate. head_dim: d_model / n_heads by architecture; model: further fields of its configuration; longer:
    factor of its steps.
    """

    name: Name
    archs: Annotated[list[Arch], Distinct]
    problems: Annotated[list[Problem], Distinct]
    widths: Annotated[list[Count], Distinct]
    rates: Annotated[list[Rate], Distinct]
    first: dict[str, Rate] = {}
    seeds: Annotated[list[Seed], Distinct] = [0]
    stop: bool = True
    n_layers: Count = 2
    head_dim: dict[str, Count] = {}
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
        for table in ("first", "head_dim", "model", "longer"):
            for arch in getattr(self, table):
                if arch not in self.archs:
                    raise ValueError(f"{table}.{arch}: {arch} is not among archs{nearest(arch, self.archs)}")
        for problem in self.problems:
            mqar_batch(0, 0, 1, problem.length, problem.pairs, self.vocab_size)
            for width in self.widths:
                for arch in self.archs:
                    self.config(arch, problem, width)
        return self

    def config(self, arch: str, problem: Problem, width: int) -> ModelConfig:
        """The model of one cell: `n_layers` of this width, the channel mixer, where there is one, as wide.

        Raises InputError where the width has no such heads, or the fields contradict each other.
        """
        head_dim = min(self.head_dim.get(arch, 64), width)
        if width % head_dim:
            raise InputError(f"widths: {width} does not split into {arch}'s heads of {head_dim}")
        shape = {"n_layers": self.n_layers, "n_heads": width // head_dim, "d_ffn": width, "init_std": self.init_std}
        own = {"d_model": width, "vocab_size": self.vocab_size, "context_length": problem.length}
        changes: dict[str, Any] = shape | own | self.model.get(arch, {})
        return preset(arch, "98k", **changes)

    def rates_of(self, arch: str) -> list[float]:
        return sorted(self.rates, key=lambda rate: rate != self.first.get(arch))

    def steps_of(self, arch: str) -> int:
        return self.steps * self.longer.get(arch, 1)


@dataclass(frozen=True)
class Run:
    """One training: `curve` holds (step, share of the held-out queries answered with their key's value)."""

    rate: float
    seed: int
    curve: tuple[tuple[int, float], ...]
    seconds: float

    @property
    def accuracy(self) -> float:
        return self.curve[-1][1]

    def steps_to(self, accuracy: float) -> int | None:
        return next((step for step, found in self.curve if found >= accuracy), None)


def read_sweep(name: str) -> Sweep:
    """The sweep in the file `name`, or of the package by its bare name. Raises InputError, one line."""
    path = Path(name)
    if not path.is_file() and path.name == name and (PACKAGED / f"{name}.yaml").is_file():
        path = PACKAGED / f"{name}.yaml"
    if not path.is_file():
        why = "Is a directory" if path.is_dir() else "No such file or directory"
        packaged = ", ".join(sorted(file.stem for file in PACKAGED.glob("*.yaml")))
        raise InputError(f"{name}: {why}; sweeps of the package, by bare name: {packaged}")
    raw = read_mapping(path, "sweep", "name, archs, problems, widths, rates, ...")
    return validate(Sweep, raw, name, [])
