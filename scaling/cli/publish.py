"""`scaling publish`: a study as a small folder from which its fits are made again, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from arch.amounts import counted, counted_of
from arch.errors import InputError

from .options import FittedOptions, print_json, tell


def publish(
    study: FittedOptions,
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The folder; of an earlier publication it is replaced.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Make again what follows from the folder's tables (with STUDY: all of it), and compare."
        ),
    ] = False,
) -> None:
    """Write a study as a small folder for a repository: its tables, study file, laws, fits and where they came from.

    fit, report and design --pilot read that folder in the place of a study file, without runs, text or weights.
    `scaling publish --check DIR` makes the fits from its tables again, says of each file whether it is the same, and
    ends with 1 where one is not. With other versions than those that made the folder, rounding is printed and is no
    difference.
    """
    from ..stages.publishing import check_stage, publish_stage

    if directory is None and not check:
        raise InputError("publish: give the folder to write after the study, or --check and a published folder")
    request = study.request()
    if not check:
        assert directory is not None
        manifest = publish_stage(request, directory)
        if study.as_json:
            return print_json(manifest)
        n_bytes = sum(file["bytes"] for file in manifest["files"].values())
        print(f"published: {directory}, {counted(len(manifest['files']) + 1, 'file')}, {n_bytes:,} bytes")
        return print(f"next: scaling publish --check {directory}")
    checked = check_stage(request, directory)
    if study.as_json:
        print_json({"files": checked.files, "differ": checked.differ, "other_versions": checked.versions})
    else:
        for name, outcome in checked.files.items():
            print(f"{name}: {outcome}")
    if checked.versions and not checked.differ and not study.as_json:
        print(f"made with other versions: {checked.versions}")
    if checked.differ:
        tell(f"error: {counted_of(len(checked.differ), len(checked.files), 'file', 'differs', 'differ')}")
        if checked.versions:
            tell(f"the folder was made with other versions, or by another commit of this program: {checked.versions}")
        else:
            tell("versions and commit are the same: a file was changed, or code that is not committed")
        tell("to renew the folder, publish the study again")
        raise typer.Exit(1)
