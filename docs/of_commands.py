"""Reference of the commands, generated from the command lines."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import typer

from .generate import table

Row = list[str]
HEADS = ["option", "default", "meaning"]


def scaling_commands() -> str:
    from scaling.cli.main import app

    return "\n\n".join(_commands(typer.main.get_command(app), "scaling"))


def flops_commands() -> str:
    from scaling.cli.flops import app

    return "\n\n".join(_commands(typer.main.get_command(app), "flops"))


def _commands(group: Any, words: str) -> Iterator[str]:
    """A part for each command below a group, hidden ones left out."""
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{words} {name}")
            continue
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option"]
        places = [_name(p) if p.required else f"[{_name(p)}]" for p in arguments]
        usage = " ".join([words, name, *places, *(["[OPTIONS]"] if options else [])])
        rows = [[f"`{_name(p)}`", "required" if p.required else "", p.help or ""] for p in arguments]
        rows += [[f"`{_spelt(p)}{_value(p)}`", _default(p), p.help or ""] for p in options]
        yield f"### {words} {name}\n\n    {usage}\n\n{_joined(command.help or '')}\n\n{table(HEADS, rows)}"


def _joined(text: str) -> str:
    """Paragraphs as they are, each on one line."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _spelt(option: Any) -> str:
    """An option's names; of one that can be turned off, that too."""
    return " / ".join(", ".join(names) for names in (option.opts, option.secondary_opts) if names)


def _value(option: Any) -> str:
    """What follows an option's name on the command line, with the space before it."""
    if option.is_flag:
        return ""
    annotation = str(option.type_descriptor.annotation)
    words = (("int", " N"), ("float", " X"), ("Path", " PATH"))
    return f" {option.metavar}" if option.metavar else next((w for kind, w in words if kind in annotation), " TEXT")


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if option.is_flag and option.secondary_opts:
        return f"`{(option.opts if option.default else option.secondary_opts)[0]}`"
    if option.is_flag or option.default in (None, "", ()) or callable(option.default):
        return ""
    return f"`{option.default}`"


class _Stopped(Exception):
    """Carries the parser of a command that was about to read its command line."""


def parser_of(main: Callable[[list[str] | None], Any], arguments: list[str]) -> argparse.ArgumentParser:
    """The parser that `main` reads `arguments` by; `main` itself goes no further."""
    from arch.arguments import Parser

    def stop(self: Parser, *_: Any, **__: Any) -> Any:
        raise _Stopped(self)

    try:
        with patch.object(Parser, "parse_args", stop):
            main(arguments)
    except _Stopped as stopped:
        parser: argparse.ArgumentParser = stopped.args[0]
        return parser
    raise AssertionError(f"{main.__module__}.main reads no command line by arch.arguments.Parser")


def modules() -> list[tuple[Callable[..., Any], list[str]]]:
    """`main` of each command that is started by `python -m`, and the arguments by which it chooses its parser."""
    from arch.bench import command
    from scaling import check
    from scaling.trainer import bench as trainer

    return [
        (check.main, []),
        (command.main, []),
        (command.main, ["--model"]),
        (trainer.main, []),
    ]


def module_commands() -> str:
    return "\n\n".join(_module(parser_of(main, arguments), arguments) for main, arguments in modules())


def _module(parser: argparse.ArgumentParser, arguments: list[str]) -> str:
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    rows = []
    for action in actions:
        name = ", ".join(action.option_strings) or action.dest.upper()
        value = "" if action.nargs == 0 or not action.option_strings else f" {action.metavar or action.dest.upper()}"
        shown = "" if action.default in (None, False, []) else f"`{action.default}`"
        rows.append([f"`{name}{value}`", shown if action.option_strings else "required", action.help or ""])
    heading = " ".join([parser.prog, *(word for word in arguments if word not in parser.prog)])
    return f"### {heading}\n\n{_described(parser.description or '')}\n\n{table(HEADS, rows)}"


def _described(text: str) -> str:
    """A description as Markdown: paragraphs, and indented lines as they stand."""
    return re.sub(r"\n{3,}", "\n\n", text.strip())
