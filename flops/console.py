"""How both command lines end: the result's exit status, or one line on stderr and status 2 for a bad input."""

from __future__ import annotations

import sys

import typer

from arch.errors import InputError


def run_app(app: typer.Typer) -> None:
    """Run `app` as a console script. Ctrl-C is exit status 130."""
    try:
        status = app(standalone_mode=False)
    except InputError as error:
        message = str(error)
    except typer.TyperException as error:
        message = error.format_message()
        if message == "Missing command.":
            message = "no command is given; --help lists them"
    except (typer.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None
    else:
        raise SystemExit(status or 0)
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)
