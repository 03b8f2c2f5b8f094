"""What the commands of `scaling` share: their options, the request they make, how they print and end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from .commands import Request

Study = Annotated[str, typer.Argument(metavar="STUDY", help="A study file, or the name of one of the package's.")]
Only = Annotated[str | None, typer.Option(help="Some runs only, as arch=hgrn2|tnl,size=98k,seed=0.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Change a value, as training.lr=1e-3; repeatable.")]
Out = Annotated[Path | None, typer.Option(help="Directory of all studies' output; default: the study file's `out`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout; progress goes to stderr.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")]


def request_of(study: str, only: str | None, sets: list[str] | None, out: Path | None, as_json: bool) -> Request:
    """What the command line asks for. Raises InputError for anything wrong in it."""
    from .commands import Request
    from .spec import load_study

    request = Request(load_study(study, sets or [], out), only, sys.stderr if as_json else sys.stdout)
    _ = request.runs  # a mistake in --only is told before anything is done
    return request


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


def close(request: Request, result: dict[str, Any]) -> None:
    """Tell what went wrong and leave with 1 where something did."""
    for line in result.get("warnings", []):
        print(f"warning: {line}", file=sys.stderr)
    failed = result.get("failed", {})
    for run_id, reason in failed.items():
        print(f"failed: {run_id}: {reason}", file=sys.stderr)
    if failed:
        print(f"error: {len(failed)} of {len(request.runs)} runs are not done", file=sys.stderr)
        raise typer.Exit(1)
