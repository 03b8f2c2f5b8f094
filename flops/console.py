"""How both command lines end: the result's exit status, or one line on stderr and status 2 for a bad input."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import Annotated

import typer

from arch.errors import FULL, InputError

HELP_BY = {"help_option_names": ["-h", "--help"]}  # context settings of an app; its commands inherit them


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"linear-scaling {version('linear-scaling')}")
        except PackageNotFoundError:
            print("linear-scaling, a copy that is not installed")
        raise typer.Exit


def add_version(app: typer.Typer) -> None:
    """Give `app` the option --version."""

    def options(
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
        ] = False,
    ) -> None:
        pass

    app.callback()(options)


def run_app(app: typer.Typer) -> None:
    """Run `app` as a console script. Ctrl-C is exit status 130."""
    try:
        status = app(standalone_mode=False)
        print(end="", flush=True)  # what cannot be written is told here and not by the interpreter's end
    except InputError as error:
        message = str(error)
    except typer.TyperException as error:
        message = error.format_message()
        if message == "Missing command.":
            message = "no command is given; --help lists them"
    except (typer.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None
    except OSError as error:
        if error.errno not in (*FULL, errno.EPIPE):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or what is left in the buffer fails once more
        if error.errno == errno.EPIPE:  # whoever read has read enough
            raise SystemExit(128 + signal.SIGPIPE) from None
        message = f"{error.filename or 'standard output'}: {error.strerror}; free some space and run it again"
    else:
        raise SystemExit(status or 0)
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)
