"""A configuration from what a command line gives: a preset, a free shape, single fields. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from arch.config import ModelConfig, check_fields, field_names, field_types, means
from arch.errors import InputError, nearest
from arch.presets import preset, shaped, sizes_of
from arch.registry import KNOWN, kinds_of, meant, resolved

from .quantity import MOST_CONTEXT, context_length, whole
from .registry import has_mlp

HEAD = 128  # channels of a head, and the grid of the widths
FFN_GRID = 256
SMALL = 256  # narrower models are shaped as the tiny presets
MOST_LAYERS, MOST_WIDTH, MOST_VOCAB = 1e5, 1e6, 1e8


def arch_of(name: str) -> str:
    """The architecture of that name, in any case of letters. Raises InputError for an unknown one."""
    arch = resolved(name)
    if arch not in KNOWN:
        raise InputError(f"unknown architecture {name!r}{meant(arch, KNOWN)}")
    return arch


def model_of(name: str) -> tuple[str, str]:
    """(arch, size) of "llama-410m" or "hgrn2-3to1-410m": the longest name of an architecture counts. Raises InputError
    for an unknown one."""
    words = name.split("-")
    if len(words) == 1:
        raise InputError(f"{name!r} is not a model: write it as llama-410m")
    starts = ["-".join(words[:count]) for count in range(len(words) - 1, 0, -1)]
    start = next((start for start in starts if resolved(start) in KNOWN), words[0])
    arch, size = arch_of(start), name[len(start) + 1 :].lower()
    preset(arch, size)
    return arch, size


def ffn_width(d_model: int) -> int:
    """8d/3 rounded up to a multiple of 256: the presets' g."""
    return -(-8 * d_model // (3 * FFN_GRID)) * FFN_GRID


def free_shape(arch: str, d_model: int, n_layers: int, **changes: Any) -> ModelConfig:
    """A model of `n_layers` layers `d_model` wide, else as the architecture's presets are made: heads of 128 channels
    (Mamba: 64), g = ffn_width, or what the architecture's rule in arch/presets.py says (HGRN1: g = 2d). Raises
    InputError where the width is no multiple of 128, the architecture has heads, and no head count is given."""
    check_fields(kinds_of(arch), changes)
    n_heads = d_model // HEAD if d_model % HEAD == 0 else 1
    if d_model % HEAD and "n_heads" not in changes and means(arch, "n_heads"):
        raise InputError(f"a width of {d_model} is not a multiple of {HEAD}: give --heads, or another --dim")
    shape = {"n_layers": n_layers, "d_model": d_model, "n_heads": n_heads, "d_ffn": ffn_width(d_model)}
    return shaped(arch, "7b", shape, **{"n_layers": n_layers} | changes)


def common_shape(d_model: int, n_layers: int) -> dict[str, int]:
    """The fields that all architectures share at this width and depth. A multiple of 128 from 256 on: heads of 128
    channels, g = ffn_width; from 256 on others with heads of 64 channels and g = 8d/3 up to a multiple of 64; below, as
    the tiny presets, with two heads and g = 8d/3 to the nearest multiple of 8."""
    n_heads, d_ffn = 2, 8 * max(1, round(d_model / 3))
    if d_model >= SMALL:
        whole = d_model % HEAD == 0
        n_heads = d_model // (HEAD if whole else HEAD // 2)
        d_ffn = ffn_width(d_model) if whole else -(-8 * d_model // (3 * 64)) * 64
    return {"n_layers": n_layers, "d_model": d_model, "n_heads": n_heads, "d_ffn": d_ffn}


def of_shape(
    arch: str, name: str, common: Mapping[str, int], own: Mapping[str, Any], changes: Mapping[str, Any]
) -> ModelConfig:
    """The model of `arch` at a size that a study file describes: the `common` fields, filled up by `common_shape`, as
    the architecture's rule changes them; then its `own` fields, whose width the rule knows; then `changes`. Raises
    InputError where these do not go together, or give no width or depth."""
    shape = {**common, **{key: own[key] for key in ("d_model",) if key in own}}
    for key in ("n_layers", "d_model"):
        shape.setdefault(key, own.get(key, changes.get(key)))
        if shape[key] is None:
            raise InputError(f"grid.sizes.{name} has no {key}: add it")
    return shaped(arch, name, common_shape(shape["d_model"], shape["n_layers"]) | shape, **{**own, **changes})


def grid_widths(most: int) -> Iterator[int]:
    """The grid's widths up to `most`: multiples of 4 from 16 on, of 16 from 64, of 64 from 256, of 128 from 1024."""
    width = 16
    while width <= most:
        yield width
        width += 4 if width < 64 else 16 if width < SMALL else 64 if width < 1024 else HEAD


def grid_shape(arch: str, d_model: int, n_layers: int, **changes: Any) -> ModelConfig:
    """A model of the grid: `common_shape`, as the architecture's rule changes it but for the number of layers (HGRN1:
    g = 2d; Mamba: heads of 64 channels, and d below 256)."""
    size = "7b" if d_model >= SMALL else "6k"
    return shaped(arch, size, common_shape(d_model, n_layers), **{"n_layers": n_layers} | changes)


def fields_of(pairs: Sequence[str]) -> dict[str, Any]:
    """{"norm": "layer"} of ["norm=layer"]. Raises InputError for an unknown field, or a value of another type."""
    changed: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        fields = [field for field in field_names() if field != "arch"]
        if name not in fields:
            raise InputError(f"--set {pair}: unknown field {name!r}{nearest(name, fields)}")
        if not equals or not text:
            raise InputError(f"--set {pair}: write it as {name}=value")
        changed[name] = _value(name, text, f"--set {name}")
    return changed


def _value(name: str, text: str, what: str) -> Any:
    kind = field_types()[name].removesuffix(" | None")
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise InputError(f"{what}: must be true or false, not {text!r}")
        return text.lower() == "true"
    if kind == "int from 0" and text == "0":
        return 0
    if kind in ("int", "int from 0"):
        return whole(text, what, MOST_CONTEXT)
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            raise InputError(f"{what}: must be a number, not {text!r}") from None
    return text


def configuration(
    arch: str,
    size: str | None,
    layers: str | None,
    dim: str | None,
    heads: str | None,
    ffn: str | None,
    vocab: str | None,
    context: str | None,
    sets: Sequence[str] = (),
) -> tuple[str, ModelConfig]:
    """(its name, the configuration) of a command line's texts. With a size, the others change that preset; without,
    layers and width are needed. Raises InputError, one line."""
    arch = arch_of(arch)
    options = (
        ("n_layers", layers, "--layers", MOST_LAYERS),
        ("d_model", dim, "--dim", MOST_WIDTH),
        ("n_heads", heads, "--heads", MOST_WIDTH),
        ("d_ffn", ffn, "--ffn", 10 * MOST_WIDTH),
        ("vocab_size", vocab, "--vocab", MOST_VOCAB),
    )
    named = {name: whole(text, option, most) for name, text, option, most in options if text is not None}
    if context is not None:
        named["context_length"] = context_length(context)
    fields = fields_of(sets)
    for name, _, option, _ in (*options, ("context_length", context, "--context", MOST_CONTEXT)):
        if name in fields and name in named and fields[name] != named[name]:
            raise InputError(f"--set {name}={fields[name]} and {option} {named[name]}: leave one out")
    if "d_ffn" in named and not has_mlp(arch):
        raise InputError(f"--ffn: {arch} has no MLP: leave it out")
    if "n_heads" in named and not means(arch, "n_heads"):
        raise InputError(f"--heads: {arch} has no heads: leave it out")
    named = fields | named
    shaped = {"n_layers", "d_model", "n_heads", "d_ffn"} & named.keys()
    if size is not None:
        cfg = preset(arch, size.lower(), **named)
        return f"{arch}-{size.lower()}{' (changed)' if named.keys() - {'vocab_size', 'context_length'} else ''}", cfg
    if not {"n_layers", "d_model"} <= named.keys():
        what = "--layers and --dim" if not shaped else "--layers" if "n_layers" not in named else "--dim"
        raise InputError(f"which size of {arch}? Give {what}, or --size: {', '.join(sizes_of(arch))}")
    cfg = free_shape(arch, named.pop("d_model"), named.pop("n_layers"), **named)
    return f"{arch}-{cfg.n_layers}x{cfg.d_model}", cfg


def every_arch() -> list[str]:
    """Those of this package, then those of plugins and studies."""
    return list(KNOWN)
