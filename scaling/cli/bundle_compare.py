"""`scaling bundle compare`: the same runs trained on two machines, side by side, of two bundles of a study or of its
directories.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from arch.amounts import counted
from arch.commands import Plugins
from arch.errors import InputError
from arch.registry import load_plugins
from arch.tables import rows_table, wrapped

from ..bundle.file import BUNDLES
from ..bundle.merge import unpack
from ..rundir.directory import RunDir
from ..rundir.owner import attempts
from ..study.only import chosen, of_branches
from ..study.schema import Cell
from ..study.spec import load_study
from .options import AsJson, Only, print_json
from .passing import Passing

if TYPE_CHECKING:
    from analysis.fits.settings import FitSettings
    from analysis.repeats import Repeat

    from ..study.run import RunSpec

SHOWN = 10  # runs that are named of those left out, or not compared


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A bundle, or the directory of a study, OUT/STUDY.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another of the same study.")],
    only: Only = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Compare the runs that two machines both trained. Prints final losses, in units of seed noise, and devices."""
    load_plugins(plugin or ())
    with tempfile.TemporaryDirectory() as temporary:
        sides = [_opened(path, Path(temporary) / name, sys.stderr) for path, name in ((a, "a"), (b, "b"))]
        comparison = compared(sides[0], sides[1], only)
        print_json(comparison.to_dict()) if as_json else print(comparison.text())


@dataclass(frozen=True)
class Side:
    """One of the two. given: the bundle or directory; home: the study's directory, which a bundle was unpacked into;
    runs: those that can be read, by folder, as runs/RUN or sweep/runs/RUN; unread: {folder: why} of the others."""

    given: Path
    home: Path
    runs: dict[str, RunSpec]
    unread: dict[str, str]

    def spec_hash(self, folder: str) -> str:
        return str(RunDir(self.home / folder).record()["spec_hash"])


@dataclass
class Comparison:
    """repeats: runs that were trained twice; not_compared: {run: why} of the others; noise_of: whose seeds the noise is
    measured on, None where neither has two seeds of a size, or no run differs."""

    a: Side
    b: Side
    repeats: list[Repeat] = field(default_factory=list)
    not_compared: dict[str, str] = field(default_factory=dict)
    noise_of: str | None = None

    @property
    def study(self) -> str:
        return next(iter(self.a.runs.values())).study

    def trained(self, side: Side) -> dict[str, Any]:
        """What the compared runs of a side were trained on and with."""
        return {"path": str(side.given), **provenance(side.home / repeat.name for repeat in self.repeats)}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        from analysis.repeats import summary

        return {
            **{"study": self.study, "a": self.trained(self.a), "b": self.trained(self.b)},
            **{"summary": summary(self.repeats), "noise_of": self.noise_of},
            **{"runs": [repeat.to_dict() for repeat in self.repeats], "not_compared": self.not_compared},
        }

    def text(self) -> str:
        """What trained both sides, the table of runs, what is not compared, and a summary."""
        from analysis.repeats import run_rows, short, sum_lines, unit_of_repeats

        lines = [f"study {self.study}: {counted(len(self.repeats), 'run')} trained in both A and B"]
        if self.repeats:
            sides = {"A": self.trained(self.a), "B": self.trained(self.b)}
            lines += [_made(name, side) for name, side in sides.items()]
            lines += [
                "",
                f"final held-out losses, {unit_of_repeats(self.repeats)}",
                rows_table(run_rows(self.repeats)),
                "",
            ]
        runs_of: dict[str, list[str]] = {}
        for folder, why in self.not_compared.items():
            runs_of.setdefault(why, []).append(short(folder))
        for why, names in runs_of.items():
            more = f" and {len(names) - SHOWN} more (--json names all)" if len(names) > SHOWN else ""
            lines += wrapped([f"not compared: {counted(len(names), 'run')} ({why}): {', '.join(names[:SHOWN])}{more}"])
        return "\n".join([*lines, *wrapped(sum_lines(self.repeats, self.noise_of))])


def _made(name: str, side: dict[str, Any]) -> str:
    devices = ", ".join(f"{device} ({counted(n, 'run')})" for device, n in side["devices"].items())
    versions = ", ".join(f"{package} {' or '.join(values)}" for package, values in side["versions"].items())
    commits = ", ".join(commit[:12] for commit in side["git_commits"])
    parts = (devices or "devices not recorded", " to ".join(side["trained"]) or "day not recorded")
    return f"{name}: {side['path']}: {', '.join(parts)}, commit {commits or 'not recorded'}, {versions}"


def provenance(runs: Iterable[Path]) -> dict[str, Any]:
    """How runs were trained: versions, git_commits, devices with their numbers of runs, and the first and last day
    (UTC) on which one began."""
    versions: dict[str, set[str]] = {}
    commits, days, devices = set[str](), set[str](), dict[str, int]()
    for path in runs:
        record, tried = RunDir(path).record(), attempts(path)
        for package, version in record.get("versions", {}).items():
            versions.setdefault(str(package), set()).add(str(version))
        commits |= {str(record["git_commit"]).strip()} if record.get("git_commit") else set()
        used = {f"{attempt.get('processes', 1)} x {attempt['hardware']}" for attempt in tried if "hardware" in attempt}
        for name in used:
            devices[name] = devices.get(name, 0) + 1
        starts = [attempt["started"] for attempt in tried if "started" in attempt]
        days |= {datetime.fromtimestamp(min(starts), UTC).date().isoformat()} if starts else set()
    return {
        "versions": {package: sorted(values) for package, values in sorted(versions.items())},
        "git_commits": sorted(commits),
        "devices": dict(sorted(devices.items())),
        "trained": sorted({min(days), max(days)}) if days else [],
    }


def compared(a: Side, b: Side, only: str | None) -> Comparison:
    """The runs that both have under one spec hash. Raises InputError for two studies, and where they share no run."""
    from analysis.repeats import Repeat, Trained, not_comparable

    comparison = Comparison(a, b, not_compared=a.unread | b.unread)
    if (other := next(iter(b.runs.values())).study) != comparison.study:
        raise InputError(f"{b.given}: is of study {other}, {a.given} of {comparison.study}: give two of one study")
    runs = a.runs | b.runs
    folders = list(runs) if only is None else _chosen(runs, only, f"{a.given} and {b.given}")
    n_shared = 0
    for folder in folders:
        if folder not in a.runs or folder not in b.runs:
            comparison.not_compared[folder] = f"only in {'A' if folder in a.runs else 'B'}"
            continue
        if a.spec_hash(folder) != b.spec_hash(folder):
            comparison.not_compared[folder] = "of other settings (spec_hash)"
            continue
        n_shared += 1
        first, second = Trained.read(a.home / folder), Trained.read(b.home / folder)
        if why := not_comparable(first, second):
            comparison.not_compared[folder] = why
        elif (repeat := Repeat(folder, first, second)).is_copy:
            comparison.not_compared[folder] = "copies of the same training"
        else:
            comparison.repeats.append(repeat)
    if not n_shared:
        raise InputError(f"{b.given}: has no run of the same settings as {a.given}, so there is nothing to compare")
    _add_noise(comparison)
    return comparison


def _opened(given: Path, place: Path, stream: TextIO) -> Side:
    """A bundle is verified, and unpacked into `place`. Raises InputError where neither is given."""
    home = given
    if not given.is_dir():
        with Passing(stream) as passing:
            unpack(given, home := place, partial(passing.tell_bytes, f"{given}: verified"))
    paths = sorted(path for pattern in ("runs/*/run.json", "sweep/runs/*/run.json") for path in home.glob(pattern))
    runs, unread = dict[str, "RunSpec"](), dict[str, str]()
    for path in paths:
        folder = path.parent.relative_to(home).as_posix()
        try:
            runs[folder] = RunDir(path.parent).spec()
        except InputError as error:  # of another version, or of a plugin that is not here
            unread[folder] = str(error).replace(str(home), str(given))
    if not paths:
        raise InputError(f"{given}: holds no runs: give a bundle, or the directory of a study, OUT/STUDY")
    if not runs:
        raise InputError(next(iter(unread.values())))
    return Side(given, home, runs, unread)


def _chosen(runs: dict[str, RunSpec], only: str, where: str) -> list[str]:
    """The folders of the runs that --only keeps."""
    cells = {folder: Cell(run.arch, run.size, run.seed, tuple(run.point.items())) for folder, run in runs.items()}
    kept, branches = chosen(list(cells.values()), only, where)
    kept_runs = {folder: runs[folder] for folder, cell in cells.items() if cell in kept}
    if branches is not None:
        of_these = of_branches(list(kept_runs.values()), branches, f"--only {only}")
        return [folder for folder, run in kept_runs.items() if run in of_these]
    return list(kept_runs)


def _add_noise(comparison: Comparison) -> None:
    """Add the noise between seeds, of the side that measures it with more degrees of freedom."""
    from analysis.repeats import noise_of_study

    if all(repeat.is_bit_equal for repeat in comparison.repeats):
        return
    noises = [(side, noise_of_study(side.home, _settings(side.home))) for side in (comparison.a, comparison.b)]
    side, noise = max(noises, key=lambda pair: pair[1].df)
    if noise.df:
        comparison.noise_of = str(side.given)
        comparison.repeats = [
            replace(repeat, noise=noise.of_ends(repeat.run.run_id, repeat.run.arch)) for repeat in comparison.repeats
        ]


def _settings(home: Path) -> FitSettings:
    """How the study's fit is made: as the stored one was, or as the study file of a bundle says; else the defaults."""
    from analysis.fits.settings import FITS, settings_of
    from analysis.fits.study_fits import stored_settings

    if not (home / "results" / FITS).exists():
        for path in sorted(home.glob(f"{BUNDLES}/*/*.y*ml")):
            try:
                study = load_study(path, [], home.parent)
            except (InputError, OSError):  # of another version, or of a plugin that is not here
                continue
            return settings_of(study.fit, study.grid)
    return stored_settings(home)
