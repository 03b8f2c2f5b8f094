"""`scaling bundle`: what a study has finished on one machine, as one file for another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import AsJson, DryRun, Only, Out, Sets, Study, print_json, request_of

SHOWN = 10  # runs that are named of those left out

app = typer.Typer(help="Carry finished runs between machines: pack them without their weights, unpack and merge them.")


@app.command()
def pack(
    study: Study,
    only: Only = None,
    sets: Sets = None,
    out: Out = None,
    to: Annotated[Path | None, typer.Option(help="The file to write; default: STUDY.tar.xz here.")] = None,
    metrics_every: Annotated[
        int, typer.Option(min=1, help="Keep the rows of metrics of every so many steps: most of a bundle are these.")
    ] = 1,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write one file with all that is finished: metrics, evaluations and manifests, without weights and text."""
    from arch.amounts import byte_size

    from ..bundle.index import ENDING
    from ..stages.bundle import pack_stage

    request = request_of(study, only, sets, out, as_json)
    found = pack_stage(request, to or Path(f"{request.study.name}{ENDING}"), dry_run, metrics_every)
    if as_json:
        return print_json(found)
    for name, n_bytes in (found["runs"] | found["others"]).items() if dry_run else ():
        print(f"{name}: {byte_size(n_bytes)}")
    _say_left_out(found["left_out"])
    n_runs, content = len(found["runs"]), byte_size(found["content_bytes"])
    if dry_run:
        print(f"would pack {n_runs} runs, {content} before compression (dry run: nothing was written)")
    else:
        print(f"{found['file']}: {n_runs} runs, {byte_size(found['bytes'])} ({content} before compression)")


@app.command()
def unpack(
    files: Annotated[list[Path], typer.Argument(metavar="FILE..", help="Bundles of one study.")],
    out: Annotated[Path, typer.Option(help="Directory of all studies' output.")] = Path("out"),
    as_json: AsJson = False,
) -> None:
    """Verify bundles of a study and merge them into OUT/STUDY. Its runs count as trained and evaluated there."""
    from ..stages.bundle import unpack_stage

    found = unpack_stage(files, out, sys.stderr if as_json else sys.stdout)
    if as_json:
        return print_json(found)
    for line in found["notes"]:
        print(f"note: {line}")
    _say_left_out(found["left_out"])
    added = f", {found['added']} files added to them" if found["added"] else ""
    print(f"{found['directory']}: {len(found['new'])} runs unpacked, {len(found['equal'])} were there already{added}")


def _say_left_out(left_out: dict[str, Any]) -> None:
    if left_out:
        print(f"left out: {len(left_out)} runs that are not finished")
    for name, why in list(left_out.items())[:SHOWN]:
        print(f"  {name}: {why}")
    if len(left_out) > SHOWN:
        print(f"  and {len(left_out) - SHOWN} more (--json names all)")
