"""Commands in the process of the tests, which spares imports, and what is refused; whether a process lives."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from arch.errors import InputError

ROOT = Path(__file__).resolve().parents[1]


def in_this_process(
    main: Callable[[], object], *words: object, cwd: Path = Path(), columns: int | None = None
) -> subprocess.CompletedProcess[str]:
    """What the console script `main` does with these words after its name, from the folder `cwd`; on a terminal of so
    many columns, or on none."""
    out, err = io.StringIO(), io.StringIO()
    out.isatty = lambda: columns is not None  # type: ignore[method-assign]
    asked, stop = ["command", *map(str, words)], signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err), chdir(cwd):
        patch.setattr(sys, "argv", asked)
        patch.delenv("COLUMNS", raising=False)
        if columns is not None:
            patch.setenv("COLUMNS", str(columns))
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            signal.signal(signal.SIGTERM, stop)
    return subprocess.CompletedProcess(asked, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def invoke(*words: object) -> Result:
    """What `scaling` does with these words."""
    from scaling.cli.main import app

    return CliRunner().invoke(app, list(map(str, words)))


def printed(*words: object) -> str:
    """stdout of a command of `scaling` that works."""
    result = invoke(*words)
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result.stdout


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    """What is bad input, in one line that holds these parts."""
    with pytest.raises(InputError) as error:
        yield
    message = str(error.value)
    assert all(part in message for part in parts) and "\n" not in message, message


def refusal_of(*words: object) -> str:
    """The one line of bad input to `scaling`, for which the console script ends with 2."""
    error = invoke(*words).exception
    assert isinstance(error, InputError) and "\n" not in str(error), error
    return str(error)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may stay in the list of /proc, where nobody collects it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(") ")[2].split()[0] != "Z"
