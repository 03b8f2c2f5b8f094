"""Training FLOP per token under each convention, by name. Imports no torch."""

from __future__ import annotations

import dataclasses
from typing import Any

from arch.config import ABLATIONS, ModelConfig
from arch.errors import InputError, nearest

from .forward import forward_products
from .params import count_params
from .registry import entry_of


def paper(cfg: ModelConfig, context_length: int) -> float:
    """72 l d^2 (...): table 1 of Shen et al. 2024, divided by the b n tokens of its training step.

    Without embedding and head; the channel mixer counts as g = 8d/3 whatever d_ffn is; LLaMA's softmax is the full
    square; cosFormer2's TPE is left out. h is the configuration's head count (d/128 in the paper's models).
    Raises InputError for an architecture that table 1 has no row for, and an ablation that costs something else.
    """
    bracket = entry_of(cfg.arch).paper
    if bracket is None or not costs_as_published(cfg):
        changed = [f"{name}={value}" for name, value in cfg.identity().items() if name in ABLATIONS]
        model = cfg.arch if bracket is None else f"{cfg.arch} with {', '.join(changed)}"
        raise InputError(f"convention 'paper' has no formula for {model}: use {' or '.join(conventions_of(cfg))}")
    return 72.0 * cfg.n_layers * float(cfg.d_model) ** 2 * bracket(cfg, context_length)


def exact(cfg: ModelConfig, context_length: int) -> float:
    """3 x the matrix products of a forward pass with the causal half of the softmax square, head included.

    The factor is the backward pass's two products for each of the forward's. Products of parameters alone (the TPE's
    kernel) are left out: they are spent once a pass, not for each token. Source: this code's chunk forms.
    """
    products = forward_products(cfg, context_length)
    setup = sum(entry_of(cfg.arch).setup(cfg, context_length).values())
    return 3.0 * (sum(products.values()) - products.get("mixer.softmax", 0.0) / 2 - setup) / context_length


def six_n(cfg: ModelConfig, context_length: int) -> float:
    """6 N, N the non-embedding parameters (Kaplan et al. 2020); the same at every context length."""
    return 6.0 * count_params(cfg).non_embedding


_FUNCTIONS = {"paper": paper, "exact": exact, "6nd": six_n}
CONVENTIONS = tuple(_FUNCTIONS)


def costs_as_published(cfg: ModelConfig) -> bool:
    """Whether the matrix products are those of the same configuration without ablations, whose cost table 1 gives."""
    plain = {field.name: field.default for field in dataclasses.fields(cfg) if field.name in ABLATIONS}
    used = {name: default for name, default in plain.items() if name in cfg.to_dict()}
    return forward_products(cfg) == forward_products(cfg.replace(**used))


def conventions_of(cfg: ModelConfig) -> tuple[str, ...]:
    """The conventions under which `cfg` has a FLOP count: all, but for `paper` outside the paper's architectures, and
    for their ablations that change the matrix products."""
    covered = entry_of(cfg.arch).paper is not None and costs_as_published(cfg)
    return tuple(name for name in CONVENTIONS if name != "paper" or covered)


def train_flops_per_token(cfg: ModelConfig, convention: str, context_length: int | None = None) -> float:
    """FLOP to train on one token, forward and backward, in sequences of `context_length` (default: cfg's) tokens.

    Raises InputError for an unknown convention, one that does not cover the architecture, or a context length that is
    no positive integer.
    """
    if convention not in _FUNCTIONS:
        raise InputError(f"unknown convention {convention!r}{nearest(convention, list(CONVENTIONS))}")
    context = cfg.context_length if context_length is None else context_length
    if not isinstance(context, int) or isinstance(context, bool) or context <= 0:
        raise InputError(f"context length must be a positive integer, not {context!r}")
    return _FUNCTIONS[convention](cfg, context)


def cost_table(cfg: ModelConfig) -> dict[str, Any]:
    """The `cost` of run.json: parameters, and training FLOP per token at the configuration's context length, under
    each convention that covers the architecture."""
    params = count_params(cfg)
    return {
        "n_params": params.total,
        "n_params_non_embedding": params.non_embedding,
        "n_params_embedding": params.embedding,
        "flops_per_token_train": {name: train_flops_per_token(cfg, name) for name in conventions_of(cfg)},
    }
