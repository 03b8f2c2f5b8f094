"""Training FLOP per token under each convention, by name, in total and line by line. Imports no torch.

paper      table 1 of Shen et al. 2024
appendix   its A.1, operation by operation, the printed algebra corrected (appendix.py lists how)
executed   the matrix products that this code's chunk forms execute, forward and backward, as torch's counter sees them
exact      `executed` less what the model does not need: the masked half of a causal softmax square, products of
           parameters alone, projections of an encoder's scans but the first (the same, in another order), and a
           backward pass of exactly twice the forward
6nd        6 N, N the non-embedding parameters (Kaplan et al. 2020)
6nd_total  6 N with the head's matrix in N

The lines of two conventions that have a name in common are equal, so that their difference is the lines of only one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from arch.config import ModelConfig
from arch.errors import InputError, choice

from .appendix import appendix_forward, paper_forward
from .entry import Entry, Lines
from .forward import OTHER_SCANS, backward_excess, forward_products, recomputed_products, setup_products
from .params import EMBEDDING, count_params, require_count
from .registry import entries_of, entry_of

CONVENTIONS = ("paper", "appendix", "executed", "exact", "6nd", "6nd_total")
RECORDED = ("paper", "exact", "6nd")  # those of `cost_table`, which run.json keeps
OF_THE_PAPER = ("paper", "appendix")  # those that cover its architectures alone
OF_PRODUCTS = ("executed", "exact")  # those that need the products of every sequence operation
PASSES = ("train", "forward", "backward")
RECOMPUTE = ("none", "layers")
SOFTMAX_MASKED = "mixer.softmax.masked"


def _exact(cfg: ModelConfig, context: int) -> Lines:
    """The matrix products of a forward pass with the causal half of the softmax square, head included.

    Products of parameters alone (the TPE's kernel) are left out: they are spent once a pass, not for each token.
    Source: this code's chunk forms.
    """
    return {name: flop / context for name, flop in _needed_products(cfg, context).items()}


def _needed_products(cfg: ModelConfig, context: int) -> Lines:
    setup, masked = setup_products(cfg, context), () if cfg.encoder else (SOFTMAX_MASKED,)
    products = forward_products(cfg, context).items()
    return {k: v for k, v in products if k not in (*setup, *masked) and not k.endswith(OTHER_SCANS)}


def _executed(cfg: ModelConfig, context: int) -> Lines:
    """All of them: `forward_products`, the setup shared by the tokens of a sequence."""
    return {name: flop / context for name, flop in forward_products(cfg, context).items()}


def of_a_token(cfg: ModelConfig, context: int) -> tuple[float, float]:
    """Positions that layers read, and outputs of the head, for each token of a row: 1 and 1 of a language model."""
    documents, length, outputs = cfg.read_as(context)
    return documents * length / context, outputs / context


def _six_n(cfg: ModelConfig, context: int) -> Lines:
    """2 N, N the non-embedding parameters, for each position that layers read, of which a token is one; the same at
    every context length."""
    positions, _ = of_a_token(cfg, context)
    return {name: 2.0 * positions * size for name, size in count_params(cfg).by_module.items() if name not in EMBEDDING}


def _six_n_total(cfg: ModelConfig, context: int) -> Lines:
    """With the head's matrix, once, tied or not; the look-up is no product."""
    _, outputs = of_a_token(cfg, context)
    return _six_n(cfg, context) | {"head": 2.0 * outputs * cfg.head_width * cfg.n_outputs}


_FORWARD: dict[str, Callable[[ModelConfig, int], Lines]] = {
    "paper": paper_forward,
    "appendix": appendix_forward,
    "executed": _executed,
    "exact": _exact,
    "6nd": _six_n,
    "6nd_total": _six_n_total,
}


@lru_cache(maxsize=4096)
def _lines(entries: tuple[Entry, ...], cfg: ModelConfig, convention: str, context: int, part: str) -> Lines:
    """`entries` are those of the architectures now: a plugin may register others."""
    factor = {"forward": 1.0, "backward": 2.0, "train": 3.0}[part]
    lines = {name: factor * flop for name, flop in _FORWARD[convention](cfg, context).items() if flop}
    if convention == "executed" and part != "forward":
        for name, flop in backward_excess(cfg, context).items():
            if flop:
                lines[name] = lines.get(name, 0.0) + flop / context
    return lines


def costs_as_published(cfg: ModelConfig) -> bool:
    """Whether the matrix products are those of the same configuration without ablations, whose cost table 1 gives."""
    return cfg.encoder is None and all(_costs_as_published(entry_of(kind.arch), kind) for kind in cfg.kinds)


@lru_cache(maxsize=4096)
def _costs_as_published(entry: Entry, cfg: ModelConfig) -> bool:
    ablations = cfg.options.ablations()
    used = {name: default for name, default in ablations.items() if getattr(cfg.options, name) != default}
    return not used or forward_products(cfg) == forward_products(cfg.replace(**used))


def conventions_of(cfg: ModelConfig) -> tuple[str, ...]:
    """The conventions under which `cfg` has a FLOP count: all, but for those of the paper outside its architectures,
    and for their ablations that change the matrix products, and for those of products where some are not known."""
    entries = entries_of(cfg)
    paper, appendix = (
        all(part is not None for part in parts) for parts in zip(*((e.paper, e.appendix) for e in entries), strict=True)
    )
    published = (paper or appendix) and costs_as_published(cfg)
    covers = {"paper": published and paper, "appendix": published and appendix}
    covers |= dict.fromkeys(OF_PRODUCTS, all(entry.core is not None for entry in entries))
    return tuple(name for name in CONVENTIONS if covers.get(name, True))


def checked(cfg: ModelConfig, convention: str, context_length: int | None) -> int:
    """The context length to count at.

    Raises InputError for an unknown convention, one that does not cover the architecture, and a length that is no
    positive integer.
    """
    if convention not in CONVENTIONS:
        raise InputError(f"unknown convention {convention!r}{choice(str(convention), list(CONVENTIONS))}")
    context = cfg.context_length if context_length is None else context_length
    require_count("context length", context)
    unknown = [kind.arch for kind in cfg.kinds if entry_of(kind.arch).core is None]
    if convention in OF_PRODUCTS and unknown:
        raise InputError(
            f"convention {convention!r} has no formula for {unknown[0]}: use {' or '.join(conventions_of(cfg))}"
        )
    if convention in OF_THE_PAPER and convention not in conventions_of(cfg):
        published = costs_as_published(cfg) or any(entry.paper is None for entry in entries_of(cfg))
        used = [(k, v, kind.options) for kind in cfg.kinds for k, v in kind.identity().items()]
        changed = [] if published else [f"{k}={v}" for k, v, options in used if k in options.ablations()]
        model = f"{cfg.arch} with {', '.join(changed)}" if changed else cfg.arch
        model = model if cfg.encoder is None else f"an encoder of {cfg.arch}"
        others = " or ".join(conventions_of(cfg))
        raise InputError(f"convention {convention!r} has no formula for {model}: use {others}")
    return context


def by_module(cfg: ModelConfig, convention: str, context_length: int | None = None, *, part: str = "train") -> Lines:
    """FLOP per token by named line, of a training step or (`part`) its forward or backward pass alone.

    A pass is of one sequence of `context_length` (default: cfg's) tokens, which matters to what is spent once a pass
    alone. Every convention but `executed` has a backward pass of twice its forward pass; there, what differs is lines
    of their own. Raises InputError as `train_flops_per_token` does.
    """
    context = checked(cfg, convention, context_length)
    if part not in PASSES:
        raise InputError(f"unknown pass {part!r}{choice(str(part), list(PASSES))}")
    return dict(_lines(entries_of(cfg), cfg, convention, context, part))


def train_flops_per_token(cfg: ModelConfig, convention: str, context_length: int | None = None) -> float:
    """FLOP to train on one token, forward and backward, in sequences of `context_length` (default: cfg's) tokens.

    Raises InputError for an unknown convention, one that does not cover the architecture, or a context length that is
    no positive integer.
    """
    context = checked(cfg, convention, context_length)
    if convention == "paper":
        brackets = [(entry_of(kind.arch).paper, kind) for kind in cfg.kinds]
        square = float(cfg.d_model) ** 2
        return sum(
            72.0 * kind.n_layers * square * paper(kind, context) for paper, kind in brackets if paper is not None
        )
    if convention == "exact":  # divided last: counts of matrix products are whole numbers, and their sum is exact
        return 3.0 * sum(_needed_products(cfg, context).values()) / context
    return sum(_lines(entries_of(cfg), cfg, convention, context, "train").values())


def hardware_by_module(
    cfg: ModelConfig, recompute: str = "none", context_length: int | None = None, *, convention: str = "executed"
) -> Lines:
    """`by_module`, and with recompute="layers" a line "<name>.again" for each product that gradient checkpointing
    computes a second time. Conventions `executed` and `exact`; model FLOPs, the other functions', never hold these.

    Raises InputError for another convention or an unknown `recompute`.
    """
    if convention not in ("executed", "exact"):
        checked(cfg, convention, context_length)
        raise InputError(f"convention {convention!r} does not say what hardware computes: use executed or exact")
    if recompute not in RECOMPUTE:
        raise InputError(f"unknown recompute {recompute!r}{choice(str(recompute), list(RECOMPUTE))}")
    lines = by_module(cfg, convention, context_length)
    if recompute == "none":
        return lines
    context = checked(cfg, convention, context_length)
    again = recomputed_products(cfg, context)
    if convention == "exact":
        again.pop(f"{SOFTMAX_MASKED}.again", None)
    return lines | {name: flop / context for name, flop in again.items()}


def hardware_flops_per_token(
    cfg: ModelConfig, recompute: str = "none", context_length: int | None = None, *, convention: str = "executed"
) -> float:
    """FLOP that hardware spends to train on one token: model FLOPs and those of activation recomputation."""
    return sum(hardware_by_module(cfg, recompute, context_length, convention=convention).values())


def cost_table(cfg: ModelConfig) -> dict[str, Any]:
    """The `cost` of run.json: parameters, and training FLOP per token at the configuration's context length, under
    each convention of RECORDED that covers the architecture."""
    table = _cost_table(entries_of(cfg), cfg)
    return table | {"flops_per_token_train": dict(table["flops_per_token_train"])}


@lru_cache(maxsize=4096)
def _cost_table(entries: tuple[Entry, ...], cfg: ModelConfig) -> dict[str, Any]:
    params = count_params(cfg)
    return {
        "n_params": params.total,
        "n_params_non_embedding": params.non_embedding,
        "n_params_embedding": params.embedding,
        "flops_per_token_train": {k: train_flops_per_token(cfg, k) for k in RECORDED if k in conventions_of(cfg)},
    }
