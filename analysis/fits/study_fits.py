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

from analysis.fits.fit import ENVELOPE, Estimate, Fit, Intervals, NotFitted, Optimum, Stored
from analysis.fits.noise import SeedNoise
from analysis.fits.pairwise import Compared, Comparison
from analysis.fits.settings import FITS, FitSettings
from analysis.fits.task_fits import TaskFits
from data.files import SEAL, read_object, reading
from flops.laws import FITS_SCHEMA

AGAIN = "`scaling fit study` makes it again"


@dataclass(frozen=True)
class SizeOf:
    """A size of a group, and how many seeds it was trained with."""

    size: str
    n_params: int
    n_seeds: int


@dataclass(frozen=True)
class UnusedRun:
    """A run that enters no fit of its group, its state, and why."""

    run_id: str
    state: str
    reason: str


@dataclass(frozen=True)
class Group:
    """An architecture at a point of the axes ("" without axes): the runs and sizes that are fitted, and the runs that
    enter no fit. range_stated: the study file states its range of compute; reason: why it has no laws ("": it has)."""

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
    another size may be better there (None: none is); n_rivals: how many of the other sizes were trained as far;
    against_best: with an interval that holds for all pairs at once (None: it is the best one); predictions: losses by
    the envelope's law, there and at the end of the law's range."""

    loss: Estimate
    size: str
    n_params: float
    n_tokens: float
    n_seeds: int
    n_sizes: int
    n_rivals: int
    censored: str | None = None
    against_best: Comparison | None = None
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

    def against(self, other: str, reference: str) -> Comparison | None:
        """The losses of two architectures; None where neither is the best one."""
        names = {other, reference} - {self.best}
        mine = self.archs.get(next(iter(names))) if len(names) == 1 else None
        return None if mine is None or mine.against_best is None else mine.against_best.against(reference)


@dataclass(frozen=True)
class Variant:
    """A variant of a family: its name, parameters, training compute [FLOP, exact], mean loss, and how it compares with
    the family's first one (None: it is that one)."""

    name: str
    n_params: int
    flops: float
    loss: float
    against_first: Comparison | None = None


@dataclass(frozen=True)
class VariantFamily:
    """Variants of an architecture that are compared after `n_tokens`, or after equal compute of `flops` (the other is
    0), by the seeds that all of them have. at: what they have in common; labels: their names; reason: why there is no
    comparison ("": there is)."""

    arch: str
    at: str
    labels: tuple[str, ...]
    n_tokens: int = 0
    seeds: tuple[int, ...] = ()
    variants: tuple[Variant, ...] = ()
    reason: str = ""
    flops: float = 0.0


@dataclass(frozen=True)
class Variants:
    """s: standard deviation of log loss between seeds, beside what a seed adds to all variants, with `df` degrees of
    freedom (None: no family has two seeds)."""

    s: float | None = None
    df: int = 0
    families: tuple[VariantFamily, ...] = ()


@dataclass(frozen=True)
class StudyFits(Stored):
    """All that a study's fit stage finds.

    inputs_hash: of settings and files; inputs: sha256 of each run's metrics. conventions: C, N and L by name, and their
    units. groups: what was fitted together; fits: by every approach; not_fitted: with reasons. points: which phase of
    the learning rate is fitted (None: no rate decays). intervals, seed_noise, not_paired: of the envelopes. verdicts:
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
    comparisons: tuple[Compared, ...] = ()
    variants: Variants = field(default_factory=Variants)
    downstream: TaskFits | None = None
    left_out: tuple[dict[str, str], ...] = ()
    skipped: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)

    def group(self, name: str) -> Group:
        return next(group for group in self.groups if group.name == name)

    def compared(self, at: str) -> Compared:
        """The comparison by surfaces of what shares a point of the axes."""
        return next((comparison for comparison in self.comparisons if comparison.at == at), Compared(at))

    def lowest_losses(self, at: str) -> LowestLoss | None:
        """The losses at equal compute of what shares a point of the axes."""
        return next((verdict for verdict in self.verdicts if verdict.at == at), None)

    @property
    def laws(self) -> list[Fit]:
        """The fits with a verdict: of each group by every approach."""
        return [fit for fit in self.fits if fit.verdict is not None]

    def of(self, group: str) -> list[Fit]:
        """The laws of one group."""
        return [law for law in self.laws if law.group == group]

    def fit(self, group: str, approach: str) -> Fit | None:
        """Of a group by an approach; None where it is not fitted."""
        return next((fit for fit in self.of(group) if fit.approach == approach), None)

    def envelope(self, group: str) -> Fit | None:
        """The envelope of a group, judged or not; None where it has none."""
        return next((fit for fit in self.fits if (fit.group, fit.approach) == (group, ENVELOPE)), None)

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
