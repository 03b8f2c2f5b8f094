"""The noise between seeds, with which the final losses of repeated runs are compared.

Its seeds, and the architectures over which it is pooled, are those of the study's fits. The fits measure it at any
point of a curve; at the end of runs it is smaller (a half to a third in h200-hour), and final losses are compared with
that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from analysis.fits.noise import SeedNoise, SeedNoises, pool_seed_noise
from analysis.fits.settings import FitSettings
from analysis.fits.study import WholeCurves
from analysis.runs import load_tables
from arch.errors import InputError


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
