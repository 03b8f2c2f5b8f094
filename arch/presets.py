"""Named sizes: the paper's 24 models, the quickstart's tiny ones, and those of published models. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config import ModelConfig, check_fields, patterned, read_by
from .errors import InputError, nearest
from .registry import architecture, kinds_of
from .sizes import PAPER, SIZES, TINY

# Published models; their names have the family, the paper's sizes have plain names. LLaMA (Touvron et al. 2023), table
# 2: layers, d_model, heads, d_ffn; untied head, 32,000 tokens.
LLAMA = {
    "llama-7b": (32, 4096, 32, 11008),
    "llama-13b": (40, 5120, 40, 13824),
    "llama-33b": (60, 6656, 52, 17920),
    "llama-65b": (80, 8192, 64, 22016),
}
# Mamba (Gu and Dao 2023), table 12, and Mamba-2 (Dao and Gu 2024), table 10, with what their released configurations
# add: layers, d_model; tied head, 50,277 tokens filled up to a multiple of 8 and of 16.
MAMBA1 = {
    "mamba-130m": (24, 768),
    "mamba-370m": (48, 1024),
    "mamba-790m": (48, 1536),
    "mamba-1.4b": (48, 2048),
    "mamba-2.8b": (64, 2560),
}
MAMBA2 = {
    "mamba2-130m": (24, 768),
    "mamba2-370m": (48, 1024),
    "mamba2-780m": (48, 1536),
    "mamba2-1.3b": (48, 2048),
    "mamba2-2.7b": (64, 2560),
}


def _llama_as_published(layers: int, d_model: int, heads: int, d_ffn: int) -> dict[str, Any]:
    shape = {"n_layers": layers, "d_model": d_model, "n_heads": heads, "d_ffn": d_ffn}
    return shape | {"vocab_size": 32_000, "context_length": 2048, "tie_embeddings": False, "norm": "rms"}


def _mamba_as_published(vocab_size: int, layers: int, d_model: int) -> dict[str, Any]:
    """Mamba2's heads are 64 of the inner stream's 2 d channels; Mamba ignores d_ffn."""
    shape = {"n_layers": layers, "d_model": d_model, "n_heads": d_model // 32, "d_ffn": 2 * d_model}
    return shape | {"vocab_size": vocab_size, "context_length": 2048, "norm": "rms", "norm_eps": 1e-5}


PUBLISHED: dict[str, dict[str, dict[str, Any]]] = {
    "llama": {size: _llama_as_published(*shape) for size, shape in LLAMA.items()},
    "mamba1": {size: _mamba_as_published(50_280, *shape) for size, shape in MAMBA1.items()},
    "mamba2": {size: _mamba_as_published(50_288, *shape) for size, shape in MAMBA2.items()},
}
ALL_SIZES = (*SIZES, *(size for sizes in PUBLISHED.values() for size in sizes))


def sizes_of(arch: str) -> tuple[str, ...]:
    """The names of an architecture's sizes: SIZES, and those of its published models."""
    return (*SIZES, *PUBLISHED.get(arch, {}))


def preset(arch: str, size: str, **changes: object) -> ModelConfig:
    """The configuration of `arch` at `size` (a name from `sizes_of`), with `changes` to its fields.

    Raises InputError for an unknown architecture or size, and for changes that do not go together.
    """
    if size in PUBLISHED.get(architecture(arch).name, {}):
        check_fields([arch], changes)
        return ModelConfig.from_dict(PUBLISHED[arch][size] | changes | {"arch": arch})
    shape: dict[str, Any]
    if size in TINY:
        d_model, d_ffn = TINY[size]
        # byte-level vocabulary: 256 bytes and one end-of-text token
        shape = {"n_layers": 2, "n_heads": 2, "vocab_size": 257, "context_length": 256, "chunk_size": 32}
    elif size in PAPER:
        layers, d_model, d_ffn = PAPER[size]
        shape = {"n_layers": layers, "n_heads": d_model // 128}
    else:
        check_fields(kinds_of(arch), changes)
        raise InputError(f"unknown size {size!r}{nearest(size, list(sizes_of(arch)))}")
    return shaped(arch, size, shape | {"d_model": d_model, "d_ffn": d_ffn}, **changes)


def shaped(arch: str, size: str, shape: Mapping[str, Any], **changes: object) -> ModelConfig:
    """The configuration of `arch` at a shared size. shape: the fields that all architectures share there (at least
    n_layers, d_model, n_heads and d_ffn); the architecture's rule changes them, then `changes` do. size: "" of a
    ladder's, which all share the options that the architecture registered for ladders.

    Raises InputError as `preset` does.
    """
    check_fields(kinds_of(arch), changes)
    known = architecture(arch)
    if known.layers:
        own_of = {kind: dict(own) for kind, own in known.own}

        def layers_of(kind: str, n_layers: int) -> ModelConfig:
            given = own_of.get(kind, {}) | read_by(kind, changes) | {"n_layers": n_layers}
            return shaped(kind, size, shape, **given)

        depth: Any = changes.get("n_layers", shape["n_layers"])
        return patterned(arch, known.layers, depth, layers_of)
    rule = known.preset
    changes = changes if size else dict(known.ladder) | changes
    own = rule(size, dict(shape), dict(changes)) if rule else {}
    return ModelConfig.from_dict(dict(shape) | own | changes | {"arch": arch})
