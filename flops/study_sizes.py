"""Models as a study file takes them: `grid: sizes:`, each size a shape with what its architectures have otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arch.config import ModelConfig
from arch.errors import InputError

from .registry import has_mlp
from .shapes import of_shape

SHAPE = ("n_layers", "d_model", "n_heads", "d_ffn")
ORDER = ("d_model", "n_heads", "n_layers", "d_ffn")  # the width first, from which others follow
OF_THE_STUDY = ("arch", "vocab_size", "context_length", "chunk_size")  # not a part of a size


def as_shape(name: str, models: Sequence[ModelConfig]) -> dict[str, Any]:
    """{"n_layers": .., .., arch: {field: value}}: the fields of the first model that has an FFN, else of the first, and
    below each architecture the fewest changes that make it its model of these (but for the fields of the study, and
    d_ffn where there is no FFN)."""
    first = next((cfg for cfg in models if has_mlp(cfg.arch)), models[0])
    common = {key: getattr(first, key) for key in SHAPE}
    shape: dict[str, Any] = dict(common)
    for cfg in models:
        wanted, own = cfg.to_dict(), dict[str, Any]()
        left_out = OF_THE_STUDY if has_mlp(cfg.arch) else (*OF_THE_STUDY, "d_ffn")
        study = {key: wanted[key] for key in OF_THE_STUDY[1:]}
        for key in (*ORDER, *(key for key in wanted if key not in ORDER)):
            if key in left_out:
                continue
            try:
                differs = of_shape(cfg.arch, name, common, own, study).to_dict()[key] != wanted[key]
            except InputError:  # the common heads do not divide this width
                differs = True
            if differs:
                own[key] = wanted[key]
        if own:
            shape[cfg.arch] = own
    return shape


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
