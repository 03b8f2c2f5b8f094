"""`scaling publish`: a study as a small folder from which its fits are made again, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from arch.amounts import counted, counted_of
from arch.errors import InputError

from .options import FittedOptions, notify, print_json


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
    published = request.study.published
    if directory is not None:
        from analysis.publish.write import publish as write

        from .fitting import check_results, runs_at_stored_rates

        if published is not None:
            raise InputError(f"{published}: is published already: give the study file to publish it again")
        check_results(request)
        with request.writing(rates=False):
            manifest = write(request.study, runs_at_stored_rates(request), directory)
        if study.as_json:
            return print_json(manifest)
        n_bytes = sum(file["bytes"] for file in manifest["files"].values())
        print(f"published: {directory}, {counted(len(manifest['files']) + 1, 'file')}, {n_bytes:,} bytes")
        return print(f"next: scaling publish --check {directory}")
    from analysis.publish.check import check as outcomes
    from analysis.publish.check import differ, other_versions

    if published is None:
        raise InputError(f"{request.study.path}: is a study file: give the folder that it was published in")
    files = outcomes(request.study, request.runs)
    others = differ(files, other_versions(published, but=("commit",)))  # a commit rounds nothing
    versions = other_versions(published)
    if study.as_json:
        print_json({"files": files, "differ": others, "other_versions": versions})
    else:
        for name, outcome in files.items():
            print(f"{name}: {outcome}")
    if versions and not others and not study.as_json:
        print(f"made with other versions: {versions}")
    if others:
        notify(f"error: {counted_of(len(others), len(files), 'file', 'differs', 'differ')}")
        if versions:
            notify(f"the folder was made with other versions, or by another commit of this program: {versions}")
        else:
            notify("versions and commit are the same: a file was changed, or code that is not committed")
        notify("to renew the folder, publish the study again")
        raise typer.Exit(1)
