"""Reading a study file, with the changes of --set: every mistake becomes one line with file, key and remedy."""

from __future__ import annotations

import hashlib
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from arch.errors import InputError, nearest, shown
from arch.outside import allow, modules_of
from arch.registry import KNOWN, load_plugins

from .axes import SECTIONS, fields_of, short
from .changes import given_in, unread
from .forecast_section import of_rounds
from .jobs_schema import KINDS
from .model_section import ModelSection, model_changes
from .schema import StudyFile
from .sizes import chosen, names_in
from .training import Training
from .types import as_tokens
from .yaml_text import parse, read_mapping

SETTABLE = ("training", "model", "corpus", "evaluation", "fit", "grid", "jobs")


def read_study(file: Path, sets: list[str], out: str | Path | None, own: bool = False) -> dict[str, Any]:
    """The fields of a StudySpec: those of the file with `sets` and `out`, and what came from the command line. own: the
    user named this file, so that it may name code (arch.outside).

    Raises InputError, one line, for anything wrong in the file or the changes.
    """
    raw = read_mapping(file, "study", "name, corpus, grid, training, ...")
    in_file, of_file = _named(raw), _grid(raw).get("sizes")
    raw |= of_rounds(raw, lambda sizes: chosen(sizes, of_file))  # by names of the grid's own too
    changes: dict[str, dict[str, Any]] = {"training": {}, "model": {}}
    results: dict[str, Any] = {}
    stated = raw["fit"].get("flops", "exact") if isinstance(raw.get("fit"), dict) else "exact"
    if own:
        import_plugins(raw, str(file))
    for change in sets:
        keys, value = parse_set(change)
        if keys[0] in changes:
            changes[keys[0]][keys[1]] = value
        else:
            new = chosen(value, of_file) if keys == ["grid", "sizes"] else value
            _assign(raw, keys, new, change)
        if keys[0] in ("fit", "grid"):
            results[".".join(keys[1:])] = value
    _keep_range(raw, stated, results)
    if out is not None:
        raw["out"] = str(out)
    checked = validate(StudyFile, raw, str(file), sets)
    if own:
        allow(modules_of(checked.evaluation.tasks or ()))
    # what --set takes out of the grid may still be named by the file
    names_of = {key: list(dict.fromkeys([*getattr(checked.grid, key), *names])) for key, names in in_file.items()}
    shared_range = isinstance(raw.get("fit", {}).get("range"), list)  # for all architectures
    for keys in unknown_names(checked, names_of["archs"], names_of["sizes"], shared_range):
        raise InputError(f"{_origin('.'.join(keys), str(file), sets)}: {_unknown_name(keys, names_of)}")
    for size, seeds in checked.grid.extra_seeds.items():
        if (again := set(seeds) & set(checked.grid.seeds)) and not {"seeds", f"extra_seeds.{size}"} & set(results):
            raise InputError(
                f"{file}: grid.extra_seeds.{size}: {min(again)} is one of grid.seeds too: leave one of them out"
            )
    sections = {
        f"overrides.{by}.{key}": given_in(override)
        for by, table in checked.overrides
        for key, override in table.items()
    }
    sections |= {"training": given_in(checked.training), "--set training": changes["training"]}
    for field, values in fields_of(checked.grid.axes).items():
        sections |= {f"grid.axes {i}": {short(field): value} for i, value in enumerate(values, len(sections))}
    if fault := unread(sections):
        raise InputError(f"{_origin(fault[0], str(file), sets)}: {fault[0]} {fault[1]}")
    varied = {field for axis in checked.grid.axes.values() for field in axis}
    for section, given in changes.items():  # they leave fewer points to fit
        results |= {field: value for field, value in given.items() if f"{section}.{field}" in varied}
    return {name: getattr(checked, name) for name in StudyFile.model_fields} | {
        "path": str(file),
        "file_archs": tuple(names_of["archs"]),
        "sets": tuple(sets),
        "set_results": results,
        "set_model": validate(model_changes(), changes["model"], "--set", sets, "model."),
        "set_training": validate(Training, changes["training"], "--set", sets, "training."),
    }


def import_plugins(raw: dict[str, Any], where: str) -> None:
    """Import the plugins of a file that the user named; --set may then name their options. Raises InputError."""
    named = raw.get("plugins")
    words = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    try:
        load_plugins(word for word in words if isinstance(word, str) and word)
    except InputError as error:
        raise InputError(f"{where}: plugins: {error}") from None


def _keep_range(raw: dict[str, Any], stated: Any, changes: dict[str, Any]) -> None:
    """Where `changes` of the command line count FLOP otherwise, a range of the file stays one of the convention
    `stated` there. Raises InputError where a part of it would be of one convention and the rest of another."""
    if "flops" not in changes or "range" in changes or "range_flops" in changes:
        return
    if part := next((key for key in changes if key.startswith("range.")), None):
        raise InputError(
            f"--set fit.flops and --set fit.{part}: say what FLOP the range is in, with --set fit.range_flops, which "
            f"holds for all architectures"
        )
    if raw["fit"].get("range"):
        raw["fit"].setdefault("range_flops", stated)


def validate(schema: Any, raw: Any, where: str, sets: list[str], prefix: str = "") -> Any:
    """`raw` as a `schema`; raises InputError, one line that names `where`, or --set."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        # a plugin first, whose architectures and options are unknown without it, then a misspelt key: it is why another
        # is missing
        errors = sorted(error.errors(include_url=False), key=_report_order)
        shows_count = len(errors) > 1 and errors[0]["loc"][:1] != ("plugins",)  # a plugin's error may cause others
        more = f" (and {len(errors) - 1} more)" if shows_count else ""
        key = ".".join(str(part) for part in _location(errors[0]["loc"]))
        raise InputError(f"{_origin(prefix + key, where, sets)}: {_tell(schema, errors[0], prefix)}{more}") from None


def _report_order(error: Any) -> tuple[bool, bool]:
    return error["loc"][:1] != ("plugins",), error["type"] != "extra_forbidden"


def _origin(key: str, where: str, sets: list[str]) -> str:
    """`where`, but for a value that came from the command line."""
    given = any(f"{key}.".startswith(change.partition("=")[0].strip() + ".") for change in sets)
    return "--set" if given else where


def _named(raw: dict[str, Any]) -> dict[str, list[str]]:
    """The architectures and sizes of a file's grid, as far as they can be read."""
    archs = _grid(raw).get("archs")
    archs = [name for name in archs if isinstance(name, str)] if isinstance(archs, list) else []
    return {"archs": archs, "sizes": names_in(_grid(raw).get("sizes"))}


def _grid(raw: dict[str, Any]) -> dict[str, Any]:
    """The section `grid`, empty where it is none."""
    grid = raw.get("grid")
    return grid if isinstance(grid, dict) else {}


def unknown_names(study: StudyFile, archs: list[str], sizes: list[str], shared_range: bool) -> Iterator[list[str]]:
    """The keys, from the section's on, that name an architecture or a size of which the study has no run."""
    yield from (["grid", "sizes", *keys] for keys in study.grid.sizes.unknown_names(archs))
    rounds = study.forecast.rounds if study.forecast else []
    for at, round in enumerate(rounds):
        yield from (["forecast", *["then"] * at, "sizes", *keys] for keys in round.sizes.unknown_names(archs))
    larger = [size for round in rounds for size in round.sizes]
    named = [(("overrides", by), table) for by, table in study.overrides]
    named += [(("grid", "extra_seeds"), study.grid.extra_seeds), (("jobs", "resources"), study.jobs.resources)]
    named += [] if shared_range else [(("fit", "range"), study.fit.range)]
    for place, table in named:
        by_run = place != ("grid", "extra_seeds")
        for key in table:
            arch, slash, size = key.partition("/")
            all_sizes = [*sizes, *(larger if by_run else ())]
            is_run = arch in archs and size in all_sizes if slash else key in (*archs, *all_sizes, *KINDS)
            if not is_run:
                yield [*place, key]


def _unknown_name(keys: list[str], names_of: dict[str, list[str]]) -> str:
    key, alike = keys[-1], names_of["archs"] if keys[-1] in KNOWN else names_of["sizes"]
    if keys[-2] == "resources" and key not in KNOWN:
        alike = [*names_of["archs"], *names_of["sizes"], *KINDS]
    if "/" in key:
        alike = [f"{arch}/{size}" for arch in names_of["archs"] for size in names_of["sizes"]]
    return f"{'.'.join(keys)}: this study has no run of {key}{nearest(key, alike)}: correct the key, or leave it out"


def _location(loc: tuple[int | str, ...]) -> list[int | str]:
    return [part for part in loc if part not in ("[key]", "[profile]", "[name]")]


def _tell(schema: Any, error: Any, prefix: str) -> str:
    """One of pydantic's findings in this project's words."""
    loc = _location(error["loc"])
    key = prefix + ".".join(str(part) for part in loc)
    if error["type"] == "extra_forbidden":
        valid = _keys_at(schema, loc[:-1])
        return f"unknown key {key!r}{nearest(str(loc[-1]), valid)}"
    if error["type"] == "missing":
        return f"key {key!r} is missing: add it"
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"])
        if message.startswith(f"{key}."):  # it says where in the section
            return message
        return f"{key}: {message}" if key else message
    message = error["msg"].replace("Input should be", "must be")
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "must be keys and values"
    value = error["input"]
    if error["type"] == "string_pattern_mismatch":
        allowed = error["ctx"]["pattern"].removeprefix("^").removesuffix("$")
        return f"{key}: {shown(value)} holds a character that is not allowed: allowed are {allowed}"
    if value is None:
        return f"{key}: {message}, but nothing is given"
    remedy = ""
    if error["type"] == "literal_error" and isinstance(value, str):
        remedy = nearest(value, re.findall(r"'([^']+)'", message))
        remedy = remedy if "did you mean" in remedy else ""
    elif error["type"] == "string_type" and isinstance(value, int | float):  # as YAML reads 2026, 1e3 or true
        remedy = ": write it in quotes"
    return f"{key}: {message}, not {shown(value)}{remedy}"


def _keys_at(schema: Any, loc: list[int | str]) -> list[str]:
    """The keys that `schema` allows at a location in it."""
    for part in loc:
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            schema = schema.model_fields[str(part)].annotation
        else:
            schema = typing.get_args(schema)[-1]
        schema = _model_in(schema)
    return _keys_of(schema) if isinstance(schema, type) and issubclass(schema, BaseModel) else []


def _keys_of(section: type[BaseModel]) -> list[str]:
    """The keys of a section; of a model's, those that its architectures and plugins give it by now."""
    return list((model_changes() if issubclass(section, ModelSection) else section).model_fields)


def _model_in(schema: Any) -> Any:
    """The section among the types of an annotation, else the annotation without its metadata."""
    while typing.get_origin(schema) is typing.Annotated:
        schema = typing.get_args(schema)[0]
    if typing.get_origin(schema) in (typing.Union, types.UnionType):
        parts = [_model_in(part) for part in typing.get_args(schema)]
        return next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), schema)
    return schema


def parse_set(change: str) -> tuple[list[str], Any]:
    """(keys, value) of "training.lr=1e-3". Raises InputError for a path that is no field of a study file."""
    path, equals, text = change.partition("=")
    keys = path.strip().split(".")
    if not equals:
        raise InputError(f"--set {change}: write it as section.key=value, for example training.lr=1e-3")
    if keys[0] not in SETTABLE:
        homes = [f"{name}.{keys[0]}" for name in SETTABLE if len(keys) == 1 and keys[0] in _keys_of(_section(name))]
        meant = f" (did you mean {homes[0]!r}?)" if homes else nearest(keys[0], list(SETTABLE))
        raise InputError(f"--set {change}: unknown section {keys[0]!r}{meant}")
    section = _section(keys[0])
    if len(keys) < 2 or keys[1] not in _keys_of(section):
        name = keys[1] if len(keys) > 1 else ""
        raise InputError(f"--set {change}: unknown key {path.strip()!r}{nearest(name, _keys_of(section))}")
    if keys[:2] in (["grid", "axes"], ["grid", "nuisance"]):  # their keys have dots: training.lr
        return _with_field(keys), parse(text, f"--set {change}")
    nested = (("grid", "extra_seeds"), ("fit", "range"))
    if len(keys) > (3 if (keys[0], keys[1]) in nested else 2):
        raise InputError(f"--set {change}: {'.'.join(keys[:2])} has no keys of its own: give the whole value")
    return keys, _value(text, change)


def _section(name: str) -> type[BaseModel]:
    section = StudyFile.model_fields[name].annotation
    assert isinstance(section, type) and issubclass(section, BaseModel)
    return section


def _value(text: str, change: str) -> Any:
    """The value that `text` is as YAML; a word that ends in a colon is that word: stdlib:, not {stdlib: null}."""
    word = text.strip()
    return word if re.fullmatch(r"[\w.:/@+-]+:", word) else parse(text, f"--set {change}")


def _with_field(keys: list[str]) -> list[str]:
    """grid.axes.training.lr as three keys, grid.axes.depth.model.n_layers as four."""
    field = next((i for i, key in enumerate(keys) if i > 1 and key in SECTIONS), len(keys))
    return [*keys[:field], *([".".join(keys[field:])] if field < len(keys) else [])]


def _assign(raw: dict[str, Any], keys: list[str], value: Any, change: str) -> None:
    for key in keys[:-1]:
        raw = raw.setdefault(key, {})
        if not isinstance(raw, dict):
            raise InputError(f"--set {change}: {key} holds no keys in the study file: give the whole value")
    raw[keys[-1]] = value


def suffix_of(changes: dict[str, Any]) -> str:
    """Readable and safe in file names: -lr0.001-n_tokens20000. context_length is part of every run_id already."""
    parts = []
    for key, value in sorted(changes.items()):
        if key == "context_length":
            continue
        text = re.sub(r"[^A-Za-z0-9.+]+", "_", str(as_tokens(value))).strip("_")
        if len(text) > 24:
            text = hashlib.sha256(text.encode()).hexdigest()[:8]
        parts.append(f"-{key}{text}")
    return "".join(parts)
