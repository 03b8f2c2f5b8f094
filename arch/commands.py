"""The two command lines as typer applications, and options that stand in dataclasses."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from arch.errors import InputError

Plugins = Annotated[
    list[str] | None, typer.Option("--plugin", help="A module that registers architectures; repeatable.")
]


class Command(TyperCommand):
    """A command that refuses an option given twice, of which the last would count without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(order).items():
            if times > 1 and isinstance(option, TyperOption) and not (option.multiple or option.is_flag):
                raise InputError(f"{option.opts[0]}: given {times} times, and the last alone would count: give it once")
        return super().parse_args(ctx, args)


class Application(typer.Typer):
    """An application of such commands."""

    def command(self, *names: Any, **settings: Any) -> Any:
        return super().command(*names, **{"cls": Command} | settings)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"linear-scaling {version('linear-scaling')}")
        except PackageNotFoundError:
            print("linear-scaling (not installed: a copy of the sources)")
        raise typer.Exit


def application(about: str, group: Any = None) -> Application:
    """An application without commands, with --version, -h and --help; group: the class that has its commands. typer's
    own colours and panels take longer to import than everything else of a help."""
    app = Application(
        cls=group,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},  # its commands inherit them
        help=about,
    )
    app.callback()(_version)
    return app


def _version(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    pass


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """`function` as typer takes a command: in place of each parameter that is a dataclass stand the dataclass's fields,
    each annotated and with its default as a parameter of a command would be. Fields with init=False are no options."""
    parameters, groups = list[inspect.Parameter](), dict[str, tuple[Any, list[str]]]()
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind = parameter.annotation
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints, options = get_type_hints(kind, include_extras=True), [field for field in fields(kind) if field.init]
        groups[name] = kind, [field.name for field in options]
        for field in options:
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            annotated = {"default": default, "annotation": hints[field.name]}
            parameters.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, **annotated))

    @wraps(function)
    def command(**values: Any) -> None:
        for name, (kind, names) in groups.items():
            values[name] = kind(**{option: values.pop(option) for option in names})
        function(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
