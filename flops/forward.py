"""Matrix products of one pass, module by module: what this code's chunk forms execute. Imports no torch.

Every line of a forward pass has twice its FLOP in the backward pass (one product for the gradient of each factor); the
exceptions are lines of their own, `excess`. So no module can report another pass convention than the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from arch.config import ModelConfig
from arch.encoder import scans_of
from arch.errors import InputError

from .entry import Lines, summed
from .params import layer_matrices
from .registry import entry_of

OTHER_SCANS = ".other_scans"  # of lines: a product made again, for each scan of an encoder but the first


def forward_products(cfg: ModelConfig, context_length: int | None = None, sequences: int = 1) -> dict[str, float]:
    """FLOP of the matrix products of one forward pass over `sequences` sequences, by module, all layers together.

    A weight matrix costs 2 x size a token; the sequence operations are in cores.py and architectures/ (softmax over the
    full square); the head 2dV a token; the embedding look-up is no matrix product. The sum equals what
    torch.utils.flop_counter sees in a forward pass. `context_length` defaults to the configuration's. Of an encoder,
    whose sequences are its rows, a linear mixer has a pass for each scan but for the output projection; what they have
    in common stands in lines "<name>.other_scans" for all but the first.
    """
    context = cfg.context_length if context_length is None else context_length
    documents, length, outputs = cfg.read_as(context)
    parts = [layers_products(kind, length) for kind in cfg.kinds]
    for kind in cfg.kinds:
        parts.append(_of_scans(entry_of(kind.arch).once_core, kind, length))
    if cfg.encoder is not None and cfg.encoder.patch is not None:
        parts.append({"embedding": 2.0 * cfg.embedded * cfg.d_model * length})
    products = {name: flop * documents * sequences for name, flop in summed(parts).items()}
    products["head"] = 2.0 * cfg.head_width * cfg.n_outputs * outputs * sequences
    return products | setup_products(cfg, length)


def layers_products(kind: ModelConfig, context: int) -> dict[str, float]:
    """FLOP of one sequence in all layers of a kind, forward."""
    matrices = {name: 2.0 * size * context for name, size in layer_matrices(kind).items()}
    if (core := entry_of(kind.arch).core) is None:
        raise InputError(f"{kind.arch}: the FLOP of its sequence operation are not known")
    if others := scans_of(kind, context)[0] - 1:
        again = [name for name in matrices if name.startswith("mixer.") and name != "mixer.o"]
        matrices |= {f"{name}{OTHER_SCANS}": others * matrices[name] for name in again}
    return {name: flop * kind.n_layers for name, flop in (matrices | _of_scans(core, kind, context)).items()}


def _of_scans(core: Callable[[ModelConfig, int], Lines], kind: ModelConfig, context: int) -> Lines:
    """core(kind, T), the FLOP of one sequence of T tokens, over all lines that layers of a kind read of one."""
    scans, lines, length = scans_of(kind, context)
    return {name: scans * lines * flop for name, flop in core(kind, length).items()}


def layers_backward(kind: ModelConfig, context: int) -> dict[str, float]:
    """FLOP of one sequence in all layers of a kind, backward."""
    products = {name: 2.0 * flop for name, flop in layers_products(kind, context).items()}
    excess = layer_excess(kind, context)
    return summed((products, {name: flop * kind.n_layers for name, flop in excess.items()}))


def layer_excess(kind: ModelConfig, context: int) -> dict[str, float]:
    """Entry.excess of one sequence in one layer of a kind, of all its scans."""
    return _of_scans(entry_of(kind.arch).excess, kind, context)


def unseen_products(kind: ModelConfig, context: int) -> dict[str, float]:
    """Those of `layers_products` that torch's counter does not see, as the costs declare (Entry.unseen)."""
    names = entry_of(kind.arch).unseen
    return {name: flop for name, flop in layers_products(kind, context).items() if name in names}


def setup_products(cfg: ModelConfig, context: int) -> dict[str, float]:
    """FLOP of products of parameters alone, of all kinds of layers."""
    return summed(entry_of(kind.arch).setup(kind, scans_of(kind, context)[2]) for kind in cfg.kinds)


def backward_excess(cfg: ModelConfig, context_length: int | None = None, sequences: int = 1) -> dict[str, float]:
    """FLOP of the backward pass beyond twice `forward_products`, by module; negative where it has fewer products."""
    context = cfg.context_length if context_length is None else context_length
    documents, length, _ = cfg.read_as(context)
    parts, setup = list[dict[str, float]](), list[dict[str, float]]()
    for kind in cfg.kinds:
        entry = entry_of(kind.arch)
        parts += [{name: flop * kind.n_layers for name, flop in layer_excess(kind, length).items()}]
        parts += [_of_scans(entry.once_excess, kind, length)]
        setup += [entry.setup_excess(kind, scans_of(kind, length)[2])]
    if cfg.encoder is not None and cfg.encoder.patch is not None:  # pixels have no gradient
        parts += [{"embedding.unread": -2.0 * cfg.embedded * cfg.d_model * length}]
    return {name: flop * documents * sequences for name, flop in summed(parts).items()} | summed(setup)


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
    documents, length, _ = cfg.read_as(context)
    lines = []
    for kind in cfg.kinds:
        last = "ffn.down" if entry_of(kind.arch).has_mlp else "mixer.o"
        products = layers_products(kind, length).items()
        lines.append(
            {f"{name}.again": flop * documents * sequences for name, flop in products if name != last and flop}
        )
    return summed(lines)
