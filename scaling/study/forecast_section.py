"""The section `forecast` of a study file: runs that are predicted before they are trained, and enter no fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    """Tokens that each run trains on, as `training.n_tokens`; replaces every other length in the file."""
    seeds: Annotated[list[Seed], Distinct]
    """Seeds of every size, other than those of the grid at that size."""
    level: Annotated[Number, Field(gt=0, lt=1)] = 0.9
    """How often the predictive intervals are to hold a new run's loss."""
    then: Forecast | None = None
    """The next round, of still larger runs, predicted from fits of the grid and of all rounds before once these are
    trained. It has the same fields."""

    @property
    def rounds(self) -> list[Forecast]:
        """This section and those below it, in the order in which they are predicted."""
        return [self, *(self.then.rounds if self.then else [])]

    def cells(self, grid: Grid, fixed: Mapping[str, Any]) -> Iterator[Cell]:
        """What every run of every round is of: the architectures and points of the grid, in its order."""
        for at, round in enumerate(self.rounds):
            for arch in grid.archs:
                for size in round.sizes:
                    for seed in round.seeds:
                        for point in points_of(grid.axes, arch, fixed):
                            yield Cell(arch, size, seed, point, FORECAST, at)

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
        shape_of, runs = {name: ("grid.sizes", shape) for name, shape in grid.sizes.shapes.items()}, dict[Any, str]()
        for at, round in enumerate(self.rounds):
            place = "forecast" + ".then" * at
            for name, shape in round.sizes.shapes.items():
                where, other = shape_of.setdefault(name, (f"{place}.sizes", shape))
                if other != shape:
                    raise ValueError(
                        f"{place}.sizes: {name} is another size in {where}: give it by its name there, or another name"
                    )
            for run in ((name, seed) for name in round.sizes for seed in round.seeds):
                if (first := runs.setdefault(run, place)) != place:
                    raise ValueError(f"{place}: {run[0]} with seed {run[1]} is a run of {first}: give another seed")

    def length(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What `given` says of training, with the section's length in the place of its own."""
        return {key: value for key, value in given.items() if key not in OF_LENGTH} | {"n_tokens": self.n_tokens}


def of_rounds(raw: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """{"forecast": as a study file has it, with the sizes of each round changed}; nothing where it has none."""
    changed: dict[str, Any] = {}
    for key in ("forecast", "then"):
        if isinstance(section := raw.get(key), dict):
            sizes = {"sizes": change(section["sizes"])} if "sizes" in section else {}
            changed[key] = section | sizes | of_rounds({"then": section.get("then")}, change)
    return changed
