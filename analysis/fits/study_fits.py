"""What fits.json of a study holds, and its one reader: reports, forecasts, publications and notebooks begin here.

fits = read_fits(Path("out/mine/results/fits.json"))
fits.fit("hgrn2", "parametric").a       # an Estimate
fits.envelope("hgrn2").law("L_opt")     # analysis.fits.fit.Law
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.fits.fit import ENVELOPE, Estimate, Fit, Intervals, NotFitted, NuisanceCell, Optimum, Stored
from analysis.fits.noise import SeedNoise
from analysis.fits.settings import FITS, FitSettings
from analysis.fits.task_fits import TaskFits
from data.files import SEAL, read_object, reading
from flops.laws import FITS_SCHEMA

AGAIN = "`scaling fit study` makes it again"


@dataclass(frozen=True)
class SizeOf:
    """A size of a group, and how many seeds its curve is the mean of."""

    size: str
    n_params: int
    n_seeds: int


@dataclass(frozen=True)
class UnusedRun:
    """A run that enters no curve of its group, its state, and why."""

    run_id: str
    state: str
    reason: str


@dataclass(frozen=True)
class Group:
    """An architecture at a point of the axes ("" without axes): the runs and sizes of its envelope, and the runs that
    enter none. range_stated: the study file states its range of compute; reason: why it has no laws ("": it has)."""

    name: str
    arch: str
    point: str
    n_runs: int
    sizes: tuple[SizeOf, ...]
    left_out: tuple[UnusedRun, ...] = ()
    range_stated: bool = False
    reason: str = ""

    @property
    def fitted(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class NotPaired:
    """Runs of a size that are no seeds of its others."""

    arch: str
    size: str
    runs: tuple[str, ...]


@dataclass(frozen=True)
class LossOf:
    """The lowest loss of an architecture at a compute, and the size that has it, after `n_tokens`. censored: why
    another size may be better there (None: none is); n_rivals: how many of the other sizes were trained as far.
    difference: of log loss to the best; significant: its interval, over all pairs at once, excludes 0 (None: not
    known). predictions: of the envelope's laws, there and at the end of their own range."""

    loss: Estimate
    size: str
    n_params: float
    n_tokens: float
    n_seeds: int
    n_sizes: int
    n_rivals: int
    censored: str | None = None
    difference: Estimate = field(default_factory=Estimate)
    significant: bool | None = None
    predictions: tuple[Optimum, ...] = ()


@dataclass(frozen=True)
class LowestLoss:
    """The architectures at the largest compute `c` [FLOP] that all of them reached after warm-up, lowest loss first, or
    the reason why there is none. at: what they share of the axes ("" without axes); level: of the intervals."""

    level: float
    at: str = ""
    c: float | None = None
    best: str = ""
    archs: dict[str, LossOf] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Waste:
    """The compute of a run that its size and length cost beyond the optimum of the fitted surface: as a share of its c
    [FLOP], in FLOP, and in hours of its training where these are known."""

    run_id: str
    c: float
    share: Estimate
    flops: float
    hours: float | None


@dataclass(frozen=True)
class Choice:
    """A factor of N_opt, or a share of the loss, and the share of the compute that it wastes."""

    amount: float
    share: Estimate


@dataclass(frozen=True)
class WrongChoices:
    """What a wrong size (factors of N_opt) or too high a loss (shares of it, as a wrong learning rate makes it) wastes
    of a compute of `c` [FLOP]."""

    c: float
    sizes: tuple[Choice, ...]
    losses: tuple[Choice, ...]


@dataclass(frozen=True)
class StudyFits(Stored):
    """All that a study's fit stage finds.

    inputs_hash: of settings and files; inputs: sha256 of each run's metrics. conventions: C, N and L by name, and their
    units. groups: what was fitted together; fits: by every approach under the study's convention, and the envelope
    under the others; not_fitted: with reasons. points: which phase of the learning rate is fitted (None: no rate
    decays); merged: the calibrations of merged losses. intervals, seed_noise, not_paired: of the envelopes. verdicts:
    the lowest losses, for each point of the axes. left_out: runs that no group is fitted to; skipped: of which rows are
    left out; both with reasons. The rest: analysis.fits.study has what each part is.
    """

    schema: int
    study: str
    inputs_hash: str
    conventions: dict[str, str]
    settings: FitSettings
    groups: tuple[Group, ...]
    fits: tuple[Fit, ...]
    not_fitted: tuple[NotFitted, ...]
    intervals: Intervals
    seed_noise: SeedNoise | None
    not_paired: tuple[NotPaired, ...]
    verdicts: tuple[LowestLoss, ...]
    points: dict[str, Any] | None = None
    merged: dict[str, Any] = field(default_factory=dict)
    comparisons: tuple[dict[str, Any], ...] = ()
    waste: dict[str, tuple[Waste, ...]] = field(default_factory=dict)
    wrong_choices: dict[str, WrongChoices] = field(default_factory=dict)
    variants: dict[str, Any] = field(default_factory=lambda: {"noise": None, "families": []})
    nuisance: tuple[NuisanceCell, ...] = ()
    downstream: TaskFits | None = None
    left_out: tuple[dict[str, str], ...] = ()
    skipped: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    entropy_rate: dict[str, Any] | None = None
    inputs: dict[str, str] = field(default_factory=dict)

    def group(self, name: str) -> Group:
        return next(one for one in self.groups if one.name == name)

    @property
    def laws(self) -> list[Fit]:
        """The fits with a verdict: of each group by every approach, under the study's convention."""
        return [one for one in self.fits if one.verdict is not None]

    def of(self, group: str) -> list[Fit]:
        """The laws of one group."""
        return [one for one in self.laws if one.group == group]

    def fit(self, group: str, approach: str) -> Fit | None:
        """Of a group by an approach; None where it is not fitted."""
        return next((one for one in self.of(group) if one.approach == approach), None)

    def envelope(self, group: str, convention: str | None = None) -> Fit | None:
        """The envelope of a group with C under a convention (None: the study's); None where it has none."""
        named = convention or self.conventions["C"]
        mine = (one for one in self.fits if (one.group, one.approach) == (group, ENVELOPE))
        return next((one for one in mine if one.conventions["C"] == named), None)

    @property
    def unit(self) -> str:
        """Of the losses."""
        return self.conventions["unit_L"]


def fits_of(stored: Mapping[str, Any]) -> StudyFits:
    """Of what fits.json holds. Raises ValueError for another schema, and what `Stored.from_dict` raises."""
    schema = stored.get("schema")
    if schema != FITS_SCHEMA or isinstance(schema, bool):
        raise ValueError(f"it has schema {schema!r}, and this version reads {FITS_SCHEMA}")
    return StudyFits.from_dict({key: value for key, value in stored.items() if key != SEAL})


def read_fits(path: Path, advice: str = AGAIN) -> StudyFits:
    """The fits of a study, from its fits.json. Raises InputError, with `advice` on what to do, where it is damaged or
    cannot be read."""
    with reading(path, advice):
        return fits_of(read_object(path))


def stored_settings(study_dir: Path) -> FitSettings:
    """The settings of the study's stored fit, the defaults where it has none."""
    path = study_dir / "results" / FITS
    return read_fits(path).settings if path.exists() else FitSettings()
