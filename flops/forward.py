"""Matrix products of one pass, module by module: what this code's chunk forms execute. Imports no torch.

Every line of a forward pass has twice its FLOP in the backward pass (one product for the gradient of each factor); the
exceptions are lines of their own, `excess`. So no module can report another pass convention than the rest.
"""

from __future__ import annotations

from arch.config import ModelConfig
from arch.errors import InputError

from .entry import summed
from .params import layer_matrices
from .registry import entry_of


def forward_products(cfg: ModelConfig, context_length: int | None = None, sequences: int = 1) -> dict[str, float]:
    """FLOP of the matrix products of one forward pass over `sequences` sequences, by module, all layers together.

    A weight matrix costs 2 x size a token; the sequence operations are in cores.py and architectures/ (softmax over the
    full square); the head 2dV a token; the embedding look-up is no matrix product. The sum equals what
    torch.utils.flop_counter sees in a forward pass. `context_length` defaults to the configuration's.
    """
    context = cfg.context_length if context_length is None else context_length
    products = summed(entry_of(kind.arch).once_core(kind, context) for kind in cfg.kinds)
    products |= summed(layers_products(kind, context) for kind in cfg.kinds)
    products["head"] = 2.0 * cfg.d_model * cfg.vocab_size * context
    products = {name: flop * sequences for name, flop in products.items()}
    return products | setup_products(cfg, context)


def layers_products(kind: ModelConfig, context: int) -> dict[str, float]:
    """FLOP of one sequence in all layers of a kind, forward."""
    matrices = {name: 2.0 * size * context for name, size in layer_matrices(kind).items()}
    if (core := entry_of(kind.arch).core) is None:
        raise InputError(f"{kind.arch}: the FLOP of its sequence operation are not known")
    return {name: flop * kind.n_layers for name, flop in (matrices | core(kind, context)).items()}


def layers_backward(kind: ModelConfig, context: int) -> dict[str, float]:
    """FLOP of one sequence in all layers of a kind, backward."""
    products = {name: 2.0 * flop for name, flop in layers_products(kind, context).items()}
    excess = entry_of(kind.arch).excess(kind, context)
    return summed((products, {name: flop * kind.n_layers for name, flop in excess.items()}))


def unseen_products(kind: ModelConfig, context: int) -> dict[str, float]:
    """Those of `layers_products` that torch's counter does not see, as the costs declare (Entry.unseen)."""
    names = entry_of(kind.arch).unseen
    return {name: flop for name, flop in layers_products(kind, context).items() if name in names}


def setup_products(cfg: ModelConfig, context: int) -> dict[str, float]:
    """FLOP of products of parameters alone, of all kinds of layers."""
    return summed(entry_of(kind.arch).setup(kind, context) for kind in cfg.kinds)


def backward_excess(cfg: ModelConfig, context_length: int | None = None, sequences: int = 1) -> dict[str, float]:
    """FLOP of the backward pass beyond twice `forward_products`, by module; negative where it has fewer products."""
    context = cfg.context_length if context_length is None else context_length
    parts, setup = list[dict[str, float]](), list[dict[str, float]]()
    for kind in cfg.kinds:
        entry = entry_of(kind.arch)
        parts += [{name: flop * kind.n_layers for name, flop in entry.excess(kind, context).items()}]
        parts += [entry.once_excess(kind, context)]
        setup += [entry.setup_excess(kind, context)]
    return {name: flop * sequences for name, flop in summed(parts).items()} | summed(setup)


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
    lines = []
    for kind in cfg.kinds:
        last = "ffn.down" if entry_of(kind.arch).has_mlp else "mixer.o"
        products = layers_products(kind, context).items()
        lines.append({f"{name}.again": flop * sequences for name, flop in products if name != last and flop})
    return summed(lines)
