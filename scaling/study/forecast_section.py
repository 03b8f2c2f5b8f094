"""The section `forecast` of a study file: runs that are predicted before they are trained, and enter no fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from .axes import points_of
from .grid import FORECAST, Cell, Grid
from .sizes import SizesOfStudy
from .types import Distinct, Number, Section, Seed, Tokens

OF_LENGTH = ("n_tokens", "max_tokens", "branches")  # of training, which the section's n_tokens replaces


class Forecast(Section):
    """Runs larger than those of the grid, of all its architectures, by the study's other settings."""

    sizes: SizesOfStudy
    """The sizes, as `grid.sizes`; names may be those of the grid, and `{from: 55M, to: 55M, count: 1}` is one size of a
    ladder."""
    n_tokens: Tokens
    """Tokens that each trains on, as `training.n_tokens`; in the place of every other length in the file."""
    seeds: Annotated[list[Seed], Distinct]
    """Seeds of every size, none that the grid has of that size."""
    level: Annotated[Number, Field(gt=0, lt=1)] = 0.9
    """How often the predictive intervals are to hold a new run's loss."""

    def cells(self, grid: Grid, fixed: Mapping[str, Any]) -> Iterator[Cell]:
        """What every run is of: the architectures and points of the grid, in its order."""
        for arch in grid.archs:
            for size in self.sizes:
                for seed in self.seeds:
                    for point in points_of(grid.axes, arch, fixed):
                        yield Cell(arch, size, seed, point, FORECAST)

    def check(self, grid: Grid) -> None:
        """Raise ValueError where the section and the grid do not go together."""
        if grid.nuisance:
            raise ValueError(
                f"forecast: goes with no grid.nuisance ({', '.join(grid.nuisance)}), whose values are chosen by runs "
                f"that are trained: leave out one of the two"
            )
        fields = [field for axis in grid.axes.values() for field in axis]
        if lengths := [field for field in fields if field in {f"training.{name}" for name in OF_LENGTH}]:
            raise ValueError(f"forecast: n_tokens takes the place of the axis {lengths[0]}: leave out one of the two")
        for name in self.sizes:
            if name in grid.sizes and grid.sizes.shapes[name] != self.sizes.shapes[name]:
                raise ValueError(
                    f"forecast.sizes: {name} is another size in grid.sizes: give it by its name there, or another name"
                )

    def length(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What `given` says of training, with the section's length in the place of its own."""
        return {key: value for key, value in given.items() if key not in OF_LENGTH} | {"n_tokens": self.n_tokens}
