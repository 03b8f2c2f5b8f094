"""Reading a study file, with the changes of --set: every mistake becomes one line with file, key and remedy."""

from __future__ import annotations

import hashlib
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from arch.errors import InputError, nearest, shown
from arch.outside import allow, modules_of
from arch.registry import KNOWN, load_plugins
from data.vocabulary import vocabulary

from .axes import SECTIONS, fields_of, short
from .jobs_schema import KINDS
from .model_section import ModelSection, model_changes
from .patterns import PatternsOfStudy
from .schema import StudyFile
from .sizes import chosen, names_in
from .training import Training
from .training_rules import LAW
from .types import Section, as_tokens
from .yaml_text import parse, read_mapping

PACKAGED = Path(__file__).parents[1] / "studies"
STUDY_FILE = "study.yaml"  # of a published study's folder
BESIDE = ("provenance.json", "index.json")  # what lies beside the study file of a publication, of an unpacked bundle
SETTABLE = ("training", "model", "corpus", "evaluation", "fit", "grid", "jobs")
NAMING = (("plugins",), ("architectures",))  # sections that name architectures: their errors cause others
HINT = "name, corpus, grid, training, ..."  # what a study file has


def find_study(name: str | Path) -> Path:
    """The path of a study file; a bare name that is no file here is one that comes with the package."""
    path = Path(name)
    try:
        if path.is_file():
            return path
    except OSError as error:
        raise InputError(f"{path.name[:40]}...: no such study file ({error.strerror})") from None
    packaged = {file.stem: file for file in sorted(PACKAGED.glob("*.yaml"))}
    is_bare = str(path) == path.name
    if is_bare and path.name in packaged:
        return packaged[path.name]
    if (path / STUDY_FILE).is_file():
        raise InputError(
            f"{path}: is a published study, tables alone: fit, report, publish --check and design --pilot read it; "
            f"this needs a study file, and runs"
        )
    if path.is_dir():
        raise InputError(f"{path}: is a directory, not a study file")
    from difflib import get_close_matches

    beside = [file.name for file in (path.parent.iterdir() if path.parent.is_dir() else ()) if file.suffix == ".yaml"]
    # by stems: that both end with .yaml is no likeness
    names = {Path(name).stem: name for name in [*(packaged if is_bare else ()), *beside]}
    meant = [f"did you mean {names[stem]!r}?" for stem in get_close_matches(path.stem, names, n=1)]
    others = f"studies of the package, by bare name: {', '.join(packaged)}"
    raise InputError(f"{path}: no such study file ({(*meant, others)[0]})")


def came_with_others(file: Path) -> bool:
    """Whether a study file came with a published folder or a bundle, so that it names no code (arch.outside)."""
    return any((file.parent / name).is_file() for name in BESIDE)


def given_in(section: Section) -> dict[str, Any]:
    """The keys that a section gives, without its defaults."""
    return section.model_dump(exclude_unset=True, serialize_as_any=True)  # the fields of a model: of its options too


def read_study(file: Path, sets: list[str], out: str | Path | None, own: bool = False) -> dict[str, Any]:
    """The fields of a StudySpec: those of the file with `sets` and `out`, and what came from the command line. own: the
    user named this file, so that it may name code (arch.outside).

    Raises InputError, one line, for anything wrong in the file or the changes.
    """
    raw = read_mapping(file, "study", HINT)
    archs, sizes = _grid(raw).get("archs"), _grid(raw).get("sizes")
    in_file = {"archs": [name for name in archs if isinstance(name, str)] if isinstance(archs, list) else []}
    in_file["sizes"] = names_in(sizes)
    raw |= of_rounds(raw, lambda names: chosen(names, sizes))  # by names of the grid's own too
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
            _assign(raw, keys, chosen(value, sizes) if keys == ["grid", "sizes"] else value, change)
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
    for keys in _unknown_names(checked, names_of, shared_range):
        raise InputError(f"{_origin('.'.join(keys), str(file), sets)}: {_unknown_name(keys, names_of)}")
    for size, seeds in checked.grid.extra_seeds.items():
        if (again := set(seeds) & set(checked.grid.seeds)) and not {"seeds", f"extra_seeds.{size}"} & set(results):
            raise InputError(
                f"{file}: grid.extra_seeds.{size}: {min(again)} is one of grid.seeds too: leave one of them out"
            )
    if fault := _unread(checked, changes["training"]):
        raise InputError(f"{_origin(fault[0], str(file), sets)}: {fault[0]} {fault[1]}")
    for section, given in changes.items():  # they leave fewer points to fit
        results |= {field: value for field, value in given.items() if f"{section}.{field}" in checked.grid.axes}
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


class _Architectures(Section):
    architectures: PatternsOfStudy


def register_architectures(plugins: Iterable[str], study: str | Path | None) -> dict[str, int]:
    """Import plugins that the user named, and those of a study file, whose patterns are registered; returns what it
    says of `context_length` and `vocab_size`. What else it says is not judged. Raises InputError."""
    load_plugins(plugins)
    if study is None:
        return {}
    file = find_study(study)
    raw = read_mapping(file, "study", HINT)
    if not came_with_others(file):
        import_plugins(raw, str(file))
    validate(_Architectures, {"architectures": raw.get("architectures", {})}, str(file), [])
    model, corpus = (raw[key] if isinstance(raw.get(key), dict) else {} for key in ("model", "corpus"))
    stated = {"vocab_size": vocabulary(corpus["tokenizer"])} if isinstance(corpus.get("tokenizer"), str) else {}
    own = {name: model.get(name) for name in ("context_length", "vocab_size")}
    return stated | {name: value for name, value in own.items() if type(value) is int and value > 0}


def of_rounds(raw: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """{"forecast": as a study file has it, with the sizes of each round changed}; nothing where it has none."""
    changed: dict[str, Any] = {}
    for key in ("forecast", "then"):
        if isinstance(section := raw.get(key), dict):
            sizes = {"sizes": change(section["sizes"])} if "sizes" in section else {}
            changed[key] = section | sizes | of_rounds({"then": section.get("then")}, change)
    return changed


def _grid(raw: dict[str, Any]) -> dict[str, Any]:
    """The section `grid`, empty where it is none."""
    grid = raw.get("grid")
    return grid if isinstance(grid, dict) else {}


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


def _unread(study: StudyFile, by_set: dict[str, Any]) -> tuple[str, str] | None:
    """(the place and key, what is wrong with it) of the first key of training that no run reads."""
    sections = {
        f"overrides.{by}.{key}": given_in(override) for by, table in study.overrides for key, override in table.items()
    }
    sections |= {"training": given_in(study.training), "--set training": by_set}
    for field, values in fields_of(study.grid.axes).items():
        sections |= {f"grid.axes {i}": {short(field): value} for i, value in enumerate(values, len(sections))}
    follows_law = study.recipe is not None or any(given.get("lr") == LAW for given in sections.values())
    needed = {"lr_law": (follows_law, "lr: law"), "lr_law_beyond": (follows_law, "lr: law")}
    for place, given in sections.items():
        for key, (is_there, what) in needed.items():
            if given.get(key) is not None and not is_there:
                return f"{place}.{key}", f"is read with {what} alone, which is not given: add that, or leave it out"
        if given.get("n_checkpoints") is not None and given.get("checkpoint_tokens") is not None:
            return f"{place}.n_checkpoints", "means nothing beside checkpoint_tokens: leave one of them out"
    return None


def _unknown_names(study: StudyFile, names_of: dict[str, list[str]], shared_range: bool) -> Iterator[list[str]]:
    """The keys, from the section's on, that name an architecture or a size of which the study has no run."""
    archs, sizes = names_of["archs"], names_of["sizes"]
    rounds = study.forecast.rounds if study.forecast else []
    places = [(["grid", "sizes"], study.grid.sizes)]
    places += [(["forecast", *["then"] * at, "sizes"], round.sizes) for at, round in enumerate(rounds)]
    for place, of_place in places:
        yield from ([*place, *keys] for keys in of_place.unknown_names(archs))
    all_sizes = [*sizes, *(size for round in rounds for size in round.sizes)]
    tables: list[tuple[list[str], Mapping[str, Any], list[str]]] = [
        (["overrides", by], table, all_sizes) for by, table in study.overrides
    ]
    tables += [(["grid", "extra_seeds"], study.grid.extra_seeds, sizes)]
    tables += [(["jobs", "resources"], study.jobs.resources, all_sizes)]
    tables += [] if shared_range else [(["fit", "range"], study.fit.range, all_sizes)]
    for place, table, known in tables:
        for key in table:
            arch, slash, size = key.partition("/")
            if not (arch in archs and size in known if slash else key in (*archs, *known, *KINDS)):
                yield [*place, key]


def _unknown_name(keys: list[str], names_of: dict[str, list[str]]) -> str:
    key, alike = keys[-1], names_of["archs"] if keys[-1] in KNOWN else names_of["sizes"]
    if keys[-2] == "resources" and key not in KNOWN:
        alike = [*names_of["archs"], *names_of["sizes"], *KINDS]
    if "/" in key:
        alike = [f"{arch}/{size}" for arch in names_of["archs"] for size in names_of["sizes"]]
    return f"{'.'.join(keys)}: this study has no run of {key}{nearest(key, alike)}: correct the key, or leave it out"


def validate(schema: Any, raw: Any, where: str, sets: list[str], prefix: str = "") -> Any:
    """`raw` as a `schema`; raises InputError, one line that names `where`, or --set."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        # plugins and patterns first, whose architectures and options are unknown without them, then a misspelt key: it
        # is why another is missing
        errors = sorted(error.errors(include_url=False), key=_report_order)
        section = errors[0]["loc"][:1]
        others = [error for error in errors[1:] if section not in NAMING or error["loc"][:1] == section]
        more = f" (and {len(others)} more)" if others else ""
        key = ".".join(str(part) for part in _location(errors[0]["loc"]))
        raise InputError(f"{_origin(prefix + key, where, sets)}: {_words(schema, errors[0], prefix)}{more}") from None


def _report_order(error: Any) -> tuple[int, bool]:
    section = error["loc"][:1]
    return NAMING.index(section) if section in NAMING else len(NAMING), error["type"] != "extra_forbidden"


def _origin(key: str, where: str, sets: list[str]) -> str:
    """`where`, but for a value that came from the command line."""
    given = any(f"{key}.".startswith(change.partition("=")[0].strip() + ".") for change in sets)
    return "--set" if given else where


def _location(loc: tuple[int | str, ...]) -> list[int | str]:
    return [part for part in loc if part not in ("[key]", "[profile]", "[name]")]


def _words(schema: Any, error: Any, prefix: str) -> str:
    """An error of pydantic's in this project's words."""
    loc = _location(error["loc"])
    key, kind, value = prefix + ".".join(str(part) for part in loc), error["type"], error["input"]
    if kind == "extra_forbidden":
        return f"unknown key {key!r}{nearest(str(loc[-1]), _keys_at(schema, loc[:-1]))}"
    if kind == "missing":
        return f"key {key!r} is missing: add it"
    if kind == "value_error":
        message = str(error["ctx"]["error"])
        says_where = message.startswith(f"{key}.") or not key
        return message if says_where else f"{key}: {message}"
    if kind == "string_pattern_mismatch":
        allowed = error["ctx"]["pattern"].removeprefix("^").removesuffix("$")
        return f"{key}: {shown(value)} holds a character that is not allowed: allowed are {allowed}"
    if kind == "too_short":
        return f"{key}: must name at least one"
    message = error["msg"].replace("Input should be", "must be")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        message = "must be keys and values"
    if value is None:
        return f"{key}: {message}, but nothing is given"
    remedy = ""
    if kind == "literal_error" and isinstance(value, str):
        remedy = nearest(value, re.findall(r"'([^']+)'", message))
        remedy = remedy if "did you mean" in remedy else ""
    elif kind == "string_type" and isinstance(value, int | float):  # as YAML reads 2026, 1e3 or true
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
    """The section among the types of an annotation, else the last list or mapping there, else the annotation without
    its metadata."""
    while typing.get_origin(schema) is typing.Annotated:
        schema = typing.get_args(schema)[0]
    if typing.get_origin(schema) in (typing.Union, types.UnionType):
        parts = [_model_in(part) for part in typing.get_args(schema)]
        inner = [schema, *(part for part in parts if typing.get_args(part))]
        return next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), inner[-1])
    return schema


def parse_set(change: str) -> tuple[list[str], Any]:
    """(keys, value) of "training.lr=1e-3". Raises InputError for a path that is no field of a study file."""
    path, equals, text = change.partition("=")
    keys, where = path.strip().split("."), f"--set {change}"
    if not equals:
        raise InputError(f"{where}: write it as section.key=value, for example training.lr=1e-3")
    if keys[0] not in SETTABLE:
        homes = [f"{name}.{keys[0]}" for name in SETTABLE if len(keys) == 1 and keys[0] in _keys_of(_section(name))]
        meant = f" (did you mean {homes[0]!r}?)" if homes else nearest(keys[0], list(SETTABLE))
        raise InputError(f"{where}: unknown section {keys[0]!r}{meant}")
    section = _section(keys[0])
    if len(keys) < 2 or keys[1] not in _keys_of(section):
        name = keys[1] if len(keys) > 1 else ""
        raise InputError(f"{where}: unknown key {path.strip()!r}{nearest(name, _keys_of(section))}")
    if keys[:2] in (["grid", "axes"], ["grid", "nuisance"]):  # their keys have dots: training.lr
        field = next((i for i, key in enumerate(keys) if i > 1 and key in SECTIONS), len(keys))
        return [*keys[:field], *([".".join(keys[field:])] if field < len(keys) else [])], parse(text, where)
    nested = keys[:2] in (["grid", "extra_seeds"], ["fit", "range"])
    if len(keys) > (3 if nested else 2):
        raise InputError(f"{where}: {'.'.join(keys[:2])} has no keys of its own: give the whole value")
    word = text.strip()  # YAML reads stdlib: as {stdlib: null}
    return keys, word if re.fullmatch(r"[\w.:/@+-]+:", word) else parse(text, where)


def _section(name: str) -> type[BaseModel]:
    section = StudyFile.model_fields[name].annotation
    assert isinstance(section, type) and issubclass(section, BaseModel)
    return section


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
