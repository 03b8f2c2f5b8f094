"""The arguments and options that several commands share, and how a command ends."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from arch.amounts import counted_of, first_few
from arch.commands import Plugins
from arch.errors import InputError

if TYPE_CHECKING:
    from .request import Request

Study = Annotated[str, typer.Argument(metavar="STUDY", help="A study file, or the name of one of the package's.")]
Fitted = Annotated[
    str,
    typer.Argument(metavar="STUDY", help="A study file, the name of one of the package's, or a published folder."),
]
Only = Annotated[str | None, typer.Option(help="Take only these runs, as arch=hgrn2|tnl,size=98k,seed=0,branch=trunk.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Change a value, as training.lr=1e-3; repeatable.")]
Out = Annotated[Path | None, typer.Option(help="Directory of all studies' output; default: the study file's `out`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout; progress goes to stderr.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")]
Repair = Annotated[
    bool, typer.Option("--repair", help="Train runs again whose files are damaged, from their newest intact state.")
]
Figures = Annotated[
    Path | None,
    typer.Option(help="A folder for a paper: figures as PDF and SVG for one column and two, tables for LaTeX."),
]
Force = Annotated[bool, typer.Option("--force", help="Do it again, even where it is up to date.")]


@dataclass(frozen=True, kw_only=True)
class Architectures:
    """What names of architectures mean beside this package's."""

    plugin: Plugins = None
    in_study: Annotated[
        str | None,
        typer.Option(
            "--study",
            help="A study file: its hybrids and plugins have names here too; `flops` takes its context and vocabulary.",
        ),
    ] = None

    def load(self) -> dict[str, int]:
        """Register them; returns what the study file says of `context_length` and `vocab_size`. Raises InputError."""
        if not self.plugin and self.in_study is None:
            return {}
        from ..study.file import register_architectures

        return register_architectures(self.plugin or [], self.in_study)


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The study of a command and where its output is. Fields with init=False are options of the subclasses that
    declare them so."""

    study: Study
    only: str | None = field(default=None, init=False)
    sets: list[str] | None = field(default=None, init=False)
    out: Out = None
    plugin: list[str] | None = field(default=None, init=False)
    as_json: AsJson = False

    may_be_published: ClassVar[bool] = False

    def request(self, repair: bool = False) -> Request:
        """Raises InputError for anything wrong in the study file or the options."""
        from arch.registry import load_plugins

        from ..study.fit_section import Fit
        from ..study.spec import load_study
        from .request import Request

        load_plugins(self.plugin or ())
        spec = load_study(self.study, self.sets or [], self.out, self.only, self.may_be_published, own=True)
        request = Request(spec, self.only, sys.stderr if self.as_json else sys.stdout, repair=repair)
        _ = request.runs  # checks the settings of the chosen runs
        if spec.fit.form != Fit().form:
            from analysis.fits.forms import form_of

            form_of(spec.fit.form, f"{spec.origin}: fit.form")
        _check_place(request.study.directory)
        return request

    def command(self, name: str, *more: str) -> str:
        """The command `scaling NAME` for the same study in the same place, as it is typed."""
        words = [word for change in self.sets or () for word in ("--set", change)]
        words += [] if self.out is None else ["--out", str(self.out)]
        return shlex.join(["scaling", *name.split(), self.study, *words, *more])

    def say_next(self, name: str, *more: str) -> None:
        """The last line of a command: which one to give next for the same study."""
        if not self.as_json:
            print(f"next: {self.command(name, *more)}")


@dataclass(frozen=True, kw_only=True)
class ChangedStudyOptions(StudyOptions):
    """A study of which values can be changed."""

    sets: Sets = None


@dataclass(frozen=True, kw_only=True)
class RunsOptions(ChangedStudyOptions):
    """A study of which values can be changed, and some of its runs."""

    only: Only = None


@dataclass(frozen=True, kw_only=True)
class FittedOptions(StudyOptions):
    """A study that may be a published folder, with the architectures that it needs."""

    study: Fitted
    plugin: Plugins = None

    may_be_published = True


@dataclass(frozen=True, kw_only=True)
class ChangedFittedOptions(FittedOptions):
    """The same, of which values can be changed."""

    sets: Sets = None


def _check_place(directory: Path) -> None:
    """Raise InputError where no directory can be at that path: what is above it is none, or cannot be looked into."""
    try:
        existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    except OSError as error:
        raise InputError(f"{directory}: cannot be written ({error.strerror}): give another --out") from None
    if not existing.is_dir():
        raise InputError(f"{directory}: cannot be written ({existing} is no directory): give another --out")


def page_to_write(path: Path | None) -> None:
    """Raise InputError for a --plot that is no name of a page."""
    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--plot: {path}: is a page: name it .html")


def write_option_file(option: str, path: Path, text: str) -> None:
    """Write to the file that `path` is, or is a link to. Raises InputError where it cannot be written."""
    from data.files import write_bytes

    try:
        write_bytes(Path(os.path.realpath(path)), text.encode())
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written ({error.strerror}); name a file elsewhere") from None


def written_figures(folder: Path) -> str:
    """What --figures wrote."""
    return f"figures: {folder}/one-column, {folder}/two-columns (PDF, SVG); tables: {folder}/tables (LaTeX)"


def several(values: list[str] | None) -> list[str]:
    """Of an option that is repeatable, or takes several by commas."""
    return [part.strip() for value in values or () for part in value.split(",")]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


def notify(line: str) -> None:
    print(line, file=sys.stderr)


def close(request: Request, result: dict[str, Any]) -> None:
    """Print what failed in training (`failed`) and evaluation (`evaluations`); exit with 1 where something did."""
    evaluations = result.get("evaluations", {})
    for line in evaluations.get("warnings", []):
        notify(f"warning: {line}")
    for reason, names in evaluations.get("failed", {}).items():
        notify(f"failed: {first_few(names)}: {reason}")
    failed = result.get("failed", {})
    for run_id, reason in failed.items():
        notify(f"failed: {run_id}: {reason}")
    problems = [f"{counted_of(len(failed), len(request.runs), 'run', 'is', 'are')} not done"] if failed else []
    if n_failed := evaluations.get("n_failed"):
        problems.append(f"{counted_of(n_failed, evaluations['pairs'], 'evaluation', 'is', 'are')} not done")
    if problems:
        notify(f"error: {', '.join(problems)}")
        raise typer.Exit(1)
