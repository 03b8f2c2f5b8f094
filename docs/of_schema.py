"""Tables of the keys of a study file, generated from the schema and the text below each of its fields."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
import types
import typing
from typing import Any

import annotated_types
from pydantic import AfterValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from arch.config import ARCHS, ModelConfig, field_choices, field_names, reads
from arch.options import kind_of
from arch.presets import ALL_SIZES, SIZES, preset
from arch.registry import ARCHITECTURES
from scaling.study import axes, jobs_schema, recipe, schema, training
from scaling.study import sizes as sizes_schema
from scaling.study import types as values

from .generate import table

HEADS = ["key", "type", "default", "unit", "meaning"]
# In the order of a study file: (heading, class, what stands before its table)
SECTIONS = (
    ("The whole file", schema.StudyFile, ""),
    ("corpus", schema.Corpus, ""),
    ("corpus.source, of a mixture", schema.WeightedSource, "Each source of a mixture: docs/corpus.md."),
    ("corpus.augment", schema.Augment, "docs/classification.md describes it."),
    ("objective", schema.Objective, "docs/classification.md describes it."),
    ("grid", schema.Grid, ""),
    ("training", training.Training, ""),
    ("recipe", recipe.TrainingRecipe, "docs/rates.md describes it."),
    ("overrides", training.Overrides, "Each entry holds keys of `training`, and `model` with fields of the model."),
    ("sweep", schema.Sweep, "docs/rates.md describes it."),
    ("forecast", schema.Forecast, "docs/forecasts.md describes it."),
    ("evaluation", schema.Evaluation, ""),
    ("fit", schema.Fit, ""),
    ("jobs", jobs_schema.Jobs, ""),
    ("jobs.resources", jobs_schema.ResourceRequest, "Missing keys follow from the resource estimate."),
    ("jobs.cluster, or a cluster profile", jobs_schema.Cluster, "`scaling submit --example-profile` prints one."),
)
UNITS = (  # of a key by its end, the first that fits
    (("_tokens", "context_length", "tpe_context"), "tokens"),
    (("_bytes",), "bytes"),
    (("memory_gb", "memory_gb_per_node"), "10^9 bytes"),
    (("_hours",), "hours"),
    (("minutes",), "minutes"),
    (("signal_s",), "seconds"),
    (("range",), "FLOP"),
)
# Types of which the schema's own words would tell less
NAMED = (
    (values.Sources, "text, or a list of texts"),
    (schema.CorpusSources, "text, list of texts, or list of sources"),
    (values.Plugins, "text, or a list of texts"),
    (values.Steps, "text, or a list of texts"),
    (values.Betas, "two numbers, at least 0, below 1"),
    (values.TokenCounts, "list of integers"),
    (values.Tokens, "integer, as `2e9` or `2B`, or a multiple of N: `20N`"),
    (schema.RatesOfSweep, "list of numbers, or a ladder, or either by size"),
    (values.Rate, "number, or `law`"),
    (values.Share, "true, false, or a number from 0 to 1"),
    (values.BranchPoints, "list of integers, or of multiples of N"),
    (values.Ranges, "[number, number], or {architecture: [number, number]}"),
    (jobs_schema.NamedCluster, "text, or a profile"),
    (sizes_schema.SizesOfStudy, "list of sizes, or a mapping"),
    (values.Size, "size"),
    (values.RunKey, "`arch/size`"),
    (axes.AxesOfGrid, "{field: list of values}, or {name: {point: {field: value}}}"),
    (values.ResourceKey, "key"),
)


def meanings(cls: type) -> dict[str, str]:
    """{field: the text below it, or the comment at the end of its line} of a class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is object or not base.__module__.startswith(("scaling", "arch")):
            continue
        source = textwrap.dedent(inspect.getsource(base))
        lines, body = source.splitlines(), ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        for node, after in zip(body.body, [*body.body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign):
                continue
            assert isinstance(node.target, ast.Name) and node.end_lineno
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                texts[node.target.id] = " ".join(str(after.value.value).split())
            else:
                texts[node.target.id] = lines[node.end_lineno - 1].partition("  # ")[2]
    return texts


def type_words(hint: Any) -> str:
    """A field's type in words."""
    for named, words in NAMED:
        if hint == named:
            return words
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _bounded(parts[0], parts[1:])
    if origin is typing.Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin in (typing.Union, types.UnionType):
        return ", or ".join("null" if part is type(None) else type_words(part) for part in parts)
    if origin is list:
        return f"list of {_plural(type_words(parts[0]))}"
    if origin is dict:
        return f"{{{type_words(parts[0])}: {type_words(parts[1])}}}"
    if hint is Any:
        return "any value"
    simple = {bool: "true or false", int: "integer", float: "number", str: "text"}
    return simple.get(hint, "keys and values")


def _plural(words: str) -> str:
    first, comma, rest = words.partition(",")
    return f"{first}s{comma}{rest}" if first.isalpha() else words


def _bounded(hint: Any, about: tuple[Any, ...]) -> str:
    """A type with its limits. Of two lower or upper limits the last, which is narrower, counts."""
    limits: dict[str, str] = {}
    for part in about:
        for limit in part.metadata if isinstance(part, FieldInfo) else (part,):
            if isinstance(limit, AfterValidator) and isinstance(limit.func, values.OneOf):
                names = sorted(limit.func.valid)
                return limit.func.kind if len(names) > 6 else " or ".join(f"`{name}`" for name in names)
            if isinstance(limit, annotated_types.Gt):
                limits["low"] = "at least 1" if hint is int and limit.gt == 0 else f"above {limit.gt:g}"
            elif isinstance(limit, annotated_types.Ge):
                limits["low"] = f"at least {limit.ge:g}"
            elif isinstance(limit, annotated_types.Lt) and limit.lt != 2**63:  # that, and 10^18, no study comes near
                limits["high"] = f"below {limit.lt:g}"
            elif isinstance(limit, annotated_types.Le) and limit.le not in (10**18, 1e9):
                limits["high"] = f"at most {limit.le:,}"
    return ", ".join([type_words(hint), *limits.values()])


def default_words(value: Any) -> str:
    """A default as YAML writes it; a section's is its own keys' defaults."""
    if value is PydanticUndefined or value is dataclasses.MISSING:
        return "required"
    if isinstance(value, values.Section):
        return "its keys' defaults"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def unit_of(key: str) -> str:
    return next((unit for ends, unit in UNITS if key.endswith(ends)), "")


def keys() -> str:
    """A heading and a table for every section of a study file but the model."""
    parts = []
    for heading, section, before in SECTIONS:
        hints, texts = typing.get_type_hints(section, include_extras=True), meanings(section)
        rows = []
        for name, field in section.model_fields.items():
            assert texts.get(name), f"{section.__name__}.{name}: write a docstring below the field"
            default = default_words(field.get_default(call_default_factory=True))
            rows.append([f"`{name}`", type_words(hints[name]), default, unit_of(name), texts[name]])
        parts.append("\n\n".join([f"### {heading}", *([before] if before else []), table(HEADS, rows)]))
    return "\n\n".join(parts)


def model_keys() -> str:
    """The fields of a model, and the architectures that each means something to."""
    rows, choices = [], field_choices()
    texts, fields = meanings(ModelConfig), {field.name: field for field in dataclasses.fields(ModelConfig)}
    for arch in reversed(ARCHS):  # a field that two architectures have is described as in the first
        options = ARCHITECTURES[arch].options
        texts |= meanings(options)
        fields |= {field.name: field for field in dataclasses.fields(options)}
    for name in field_names():
        if name == "arch":
            continue
        field, own = fields[name], [arch for arch in ARCHS if reads(arch, name)]
        kind = " or ".join(f"`{word}`" for word in choices[name]) if name in choices else _python_type(kind_of(field))
        default = "the preset's" if field.default is dataclasses.MISSING else default_words(field.default)
        whose = "all" if len(own) == len(ARCHS) else ", ".join(own)
        rows.append([f"`{name}`", kind, default, unit_of(name), whose, texts[name]])
    return table([*HEADS[:4], "architectures", "meaning"], rows)


def _python_type(words: str) -> str:
    parts = {"int": "integer", "float": "number", "bool": "true or false", "str": "text", "None": "null"}
    return ", or ".join(parts[part] for part in words.split(" | "))


def sizes() -> str:
    """The shapes behind the names of sizes; LLaMA's, which the other architectures change where their page says so."""
    shapes = [(size, preset("llama", size)) for size in SIZES]
    rows = [
        [f"`{size}`", *(f"{n:,}" for n in (cfg.d_model, cfg.n_layers, cfg.n_heads, cfg.d_ffn))] for size, cfg in shapes
    ]
    published = [size for size in ALL_SIZES if size not in SIZES]
    return "\n\n".join(
        [
            table(["size", "d_model", "n_layers", "n_heads", "d_ffn (LLaMA)"], rows),
            f"Published models, each of one architecture: {', '.join(f'`{size}`' for size in published)}.",
        ]
    )
