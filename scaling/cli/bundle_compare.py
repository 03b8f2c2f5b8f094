"""`scaling bundle compare`: the same runs trained on two machines, side by side, of two bundles of a study or of its
directories.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from arch.amounts import counted
from arch.commands import Plugins
from arch.errors import InputError
from arch.registry import load_plugins
from arch.tables import rows_table, wrapped

from ..bundle.merge import decide, unpacked
from ..bundle.pack import provenance
from ..bundle.unpack import extract
from ..bundle.verify import Bundle, verified
from ..rundir.directory import RunDir
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
SWEEP = "sweep/"


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A bundle, or the directory of a study, OUT/STUDY.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another of the same study.")],
    only: Only = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Compare the runs that two machines both trained. Prints final losses, in units of seed noise, and devices."""
    load_plugins(plugin or ())
    comparison = compare_stage((a, b), only, sys.stderr)
    if as_json:
        return print_json(comparison.to_dict())
    for line in comparison_lines(comparison):
        print(line)


def comparison_lines(comparison: Comparison) -> list[str]:
    """What trained both sides, the table of runs, what is not compared, and a summary."""
    from analysis.repeats import run_rows, sum_lines, unit_of_repeats

    lines = [f"study {comparison.study}: {counted(len(comparison.repeats), 'run')} trained in both A and B"]
    if comparison.repeats:
        table = (
            f"final held-out losses, {unit_of_repeats(comparison.repeats)}\n{rows_table(run_rows(comparison.repeats))}"
        )
        lines += [*side_lines(comparison), "", table, ""]
    if comparison.copies:
        lines += [f"copies: {counted(len(comparison.copies), 'run')} of the same training in both, only counted"]
    lines += _named("only in A", comparison.only_a) + _named("only in B", comparison.only_b)
    lines += _named("of other settings (spec_hash)", comparison.other_settings)
    lines += [
        line for name, why in comparison.not_compared.items() for line in wrapped([f"not compared: {name}: {why}"])
    ]
    return [*lines, *wrapped(sum_lines(comparison.repeats, comparison.noise_of))]


def side_lines(comparison: Comparison) -> list[str]:
    """What trained the runs of A and of B, and with which versions."""
    return [
        _made("A", comparison.a),
        _made("B", comparison.b),
        _versions(comparison.a["versions"], comparison.b["versions"]),
    ]


def _made(name: str, side: dict[str, Any]) -> str:
    devices = (
        ", ".join(f"{device} ({counted(n, 'run')})" for device, n in side["devices"].items()) or "devices not recorded"
    )
    days = " to ".join(side["trained"]) or "day not recorded"
    commits = ", ".join(commit.strip()[:12] for commit in side["git_commits"]) or "not recorded"
    return f"{name}: {side['path']}: {devices}, {days}, commit {commits}"


def _versions(a: dict[str, list[str]], b: dict[str, list[str]]) -> str:
    names = list(dict.fromkeys([*a, *b]))
    versions = {name: tuple(" or ".join(side.get(name, ["none"])) for side in (a, b)) for name in names}
    differ = {name: pair for name, pair in versions.items() if pair[0] != pair[1]}
    if not differ:
        return f"versions: the same ({', '.join(f'{name} {pair[0]}' for name, pair in versions.items())})"
    each = "; ".join(f"{name} {version} in A, {other} in B" for name, (version, other) in differ.items())
    return f"versions: {each}; the others are the same"


def _named(what: str, names: Collection[str]) -> list[str]:
    from analysis.repeats import short

    if not names:
        return []
    shown = ", ".join(short(name) for name in list(names)[:SHOWN])
    more = f" and {len(names) - SHOWN} more (--json names all)" if len(names) > SHOWN else ""
    return wrapped([f"{what}: {counted(len(names), 'run')}: {shown}{more}"])


def verified_bundle(path: Path, stream: TextIO) -> Bundle:
    """The bundle at `path`, its checksums compared. Raises InputError where one differs."""
    with Passing(stream) as passing:
        return verified(path, partial(passing.tell_bytes, f"{path}: verified"))


@dataclass(frozen=True)
class Side:
    """One of the two. given: the bundle or directory; home: the study's directory, which a bundle was unpacked into;
    runs: those that can be read, by folder, as runs/RUN or sweep/runs/RUN; unread: {folder: why} of the others."""

    given: Path
    home: Path
    runs: dict[str, RunSpec]
    unread: dict[str, str]

    def record(self, folder: str) -> dict[str, Any]:
        return RunDir(self.home / folder).record()

    def made(self, folders: Iterable[str]) -> dict[str, Any]:
        """What these runs were trained on and with."""
        return {"path": str(self.given), **provenance(self.home / folder for folder in folders)}


@dataclass(frozen=True)
class Comparison:
    """a, b: what the compared runs of each were trained on and with, and its `path`; repeats: runs that were trained
    twice; copies: those that one has of the other; only_a, only_b: runs of one alone; other_settings: those of one name
    and two spec hashes; not_compared: {run: why}; noise_of: whose seeds the noise is measured on, None where neither
    has two seeds of a size, or no run differs."""

    study: str
    a: dict[str, Any]
    b: dict[str, Any]
    repeats: list[Repeat]
    copies: list[str]
    only_a: list[str]
    only_b: list[str]
    other_settings: list[str]
    not_compared: dict[str, str]
    noise_of: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        from analysis.repeats import summary

        return {
            **{"study": self.study, "a": self.a, "b": self.b, "summary": summary(self.repeats)},
            **{"noise_of": self.noise_of, "runs": [repeat.to_dict() for repeat in self.repeats], "copies": self.copies},
            **{"only_a": self.only_a, "only_b": self.only_b, "other_settings": self.other_settings},
            "not_compared": self.not_compared,
        }


def compare_stage(given: tuple[Path, Path], only: str | None, stream: TextIO) -> Comparison:
    """Compare the runs that both have under one spec hash; writes nothing that stays. Raises InputError where one is
    neither a bundle nor a study's directory, for two studies, and where they share no run."""
    with tempfile.TemporaryDirectory() as temporary:
        a, b = (_opened(path, Path(temporary) / str(at), stream) for at, path in enumerate(given))
        study = _shared_study(a, b)
        if only is not None:
            kept = _chosen(a.runs | b.runs, only, f"{a.given} and {b.given}")
            a, b = (Side(side.given, side.home, _of(side.runs, kept), side.unread) for side in (a, b))
        shared = [folder for folder in a.runs if folder in b.runs]
        same = [folder for folder in shared if a.record(folder)["spec_hash"] == b.record(folder)["spec_hash"]]
        if not same:
            why = f" ({len(shared)} have its name and other settings, as {shared[0]})" if shared else ""
            raise InputError(f"{b.given}: has no run in common with {a.given}{why}, so there is nothing to compare")
        repeats, copies, not_compared = _pairs(a, b, same)
        repeats, noise_of = _with_noise(a, b, repeats)
        folders = [repeat.name for repeat in repeats]
        return Comparison(
            study=study,
            a=a.made(folders),
            b=b.made(folders),
            repeats=repeats,
            copies=copies,
            only_a=[folder for folder in a.runs if folder not in b.runs],
            only_b=[folder for folder in b.runs if folder not in a.runs],
            other_settings=[folder for folder in shared if folder not in same],
            not_compared=a.unread | b.unread | not_compared,
            noise_of=noise_of,
        )


def _opened(given: Path, place: Path, stream: TextIO) -> Side:
    """A bundle is verified, and unpacked into `place`."""
    home = given
    if not given.is_dir():
        bundle = verified_bundle(given, stream)
        home = place / bundle.index.study
        for _ in extract(decide(home, [bundle]), bundle, home):
            pass
    paths = [*sorted(home.glob("runs/*/run.json")), *sorted(home.glob(f"{SWEEP}runs/*/run.json"))]
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


def _shared_study(a: Side, b: Side) -> str:
    name, other = (next(iter(side.runs.values())).study for side in (a, b))
    if name != other:
        raise InputError(f"{b.given}: is of study {other}, {a.given} of {name}: give two of one study")
    return name


def _chosen(runs: dict[str, RunSpec], only: str, where: str) -> set[str]:
    """The folders of the runs that --only keeps."""
    cells = {folder: Cell(run.arch, run.size, run.seed, tuple(run.point.items())) for folder, run in runs.items()}
    kept, branches = chosen(list(cells.values()), only, where)
    kept_runs = {folder: runs[folder] for folder, cell in cells.items() if cell in kept}
    if branches is not None:
        of_these = of_branches(list(kept_runs.values()), branches, f"--only {only}")
        kept_runs = {folder: run for folder, run in kept_runs.items() if run in of_these}
    return set(kept_runs)


def _of(runs: dict[str, RunSpec], kept: set[str]) -> dict[str, RunSpec]:
    return {folder: run for folder, run in runs.items() if folder in kept}


def _pairs(a: Side, b: Side, folders: Iterable[str]) -> tuple[list[Repeat], list[str], dict[str, str]]:
    """Runs that were trained twice, copies, and why others are not compared."""
    from analysis.repeats import Repeat, Trained, not_comparable

    repeats, copies, others = list["Repeat"](), list[str](), dict[str, str]()
    for folder in folders:
        first, other = Trained.read(a.home / folder), Trained.read(b.home / folder)
        if why := not_comparable(first, other):
            others[folder] = why
        elif (repeat := Repeat(folder, first, other)).is_copy:
            copies.append(folder)
        else:
            repeats.append(repeat)
    return repeats, copies, others


def _with_noise(a: Side, b: Side, repeats: list[Repeat]) -> tuple[list[Repeat], str | None]:
    """Add the noise between seeds, of the side that measures it with more degrees of freedom; and name that side."""
    from dataclasses import replace

    from analysis.repeats import noise_of_study

    if all(repeat.is_bit_equal for repeat in repeats):
        return repeats, None
    noises = [(side, noise_of_study(side.home, _settings(side.home))) for side in (a, b)]
    side, noise = max(noises, key=lambda pair: pair[1].df)
    if not noise.df:
        return repeats, None
    return [replace(repeat, noise=noise.of_ends(repeat.run.run_id, repeat.run.arch)) for repeat in repeats], str(
        side.given
    )


def _settings(home: Path) -> FitSettings:
    """How the study's fit is made: as the stored one was, or as the study file of a bundle says; else the defaults."""
    from analysis.fits.settings import FITS, settings_of
    from analysis.fits.study_fits import stored_settings

    if not (home / "results" / FITS).exists():
        for folder, index in unpacked(home):
            try:
                study = load_study(folder / index.study_file.partition("/")[2], [], home.parent)
            except (InputError, OSError):  # of another version, or of a plugin that is not here
                continue
            return settings_of(study.fit, study.grid)
    return stored_settings(home)
