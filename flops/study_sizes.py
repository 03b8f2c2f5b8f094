"""Models as a study file takes them: `grid: sizes:`, each size a shape with what its architectures have otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from arch.config import ModelConfig
from arch.errors import InputError

from .registry import has_mlp
from .shapes import of_shape

SHAPE = ("n_layers", "d_model", "n_heads", "d_ffn")
ORDER = ("d_model", "n_heads", "n_layers", "d_ffn")  # the width first, from which others follow
OF_THE_STUDY = ("arch", "vocab_size", "context_length", "chunk_size")  # not a part of a size


def as_shape(name: str, models: Sequence[ModelConfig]) -> dict[str, Any]:
    """{"n_layers": .., .., arch: {field: value}}: the fields of the first model that has an FFN and is no pattern, else
    of the first that has one, else of the first, and below each architecture the fewest changes that make it its model
    of these (but for the fields of the study, and d_ffn where there is no FFN). Raises InputError for a pattern whose
    kinds differ where a size of a study file gives them one value."""
    first = min(models, key=lambda cfg: (not has_mlp(cfg.arch), bool(cfg.layers)))
    if not any(cfg.layers for cfg in models):
        return _as_shape(name, models, {key: getattr(first, key) for key in SHAPE})
    # A pattern's kinds have widths of their FFN, and some heads, by rules of their own from what is not given.
    common = {"n_layers": first.n_layers, "d_model": first.d_model}
    for kind in first.kinds:
        with suppress(InputError):
            return _as_shape(name, models, common | {"n_heads": kind.n_heads})
    return _as_shape(name, models, common)


def _as_shape(name: str, models: Sequence[ModelConfig], common: Mapping[str, int]) -> dict[str, Any]:
    """`common`, and below each architecture what its model has otherwise."""
    shape: dict[str, Any] = dict(common)
    for cfg in models:
        wanted, own = _by_kind(cfg), dict[str, Any]()
        left_out = OF_THE_STUDY if has_mlp(cfg.arch) else (*OF_THE_STUDY, "d_ffn")
        study = {key: wanted[key][0] for key in OF_THE_STUDY[1:]}
        order = ("n_layers", *ORDER) if cfg.layers else ORDER  # other depths may hold no whole period
        for key in dict.fromkeys((*order, *wanted)):
            if key in left_out:
                continue
            try:
                differs = _by_kind(of_shape(cfg.arch, name, common, own, study))[key] != wanted[key]
            except InputError:  # the common heads do not divide this width
                differs = True
            if differs and len(set(wanted[key])) > 1:
                raise InputError(f"{cfg.arch}: its kinds differ in {key}, of which a size has one: leave --yaml out")
            if differs:
                own[key] = wanted[key][0]
        if own:
            shape[cfg.arch] = own
    return shape


def _by_kind(cfg: ModelConfig) -> dict[str, list[Any]]:
    """Of every field the values of the kinds that have it; n_layers is the whole model's."""
    fields: dict[str, list[Any]] = {}
    for kind in cfg.kinds:
        for key, value in (kind.to_dict() | {"n_layers": cfg.n_layers}).items():
            fields.setdefault(key, []).append(value)
    return fields


def study_yaml(sizes: Mapping[str, Sequence[ModelConfig]], model: Mapping[str, Any], about: str) -> str:
    """YAML of the sections `grid` and, where it says anything, `model`; `about` stands above in a comment."""
    archs = dict.fromkeys(cfg.arch for models in sizes.values() for cfg in models)
    lines = [f"# {line}" for line in about.splitlines()]
    lines += ["grid:", f"  archs: [{', '.join(archs)}]", "  sizes:"]
    for name, models in sizes.items():
        lines.append(f"    {name}:")
        for key, value in as_shape(name, models).items():
            lines.append(f"      {key}: {_flow(value) if isinstance(value, dict) else _scalar(value)}")
    if model:
        lines.append(f"model: {_flow(model)}")
    return "\n".join(lines)


def _flow(fields: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_scalar(value)}" for key, value in fields.items()) + "}"


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value!r}" if isinstance(value, float) else str(value)
