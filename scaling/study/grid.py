"""The section `grid` of a study file: which runs there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from .sizes import SizesOfStudy
from .types import Arch, Distinct, Section, Seed, Size


class Cell(NamedTuple):
    """What one run of a grid is of."""

    arch: str
    size: str
    seed: int


class Grid(Section):
    archs: Annotated[list[Arch], Distinct]
    """The architectures; every architecture is trained at every size."""
    sizes: SizesOfStudy
    """The sizes: names of presets, such as `98k`, `410m` or `mamba-130m`, and shapes of your own,
    `12m: {n_layers: 8, d_model: 384, n_heads: 6, d_ffn: 1024}`: see Sizes."""
    seeds: Annotated[list[Seed], Distinct] = [0]
    """Seeds of every cell; a seed decides the initial weights and the order of the training text."""
    extra_seeds: dict[Size, list[Seed]] = {}
    """More seeds for some sizes; intervals of the fits need seeds that were repeated somewhere."""

    def cells(self) -> Iterator[Cell]:
        """What every run is of, in file order."""
        for arch in self.archs:
            for size in self.sizes:
                for seed in dict.fromkeys([*self.seeds, *self.extra_seeds.get(size, [])]):
                    yield Cell(arch, size, seed)
