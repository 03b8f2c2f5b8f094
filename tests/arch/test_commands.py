"""Options that stand in dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from arch.commands import application, with_options


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where things are: `sets` is an option of subclasses alone."""

    place: Annotated[str, typer.Argument(metavar="PLACE")]
    sets: list[str] | None = field(default=None, init=False)
    out: Annotated[Path | None, typer.Option(help="A folder.")] = None


@dataclass(frozen=True, kw_only=True)
class ChangedPlace(Place):
    """One that can be changed."""

    sets: Annotated[list[str] | None, typer.Option("--set", help="A change; repeatable.")] = None


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """`size` has no default."""

    size: Annotated[int, typer.Option(min=1)]
    share: Annotated[float, typer.Option()] = 0.5
    fast: Annotated[bool, typer.Option("--fast/--slow")] = True


@pytest.fixture
def run():
    given = []
    app = application("Two commands.")

    @app.command()
    @with_options
    def changed(place: ChangedPlace, numbers: Numbers, dry_run: Annotated[bool, typer.Option("--dry-run")] = False):
        given.append((place, numbers, dry_run))

    @app.command()
    @with_options
    def plain(place: Place):
        given.append(place)

    def invoke(*words):
        given.clear()
        result = CliRunner().invoke(app, words)
        return (result.exit_code, result.output, *given)

    return invoke


def test_a_command_gets_its_dataclasses(run):
    assert run("changed", "here", "--size", "3") == (
        *(0, ""),
        (ChangedPlace(place="here"), Numbers(size=3), False),
    )
    words = ("changed", "here", "--set", "a=1", "--set", "b=2", "--out", "o", "--size", "3", "--share", "1", "--slow")
    place = ChangedPlace(place="here", sets=["a=1", "b=2"], out=Path("o"))
    assert run(*words, "--dry-run") == (0, "", (place, Numbers(size=3, share=1, fast=False), True))


def test_an_option_of_a_subclass_is_none_of_its_base(run):
    assert run("plain", "here") == (0, "", Place(place="here"))
    code, text, *_ = run("plain", "here", "--set", "a=1")
    assert code == 2 and "No such option: --set" in text


def test_the_help_has_the_options_in_the_order_of_the_fields(run):
    _, text = run("changed", "--help")
    places = [text.index(word) for word in ("PLACE", "--set", "--out", "--size", "--share", "--fast", "--dry-run")]
    assert places == sorted(places) and "A change; repeatable." in text
