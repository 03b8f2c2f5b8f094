"""How both commands end where something is wrong with the terminal, a path or a very long word."""

import errno
import os
import subprocess
import sys

import pytest
import typer

from arch.console import run_app
from arch.errors import nearest, shown
from scaling.cli.main import main
from tests.commands import in_this_process


def test_letters_that_the_terminal_lacks_are_shown_escaped():
    command = [sys.executable, "-m", "scaling", "plan", "quickstart", "--out", "/tmp/\u00e9"]
    result = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert result.returncode == 0 and b"everything goes to /tmp/\\xe9/quickstart/\n" in result.stdout


def test_a_path_that_is_too_long_and_a_word_of_control_characters_are_one_line():
    result = in_this_process(main, "submit", "quickstart", "--dry-run", "--cluster", "x" * 5000)
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and len(result.stderr) < 1000
    assert "File name too long; give another path" in result.stderr
    result = in_this_process(main, "plan", "quickstart", "--only", "arch=\x1b[2J\x07")
    assert result.returncode == 2 and "\\x1b[2J\\x07" in result.stderr and "\x1b" not in result.stderr


def test_what_is_large_is_shown_by_its_ends():
    laughs = ["x"] * 10
    for _ in range(20):
        laughs = [laughs] * 10
    assert len(shown(laughs)) < 3000 and len(shown("x" * 10**6)) < 200 and shown({"a": 1}) == "{'a': 1}"
    assert nearest("x" * 10**6, ["one", "two"]) == " (valid: one, two)"


@pytest.mark.parametrize(
    ("raised", "status", "shown"),
    [
        (KeyboardInterrupt(), 130, "interrupted: give the same command again to continue"),
        (
            OSError(errno.EIO, "Input/output error", "runs/a/run.json"),
            2,
            "error: runs/a/run.json: Input/output error; ",
        ),
        (MemoryError(), 2, "error: out of memory: "),
    ],
)
def test_what_the_machine_refuses_is_one_line(capsys, raised, status, shown):
    app = typer.Typer()

    @app.command()
    def wait() -> None:
        raise raised

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(sys, "argv", ["wait"])
        run_app(app, "interrupted: give the same command again to continue")
    err = capsys.readouterr().err
    assert end.value.code == status and err.startswith(shown) and err.count("\n") == 1


@pytest.mark.parametrize("words", [("plan", "quickstart", "--out"), ("fit", "table", "runs.csv", "--columns")])
def test_an_option_that_takes_one_value_is_not_given_twice(words):
    result = in_this_process(main, *words, "loss=a", f"{words[-1]}=loss=b")
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert f"{words[-1]}: given 2 times, and the last alone would count: give it once" in result.stderr
