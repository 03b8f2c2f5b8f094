"""Matrix products of one pass, module by module: what this code's chunk forms execute. Imports no torch.

Every line of a forward pass has twice its FLOP in the backward pass (one product for the gradient of each factor); the
exceptions are lines of their own, `excess`. So no module can report another pass convention than the rest.
"""

from __future__ import annotations

from arch.config import ModelConfig

from .params import layer_matrices
from .registry import entry_of


def forward_products(cfg: ModelConfig, context_length: int | None = None, sequences: int = 1) -> dict[str, float]:
    """FLOP of the matrix products of one forward pass over `sequences` sequences, by module, all layers together.

    A weight matrix costs 2 x size a token; the sequence operations are in cores.py and architectures/ (softmax over the
    full square); the head 2dV a token; the embedding look-up is no matrix product. The sum equals what
    torch.utils.flop_counter sees in a forward pass. `context_length` defaults to the configuration's.
    """
    context = cfg.context_length if context_length is None else context_length
    entry = entry_of(cfg.arch)
    products = dict(entry.once_core(cfg, context))
    for name, size in layer_matrices(cfg).items():
        products[name] = 2.0 * size * context * cfg.n_layers
    for name, flop in entry.core(cfg, context).items():
        products[name] = flop * cfg.n_layers
    products["head"] = 2.0 * cfg.d_model * cfg.vocab_size * context
    return {name: flop * sequences for name, flop in products.items()} | entry.setup(cfg, context)


def backward_excess(cfg: ModelConfig, context_length: int | None = None, sequences: int = 1) -> dict[str, float]:
    """FLOP of the backward pass beyond twice `forward_products`, by module; negative where it has fewer products."""
    context = cfg.context_length if context_length is None else context_length
    entry = entry_of(cfg.arch)
    excess = {name: flop * cfg.n_layers for name, flop in entry.excess(cfg, context).items()}
    excess |= entry.once_excess(cfg, context)
    return {name: flop * sequences for name, flop in excess.items()} | entry.setup_excess(cfg, context)


def backward_products(cfg: ModelConfig, context_length: int | None = None, sequences: int = 1) -> dict[str, float]:
    """FLOP of the matrix products of one backward pass, as `forward_products`: twice those, and the excess. The sum
    equals what torch.utils.flop_counter sees in a backward pass, all parameters trained."""
    products = {name: 2.0 * flop for name, flop in forward_products(cfg, context_length, sequences).items()}
    for name, flop in backward_excess(cfg, context_length, sequences).items():
        products[name] = products.get(name, 0.0) + flop
    return products


def recomputed_products(cfg: ModelConfig, context_length: int | None = None, sequences: int = 1) -> dict[str, float]:
    """FLOP of the products that gradient checkpointing computes again: a layer's forward pass, but for its last matrix,
    whose output no gradient reads (PyTorch stops there). TPE, embedding and head lie outside the layers."""
    context = cfg.context_length if context_length is None else context_length
    entry = entry_of(cfg.arch)
    outside = {"head", *entry.once_core(cfg, context), *entry.setup(cfg, context)}
    outside.add("ffn.down" if entry.has_mlp else "mixer.o")
    return {
        f"{name}.again": flop
        for name, flop in forward_products(cfg, context, sequences).items()
        if name not in outside and flop
    }
