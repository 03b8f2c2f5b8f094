"""What users type, read and import: commands, options, study-file keys, JSON keys and the names that plugins import.

tests/surface.txt holds the list as it is meant to be. A change that is meant is written by

    python -m tests.test_surface

and listed under "Renamed" in CHANGELOG.md where something that users know has another name.
"""

import ast
import difflib
import importlib
import inspect
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = Path(__file__).with_name("surface.txt")
PACKAGES = ("arch", "data", "flops", "scaling", "jobs", "analysis")
MIXER = "arch.model.mixer.Mixer"  # which plugins inherit from
JSON_COMMANDS = (
    "flops count --arch hgrn2 --size 410m",
    "flops size --params 1.3B",
    "flops table",
    "flops budget --compute 1e20",
    "flops memory --arch hgrn2 --size 410m",
    "flops study quickstart",
    "scaling plan quickstart",
    "scaling run quickstart --dry-run",
    "scaling status quickstart",
    'scaling submit quickstart --dry-run --set jobs.cluster={"nodes":1,"cpus_per_node":4}',
    "scaling eval list",
)


def apps() -> dict[str, typer.Typer]:
    from scaling.cli.flops import app as flops
    from scaling.cli.main import app as scaling

    return {"flops": flops, "scaling": scaling}


def commands() -> Iterator[str]:
    for name, app in apps().items():
        yield from _of_group(typer.main.get_command(app), name)
    for parser in _module_parsers():
        for action in parser._actions:
            if "--help" not in action.option_strings:
                default = "" if action.default in (None, False, []) else f" = {action.default}"
                yield f"{parser.prog} {', '.join(action.option_strings) or action.dest.upper()}{default}"


def _of_group(group: Any, words: str) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _of_group(command, f"{words} {name}")
            continue
        yield f"{words} {name}{' (hidden)' if command.hidden else ''}"
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                yield f"{words} {name} {parameter.metavar or parameter.name.upper()}"
            else:
                default = "" if parameter.is_flag or parameter.default in (None, (), "") else f" = {parameter.default}"
                yield f"{words} {name} {', '.join([*parameter.opts, *parameter.secondary_opts])}{default}"


def _module_parsers() -> Iterator[Any]:
    from docs.of_commands import modules, parser_of
    from scaling.trainer import process

    for main, arguments in [*modules(), (process.main, ["RUN_DIR"])]:
        yield parser_of(main, arguments)


def study_file() -> Iterator[str]:
    """Every key of a study file with its type, limits and default."""
    from scaling.study.model_section import model_changes
    from scaling.study.schema import StudyFile

    schema = StudyFile.model_json_schema()
    model = ("ModelChanges", model_changes().model_json_schema())  # judged by the architectures there are
    for section, keys in (("StudyFile", schema), *sorted([*schema["$defs"].items(), model])):
        for key, field in keys["properties"].items():
            kind = {name: value for name, value in field.items() if name not in ("title", "description", "default")}
            section_of_its_own = "$ref" in field
            default = f" = {json.dumps(field['default'])}" if "default" in field and not section_of_its_own else ""
            yield f"{section}.{key}: {_kind(kind)}{default}"


def _kind(schema: dict[str, Any]) -> str:
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(map(_kind, schema[several]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    words = [str(schema.get("type", "any"))]
    words += [
        f"{name} {json.dumps(schema[name])}" for name in sorted(schema) if name not in ("type", "items", "pattern")
    ]
    return " ".join(words) + (f" of {_kind(schema['items'])}" if "items" in schema else "")


def json_keys() -> Iterator[str]:
    runner, all_apps = CliRunner(), apps()
    for command in JSON_COMMANDS:
        name, *words = command.split()
        result = runner.invoke(all_apps[name], [*words, "--json"])
        assert result.exit_code == 0, f"{command}: {result.output}{result.exception}"
        for key in sorted(set(_keys(json.loads(result.stdout)))):
            yield f"{command}: {key}"


def _keys(value: Any, path: str = "") -> Iterator[str]:
    """a.b[].c of everything inside; keys that are made of data by their kind."""
    if value in ({}, []):
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            shown = "TEXT" if " " in key else re.sub(r"-\d+$", "-N", key)
            yield from _keys(inner, f"{path}.{shown}" if path else shown)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner, f"{path}[]")
    else:
        yield path


def imports() -> Iterator[str]:
    """What the guides' Python imports of these packages, and the arguments that it takes."""
    modules = {MIXER}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M) if page.exists() else ():
            modules |= set(_imported(ast.parse(code)))
    modules |= {f"arch.ops.{name}" for name in importlib.import_module("arch.ops").__all__}
    for path in sorted(modules):
        yield path + _signature(path)
        if path == MIXER:
            names = [name for name in vars(_at(path)) if not name.startswith("_")]
            yield from (f"{path}.{name}{_signature(f'{path}.{name}')}" for name in sorted(names))


def _imported(tree: ast.Module) -> Iterator[str]:
    """Of `import flops` what is used of it: flops.register."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield f"{node.value.id}.{node.attr}"


def _at(path: str) -> Any:
    """The object at a dotted path; raises where a guide names what there is not."""
    parts = path.split(".")
    for end in (*range(len(parts) - 1, 0, -1), len(parts)):  # arch.ops.scan is the operation, and a module too
        try:
            value: Any = importlib.import_module(".".join(parts[:end]))
            for name in parts[end:]:
                value = getattr(value, name)
            return value
        except (ModuleNotFoundError, AttributeError):
            continue
    raise AssertionError(f"{path}: a guide imports it, and it is not there")


def _signature(path: str) -> str:
    """(names of the arguments, with = where one has a default)."""
    try:
        arguments = inspect.signature(_at(path)).parameters.values()
    except (TypeError, ValueError):
        return ""
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names = [
        marks.get(argument.kind, "") + argument.name + "=" * (argument.default is not argument.empty)
        for argument in arguments
    ]
    return f"({', '.join(names)})"


PARTS = {"commands": commands, "study file": study_file, "keys of --json": json_keys, "imports": imports}


@contextmanager
def elsewhere() -> Iterator[None]:
    """In an empty folder, as commands look at the one that they are given in."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


def surface() -> dict[str, list[str]]:
    with elsewhere(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        return {part: list(dict.fromkeys(lines())) for part, lines in PARTS.items()}


def text(surface: dict[str, list[str]]) -> str:
    return "\n\n".join(f"[{part}]\n" + "\n".join(lines) for part, lines in surface.items()) + "\n"


def test_the_surface_is_the_committed_one():
    now, meant = text(surface()).splitlines(), GOLDEN.read_text().splitlines()
    changed = [line for line in difflib.unified_diff(meant, now, "tests/surface.txt", "now", n=0, lineterm="")]
    if changed:
        difference = "\n".join(changed)
        pytest.fail(
            f"{difference}\n\nIf this is meant: `python -m tests.test_surface` writes tests/surface.txt anew, and each "
            "name that users know gets a line under Renamed in CHANGELOG.md.",
            pytrace=False,
        )


if __name__ == "__main__":
    GOLDEN.write_text(text(surface()))
    print(f"{GOLDEN.relative_to(ROOT)}: {len(GOLDEN.read_text().splitlines())} lines", file=sys.stderr)
