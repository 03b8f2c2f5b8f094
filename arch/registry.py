"""The architectures by name: those of this package (architectures/) and those that plugins register, in one table.

This module imports no torch: it has an architecture's name, label and colour, its options, and its shapes at the named
sizes. The mixer is imported when a model is built; costs are registered with flops.register. Guide: docs/adding.md.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .errors import InputError, nearest, shown
from .options import COMMON, TYPES, Options, kind_of
from .outside import REMEDY, allow, import_allowed

if TYPE_CHECKING:
    from .config import ModelConfig
    from .hf.families import Family
    from .model.mixer import Mixer

NORMS = ("srms", "rms", "layer")
# Names of runs, --only and arch/size put other characters around a name.
NAME = re.compile(r"[a-z][a-z0-9_]*")
PATTERN_NAME = re.compile(r"[a-z][a-z0-9_]*(-[a-z0-9_]+)*")
LONGEST_NAME, LONGEST_LABEL = 40, 60  # characters of a pattern's name, which is part of names of files; of a label
COLOR = re.compile(r"#[0-9a-f]{6}")
# Names that an option cannot have: attributes of the class, and keys of config.json beside a model's fields.
RESERVED = {
    *dir(Options),
    *("plugin", "model_type", "architectures", "dtype", "auto_map", "tie_word_embeddings", "transformers_version"),
    "document_start_id",
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings"),
    *("copy", "json", "dict", "schema", "construct", "validate", "options", "layers", "kinds"),
}

# (size, the fields that all architectures share at this size, the changes asked for) -> an architecture's own fields.
Rule = Callable[[str, dict[str, Any], dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Architecture:
    """The arguments of `register`; module: the caller; plugin: the module to import for this architecture, None for one
    of this package. gpus_alone: its mixer runs on GPUs alone. layers, own: of a pattern, as `register_pattern` takes
    them."""

    name: str
    mixer: Callable[[], type[Mixer]]
    norm: str
    options: type[Options]
    preset: Rule | None
    label: str
    color: str | None
    aliases: tuple[str, ...]
    constant_state: bool
    warn: Callable[[Sequence[tuple[str, ModelConfig]]], str | None] | None
    hugging_face: Callable[[], Family] | None
    ladder: tuple[tuple[str, Any], ...]
    in_patterns: bool
    module: str
    plugin: str | None
    gpus_alone: bool = False
    layers: tuple[str, ...] = ()
    own: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()


ARCHITECTURES: dict[str, Architecture] = {}
FAMILIES: dict[str, Callable[[str], Architecture]] = {}  # by prefix, of names prefix:NAME, which are no list
KNOWN = ARCHITECTURES.keys()  # a view: a plugin's name is in it as soon as it is registered


def register(
    name: str,
    *,
    mixer: Callable[[], type[Mixer]],
    norm: str = "srms",
    options: type[Options] = Options,
    preset: Rule | None = None,
    label: str | None = None,
    color: str | None = None,
    aliases: tuple[str, ...] = (),
    constant_state: bool = True,
    warn: Callable[[Sequence[tuple[str, ModelConfig]]], str | None] | None = None,
    hugging_face: Callable[[], Family] | None = None,
    ladder: Mapping[str, Any] | None = None,
    in_patterns: bool = True,
) -> None:
    """Add the architecture `name`, for studies, tools and plots.

    mixer: a function without arguments that imports and returns the token mixer, a subclass of arch.model.mixer.Mixer,
    so that planning loads no torch. norm: the default norm. options: the class of its options. preset(size, shape,
    changes): its own fields at a named size, where they differ from `shape`, the fields that the architectures share
    there; `changes` are the fields that the user set. label, color (#rrggbb): for tables and plots. aliases: other
    names on a command line. constant_state: whether its decode state has the same size after any number of tokens.
    warn(models): a sentence on what confounds a study of these (name of the size, configuration), all of this
    architecture, or None. hugging_face: a function that imports and returns the Family of transformers whose weights it
    can read and write. ladder: values of its options that all sizes of a ladder share (flops/ladder.py), where `preset`
    would give them by size. in_patterns: whether its layers may stand between those of others.

    Only the same module may register a name again (a reload). Raises InputError for another module and for invalid
    arguments; nothing is registered then.
    """
    module = str(sys._getframe(1).f_globals["__name__"])
    of_this_package = module.startswith(f"{__package__}.")
    if not NAME.fullmatch(name):
        raise InputError(f"architecture {name!r}: a name is small letters, digits and _, and begins with a letter")
    if name in ARCHITECTURES and ARCHITECTURES[name].module != module:
        owner, second = ARCHITECTURES[name].module, module
        if of_this_package:  # a plugin was imported before this package's
            owner, second = module, owner
        owner = "linear-scaling" if owner.startswith(f"{__package__}.") else owner
        raise InputError(f"architecture {name!r} of {second} is already one of {owner}: choose another name")
    if not inspect.isfunction(mixer):
        raise InputError(
            f"architecture {name!r}: mixer must be a function that imports and returns the mixer's class, not {mixer!r}"
        )
    if norm not in NORMS:
        raise InputError(f"architecture {name!r}: unknown norm {norm!r}{nearest(norm, list(NORMS))}")
    if preset is not None:
        try:
            inspect.signature(preset).bind("", {}, {})
        except TypeError:
            raise InputError(f"architecture {name!r}: preset must take three arguments: size, shape, changes") from None
    if color is not None and not COLOR.fullmatch(color):
        raise InputError(f"architecture {name!r}: color {color!r} is not written as #rrggbb")
    try:
        _check_label(label)
    except InputError as error:
        raise InputError(f"architecture {name!r}: {error}") from None
    for own in (label or name, *aliases):
        for other in ARCHITECTURES.values():
            if other.name != name and own.lower() in _names(other):
                raise InputError(f"architecture {name!r}: {own!r} is also {other.name}: choose another label or alias")
    _check_options(name, options)
    for key in ladder or {}:
        if key not in options.names():
            raise InputError(
                f"architecture {name!r}: ladder: unknown option {key!r}{nearest(key, list(options.names()))}"
            )
    ARCHITECTURES[name] = Architecture(
        name=name,
        mixer=mixer,
        norm=norm,
        options=options,
        preset=preset,
        label=label or name,
        color=color,
        aliases=aliases,
        constant_state=constant_state,
        warn=warn,
        hugging_face=hugging_face,
        ladder=tuple(sorted((ladder or {}).items())),
        in_patterns=in_patterns,
        module=module,
        plugin=None if of_this_package else module,
    )


def register_pattern(
    name: str,
    layers: Sequence[str],
    own: Mapping[str, Mapping[str, Any]] | None = None,
    label: str | None = None,
    color: str | None = None,
) -> None:
    """Add the architecture `name` whose layers are of several kinds: `layers` names the architecture of each layer of a
    period, which the depth of a model repeats. own: fields of the layers of a kind (heads, norm, options ..) that
    differ from its own architecture's. A pattern of the same name is replaced. Raises InputError."""
    names, fields = tuple(map(resolved, layers)), {resolved(kind): given for kind, given in (own or {}).items()}
    if not PATTERN_NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise InputError(
            f"{shown(name)}: a name is small letters, digits, _ and -, begins with a letter, and has at most "
            f"{LONGEST_NAME} characters"
        )
    _check_label(label)
    taken = {own for known in ARCHITECTURES.values() if not known.layers for own in _names(known)}
    for new in (name, label or name):
        if new.lower() in taken:
            raise InputError(f"{new!r} is the name of an architecture already: choose another")
    if color is not None and not COLOR.fullmatch(color):
        raise InputError(f"color {color!r} is not written as #rrggbb")
    if not names:
        raise InputError("layers: name the architecture of each layer of a period")
    if twice := [kind for kind in own or {} if list(map(resolved, own or {})).count(resolved(kind)) > 1]:
        raise InputError(f"{' and '.join(twice)} are the same architecture: give its fields below one of them")
    for kind in (*names, *fields):
        known = architecture(kind)
        if known.layers:
            raise InputError(f"layers: {kind} is a pattern itself: name the architectures of its layers")
        if kind not in names:
            raise InputError(f"{kind} is none of its layers: {', '.join(dict.fromkeys(names))}")
    kinds = [architecture(kind) for kind in dict.fromkeys(names)]
    ARCHITECTURES[name] = Architecture(
        name=name,
        mixer=kinds[0].mixer,
        norm=kinds[0].norm,
        options=Options,
        preset=None,
        label=label or name,
        color=color,
        aliases=(),
        constant_state=all(kind.constant_state for kind in kinds),
        warn=None,
        hugging_face=None,
        ladder=(),
        in_patterns=False,
        module=__name__,
        plugin=None,
        layers=_period(names),
        own=tuple((kind, tuple(sorted(fields[kind].items()))) for kind in sorted(fields)),
    )


def register_family(prefix: str, kind: Callable[[str], Architecture]) -> None:
    """Add the architectures `prefix`:NAME, kinds of layers of patterns. kind(prefix:NAME): the architecture; raises
    InputError for a NAME that is none."""
    FAMILIES[prefix] = kind


def in_family(name: str) -> bool:
    """Whether `name` is one of a family's, known or not."""
    return name.partition(":")[0] in FAMILIES and ":" in name


def member(name: str) -> str:
    """NAME of prefix:NAME."""
    return name.partition(":")[2]


def _names(known: Architecture) -> tuple[str, ...]:
    """What people call an architecture, in small letters."""
    return (known.name, known.label.lower(), *known.aliases)


def _check_label(label: str | None) -> None:
    """Raise InputError for a label that would not stand in a table, or be markup in a plot."""
    if label is None:
        return
    if not label.strip() or not label.isprintable() or len(label) > LONGEST_LABEL or set(label) & set("<>|"):
        raise InputError(f"label {shown(label)}: a label is a line of 1 to {LONGEST_LABEL} characters, without < > |")


def pattern_fields(name: str) -> dict[str, Any]:
    """A pattern as a study file has it; empty of any other architecture."""
    pattern = architecture(name)
    if not pattern.layers:
        return {}
    shown = {"label": pattern.label, "color": pattern.color}
    own = {kind: dict(fields) for kind, fields in pattern.own}
    return {"layers": list(pattern.layers)} | {key: value for key, value in shown.items() if value is not None} | own


def _period(layers: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest period of a list of layers."""
    whole = len(layers)
    return next(layers[:n] for n in range(1, whole + 1) if whole % n == 0 and layers[:n] * (whole // n) == layers)


def resolved(name: str) -> str:
    """The architecture of which `name` is an alias, in small letters; else `name`, of a family as it is."""
    if in_family(name.strip()):
        return name.strip()
    lower = name.strip().lower()
    if lower in KNOWN:
        return lower
    return next((known.name for known in ARCHITECTURES.values() if lower in known.aliases), lower)


def meant(name: str, valid: Collection[str]) -> str:
    """`nearest` for a name where `valid` ones are asked for, architectures among them, whose aliases are known too."""
    aliases = {alias: known.name for known in ARCHITECTURES.values() if known.name in valid for alias in known.aliases}
    if (arch := resolved(name)) in valid and arch in KNOWN:
        return f" (did you mean {arch!r}?)"
    hint = nearest(name, [*valid, *aliases])
    return hint if "did you mean" in hint else nearest(name, list(valid))


def kinds_of(arch: str) -> tuple[str, ...]:
    """The architectures of a pattern's layers, each once; of any other (arch,). Raises InputError for an unknown
    one."""
    return tuple(dict.fromkeys(architecture(arch).layers)) or (arch,)


def _check_options(name: str, options: type[Options]) -> None:
    """Raise InputError unless `options` is a class of options whose names and types agree with other architectures'."""
    if not (isinstance(options, type) and issubclass(options, Options)):
        raise InputError(f"architecture {name!r}: options must be a subclass of arch.options.Options, not {options!r}")
    declared = {field.name for field in dataclasses.fields(options)}
    if set(vars(options).get("__annotations__", {})) - declared:
        raise InputError(f"architecture {name!r}: {options.__name__} must be a @dataclass(frozen=True)")
    for field in dataclasses.fields(options):
        if field.name in RESERVED or field.name.startswith("_"):
            raise InputError(f"architecture {name!r}: option {field.name!r} has a name that is taken: rename it")
        if field.name in COMMON:
            raise InputError(
                f"architecture {name!r}: option {field.name!r} is a common field of every model: rename it"
            )
        kind = kind_of(field)
        if kind not in TYPES or not field.metadata or (kind == "str" and not field.metadata["choices"]):
            raise InputError(
                f"architecture {name!r}: option {field.name!r} must be made by arch.options.option, of type "
                f"{', '.join(TYPES)}, a str with its choices"
            )
        for other in ARCHITECTURES.values():
            theirs = {item.name: kind_of(item) for item in dataclasses.fields(other.options)}.get(field.name, kind)
            if other.name != name and theirs.split(" ")[0] != kind.split(" ")[0]:
                raise InputError(
                    f"architecture {name!r}: option {field.name!r} is {kind}, but {theirs} in {other.name}, and a "
                    f"study file has one type for a name: rename it"
                )


def architecture(name: str) -> Architecture:
    """The architecture of that name. Raises InputError for an unknown one."""
    if isinstance(name, str) and in_family(name):
        return FAMILIES[name.partition(":")[0]](name)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise InputError(f"unknown architecture {name!r}{meant(str(name), KNOWN)}")
    return ARCHITECTURES[name]


def plugins() -> tuple[str, ...]:
    """The names of the architectures that plugins registered."""
    return tuple(arch.name for arch in ARCHITECTURES.values() if arch.plugin is not None)


def has_option(arch: str, name: str) -> bool:
    """Whether an architecture, or one of a pattern's kinds, has an option of that name."""
    return any(name in architecture(kind).options.names() for kind in kinds_of(arch))


def archs_with(name: str) -> tuple[str, ...]:
    """The architectures that have an option of that name, without patterns."""
    return tuple(known.name for known in ARCHITECTURES.values() if name in known.options.names())


def warnings_of(models: Iterable[tuple[str, ModelConfig]]) -> list[str]:
    """What confounds a study of these (name of the size, configuration), a sentence for each kind of layer."""
    by_kind: dict[tuple[str, str], list[tuple[str, ModelConfig]]] = {}
    for size, config in models:
        for kind in config.kinds:
            by_kind.setdefault((config.arch, kind.arch), []).append((size, kind))
    rules = ((architecture(kind).warn, sized) for (_, kind), sized in by_kind.items())
    lines = [warn(sized) for warn, sized in rules if warn is not None]
    return [line for line in dict.fromkeys(lines) if line is not None]


def load_plugins(names: Iterable[str]) -> None:
    """Import the modules that register architectures; a module that is already imported is left as it is. Call this
    only for names that the user gave (arch.outside); use `check_plugins` for a file that refers to a plugin.

    Raises InputError for a module that does not exist, fails, takes a name in use, or registers nothing.
    """
    for name in names:
        before = set(ARCHITECTURES)
        allow([name])
        try:
            import_allowed(name)
        except InputError as error:
            for arch in set(ARCHITECTURES) - before:
                del ARCHITECTURES[arch]
            raise InputError(f"plugin {name!r} {error}") from error
        for arch in set(ARCHITECTURES) - before:
            ARCHITECTURES[arch] = replace(ARCHITECTURES[arch], plugin=name)
        if not _has_registered(name):
            raise InputError(f"plugin {name!r} registers no architecture: call arch.registry.register in it")


def check_plugins(names: Iterable[str]) -> None:
    """Raise InputError for a plugin that is not imported yet. This imports nothing: a file must not decide what code
    runs."""
    for name in names:
        if not _has_registered(name):
            raise InputError(f"refers to the plugin {name!r}: {REMEDY}")


def _has_registered(name: str) -> bool:
    of_plugins = [arch for arch in ARCHITECTURES.values() if arch.plugin]
    return any(f"{part}.".startswith(f"{name}.") for arch in of_plugins for part in (arch.plugin, arch.module))


def plugins_of(archs: Iterable[str]) -> list[str]:
    """The modules to import before architectures (of which none is a pattern) are known."""
    known = [ARCHITECTURES[arch].plugin for arch in archs if arch in ARCHITECTURES]
    return list(dict.fromkeys(plugin for plugin in known if plugin is not None))


def require(archs: Iterable[str], plugin: str | None, where: str) -> None:
    """Raise InputError where an architecture of a model is not known, naming the plugin that it was saved with. This
    imports nothing: a file must not decide what code runs.
    """
    names = list(archs)
    for name in filter(in_family, names):
        try:
            architecture(name)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    arch = next((arch for arch in names if arch not in KNOWN and not in_family(arch)), None)
    if arch is None:
        return
    if plugin:
        raise InputError(f"{where}: architecture {arch!r} comes from the plugin {plugin!r}: import it first (--plugin)")
    raise InputError(f"{where}: unknown architecture {arch!r}{nearest(str(arch), list(KNOWN))}")
