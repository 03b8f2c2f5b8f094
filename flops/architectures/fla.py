"""The costs of flash-linear-attention's layers. Imports no torch before such a layer is counted.

Parameters are those of the layer's tree of modules, and each weight of a linear module is 2 FLOP a token; convolutions
are element-wise, as everywhere here. The products of the recurrence are known by class, in whole chunks of 64 rows as
the package's kernels compute them. A class without a formula has no FLOP under `exact` and `executed`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from arch.config import ModelConfig
from arch.errors import InputError
from arch.registry import member

from ..cores import decay_core, delta_core
from ..entry import Entry, Lines

CHUNK = 64


def linear(heads: Any, context: int) -> Lines:
    """Linear attention: scores, what they read, q S and k^T v."""
    return decay_core(heads, context, heads.head_k_dim, heads.head_v_dim)


def hgrn2(heads: Any, context: int) -> Lines:
    return decay_core(heads, context, heads.head_f_dim, heads.head_i_dim)


def delta(heads: Any, context: int) -> Lines:
    """The delta rule with one decay for a head, or none."""
    return delta_core(heads, context, heads.head_k_dim, heads.head_v_dim, by_channel=False)


CORES: dict[str, Callable[[Any, int], Lines]] = {
    "DeltaNet": delta,
    "GatedDeltaNet": delta,
    "GatedLinearAttention": linear,
    "HGRN2Attention": hgrn2,
    "HGRNAttention": lambda heads, context: {},  # element-wise
    "KimiDeltaAttention": delta,
    "MultiScaleRetention": linear,
}
SHARED = ("num_kv_heads", "num_v_heads")  # heads of keys or values that are not one to one


@lru_cache
def entry(arch: str) -> Entry:
    """The costs of fla:CLASS."""
    formula = CORES.get(member(arch))
    return Entry(
        matrices=lambda cfg: _tree(cfg).matrices,
        vectors=lambda cfg: _tree(cfg).vectors,
        core=None if formula is None else lambda cfg, n: formula(_heads(cfg), n),
        unseen=("mixer.inside", "mixer.solve", "mixer.state"),
    )


def _tree(cfg: ModelConfig) -> Any:
    from arch.architectures.fla.mixer import tree_of

    return tree_of(cfg)


def _heads(cfg: ModelConfig) -> Any:
    """num_heads and widths of the layer, as the functions of cores.py read them; with fewer heads of keys than of
    values each head of values has products of its own."""
    mode, numbers = getattr(cfg.options, "mode", "chunk"), _tree(cfg).numbers
    if mode != "chunk":
        raise InputError(f"{cfg.arch}: the FLOP of mode {mode!r} are not known: give mode chunk")
    heads = max(numbers.get(name, 1) for name in ("num_heads", *SHARED))
    return SimpleNamespace(**numbers | {"n_heads": heads, "chunk_size": CHUNK})
