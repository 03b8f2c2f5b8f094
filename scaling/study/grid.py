"""The section `grid` of a study file: which runs there are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, model_validator

from .axes import Axes, By, Point, check_nuisance, points_of
from .sizes import SizesOfStudy
from .types import Arch, Distinct, Section, Seed, Size, different

MOST_RUNS = 10_000
Role = Literal["grid", "forecast"]  # of a run
OF_GRID: Role = "grid"
FORECAST: Role = "forecast"


class Cell(NamedTuple):
    """What one run of a grid is of; round: of a forecast run, its place among the rounds."""

    arch: str
    size: str
    seed: int
    point: Point = ()
    role: Role = OF_GRID
    round: int = 0


def role_text(role: str, round: int | None) -> str:
    """What follows the name of a run in tables; round: of a forecast run, from 1 on."""
    later = f", round {round}" if round and round > 1 else ""
    return f" (forecast{later})" if role == FORECAST else ""


class Grid(Section):
    archs: Annotated[list[Arch], Distinct]
    """The architectures; every architecture is trained at every size."""
    sizes: SizesOfStudy
    """The sizes: names of presets, such as `98k`, `410m` or `mamba-130m`; shapes,
    `12m: {n_layers: 8, d_model: 384, n_heads: 6, d_ffn: 1024}`, read as presets are, changed below an architecture's
    name; ladders, `{from: 1M, to: 60M, count: 6}`, with `match`, `aspect` and `head_dim`. See Sizes."""
    seeds: Annotated[list[Seed], AfterValidator(different)] = [0]
    """Seeds of every cell; a seed decides the initial weights and the order of the training text. `[]` where every size
    has its own in `extra_seeds`."""
    extra_seeds: dict[Size, Annotated[list[Seed], AfterValidator(different)]] = {}
    """More seeds for some sizes; intervals of the fits need seeds that were repeated somewhere."""

    axes: Axes = {}
    """Fields of `training` and `model` with several values each, such as `training.lr: [1e-3, 2e-3]`: every run is
    trained at all of them, crossed. Fields that vary together are given below a name of their own:
    `depth: {model.n_layers: [12, 24], model.d_model: [1024, 768]}`, or as points with names:
    `ablation: {hgrn: {}, no_gate: {model.output_gate: false}}`. Values win over `overrides`."""
    nuisance: dict[str, By] = {}
    """Axes that are resolved before anything is fitted: `best` keeps the value of the lowest loss, for every size.
    The others make groups of fits."""

    @model_validator(mode="after")
    def _every_size_has_seeds(self) -> Grid:
        if not self.seeds and (bare := [size for size in self.sizes if not self.extra_seeds.get(size)]):
            raise ValueError(f"seeds: must name at least one, or extra_seeds must name seeds of {', '.join(bare)} too")
        return self

    @model_validator(mode="after")
    def _runs_are_few(self) -> Grid:
        points = math.prod(len(next(iter(axis.values()), ())) for axis in self.axes.values())
        cells = len(self.archs) * sum(len(self.seeds) + len(self.extra_seeds.get(size, ())) for size in self.sizes)
        if cells * points > MOST_RUNS:
            raise ValueError(
                f"asks for {cells * points:,} runs, and at most {MOST_RUNS:,} make a study: make it smaller"
            )
        return self

    @model_validator(mode="after")
    def _nuisance_is_of_axes(self) -> Grid:
        check_nuisance(self.axes, self.nuisance)
        return self

    def cells(self, fixed: Mapping[str, Any] | None = None) -> Iterator[Cell]:
        """What every run is of, in file order. fixed: values by field that win over the axes."""
        for arch in self.archs:
            points = list(points_of(self.axes, arch, fixed or {}))
            for size in self.sizes:
                for seed in dict.fromkeys([*self.seeds, *self.extra_seeds.get(size, [])]):
                    for point in points:
                        yield Cell(arch, size, seed, point)
