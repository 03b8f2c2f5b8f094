"""Command lines of modules that are started by `python -m`: a wrong option is one line, before anything is measured."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from .errors import InputError


class Parser(argparse.ArgumentParser):
    """argparse's parser, without reformatting of the description and without the usage before an error."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        self.exit(2, f"error: {message}; {self.prog} --help lists all\n")


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """The option --plugin: options.plugin has the modules to hand to arch.registry.load_plugins."""
    parser.add_argument("--plugin", action="append", default=[], help="a module that registers it; repeatable")


def plugin_words(modules: Iterable[str]) -> list[str]:
    """`modules` as options of a command that has `add_plugin`'s."""
    return [f"--plugin={module}" for module in modules]


def run(main: Callable[[], object]) -> None:
    """Run a module's `main`: an InputError is one line and exit status 2."""
    try:
        main()
    except InputError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)


def at_least_one(options: argparse.Namespace, *names: str) -> None:
    """Raises InputError for the first of the options `names` whose number is below 1."""
    for name in names:
        if getattr(options, name) < 1:
            raise InputError(f"--{name.replace('_', '-')}: must be 1 or more, not {getattr(options, name)}")


def whole_numbers(text: str, option: str) -> list[int]:
    """The numbers of a list as it is typed. Raises InputError for anything but whole numbers of at least 1."""
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InputError(f"{option} {text}: write whole numbers, 1 or more, with ',' between them")
    return numbers


def file_to_write(path: str | Path | None, option: str) -> None:
    """Raises InputError where `path`, or the target of a link there, is not a regular file or cannot be written. A new
    file beside it is tried, because access rights do not show a full or read-only disk. None: no file."""
    if path is None:
        return
    target = Path(os.path.realpath(path))
    folder, typed = target.parent, target.parent if Path(path).is_symlink() else Path(path).parent
    if target.is_dir():
        raise InputError(f"{option} {path}: is a directory; name a file")
    if os.path.lexists(target) and not target.is_file():
        what = "is a link to itself" if target.is_symlink() else "is no regular file"
        raise InputError(f"{option} {path}: {what}; name a file of your own")
    if not folder.is_dir():
        raise InputError(f"{option} {path}: there is no directory {typed}; make it first, or name another file")
    tried = folder / f".{target.name}.{os.getpid()}.tmp"
    try:
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        tried.touch()
        tried.unlink()
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written ({error.strerror}); name a file elsewhere") from None
