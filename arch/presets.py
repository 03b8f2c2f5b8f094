"""Named sizes: the paper's 24 models, the quickstart's tiny ones, and those of published models. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .architectures.hgrn1.shape import mixer_size
from .config import KNOWN, ModelConfig
from .earlier import refuse_earlier
from .errors import InputError, nearest

# Scaling Laws for Linear Complexity LMs, tables 2 and 7: layers, d_model, d_ffn. Head dimension 128 everywhere and
# d_ffn 4096 at 1B: the printed 8/16 heads and g=5632 contradict the paper's own parameter counts.
PAPER = {
    "70m": (6, 512, 1536),
    "160m": (12, 768, 2048),
    "410m": (26, 1024, 2816),
    "1b": (32, 1536, 4096),
    "3b": (35, 2560, 6912),
    "7b": (32, 4096, 11008),
}

# Two layers and two heads at every width, so that only the width scales; named by 4 l d^2 + 3 l d g, the parameters of
# a LLaMA without embedding and norms. d_model, d_ffn.
TINY = {
    "6k": (16, 40),
    "10k": (20, 56),
    "14k": (24, 64),
    "18k": (28, 72),
    "25k": (32, 88),
    "38k": (40, 104),
    "55k": (48, 128),
    "98k": (64, 168),
    "221k": (96, 256),
    "393k": (128, 344),
}
SIZES = (*TINY, *PAPER)  # every architecture has these

# Models that others published, of one architecture each; the family stands in the name, as the paper's sizes have the
# plain ones. LLaMA (Touvron et al. 2023), table 2: layers, d_model, heads, d_ffn; untied head, 32,000 tokens.
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
    """Mamba2's heads are 64 of the inner stream's 2 d channels; d_ffn means nothing."""
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


# (size, the fields that all architectures share at this size, the changes asked for) -> an architecture's own fields.
Rule = Callable[[str, dict[str, Any], dict[str, Any]], dict[str, Any]]


def _gated(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Table 7: 25 layers where the others have 26."""
    return {"n_layers": 25} if size == "410m" else {}


def _matrices(layers: int, d_model: int, d_ffn: int) -> int:
    """4 l d^2 + 3 l d g."""
    return layers * (4 * d_model**2 + 3 * d_model * d_ffn)


def _tnl(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The paper's decays from its smallest model on. Smaller ones have few heads, of which none would be fast."""
    small = _matrices(shape["n_layers"], shape["d_model"], shape["d_ffn"]) < _matrices(*PAPER["70m"])
    return _gated(size, shape, changes) | {"decay_slopes": "fixed" if small else "paper"}


def _hgrn1(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """With 7 d^2 in its mixer, d_ffn = 2 d, its authors' choice: 13 d^2 a layer, where others have 12.

    Narrow states, with or without an expansion, get the d_ffn that gives a layer as many parameters as the others have
    here, 4 d^2 + 3 d g, to within a multiple of 8, as HGRN2's table 3 compares them. Gates that are ablated leave
    d_ffn as it is: what they cost is a part of the ablation.
    """
    if changes.get("hgrn1_state") != "narrow" or "d_ffn" in changes:
        return {"d_ffn": 2 * shape["d_model"]}
    names = ("d_model", "n_heads", "hgrn1_state", "expansion", "expand_ratio")
    asked = {name: changes[name] for name in names if name in changes}
    cfg = ModelConfig.from_dict(shape | asked | {"arch": "hgrn1"})
    layer, mixer = _matrices(1, cfg.d_model, shape["d_ffn"]), mixer_size(cfg)
    d_ffn = 8 * round((layer - mixer) / (3 * cfg.d_model) / 8)
    if d_ffn < 8:
        raise InputError(
            f"model.expansion={cfg.expansion} with expand_ratio={cfg.expand_ratio} leaves a layer no MLP: "
            f"its mixer has {mixer:,} parameters, a whole layer of the other architectures {layer:,}; give "
            f"model.d_ffn, a smaller ratio or another expansion"
        )
    return {"d_ffn": d_ffn}


def _mamba(size: str, shape: dict[str, Any], share: int) -> dict[str, Any]:
    """No MLP, so more layers: 3 where others have 2, twice as many at the paper's sizes.

    Heads are d (tiny) or 64 of the inner stream's 2 d channels; a tiny model's state is d / `share`.
    """
    if size in TINY:
        return {"norm_eps": 1e-5, "n_layers": 3, "ssm_state": shape["d_model"] // share}
    return {"norm_eps": 1e-5, "n_layers": 2 * shape["n_layers"], "n_heads": shape["d_model"] // 32}


# A tiny Mamba2's state is as wide as the others' head dimension; Mamba1's such that 128 channels have the published 16.
RULES: dict[str, Rule] = {
    "tnl": _tnl,
    "cosformer2": _gated,
    "hgrn1": _hgrn1,
    "mamba2": lambda size, shape, changes: _mamba(size, shape, share=2),
    "mamba1": lambda size, shape, changes: _mamba(size, shape, share=8),
}


def preset(arch: str, size: str, **changes: object) -> ModelConfig:
    """The configuration of `arch` at `size` (a name from `sizes_of`), with `changes` to its fields.

    Raises InputError for an unknown architecture or size, and for changes that do not go together.
    """
    if arch not in KNOWN:
        raise InputError(f"unknown architecture {arch!r}{nearest(arch, list(KNOWN))}")
    refuse_earlier(changes)
    if size in PUBLISHED.get(arch, {}):
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
        raise InputError(f"unknown size {size!r}{nearest(size, list(sizes_of(arch)))}")
    shape |= {"d_model": d_model, "d_ffn": d_ffn}
    own = RULES[arch](size, dict(shape), dict(changes)) if arch in RULES else {}
    return ModelConfig.from_dict(shape | own | changes | {"arch": arch})
