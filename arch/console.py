"""How both command lines end: the result's exit status, or one line on stderr and status 2 for a bad input."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys

import typer

from arch.errors import FULL, InputError

# Numbers of an OSError whose path cannot be used.
OF_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS)
INTERRUPTED = 128 + signal.SIGINT
LONGEST_WORD = 1000  # of a message; paths are shorter


def _one_line(message: str) -> str:
    """`message` without line ends and other characters that a terminal would obey; long words by their two ends."""
    words = [f"{word[:200]}...{word[-20:]}" if len(word) > LONGEST_WORD else word for word in message.split()]
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in " ".join(words))


def run_app(app: typer.Typer, interrupted: str = "interrupted") -> None:
    """Run `app` as a console script. Ctrl-C prints the line `interrupted` and is exit status 130."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the terminal's encoding lacks is shown escaped
            stream.reconfigure(errors="backslashreplace")
    status, message = None, None
    try:
        status = app(standalone_mode=False)
        print(end="", flush=True)  # an error of writing shows here, not when the interpreter ends
    except InputError as error:
        message = str(error)
    except typer.TyperException as error:
        message = error.format_message()
        if message == "Missing command.":
            message = "no command was given; --help lists them"
        elif message.startswith("No such command") and "Did you mean" not in message:
            context = vars(error)["ctx"]  # that of the group
            names = [name for name, command in context.command.commands.items() if not command.hidden]
            message += f" {context.info_name} has {', '.join(names)}"
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except MemoryError:
        message = "out of memory: make the request smaller, or use a machine with more memory"
    except OSError as error:
        if error.errno not in (*FULL, *OF_PATHS, errno.EPIPE) and error.filename is None:
            raise
        if error.errno in (*FULL, errno.EPIPE):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or what is left in the buffer fails again
        if error.errno == errno.EPIPE:  # the reader closed the pipe
            raise SystemExit(128 + signal.SIGPIPE) from None
        remedy = "free some space and run it again" if error.errno in FULL else "give another path, or repair this one"
        message = f"{error.filename or 'standard output'}: {error.strerror}; {remedy}"
    if message is None:
        if status == INTERRUPTED:  # typer makes it of Ctrl-C
            print(interrupted, file=sys.stderr)
        raise SystemExit(status or 0)
    print(f"error: {_one_line(message)}", file=sys.stderr)
    raise SystemExit(2)
