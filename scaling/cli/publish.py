"""`scaling publish`: a study as a small folder from which its fits are made again, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.amounts import counted, counted_of
from arch.errors import InputError

from .options import FittedOptions, notify, print_json

if TYPE_CHECKING:
    from .request import Request


def publish(
    study: FittedOptions,
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="The folder to write; of an earlier publication it is replaced."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Make again what follows from the published folder's tables, and compare."),
    ] = False,
) -> None:
    """Write a study as a small folder for a repository.

    The folder holds its tables, study file, laws, fits and where they came from. fit, report and design --pilot read
    that folder in the place of a study file, without runs, text or weights. `scaling publish --check DIR` makes the
    fits from its tables again, says of each file whether it is the same, and ends with 1 where one is not. With other
    versions than those that made the folder, rounding is printed and is no difference.
    """
    if (directory is None) != check:
        raise InputError("publish: give a study and the folder to write, or --check and a published folder alone")
    request = study.request()
    if directory is not None:
        manifest = publish_stage(request, directory)
        if study.as_json:
            return print_json(manifest)
        n_bytes = sum(file["bytes"] for file in manifest["files"].values())
        print(f"published: {directory}, {counted(len(manifest['files']) + 1, 'file')}, {n_bytes:,} bytes")
        return print(f"next: scaling publish --check {directory}")
    checked = check_stage(request)
    if study.as_json:
        print_json({"files": checked.files, "differ": checked.differ, "other_versions": checked.versions})
    else:
        for name, outcome in checked.files.items():
            print(f"{name}: {outcome}")
    if checked.versions and not checked.differ and not study.as_json:
        print(f"made with other versions: {checked.versions}")
    if checked.differ:
        notify(f"error: {counted_of(len(checked.differ), len(checked.files), 'file', 'differs', 'differ')}")
        if checked.versions:
            notify(f"the folder was made with other versions, or by another commit of this program: {checked.versions}")
        else:
            notify("versions and commit are the same: a file was changed, or code that is not committed")
        notify("to renew the folder, publish the study again")
        raise typer.Exit(1)


@dataclass(frozen=True)
class Checked:
    """The result of the check by file; the names of those that differ; versions of packages that are others here."""

    files: dict[str, str]
    differ: list[str]
    versions: str


def publish_stage(request: Request, folder: Path) -> dict[str, Any]:
    """Write the folder; returns its manifest. Raises InputError as fit_stage does, and for what cannot be published."""
    from analysis.publish.write import publish

    from .fitting import check_results, runs_at_stored_rates

    if request.study.published is not None:
        raise InputError(f"{request.study.published}: is published already: give the study file to publish it again")
    check_results(request)
    with request.writing(rates=False):
        return publish(request.study, runs_at_stored_rates(request), folder)


def check_stage(request: Request) -> Checked:
    """Check the files of a published study. Writes nothing. Raises InputError for a folder that is damaged."""
    from analysis.publish.check import check, differ, other_versions

    place = request.study.published
    if place is None:
        raise InputError(f"{request.study.path}: is a study file: give the folder that it was published in")
    verdicts = check(request.study, request.runs)
    of_bits = other_versions(place, but=("commit",))  # a commit rounds nothing
    return Checked(verdicts, differ(verdicts, of_bits), other_versions(place))
