"""Matrix products of one forward pass, module by module: what this code's chunk forms execute. Imports no torch."""

from __future__ import annotations

from arch.config import ModelConfig

from .params import layer_matrices
from .registry import entry_of


def forward_products(cfg: ModelConfig, context_length: int | None = None, sequences: int = 1) -> dict[str, float]:
    """FLOP of the matrix products of one forward pass over `sequences` sequences, by module, all layers together.

    A weight matrix costs 2 x size a token; the sequence operations are in mixers.py (softmax over the full square);
    the head 2dV a token; the embedding look-up is no matrix product. The sum equals what torch.utils.flop_counter
    sees in a forward pass. `context_length` defaults to the configuration's.
    """
    context = cfg.context_length if context_length is None else context_length
    entry = entry_of(cfg.arch)
    products = entry.once_core(cfg, context)
    for name, size in layer_matrices(cfg).items():
        products[name] = 2.0 * size * context * cfg.n_layers
    for name, flop in entry.core(cfg, context).items():
        products[name] = flop * cfg.n_layers
    products["head"] = 2.0 * cfg.d_model * cfg.vocab_size * context
    return {name: flop * sequences for name, flop in products.items()} | entry.setup(cfg, context)
